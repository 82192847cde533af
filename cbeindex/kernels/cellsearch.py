"""Queries in the cells of a segment, one after the other, from vectors or projections to the nearest rows."""

from typing import Any

import numpy as np

from .._core.typing import Floats, Ids, Keys, Mask, Projections, Ranks, Rows, Vectors
from .cellscan import choose_cells
from .cellsteps import (
    LARGEST,
    among_rivals,
    begin_query,
    bound_by_rivals,
    cells_in_reach,
    in_order,
    most_keys,
    read_found,
    room_for_keys,
    scan_cells,
)
from .estimates import Records
from .jit import njit
from .kept import KeptRows, forget_shifts
from .preparing import prepare_queries
from .querytables import Tables
from .transform import transform_rows
from .views import read_only


@njit(cache=True, nogil=True, shared=True)
def search_one(
    z: Floats, query_shift: float, query: Vectors, centres: Floats, bits: int, weights: Floats, directory: Records,
    centroids: Floats, bases: Floats, cell_centres: Any, spans: Rows, records: Records, copy_spans: Rows,
    copies: Records, hidden: Mask, ranks: Ranks, order: Ranks, ids: Ids, vectors: Vectors, kept: KeptRows, metric: int,
    counts: Rows, tables: Tables, precise_tables: Tables, near: Floats, cells: Keys, shifts: Floats, found: Any,
    seen: Rows, rivals: Floats, keys: Keys, distances: Floats, result_ids: Ids, visits: Rows,
) -> bool:  # fmt: skip
    """Find the nearest rows of a query with the projections `z`; parameters are those of `search_projections`.

    `tables`, `precise_tables`, `near`, `cells`, `shifts`, `found` and `seen` are memory to work in.
    """
    n_cells, n_probes, n_found, n_wanted = bases.size, counts[0], counts[2], counts[3]
    with_copies = copies.shape[0] > 0
    n_kept = most_keys(counts, with_copies)
    n_keys, bounds = np.empty(1, dtype=np.int64), np.empty(1, dtype=np.float32)
    n_keys[0], bounds[0] = 0, bound_by_rivals(rivals, counts, weights[5])
    has_rivals = bounds[0] < LARGEST
    forget_shifts(shifts)
    step, product_offset = begin_query(z, bits, weights, directory, centroids, bases, counts, tables, near, cells)
    first, n_more = 0, n_probes
    while n_more > 0:  # the nearest cells, and then those in reach
        scan_cells(
            z, query_shift, centres, bits, weights, cells[first:], n_more, cell_centres, spans, records, copy_spans,
            copies, hidden, ranks, n_kept, step, product_offset, tables, precise_tables, shifts, found, n_keys, bounds,
            visits,
        )  # fmt: skip
        n_more = 0
        if first == 0 and counts[5] > n_probes:
            n_more = cells_in_reach(cells, counts, weights[4], n_kept, found[0], n_keys, bounds)
        first = n_probes
    n = in_order(found[0], n_keys[0], counts, weights[5], with_copies, seen)
    if n < n_wanted and n_probes < n_cells and not has_rivals:
        # Too few of the rows may be results: begin again with all cells in order, more and more of them until there are
        # enough. Copies are left out, or they would be counted as rows.
        choose_cells(z, centroids, bases, weights[2], n_cells, n_cells, n_cells, n_cells, near, cells)
        n_keys[0], bounds[0], with_copies, n_done = 0, LARGEST, False, 0
        while n_done < n_cells and n_keys[0] < n_wanted:
            n_more = min(max(n_probes, n_done), n_cells - n_done)
            scan_cells(
                z, query_shift, centres, bits, weights, cells[n_done:], n_more, cell_centres, spans, records,
                copy_spans, copies[:0], hidden, ranks, n_found, step, product_offset, tables, precise_tables, shifts,
                found, n_keys, bounds, visits,
            )  # fmt: skip
            n_done += n_more
        n = in_order(found[0], n_keys[0], counts, weights[5], with_copies, seen)
    n = among_rivals(found[0], n, counts, weights[5], rivals)
    is_sound: bool = read_found(
        z, query_shift, query, centres, weights, order, ids, vectors, kept, counts[4], metric, shifts, found[0], n,
        keys, distances, result_ids, visits,
    )  # fmt: skip
    return is_sound


