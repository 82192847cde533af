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
from .sorting import sort_keys


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
    while to >= 0 and keys[to] > key:
        to -= 1
    if to >= 0 and keys[to] == key:
        return
    for i in range(keys.size - 1, to + 1, -1):
        keys[i] = keys[i - 1]
    keys[to + 1] = key


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
def prune_in_leaf(between: Floats, i: int, ordered: Rows, chosen: Rows) -> int:
    """Choose neighbours of row i of a leaf among others, in order of distance; return how many."""
    n_chosen = 0
    for j in ordered:
        if n_chosen == chosen.size:
            break
        is_kept = True
        for t in range(n_chosen):
            if between[j, chosen[t]] <= between[i, j]:
                is_kept = False
                break
        if is_kept:
            chosen[n_chosen] = j
            n_chosen += 1
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
    bits = between.view(np.int32)
    keys, chosen = np.empty(largest, dtype=np.int64), np.empty(found.shape[1], dtype=np.int64)
    for leaf in range(start, stop):
        members = rows[offsets[leaf] : offsets[leaf + 1]]
        compare_all(projections, dim, members, between)
        for i in range(members.size):
            row = members[i]
            for j in range(members.size):
                keys[j] = np.int64(bits[i, j]) << 32 | j
            keys[i] = 0x7FFFFFFFFFFFFFFF  # itself, behind all others
            sort_keys(keys, 0, members.size)
            ordered = keys[: members.size - 1]
            for key in ordered[: nearest.shape[1]]:
                insert(nearest[row], np.uint64(key >> 32 << 32 | members[key & 0xFFFFFFFF]))
            n_chosen = prune_in_leaf(between, i, ordered & 0xFFFFFFFF, chosen)
            found[row, n_chosen:] = -1
            for t in range(n_chosen):
                found[row, t] = members[chosen[t]]
