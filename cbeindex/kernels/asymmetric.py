"""Estimated distances between real-valued queries and packed codes.

The projections of a query are quantised to levels (see `levels.py`). The product of the levels with the +-1 signs of a
code is total - 2 * weight: the sum of all magnitudes, less twice those at which the signs differ. The distance of a row
is

    offset + shift - factor * step * (total - 2 * weight)

with two numbers for each row and three for each query (see `distances/estimator.py`). Codes are blocks of 16 rows, as
in `blocks.py`, or single rows, as in `layout.py`. Keys are those of `topk.py`, except that their upper half is the
distance, a float32 whose bits are rearranged to order like an integer.
"""

from typing import Any

import numpy as np

from .._core.typing import Codes, Distances, Floats, Keys, Mask, Ranks, Rows
from .blockestimates import estimates_within
from .cells import order_by_cell
from .jit import njit
from .layout import fill_blocks
from .levels import Levels, fill_planes
from .popcount import popcount64
from .prefetch import prefetch
from .topk import put_in_order, reduce_buffer
from .views import view_as
from .weights import UNFOLDS, prepare, unfold


@njit(cache=True, nogil=True, inline="always")
def estimate_blocks(
    prepared: Codes, numbers: Any, blocks: Codes, origin: int, start: int, stop: int, of_rows: Any, of_queries: Any,
    totals: Distances, hidden: Mask, ranks: Ranks, k: int, bounds: Floats, found: Keys, counts: Rows, estimates: Floats,
    tally: Distances, spare: Keys,
) -> None:  # fmt: skip
    """Collect the rows in [start, stop) that are within the bounds of the queries in the tuple `numbers`.

    The first row of the first block is row `origin`. The function is inlined, as a call with so many arrays costs as
    much as some blocks.
    """
    full = found.shape[1] - 16
    bits = view_as(estimates, np.int32)
    for block in range((start - origin) // 16, (stop - origin + 15) // 16):
        first = origin + 16 * block
        near = estimates_within(prepared, numbers, blocks, block, first, of_rows, of_queries, totals, bounds, estimates)
        if near != 0:
            while near != 0:
                lowest = near & (~near + np.uint64(1))
                near ^= lowest
                bit = int(np.int64(popcount64(lowest - np.uint64(1))))
                i, row = bit >> 4, first + (bit & 15)
                if start <= row < stop and (hidden.size == 0 or not hidden[row]):
                    query = numbers[i]
                    found[query, counts[query, 0]] = key_of(bits[i, bit & 15], ranks[row] if ranks.size > 0 else row)
                    counts[query, 0] += 1
            for i in range(len(numbers)):
                query = numbers[i]
                if counts[query, 0] > full:
                    bounds[query] = float_of_key(reduce_buffer(found[query], counts[query, 0], k, tally, spare))
                    counts[query, 0] = k


@njit(cache=True, nogil=True)
def room_for(k: int) -> int:
    """Return the size of a buffer for the `k` smallest keys of a query."""
    return int(k + min(max(k, 32), 1024) + 16)


@njit(cache=True, nogil=True)
def put_nearest(found: Keys, counts: Rows, tally: Distances, spare: Keys, keys: Keys) -> None:
    """Write the smallest keys of each query to `keys` in ascending order, padded with the largest uint64."""
    k = keys.shape[1]
    for query in range(keys.shape[0]):
        if counts[query, 0] > k:
            reduce_buffer(found[query], counts[query, 0], k, tally, spare)
        counts[query, 1] = min(counts[query, 0], k)
    put_in_order(found, counts, keys)


@njit(cache=True, nogil=True, shared=True)
def scan(
    levels: Levels, totals: Distances, steps: Floats, shifts: Floats, margins: Floats, codes: Codes, offsets: Floats,
    factors: Floats, spreads: Floats, hidden: Mask, ranks: Ranks, start: int, stop: int, bounds: Floats, keys: Keys,
) -> None:  # fmt: skip
    """Write to `keys`, for each query, the keys of its nearest rows in [start, stop) within its bound, ascending.

    Rows are compared by their estimate minus the margin of the query times the spread of the row. `keys`,
    (n_queries, k), is padded with the largest uint64.
    """
    n_queries, k = keys.shape
    is_by_row = codes.shape[2] == 1
    prepared, nearest = prepare(levels), bounds.copy()
    found, counts = np.empty((n_queries, room_for(k)), dtype=np.uint64), np.zeros((n_queries, 2), dtype=np.int64)
    estimates, tally = np.empty((4, 16), dtype=np.float32), np.empty(512, dtype=np.int32)
    spare = np.empty(found.shape[1], dtype=np.uint64)
    of_rows, of_queries = (offsets, factors, spreads), (steps, shifts, margins)
    # Blocks that stay in the second-level cache for all queries.
    group = (
        16 * max(1, 131072 // (codes.shape[1] * (256 if UNFOLDS else 128)))
        if n_queries > 1 or is_by_row
        else max(1, stop)
    )
    own = np.zeros((group // 16 if is_by_row else 0, codes.shape[1], 16), dtype=np.uint64)
    unfolded = np.empty((group // 16 if UNFOLDS and n_queries >= 4 else 0, codes.shape[1] * 256), dtype=np.uint8)
    begin = start
    while begin < stop:
        end, query = min(stop, begin // 16 * 16 + group), 0
        if is_by_row:
            fill_blocks(codes, begin, end, own)
        blocks, origin = own if is_by_row else codes, begin if is_by_row else 0
        if UNFOLDS:  # one branch is compiled
            of_four, first = unfolded, origin + (begin - origin) // 16 * 16
            for i in range((end - first + 15) // 16 if n_queries >= 4 else 0):
                unfold(blocks, (first - origin) // 16 + i, unfolded, i)
        else:
            of_four, first = blocks, origin
        while query + 4 <= n_queries:
            estimate_blocks(
                prepared, (query, query + 1, query + 2, query + 3), of_four, first, begin, end, of_rows, of_queries,
                totals, hidden, ranks, k, nearest, found, counts, estimates, tally, spare,
            )  # fmt: skip
            query += 4
        while query < n_queries:
            estimate_blocks(
                prepared, (query,), blocks, origin, begin, end, of_rows, of_queries, totals, hidden, ranks, k, nearest,
                found, counts, estimates, tally, spare,
            )  # fmt: skip
            query += 1
        begin = end
    put_nearest(found, counts, tally, spare, keys)


@njit(cache=True, nogil=True)
def visit(
    levels: Levels, totals: Distances, steps: Floats, shifts: Floats, margins: Floats, blocks: Codes, offsets: Floats,
    factors: Floats, spreads: Floats, hidden: Mask, ranks: Ranks, cells: Rows, cell_offsets: Rows, keys: Keys,
) -> None:  # fmt: skip
    """Write to `keys`, for each query, the keys of its nearest rows in its cells, ascending, as `scan` does."""
    n_queries, k = keys.shape
    n_probes, flat = cells.shape[1], cells.ravel()
    prepared, nearest = prepare(levels), np.full(n_queries, np.inf, dtype=np.float32)
    found, counts = np.empty((n_queries, room_for(k)), dtype=np.uint64), np.zeros((n_queries, 2), dtype=np.int64)
    estimates, tally = np.empty((4, 16), dtype=np.float32), np.empty(512, dtype=np.int32)
    spare = np.empty(found.shape[1], dtype=np.uint64)
    of_rows, of_queries = (offsets, factors, spreads), (steps, shifts, margins)
    order, begin = order_by_cell(cells, cell_offsets, found.shape[1]), 0
    while begin < order.size:
        cell, end = flat[order[begin]], begin + 1
        while end < order.size and flat[order[end]] == cell:
            end += 1
        start, stop = cell_offsets[cell], cell_offsets[cell + 1]
        while begin + 4 <= end:
            four = (
                order[begin] // n_probes, order[begin + 1] // n_probes, order[begin + 2] // n_probes,
                order[begin + 3] // n_probes,
            )  # fmt: skip
            estimate_blocks(
                prepared, four, blocks, 0, start, stop, of_rows, of_queries, totals, hidden, ranks, k, nearest, found,
                counts, estimates, tally, spare,
            )  # fmt: skip
            begin += 4
        while begin < end:
            estimate_blocks(
                prepared, (order[begin] // n_probes,), blocks, 0, start, stop, of_rows, of_queries, totals, hidden,
                ranks, k, nearest, found, counts, estimates, tally, spare,
            )  # fmt: skip
            begin += 1
    put_nearest(found, counts, tally, spare, keys)


@njit(cache=True, nogil=True)
def estimate_rows(
    levels: Levels, totals: Distances, steps: Floats, shifts: Floats, codes: Codes, offsets: Floats, factors: Floats,
    rows: Rows, out: Floats,
) -> None:  # fmt: skip
    """Estimate the distances of each query to its own rows into `out`; `rows` and `out` are (n_queries, any).

    Rows in random order are weighed one by one, by planes.
    """
    n_words, size, n = codes.shape[1], codes.shape[2], rows.shape[1]
    step = 8 if size == 1 else 1  # words of a row in a cache line
    planes = np.empty((1, 5 * n_words), dtype=np.uint64)
    for query in range(rows.shape[0]):
        fill_planes(levels, query, planes, 0)
        for i in range(n):
            if i + 8 < n:
                ahead = rows[query, i + 8]
                for w in range(0, n_words, step):
                    prefetch(codes, (ahead // size * n_words + w) * size + ahead % size)
                prefetch(offsets, ahead)
                prefetch(factors, ahead)
            row = rows[query, i]
            weight = weight_of_row(planes[0], codes, row // size, row % size)
            product = steps[query] * np.float32(totals[query] - 2 * weight)
            out[query, i] = offsets[row] + shifts[query] - factors[row] * product


@njit(cache=True, nogil=True)
def weight_of_row(planes: Codes, codes: Codes, block: int, place: int) -> Any:
    """Return the weight of a row of a block for the query of some planes."""
    w0, w1, w2, w3 = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
    for w in range(codes.shape[1]):
        x = codes[block, w, place] ^ planes[5 * w]
        w0 += popcount64(x & planes[5 * w + 1])
        w1 += popcount64(x & planes[5 * w + 2])
        w2 += popcount64(x & planes[5 * w + 3])
        w3 += popcount64(x & planes[5 * w + 4])
    return np.int32(w0 + np.uint64(2) * w1 + np.uint64(4) * w2 + np.uint64(8) * w3)


@njit(cache=True, nogil=True)
def key_of(bits: int, row: int) -> Any:
    """Return the key of a row from the bits of its float32 distance.

    Flipping all bits of negative numbers, and the sign bit of others, makes the bits order like an unsigned integer.
    """
    ordered = ~np.int64(bits) if bits < 0 else np.int64(bits) | 0x80000000
    low = np.uint64(np.int64(row) & 0xFFFFFFFF)  # a file may say anything of ranks
    return (np.uint64(ordered & 0xFFFFFFFF) << np.uint64(32)) | low


@njit(cache=True, nogil=True)
def float_of_key(key: Any) -> Any:
    """Return the distance that a key contains."""
    ordered = np.int64(key >> np.uint64(32))
    bits = np.empty(1, dtype=np.int32)
    bits[0] = np.int32(ordered & 0x7FFFFFFF) if ordered >= 0x80000000 else np.int32(~ordered)
    return view_as(bits, np.float32)[0]
