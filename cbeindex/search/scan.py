"""Scan: compare every row of a segment with each query in Hamming distance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .. import kernels
from .._core.threads import for_each_chunk, leave_if_interrupted
from .._core.tuning import tuning
from .._core.typing import Codes, Distances, Keys, Mask, Ranks, Rows
from ..data.codes import BLOCK_ROWS, CodeRows
from ..data.keys import HammingKeys
from ..store.segment import NO_RANKS
from .queries import CodeQueries
from .topk import merge_keys
from .view import View

NO_BOUND = int(np.iinfo(np.int32).max)
"""A bound on distances that every row meets."""


class Matches(NamedTuple):
    """All rows within a radius, as flat arrays in any order.

    Attributes
    ----------
    queries : int64 array
        Number of the query.
    distances : int32 or float32 array
    rows : int64 array
    """

    queries: Rows
    distances: Distances
    rows: Rows


def nearest(view: View, queries: CodeQueries) -> HammingKeys:
    """Find the nearest rows of each query: keys of shape (n_queries, min(k, n_rows)), ascending."""
    n_rows, n_queries, n_threads = view.part.n_rows, len(queries), queries.n_threads
    if n_queries < 2 * n_threads:  # too few queries to occupy all threads: split the rows
        task_rows, task_queries = rows_per_task(n_rows, n_threads), max(1, n_queries)
    else:
        task_rows, task_queries = n_rows, queries_per_task(n_queries, queries.k, n_threads)
    n_row_tasks, n_query_tasks = -(-n_rows // task_rows), -(-n_queries // task_queries)
    keys: Keys = np.empty((n_row_tasks, n_queries, min(queries.k, n_rows)), dtype=np.uint64)

    def task(start: int, stop: int) -> None:
        for number in range(start, stop):
            part, first = divmod(number, n_query_tasks)
            some = slice(first * task_queries, (first + 1) * task_queries)
            rows = range(part * task_rows, min((part + 1) * task_rows, n_rows))
            _scan_rows(view, queries.codes[some], rows, view.part.ranks, NO_BOUND, keys[part, some])

    for_each_chunk(task, n_row_tasks * n_query_tasks, 1, n_threads)
    return HammingKeys(merge_keys(keys))


def within(view: View, queries: CodeQueries, radius: int) -> Matches:
    """Find all rows within `radius` (inclusive) of each query."""
    n_rows, codes = view.part.n_rows, queries.codes
    task_queries, task_rows = tuning().shared_queries, tuning().range_task_rows
    grid = [(query, row) for query in range(0, len(codes), task_queries) for row in range(0, n_rows, task_rows)]
    numbers: list[Rows] = [np.empty(0, dtype=np.int64)] * len(grid)
    found: list[Keys] = [np.empty(0, dtype=np.uint64)] * len(grid)

    def task(start: int, stop: int) -> None:
        for i in range(start, stop):
            first, row = grid[i]
            some = codes[first : first + task_queries]
            rows = range(row, min(row + task_rows, n_rows))
            packed = np.empty((len(some), len(rows)), dtype=np.uint64)
            _scan_rows(view, some, rows, NO_RANKS, radius + 1, packed)
            keys = HammingKeys(packed)
            numbers[i] = first + np.nonzero(~keys.is_missing())[0]
            found[i] = keys.present().packed

    for_each_chunk(task, len(grid), 1, queries.n_threads)
    keys = HammingKeys(np.concatenate(found))
    return Matches(np.concatenate(numbers), keys.distances(), keys.ranks())


def rows_per_task(n_rows: int, n_threads: int) -> int:
    """Split rows over threads."""
    if n_threads == 1:
        return n_rows
    share = -(-n_rows // (2 * n_threads))  # two tasks for each thread even out their speeds
    return max(tuning().least_scan_task_rows, -(-share // BLOCK_ROWS) * BLOCK_ROWS)


def queries_per_task(n_queries: int, k: int, n_threads: int) -> int:
    """Split queries over threads, in multiples of the four queries that a kernel compares at a time."""
    share = -(-n_queries // (2 * n_threads)) if n_threads > 1 else n_queries
    most = max(4, min(tuning().scan_task_queries, tuning().scan_task_results // max(1, k)))
    return min(n_queries, -(-min(share, most) // 4) * 4)


def _scan_rows(view: View, queries: Codes, rows: range, ranks: Ranks, bound: int, keys: Keys) -> None:
    """Write the keys of the nearest of some rows below `bound` into `keys`, (n_queries, k), ascending."""
    codes: CodeRows = view.part.codes
    hidden: Mask = view.hidden
    tails = np.ascontiguousarray(queries[:, codes.n_head :])
    n_tail = codes.tail.shape[1]
    # Long codes are checked against the bound every 64 words; more checks cost as much as the reading they save.
    stage_ends = np.array([*range(64, n_tail, 64), n_tail], dtype=np.uint64)
    state = allocate_scan_state(*keys.shape)
    step = max(1, tuning().scan_call_words // max(1, queries.size * BLOCK_ROWS)) * BLOCK_ROWS
    for start in range(rows.start, rows.stop, step):
        leave_if_interrupted()
        stop = min(start + step, rows.stop)
        kernels.hamming.scan(
            queries, tails, codes.head, codes.tail, hidden, ranks, rows.start, start, stop, rows.stop, bound,
            stage_ends, *state, keys,
        )  # fmt: skip


def allocate_scan_state(n_queries: int, k: int) -> tuple[Keys, Distances, Rows, Distances]:
    """Allocate the state that the scan kernel keeps between calls: keys, tallies, their states, and bounds.

    The kernel does not return these arrays, because an interrupt while numba returns arrays is a SystemError.
    """
    return (
        np.empty((n_queries, k + min(k, 1024) + 576), dtype=np.uint64),
        np.empty((n_queries, 512), dtype=np.int32),
        np.empty((n_queries, 3), dtype=np.int64),
        np.empty(n_queries, dtype=np.int32),
    )
