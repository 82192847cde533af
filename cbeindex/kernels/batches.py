"""Circular convolution of LANES rows at a time, one in each lane: for short rows, of which there are many.

Every lane goes through the operations that `convolution` does on a row alone, with the same factors and in the same
order, so that the bits are the same. Nothing is transposed between columns and rows of the matrix of points, and no
lane is idle; but all of LANES rows have to stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from .butterflies import write_backward, write_forward
from .layouts import BATCH_FIELDS, FIELDS, PAIR_FIELDS
from .rowpasses import write_rows_back, write_rows_forward
from .tiles import POINT, multiply, transpose
from .vectors import INTEGER, LANES, VECTOR, Integer, Lanes, Pointer, call, cgutils, data_of, loop

convolve_batch: Any
write_batch: Any
pack_batch: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]
    from . import uncompiled

    convolve_batch, write_batch = uncompiled.convolve_batch, uncompiled.write_batch
    pack_batch = uncompiled.pack_batch

else:

    @intrinsic
    def convolve_batch(
        typing_context: Any, rows: Any, first: Any, centre: Any, signs: Any, block: Any, work: Any, layout: Any,
        tables: Any, factors: Any,
    ) -> Any:  # fmt: skip
        """Centre LANES rows, multiply them by the signs of a block and convolve them, into the points of `work`."""
        index = types.int64

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            rows, dim = data_of(context, builder, signature, arguments, 0)
            centre, signs, *others = (data_of(context, builder, signature, arguments, i)[0] for i in (2, 3, 5, 6, 7, 8))
            rows, signs = rows + dim * Integer(builder, arguments[1]), signs + dim * Integer(builder, arguments[4])
            call(_write_convolve_batch, "convolve_batch", rows, dim, centre, signs, *others)
            return context.get_dummy_value()

        return types.void(rows, index, centre, signs, index, work, layout, tables, factors), generate

    @intrinsic
    def write_batch(typing_context: Any, work: Any, layout: Any, n_kept: Any) -> Any:
        """Write convolved points as the first LANES rows of `work`: the first `n_kept` rows of points of each."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            work, layout = (data_of(context, builder, signature, arguments, i)[0] for i in range(2))
            plan = _read_plan(layout)
            moved = work, plan["row_floats"], work + plan["batch_points"]
            sizes = Integer(builder, arguments[2]), plan["n_columns"], plan["batch_pitch"]
            call(_write_scatter, "scatter", *moved, *sizes)
            return context.get_dummy_value()

        return types.void(work, layout, types.int64), generate

    @intrinsic
    def pack_batch(typing_context: Any, work: Any, layout: Any, count: Any, codes: Any, first: Any, offset: Any) -> Any:
        """Write the signs of the first `count` convolved floats of LANES rows to codes, from bit `offset` on.

        Rows of points are whole pieces of eight floats, and `offset` is a whole number of bytes.
        Return the first row whose floats are not all finite, LANES if there is none.
        """
        index = types.int64

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            work, layout = (data_of(context, builder, signature, arguments, i)[0] for i in range(2))
            codes, n_words = data_of(context, builder, signature, arguments, 3)
            first, offset = (Integer(builder, value) for value in arguments[4:])
            stride = n_words * 8
            packed = Pointer(builder, builder.bitcast(codes.value, ir.IntType(8).as_pointer()))
            packed = packed + stride * first + offset // 8
            return _write_signs(work, _read_plan(layout), Integer(builder, arguments[2]), packed, stride)

        return index(work, layout, index, codes, index, index), generate


def _read_plan(layout: Pointer) -> dict[str, Integer]:
    return {name: (layout + i).integer() for i, name in enumerate(FIELDS + BATCH_FIELDS)}


