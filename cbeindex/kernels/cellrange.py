"""All rows within a radius of a query, in the cells of a segment that may hold them."""

from typing import Any

import numpy as np

from .._core.typing import Floats, Keys, Mask, Projections, Rows
from .asymmetric import float_of_key
from .cellscan import choose_cells, estimate_cells, offset_of_products
from .cellsteps import LARGEST
from .dots import dot_floats
from .estimates import Records, estimate_block, prefetch_record
from .jit import njit
from .kept import shift_of
from .lookup import sum_block, sum_block_precisely
from .querytables import Tables, fill_tables
from .views import view_as


@njit(cache=True, nogil=True)
def choose_by_gap(
    tables: Tables, step: float, product_offset: float, directory: Records, n_bytes: int, query: Floats,
    centroids: Floats, bases: Floats, weight: float, gap: float, keys: Keys,
) -> int:  # fmt: skip
    """Leave the keys of the cells at most `gap` farther than the nearest one at the front, and return their number.

    Look-ups rank all cells, and the distances of more and more of the first ones are computed until one is too far.
    """
    n_cells = bases.size
    n_exact, distances = min(n_cells, 16), np.empty(32 * directory.shape[0], dtype=np.float32)
    while True:
        if n_exact < n_cells:
            estimate_cells(tables, step, product_offset, directory, n_bytes, distances)
        choose_cells(query, centroids, bases, weight, n_exact, n_exact, n_exact, n_exact, distances, keys)
        last = np.float64(float_of_key(keys[0])) + gap
        n_near = n_exact
        while n_near > 0 and float_of_key(keys[n_near - 1]) > last:
            n_near -= 1
        # Look-ups may rank a cell too low: the chosen ones must be well among those whose distances are known.
        if n_exact == n_cells or 3 * n_near <= n_exact:
            return n_near
        n_exact = min(n_cells, 4 * n_exact)


@njit(cache=True, nogil=True)
def doubt_of(
    near: float, query_shift: float, offset: float, spread: float, length: float, across: float, apart: float,
    whole: float, terms: Any,
) -> Any:  # fmt: skip
    """Return how far below its estimate the distance of a row may be; see `ResidualCodec.errors` and `doubt_terms`.

    `across` is the squared distance of the query to the centre of the row, `apart` the squared length of the centre,
    and `whole` that of the query.
    """
    sigmas, extra, scale, half, variance, rounding = terms[0], terms[1], terms[2], terms[3], terms[4], terms[5]
    if half == 0:  # inner products
        product = scale * spread * np.sqrt(across)
        projected = scale * np.sqrt((length * length + apart) * whole * variance / 2)
    else:
        rest = 0.0
        if length > 0:
            along = (length * length + across - half * (near - query_shift) / scale) / (2 * length)
            least = min((spread / length) ** 2, 1.0) * across
            rest = min(max(across - along * along, least), across)
            if abs(length - terms[7]) <= 0.01 * terms[7]:  # it may be a zero vector, whose estimate tells less
                rest = across
        product = 2 * scale / half * spread * np.sqrt(rest)
        projected = np.sqrt(variance) * near
    rounded = rounding * (abs(offset) + scale * across + abs(near))
    error = np.sqrt(product * product + projected * projected + rounded * rounded)
    return sigmas * error + extra * (abs(offset) + abs(near))


@njit(cache=True, nogil=True)
def append_within(
    estimates: Floats, query_shift: float, numbers: Floats, numbers_of_rows: Any, first: int, hidden: Mask,
    span: Rows, across: float, apart: float, whole: float, radius: float, terms: Any, rows: Rows, near: Floats,
    count: int,
) -> int:  # fmt: skip
    """Append the rows of a record that may be within `radius`, with their estimates; return how many there are then.

    Offsets, spreads and lengths of the record begin at `numbers[first + 32]`, `+ 64` and `+ 96`, and row numbers at
    `numbers_of_rows[first + 128]`. A record also holds rows of other cells, and a file any number there: only rows from
    `span[2]` to before `span[3]` are appended.
    """
    root = np.sqrt(across)
    for i in range(32):
        estimate = np.float64(estimates[i])
        if not estimate < LARGEST:  # there is no row at this place
            continue
        offset, spread = np.float64(numbers[first + 32 + i]), np.float64(numbers[first + 64 + i])
        if terms[3] != 0:  # the sum of all errors is at least the root of the sum of their squares, and needs no root
            most = 2 * terms[2] / terms[3] * spread * root + terms[6] * abs(estimate)
            most += terms[5] * (abs(offset) + terms[2] * across + abs(estimate))
            if estimate - terms[0] * most - terms[1] * (abs(offset) + abs(estimate)) > radius:
                continue
        length = np.float64(numbers[first + 96 + i])
        if estimate - doubt_of(estimate, query_shift, offset, spread, length, across, apart, whole, terms) > radius:
            continue
        row = np.int64(numbers_of_rows[first + 128 + i])
        if span[2] <= row < span[3] and (hidden.size == 0 or not hidden[row]):
            rows[count], near[count] = row, estimates[i]
            count += 1
    return count


