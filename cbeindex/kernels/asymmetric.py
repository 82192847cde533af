"""Estimated distances between real-valued queries and packed codes.

The projections q of a query are quantised to magnitudes m = 0 ... 15 times a step. Let x be the positions at which a
code differs from the signs of q. The product of q with the +-1 signs of the code is step * (sum of m - 2 * sum of m
over x), and the sum over x takes four AND and POPCNT passes over the bit planes of m: the weight of the row. The
distance of a row is

    offset + query_offset - factor * product

with two numbers for each row and one for each query (see `distances/estimator.py`). Codes are stored as in
`layout.py`. Keys are those of `topk.py`, except that their upper half is a float32 distance whose bits are
rearranged to order like an integer.
"""

from typing import Any

import numpy as np

from .._core.typing import Codes, Distances, Floats, Keys, Mask, Ranks, Rows
from . import lanes
from .cells import order_by_cell
from .jit import njit
from .layout import fill_blocks
from .popcount import popcount64
from .prefetch import prefetch
from .topk import keep_smallest, put_ascending


@njit(cache=True, nogil=True)
def add_weights(query: Codes, planes: Codes, blocks: Codes, first: int, last: int, out: Distances) -> None:
    """Add to `out` the weights of the rows of blocks [first, last), from the first row of the first block on."""
    for block in range(first, last):
        part = out[16 * (block - first) : 16 * (block - first) + 16]
        lanes.add_weights(query, planes, 0, blocks[block], blocks.shape[1], 0, part)


@njit(cache=True, nogil=True)
def weight_of_words(words: Codes, query: Codes, p0: Codes, p1: Codes, p2: Codes, p3: Codes) -> Any:
    """Return the weight of the positions at which `words` and `query` differ."""
    w0, w1, w2, w3 = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
    for w in range(words.size):
        x = words[w] ^ query[w]
        w0 += popcount64(x & p0[w])
        w1 += popcount64(x & p1[w])
        w2 += popcount64(x & p2[w])
        w3 += popcount64(x & p3[w])
    return np.int32(w0 + np.uint64(2) * w1 + np.uint64(4) * w2 + np.uint64(8) * w3)


