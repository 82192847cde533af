"""Centroids of codes: how their bits are counted, and which of them is near to a code.

A centroid has at each place a sign and a weight: one if its bit is in `ones`, two more if it is in `twos`. All three
are stored word by word, (n_blocks, n_words, 512), like the heads of codes. The product of a code and a centroid, with
bits as +1 and -1, is the sum of the weights less twice that of the places where they differ; times `scales` it is a
cosine.
"""

import numpy as np

from .._core.typing import Codes, Distances, Doubles, Rows
from .jit import njit
from .lanes import add_weighted


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
def weigh_all(
    codes: Codes, first: int, n: int, signs: Codes, ones: Codes, twos: Codes, n_cells: int, out: Distances
) -> None:
    """Weights of the places where `n` codes, at most 4, differ from all centroids, into rows of `out`.

    Those after the last centroid, up to a multiple of 16, get some number as well.
    """
    out[:n] = 0
    for block in range(signs.shape[0]):
        columns, begin = (signs[block], ones[block], twos[block]), block * 512
        part = out[:, begin : begin + 512]
        for cell in range(0, min(512, n_cells - begin), 16):
            if n == 4:
                add_weighted(codes, (first, first + 1, first + 2, first + 3), (0, 1, 2, 3), columns, cell, part)
            else:
                for i in range(n):
                    add_weighted(codes, (first + i,), (i,), columns, cell, part)


@njit(cache=True, nogil=True)
def assign(
    words: Codes, signs: Codes, ones: Codes, twos: Codes, totals: Rows, scales: Doubles, n_cells: int, out: Rows
) -> None:
    """Find the centroid that has the largest cosine with each code, the first of equal ones, into `out`."""
    apart = np.empty((4, signs.shape[0] * 512), dtype=np.int32)
    for row in range(words.shape[0]):
        if row % 4 == 0:
            weigh_all(words, row, min(4, words.shape[0] - row), signs, ones, twos, n_cells, apart)
        nearest_cell, largest = 0, -2.0
        for cell in range(n_cells):
            cosine = (totals[cell] - 2 * apart[row % 4, cell]) * scales[cell]
            if cosine > largest:
                nearest_cell, largest = cell, cosine
        out[row] = nearest_cell


@njit(cache=True, nogil=True)
def choose(
    queries: Codes, signs: Codes, ones: Codes, twos: Codes, totals: Rows, scales: Doubles, n_cells: int, out: Rows
) -> None:
    """Find the nearest cells of each query by cosine, nearest first, the first of equally near ones first, into `out`.

    A cosine is told to 1 / 1,024, so that cells are put in order by counting.
    """
    n_chosen = out.shape[1]
    apart = np.empty((4, signs.shape[0] * 512), dtype=np.int32)
    distances = np.empty(n_cells, dtype=np.int32)
    places = np.empty(2050, dtype=np.int64)
    for query in range(queries.shape[0]):
        if query % 4 == 0:
            weigh_all(queries, query, min(4, queries.shape[0] - query), signs, ones, twos, n_cells, apart)
        places[:] = 0
        for cell in range(n_cells):
            cosine = (totals[cell] - 2 * apart[query % 4, cell]) * scales[cell]
            distances[cell] = np.int32(1024 * (1 - min(1.0, max(-1.0, cosine))))
        for cell in range(n_cells):
            places[distances[cell] + 1] += 1
        last = 0
        while places[last + 1] + places[last] < n_chosen:  # the distance of the last cell that is chosen
            places[last + 1] += places[last]
            last += 1
        chosen = out[query]
        for cell in range(n_cells):
            distance = distances[cell]
            if distance <= last:
                if places[distance] < n_chosen:
                    chosen[places[distance]] = cell
                places[distance] += 1
