"""Cells of residual codes: which cells a query visits, and the nearest rows in them by estimate."""

from typing import Any

import numpy as np

from .._core.typing import Floats, Keys, Mask, Ranks, Rows
from .asymmetric import float_of_key, key_of
from .dots import dot_floats
from .estimates import Records, estimate_block, prefetch_record
from .jit import njit
from .lookup import sum_block, sum_block_precisely
from .popcount import popcount64
from .querytables import Tables, measure_nibbles
from .sorting import sort_keys
from .topk import keep_smallest
from .views import view_as


@njit(cache=True, nogil=True)
def offset_of_products(projections: Floats, bits: int) -> Any:
    """Return the offset of products that look-ups in the tables of these projections need (see `querytables.py`)."""
    if bits == 1:
        return -measure_nibbles(projections, 1)[1]
    if bits == 2:
        return -measure_nibbles(projections, 2)[1] * np.float32(1.5)
    return -measure_nibbles(projections, 4)[1] * np.float32(7.5)


@njit(cache=True, nogil=True)
def rank_cells(
    tables: Tables, step: float, product_offset: float, directory: Records, n_bytes: int, n_cells: int, keys: Keys
) -> None:
    """Write a key of (estimated distance, cell) for each cell."""
    size, at = directory.shape[1], 32 * n_bytes
    sums, near = np.empty((1, 32), dtype=np.int32), np.empty(32, dtype=np.float32)
    bits = view_as(near, np.int32)
    for block in range(directory.shape[0]):
        base = block * size
        sum_block(directory, base, n_bytes, tables, (0,), sums)
        estimate_block(sums, 0, directory, base + at, base + at, step, product_offset, 0.0, 0.0, 0.0, near)
        for i in range(min(32, n_cells - 32 * block)):
            keys[32 * block + i] = key_of(bits[i], 32 * block + i)


@njit(cache=True, nogil=True)
def choose_cells(
    query: Floats, centroids: Floats, bases: Floats, weight: float, n_cells: int, n_exact: int, n_probes: int,
    keys: Keys,
) -> None:  # fmt: skip
    """Leave the keys of the `n_probes` nearest cells at the front, in order: the best `n_exact` by exact distance.

    The distance of a cell is `bases[cell] - weight * <query, centroid>`, over the length of centroids.
    """
    width = centroids.shape[1]
    if n_exact < n_cells:
        keep_smallest(keys, n_cells, n_exact)
    near = np.empty(1, dtype=np.float32)
    bits = view_as(near, np.int32)
    for i in range(n_exact):
        cell = np.int64(keys[i] & np.uint64(0xFFFFFFFF))
        near[0] = bases[cell] - weight * dot_floats(query, centroids, cell * width, width)
        keys[i] = key_of(bits[0], cell)
    keep_smallest(keys, n_exact, n_probes)
    sort_keys(keys, 0, n_probes)


@njit(cache=True, nogil=True)
def append_places(
    near: Any, estimates: Floats, rows: Any, first: int, hidden: Mask, ranks: Ranks, keys: Keys, count: int
) -> int:
    """Append the keys of the rows of a block whose bits are set and which are not hidden; return the number of keys.

    The row numbers of the block begin at `rows[first]`. A file may hold any number there: keys of rows that do not
    exist are not appended.
    """
    bits = view_as(estimates, np.int32)
    while near != 0:
        lowest = near & (~near + np.uint64(1))
        place = np.int64(popcount64(lowest - np.uint64(1)))
        row = np.int64(rows[first + place])
        if 0 <= row < ranks.size and (hidden.size == 0 or not hidden[row]):
            keys[count] = key_of(bits[place], np.int64(ranks[row]) & 0xFFFFFFFF)
            count += 1
        near ^= lowest
    return count


@njit(cache=True, nogil=True)
def scan_cell(
    tables: Tables, is_precise: bool, step: float, product_offset: float, shift: float, records: Records, rows: Any,
    n_bytes: int, start: int, stop: int, hidden: Mask, ranks: Ranks, k: int, found: Keys, count: int, bounds: Floats,
) -> int:  # fmt: skip
    """Estimate the rows of records [start, stop) for a query; return how many keys `found` has then.

    The `k` smallest keys do not depend on the order in which cells are scanned. `bounds[0]` is the largest distance
    that may be among them. `rows` are the records as int32.
    """
    sums, near = np.empty((1, 32), dtype=np.int32), np.empty(32, dtype=np.float32)
    size, at, last = records.shape[1], 32 * n_bytes, found.size - 32
    for record in range(start, stop):
        base = record * size
        if is_precise:
            sum_block_precisely(records, base, n_bytes, tables, (0,), sums)
        else:
            sum_block(records, base, n_bytes, tables, (0,), sums)
        within = estimate_block(
            sums, 0, records, base + at, base + at, step, product_offset, shift, 0.0, bounds[0], near
        )  # fmt: skip
        if within != 0:
            count = append_places(within, near, rows, (base + at + 512) // 4, hidden, ranks, found, count)
            if count > last:
                bounds[0] = float_of_key(keep_smallest(found, count, k))
                count = k
    return count


@njit(cache=True, nogil=True)
def drop_copies(keys: Keys, n: int, n_most: int, seen: Rows) -> int:
    """Leave the first key of each rank, of `n` keys in order, at most `n_most`; return their number.

    `seen` is memory to work in, of a power of two at least twice as many numbers as there are keys.
    """
    mask = np.int64(seen.size - 1)
    for place in range(seen.size):
        seen[place] = -1
    n_left = 0
    for i in range(n):
        rank = np.int64(keys[i] & np.uint64(0xFFFFFFFF))
        at = (rank * 40503) & mask
        while seen[at] != -1 and seen[at] != rank:
            at = (at + 1) & mask
        if seen[at] == -1:
            seen[at] = rank
            keys[n_left] = keys[i]
            n_left += 1
            if n_left == n_most:
                break
    return n_left


@njit(cache=True, nogil=True)
def prefetch_cell(records: Records, starts: Rows, cell: int) -> None:
    """Ask for the first two records of a cell."""
    for record in range(starts[cell], min(starts[cell] + 2, starts[cell + 1])):
        prefetch_record(records, record)
