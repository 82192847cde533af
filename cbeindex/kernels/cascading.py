"""The cascade over blocks of 16 rows: few blocks are read beyond their first words.

First, the least distance of each block over its first words is noted (`prefix_scan`). The blocks that are nearest there
are read wholly and give a bound on the k-th distance. If the differing bits of a row lie anywhere with equal chance,
its count over the first words is hypergeometric. A block is left when all its rows exceed the mean of a row at the
bound by some standard deviations (`measure_blocks`). The first words of a block are contiguous, so reading them reads
nothing else; on codes of images, a copy of the first words of all rows would be no faster.

Whether that pays is known from a sample: scan some blocks exactly, take the distance of the nearest as the bound, and
count the blocks that it leaves (`n_left`). What the sample has found is kept, so a sample costs next to nothing.
"""

import numpy as np

from .._core.typing import Codes, Distances, HeadDistances, Keys, Mask, Ranks, Rows
from .blocks import distances_within, least_distances, planes_of
from .jit import njit
from .popcount import popcount64
from .selecting import settle
from .topk import keep_smallest


@njit(cache=True, nogil=True)
def set_stage_limits(distance: int, n_bits: int, ends: Rows, z: float, limits: Rows) -> None:
    """Set the largest counts over the first words of rows that are at most at `distance`.

    `limits`, (n_stages, 1), gets mean and `z` standard deviations of the count over the first `ends` words of a row at
    that distance. A count cannot exceed the whole distance.
    """
    last = ends.size - 1
    p = min(1.0, max(0.0, distance / n_bits))
    for stage in range(last):
        size = 64 * ends[stage]
        spread = np.sqrt(size * p * (1 - p) * (n_bits - size) / max(1, n_bits - 1))
        limits[stage, 0] = min(distance, int(np.floor(distance * size / n_bits + z * spread)))
    limits[last, 0] = distance


