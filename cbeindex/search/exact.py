"""Exact distances, from the vectors that an index keeps."""

from __future__ import annotations

import numpy as np

from .._core.threads import for_each_chunk
from .._core.tuning import tuning
from .._core.typing import Floats, Mask, Rows, Vectors
from ..data.sparserows import VectorRows
from ..distances.kept import Candidates, ExactNearest, KeptVectors
from .topk import TopK


def nearest(kept: KeptVectors, queries: VectorRows, candidates: Candidates, k: int, n_threads: int) -> tuple[TopK, int]:
    """Find the `k` nearest candidates of each query, and count the vectors read."""
    n_queries = len(queries)
    limits, query_values = tuning(), kept.dim * max(1, candidates.rows.shape[1])
    step = min(limits.exact_task_queries, limits.exact_task_values // kept.dim, n_queries // (4 * n_threads))
    step = min(step, limits.exact_task_reads // query_values)
    if n_queries <= max(1, step):
        found = kept.nearest(queries, candidates, k)
        return TopK(found.distances, found.ids), int(found.n_read.sum())
    found = ExactNearest.empty(n_queries, k)

    def task(start: int, stop: int) -> None:
        some = slice(start, stop)
        part = kept.nearest(queries[some], candidates.some(some), k)
        found.distances[some], found.ids[some], found.n_read[some] = part

    for_each_chunk(task, n_queries, max(1, step), n_threads)
    return TopK(found.distances, found.ids), int(found.n_read.sum())


def nearest_of_all(kept: KeptVectors, queries: VectorRows, hidden: Mask, k: int, n_threads: int) -> TopK:
    """Find the `k` nearest of all rows that are not hidden."""
    found = TopK.missing(len(queries), k, np.float32)

    def task(start: int, stop: int) -> None:
        for i in range(start, stop):
            near, ids = kept.nearest_of_all(kept.dense(queries[i : i + 1])[0], hidden, k)
            found.distances[i, : len(near)], found.ids[i, : len(near)] = near, ids

    for_each_chunk(task, len(queries), 1, n_threads)
    return found


def within(kept: KeptVectors, query: Vectors, rows: Rows, radius: np.float32) -> tuple[Floats, Rows]:
    """Return the distances and rows of those of some rows that are within `radius` of a query."""
    step = tuning().range_read_rows
    parts = [kept.distances(rows[start : start + step], query) for start in range(0, len(rows), step)]
    near = np.concatenate([np.empty(0, np.float32), *parts])
    is_within = near <= radius
    return near[is_within], rows[is_within]
