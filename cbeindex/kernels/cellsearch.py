"""Queries in the cells of a segment, from vectors or projections to the nearest rows, in one call."""

from typing import Any

import numpy as np

from .._core.typing import Floats, Ids, Keys, Mask, Projections, Ranks, Rows, Vectors
from .cellscan import choose_cells, drop_copies, offset_of_products, prefetch_cell, rank_cells, scan_cell
from .dots import dot_floats
from .estimates import Records
from .exact import clear, distance_of, insert, is_farther, product
from .jit import njit
from .kept import KeptRows, forget_shifts, read_kept, shift_of
from .prefetch import prefetch
from .querytables import Tables, fill_tables
from .sorting import sort_keys
from .topk import keep_smallest
from .transform import transform_rows
from .views import read_only, view_as

LARGEST = np.float32(np.finfo(np.float32).max)
NO_KEY = np.uint64(0xFFFFFFFFFFFFFFFF)


@njit(cache=True, nogil=True)
def read_exactly(
    query: Vectors, vectors: Vectors, ids: Ids, order: Ranks, keys: Keys, n: int, metric: int, near: Floats,
    near_ids: Ids,
) -> int:  # fmt: skip
    """Write the nearest of `n` candidates by exact distance; return how many vectors were read, or -1.

    -1: a file holds an order of rows that do not exist.
    """
    k, dim = near.size, vectors.shape[1]
    slack = 1e-6 * np.sqrt(dim)
    square = product(query, query) if metric != 0 else 0.0
    clear(near, near_ids)
    rows = np.empty(n, dtype=np.int64)
    for i in range(n):
        rank = np.int64(keys[i] & np.uint64(0xFFFFFFFF))
        rows[i] = np.int64(order[rank]) if rank < order.size else -1
        if rows[i] < 0 or rows[i] >= vectors.shape[0]:
            return -1
        for j in range(0, dim if i < 8 else 0, 16):
            prefetch(vectors, rows[i] * dim + j)
    for i in range(n):
        if i + 8 < n:
            for j in range(0, dim, 16):
                prefetch(vectors, rows[i + 8] * dim + j)
        row = rows[i]
        if i < k or not is_farther(vectors[row], query, square, metric, slack, near[k - 1]):
            insert(distance_of(vectors[row], query, square, metric), ids[row], near, near_ids, i)
    return n


@njit(cache=True, nogil=True)
def scan_cells(
    projections: Floats, query_shift: float, centres: Floats, bits: int, weights: Floats, cells: Keys, n_cells: int,
    n_least: int, n_wanted: int, cell_centres: Any, starts: Rows, records: Records, rows: Any, copy_starts: Rows,
    copies: Records, copied_rows: Any, with_copies: bool, hidden: Mask, ranks: Ranks, n_found: int, step: float,
    product_offset: float, tables: Tables, precise_tables: Tables, shifts: Floats, found: Keys, seen: Rows,
    visits: Rows,
) -> int:  # fmt: skip
    """Scan the first `n_cells` of `cells`, or so many that `n_wanted` rows are found, but at least `n_least`.

    Leaves the keys of the `n_found` nearest rows in `found`, in ascending order, and returns their number. With copies,
    a row may be met twice, so that twice as many keys are kept, and each row is left once before the cut.
    """
    n_kept = 2 * n_found if with_copies else n_found
    n_bytes = (projections.size * bits + 7) // 8
    square = dot_floats(projections, projections, 0, projections.size)
    precise_step, precise_offset, has_precise = np.float32(0), np.float32(0), False
    bounds = np.empty(1, dtype=np.float32)
    bounds[0] = LARGEST
    count: Any = np.int64(0)  # a literal 0 would be a type of its own
    forget_shifts(shifts)
    for i in range(n_cells):
        if i >= n_least and count >= n_wanted:
            break
        cell = np.int64(cells[i] & np.uint64(0xFFFFFFFF))
        if i + 1 < n_cells:
            prefetch_cell(records, starts, np.int64(cells[i + 1] & np.uint64(0xFFFFFFFF)))
        centre, start, stop = np.int64(cell_centres[cell]), starts[cell], starts[cell + 1]
        if np.isnan(shifts[centre, 0]):
            shift_of(projections, query_shift, centres, centre, weights, shifts)
        shift = shifts[centre, 0]
        first_copy, last_copy = (copy_starts[cell], copy_starts[cell + 1]) if with_copies else (0, 0)
        if shifts[centre, 1] < weights[3] * square:  # the rounding of plain tables would matter
            if not has_precise:
                precise_step, precise_offset = fill_tables(projections, bits, True, precise_tables[0])
                has_precise = True
            count = scan_cell(
                precise_tables, True, precise_step, precise_offset, shift, records, rows, n_bytes, start, stop, hidden,
                ranks, n_kept, found, count, bounds,
            )  # fmt: skip
            if first_copy < last_copy:
                count = scan_cell(
                    precise_tables, True, precise_step, precise_offset, shift, copies, copied_rows, n_bytes, first_copy,
                    last_copy, hidden, ranks, n_kept, found, count, bounds,
                )  # fmt: skip
        else:
            count = scan_cell(
                tables, False, step, product_offset, shift, records, rows, n_bytes, start, stop, hidden, ranks, n_kept,
                found, count, bounds,
            )  # fmt: skip
            if first_copy < last_copy:
                count = scan_cell(
                    tables, False, step, product_offset, shift, copies, copied_rows, n_bytes, first_copy, last_copy,
                    hidden, ranks, n_kept, found, count, bounds,
                )  # fmt: skip
        visits[0] += 32 * (stop - start + last_copy - first_copy)
        visits[1] += 1
    if count > n_kept:
        keep_smallest(found, count, n_kept)
        count = n_kept
    sort_keys(found, 0, count)
    return int(drop_copies(found, count, n_found, seen) if with_copies else count)


