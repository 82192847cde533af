"""The cascade: compare the first words of all rows, and more words only in blocks that may hold one of the nearest.

First, the distances of all rows over their first words are noted, and the least of each block (`prefix_scan`). The
blocks that are nearest there are read wholly and give a bound on the k-th distance (`first_bound`). If the differing
bits of a row lie anywhere with equal chance, its count over some words is hypergeometric. A block is left when all its
rows exceed the mean of a row at the bound by some standard deviations (`measure_blocks`). Where too many blocks remain,
a scan continues from the distances that are known (`scan_rest`), so nothing is counted twice. A sample of blocks tells
beforehand whether that is likely (`count_survivors`).

The first words of a block are contiguous, so reading them reads nothing else; on codes of images, a copy of the first
words of all rows would be no faster. Blocks are those of `blocks.py`; keys, `hidden` and `ranks` those of `topk.py`.
Distances over the first words are `prefix`, int32 of shape (n_blocks * n_queries, 16), with block b and query q at
b * n_queries + q. Hidden rows have a distance beyond all limits.
"""

from typing import Any

import numpy as np

from .._core.typing import Codes, Distances, Keys, LeastDistances, Mask, Ranks, Rows
from .blocks import distances_within, planes_of, prefix_distances
from .jit import njit
from .popcount import popcount64
from .topk import keep_smallest, settle


@njit(cache=True, nogil=True)
def set_stage_limits(distance: int, n_bits: int, ends: Rows, z: float, limits: Rows, query: int) -> None:
    """Set the largest counts over the first words of rows that are at most at `distance`.

    `limits[:, query]` gets mean and `z` standard deviations of the count over the first `ends` words of a row at that
    distance. A count cannot exceed the whole distance.
    """
    last = ends.size - 1
    p = min(1.0, max(0.0, distance / n_bits))
    for stage in range(last):
        size = 64 * ends[stage]
        spread = np.sqrt(size * p * (1 - p) * (n_bits - size) / max(1, n_bits - 1))
        limits[stage, query] = min(distance, int(np.floor(distance * size / n_bits + z * spread)))
    limits[last, query] = distance


@njit(cache=True, nogil=True)
def hide_rows(hidden: Mask, block: int, n_queries: int, prefix: Distances, least: LeastDistances) -> None:
    """Put hidden rows of a block beyond all limits, for all queries."""
    for query in range(n_queries):
        distances, low = prefix[block * n_queries + query], np.int32(65535)
        for i in range(min(16, hidden.size - 16 * block)):
            if hidden[16 * block + i]:
                distances[i] = 1 << 30
            low = min(low, distances[i])
        least[query, block] = low