def _write_convolve_batch(
    rows: Pointer, dim: Integer, centre: Pointer, signs: Pointer, work: Pointer, layout: Pointer, tables: Pointer,
    factors: Pointer,
) -> None:  # fmt: skip
    """Centre LANES rows, multiply them by signs and convolve them, into the points of `work`.

    Pieces of LANES columns that go beyond the rows are there already, centred, multiplied and padded.
    """
    plan = _read_plan(layout)
    points, pitch = work + plan["batch_points"], Integer(work.builder, POINT)
    n_columns, row = plan["n_columns"], plan["batch_pitch"]
    of_columns = layout + plan["row_passes"], plan["n_row_passes"], tables
    of_rows = layout + plan["column_passes"], plan["n_column_passes"], tables
    moved = (work, plan["row_floats"], points)
    call(_write_gather, "gather", rows, dim, centre, signs, *moved, plan["n_rows"], n_columns, row)
    size = plan["columns_together"]
    with loop(n_columns.chunks(size)) as chunk:
        count = size.minimum(n_columns - chunk * size)
        call(write_forward, "forward", points + chunk * size * POINT, row, count, pitch, *of_columns)
    with loop(plan["n_pairs"]) as pair:
        entry = layout + plan["pairs"] + pair * len(PAIR_FIELDS)
        here, source, there = ((entry + i).integer() for i in range(len(PAIR_FIELDS)))
        turns = tables + plan["batch_turns"] + pair * n_columns * 4
        call(write_rows_forward, "rows_forward", points, here, source, there, turns, n_columns, *of_rows)
        products = factors + plan["batch_factors"] + pair * n_columns * 6
        call(_write_multiply, "multiply_rows", points + here, points + there, products, n_columns)
        call(write_rows_back, "rows_back", points, here, there, turns, n_columns, *of_rows)
    with loop(n_columns.chunks(size)) as chunk:
        count = size.minimum(n_columns - chunk * size)
        call(write_backward, "backward", points + chunk * size * POINT, row, count, pitch, *of_columns)


def _write_gather(
    rows: Pointer, dim: Integer, centre: Pointer, signs: Pointer, work: Pointer, stride: Integer, points: Pointer,
    n_rows: Integer, n_columns: Integer, pitch: Integer,
) -> None:  # fmt: skip
    """Read the points of LANES rows of floats, one row into each lane; the ends of rows from `work`."""
    builder = rows.builder
    with _each_tile(points, n_rows, n_columns, pitch) as (start, tile):
        is_inside = builder.icmp_signed("<=", (start + LANES).value, dim.value)
        with builder.if_else(is_inside) as (inside, at_the_end):
            with inside:
                offset, sign = (centre + start).load(), (signs + start).load_bytes()
                pieces = [((rows + (dim * i + start)).load() - offset) * sign for i in range(LANES)]
                _store_all(transpose(pieces), tile)
            with at_the_end:
                _store_all(transpose([(work + (stride * i + start)).load() for i in range(LANES)]), tile)


def _store_all(registers: Sequence[Lanes], tile: Pointer) -> None:
    for i, lanes in enumerate(registers):
        (tile + i * LANES).store(lanes)


def _write_scatter(
    work: Pointer, stride: Integer, points: Pointer, n_rows: Integer, n_columns: Integer, pitch: Integer
) -> None:
    """Write points as the first LANES rows of `work`, which are `stride` floats apart."""
    with _each_tile(points, n_rows, n_columns, pitch) as (start, tile):
        for i, floats in enumerate(transpose(_load_swapped(tile, LANES))):
            (work + (stride * i + start)).store(floats)


def _load_swapped(tile: Pointer, count: int) -> list[Lanes]:
    """Read the floats of points whose parts are swapped, in their order."""
    return [(tile + (i ^ 1) * LANES).load() for i in range(count)]


