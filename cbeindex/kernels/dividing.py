"""k-means of the rows of one centre, into a few cells, and second cells of rows.

Matrix products of this size cost more than they compute.
"""

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


@njit(cache=True, nogil=True)
def choose_second(points: Floats, own: Rows, centroids: Floats, choice: Rows, weight: float, second: Rows) -> None:
    """Write the second cell of each point, from the cells in `choice` other than its own, by SOAR's loss.

    The loss of a cell with the centroid c, for a point x whose own cell has the centroid c1 and with the residual
    r = x - c1, is |x - c|^2 + weight <r / |r|, x - c>^2 (Sun et al. 2023). Of equal losses the first counts.
    """
    n, width = choice.size, centroids.shape[1]
    others = np.empty((n, width), dtype=np.float32)
    squares, with_own = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.float32)
    for i in range(n):
        others[i] = centroids[choice[i]]
        squares[i] = dot_floats(others[i], others, i * width, width)
    before, own_square = np.int64(-1), np.float32(0)
    for i in range(own.size):
        point, mine = points[i], centroids[own[i]]
        if own[i] != before:
            before, own_square = own[i], dot_floats(mine, centroids, own[i] * width, width)
            for j in range(n):
                with_own[j] = dot_floats(mine, others, j * width, width)
        square, product = dot_floats(point, points, i * width, width), dot_floats(mine, points, i * width, width)
        of_residual = max(square - 2 * product + own_square, np.float32(1e-30))
        least, nearest = np.float32(np.inf), choice[0]
        for j in range(n):
            if choice[j] == own[i]:
                continue
            with_point = dot_floats(point, others, j * width, width)
            along = with_point - with_own[j] - (square - product)
            loss = squares[j] - 2 * with_point + np.float32(weight) * (along * along / of_residual)
            if loss < least:
                least, nearest = loss, choice[j]
        second[i] = nearest
