"""Search in cells: the rows nearest to the same centroid are stored contiguously, and a query probes a few cells.

Cell c has the rows [offsets[c], offsets[c + 1]). Codes are laid out as in `distances.py`, and keys as in `topk.py`.
"""

import numpy as np

from .._core.typing import Codes, Distances, Keys, Mask, Ranks, Rows
from .cascade import prefix_limits
from .distances import add_distances, add_tails, transpose_tails
from .jit import njit
from .topk import append_nearer, drop_hidden, finish, rows_within, tally_shift

# Queries that are measured together when they probe the same cell.
_BATCH = 16


@njit(cache=True, nogil=True)
def order_by_cell(cells: Rows, offsets: Rows, n_first: int) -> Rows:
    """Return the order in which to make the probes of all queries, as numbers query * n_probes + probe.

    Probes of the same cell are consecutive. The nearest cells of each query, up to `n_first` rows, come before all
    other probes: the rows found there give a bound that rules out most of the remaining rows. `cells` is
    (n_queries, n_probes).
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

    `distances` has one row for each of `numbers`. The queries found and their rows in `distances` are written to
    `crowded` and `places`. Returns the number of these queries, and the number of rows within their limits.
    """
    n_crowded, n_all = 0, 0
    for i in range(distances.shape[0]):
        of_query = distances[i]
        limit = np.int32(limits[numbers[i], 0])  # int32 like distances, so that LLVM vectorises the loop
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
def add_columns(
    query_tails: Codes, numbers: Rows, places: Rows, n: int, columns: Codes, first: int, last: int, stage_ends: Keys,
    limits: Rows, more: Distances, distances: Distances,
) -> None:  # fmt: skip
    """Add transposed tails of rows [first, last) to their distances from `n` queries, in stages like `add_tails`.

    Rows that exceed the limit of a stage get a distance beyond all other limits. `limits` has one row per query: the
    limit of the head, then those of the stages. `more` is scratch memory of the shape of `distances`.
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
    """Write to `keys`, for each query, the keys of its nearest rows in its cells, ascending; return the rows measured.

    This is the cascade of `cascade.py`, one cell at a time: the rows found so far bound the k-th distance, which limits
    the head distances of the rows that follow. Rows beyond the limit are skipped at once. If heads rule out few rows
    for several queries that probe a cell, the tails of the cell are transposed into the layout of the head.
    """
    n_queries, k = keys.shape
    n_probes, n_tail = cells.shape[1], tail.shape[1]
    shift = tally_shift(n_bits)
    found = np.empty((n_queries, k + min(k, 1024) + 576), dtype=np.uint64)
    tallies = np.zeros((n_queries, (n_bits >> shift) + 1), dtype=np.int32)
    states = np.zeros((n_queries, 3), dtype=np.int64)
    states[:, 1] = n_bits >> shift
    limits = np.full((n_queries, prefix_bits.size), n_bits, dtype=np.int64)
    distances, more = np.empty((_BATCH, 512), dtype=np.int32), np.empty((_BATCH, 512), dtype=np.int32)
    rows, near = np.empty(512, dtype=np.int64), np.empty(512, dtype=np.int64)
    numbers, places = np.empty(_BATCH, dtype=np.int64), np.arange(_BATCH)
    crowded, crowded_places = np.empty(_BATCH, dtype=np.int64), np.empty(_BATCH, dtype=np.int64)
    is_crowded = np.zeros(_BATCH, dtype=np.bool_)
    columns = np.zeros((n_tail, 528), dtype=np.uint64)  # rows of 4 KiB would map all words to a few cache sets
    n_measured, begin = 0, 0
    order = order_by_cell(cells, offsets, 2 * k)
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
            is_transposed = False
            for probe in range(begin, end, _BATCH):
                n_batch = min(_BATCH, end - probe)
                for i in range(n_batch):
                    numbers[i] = order[probe + i] // n_probes
                    distances[i, first:last], is_crowded[i] = 0, False
                add_distances(queries, numbers, places, n_batch, 0, head[block], first, last, distances)
                if n_tail > 0 and end - begin >= 4:
                    n_crowded, n_near = find_crowded(
                        distances[:n_batch, at : at + n], numbers, limits, crowded, crowded_places, is_crowded
                    )
                    n_measured += n_near
                    if n_crowded > 0 and not is_transposed:
                        for word in range(0, n_tail, 8):  # writes to 8 cache lines at a time
                            transpose_tails(tail, row, n, word, min(8, n_tail - word), columns[word:], at)
                        is_transposed = True
                    add_columns(
                        query_tails, crowded, crowded_places, n_crowded, columns, first, last, stage_ends, limits, more,
                        distances,
                    )  # fmt: skip
                for i in range(n_batch):
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
