"""Choice of the neighbours of a vertex: pruning of candidates, edges in both directions, and filling up.

A candidate becomes a neighbour unless it is as near to another neighbour as to the vertex: from there the walk finds it
(the relative neighbourhood graph). Among equal rows, one stands for the others. Then every edge is given its reverse,
which makes all vertices easy to reach; only where that makes more than 32 neighbours, these are pruned again.

Where there are fewer, other near candidates fill up, but only those that the vertex sees at some angle from all
neighbours that are nearer: the largest angle for which there are enough (SymphonyQG, Gou et al., SIGMOD 2025). The last
places go to random vertices, through which walks leave places where they would end too early.
"""

from typing import Any

import numpy as np

from .._core.typing import Floats, Mask, Projections, Rows
from .dots import squares_floats
from .jit import njit
from .records import DEGREE, Neighbours
from .sorting import sort_keys
from .views import view_as


@njit(cache=True, nogil=True)
def order_candidates(
    projections: Projections, dim: int, vertex: int, candidates: Rows, n: int, distances: Floats
) -> int:
    """Put the first `n` candidates in order of (distance, row); return how many there are.

    Drops the vertex itself, repetitions, and negative numbers.
    """
    keys, distance = np.empty(n, dtype=np.int64), np.empty(1, dtype=np.float32)
    bits = view_as(distance, np.int32)
    n_columns, n_all, n_left = projections.shape[1], 0, 0
    for i in range(n):
        row = candidates[i]
        if row >= 0 and row != vertex:
            distance[0] = squares_floats(projections[vertex], projections, row * n_columns, dim)
            keys[n_all] = np.int64(bits[0]) << 32 | row
            n_all += 1
    sort_keys(keys, 0, n_all)
    for i in range(n_all):
        if i == 0 or keys[i] != keys[i - 1]:
            bits[0] = keys[i] >> 32
            candidates[n_left], distances[n_left] = keys[i] & 0xFFFFFFFF, distance[0]
            n_left += 1
    return n_left


@njit(cache=True, nogil=True)
def forget(known: Floats, n: int) -> None:
    """Mark the distances of the first `n` candidates from those before them as not computed."""
    for i in range(n):
        known[i, :i] = -1


@njit(cache=True, nogil=True)
def distance_between(projections: Projections, dim: int, candidates: Rows, i: int, j: int, known: Floats) -> Any:
    """Return the squared distance of candidates i and j < i.

    It is `known[i, j]`, which is negative until it is computed, unless `known` is empty: for pairs that come once.
    """
    if known.size > 0 and known[i, j] >= 0:
        return known[i, j]
    distance = squares_floats(projections[candidates[i]], projections, candidates[j] * projections.shape[1], dim)
    if known.size > 0:
        known[i, j] = distance
    return distance


@njit(cache=True, nogil=True)
def prune(
    projections: Projections, dim: int, candidates: Rows, distances: Floats, n: int, known: Floats, chosen: Rows
) -> int:
    """Write the places of the candidates that become neighbours to `chosen`, 32 at most; return how many there are."""
    n_chosen = 0
    for i in range(n):
        if n_chosen == DEGREE:
            break
        is_kept = True
        for t in range(n_chosen):
            if distance_between(projections, dim, candidates, i, chosen[t], known) <= distances[i]:
                is_kept = False
                break
        if is_kept:
            chosen[n_chosen] = i
            n_chosen += 1
    return n_chosen


@njit(cache=True, nogil=True)
def fill_at(
    projections: Projections, dim: int, candidates: Rows, distances: Floats, n: int, is_neighbour: Mask, n_free: int,
    cosine: Any, known: Floats, chosen: Rows,
) -> int:  # fmt: skip
    """Write to `chosen` all neighbours, and up to `n_free` candidates at angles of at most this cosine.

    Returns how many there are in all.
    """
    n_chosen = 0
    for i in range(n):
        is_chosen = is_neighbour[i]
        if not is_chosen and n_free > 0:
            is_chosen = True
            for t in range(n_chosen):
                j = chosen[t]
                between = distance_between(projections, dim, candidates, i, j, known)
                sides = np.sqrt(distances[i] * distances[j])
                if distances[i] + distances[j] - between > np.float32(2) * cosine * sides:
                    is_chosen = False
                    break
            n_free -= is_chosen
        if is_chosen:
            chosen[n_chosen] = i
            n_chosen += 1
    return n_chosen


