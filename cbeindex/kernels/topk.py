"""Candidate keys, and the selection of the k smallest.

A candidate is one uint64 key, distance << 32 | row, so that keys order by (distance, row). If rows are not stored in
the order of their ids, `ranks` holds the position of each row in that order and keys contain ranks instead of rows.
Otherwise `ranks` is empty. `hidden` marks rows that must not be returned, and is empty if there are none.
"""

from typing import Any

import numpy as np

from .._core.typing import Distances, Keys, Mask, Ranks, Rows
from .jit import njit
from .lanes import within
from .popcount import popcount64


@njit(cache=True, nogil=True)
def rows_within(distances: Distances, limit: int, at: int, n: int, first_row: int, rows: Rows, near: Rows) -> int:
    """Write the rows at distances up to `limit` to `rows` and their distances to `near`; return their number.

    `distances[at : at + n]` belongs to the rows from `first_row` on. The array must extend to the multiples of 16
    around this range, but the entries outside of the range are ignored.
    """
    n_near = 0
    for begin in range(at // 16 * 16, at + n, 16):
        found = within(distances, begin, limit)
        if begin < at:
            found = found >> np.uint64(at - begin) << np.uint64(at - begin)
        if begin + 16 > at + n:
            found &= (np.uint64(1) << np.uint64(at + n - begin)) - np.uint64(1)
        while found != 0:  # rare, except for the first rows of a query
            lowest = found & (~found + np.uint64(1))
            place = begin + np.int64(popcount64(lowest - np.uint64(1)))
            rows[n_near], near[n_near] = first_row + place - at, distances[place]
            n_near += 1
            found ^= lowest
    return n_near


@njit(cache=True, nogil=True)
def drop_hidden(rows: Rows, near: Rows, n: int, hidden: Mask) -> int:
    """Move those of the first `n` rows that are not hidden, and their distances, to the front; return their number."""
    n_left = 0
    for i in range(n):
        rows[n_left], near[n_left] = rows[i], near[i]
        n_left += not hidden[rows[i]]
    return n_left


@njit(cache=True, nogil=True)
def append_keys(rows: Rows, distances: Rows, n: int, hidden: Mask, ranks: Ranks, keys: Keys, count: int) -> int:
    """Append the keys of the rows that are not hidden; return the new number of keys."""
    for i in range(n):
        if hidden.size == 0 or not hidden[rows[i]]:
            rank = np.uint64(ranks[rows[i]] if ranks.size > 0 else rows[i])
            keys[count] = (np.uint64(distances[i]) << np.uint64(32)) | rank
            count += 1
    return count


@njit(cache=True, nogil=True)
def keep_smallest(keys: Keys, n: int, k: int) -> Any:
    """Move the `k` smallest of the first `n` keys to the front, unordered, and return the largest of these `k`."""
    low, high = 0, n - 1
    while low < high:  # Hoare's selection algorithm: puts keys[k - 1] in its sorted position
        pivot = keys[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while keys[i] < pivot:
                i += 1
            while keys[j] > pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break
    return keys[k - 1]


@njit(cache=True, nogil=True)
def put_ascending(found: Keys, count: int, keys: Keys) -> None:
    """Write the smallest of the first `count` keys to `keys` in ascending order, padded with the largest uint64."""
    if count > keys.size:
        keep_smallest(found, count, keys.size)
        count = keys.size
    keys[:count] = np.sort(found[:count])
    keys[count:] = np.uint64(0xFFFFFFFFFFFFFFFF)


@njit(cache=True, nogil=True)
def tally_shift(n_bits: int) -> int:
    """Return the number of low bits that a tally of distances drops, so that the tally has at most 512 bins."""
    shift = 0
    while n_bits >> shift >= 512:
        shift += 1
    return shift


@njit(cache=True, nogil=True)
def keep_within(keys: Keys, n: int, bound: int) -> int:
    """Move those of the first `n` keys whose distance is at most `bound` to the front; return their number."""
    n_left = 0
    for i in range(n):
        keys[n_left] = keys[i]
        n_left += int(np.int64(keys[i] >> np.uint64(32)) <= bound)
    return n_left


@njit(cache=True, nogil=True)
def append_nearer(
    rows: Rows, near: Rows, n: int, ranks: Ranks, k: int, shift: int, tally: Distances, state: Rows, keys: Keys
) -> None:
    """Lower the bound to the k-th distance of all rows so far, and append those of `n` more rows that are within it.

    `tally` counts the keys in bins of 2**shift distances. `state` holds the number of keys, the bin of the bound, and
    the number of keys up to that bin. `keys` has a capacity of at least k + n + 1.
    """
    count, last, n_within = state[0], state[1], state[2]
    for i in range(n):
        distance_bin = near[i] >> shift
        tally[distance_bin] += 1
        n_within += distance_bin <= last
    while n_within - tally[last] >= k:
        n_within -= tally[last]
        last -= 1
    if count + n >= keys.size:
        count = keep_within(keys, count, ((last + 1) << shift) - 1)
        if count + n >= keys.size:  # many keys tie at the k-th distance
            keep_smallest(keys, count, k)
            count = k
    for i in range(n):
        rank = np.int64(ranks[rows[i]]) if ranks.size > 0 else rows[i]
        # Ranks come from files unchecked: the mask keeps a wrong rank from changing the distance that the tally counts.
        keys[count] = (np.uint64(near[i]) << np.uint64(32)) | np.uint64(rank & 0xFFFFFFFF)
        count += (near[i] >> shift) <= last
    state[0], state[1], state[2] = count, last, n_within


@njit(cache=True, nogil=True)
def put_in_order(found: Keys, n: int, shift: int, tally: Distances, last: int, keys: Keys) -> None:
    """Write the smallest of the first `n` keys to `keys` in ascending order, padded with the largest uint64.

    All keys lie in bins up to `last` of the tally (see `append_nearer`). The tally gives the position at which the
    keys of each bin begin, and is overwritten.
    """
    ordered = np.empty(n, dtype=np.uint64)
    begin = 0
    for distance_bin in range(last + 1):
        size, tally[distance_bin] = tally[distance_bin], begin
        begin += size
    for i in range(n):
        distance_bin = int(np.int64(found[i] >> np.uint64(32))) >> shift
        ordered[tally[distance_bin]] = found[i]
        tally[distance_bin] += 1
    begin = 0
    for distance_bin in range(last + 1):  # sort within each bin
        end = tally[distance_bin]
        if end - begin > 32:
            ordered[begin:end] = np.sort(ordered[begin:end])
        else:
            for i in range(begin + 1, end):
                key, to = ordered[i], i
                while to > begin and ordered[to - 1] > key:
                    ordered[to] = ordered[to - 1]
                    to -= 1
                ordered[to] = key
        begin = end
    n = min(n, keys.size)
    keys[:n] = ordered[:n]
    keys[n:] = np.uint64(0xFFFFFFFFFFFFFFFF)


@njit(cache=True, nogil=True)
def finish(found: Keys, shift: int, tally: Distances, state: Rows, keys: Keys) -> None:
    """Write the smallest keys of `found` to `keys` in ascending order, padded with the largest uint64."""
    last = state[1]
    n = keep_within(found, state[0], ((last + 1) << shift) - 1)
    put_in_order(found, n, shift, tally, last, keys)
