"""Hamming distances of queries to blocks of 16 rows, counted in vector registers.

A block stores its 16 rows word by word: `blocks`, (n_blocks, n_words, 16), has word w of row 16 * b + i at
`blocks[b, w, i]`. A word of all rows fills whole registers, the same word of a query is broadcast to all lanes, and no
sum crosses lanes. How bits are counted depends on what numba compiles for:

- AVX-512 with VPOPCNTDQ: one instruction counts eight words. Full adders in front of it (three-input logic, half the
  counts) were 0.8 times as fast on Zen 5.
- AVX2: look-ups of nibbles. Four queries share the split of a word into nibbles, so each costs six instructions.
- Others: the ones of bytes, one instruction with NEON.

Compiled, the functions are loops of vectors; uncompiled, they are numpy. Both give the same results.
"""

import sys
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils as untyped
from numba.core import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from .._core.typing import Codes
from .jit import njit

cgutils: Any = untyped
distances_within: Any
prefix_distances: Any

_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)


def _target() -> str:
    """Name the way to count bits: "avx512", "avx2", "neon" or "portable"."""
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]
        return "portable"
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    switched_on = {name[1:] for name in features.split(",") if name.startswith("+")}
    if triple.startswith("x86_64") and {"avx512f", "avx512vpopcntdq"} <= switched_on:
        return "avx512"
    if triple.startswith("x86_64") and "avx2" in switched_on:
        return "avx2"
    return "neon" if triple.startswith(("aarch64", "arm64")) else "portable"


TARGET = _target()
_IS_SPLIT = TARGET == "avx2"


@njit(cache=True, nogil=True)
def planes_of(queries: Codes) -> Codes:
    """Return what `distances_within` reads of queries, (n_queries, n_planes, n_words): words, and nibbles if needed."""
    n_queries, n_words = queries.shape
    planes = np.empty((n_queries, 3 if _IS_SPLIT else 1, n_words), dtype=np.uint64)
    for query in range(n_queries):
        for w in range(n_words):
            planes[query, 0, w] = queries[query, w]
            if _IS_SPLIT:
                planes[query, 1, w] = queries[query, w] & _NIBBLES
                planes[query, 2, w] = queries[query, w] >> np.uint64(4) & _NIBBLES
    return planes


if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def distances_within(
        planes: Any, numbers: Any, blocks: Any, block: int, begin: int, end: int, ahead: int, limits: Any, stage: int,
        out: Any, at: int,
    ) -> Any:  # fmt: skip
        """Tell which rows of a block are within limits: bit 16 * i + row for query numbers[i], limits[stage, number].

        Distances are over words [begin, end). If `begin` is not 0, they are added to those in `out[at + i]`. If any row
        is within a limit, `out[at + i]` gets the distances of all rows from query numbers[i]; otherwise it may be left
        as it is. `numbers` is a tuple of 1 or 4. Memory is asked for `ahead` bytes before it is read.
        """
        found = 0
        for i, number in enumerate(numbers):
            differing = blocks[block, begin:end] ^ planes[number, 0, begin:end, np.newaxis]
            before = out[at + i] if begin != 0 else 0
            out[at + i] = before + np.bitwise_count(differing).sum(axis=0, dtype=np.int32)
            near = np.packbits(out[at + i] <= limits[stage, number], bitorder="little")
            found |= int(near.view("<u2")[0]) << (16 * i)
        return np.uint64(found)

    def prefix_distances(
        planes: Any, numbers: Any, blocks: Any, block: int, begin: int, end: int, ahead: int, least: Any, out: Any,
        at: int,
    ) -> None:  # fmt: skip
        """Put the distances of a block's rows from query numbers[i], over words [begin, end), into `out[at + i]`.

        `least[number, block]`, a uint16, gets the least of them.
        """
        for i, number in enumerate(numbers):
            differing = blocks[block, begin:end] ^ planes[number, 0, begin:end, np.newaxis]
            out[at + i] = np.bitwise_count(differing).sum(axis=0, dtype=np.int32)
            least[number, block] = out[at + i].min()