@njit(cache=True, nogil=True)
def search_projections(
    projections: Projections, query_shifts: Floats, queries: Vectors, centres: Floats, bits: int, weights: Floats,
    directory: Records, centroids: Floats, bases: Floats, cell_centres: Any, spans: Rows, records: Records,
    copy_spans: Rows, copies: Records, hidden: Mask, ranks: Ranks, order: Ranks, ids: Ids, vectors: Vectors,
    kept: KeptRows, metric: int, counts: Rows, room: int, rivals: Floats, keys: Keys, distances: Floats,
    result_ids: Ids, visits: Rows,
) -> bool:  # fmt: skip
    """Find the nearest rows of queries; return False if a file holds row numbers of rows that do not exist.

    Parameters
    ----------
    projections : float32 array of shape (n_queries, n_bits)
    query_shifts : float32 array of shape (n_queries,)
        What a query adds to its distances whatever the centre.
    queries : float32 array of shape (n_queries, dim)
        As the caller gave them, for exact distances.
    weights : float32 array of shape (6,)
        Factors of |z - c|^2 and of <c, z> in the shift of a query for a centre; of the product in the distance of a
        cell; share of |z|^2 below which |z - c|^2 asks for precise tables; reach (see `cells_in_reach`) and width (see
        `in_order`).
    directory : uint8 array of shape (n_blocks, size)
        Codes, factors and offsets of the centroids, 32 cells in a record.
    centroids, bases : float32 arrays of shape (n_cells, width) and (n_cells,)
    cell_centres : uint8 array of shape (n_cells,)
    spans : int64 array of shape (n_cells, 4)
        The records of each cell, [first, stop), and its rows, [first, stop). Records also hold rows of other cells.
    copy_spans, copies : int64 array of shape (n_cells, 4), uint8 array of shape (n_records, size)
        Records of rows in their second cells, or no records.
    vectors : float32 array of shape (n_rows, dim), or (0, dim)
        Without vectors, and without kept ones of 4 or 8 bits, the nearest rows by estimate are the result.
    kept : uint8 array of shape (n_rows, size), or (0, 0)
        Vectors of 4 or 8 bits, relative to the same centres.
    counts : int64 array of shape (9,)
        Cells to visit in any case, cells whose exact distances are computed, rows to find by estimate at most, rows
        that must be found whatever cells it takes, the bits a dimension of `kept`, cells to visit if they are in reach,
        the rank of the row whose distance tells that, the rank of the row whose distance tells how many rows to find,
        and those to find at least.
    room : int
        Bytes of the tables of a query.
    rivals : float32 array of shape (n_queries, n)
        The smallest estimates of rows in segments that were searched before, ascending, the largest float32 behind
        them: rows with larger ones are passed over. Gets the estimates of this segment as well. With n = 0, no other
        segments count.
    keys : uint64 array of shape (n_queries, n_found)
        The nearest rows by estimate, if there are neither vectors nor kept ones.
    distances, result_ids : float32 and int64 arrays of shape (n_queries, k)
        The nearest rows by the distances of vectors or kept ones, if there are any.
    visits : int64 array of shape (3,)
        Counts of rows and cells that were scanned, and of vectors that were read.
    """
    tables, precise_tables = np.empty((1, room), dtype=np.uint8), np.empty((1, 2 * room), dtype=np.uint8)
    cells, shifts = np.empty(bases.size, dtype=np.uint64), np.empty((centres.shape[0], 2), dtype=np.float32)
    near = np.empty(32 * directory.shape[0], dtype=np.float32)
    found, seen = room_for_keys(1, counts, copies.shape[0] > 0)
    for i in range(projections.shape[0]):
        query = queries[i] if vectors.shape[0] > 0 else queries[0]
        if not search_one(
            read_only(projections[i]), query_shifts[i], read_only(query), centres, bits, weights, directory, centroids,
            bases, cell_centres, spans, records, copy_spans, copies, hidden, ranks, order, ids, vectors, kept, metric,
            counts, tables, precise_tables, near, cells, shifts, found, seen, rivals[i], keys[i], distances[i],
            result_ids[i], visits,
        ):  # fmt: skip
            return False
    return True


@njit(cache=True, nogil=True)
def search_vectors(
    queries: Vectors, longest: float, mean: Vectors, signs: Any, layout: Any, passes: Floats, coefficients: Floats,
    n_work: int, centres: Floats, bits: int, weights: Floats, directory: Records, centroids: Floats, bases: Floats,
    cell_centres: Any, spans: Rows, records: Records, copy_spans: Rows, copies: Records, hidden: Mask, ranks: Ranks,
    order: Ranks, ids: Ids, vectors: Vectors, kept: KeptRows, metric: int, counts: Rows, room: int, rivals: Floats,
    keys: Keys, distances: Floats, result_ids: Ids, visits: Rows,
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
    near = np.empty(32 * directory.shape[0], dtype=np.float32)
    found, seen = room_for_keys(1, counts, copies.shape[0] > 0)
    for first in range(0, n_queries, n_together):
        n = min(n_together, n_queries - first)
        n_prepared = prepare_queries(queries, first, first + n, longest, metric, mean, prepared, query_shifts)
        if n_prepared < first + n:
            return int(n_prepared)
        bad = transform_rows(
            read_only(prepared), 0, n, mean, signs, layout, passes, coefficients, work, projections, codes, sums
        )
        if bad >= 0:
            return int(first + bad)
        for i in range(n):
            query = first + i
            if not search_one(
                read_only(projections[i]), query_shifts[i], read_only(queries[query]), centres, bits, weights,
                directory, centroids, bases, cell_centres, spans, records, copy_spans, copies, hidden, ranks, order,
                ids, vectors, kept, metric, counts, tables, precise_tables, near, cells, shifts, found, seen,
                rivals[query], keys[query], distances[query], result_ids[query], visits,
            ):  # fmt: skip
                return -1
    return int(n_queries)
