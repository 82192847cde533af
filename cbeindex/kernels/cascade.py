"""The cascade: compare the first words of all rows, and more words only where a row may be one of the nearest.

First, the distances of all rows over their first words are noted, and the least of each half of a block
(`prefixes.py`). The halves that are nearest there are read wholly and give a bound on the k-th distance. If the
differing bits of a row lie anywhere with equal chance, its count over some words is hypergeometric. A half is left when
all its rows exceed the mean of a row at the bound by some standard deviations. All halves pass a stage before any
passes the next, so that the memory of the next ones can be asked for in time, and no other memory is. Where too many
halves remain, a scan continues from the distances that are known (`scanrest.py`), so nothing is counted twice. A sample
of blocks tells beforehand whether that is likely (`find_promising`).

The first words of a block are contiguous, so reading them reads nothing else; on codes of images, a copy of the first
words of all rows would be no faster. Blocks are those of `blocks.py`; keys, `hidden` and `ranks` those of `topk.py`.
"""

from typing import Any

import numpy as np

from .._core.typing import Codes, Distances, Keys, LeastDistances, Mask, Ranks, Rows
from .blocks import half_within, planes_of
from .jit import njit
from .prefixes import count_up_to, halves_up_to, prefix_scan, reach_of
from .topk import keep_smallest, put_in_order, settle


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
def read_stage(
    planes: Codes, query: int, blocks: Codes, halves: Rows, n: int, begin: int, end: int, limits: Rows, stage: int,
    distances: Distances,
) -> int:  # fmt: skip
    """Add words [begin, end) to the distances of `n` halves, and keep those with a row within the limit of the stage.

    They move to the front of `halves` and `distances`, (any, 8). Returns their number.
    """
    n_left, n_ahead = 0, max(1, 64 // (end - begin))  # asks for 64 lines before they are read
    for i in range(n):
        half, later = halves[i], halves[min(i + n_ahead, n - 1)]
        ahead = 128 * blocks.shape[1] * (later // 2 - half // 2) + 64 * (later % 2 - half % 2)
        if half_within(planes, (query,), blocks, half, begin, end, ahead, limits, stage, distances, i) != 0:
            halves[n_left] = half
            for j in range(8):
                distances[n_left, j] = distances[i, j]
            n_left += 1
    return n_left


@njit(cache=True, nogil=True)
def load_halves(prefix: Distances, n_queries: int, query: int, halves: Rows, n: int, distances: Distances) -> None:
    """Copy the distances of `n` halves over the prefix to `distances`, (any, 8)."""
    for i in range(n):
        known, side = prefix[halves[i] // 2 * n_queries + query], halves[i] % 2 * 8
        for j in range(8):
            distances[i, j] = known[side + j]


@njit(cache=True, nogil=True)
def collect_rows(
    halves: Rows, distances: Distances, n: int, n_rows: int, ranks: Ranks, k: int, limits: Rows, query: int,
    found: Keys, counts: Rows, tally: Distances, spare: Keys,
) -> None:  # fmt: skip
    """Collect the rows of `n` halves that are within the limit of the last stage, which is lowered."""
    last, full, nothing_hidden = limits.shape[0] - 1, found.size - 8, np.zeros(0, dtype=np.bool_)
    for i in range(n + 1):
        if i == n or counts[0] > full:
            limits[last, query] = settle(
                found, counts, 0, n_rows, nothing_hidden, ranks, k, limits[last, query], False, tally, spare
            )
        if i < n:
            for j in range(8):
                if distances[i, j] <= limits[last, query]:
                    found[counts[0]] = np.uint64(distances[i, j]) << np.uint64(32) | np.uint64(8 * halves[i] + j)
                    counts[0] += 1


@njit(cache=True, nogil=True)
def keep_nearest(halves: Rows, distances: Distances, n: int, n_kept: int, spare: Keys) -> int:
    """Keep the `n_kept` of `n` halves whose nearest rows are nearest, and halves equal to the last; return how many."""
    if n <= n_kept:
        return n
    for i in range(n):
        spare[i] = np.uint64(distances[i].min())
    farthest, n_left = keep_smallest(spare, n, n_kept), 0
    for i in range(n):
        if np.uint64(distances[i].min()) <= farthest:
            halves[n_left] = halves[i]
            for j in range(8):
                distances[n_left, j] = distances[i, j]
            n_left += 1
    return n_left


@njit(cache=True, nogil=True)
def first_bound(
    planes: Codes, blocks: Codes, prefix: Distances, least: LeastDistances, query: int, n_rows: int, ranks: Ranks,
    k: int, n_bits: int, ends: Rows, z: float, limits: Rows, found: Keys, counts: Rows, scratch: Any,
) -> int:  # fmt: skip
    """Read the halves that seem nearest, and derive the limits of all stages from the k-th row there.

    The halves that are nearest over the prefix are read, and after each stage the nearer ones of them alone. Those that
    are read to the end are marked in `least`, as not to be read again. Arguments are those of `measure_halves`. Returns
    how many these are.
    """
    halves, distances, tally, spare = scratch
    last, n_end = ends.size - 1, k + k // 4 + 2
    n_first = 2 * n_end + 8
    limits[:, query] = n_bits
    reach = reach_of(least, query, n_first, 0, 64 * ends[0])
    n = min(halves_up_to(least, query, reach, halves), 2 * n_first)
    load_halves(prefix, least.shape[0], query, halves, n, distances)
    for stage in range(1, ends.size):
        n = keep_nearest(halves, distances, n, max(n_end, n_first >> stage - 1), spare)
        n = read_stage(planes, query, blocks, halves, n, ends[stage - 1], ends[stage], limits, stage, distances)
    for i in range(n):
        least[query, halves[i]] = 65535
    collect_rows(halves, distances, n, n_rows, ranks, k, limits, query, found, counts, tally, spare)
    set_stage_limits(limits[last, query], n_bits, ends, z, limits, query)
    return int(n)


@njit(cache=True, nogil=True)
def measure_halves(
    planes: Codes, blocks: Codes, prefix: Distances, least: LeastDistances, query: int, n_rows: int, ranks: Ranks,
    k: int, ends: Rows, limits: Rows, found: Keys, counts: Rows, scratch: Any,
) -> int:  # fmt: skip
    """Collect the nearest rows of the halves whose least prefix distance is within the first limit, for one query.

    Returns how many halves were read. They are read stage by stage, and left when no row is within the limit of a
    stage. The limit of the last stage, of the whole distance, is lowered.

    Parameters
    ----------
    planes : uint64 array
        Of all queries, see `blocks.planes_of`.
    limits : int64 array of shape (n_stages, n_queries)
    found, counts : uint64 array of shape (room_for(k),), int64 array of shape (2,)
        As for `hamming.scan`.
    scratch : tuple of arrays
        Halves, int64 of the size of a row of `least`; their distances, int32 (n, 8); `tally` of `topk.settle`; and
        uint64 of the size of both `halves` and `found`.
    """
    halves, distances, tally, spare = scratch
    n_near = n = halves_up_to(least, query, min(limits[0, query], 64 * ends[0]), halves)
    load_halves(prefix, least.shape[0], query, halves, n, distances)
    for stage in range(1, ends.size):
        n = read_stage(planes, query, blocks, halves, n, ends[stage - 1], ends[stage], limits, stage, distances)
    collect_rows(halves, distances, n, n_rows, ranks, k, limits, query, found, counts, tally, spare)
    return int(n_near)


@njit(cache=True, nogil=True)
def nearest(
    queries: Codes, numbers: Rows, blocks: Codes, prefix: Distances, least: LeastDistances, n_rows: int, ranks: Ranks,
    n_bits: int, ends: Rows, z: float, most_left: int, limits: Rows, keys: Keys, n_read: Rows,
) -> None:  # fmt: skip
    """Find the nearest rows of some queries, of which `prefix_scan` has noted the distances over the prefix.

    Parameters
    ----------
    numbers : int64 array
        Which queries. The arrays below have entries for all of them.
    ends, z : int64 array of shape (n_stages,), float
        Words compared after each stage, and standard deviations that rows may exceed the expected distance by.
    most_left : int
        If more halves are left after the prefix, a query is given up.
    limits : int64 array of shape (n_stages, n_queries)
        The last is at least the k-th distance.
    keys : uint64 array of shape (n_queries, k)
        Keys in ascending order, and the largest uint64 behind them.
    n_read : int64 array of shape (n_queries,)
        Halves read to the end for the bound, and others left after the prefix; -1 for a query that is given up.
    """
    k, n_halves, planes = keys.shape[1], least.shape[1], planes_of(queries)
    found, counts = np.empty((1, k + max(k, 16) + 16), dtype=np.uint64), np.zeros((1, 2), dtype=np.int64)
    scratch = (
        np.empty(n_halves, dtype=np.int64), np.empty((n_halves, 8), dtype=np.int32), np.empty(512, dtype=np.int32),
        np.empty(max(found.shape[1], n_halves), dtype=np.uint64),
    )  # fmt: skip
    for query in numbers:
        counts[:] = 0
        n_first = first_bound(
            planes, blocks, prefix, least, query, n_rows, ranks, k, n_bits, ends, z, limits, found[0], counts[0],
            scratch,
        )  # fmt: skip
        if count_up_to(least, query, min(limits[0, query], 64 * ends[0])) > most_left:
            n_read[query] = -1
            continue
        n_read[query] = n_first + measure_halves(
            planes, blocks, prefix, least, query, n_rows, ranks, k, ends, limits, found[0], counts[0], scratch
        )
        put_in_order(found, counts, keys[query : query + 1])


@njit(cache=True, nogil=True)
def sampled_distance(
    planes: Codes, blocks: Codes, prefix: Distances, least: LeastDistances, query: int, rank: int, n_first: int,
    n_bits: int, ends: Rows,
) -> int:  # fmt: skip
    """Return about the distance of some rank among the rows of a sample, from those nearest over the prefix.

    Their distances over some thousand bits stand for those over all bits.
    """
    n_queries, last, n = least.shape[0], ends.size - 1, 0
    while last > 0 and ends[last - 1] >= 64:
        last -= 1
    halves, limits = np.empty(least.shape[1], dtype=np.int64), np.full((1, n_queries), 1 << 29, dtype=np.int64)
    reach = reach_of(least, query, n_first, 0, 64 * ends[0])
    n_halves = min(halves_up_to(least, query, reach, halves), 2 * n_first)
    distances, near = np.empty((n_halves, 8), dtype=np.int32), np.empty(8 * n_halves, dtype=np.uint64)
    load_halves(prefix, n_queries, query, halves, n_halves, distances)
    for i in range(n_halves):
        half_within(planes, (query,), blocks, halves[i], ends[0], ends[last], 0, limits, 0, distances, i)
        for j in range(8):
            near[n] = np.uint64(min(int(distances[i, j]), n_bits))  # hidden rows are farther
            n += 1
    if n == 0:  # all rows are hidden
        return n_bits
    distance = np.int64(keep_smallest(near, n, min(rank, n)))
    return int(min(n_bits, distance * n_bits // min(64 * ends[last], n_bits)))


@njit(cache=True, nogil=True)
def count_left(
    distance: int, n_bits: int, ends: Rows, z: float, limits: Rows, query: int, least: LeastDistances
) -> int:
    """Set the limits of a query whose k-th distance is known, and count the halves left after the prefix."""
    set_stage_limits(distance, n_bits, ends, z, limits, query)
    return int(count_up_to(least, query, min(limits[0, query], 64 * ends[0])))


@njit(cache=True, nogil=True)
def find_promising(
    queries: Codes, blocks: Codes, hidden: Mask, n_rows: int, step: int, k: int, n_bits: int, ends: Rows, z: float,
    most_share: float, is_promising: Mask,
) -> int:  # fmt: skip
    """Tell for which queries few halves are left after the prefix, by the first of each `step` blocks.

    The k-th distance is taken to be that of rank k / step in the sample. Where too many halves would be left even if it
    were as near as the prefixes alone suggest, no whole code is read. Blocks with spare rows are left out. Returns the
    number of promising queries.
    """
    n_queries, n_words = queries.shape[0], blocks.shape[1]
    n_sampled, rank, n_promising = n_rows // 16 // step, max(1, k // step), 0
    most_left = most_share * 2 * n_sampled
    # A view: distances of the sample are adjacent, and the words of skipped blocks follow those of a block.
    sample = blocks[: n_sampled * step].reshape(n_sampled, step * n_words, 16)
    sample_hidden = np.empty(16 * n_sampled if hidden.size > 0 else 0, dtype=np.bool_)
    for row in range(sample_hidden.size):
        sample_hidden[row] = hidden[row // 16 * step * 16 + row % 16]
    prefix = np.empty((n_sampled * n_queries, 16), dtype=np.int32)
    least = np.full((n_queries, (2 * n_sampled + 63) // 64 * 64), 65535, dtype=np.uint16)
    prefix_scan(queries, sample, sample_hidden, ends[0], 0, n_sampled, prefix, least)
    planes, limits = planes_of(queries), np.empty((ends.size, n_queries), dtype=np.int64)
    for query in range(n_queries):
        size = min(64 * ends[0], n_bits)
        near = reach_of(least, query, (rank + 7) // 8, 0, size) * n_bits // size  # so many halves have that many rows
        n_left = count_left(near, n_bits, ends, z, limits, query, least)
        if n_left <= most_left:
            near = sampled_distance(planes, sample, prefix, least, query, rank, 8 + k // (2 * step), n_bits, ends)
            n_left = count_left(near, n_bits, ends, z, limits, query, least)
        is_promising[query] = n_left <= most_left
        n_promising += n_left <= most_left
    return n_promising
