"""Products and squared distances of a query with rows of 4 and 8 bits, float16 and float32.

Rows of whole numbers meet queries of int16, and the results are exact int64. int8 rows are as they are; 4-bit rows have
levels 0 ... 15, dimension 2 j in the lower nibble of byte j and 2 j + 1 in the upper one, and their queries are split
alike into even and odd dimensions, (2, n_bytes). A query of float32 projections becomes one of int16 by one factor.

Floats are added in one order on every processor, each operation is rounded, and none are fused: fused ones would save
a few nanoseconds where there are such instructions. So results are equal bit for bit. The order: 16 dimensions fill a
vector, and vectors are added to four vectors of sums in turn, but up to three vectors that are left to the first of
them. The last n % 16 dimensions are added to the second, from a vector of the last 16 dimensions in which those that
have been counted are zero. Then come (first + second) + (third + fourth), and the upper half to the lower, four times.
"""

from typing import Any, TypeAlias

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from .._core.typing import Floats, Rows
from .halves import from_half
from .jit import njit
from .prefetch import prefetch
from .vectorcode import F32, I8, I16, I32, I64, VectorCode, cgutils

Numbers: TypeAlias = NDArray[np.int16]
"""Queries of whole numbers."""

dot_int8: Any
dot_int4: Any
dot_floats: Any
squares_int8: Any
squares_int4: Any
squares_floats: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def _row(rows: Any, base: int, n: int) -> Any:
        return rows.reshape(-1)[base : base + n]

    def dot_int8(query: Any, rows: Any, base: int, n: int) -> Any:
        """Product of `query[:n]` (int16) with the int8 row that begins at element `base`."""
        return np.dot(query[:n].astype(np.int64), _row(rows, base, n).astype(np.int64))

    def squares_int8(query: Any, rows: Any, base: int, n: int) -> Any:
        """Squared distance to an int8 row, less the square of the query."""
        row = _row(rows, base, n).astype(np.int64)
        return np.dot(row, row) - 2 * dot_int8(query, rows, base, n)

    def dot_int4(query: Any, rows: Any, base: int, n: int) -> Any:
        """Product of `query[:, :n]` (int16) with the levels of the row of n bytes that begins at element `base`."""
        row, both = _row(rows, base, n).astype(np.int64), query[:, :n].astype(np.int64)
        return np.dot(both[0], row & 15) + np.dot(both[1], row >> 4)

    def squares_int4(query: Any, rows: Any, base: int, n: int) -> Any:
        """Squared distance to the levels of a row of n bytes, less the square of the query."""
        row = _row(rows, base, n).astype(np.int64)
        return np.sum((row & 15) ** 2 + (row >> 4) ** 2) - 2 * dot_int4(query, rows, base, n)

    def _float_sum(terms: Any) -> Any:
        """Add up float32 in the order that the module states."""
        n, sums = terms.size, np.zeros((4, 16), dtype=np.float32)
        n_vectors, n_left = divmod(n, 16)
        for i in range(n_vectors):
            sums[i % 4 if i < n_vectors // 4 * 4 else 0] += terms[16 * i : 16 * i + 16]
        if n_left:
            last = np.zeros(16, dtype=np.float32)
            last[slice(0, n_left) if n < 16 else slice(16 - n_left, 16)] = terms[n - n_left :]
            sums[1] += last
        total = (sums[0] + sums[1]) + (sums[2] + sums[3])
        while total.size > 1:
            total = total[: total.size // 2] + total[total.size // 2 :]
        return total[0]

    def _floats(rows: Any, base: int, n: int) -> Any:
        row = _row(rows, base, n)
        return row.view(np.float16).astype(np.float32) if row.dtype == np.uint16 else row

    def dot_floats(query: Any, rows: Any, base: int, n: int) -> Any:
        """Product of `query[:n]` (float32) with the row that begins at element `base`; float16 rows as uint16."""
        return _float_sum(query[:n] * _floats(rows, base, n))

    def squares_floats(query: Any, rows: Any, base: int, n: int) -> Any:
        """Squared distance of `query[:n]` (float32) to a row."""
        apart = query[:n] - _floats(rows, base, n)
        return _float_sum(apart * apart)

else:
    # Steps of 32 elements after which 32-bit sums are flushed: a step adds at most 2**23 to each (2 * 128 * 2**15).
    _FLUSH = 128
    _BYTES, _NUMBERS, _SUMS = ir.VectorType(I8, 32), ir.VectorType(I16, 32), ir.VectorType(I32, 16)
    _FLOATS, _HALVES = ir.VectorType(F32, 16), ir.VectorType(I16, 16)

    def _is_tail(code: VectorCode, n_left: Any, count: int) -> Any:
        """Flag the last `n_left` of `count` elements."""
        first = code.splat(code.builder.trunc(code.builder.sub(I64(count), n_left), I32), count)
        return code.builder.icmp_unsigned(">=", code.constant(I32, range(count)), first)

    class _Whole:
        """Rows of whole numbers against a query, 32 elements (bytes) at a time."""

        def __init__(self, code: VectorCode, queries: list[Any], row: Any, n: Any, with_squares: bool) -> None:
            self._code, self._queries, self._row, self._n = code, queries, row, n
            self._with_squares = with_squares

        def total(self) -> Any:
            """Return the sum over all elements, an int64."""
            code, builder = self._code, self._code.builder
            result = code.variable(I64(0))
            n_steps, n_left = builder.udiv(self._n, I64(32)), builder.urem(self._n, I64(32))
            n_chunks = builder.udiv(builder.add(n_steps, I64(_FLUSH - 1)), I64(_FLUSH))
            with cgutils.for_range(builder, n_chunks) as chunks:
                first = builder.mul(chunks.index, I64(_FLUSH))
                left = builder.sub(n_steps, first)
                n = builder.select(builder.icmp_unsigned("<", left, I64(_FLUSH)), left, I64(_FLUSH))
                self._flush(self._sums(first, n), result)
            with builder.if_then(builder.icmp_unsigned("!=", n_left, I64(0))):
                self._flush([self._tail(n_steps, n_left)], result)
            return builder.load(result)

        def _sums(self, first: Any, n: Any) -> list[Any]:
            """Add up n steps, in turn in two vectors of sums."""
            code, builder = self._code, self._code.builder
            sums = [code.variable(code.zeros(_SUMS)) for _ in range(2)]
            for n_turns in (2, 1):
                with cgutils.for_range(builder, builder.udiv(n, I64(n_turns))) as loop:
                    for turn in range(n_turns):
                        at = builder.mul(code.at(code.at(first, loop.index, n_turns), turn), I64(32))
                        row = code.load(_BYTES, builder.add(self._row, at))
                        code.add_to(sums[turn], self._products(row, [code.at(q, at, 2) for q in self._queries]))
                done = builder.mul(builder.udiv(n, I64(n_turns)), I64(n_turns))
                first, n = builder.add(first, done), builder.sub(n, done)
            return [builder.load(some) for some in sums]

        def _tail(self, n_steps: Any, n_left: Any) -> Any:
            """Return the products of the last elements, fewer than 32."""
            code, builder = self._code, self._code.builder
            result = cgutils.alloca_once(builder, _SUMS)
            begin = builder.mul(n_steps, I64(32))
            with builder.if_else(builder.icmp_unsigned("==", n_steps, I64(0))) as (is_short, is_long):
                with is_short:
                    queries = [code.padded(query, n_left, _NUMBERS) for query in self._queries]
                    row = code.padded(self._row, n_left, _BYTES)
                    builder.store(self._products(row, queries), result)
                with is_long:
                    at = builder.sub(builder.add(begin, n_left), I64(32))
                    row = code.load(_BYTES, builder.add(self._row, at))
                    row = builder.select(_is_tail(code, n_left, 32), row, code.zeros(_BYTES))
                    builder.store(self._products(row, [code.at(query, at, 2) for query in self._queries]), result)
            return builder.load(result)

        def _products(self, row: Any, queries: list[Any]) -> Any:
            """Return 16 sums of products; queries are vectors, or addresses of vectors."""
            code, builder = self._code, self._code.builder
            loaded = [code.load(_NUMBERS, query) if query.type == I64 else query for query in queries]
            if len(loaded) == 1:
                values = [builder.sext(row, _NUMBERS)]
            else:
                wide = builder.zext(row, _NUMBERS)
                values = [
                    builder.and_(wide, code.filled(_NUMBERS, 15)),
                    builder.lshr(wide, code.filled(_NUMBERS, 4)),
                ]
            sums = [code.multiply_add(value, query) for value, query in zip(values, loaded, strict=True)]
            total = sums[0] if len(sums) == 1 else builder.add(*sums)
            if not self._with_squares:
                return total
            total = builder.mul(total, code.filled(_SUMS, -2))
            for value in values:
                total = builder.add(total, code.multiply_add(value, value))
            return total

        def _flush(self, sums: list[Any], result: Any) -> None:
            """Add 32-bit sums to the result."""
            code, wide = self._code, ir.VectorType(I64, 16)
            for some in sums:
                code.add_to(result, code.total(code.builder.sext(some, wide)))

    def _define_whole(n_parts: int, with_squares: bool, summary: str) -> Any:
        """Make an intrinsic for int8 rows (one part) or the nibbles of bytes (two parts)."""

        def typed(typing_context: Any, query: Any, rows: Any, base: Any, n: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                code = VectorCode(context, builder)
                query, rows = (code.address(signature.args[i], arguments[i]) for i in (0, 1))
                queries = [query]
                if n_parts == 2:
                    queries.append(builder.add(query, code.strides(signature.args[0], arguments[0])[0]))
                row = builder.add(rows, arguments[2])
                return _Whole(code, queries, row, arguments[3], with_squares).total()

            return types.int64(query, rows, types.int64, types.int64), generate

        typed.__doc__ = summary
        return intrinsic(typed)

    dot_int8 = _define_whole(1, False, "Product of an int16 query with an int8 row.")
    squares_int8 = _define_whole(1, True, "Squared distance to an int8 row, less the square of the query.")
    dot_int4 = _define_whole(2, False, "Product of a split int16 query with the levels of a row of bytes.")
    squares_int4 = _define_whole(2, True, "Squared distance to the levels of a row, less the square of the query.")

    class _Real:
        """Rows of floats against a query, 16 dimensions at a time."""

        def __init__(self, code: VectorCode, query: Any, row: Any, n: Any, is_half: bool, is_square: bool) -> None:
            self._code, self._query, self._row, self._n = code, query, row, n
            self._is_half, self._is_square = is_half, is_square
            self._size = 2 if is_half else 4

        def total(self) -> Any:
            """Return the sum over all dimensions."""
            code, builder = self._code, self._code.builder
            sums = [code.variable(code.zeros(_FLOATS)) for _ in range(4)]
            first, n = I64(0), builder.udiv(self._n, I64(16))
            for n_turns in (4, 1):
                with cgutils.for_range(builder, builder.udiv(n, I64(n_turns))) as loop:
                    for turn in range(n_turns):
                        at = builder.mul(code.at(code.at(first, loop.index, n_turns), turn), I64(16))
                        code.add_to(sums[turn], self._terms(at))
                done = builder.mul(builder.udiv(n, I64(n_turns)), I64(n_turns))
                first, n = builder.add(first, done), builder.sub(n, done)
            n_left = builder.urem(self._n, I64(16))
            with builder.if_then(builder.icmp_unsigned("!=", n_left, I64(0))):
                code.add_to(sums[1], self._tail(n_left))
            a, b, c, d = (builder.load(some) for some in sums)
            return code.total(builder.fadd(builder.fadd(a, b), builder.fadd(c, d)))

        def _terms(self, at: Any) -> Any:
            """Return what 16 dimensions add."""
            code = self._code
            row = code.load(_HALVES if self._is_half else _FLOATS, code.at(self._row, at, self._size))
            return self._combine(code.load(_FLOATS, code.at(self._query, at, 4)), row)

        def _tail(self, n_left: Any) -> Any:
            """Return what the last dimensions add, fewer than 16."""
            code, builder = self._code, self._code.builder
            result = cgutils.alloca_once(builder, _FLOATS)
            with builder.if_else(builder.icmp_unsigned("<", self._n, I64(16))) as (is_short, is_long):
                with is_short:
                    query = code.padded(self._query, n_left, _FLOATS)
                    row = code.padded(self._row, n_left, _HALVES if self._is_half else _FLOATS)
                    builder.store(self._combine(query, row), result)
                with is_long:
                    terms = self._terms(builder.sub(self._n, I64(16)))
                    terms = builder.select(_is_tail(code, n_left, 16), terms, code.zeros(_FLOATS))
                    builder.store(terms, result)
            return builder.load(result)

        def _combine(self, query: Any, row: Any) -> Any:
            builder = self._code.builder
            row = from_half(self._code, row) if self._is_half else row
            if not self._is_square:
                return builder.fmul(query, row)
            apart = builder.fsub(query, row)
            return builder.fmul(apart, apart)

    def _define_real(is_square: bool, summary: str) -> Any:
        """Make an intrinsic for float32 rows, and float16 rows as uint16."""

        def typed(typing_context: Any, query: Any, rows: Any, base: Any, n: Any) -> Any:
            is_half = rows.dtype == types.uint16

            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                code = VectorCode(context, builder)
                query, rows = (code.address(signature.args[i], arguments[i]) for i in (0, 1))
                row = code.at(rows, arguments[2], 2 if is_half else 4)
                return _Real(code, query, row, arguments[3], is_half, is_square).total()

            return types.float32(query, rows, types.int64, types.int64), generate

        typed.__doc__ = summary
        return intrinsic(typed)

    dot_floats = _define_real(False, "Product of a float32 query with a row.")
    squares_floats = _define_real(True, "Squared distance of a float32 query to a row.")


@njit(cache=True, nogil=True)
def prefetch_row(matrix: NDArray[Any], row: int) -> None:
    """Ask for a row of a matrix."""
    n = matrix.shape[1]
    for place in range(0, n, 64 // matrix.itemsize):
        prefetch(matrix, row * n + place)


# The kernels for lists of rows ask for the fourth row ahead of the one that is read.


@njit(cache=True, nogil=True)
def dots_of_int8(query: Numbers, matrix: NDArray[np.int8], rows: Rows, out: Rows) -> None:
    """Products of a query with some rows of int8."""
    n = matrix.shape[1]
    for i in range(rows.size):
        if i + 4 < rows.size:
            prefetch_row(matrix, rows[i + 4])
        out[i] = dot_int8(query, matrix, rows[i] * n, n)


@njit(cache=True, nogil=True)
def dots_of_int4(query: Numbers, matrix: NDArray[np.uint8], rows: Rows, out: Rows) -> None:
    """Products of a query, (2, n_bytes), with the levels of some rows of bytes."""
    n = matrix.shape[1]
    for i in range(rows.size):
        if i + 4 < rows.size:
            prefetch_row(matrix, rows[i + 4])
        out[i] = dot_int4(query, matrix, rows[i] * n, n)


@njit(cache=True, nogil=True)
def dots_of_floats(query: Floats, matrix: NDArray[Any], rows: Rows, out: Floats) -> None:
    """Products of a query with some rows of float32, or of float16 as uint16."""
    n = matrix.shape[1]
    for i in range(rows.size):
        if i + 4 < rows.size:
            prefetch_row(matrix, rows[i + 4])
        out[i] = dot_floats(query, matrix, rows[i] * n, n)


@njit(cache=True, nogil=True)
def squares_of_int8(query: Numbers, square: int, matrix: NDArray[np.int8], rows: Rows, out: Rows) -> None:
    """Squared distances of a query, whose own square is given, to some rows of int8."""
    n = matrix.shape[1]
    for i in range(rows.size):
        if i + 4 < rows.size:
            prefetch_row(matrix, rows[i + 4])
        out[i] = square + squares_int8(query, matrix, rows[i] * n, n)


@njit(cache=True, nogil=True)
def squares_of_int4(query: Numbers, square: int, matrix: NDArray[np.uint8], rows: Rows, out: Rows) -> None:
    """Squared distances of a query, (2, n_bytes), whose own square is given, to the levels of some rows of bytes."""
    n = matrix.shape[1]
    for i in range(rows.size):
        if i + 4 < rows.size:
            prefetch_row(matrix, rows[i + 4])
        out[i] = square + squares_int4(query, matrix, rows[i] * n, n)


@njit(cache=True, nogil=True)
def squares_of_floats(query: Floats, matrix: NDArray[Any], rows: Rows, out: Floats) -> None:
    """Squared distances of a query to some rows of float32, or of float16 as uint16."""
    n = matrix.shape[1]
    for i in range(rows.size):
        if i + 4 < rows.size:
            prefetch_row(matrix, rows[i + 4])
        out[i] = squares_floats(query, matrix, rows[i] * n, n)
