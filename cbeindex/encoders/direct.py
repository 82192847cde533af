"""Convolution of sparse rows with fixed vectors, entry by entry: faster than FFT for rows with few entries."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from .._core.tuning import tuning
from .._core.typing import Doubles, Floats, Projections, Spectrum, Vectors
from ..data.sparserows import SparseRows


def most_entries(n_bits: int, length: int) -> int:
    """Return the number of entries of a row up to which direct convolution is faster than a transform."""
    n_blocks = -(-n_bits // length)
    return int(tuning().direct_gain * n_blocks * length * math.log2(max(2, length)) / n_bits)


class DirectConvolution:
    """Convolves sparse rows with vectors that are given by their half spectra, in O(entries * n_bits).

    Every row is convolved on its own, so that its result does not depend on the batch, to the last bit.

    Parameters
    ----------
    spectrum : complex64 array of shape (n_blocks, length // 2 + 1)
    signs : float32 array of shape (n_blocks, dim)
        Factors of the centred rows.
    centre : float32 array of shape (dim,)
        Subtracted from rows before the signs are applied.
    length, n_bits : int
    """

    def __init__(self, spectrum: Spectrum, signs: Vectors, centre: Vectors, length: int, n_bits: int) -> None:
        from scipy import fft

        self._signs, self._length, self._n_bits = signs, length, n_bits
        self.most_entries = most_entries(n_bits, length)
        tile = min(tuning().direct_tile, length)
        circles: NDArray[np.float32] = np.empty((len(spectrum), length + tile), dtype=np.float32)
        for circle, half in zip(circles, spectrum, strict=True):
            circle[:length] = fft.irfft(half.astype(np.complex128), n=length)
            circle[length:] = circle[: len(circle) - length]
        self._circles: Floats = circles
        self._centre: Doubles = np.zeros(n_bits)
        self._centre = self._project_centre(centre)

    def __call__(self, rows: SparseRows) -> Projections:
        """Project rows that have at most `most_entries` entries each: float32 (n, n_bits)."""
        projections: Projections = np.empty((len(rows), self._n_bits), dtype=np.float32)
        self._project(rows, projections)
        return projections

    def _project(self, rows: SparseRows, out: NDArray[np.floating]) -> None:
        kernels.shifts.project(
            rows.offsets, rows.indices, rows.values, self._signs, self._circles, self._length, self._centre, out
        )

    def _project_centre(self, centre: Vectors) -> Doubles:
        """Return the projections of the centre in float64.

        A centre with few entries is projected like a row, so that the projections of an equal row are exactly 0.
        """
        entries = SparseRows.from_dense(centre[np.newaxis], np.float32)
        projected: Doubles = np.zeros(self._n_bits)
        if len(entries.values) <= self.most_entries:
            self._project(entries, projected[np.newaxis])
            return projected
        from scipy import fft

        # Use r as rounded to float32, not its spectrum: the common part of rows and centre then cancels in float64.
        for block, (signs, circle) in enumerate(zip(self._signs, self._circles, strict=True)):
            start = block * self._length
            flipped = fft.rfft(centre.astype(np.float64) * signs, n=self._length)
            convolved = fft.irfft(flipped * fft.rfft(circle[: self._length].astype(np.float64)), n=self._length)
            projected[start : start + self._length] = convolved[: self._n_bits - start]
        return projected
