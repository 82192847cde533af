"""Estimated distances of rows, from the projections of queries and the codes of rows."""

from __future__ import annotations

import numpy as np

from .. import kernels
from .._core.threads import for_each_chunk
from .._core.tuning import tuning
from .._core.typing import Floats, Keys, Ranks, Rows
from ..data.keys import EstimateKeys
from ..distances.estimator import EncodedQueries
from ..store.segment import NO_RANKS, Segment
from .scan import rows_per_task
from .topk import merge_keys
from .view import View


def nearest(view: View, queries: EncodedQueries, k: int, n_sigmas: float, n_threads: int) -> EstimateKeys:
    """Estimate the distance of every row: keys of the `k` nearest rows of each query, ascending.

    Rows are ordered by their estimate minus `n_sigmas` standard errors of the product in it. Among rows with very
    different errors, those that may be nearest come first.
    """
    margins = np.float32(n_sigmas) * queries.norms
    bounds = np.full(len(queries.codes), np.inf, dtype=np.float32)
    return _scan(view, queries, min(k, view.part.n_rows), margins, bounds, view.part.ranks, n_threads)


def within(view: View, queries: EncodedQueries, radius: np.float32, n_threads: int) -> EstimateKeys:
    """Find all rows with an estimated distance within `radius`: keys with rows in place of ranks, ascending."""
    margins, bounds = np.zeros_like(queries.norms), np.full(len(queries.codes), radius, dtype=np.float32)
    return _scan(view, queries, view.part.n_rows, margins, bounds, NO_RANKS, n_threads)


def distances(segment: Segment, queries: EncodedQueries, rows: Rows, n_threads: int) -> Floats:
    """Estimate the distances of each query to its own rows: `rows` and the result are (n_queries, any)."""
    estimates: Floats = np.empty(rows.shape, dtype=np.float32)
    codes, columns = segment.codes, segment.columns

    def task(start: int, stop: int) -> None:
        some = slice(start, stop)
        q = queries.some(some)
        kernels.asymmetric.estimate_rows(
            q.levels, q.totals, q.steps, q.offsets, codes.blocks, columns["offsets"], columns["factors"], rows[some],
            estimates[some],
        )  # fmt: skip

    for_each_chunk(task, len(rows), 8, n_threads)
    return estimates


def _scan(
    view: View, queries: EncodedQueries, k: int, margins: Floats, bounds: Floats, ranks: Ranks, n_threads: int
) -> EstimateKeys:
    """Return the keys of the `k` nearest rows within `bounds`; `margins` times the spread of a row is subtracted."""
    n_rows, n_queries = view.part.n_rows, len(queries.codes)
    codes, columns = view.part.codes, view.part.columns
    split_rows = n_queries < 2 * n_threads and n_threads > 1  # too few queries to occupy all threads
    row_bytes = 8 * codes.n_words * max(1, n_queries)
    task_rows = rows_per_task(n_rows, row_bytes, n_threads) if split_rows else max(1, n_rows)
    starts = range(0, n_rows, task_rows)
    keys: Keys = np.empty((len(starts), n_queries, k), dtype=np.uint64)
    most = max(4, min(tuning().estimate_task_queries, tuning().estimate_task_rows // max(1, n_rows)))
    step = n_queries if split_rows else min(n_queries, most)
    grid = [(part, first) for part in range(len(starts)) for first in range(0, n_queries, max(1, step))]

    def task(begin: int, end: int) -> None:
        for part, first in grid[begin:end]:
            which = slice(first, first + step)
            q = queries.some(which)
            kernels.asymmetric.scan(
                q.levels, q.totals, q.steps, q.offsets, margins[which], codes.blocks, columns["offsets"],
                columns["factors"], columns["spreads"], view.hidden, ranks, starts[part],
                min(starts[part] + task_rows, n_rows), bounds[which], keys[part, which],
            )  # fmt: skip

    for_each_chunk(task, len(grid), 1, n_threads)
    return EstimateKeys(merge_keys(keys))
