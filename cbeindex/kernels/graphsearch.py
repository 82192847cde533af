"""Searches of a graph, or of rows without one: everything between a query and its results in one call."""

from typing import Any

import numpy as np

from .._core.typing import Floats, Ids, Keys, Mask, Projections, Rows, Vectors
from .binding import array_at, float_at, int_at
from .dots import Numbers
from .estimates import Records
from .exact import distance_of, insert, is_farther, product
from .jit import njit
from .prefetch import prefetch_row
from .querytables import Tables
from .records import Neighbours
from .sorting import sort_keys
from .topk import keep_smallest
from .transform import transform_rows
from .vertices import scan_vertices
from .views import read_only, view_as
from .walk import Marks, Pool, prepare_query, walk


@njit(cache=True, nogil=True)
def most_steps(beam: int, n: int) -> int:
    """Return after how many steps a walk through `n` vertices ends at the latest, several times as many as it takes."""
    return min(4 * beam + 64, n)


@njit(cache=True, nogil=True)
def room_for_marks(n: int) -> int:
    """Return the size of a hash table for `n` vertices: a power of two, twice as large at least."""
    size = 64
    while size < 2 * n:
        size *= 2
    return size


@njit(cache=True, nogil=True)
def room_for_tables(n_bits: int) -> int:
    """Return the bytes of the tables of codes of one bit: 256 for each 64 bits."""
    return (n_bits + 63) // 64 * 256


@njit(cache=True, nogil=True)
def walk_towards_rows(
    projections: Projections, n_bits: int, n_levels: int, start: int, stop: int, records: Records, entries: Records,
    beam: int, found: Neighbours,
) -> None:  # fmt: skip
    """Walk towards rows [start, stop) of the graph itself, whose vertices have no norms, from its entries.

    `found`, (stop - start, any), gets the vertices at which the walks have been, in their order, and -1 behind them.
    """
    n_bytes = projections.shape[1] // 8
    tables, numbers = np.empty((1, room_for_tables(n_bits)), dtype=np.uint8), np.empty(n_levels, dtype=np.int16)
    terms, pool = np.empty(4, dtype=np.float32), np.empty(beam + 32, dtype=np.int64)
    visited = np.empty(found.shape[1], dtype=np.uint64)
    marks, none = np.empty(room_for_marks(visited.size), dtype=np.int32), np.empty((0, 0), dtype=np.float32)
    for row in range(start, stop):
        prepare_query(projections[row], n_bits, 0.0, tables, numbers, terms)
        n = walk(tables, numbers, terms, records, entries, n_bytes, beam, pool, marks, visited, none)
        found[row - start, n:] = -1
        for i in range(n):
            found[row - start, i] = np.int64(visited[i] & np.uint64(0xFFFFFFFF))


@njit(cache=True, nogil=True)
def take_nearest(visited: Keys, n: int, hidden: Mask, n_found: int, found: Keys) -> int:
    """Copy the nearest `n_found` of the first `n` vertices that are not hidden; return how many are not hidden."""
    n_shown = n
    if hidden.size > 0:
        n_shown = 0
        for i in range(n):
            visited[n_shown] = visited[i]
            n_shown += not hidden[np.int64(visited[i] & np.uint64(0xFFFFFFFF))]
    if n_shown > n_found:
        keep_smallest(visited, n_shown, n_found)
    n_taken = min(n_shown, n_found)
    for i in range(n_taken):
        found[i] = visited[i]
    return n_shown


