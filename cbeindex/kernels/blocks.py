"""Hamming distances of queries to blocks of 16 rows, counted in vector registers.

A block stores its 16 rows word by word: `blocks`, (n_blocks, n_words, 16), has word w of row 16 * b + i at
`blocks[b, w, i]`. A half of a block is 8 rows, of which a word fills a cache line: half 2 * b has the first rows of
block b, half 2 * b + 1 the last. `bitcounts.py` counts bits.

Compiled, the functions are loops of vectors; uncompiled, they are numpy. Both give the same results.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from .._core.typing import Codes
from . import bitcounts
from .jit import njit
from .vectorcode import I16, I32, I64, VectorCode, cgutils

distances_within: Any
half_within: Any
prefix_distances: Any

_IS_SPLIT = bitcounts.IS_SPLIT
_NIBBLES = np.uint64(bitcounts.NIBBLES)


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

    def _count(planes: Any, number: int, rows: Any, begin: int, end: int) -> Any:
        differing = rows[begin:end] ^ planes[number, 0, begin:end, np.newaxis]
        return np.bitwise_count(differing).sum(axis=0, dtype=np.int32)

    def _within(distances: Any, limit: int) -> int:
        return sum(1 << i for i, is_near in enumerate(distances <= limit) if is_near)

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
            before = out[at + i] if begin != 0 else 0
            out[at + i] = before + _count(planes, number, blocks[block], begin, end)
            found |= _within(out[at + i], limits[stage, number]) << (16 * i)
        return np.uint64(found)

    def half_within(
        planes: Any, numbers: Any, blocks: Any, half: int, begin: int, end: int, ahead: int, limits: Any, stage: int,
        out: Any, at: int,
    ) -> Any:  # fmt: skip
        """Do as `distances_within` for the 8 rows of a half of a block, and one query."""
        (number,), side = numbers, half % 2 * 8
        rows = blocks[half // 2, :, side : side + 8]
        out[at] = (out[at] if begin != 0 else 0) + _count(planes, number, rows, begin, end)
        return np.uint64(_within(out[at], limits[stage, number]))

    def prefix_distances(
        planes: Any, numbers: Any, blocks: Any, block: int, begin: int, end: int, ahead: int, least: Any, out: Any,
        at: int,
    ) -> None:  # fmt: skip
        """Put the distances of a block's rows from query numbers[i], over words [begin, end), into `out[at + i]`.

        `least[number, half]`, a uint16, gets the least of each half of the block. Distances are below 2**16.
        """
        for i, number in enumerate(numbers):
            out[at + i] = _count(planes, number, blocks[block], begin, end)
            least[number, 2 * block : 2 * block + 2] = out[at + i].reshape(2, 8).min(axis=1)

else:

    class _Call:
        """A call of one of the functions below, whose first arguments are the same."""

        def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any, n_rows: int = 16) -> None:
            self.code, self._kinds, self._arguments, self._n_rows = (
                VectorCode(context, builder), signature.args, arguments, n_rows,
            )  # fmt: skip
            self.numbers = cgutils.unpack_tuple(builder, arguments[1])

        def place(self, argument: int, *index: Any) -> Any:
            """Return where an element of an array argument lies."""
            code, kind, array = self.code, self._kinds[argument], self._arguments[argument]
            address = code.address(kind, array)
            for i, stride in zip(index, code.strides(kind, array), strict=False):
                address = code.builder.add(address, code.builder.mul(i, stride))
            return address

        def distances(self) -> list[list[Any]]:
            """Count the bits in which rows and queries differ over words [begin, end)."""
            builder, (block, begin, end, ahead) = self.code.builder, self._arguments[3:7]
            if self._n_rows == 16:
                rows = self.place(2, block, begin)
            else:
                side = builder.shl(builder.and_(block, I64(1)), I64(3))
                rows = self.place(2, builder.lshr(block, I64(1)), begin, side)
            n_planes = 3 if _IS_SPLIT else 1
            queries = [
                [self.place(0, number, I64(plane), begin) for plane in range(n_planes)] for number in self.numbers
            ]
            n_words = builder.sub(end, begin)
            return bitcounts.count(self.code, bitcounts.Differing(rows, self._n_rows, queries, n_words, ahead))

        def within(self) -> Any:
            """Add distances to those in `out` and compare them with limits: flags of all rows of all queries."""
            b, code, (begin, stage, at) = self.code.builder, self.code, (self._arguments[i] for i in (4, 8, 10))
            sums = [[code.variable(total) for total in of_query] for of_query in self.distances()]
            lanes = b.load(sums[0][0]).type.count
            halves, words = ir.VectorType(I32, lanes), ir.VectorType(I64, lanes)
            places = [
                [self.place(9, b.add(at, I64(i)), I64(lanes * v)) for v in range(len(of_query))]
                for i, of_query in enumerate(sums)
            ]
            with b.if_then(b.icmp_unsigned("!=", begin, I64(0))):
                for of_query, of_places in zip(sums, places, strict=True):
                    for total, place in zip(of_query, of_places, strict=True):
                        code.add_to(total, b.zext(code.load(halves, place), words))
            # Distances less the limit, less one, are negative where rows are within the limit.
            excesses, every = [], code.zeros(words)
            for number, of_query in zip(self.numbers, sums, strict=True):
                limit = b.xor(code.splat(code.load(I64, self.place(7, stage, number)), lanes), code.filled(words, -1))
                excesses.append([b.add(limit, b.load(total)) for total in of_query])
                for excess in excesses[-1]:
                    every = b.or_(every, excess)
            found, zeros = code.variable(I64(0)), code.zeros(words)
            some = code.bits(b.icmp_signed("<", every, zeros))
            with cgutils.if_unlikely(b, b.icmp_unsigned("!=", some, I64(0))):
                for i, of_query in enumerate(excesses):
                    for v, excess in enumerate(of_query):
                        code.store(b.trunc(b.load(sums[i][v]), halves), places[i][v])
                        near = b.shl(code.bits(b.icmp_signed("<", excess, zeros)), I64(16 * i + lanes * v))
                        b.store(b.or_(b.load(found), near), found)
            return b.load(found)

    def _define_within(n_rows: int, summary: str) -> Any:
        """Make an intrinsic that compares distances of rows with limits."""

        def typed(
            typing_context: Any, planes: Any, numbers: Any, blocks: Any, block: Any, begin: Any, end: Any, ahead: Any,
            limits: Any, stage: Any, out: Any, at: Any,
        ) -> Any:  # fmt: skip
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                return _Call(context, builder, signature, arguments, n_rows).within()

            index = types.int64
            return types.uint64(
                planes, numbers, blocks, index, index, index, index, limits, index, out, index
            ), generate

        typed.__doc__ = summary
        return intrinsic(typed)

    distances_within = _define_within(16, "Tell which rows of a block are within limits: bit 16 * i + row.")
    half_within = _define_within(8, "Tell which rows of a half of a block are within a limit.")

    @intrinsic
    def prefix_distances(
        typing_context: Any, planes: Any, numbers: Any, blocks: Any, block: Any, begin: Any, end: Any, ahead: Any,
        least: Any, out: Any, at: Any,
    ) -> Any:  # fmt: skip
        """Put the distances of a block's rows from query numbers[i], over words [begin, end), into `out[at + i]`."""
        index = types.int64
        signature = types.void(planes, numbers, blocks, index, index, index, index, least, out, index)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            call = _Call(context, builder, signature, arguments)
            code, first_half = call.code, builder.shl(arguments[3], I64(1))
            for i, (number, totals) in enumerate(zip(call.numbers, call.distances(), strict=True)):
                place = call.place(8, builder.add(arguments[9], I64(i)))
                lanes = totals[0].type.count
                for v, total in enumerate(totals):
                    code.store(builder.trunc(total, ir.VectorType(I32, lanes)), code.at(place, 4 * lanes * v))
                short = [builder.trunc(total, ir.VectorType(I16, lanes)) for total in totals]
                for side, half in enumerate((short[: len(short) // 2], short[len(short) // 2 :])):
                    # 8 shorts: one instruction with SSE4.1 and with NEON.
                    smallest = code.call("llvm.vector.reduce.umin.v8i16", I16, code.join_all(half))
                    code.store(smallest, call.place(7, number, builder.add(first_half, I64(side))))
            return context.get_dummy_value()

        return signature, generate
