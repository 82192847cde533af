"""Residual codes: rows quantised relative to a centre, and their records of 32 rows.

A level of `bits` bits is level * bits bits of a row's code, lowest first, so that a nibble is what `lookup.py` expects.
Levels are equally wide (`quantising.py`). The values that levels stand for are those of `querytables.py`: 2 l - 1 for 1
bit a dimension, l - (2**bits - 1) / 2 for 2 and 4 bits. Levels of 8 bits are int8.

A record is the codes of 32 rows, byte by byte, and five numbers of each row: factor, offset, spread, length (float32)
and row number (int32). Rows that do not exist have the offset infinity.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._core.typing import CodeBytes, Doubles, Floats, Projections, Rows
from .jit import njit
from .quantising import best_inverse, quantise
from .views import view_as

Column: TypeAlias = NDArray[np.uint8]
"""Rows of codes, each followed by four float32 (factor, offset, spread, length) and its centre, 16 bits."""


@njit(cache=True, nogil=True, fastmath={"contract"})
def nearest_centre(projections: Floats, turned: Floats, half_squares: Floats, scores: Floats) -> int:
    """Return the centre with the least distance over the first projections, the first of equal ones.

    `turned` has a row for each of these projections, with the values that the centres have there: a register then adds
    up the products of several centres. `scores` is memory to work in.
    """
    n_centres = half_squares.size
    for centre in range(n_centres):
        scores[centre] = -half_squares[centre]
    for i in range(turned.shape[0]):
        value, row = projections[i], turned[i]
        for centre in range(n_centres):
            scores[centre] += value * row[centre]
    best, number = np.float32(-np.inf), 0
    for centre in range(n_centres):
        if scores[centre] > best:
            best, number = scores[centre], centre
    return number


@njit(cache=True, nogil=True)
def pack_levels(levels: Any, bits: int, code: Any) -> None:
    """Pack the levels of a row into bytes; bits behind the last level are 0."""
    per_byte = 8 // bits
    for j in range(code.size):
        packed = 0
        for i in range(min(per_byte, levels.size - j * per_byte)):
            packed |= levels[j * per_byte + i] << (i * bits)
        code[j] = packed


@njit(cache=True, nogil=True)
def encode_rows(
    projections: Projections, centres: Floats, turned: Floats, half_squares: Floats, bits: int, share: float,
    codes: CodeBytes, chosen: Any, numbers: Doubles,
) -> None:  # fmt: skip
    """Quantise rows relative to their nearest centres.

    Parameters
    ----------
    projections : float32 array of shape (n, n_bits)
    turned : float32 array of shape (width, n_centres)
        The first `width` projections of the centres, by which the nearest centre is chosen.
    half_squares : float32 array of shape (n_centres,)
        Half of the squared lengths of the centres over these projections.
    share : float
        Best width of a level for a normal distribution, over the root mean square of a residual.
    codes : uint8 array of shape (n, n_bytes)
    chosen : uint16 array of shape (n,)
        The centre of each row.
    numbers : float64 array of shape (n, 5)
        For residual y, values V and centre c: |y|^2, <y, V>, |V|^2, <c, V> and <c, y>.
    """
    scores = np.empty(half_squares.size, dtype=np.float32)
    for row in range(projections.shape[0]):
        chosen[row] = nearest_centre(projections[row], turned, half_squares, scores)
    encode_near(projections, centres, chosen, bits, share, codes, numbers)


@njit(cache=True, nogil=True)
def encode_near(
    projections: Projections, centres: Floats, chosen: Any, bits: int, share: float, codes: CodeBytes, numbers: Doubles
) -> None:
    """Quantise rows relative to the centres `chosen`; parameters are those of `encode_rows`."""
    n_bits = projections.shape[1]
    residual, levels = np.empty(n_bits, dtype=np.float32), np.empty(n_bits, dtype=np.uint8)
    for row in range(projections.shape[0]):
        centre, square, along = centres[chosen[row]], 0.0, 0.0
        for i in range(n_bits):
            residual[i] = projections[row, i] - centre[i]
            square += np.float64(residual[i]) * residual[i]
            along += np.float64(residual[i]) * centre[i]
        inverse = best_inverse(residual, bits, share)
        numbers[row, 1], numbers[row, 2], numbers[row, 3] = quantise(residual, centre, bits, inverse, levels)
        numbers[row, 0], numbers[row, 4] = square, along
        pack_levels(levels, bits, codes[row])


@njit(cache=True, nogil=True)
def decode_rows(column: Column, rows: Rows, n_bits: int, bits: int, centres: Floats, out: Floats) -> None:
    """Write what the codes of some rows say of their first projections to `out`, (n, width).

    The values of a row are scaled to its length, which is stored behind its code.
    """
    n_bytes, per_byte, mask = (n_bits * bits + 7) // 8, 8 // bits, (1 << bits) - 1
    half, width = (1 << (bits - 1)) - 0.5, out.shape[1]
    length = np.empty(4, dtype=np.uint8)
    for i in range(rows.size):
        code = column[rows[i]]
        square = 0.0
        for j in range(n_bits):
            value = ((code[j // per_byte] >> (j % per_byte * bits)) & mask) - half
            square += value * value
        for j in range(4):
            length[j] = code[n_bytes + 12 + j]
        scale = np.float32(view_as(length, np.float32)[0] / np.sqrt(square))
        centre = centres[np.int64(code[n_bytes + 16]) + 256 * np.int64(code[n_bytes + 17])]
        for j in range(width):
            value = ((code[j // per_byte] >> (j % per_byte * bits)) & mask) - half
            out[i, j] = centre[j] + scale * np.float32(value)


@njit(cache=True, nogil=True)
def fill_records(column: Column, rows: Rows, places: Rows, numbers: Any, n_bytes: int, records: Any) -> None:
    """Write `column[rows[i]]` to place `places[i]` of the records, with the row number `numbers[i]`."""
    for i in range(rows.size):
        source, target, lane = column[rows[i]], records[places[i] // 32], places[i] % 32
        for j in range(n_bytes):
            target[32 * j + lane] = source[j]
        at = 32 * n_bytes + 4 * lane
        for field in range(4):
            for j in range(4):
                target[at + 128 * field + j] = source[n_bytes + 4 * field + j]
        for j in range(4):
            target[at + 512 + j] = (numbers[i] >> (8 * j)) & 255


@njit(cache=True, nogil=True)
def read_records(records: Any, places: Rows, centres: Any, n_bytes: int, column: Column) -> None:
    """Write the rows at some places of the records, and the numbers of their centres, to `column`."""
    for i in range(places.size):
        source, target, lane = records[places[i] // 32], column[i], places[i] % 32
        for j in range(n_bytes):
            target[j] = source[32 * j + lane]
        at = 32 * n_bytes + 4 * lane
        for field in range(4):
            for j in range(4):
                target[n_bytes + 4 * field + j] = source[at + 128 * field + j]
        target[n_bytes + 16], target[n_bytes + 17] = centres[i] & 255, centres[i] >> 8