@njit(cache=True, nogil=True, shared=True)
def search_one(
    z: Floats, query_shift: float, query: Vectors, centres: Floats, bits: int, weights: Floats, directory: Records,
    centroids: Floats, bases: Floats, cell_centres: Any, starts: Rows, records: Records, copy_starts: Rows,
    copies: Records, hidden: Mask, ranks: Ranks, order: Ranks, ids: Ids, vectors: Vectors, kept: KeptRows, metric: int,
    counts: Rows, tables: Tables, precise_tables: Tables, cells: Keys, shifts: Floats, found: Keys, seen: Rows,
    keys: Keys, distances: Floats, result_ids: Ids, visits: Rows,
) -> bool:  # fmt: skip
    """Find the nearest rows of a query with the projections `z`; parameters are those of `search_projections`.

    `tables`, `precise_tables`, `cells`, `shifts`, `found` and `seen` are memory to work in.
    """
    n_cells, n_probes, n_exact, n_found, n_wanted = bases.size, counts[0], counts[1], counts[2], counts[3]
    rows, width = view_as(records.reshape(-1), np.int32), centroids.shape[1]
    copied_rows, with_copies = view_as(copies.reshape(-1), np.int32), copies.shape[0] > 0
    n_bytes = (width * bits + 7) // 8
    step, product_offset = fill_tables(z, bits, False, tables[0])
    cell_offset = product_offset if width == z.size else offset_of_products(z[:width], bits)
    n_visited = n_probes
    if n_probes < n_cells:
        rank_cells(tables, step, cell_offset, directory, n_bytes, n_cells, cells)
        choose_cells(z, centroids, bases, weights[2], n_cells, n_exact, n_probes, cells)
    else:
        for cell in range(n_cells):
            cells[cell] = np.uint64(cell)
    while True:
        n = scan_cells(
            z, query_shift, centres, bits, weights, cells, n_visited, n_probes, n_wanted, cell_centres, starts, records,
            rows, copy_starts, copies, copied_rows, with_copies, hidden, ranks, n_found, step, product_offset, tables,
            precise_tables, shifts, found, seen, visits,
        )  # fmt: skip
        if n >= n_wanted or n_visited >= n_cells:
            break
        # Too few of the rows may be results: begin again with all cells in order, to stop when there are enough. Copies
        # are left out, or they would be counted as rows.
        with_copies = False
        rank_cells(tables, step, cell_offset, directory, n_bytes, n_cells, cells)
        choose_cells(z, centroids, bases, weights[2], n_cells, n_cells, n_cells, cells)
        n_visited = n_cells
    if kept.shape[0] > 0:
        n_read = read_kept(
            z, query_shift, kept, counts[4], centres, weights, shifts, ids, order, found, n, distances, result_ids
        )
    elif vectors.shape[0] > 0:
        n_read = read_exactly(query, vectors, ids, order, found, n, metric, distances, result_ids)
    else:
        for i in range(n):
            keys[i] = found[i]
        for i in range(n, keys.size):
            keys[i] = NO_KEY
        return True
    visits[2] += max(0, n_read)
    return bool(n_read >= 0)