@njit(cache=True, nogil=True)
def find_candidates(
    tables: Tables, numbers: Numbers, terms: Floats, records: Records, entries: Records, n_bytes: int, at: int,
    hidden: Mask, counts: Rows, pool: Pool, marks: Marks, visited: Keys, found: Keys, visits: Rows, vectors: Any,
    skipped: int,
) -> int:  # fmt: skip
    """Find the vertices nearest to a query by their levels; return how many, or -1 if records are damaged.

    Walks with wider beams until enough vertices are found that are not hidden, and scans if the widest finds too few.
    """
    n, beam, most_beam, n_found, n_wanted = records.shape[0], counts[0], counts[1], counts[2], counts[3]
    while beam > 0:
        n_steps = walk(
            tables, numbers, terms, records, entries, n_bytes, beam, pool, marks, visited, vectors,
            n_found if vectors.shape[0] > 0 else 0, skipped,
        )  # fmt: skip
        if n_steps < 0:
            return -1
        visits[0] += n_steps
        n_shown = take_nearest(visited, n_steps, hidden, n_found, found)
        if n_shown >= n_wanted:
            return int(min(n_shown, n_found))
        if beam >= most_beam:
            break
        grown = 5 * beam * n_wanted // (4 * max(1, n_shown))  # a walk finds about as many as its beam is wide
        beam = min(max(beam + (beam + 1) // 2, min(4 * beam, grown)), most_beam)
        pool, visited = np.empty(beam + 32, dtype=np.int64), np.empty(most_steps(beam, n), dtype=np.uint64)
        marks = np.empty(room_for_marks(visited.size), dtype=np.int32)
    visits[1] += n
    return int(scan_vertices(records, at, numbers, terms, hidden, n_found, found))


@njit(cache=True, nogil=True)
def put_estimates(found: Keys, n: int, ids: Ids, line: Floats, near: Floats, near_ids: Ids) -> None:
    """Write the nearest of the first `n` candidates, which ascend, by the distances of their levels."""
    measured = np.empty(1, dtype=np.int32)
    floats = view_as(measured, np.float32)
    for i in range(n):
        measured[0] = np.int32(found[i] >> np.uint64(32))
        row = np.int64(found[i] & np.uint64(0xFFFFFFFF))
        insert(np.float32(line[0] * floats[0] + line[1]), ids[row], near, near_ids, i)


@njit(cache=True, nogil=True)
def put_exact(
    query: Vectors, vectors: Any, metric: int, found: Keys, n: int, ids: Ids, near: Floats, near_ids: Ids
) -> None:
    """Write the nearest of the first `n` candidates, which ascend, by the distances of their vectors."""
    k, square = near.size, product(query, query) if metric != 0 else 0.0
    slack = 1e-6 * np.sqrt(vectors.shape[1])
    for i in range(min(n, 8)):
        prefetch_row(vectors, np.int64(found[i] & np.uint64(0xFFFFFFFF)))
    for i in range(n):
        if i + 8 < n:
            prefetch_row(vectors, np.int64(found[i + 8] & np.uint64(0xFFFFFFFF)))
        row = np.int64(found[i] & np.uint64(0xFFFFFFFF))
        if i < k or not is_farther(vectors[row], query, square, metric, slack, near[k - 1]):
            insert(distance_of(vectors[row], query, square, metric), ids[row], near, near_ids, i)


@njit(cache=True, nogil=True)
def search_projections(
    projections: Projections, lines: Floats, queries: Vectors, shape: Rows, largest_norm: float, records: Records,
    entries: Records, hidden: Mask, ids: Ids, vectors: Any, metric: int, counts: Rows, skipped: Rows,
    distances: Floats, result_ids: Ids, visits: Rows,
) -> bool:  # fmt: skip
    """Find the nearest vertices of queries; return False if a file holds neighbours that do not exist.

    Parameters
    ----------
    projections : float32 array of shape (n_queries, n_bits)
    lines : float64 array of shape (n_queries, 2)
        The distance of levels is the squared one times the first number plus the second.
    queries : float32 array of shape (n_queries, dim)
        As the caller gave them, for exact distances.
    shape : int64 array of shape (3,)
        Projections of a query, levels of a vertex, and the byte of a record at which the vertex begins.
    largest_norm : float
    records, entries : uint8 arrays of shape (n, size) and (n_entries, size)
        Without entries, vertices are scanned.
    hidden : bool array of shape (n,), or empty
        Vertices that are walked through but not returned.
    vectors : float32 array, or float16 as uint16, of shape (n, dim) or (0, dim)
        Without vectors, distances are those of levels.
    metric : int
        As `exact.distance_of` takes it.
    counts : int64 array of shape (4,)
        The beam, 0 for a scan; the widest beam; candidates to find by their levels; candidates that must be found,
        whatever beam it takes.
    skipped : int64 array of shape (n_queries,), or empty
        For each query a vertex that walks do not pass through, -1 for none.
    distances, result_ids : float32 and int64 arrays of shape (n_queries, k)
        Ascending; infinity and -1 behind them.
    visits : int64 array of shape (3,)
        Counts of steps, of vertices that were scanned, and of vectors that were read.
    """
    n_bits, n_bytes, beam, n_found = shape[0], (shape[0] + 15) // 16 * 2, counts[0], counts[2]
    tables = np.empty((1, room_for_tables(n_bits) if beam > 0 else 0), dtype=np.uint8)
    numbers, terms = np.empty(shape[1], dtype=np.int16), np.empty(4, dtype=np.float32)
    pool, visited = np.empty(beam + 32, dtype=np.int64), np.empty(most_steps(beam, records.shape[0]), dtype=np.uint64)
    marks = np.empty(room_for_marks(visited.size), dtype=np.int32)
    found = np.empty(n_found + max(64, n_found // 2), dtype=np.uint64)
    for i in range(projections.shape[0]):
        prepare_query(projections[i], n_bits, largest_norm, tables, numbers, terms)
        n = find_candidates(
            tables, numbers, terms, records, entries, n_bytes, shape[2], hidden, counts, pool, marks, visited, found,
            visits, vectors, skipped[i] if skipped.size > 0 else -1,
        )  # fmt: skip
        if n < 0:
            return False
        sort_keys(found, 0, n)
        distances[i], result_ids[i] = np.inf, -1
        if vectors.shape[0] > 0:
            put_exact(queries[i], vectors, metric, found, n, ids, distances[i], result_ids[i])
            visits[2] += n
        else:
            put_estimates(found, n, ids, lines[i], distances[i], result_ids[i])
    return True


@njit(cache=True, nogil=True)
def prepare_vector(query: Vectors, square: float, metric: int, unit: float, longest: float, prepared: Vectors) -> Any:
    """Write a query as the encoder sees it; return slope and intercept of its distances.

    Queries get the length of the longest row where products count, and length 1 under cosine, unless they are 0.
    """
    norm = np.float32(1)
    if metric == 2:
        norm = np.float32(np.sqrt(square))
    elif metric == 1 and longest > 0:
        norm = np.float32(np.sqrt(square) / longest)
    if norm == 0 or (metric == 2 and abs(norm - np.float32(1)) < np.float32(1e-6)):
        norm = np.float32(1)
    for i in range(query.size):
        prepared[i] = query[i] / norm
    if metric == 0:
        return 1 / unit, 0.0
    if square == 0:
        return 0.0, 1.0
    gain = np.float64(norm) if metric == 1 else 1.0
    return gain / (2 * unit), 1 - gain * (product(prepared, prepared) + longest * longest) / 2


BOUND = (
    float, float, float, (np.float32, 1), (np.int8, 2), (np.int64, 1), (np.float32, 1), (np.float32, 2), int,
    (np.int64, 1), float, (np.uint8, 2), (np.uint8, 2), (np.bool_, 1), (np.int64, 1), int, (np.int64, 1),
)  # fmt: skip
"""What `search_vectors` takes as bound arguments (`binding.py`)."""


@njit(cache=True, nogil=True)
def search_vectors(
    queries: Vectors, vectors: Any, bound: Rows, distances: Floats, result_ids: Ids
) -> tuple[int, int, int, int]:
    """Find the nearest vertices of queries, from their vectors on: transform, walk, exact distances.

    Returns the number of queries that were searched: fewer than there are if a query is not finite or too long, or -1
    if a file holds neighbours that do not exist. Counts of steps, of vertices that were scanned, and of vectors that
    were read follow.

    Parameters
    ----------
    queries : float32 array of shape (n_queries * dim,)
        One after the other.
    vectors
        As for `search_projections`.
    bound : int64 array
        Of these arguments. Parameters not named here are those of `search_projections`.

        largest_square : float
            The largest squared norm of a query.
        unit : float
            Squared norms of projections over those of vectors.
        longest : float
            Norm of the longest row.
        mean, signs, layout, passes, coefficients
            What `transform_rows` knows of the rotation.
        n_work : int
            Floats that it works in.
        shape, largest_norm, records, entries, hidden, ids, metric, counts
    distances, result_ids : float32 and int64 arrays of shape (n_queries * k,)
    """
    largest_square, unit, longest = float_at(bound, 0), float_at(bound, 1), float_at(bound, 2)
    mean, signs, layout = (
        array_at(bound, 3, np.float32, 1),
        array_at(bound, 4, np.int8, 2),
        array_at(bound, 5, np.int64, 1),
    )
    passes, coefficients = array_at(bound, 6, np.float32, 1), array_at(bound, 7, np.float32, 2)
    n_work, shape, largest_norm = int_at(bound, 8), array_at(bound, 9, np.int64, 1), float_at(bound, 10)
    records, entries = array_at(bound, 11, np.uint8, 2), array_at(bound, 12, np.uint8, 2)
    hidden, ids, metric = array_at(bound, 13, np.bool_, 1), array_at(bound, 14, np.int64, 1), int_at(bound, 15)
    counts = array_at(bound, 16, np.int64, 1)
    n_queries, n_bits = queries.size // mean.size, shape[0]
    rows, n_together = queries.reshape((n_queries, mean.size)), min(32, n_queries)
    near, near_ids = distances.reshape((n_queries, -1)), result_ids.reshape((n_queries, -1))
    work, prepared = np.empty(n_work, dtype=np.float32), np.empty((n_together, mean.size), dtype=np.float32)
    projections, lines = np.empty((n_together, n_bits), dtype=np.float32), np.empty((n_together, 2))
    codes, sums = np.empty((0, (n_bits + 63) // 64), dtype=np.uint64), np.empty((0, 2))
    visits, n_searched = np.zeros(3, dtype=np.int64), 0
    while 0 <= n_searched < n_queries:
        n = min(n_together, n_queries - n_searched)
        last, bad = n_searched + n, -1
        for i in range(n):
            query = rows[n_searched + i]
            square = product(query, query)
            if not square <= largest_square:
                bad = i
                break
            lines[i, 0], lines[i, 1] = prepare_vector(query, square, metric, unit, longest, prepared[i])
        if bad < 0:
            bad = transform_rows(
                read_only(prepared), 0, n, mean, signs, layout, passes, coefficients, work, projections, codes, sums
            )
        if bad >= 0:
            n_searched += bad
            break
        is_sound = search_projections(
            projections[:n], lines[:n], rows[n_searched:last], shape, largest_norm, records, entries, hidden, ids,
            vectors, metric, counts, np.empty(0, dtype=np.int64), near[n_searched:last], near_ids[n_searched:last],
            visits,
        )  # fmt: skip
        n_searched = last if is_sound else -1
    return int(n_searched), int(visits[0]), int(visits[1]), int(visits[2])
