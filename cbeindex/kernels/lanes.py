"""Bit counts of 16 rows at a time, accumulated in vector registers.

Rows are stored word by word, `columns[w, row]`. The explicit vector types keep the counts in registers over all words
and load each row once for several queries. Plain loops, as LLVM vectorises them, take 2.3 times as long for codes of
1,024 bits and many queries: they store the counts every few words, load the rows again for every query, and use half
of the registers of processors with AVX-512. Without compilation, numpy computes the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils as untyped
from numba.core import types
from numba.extending import intrinsic

cgutils: Any = untyped
add_weighted: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def _count(words: Any) -> Any:
        return np.bitwise_count(words).sum(axis=0, dtype=np.int32)

    def add_weighted(queries: Any, numbers: Any, places: Any, columns: Any, row: int, out: Any) -> None:
        """Add the weights of the positions at which weighted rows [row, row + 16) differ from some queries to `out`.

        `columns` holds the signs of the rows and the two bit planes of their weights.
        """
        signs, ones, twos = (part[:, row : row + 16] for part in columns)
        for number, place in zip(numbers, places, strict=True):
            xor = signs ^ queries[number, : len(signs), np.newaxis]
            out[place, row : row + 16] += _count(xor & ones) + 2 * _count(xor & twos)

else:
    _LANES = 8  # words in a register
    _VECTORS = 2  # registers for 16 rows
    _WORD, _HALF = ir.IntType(64), ir.IntType(32)
    _WORDS, _HALVES = ir.VectorType(_WORD, _LANES), ir.VectorType(_HALF, _LANES)

    class _Matrix:
        """Pointers into an array whose last axis is contiguous."""

        def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
            array = context.make_array(kind)(context, builder, value)
            self._builder = builder
            self._start = builder.ptrtoint(array.data, _WORD)
            self._strides = cgutils.unpack_tuple(builder, array.strides)

        def at(self, kind: Any, *index: Any) -> Any:
            """Return a pointer to an element, cast to `kind`."""
            builder, address = self._builder, self._start
            for i, stride in zip(index, self._strides, strict=True):
                address = builder.add(address, builder.mul(i, stride))
            return builder.inttoptr(address, kind.as_pointer())

        def vectors(self, *index: Any) -> list[Any]:
            """Load 16 consecutive words."""
            read = []
            for i in range(_VECTORS):
                *others, last = index
                pointer = self.at(_WORDS, *others, self._builder.add(last, _WORD(_LANES * i)))
                read.append(self._builder.load(pointer, align=8))
            return read

        def word(self, *index: Any) -> Any:
            """Load a word and broadcast it to all lanes of a register."""
            builder, undefined = self._builder, ir.Constant(_WORDS, ir.Undefined)
            first = builder.insert_element(undefined, builder.load(self.at(_WORD, *index)), _HALF(0))
            return builder.shuffle_vector(first, undefined, ir.Constant(_HALVES, [0] * _LANES))

    class _Sums:
        """Accumulators of 16 bit counts."""

        def __init__(self, builder: Any) -> None:
            self._builder = builder
            zeros = ir.Constant(_WORDS, [0] * _LANES)
            self._parts = [cgutils.alloca_once_value(builder, zeros) for _ in range(_VECTORS)]
            kind = ir.FunctionType(_WORDS, [_WORDS])
            self._popcount = cgutils.get_or_insert_function(builder.module, kind, f"llvm.ctpop.v{_LANES}i64")

        def add(self, words: Sequence[Any]) -> None:
            """Add the bit counts of 16 words."""
            builder = self._builder
            for part, some in zip(self._parts, words, strict=True):
                builder.store(builder.add(builder.load(part), builder.call(self._popcount, [some])), part)

        def put(self, out: _Matrix, *index: Any, times: int = 1) -> None:
            """Add the sums, multiplied by `times`, to an int32 array."""
            builder = self._builder
            *others, last = index
            for i, part in enumerate(self._parts):
                pointer = out.at(_HALVES, *others, builder.add(last, _WORD(_LANES * i)))
                sums = builder.trunc(builder.load(part), _HALVES)
                sums = builder.mul(sums, ir.Constant(_HALVES, [times] * _LANES))
                builder.store(builder.add(builder.load(pointer, align=4), sums), pointer, align=4)

    def _map(operation: Callable[[Any, Any], Any], words: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        return [operation(one, other) for one, other in zip(words, others, strict=True)]

    @intrinsic
    def add_weighted(
        typing_context: Any, queries: Any, numbers: Any, places: Any, columns: Any, row: Any, out: Any
    ) -> Any:
        """Add the weights of the positions at which weighted rows [row, row + 16) differ from some queries to `out`."""
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
                row_signs, one, two = (part.vectors(loop.index, row) for part in (signs, ones, twos))
                for number, single, double in zip(numbers, singles, doubles, strict=True):
                    xor = _map(builder.xor, row_signs, [queries.word(number, loop.index)] * _VECTORS)
                    single.add(_map(builder.and_, xor, one))
                    double.add(_map(builder.and_, xor, two))
            for place, single, double in zip(places, singles, doubles, strict=True):
                single.put(out, place, row)
                double.put(out, place, row, times=2)
            return context.get_dummy_value()

        return signature, generate
