"""Cells: the rows of a segment that are near to the same centroid stand together, and few cells are looked at.

Codes and keys are those of `hamming.py`; cell c has the rows [offsets[c], offsets[c + 1]).
"""

import numpy as np

from .._core.typing import Codes, Distances, Keys, Mask, Ranks, Rows
from .hamming import (
    add_distances,
    add_tails,
    append_nearer,
    drop_hidden,
    finish,
    prefix_limits,
    rows_within,
    step_of_tally,
)
from .jit import njit

# Visits to a cell that are made together.
_TOGETHER = 16


@njit(cache=True, nogil=True)
def in_order_of_cells(cells: Rows, offsets: Rows, n_first: int) -> Rows:
    """Order the visits of all queries to their cells, (n_queries, n_probes): numbers query * n_probes + probe.

    Queries that visit the same cell do so one after the other. Each query first visits the nearest cells that have
    `n_first` rows together, before any visits others: the rows that it has found then rule out most of the rest.
    """
    n_cells, n_probes = offsets.size - 1, cells.shape[1]
    turns = np.empty(cells.shape, dtype=np.int64)
    begins = np.zeros(2 * n_cells + 1, dtype=np.int64)
    for query in range(cells.shape[0]):
        n_rows = 0
        for probe in range(n_probes):
            cell = cells[query, probe]
            turn = cell if n_rows < n_first else n_cells + cell
            n_rows += offsets[cell + 1] - offsets[cell]
            turns[query, probe] = turn
            begins[turn + 1] += 1
    for i in range(2 * n_cells):
        begins[i + 1] += begins[i]
    order = np.empty(cells.size, dtype=np.int64)
    for query in range(cells.shape[0]):
        for probe in range(n_probes):
            turn = turns[query, probe]
            order[begins[turn]] = query * n_probes + probe
            begins[turn] += 1
    return order


@njit(cache=True, nogil=True)
def find_crowded(
    distances: Distances, numbers: Rows, limits: Rows, crowded: Rows, places: Rows, is_crowded: Mask
) -> tuple[int, int]:
    """Find the queries for which more than a quarter of the rows are within the limit of the head.

    `distances` has a row for each of `numbers`. Those found, and their places, stand in the front of `crowded` and
    `places`; returned are their number, and how many rows are within their limits.
    """
    n_crowded, n_all = 0, 0
    for i in range(distances.shape[0]):
        of_query, limit = distances[i], np.int32(limits[numbers[i], 0])  # as wide as distances: vectors of 8
        n_near = 0
        for row in range(of_query.size):
            n_near += of_query[row] <= limit
        is_crowded[i] = 4 * n_near > of_query.size
        if is_crowded[i]:
            crowded[n_crowded], places[n_crowded] = numbers[i], i
            n_crowded += 1
            n_all += n_near
    return n_crowded, n_all


@njit(cache=True, nogil=True)
def stand_up(tail: Codes, row: int, n: int, columns: Codes, at: int) -> None:
    """Bring the tails of `n` rows from `row` on into columns, (n_tail, any), from place `at` on."""
    n_tail = tail.shape[1]
    for begin in range(0, n_tail, 8):  # few lines of memory are written to at a time
        for i in range(n):
            for w in range(begin, min(begin + 8, n_tail)):
                columns[w, at + i] = tail[row + i, w]


@njit(cache=True, nogil=True)
def add_columns(
    query_tails: Codes, numbers: Rows, places: Rows, n: int, columns: Codes, first: int, last: int, stage_ends: Keys,
    limits: Rows, more: Distances, distances: Distances,
) -> None:  # fmt: skip
    """Add the tails of rows [first, last) to their distances from `n` queries, stage by stage, as `add_tails` does.

    A row that exceeds a limit is put so far away that it exceeds all others. `limits`, a row for each query of all, has
    that of the head as well. `more` is scratch of the shape of `distances`.
    """
    begin = 0
    for stage in range(stage_ends.size):
        end = int(stage_ends[stage])
        for i in range(n):
            more[places[i], first:last] = 0
        add_distances(query_tails, numbers, places, n, begin, columns[begin:end], first, last, more)
        for i in range(n):
            limit = np.int32(limits[numbers[i], stage])
            of_query, added = distances[places[i], first:last], more[places[i], first:last]
            for row in range(of_query.size):
                of_query[row] = of_query[row] + added[row] if of_query[row] <= limit else np.int32(1 << 30)
        begin = end


