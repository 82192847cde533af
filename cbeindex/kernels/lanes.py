"""Counts for 16 rows at a time, which stay in registers, where these are many, while the words of the rows go by.

Rows are stored word by word, `columns[w, row]`. Loops that are left to the compiler read and write the counts once for
every few words, read the rows again for every query, and use half of the registers of processors with AVX-512: for
codes of 1,024 bits and many queries they take 2.3 times as long. Without numba the same is done by numpy.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils as untyped
from numba.core import types
from numba.extending import intrinsic

cgutils: Any = untyped
add_differing: Any
add_weights: Any
add_weighted: Any
within: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def _count(words: Any) -> Any:
        return np.bitwise_count(words).sum(axis=0, dtype=np.int32)

    def add_differing(
        queries: Any, numbers: Any, places: Any, word: int, columns: Any, n_words: int, row: int, out: Any
    ) -> None:
        """Add the number of bits in which rows [row, row + 16) and some queries differ.

        `columns`, (n_words or more, any), are the words from `word` on of `queries`, of which those in the tuple
        `numbers` are asked for. `out[place, row:row + 16]` gets the sums, with a place for each of them.
        """
        for number, place in zip(numbers, places, strict=True):
            apart = columns[:n_words, row : row + 16] ^ queries[number, word : word + n_words, np.newaxis]
            out[place, row : row + 16] += _count(apart)

    def add_weights(query: Any, planes: Any, word: int, columns: Any, n_words: int, row: int, out: Any) -> None:
        """Add the weights of the bits in which rows [row, row + 16) and a query differ, to `out[row : row + 16]`.

        The weight of a place is in the bits of `planes`, (4, n_words): 1, 2, 4 and 8.
        """
        apart = columns[:n_words, row : row + 16] ^ query[word : word + n_words, np.newaxis]
        for i in range(4):
            out[row : row + 16] += _count(apart & planes[i, word : word + n_words, np.newaxis]) << i

    def add_weighted(queries: Any, numbers: Any, places: Any, columns: Any, row: int, out: Any) -> None:
        """Add the weights of the bits in which weighted rows [row, row + 16) and some queries differ.

        `columns` has the signs of rows, the places that weigh one, and those that weigh two (more).
        """
        signs, ones, twos = (part[:, row : row + 16] for part in columns)
        for number, place in zip(numbers, places, strict=True):
            apart = signs ^ queries[number, : len(signs), np.newaxis]
            out[place, row : row + 16] += _count(apart & ones) + 2 * _count(apart & twos)

    def within(distances: Any, row: int, limit: Any) -> Any:
        """Tell which of the distances of rows [row, row + 16) are at most `limit`: bit i is that of row + i.

        Distances are int32 or float32.
        """
        return np.packbits(distances[row : row + 16] <= limit, bitorder="little").view("<u2")[0].astype(np.uint64)

else:
    _LANES = 8  # words of a register
    _VECTORS = 2  # of a column
    _WORD, _HALF = ir.IntType(64), ir.IntType(32)
    _WORDS, _HALVES = ir.VectorType(_WORD, _LANES), ir.VectorType(_HALF, _LANES)

    class _Matrix:
        """An array whose last axis is contiguous, as pointers to its places."""

        def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
            array = context.make_array(kind)(context, builder, value)
            self._builder = builder
            self._start = builder.ptrtoint(array.data, _WORD)
            self._strides = cgutils.unpack_tuple(builder, array.strides)

        def at(self, kind: Any, *index: Any) -> Any:
            """Return a pointer of some kind to a place."""
            builder, address = self._builder, self._start
            for i, stride in zip(index, self._strides, strict=True):
                address = builder.add(address, builder.mul(i, stride))
            return builder.inttoptr(address, kind.as_pointer())

        def vectors(self, *index: Any) -> list[Any]:
            """Read 16 words."""
            read = []
            for i in range(_VECTORS):
                *others, last = index
                pointer = self.at(_WORDS, *others, self._builder.add(last, _WORD(_LANES * i)))
                read.append(self._builder.load(pointer, align=8))
            return read

        def word(self, *index: Any) -> Any:
            """Read a word into all places of a register."""
            builder, nothing = self._builder, ir.Constant(_WORDS, ir.Undefined)
            first = builder.insert_element(nothing, builder.load(self.at(_WORD, *index)), _HALF(0))
            return builder.shuffle_vector(first, nothing, ir.Constant(_HALVES, [0] * _LANES))

    class _Sums:
        """Sums of 16 counts."""

        def __init__(self, builder: Any) -> None:
            self._builder = builder
            zeros = ir.Constant(_WORDS, [0] * _LANES)
            self._parts = [cgutils.alloca_once_value(builder, zeros) for _ in range(_VECTORS)]
            kind = ir.FunctionType(_WORDS, [_WORDS])
            self._popcount = cgutils.get_or_insert_function(builder.module, kind, f"llvm.ctpop.v{_LANES}i64")

        def add(self, words: Sequence[Any]) -> None:
            """Add the ones of 16 words."""
            builder = self._builder
            for part, some in zip(self._parts, words, strict=True):
                builder.store(builder.add(builder.load(part), builder.call(self._popcount, [some])), part)

        def put(self, out: _Matrix, *index: Any, times: int = 1) -> None:
            """Add the sums, some times, to an array of int32."""
            builder = self._builder
            *others, last = index
            for i, part in enumerate(self._parts):
                pointer = out.at(_HALVES, *others, builder.add(last, _WORD(_LANES * i)))
                sums = builder.trunc(builder.load(part), _HALVES)
                sums = builder.mul(sums, ir.Constant(_HALVES, [times] * _LANES))
                builder.store(builder.add(builder.load(pointer, align=4), sums), pointer, align=4)

    def _every(operation: Callable[[Any, Any], Any], words: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        return [operation(one, other) for one, other in zip(words, others, strict=True)]

    @intrinsic
    def add_differing(
        typing_context: Any, queries: Any, numbers: Any, places: Any, word: Any, columns: Any, n_words: Any, row: Any,
        out: Any,
    ) -> Any:  # fmt: skip
        """Add the number of bits in which rows [row, row + 16) and some queries differ."""
        index = types.int64
        signature = types.void(queries, numbers, places, index, columns, index, index, out)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            queries, columns, out = (_Matrix(context, builder, signature.args[i], arguments[i]) for i in (0, 4, 7))
            numbers, places = (cgutils.unpack_tuple(builder, arguments[i]) for i in (1, 2))
            word, n_words, row = arguments[3], arguments[5], arguments[6]
            sums = [_Sums(builder) for _ in numbers]
            with cgutils.for_range(builder, n_words) as loop:
                rows = columns.vectors(loop.index, row)
                for number, total in zip(numbers, sums, strict=True):
                    query = queries.word(number, builder.add(word, loop.index))
                    total.add(_every(builder.xor, rows, [query] * _VECTORS))
            for place, total in zip(places, sums, strict=True):
                total.put(out, place, row)
            return context.get_dummy_value()

        return signature, generate

    @intrinsic
    def add_weights(
        typing_context: Any, query: Any, planes: Any, word: Any, columns: Any, n_words: Any, row: Any, out: Any
    ) -> Any:
        """Add the weights of the bits in which rows [row, row + 16) and a query differ."""
        index = types.int64
        signature = types.void(query, planes, index, columns, index, index, out)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            query, planes, columns, out = (
                _Matrix(context, builder, signature.args[i], arguments[i]) for i in (0, 1, 3, 6)
            )
            word, n_words, row = arguments[2], arguments[4], arguments[5]
            sums = [_Sums(builder) for _ in range(4)]
            with cgutils.for_range(builder, n_words) as loop:
                at = builder.add(word, loop.index)
                apart = _every(builder.xor, columns.vectors(loop.index, row), [query.word(at)] * _VECTORS)
                for i, total in enumerate(sums):
                    total.add(_every(builder.and_, apart, [planes.word(_WORD(i), at)] * _VECTORS))
            for i, total in enumerate(sums):
                total.put(out, row, times=2**i)
            return context.get_dummy_value()

        return signature, generate

    @intrinsic
    def add_weighted(
        typing_context: Any, queries: Any, numbers: Any, places: Any, columns: Any, row: Any, out: Any
    ) -> Any:
        """Add the weights of the bits in which weighted rows [row, row + 16) and some queries differ."""
        signature = types.void(queries, numbers, places, columns, types.int64, out)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            queries, out = (_Matrix(context, builder, signature.args[i], arguments[i]) for i in (0, 5))
            numbers, places = (cgutils.unpack_tuple(builder, arguments[i]) for i in (1, 2))
            parts = cgutils.unpack_tuple(builder, arguments[3])
            kinds = signature.args[3].types
            signs, ones, twos = (_Matrix(context, builder, kind, part) for kind, part in zip(kinds, parts, strict=True))
            n_words = cgutils.unpack_tuple(builder, context.make_array(kinds[0])(context, builder, parts[0]).shape)[0]
            row = arguments[4]
            singles, doubles = [_Sums(builder) for _ in numbers], [_Sums(builder) for _ in numbers]
            with cgutils.for_range(builder, n_words) as loop:
                of_rows, one, two = (part.vectors(loop.index, row) for part in (signs, ones, twos))
                for number, single, double in zip(numbers, singles, doubles, strict=True):
                    apart = _every(builder.xor, of_rows, [queries.word(number, loop.index)] * _VECTORS)
                    single.add(_every(builder.and_, apart, one))
                    double.add(_every(builder.and_, apart, two))
            for place, single, double in zip(places, singles, doubles, strict=True):
                single.put(out, place, row)
                double.put(out, place, row, times=2)
            return context.get_dummy_value()

        return signature, generate

    @intrinsic
    def within(typing_context: Any, distances: Any, row: Any, limit: Any) -> Any:
        """Tell which of the distances of rows [row, row + 16) are at most `limit`: bit i is that of row + i."""
        is_float = distances.dtype == types.float32
        kind = ir.VectorType(ir.FloatType() if is_float else _HALF, 16)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            of_rows = _Matrix(context, builder, signature.args[0], arguments[0])
            near = builder.load(of_rows.at(kind, arguments[1]), align=4)
            nothing = ir.Constant(kind, ir.Undefined)
            first = builder.insert_element(nothing, arguments[2], _HALF(0))
            limits = builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_HALF, 16), [0] * 16))
            compare = builder.fcmp_ordered if is_float else builder.icmp_signed
            bits = builder.bitcast(compare("<=", near, limits), ir.IntType(16))
            return builder.zext(builder.bitreverse(bits) if sys.byteorder == "big" else bits, _WORD)

        return types.uint64(distances, types.int64, distances.dtype), generate
