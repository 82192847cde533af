"""The steps of a query in the cells of a segment: tables and cells, the nearest rows by estimate, and by vectors."""

from typing import Any

import numpy as np

from .._core.typing import Floats, Ids, Keys, Mask, Ranks, Rows, Vectors
from .asymmetric import float_of_key, key_of
from .cellscan import choose_cells, drop_copies, estimate_cells, offset_of_products, scan_visits
from .dots import dot_floats
from .estimates import Records
from .exact import clear, distance_of, insert, is_farther, product
from .jit import njit
from .kept import KeptRows, read_kept, shift_of
from .prefetch import prefetch
from .querytables import Tables, fill_tables
from .sorting import sort_keys
from .thresholds import keep_first, kth_smallest
from .topk import NO_KEY
from .views import view_as

LARGEST = np.float32(np.finfo(np.float32).max)
# Cells that are visited in order. The rows in them give a bound that rules out most of the rows in others.
FIRST_CELLS = 8


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


@njit(cache=True, nogil=True, shared=True)
def shifts_of_cells(
    z: Floats, query_shift: float, centres: Floats, weights: Floats, chosen: Keys, n: int, cell_centres: Any,
    cells: Rows, visit_shifts: Floats, shifts: Floats,
) -> int:  # fmt: skip
    """Write the first `n` of the chosen cells, and what the query adds to the distances of rows in each.

    Cells in which the rounding of plain tables would matter come last. Returns the number of the others. `shifts` holds
    those of centres that are known.
    """
    square, n_plain, n_left = dot_floats(z, z, 0, z.size), 0, n
    for i in range(n):
        cell = np.int64(chosen[i] & np.uint64(0xFFFFFFFF))
        centre = np.int64(cell_centres[cell])
        if np.isnan(shifts[centre, 0]):
            shift_of(z, query_shift, centres, centre, weights, shifts)
        if shifts[centre, 1] < weights[3] * square:
            n_left -= 1
            place = n_left
        else:
            place = n_plain
            n_plain += 1
        cells[place], visit_shifts[place] = cell, shifts[centre, 0]
    return n_plain


@njit(cache=True, nogil=True, shared=True)
def scan_precisely(
    z: Floats, bits: int, cells: Rows, visit_shifts: Floats, precise_tables: Tables, records: Records, spans: Rows,
    copies: Records, copy_spans: Rows, hidden: Mask, ranks: Ranks, k: int, found: Any, counts: Rows, bounds: Floats,
) -> None:  # fmt: skip
    """Visit cells, and copies in them, for one query with precise tables; arrays of queries are those of this one."""
    step, product_offset = fill_tables(z, bits, True, precise_tables[0])
    steps, offsets = np.full(1, step), np.full(1, product_offset)
    begins, queries = np.arange(cells.size + 1), np.zeros(cells.size, dtype=np.int64)
    for part in range(2 if copies.shape[0] > 0 else 1):
        codes, spans_of = (copies, copy_spans) if part else (records, spans)
        scan_visits(
            cells, begins, queries, visit_shifts, precise_tables, True, steps, offsets, codes, spans_of,
            (z.size * bits + 7) // 8, hidden, ranks, k, found, counts, bounds,
        )  # fmt: skip


@njit(cache=True, nogil=True)
def scan_cells(
    z: Floats, query_shift: float, centres: Floats, bits: int, weights: Floats, chosen: Keys, n_cells: int,
    cell_centres: Any, spans: Rows, records: Records, copy_spans: Rows, copies: Records, hidden: Mask, ranks: Ranks,
    k: int, step: float, product_offset: float, tables: Tables, precise_tables: Tables, shifts: Floats, found: Any,
    counts: Rows, bounds: Floats, visits: Rows,
) -> None:  # fmt: skip
    """Scan the first `n_cells` of the chosen cells, and copies in them, for the query `z`.

    Adds to the keys of earlier calls. The `k` smallest of the first `counts[0]` keys of `found[0]` are right.
    """
    cells, visit_shifts = np.empty(n_cells, dtype=np.int64), np.empty(n_cells, dtype=np.float32)
    n_plain = shifts_of_cells(
        z, query_shift, centres, weights, chosen, n_cells, cell_centres, cells, visit_shifts, shifts
    )
    steps, offsets = np.full(1, step), np.full(1, product_offset)
    begins, queries = np.arange(n_plain + 1), np.zeros(n_plain, dtype=np.int64)
    for part in range(2 if copies.shape[0] > 0 else 1):
        codes, spans_of = (copies, copy_spans) if part else (records, spans)
        scan_visits(
            cells[:n_plain], begins, queries, visit_shifts[:n_plain], tables, False, steps, offsets, codes, spans_of,
            (z.size * bits + 7) // 8, hidden, ranks, k, found, counts, bounds,
        )  # fmt: skip
    if n_plain < n_cells:
        scan_precisely(
            z, bits, cells[n_plain:], visit_shifts[n_plain:], precise_tables, records, spans, copies, copy_spans,
            hidden, ranks, k, found, counts, bounds,
        )  # fmt: skip
    count_visits(cells, spans, copy_spans, copies.shape[0] > 0, visits)


