"""Every row: the nearest of a segment in Hamming space, exactly or by the cascade, and the rows within a radius."""

from __future__ import annotations

import sys
from statistics import NormalDist

import numpy as np

from .. import kernels
from .._core.threads import for_each_chunk, leave_if_interrupted
from .._core.typing import Codes, Distances, HeadDistances, Keys, Mask, Ranks, Rows
from ..data.codes import BLOCK_ROWS, CodeRows
from ..data.keys import NO_KEY

NO_BOUND = int(np.iinfo(np.int32).max)

DEFAULT_MISS = 1e-3
"""The probability with which the cascade may overlook the k-th nearest row."""

_NO_RANKS: Ranks = np.empty(0, dtype=np.int32)
# Rows of a task when the rows of one query are split: enough that its hand-over does not count.
_LEAST_TASK_ROWS = 8 * BLOCK_ROWS
# Queries of a task at most. 256 of them share what is read; more only make its last call longer, which puts all keys in
# order (measured: equal times from 256 to 4,096 queries).
_MOST_TASK_QUERIES = 512
# Words of rows and queries that one call of a kernel compares: it ends in 10 ms or so, so that a search can be
# interrupted, and costs as little as one call for all rows (measured: 0.37 s for 512 queries on a million rows of 1,024
# bits with 2**25 as with 2**40).
_CALL_WORDS = 2**27
# Rows of a task of a range search, whose answers are all kept until its end.
_RANGE_TASK_ROWS = 32 * BLOCK_ROWS
# Head distances that a group of queries keeps between the two passes of the cascade (32 MiB).
_CASCADE_VALUES = 2**24
# A row that the head leaves costs the cascade as much as so many words of tails that a scan reads one after the other
# (measured at 2,048 bits: 28 ns against 0.1 a word in a batch, which shares what it reads, and 35 against 0.6 for one).
_ROW_IN_WORDS = 280
_ROW_IN_WORDS_OF_FEW = 50
_FEW_QUERIES = 4
# Queries by which the cascade is judged, at least.
_FIRST_QUERIES = 8
# The number of survivors of a query that is scanned, until all are done.
_SCANNED = -1
# Queries of a range search, or of the cascade, that are answered together.
_SHARING_QUERIES = 32