else:
    _BYTE, _HALF, _WORD = ir.IntType(8), ir.IntType(32), ir.IntType(64)
    _BIT_COUNTS = [bin(i).count("1") for i in range(16)]

    class _Emitter:
        """Emits the counting of one block, over runtime numbers of words.

        `lanes` are words of a register; `passes` are runs of registers whose counts are kept at the same time.
        """

        def __init__(self, builder: Any, lanes: int, n_queries: int, n_kept: int) -> None:
            self.builder, self.lanes, self.n_queries = builder, lanes, n_queries
            self.words, self.bytes = ir.VectorType(_WORD, lanes), ir.VectorType(_BYTE, 8 * lanes)
            n_vectors = 16 // lanes
            size = min(n_vectors, max(1, n_kept // n_queries))
            self.passes = [range(first, first + size) for first in range(0, n_vectors, size)]

        def constant(self, value: int) -> Any:
            return ir.Constant(self.words, [value] * self.lanes)

        def broadcast(self, word: Any) -> Any:
            nothing = ir.Constant(self.words, ir.Undefined)
            first = self.builder.insert_element(nothing, word, _HALF(0))
            return self.builder.shuffle_vector(
                first, nothing, ir.Constant(ir.VectorType(_HALF, self.lanes), [0] * self.lanes)
            )

        def call(self, name: str, result: Any, *arguments: Any) -> Any:
            kind = ir.FunctionType(result, [argument.type for argument in arguments])
            function = cgutils.get_or_insert_function(self.builder.module, kind, name)
            return self.builder.call(function, arguments)

        def variables(self, vectors: range) -> list[list[Any]]:
            """Make sums that start at 0, for each query and vector."""
            zero = self.constant(0)
            return [[cgutils.alloca_once_value(self.builder, zero) for _ in vectors] for _ in range(self.n_queries)]

    class _Data:
        """Where rows of a block and words of queries are."""

        def __init__(self, emitter: _Emitter, rows: Any, queries: list[list[Any]], ahead: Any) -> None:
            self._emitter, self._builder = emitter, emitter.builder
            self._rows, self._queries, self._ahead = rows, queries, ahead

        def row_words(self, w: Any, vector: int) -> Any:
            """Read word w of the rows of a vector, and ask for the memory that will be read some time later."""
            builder, size = self._builder, 8 * self._emitter.lanes
            address = builder.add(self._rows, builder.add(builder.shl(w, _WORD(7)), _WORD(size * vector)))
            if size * vector % 64 == 0:
                ahead = builder.inttoptr(builder.add(address, self._ahead), _BYTE.as_pointer())
                kinds = [_BYTE.as_pointer(), _HALF, _HALF, _HALF]
                function = builder.module.declare_intrinsic(
                    "llvm.prefetch", kinds[:1], ir.FunctionType(ir.VoidType(), kinds)
                )
                builder.call(function, [ahead, _HALF(0), _HALF(3), _HALF(1)])
            return builder.load(builder.inttoptr(address, self._emitter.words.as_pointer()), align=8)

        def query_word(self, w: Any, query: int, plane: int) -> Any:
            """Read word w of a plane of a query into all lanes."""
            builder = self._builder
            address = builder.add(self._queries[query][plane], builder.shl(w, _WORD(3)))
            return self._emitter.broadcast(builder.load(builder.inttoptr(address, _WORD.as_pointer())))

    def _add(builder: Any, variable: Any, more: Any) -> None:
        builder.store(builder.add(builder.load(variable), more), variable)

    def _count_words(emitter: _Emitter, data: _Data, n_words: Any) -> list[list[Any]]:
        """Count ones of words (AVX-512)."""
        b, vectors = emitter.builder, emitter.passes[0]
        sums = emitter.variables(vectors)
        with cgutils.for_range(b, n_words) as loop:
            rows = [data.row_words(loop.index, v) for v in vectors]
            for i in range(emitter.n_queries):
                word = data.query_word(loop.index, i, 0)
                for v in vectors:
                    differing = b.xor(rows[v], word)
                    _add(b, sums[i][v], emitter.call(f"llvm.ctpop.v{emitter.lanes}i64", emitter.words, differing))
        return [[b.load(total) for total in of_query] for of_query in sums]

    class _ByteCounter:
        """Counts the ones of bytes, with NEON or whatever LLVM makes of it, and adds bytes up to words."""

        def __init__(self, emitter: _Emitter) -> None:
            self._emitter, self._builder = emitter, emitter.builder

        def prepare(self, row: Any) -> Any:
            """Return what is shared by all queries of a register of rows."""
            return row

        def add_ones(self, total: Any, row: Any, w: Any, query: int, data: _Data) -> Any:
            """Add the ones of each byte in which rows and a query differ."""
            b, e = self._builder, self._emitter
            differing = b.bitcast(b.xor(row, data.query_word(w, query, 0)), e.bytes)
            return b.add(total, e.call(f"llvm.ctpop.v{8 * e.lanes}i8", e.bytes, differing))

        def widen(self, total: Any) -> Any:
            """Sum up the bytes of each word."""
            b, e = self._builder, self._emitter
            if TARGET == "neon":
                for bits in (16, 32, 64):
                    kind = ir.VectorType(ir.IntType(bits), 128 // bits)
                    name = f"llvm.aarch64.neon.uaddlp.v{128 // bits}i{bits}.v{256 // bits}i{bits // 2}"
                    total = e.call(name, kind, total)
                return total
            words = b.bitcast(total, e.words)
            for bits, mask in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0xFFFFFFFF)):
                shifted = b.lshr(words, e.constant(bits))
                words = b.add(b.and_(words, e.constant(mask)), b.and_(shifted, e.constant(mask)))
            return words

    class _NibbleCounter(_ByteCounter):
        """Counts the ones of nibbles by look-ups (AVX2)."""

        def _look_up(self, total: Any, nibbles: Any) -> Any:
            b, e = self._builder, self._emitter
            table = ir.Constant(e.bytes, _BIT_COUNTS * 2)
            return b.add(total, e.call("llvm.x86.avx2.pshuf.b", e.bytes, table, b.bitcast(nibbles, e.bytes)))

        def _split(self, words: Any) -> tuple[Any, Any]:
            b, mask = self._builder, self._emitter.constant(int(_NIBBLES))
            return b.and_(words, mask), b.and_(b.lshr(words, self._emitter.constant(4)), mask)

        def prepare(self, row: Any) -> Any:
            return row if self._emitter.n_queries == 1 else self._split(row)

        def add_ones(self, total: Any, row: Any, w: Any, query: int, data: _Data) -> Any:
            b = self._builder
            if self._emitter.n_queries == 1:
                halves = self._split(b.xor(row, data.query_word(w, query, 0)))
            else:
                halves = tuple(b.xor(row[i], data.query_word(w, query, 1 + i)) for i in range(2))
            return self._look_up(self._look_up(total, halves[0]), halves[1])

        def widen(self, total: Any) -> Any:
            e = self._emitter
            return e.call("llvm.x86.avx2.psad.bw", e.words, total, ir.Constant(e.bytes, [0] * 8 * e.lanes))

    def _count_bytes(emitter: _Emitter, data: _Data, n_words: Any) -> list[list[Any]]:
        """Count ones of bytes, of some registers at a time; bytes are widened every 31 words, before they overflow."""
        b = emitter.builder
        counter = (_NibbleCounter if TARGET == "avx2" else _ByteCounter)(emitter)
        none = ir.Constant(emitter.bytes, [0] * 8 * emitter.lanes)
        totals: list[list[Any]] = [[] for _ in range(emitter.n_queries)]
        for vectors in emitter.passes:
            sums = emitter.variables(vectors)
            counts = [[cgutils.alloca_once(b, emitter.bytes) for _ in vectors] for _ in sums]
            n_chunks = b.udiv(b.add(n_words, _WORD(30)), _WORD(31))
            with cgutils.for_range(b, n_chunks) as chunk:
                first = b.mul(chunk.index, _WORD(31))
                end = b.add(first, _WORD(31))
                end = b.select(b.icmp_signed("<", end, n_words), end, n_words)
                for count in (count for of_query in counts for count in of_query):
                    b.store(none, count)
                with cgutils.for_range(b, end, first) as loop:
                    for at, v in enumerate(vectors):
                        row = counter.prepare(data.row_words(loop.index, v))
                        for i in range(emitter.n_queries):
                            count = counts[i][at]
                            b.store(counter.add_ones(b.load(count), row, loop.index, i, data), count)
                for of_query, counts_of_query in zip(sums, counts, strict=True):
                    for total, count in zip(of_query, counts_of_query, strict=True):
                        _add(b, total, counter.widen(b.load(count)))
            for i, of_query in enumerate(sums):
                totals[i] += [b.load(total) for total in of_query]
        return totals

    class _Call:
        """A call of one of the functions below, whose first arguments are the same."""

        def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
            self._context, self.builder, self._signature, self.arguments = context, builder, signature, arguments
            self.queries = cgutils.unpack_tuple(builder, arguments[1])
            # Lanes of a register, and counts that are kept in registers at the same time.
            lanes, n_kept = {"avx512": (8, 8), "avx2": (4, 8), "neon": (2, 16), "portable": (2, 8)}[TARGET]
            self.emitter = _Emitter(builder, lanes, len(self.queries), n_kept)

        def pointer(self, kind: Any, argument: int, *place: Any) -> Any:
            """Return a pointer to a place of an array argument."""
            return self.builder.inttoptr(self._address(argument, *place), kind.as_pointer())

        def distances(self, ahead: Any) -> list[list[Any]]:
            """Count the bits in which rows and queries differ over words [begin, end)."""
            block, begin, end = self.arguments[3:6]
            planes = [
                [self._address(0, query, _WORD(plane), begin) for plane in range(3 if _IS_SPLIT else 1)]
                for query in self.queries
            ]
            data = _Data(self.emitter, self._address(2, block, begin), planes, ahead)
            count = _count_words if TARGET == "avx512" else _count_bytes
            return count(self.emitter, data, self.builder.sub(end, begin))

        def _address(self, argument: int, *place: Any) -> Any:
            b, kind = self.builder, self._signature.args[argument]
            array = self._context.make_array(kind)(self._context, b, self.arguments[argument])
            address = b.ptrtoint(array.data, _WORD)
            for i, stride in zip(place, cgutils.unpack_tuple(b, array.strides), strict=False):
                address = b.add(address, b.mul(i, stride))
            return address

    @intrinsic
    def distances_within(
        typing_context: Any, planes: Any, numbers: Any, blocks: Any, block: Any, begin: Any, end: Any, ahead: Any,
        limits: Any, stage: Any, out: Any, at: Any,
    ) -> Any:  # fmt: skip
        """Tell which rows of a block are within limits: bit 16 * i + row for query numbers[i]."""
        index = types.int64
        signature = types.uint64(planes, numbers, blocks, index, index, index, index, limits, index, out, index)

        def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
            call = _Call(context, b, signature, arguments)
            e, begin, stage, at = call.emitter, arguments[4], arguments[8], arguments[10]
            halves, mask = ir.VectorType(_HALF, e.lanes), ir.IntType(e.lanes)
            sums = [[cgutils.alloca_once_value(b, total) for total in some] for some in call.distances(arguments[6])]
            places = [
                [call.pointer(halves, 9, b.add(at, _WORD(i)), _WORD(e.lanes * v)) for v in range(len(some))]
                for i, some in enumerate(sums)
            ]
            with b.if_then(b.icmp_unsigned("!=", begin, _WORD(0))):
                for i, some in enumerate(sums):
                    for v, total in enumerate(some):
                        _add(b, total, b.zext(b.load(places[i][v], align=4), e.words))
            # Distances less the limit, less one, are negative where rows are within the limit.
            excesses, every = [], e.constant(0)
            for query, some in zip(call.queries, sums, strict=True):
                limit = e.broadcast(b.load(call.pointer(_WORD, 7, stage, query)))
                excesses.append([b.add(b.xor(limit, e.constant(-1)), b.load(total)) for total in some])
                for excess in excesses[-1]:
                    every = b.or_(every, excess)
            bits = b.bitcast(b.icmp_signed("<", every, e.constant(0)), mask)
            found = cgutils.alloca_once_value(b, _WORD(0))
            with cgutils.if_unlikely(b, b.icmp_unsigned("!=", bits, mask(0))):
                for i, some in enumerate(excesses):
                    for v, excess in enumerate(some):
                        b.store(b.trunc(b.load(sums[i][v]), halves), places[i][v], align=4)
                        near = b.bitcast(b.icmp_signed("<", excess, e.constant(0)), mask)
                        near = b.zext(b.bitreverse(near) if sys.byteorder == "big" else near, _WORD)
                        b.store(b.or_(b.load(found), b.shl(near, _WORD(16 * i + e.lanes * v))), found)
            return b.load(found)

        return signature, generate

    @intrinsic
    def prefix_distances(
        typing_context: Any, planes: Any, numbers: Any, blocks: Any, block: Any, begin: Any, end: Any, ahead: Any,
        least: Any, out: Any, at: Any,
    ) -> Any:  # fmt: skip
        """Put the distances of a block's rows from query numbers[i], over words [begin, end), into `out[at + i]`."""
        index = types.int64
        signature = types.void(planes, numbers, blocks, index, index, index, index, least, out, index)

        def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
            call = _Call(context, b, signature, arguments)
            lanes, at = call.emitter.lanes, arguments[9]
            halves, short = ir.VectorType(_HALF, lanes), ir.IntType(16)
            for i, (query, totals) in enumerate(zip(call.queries, call.distances(arguments[6]), strict=True)):
                parts = [b.trunc(total, halves) for total in totals]
                for v, part in enumerate(parts):
                    b.store(part, call.pointer(halves, 8, b.add(at, _WORD(i)), _WORD(lanes * v)), align=4)
                smallest = parts[0]
                for other in parts[1:]:
                    smallest = b.select(b.icmp_unsigned("<", smallest, other), smallest, other)
                smallest = call.emitter.call(f"llvm.vector.reduce.umin.v{lanes}i32", _HALF, smallest)
                b.store(b.trunc(smallest, short), call.pointer(short, 7, query, arguments[3]))
            return context.get_dummy_value()

        return signature, generate