@njit(cache=True, nogil=True)
def room_for_keys(n_found: int, has_copies: bool) -> Any:
    """Return memory for the keys of a query, and for telling copies among them."""
    n_kept = 2 * n_found if has_copies else n_found
    size = 1
    while has_copies and size < 2 * n_kept:
        size *= 2
    return np.empty(n_kept + min(n_kept, 64) + 96, dtype=np.uint64), np.empty(size, dtype=np.int64)


@njit(cache=True, nogil=True)
def search_projections(
    projections: Projections, query_shifts: Floats, queries: Vectors, centres: Floats, bits: int, weights: Floats,
    directory: Records, centroids: Floats, bases: Floats, cell_centres: Any, starts: Rows, records: Records,
    copy_starts: Rows, copies: Records, hidden: Mask, ranks: Ranks, order: Ranks, ids: Ids, vectors: Vectors,
    kept: KeptRows, metric: int, counts: Rows, room: int, keys: Keys, distances: Floats, result_ids: Ids, visits: Rows,
) -> bool:  # fmt: skip
    """Find the nearest rows of queries; return False if a file holds row numbers of rows that do not exist.

    Parameters
    ----------
    projections : float32 array of shape (n_queries, n_bits)
    query_shifts : float32 array of shape (n_queries,)
        What a query adds to its distances whatever the centre.
    queries : float32 array of shape (n_queries, dim)
        As the caller gave them, for exact distances.
    weights : float32 array of shape (4,)
        Factors of |z - c|^2 and of <c, z> in the shift of a query for a centre; of the product in the distance of a
        cell; share of |z|^2 below which |z - c|^2 asks for precise tables.
    directory : uint8 array of shape (n_blocks, size)
        Codes, factors and offsets of the centroids, 32 cells in a record.
    centroids, bases : float32 arrays of shape (n_cells, width) and (n_cells,)
    cell_centres : uint8 array of shape (n_cells,)
    starts : int64 array of shape (n_cells + 1,)
        The records of each cell.
    copy_starts, copies : int64 array of shape (n_cells + 1,), uint8 array of shape (n_records, size)
        Records of rows in their second cells, or no records.
    vectors : float32 array of shape (n_rows, dim), or (0, dim)
        Without vectors, and without kept ones of 4 or 8 bits, the nearest rows by estimate are the result.
    kept : uint8 array of shape (n_rows, size), or (0, 0)
        Vectors of 4 or 8 bits, relative to the same centres.
    counts : int64 array of shape (5,)
        Cells to visit, cells whose exact distances are computed, rows to find by estimate, rows that must be found
        whatever cells it takes, and the bits a dimension of `kept`.
    room : int
        Bytes of the tables of a query.
    keys : uint64 array of shape (n_queries, n_found)
        The nearest rows by estimate, if there are neither vectors nor kept ones.
    distances, result_ids : float32 and int64 arrays of shape (n_queries, k)
        The nearest rows by the distances of vectors or kept ones, if there are any.
    visits : int64 array of shape (3,)
        Counts of rows and cells that were scanned, and of vectors that were read.
    """
    tables, precise_tables = np.empty((1, room), dtype=np.uint8), np.empty((1, 2 * room), dtype=np.uint8)
    cells, shifts = np.empty(bases.size, dtype=np.uint64), np.empty((centres.shape[0], 2), dtype=np.float32)
    found, seen = room_for_keys(counts[2], copies.shape[0] > 0)
    for i in range(projections.shape[0]):
        query = queries[i] if vectors.shape[0] > 0 else queries[0]
        if not search_one(
            read_only(projections[i]), query_shifts[i], read_only(query), centres, bits, weights, directory, centroids,
            bases, cell_centres, starts, records, copy_starts, copies, hidden, ranks, order, ids, vectors, kept, metric,
            counts, tables, precise_tables, cells, shifts, found, seen, keys[i], distances[i], result_ids[i], visits,
        ):  # fmt: skip
            return False
    return True


