"""Circular convolution of float32 rows with a fixed vector, as a plan of `encoders.plans` lays it out.

Columns of the matrix of points are transformed with LANES of them side by side, turned, transposed in tiles, and
transformed the other way (the four-step transform); after the product by the spectrum the way back is the same in
reverse. Nothing is reordered: the spectrum is stored in the order of the passes. No lanes hold more than one row, and
every row goes through the same operations, so that its result has the same bits in any batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core import types
from numba.extending import intrinsic

from .butterflies import write_backward, write_forward
from .jit import njit
from .layouts import FIELDS
from .tiles import POINT, TILE, write_load, write_multiply, write_store, write_turn, write_turn_back
from .vectors import LANES, Integer, Pointer, call, data_of, loop

forward_stripes: Any
convolve_blocks: Any
backward_stripes: Any

_N_STRIPES, _N_BLOCKS, _STRIPES_TOGETHER, _PAIRS_TOGETHER, _STRIPES = (
    FIELDS.index(name) for name in ("n_stripes", "n_blocks", "stripes_together", "pairs_together", "stripes")
)


# Inline: a function of its own would be compiled with passes of its own, beside those of `convolve_batch`.
@njit(inline="always", nogil=True)
def convolve(work: Any, layout: Any, tables: Any, factors: Any, n: int, n_kept: int) -> None:
    """Convolve the first `n` rows of `work`, in place: the first `n_kept` rows of the matrix of points of each."""
    scratch = work[layout[_STRIPES] :]
    forward_stripes(work, scratch, layout, tables, factors, n, n_kept, 0, n_stripe_chunks(layout))
    convolve_blocks(work, scratch, layout, tables, factors, n, n_kept, 0, n_block_chunks(layout))
    backward_stripes(work, scratch, layout, tables, factors, n, n_kept, 0, n_stripe_chunks(layout))


@njit(cache=True, nogil=True)
def n_stripe_chunks(layout: Any) -> Any:
    """Return how many chunks the stripes are worked on in."""
    return -(-layout[_N_STRIPES] // layout[_STRIPES_TOGETHER])


@njit(cache=True, nogil=True)
def n_block_chunks(layout: Any) -> Any:
    """Return how many chunks the blocks are worked on in."""
    return -(-layout[_N_BLOCKS] // (2 * layout[_PAIRS_TOGETHER]))


if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]
    from . import uncompiled

    forward_stripes, convolve_blocks = uncompiled.forward_stripes, uncompiled.convolve_blocks
    backward_stripes = uncompiled.backward_stripes

else:

    def _stage(write: Callable[..., None], name: str) -> Any:
        """Return an intrinsic that works on chunks [start, stop) of `n` rows; each thread needs its own scratch."""

        @intrinsic
        def stage(
            typing_context: Any, work: Any, scratch: Any, layout: Any, tables: Any, factors: Any, n: Any, n_kept: Any,
            start: Any, stop: Any,
        ) -> Any:  # fmt: skip
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                pointers = [data_of(context, builder, signature, arguments, i)[0] for i in range(5)]
                call(write, name, *pointers, *(Integer(builder, value) for value in arguments[5:]))
                return context.get_dummy_value()

            index = types.int64
            return types.void(work, scratch, layout, tables, factors, index, index, index, index), generate

        return stage

    def _write_forward_stripes(
        work: Pointer, scratch: Pointer, layout: Pointer, tables: Pointer, factors: Pointer, n: Integer,
        n_kept: Integer, start: Integer, stop: Integer,
    ) -> None:  # fmt: skip
        columns = _Columns(work, scratch, layout, tables, n)
        with loop(stop - start) as i:
            columns.forward(start + i)

    def _write_convolve_blocks(
        work: Pointer, scratch: Pointer, layout: Pointer, tables: Pointer, factors: Pointer, n: Integer,
        n_kept: Integer, start: Integer, stop: Integer,
    ) -> None:  # fmt: skip
        blocks = _Blocks(work, layout, tables, n)
        with loop(stop - start) as i:
            blocks.convolve(start + i, factors)

    def _write_backward_stripes(
        work: Pointer, scratch: Pointer, layout: Pointer, tables: Pointer, factors: Pointer, n: Integer,
        n_kept: Integer, start: Integer, stop: Integer,
    ) -> None:  # fmt: skip
        columns = _Columns(work, scratch, layout, tables, n)
        # From the last stripe to the first: lanes beyond the last column are written over the columns of the next row.
        with loop(stop - start) as i:
            columns.backward(stop - 1 - i, n_kept)

    forward_stripes = _stage(_write_forward_stripes, "forward_stripes")
    convolve_blocks = _stage(_write_convolve_blocks, "convolve_blocks")
    backward_stripes = _stage(_write_backward_stripes, "backward_stripes")


def _read_plan(layout: Pointer) -> dict[str, Integer]:
    return {name: (layout + i).integer() for i, name in enumerate(FIELDS)}


class _Columns:
    """The transforms of columns, in stripes of LANES columns, while a function is being written."""

    def __init__(self, work: Pointer, scratch: Pointer, layout: Pointer, tables: Pointer, n: Integer) -> None:
        self._plan = plan = _read_plan(layout)
        self._work, self._layout, self._tables, self._n = work, layout, tables, n
        self._stripes, self._stride = scratch, (plan["n_rows"] + 1) * POINT
        self._pitch = Integer(work.builder, POINT)
        self._passes = layout + plan["row_passes"], plan["n_row_passes"], tables

    def forward(self, chunk: Integer) -> None:
        """Write the way from rows to tiles."""
        count = self._count(chunk)
        self._each(chunk, lambda *stripe: self._move(write_load, "load", self._plan["n_rows"], *stripe))
        call(write_forward, "forward", self._stripes, self._pitch, self._n * count, self._stride, *self._passes)
        self._each(chunk, lambda *stripe: self._turn(write_turn, "turn", "sources", *stripe))

    def backward(self, chunk: Integer, n_kept: Integer) -> None:
        """Write the way from tiles to the first `n_kept` rows of points."""
        count = self._count(chunk)
        self._each(chunk, lambda *stripe: self._turn(write_turn_back, "turn_back", "targets", *stripe))
        call(write_backward, "backward", self._stripes, self._pitch, self._n * count, self._stride, *self._passes)
        self._each(chunk, lambda *stripe: self._move(write_store, "store", n_kept, *stripe))

    def _count(self, chunk: Integer) -> Integer:
        size = self._plan["stripes_together"]
        return size.minimum(self._plan["n_stripes"] - chunk * size)

    def _each(self, chunk: Integer, write: Callable[[Integer, Integer, Pointer], None]) -> None:
        """Write something for the stripes of a chunk, the last ones first, in all rows."""
        count = self._count(chunk)
        with loop(self._n) as row, loop(count) as i:
            number = count - 1 - i
            stripe = chunk * self._plan["stripes_together"] + number
            write(row, stripe, self._stripes + (row * count + number) * self._stride)

    def _move(
        self, write: Callable[..., None], name: str, count: Integer, row: Integer, stripe: Integer, points: Pointer
    ) -> None:
        values = self._work + row * self._plan["row_floats"] + stripe * POINT
        call(write, name, values, self._plan["n_columns"] * 2, points, count)

    def _turn(
        self, write: Callable[..., None], name: str, places: str, row: Integer, stripe: Integer, points: Pointer
    ) -> None:
        n_blocks, n_stripes = self._plan["n_blocks"], self._plan["n_stripes"]
        with loop(n_blocks) as block:
            tile = self._work + self._plan["blocks"] + ((row * n_blocks + block) * n_stripes + stripe) * TILE
            turns = self._tables + self._plan["turns"] + (stripe * n_blocks + block) * TILE
            call(write, name, points, self._layout + self._plan[places] + block * LANES, turns, tile)


class _Blocks:
    """The transforms of rows of points, in blocks of LANES rows, while a function is being written."""

    def __init__(self, work: Pointer, layout: Pointer, tables: Pointer, n: Integer) -> None:
        self._plan = plan = _read_plan(layout)
        self._n = n
        self._blocks, self._stride = work + plan["blocks"], plan["n_stripes"] * TILE
        self._pitch = Integer(work.builder, POINT)
        self._passes = layout + plan["column_passes"], plan["n_column_passes"], tables

    def convolve(self, chunk: Integer, factors: Pointer) -> None:
        """Write transforms, products and inverse transforms of some pairs of blocks, in all rows."""
        n_blocks, n_columns = self._plan["n_blocks"], self._plan["n_columns"]
        size = self._plan["pairs_together"]
        first = chunk * size * 2
        count = (size * 2).minimum(n_blocks - first)
        start = self._blocks + first * self._stride
        call(write_forward, "forward", start, self._pitch, self._n * count, self._stride, *self._passes)
        with loop(self._n) as row, loop(count.halves()) as pair:
            block = first + pair * 2
            here = self._blocks + (row * n_blocks + block) * self._stride
            is_pair = (block + 1, n_blocks)  # the last block may be its own mirror image
            there = here + Integer.below(*is_pair, self._stride, self._stride * 0)
            n_points = Integer.below(*is_pair, n_columns, n_columns.halves())
            here_factors = factors + block.halves() * n_columns * (3 * POINT)
            call(write_multiply, "multiply", here, there + (n_columns - 1) * POINT, n_points, here_factors)
        call(write_backward, "backward", start, self._pitch, self._n * count, self._stride, *self._passes)
