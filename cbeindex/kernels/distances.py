"""Hamming distances between queries and stored rows.

The first words of a code, its head, are stored word by word in blocks of 512 rows: `head` is (n_blocks, n_head, 512).
One vectorised pass then measures many rows. The other words, the tail, are stored row by row: `tail` is
(n_rows, n_tail). See `data/codes.py`.
"""

import numpy as np

from .._core.typing import Codes, Distances, Keys, Rows
from .jit import njit
from .lanes import add_differing
from .popcount import popcount64
from .prefetch import prefetch


@njit(cache=True, nogil=True)
def add_distances(
    queries: Codes, numbers: Rows, places: Rows, n: int, word: int, columns: Codes, first: int, last: int,
    out: Distances,
) -> None:  # fmt: skip
    """Add to `out` the distances of rows [first, last) from `n` queries, over the words that `columns` holds.

    `columns`, (n_words, 512 or more), holds the words of the rows from word `word` on, word by word. The queries are
    `queries[numbers[:n]]`, and query i is added to `out[places[i]]`. Kernels read and write up to the multiples of 16
    around `first` and `last`.
    """
    n_words = columns.shape[0]
    for begin in range(0, n_words, 8):  # 8 words of 512 rows stay in the first-level cache for all queries
        part, size = columns[begin:], min(8, n_words - begin)
        i = 0
        while i + 4 <= n:
            four = numbers[i], numbers[i + 1], numbers[i + 2], numbers[i + 3]
            to = places[i], places[i + 1], places[i + 2], places[i + 3]
            for row in range(first, last, 16):
                add_differing(queries, four, to, word + begin, part, size, row, out)
            i += 4
        while i < n:
            for row in range(first, last, 16):
                add_differing(queries, (numbers[i],), (places[i],), word + begin, part, size, row, out)
            i += 1


@njit(cache=True, nogil=True)
def add_tails(
    query_tail: Codes, tail: Codes, rows: Rows, distances: Rows, n: int, stage_ends: Keys, limits: Rows
) -> int:
    """Add the tail distances of the first `n` of `rows` to `distances` in stages; return the number of rows kept.

    A stage reads the tails up to word `stage_ends[stage]` and drops the rows whose distance so far exceeds
    `limits[stage]`. The rows kept are moved to the front of `rows` and `distances`. All rows pass one stage before the
    next begins, so that the tails of many rows are fetched from memory at the same time.
    """
    n_tail = tail.shape[1]
    begin = np.uint64(0)
    for stage in range(stage_ends.size):
        end, limit = stage_ends[stage], limits[stage]
        n_left = 0
        for i in range(n):
            row, distance = rows[i], distances[i]
            if i + 8 < n:  # prefetching 8 rows ahead is 1.2 times as fast, even for rows in ascending order
                for w in range(begin, end, np.uint64(8)):
                    prefetch(tail, rows[i + 8] * n_tail + np.int64(w))
            part = np.uint64(0)
            for w in range(begin, end):  # unsigned: LLVM does not vectorise signed indices, which may be negative
                part += popcount64(tail[row, w] ^ query_tail[w])
            distance += np.int64(part)
            rows[n_left], distances[n_left] = row, distance
            n_left += distance <= limit
        begin, n = end, n_left
    return n


@njit(cache=True, nogil=True)
def transpose_tails(
    tail: Codes, first_row: int, n_rows: int, first_word: int, n_words: int, columns: Codes, column: int
) -> None:
    """Transpose some words of the tails of `n_rows` rows: columns[w, column + i] = tail[first_row + i, first_word + w].

    The result has the layout of a head, so that the kernels for heads can measure tails too.
    """
    for i in range(n_rows):
        for w in range(n_words):
            columns[w, column + i] = tail[first_row + i, first_word + w]


@njit(cache=True, nogil=True)
def smallest(distances: Distances, n_rows: int) -> int:
    """Return the smallest of the first `n_rows` distances."""
    least = np.int32(2147483647)
    for row in range(n_rows):
        least = min(least, distances[row])
    return int(least)


@njit(cache=True, nogil=True)
def add_tails_of_block(
    query_tails: Codes, first: int, last: int, tail: Codes, block: int, n_rows: int, bounds: Distances,
    columns: Codes, out: Distances,
) -> None:  # fmt: skip
    """Add the tail distances of the rows of a block to `out[query - first]`, for queries [first, last).

    The tails are transposed into the layout of the head, 8 words at a time, once for all queries. A query skips the
    rest of the tails when no row of the block is below its bound. `columns`, (8, 512), is scratch memory.
    """
    n_tail = tail.shape[1]
    numbers, places = np.empty(last - first, dtype=np.int64), np.empty(last - first, dtype=np.int64)
    for begin in range(0, n_tail, 8):
        n_words = min(8, n_tail - begin)
        transpose_tails(tail, block * 512, n_rows, begin, n_words, columns, 0)
        n = 0
        for query in range(first, last):
            numbers[n], places[n] = query, query - first
            n += smallest(out[query - first], n_rows) < bounds[query]
        add_distances(query_tails, numbers, places, n, begin, columns[:n_words], 0, n_rows, out)
