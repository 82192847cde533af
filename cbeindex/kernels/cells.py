"""Cells: the rows of a segment that are near to the same centroid stand together, and few cells are looked at.

Codes and keys are those of `hamming.py`; cell c has the rows [offsets[c], offsets[c + 1]).
"""

import numpy as np

from .._typing import Codes, Distances, HeadDistances, Keys, Mask, Ranks, Rows
from .hamming import add_tails, append_keys, keep_smallest, prefix_limits, put_ascending
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
def add_bits(words: Codes, cells: Rows, counts: Distances) -> None:
    """Count the ones at each place of the codes of each cell: `counts` is (n_cells, 64 n_words)."""
    n_words = words.shape[1]
    for row in range(words.shape[0]):
        into = counts[cells[row]]
        for w in range(n_words):
            word, part = words[row, w], into[64 * w : 64 * w + 64]
            for bit in range(64):
                part[bit] += np.int32((word >> np.uint64(bit)) & np.uint64(1))


@njit(cache=True, nogil=True)
def in_order_of_cells(cells: Rows, n_cells: int) -> Rows:
    """Order the entries of `cells`, (n_queries, n_probes), by cell: numbers query * n_probes + probe."""
    begins = np.zeros(n_cells + 1, dtype=np.int64)
    for cell in cells.flat:
        begins[cell + 1] += 1
    for i in range(n_cells):
        begins[i + 1] += begins[i]
    order = np.empty(cells.size, dtype=np.int64)
    for query in range(cells.shape[0]):
        for probe in range(cells.shape[1]):
            cell = cells[query, probe]
            order[begins[cell]] = query * cells.shape[1] + probe
            begins[cell] += 1
    return order


@njit(cache=True, nogil=True)
def measure(
    queries: Codes, head: Codes, cells: Rows, offsets: Rows, hidden: Mask, starts: Rows, heads: HeadDistances
) -> None:
    """Head distances of the rows in the cells of each query, cell by cell, so that queries share what is in the cache.

    The rows of cell `cells[query, probe]` go to `heads` from `starts[query, probe]` on; a hidden one gets the largest
    uint16.
    """
    n_probes = cells.shape[1]
    distances = np.empty(512, dtype=np.int32)
    for number in in_order_of_cells(cells, offsets.size - 1):
        query, probe = number // n_probes, number % n_probes
        cell = cells[query, probe]
        row, stop = offsets[cell], offsets[cell + 1]
        to = starts[query, probe]
        while row < stop:
            block, at = row // 512, row % 512
            first, last = at // 16 * 16, min(512, (stop - block * 512 + 15) // 16 * 16)
            distances_between(queries[query], head[block], first, last, distances)
            n = min(stop, block * 512 + 512) - row
            part, out = distances[at - first : at - first + n], heads[to : to + n]
            for i in range(n):
                out[i] = part[i]
            if hidden.size > 0:
                for i in range(n):
                    if hidden[row + i]:
                        out[i] = 65535
            row, to = row + n, to + n


@njit(cache=True, nogil=True)
def gather(
    heads: HeadDistances, cells: Rows, offsets: Rows, starts: Rows, above: int, limit: int, rows: Rows, distances: Rows
) -> int:
    """Gather the rows of one query's cells whose head distance is in (above, limit]; return their number."""
    n = 0
    for probe in range(cells.size):
        row, size = offsets[cells[probe]], offsets[cells[probe] + 1] - offsets[cells[probe]]
        for begin in range(0, size, 32):
            part = heads[starts[probe] + begin : starts[probe] + min(begin + 32, size)]
            least = np.uint16(65535)
            for i in range(part.size):
                least = min(least, part[i])
            if least <= limit:
                for i in range(part.size):
                    rows[n], distances[n] = row + begin + i, part[i]
                    n += above < distances[n] <= limit
    return n


@njit(cache=True, nogil=True)
def reach_of(heads: HeadDistances, n_wanted: int, n_values: int) -> int:
    """Least head distance within which there are `n_wanted` rows, or the largest below that of hidden rows."""
    counts = np.zeros(n_values, dtype=np.int64)
    for i in range(heads.size):
        if heads[i] < n_values:
            counts[heads[i]] += 1
    total = 0
    for value in range(n_values):
        total += counts[value]
        if total >= n_wanted:
            return value
    return n_values - 1


@njit(cache=True, nogil=True)
def nearest(
    query_tails: Codes, tail: Codes, heads: HeadDistances, cells: Rows, offsets: Rows, starts: Rows, ranks: Ranks,
    n_head_bits: int, n_bits: int, stage_ends: Keys, prefix_bits: Rows, z: float, keys: Keys,
) -> int:  # fmt: skip
    """Find, for each query, the keys of its nearest rows in its cells, ascending, into `keys`; return rows measured.

    `starts` has a column more than `cells`, where the rows of a query end. The cascade as in `hamming.py`: the rows
    nearest over their heads give a bound on the k-th distance, and it a limit for the heads of all others.
    """
    k = keys.shape[1]
    nothing_hidden = np.zeros(0, dtype=np.bool_)
    limits = np.empty(prefix_bits.size, dtype=np.int64)
    n_measured = 0
    for query in range(cells.shape[0]):
        begin, end = starts[query, 0], starts[query, -1]
        rows, distances = np.empty(end - begin + 1, dtype=np.int64), np.empty(end - begin + 1, dtype=np.int64)
        found = np.empty(end - begin + 1, dtype=np.uint64)
        has_tail = tail.shape[1] > 0
        reach = reach_of(heads[begin:end], 2 * k + 32 if has_tail else k, n_head_bits + 1)
        n = gather(heads, cells[query], offsets, starts[query], -1, reach, rows, distances)
        count = 0
        if has_tail:
            n_measured += n
            limits[:] = n_bits
            n = add_tails(query_tails[query], tail, rows, distances, n, stage_ends, limits[1:])
            count = append_keys(rows, distances, n, nothing_hidden, ranks, found, count)
            if count >= k:
                bound = np.int64(keep_smallest(found, count, k) >> np.uint64(32))
                count = k
                prefix_limits(bound, n_bits, prefix_bits, z, limits)
                n = 0
                if limits[0] > reach:
                    n = gather(heads, cells[query], offsets, starts[query], reach, limits[0], rows, distances)
                    n_measured += n
                    n = add_tails(query_tails[query], tail, rows, distances, n, stage_ends, limits[1:])
                count = append_keys(rows, distances, n, nothing_hidden, ranks, found, count)
        else:
            count = append_keys(rows, distances, n, nothing_hidden, ranks, found, count)
        put_ascending(found, count, keys[query])
    return n_measured