@njit(cache=True, nogil=True)
def fill_up(
    projections: Projections, dim: int, candidates: Rows, distances: Floats, n: int, known: Floats, chosen: Rows,
    n_chosen: int, n_wanted: int,
) -> int:  # fmt: skip
    """Fill up to `n_wanted` neighbours from the candidates; return how many there are, fewer only if all are."""
    is_neighbour = np.zeros(n, dtype=np.bool_)
    for t in range(n_chosen):
        is_neighbour[chosen[t]] = True
    # Angles of 60 degrees (pruned candidates see a neighbour at less) to 0, in steps of the cosine of 1 / 64.
    low, high, n_free = np.float32(0.5), np.float32(2), n_wanted - n_chosen
    middle, n_all = np.float32(0.75), n_chosen
    for _ in range(5):
        n_all = fill_at(projections, dim, candidates, distances, n, is_neighbour, n_free, middle, known, chosen)
        if n_all < n_wanted:
            low = middle
        else:
            high = middle
        middle = (low + min(high, np.float32(1))) / np.float32(2)
    if n_all < n_wanted:
        n_all = fill_at(projections, dim, candidates, distances, n, is_neighbour, n_free, high, known, chosen)
    return n_all


@njit(cache=True, nogil=True)
def prune_candidates(
    projections: Projections, dim: int, first: int, found: Neighbours, kept: Neighbours, near: Neighbours
) -> None:
    """Choose neighbours among candidates, for the vertices from `first` on.

    Parameters
    ----------
    found : int32 array of shape (any, any)
        Row i has the candidates of vertex `first + i`, -1 where there is none.
    kept : int32 array of shape (n, 32)
        Gets the neighbours in order of (distance, row), and -1 behind them.
    near : int32 array of shape (n, any)
        Gets the nearest candidates in the same order, and -1 behind them.
    """
    room = found.shape[1]
    candidates, distances = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.float32)
    nothing_known, chosen = np.empty((0, 0), dtype=np.float32), np.empty(DEGREE, dtype=np.int64)
    for i in range(found.shape[0]):
        for t in range(room):
            candidates[t] = found[i, t]
        n = order_candidates(projections, dim, first + i, candidates, room, distances)
        n_chosen = prune(projections, dim, candidates, distances, n, nothing_known, chosen)
        kept[first + i, n_chosen:] = -1
        for t in range(n_chosen):
            kept[first + i, t] = candidates[chosen[t]]
        n = min(n, near.shape[1])
        near[first + i, n:] = -1
        for t in range(n):
            near[first + i, t] = candidates[t]


@njit(cache=True, nogil=True)
def count_sources(kept: Neighbours, offsets: Rows) -> None:
    """Write to `offsets`, (n + 1,), where the list begins of the vertices that kept each vertex."""
    offsets[:] = 0
    for vertex in range(kept.shape[0]):
        for i in range(kept.shape[1]):
            if kept[vertex, i] >= 0:
                offsets[kept[vertex, i] + 1] += 1
    for vertex in range(kept.shape[0]):
        offsets[vertex + 1] += offsets[vertex]


@njit(cache=True, nogil=True)
def list_sources(kept: Neighbours, offsets: Rows, sources: Rows) -> None:
    """Write the vertices that kept vertex v to `sources[offsets[v] : offsets[v + 1]]`, in ascending order."""
    places = offsets[:-1].copy()
    for vertex in range(kept.shape[0]):
        for i in range(kept.shape[1]):
            target = kept[vertex, i]
            if target >= 0:
                sources[places[target]] = vertex
                places[target] += 1