def nearest(codes: CodeRows, n_rows: int, queries: Codes, k: int, hidden: Mask, ranks: Ranks, n_threads: int) -> Keys:
    """Find the `k` nearest rows of each query, exactly.

    Parameters
    ----------
    codes : CodeRows
    n_rows : int
    queries : uint64 array of shape (n_queries, n_words)
    k : int
    hidden : bool array of shape (n_rows,), or empty
        Rows that must not be answers.
    ranks : int32 array of shape (n_rows,), or empty
        Places of rows in the order of their ids; then keys have ranks in place of rows.
    n_threads : int

    Returns
    -------
    uint64 array of shape (n_queries, min(k, n_rows))
        Keys in ascending order, `NO_KEY` where there are fewer rows.
    """
    k = min(k, n_rows)
    if len(queries) < 2 * n_threads:  # too few to keep all threads busy: split rows
        task_rows, task_queries = _rows_of_a_task(n_rows, n_threads), max(1, len(queries))
    else:
        task_rows, task_queries = n_rows, _queries_of_a_task(len(queries), n_threads)
    n_row_tasks, n_query_tasks = -(-n_rows // task_rows), -(-len(queries) // task_queries)
    keys: Keys = np.empty((n_row_tasks, len(queries), k), dtype=np.uint64)

    def task(start: int, stop: int) -> None:
        for number in range(start, stop):
            part, first = divmod(number, n_query_tasks)
            some = slice(first * task_queries, (first + 1) * task_queries)
            rows = part * task_rows, min((part + 1) * task_rows, n_rows)
            _scan(codes, queries[some], hidden, ranks, rows, NO_BOUND, keys[part, some])

    for_each_chunk(task, n_row_tasks * n_query_tasks, 1, n_threads)
    return keys[0] if n_row_tasks == 1 else np.sort(np.concatenate(list(keys), axis=1), axis=1)[:, :k]


def within(
    codes: CodeRows, n_rows: int, queries: Codes, radius: int, hidden: Mask, n_threads: int
) -> tuple[Rows, Distances, Rows]:
    """Find all rows within `radius` (inclusive) of each query: flat arrays of query, distance and row."""
    grid = [
        (query, row) for query in range(0, len(queries), _SHARING_QUERIES) for row in range(0, n_rows, _RANGE_TASK_ROWS)
    ]
    parts: list[tuple[Rows, Keys]] = [(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64))] * len(grid)

    def task(start: int, stop: int) -> None:
        for number in range(start, stop):
            first, row = grid[number]
            some = queries[first : first + _SHARING_QUERIES]
            rows = row, min(row + _RANGE_TASK_ROWS, n_rows)
            keys = np.empty((len(some), rows[1] - rows[0]), dtype=np.uint64)
            _scan(codes, some, hidden, _NO_RANKS, rows, radius + 1, keys)
            valid = keys != NO_KEY
            parts[number] = first + np.nonzero(valid)[0], keys[valid]

    for_each_chunk(task, len(grid), 1, n_threads)
    query = np.concatenate([part[0] for part in parts])
    keys = np.concatenate([part[1] for part in parts])
    return query, distances_of(keys), (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def cascade(
    codes: CodeRows,
    n_rows: int,
    n_bits: int,
    queries: Codes,
    k: int,
    hidden: Mask,
    ranks: Ranks,
    miss: float,
    n_threads: int,
) -> tuple[Keys, Rows]:
    """Find the `k` nearest rows of each query, looking at the whole code of few rows.

    A row at the k-th distance is overlooked with a probability of about `miss`; nearer rows with less. A query whose
    heads rule out too few rows is answered by a scan, and where most of the first queries are, so are all others: what
    is overlooked may depend on the queries that are asked together, but not on the number of threads.

    Returns
    -------
    uint64 array of shape (n_queries, min(k, n_rows))
        Keys in ascending order, `NO_KEY` where there are fewer rows.
    int64 array of shape (n_queries,)
        How many rows were looked at beyond their heads.
    """
    price = _ROW_IN_WORDS if len(queries) >= _FEW_QUERIES else _ROW_IN_WORDS_OF_FEW
    run = _Cascade(codes, n_rows, n_bits, min(k, n_rows), hidden, ranks, miss, price)
    keys: Keys = np.full((len(queries), run.k), NO_KEY)
    n_survivors: Rows = np.zeros(len(queries), dtype=np.int64)
    group = max(1, min(_SHARING_QUERIES, _CASCADE_VALUES // n_rows))

    def task(start: int, stop: int, threads: int = 1) -> None:
        for first in range(start, stop, group):
            some = slice(first, min(first + group, stop))
            run.search(queries[some], keys[some], n_survivors[some], threads)

    n_first = min(max(group, _FIRST_QUERIES), len(queries))
    n_others = len(queries) - n_first
    task(0, n_first, n_threads)
    if 2 * np.count_nonzero(n_survivors[:n_first] == _SCANNED) > n_first:
        keys[n_first:] = nearest(codes, n_rows, queries[n_first:], k, hidden, ranks, n_threads)
        n_survivors[n_first:] = _SCANNED
    elif n_others < 2 * n_threads:  # too few to keep all threads busy: split rows
        task(n_first, len(queries), n_threads)
    else:
        for_each_chunk(
            lambda start, stop: task(n_first + start, n_first + stop),
            n_others, _queries_of_a_task(n_others, n_threads), n_threads,
        )  # fmt: skip
    n_survivors[n_survivors == _SCANNED] = n_rows - np.count_nonzero(hidden)
    return keys, n_survivors


def checks_of(codes: CodeRows, n_bits: int, miss: float) -> tuple[Keys, Rows, float]:
    """Where the cascade checks a row: ends of stages in words of the tail, bits read by then, and standard deviations.

    The first check is after the head, and then each time the words read have doubled.
    """
    n_head, n_tail = codes.n_head, codes.tail.shape[1]
    checks = [n_head * (2**i - 1) for i in range(1, 32) if n_head * (2**i - 1) < n_tail]
    stage_ends: Keys = np.array([*checks, n_tail], dtype=np.uint64)
    words = n_head + np.concatenate([[0], stage_ends.astype(np.int64)])
    prefix_bits: Rows = np.minimum(64 * words, n_bits)
    # The checks share the probability; the last one, of the whole distance, overlooks nothing.
    return stage_ends, prefix_bits, -NormalDist().inv_cdf(max(miss / len(stage_ends), sys.float_info.min))


class _Cascade:
    """The cascade over the rows of one segment."""

    def __init__(
        self, codes: CodeRows, n_rows: int, n_bits: int, k: int, hidden: Mask, ranks: Ranks, miss: float, price: int
    ) -> None:
        self.k = k
        self._most_left = n_rows * codes.tail.shape[1] // price
        self._codes, self._n_rows, self._n_bits, self._hidden, self._ranks = codes, n_rows, n_bits, hidden, ranks
        self._stage_ends, self._prefix_bits, self._z = checks_of(codes, n_bits, miss)

    def search(self, queries: Codes, keys: Keys, n_survivors: Rows, n_threads: int) -> None:
        """Answer some queries, with the rows split over threads."""
        heads = np.empty((len(queries), self._n_rows), dtype=np.uint16)
        least = np.empty((len(queries), len(self._codes.head) * (BLOCK_ROWS // 16)), dtype=np.uint16)
        task_rows = _rows_of_a_task(self._n_rows, n_threads)

        def measure_heads(start: int, stop: int) -> None:
            kernels.cascade.head_scan(queries, self._codes.head, self._hidden, start, stop, heads, least)

        for_each_chunk(measure_heads, self._n_rows, task_rows, n_threads)
        n_survivors[:] = _SCANNED
        for i in range(len(queries)):
            answer = self._search_one(queries[i], heads[i], least[i], task_rows, n_threads)
            if answer is not None:
                n_survivors[i] = answer[1]
                keys[i, : len(answer[0])] = answer[0]
        open_ = np.flatnonzero(n_survivors == _SCANNED)
        if open_.size:
            asked = np.ascontiguousarray(queries[open_])
            keys[open_] = nearest(self._codes, self._n_rows, asked, self.k, self._hidden, self._ranks, n_threads)

    def _search_one(
        self, query: Codes, heads: HeadDistances, least: HeadDistances, task_rows: int, n_threads: int
    ) -> tuple[Keys, int] | None:
        """Answer one query whose head distances are known: ascending keys, and the number of survivors.

        None if there are too many of them.
        """
        tail, query_tail = self._codes.tail, query[self._codes.n_head :]
        room = self.k + min(self.k, 256) + BLOCK_ROWS
        limits = np.empty(len(self._prefix_bits), dtype=np.int64)
        found = np.empty(room, dtype=np.uint64)
        count, reach, n_first = kernels.cascade.first_bound(
            query_tail, tail, heads, least, self._ranks, self._n_rows, self._n_bits, self._stage_ends,
            self._prefix_bits, self._z, 2 * self.k + 32, found, self.k, limits,
        )  # fmt: skip
        if limits[0] > reach and self._leaves_too_many(heads, least, np.uint16(limits[0])):
            return None
        parts, counts = [found[:count]], [n_first]

        def measure(start: int, stop: int) -> None:
            more = np.empty(room, dtype=np.uint64)
            n_more, n_measured = kernels.cascade.measure_survivors(
                query_tail,
                tail,
                heads,
                least,
                self._ranks,
                start,
                stop,
                reach,
                limits[0],
                self._stage_ends,
                limits[1:],
                more,
                self.k,
            )
            parts.append(more[:n_more])
            counts.append(n_measured)

        if limits[0] > reach:
            for_each_chunk(measure, self._n_rows, task_rows, n_threads)
        return np.sort(np.concatenate(parts))[: self.k], sum(counts)

    def _leaves_too_many(self, heads: HeadDistances, least: HeadDistances, limit: np.uint16) -> bool:
        """Tell whether more rows than pay are within a limit; the nearest of each 16 tells it most of the time."""
        if 16 * np.count_nonzero(least <= limit) <= self._most_left:
            return False
        return bool(np.count_nonzero(heads <= limit) > self._most_left)


def distances_of(keys: Keys) -> Distances:
    """Return the distances of keys; the largest int32 for `NO_KEY`."""
    distances: Distances = np.minimum(keys >> np.uint64(32), NO_BOUND).astype(np.int32)
    return distances


def _scan(
    codes: CodeRows, queries: Codes, hidden: Mask, ranks: Ranks, rows: tuple[int, int], bound: int, keys: Keys
) -> None:
    """Find the nearest of some rows for some queries, into `keys`."""
    tails = np.ascontiguousarray(queries[:, codes.n_head :])
    n_tail = codes.tail.shape[1]
    # Checks at every 64 words of long codes; more of them cost as much as the reading that they save.
    stage_ends = np.array([*range(64, n_tail, 64), n_tail], dtype=np.uint64)
    state = room_for_scan(*keys.shape)
    step = max(1, _CALL_WORDS // max(1, queries.size * BLOCK_ROWS)) * BLOCK_ROWS
    for start in range(*rows, step):
        leave_if_interrupted()
        stop = min(start + step, rows[1])
        kernels.hamming.scan(
            queries, tails, codes.head, codes.tail, hidden, ranks, rows[0], start, stop, rows[1], bound, stage_ends,
            *state, keys,
        )  # fmt: skip


def room_for_scan(n_queries: int, k: int) -> tuple[Keys, Distances, Rows, Distances]:
    """Make room for what the kernel keeps of queries between its calls: keys, tallies, their states, and bounds.

    The kernel does not return these arrays: an interrupt while numba turns them into Python's is a SystemError.
    """
    return (
        np.empty((n_queries, k + min(k, 1024) + 576), dtype=np.uint64),
        np.empty((n_queries, 512), dtype=np.int32),
        np.empty((n_queries, 3), dtype=np.int64),
        np.empty(n_queries, dtype=np.int32),
    )


def _rows_of_a_task(n_rows: int, n_threads: int) -> int:
    """Split rows over threads."""
    if n_threads == 1:
        return n_rows
    share = -(-n_rows // (2 * n_threads))  # two for each thread even out their speeds
    return max(_LEAST_TASK_ROWS, -(-share // BLOCK_ROWS) * BLOCK_ROWS)


def _queries_of_a_task(n_queries: int, n_threads: int) -> int:
    """Split queries over threads, by fours at least, which kernels like."""
    share = -(-n_queries // (2 * n_threads)) if n_threads > 1 else n_queries
    return min(n_queries, -(-share // 4) * 4, _MOST_TASK_QUERIES)
