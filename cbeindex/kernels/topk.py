"""Keys of rows, and the selection of the smallest keys of many.

A key is distance << 32 | row, so that keys order by (distance, row). If rows are not stored in the order of their ids,
`ranks` holds the position of each row in that order and keys contain ranks instead of rows. Otherwise `ranks` is empty.
`hidden` marks rows that must not be returned, and is empty if there are none.

Keys of a query are collected in a buffer: first the nearest `k` so far, which are settled, then those of rows that have
come since, as they were found. When the buffer is full, `settle` leaves the `k` smallest, and lowers the limit on the
distance of rows to come. So a row that is found costs little, and few rows are found.
"""

from typing import Any

import numpy as np

from .._core.typing import Distances, Ids, Keys, Mask, Ranks, Rows
from .jit import njit
from .sorting import sort_keys

NO_KEY = np.uint64(0xFFFFFFFFFFFFFFFF)


def room_for(k: int) -> int:
    """Return the size of a buffer for the `k` smallest keys."""
    return k + max(k, 16) + 16


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
    sort_keys(found, 0, count)
    for i in range(count):
        keys[i] = found[i]
    keys[count:] = NO_KEY


@njit(cache=True, nogil=True)
def tally_distances(keys: Keys, n: int, tally: Distances) -> tuple[int, int]:
    """Count the first `n` keys by distance; return the least distance, and the bits that places of the tally lack.

    A key is counted at place (distance - least) >> shift.
    """
    least, most = np.int64(0xFFFFFFFF), np.int64(0)
    for i in range(n):
        distance = np.int64(keys[i] >> np.uint64(32))
        least, most = min(least, distance), max(most, distance)
    shift = np.int64(0)
    while (most - least) >> shift >= tally.size:
        shift += 1
    for place in range(tally.size):
        tally[place] = 0
    for i in range(n):
        tally[(np.int64(keys[i] >> np.uint64(32)) - least) >> shift] += 1
    return int(least), int(shift)


@njit(cache=True, nogil=True)
def reduce_buffer(keys: Keys, n: int, k: int, tally: Distances, spare: Keys) -> Any:
    """Move the `k` smallest of the first `n` > `k` keys to the front, in no order, and return the largest of them.

    Counting distances leaves only the keys at the k-th distance to select from. `spare` has the size of `keys`.
    """
    least, shift = tally_distances(keys, n, tally)
    last, n_within = 0, np.int64(tally[0])
    while n_within < k:
        last += 1
        n_within += tally[last]
    n_kept, n_spare = np.int64(0), np.int64(0)
    for i in range(n):  # without branches: keys are in no order
        key = keys[i]
        place = (np.int64(key >> np.uint64(32)) - least) >> shift
        keys[n_kept], spare[n_spare] = key, key
        n_kept += place < last
        n_spare += place == last
    largest = keep_smallest(spare, n_spare, k - n_kept)
    for i in range(n_kept, k):
        keys[i] = spare[i - n_kept]
    return largest


@njit(cache=True, nogil=True)
def settle(
    found: Keys, counts: Rows, start: int, stop: int, hidden: Mask, ranks: Ranks, k: int, limit: int, in_order: bool,
    tally: Distances, spare: Keys,
) -> int:  # fmt: skip
    """Reduce the keys of a query to the `k` smallest (`k` = 0: to those that are valid), and return the new limit.

    The first `counts[1]` of the `counts[0]` keys are settled. The others have rows; those outside of [start, stop) or
    hidden are dropped, and rows become ranks if there are any. Once there are `k` keys, the limit is the k-th distance,
    or less by one if rows come `in_order`: a row to come is then too late at the same distance.
    """
    n, count = counts[0], counts[1]
    for i in range(counts[1], n):
        key = found[i]
        row = np.int64(key & np.uint64(0xFFFFFFFF))
        if row < start or row >= stop or (hidden.size > 0 and hidden[row]):
            continue
        if ranks.size > 0:  # a file may say anything of ranks: below a distance they have 32 bits
            key = key ^ np.uint64(row) | np.uint64(np.int64(ranks[row]) & 0xFFFFFFFF)
        found[count] = key
        count += 1
    if count > k > 0:
        largest = reduce_buffer(found, count, k, tally, spare)
        count = k
        limit = int(np.int64(largest >> np.uint64(32))) - int(in_order)
    counts[0], counts[1] = count, count
    return limit


@njit(cache=True, nogil=True)
def put_in_order(found: Keys, counts: Rows, keys: Keys) -> None:
    """Put the settled keys of each query in ascending order into `keys`, and the largest uint64 behind them.

    Keys are ordered by distance by counting, and then those of a distance, or of few.
    """
    tally = np.empty(512, dtype=np.int32)
    for query in range(keys.shape[0]):
        n, of_query = counts[query, 1], found[query]
        least, shift = tally_distances(of_query, n, tally)
        begin, place = 0, 0
        while begin < n:
            size, tally[place] = tally[place], begin
            begin += size
            place += 1
        for i in range(n):
            place = (np.int64(of_query[i] >> np.uint64(32)) - least) >> shift
            keys[query, tally[place]] = of_query[i]
            tally[place] += 1
        begin, place = 0, 0
        while begin < n:
            if tally[place] > begin + 1:
                sort_keys(keys[query], begin, tally[place])
            begin = tally[place]
            place += 1
        for i in range(n, keys.shape[1]):
            keys[query, i] = NO_KEY


@njit(cache=True, nogil=True)
def unpack_keys(keys: Keys, ids: Ids, distances: Distances, found_ids: Ids) -> None:
    """Put the distances and ids of the keys of a query at the front of its results; `ids` are those of ranks.

    Missing results have the largest int32 and -1.
    """
    for i in range(distances.size):
        if i < keys.size and keys[i] != NO_KEY:
            distances[i] = np.int32(keys[i] >> np.uint64(32))
            found_ids[i] = ids[np.int64(keys[i] & np.uint64(0xFFFFFFFF))]
        else:
            distances[i] = 0x7FFFFFFF
            found_ids[i] = -1


@njit(cache=True, nogil=True)
def put_results(found: Keys, counts: Rows, ids: Ids, distances: Distances, found_ids: Ids) -> None:
    """Put the distances and ids of the settled keys of each query in order, as `unpack_keys` does."""
    keys = np.empty((1, distances.shape[1]), dtype=np.uint64)
    for query in range(distances.shape[0]):
        put_in_order(found[query : query + 1], counts[query : query + 1], keys)
        unpack_keys(keys[0], ids, distances[query], found_ids[query])