@njit(cache=True, nogil=True)
def nearest_first(projections: Projections, dim: int, vertex: int, rows: Rows, n: int) -> Rows:
    """Return the nearest `n` of some rows, in order of (distance, row)."""
    candidates, distances = rows.copy(), np.empty(rows.size, dtype=np.float32)
    n_left = order_candidates(projections, dim, vertex, candidates, rows.size, distances)
    return candidates[: min(n, n_left)]


@njit(cache=True, nogil=True)
def link_both_ways(
    projections: Projections, dim: int, start: int, stop: int, kept: Neighbours, offsets: Rows, sources: Rows,
    spare: Neighbours, n_near: int, far: Neighbours, neighbours: Neighbours,
) -> None:  # fmt: skip
    """Choose 32 neighbours of vertices [start, stop): those kept, those that kept them, near ones and random ones.

    Parameters
    ----------
    kept, offsets, sources
        As the kernels above leave them.
    spare : int32 array of shape (n, any)
        Near vertices, which fill up to `n_near` neighbours; -1 where there is none.
    far : int32 array of shape (n, any)
        Random vertices, which fill up to 32.
    neighbours : int32 array of shape (n, 32)
        Fewer than 32 where there are no others; -1 behind them.
    """
    most = 4 * DEGREE
    room = max(kept.shape[1] + most, DEGREE + spare.shape[1])
    candidates, distances = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.float32)
    known, chosen = np.empty((room, room), dtype=np.float32), np.empty(DEGREE, dtype=np.int64)
    for vertex in range(start, stop):
        both = nearest_first(projections, dim, vertex, sources[offsets[vertex] : offsets[vertex + 1]], most)
        for i in range(kept.shape[1]):
            candidates[i] = kept[vertex, i]
        for i in range(both.size):
            candidates[kept.shape[1] + i] = both[i]
        n = order_candidates(projections, dim, vertex, candidates, kept.shape[1] + both.size, distances)
        n_chosen = min(n, DEGREE)
        if n > DEGREE:
            forget(known, n)
            n_chosen = prune(projections, dim, candidates, distances, n, known, chosen)
            n_chosen = fill_up(projections, dim, candidates, distances, n, known, chosen, n_chosen, DEGREE)
            for t in range(n_chosen):
                candidates[t] = candidates[chosen[t]]  # places ascend, so none is overwritten before it is read
        if n_chosen < n_near:
            n_chosen = add_near(projections, dim, vertex, spare[vertex], n_near, n_chosen, candidates, distances, known)
        neighbours[vertex] = -1
        for i in range(n_chosen):
            neighbours[vertex, i] = candidates[i]
        for i in range(far.shape[1]):
            other = far[vertex, i]
            if n_chosen < DEGREE and other != vertex and not (neighbours[vertex, :n_chosen] == other).any():
                neighbours[vertex, n_chosen] = other
                n_chosen += 1


@njit(cache=True, nogil=True)
def add_near(
    projections: Projections, dim: int, vertex: int, spare: Any, n_near: int, n_chosen: int, candidates: Rows,
    distances: Floats, known: Floats,
) -> int:  # fmt: skip
    """Fill up the neighbours `candidates[:n_chosen]` to `n_near` from `spare`; return how many there are."""
    members, chosen = candidates[:n_chosen].copy(), np.empty(DEGREE, dtype=np.int64)
    sort_keys(members, 0, n_chosen)
    for i in range(spare.size):
        candidates[n_chosen + i] = spare[i]
    n = order_candidates(projections, dim, vertex, candidates, n_chosen + spare.size, distances)
    forget(known, n)
    n_known = 0
    for i in range(n):
        place = np.searchsorted(members, candidates[i])
        if place < members.size and members[place] == candidates[i]:
            chosen[n_known] = i
            n_known += 1
    n_chosen = fill_up(projections, dim, candidates, distances, n, known, chosen, n_known, n_near)
    for t in range(n_chosen):
        candidates[t] = candidates[chosen[t]]
    return n_chosen
