"""The cascade: measure all rows over their heads, then only the tails of rows that can be among the nearest.

The rows with the nearest heads give a bound on the k-th distance. The bound implies a limit on head distances, and rows
beyond the limit are skipped. Codes are laid out as in `distances.py`, and keys as in `topk.py`.
"""

import numpy as np

from .._core.typing import Codes, HeadDistances, Keys, Mask, Ranks, Rows
from .distances import add_distances, add_tails
from .jit import njit
from .topk import append_keys, keep_smallest


@njit(cache=True, nogil=True)
def head_scan(
    queries: Codes, head: Codes, hidden: Mask, start: int, stop: int, heads: HeadDistances, least: HeadDistances
) -> None:
    """Write the head distances of rows [start, stop) to `heads`, and the smallest of each 16 rows to `least`.

    Both arrays have one row per query. Hidden rows get the largest uint16.
    """
    n_queries = queries.shape[0]
    distances = np.empty((n_queries, 512), dtype=np.int32)
    numbers = np.arange(n_queries)
    for block in range(start // 512, (stop + 511) // 512):
        n_rows = min(512, stop - block * 512)
        distances[:] = 0
        add_distances(queries, numbers, numbers, n_queries, 0, head[block], 0, n_rows, distances)
        for query in range(n_queries):
            out = heads[query, block * 512 : block * 512 + n_rows]
            for row in range(n_rows):
                out[row] = distances[query, row]
            if hidden.size > 0:
                for row in range(n_rows):
                    if hidden[block * 512 + row]:
                        out[row] = 65535
            for group in range((n_rows + 15) // 16):
                low = np.uint16(65535)
                for row in range(group * 16, min(group * 16 + 16, n_rows)):
                    low = min(low, out[row])
                least[query, block * 32 + group] = low


@njit(cache=True, nogil=True)
def measure_survivors(
    query_tail: Codes, tail: Codes, heads: HeadDistances, least: HeadDistances, ranks: Ranks, start: int, stop: int,
    above: int, limit: int, stage_ends: Keys, limits: Rows, found: Keys, k: int,
) -> tuple[int, int]:  # fmt: skip
    """Measure the rows of [start, stop) whose head distance is in (above, limit]; collect the keys of the `k` nearest.

    `start` is a multiple of 16. `found` has a capacity of k + 512 + min(k, 256) keys. Returns the number of keys in
    `found`, which are unordered, and the number of rows measured.
    """
    rows, distances = np.empty(512, dtype=np.int64), np.empty(512, dtype=np.int64)
    nothing_hidden = np.zeros(0, dtype=np.bool_)  # head distances exclude hidden rows already
    count, n_measured, n = 0, 0, 0
    last = (stop + 15) // 16 - 1
    for group in range(start // 16, last + 1):
        if least[group] <= limit:
            for row in range(group * 16, min(group * 16 + 16, stop)):
                rows[n], distances[n] = row, heads[row]
                n += above < distances[n] <= limit
        if n > 496 or group == last:
            n_measured += n
            n_left = add_tails(query_tail, tail, rows, distances, n, stage_ends, limits)
            count = append_keys(rows, distances, n_left, nothing_hidden, ranks, found, count)
            n = 0
            if count >= k + min(k, 256):
                keep_smallest(found, count, k)
                count = k
    if count > k:
        keep_smallest(found, count, k)
        count = k
    return count, n_measured


@njit(cache=True, nogil=True)
def prefix_limits(distance: int, n_bits: int, prefix_bits: Rows, z: float, limits: Rows) -> None:
    """Write to `limits` the largest distance over each prefix that a row at `distance` plausibly has.

    If every position is equally likely to differ, the distance over a prefix is hypergeometric. Its limit is `z`
    standard deviations above the mean, and at most `distance`. `prefix_bits` gives the lengths of the prefixes.
    """
    p = distance / n_bits
    for i in range(prefix_bits.size):
        size = prefix_bits[i]
        mean = distance * size / n_bits  # p * size would round the whole code's limit below `distance`
        variance = size * p * (1 - p) * (n_bits - size) / max(1, n_bits - 1)
        limits[i] = min(distance, int(np.floor(mean + z * np.sqrt(variance))))


@njit(cache=True, nogil=True)
def first_bound(
    query_tail: Codes, tail: Codes, heads: HeadDistances, least: HeadDistances, ranks: Ranks, n_rows: int,
    n_bits: int, stage_ends: Keys, prefix_bits: Rows, z: float, n_first: int, found: Keys, k: int, limits: Rows,
) -> tuple[int, int, int]:  # fmt: skip
    """Measure about `n_first` rows with the nearest heads, and derive the limits for all other rows from them.

    `limits` receives the limit of the head and of each stage of the tail. Returns the number of keys in `found`, the
    head distance up to which rows have been measured, and the number of rows measured.
    """
    n_groups = (n_rows + 15) // 16
    reach = 65534
    if n_first < n_groups:  # every group has a row at its smallest distance, so `reach` covers at least n_first rows
        order = np.empty(n_groups, dtype=np.uint64)
        for group in range(n_groups):
            order[group] = least[group]
        reach = min(reach, int(np.int64(keep_smallest(order, n_groups, n_first))))  # min with a uint64 would be a float
    limits[:] = n_bits
    count, n_measured = measure_survivors(
        query_tail, tail, heads, least, ranks, 0, n_rows, -1, reach, stage_ends, limits[1:], found, k
    )
    if count == k:
        bound = np.int64(keep_smallest(found, count, k) >> np.uint64(32))
        prefix_limits(bound, n_bits, prefix_bits, z, limits)
    else:  # fewer than k rows: all that are not hidden have been measured
        limits[0] = reach
    return count, reach, n_measured