@njit(cache=True, nogil=True)
def nearest(
    queries: Codes, query_tails: Codes, head: Codes, tail: Codes, cells: Rows, offsets: Rows, hidden: Mask,
    ranks: Ranks, n_bits: int, stage_ends: Keys, prefix_bits: Rows, z: float, keys: Keys,
) -> int:  # fmt: skip
    """Find, for each query, the keys of its nearest rows in its cells, ascending, into `keys`; return rows measured.

    The cascade as in `hamming.py`: what a query has found so far gives a bound on the k-th distance, and it a limit for
    the heads of the rows to come. Rows over the limit are left there and then, so nothing is kept of them. Where heads
    rule out few rows for several of the queries that visit a cell, its tails are brought into the layout of the head.
    """
    n_queries, k = keys.shape
    n_probes, n_tail = cells.shape[1], tail.shape[1]
    shift = step_of_tally(n_bits)
    found = np.empty((n_queries, k + min(k, 1024) + 576), dtype=np.uint64)
    tallies = np.zeros((n_queries, (n_bits >> shift) + 1), dtype=np.int32)
    states = np.zeros((n_queries, 3), dtype=np.int64)
    states[:, 1] = n_bits >> shift
    limits = np.full((n_queries, prefix_bits.size), n_bits, dtype=np.int64)
    distances, more = np.empty((_TOGETHER, 512), dtype=np.int32), np.empty((_TOGETHER, 512), dtype=np.int32)
    rows, near = np.empty(512, dtype=np.int64), np.empty(512, dtype=np.int64)
    numbers, places = np.empty(_TOGETHER, dtype=np.int64), np.arange(_TOGETHER)
    crowded, crowded_places = np.empty(_TOGETHER, dtype=np.int64), np.empty(_TOGETHER, dtype=np.int64)
    is_crowded = np.zeros(_TOGETHER, dtype=np.bool_)
    columns = np.zeros((n_tail, 528), dtype=np.uint64)  # a step of 4 KiB would have all words share a few cache lines
    n_measured, begin = 0, 0
    order = in_order_of_cells(cells, offsets, 2 * k)
    flat = cells.ravel()
    while begin < order.size:
        cell, end = flat[order[begin]], begin + 1
        while end < order.size and flat[order[end]] == cell:
            end += 1
        row, stop = offsets[cell], offsets[cell + 1]
        while row < stop:
            block, at = row // 512, row % 512
            first, last = at // 16 * 16, min(512, (stop - block * 512 + 15) // 16 * 16)
            n = min(stop, block * 512 + 512) - row
            stands = False
            for visit in range(begin, end, _TOGETHER):
                n_visits = min(_TOGETHER, end - visit)
                for i in range(n_visits):
                    numbers[i] = order[visit + i] // n_probes
                    distances[i, first:last], is_crowded[i] = 0, False
                add_distances(queries, numbers, places, n_visits, 0, head[block], first, last, distances)
                if n_tail > 0 and end - begin >= 4:
                    n_crowded, n_near = find_crowded(
                        distances[:n_visits, at : at + n], numbers, limits, crowded, crowded_places, is_crowded
                    )
                    n_measured += n_near
                    if n_crowded > 0 and not stands:
                        stand_up(tail, row, n, columns, at)
                        stands = True
                    add_columns(
                        query_tails, crowded, crowded_places, n_crowded, columns, first, last, stage_ends, limits, more,
                        distances,
                    )  # fmt: skip
                for i in range(n_visits):
                    query = numbers[i]
                    limit, bound = limits[query], states[query, 1]
                    farthest = limit[limit.size - 1 if is_crowded[i] else 0]
                    n_near = rows_within(distances[i], farthest, at, n, row, rows, near)
                    if n_tail > 0 and not is_crowded[i]:
                        n_measured += n_near
                        n_near = add_tails(query_tails[query], tail, rows, near, n_near, stage_ends, limit[1:])
                    if hidden.size > 0:
                        n_near = drop_hidden(rows, near, n_near, hidden)
                    append_nearer(rows, near, n_near, ranks, k, shift, tallies[query], states[query], found[query])
                    if states[query, 1] < bound:
                        bound = min(n_bits, ((states[query, 1] + 1) << shift) - 1)
                        prefix_limits(bound, n_bits, prefix_bits, z, limit)
            row += n
        begin = end
    for query in range(n_queries):
        finish(found[query], shift, tallies[query], states[query], keys[query])
    return n_measured
