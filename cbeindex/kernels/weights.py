"""Weights and estimated distances of blocks of 16 rows: quantised queries against the bits of codes.

Blocks are those of `blocks.py`: word w of row 16 * b + i is `blocks[b, w, i]`. Weights are sums of levels (see
`levels.py`), by look-ups or by planes, and equal integers either way:

- Look-ups: the 128 bytes of a word are transposed in registers, so that byte j of all 16 rows lies side by side; then
  one instruction looks up the nibbles of 16 rows (NEON, SSSE3), of 16 rows in two bytes (AVX2) or in four (AVX-512).
- Planes, AND and POPCNT, where there is no instruction for look-ups. Where VPOPCNTDQ counts eight words at a time they
  take 0.95 to 1.2 times as long as look-ups for one query and 1.05 to 1.55 times for four (Zen 5, 128 to 4,096 bits;
  `python -m benchmarks lookups`), so look-ups serve there too. As AVX2 they take 1.9 to 2.3 and 3.5 to 4.1 times.

`sides` are the tables or planes of queries, whichever `sides_of` makes for the processor. The estimate of a row is

    offset + shift - factor * step * (total - 2 * weight) - margin * spread

in float32, each operation rounded, with the offset, factor and spread of the row, and the others of the query.
"""

import sys
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from .jit import njit
from .levels import Levels, planes_of, tables_of
from .vectorcode import F32, I8, I16, I32, I64, VectorCode, cgutils

weights_by_planes: Any
weights_by_tables: Any
estimates_within: Any


def _bytes_together() -> int:
    """Return how many bytes of a word one instruction looks up for 16 rows, 0 if planes are used."""
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]
        return 0
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    switched_on = {name[1:] for name in features.split(",") if name.startswith("+")}
    if triple.startswith(("aarch64", "arm64")) and sys.byteorder == "little":
        return 1
    if not triple.startswith("x86_64"):
        return 0
    if {"avx512bw", "avx512vbmi"} <= switched_on:
        return 4
    return 2 if "avx2" in switched_on else 1 if "ssse3" in switched_on else 0


TOGETHER = _bytes_together()
LOOKS_UP = TOGETHER > 0

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def weights_by_planes(planes: Any, numbers: Any, blocks: Any, block: int, out: Any) -> None:
        """Put the weights of the rows of a block for each of some queries into `out[:len(numbers)]`.

        `numbers` is a tuple of int, and `out` an int32 array of shape (len(numbers) or more, 16).
        """
        for i, number in enumerate(numbers):
            signs, *others = planes[number].reshape(-1, 5).T
            differing = blocks[block] ^ signs[:, np.newaxis]
            out[i] = 0
            for plane, ones in enumerate(others):
                out[i] += np.bitwise_count(differing & ones[:, np.newaxis]).sum(axis=0, dtype=np.int32) << plane

    def weights_by_tables(tables: Any, numbers: Any, blocks: Any, block: int, out: Any) -> None:
        """Do as `weights_by_planes` by look-ups."""
        n_words = blocks.shape[1]
        codes = blocks[block].astype("<u8", order="C").view(np.uint8).reshape(n_words, 16, 2, 4).transpose(0, 2, 3, 1)
        nibbles = np.stack([codes & 15, codes >> 4], axis=2)  # (n_words, 2, lower or upper, 4, rows)
        for i, number in enumerate(numbers):
            of_query = tables[number].view(np.uint8).reshape(n_words, 2, 2, 4, 16)
            out[i] = np.take_along_axis(of_query, nibbles, axis=4).sum(axis=(0, 1, 2, 3), dtype=np.int32)

    def estimates_within(
        sides: Any, numbers: Any, blocks: Any, block: int, first: int, of_rows: Any, of_queries: Any, totals: Any,
        bounds: Any, out: Any,
    ) -> Any:  # fmt: skip
        """Tell which rows of a block have estimates within bounds: bit 16 * i + row for query numbers[i].

        Parameters
        ----------
        sides, numbers, blocks, block
            As for `weights_by_planes`; `sides` from `sides_of`.
        first : int
            Number of the first row of the block.
        of_rows : tuple of three float32 arrays of shape (n_rows,)
            Offsets, factors, spreads.
        of_queries : tuple of three float32 arrays of shape (n_queries,)
            Steps, shifts, margins.
        totals, bounds : int32 and float32 arrays of shape (n_queries,)
        out : float32 array of shape (len(numbers), 16)
            Gets the estimates if any is within its bound; otherwise it may be left as it is.
        """
        weights = np.empty((len(numbers), 16), dtype=np.int32)
        weights_by_planes(sides, numbers, blocks, block, weights)
        offsets, factors, spreads = (values[first : first + 16] for values in of_rows)
        found, n = 0, len(offsets)
        for i, number in enumerate(numbers):
            step, shift, margin = (values[number] for values in of_queries)
            products = step * (totals[number] - 2 * weights[i, :n]).astype(np.float32)
            out[i, :n] = ((offsets + shift) - factors * products) - margin * spreads
            near = np.flatnonzero(out[i, :n] <= bounds[number])
            found |= sum(1 << (16 * i + int(row)) for row in near)
        return np.uint64(found)

