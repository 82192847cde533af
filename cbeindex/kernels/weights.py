"""Weights of blocks of 16 rows: quantised queries against the bits of codes.

Blocks are those of `blocks.py`: word w of row 16 * b + i is `blocks[b, w, i]`. Weights are sums of levels (see
`levels.py`), by look-ups or by planes, and equal integers either way:

- Look-ups: the 128 bytes of a word are transposed in registers, so that byte j of all 16 rows lies side by side; then
  one instruction looks up the nibbles of 16 rows (NEON, SSSE3), of 16 rows in two bytes (AVX2) or in four (AVX-512).
- Planes, AND and POPCNT, where there is no instruction for look-ups. Where VPOPCNTDQ counts eight words at a time they
  take 0.95 to 1.2 times as long as look-ups for one query and 1.05 to 1.55 times for four (Zen 5, 128 to 4,096 bits;
  `python -m benchmarks lookups`), so look-ups serve there too. As AVX2 they take 1.9 to 2.3 and 3.5 to 4.1 times.

Blocks that many queries read are unfolded once, where that pays: `unfold` writes their nibbles in the order in which
they are looked up, 256 bytes for each word. As AVX2, queries in groups of four then take 53, 91 and 115 us in place of
72, 126 and 164 for 60,000 codes of 384, 768 and 1,024 bits (Zen 5).

`prepared` are the tables or planes of queries, whichever `prepare` makes for the processor.
"""

import sys
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from .jit import njit
from .levels import Levels, planes_of, tables_of
from .target import compiled_target
from .vectorcode import I8, I16, I32, I64, VectorCode, cgutils

weights_by_planes: Any
weights_by_tables: Any
unfold: Any


def _bytes_together() -> int:
    """Return how many bytes of a word one instruction looks up for 16 rows, 0 if planes are used."""
    target = compiled_target()
    if target.is_arm and sys.byteorder == "little":
        return 1
    if target.has("avx512bw", "avx512vbmi"):
        return 4
    return 2 if target.has("avx2") else int(target.has("ssse3"))


TOGETHER = _bytes_together()
LOOKS_UP = TOGETHER > 0
UNFOLDS = 0 < TOGETHER < 4
"""Whether blocks are unfolded for groups of queries. AVX-512 transposes them faster than it reads them unfolded."""

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
        """Do as `weights_by_planes` by look-ups, in blocks or in unfolded ones, uint8 (any, 256 * n_words)."""
        nibbles = (blocks[block] if blocks.ndim == 2 else _nibbles_of(blocks[block])).reshape(-1, 2, 2, 4, 16)
        for i, number in enumerate(numbers):
            of_query = tables[number].view(np.uint8).reshape(nibbles.shape)
            out[i] = np.take_along_axis(of_query, nibbles, axis=4).sum(axis=(0, 1, 2, 3), dtype=np.int32)

    def unfold(blocks: Any, block: int, unfolded: Any, place: int) -> None:
        """Write the nibbles of a block to `unfolded[place]`, in the order of tables."""
        unfolded[place] = _nibbles_of(blocks[block]).reshape(-1)

    def _nibbles_of(words: Any) -> Any:
        codes = words.astype("<u8", order="C").view(np.uint8).reshape(len(words), 16, 2, 4).transpose(0, 2, 3, 1)
        return np.stack([codes & 15, codes >> 4], axis=2)  # (n_words, 2, lower or upper, 4, rows)

