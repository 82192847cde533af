"""Centroids of codes: how their bits are counted, and which of them is near to a code.

A centroid has at each place a sign and a weight: one if its bit is in `ones`, two more if it is in `twos`. All three
are stored word by word, (n_blocks, n_words, 512), like the heads of codes. The product of a code and a centroid, with
bits as +1 and -1, is the sum of the weights less twice that of the places where they differ; times `scales` it is a
cosine.
"""

import numpy as np

from .._typing import Codes, Distances, Doubles, Rows
from .jit import njit
from .popcount import popcount64


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
def weigh_between(code: Codes, signs: Codes, ones: Codes, twos: Codes, out: Distances) -> None:
    """Weights of the places where `code` differs from centroids stored word by word, (n_words, 512), into `out`."""
    out[:] = 0
    w, n_words = 0, signs.shape[0]
    while w + 4 <= n_words:  # four at a time: sums are read and written once for all of them
        q0, q1, q2, q3 = code[w], code[w + 1], code[w + 2], code[w + 3]
        s0, s1, s2, s3 = signs[w], signs[w + 1], signs[w + 2], signs[w + 3]
        a0, a1, a2, a3 = ones[w], ones[w + 1], ones[w + 2], ones[w + 3]
        b0, b1, b2, b3 = twos[w], twos[w + 1], twos[w + 2], twos[w + 3]
        for cell in range(out.size):
            d0, d1, d2, d3 = s0[cell] ^ q0, s1[cell] ^ q1, s2[cell] ^ q2, s3[cell] ^ q3
            single = (
                popcount64(d0 & a0[cell])
                + popcount64(d1 & a1[cell])
                + popcount64(d2 & a2[cell])
                + popcount64(d3 & a3[cell])
            )
            double = (
                popcount64(d0 & b0[cell])
                + popcount64(d1 & b1[cell])
                + popcount64(d2 & b2[cell])
                + popcount64(d3 & b3[cell])
            )
            out[cell] += np.int32(single + double + double)
        w += 4
    while w < n_words:
        word, s, one, two = code[w], signs[w], ones[w], twos[w]
        for cell in range(out.size):
            apart = s[cell] ^ word
            double = popcount64(apart & two[cell])
            out[cell] += np.int32(popcount64(apart & one[cell]) + double + double)
        w += 1


@njit(cache=True, nogil=True)
def weigh_all(code: Codes, signs: Codes, ones: Codes, twos: Codes, n_cells: int, out: Distances) -> None:
    """Do as `weigh_between` for all centroids, (n_blocks, n_words, 512)."""
    for block in range(signs.shape[0]):
        n = min(512, (n_cells - block * 512 + 15) // 16 * 16)  # no cells are left to be weighed one by one
        weigh_between(code, signs[block], ones[block], twos[block], out[block * 512 : block * 512 + n])


@njit(cache=True, nogil=True)
def assign(
    words: Codes, signs: Codes, ones: Codes, twos: Codes, totals: Rows, scales: Doubles, n_cells: int, out: Rows
) -> None:
    """Find the centroid that has the largest cosine with each code, the first of equal ones, into `out`."""
    apart = np.empty(signs.shape[0] * 512, dtype=np.int32)
    for row in range(words.shape[0]):
        weigh_all(words[row], signs, ones, twos, n_cells, apart)
        nearest_cell, largest = 0, -2.0
        for cell in range(n_cells):
            cosine = (totals[cell] - 2 * apart[cell]) * scales[cell]
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
    apart = np.empty(signs.shape[0] * 512, dtype=np.int32)
    distances = np.empty(n_cells, dtype=np.int32)
    places = np.empty(2050, dtype=np.int64)
    for query in range(queries.shape[0]):
        weigh_all(queries[query], signs, ones, twos, n_cells, apart)
        places[:] = 0
        for cell in range(n_cells):
            cosine = (totals[cell] - 2 * apart[cell]) * scales[cell]
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
