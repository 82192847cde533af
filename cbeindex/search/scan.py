"""Scan: compare every row of a segment with each query in Hamming distance."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .. import kernels
from .._core.threads import for_each_chunk, leave_if_interrupted
from .._core.tuning import tuning
from .._core.typing import Codes, Distances, Keys, Rows
from ..data.codes import BLOCK_ROWS
from ..data.keys import HammingKeys
from ..store.segment import NO_RANKS
from .queries import CodeQueries
from .topk import TopK, merge_keys
from .view import View

NO_LIMIT = int(np.iinfo(np.int32).max)
"""A limit on distances that every row meets."""

# Tasks begin at multiples of this many rows, which all kernels accept.
_TASK_STEP = 512


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
    task_rows, task_queries = _task_size(view, queries)
    n_row_tasks, n_query_tasks = -(-n_rows // task_rows), -(-n_queries // task_queries)
    if n_row_tasks == n_query_tasks == 1:
        return HammingKeys(_nearest(view, queries.codes, range(n_rows), queries.k))
    keys: Keys = np.empty((n_row_tasks, n_queries, min(queries.k, n_rows)), dtype=np.uint64)

    def task(start: int, stop: int) -> None:
        for number in range(start, stop):
            part, first = divmod(number, n_query_tasks)
            some = slice(first * task_queries, (first + 1) * task_queries)
            rows = range(part * task_rows, min((part + 1) * task_rows, n_rows))
            keys[part, some] = _nearest(view, queries.codes[some], rows, keys.shape[2])

    for_each_chunk(task, n_row_tasks * n_query_tasks, 1, n_threads)
    return HammingKeys(merge_keys(keys))


def is_one_call(view: View, queries: CodeQueries) -> bool:
    """Return whether one kernel call can put distances and ids in order.

    Rows must be in the order of ids. The call must be too short to interrupt, or to split over threads.
    """
    part, (n_queries, n_words) = view.part, queries.codes.shape
    if part.ranks.size or view.rows is not None or part.n_rows * n_words * n_queries > tuning().scan_call_words:
        return False
    return _task_size(view, queries) == (part.n_rows, n_queries)


def results(view: View, queries: CodeQueries) -> TopK | None:
    """Find the nearest rows of each query, and their distances and ids, if one kernel call can do all of it.

    Otherwise, returns None, and `nearest` finds keys.
    """
    if not is_one_call(view, queries):
        return None
    leave_if_interrupted()
    part, found = view.part, TopK.empty(len(queries), queries.k)
    kernels.hamming.nearest(queries.codes, part.codes.blocks, view.hidden, part.ranks, part.ids, *found)
    return found


def within(view: View, queries: CodeQueries, radius: int) -> Matches:
    """Find all rows within `radius` (inclusive) of each query."""
    n_rows, codes = view.part.n_rows, queries.codes
    task_queries, task_rows = tuning().shared_queries, tuning().range_task_rows
    grid = [(query, row) for query in range(0, len(codes), task_queries) for row in range(0, n_rows, task_rows)]
    numbers: list[Rows] = [np.empty(0, dtype=np.int64)] * len(grid)
    found: list[Keys] = [np.empty(0, dtype=np.uint64)] * len(grid)
    in_order = view._replace(part=replace(view.part, ranks=NO_RANKS))  # keys of rows, not of ranks

    def task(start: int, stop: int) -> None:
        for i in range(start, stop):
            first, row = grid[i]
            some = codes[first : first + task_queries]
            rows = range(row, min(row + task_rows, n_rows))
            state = ScanState.empty(len(some), 0, radius, BLOCK_ROWS * -(-len(rows) // BLOCK_ROWS))
            _scan_rows(in_order, some, rows, state)
            counts = state.counts[:, 0]
            numbers[i] = first + np.repeat(np.arange(len(some)), counts)
            found[i] = state.found[np.arange(state.found.shape[1]) < counts[:, np.newaxis]]

    for_each_chunk(task, len(grid), 1, queries.n_threads)
    keys = HammingKeys(np.concatenate(found))
    return Matches(np.concatenate(numbers), keys.distances(), keys.ranks())


def rows_per_task(n_rows: int, row_bytes: int, n_threads: int) -> int:
    """Split rows over threads; `row_bytes` are the bytes of a code times the queries that it is compared with."""
    least = tuning().least_scan_task_bytes // row_bytes
    if n_threads == 1 or n_rows <= least:
        return n_rows
    share = max(least, -(-n_rows // (2 * n_threads)))  # two tasks for each thread even out their speeds
    return min(n_rows, -(-share // _TASK_STEP) * _TASK_STEP)


def _task_size(view: View, queries: CodeQueries) -> tuple[int, int]:
    """Return the rows and the queries of a task."""
    n_rows, n_queries, n_threads = view.part.n_rows, len(queries.codes), queries.n_threads
    if n_queries < 2 * n_threads:  # too few queries to occupy all threads: split the rows
        return rows_per_task(n_rows, 8 * queries.codes.shape[1] * max(1, n_queries), n_threads), max(1, n_queries)
    return n_rows, queries_per_task(n_queries, queries.k, n_threads)


def queries_per_task(n_queries: int, k: int, n_threads: int) -> int:
    """Split queries over threads, in multiples of the four queries that a kernel compares at a time."""
    share = -(-n_queries // (2 * n_threads)) if n_threads > 1 else n_queries
    most = max(4, min(tuning().scan_task_queries, tuning().scan_task_results // max(1, k)))
    return min(n_queries, -(-min(share, most) // 4) * 4)


class ScanState(NamedTuple):
    """What a scan has found so far, for some queries.

    Kernels fill these arrays and do not return them, because an interrupt while numba returns arrays is a SystemError.

    Attributes
    ----------
    k : int
        Keys wanted of each query, 0 for all within the limits.
    limits : int64 array of shape (1, n_queries)
        Largest distances of rows to come.
    found : uint64 array of shape (n_queries, any)
        Keys.
    counts : int64 array of shape (n_queries, 2)
        Numbers of keys, twice.
    """

    k: int
    limits: Rows
    found: Keys
    counts: Rows

    @classmethod
    def empty(cls, n_queries: int, k: int, limit: int, room: int | None = None) -> ScanState:
        """Allocate the state before the first row; `room` is the number of rows if `k` is 0."""
        room = kernels.topk.room_for(k) if room is None else room
        return cls(
            k,
            np.full((1, n_queries), limit, dtype=np.int64),
            np.empty((n_queries, room), dtype=np.uint64),
            np.zeros((n_queries, 2), dtype=np.int64),
        )

    def write(self, keys: Keys) -> None:
        """Write the keys of each query to `keys`, (n_queries, k), ascending."""
        kernels.topk.put_in_order(self.found, self.counts, keys)


def _nearest(view: View, queries: Codes, rows: range, k: int) -> Keys:
    """Return the keys of the nearest of some rows, (n_queries, min(k, n_rows)), ascending."""
    keys = np.empty((len(queries), min(k, view.part.n_rows)), dtype=np.uint64)
    state = ScanState.empty(*keys.shape, NO_LIMIT)
    _scan_rows(view, queries, rows, state)
    state.write(keys)
    return keys


def _scan_rows(view: View, queries: Codes, rows: range, state: ScanState) -> None:
    """Collect the keys of some rows."""
    blocks, hidden, ranks = view.part.codes.blocks, view.hidden, view.part.ranks
    step = max(1, tuning().scan_call_words // max(1, queries.size * _TASK_STEP)) * _TASK_STEP
    for start in range(rows.start, rows.stop, step):
        leave_if_interrupted()
        stop = min(start + step, rows.stop)
        kernels.hamming.scan(queries, blocks, hidden, ranks, start, stop, *state)