else:
    _ROWS, _FLOATS, _WORDS = ir.VectorType(I32, 16), ir.VectorType(F32, 16), ir.VectorType(I64, 16)
    # Words whose weights a 16-bit sum holds: 64 * 960 < 2**16, with the weights of one byte each for 16 bits.
    _CHUNK = 64
    # Bytes ahead of those that are read, for which memory is asked.
    _AHEAD = 4096

    def _transpose(code: VectorCode, start: Any, together: int) -> list[Any]:
        """Read a word of 16 rows; return its bytes, one of all rows after the other, `together` of them in a vector."""
        if together == 4:
            halves = [code.load(ir.VectorType(I8, 64), code.at(start, 64 * i)) for i in range(2)]
            return [
                code.pick(halves[0], [8 * row + byte for byte in some for row in range(16)], halves[1])
                for some in (range(4), range(4, 8))
            ]
        pairs = [code.load(ir.VectorType(I8, 16), code.at(start, 16 * i)) for i in range(8)]
        return _transpose_lanes(code, pairs) if together == 2 else _every_eighth(code, pairs)

    def _every_eighth(code: VectorCode, vectors: list[Any]) -> list[Any]:
        """Return the vector of every eighth byte, beginning with the first, the second, and so on."""
        if len(vectors) == 1:
            return vectors
        halves = []
        for first in range(2):
            places = range(first, 32, 2)
            halves.append([code.pick(vectors[i], places, vectors[i + 1]) for i in range(0, len(vectors), 2)])
        parts = [_every_eighth(code, half) for half in halves]
        return [part for both in zip(*parts, strict=True) for part in both]

    def _transpose_lanes(code: VectorCode, pairs: list[Any]) -> list[Any]:
        """Transpose by shuffles of single instructions; pairs are vectors of two rows."""
        builder = code.builder

        def interleave(vectors: list[Any], bits: int) -> list[Any]:
            """Interleave elements of vectors, in the lower halves of lanes, and in the upper ones."""
            kind, n = ir.VectorType(ir.IntType(bits), 256 // bits), 128 // bits
            one, other = (builder.bitcast(vector, kind) for vector in vectors)
            return [
                code.pick(one, [lane + first + i // 2 + 2 * n * (i % 2) for lane in (0, n) for i in range(n)], other)
                for first in (0, n // 2)
            ]

        rows = [code.join(pairs[i], pairs[i + 4]) for i in range(4)]  # rows 2 i, 2 i + 1 | 8 + 2 i, 9 + 2 i
        alternating = [lane + i // 2 + 8 * (i % 2) for lane in (0, 16) for i in range(16)]
        rows = [code.pick(row, alternating) for row in rows]
        fours = [interleave(rows[:2], 16), interleave(rows[2:], 16)]  # of rows 0 - 3 | 8 - 11 and 4 - 7 | 12 - 15
        eights = [vector for both in zip(*fours, strict=True) for vector in interleave(list(both), 32)]
        words = ir.VectorType(I64, 4)
        in_order = [code.pick(builder.bitcast(vector, words), [0, 2, 1, 3]) for vector in eights]
        return [builder.bitcast(vector, ir.VectorType(I8, 32)) for vector in in_order]

    def _look_up(code: VectorCode, codes: list[Any], table: Any, together: int) -> list[Any]:
        """Return sums of four entries each, as bytes: all those of a word, given its nibbles."""
        builder, entries = code.builder, []
        for i, nibbles in enumerate(codes):
            byte, is_upper = i // 2 * together, i % 2
            place = 128 * (byte // 4) + 64 * is_upper + 16 * (byte % 4)
            entries.append(code.look_up(code.load(nibbles.type, code.at(table, place)), nibbles))
        return [
            builder.add(builder.add(*entries[i : i + 2]), builder.add(*entries[i + 2 : i + 4]))
            for i in range(0, len(entries), 4)
        ]

    def _weigh_by_tables(code: VectorCode, rows: Any, n_words: Any, tables: list[Any], together: int) -> list[Any]:
        """Return the weights of 16 rows, as int32, for each of some queries.

        Two neighbouring rows share a 16-bit sum. A second sum of the odd ones alone tells them apart at the end.
        """
        builder, count = code.builder, 8 * together
        pairs, eight = ir.VectorType(I16, count), code.constant(I16, [8] * count)
        totals = [code.variable(code.zeros(_ROWS)) for _ in tables]
        n_chunks = builder.udiv(builder.add(n_words, I64(_CHUNK - 1)), I64(_CHUNK))
        with cgutils.for_range(builder, n_chunks) as chunks:
            begin = builder.mul(chunks.index, I64(_CHUNK))
            end = builder.add(begin, I64(_CHUNK))
            end = builder.select(builder.icmp_unsigned("<", end, n_words), end, n_words)
            both, odd = ([code.variable(code.zeros(pairs)) for _ in tables] for _ in range(2))
            for variable in both + odd:
                builder.store(code.zeros(pairs), variable)
            with cgutils.for_range(builder, end, begin) as loop:
                codes, start = [], code.at(rows, loop.index, 128)
                for i in range(2):
                    code.prefetch(code.at(start, _AHEAD + 64 * i))
                for vector in _transpose(code, start, together):
                    codes.append(builder.and_(vector, code.filled(vector.type, 15)))
                    codes.append(builder.lshr(vector, code.filled(vector.type, 4)))
                for i, table in enumerate(tables):
                    for found in _look_up(code, codes, code.at(table, loop.index, 256), together):
                        found = builder.bitcast(found, pairs)
                        code.add_to(both[i], found)
                        code.add_to(odd[i], builder.lshr(found, eight))
            for i, total in enumerate(totals):
                of_odd = builder.load(odd[i])
                of_even = builder.sub(builder.load(both[i]), builder.shl(of_odd, eight))
                for part, other in zip(code.split(of_even, 8), code.split(of_odd, 8), strict=True):
                    in_order = code.pick(part, [k // 2 + 8 * (k % 2) for k in range(16)], other)
                    code.add_to(total, builder.zext(in_order, _ROWS))
        return [builder.load(total) for total in totals]

    def _weigh_by_planes(code: VectorCode, rows: Any, n_words: Any, planes: list[Any]) -> list[Any]:
        """Return the weights of 16 rows, as int32, for each of some queries."""
        builder, weights = code.builder, []
        for of_query in planes:
            counts = [code.variable(code.zeros(_WORDS)) for _ in range(4)]
            with cgutils.for_range(builder, n_words) as loop:
                words = code.load(_WORDS, code.at(rows, loop.index, 128))
                place = code.at(of_query, loop.index, 40)
                read = [code.splat(code.load(I64, code.at(place, 8 * i)), 16) for i in range(5)]
                differing = builder.xor(words, read[0])
                for count, plane in zip(counts, read[1:], strict=True):
                    code.add_to(count, code.call("llvm.ctpop.v16i64", _WORDS, builder.and_(differing, plane)))
            total = code.zeros(_WORDS)
            for i, count in enumerate(counts):
                total = builder.add(total, builder.shl(builder.load(count), code.filled(_WORDS, i)))
            weights.append(builder.trunc(total, _ROWS))
        return weights

    def _weigh(code: VectorCode, signature: Any, arguments: Any, together: int) -> list[Any]:
        """Return the weights of the rows of a block: of arguments `sides`, `numbers`, `blocks` and `block`."""
        numbers = cgutils.unpack_tuple(code.builder, arguments[1])
        sides = [code.row(signature.args[0], arguments[0], number) for number in numbers]
        rows = code.row(signature.args[2], arguments[2], arguments[3])
        n_words = code.shape(signature.args[2], arguments[2])[1]
        if together == 0:
            return _weigh_by_planes(code, rows, n_words, sides)
        return _weigh_by_tables(code, rows, n_words, sides, together)

    def _define(together: int, summary: str) -> Any:
        """Make an intrinsic for the weights of a block."""

        def typed(typing_context: Any, sides: Any, numbers: Any, blocks: Any, block: Any, out: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                code = VectorCode(context, builder)
                for i, weights in enumerate(_weigh(code, signature, arguments, together)):
                    code.store(weights, code.row(signature.args[4], arguments[4], I64(i)))
                return context.get_dummy_value()

            return types.void(sides, numbers, blocks, types.int64, out), generate

        typed.__doc__ = summary
        return intrinsic(typed)

    weights_by_planes = _define(0, "Put the weights of the rows of a block for each of some queries into `out`.")
    weights_by_tables = _define(TOGETHER or 1, "Do as `weights_by_planes` by look-ups.")

    class _Estimates:
        """The distances of a block's rows to queries, from weights."""

        def __init__(self, code: VectorCode, signature: Any, arguments: Any) -> None:
            self._code, self._signature, self._arguments = code, signature, arguments
            first, builder = arguments[4], code.builder
            kinds, arrays = signature.args[5].types, cgutils.unpack_tuple(builder, arguments[5])
            self._n_left = builder.sub(code.shape(kinds[0], arrays[0])[0], first)
            self._offsets, self._factors, self._spreads = (
                code.load_some(_FLOATS, code.at(code.address(kind, array), first, 4), self._n_left)
                for kind, array in zip(kinds, arrays, strict=True)
            )

        def exists(self) -> Any:
            """Flag the rows that exist."""
            code, builder = self._code, self._code.builder
            n_left = builder.select(builder.icmp_signed("<", self._n_left, I64(16)), self._n_left, I64(16))
            return builder.icmp_signed("<", code.constant(I32, range(16)), code.splat(builder.trunc(n_left, I32), 16))

        def of_query(self, number: Any, weights: Any) -> tuple[Any, Any]:
            """Return the estimates of a query, and the flags of those within its bound."""
            code, builder = self._code, self._code.builder
            kinds, arrays = self._signature.args[6].types, cgutils.unpack_tuple(builder, self._arguments[6])
            step, shift, margin = (
                self._value(kind, array, number, F32) for kind, array in zip(kinds, arrays, strict=True)
            )
            total = self._value(self._signature.args[7], self._arguments[7], number, I32)
            bound = self._value(self._signature.args[8], self._arguments[8], number, F32)
            doubled = builder.shl(weights, code.filled(_ROWS, 1))
            products = builder.fmul(step, builder.sitofp(builder.sub(total, doubled), _FLOATS))
            near = builder.fsub(builder.fadd(self._offsets, shift), builder.fmul(self._factors, products))
            near = builder.fsub(near, builder.fmul(margin, self._spreads))
            return near, builder.fcmp_ordered("<=", near, bound)

        def _value(self, kind: Any, array: Any, number: Any, element: Any) -> Any:
            """Read the value of a query into all lanes."""
            code = self._code
            return code.splat(code.load(element, code.at(code.address(kind, array), number, 4)), 16)

    @intrinsic
    def estimates_within(
        typing_context: Any, sides: Any, numbers: Any, blocks: Any, block: Any, first: Any, of_rows: Any,
        of_queries: Any, totals: Any, bounds: Any, out: Any,
    ) -> Any:  # fmt: skip
        """Tell which rows of a block have estimates within bounds: bit 16 * i + row for query numbers[i]."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = VectorCode(context, builder)
            estimates = _Estimates(code, signature, arguments)
            weights = _weigh(code, signature, arguments, TOGETHER)
            numbers = cgutils.unpack_tuple(builder, arguments[1])
            near = [estimates.of_query(*pair) for pair in zip(numbers, weights, strict=True)]
            any_of_them = near[0][1]
            for _, flags in near[1:]:
                any_of_them = builder.or_(any_of_them, flags)
            found = code.variable(I64(0))
            with cgutils.if_unlikely(builder, builder.icmp_unsigned("!=", code.bits(any_of_them), I64(0))):
                exists = estimates.exists()
                for i, (values, flags) in enumerate(near):
                    code.store(values, code.row(signature.args[9], arguments[9], I64(i)))
                    bits = code.bits(builder.and_(flags, exists))
                    builder.store(builder.or_(builder.load(found), builder.shl(bits, I64(16 * i))), found)
            return builder.load(found)

        index = types.int64
        return types.uint64(sides, numbers, blocks, index, index, of_rows, of_queries, totals, bounds, out), generate


@njit(cache=True, nogil=True)
def sides_of(levels: Levels) -> Any:
    """Return the tables of queries if there are look-ups, otherwise the planes."""
    if LOOKS_UP:
        return tables_of(levels)
    return planes_of(levels)
