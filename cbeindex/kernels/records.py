"""Records of a graph: all that one step of a walk reads, in one run of memory.

A vertex is a row, and 32 numbered neighbours. With P the projections, c those of the vertex, y = P x - c the residual
of a neighbour, V its signs and f = |y|^2 / <y, V> (RaBitQ's estimate of a product, Gao and Long, SIGMOD 2024),

    |x - q|^2  ~  (|y|^2 + 2 f <c, V>) + |v - q|^2 - 2 f <P q, V>,

which is what `estimates.estimate_block` makes of an offset, a shift and a factor. A record holds, in this order:

    codes       32 * n_bytes    signs of the residuals of 32 neighbours, as `lookup.py` reads blocks
    factors     32 float32      2 f, divided by the number of projections of a dimension
    offsets     32 float32      |y|^2 + 2 f <c, V> and norms, infinite where there is no neighbour
    neighbours  32 int32        numbers of the neighbours, -1 where there is none
    vertex                      the vertex itself, as `vertices.py` stores it

and zeros up to a multiple of 64 bytes. Where products count, distances are those of points with another coordinate
(`vertices.py`), so that offsets also hold the norm of the vertex less that of the neighbour. Short vectors have several
blocks of projections, each an isometry; levels are those of the first. Columns behind the last projection are zeros, up
to a multiple of 16.
"""

from typing import Any, TypeAlias

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from .._core.typing import Floats, Projections
from .estimates import Records
from .jit import njit
from .vectorcode import F32, I8, I16, I32, I64, VectorCode, cgutils
from .vertices import vertex_bytes
from .views import view_as

Neighbours: TypeAlias = NDArray[np.int32]
"""Numbers of the neighbours of each vertex, (n, 32), -1 behind the last."""

DEGREE = 32

