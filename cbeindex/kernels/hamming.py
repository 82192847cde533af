"""Scan rows for the nearest by Hamming distance.

Codes are laid out as in `distances.py`, and keys as in `topk.py`.
"""

import numpy as np

from .._core.typing import Codes, Distances, Keys, Mask, Ranks, Rows
from .distances import add_distances, add_tails, add_tails_of_block
from .jit import njit
from .topk import append_nearer, drop_hidden, finish, rows_within, tally_shift


@njit(cache=True, nogil=True)
def scan(
    queries: Codes, query_tails: Codes, head: Codes, tail: Codes, hidden: Mask, ranks: Ranks, first_row: int,
    start: int, stop: int, last_row: int, bound: int, stage_ends: Keys, found: Keys, tallies: Distances, states: Rows,
    bounds: Distances, keys: Keys,
) -> None:  # fmt: skip
    """Find, for each query, the keys of its nearest rows in [first_row, last_row) at distances below `bound`.

    A scan of many rows for many queries can take seconds. The caller therefore calls this kernel for one range of rows,
    [start, stop), after another. The last call writes `keys`, (n_queries, k), in ascending order, padded with the
    largest uint64. Between calls the state of the queries is in `found`, (n_queries, capacity), `tallies`,
    (n_queries, 512), `states`, (n_queries, 3), see `topk.append_nearer`, and `bounds`, (n_queries,). `start` is a
    multiple of 512.
    """
    n_queries, k = keys.shape
    n_bits = 64 * queries.shape[1]
    shift = tally_shift(n_bits)
    if start == first_row:
        tallies[:] = 0
        states[:] = 0
        states[:, 1] = n_bits >> shift
        bounds[:] = min(bound, n_bits + 1)
    distances = np.empty((min(n_queries, 256), 512), dtype=np.int32)
    columns = np.zeros((8, 512), dtype=np.uint64)
    numbers, places = np.arange(n_queries), np.arange(min(n_queries, 256))
    rows, near = np.empty(512, dtype=np.int64), np.empty(512, dtype=np.int64)
    limits = np.empty(stage_ends.size, dtype=np.int64)
    for block in range(start // 512, (stop + 511) // 512):
        n_rows = min(512, stop - block * 512)
        for first in range(0, n_queries, 256):  # 256 queries share a block while the block is in the cache
            last = min(first + 256, n_queries)
            distances[: last - first] = 0
            add_distances(queries, numbers[first:last], places, last - first, 0, head[block], 0, n_rows, distances)
            shared = tail.shape[1] > 0 and last - first >= 4
            if shared:
                add_tails_of_block(query_tails, first, last, tail, block, n_rows, bounds, columns, distances)
            for query in range(first, last):
                limits[:] = bounds[query] - 1
                n = rows_within(distances[query - first], bounds[query] - 1, 0, n_rows, block * 512, rows, near)
                if not shared and tail.shape[1] > 0:
                    n = add_tails(query_tails[query], tail, rows, near, n, stage_ends, limits)
                if hidden.size > 0:
                    n = drop_hidden(rows, near, n, hidden)
                append_nearer(rows, near, n, ranks, k, shift, tallies[query], states[query], found[query])
                bounds[query] = min(bounds[query], (states[query, 1] + 1) << shift)
    if stop == last_row:
        for query in range(n_queries):
            finish(found[query], shift, tallies[query], states[query], keys[query])
