"""Edges to vertices that no walk would reach."""

from typing import Any

import numpy as np

from .._core.typing import Rows
from .jit import njit
from .records import DEGREE, Neighbours


@njit(cache=True, nogil=True)
def reach(neighbours: Neighbours, queue: Rows, first: int, last: int, parents: Rows) -> int:
    """Follow all edges from the vertices `queue[first:last]`; return how many vertices are in the queue then.

    `parents` is -2 for vertices that are not in the queue. It gets the vertex from which they are reached.
    """
    while first < last:
        vertex = queue[first]
        first += 1
        for i in range(DEGREE):
            other = neighbours[vertex, i]
            if other >= 0 and parents[other] == -2:
                parents[other] = vertex
                queue[last] = other
                last += 1
    return last


@njit(cache=True, nogil=True)
def free_place(neighbours: Neighbours, vertex: int, parents: Rows) -> Any:
    """Return the last place of a vertex whose edge is missing, or not needed to reach its neighbour; -1 if none is."""
    for i in range(DEGREE - 1, -1, -1):
        other = neighbours[vertex, i]
        if other < 0 or parents[other] != vertex:
            return i
    return -1


@njit(cache=True, nogil=True)
def host_of(neighbours: Neighbours, vertex: int, queue: Rows, n_reached: int, parents: Rows) -> Any:
    """Return a vertex that is reached and can have another edge: the first such neighbour, or one reached lately."""
    for i in range(DEGREE):
        other = neighbours[vertex, i]
        if other >= 0 and parents[other] != -2 and free_place(neighbours, other, parents) >= 0:
            return np.int64(other)
    place = n_reached - 1
    while free_place(neighbours, queue[place], parents) < 0:
        place -= 1
    return queue[place]


@njit(cache=True, nogil=True)
def connect(entries: Rows, neighbours: Neighbours) -> int:
    """Change edges so that every vertex can be reached from the entries; return how many had to be given one.

    A vertex that is not reached becomes a neighbour of one of its neighbours, in place of the last edge there that no
    other vertex depends on. Edges that vertices are reached by are a tree, so that there are always such places.
    """
    n = neighbours.shape[0]
    parents, queue = np.full(n, -2, dtype=np.int64), np.empty(n, dtype=np.int64)
    n_reached = 0
    for entry in entries:
        if parents[entry] == -2:
            parents[entry] = -1
            queue[n_reached] = entry
            n_reached += 1
    n_reached, n_given = reach(neighbours, queue, 0, n_reached, parents), 0
    for vertex in range(n):
        if parents[vertex] == -2:
            host = host_of(neighbours, vertex, queue, n_reached, parents)
            neighbours[host, free_place(neighbours, host, parents)] = vertex
            parents[vertex] = host
            queue[n_reached] = vertex
            n_reached, n_given = reach(neighbours, queue, n_reached, n_reached + 1, parents), n_given + 1
    return n_given