@njit(cache=True, nogil=True)
def rows_within(
    projections: Projections, query_shift: float, centres: Floats, apart: Any, bits: int, weights: Floats,
    directory: Records, centroids: Floats, bases: Floats, cell_centres: Any, spans: Rows, records: Records,
    hidden: Mask, gap: float, radius: float, terms: Any, room: int, rows: Rows, near: Floats, visits: Rows,
) -> int:  # fmt: skip
    """Find the rows that may be within `radius` of a query; return their number, or -1 if there is no room for them.

    Parameters not named here are those of `cellsearch.search_projections`.

    Parameters
    ----------
    apart : float64 array of shape (n_centres,)
        Squared lengths of the centres.
    gap : float
        Cells are visited that are at most this much farther than the nearest one; all of them if it is infinite.
    terms : float64 array of shape (8,)
        What `doubt_terms` returns.
    rows, near : int64 and float32 arrays of equal size
        Get the rows and their estimates.
    visits : int64 array of shape (2,)
        Counts of rows and cells that were scanned.
    """
    tables, precise_tables = np.empty((1, room), dtype=np.uint8), np.empty((1, 2 * room), dtype=np.uint8)
    n_cells, width, n_bytes = bases.size, centroids.shape[1], (projections.size * bits + 7) // 8
    cells, shifts = np.empty(n_cells, dtype=np.uint64), np.full((centres.shape[0], 2), np.nan, dtype=np.float32)
    sums, estimates = np.empty((1, 32), dtype=np.int32), np.empty(32, dtype=np.float32)
    flat = records.reshape(-1)
    numbers, numbers_of_rows = view_as(flat, np.float32), view_as(flat, np.int32)
    step, product_offset = fill_tables(projections, bits, False, tables[0])
    if gap < np.inf:
        cell_offset = product_offset if width == projections.size else offset_of_products(projections[:width], bits)
        n_visited = choose_by_gap(
            tables, step, cell_offset, directory, (width * bits + 7) // 8, projections, centroids, bases, weights[2],
            gap, cells,
        )  # fmt: skip
    else:
        n_visited = n_cells
        for number in range(n_cells):
            cells[number] = np.uint64(number)
    whole, has_precise, count = dot_floats(projections, projections, 0, projections.size), False, 0
    precise_step, precise_offset = np.float32(0), np.float32(0)
    for i in range(n_visited):
        cell = np.int64(cells[i] & np.uint64(0xFFFFFFFF))
        if i + 1 < n_visited:
            prefetch_record(records, spans[np.int64(cells[i + 1] & np.uint64(0xFFFFFFFF)), 0])
        centre, start, stop = np.int64(cell_centres[cell]), spans[cell, 0], spans[cell, 1]
        if np.isnan(shifts[centre, 0]):
            shift_of(projections, query_shift, centres, centre, weights, shifts)
        shift, across = shifts[centre, 0], shifts[centre, 1]
        is_precise = across < weights[3] * whole  # the rounding of plain tables would matter
        if is_precise and not has_precise:
            precise_step, precise_offset = fill_tables(projections, bits, True, precise_tables[0])
            has_precise = True
        for record in range(start, stop):
            if count + 32 > rows.size:
                return -1
            base, at = record * records.shape[1], 32 * n_bytes
            if is_precise:
                sum_block_precisely(records, base, n_bytes, precise_tables, (0,), sums)
                estimate_block(
                    sums, 0, records, base + at, base + at, precise_step, precise_offset, shift, 0.0, LARGEST, estimates
                )  # fmt: skip
            else:
                sum_block(records, base, n_bytes, tables, (0,), sums)
                estimate_block(
                    sums, 0, records, base + at, base + at, step, product_offset, shift, 0.0, LARGEST, estimates
                )  # fmt: skip
            count = append_within(
                estimates, query_shift, numbers, numbers_of_rows, (base + at) // 4, hidden, spans[cell], across,
                apart[centre], whole, radius, terms, rows, near, count,
            )  # fmt: skip
        visits[0] += 32 * (stop - start)
        visits[1] += 1
    return count