code_residual: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def _in_order(terms: Any) -> Any:
        """Add up float32: vectors of 16 one after the other, then the upper half to the lower, four times."""
        total = np.zeros(16, dtype=np.float32)
        for vector in terms.reshape(-1, 16):
            total = total + vector
        while total.size > 1:
            total = total[: total.size // 2] + total[total.size // 2 :]
        return total[0]

    def code_residual(projections: Any, row: int, vertex: int, records: Any, at: int) -> Any:
        """Write the signs of P x - c as byte after byte, 32 apart, from `at` on; return |y|^2, <y, V> and <c, V>.

        Parameters
        ----------
        projections : float32 array of shape (n, a multiple of 16)
            Of which `row` is P x and `vertex` is c.
        records : uint8 array
        at : int
            Place of the first byte.
        """
        centre = projections[vertex]
        residual = projections[row] - centre
        is_set = residual >= 0
        packed = np.packbits(is_set, bitorder="little")
        records.reshape(-1)[at : at + 32 * packed.size : 32] = packed
        signed = np.where(is_set, centre, -centre)
        return _in_order(residual * residual), _in_order(np.abs(residual)), _in_order(signed)

else:
    tuple_of: Any = types.UniTuple
    _FLOATS, _INTS = ir.VectorType(F32, 16), ir.VectorType(I32, 16)

    @intrinsic
    def code_residual(typing_context: Any, projections: Any, row: Any, vertex: Any, records: Any, at: Any) -> Any:
        """Write the signs of P x - c as byte after byte, 32 apart, from `at` on; return |y|^2, <y, V> and <c, V>."""
        result = tuple_of(types.float32, 3)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = VectorCode(context, builder)
            start, out = (code.address(signature.args[i], arguments[i]) for i in (0, 3))
            size, _ = code.strides(signature.args[0], arguments[0])
            x, c = (builder.add(start, builder.mul(arguments[i], size)) for i in (1, 2))
            out = builder.add(out, arguments[4])
            sums = [code.variable(code.zeros(_FLOATS)) for _ in range(3)]
            sign_bit, others = code.filled(_INTS, -(2**31)), code.filled(_INTS, 0x7FFFFFFF)
            with cgutils.for_range(builder, builder.udiv(size, I64(64))) as loop:
                centre = code.load(_FLOATS, code.at(c, loop.index, 64))
                residual = builder.fsub(code.load(_FLOATS, code.at(x, loop.index, 64)), centre)
                is_set = builder.fcmp_ordered(">=", residual, code.zeros(_FLOATS))
                word = builder.trunc(code.bits(is_set), I16)
                place = code.at(out, loop.index, 64)
                code.store(builder.trunc(word, I8), place)
                code.store(builder.trunc(builder.lshr(word, I16(8)), I8), code.at(place, 32))
                magnitude = builder.bitcast(builder.and_(builder.bitcast(residual, _INTS), others), _FLOATS)
                flipped = builder.bitcast(builder.xor(builder.bitcast(centre, _INTS), sign_bit), _FLOATS)
                terms = builder.fmul(residual, residual), magnitude, builder.select(is_set, centre, flipped)
                for total, term in zip(sums, terms, strict=True):
                    code.add_to(total, term)
            return context.make_tuple(builder, result, [code.total(builder.load(total)) for total in sums])

        return result(projections, types.int64, types.int64, records, types.int64), generate


def record_bytes(n_columns: int, n_levels: int) -> int:
    """Return the size of a record, a multiple of 64: codes of `n_columns` projections, and a vertex."""
    return -(-(vertex_at(n_columns) + vertex_bytes(n_levels)) // 64) * 64


def vertex_at(n_columns: int) -> int:
    """Return the byte at which the vertex of a record begins."""
    return 4 * n_columns + 3 * 4 * DEGREE


def make_records(n: int, n_columns: int, n_levels: int) -> Records:
    """Return zeroed memory for records, which begins at a multiple of 64 bytes."""
    size = record_bytes(n_columns, n_levels)
    memory = np.zeros(n * size + 64, dtype=np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + n * size].reshape(n, size)


@njit(cache=True, nogil=True)
def write_neighbours(
    projections: Projections, norms: Floats, vertex: int, neighbours: Neighbours, n_blocks: int, records: Records,
    number: int,
) -> None:  # fmt: skip
    """Write codes, factors, offsets and numbers of the neighbours of a vertex into record `number`.

    `n_blocks` is how many projections each dimension has.
    """
    n_bytes = projections.shape[1] // 8
    base = number * records.shape[1]
    flat = records.reshape(-1)[base : base + records.shape[1]]
    floats, integers = view_as(flat, np.float32), view_as(flat, np.int32)
    at = 8 * n_bytes
    for i in range(DEGREE):
        x = np.int64(neighbours[i])
        integers[at + 64 + i] = x
        if x < 0:
            floats[at + i], floats[at + 32 + i] = np.float32(0), np.float32(np.inf)
            continue
        square, product, own = code_residual(projections, x, vertex, records, base + i)
        # A product of 0: the row equals the vertex, and so does its distance.
        twice = np.float32(2) * square / product if product > 0 else np.float32(0)
        floats[at + i] = twice / np.float32(n_blocks)
        floats[at + 32 + i] = (square + twice * own) / np.float32(n_blocks) + (norms[vertex] - norms[x])


@njit(cache=True, nogil=True)
def write_records(
    projections: Projections, n_blocks: int, column: Records, norms: Floats, neighbours: Neighbours, start: int,
    stop: int, records: Records,
) -> None:  # fmt: skip
    """Write the records of vertices [start, stop).

    Parameters
    ----------
    projections : float32 array of shape (n, a multiple of 16)
        `n_blocks` isometries, and zeros.
    column : uint8 array of shape (n, vertex_bytes(...))
    norms : float32 array of shape (n,)
        Those of the vertices, as the records are to hold them.
    neighbours : int32 array of shape (n, 32)
    records : uint8 array of shape (n, record_bytes(...))
    """
    at, size, width = 4 * projections.shape[1] + 384, records.shape[1], column.shape[1]
    for vertex in range(start, stop):
        write_neighbours(projections, norms, vertex, neighbours[vertex], n_blocks, records, vertex)
        flat = records.reshape(-1)[vertex * size + at : vertex * size + at + width]
        flat[:] = column[vertex]
        view_as(flat[8:12], np.float32)[0] = norms[vertex]
