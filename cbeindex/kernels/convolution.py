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
import numpy as np
from numba.core import types
from numba.extending import intrinsic

from .batches import write_convolve_batch
from .butterflies import write_backward, write_forward
from .layouts import FIELDS, PASS_FIELDS, RADICES
from .tiles import POINT, TILE, write_load, write_multiply, write_store, write_turn, write_turn_back
from .vectors import LANES, Integer, Pointer, call, cgutils, loop

convolve: Any
convolve_batch: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    @np.errstate(invalid="ignore", over="ignore")
    def convolve(work: Any, layout: Any, tables: Any, factors: Any, n: int) -> None:
        """Convolve the first `n` rows of `work`, in place."""
        plan = dict(zip(FIELDS, layout.tolist(), strict=False))
        n_rows, n_columns = plan["n_rows"], plan["n_columns"]
        shape = plan["n_stripes"], plan["n_blocks"] * LANES, 2, LANES
        turns = tables[plan["turns"] :][: np.prod(shape)].reshape(shape)
        turns = _complex(turns).swapaxes(0, 1).reshape(shape[1], -1)[:, :n_columns]
        sources, targets = (layout[plan[name] :][: len(turns)] // POINT for name in ("sources", "targets"))
        is_kept = targets < n_rows
        for i in range(n):
            row = work[i * plan["row_floats"] :][: 2 * n_rows * n_columns].view(np.complex64)
            points = _transform(row.reshape(n_rows, n_columns), layout, tables, plan, "row")
            points = _transform((points[sources] * turns).T, layout, tables, plan, "column")
            points = _multiply(points, factors)
            points = _transform(points, layout, tables, plan, "column", inverse=True).T * turns.conj()
            stripes = np.empty((n_rows, n_columns), dtype=np.complex64)
            stripes[targets[is_kept]] = points[is_kept]
            row[:] = _transform(stripes, layout, tables, plan, "row", inverse=True).ravel()

    def convolve_batch(
        rows: Any, first: int, centre: Any, signs: Any, block: int, work: Any, layout: Any, tables: Any, factors: Any
    ) -> None:
        """Centre LANES rows, multiply them by the signs of a block and convolve them, into the first of `work`.

        Pieces of LANES columns that go beyond the rows are there already, centred, multiplied and padded.
        """
        dim, row_floats = rows.shape[1], layout[FIELDS.index("row_floats")]
        with np.errstate(invalid="ignore", over="ignore"):
            flipped = (rows[first : first + LANES] - centre) * signs[block]
        for i in range(LANES):
            work[i * row_floats :][:dim] = flipped[i]
        convolve(work, layout, tables, factors, LANES)

    def _complex(pairs: Any) -> Any:
        """Join real and imaginary parts, which are in the last axis but one."""
        return pairs[..., 0, :] + np.complex64(1j) * pairs[..., 1, :]

    def _transform(points: Any, layout: Any, tables: Any, plan: Any, axis: str, inverse: bool = False) -> Any:
        """Transform along the first axis, pass by pass."""
        n_passes = plan[f"n_{axis}_passes"]
        entries = layout[plan[f"{axis}_passes"] :][: n_passes * len(PASS_FIELDS)].reshape(-1, len(PASS_FIELDS))
        for kind, n_blocks, step, first in entries[:: -1 if inverse else 1]:
            radix = RADICES[kind % len(RADICES)]
            turns = np.ones((step, radix), dtype=np.complex64)
            if step > 1:
                turns[:, 1:] = tables[first:][: 2 * step * (radix - 1)].view(np.complex64).reshape(step, -1)
            turns = turns.T[:, :, np.newaxis]
            numbers = np.arange(radix)
            matrix = np.exp(-2j * np.pi / radix * np.outer(numbers, numbers)).astype(np.complex64)
            blocks = points.reshape(n_blocks, radix, step, -1)
            if inverse:
                blocks = np.einsum("st,btjl->bsjl", matrix.conj(), blocks * turns.conj())
            else:
                blocks = np.einsum("st,btjl->bsjl", matrix, blocks) * turns
            points = blocks.reshape(points.shape)
        return points

    def _multiply(points: Any, factors: Any) -> Any:
        """Multiply each point by the spectrum, together with its mirror image."""
        n_columns = len(points)
        points = points.reshape(n_columns, -1, LANES)
        out, n_blocks = np.empty_like(points), points.shape[1]
        for here in range(0, n_blocks, 2):
            there = min(here + 1, n_blocks - 1)
            n_pairs = n_columns if here != there else (n_columns + 1) // 2
            taken = factors[here // 2 * n_columns * 3 * POINT :][: n_pairs * 3 * POINT].reshape(n_pairs, 3, 2, LANES)
            own, other, shared = _complex(taken).swapaxes(0, 1)
            point, mirror = points[:n_pairs, here], points[::-1, there, ::-1][:n_pairs]
            out[::-1, there, ::-1][:n_pairs] = other * mirror - (shared * point).conj()
            out[:n_pairs, here] = own * point + shared * mirror.conj()
        return out.reshape(n_columns, -1)

else:

    @intrinsic
    def convolve(typing_context: Any, work: Any, layout: Any, tables: Any, factors: Any, n: Any) -> Any:
        """Convolve the first `n` rows of `work`, in place."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointers = [_array(context, builder, signature, arguments, i)[0] for i in range(4)]
            call(_write_convolve, "convolve", *pointers, Integer(builder, arguments[4]))
            return context.get_dummy_value()

        return types.void(work, layout, tables, factors, types.int64), generate

    @intrinsic
    def convolve_batch(
        typing_context: Any, rows: Any, first: Any, centre: Any, signs: Any, block: Any, work: Any, layout: Any,
        tables: Any, factors: Any,
    ) -> Any:  # fmt: skip
        """Centre LANES rows, multiply them by the signs of a block and convolve them, into the first of `work`."""
        index = types.int64

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            rows, dim = _array(context, builder, signature, arguments, 0)
            centre, signs, *others = (_array(context, builder, signature, arguments, i)[0] for i in (2, 3, 5, 6, 7, 8))
            rows, signs = rows + dim * Integer(builder, arguments[1]), signs + dim * Integer(builder, arguments[4])
            call(write_convolve_batch, "convolve_batch", rows, dim, centre, signs, *others)
            return context.get_dummy_value()

        return types.void(rows, index, centre, signs, index, work, layout, tables, factors), generate

    def _array(context: Any, builder: Any, signature: Any, arguments: Any, i: int) -> tuple[Pointer, Integer]:
        """Return where an array begins, and the length of its last axis."""
        array = context.make_array(signature.args[i])(context, builder, arguments[i])
        return Pointer(builder, array.data), Integer(builder, cgutils.unpack_tuple(builder, array.shape)[-1])


def _write_convolve(work: Pointer, layout: Pointer, tables: Pointer, factors: Pointer, n: Integer) -> None:
    plan = {name: (layout + i).integer() for i, name in enumerate(FIELDS)}
    columns = _Columns(work, layout, tables, plan, n)
    blocks = _Blocks(work, layout, tables, plan, n)
    n_chunks = plan["n_stripes"].chunks(plan["stripes_together"])
    with loop(n_chunks) as chunk:
        columns.forward(chunk)
    with loop(plan["n_blocks"].chunks(plan["pairs_together"] * 2)) as chunk:
        blocks.convolve(chunk, factors)
    # From the last stripe to the first: lanes beyond the last column are written over the columns of the next row.
    with loop(n_chunks) as chunk:
        columns.backward(n_chunks - 1 - chunk)


class _Columns:
    """The transforms of columns, in stripes of LANES columns, while a function is being written."""

    def __init__(self, work: Pointer, layout: Pointer, tables: Pointer, plan: dict[str, Integer], n: Integer) -> None:
        self._work, self._layout, self._tables, self._plan, self._n = work, layout, tables, plan, n
        self._stripes, self._stride = work + plan["stripes"], (plan["n_rows"] + 1) * POINT
        self._pitch = Integer(work.builder, POINT)
        self._passes = layout + plan["row_passes"], plan["n_row_passes"], tables

    def forward(self, chunk: Integer) -> None:
        """Write the way from rows to tiles."""
        count = self._count(chunk)
        self._each(chunk, lambda *stripe: self._move(write_load, "load", *stripe))
        call(write_forward, "forward", self._stripes, self._pitch, self._n * count, self._stride, *self._passes)
        self._each(chunk, lambda *stripe: self._turn(write_turn, "turn", "sources", *stripe))

    def backward(self, chunk: Integer) -> None:
        """Write the way from tiles to rows."""
        count = self._count(chunk)
        self._each(chunk, lambda *stripe: self._turn(write_turn_back, "turn_back", "targets", *stripe))
        call(write_backward, "backward", self._stripes, self._pitch, self._n * count, self._stride, *self._passes)
        self._each(chunk, lambda *stripe: self._move(write_store, "store", *stripe))

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

    def _move(self, write: Callable[..., None], name: str, row: Integer, stripe: Integer, points: Pointer) -> None:
        values = self._work + row * self._plan["row_floats"] + stripe * POINT
        call(write, name, values, self._plan["n_columns"] * 2, points, self._plan["n_rows"])

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

    def __init__(self, work: Pointer, layout: Pointer, tables: Pointer, plan: dict[str, Integer], n: Integer) -> None:
        self._plan, self._n = plan, n
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
