"""Names: hashing them, finding them, and finding the names of ids."""

from typing import Any

from .._core.typing import Ids, Mask, Ranks, Rows
from .jit import njit


@njit(cache=True, nogil=True)
def hash_names(offsets: Rows, data: Any, first_point: int, second_point: int, out: Rows) -> None:
    """Hash each name: a polynomial of its length and bytes modulo 2^31 - 1, at two points.

    Two names that differ in n triples of bytes have equal hashes for at most (n + 1)^2 of 2^62 pairs of points. So who
    does not know the points cannot choose names that collide.
    """
    for i in range(out.shape[0]):
        begin, end = offsets[i], offsets[i + 1]
        one = two = (end - begin) % 2147483647
        for at in range(begin, end, 3):
            value = 0
            for place in range(at, min(at + 3, end)):
                value = value * 256 + int(data[place])
            one = (one * first_point + value) % 2147483647
            two = (two * second_point + value) % 2147483647
        out[i] = one * 2147483648 + two


@njit(cache=True, nogil=True)
def _is_equal(one: Any, begin: int, end: int, other: Any, other_begin: int, other_end: int) -> bool:
    """Compare two names."""
    if end - begin != other_end - other_begin:
        return False
    n_equal = 0
    while n_equal < end - begin and one[begin + n_equal] == other[other_begin + n_equal]:
        n_equal += 1
    return n_equal == end - begin


@njit(cache=True, nogil=True)
def find_by_hash(
    wanted_offsets: Rows, wanted: Any, wanted_hashes: Rows,
    offsets: Rows, data: Any, hashes: Rows, rows: Ranks, removed: Mask, out: Rows,
) -> None:  # fmt: skip
    """Find the row of each wanted name that is not removed, -1 if there is none.

    `hashes` are ascending, and `rows` are the rows with these hashes.
    """
    n = hashes.shape[0]
    for i in range(out.shape[0]):
        hash_, low, high = wanted_hashes[i], 0, n
        while low < high:
            middle = (low + high) // 2
            if hashes[middle] < hash_:
                low = middle + 1
            else:
                high = middle
        out[i] = -1
        while low < n and hashes[low] == hash_:
            row = rows[low]
            is_removed = removed.shape[0] > 0 and removed[row]
            if not is_removed and _is_equal(
                wanted, wanted_offsets[i], wanted_offsets[i + 1], data, offsets[row], offsets[row + 1]
            ):
                out[i] = row
                break
            low += 1


@njit(cache=True, nogil=True)
def find_by_scan(wanted_offsets: Rows, wanted: Any, offsets: Rows, data: Any, removed: Mask, out: Rows) -> None:
    """Find the row of each wanted name that is not removed, -1 if there is none, by comparing all names."""
    for i in range(out.shape[0]):
        out[i] = -1
        for row in range(offsets.shape[0] - 1):
            is_removed = removed.shape[0] > 0 and removed[row]
            if not is_removed and _is_equal(
                wanted, wanted_offsets[i], wanted_offsets[i + 1], data, offsets[row], offsets[row + 1]
            ):
                out[i] = row
                break


@njit(cache=True, nogil=True)
def places_of_ids(
    ids: Ids, own_ids: Ids, order: Ranks, offsets: Rows, n_bytes: int, numbers: Rows, begins: Rows, ends: Rows
) -> int:
    """Find the names of those `ids` that a segment has: their numbers in `ids`, and where their bytes begin and end.

    Returns how many these are, or -1 if a value of the segment is out of range, as in a damaged file.
    """
    n, n_found = own_ids.shape[0], 0
    for i in range(ids.shape[0]):
        id_, low, high, row = ids[i], 0, n, -1
        while low < high:
            middle = (low + high) // 2
            row = order[middle] if order.shape[0] else middle
            if row < 0 or row >= n:
                return -1
            if own_ids[row] < id_:
                low = middle + 1
            elif own_ids[row] > id_:
                high = middle
            else:
                break
        if row < 0 or own_ids[row] != id_:
            continue
        begin, end = offsets[row], offsets[row + 1]
        if begin < 0 or end <= begin or end > n_bytes:
            return -1
        numbers[n_found], begins[n_found], ends[n_found] = i, begin, end
        n_found += 1
    return n_found