@njit(cache=True, nogil=True)
def prefix_scan(
    queries: Codes, blocks: Codes, hidden: Mask, n_words: int, begin: int, end: int, prefix: Distances,
    least: LeastDistances,
) -> None:  # fmt: skip
    """Put the distances of blocks [begin, end) over their first words into `prefix`, and the least of each.

    `least`, (n_queries, n_blocks), is uint16.
    """
    n_queries = queries.shape[0]
    planes = planes_of(queries)
    # Memory is asked for some blocks ahead, as it is read by 4 KiB; as many blocks as fit the cache serve all queries.
    ahead = 128 * blocks.shape[1] * max(1, 4096 // (128 * n_words))
    group = max(1, 65536 // (128 * n_words))
    for first in range(begin, end, group):
        query, last = 0, min(first + group, end)
        while query + 4 <= n_queries:
            four = query, query + 1, query + 2, query + 3
            for block in range(first, last):
                at = block * n_queries + query
                prefix_distances(planes, four, blocks, block, 0, n_words, ahead, least, prefix, at)
            query += 4
        while query < n_queries:
            for block in range(first, last):
                at = block * n_queries + query
                prefix_distances(planes, (query,), blocks, block, 0, n_words, ahead, least, prefix, at)
            query += 1
        if hidden.size > 0:
            for block in range(first, last):
                hide_rows(hidden, block, n_queries, prefix, least)


@njit(cache=True, nogil=True)
def append_rows(near: Any, distances: Distances, first: int, found: Keys, counts: Rows) -> None:
    """Append the keys of the rows of a block whose bits are set; the first of the 16 has the number `first`."""
    while near != 0:
        lowest = near & (~near + np.uint64(1))
        near ^= lowest
        row = np.int64(popcount64(lowest - np.uint64(1)))
        found[counts[0]] = np.uint64(distances[row]) << np.uint64(32) | np.uint64(first + row)
        counts[0] += 1


@njit(cache=True, nogil=True)
def measure_blocks(
    query_code: Codes, blocks: Codes, prefix: Distances, least: LeastDistances, query: int, begin: int, end: int,
    above: int, reach: int, n_rows: int, ranks: Ranks, k: int, ends: Rows, limits: Rows, found: Keys, counts: Rows,
) -> int:  # fmt: skip
    """Collect the nearest rows of blocks [begin, end) whose least prefix distance is in (above, reach], for one query.

    Blocks are read stage by stage, and left when no row is within the limit of a stage. Returns how many were read.
    Only the last limit, of the whole distance, is lowered meanwhile: which blocks are read does not depend on others.

    Parameters
    ----------
    query_code : uint64 array of shape (1, n_words)
    prefix, least, query
        As `prefix_scan` fills them, and the row of `least` that is read.
    ends : int64 array of shape (n_stages,)
        Words compared after each stage: first those of the prefix, last all words.
    limits : int64 array of shape (n_stages, 1)
    found, counts : uint64 array of shape (room_for(k),), int64 array of shape (2,)
        As for `hamming.scan`.
    """
    last, full, n_queries, n_near = ends.size - 1, found.size - 16, least.shape[0], 0
    planes, nothing_hidden = planes_of(query_code), np.zeros(0, dtype=np.bool_)
    distances, tally = np.empty((1, 16), dtype=np.int32), np.empty(512, dtype=np.int32)
    spare, survivors = np.empty(found.size, dtype=np.uint64), np.empty(end - begin + 1, dtype=np.int64)
    of_query = least[query]
    for block in range(begin, end):
        survivors[n_near] = block
        n_near += above < of_query[block] <= reach
    for i in range(n_near):
        block, stage, near = survivors[i], 0, np.uint64(1)
        distances[0] = prefix[block * n_queries + query]
        # While words of a block are read, those of the next block are asked for.
        ahead = 128 * blocks.shape[1] * (survivors[min(i + 1, n_near - 1)] - block)
        while near != 0 and stage < last:
            near = distances_within(
                planes, (0,), blocks, block, ends[stage], ends[stage + 1], ahead, limits, stage + 1, distances, 0
            )
            stage += 1
        append_rows(near, distances[0], 16 * block, found, counts)
        if counts[0] > full:
            limits[last, 0] = settle(
                found, counts, 0, n_rows, nothing_hidden, ranks, k, limits[last, 0], False, tally, spare
            )
    limits[last, 0] = settle(found, counts, 0, n_rows, nothing_hidden, ranks, k, limits[last, 0], False, tally, spare)
    return n_near


@njit(cache=True, nogil=True)
def count_within(least: LeastDistances, n_within: Rows) -> None:
    """Count blocks whose least distance is at most 0, 1, 2, ...; the last count is that of all of them."""
    last = n_within.size - 1
    n_within[:] = 0
    for block in range(least.size):
        n_within[min(int(least[block]), last)] += 1
    for distance in range(last):
        n_within[distance + 1] += n_within[distance]


@njit(cache=True, nogil=True)
def count_survivors(
    queries: Codes, blocks: Codes, prefix: Distances, least: LeastDistances, step: int, k: int, n_bits: int,
    ends: Rows, z: float, n_left: Rows,
) -> None:  # fmt: skip
    """Count how many blocks of a sample, one in `step` and all rows in use, each query would read.

    `prefix_scan` has been there. Of each block, the first `ends[-1]` words are its codes. The k-th distance is
    taken to be that of rank k / step in the sample, among the blocks nearest over the prefix.
    """
    n_queries, last = queries.shape[0], ends.size - 1
    rank, n_first = max(1, k // step), 8 + k // (2 * step)
    planes, limits = planes_of(queries), np.full((ends.size, n_queries), 1 << 29, dtype=np.int64)
    distances, n_within = np.empty((1, 16), dtype=np.int32), np.empty(64 * ends[0] + 2, dtype=np.int64)
    near = np.empty(32 * n_first, dtype=np.uint64)
    for query in range(n_queries):
        count_within(least[query], n_within)
        n_all, reach, n_near, block = n_within[n_within.size - 1], 0, 0, 0
        while n_within[reach] < min(n_first, n_all):
            reach += 1
        while block < blocks.shape[0] and n_near + 16 <= near.size:
            if least[query, block] <= reach:
                distances[0] = prefix[block * n_queries + query]
                distances_within(planes, (query,), blocks, block, ends[0], ends[last], 0, limits, last, distances, 0)
                for i in range(16):
                    near[n_near] = np.uint64(min(int(distances[0, i]), n_bits))  # hidden rows are farther
                    n_near += 1
            block += 1
        distance = n_bits  # if all rows are hidden
        if n_near > 0:
            distance = int(np.int64(keep_smallest(near, n_near, min(rank, n_near))))
        set_stage_limits(distance, n_bits, ends, z, limits, query)
        n_left[query] = n_within[min(limits[0, query], n_within.size - 2)]


@njit(cache=True, nogil=True)
def first_bound(
    query_code: Codes, blocks: Codes, prefix: Distances, least: LeastDistances, query: int, n_rows: int, ranks: Ranks,
    k: int, n_bits: int, ends: Rows, z: float, limits: Rows, found: Keys, counts: Rows,
) -> tuple[int, int]:  # fmt: skip
    """Measure the blocks that are nearest over the prefix, and derive the limits of all stages from the k-th row there.

    Some blocks are read wholly, and four times as many each time within the limits so far, until all blocks within
    the limits or enough of them are read. Arguments are those of `measure_blocks`. Returns the prefix distance up to
    which blocks were read, and how many.
    """
    of_query, last, most = least[query], ends.size - 1, 64 * ends[0] + 1  # hidden rows are beyond
    n_within = np.empty(most + 1, dtype=np.int64)
    count_within(of_query, n_within)
    limits[:] = n_bits
    reach, n_read, n_first, n_enough = np.int64(-1), 0, k // 8 + 8, 2 * k + 32
    while reach < min(most, limits[0, 0]) and (reach < 0 or n_within[reach] < n_enough):
        above = reach
        while reach < min(most, limits[0, 0]) and (reach == above or n_within[reach] < n_first):
            reach += 1
        n_read += measure_blocks(
            query_code, blocks, prefix, least, query, 0, of_query.size, above, reach, n_rows, ranks, k, ends, limits,
            found, counts,
        )  # fmt: skip
        set_stage_limits(limits[last, 0], n_bits, ends, z, limits, 0)
        n_first = 4 * n_first
    return int(reach), n_read


@njit(cache=True, nogil=True, inline="always")
def scan_some(
    planes: Codes, numbers: Any, blocks: Codes, begin: int, end: int, n_words: int, n_queries: int, prefix: Distances,
    n_rows: int, ranks: Ranks, k: int, limits: Rows, found: Keys, counts: Rows, tally: Distances, spare: Keys,
) -> None:  # fmt: skip
    """Collect the rows of blocks [begin, end) within the limits of adjacent queries; the first words are counted."""
    full, nothing_hidden = found.shape[1] - 16, np.zeros(0, dtype=np.bool_)
    for block in range(begin, end):
        at = block * n_queries + numbers[0]
        near = distances_within(planes, numbers, blocks, block, n_words, blocks.shape[1], 4096, limits, 0, prefix, at)
        if near != 0:
            for i in range(len(numbers)):
                query, mine = numbers[i], near >> np.uint64(16 * i) & np.uint64(0xFFFF)
                append_rows(mine, prefix[at + i], 16 * block, found[query], counts[query])
                if counts[query, 0] > full:
                    limits[0, query] = settle(
                        found[query], counts[query], 0, n_rows, nothing_hidden, ranks, k, limits[0, query],
                        ranks.size == 0, tally, spare,
                    )  # fmt: skip


@njit(cache=True, nogil=True)
def scan_rest(
    queries: Codes, numbers: Rows, blocks: Codes, n_words: int, begin: int, end: int, prefix: Distances, n_rows: int,
    ranks: Ranks, k: int, limits: Rows, found: Keys, counts: Rows,
) -> None:  # fmt: skip
    """Collect the nearest rows of blocks [begin, end) for some queries, as `hamming.scan` does.

    The distances over the first `n_words` words are in `prefix`, which is overwritten. `numbers` are the queries,
    ascending. `limits`, `found` and `counts` have a row for each query, used or not.
    """
    n_queries, nothing_hidden = queries.shape[0], np.zeros(0, dtype=np.bool_)
    planes, tally = planes_of(queries), np.empty(512, dtype=np.int32)
    spare = np.empty(found.shape[1], dtype=np.uint64)
    group = max(1, 65536 // (blocks.shape[1] * 128)) if numbers.size > 1 else end - begin
    for first in range(begin, end, max(1, group)):
        last, i = min(first + group, end), 0
        while i < numbers.size:
            query = numbers[i]
            if i + 4 <= numbers.size and numbers[i + 3] == query + 3:
                scan_some(
                    planes, (query, query + 1, query + 2, query + 3), blocks, first, last, n_words, n_queries, prefix,
                    n_rows, ranks, k, limits, found, counts, tally, spare,
                )  # fmt: skip
                i += 4
            else:
                scan_some(
                    planes, (query,), blocks, first, last, n_words, n_queries, prefix, n_rows, ranks, k, limits, found,
                    counts, tally, spare,
                )  # fmt: skip
                i += 1
    for query in numbers:
        limits[0, query] = settle(
            found[query], counts[query], 0, n_rows, nothing_hidden, ranks, k, limits[0, query], ranks.size == 0, tally,
            spare,
        )  # fmt: skip
