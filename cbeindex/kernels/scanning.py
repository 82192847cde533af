"""Scans: the nearest rows of queries, and the rows within a radius, over blocks of 16 rows; exact, or as a cascade.

The layout is that of `blocks.py`, keys are those of `selecting.py`. `hidden` marks rows that must not be results, or is
empty. `ranks` has the places of rows in the order of their ids, or is empty where rows are in that order.

The cascade reads a block in stages: the first words, then more. If the differing bits of a row lie anywhere with equal
chance, the count over the first words of a row at the k-th distance is hypergeometric; a block is left when all its
rows exceed the mean by some standard deviations. An exact scan has one stage. The words that are read first lie at the
front of a block, so nothing else is read with them. Where blocks are seldom left, the cascade scans many of them in
one stage before it tries again.
"""

from typing import Any

import numpy as np

from .._typing import Codes, Distances, Keys, Mask, Ranks, Rows
from .blocks import distances_within, planes_of
from .jit import njit
from .popcount import popcount64
from .selecting import settle


@njit(cache=True, nogil=True)
def set_stage_limits(query: int, distance: int, n_bits: int, ends: Rows, z: float, limits: Rows) -> None:
    """Set the largest counts of a query's rows after each stage, whose limit on the whole distance is `distance`.

    `limits`, (n_stages, n_queries), gets mean and `z` standard deviations of the count over the first `ends` words of a
    row at that distance. It cannot exceed the whole distance.
    """
    last = ends.size - 1
    p = min(1.0, max(0.0, distance / n_bits))
    for stage in range(last):
        size = 64 * ends[stage]
        spread = np.sqrt(size * p * (1 - p) * (n_bits - size) / max(1, n_bits - 1))
        limits[stage, query] = min(distance, int(np.floor(distance * size / n_bits + z * spread)))
    limits[last, query] = distance


@njit(cache=True, nogil=True, inline="always")
def scan_blocks(
    planes: Codes, numbers: Any, blocks: Codes, begin: int, end: int, start: int, stop: int, hidden: Mask, ranks: Ranks,
    k: int, n_bits: int, ends: Rows, first: int, z: float, limits: Rows, found: Keys, counts: Rows,
    distances: Distances, tally: Distances, spare: Keys,
) -> int:  # fmt: skip
    """Collect rows of blocks [begin, end) for the queries in the tuple `numbers`; stages before `first` are left out.

    Returns how often a block was not left after the first stage, counted for each query.
    """
    last, full, n_kept = ends.size - 1, found.shape[1] - 16, 0
    # Where all of a block is read, memory is asked for 4 KiB ahead; otherwise the beginnings of blocks are, some blocks
    # ahead, and the rest of a block when it is read.
    n_words, n_all = ends[first], blocks.shape[1]
    ahead = 4096 if n_words == n_all else 128 * n_all * max(1, 4096 // (128 * n_words))
    for block in range(begin, end):
        candidates = distances_within(planes, numbers, blocks, block, 0, n_words, limits, first, distances, 0, ahead)
        if candidates != 0:
            for i in range(len(numbers)):
                near, query, stage = candidates >> np.uint64(16 * i) & np.uint64(0xFFFF), numbers[i], first
                n_kept += near != 0
                while near != 0 and stage < last:
                    near = distances_within(
                        planes,
                        (query,),
                        blocks,
                        block,
                        ends[stage],
                        ends[stage + 1],
                        limits,
                        stage + 1,
                        distances,
                        i,
                        0,
                    )
                    stage += 1
                while near != 0:
                    lowest = near & (~near + np.uint64(1))
                    near ^= lowest
                    row = np.int64(popcount64(lowest - np.uint64(1)))
                    key = np.uint64(distances[i, row]) << np.uint64(32) | np.uint64(16 * block + row)
                    found[query, counts[query, 0]] = key
                    counts[query, 0] += 1
                if k > 0 and counts[query, 0] > full:
                    limit = settle(
                        found[query], counts[query], start, stop, hidden, ranks, k, limits[last, query], tally, spare
                    )
                    set_stage_limits(query, limit, n_bits, ends, z, limits)
    return n_kept


@njit(cache=True, nogil=True)
def scan(
    queries: Codes, blocks: Codes, hidden: Mask, ranks: Ranks, start: int, stop: int, k: int, n_bits: int, ends: Rows,
    z: float, bounds: Rows, found: Keys, counts: Rows,
) -> None:  # fmt: skip
    """Collect the keys of rows [start, stop) that are within the bounds of queries.

    Parameters
    ----------
    queries : uint64 array of shape (n_queries, n_words)
    blocks : uint64 array of shape (n_blocks, n_words, 16)
    hidden, ranks : bool and int32 arrays of shape (n_rows,), or empty
    start, stop : int
    k : int
        Keys wanted of each query; 0 for all within the bounds.
    n_bits : int
    ends : int64 array of shape (n_stages,)
        Words read after each stage, the last of which is n_words; an exact scan has only that.
    z : float
        Standard deviations by which counts may exceed the mean after all stages but the last.
    bounds : int64 array of shape (n_queries,)
        Largest distances, inclusive; lowered to what can be among the `k` nearest.
    found : uint64 array of shape (n_queries, room)
        Keys found, with `room_for(k)` places, or with 16 for each block if `k` is 0.
    counts : int64 array of shape (n_queries, 2)
        Numbers of keys in `found`, twice; 0 at first.
    """
    n_queries, n_stages = queries.shape[0], ends.size
    planes = planes_of(queries)
    distances, tally = np.empty((4, 16), dtype=np.int32), np.empty(512, dtype=np.int32)
    spare = np.empty(found.shape[1] if k > 0 else 0, dtype=np.uint64)
    limits = np.empty((n_stages, n_queries), dtype=np.int64)
    for query in range(n_queries):
        set_stage_limits(query, bounds[query], n_bits, ends, z, limits)
    # Groups of blocks that a query scans in one stage before it tries the cascade again, now and the next time.
    waits = np.ones((n_queries, 2), dtype=np.int64)
    last = (stop + 15) // 16
    # Blocks that stay in the second-level cache for all queries; the cascade reads a part of them.
    n_bytes = 65536 if n_stages == 1 else 262144
    group = max(1, last if n_queries + n_stages == 2 else n_bytes // (blocks.shape[1] * 128))
    for begin in range(start // 16, last, group):
        end, query = min(begin + group, last), 0
        while query < n_queries:
            first = n_stages - 1 if waits[query, 0] > 0 else 0
            if query + 4 <= n_queries:
                size, four = 4, (query, query + 1, query + 2, query + 3)
                n_kept = scan_blocks(
                    planes, four, blocks, begin, end, start, stop, hidden, ranks, k, n_bits, ends, first, z, limits,
                    found, counts, distances, tally, spare,
                )  # fmt: skip
            else:
                size = 1
                n_kept = scan_blocks(
                    planes, (query,), blocks, begin, end, start, stop, hidden, ranks, k, n_bits, ends, first, z, limits,
                    found, counts, distances, tally, spare,
                )  # fmt: skip
            if waits[query, 0] > 0:
                waits[query, 0] -= 1
            elif 3 * n_kept > size * (end - begin):
                waits[query, 1] = min(64, 2 * waits[query, 1] + 1)
                waits[query, 0] = waits[query, 1]
            else:
                waits[query, 1] = 0
            query += size
    for query in range(n_queries):
        bounds[query] = settle(
            found[query], counts[query], start, stop, hidden, ranks, k, limits[n_stages - 1, query], tally, spare
        )
