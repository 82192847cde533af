"""Searches of a graph: everything between a query and its results in one call."""

from typing import Any

import numpy as np

from .._core.typing import Floats, Keys, Mask, Projections, Rows, Vectors
from .asymmetric import key_of
from .dots import dot_floats, prefetch_row, squares_floats
from .estimates import Records
from .jit import njit
from .records import Neighbours
from .topk import keep_smallest
from .transform import transform_rows
from .walk import prepare_query, walk


@njit(cache=True, nogil=True)
def most_steps(beam: int) -> int:
    """Return after how many steps a walk ends at the latest, several times as many as walks take."""
    return 4 * beam + 64


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
    projections: Projections, n_bits: int, dim: int, start: int, stop: int, records: Records, entries: Records,
    beam: int, found: Neighbours,
) -> None:  # fmt: skip
    """Walk towards rows [start, stop) of the graph itself, from its entries.

    `found`, (stop - start, any), gets the vertices at which the walks have been, in their order, and -1 behind them.
    """
    n_bytes = projections.shape[1] // 8
    tables, numbers = np.empty((1, room_for_tables(n_bits)), dtype=np.uint8), np.empty(dim, dtype=np.int16)
    terms, pool = np.empty(4, dtype=np.float32), np.empty(beam + 32, dtype=np.int64)
    visited = np.empty(found.shape[1], dtype=np.uint64)
    marks = np.empty(room_for_marks(visited.size), dtype=np.int32)
    for row in range(start, stop):
        prepare_query(projections[row], n_bits, dim, tables, numbers, terms)
        n = walk(tables, numbers, terms, records, entries, n_bytes, beam, pool, marks, visited)
        found[row - start, n:] = -1
        for i in range(n):
            found[row - start, i] = np.int64(visited[i] & np.uint64(0xFFFFFFFF))


@njit(cache=True, nogil=True)
def drop_hidden(visited: Keys, n: int, hidden: Mask) -> int:
    """Move those of the first `n` vertices that are not hidden to the front; return how many there are."""
    if hidden.size == 0:
        return n
    n_left = 0
    for i in range(n):
        visited[n_left] = visited[i]
        n_left += not hidden[np.int64(visited[i] & np.uint64(0xFFFFFFFF))]
    return n_left


@njit(cache=True, nogil=True)
def rank_exactly(query: Floats, vectors: Vectors, metric: int, visited: Keys, n: int, found: Keys) -> None:
    """Put the keys of the first `n` vertices visited into `found`, ascending, with exact distances.

    `metric` is 0 for squared distances, and another number for 1 - product.
    """
    dim, distance = vectors.shape[1], np.empty(1, dtype=np.float32)
    bits = distance.view(np.int32)
    for i in range(n):
        prefetch_row(vectors, np.int64(visited[i] & np.uint64(0xFFFFFFFF)))
    for i in range(n):
        row = np.int64(visited[i] & np.uint64(0xFFFFFFFF))
        if metric == 0:
            distance[0] = squares_floats(query, vectors, row * dim, dim)
        else:
            distance[0] = np.float32(1) - dot_floats(query, vectors, row * dim, dim)
        insert_key(found, i, key_of(bits[0], row))


@njit(cache=True, nogil=True)
def insert_key(keys: Keys, n: int, key: Any) -> None:
    """Insert a key into the first `n`, which ascend."""
    while n > 0 and keys[n - 1] > key:
        keys[n] = keys[n - 1]
        n -= 1
    keys[n] = key


@njit(cache=True, nogil=True)
def search_graph(
    queries: Vectors, start: int, stop: int, centre: Floats, signs: Any, layout: Any, twiddles: Floats,
    coefficients: Floats, work: Floats, records: Records, entries: Records, dim: int, beam: int, hidden: Mask,
    vectors: Vectors, metric: int, n_exact: int, keys: Keys, n_steps: Rows,
) -> None:  # fmt: skip
    """Find the nearest vertices of queries [start, stop): transform, walk, re-rank.

    Parameters
    ----------
    centre, signs, layout, twiddles, coefficients, work
        As `transform.transform_rows` takes them.
    records, entries : uint8 arrays of shape (n, size) and (n_entries, size)
    dim : int
        Projections of an isometry: the levels of a record.
    hidden : bool array of shape (n,)
        Vertices that are walked through but not returned, or empty.
    vectors : float32 array of shape (n, dimensions)
        Vectors for exact distances, or no rows: then distances are the squared ones of levels.
    metric : int
        0 for squared distances, 1 for 1 - product.
    n_exact : int
        How many of the vertices at which the walk has been have their exact distances computed, at least k.
    keys : uint64 array of shape (n_queries, k)
        Get (distance, vertex) as `asymmetric.key_of` makes it, ascending, and the largest uint64 behind them.
    n_steps : int64 array of shape (n_queries,)
    """
    n_bits, k = signs.shape[0] * dim, keys.shape[1]
    n_bytes = (n_bits + 15) // 16 * 2
    tables, numbers = np.empty((1, room_for_tables(n_bits)), dtype=np.uint8), np.empty(dim, dtype=np.int16)
    terms, pool = np.empty(4, dtype=np.float32), np.empty(beam + 32, dtype=np.int64)
    visited = np.empty(most_steps(beam), dtype=np.uint64)
    marks, found = np.empty(room_for_marks(visited.size), dtype=np.int32), np.empty(visited.size, dtype=np.uint64)
    projections, codes = np.empty((1, n_bits), dtype=np.float32), np.empty((0, 0), dtype=np.uint64)
    sums = np.empty((0, 2), dtype=np.float64)
    for query in range(start, stop):
        transform_rows(
            queries[query : query + 1], 0, 1, centre, signs, layout, twiddles, coefficients, work, projections, codes,
            sums,
        )  # fmt: skip
        prepare_query(projections[0], n_bits, dim, tables, numbers, terms)
        n = walk(tables, numbers, terms, records, entries, n_bytes, beam, pool, marks, visited)
        n_steps[query] = n
        n = drop_hidden(visited, n, hidden)
        if n > n_exact:
            keep_smallest(visited, n, n_exact)
            n = n_exact
        if vectors.shape[0] > 0:
            rank_exactly(queries[query], vectors, metric, visited, n, found)
        else:
            for i in range(n):
                insert_key(found, i, visited[i] | np.uint64(0x8000000000000000))
        n = min(n, k)
        keys[query, :n] = found[:n]
        keys[query, n:] = np.uint64(0xFFFFFFFFFFFFFFFF)
