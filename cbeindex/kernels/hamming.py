"""Exact scans: the nearest rows of queries, and the rows within a radius.

Blocks are those of `blocks.py`, and keys, `hidden` and `ranks` those of `topk.py`.
"""

from typing import Any

import numpy as np

from .._core.typing import Codes, Distances, Ids, Keys, Mask, Ranks, Rows
from .blocks import distances_within, planes_of
from .jit import njit
from .layout import fill_blocks
from .popcount import popcount64
from .topk import put_results, settle


@njit(cache=True, nogil=True, inline="always")
def scan_blocks(
    planes: Codes, numbers: Any, blocks: Codes, first: int, n_blocks: int, start: int, stop: int, hidden: Mask,
    ranks: Ranks, k: int, limits: Rows, found: Keys, counts: Rows, distances: Distances, tally: Distances, spare: Keys,
) -> None:  # fmt: skip
    """Collect the rows of the first `n_blocks` blocks that are within the limits of the queries in the tuple `numbers`.

    The rows are numbered from `first` on. Inlined, as a call with so many arrays costs as much as some blocks.
    """
    n_words, full = blocks.shape[1], found.shape[1] - 16
    for block in range(n_blocks):
        near = distances_within(planes, numbers, blocks, block, 0, n_words, 4096, limits, 0, distances, 0)
        if near != 0:
            while near != 0:
                lowest = near & (~near + np.uint64(1))
                near ^= lowest
                bit = int(np.int64(popcount64(lowest - np.uint64(1))))
                i, row = bit >> 4, bit & 15
                query = numbers[i]
                key = np.uint64(distances[i, row]) << np.uint64(32) | np.uint64(first + 16 * block + row)
                found[query, counts[query, 0]] = key
                counts[query, 0] += 1
            for i in range(len(numbers)):
                query = numbers[i]
                if k > 0 and counts[query, 0] > full:
                    limits[0, query] = settle(
                        found[query], counts[query], start, stop, hidden, ranks, k, limits[0, query], ranks.size == 0,
                        tally, spare,
                    )  # fmt: skip


@njit(cache=True, nogil=True)
def scan(
    queries: Codes, codes: Codes, hidden: Mask, ranks: Ranks, start: int, stop: int, k: int, limits: Rows, found: Keys,
    counts: Rows,
) -> None:  # fmt: skip
    """Collect the keys of rows [start, stop) that are within the limits of queries.

    A scan of many rows may be several calls of parts of them, in ascending order, with the same `limits`, `found` and
    `counts`. Without `ranks`, a row at the k-th distance so far is too late.

    Parameters
    ----------
    queries : uint64 array of shape (n_queries, n_words)
    codes : uint64 array of shape (n_blocks, n_words, 16) or (n_rows, n_words, 1)
    hidden, ranks : bool and int32 arrays of shape (n_rows,), or empty
    start, stop : int
    k : int
        Keys wanted of each query; 0 for all within the limits.
    limits : int64 array of shape (1, n_queries)
        Largest distances, inclusive; lowered to what can be among the `k` nearest.
    found : uint64 array of shape (n_queries, room)
        Keys found, with `room_for(k)` places, or with 16 for each block if `k` is 0.
    counts : int64 array of shape (n_queries, 2)
        Numbers of keys in `found`, twice; 0 at first.
    """
    n_queries, is_by_row = queries.shape[0], codes.shape[2] == 1
    planes = planes_of(queries)
    distances, tally = np.empty((4, 16), dtype=np.int32), np.empty(512, dtype=np.int32)
    spare = np.empty(found.shape[1] if k > 0 else 0, dtype=np.uint64)
    last = (stop + 15) // 16
    # Blocks that stay in the second-level cache for all queries.
    group = max(1, last if n_queries == 1 and not is_by_row else 65536 // (codes.shape[1] * 128))
    own = np.empty((group if is_by_row else 0, codes.shape[1], 16), dtype=np.uint64)
    for begin in range(start // 16, last, group):
        first, n_blocks, query = 16 * begin, min(group, last - begin), 0
        if is_by_row:
            fill_blocks(codes, first, min(stop, first + 16 * n_blocks), own)
        blocks = own if is_by_row else codes[begin : begin + n_blocks]
        while query + 4 <= n_queries:
            four = query, query + 1, query + 2, query + 3
            scan_blocks(
                planes, four, blocks, first, n_blocks, start, stop, hidden, ranks, k, limits, found, counts, distances,
                tally, spare,
            )  # fmt: skip
            query += 4
        while query < n_queries:
            scan_blocks(
                planes, (query,), blocks, first, n_blocks, start, stop, hidden, ranks, k, limits, found, counts,
                distances, tally, spare,
            )  # fmt: skip
            query += 1
    for query in range(n_queries):
        limits[0, query] = settle(
            found[query], counts[query], start, stop, hidden, ranks, k, limits[0, query], ranks.size == 0, tally, spare
        )


@njit(cache=True, nogil=True)
def nearest(
    queries: Codes, codes: Codes, hidden: Mask, ranks: Ranks, ids: Ids, distances: Distances, found_ids: Ids
) -> None:
    """Find the nearest of all rows, and put their distances and ids in order, all in one call.

    Parameters
    ----------
    queries, codes, hidden, ranks
        As for `scan`.
    ids : int64 array of shape (n_rows,)
        Ids by rank.
    distances, found_ids : int32 and int64 arrays of shape (n_queries, k)
        Results; the largest int32 and -1 where there are fewer rows.
    """
    n_queries, k = distances.shape
    k = min(k, ids.size)
    limits = np.full((1, n_queries), 0x7FFFFFFF, dtype=np.int64)
    found, counts = np.empty((n_queries, k + max(k, 16) + 16), dtype=np.uint64), np.zeros((n_queries, 2), np.int64)
    scan(queries, codes, hidden, ranks, 0, ids.size, k, limits, found, counts)
    put_results(found, counts, ids, distances, found_ids)
