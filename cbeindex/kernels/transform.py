"""Codes and projections of dense rows: centred, flipped, convolved, and then packed signs or the numbers themselves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from .convolution import convolve
from .jit import njit
from .layouts import FIELDS
from .vectors import FLOAT, INTEGER

_N_ROWS, _N_COLUMNS, _TOGETHER, _ROW_FLOATS = (
    FIELDS.index(name) for name in ("n_rows", "n_columns", "rows_together", "row_floats")
)

signs_of: Any
are_finite: Any
flip: Any
copy: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def signs_of(values: Any, start: int) -> Any:
        """Return the signs of 64 floats: bit i is 1 where value i is at least 0."""
        return np.packbits(values[start : start + 64] >= 0, bitorder="little").view("<u8")[0].astype(np.uint64)

    def are_finite(values: Any, start: int) -> Any:
        """Tell which of 64 floats are finite: bit i is that of value i."""
        return np.packbits(np.isfinite(values[start : start + 64]), bitorder="little").view("<u8")[0].astype(np.uint64)

    def flip(rows: Any, row: int, centre: Any, signs: Any, block: int, work: Any, start: int, n_floats: int) -> None:
        """Centre a row, multiply it by the signs of a block, and pad it with zeros to `n_floats`, from `start` on."""
        dim = rows.shape[1]
        with np.errstate(invalid="ignore", over="ignore"):
            work[start : start + dim] = (rows[row] - centre) * signs[block]
        work[start + dim : start + n_floats] = 0

    def copy(work: Any, start: int, out: Any, row: int, first: int, count: int) -> None:
        """Copy floats from `start` on to `out[row, first:]`."""
        out[row, first : first + count] = work[start : start + count]

else:
    _FLOATS = ir.VectorType(FLOAT, 64)

    def _compare(write: Callable[[Any, Any, Any], Any]) -> Any:
        """Make a function of 64 floats whose result is the bits that `write(builder, floats, zeros)` writes."""

        @intrinsic
        def compare(typing_context: Any, values: Any, start: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
                pointer = builder.bitcast(builder.gep(data, [arguments[1]]), _FLOATS.as_pointer())
                bits = write(builder, builder.load(pointer, align=4), ir.Constant(_FLOATS, [0.0] * 64))
                word = builder.bitcast(bits, INTEGER)
                return builder.bitreverse(word) if sys.byteorder == "big" else word

            return types.uint64(values, types.int64), generate

        return compare

    signs_of = _compare(lambda builder, floats, zeros: builder.fcmp_ordered(">=", floats, zeros))
    # x - x is 0, but for infinity and NaN.
    are_finite = _compare(lambda builder, xs, zeros: builder.fcmp_ordered("==", builder.fsub(xs, xs), zeros))

    @njit(cache=True, nogil=True)
    def flip(rows: Any, row: int, centre: Any, signs: Any, block: int, work: Any, start: int, n_floats: int) -> None:
        """Centre a row, multiply it by the signs of a block, and pad it with zeros to `n_floats`, from `start` on."""
        dim, out = rows.shape[1], work[start : start + n_floats]  # an index that is a sum might be negative
        for j in range(dim):
            out[j] = (rows[row, j] - centre[j]) * np.float32(signs[block, j])
        for j in range(dim, n_floats):
            out[j] = 0

    @njit(cache=True, nogil=True)
    def copy(work: Any, start: int, out: Any, row: int, first: int, count: int) -> None:
        """Copy floats from `start` on to `out[row, first:]`."""
        values, target = work[start : start + count], out[row, first : first + count]
        for j in range(count):
            target[j] = values[j]


@njit(cache=True, nogil=True)
def put(bits: Any, first: int, codes: Any, row: int) -> None:
    """Write 64 bits of a code from bit `first` on; bits behind them become 0."""
    word, shift = first // 64, np.uint64(first % 64)
    if shift == 0:
        codes[row, word] = bits
    else:
        codes[row, word] |= bits << shift
        if word + 1 < codes.shape[1]:
            codes[row, word + 1] = bits >> (np.uint64(64) - shift)


@njit(cache=True, nogil=True)
def transform_rows(
    rows: Any, start: int, stop: int, centre: Any, signs: Any, length: int, n_bits: int, layout: Any, tables: Any,
    coefficients: Any, work: Any, projections: Any, codes: Any,
) -> int:  # fmt: skip
    """Write projections and codes of rows [start, stop); either array may be empty, and is then not written.

    Stops at the first row whose projections are not finite and returns its number; otherwise returns -1.
    """
    n_floats, row_floats = 2 * layout[_N_ROWS] * layout[_N_COLUMNS], layout[_ROW_FLOATS]
    for first in range(start, stop, layout[_TOGETHER]):
        n = min(layout[_TOGETHER], stop - first)
        for block in range(signs.shape[0]):
            for i in range(n):
                flip(rows, first + i, centre, signs, block, work, i * row_floats, n_floats)
            convolve(work, layout, tables, coefficients[block], n)
            offset = block * length
            n_values = min(length, n_bits - offset)
            for i in range(n):
                row, base = first + i, i * row_floats
                if len(projections):
                    copy(work, base, projections, row, offset, n_values)
                for j in range(0, n_values, 64):
                    used = ~np.uint64(0) >> np.uint64(max(0, 64 - (n_values - j)))
                    if ~are_finite(work, base + j) & used:
                        return row
                    if len(codes):
                        put(signs_of(work, base + j) & used, offset + j, codes, row)
    return -1
