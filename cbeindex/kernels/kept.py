"""Kept vectors of 4 and 8 bits a dimension: what they are stored as, and the distances that follow from them.

A row is stored as

    factor  float32     of the product of its levels in a distance
    offset  float32     what the row adds to its distances
    spread  float32     standard deviation of products over the length of a query; the lowest byte of the mantissa is
                        the number of the centre, the lowest 10 bits where there are more than 256 centres
    levels  bytes       one byte a dimension (int8), or two dimensions a byte (4 bits), and zeros up to a multiple of 4

The levels are those of the residual of the row relative to its centre (`quantising.py`, `residuals.py`). For a query
with the projections z, the distance is `offset + shift - factor * <z, values>`, with the shift of the query for the
centre.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._core.typing import Floats, Ids, Keys, Projections, Ranks, Rows
from .dots import Numbers, dot_floats, dot_int4, dot_int8, squares_floats
from .exact import clear, insert, order_of
from .jit import njit
from .prefetch import prefetch
from .views import view_as

KeptRows: TypeAlias = NDArray[np.uint8]
"""Rows of heads and levels."""


@njit(cache=True, nogil=True)
def shift_of(
    projections: Floats, query_shift: float, centres: Floats, centre: int, weights: Floats, shifts: Floats
) -> None:
    """Write what a query adds to all distances of a centre, and its squared distance to the centre."""
    n_bits = projections.size
    across = squares_floats(projections, centres, centre * n_bits, n_bits)
    shifts[centre, 0], shifts[centre, 1] = query_shift + weights[0] * across, across
    if weights[1] != 0:
        shifts[centre, 0] += weights[1] * dot_floats(projections, centres, centre * n_bits, n_bits)


@njit(cache=True, nogil=True)
def forget_shifts(shifts: Floats) -> None:
    """Mark the shifts of all centres as not computed."""
    for centre in range(shifts.shape[0]):
        shifts[centre, 0] = np.nan


@njit(cache=True, nogil=True)
def whole_numbers(projections: Floats, bits: int, numbers: Numbers) -> Any:
    """Write a query as whole numbers; return their scale, and their sum times the middle of the levels.

    `numbers`, (2, n_bytes), gets even and odd dimensions for levels of 4 bits, and else all of them in its first row.
    """
    n, largest = projections.size, np.float32(0)
    for j in range(n):
        largest = max(largest, abs(projections[j]))
    scale = max(largest / np.float32(32767), np.float32(1e-30))
    factor, total = np.float32(1) / scale, np.int64(0)
    if bits == 8:
        for j in range(n):
            numbers[0, j] = np.int16(np.rint(projections[j] * factor))
        return scale, 0.0
    for j in range(n // 2, numbers.shape[1]):
        numbers[1, j] = 0
    for j in range(n):
        number = np.int64(np.rint(projections[j] * factor))
        numbers[j & 1, j >> 1] = number
        total += number
    return scale, np.float64(total) * 7.5


@njit(cache=True, nogil=True)
def prefetch_kept(rows: KeptRows, row: int) -> None:
    """Ask for a row."""
    size = rows.shape[1]
    for j in range(0, size + 63, 64):
        prefetch(rows, row * size + min(j, size - 1))


# Rows that are asked for ahead.
_AT_ONCE = 8


@njit(cache=True, nogil=True)
def write_distances(
    rows: KeptRows, places: Rows, n: int, bits: int, numbers: Numbers, scale: float, middle: float, projections: Floats,
    query_shift: float, centres: Floats, weights: Floats, shifts: Floats, distances: Floats,
) -> bool:  # fmt: skip
    """Write the estimated distances of the first `n` of some rows.

    Returns False if the centre of one does not exist, or its distance is not a number, which a file may say. `shifts`,
    (n_centres, 2), are computed where they are NaN. One call for all rows takes half the time of a call for each.
    """
    size, n_bits, n_bytes = rows.shape[1], projections.size, numbers.shape[1]
    flat, number = rows.reshape(-1), numbers[0]
    heads, levels = view_as(flat, np.float32), view_as(flat, np.int8)
    for i in range(min(n, _AT_ONCE)):
        prefetch_kept(rows, places[i])
    for i in range(n):
        if i + _AT_ONCE < n:
            prefetch_kept(rows, places[i + _AT_ONCE])
        base = places[i] * size
        centre = np.int64(flat[base + 8])
        if centres.shape[0] > 256:
            centre += 256 * (np.int64(flat[base + 9]) & 3)
        if centre >= centres.shape[0]:
            return False
        if np.isnan(shifts[centre, 0]):
            shift_of(projections, query_shift, centres, centre, weights, shifts)
        if bits == 8:
            product = np.float64(dot_int8(number, levels, base + 12, n_bits))
        else:
            product = np.float64(dot_int4(numbers, flat, base + 12, n_bytes)) - middle
        factor, offset = heads[base >> 2], heads[(base >> 2) + 1]
        distance = (offset + shifts[centre, 0]) - np.float32(np.float64(factor) * (np.float64(scale) * product))
        if np.isnan(distance):
            return False
        distances[i] = distance
    return True


@njit(cache=True, nogil=True)
def read_kept(
    projections: Floats, query_shift: float, rows: KeptRows, bits: int, centres: Floats, weights: Floats,
    shifts: Floats, ids: Ids, order: Ranks, keys: Keys, n: int, near: Floats, near_ids: Ids,
) -> int:  # fmt: skip
    """Write the nearest of `n` candidates by their kept vectors; return how many were read, or -1.

    -1: a file holds an order of rows, or a centre, that does not exist. Keys hold ranks of rows in their lower half.
    """
    clear(near, near_ids)
    numbers = np.empty((2, projections.size if bits == 8 else (projections.size + 1) // 2), dtype=np.int16)
    scale, middle = whole_numbers(projections, bits, numbers)
    places, distances = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.float32)
    for i in range(n):
        rank = np.int64(keys[i] & np.uint64(0xFFFFFFFF))
        places[i] = np.int64(order[rank]) if rank < order.size else -1
        if places[i] < 0 or places[i] >= rows.shape[0]:
            return -1
    if not write_distances(
        rows, places, n, bits, numbers, scale, middle, projections, query_shift, centres, weights, shifts, distances
    ):
        return -1
    for i in range(n):
        if distances[i] <= near[near.size - 1]:  # ids of other rows are not read
            insert(distances[i], ids[places[i]], near, near_ids, i)
    return n


@njit(cache=True, nogil=True)
def nearest_kept(
    projections: Projections, query_shifts: Floats, kept: KeptRows, bits: int, centres: Floats, weights: Floats,
    ids: Ids, rows: Rows, counts: Rows, lower: Floats, distances: Floats, result_ids: Ids, n_read: Rows,
) -> bool:  # fmt: skip
    """Do as `exact.nearest` for kept vectors; return False as `write_distances` does.

    Bounds are compared with the k-th distance once for some rows, so that a few more are read.
    """
    k = distances.shape[1]
    n_bits = projections.shape[1]
    shifts = np.empty((centres.shape[0], 2), dtype=np.float32)
    numbers = np.empty((2, n_bits if bits == 8 else (n_bits + 1) // 2), dtype=np.int16)
    places, found = np.empty(2 * _AT_ONCE, dtype=np.int64), np.empty(2 * _AT_ONCE, dtype=np.float32)
    for query in range(projections.shape[0]):
        n, near, near_ids, z = counts[query], distances[query], result_ids[query], projections[query]
        clear(near, near_ids)
        forget_shifts(shifts)
        scale, middle = whole_numbers(z, bits, numbers)
        order = order_of(lower[query, :n])
        first = 0
        while first < n:
            n_there = 0
            while n_there < min(places.size, n - first) and not lower[query, order[first + n_there]] > near[k - 1]:
                places[n_there] = rows[query, order[first + n_there]]
                n_there += 1
            if n_there == 0:
                break
            if not write_distances(
                kept, places, n_there, bits, numbers, scale, middle, z, query_shifts[query], centres, weights, shifts,
                found,
            ):  # fmt: skip
                return False
            n_read[query] += n_there
            for i in range(n_there):
                insert(found[i], ids[places[i]], near, near_ids, first + i)
            first += n_there
    return True


@njit(cache=True, nogil=True)
def distances_to_kept(
    projections: Floats, query_shift: float, kept: KeptRows, bits: int, centres: Floats, weights: Floats, rows: Rows,
    distances: Floats,
) -> bool:  # fmt: skip
    """Write the estimated distances of some rows; return False if a row has a centre that does not exist."""
    shifts = np.empty((centres.shape[0], 2), dtype=np.float32)
    forget_shifts(shifts)
    numbers = np.empty((2, projections.size if bits == 8 else (projections.size + 1) // 2), dtype=np.int16)
    scale, middle = whole_numbers(projections, bits, numbers)
    return bool(
        write_distances(
            kept, rows, rows.size, bits, numbers, scale, middle, projections, query_shift, centres, weights, shifts,
            distances,
        )
    )  # fmt: skip


@njit(cache=True, nogil=True)
def values_of_kept(kept: KeptRows, start: int, stop: int, bits: int, values: Floats) -> None:
    """Write the values of the levels of rows [start, stop), of which `kept` has the bytes behind the heads."""
    for row in range(start, stop):
        for j in range(values.shape[1]):
            if bits == 8:
                byte = np.int32(kept[row, j])
                values[row, j] = byte - 256 if byte > 127 else byte
            else:
                level = (kept[row, j >> 1] >> (4 * (j & 1))) & 15
                values[row, j] = np.float32(level) - np.float32(7.5)
