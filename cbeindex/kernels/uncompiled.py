"""The convolution of `convolution` in numpy, in the same memory: what runs where kernels are not compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from .layouts import BATCH_FIELDS, FIELDS, PASS_FIELDS, RADICES
from .tiles import POINT
from .vectors import LANES


@np.errstate(invalid="ignore", over="ignore")
def forward_stripes(
    work: Any, scratch: Any, layout: Any, tables: Any, factors: Any, n: int, n_kept: int, start: int, stop: int
) -> None:
    """Take chunks of stripes of `n` rows to tiles."""
    plan, columns = _columns_of(layout, start, stop)
    sources = layout[plan["sources"] :][: plan["n_blocks"] * LANES] // POINT
    turns = _turns_of(plan, tables)[:, columns]
    for row, tiles in zip(_rows_of(work, plan, n), _tiles_of(work, plan, n), strict=True):
        points = _transform(row[:, columns], layout, tables, plan, "row")[sources] * turns
        _put(tiles, slice(None), columns, points.T)


@np.errstate(invalid="ignore", over="ignore")
def convolve_blocks(
    work: Any, scratch: Any, layout: Any, tables: Any, factors: Any, n: int, n_kept: int, start: int, stop: int
) -> None:
    """Transform chunks of blocks of `n` rows, multiply them by the spectrum, and transform them back."""
    plan = dict(zip(FIELDS, layout.tolist(), strict=False))
    size = 2 * plan["pairs_together"]
    n_columns, first, last = plan["n_columns"], start * size, min(stop * size, plan["n_blocks"])
    for tiles in _tiles_of(work, plan, n):
        points = _complex(tiles[first:last, :n_columns]).swapaxes(0, 1).reshape(n_columns, -1)
        points = _transform(points, layout, tables, plan, "column")
        points = _multiply(points, factors[first // 2 * n_columns * 3 * POINT :])
        points = _transform(points, layout, tables, plan, "column", inverse=True)
        _put(tiles, slice(first, last), slice(0, n_columns), points)


@np.errstate(invalid="ignore", over="ignore")
def backward_stripes(
    work: Any, scratch: Any, layout: Any, tables: Any, factors: Any, n: int, n_kept: int, start: int, stop: int
) -> None:
    """Take chunks of stripes of `n` rows back from tiles."""
    plan, columns = _columns_of(layout, start, stop)
    targets = layout[plan["targets"] :][: plan["n_blocks"] * LANES] // POINT
    is_kept = targets < plan["n_rows"]
    turns = _turns_of(plan, tables)[:, columns].conj()
    for row, tiles in zip(_rows_of(work, plan, n), _tiles_of(work, plan, n), strict=True):
        points = _complex(tiles[:, columns]).swapaxes(1, 2).reshape(len(turns), -1) * turns
        stripes = np.empty((plan["n_rows"], points.shape[1]), dtype=np.complex64)
        stripes[targets[is_kept]] = points[is_kept]
        row[:n_kept, columns] = _transform(stripes, layout, tables, plan, "row", inverse=True)[:n_kept]


def convolve_batch(
    rows: Any, first: int, centre: Any, signs: Any, block: int, work: Any, layout: Any, tables: Any, factors: Any
) -> None:
    """Centre LANES rows, multiply them by the signs of a block and convolve them, into the points of `work`.

    Pieces of LANES columns that go beyond the rows are there already, centred, multiplied and padded. Row by row:
    the memory has no place for the tiles of LANES rows.
    """
    dim, plan = rows.shape[1], dict(zip(FIELDS, layout.tolist(), strict=False))
    row_floats, points = plan["row_floats"], _batch_of(work, layout)
    with np.errstate(invalid="ignore", over="ignore"):
        flipped = (rows[first : first + LANES] - centre) * signs[block]
    alone = np.empty_like(work)
    n_chunks = max(plan["n_stripes"], plan["n_blocks"])  # at least: others are empty
    for i in range(LANES):
        alone[:row_floats] = work[i * row_floats :][:row_floats]
        alone[:dim] = flipped[i]
        for stage in (forward_stripes, convolve_blocks, backward_stripes):
            stage(alone, alone, layout, tables, factors, 1, plan["n_rows"], 0, n_chunks)
        points[..., i] = _rows_of(alone, plan, 1)[0].view(np.float32).reshape(points.shape[:-1])


def write_batch(work: Any, layout: Any, n_kept: int) -> None:
    """Write convolved points as the first LANES rows of `work`: the first `n_kept` rows of points of each."""
    points = _batch_of(work, layout)[:n_kept]
    for i in range(LANES):
        work[i * layout[FIELDS.index("row_floats")] :][: points[..., i].size] = points[..., i].ravel()


def pack_batch(work: Any, layout: Any, count: int, codes: Any, first: int, offset: int) -> int:
    """Write the signs of the first `count` convolved floats of LANES rows to codes, from bit `offset` on.

    Return the first row whose floats are not all finite, LANES if there is none.
    """
    floats = _batch_of(work, layout).reshape(-1, LANES)[:count].T
    packed = codes.astype("<u8").view(np.uint8)
    packed[first : first + LANES, offset // 8 : -(-(offset + count) // 8)] = np.packbits(floats >= 0, 1, "little")
    codes[:] = packed.view("<u8")
    is_bad = ~np.isfinite(floats).all(axis=1)
    return int(is_bad.argmax()) if is_bad.any() else LANES


def _batch_of(work: Any, layout: Any) -> Any:
    """Return the points of LANES rows: rows of points, columns and parts, lanes."""
    plan = dict(zip(FIELDS + BATCH_FIELDS, layout.tolist(), strict=False))
    n_rows, pitch = plan["n_rows"], plan["batch_pitch"]
    points = work[plan["batch_points"] :][: n_rows * pitch].reshape(n_rows, pitch)
    return points[:, : 2 * plan["n_columns"] * LANES].reshape(n_rows, -1, LANES)


def _columns_of(layout: Any, start: int, stop: int) -> tuple[dict[str, int], slice]:
    """Return the plan, and the columns of chunks of stripes."""
    plan = dict(zip(FIELDS, layout.tolist(), strict=False))
    size = plan["stripes_together"] * LANES
    return plan, slice(start * size, min(stop * size, plan["n_columns"]))


def _rows_of(work: Any, plan: dict[str, int], n: int) -> list[Any]:
    """Return the matrices of points of `n` rows."""
    n_rows, n_columns = plan["n_rows"], plan["n_columns"]
    floats = (work[i * plan["row_floats"] :][: 2 * n_rows * n_columns] for i in range(n))
    return [row.view(np.complex64).reshape(n_rows, n_columns) for row in floats]


def _tiles_of(work: Any, plan: dict[str, int], n: int) -> Any:
    """Return the tiles of `n` rows: blocks, columns, real and imaginary parts, lanes."""
    shape = n, plan["n_blocks"], plan["n_stripes"] * LANES, 2, LANES
    return work[plan["blocks"] :][: np.prod(shape)].reshape(shape)


def _turns_of(plan: dict[str, int], tables: Any) -> Any:
    """Return the factors between the transforms of columns and of rows: lanes of all blocks, columns."""
    shape = plan["n_stripes"], plan["n_blocks"] * LANES, 2, LANES
    turns = _complex(tables[plan["turns"] :][: np.prod(shape)].reshape(shape))
    return turns.swapaxes(0, 1).reshape(shape[1], -1)


def _put(tiles: Any, blocks: slice, columns: slice, points: Any) -> None:
    """Write points, by columns and lanes of all blocks, to tiles."""
    lanes = points.reshape(len(points), -1, LANES).swapaxes(0, 1)
    tiles[blocks, columns, 0], tiles[blocks, columns, 1] = lanes.real, lanes.imag


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