@njit(cache=True, nogil=True)
def count_visits(cells: Rows, spans: Rows, copy_spans: Rows, has_copies: bool, visits: Rows) -> None:
    """Count the rows in cells that are visited, and the cells."""
    for cell in cells:
        visits[0] += 32 * (spans[cell, 1] - spans[cell, 0])
        if has_copies:
            visits[0] += 32 * (copy_spans[cell, 1] - copy_spans[cell, 0])
    visits[1] += cells.size


@njit(cache=True, nogil=True, shared=True)
def in_order(found: Keys, count: int, sizes: Rows, width: float, with_copies: bool, seen: Rows) -> int:
    """Leave the smallest of `count` keys in ascending order, each row once; return their number.

    There are `sizes[8]`, and up to `sizes[2]` if more are within `width` times the distance of the nearest row of rank
    `sizes[7]`: estimates do not tell these from the nearest rows.
    """
    n_most, rank, n_least, n_times = sizes[2], sizes[7], sizes[8], 2 if with_copies else 1
    if count <= n_times * n_least:
        sort_keys(found, 0, count)
        return int(drop_copies(found, count, n_least, seen) if with_copies else count)
    largest = NO_KEY
    if n_least == n_most:
        keep_first(found, count, n_times * n_least)
        count = n_times * n_least
    else:
        largest = key_within(found, count, rank, width, with_copies, seen)
        limit, n_within = max(largest, kth_smallest(found, count, n_times * n_least)), 0
        for i in range(count):
            key = found[i]
            found[n_within] = key
            n_within += key <= limit
        count = n_within
        if count > n_times * n_most:
            keep_first(found, count, n_times * n_most)
            count = n_times * n_most
    sort_keys(found, 0, count)
    if with_copies:
        count = drop_copies(found, count, n_most, seen)
    while count > n_least and found[count - 1] > largest:
        count -= 1
    return int(count)


@njit(cache=True, nogil=True)
def key_within(found: Keys, count: int, rank: int, width: float, with_copies: bool, seen: Rows) -> Any:
    """Return the largest key within `width` times the distance of the nearest row of a rank."""
    key = kth_smallest(found, count, rank)
    if with_copies:  # of 2 * rank keys at least half belong to different rows
        limit, near, n = kth_smallest(found, count, 2 * rank), np.empty(count, dtype=np.uint64), 0
        for i in range(count):
            near[n] = found[i]
            n += found[i] <= limit
        sort_keys(near, 0, n)
        key = near[drop_copies(near, n, rank, seen) - 1]
    limit_of_distance = np.full(1, np.float32(width) * float_of_key(key))
    return key_of(view_as(limit_of_distance, np.int32)[0], 0xFFFFFFFF)


