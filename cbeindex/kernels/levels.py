"""Quantised projections of a query, and what kernels make of them to weigh codes.

The projections q of a query are quantised to levels: whole numbers 0 ... 15 times a step, with the sign of q. The
weight of a code is the sum of the magnitudes of those levels whose sign differs from the bit of the code (1 for
positive). Two forms of the levels give the same weights:

- Planes: for each word of a code, the signs and the four bit planes of the magnitudes. A weight takes four AND and
  POPCNT for each word.
- Tables: for each nibble of a code, the weights of its 16 values. They are at most 60, so four add up in a byte.

`weights.py` uses one form or the other for blocks of rows. Uncompiled, the functions are numpy with the same results.
"""

from typing import Any, TypeAlias

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from .._core.typing import Codes, Floats
from .jit import njit
from .vectorcode import F32, I8, I32, I64, VectorCode, cgutils

Levels: TypeAlias = NDArray[np.int8]
"""Quantised projections, (n_queries, 64 * n_words), zeros behind the last projection."""

largest_magnitude: Any
fill_levels: Any
fill_planes: Any
fill_tables: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def largest_magnitude(projections: Any, query: int) -> Any:
        """Return the largest magnitude of the projections of a query, 0 if there are none."""
        return np.abs(projections[query]).max(initial=np.float32(0))

    def fill_levels(projections: Any, query: int, step: Any, levels: Any) -> Any:
        """Quantise the projections of a query into `levels[query]`; return the sum of the magnitudes."""
        values = projections[query]
        magnitudes = np.minimum(np.rint(np.abs(values) / np.float32(step)), np.float32(15)).astype(np.int8)
        levels[query, : values.size] = np.where(values >= 0, magnitudes, -magnitudes)
        return magnitudes.sum(dtype=np.int64)

    def fill_planes(levels: Any, query: int, planes: Any, place: int) -> None:
        """Write the planes of a query to `planes[place]`, (5 * n_words,): five for each word, that of signs first."""
        magnitudes = np.abs(levels[query])
        bits = [levels[query] > 0, *(magnitudes >> plane & 1 for plane in range(4))]
        words = np.packbits(np.stack(bits), axis=1, bitorder="little").view("<u8")
        planes[place, : words.size] = words.T.ravel()

    def fill_tables(levels: Any, query: int, tables: Any, place: int) -> None:
        """Write the tables of a query to the bytes of `tables[place]`, (32 * n_words,) words.

        A word of a code has 16 tables of 16 bytes: of the lower nibbles of bytes 0 to 3, of the upper nibbles of these
        bytes, and the same of bytes 4 to 7.
        """
        of_nibbles = levels[query].reshape(-1, 1, 4)
        is_set = np.arange(16)[:, np.newaxis] >> np.arange(4) & 1
        weights = np.maximum(np.where(is_set, -of_nibbles, of_nibbles), 0).sum(axis=2, dtype=np.uint8)
        in_order = weights.reshape(-1, 2, 4, 2, 16).transpose(0, 1, 3, 2, 4)
        tables[place, : in_order.size // 8] = np.ascontiguousarray(in_order).reshape(-1).view(np.uint64)

else:
    _FLOATS, _INTS, _BYTES = ir.VectorType(F32, 16), ir.VectorType(I32, 16), ir.VectorType(I8, 16)
    # What rounds a float32 below 2**22 to a whole number, half to even, when it is added: the number has the low bits.
    _ROUNDER = 2.0**23

    class _Row:
        """The projections of a query, 16 at a time."""

        def __init__(self, code: VectorCode, kind: Any, array: Any, query: Any) -> None:
            self._code, self._start = code, code.row(kind, array, query)
            self._n = code.shape(kind, array)[1]

        @property
        def n_chunks(self) -> Any:
            """How many times 16 projections there are, the last ones padded."""
            return self._code.builder.udiv(self._code.builder.add(self._n, I64(15)), I64(16))

        def chunk(self, index: Any) -> Any:
            """Read 16 projections; zeros behind the last."""
            code, builder = self._code, self._code.builder
            n_left = builder.sub(self._n, builder.mul(index, I64(16)))
            return code.load_some(_FLOATS, code.at(self._start, index, 64), n_left)

    def _magnitude(code: VectorCode, values: Any) -> Any:
        bits = code.builder.and_(code.builder.bitcast(values, _INTS), code.filled(_INTS, 0x7FFFFFFF))
        return code.builder.bitcast(bits, _FLOATS)

    def _positive(code: VectorCode, values: Any) -> Any:
        """Return bytes, and 0 in place of negative ones."""
        zeros = code.zeros(values.type)
        return code.builder.select(code.builder.icmp_signed(">", values, zeros), values, zeros)

    @intrinsic
    def largest_magnitude(typing_context: Any, projections: Any, query: Any) -> Any:
        """Return the largest magnitude of the projections of a query, 0 if there are none."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = VectorCode(context, builder)
            row = _Row(code, signature.args[0], *arguments)
            largest = code.variable(code.zeros(_FLOATS))
            with cgutils.for_range(builder, row.n_chunks) as loop:
                sizes = _magnitude(code, row.chunk(loop.index))
                builder.store(code.maximum(sizes, builder.load(largest)), largest)
            return code.largest(builder.load(largest))

        return types.float32(projections, types.int64), generate

    @intrinsic
    def fill_levels(typing_context: Any, projections: Any, query: Any, step: Any, levels: Any) -> Any:
        """Quantise the projections of a query into `levels[query]`; return the sum of the magnitudes."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = VectorCode(context, builder)
            row = _Row(code, signature.args[0], *arguments[:2])
            out, steps = code.row(signature.args[3], arguments[3], arguments[1]), code.splat(arguments[2], 16)
            totals = code.variable(code.zeros(_INTS))
            with cgutils.for_range(builder, row.n_chunks) as loop:
                values = row.chunk(loop.index)
                quotients = builder.fdiv(_magnitude(code, values), steps)
                most = code.filled(_FLOATS, 15.0)
                quotients = builder.select(builder.fcmp_ordered("<", quotients, most), quotients, most)
                rounded = builder.bitcast(builder.fadd(quotients, code.filled(_FLOATS, _ROUNDER)), _INTS)
                magnitudes = builder.and_(rounded, code.filled(_INTS, 15))
                code.add_to(totals, magnitudes)
                is_one = builder.fcmp_ordered(">=", values, code.zeros(_FLOATS))
                signed = builder.select(is_one, magnitudes, builder.sub(code.zeros(_INTS), magnitudes))
                code.store(builder.trunc(signed, _BYTES), code.at(out, loop.index, 16))
            return builder.sext(code.total(builder.load(totals)), I64)

        return types.int64(projections, types.int64, types.float32, levels), generate

    def _n_words(code: VectorCode, kind: Any, levels: Any) -> Any:
        return code.builder.udiv(code.shape(kind, levels)[1], I64(64))

    @intrinsic
    def fill_planes(typing_context: Any, levels: Any, query: Any, planes: Any, place: Any) -> Any:
        """Write the planes of a query to `planes[place]`, (5 * n_words,): five for each word, that of signs first."""
        signature = types.void(levels, types.int64, planes, types.int64)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code, kind = VectorCode(context, builder), ir.VectorType(I8, 64)
            row, out = (code.row(signature.args[i], arguments[i], arguments[i + 1]) for i in (0, 2))
            with cgutils.for_range(builder, _n_words(code, signature.args[0], arguments[0])) as loop:
                values = code.load(kind, code.at(row, loop.index, 64))
                zeros, place = code.zeros(kind), code.at(out, loop.index, 40)
                is_positive = builder.icmp_signed(">", values, zeros)
                code.store(code.bits(is_positive), place)
                magnitudes = builder.select(is_positive, values, builder.sub(zeros, values))
                for plane in range(4):
                    ones = builder.and_(magnitudes, code.filled(kind, 1 << plane))
                    code.store(code.bits(builder.icmp_unsigned("!=", ones, zeros)), code.at(place, 8 + 8 * plane))
            return context.get_dummy_value()

        return signature, generate

    # The entries that bit b of a nibble adds: among the weights of 8 levels if bits are 0, then if they are 1.
    _PLACES = [[4 * nibble + b + 8 * (v >> b & 1) for nibble in (0, 0, 1, 1) for v in range(16)] for b in range(4)]

    @intrinsic
    def fill_tables(typing_context: Any, levels: Any, query: Any, tables: Any, place: Any) -> Any:
        """Write the tables of a query to the bytes of `tables[place]`, (32 * n_words,) words."""
        signature = types.void(levels, types.int64, tables, types.int64)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = VectorCode(context, builder)
            row, out = (code.row(signature.args[i], arguments[i], arguments[i + 1]) for i in (0, 2))
            with cgutils.for_range(builder, _n_words(code, signature.args[0], arguments[0])) as loop:
                for pair in range(4):  # two bytes of a word: nibbles lower, lower, upper, upper
                    values = code.load(_BYTES, code.at(code.at(row, loop.index, 64), 16 * pair))
                    zeros, ones = _positive(code, values), _positive(code, builder.sub(code.zeros(_BYTES), values))
                    first, second = [*range(8), *range(16, 24)], [*range(8, 16), *range(24, 32)]
                    weights = code.pick(zeros, (first + second) * 2, ones)
                    entries = [code.look_up(weights, code.constant(I8, places)) for places in _PLACES]
                    total = builder.add(builder.add(*entries[:2]), builder.add(*entries[2:]))
                    address = code.at(code.at(out, loop.index, 256), 128 * (pair // 2) + 32 * (pair % 2))
                    for half, part in enumerate(code.split(total, 32)):
                        code.store(part, code.at(address, 64 * half))
            return context.get_dummy_value()

        return signature, generate


@njit(cache=True, nogil=True)
def quantise(projections: Floats, levels: Levels, steps: Floats, totals: NDArray[np.int32]) -> None:
    """Quantise the projections of queries, (n_queries, n_bits), by a step for each query.

    Parameters
    ----------
    levels : int8 array of shape (n_queries, 64 * n_words)
        Zeros, which stay behind the last projection.
    steps, totals : float32 and int32 arrays of shape (n_queries,)
        Units of the levels, a fifteenth of the largest magnitude, and sums of their magnitudes.
    """
    for query in range(projections.shape[0]):
        steps[query] = largest_magnitude(projections, query) / np.float32(15)
        step = steps[query] if steps[query] > 0 else np.float32(1)
        totals[query] = fill_levels(projections, query, step, levels)


@njit(cache=True, nogil=True)
def planes_of(levels: Levels) -> Codes:
    """Return the planes of queries, (n_queries, 5 * n_words)."""
    planes = np.empty((levels.shape[0], 5 * (levels.shape[1] // 64)), dtype=np.uint64)
    for query in range(levels.shape[0]):
        fill_planes(levels, query, planes, query)
    return planes


@njit(cache=True, nogil=True)
def tables_of(levels: Levels) -> Codes:
    """Return the tables of queries, (n_queries, 32 * n_words)."""
    tables = np.empty((levels.shape[0], 32 * (levels.shape[1] // 64)), dtype=np.uint64)
    for query in range(levels.shape[0]):
        fill_tables(levels, query, tables, query)
    return tables
