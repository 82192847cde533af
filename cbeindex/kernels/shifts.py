"""Products of sparse rows and circulant matrices, entry by entry.

An entry x in column i adds x * r[(j - i) mod length] to projection j. For consecutive j these are consecutive entries
of r, a run. `circles` holds r followed by a copy of its beginning, so that no run wraps around.
"""

import numpy as np

from .._core.typing import Doubles, Floats, Projections, Rows, SparseIndices
from .jit import njit

# Sums are accumulated in float64: for a row far from the origin, the difference to the centre is then accurate to the
# rounding of r. "contract" allows fused multiply-add, which halves the time.


@njit(cache=True, nogil=True, fastmath={"contract"})
def add_entry(value: float, run: Floats, sums: Doubles) -> None:
    """Add the product of an entry and its run of r to `sums`."""
    for j in range(sums.size):
        sums[j] += value * np.float64(run[j])


@njit(cache=True, nogil=True, fastmath={"contract"})
def add_four(values: Doubles, circle: Floats, starts: Rows, sums: Doubles) -> None:
    """Add the products of four entries and their runs of r, loading and storing each sum once."""
    a, b, c, d = values[0], values[1], values[2], values[3]
    r, s, t, u = circle[starts[0] :], circle[starts[1] :], circle[starts[2] :], circle[starts[3] :]
    for j in range(sums.size):
        sums[j] += (a * np.float64(r[j]) + b * np.float64(s[j])) + (c * np.float64(t[j]) + d * np.float64(u[j]))


@njit(cache=True, nogil=True)
def project(
    offsets: Rows, columns: SparseIndices, values: Floats, signs: Floats, circles: Floats, length: int,
    centre: Doubles, projections: Projections,
) -> None:  # fmt: skip
    """Project sparse rows and subtract the projections of the centre.

    `signs` is (n_blocks, dim), `circles` is (n_blocks, length + tile), and `projections` is (n_rows, n_bits). One tile
    of projections is summed at a time, in the first-level cache.
    """
    n_bits, tile = projections.shape[1], circles.shape[1] - length
    sums, four, starts = np.empty(tile), np.empty(4), np.empty(4, dtype=np.int64)
    for row in range(projections.shape[0]):
        for block in range(signs.shape[0]):
            n_rows = min(length, n_bits - block * length)
            for start in range(0, n_rows, tile):
                some = sums[: min(tile, n_rows - start)]
                some[:] = 0
                n_held = 0
                for entry in range(offsets[row], offsets[row + 1]):
                    column = np.int64(columns[entry])
                    four[n_held] = np.float64(values[entry]) * np.float64(signs[block, column])
                    starts[n_held] = start - column + (length if start < column else 0)
                    n_held += 1
                    if n_held == 4:
                        add_four(four, circles[block], starts, some)
                        n_held = 0
                for held in range(n_held):
                    add_entry(four[held], circles[block, starts[held] :], some)
                first = block * length + start
                for j in range(some.size):
                    projections[row, first + j] = some[j] - centre[first + j]
