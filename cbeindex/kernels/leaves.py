"""Neighbours inside the leaves of a partition of the rows: where the edges of a graph come from.

All rows of a leaf are compared with each other. A row keeps those that are nearer to it than to any nearer one that it
keeps. Several partitions, each by other random leaders, leave few rows apart from their neighbours (PiPNN builds graphs
by partitions alone).
"""

from typing import Any

import numpy as np

from .._core.typing import Floats, Keys, Projections, Rows
from .dots import squares_floats
from .jit import njit
from .records import Neighbours
from .views import view_as


@njit(cache=True, nogil=True)
def assign_to_leaders(
    projections: Projections, dim: int, rows: Rows, leaders: Rows, start: int, stop: int, nearest: Rows
) -> None:
    """Write to `nearest[start:stop]` which of the leaders, themselves rows, is the nearest of each of `rows`."""
    n_columns = projections.shape[1]
    for i in range(start, stop):
        best, distance = 0, np.float32(np.inf)
        for j in range(leaders.size):
            other = squares_floats(projections[rows[i]], projections, leaders[j] * n_columns, dim)
            if other < distance:
                best, distance = j, other
        nearest[i] = best


@njit(cache=True, nogil=True)
def insert(keys: Keys, key: Any) -> None:
    """Insert a key into ascending keys in place of the largest, unless it is there already or is larger."""
    to = keys.size - 1
    if key >= keys[to]:
        return
    while to > 0 and keys[to - 1] > key:
        to -= 1
    if to > 0 and keys[to - 1] == key:
        return
    for i in range(keys.size - 1, to, -1):
        keys[i] = keys[i - 1]
    keys[to] = key


@njit(cache=True, nogil=True)
def compare_all(projections: Projections, dim: int, rows: Rows, between: Floats) -> None:
    """Write the squared distances of all pairs of rows to `between[:n, :n]`."""
    n_columns = projections.shape[1]
    for i in range(rows.size):
        between[i, i] = 0
        for j in range(i):
            distance = squares_floats(projections[rows[i]], projections, rows[j] * n_columns, dim)
            between[i, j], between[j, i] = distance, distance


@njit(cache=True, nogil=True)
def first_smallest(values: Any, n: int) -> int:
    """Return the place of the first of the smallest of `n` whole numbers."""
    smallest = values[0]
    for i in range(n):  # in vector registers
        smallest = min(smallest, values[i])
    place = 0
    while values[place] != smallest:
        place += 1
    return place


@njit(cache=True, nogil=True)
def prune_in_leaf(between: Any, i: int, n: int, left: Any, chosen: Rows) -> int:
    """Choose neighbours of row i of a leaf of `n` rows, in order of distance; return how many.

    Instead of going through all rows in order, the nearest row that is left is chosen again and again, and rows that
    are as near to it as to row i are not left: each takes a pass through a line of the distances.

    Parameters
    ----------
    between : int32 array of shape (any, any)
        Bits of the distances of all pairs, which order like the distances.
    left : int32 array of shape (any,)
        Space for the distances of the rows that are left.
    """
    for j in range(n):
        left[j] = between[i, j]
    left[i] = 0x7FFFFFFF
    n_chosen = 0
    while n_chosen < chosen.size:
        nearest = first_smallest(left, n)
        if left[nearest] == 0x7FFFFFFF:
            break
        chosen[n_chosen] = nearest
        n_chosen += 1
        for j in range(n):
            left[j] = left[j] if between[nearest, j] > between[i, j] else 0x7FFFFFFF
    return n_chosen


@njit(cache=True, nogil=True)
def join_leaves(
    projections: Projections, dim: int, rows: Rows, offsets: Rows, start: int, stop: int, nearest: Keys,
    found: Neighbours,
) -> None:  # fmt: skip
    """Find neighbours of all rows in leaves [start, stop) among the rows of the same leaf.

    Parameters
    ----------
    rows, offsets : int64 arrays
        Leaf i has the rows `rows[offsets[i] : offsets[i + 1]]`, in ascending order. No row is in two leaves.
    nearest : uint64 array of shape (n, any)
        Keys of (distance, row) of the nearest rows so far, ascending; the largest uint64 where there are none.
    found : int32 array of shape (n, any)
        Gets the neighbours in order of (distance, row), and -1 behind them.
    """
    largest = 0
    for leaf in range(start, stop):
        largest = max(largest, offsets[leaf + 1] - offsets[leaf])
    between = np.empty((largest, largest), dtype=np.float32)
    bits, left = view_as(between, np.int32), np.empty(largest, dtype=np.int32)
    chosen = np.empty(found.shape[1], dtype=np.int64)
    for leaf in range(start, stop):
        members = rows[offsets[leaf] : offsets[leaf + 1]]
        compare_all(projections, dim, members, between)
        for i in range(members.size):
            row = members[i]
            for j in range(members.size):
                key = np.uint64(bits[i, j]) << np.uint64(32) | np.uint64(members[j])
                if j != i:
                    insert(nearest[row], key)
            n_chosen = prune_in_leaf(bits, i, members.size, left, chosen)
            found[row, n_chosen:] = -1
            for t in range(n_chosen):
                found[row, t] = members[chosen[t]]
