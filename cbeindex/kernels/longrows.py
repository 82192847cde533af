"""The transform of one long row in parts, so that several threads can work on it.

All parts of a stage have to be done before the next stage begins. The operations are those of `transform_rows`, and so
are the bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .convolution import backward_stripes, convolve_blocks, forward_stripes, n_block_chunks, n_stripe_chunks
from .jit import njit
from .layouts import BLOCKS, FIELDS, LOAD, PIECE, STRIPES, STRIPES_BACK
from .transform import add_sums, copy, pack
from .vectors import LANES

_LENGTH, _N_ROWS, _N_COLUMNS = (FIELDS.index(name) for name in ("length", "n_rows", "n_columns"))


@njit(cache=True, nogil=True)
def count_parts(stage: int, layout: Any, offset: int) -> Any:
    """Return the number of parts of a stage that may be worked on at once, 1 where their order matters."""
    if stage == LOAD:
        return -(-2 * layout[_N_ROWS] * layout[_N_COLUMNS] // PIECE)
    if stage == STRIPES:
        return n_stripe_chunks(layout)
    if stage == BLOCKS:
        return n_block_chunks(layout)
    if stage == STRIPES_BACK:
        return n_stripe_chunks(layout) if layout[_N_COLUMNS] % LANES == 0 else 1
    return -(-layout[_LENGTH] // PIECE) if offset % 64 == 0 else 1


@njit(cache=True, nogil=True)
def transform_part(
    stage: int, start: int, stop: int, rows: Any, row: int, block: int, centre: Any, signs: Any, layout: Any,
    tables: Any, coefficients: Any, work: Any, scratch: Any, projections: Any, codes: Any,
) -> bool:  # fmt: skip
    """Do the parts [start, stop) of a stage of one block of a row; tell whether what was written is finite."""
    offset = block * layout[_LENGTH]
    n_values = min(layout[_LENGTH], projections.shape[1] - offset)
    n_kept = -(-n_values // (2 * layout[_N_COLUMNS]))
    is_all = start == 0 and stop == count_parts(stage, layout, offset)
    if stage == LOAD:
        n_floats = 2 * layout[_N_ROWS] * layout[_N_COLUMNS]
        load(rows[row], centre, signs[block], start * PIECE, min(stop * PIECE, n_floats), work)
    elif stage == STRIPES:
        forward_stripes(work, scratch, layout, tables, coefficients[block], 1, n_kept, start, stop)
    elif stage == BLOCKS:
        convolve_blocks(work, scratch, layout, tables, coefficients[block], 1, n_kept, start, stop)
    elif stage == STRIPES_BACK:
        last = n_stripe_chunks(layout) if is_all else stop
        backward_stripes(work, scratch, layout, tables, coefficients[block], 1, n_kept, start, last)
    else:
        first, last = start * PIECE, n_values if is_all else min(stop * PIECE, n_values)
        if first < last:
            if len(projections):
                copy(work, first, projections, row, offset + first, last - first)
            return bool(pack(work, first, last - first, offset + first, codes, row))
    return True


@njit(cache=True, nogil=True)
def load(row: Any, centre: Any, signs: Any, start: int, stop: int, work: Any) -> None:
    """Centre values [start, stop) of a row and multiply them by signs; zeros follow the last value."""
    end = min(stop, len(row))
    values, offsets, flips, loaded = row[start:end], centre[start:end], signs[start:end], work[start:stop]
    for j in range(len(values)):
        loaded[j] = (values[j] - offsets[j]) * np.float32(flips[j])
    for j in range(len(values), len(loaded)):
        loaded[j] = 0


@njit(cache=True, nogil=True)
def sum_block(row: int, block: int, layout: Any, work: Any, n_bits: int, sums: Any) -> None:
    """Add the magnitudes and squares of a block that was written to the sums of a row."""
    length = layout[_LENGTH]
    add_sums(work, 0, min(length, n_bits - block * length), block, sums, row)
