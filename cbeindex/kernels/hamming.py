"""Scans for the nearest rows by Hamming distance.

A scan of many rows for many queries can take seconds. The caller therefore calls `scan` for one range of rows after
another, and `finish_all` at the end. The caller owns the state of each query: `found` holds keys, `tallies` and
`states` are those of `topk.append_nearer`, and `bounds` holds the distance that results must stay below. Codes are laid
out as in `distances.py`, and keys as in `topk.py`.
"""

import numpy as np

from .._core.typing import Codes, Distances, Keys, Mask, Ranks, Rows
from .distances import add_distances, add_tails, add_tails_of_block
from .jit import njit
from .topk import append_nearer, drop_hidden, finish, rows_within, tally_shift


@njit(cache=True, nogil=True)
def scan(
    queries: Codes, query_tails: Codes, head: Codes, tail: Codes, hidden: Mask, ranks: Ranks, start: int, stop: int,
    stage_ends: Keys, k: int, found: Keys, tallies: Distances, states: Rows, bounds: Distances,
) -> None:  # fmt: skip
    """Collect, for each query, the keys of its `k` nearest rows in [start, stop) below its bound.

    `start` is a multiple of 512.
    """
    n_queries = len(queries)
    shift = tally_shift(64 * queries.shape[1])
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


@njit(cache=True, nogil=True)
def finish_all(found: Keys, n_bits: int, tallies: Distances, states: Rows, keys: Keys) -> None:
    """Write the nearest keys of each query to `keys`, (n_queries, k), in ascending order, as `topk.finish` does."""
    shift = tally_shift(n_bits)
    for query in range(len(keys)):
        finish(found[query], shift, tallies[query], states[query], keys[query])
