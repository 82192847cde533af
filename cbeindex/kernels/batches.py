"""Circular convolution of LANES rows at a time, one in each lane: for short rows, of which there are many.

Every lane goes through the operations that `convolution` does on a row alone, with the same factors and in the same
order, so that the bits are the same. Nothing is transposed between columns and rows of the matrix of points, and no
lane is idle; but all of LANES rows have to stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .butterflies import write_backward, write_forward
from .layouts import BATCH_FIELDS, FIELDS, PAIR_FIELDS
from .tiles import POINT, multiply, transpose
from .vectors import LANES, Integer, Lanes, Pointer, call, loop

# Columns whose passes are done before those of the next ones begin.
_COLUMNS = 4


def write_convolve_batch(
    rows: Pointer, dim: Integer, centre: Pointer, signs: Pointer, work: Pointer, layout: Pointer, tables: Pointer,
    factors: Pointer, n_kept: Integer,
) -> None:  # fmt: skip
    """Centre LANES rows, multiply them by signs and convolve them, into the first rows of `work`.

    Of each, the first `n_kept` rows of the matrix of points are written.
    Pieces of LANES columns that go beyond the rows are there already, centred, multiplied and padded.
    """
    plan = {name: (layout + i).integer() for i, name in enumerate(FIELDS + BATCH_FIELDS)}
    points, pitch = work + plan["batch_points"], Integer(work.builder, POINT)
    n_columns, row = plan["n_columns"], plan["batch_pitch"]
    of_columns = layout + plan["row_passes"], plan["n_row_passes"], tables
    of_rows = layout + plan["column_passes"], plan["n_column_passes"], tables
    moved = (work, plan["row_floats"], points)
    call(_write_gather, "gather", rows, dim, centre, signs, *moved, plan["n_rows"], n_columns, row)
    size, two = (Integer(work.builder, value) for value in (_COLUMNS, 2))
    with loop(n_columns.chunks(size)) as chunk:
        count = size.minimum(n_columns - chunk * size)
        call(write_forward, "forward", points + chunk * (_COLUMNS * POINT), row, count, pitch, *of_columns)
    with loop(plan["n_pairs"]) as pair:
        entry = layout + plan["pairs"] + pair * len(PAIR_FIELDS)
        here, source, there = ((entry + i).integer() for i in range(len(PAIR_FIELDS)))
        turns = tables + plan["batch_turns"] + pair * n_columns * 4
        call(_write_turn, "turn_rows", points + here, points + source, points + there, turns, n_columns)
        call(write_forward, "forward", points + here, pitch, two, there - here, *of_rows)
        products = factors + plan["batch_factors"] + pair * n_columns * 6
        call(_write_multiply, "multiply_rows", points + here, points + there, products, n_columns)
        call(write_backward, "backward", points + here, pitch, two, there - here, *of_rows)
        call(_write_turn_back, "turn_rows_back", points + here, points + there, turns, n_columns)
    with loop(n_columns.chunks(size)) as chunk:
        count = size.minimum(n_columns - chunk * size)
        call(write_backward, "backward", points + chunk * (_COLUMNS * POINT), row, count, pitch, *of_columns)
    call(_write_scatter, "scatter", *moved, n_kept, n_columns, row)


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
        for i, floats in enumerate(transpose([(tile + i * LANES).load() for i in range(LANES)])):
            (work + (stride * i + start)).store(floats)


@contextmanager
def _each_tile(
    points: Pointer, n_rows: Integer, n_columns: Integer, pitch: Integer
) -> Iterator[tuple[Integer, Pointer]]:
    """Write loops over pieces of LANES floats: where they begin in a row, and the points that they are.

    What the last piece of a row of the matrix has too many is overwritten by the next row.
    """
    floats = n_columns * 2
    with loop(n_rows) as row, loop(floats.chunks(Integer(points.builder, LANES))) as tile:
        yield row * floats + tile * LANES, points + row * pitch + tile * (LANES * LANES)


def _write_turn(here: Pointer, source: Pointer, there: Pointer, turns: Pointer, count: Integer) -> None:
    """Multiply two rows of points by their factors; the second comes from `source`, which may be the first."""
    with loop(count) as i:
        place, factors = i * POINT, turns + i * 4
        second = (source + place).load_point() * (factors + 2).spread_point()
        first = (here + place).load_point() * factors.spread_point()
        (there + place).store_point(second)
        (here + place).store_point(first)


def _write_turn_back(here: Pointer, there: Pointer, turns: Pointer, count: Integer) -> None:
    """Multiply two rows of points by their conjugate factors."""
    with loop(count) as i:
        for points, factors in ((here, turns + i * 4), (there, turns + i * 4 + 2)):
            place = points + i * POINT
            place.store_point(place.load_point() * factors.spread_point().conjugate())


def _write_multiply(here: Pointer, there: Pointer, factors: Pointer, count: Integer) -> None:
    """Multiply a row of points and, in reverse order, the row of their mirror images by the spectrum."""
    with loop(count) as i:
        place, mirror_place = here + i * POINT, there + (count - 1 - i) * POINT
        own, other, shared = ((factors + i * 6 + 2 * j).spread_point() for j in range(3))
        point, mirror = multiply(place.load_point(), mirror_place.load_point(), own, other, shared)
        place.store_point(point)
        mirror_place.store_point(mirror)