else:
    _ROWS, _WORDS = ir.VectorType(I32, 16), ir.VectorType(I64, 16)
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

    def _place(number: int, together: int) -> int:
        """Return where the table of nibbles `number` of a word begins, and the nibbles themselves where unfolded."""
        byte, is_upper = number // 2 * together, number % 2
        return 128 * (byte // 4) + 64 * is_upper + 16 * (byte % 4)

    def _look_up(code: VectorCode, nibbles: list[Any], first: int, table: Any, together: int) -> Any:
        """Return the sums, as bytes, of the entries of four nibbles, the first of which has a number in its word."""
        builder, entries = code.builder, []
        for number, places in enumerate(nibbles, first):
            read = code.load(places.type, code.at(table, _place(number, together)))
            entries.append(code.look_up(read, places))
        return builder.add(builder.add(*entries[:2]), builder.add(*entries[2:]))

    class _Word:
        """A word of 16 rows, as vectors of nibbles."""

        def __init__(self, code: VectorCode, rows: Any, index: Any, together: int, is_unfolded: bool) -> None:
            self._code, self._together = code, together
            self.n_nibbles = 16 // together
            self._start = code.at(rows, index, 256 if is_unfolded else 128)
            self._vectors = None
            if not is_unfolded:
                for i in range(2):
                    code.prefetch(code.at(self._start, _AHEAD + 64 * i))
                self._vectors = _transpose(code, self._start, together)

        def nibbles(self, number: int) -> Any:
            """Return the nibbles with this number: lower and upper ones of a vector of bytes have numbers in turn."""
            code, builder = self._code, self._code.builder
            if self._vectors is None:
                kind = ir.VectorType(I8, 16 * self._together)
                return code.load(kind, code.at(self._start, _place(number, self._together)))
            vector = self._vectors[number // 2]
            if number % 2:
                return builder.lshr(vector, code.filled(vector.type, 4))
            return builder.and_(vector, code.filled(vector.type, 15))

    def _weigh_by_tables(
        code: VectorCode, rows: Any, n_words: Any, tables: list[Any], together: int, is_unfolded: bool = False
    ) -> list[Any]:
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
                word = _Word(code, rows, loop.index, together, is_unfolded)
                for first in range(0, word.n_nibbles, 4):
                    nibbles = [word.nibbles(number) for number in range(first, first + 4)]
                    for i, table in enumerate(tables):
                        found = _look_up(code, nibbles, first, code.at(table, loop.index, 256), together)
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

    def weigh(code: VectorCode, signature: Any, arguments: Any, together: int) -> list[Any]:
        """Return the weights of the rows of a block: of arguments `prepared`, `numbers`, `blocks` and `block`."""
        numbers, kind = cgutils.unpack_tuple(code.builder, arguments[1]), signature.args[2]
        prepared = [code.row(signature.args[0], arguments[0], number) for number in numbers]
        rows, is_unfolded = code.row(kind, arguments[2], arguments[3]), kind.ndim == 2
        n_words = code.shape(kind, arguments[2])[1]
        if is_unfolded:
            n_words = code.builder.udiv(n_words, I64(256))
        if together == 0:
            return _weigh_by_planes(code, rows, n_words, prepared)
        return _weigh_by_tables(code, rows, n_words, prepared, together, is_unfolded)

    def _define(together: int, summary: str) -> Any:
        """Make an intrinsic for the weights of a block."""

        def typed(typing_context: Any, prepared: Any, numbers: Any, blocks: Any, block: Any, out: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                code = VectorCode(context, builder)
                for i, weights in enumerate(weigh(code, signature, arguments, together)):
                    code.store(weights, code.row(signature.args[4], arguments[4], I64(i)))
                return context.get_dummy_value()

            return types.void(prepared, numbers, blocks, types.int64, out), generate

        typed.__doc__ = summary
        return intrinsic(typed)

    weights_by_planes = _define(0, "Put the weights of the rows of a block for each of some queries into `out`.")
    weights_by_tables = _define(TOGETHER or 1, "Do as `weights_by_planes` by look-ups.")

    @intrinsic
    def unfold(typing_context: Any, blocks: Any, block: Any, unfolded: Any, place: Any) -> Any:
        """Write the nibbles of a block to `unfolded[place]`, in the order of tables."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code, together = VectorCode(context, builder), TOGETHER or 1
            rows, out = (code.row(signature.args[i], arguments[i], arguments[i + 1]) for i in (0, 2))
            with cgutils.for_range(builder, code.shape(signature.args[0], arguments[0])[1]) as loop:
                word, start = _Word(code, rows, loop.index, together, False), code.at(out, loop.index, 256)
                for number in range(word.n_nibbles):
                    code.store(word.nibbles(number), code.at(start, _place(number, together)))
            return context.get_dummy_value()

        return types.void(blocks, types.int64, unfolded, types.int64), generate


@njit(cache=True, nogil=True)
def prepare(levels: Levels) -> Any:
    """Return the tables of queries if there are look-ups, otherwise the planes."""
    if LOOKS_UP:
        return tables_of(levels)
    return planes_of(levels)
