"""k-means of the rows of one centre, into a few cells: matrix products of this size cost more than they compute."""

import numpy as np

from .._core.typing import Doubles, Floats, Rows
from .dots import dot_floats
from .jit import njit


@njit(cache=True, nogil=True)
def assign(points: Floats, rows: Rows, centroids: Floats, cell: Rows, sums: Doubles, sizes: Rows) -> None:
    """Write the nearest centroid of some points, the first of equal ones; add the points to the sums of their cells."""
    n_parts, width = centroids.shape
    half_squares = np.empty(n_parts, dtype=np.float32)
    for part in range(n_parts):
        half_squares[part] = dot_floats(centroids[part], centroids, part * width, width) / np.float32(2)
    for i in range(rows.size):
        best, nearest, point = np.float32(-np.inf), 0, points[rows[i]]
        for part in range(n_parts):
            score = dot_floats(point, centroids, part * width, width) - half_squares[part]
            if score > best:
                best, nearest = score, part
        cell[i] = nearest
        sizes[nearest] += 1
        total = sums[nearest]
        for j in range(width):
            total[j] += point[j]


@njit(cache=True, nogil=True)
def average(sums: Doubles, sizes: Rows, centroids: Floats) -> None:
    """Move centroids to the means of their points, and forget the sums. Those without points stay where they are."""
    for part in range(sizes.size):
        if sizes[part] > 0:
            for j in range(centroids.shape[1]):
                centroids[part, j] = sums[part, j] / sizes[part]
    sums[:], sizes[:] = 0, 0
