"""k-means of the rows of one centre, into a few cells: matrix products of this size cost more than they compute."""

import numpy as np

from .._core.typing import Doubles, Floats, Rows
from .dots import dot_floats
from .jit import njit


@njit(cache=True, nogil=True)
def assign(points: Floats, rows: Rows, centroids: Floats, cell: Rows) -> None:
    """Write the nearest centroid of some points, the first of equal ones."""
    n_parts, width = centroids.shape
    half_squares = np.empty(n_parts, dtype=np.float32)
    for part in range(n_parts):
        half_squares[part] = dot_floats(centroids[part], centroids, part * width, width) / np.float32(2)
    for i in range(rows.size):
        best, nearest = np.float32(-np.inf), 0
        for part in range(n_parts):
            score = dot_floats(points[rows[i]], centroids, part * width, width) - half_squares[part]
            if score > best:
                best, nearest = score, part
        cell[i] = nearest


@njit(cache=True, nogil=True)
def average(points: Floats, rows: Rows, cell: Rows, sums: Doubles, sizes: Rows, centroids: Floats) -> None:
    """Move centroids to the means of their points. Those without points stay where they are."""
    sums[:], sizes[:] = 0, 0
    for i in range(rows.size):
        sizes[cell[i]] += 1
        total, point = sums[cell[i]], points[rows[i]]
        for j in range(point.size):
            total[j] += point[j]
    for part in range(sizes.size):
        if sizes[part] > 0:
            for j in range(centroids.shape[1]):
                centroids[part, j] = sums[part, j] / sizes[part]


@njit(cache=True, nogil=True)
def divide(points: Floats, sample: Rows, n_rounds: int, centroids: Floats, cell: Rows) -> None:
    """Divide points into as many cells as there are centroids; write the cell of each point, and the means of cells.

    The first points of the sample are the first centroids, and rounds of k-means improve them on the sample.
    """
    n_parts, width = centroids.shape
    for part in range(n_parts):
        centroids[part] = points[sample[part]]
    sums, sizes = np.empty((n_parts, width)), np.empty(n_parts, dtype=np.int64)
    nearest = np.empty(sample.size, dtype=np.int64)
    for _ in range(n_rounds if n_parts > 1 else 0):
        assign(points, sample, centroids, nearest)
        average(points, sample, nearest, sums, sizes, centroids)
    rows = np.arange(points.shape[0])
    assign(points, rows, centroids, cell)
    average(points, rows, cell, sums, sizes, centroids)
