"""Residual codes of rows relative to other centres than their own, from what their codes say of them.

A row with residual y, centre c and level values V is taken for x = c + |y| V / |V|, which is quantised relative to
another centre. What the offset of the row holds beside the parts of y and c, the new offset holds too. Codes of 4 bits
stand for their rows well enough for that: 1 % of |y|^2 is lost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from .._core.typing import Rows
from .residuals import ResidualCodec


def recode(
    codec: ResidualCodec, column: NDArray[np.uint8], rows: Rows, centres: NDArray[np.uint16]
) -> NDArray[np.uint8]:
    """Return the column of some rows with codes relative to other centres, (len(rows), row bytes)."""
    points = np.empty((len(rows), codec.n_bits), dtype=np.float32)
    kernels.residuals.decode_rows(column, rows, codec.n_bits, codec.bits, codec.centres, points)
    codes, sums = np.empty((len(rows), codec.n_bytes), dtype=np.uint8), np.empty((len(rows), 5))
    kernels.residuals.encode_near(points, codec.centres, centres, codec.bits, codec.level_width, codes, sums)
    numbers = codec.numbers_of(column[rows])
    square = numbers.lengths.astype(np.float64) ** 2
    own = codec.centres[numbers.centres]
    along = np.einsum("ij,ij->i", own, points - own, dtype=np.float64)
    # f <c, V> is f |V| / |y| times <c, y> with the decoded y, and the spread tells f |V|.
    lengthened = np.sqrt(numbers.spreads.astype(np.float64) ** 2 * max(1, codec.n_bits - 1) + square)
    ratio = np.divide(lengthened, numbers.lengths, out=np.ones(len(rows)), where=numbers.lengths > 0)
    beside = numbers.offsets - codec.own_offsets(square, ratio * along, along)
    return codec.column_of(codes, codec.numbers_from(sums, beside, centres))
