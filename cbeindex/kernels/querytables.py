"""Tables of a query for the look-ups of `lookup.py`, from its projections.

A level l of a row's code has the value 2 l - 1 (1 bit a dimension) or l - (2**bits - 1) / 2 (2 and 4 bits). So a bit of
a nibble adds w / 2 if it is set and -w / 2 if it is not, with w = 2 z for 1 bit a dimension, w = z and 2 z for the bits
of 2, and w = z, 2 z, 4 z and 8 z for those of 4. With |w| / 2 more for each bit, it adds max(w, 0) or max(-w, 0), and
no sum is negative:

    <z, values> = step * sum of entries + offset,    step = widest / 127,    offset = - sum of |w| / 2

where `widest` is the largest sum of |w| over a nibble. An entry is its nibble's sum divided by the step, rounded half
up. All nibbles share one step. An entry's error is at most step / 2; precise tables have 16,383 in place of 127.

All float32 operations are single ones in a fixed order, so that every processor makes the same tables. The sum of |w|
over a nibble must be a finite float32.
"""

from typing import Any, TypeAlias

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from .._core.typing import Floats
from .jit import njit
from .vectorcode import F32, I32, I64, VectorCode, cgutils

Tables: TypeAlias = NDArray[np.uint8]
"""Entries of a query, 16 for each nibble."""

