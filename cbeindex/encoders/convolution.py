"""Circular convolution of float32 rows with fixed vectors: the product by a circulant matrix, in O(n log n)."""

import numpy as np
from numpy.typing import NDArray

from .._core.typing import Spectrum, Vectors
from .base import rows_per_block

# From this length on a transform is cut in two, because one that leaves the second-level cache is slower (gain of the
# cut measured at 2**16: 1.3x, 2**17: 1.1x, 2**18: 1.5x, 2**20: 1.6x).
_LONG = 2**16
# Elements that a stage of the cut transform works on at a time, so that they stay in the second-level cache.
_STRIP = 2**15


def fast_length(dim: int) -> int:
    """Smallest length of at least `dim` whose real transform is fast (prime lengths cost 6-29x)."""
    from scipy import fft

    return int(fft.next_fast_len(dim, real=True))


class CircularConvolution:
    """Convolves rows with the vectors whose half spectra are given.

    Every row is transformed alone, whatever batch it comes in, so its result has the same bits in any batch.

    Parameters
    ----------
    spectrum : complex64 array of shape (n_blocks, length // 2 + 1)
        Half spectra, as `scipy.fft.rfft` lays them out.
    length : int
    """

    def __init__(self, spectrum: Spectrum, length: int) -> None:
        self.length = length
        self._n_blocks = len(spectrum)
        self._n_columns = _short_factor(length) if length >= _LONG else 1
        if self._n_columns == 1:
            self._spectrum = spectrum
        else:
            self._prepare_cut(spectrum)

    def __call__(self, rows: Vectors) -> Vectors:
        """Convolve `rows`, float32 of shape (n, n_blocks, length), each block with its own vector.

        `rows` is overwritten; the result may be in its memory.
        """
        return self._convolve_cut(rows) if self._n_columns > 1 else self._convolve_in_place(rows)

    def _convolve_in_place(self, rows: Vectors) -> Vectors:
        """Convolve by real transforms that stay in the memory of `rows`: fresh memory costs up to twice the time."""
        from scipy import fftpack

        # Laid out as [re 0, re 1, im 1, re 2, im 2, ...], with re length/2 at the end when the length is even.
        transformed = fftpack.rfft(rows, axis=-1, overwrite_x=True)
        n_pairs = (self.length - 1) // 2
        pairs = transformed[..., 1 : 1 + 2 * n_pairs].view(np.complex64)
        pairs *= self._spectrum[:, 1 : 1 + n_pairs]
        transformed[..., 0] *= self._spectrum[:, 0].real
        if self.length % 2 == 0:
            transformed[..., -1] *= self._spectrum[:, -1].real
        convolved: Vectors = fftpack.irfft(transformed, axis=-1, overwrite_x=True)
        return convolved

    def rows_per_block(self) -> int:
        """Rows to convolve at a time; a long transform gains nothing from a second one beside it."""
        return 1 if self._n_columns > 1 else rows_per_block(self._n_blocks * self.length)

    # A row of length N = N1 N2 as an (N1, N2) matrix: transform the columns (real, so half of the frequencies do),
    # turn element (k1, n2) by exp(-2 pi i k1 n2 / N), transform the rows; place (k1, k2) then holds frequency
    # k1 + N1 k2 (Cooley and Tukey's step). A convolution can leave its spectrum in that order, so nothing is ever
    # transposed: multiply by the spectrum in the same order and go back the same way.

    def _prepare_cut(self, spectrum: Spectrum) -> None:
        """Lay out the turns, there and back, and the spectra in the order of the cut transform."""
        n_rest = self.length // self._n_columns
        first = np.arange(self._n_columns // 2 + 1)[:, np.newaxis]
        second = np.arange(n_rest)
        self._turns: NDArray[np.complex64] = np.empty((len(first), n_rest), dtype=np.complex64)
        for k in range(len(first)):  # by rows: complex128 of the whole would be twice the result
            self._turns[k] = np.exp((-2j * np.pi * k / self.length) * second)
        self._turns_back = self._turns.conj()
        frequency = first + self._n_columns * second
        mirrored = frequency > self.length // 2
        frequency[mirrored] = self.length - frequency[mirrored]
        self._spectrum = spectrum[:, frequency]
        np.conjugate(self._spectrum, out=self._spectrum, where=mirrored)

    def _convolve_cut(self, rows: Vectors) -> Vectors:
        """Convolve by the cut transform, one row after the other, in place."""
        from scipy import fftpack

        n_columns, n_rest = self._n_columns, self.length // self._n_columns
        step = max(4, _STRIP // n_rest)
        strip = np.empty((step, n_rest), dtype=np.complex64)
        for i, block in np.ndindex(rows.shape[:2]):
            # Rows of `grid` become re 0, re 1, im 1, re 2, im 2, ..., with re N1/2 last when N1 is even.
            grid = fftpack.rfft(rows[i, block].reshape(n_columns, n_rest), axis=0, overwrite_x=True)
            for start in range(1, (n_columns + 1) // 2, step):
                stop = min(start + step, (n_columns + 1) // 2)
                pairs = grid[2 * start - 1 : 2 * stop - 1].reshape(-1, 2, n_rest)
                part = strip[: stop - start]
                part.real, part.imag = pairs[:, 0], pairs[:, 1]
                part = self._convolve_strip(part, block, slice(start, stop))
                pairs[:, 0], pairs[:, 1] = part.real, part.imag
            for k in (0, n_columns // 2) if n_columns % 2 == 0 else (0,):
                real_row = grid[max(0, 2 * k - 1)]
                part = real_row[np.newaxis].astype(np.complex64)
                real_row[:] = self._convolve_strip(part, block, slice(k, k + 1))[0].real
            rows[i, block] = fftpack.irfft(grid, axis=0, overwrite_x=True).reshape(-1)
        return rows

    def _convolve_strip(self, part: NDArray[np.complex64], block: int, frequencies: slice) -> NDArray[np.complex64]:
        """Turn, transform, multiply, and go back, for the rows of some first frequencies."""
        from scipy import fft

        part *= self._turns[frequencies]
        part = fft.fft(part, axis=1, overwrite_x=True)
        part *= self._spectrum[block, frequencies]
        part = fft.ifft(part, axis=1, overwrite_x=True)
        part *= self._turns_back[frequencies]
        return part


def _short_factor(length: int) -> int:
    """Divisor of `length` nearest to 512 by ratio, or 1 when there is none from 16 to 4,096."""
    divisors = [n for n in range(16, 4097) if length % n == 0]
    return min(divisors, key=lambda n: abs(np.log(n / 512)), default=1)