def _write_signs(work: Pointer, plan: dict[str, Integer], count: Integer, codes: Pointer, stride: Integer) -> Any:
    """Write signs to rows of bytes, which are `stride` bytes apart; return the first row that is not finite."""
    builder, signs = work.builder, _Signs(work.builder, codes, stride)
    n_whole, in_row = count // 8, plan["run_floats"] // 8

    def tile(row: Integer, piece: Integer) -> Pointer:
        return work + plan["batch_points"] + row * plan["batch_pitch"] + piece * (8 * LANES)

    with loop(n_whole.chunks(in_row)) as row, loop(in_row.minimum(n_whole - row * in_row)) as piece:
        signs.write(_load_swapped(tile(row, piece), 8), row * in_row + piece)
    rest = count - n_whole * 8
    with builder.if_then(builder.icmp_signed(">", rest.value, INTEGER(0))):
        row = n_whole // in_row
        floats = _load_swapped(tile(row, n_whole - row * in_row), 8)
        negative = floats[0].constant(-1.0)
        there = (builder.icmp_signed("<", INTEGER(i), rest.value) for i in range(8))
        chosen = [
            builder.select(is_there, some.value, negative.value) for is_there, some in zip(there, floats, strict=True)
        ]
        signs.write([Lanes(builder, value) for value in chosen], n_whole)
    return signs.first_bad()


class _Signs:
    """Writes signs of rows in lanes, eight floats at a time, and notices those that are not finite."""

    def __init__(self, builder: Any, codes: Pointer, stride: Integer) -> None:
        self._builder, self._codes, self._stride = builder, codes, stride
        self._zero = Lanes(builder, ir.Constant(VECTOR, [0.0] * LANES))
        self._total = cgutils.alloca_once_value(builder, self._zero.value)
        builder.store(self._zero.value, self._total)

    def write(self, floats: Sequence[Lanes], byte: Integer) -> None:
        """Write a byte of each row."""
        builder, kind = self._builder, ir.VectorType(ir.IntType(32), LANES)
        # 0 times a number is 0, but NaN for infinity and NaN.
        products = floats[0] * self._zero
        for lanes in floats[1:]:
            products = products.add_product(lanes, self._zero)
        builder.store(builder.fadd(builder.load(self._total), products.value), self._total)
        bits = ir.Constant(kind, [0] * LANES)
        for i, lanes in enumerate(floats):
            is_set = builder.fcmp_ordered(">=", lanes.value, self._zero.value)
            bit = builder.select(is_set, ir.Constant(kind, [1 << i] * LANES), ir.Constant(kind, [0] * LANES))
            bits = builder.or_(bits, bit)
        for i in range(LANES):
            of_row = builder.trunc(builder.extract_element(bits, ir.IntType(32)(i)), ir.IntType(8))
            builder.store(of_row, (self._codes + self._stride * i + byte).value)

    def first_bad(self) -> Any:
        """Return the first row that is not finite, LANES if all are."""
        builder, total = self._builder, self._builder.load(self._total)
        bad = builder.zext(builder.bitcast(builder.fcmp_unordered("uno", total, total), ir.IntType(LANES)), INTEGER)
        return builder.cttz(builder.or_(bad, INTEGER(1 << LANES)), ir.IntType(1)(1))


@contextmanager
def _each_tile(
    points: Pointer, n_rows: Integer, n_columns: Integer, pitch: Integer
) -> Iterator[tuple[Integer, Pointer]]:
    """Write loops over pieces of LANES floats: where they begin in a row, and the points that they are.

    What the last piece of a row of the matrix has too many is overwritten by the next row.
    """
    floats = n_columns * 2
    with loop(n_rows) as row, loop(floats.chunks(LANES)) as tile:
        yield row * floats + tile * LANES, points + row * pitch + tile * (LANES * LANES)


def _write_multiply(here: Pointer, there: Pointer, factors: Pointer, count: Integer) -> None:
    """Multiply a row of points and, in reverse order, the row of their mirror images by the spectrum; swap parts."""
    with loop(count) as i:
        place, mirror_place = here + i * POINT, there + (count - 1 - i) * POINT
        own, other, shared = ((factors + i * 6 + 2 * j).spread_point() for j in range(3))
        point, mirror = multiply(place.load_point(), mirror_place.load_point(), own, other, shared)
        place.store_point(point.swapped())
        mirror_place.store_point(mirror.swapped())
