"""k-means on projections, by matrix products.

A round multiplies all points by all centroids in blocks of a fixed size, so results do not depend on the number of
threads. Rounds are few, the early ones see a part of the sample, and samples are bounded: the last tenth of the gain
costs as much as all before.

Points are divided by their first coordinates alone. Where these are random projections, the variance around means of
all coordinates is nearly that of a division by all of them, whatever the number of means: log(k / e) / e^2 of them lose
a share e of it (Makarychev, Makarychev and Razenshteyn, 2019).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .._core.threads import leave_if_interrupted
from .._core.tuning import tuning
from .._core.typing import Floats, Rows
from ..data.columns import take_rows


def assign(points: Floats, centroids: Floats) -> Rows:
    """Return the nearest centroid of each point, the first of equal ones."""
    half_squares = np.einsum("ij,ij->i", centroids, centroids) / 2
    nearest: Rows = np.empty(len(points), dtype=np.int64)
    step = tuning().kmeans_block_rows
    for start in range(0, len(points), step):
        leave_if_interrupted()
        scores = points[start : start + step] @ centroids.T
        scores -= half_squares
        nearest[start : start + step] = scores.argmax(axis=1)
    return nearest


class Division(NamedTuple):
    """Some points in cells.

    Attributes
    ----------
    rows : int64 array
        The points.
    cell : int64 array
        Of each of them.
    """

    rows: Rows
    cell: Rows


def means(points: Floats, cell: Rows, n_cells: int, rows: Rows | None = None) -> tuple[Floats, Rows]:
    """Return the mean point of each cell, zeros where a cell is empty, and the number of its points.

    `cell` has the cells of all points, or of some `rows` of them.
    """
    sizes = np.bincount(cell, minlength=n_cells)
    filled = np.flatnonzero(sizes)
    sums: Floats = np.zeros((n_cells, points.shape[1]), dtype=np.float32)
    if filled.size:
        order, ends = np.argsort(cell, kind="stable"), np.cumsum(sizes[filled])
        starts = ends - sizes[filled]
        for some in _blocks(ends):
            leave_if_interrupted()
            chosen = order[starts[some][0] : ends[some][-1]]
            members = take_rows(points, chosen if rows is None else rows[chosen])
            sums[filled[some]] = np.add.reduceat(members, starts[some] - starts[some][0], axis=0)
    sums /= np.maximum(sizes, 1)[:, np.newaxis].astype(np.float32)
    return sums, sizes


def _blocks(ends: Rows) -> Iterator[slice]:
    """Divide cells that end at these points into blocks of about as many points, but whole cells."""
    start = 0
    while start < len(ends):
        n_before = ends[start - 1] if start else 0
        stop = int(np.searchsorted(ends, n_before + tuning().kmeans_block_rows, side="right"))
        yield slice(start, max(stop, start + 1))
        start = max(stop, start + 1)


def rounds(points: Floats, rows: Rows, n_centroids: int, rng: np.random.Generator) -> Iterator[Division]:
    """Yield the division of some rows of points, at least as many as the centroids, after each round."""
    limits = tuning()
    rows = rows[rng.permutation(len(rows))[: limits.trained_centre_rows * n_centroids]]
    points = take_rows(points[:, : limits.kmeans_projections], rows)
    centroids = points[:n_centroids]
    for i in range(limits.kmeans_iterations):
        is_early = i < limits.kmeans_iterations - limits.kmeans_whole_rounds
        some = points[: max(n_centroids, len(points) // 4)] if is_early else points
        cell = assign(some, centroids)
        yield Division(rows[: len(some)], cell)
        if i + 1 == limits.kmeans_iterations:
            break
        centroids, sizes = means(some, cell, n_centroids)
        empty = np.flatnonzero(sizes == 0)
        if empty.size:  # an empty cell takes over a point of a large one
            crowded = np.argsort(-sizes[cell], kind="stable")[: len(some) // 4 + 1]
            centroids[empty] = some[rng.choice(crowded, len(empty))]