@njit(cache=True, nogil=True)
def scan(
    queries: Codes, planes: Codes, totals: Distances, steps: Floats, query_offsets: Floats, codes: Codes,
    offsets: Floats, factors: Floats, spreads: Floats, margins: Floats, hidden: Mask, ranks: Ranks, start: int,
    stop: int, bounds: Floats, keys: Keys,
) -> None:  # fmt: skip
    """Write to `keys`, for each query, the keys of its nearest rows in [start, stop) within its bound, ascending.

    Rows are compared by their estimate minus the margin of the query times the spread of the row. `keys`,
    (n_queries, k), is padded with the largest uint64. `start` is a multiple of 512.
    """
    n_queries, k = keys.shape
    is_by_row, slack = codes.shape[2] == 1, min(k, 256)
    own = np.zeros((32 if is_by_row else 0, codes.shape[1], 16), dtype=np.uint64)
    found = np.empty((n_queries, k + slack + 512), dtype=np.uint64)
    counts = np.zeros(n_queries, dtype=np.int64)
    nearest = bounds.copy()
    weights = np.empty((min(n_queries, 32), 512), dtype=np.int32)
    distances = np.empty(512, dtype=np.float32)
    for block in range(start // 512, (stop + 511) // 512):
        first_row = block * 512
        n_rows = min(512, stop - first_row)
        row_offsets, row_factors = offsets[first_row : first_row + n_rows], factors[first_row : first_row + n_rows]
        row_spreads = spreads[first_row : first_row + n_rows]
        if is_by_row:
            fill_blocks(codes, first_row, first_row + n_rows, own)
        blocks = own if is_by_row else codes[32 * block : 32 * block + 32]
        for first in range(0, n_queries, 32):
            last = min(first + 32, n_queries)
            for query in range(first, last):
                weights[query - first] = 0
                add_weights(queries[query], planes[query], blocks, 0, (n_rows + 15) // 16, weights[query - first])
            for query in range(first, last):
                weight, total, step = weights[query - first], totals[query], steps[query]
                shift, margin = query_offsets[query], margins[query]
                for row in range(n_rows):
                    product = step * np.float32(total - 2 * weight[row])
                    distances[row] = row_offsets[row] + shift - row_factors[row] * product - margin * row_spreads[row]
                count = counts[query]
                count = collect_within(distances, n_rows, nearest[query], first_row, hidden, ranks, found[query], count)
                if count >= k + slack:
                    nearest[query] = float_of_key(keep_smallest(found[query], count, k))
                    count = k
                counts[query] = count
    for query in range(n_queries):
        put_ascending(found[query], counts[query], keys[query])


@njit(cache=True, nogil=True)
def visit(
    queries: Codes, planes: Codes, totals: Distances, steps: Floats, query_offsets: Floats, codes: Codes,
    offsets: Floats, factors: Floats, spreads: Floats, margins: Floats, hidden: Mask, ranks: Ranks, cells: Rows,
    cell_offsets: Rows, keys: Keys,
) -> None:  # fmt: skip
    """Write to `keys`, for each query, the keys of its nearest rows in its cells, ascending, as `scan` does."""
    n_queries, k = keys.shape
    n_probes = cells.shape[1]
    slack = min(k, 256)
    found = np.empty((n_queries, k + slack + 512), dtype=np.uint64)
    counts = np.zeros(n_queries, dtype=np.int64)
    nearest = np.full(n_queries, np.inf, dtype=np.float32)
    weights = np.empty(512, dtype=np.int32)
    distances = np.empty(512, dtype=np.float32)
    for number in order_by_cell(cells, cell_offsets, k + slack):
        query, cell = number // n_probes, cells[number // n_probes, number % n_probes]
        total, step, shift, margin = totals[query], steps[query], query_offsets[query], margins[query]
        row, stop = cell_offsets[cell], cell_offsets[cell + 1]
        while row < stop:
            first, at, n = row // 16, row % 16, min(512 - row % 16, stop - row)
            weights[: at + n + 15] = 0
            add_weights(queries[query], planes[query], codes, first, (row + n + 15) // 16, weights)
            weight = weights[at : at + n]
            row_offsets, row_factors, row_spreads = (
                offsets[row : row + n],
                factors[row : row + n],
                spreads[row : row + n],
            )
            for i in range(n):
                product = step * np.float32(total - 2 * weight[i])
                distances[i] = row_offsets[i] + shift - row_factors[i] * product - margin * row_spreads[i]
            count = collect_within(distances, n, nearest[query], row, hidden, ranks, found[query], counts[query])
            if count >= k + slack:
                nearest[query] = float_of_key(keep_smallest(found[query], count, k))
                count = k
            counts[query] = count
            row += n
    for query in range(n_queries):
        put_ascending(found[query], counts[query], keys[query])


@njit(cache=True, nogil=True)
def collect_within(
    distances: Floats, n_rows: int, bound: float, first_row: int, hidden: Mask, ranks: Ranks, keys: Keys, count: int
) -> int:
    """Append the keys of the rows within `bound`; return the new number of keys.

    The capacity of `distances` is a multiple of 16.
    """
    bits = distances.view(np.int32)
    for begin in range(0, n_rows, 16):
        found = lanes.within(distances, begin, bound)
        if begin + 16 > n_rows:
            found &= (np.uint64(1) << np.uint64(n_rows - begin)) - np.uint64(1)
        while found != 0:  # rare, except for the first rows of a query
            lowest = found & (~found + np.uint64(1))
            place = begin + np.int64(popcount64(lowest - np.uint64(1)))
            row = first_row + place
            if hidden.size == 0 or not hidden[row]:
                keys[count] = key_of(bits[place], ranks[row] if ranks.size > 0 else row)
                count += 1
            found ^= lowest
    return count


@njit(cache=True, nogil=True)
def key_of(bits: int, row: int) -> Any:
    """Return the key of a row from the bits of its float32 distance.

    Flipping all bits of negative numbers, and the sign bit of others, makes the bits order like an unsigned integer.
    """
    ordered = ~np.int64(bits) if bits < 0 else np.int64(bits) | 0x80000000
    return (np.uint64(ordered & 0xFFFFFFFF) << np.uint64(32)) | np.uint64(row)


@njit(cache=True, nogil=True)
def float_of_key(key: Any) -> Any:
    """Return the distance that a key contains."""
    ordered = np.int64(key >> np.uint64(32))
    bits = np.empty(1, dtype=np.int32)
    bits[0] = np.int32(ordered & 0x7FFFFFFF) if ordered >= 0x80000000 else np.int32(~ordered)
    return bits.view(np.float32)[0]


@njit(cache=True, nogil=True)
def weigh_rows(queries: Codes, planes: Codes, codes: Codes, rows: Rows, out: Distances) -> None:
    """Write the weights of the rows of each query to `out`; `rows` and `out` are (n_queries, any)."""
    n_words, size = codes.shape[1], codes.shape[2]
    words, step = np.empty(n_words, dtype=np.uint64), 8 if size == 1 else 1  # words in a cache line
    for query in range(rows.shape[0]):
        q, p = queries[query], planes[query]
        for i in range(rows.shape[1]):
            if i + 8 < rows.shape[1]:
                block, at = rows[query, i + 8] // size, rows[query, i + 8] % size
                for w in range(0, n_words, step):
                    prefetch(codes, (block * n_words + w) * size + at)
            block, at = rows[query, i] // size, rows[query, i] % size
            for w in range(n_words):
                words[w] = codes[block, w, at]
            out[query, i] = weight_of_words(words, q, p[0], p[1], p[2], p[3])
