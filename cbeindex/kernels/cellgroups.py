"""Many queries in the cells of a segment: a cell is read once for all queries of a group that visit it.

One query after the other reads most cells from memory each time, and then the memory is the limit. Here, up to four
queries share the look-ups in a record, and those that follow find it in a cache. Each query first visits some cells
alone, its nearest ones unless it visits all, because the rows there give a bound that rules out most of the rows in the
others. Then all visit the cells that turn out to be in reach. The results are those of `cellsearch.py`.
"""

from typing import Any

import numpy as np

from .._core.typing import Floats, Ids, Keys, Mask, Projections, Ranks, Rows, Vectors
from .asymmetric import float_of_key
from .cellscan import scan_visits
from .cellsteps import (
    LARGEST,
    among_rivals,
    begin_query,
    bound_by_rivals,
    cells_in_reach,
    count_visits,
    in_order,
    most_keys,
    read_found,
    room_for_keys,
    scan_precisely,
    shifts_of_cells,
)
from .estimates import Records
from .jit import njit
from .kept import KeptRows, forget_shifts
from .querytables import Tables
from .thresholds import keep_first
from .views import read_only


@njit(cache=True, nogil=True)
def order_by_cell(cells: Rows, n_made: Rows, n_plain: Rows, begins: Rows, queries: Rows, visits: Rows) -> int:
    """Put the visits that are left in the order of cells; return their number.

    Probes [n_made[query], n_plain[query]) of a query are left. The visits of cell c get the places
    [begins[c], begins[c + 1]): `queries` says whose they are, and `visits` the numbers query * n_most + probe.
    """
    n_queries, n_most = cells.shape
    begins[:] = 0
    for query in range(n_queries):
        for probe in range(n_made[query], n_plain[query]):
            begins[cells[query, probe] + 2] += 1
    for i in range(2, begins.size):
        begins[i] += begins[i - 1]
    for query in range(n_queries):
        for probe in range(n_made[query], n_plain[query]):
            place = begins[cells[query, probe] + 1]
            queries[place], visits[place] = query, query * n_most + probe
            begins[cells[query, probe] + 1] += 1
    return int(begins[begins.size - 1])


@njit(cache=True, nogil=True)
def n_first_cells(cells: Rows, spans: Rows, n_rows: int) -> int:
    """Return how many of the first cells hold `n_rows` rows, if they are full."""
    n, count = 0, 0
    while n < cells.size and count < n_rows:
        count += 32 * (spans[cells[n], 1] - spans[cells[n], 0])
        n += 1
    return n


@njit(cache=True, nogil=True)
def known_shifts(cells: Rows, cell_shifts: Floats, cell_centres: Any, shifts: Floats) -> None:
    """Write what a query adds to the distances of the centres of cells that it has visited."""
    forget_shifts(shifts)
    for i in range(cells.size):
        shifts[np.int64(cell_centres[cells[i]]), 0] = cell_shifts[i]


@njit(cache=True, nogil=True, shared=True)
def scan_together(
    cells: Rows, shifts: Floats, n_made: Rows, n_plain: Rows, tables: Tables, steps: Floats, product_offsets: Floats,
    records: Records, spans: Rows, copies: Records, copy_spans: Rows, n_bytes: int, hidden: Mask, ranks: Ranks,
    n_kept: int, found: Any, counts: Rows, bounds: Floats,
) -> None:  # fmt: skip
    """Visit cells [n_made[query], n_plain[query]) of all queries, each cell and the copies in it once for all."""
    n_cells = spans.shape[0]
    begins, every_cell = np.empty(n_cells + 2, dtype=np.int64), np.arange(n_cells)
    n = (n_plain - n_made).sum()
    visitors, numbers = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    order_by_cell(cells, n_made, n_plain, begins, visitors, numbers)
    visit_shifts = np.empty(n, dtype=np.float32)
    for i in range(n):
        visit_shifts[i] = shifts.flat[numbers[i]]
    for part in range(2 if copies.shape[0] > 0 else 1):
        codes, spans_of = (copies, copy_spans) if part else (records, spans)
        scan_visits(
            every_cell, begins, visitors, visit_shifts, tables, False, steps, product_offsets, codes, spans_of,
            n_bytes, hidden, ranks, n_kept, found, counts, bounds,
        )  # fmt: skip


