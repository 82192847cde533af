"""Cells of residual codes: which cells a query visits, and the nearest rows in them by estimate."""

from typing import Any

import numpy as np

from .._core.typing import Floats, Keys, Mask, Ranks, Rows
from .asymmetric import float_of_key, key_of
from .dots import dot_floats
from .estimates import Records, estimate_block
from .jit import njit
from .lookup import sum_block, sum_block_precisely
from .popcount import popcount64
from .prefetch import prefetch
from .querytables import Tables, measure_nibbles
from .sorting import sort_keys
from .thresholds import keep_first, limit_of_smallest, order_bits, places_within, put_first
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
def estimate_cells(
    tables: Tables, step: float, product_offset: float, directory: Records, n_bytes: int, distances: Floats
) -> None:
    """Estimate the distances of all cells, 32 at a time. `distances` has room for whole records of the directory."""
    size, at = directory.shape[1], 32 * n_bytes
    sums = np.empty((1, 32), dtype=np.int32)
    for block in range(directory.shape[0]):
        base = block * size
        sum_block(directory, base, n_bytes, tables, (0,), sums)
        estimate_block(
            sums, 0, directory, base + at, base + at, step, product_offset, 0.0, 0.0, 0.0,
            distances[32 * block : 32 * block + 32],
        )  # fmt: skip


@njit(cache=True, nogil=True)
def choose_cells(
    query: Floats, centroids: Floats, bases: Floats, weight: float, n_exact: int, n_most: int, n_probes: int,
    n_first: int, distances: Floats, keys: Keys,
) -> None:  # fmt: skip
    """Leave the keys of the `n_most` nearest cells at the front, first those of the `n_probes` nearest.

    The `n_first` nearest are in order. The distance of a cell is `bases[cell] - weight * <query, centroid>`, over the
    length of centroids. It is computed for about as many cells as `n_exact`, those with the smallest estimates, which
    are in `distances`.
    """
    n_cells, width = centroids.shape
    ordered, places = np.empty(n_cells, dtype=np.int32), np.empty(n_cells, dtype=np.int64)
    if n_exact < n_cells:
        order_bits(distances, n_cells, ordered)
        n = places_within(ordered, n_cells, limit_of_smallest(ordered, n_cells, n_exact), places)
    else:
        n = n_cells
        for cell in range(n_cells):
            places[cell] = cell
    for i in range(n):
        distances[i] = bases[places[i]] - weight * dot_floats(query, centroids, places[i] * width, width)
    order_bits(distances, n, ordered)
    limit, bits, count = limit_of_smallest(ordered, n, n_most), view_as(distances, np.int32), 0
    for i in range(n):
        keys[count] = key_of(bits[i], places[i])
        count += ordered[i] <= limit
    if count > n_most:
        keep_first(keys, count, n_most)
    if n_probes < n_most:
        put_first(keys, n_most, n_probes)
    if n_first < n_probes:
        put_first(keys, n_probes, n_first)
    sort_keys(keys, 0, min(n_first, n_probes))


@njit(cache=True, nogil=True, shared=True)
def scan_visits(
    cells: Rows, begins: Rows, queries: Rows, visit_shifts: Floats, tables: Tables, is_precise: bool, steps: Floats,
    product_offsets: Floats, records: Records, spans: Rows, n_bytes: int, hidden: Mask, ranks: Ranks, k: int,
    found: Any, counts: Rows, bounds: Floats,
) -> None:  # fmt: skip
    """Estimate the rows of cells for the queries that visit them, up to four of which share the reading of a record.

    The `k` smallest keys of a query, among the first `counts[query]` of `found[query]`, do not depend on the order of
    the visits, nor on which queries share a call. This is one loop without calls, because a call costs some 100 ns for
    its arrays, as much as a cell.

    Parameters
    ----------
    cells : int64 array of shape (n,)
    begins : int64 array of shape (n + 1,)
        The visits of each cell: [begins[i], begins[i + 1]).
    queries, visit_shifts : int64 and float32 arrays of shape (n_visits,)
        The query of a visit, and what the query adds to all distances of rows in the cell.
    tables, steps, product_offsets
        Of all queries. If tables are precise, only one query may visit cells.
    spans : int64 array of shape (n_cells, 4)
        The records of each cell, [first, stop), and its rows, [first, stop). Records also hold rows of other cells.
    found : uint64 array of shape (n_queries, k + 32 or more)
        A bound is lowered whenever the room of its query is full.
    counts, bounds : int64 and float32 arrays of shape (n_queries,)
        How many keys there are, and the largest distance that may be among the `k` smallest.
    """
    sums, near, four = np.empty((4, 32), dtype=np.int32), np.empty(32, dtype=np.float32), np.empty(4, dtype=np.int64)
    rows, bits = view_as(records.reshape(-1), np.int32), view_as(near, np.int32)
    size, at, last = records.shape[1], 32 * n_bytes, found.shape[1] - 32
    for i in range(cells.size):
        start, stop = spans[cells[i], 0], spans[cells[i], 1]
        first_row, stop_row = spans[cells[i], 2], spans[cells[i], 3]
        if i + 1 < cells.size:  # the processor itself asks for what follows the first two records
            first = spans[cells[i + 1], 0]
            for byte in range(first * size, min(first + 2, spans[cells[i + 1], 1]) * size, 64):
                prefetch(records, byte)
        for visit in range(begins[i], begins[i + 1], 4):
            n = min(4, begins[i + 1] - visit)
            for j in range(4):
                four[j] = queries[visit + min(j, n - 1)]
            for record in range(start, stop):
                base = record * size
                if is_precise:
                    sum_block_precisely(records, base, n_bytes, tables, (four[0],), sums)
                elif n == 1:
                    sum_block(records, base, n_bytes, tables, (four[0],), sums)
                else:
                    sum_block(records, base, n_bytes, tables, (four[0], four[1], four[2], four[3]), sums)
                for j in range(n):
                    query = four[j]
                    within = estimate_block(
                        sums, j, records, base + at, base + at, steps[query], product_offsets[query],
                        visit_shifts[visit + j], 0.0, bounds[query], near,
                    )  # fmt: skip
                    if within == 0:
                        continue
                    count = counts[query]
                    while within != 0:
                        lowest = within & (~within + np.uint64(1))
                        place = np.int64(popcount64(lowest - np.uint64(1)))
                        # Rows of other cells are passed over. A file may hold any row numbers.
                        row = np.int64(rows[(base + at + 512) // 4 + place])
                        if first_row <= row < stop_row and (hidden.size == 0 or not hidden[row]):
                            found[query, count] = key_of(bits[place], np.int64(ranks[row]) & 0xFFFFFFFF)
                            count += 1
                        within ^= lowest
                    if count > last:
                        bounds[query] = float_of_key(keep_first(found[query], count, k))
                        count = k
                    counts[query] = count


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