@njit(cache=True, nogil=True)
def prefix_scan(queries: Codes, blocks: Codes, n_words: int, begin: int, end: int, least: HeadDistances) -> None:
    """Put the least distances of blocks [begin, end) over their first `n_words` words into `least`.

    `least`, (n_queries, n_blocks), is uint16.
    """
    n_queries = queries.shape[0]
    planes = planes_of(queries)
    # Memory is asked for some blocks ahead, as it is read by 4 KiB; as many blocks as fit the cache serve all queries.
    ahead = 128 * blocks.shape[1] * max(1, 4096 // (128 * n_words))
    group = max(1, 65536 // (128 * n_words))
    for first in range(begin, end, group):
        query = 0
        while query + 4 <= n_queries:
            four = query, query + 1, query + 2, query + 3
            for block in range(first, min(first + group, end)):
                least_distances(planes, four, blocks, block, 0, n_words, ahead, least)
            query += 4
        while query < n_queries:
            for block in range(first, min(first + group, end)):
                least_distances(planes, (query,), blocks, block, 0, n_words, ahead, least)
            query += 1


@njit(cache=True, nogil=True)
def n_left(least: HeadDistances, begin: int, end: int, distances: Rows, n_bits: int, ends: Rows, z: float) -> int:
    """Count the blocks of [begin, end) that queries would read if `distances` were their k-th, over all queries."""
    limits, count = np.empty((ends.size, 1), dtype=np.int64), 0
    for query in range(distances.size):
        set_stage_limits(distances[query], n_bits, ends, z, limits)
        limit = limits[0, 0]
        for block in range(begin, end):
            count += least[query, block] <= limit
    return count


@njit(cache=True, nogil=True)
def measure_some(
    planes: Codes, blocks: Codes, least: HeadDistances, above: int, reach: int, begin: int, end: int, start: int,
    stop: int, hidden: Mask, ranks: Ranks, k: int, n_bits: int, ends: Rows, z: float, limits: Rows, found: Keys,
    counts: Rows, survivors: Rows, distances: Distances, tally: Distances, spare: Keys,
) -> int:  # fmt: skip
    """Collect rows of blocks [begin, end) whose least prefix distance is in (above, reach], for one query.

    Blocks are read stage by stage, and left when no row is within the limit of a stage. Returns how many were read.
    """
    last, full, n_read, n_near = ends.size - 1, found.size - 16, 0, 0
    for block in range(begin, end):
        survivors[n_near] = block
        n_near += above < least[block] <= min(reach, limits[0, 0])
    for i in range(n_near):
        block = survivors[i]
        if least[block] > limits[0, 0]:  # lowered meanwhile
            continue
        n_read += 1
        # While words of a block are read, those of the next block are asked for.
        ahead = 128 * blocks.shape[1] * (survivors[min(i + 1, n_near - 1)] - block)
        near = distances_within(planes, (0,), blocks, block, 0, ends[0], ahead, limits, 0, distances, 0)
        stage = 0
        while near != 0 and stage < last:
            near = distances_within(
                planes, (0,), blocks, block, ends[stage], ends[stage + 1], ahead, limits, stage + 1, distances, 0
            )
            stage += 1
        while near != 0:
            lowest = near & (~near + np.uint64(1))
            near ^= lowest
            row = np.int64(popcount64(lowest - np.uint64(1)))
            found[counts[0]] = np.uint64(distances[0, row]) << np.uint64(32) | np.uint64(16 * block + row)
            counts[0] += 1
        if counts[0] > full:
            limit = settle(found, counts, start, stop, hidden, ranks, k, limits[last, 0], tally, spare)
            set_stage_limits(limit, n_bits, ends, z, limits)
    limit = settle(found, counts, start, stop, hidden, ranks, k, limits[last, 0], tally, spare)
    set_stage_limits(limit, n_bits, ends, z, limits)
    return n_read


@njit(cache=True, nogil=True)
def measure_blocks(
    queries: Codes, blocks: Codes, least: HeadDistances, start: int, stop: int, hidden: Mask, ranks: Ranks, k: int,
    n_bits: int, ends: Rows, z: float, limits: Rows, found: Keys, counts: Rows, n_read: Rows,
) -> None:  # fmt: skip
    """Collect the `k` nearest of rows [start, stop) for queries whose `least` prefix distances are known.

    Arguments are as for `scanning.scan`, and:

    Parameters
    ----------
    least : uint16 array of shape (n_queries, n_blocks)
        As made by `prefix_scan` over the first `ends[0]` words.
    n_bits : int
    ends : int64 array of shape (n_stages,)
        Words read after each stage, the last of which is n_words.
    z : float
        Standard deviations by which counts may exceed the mean after all stages but the last.
    n_read : int64 array of shape (n_queries,)
        Gets the number of blocks that were read beyond the prefix scan.
    """
    begin, end = start // 16, (stop + 15) // 16
    distances, tally = np.empty((1, 16), dtype=np.int32), np.empty(512, dtype=np.int32)
    spare, order = np.empty(found.shape[1], dtype=np.uint64), np.empty(max(0, end - begin), dtype=np.uint64)
    survivors = np.empty(order.size + 1, dtype=np.int64)
    of_stages = np.empty((ends.size, 1), dtype=np.int64)
    n_first = 2 * k + 32  # blocks that give the first bound: each has a row at its least distance
    for query in range(queries.shape[0]):
        planes, of_query, reach = planes_of(queries[query : query + 1]), least[query], np.int64(65535)
        if n_first < order.size:
            for i in range(order.size):
                order[i] = of_query[begin + i]
            reach = np.int64(keep_smallest(order, order.size, n_first))
        set_stage_limits(limits[0, query], n_bits, ends, z, of_stages)
        above, n_read[query] = np.int64(-1), 0
        while above < min(65535, of_stages[0, 0]):
            n_read[query] += measure_some(
                planes, blocks, of_query, above, reach, begin, end, start, stop, hidden, ranks, k, n_bits, ends, z,
                of_stages, found[query], counts[query], survivors, distances, tally, spare,
            )  # fmt: skip
            above, reach = reach, np.int64(65535)
        limits[0, query] = of_stages[ends.size - 1, 0]
