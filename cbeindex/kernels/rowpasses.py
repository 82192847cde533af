"""Transforms of two rows of points that mirror each other, multiplied by the turns of the four-step transform.

The turns come between the transforms of columns and of rows. The first pass of a row reads points times their turns,
and the last pass on the way back writes points times their turns, which saves two sweeps through memory. Passes of rare
radices leave the turns to a sweep of their own, so that fewer kinds of passes have to be compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .butterflies import transform, write_switch
from .layouts import PASS_FIELDS, RADICES
from .tiles import POINT, turn_back
from .vectors import INTEGER, Integer, Pointer, call, cgutils, loop

# Kinds of first passes that multiply by turns: radix, and whether twiddle factors follow.
_TURNED = ((3, True), (4, True), (8, True), (8, False))


def write_rows_forward(
    points: Pointer, here: Integer, source: Integer, there: Integer, turns: Pointer, n_columns: Integer,
    passes: Pointer, n: Integer, tables: Pointer,
) -> None:  # fmt: skip
    """Turn and transform two rows in place; the second one, `there`, is made from `source`, which may be the first."""

    def turn() -> None:
        call(_write_turn, "turn_rows", points, here, source, there, turns, n_columns)

    def turn_in_pass(radix: int, has_twiddles: bool, step: Integer, factors: Pointer) -> None:
        name = f"turned_{radix}_{'after' if has_twiddles else 'never'}"
        write = partial(_write_turned_pass, radix, has_twiddles)
        call(write, name, points, here, source, there, turns, step, factors)

    n_done = _write_choice(passes, n, tables, turn_in_pass, turn)
    first, two, pitch = points + here, Integer(points.builder, 2), Integer(points.builder, POINT)
    with loop(n - n_done) as i:
        entry = passes + (n_done + i) * len(PASS_FIELDS)
        write_switch("after", first, pitch, two, there - here, entry, tables)


def write_rows_back(
    points: Pointer, here: Integer, there: Integer, turns: Pointer, n_columns: Integer, passes: Pointer, n: Integer,
    tables: Pointer,
) -> None:  # fmt: skip
    """Undo `write_rows_forward`, but for a factor of the number of columns, where parts are swapped."""

    def turn() -> None:
        call(_write_turn_back, "turn_rows_back", points, here, there, turns, n_columns)

    def turn_in_pass(radix: int, has_twiddles: bool, step: Integer, factors: Pointer) -> None:
        name = f"turned_{radix}_{'before' if has_twiddles else 'never_back'}"
        write = partial(_write_turned_pass_back, radix, has_twiddles)
        call(write, name, points, here, there, turns, step, factors)

    first, two, pitch = points + here, Integer(points.builder, 2), Integer(points.builder, POINT)
    n_left = _write_choice(passes, n, tables)
    with loop(n - n_left) as i:
        entry = passes + (n - 1 - i) * len(PASS_FIELDS)
        write_switch("before", first, pitch, two, there - here, entry, tables)
    _write_choice(passes, n, tables, turn_in_pass, turn)


def _write_choice(
    passes: Pointer, n: Integer, tables: Pointer, turn_in_pass: Callable[..., None] | None = None,
    turn: Callable[[], None] | None = None,
) -> Integer:  # fmt: skip
    """Write the turn inside of the first pass, if there is such a pass, otherwise apart; return how many passes."""
    builder = passes.builder
    kind, _, step, first = ((passes + i).integer() for i in range(len(PASS_FIELDS)))
    kind = Integer.below(Integer(builder, 0), n, kind, Integer(builder, -1))
    n_done = cgutils.alloca_once_value(builder, INTEGER(0))
    builder.store(INTEGER(0), n_done)
    apart, end = builder.append_basic_block(), builder.append_basic_block()
    switch = builder.switch(kind.value, apart)
    for radix, has_twiddles in _TURNED:
        block = builder.append_basic_block()
        switch.add_case(INTEGER(RADICES.index(radix) + (0 if has_twiddles else len(RADICES))), block)
        with builder.goto_block(block):
            builder.store(INTEGER(1), n_done)
            if turn_in_pass:
                turn_in_pass(radix, has_twiddles, step, tables + first)
            builder.branch(end)
    with builder.goto_block(apart):
        if turn:
            turn()
        builder.branch(end)
    builder.position_at_end(end)
    return Integer(builder, builder.load(n_done))


def _write_turned_pass(
    radix: int, has_twiddles: bool, points: Pointer, here: Integer, source: Integer, there: Integer, turns: Pointer,
    step: Integer, factors: Pointer,
) -> None:  # fmt: skip
    """Write the first pass of both rows, the second one first: its source may be the first one."""
    one = Integer(points.builder, 1)
    with loop(one * 2) as i:
        start, target = points + Integer.below(i, one, source, here), points + Integer.below(i, one, there, here)
        of_row = turns + 2 - i * 2
        with loop(step) as j:
            columns = [j + step * t for t in range(radix)]
            turned = [(start + c * POINT).load_point() * (of_row + c * 4).spread_point() for c in columns]
            for t, point in transform(turned):
                if has_twiddles and t > 0:
                    point = point * (factors + j * (2 * radix - 2) + 2 * (t - 1)).spread_point()
                (target + columns[t] * POINT).store_point(point)


def _write_turned_pass_back(
    radix: int, has_twiddles: bool, points: Pointer, here: Integer, there: Integer, turns: Pointer, step: Integer,
    factors: Pointer,
) -> None:  # fmt: skip
    """Write the last pass back of both rows."""
    one = Integer(points.builder, 1)
    with loop(one * 2) as i:
        row, of_row = points + Integer.below(i, one, here, there), turns + i * 2
        with loop(step) as j:
            columns = [j + step * t for t in range(radix)]
            read = [(row + c * POINT).load_point() for c in columns]
            if has_twiddles:
                twiddles = [(factors + j * (2 * radix - 2) + 2 * t).spread_point() for t in range(radix - 1)]
                read[1:] = [point * twiddle for point, twiddle in zip(read[1:], twiddles, strict=True)]
            for t, point in transform(read):
                turn = (of_row + columns[t] * 4).spread_point()
                (row + columns[t] * POINT).store_point(turn_back(point, turn))


def _write_turn(
    points: Pointer, here: Integer, source: Integer, there: Integer, turns: Pointer, count: Integer
) -> None:
    """Multiply two rows of points by their turns."""
    with loop(count) as i:
        start, factors = points + i * POINT, turns + i * 4
        second = (start + source).load_point() * (factors + 2).spread_point()
        first = (start + here).load_point() * factors.spread_point()
        (start + there).store_point(second)
        (start + here).store_point(first)


def _write_turn_back(points: Pointer, here: Integer, there: Integer, turns: Pointer, count: Integer) -> None:
    """Multiply two rows of points by their conjugate turns."""
    with loop(count) as i:
        for row, factors in ((here, turns + i * 4), (there, turns + i * 4 + 2)):
            place = points + i * POINT + row
            place.store_point(turn_back(place.load_point(), factors.spread_point()))
