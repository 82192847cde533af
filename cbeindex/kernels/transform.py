"""Projections, codes and sums of dense rows: centred, multiplied by signs, convolved, and then written or packed."""

from __future__ import annotations

import sys
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from .batches import convolve_batch, pack_batch, write_batch
from .convolution import convolve
from .jit import njit
from .layouts import BATCH_FIELDS, FIELDS
from .vectors import FLOAT, INTEGER, LANES, cgutils

_LENGTH, _N_ROWS, _N_COLUMNS, _TOGETHER, _ROW_FLOATS, _BATCH, _RUN = (
    (FIELDS + BATCH_FIELDS).index(name)
    for name in ("length", "n_rows", "n_columns", "rows_together", "row_floats", "batch_rows", "run_floats")
)

# Bytes of a code are in the order of their bits.
_HAS_BYTES_IN_ORDER = sys.byteorder == "little"

signs_of: Any
all_finite: Any
sums_of: Any
flip: Any
copy: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def signs_of(values: Any, start: int) -> Any:
        """Return the signs of 64 floats: bit i is 1 where value i is at least 0."""
        return np.packbits(values[start : start + 64] >= 0, bitorder="little").view("<u8")[0].astype(np.uint64)

    def all_finite(values: Any, start: int) -> Any:
        """Tell whether 64 floats are finite."""
        return np.isfinite(values[start : start + 64]).all()

    def sums_of(values: Any, start: int, n_pieces: int) -> Any:
        """Return the sum of magnitudes and the sum of squares of pieces of 16 floats, in float64."""
        pieces = np.abs(values[start : start + 16 * n_pieces].reshape(-1, 16).astype(np.float64))
        sums = np.stack([pieces, pieces**2]).sum(axis=1)
        while sums.shape[1] > 1:
            sums = sums[:, : sums.shape[1] // 2] + sums[:, sums.shape[1] // 2 :]
        return sums[0, 0], sums[1, 0]

    def flip(rows: Any, row: int, centre: Any, signs: Any, block: int, first: int, out: Any) -> None:
        """Centre a row, multiply it by the signs of a block, and pad it with zeros, from column `first` on."""
        dim = rows.shape[1]
        with np.errstate(invalid="ignore", over="ignore"):
            out[first:dim] = (rows[row, first:] - centre[first:]) * signs[block, first:]
        out[dim:] = 0

    def copy(work: Any, start: int, out: Any, row: int, first: int, count: int) -> None:
        """Copy floats from `start` on to `out[row, first:]`."""
        out[row, first : first + count] = work[start : start + count]

else:
    _FLOATS, _WORDS = ir.VectorType(FLOAT, 64), ir.VectorType(ir.IntType(32), 64)
    _PIECE, _SUMS = ir.VectorType(FLOAT, 16), ir.VectorType(ir.DoubleType(), 16)

    def _load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Read 64 floats of an array from a place on."""
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), _FLOATS.as_pointer())
        return builder.load(pointer, align=4)

    @intrinsic
    def signs_of(typing_context: Any, values: Any, start: Any) -> Any:
        """Return the signs of 64 floats: bit i is 1 where value i is at least 0."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            floats = _load(context, builder, signature, arguments)
            word = builder.bitcast(builder.fcmp_ordered(">=", floats, ir.Constant(_FLOATS, [0.0] * 64)), INTEGER)
            return builder.bitreverse(word) if sys.byteorder == "big" else word

        return types.uint64(values, types.int64), generate

    @intrinsic
    def all_finite(typing_context: Any, values: Any, start: Any) -> Any:
        """Tell whether 64 floats are finite."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            floats = _load(context, builder, signature, arguments)
            zeros = builder.bitcast(builder.fsub(floats, floats), _WORDS)  # but for infinity and NaN
            kind = ir.FunctionType(ir.IntType(32), [_WORDS])
            reduce = cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.or.v64i32")
            return builder.icmp_unsigned("==", builder.call(reduce, [zeros]), ir.IntType(32)(0))

        return types.boolean(values, types.int64), generate

    @intrinsic
    def sums_of(typing_context: Any, values: Any, start: Any, n_pieces: Any) -> Any:
        """Return the sum of magnitudes and the sum of squares of pieces of 16 floats, in float64.

        The square of a float32 is exact in float64, and sums have one order: the bits are the same on every target.
        """
        result: Any = types.UniTuple(types.float64, 2)  # type: ignore[no-untyped-call,unused-ignore]

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            data = builder.gep(data, [arguments[1]])
            magnitudes, squares = (cgutils.alloca_once_value(builder, ir.Constant(_SUMS, [0.0] * 16)) for _ in range(2))
            with cgutils.for_range(builder, arguments[2]) as piece:
                place = builder.gep(data, [builder.mul(piece.index, INTEGER(16))])
                floats = builder.load(builder.bitcast(place, _PIECE.as_pointer()), align=4)
                magnitude = builder.fpext(_absolute(builder, floats), _SUMS)
                builder.store(builder.fadd(builder.load(magnitudes), magnitude), magnitudes)
                builder.store(builder.fadd(builder.load(squares), builder.fmul(magnitude, magnitude)), squares)
            sums = [_add_lanes(builder, builder.load(part)) for part in (magnitudes, squares)]
            return context.make_tuple(builder, result, sums)

        return result(values, types.int64, types.int64), generate

    def _absolute(builder: Any, floats: Any) -> Any:
        kind = ir.FunctionType(_PIECE, [_PIECE])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fabs.v16f32"), [floats])

    def _add_lanes(builder: Any, lanes: Any) -> Any:
        """Add the halves of a register until one number is left."""
        width = 16
        while width > 1:
            width //= 2
            kind = ir.VectorType(ir.IntType(32), width)
            halves = (ir.Constant(kind, list(range(first, first + width))) for first in (0, width))
            lanes = builder.fadd(*(builder.shuffle_vector(lanes, lanes, half) for half in halves))
        return builder.extract_element(lanes, ir.IntType(32)(0))

    @njit(cache=True, nogil=True)
    def flip(rows: Any, row: int, centre: Any, signs: Any, block: int, first: int, out: Any) -> None:
        """Centre a row, multiply it by the signs of a block, and pad it with zeros, from column `first` on."""
        # Slices: an index that is a sum might be negative, and would be checked.
        values, offsets, flips, flipped = rows[row, first:], centre[first:], signs[block, first:], out[first:]
        for j in range(len(values)):
            flipped[j] = (values[j] - offsets[j]) * np.float32(flips[j])
        for j in range(len(values), len(flipped)):
            flipped[j] = 0

    @njit(cache=True, nogil=True)
    def copy(work: Any, start: int, out: Any, row: int, first: int, count: int) -> None:
        """Copy floats from `start` on to `out[row, first:]`."""
        values, target = work[start : start + count], out[row, first : first + count]
        for j in range(count):
            target[j] = values[j]


@njit(cache=True, nogil=True)
def pack(work: Any, start: int, count: int, offset: int, codes: Any, row: int) -> bool:
    """Pack the signs of floats from `start` on into a code, from bit `offset` on; tell whether all are finite.

    The 64 floats behind them are overwritten.
    """
    for j in range(count, (count + 63) // 64 * 64):
        work[start + j] = 0
    is_finite = True
    for j in range(0, count, 64):
        is_finite &= all_finite(work, start + j)
        if len(codes):
            bits = signs_of(work, start + j) & (~np.uint64(0) >> np.uint64(max(0, 64 - (count - j))))
            word, shift = (offset + j) // 64, np.uint64((offset + j) % 64)
            if shift == 0:
                codes[row, word] = bits
            else:
                codes[row, word] |= bits << shift
                if word + 1 < codes.shape[1]:
                    codes[row, word + 1] = bits >> (np.uint64(64) - shift)
    return is_finite


@njit(cache=True, nogil=True)
def add_sums(work: Any, start: int, count: int, block: int, sums: Any, row: int) -> None:
    """Add the magnitudes and squares of a block of packed floats to the sums of a row."""
    magnitude, square = sums_of(work, start, (count + 15) // 16)
    if block == 0:
        sums[row, 0], sums[row, 1] = 0, 0
    sums[row, 0] += magnitude
    sums[row, 1] += square


@njit(cache=True, nogil=True, shared=True)
def transform_rows(
    rows: Any, start: int, stop: int, centre: Any, signs: Any, layout: Any, tables: Any, coefficients: Any, work: Any,
    projections: Any, codes: Any, sums: Any,
) -> int:  # fmt: skip
    """Write projections, codes, and sums of magnitudes and of squares of rows [start, stop).

    `projections` has as many columns as codes have bits. An array without rows is not written. Stops at the first row
    whose projections are not finite and returns its number; otherwise returns -1.
    """
    length, n_bits = layout[_LENGTH], projections.shape[1]
    n_floats, row_floats = 2 * layout[_N_ROWS] * layout[_N_COLUMNS], layout[_ROW_FLOATS]
    # A batch is read from the rows in pieces of LANES columns, which begin anywhere where rows of points are not whole
    # pieces; a piece that is not inside of the rows comes from `work`.
    dim = rows.shape[1]
    end = dim // LANES * LANES if 2 * layout[_N_COLUMNS] % LANES == 0 else max(0, dim - LANES)
    # Whole bytes of a batch are packed where it was convolved, if nothing else is wanted of it.
    only_codes = _HAS_BYTES_IN_ORDER and len(codes) > 0 and len(projections) == 0 and len(sums) == 0
    packs_batches = only_codes and (length % 8 == 0 or signs.shape[0] == 1) and layout[_RUN] % 8 == 0
    first = start
    while first < stop:
        is_batch = stop - first >= layout[_BATCH]
        n = layout[_BATCH] if is_batch else min(layout[_TOGETHER], stop - first)
        first_bad, begin = stop, end if is_batch else 0
        for block in range(signs.shape[0]):
            for i in range(n if begin < n_floats else 0):
                flip(rows, first + i, centre, signs, block, begin, work[i * row_floats : i * row_floats + n_floats])
            offset = block * length
            n_values = min(length, n_bits - offset)
            # A prefix needs the first rows of points only. At an eighth of the length that is a tenth of the time.
            n_kept = -(-n_values // (2 * layout[_N_COLUMNS]))
            if is_batch:
                convolve_batch(rows, first, centre, signs, block, work, layout, tables, coefficients[block])
                if packs_batches:
                    if block == 0:
                        for i in range(n):
                            codes[first + i, codes.shape[1] - 1] = 0
                    n_finite = pack_batch(work, layout, n_values, codes, first, offset)
                    if n_finite < n:
                        first_bad = min(first_bad, first + n_finite)
                    continue
                write_batch(work, layout, n_kept)
            else:
                convolve(work, layout, tables, coefficients[block], n, n_kept)
            for i in range(n):
                base = i * row_floats
                if len(projections):
                    copy(work, base, projections, first + i, offset, n_values)
                if not pack(work, base, n_values, offset, codes, first + i):
                    first_bad = min(first_bad, first + i)
                if len(sums):
                    add_sums(work, base, n_values, block, sums, first + i)
        if first_bad < stop:
            return first_bad
        first += n
    return -1
