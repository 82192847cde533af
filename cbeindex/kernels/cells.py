"""Cells: the rows of a segment that are near to the same centroid stand together, and few cells are looked at.

Codes and keys are those of `hamming.py`; cell c has the rows [offsets[c], offsets[c + 1]).
"""

import numpy as np

from .._typing import Codes, Distances, Keys, Mask, Ranks, Rows
from .hamming import add_tails, keep_smallest, prefix_limits
from .jit import njit
from .popcount import popcount64


@njit(cache=True, nogil=True)
def distances_between(query: Codes, columns: Codes, first: int, last: int, out: Distances) -> None:
    """Distances from `query` to rows [first, last) stored word by word, (n_words, 512), into the front of `out`.

    Ends at multiples of 16 leave no rows to be counted one by one.
    """
    n_words, n = columns.shape[0], last - first
    for row in range(n):
        out[row] = 0
    w = 0
    while w + 8 <= n_words:
        q0, q1, q2, q3 = query[w], query[w + 1], query[w + 2], query[w + 3]
        q4, q5, q6, q7 = query[w + 4], query[w + 5], query[w + 6], query[w + 7]
        c0, c1, c2, c3 = (
            columns[w, first:last],
            columns[w + 1, first:last],
            columns[w + 2, first:last],
            columns[w + 3, first:last],
        )
        c4, c5, c6, c7 = (
            columns[w + 4, first:last],
            columns[w + 5, first:last],
            columns[w + 6, first:last],
            columns[w + 7, first:last],
        )
        for row in range(n):
            out[row] += np.int32(
                popcount64(c0[row] ^ q0)
                + popcount64(c1[row] ^ q1)
                + popcount64(c2[row] ^ q2)
                + popcount64(c3[row] ^ q3)
                + popcount64(c4[row] ^ q4)
                + popcount64(c5[row] ^ q5)
                + popcount64(c6[row] ^ q6)
                + popcount64(c7[row] ^ q7)
            )
        w += 8
    while w < n_words:
        q0, c0 = query[w], columns[w, first:last]
        for row in range(n):
            out[row] += np.int32(popcount64(c0[row] ^ q0))
        w += 1


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
def rows_within(distances: Distances, limit: int, first_row: int, rows: Rows, near: Rows) -> int:
    """Put the rows whose distance is at most `limit`, and their distances, into `rows` and `near`; return how many.

    The distances are those of the rows from `first_row` on.
    """
    n = 0
    for i in range(distances.size):
        if distances[i] <= limit:  # seldom
            rows[n], near[n] = first_row + i, distances[i]
            n += 1
    return n


@njit(cache=True, nogil=True)
def keep_within(keys: Keys, n: int, bound: int) -> int:
    """Move the keys of the first `n` whose distance is at most `bound` to the front; return how many they are."""
    n_left = 0
    for i in range(n):
        keys[n_left] = keys[i]
        n_left += int(np.int64(keys[i] >> np.uint64(32)) <= bound)
    return n_left


@njit(cache=True, nogil=True)
def append_nearer(
    rows: Rows, near: Rows, n: int, hidden: Mask, ranks: Ranks, k: int, shift: int, tally: Distances, state: Rows,
    keys: Keys,
) -> None:  # fmt: skip
    """Append the keys of rows that are not hidden and within the bound, and lower the bound to the k-th distance.

    `tally` has the number of keys at each distance, of which `shift` bits are left out; `state` has the number of keys,
    the place of the bound in the tally, and the number of keys within it. `keys` has room for more than `k`.
    """
    count, last, n_within = state[0], state[1], state[2]
    for i in range(n):
        distance = near[i]
        place = distance >> shift
        if place <= last and (hidden.size == 0 or not hidden[rows[i]]):
            if count == keys.size:
                count = keep_within(keys, count, ((last + 1) << shift) - 1)
                if count == keys.size:  # many at the k-th distance
                    keep_smallest(keys, count, k)
                    count = k
            rank = np.int64(ranks[rows[i]]) if ranks.size > 0 else rows[i]
            # A file may say anything of ranks: below a distance, which the tally knows, they have 32 bits.
            keys[count] = (np.uint64(distance) << np.uint64(32)) | np.uint64(rank & 0xFFFFFFFF)
            count += 1
            tally[place] += 1
            n_within += 1
            while n_within - tally[last] >= k:
                n_within -= tally[last]
                last -= 1
    state[0], state[1], state[2] = count, last, n_within