measure_nibbles: Any
fill_nibbles: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def _weights(projections: Any, bits: int) -> Any:
        """Return what the bits of nibbles weigh, (n_nibbles, 4), n_nibbles a multiple of 16; a bit of 1 weighs z."""
        per_nibble = 4 // bits
        padded = np.zeros(-(-projections.size // (16 * per_nibble)) * 16 * per_nibble, dtype=np.float32)
        padded[: projections.size] = projections
        powers = np.float32(2) ** np.arange(bits, dtype=np.float32)
        return (padded[:, np.newaxis] * powers).reshape(-1, 4)

    def _add_up(sums: Any) -> Any:
        while sums.size > 1:
            half = sums.size // 2
            sums = sums[:half] + sums[half:]
        return sums[0]

    def measure_nibbles(projections: Any, bits: int) -> Any:
        """Return the largest, and the total, of the sums of magnitudes of the projections of each nibble."""
        sizes = np.abs(_weights(projections, bits)[:, ::bits])
        while sizes.shape[1] > 1:
            sizes = sizes[:, 0::2] + sizes[:, 1::2]
        totals = np.zeros(16, dtype=np.float32)
        for chunk in sizes.reshape(-1, 16):
            totals = totals + chunk
        return sizes.max(initial=np.float32(0)), _add_up(totals)

    def fill_nibbles(projections: Any, bits: int, scale: Any, is_precise: bool, tables: Any, at: int) -> None:
        """Write the entries of all nibbles, 16 nibbles at a time; a bit of 1 weighs a projection times `scale`.

        With `is_precise`, the upper 7 bits of entries of 14; the lower ones go to place `at` and behind.
        """
        weights = _weights(projections * np.float32(scale), bits)
        add = [np.maximum(sign * weights, np.float32(0)) for sign in (np.float32(-1), np.float32(1))]
        for entry in range(16):
            parts = [add[entry >> i & 1][:, i] for i in range(4)]
            lower = (parts[0] + parts[1]) + np.float32(0.5)
            sums = (lower + (parts[2] + parts[3])).astype(np.int32)
            tables[entry : 16 * len(sums) : 16] = sums >> 7 if is_precise else sums
            if is_precise:
                tables[at + entry : at + 16 * len(sums) : 16] = sums & 127

else:
    tuple_of: Any = types.UniTuple
    _FLOATS, _INTS = ir.VectorType(F32, 16), ir.VectorType(I32, 16)

    class _Nibbles:
        """The projections of a query, 16 nibbles at a time."""

        def __init__(self, code: VectorCode, start: Any, n: Any, bits: int) -> None:
            self._code, self._start, self._n = code, start, n
            self._per_nibble = 4 // bits
            self._size = 16 * self._per_nibble

        @property
        def n_chunks(self) -> Any:
            """How many times 16 nibbles there are, the last ones padded."""
            builder = self._code.builder
            return builder.udiv(builder.add(self._n, I64(self._size - 1)), I64(self._size))

        def chunk(self, index: Any) -> list[Any]:
            """Return the first projections of 16 nibbles, then the second ones, and so on; zeros behind the last."""
            code, builder = self._code, self._code.builder
            kind = ir.VectorType(F32, self._size)
            first = builder.mul(index, I64(self._size))
            n_left = builder.sub(self._n, first)
            address = code.at(self._start, first, 4)
            read = cgutils.alloca_once(builder, kind)
            with builder.if_else(builder.icmp_unsigned("<", n_left, I64(self._size))) as (is_last, is_full):
                with is_last:
                    builder.store(code.padded(address, n_left, kind), read)
                with is_full:
                    builder.store(code.load(kind, address), read)
            values = builder.load(read)
            return [code.pick(values, range(i, self._size, self._per_nibble)) for i in range(self._per_nibble)]

    def _magnitude(code: VectorCode, values: Any) -> Any:
        bits = code.builder.and_(code.builder.bitcast(values, _INTS), code.filled(_INTS, 0x7FFFFFFF))
        return code.builder.bitcast(bits, values.type)

    def _positive(code: VectorCode, values: Any) -> Any:
        return code.maximum(values, code.zeros(values.type))

    @intrinsic(prefer_literal=True)
    def measure_nibbles(typing_context: Any, projections: Any, bits: Any) -> Any:
        """Return the largest, and the total, of the sums of magnitudes of the projections of each nibble."""
        if not isinstance(bits, types.IntegerLiteral):
            return None
        result = tuple_of(types.float32, 2)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = VectorCode(context, builder)
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            nibbles = _Nibbles(code, builder.ptrtoint(array.data, I64), array.nitems, bits.literal_value)
            largest, totals = (code.variable(code.zeros(_FLOATS)) for _ in range(2))
            with cgutils.for_range(builder, nibbles.n_chunks) as loop:
                sizes = [_magnitude(code, values) for values in nibbles.chunk(loop.index)]
                while len(sizes) > 1:
                    sizes = [builder.fadd(*sizes[i : i + 2]) for i in range(0, len(sizes), 2)]
                builder.store(code.maximum(sizes[0], builder.load(largest)), largest)
                code.add_to(totals, sizes[0])
            values = code.largest(builder.load(largest)), code.total(builder.load(totals))
            return context.make_tuple(builder, result, values)

        return result(projections, bits), generate

    @intrinsic(prefer_literal=True)
    def fill_nibbles(
        typing_context: Any, projections: Any, bits: Any, scale: Any, is_precise: Any, tables: Any, at: Any
    ) -> Any:
        """Write the entries of all nibbles, 16 nibbles at a time; a bit of 1 weighs a projection times `scale`."""
        if not isinstance(bits, types.IntegerLiteral) or not isinstance(is_precise, types.BooleanLiteral):
            return None

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = VectorCode(context, builder)
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            nibbles = _Nibbles(code, builder.ptrtoint(array.data, I64), array.nitems, bits.literal_value)
            out, scales = code.address(signature.args[4], arguments[4]), code.splat(arguments[2], 16)
            with cgutils.for_range(builder, nibbles.n_chunks) as loop:
                scaled = [builder.fmul(values, scales) for values in nibbles.chunk(loop.index)]
                entries = _entries(code, _bit_weights(code, scaled, bits.literal_value))
                place = code.at(out, loop.index, 256)
                if is_precise.literal_value:
                    lower = [builder.and_(entry, code.filled(_INTS, 127)) for entry in entries]
                    code.store(_by_nibble(code, lower), builder.add(place, arguments[5]))
                    entries = [builder.lshr(entry, code.filled(_INTS, 7)) for entry in entries]
                code.store(_by_nibble(code, entries), place)
            return context.get_dummy_value()

        return types.void(projections, bits, types.float32, is_precise, tables, types.int64), generate

    def _bit_weights(code: VectorCode, scaled: list[Any], bits: int) -> list[Any]:
        """Return what the four bits of 16 nibbles weigh."""
        factors = [code.filled(_FLOATS, float(2**i)) for i in range(bits)]
        return [code.builder.fmul(values, factor) for values in scaled for factor in factors]

    def _entries(code: VectorCode, weights: list[Any]) -> list[Any]:
        """Return entry 0 of 16 nibbles, then entry 1, and so on, rounded half up."""
        builder = code.builder
        zeros = code.zeros(_FLOATS)
        add = [(_positive(code, builder.fsub(zeros, weight)), _positive(code, weight)) for weight in weights]
        half = code.filled(_FLOATS, 0.5)
        lower = [builder.fadd(builder.fadd(add[0][i & 1], add[1][i >> 1]), half) for i in range(4)]
        upper = [builder.fadd(add[2][i & 1], add[3][i >> 1]) for i in range(4)]
        return [builder.fptosi(builder.fadd(lower[i & 3], upper[i >> 2]), _INTS) for i in range(16)]

    def _by_nibble(code: VectorCode, entries: list[Any]) -> Any:
        """Turn 16 entries of 16 nibbles into 16 bytes for each nibble (as 64 words of four bytes)."""
        builder = code.builder
        words = []
        for i in range(0, 16, 4):
            shifted = [builder.shl(entries[i + j], code.filled(_INTS, 8 * j)) for j in range(4)]
            words.append(builder.or_(builder.or_(shifted[0], shifted[1]), builder.or_(shifted[2], shifted[3])))
        places = [16 * word + nibble for nibble in range(16) for word in range(4)]
        return code.pick(code.join(*words[:2]), places, code.join(*words[2:]))


@njit(cache=True, nogil=True)
def fill_tables(projections: Floats, bits: int, is_precise: bool, tables: Tables) -> tuple[float, float]:
    """Make the tables of a query for codes of 1, 2 or 4 bits a dimension; return step and offset.

    The product of the projections with the values of a row's levels is step * sum + offset, with the sum that
    `lookup.sum_block` makes of these tables, or `lookup.sum_block_precisely`.

    Parameters
    ----------
    projections : float32 array of shape (n,)
    tables : uint8 array
        Of size `room_for_tables(n, bits)`, twice that if precise. Nibbles behind the last projection get zeros.
    """
    if bits == 1:
        largest, total = measure_nibbles(projections, 1)
        levels = np.float32(2)
    elif bits == 2:
        largest, total = measure_nibbles(projections, 2)
        levels = np.float32(3)
    else:
        largest, total = measure_nibbles(projections, 4)
        levels = np.float32(15)
    widest = max(largest * levels, np.float32(1e-30))
    most = np.float32(16383) if is_precise else np.float32(127)
    scale, half = most / widest, tables.size // 2
    if bits == 1 and is_precise:
        fill_nibbles(projections, 1, scale * np.float32(2), True, tables, half)
    elif bits == 1:
        fill_nibbles(projections, 1, scale * np.float32(2), False, tables, half)
    elif bits == 2 and is_precise:
        fill_nibbles(projections, 2, scale, True, tables, half)
    elif bits == 2:
        fill_nibbles(projections, 2, scale, False, tables, half)
    elif is_precise:
        fill_nibbles(projections, 4, scale, True, tables, half)
    else:
        fill_nibbles(projections, 4, scale, False, tables, half)
    return widest / most, -(total * levels * np.float32(0.5))


def room_for_tables(n: int, bits: int) -> int:
    """Return how many bytes the tables of `n` projections take, 16 for each nibble, in whole chunks of 16 nibbles."""
    return -(-n * bits // 64) * 256