@njit(cache=True, nogil=True)
def prepare_query(query: Vectors, square: float, metric: int, mean: Vectors, prepared: Vectors) -> Any:
    """Write a query as the encoder sees it, and return what it adds to its distances whatever the centre.

    The squared norm is known. Queries are divided by their norms under cosine, unless these are 0, or 1 up to rounding.
    """
    norm = np.float32(np.sqrt(square)) if metric == 2 else np.float32(1)
    if norm == 0 or abs(norm - np.float32(1)) < np.float32(1e-6):
        norm = np.float32(1)
    for i in range(query.size):
        prepared[i] = query[i] / norm
    if metric == 2:
        return np.float32((1 - product(prepared, prepared)) / 2)
    return np.float32(1 - product(query, mean) + product(mean, mean)) if metric == 1 else np.float32(0)


@njit(cache=True, nogil=True)
def search_vectors(
    queries: Vectors, longest: float, mean: Vectors, signs: Any, layout: Any, passes: Floats, coefficients: Floats,
    n_work: int, centres: Floats, bits: int, weights: Floats, directory: Records, centroids: Floats, bases: Floats,
    cell_centres: Any, starts: Rows, records: Records, copy_starts: Rows, copies: Records, hidden: Mask, ranks: Ranks,
    order: Ranks, ids: Ids, vectors: Vectors, kept: KeptRows, metric: int, counts: Rows, room: int, keys: Keys,
    distances: Floats,
    result_ids: Ids, visits: Rows,
) -> int:  # fmt: skip
    """Find the nearest rows of queries, from their vectors on: transform, tables, cells, scan, exact distances.

    Parameters not named here are those of `search_projections`. Returns the number of queries that were searched: fewer
    than there are if a query is not finite or too long, or -1 if a file holds row numbers of rows that do not exist.

    Parameters
    ----------
    longest : float
        The largest squared norm of a query.
    mean, signs, layout, passes, coefficients
        What `transform_rows` knows of the encoder.
    n_work : int
        Floats that it works in.
    """
    n_queries, n_bits, n_together = queries.shape[0], centres.shape[1], min(32, queries.shape[0])
    work, prepared = np.empty(n_work, dtype=np.float32), np.empty((n_together, queries.shape[1]), dtype=np.float32)
    projections, query_shifts = np.empty((n_together, n_bits), dtype=np.float32), np.empty(n_together, dtype=np.float32)
    codes, sums = np.empty((0, (n_bits + 63) // 64), dtype=np.uint64), np.empty((0, 2))
    tables, precise_tables = np.empty((1, room), dtype=np.uint8), np.empty((1, 2 * room), dtype=np.uint8)
    cells, shifts = np.empty(bases.size, dtype=np.uint64), np.empty((centres.shape[0], 2), dtype=np.float32)
    found, seen = room_for_keys(counts[2], copies.shape[0] > 0)
    for first in range(0, n_queries, n_together):
        n = min(n_together, n_queries - first)
        for i in range(n):
            square = product(queries[first + i], queries[first + i])
            if not square <= longest:
                return int(first + i)
            query_shifts[i] = prepare_query(queries[first + i], square, metric, mean, prepared[i])
        bad = transform_rows(
            read_only(prepared), 0, n, mean, signs, layout, passes, coefficients, work, projections, codes, sums
        )
        if bad >= 0:
            return int(first + bad)
        for i in range(n):
            query = first + i
            if not search_one(
                read_only(projections[i]), query_shifts[i], read_only(queries[query]), centres, bits, weights,
                directory, centroids, bases, cell_centres, starts, records, copy_starts, copies, hidden, ranks, order,
                ids, vectors, kept, metric, counts, tables, precise_tables, cells, shifts, found, seen, keys[query],
                distances[query], result_ids[query], visits,
            ):  # fmt: skip
                return -1
    return int(n_queries)
