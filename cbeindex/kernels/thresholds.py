"""The smallest of many distances or keys, found by counting how many are below a limit.

Counting has no branches and fills vector registers. The 160 smallest of 717 distances take 0.6 us, where a selection by
Hoare's algorithm takes 5.
"""

from typing import Any

import numpy as np

from .._core.typing import Floats, Keys, Rows
from .jit import njit
from .views import view_as


@njit(cache=True, nogil=True)
def order_bits(distances: Floats, n: int, ordered: Any) -> None:
    """Write `n` float32 distances as int32 that order like them."""
    bits = view_as(distances, np.int32)
    for i in range(n):
        ordered[i] = bits[i] ^ ((bits[i] >> np.int32(31)) & np.int32(0x7FFFFFFF))


@njit(cache=True, nogil=True)
def limit_of_smallest(ordered: Any, n: int, k: int) -> Any:
    """Return a limit that at least `k` of `n` numbers do not exceed, and hardly more than `k` + `k` / 8.

    There are more where numbers are equal.
    """
    low, high = ordered[0], ordered[0]
    for i in range(n):
        low, high = min(low, ordered[i]), max(high, ordered[i])
    least, most = np.int64(low), np.int64(high)
    while least < most:
        middle = (least + most) >> 1
        limit, count = np.int32(middle), 0
        for i in range(n):
            count += ordered[i] <= limit
        if count < k:
            least = middle + 1
        else:
            most = middle
            if count <= k + k // 8:
                break
    return np.int32(most)


@njit(cache=True, nogil=True)
def places_within(ordered: Any, n: int, limit: Any, places: Rows) -> int:
    """Write the places of the numbers up to `limit`; return how many they are. `places` has room for `n`."""
    count = 0
    for i in range(n):
        places[count] = i
        count += ordered[i] <= limit
    return count


@njit(cache=True, nogil=True)
def kth_smallest(keys: Keys, n: int, k: int) -> Any:
    """Return the k-th smallest of `n` keys."""
    low, high = keys[0], keys[0]
    for i in range(n):
        low, high = min(low, keys[i]), max(high, keys[i])
    while low < high:
        middle, count = low + ((high - low) >> np.uint64(1)), 0
        for i in range(n):
            count += keys[i] <= middle
        if count == k:
            largest = low
            for i in range(n):
                largest = max(largest, keys[i] if keys[i] <= middle else low)
            return largest
        if count < k:
            low = middle + np.uint64(1)
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def keep_first(keys: Keys, n: int, k: int) -> Any:
    """Move the `k` smallest of `n` keys to the front, unordered, and return the largest of these. Others are lost."""
    largest, count = kth_smallest(keys, n, k), 0
    for i in range(n):
        key = keys[i]
        keys[count] = key
        count += key < largest
    for i in range(count, k):
        keys[i] = largest
    return largest


@njit(cache=True, nogil=True)
def put_first(keys: Keys, n: int, k: int) -> None:
    """Move the `k` smallest of `n` different keys to the front, unordered. Others follow."""
    largest, count = kth_smallest(keys, n, k), 0
    for i in range(n):
        key, other = keys[i], keys[count]
        is_small = key <= largest
        keys[count], keys[i] = key if is_small else other, other if is_small else key
        count += is_small
