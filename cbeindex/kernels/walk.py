"""Walks through a graph of records: a beam search that estimates 32 distances from each record that it reads.

The pool is the beam: the nearest vertices seen so far, in ascending order of their keys

    bits of the estimated distance << 32 | vertex << 1 | 1 once the walk has been there

Distances are not negative, so that their bits order as integers. A step takes the first vertex of the pool at which the
walk has not been, computes its distance from its levels and those of its neighbours from their codes (`records.py`),
and merges the neighbours that are near enough into the pool. A vertex may be in the pool several times, with estimates
from different neighbours; the walk goes there once. It ends when it has been at all vertices of the pool.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._core.typing import Floats, Keys
from .dots import Numbers, dot_floats
from .estimates import Records, estimate_block, prefetch_record
from .jit import njit
from .lookup import sum_block
from .popcount import popcount64
from .prefetch import prefetch_row
from .querytables import Tables, fill_tables
from .vertices import distance_to_vertex
from .views import view_as

Pool: TypeAlias = NDArray[np.int64]
"""Keys of vertices, ascending."""

Marks: TypeAlias = NDArray[np.int32]
"""Vertices in a hash table with a power of two of places, half of them free at least; -1 where there is none."""


@njit(cache=True, nogil=True)
def mark(marks: Marks, vertex: int) -> bool:
    """Put a vertex into the table; tell whether it is new there."""
    last = marks.size - 1
    place = (vertex * 2654435769 >> 16) & last  # 2**32 divided by the golden ratio: spreads consecutive numbers
    while marks[place] != -1:
        if marks[place] == vertex:
            return False
        place = (place + 1) & last
    marks[place] = vertex
    return True


@njit(cache=True, nogil=True)
def is_marked(marks: Marks, vertex: int) -> bool:
    """Tell whether a vertex is in the table."""
    last = marks.size - 1
    place = (vertex * 2654435769 >> 16) & last
    while marks[place] != -1:
        if marks[place] == vertex:
            return True
        place = (place + 1) & last
    return False


@njit(cache=True, nogil=True)
def merge_fresh(pool: Pool, n: int, fresh: Pool, n_fresh: int) -> int:
    """Merge keys into the first `n` of the pool, which has room for them; return the place of the smallest of them.

    `fresh[:n_fresh]` is sorted on the way. Returns `n` if there are none.
    """
    for i in range(1, n_fresh):
        key, to = fresh[i], i
        while to > 0 and fresh[to - 1] > key:
            fresh[to] = fresh[to - 1]
            to -= 1
        fresh[to] = key
    own, other, to = n - 1, n_fresh - 1, n + n_fresh - 1
    while other >= 0:
        if own >= 0 and pool[own] > fresh[other]:
            pool[to] = pool[own]
            own -= 1
        else:
            pool[to] = fresh[other]
            other -= 1
        to -= 1
    return to + 1


@njit(cache=True, nogil=True)
def first_new(pool: Pool, place: int, n: int) -> int:
    """Return the first place from `place` on at whose vertex the walk has not been; n if there is none."""
    while place < n and pool[place] & 1:
        place += 1
    return place


@njit(cache=True, nogil=True)
def vertex_of(key: int) -> int:
    """Return the vertex of a key of the pool."""
    return (key & 0xFFFFFFFF) >> 1


@njit(cache=True, nogil=True)
def prepare_query(
    projections: Floats, n_bits: int, largest_norm: Any, tables: Tables, numbers: Numbers, terms: Floats
) -> None:
    """Make tables and whole numbers of the projections of a query.

    Parameters
    ----------
    projections : float32 array of shape (n_bits or more,)
    largest_norm : float
        The largest norm of a vertex (`vertices.py`).
    tables : uint8 array of shape (1, room)
        Without room, no tables are made.
    numbers : int16 array of shape (n_levels,)
        The first projections, divided by a scale.
    terms : float32 array of shape (4,)
        Step and offset of the tables, the scale of the numbers, and what the query adds to squared distances: its
        square and the largest norm.
    """
    dim = numbers.size
    if tables.shape[1] > 0:
        terms[0], terms[1] = fill_tables(projections[:n_bits], 1, False, tables[0])
    row = projections[:dim]
    bits, largest = view_as(row, np.int32), np.int32(0)
    for j in range(dim):  # floats without their sign order as integers, whose maximum is found in vectors
        largest = max(largest, bits[j] & np.int32(0x7FFFFFFF))
    most = np.empty(1, dtype=np.int32)
    most[0] = largest
    scale = max(view_as(most, np.float32)[0] / np.float32(32767), np.float32(1e-30))
    factor, rounding = np.float32(1) / scale, np.float32(12582912)  # 1.5 * 2**23: rounds, and leaves whole numbers
    for j in range(dim):
        numbers[j] = np.int16(np.int32((row[j] * factor + rounding) - rounding))
    terms[2], terms[3] = scale, dot_floats(row, row, 0, dim) + np.float32(largest_norm)


@njit(cache=True, nogil=True)
def near_neighbours(
    records: Records, number: int, n_bytes: int, tables: Tables, terms: Floats, distance: Any, bound: Any, sums: Any,
    estimates: Floats,
) -> Any:  # fmt: skip
    """Estimate the distances of the neighbours of a vertex at a `distance`; flag those within the bound."""
    base = number * records.shape[1]
    sum_block(records, base, n_bytes, tables, (0,), sums)
    at = base + 32 * n_bytes
    none = np.float32(0)
    return estimate_block(sums, 0, records, at, at, terms[0], terms[1], distance, none, bound, estimates)


@njit(cache=True, nogil=True)
def take_near(near: Any, estimate_bits: Any, numbers: Any, at: int, n: int, marks: Marks, fresh: Pool) -> int:
    """Write the keys of flagged neighbours at which the walk has not been; return how many there are.

    Returns -1 if one of them is not among the `n` vertices: a file may hold any numbers.
    """
    n_fresh = 0
    while near != 0:
        lowest = near & (~near + np.uint64(1))
        i = np.int64(popcount64(lowest - np.uint64(1)))
        near ^= lowest
        vertex = np.int64(numbers[at + i])
        if vertex < 0 or vertex >= n:
            return -1
        if not is_marked(marks, vertex):
            fresh[n_fresh] = np.int64(max(estimate_bits[i], np.int32(0))) << 32 | vertex << 1
            n_fresh += 1
    return n_fresh


@njit(cache=True, nogil=True)
def walk(
    tables: Tables, numbers: Numbers, terms: Floats, records: Records, entries: Records, n_bytes: int, beam: int,
    pool: Pool, marks: Marks, visited: Keys, vectors: Any, n_read: int = 0, skipped: int = -1,
) -> int:  # fmt: skip
    """Walk towards a query; return at how many vertices it has been, -1 if records hold numbers of no vertices.

    Parameters
    ----------
    tables : uint8 array of shape (1, room)
    numbers, terms
        As `prepare_query` makes them.
    records : uint8 array of shape (n, size)
    entries : uint8 array of shape (n_entries, size)
        Records of one and the same vertex, whose neighbours the walk starts from.
    pool : int64 array of shape (beam + 32,)
        Memory to work in.
    marks : int32 array
        Memory for a hash table, a power of two of places, twice as many as `visited` has at least.
    visited : uint64 array
        The vertices in the order of the walk, bits of the distance << 32 | vertex. The walk ends when it is full.
    vectors : array of shape (n, dim) or (0, dim)
        Of the vertices.
    n_read : int
        How many of them are going to be read, at most.
    skipped : int
        A vertex that the walk does not pass through; -1 for none.
    """
    flat, n_vertices = records.reshape(-1), records.shape[0]
    levels, floats, integers = view_as(flat, np.int8), view_as(flat, np.float32), view_as(flat, np.int32)
    entry_flat = entries.reshape(-1)
    entry_integers = view_as(entry_flat, np.int32)
    sums, estimates = np.empty((1, 32), dtype=np.int32), np.empty(32, dtype=np.float32)
    fresh, estimate_bits, last = np.empty(32, dtype=np.int64), view_as(estimates, np.int32), np.empty(1, dtype=np.int32)
    bounds, measured = view_as(last, np.float32), np.empty(1, dtype=np.float32)
    measured_bits = view_as(measured, np.int32)
    largest, size, at = np.finfo(np.float32).max, records.shape[1] // 4, 8 * n_bytes + 64
    vertex_at = 32 * n_bytes + 384
    entry_levels, entry_floats = view_as(entry_flat, np.int8), view_as(entry_flat, np.float32)
    distance = distance_to_vertex(entry_levels, entry_floats, vertex_at, numbers, terms)
    n, n_visited, current = 0, 0, 0
    bounds[0] = largest
    marks[:] = -1
    if skipped >= 0:
        mark(marks, skipped)
    for entry in range(entries.shape[0]):
        near = near_neighbours(entries, entry, n_bytes, tables, terms, distance, bounds[0], sums, estimates)
        n_fresh = take_near(near, estimate_bits, entry_integers, entry * size + at, n_vertices, marks, fresh)
        if n_fresh < 0:
            return -1
        merge_fresh(pool, n, fresh, n_fresh)
        n = min(n + n_fresh, beam)
        if n == beam:
            last[0] = pool[n - 1] >> 32
    while n_visited < visited.size:
        current = first_new(pool, current, n)
        if current == n:
            break
        key = pool[current]
        vertex = vertex_of(key)
        pool[current] = key | 1
        if not mark(marks, vertex):
            continue
        runner_up = first_new(pool, current + 1, n)
        if runner_up < n:
            prefetch_record(records, vertex_of(pool[runner_up]))
        measured[0] = distance_to_vertex(levels, floats, 4 * vertex * size + vertex_at, numbers, terms)
        visited[n_visited] = np.uint64(np.int64(measured_bits[0]) << 32 | vertex)
        n_visited += 1
        near = near_neighbours(records, vertex, n_bytes, tables, terms, measured[0], bounds[0], sums, estimates)
        n_fresh = take_near(near, estimate_bits, integers, vertex * size + at, n_vertices, marks, fresh)
        if n_fresh < 0:
            return -1
        merged = merge_fresh(pool, n, fresh, n_fresh)
        if current < n_read:  # likely to be among the nearest, and memory has time while the walk goes on
            prefetch_row(vectors, vertex)
        current = min(current, merged)
        n = min(n + n_fresh, beam)
        if n == beam:
            last[0] = pool[n - 1] >> 32
        following = first_new(pool, current, n)
        if following < n:
            prefetch_record(records, vertex_of(pool[following]))
    return n_visited
