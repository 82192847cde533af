"""The cascade as one call, from queries to distances and ids: for few queries, Python between kernels costs as much.

Arguments are those of `cascade.py` and `hamming.py`.
"""

import numpy as np

from .._core.typing import Codes, Distances, Ids, Keys, LeastDistances, Mask, Rows
from . import cascade, hamming
from .jit import njit
from .prefixes import prefix_scan
from .scanrest import scan_rest
from .topk import put_in_order, unpack_keys


@njit(cache=True, nogil=True)
def scan_left(
    queries: Codes, left: Rows, blocks: Codes, n_words: int, prefix: Distances, n_rows: int, limits: Rows, keys: Keys
) -> None:
    """Put the keys of the nearest rows of the queries `left` into `keys`; the first words are counted in `prefix`."""
    n_queries, k = keys.shape
    found, counts = np.empty((n_queries, k + max(k, 16) + 16), dtype=np.uint64), np.zeros((n_queries, 2), np.int64)
    no_ranks = np.zeros(0, dtype=np.int32)
    scan_rest(queries, left, blocks, n_words, 0, blocks.shape[0], prefix, n_rows, no_ranks, k, limits, found, counts)
    for query in left:
        put_in_order(found[query : query + 1], counts[query : query + 1], keys[query : query + 1])


@njit(cache=True, nogil=True)
def search(
    queries: Codes, blocks: Codes, hidden: Mask, ids: Ids, step: int, n_bits: int, ends: Rows, z: float,
    most_share: float, n_visible: int, distances: Distances, found_ids: Ids,
) -> int:  # fmt: skip
    """Find the nearest rows of queries: of all by a scan, or of most from the halves left after the prefix.

    A sample of the rows, which are in the order of `ids`, tells which of both. Returns the rows left after the prefix,
    added up over queries, all `n_visible` ones for a query that is scanned. Returns -1, with nothing found, if some
    queries are promising, but not most of them.

    Parameters
    ----------
    distances, found_ids : int32 and int64 arrays of shape (n_queries, k)
        Results; the largest int32 and -1 where there are fewer rows.
    """
    n_queries, n_rows, n_blocks = queries.shape[0], ids.size, blocks.shape[0]
    k, is_promising = min(distances.shape[1], n_rows), np.empty(n_queries, dtype=np.bool_)
    no_ranks = np.zeros(0, dtype=np.int32)
    n_promising = cascade.find_promising(
        queries, blocks, hidden, n_rows, step, k, n_bits, ends, z, most_share, is_promising
    )
    if n_promising == 0:
        hamming.nearest(queries, blocks, hidden, no_ranks, ids, distances, found_ids)
        return int(n_queries * n_visible)
    if 2 * n_promising <= n_queries:
        return -1
    prefix: Distances = np.empty((n_blocks * n_queries, 16), dtype=np.int32)
    least: LeastDistances = np.full((n_queries, (2 * n_blocks + 63) // 64 * 64), 65535, dtype=np.uint16)
    prefix_scan(queries, blocks, hidden, ends[0], 0, n_blocks, prefix, least)
    limits, keys = np.full((ends.size, n_queries), n_bits), np.empty((n_queries, k), dtype=np.uint64)
    n_read, n_survivors = np.full(n_queries, -1), 0
    cascade.nearest(
        queries, np.flatnonzero(is_promising), blocks, prefix, least, n_rows, no_ranks, n_bits, ends, z,
        int(most_share * 2 * n_blocks), limits, keys, n_read,
    )  # fmt: skip
    left = np.flatnonzero(n_read == -1)
    if left.size > 0:
        scan_left(queries, left, blocks, ends[0], prefix, n_rows, limits[ends.size - 1 :], keys)
    for query in range(n_queries):
        unpack_keys(keys[query], ids, distances[query], found_ids[query])
        n_survivors += n_visible if n_read[query] == -1 else min(8 * n_read[query], n_visible)
    return int(n_survivors)
