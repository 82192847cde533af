"""Plans of circular convolutions: factors of the length, and all tables in the order in which kernels read them.

A row of 2 N floats is N complex numbers, z_n = x_2n + i x_2n+1, in a matrix of `n_rows` times `n_columns`. With Z the
transform of z, H that of the real vector, and theta = pi k / N, the convolution has the transform

    Y_k = A_k Z_k + B_k conj(Z_-k),   A_k = S_k - D_k sin theta,   B_k = i D_k cos theta,
    S_k = (H_k + H_k+N) / 2,          D_k = (H_k - H_k+N) / 2,     B_-k = -conj(B_k).

Frequency k = k1 + n_rows k2 mirrors n_rows - k1 and n_columns - 1 - k2. For k1 = 0 that is k1 = n_rows, the same row of
transforms turned once more, so row 0 is stored twice, as is the row that mirrors itself. The mirror image of a point
is then at the same distance from the other end, whatever its row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.tuning import tuning
from .._core.typing import Floats, Spectrum
from ..kernels.layouts import BATCH_FIELDS, FIELDS, RADICES
from .lengths import radices, split, transform_length

# Floats in a cache line.
_LINE = 16
# From these many bytes on, stripes and blocks are worked on a few at a time.
_LONG, _STRIPES = 2**15, 2**14


class ConvolutionPlan:
    """How rows are convolved with vectors of some length.

    Parameters
    ----------
    length : int
        Length of the circle. One that is odd or has a prime factor above 7 is convolved on a circle twice as long.
    lanes : int
        Floats in a register of the target: `kernels.vectors.LANES`.

    Attributes
    ----------
    n_points : int
        Complex numbers that are transformed.
    batch_rows : int
        Rows that are convolved side by side, 1 where that does not pay.
    layout : int64 array
        Sizes, passes and places of points, for the kernels.
    tables : float32 array
        Twiddle factors.
    """

    def __init__(self, length: int, lanes: int) -> None:
        self.length, self.lanes = length, lanes
        self.n_points = transform_length(length) // 2
        self._n_rows, self._n_columns = split(self.n_points)
        self._rows, is_kept = _lane_rows(self._n_rows, lanes)
        self._frequencies = _order(radices(self._n_columns))
        self._n_pairs = self._n_rows // 2 + 1
        self._is_short = 8 * lanes * self.n_points <= tuning().transform_batch_bytes
        self.batch_rows = lanes if self._is_short else 1
        self._sizes = {"length": length, "n_rows": self._n_rows, "n_columns": self._n_columns}
        integers, tables = _Pieces(np.int64, len(FIELDS + BATCH_FIELDS)), _Pieces(np.float32)
        self._lay_out_passes(integers, tables)
        self._lay_out_lanes(is_kept, integers, tables)
        self._lay_out_pairs(integers, tables)
        self._work_floats = max(self._divide_work(), self._divide_batch())
        self.layout, self.tables = integers.joined(), tables.aligned()
        self.layout[: len(FIELDS + BATCH_FIELDS)] = [self._sizes[name] for name in FIELDS + BATCH_FIELDS]

    def make_work(self) -> Floats:
        """Return memory for kernels to work in; each thread needs its own."""
        return _align(np.zeros(0, dtype=np.float32), self._work_floats)

    def make_scratch(self) -> Floats:
        """Return memory for one of several threads that work on the stripes of one row."""
        sizes = self._sizes
        return _align(np.zeros(0, dtype=np.float32), sizes["blocks"] - sizes["stripes"])

    def coefficients(self, spectrum: Spectrum) -> Floats:
        """Return the factors of a product by half spectra.

        Parameters
        ----------
        spectrum : complex64 array of shape (n_blocks, length // 2 + 1)

        Returns
        -------
        float32 array of shape (n_blocks, n_factors)
        """
        n_factors = self._sizes["batch_factors"] + (6 * self._n_columns * self._n_pairs if self._is_short else 0)
        factors = _align(np.zeros(0, dtype=np.float32), len(spectrum) * n_factors).reshape(len(spectrum), n_factors)
        for half, out in zip(spectrum, factors, strict=True):
            self._write_factors(half, out)
        return factors

    def _write_factors(self, half: NDArray[np.complex64], out: Floats) -> None:
        """Write the factors of each pair of blocks, and of each pair of rows: own, that of the mirror, shared."""
        whole = _extend(half, self.length, 2 * self.n_points)
        blocks = self._rows.reshape(-1, self.lanes)[::2]
        shape = len(blocks), self._n_columns, 3, 2, self.lanes
        factors = out[: math.prod(shape)].reshape(shape)
        for block, rows in enumerate(blocks):
            for i, values in enumerate(self._products(whole, rows)):
                factors[block, :, i, 0], factors[block, :, i, 1] = values.real, values.imag
            factors[block, ..., rows < 0] = 0
        if self._is_short:
            by_pair = np.stack(self._products(whole, np.arange(self._n_pairs)), axis=-1)
            out[self._sizes["batch_factors"] :] = by_pair.swapaxes(0, 1).astype(np.complex64).ravel().view(np.float32)

    def _products(self, whole: NDArray[np.complexfloating], rows: NDArray[np.int64]) -> list[NDArray[np.complex128]]:
        """Return own, other and shared factors of frequencies: of every column, of some rows."""
        n = self.n_points
        k = (rows + self._n_rows * self._frequencies[:, np.newaxis]) % n
        own, shared = _factors_of(whole, k)
        other, negative = _factors_of(whole, -k % n)
        # Half of them from the other half, so that it does not matter to the bits which is whose mirror image.
        return [own, other, np.where(2 * k <= n, shared, -negative.conj())]

    def _turns(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.complex64]:
        """Return the factors between the transforms of columns and of rows."""
        powers = np.outer(rows, columns) % self.n_points
        turns: NDArray[np.complex64] = np.exp(-2j * np.pi / self.n_points * powers).astype(np.complex64)
        return turns

    def _lay_out_passes(self, integers: _Pieces, tables: _Pieces) -> None:
        """Describe the passes of transforms of columns and rows."""
        for name, n in (("row", self._n_rows), ("column", self._n_columns)):
            entries, size = [], n
            for p in radices(n):
                step = size // p
                powers = np.outer(np.arange(step), np.arange(1, p)) % size
                factors = np.exp(-2j * np.pi / size * powers).astype(np.complex64)
                kind = RADICES.index(p) + (len(RADICES) if step == 1 else 0)
                entries.append((kind, n // size, step, tables.add(factors.view(np.float32))))
                size = step
            self._sizes[f"n_{name}_passes"] = len(entries)
            self._sizes[f"{name}_passes"] = integers.add(np.array(entries))

    def _lay_out_lanes(self, is_kept: NDArray[np.bool_], integers: _Pieces, tables: _Pieces) -> None:
        """Lay out the rows of all lanes, and their turns tile by tile."""
        lanes, sizes, rows = self.lanes, self._sizes, self._rows
        place = np.argsort(_order(radices(self._n_rows)))[rows % self._n_rows]
        sizes["sources"] = integers.add(place * 2 * lanes)
        sizes["targets"] = integers.add(np.where(is_kept, place, self._n_rows) * 2 * lanes)
        sizes["n_blocks"], sizes["n_stripes"] = len(rows) // lanes, -(-self._n_columns // lanes)
        tiles: Floats = np.empty((sizes["n_stripes"], len(rows), 2, lanes), dtype=np.float32)
        for stripe, tile in enumerate(tiles):
            turns = self._turns(rows, np.arange(stripe * lanes, (stripe + 1) * lanes))
            tile[:, 0], tile[:, 1] = turns.real, turns.imag
        sizes["turns"] = tables.add(tiles)

    def _lay_out_pairs(self, integers: _Pieces, tables: _Pieces) -> None:
        """Lay out the rows that mirror each other, and their turns column by column."""
        lanes, sizes, n_rows = self.lanes, self._sizes, self._n_rows
        first = np.arange(self._n_pairs)
        second = n_rows - first
        # An odd number of cache lines from row to row, so that the rows of a column do not compete for one place.
        pitch = (-(-2 * lanes * self._n_columns // _LINE) | 1) * _LINE
        place = np.argsort(_order(radices(n_rows))) * pitch
        is_copy = (second == n_rows) | (second == first)
        there = np.where(is_copy, n_rows * pitch, place[second % n_rows])
        sizes["n_pairs"], sizes["batch_pitch"], sizes["run_floats"] = self._n_pairs, pitch, 2 * self._n_columns
        sizes["pairs"] = integers.add(np.stack([place[first], place[second % n_rows], there], axis=1))
        columns = np.arange(self._n_columns if self._is_short else 0)
        turns = np.stack([self._turns(first, columns), self._turns(second, columns)], axis=-1)
        sizes["batch_turns"] = tables.add(turns.view(np.float32))
        n_factors = 6 * lanes * self._n_columns * -(-sizes["n_blocks"] // 2)
        sizes["batch_factors"] = -(-n_factors // _LINE) * _LINE

    def _divide_work(self) -> int:
        """Divide the working memory among rows, stripes and blocks; return its length."""
        sizes, point = self._sizes, 2 * self.lanes
        # Stripes are read and written beyond the end of a row, and signs are packed 64 at a time.
        sizes["row_floats"] = -(-(2 * self.n_points + max(point, 64)) // _LINE) * _LINE
        stripe, block = (self._n_rows + 1) * point, sizes["n_stripes"] * self.lanes * point
        row_bytes = 4 * (sizes["row_floats"] + sizes["n_stripes"] * stripe + sizes["n_blocks"] * block)
        together, is_long = max(1, tuning().transform_near_bytes // row_bytes), row_bytes > _LONG
        few = max(1, min(sizes["n_stripes"], _STRIPES // (4 * stripe)))
        sizes["rows_together"] = together
        sizes["stripes_together"] = few if is_long else sizes["n_stripes"]
        sizes["pairs_together"] = 1 if is_long else -(-sizes["n_blocks"] // 2)
        sizes["stripes"] = together * sizes["row_floats"]
        sizes["blocks"] = sizes["stripes"] + together * sizes["stripes_together"] * stripe
        return sizes["blocks"] + together * sizes["n_blocks"] * block

    def _divide_batch(self) -> int:
        """Divide the working memory among rows side by side and their points; return its length."""
        sizes, lanes = self._sizes, self.lanes
        column_bytes = 8 * lanes * self._n_rows
        sizes["columns_together"] = max(1, tuning().transform_near_bytes // column_bytes)
        sizes["batch_rows"] = self.batch_rows if self._is_short else np.iinfo(np.int64).max
        sizes["batch_points"] = lanes * sizes["row_floats"]
        # Rows of points are read and written in pieces, some of them beyond the last one.
        n_floats = sizes["batch_points"] + (self._n_rows + 1) * sizes["batch_pitch"] + lanes * lanes
        return n_floats if self._is_short else 0


class _Pieces:
    """Arrays one after the other, each from the beginning of a cache line on."""

    def __init__(self, dtype: Any, size: int = 0) -> None:
        self._parts = [np.zeros(size, dtype=dtype)]
        self._size = size

    def add(self, values: NDArray[Any]) -> int:
        """Append values; return where they begin."""
        for part in (np.zeros(-self._size % _LINE), values):
            self._parts.append(part.ravel().astype(self._parts[0].dtype, copy=False))
            self._size += part.size
        return self._size - values.size

    def joined(self) -> NDArray[Any]:
        """Return all of them."""
        return np.concatenate(self._parts)

    def aligned(self) -> NDArray[Any]:
        """Return all of them, from the beginning of a cache line on."""
        out = _align(np.zeros(0, dtype=np.float32), self._size)
        np.concatenate(self._parts, out=out)
        return out


def _factors_of(whole: NDArray[np.complexfloating], k: NDArray[np.int64]) -> tuple[NDArray[np.complex128], ...]:
    """Return A and B (above) of frequencies, over the number of points, from a half spectrum."""
    n = len(whole) - 1
    # Wide only here: all of the spectrum would take as much memory as the factors.
    lower, upper, angle = whole[k].astype(np.complex128), whole[n - k].conj().astype(np.complex128), np.pi * k / n
    mean, half_difference = (lower + upper) / (2 * n), (lower - upper) / (2 * n)
    return mean - half_difference * np.sin(angle), 1j * half_difference * np.cos(angle)


def _align(values: Floats, size: int | None = None) -> Floats:
    """Return values, zeros behind them up to `size`, from the beginning of a cache line on.

    Registers that are read across two lines cost twice the time.
    """
    size = len(values) if size is None else size
    memory = np.zeros(size + _LINE, dtype=np.float32)
    first = -memory.ctypes.data % (4 * _LINE) // 4
    memory[first : first + len(values)] = values
    return memory[first : first + size]


def _order(of_passes: Sequence[int]) -> NDArray[np.int64]:
    """Return the frequency that passes leave at each place."""
    frequencies = np.zeros(1, dtype=np.int64)
    for p in reversed(of_passes):
        frequencies = (np.arange(p)[:, np.newaxis] + p * frequencies).ravel()
    return frequencies


def _lane_rows(n_rows: int, lanes: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the row, 0 to `n_rows`, of each lane, -1 for idle lanes; and which of them are the first of their row.

    Lanes in reverse order are the mirror images; the two blocks that mirror each other stand side by side.
    """
    half = n_rows // 2 + 1
    n_blocks = -(-2 * half // lanes)
    rows = np.full(n_blocks * lanes, -1)
    rows[:half], rows[-half:] = np.arange(half), n_rows - np.arange(half)[::-1]
    is_kept = np.zeros(len(rows), dtype=bool)
    is_kept[:half], is_kept[-half:] = True, (rows[-half:] >= half) & (rows[-half:] < n_rows)
    pairs = [block // 2 if block % 2 == 0 else n_blocks - 1 - block // 2 for block in range(n_blocks)]
    return rows.reshape(-1, lanes)[pairs].ravel(), is_kept.reshape(-1, lanes)[pairs].ravel()


def _extend(half: NDArray[np.complex64], length: int, longer: int) -> NDArray[np.complexfloating]:
    """Return the half spectrum of a circle for a longer one: the vector, and it once more before its beginning."""
    if longer == length:
        return half
    circle = np.fft.irfft(half.astype(np.complex128), length)
    extended = np.zeros(longer)
    extended[:length] = circle
    extended[longer - length + 1 :] = circle[1:]
    return np.fft.rfft(extended)