@njit(cache=True, nogil=True)
def search_group(
    projections: Projections, query_shifts: Floats, queries: Vectors, centres: Floats, bits: int, weights: Floats,
    directory: Records, centroids: Floats, bases: Floats, cell_centres: Any, spans: Rows, records: Records,
    copy_spans: Rows, copies: Records, hidden: Mask, ranks: Ranks, order: Ranks, ids: Ids, vectors: Vectors,
    kept: KeptRows, metric: int, sizes: Rows, room: int, rivals: Floats, keys: Keys, distances: Floats,
    result_ids: Ids, visits: Rows, is_short: Mask,
) -> bool:  # fmt: skip
    """Find the nearest rows of queries; parameters are those of `cellsearch.search_projections`.

    Queries that find fewer rows than they must are marked in `is_short`. They have no results and are not counted.
    """
    n_queries, n_cells, n_bytes = projections.shape[0], bases.size, (centres.shape[1] * bits + 7) // 8
    n_probes, n_most, with_copies = sizes[0], sizes[5], copies.shape[0] > 0
    n_kept = most_keys(sizes, with_copies)
    tables, precise_tables = np.empty((n_queries, room), dtype=np.uint8), np.empty((1, 2 * room), dtype=np.uint8)
    near, chosen = np.empty(32 * directory.shape[0], dtype=np.float32), np.empty(n_cells, dtype=np.uint64)
    near_cells = np.empty((n_queries, n_most), dtype=np.uint64)
    cells = np.empty((n_queries, n_most), dtype=np.int64)
    shifts, centre_shifts = np.empty(cells.shape, dtype=np.float32), np.empty((centres.shape[0], 2), dtype=np.float32)
    steps, product_offsets = np.empty(n_queries, dtype=np.float32), np.empty(n_queries, dtype=np.float32)
    n_made, n_plain = np.empty(n_queries, dtype=np.int64), np.empty(n_queries, dtype=np.int64)
    found, seen = room_for_keys(n_queries, sizes, with_copies)
    counts, bounds = np.zeros(n_queries, dtype=np.int64), np.empty(n_queries, dtype=np.float32)
    one, begin_one = np.zeros(n_probes, dtype=np.int64), np.arange(n_probes + 1)
    for i in range(n_queries):
        z, own = read_only(projections[i]), slice(i, i + 1)
        bounds[i] = bound_by_rivals(rivals[i], sizes, weights[5])
        is_short[i] = bounds[i] == LARGEST
        steps[i], product_offsets[i] = begin_query(
            z, bits, weights, directory, centroids, bases, sizes, tables[own], near, chosen
        )
        near_cells[i] = chosen[:n_most]
        forget_shifts(centre_shifts)
        n_plain[i] = shifts_of_cells(
            z, query_shifts[i], centres, weights, chosen, n_probes, cell_centres, cells[i], shifts[i], centre_shifts
        )
        n = n_first_cells(cells[i, : n_plain[i]], spans, 2 * n_kept)
        n_made[i] = n
        scan_visits(
            cells[i, :n], begin_one[: n + 1], one, shifts[i], tables[own], False, steps[own], product_offsets[own],
            records, spans, n_bytes, hidden, ranks, n_kept, found[own], counts[own], bounds[own],
        )  # fmt: skip
        if with_copies:
            scan_visits(
                cells[i, :n], begin_one[: n + 1], one, shifts[i], tables[own], False, steps[own], product_offsets[own],
                copies, copy_spans, n_bytes, hidden, ranks, n_kept, found[own], counts[own], bounds[own],
            )  # fmt: skip
        if n_plain[i] < n_probes:
            scan_precisely(
                z, bits, cells[i, n_plain[i] : n_probes], shifts[i, n_plain[i] : n_probes], precise_tables, records,
                spans, copies, copy_spans, hidden, ranks, n_kept, found[own], counts[own], bounds[own],
            )  # fmt: skip
        if counts[i] > n_kept:
            bounds[i] = float_of_key(keep_first(found[i], counts[i], n_kept))
            counts[i] = n_kept
    scan_together(
        cells, shifts, n_made, n_plain, tables, steps, product_offsets, records, spans, copies, copy_spans, n_bytes,
        hidden, ranks, n_kept, found, counts, bounds,
    )  # fmt: skip
    n_made[:], n_all = n_probes, np.full(n_queries, n_probes)
    if n_most > n_probes:
        for i in range(n_queries):
            z, own = read_only(projections[i]), slice(i, i + 1)
            n = cells_in_reach(near_cells[i], sizes, weights[4], n_kept, found[i], counts[own], bounds[own])
            n_all[i] += n
            forget_shifts(centre_shifts)
            n_plain[i] = n_probes + shifts_of_cells(
                z, query_shifts[i], centres, weights, near_cells[i, n_probes:], n, cell_centres, cells[i, n_probes:],
                shifts[i, n_probes:], centre_shifts,
            )  # fmt: skip
            if n_plain[i] < n_all[i]:
                precise = slice(n_plain[i], n_all[i])
                scan_precisely(
                    z, bits, cells[i, precise], shifts[i, precise], precise_tables, records, spans, copies,
                    copy_spans, hidden, ranks, n_kept, found[own], counts[own], bounds[own],
                )  # fmt: skip
        scan_together(
            cells, shifts, n_made, n_plain, tables, steps, product_offsets, records, spans, copies, copy_spans,
            n_bytes, hidden, ranks, n_kept, found, counts, bounds,
        )  # fmt: skip
    for i in range(n_queries):
        n = in_order(found[i], counts[i], sizes, weights[5], with_copies, seen)
        is_short[i] &= n < sizes[3] and n_probes < n_cells
        if not is_short[i]:
            n = among_rivals(found[i], n, sizes, weights[5], rivals[i])
            count_visits(cells[i, : n_all[i]], spans, copy_spans, with_copies, visits)
            if kept.shape[0] > 0:
                known_shifts(cells[i, : n_all[i]], shifts[i], cell_centres, centre_shifts)
            query = queries[i if vectors.shape[0] > 0 else 0]
            if not read_found(
                read_only(projections[i]), query_shifts[i], read_only(query), centres, weights, order, ids, vectors,
                kept, sizes[4], metric, centre_shifts, found[i], n, keys[i], distances[i], result_ids[i], visits,
            ):  # fmt: skip
                return False
    return True