@njit(cache=True, nogil=True)
def put_in_order(found: Keys, n: int, shift: int, tally: Distances, last: int, keys: Keys) -> None:
    """Put the smallest of the first `n` keys in order into `keys`, and the largest uint64 behind them.

    All are within place `last` of the tally (see `append_nearer`), which tells where those of a distance begin; it is
    overwritten.
    """
    ordered = np.empty(n, dtype=np.uint64)
    begin = 0
    for place in range(last + 1):
        size, tally[place] = tally[place], begin
        begin += size
    for i in range(n):
        place = int(np.int64(found[i] >> np.uint64(32))) >> shift
        ordered[tally[place]] = found[i]
        tally[place] += 1
    begin = 0
    for place in range(last + 1):  # of one distance, or few
        end = tally[place]
        if end - begin > 32:
            ordered[begin:end] = np.sort(ordered[begin:end])
        else:
            for i in range(begin + 1, end):
                key, to = ordered[i], i
                while to > begin and ordered[to - 1] > key:
                    ordered[to] = ordered[to - 1]
                    to -= 1
                ordered[to] = key
        begin = end
    n = min(n, keys.size)
    keys[:n] = ordered[:n]
    keys[n:] = np.uint64(0xFFFFFFFFFFFFFFFF)


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
    query_tail: Codes, columns: Codes, first: int, last: int, stage_ends: Keys, limits: Rows, more: Distances,
    distances: Distances,
) -> None:  # fmt: skip
    """Add the tails of rows [first, last) to their distances, stage by stage, as `add_tails` does.

    A row that exceeds a limit is put so far away that it exceeds all others. `limits` has that of the head as well.
    """
    begin, n = 0, last - first
    for stage in range(stage_ends.size):
        end, limit = int(stage_ends[stage]), limits[stage]
        distances_between(query_tail[begin:end], columns[begin:end], first, last, more)
        for i in range(n):
            distances[i] = distances[i] + more[i] if distances[i] <= limit else np.int32(1 << 30)
        begin = end


@njit(cache=True, nogil=True)
def nearest(
    queries: Codes, query_tails: Codes, head: Codes, tail: Codes, cells: Rows, offsets: Rows, hidden: Mask,
    ranks: Ranks, n_bits: int, stage_ends: Keys, prefix_bits: Rows, z: float, keys: Keys,
) -> int:  # fmt: skip
    """Find, for each query, the keys of its nearest rows in its cells, ascending, into `keys`; return rows measured.

    The cascade as in `hamming.py`: what a query has found so far gives a bound on the k-th distance, and it a limit for
    the heads of the rows to come. Rows over the limit are left there and then, so nothing is kept of them. Where heads
    rule out few rows, and several queries visit a cell, its tails are brought into the layout of the head for them.
    """
    n_queries, k = keys.shape
    n_probes, n_tail = cells.shape[1], tail.shape[1]
    shift = 0
    while n_bits >> shift >= 4096:
        shift += 1
    found = np.empty((n_queries, 2 * k + 64), dtype=np.uint64)
    tallies = np.zeros((n_queries, (n_bits >> shift) + 1), dtype=np.int32)
    states = np.zeros((n_queries, 3), dtype=np.int64)
    states[:, 1] = n_bits >> shift
    limits = np.full((n_queries, prefix_bits.size), n_bits, dtype=np.int64)
    distances, more = np.empty(512, dtype=np.int32), np.empty(512, dtype=np.int32)
    rows, near = np.empty(512, dtype=np.int64), np.empty(512, dtype=np.int64)
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
            part = distances[at - first : at - first + n]
            stands = False
            for visit in range(begin, end):
                query = order[visit] // n_probes
                limit, bound = limits[query], states[query, 1]
                distances_between(queries[query], head[block], first, last, distances)
                n_near = rows_within(part, limit[0], row, rows, near)
                if n_tail > 0:
                    n_measured += n_near
                    if 4 * n_near > n and end - begin >= 4:
                        if not stands:
                            stand_up(tail, row, n, columns, at)
                            stands = True
                        add_columns(query_tails[query], columns, first, last, stage_ends, limit, more, distances)
                        n_near = rows_within(part, limit[limit.size - 1], row, rows, near)
                    else:
                        n_near = add_tails(query_tails[query], tail, rows, near, n_near, stage_ends, limit[1:])
                append_nearer(rows, near, n_near, hidden, ranks, k, shift, tallies[query], states[query], found[query])
                if states[query, 1] < bound:
                    bound = min(n_bits, ((states[query, 1] + 1) << shift) - 1)
                    prefix_limits(bound, n_bits, prefix_bits, z, limit)
            row += n
        begin = end
    for query in range(n_queries):
        last = states[query, 1]
        n = keep_within(found[query], states[query, 0], ((last + 1) << shift) - 1)
        put_in_order(found[query], n, shift, tallies[query], last, keys[query])
    return n_measured
