"""Scans that continue from the distances over the first words of all rows (see `prefixes.py`)."""

from typing import Any

import numpy as np

from .._core.typing import Codes, Distances, Keys, Ranks, Rows
from .blocks import distances_within, planes_of
from .jit import njit
from .popcount import popcount64
from .topk import settle


@njit(cache=True, nogil=True)
def append_rows(near: Any, distances: Distances, first: int, found: Keys, counts: Rows) -> None:
    """Append the keys of the rows whose bits are set; the first of them has the number `first`."""
    while near != 0:
        lowest = near & (~near + np.uint64(1))
        near ^= lowest
        row = np.int64(popcount64(lowest - np.uint64(1)))
        found[counts[0]] = np.uint64(distances[row]) << np.uint64(32) | np.uint64(first + row)
        counts[0] += 1


@njit(cache=True, nogil=True, inline="always")
def scan_some(
    planes: Codes, numbers: Any, blocks: Codes, begin: int, end: int, n_words: int, n_queries: int, prefix: Distances,
    n_rows: int, ranks: Ranks, k: int, limits: Rows, found: Keys, counts: Rows, tally: Distances, spare: Keys,
) -> None:  # fmt: skip
    """Collect the rows of blocks [begin, end) within the limits of adjacent queries; the first words are counted."""
    full, nothing_hidden = found.shape[1] - 16, np.zeros(0, dtype=np.bool_)
    for block in range(begin, end):
        at = block * n_queries + numbers[0]
        near = distances_within(planes, numbers, blocks, block, n_words, blocks.shape[1], 4096, limits, 0, prefix, at)
        if near != 0:
            for i in range(len(numbers)):
                query, mine = numbers[i], near >> np.uint64(16 * i) & np.uint64(0xFFFF)
                append_rows(mine, prefix[at + i], 16 * block, found[query], counts[query])
                if counts[query, 0] > full:
                    limits[0, query] = settle(
                        found[query], counts[query], 0, n_rows, nothing_hidden, ranks, k, limits[0, query],
                        ranks.size == 0, tally, spare,
                    )  # fmt: skip


@njit(cache=True, nogil=True)
def scan_rest(
    queries: Codes, numbers: Rows, blocks: Codes, n_words: int, begin: int, end: int, prefix: Distances, n_rows: int,
    ranks: Ranks, k: int, limits: Rows, found: Keys, counts: Rows,
) -> None:  # fmt: skip
    """Collect the nearest rows of blocks [begin, end) for some queries, as `hamming.scan` does.

    The distances over the first `n_words` words are in `prefix`, which is overwritten. `numbers` are the queries,
    ascending. `limits`, `found` and `counts` have a row for each query, used or not.
    """
    n_queries, nothing_hidden = queries.shape[0], np.zeros(0, dtype=np.bool_)
    planes, tally = planes_of(queries), np.empty(512, dtype=np.int32)
    spare = np.empty(found.shape[1], dtype=np.uint64)
    group = max(1, 65536 // (blocks.shape[1] * 128)) if numbers.size > 1 else end - begin
    for first in range(begin, end, max(1, group)):
        last, i = min(first + group, end), 0
        while i < numbers.size:
            query = numbers[i]
            if i + 4 <= numbers.size and numbers[i + 3] == query + 3:
                scan_some(
                    planes, (query, query + 1, query + 2, query + 3), blocks, first, last, n_words, n_queries, prefix,
                    n_rows, ranks, k, limits, found, counts, tally, spare,
                )  # fmt: skip
                i += 4
            else:
                scan_some(
                    planes, (query,), blocks, first, last, n_words, n_queries, prefix, n_rows, ranks, k, limits, found,
                    counts, tally, spare,
                )  # fmt: skip
                i += 1
    for query in numbers:
        limits[0, query] = settle(
            found[query], counts[query], 0, n_rows, nothing_hidden, ranks, k, limits[0, query], ranks.size == 0, tally,
            spare,
        )  # fmt: skip