@njit(cache=True, nogil=True, shared=True)
def read_found(
    z: Floats, query_shift: float, query: Vectors, centres: Floats, weights: Floats, order: Ranks, ids: Ids,
    vectors: Vectors, kept: KeptRows, kept_bits: int, metric: int, shifts: Floats, found: Keys, n: int, keys: Keys,
    distances: Floats, result_ids: Ids, visits: Rows,
) -> bool:  # fmt: skip
    """Write the nearest of `n` rows that were found by estimate, by the distances of vectors if there are any."""
    if kept.shape[0] > 0:
        n_read = read_kept(
            z, query_shift, kept, kept_bits, centres, weights, shifts, ids, order, found, n, distances, result_ids
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


@njit(cache=True, nogil=True, shared=True)
def begin_query(
    z: Floats, bits: int, weights: Floats, directory: Records, centroids: Floats, bases: Floats, counts: Rows,
    tables: Tables, distances: Floats, cells: Keys,
) -> tuple[float, float]:  # fmt: skip
    """Make the tables of a query and choose its cells; return the step and the offset of products.

    `tables` has one row, and `distances` is memory to work in. Unless all cells are visited, the nearest
    `FIRST_CELLS` are in order. Behind those that are visited in any case are those that may be.
    """
    n_cells, width = centroids.shape
    n_probes, n_exact = counts[0], counts[1]
    step, product_offset = fill_tables(z, bits, False, tables[0])
    if n_probes < n_cells:
        cell_offset = product_offset if width == z.size else offset_of_products(z[:width], bits)
        if n_exact < n_cells:
            estimate_cells(tables, step, cell_offset, directory, (width * bits + 7) // 8, distances)
        n_first = min(n_probes, FIRST_CELLS)
        choose_cells(z, centroids, bases, weights[2], n_exact, counts[5], n_probes, n_first, distances, cells)
    else:
        for cell in range(n_cells):
            cells[cell] = np.uint64(cell)
    return step, product_offset


@njit(cache=True, nogil=True, shared=True)
def cells_in_reach(
    cells: Keys, sizes: Rows, reach: float, n_kept: int, found: Keys, counts: Rows, bounds: Floats
) -> int:
    """Put the cells in reach of a query behind those that it has visited, `sizes[0]`; return how many they are.

    A row at a distance of d from the query is nearer to another centroid than to the first one only if it lies far
    enough in that direction: the squared distances of the centroids differ by at most 2 d times the distance between
    them, and by much less for most rows. So a cell is in reach if they differ by at most `reach` times d, where d is
    the distance of the row of rank `sizes[6]` that was found, or the bound if rows beyond it do not count.
    """
    n_probes, n_most, rank, count = sizes[0], sizes[5], sizes[6], counts[0]
    limit = np.full(1, LARGEST)  # if there are too few rows to tell
    square = float_of_key(kth_smallest(found, count, rank)) if count >= rank else bounds[0]
    if square < LARGEST:
        limit[0] = float_of_key(cells[0]) + np.float32(reach) * np.sqrt(max(np.float32(0), square))
    largest, n = key_of(view_as(limit, np.int32)[0], 0xFFFFFFFF), n_probes
    for i in range(n_probes, n_most):
        if cells[i] <= largest:
            cells[n], cells[i] = cells[i], cells[n]
            n += 1
    if n > n_probes and count > n_kept:
        bounds[0] = float_of_key(keep_first(found, count, n_kept))
        counts[0] = n_kept
    return int(n - n_probes)


@njit(cache=True, nogil=True)
def bound_by_rivals(rivals: Floats, sizes: Rows, width: float) -> Any:
    """Return the largest estimate of a row that may be read, given those of rows in other segments.

    As in one segment: the row is among the nearest, or within `width` times the distance of rank `sizes[7]`.
    """
    n = rivals.size
    if n == 0 or rivals[n - 1] == LARGEST:
        return LARGEST
    if width > 0 and sizes[7] <= n:
        return min(LARGEST, max(rivals[n - 1], np.float32(width) * rivals[sizes[7] - 1]))
    return rivals[n - 1]


@njit(cache=True, nogil=True)
def among_rivals(found: Keys, n: int, sizes: Rows, width: float, rivals: Floats) -> int:
    """Merge the estimates of the first `n` rows that were found, which ascend, into those of other segments.

    Returns how many of these rows may be read, given the others.
    """
    for i in range(n):
        near, place = float_of_key(found[i]), rivals.size - 1
        if place < 0 or near >= rivals[place]:
            break
        while place > 0 and rivals[place - 1] > near:
            rivals[place] = rivals[place - 1]
            place -= 1
        rivals[place] = near
    bound = bound_by_rivals(rivals, sizes, width)
    while n > 0 and float_of_key(found[n - 1]) > bound:
        n -= 1
    return n


@njit(cache=True, nogil=True)
def most_keys(counts: Rows, has_copies: bool) -> int:
    """Return how many keys of a query are kept: twice as many where rows may have two, and enough to tell a rank."""
    return int(max(2 * counts[2] if has_copies else counts[2], counts[6]))


@njit(cache=True, nogil=True)
def room_for_keys(n_queries: int, counts: Rows, has_copies: bool) -> Any:
    """Return memory for the keys of queries, a row for each, and for telling copies among those of one query."""
    n_kept = most_keys(counts, has_copies)
    size = 1
    while has_copies and size < 2 * n_kept:
        size *= 2
    return np.empty((n_queries, n_kept + min(n_kept, 64) + 96), dtype=np.uint64), np.empty(size, dtype=np.int64)
