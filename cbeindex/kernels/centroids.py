"""Centroids of codes: counting bits for their means, and finding the centroids nearest to a code.

A centroid has a sign and a weight at each position: 1 if the bit of `ones` is set, plus 2 if that of `twos` is set.
Signs, ones and twos are stored in blocks of 16 like codes, (n_blocks, n_words, 16). With bits as +1 and -1, the product
of a code and a centroid is `totals`, the sum of all weights, minus twice the weight of the positions where the two
differ. The product times `scales` is a cosine.
"""

import numpy as np

from .._core.typing import Codes, Distances, Doubles, Rows
from .jit import njit
from .lanes import add_weighted


@njit(cache=True, nogil=True)
def add_bits(words: Codes, cells: Rows, counts: Distances) -> None:
    """Count the ones at each position of the codes of each cell: `counts` is (n_cells, 64 n_words)."""
    n_words = words.shape[1]
    for row in range(words.shape[0]):
        into = counts[cells[row]]
        for w in range(n_words):
            word, part = words[row, w], into[64 * w : 64 * w + 64]
            for bit in range(64):
                part[bit] += np.int32((word >> np.uint64(bit)) & np.uint64(1))


@njit(cache=True, nogil=True)
def weigh_all(codes: Codes, first: int, n: int, signs: Codes, ones: Codes, twos: Codes, out: Distances) -> None:
    """Write to `out` the weights of the positions at which `n` codes, at most 4, differ from each centroid.

    Entries after the last centroid, up to a multiple of 16, are written too and have no meaning.
    """
    out[:n] = 0
    for block in range(signs.shape[0]):
        columns, part = (signs[block], ones[block], twos[block]), out[:, 16 * block : 16 * block + 16]
        if n == 4:
            add_weighted(codes, (first, first + 1, first + 2, first + 3), (0, 1, 2, 3), columns, 0, part)
        else:
            for i in range(n):
                add_weighted(codes, (first + i,), (i,), columns, 0, part)


@njit(cache=True, nogil=True)
def assign(
    words: Codes, signs: Codes, ones: Codes, twos: Codes, totals: Rows, scales: Doubles, n_cells: int, out: Rows
) -> None:
    """Write to `out` the centroid with the largest cosine for each code; ties go to the lower number."""
    differing = np.empty((4, signs.shape[0] * 16), dtype=np.int32)
    for row in range(words.shape[0]):
        if row % 4 == 0:
            weigh_all(words, row, min(4, words.shape[0] - row), signs, ones, twos, differing)
        nearest_cell, largest = 0, -2.0
        for cell in range(n_cells):
            cosine = (totals[cell] - 2 * differing[row % 4, cell]) * scales[cell]
            if cosine > largest:
                nearest_cell, largest = cell, cosine
        out[row] = nearest_cell


@njit(cache=True, nogil=True)
def choose(
    queries: Codes, signs: Codes, ones: Codes, twos: Codes, totals: Rows, scales: Doubles, n_cells: int, out: Rows
) -> None:
    """Write to `out` the nearest cells of each query by cosine, nearest first; ties go to the lower number.

    Cosines are rounded to 1 / 1,024, so that a counting sort orders the cells.
    """
    n_chosen = out.shape[1]
    differing = np.empty((4, signs.shape[0] * 16), dtype=np.int32)
    distances = np.empty(n_cells, dtype=np.int32)
    places = np.empty(2050, dtype=np.int64)
    for query in range(queries.shape[0]):
        if query % 4 == 0:
            weigh_all(queries, query, min(4, queries.shape[0] - query), signs, ones, twos, differing)
        places[:] = 0
        for cell in range(n_cells):
            cosine = (totals[cell] - 2 * differing[query % 4, cell]) * scales[cell]
            distances[cell] = np.int32(1024 * (1 - min(1.0, max(-1.0, cosine))))
        for cell in range(n_cells):
            places[distances[cell] + 1] += 1
        last = 0
        while places[last + 1] + places[last] < n_chosen:  # up to the distance of the last cell chosen
            places[last + 1] += places[last]
            last += 1
        chosen = out[query]
        for cell in range(n_cells):
            distance = distances[cell]
            if distance <= last:
                if places[distance] < n_chosen:
                    chosen[places[distance]] = cell
                places[distance] += 1
