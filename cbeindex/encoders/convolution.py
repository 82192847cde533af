"""Circular convolution of float32 rows with fixed vectors by FFT: products with circulant matrices in O(n log n)."""

import numpy as np
from numpy.typing import NDArray

from .._core.tuning import tuning
from .._core.typing import Spectrum, Vectors
from .base import rows_per_block


def fast_length(dim: int) -> int:
    """Return the smallest length of at least `dim` whose real FFT is fast; prime lengths take 6 to 29 times as long."""
    from scipy import fft

    return int(fft.next_fast_len(dim, real=True))


class CircularConvolution:
    """Convolves rows with vectors that are given by their half spectra.

    Every row is transformed on its own, so that its result does not depend on the batch, to the last bit.

    Parameters
    ----------
    spectrum : complex64 array of shape (n_blocks, length // 2 + 1)
        Half spectra in the layout of `scipy.fft.rfft`.
    length : int
    """

    def __init__(self, spectrum: Spectrum, length: int) -> None:
        self.length = length
        self._n_blocks = len(spectrum)
        self._n_columns = _short_factor(length) if length >= tuning().split_transform_length else 1
        if self._n_columns == 1:
            self._spectrum = spectrum
        else:
            self._prepare_split(spectrum)

    def __call__(self, rows: Vectors) -> Vectors:
        """Convolve `rows`, float32 of shape (n, n_blocks, length), each block with its own vector.

        `rows` is overwritten, and the result may share its memory.
        """
        return self._convolve_split(rows) if self._n_columns > 1 else self._convolve_in_place(rows)

    def _convolve_in_place(self, rows: Vectors) -> Vectors:
        """Convolve by real transforms in the memory of `rows`: new memory would take up to twice the time."""
        from scipy import fftpack

        # The layout is [re 0, re 1, im 1, re 2, im 2, ...], with re length/2 at the end if the length is even.
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
        """Return the number of rows to convolve at a time: one for split transforms, which do not gain from batches."""
        return 1 if self._n_columns > 1 else rows_per_block(self._n_blocks * self.length)

    # The split transform is one step of the Cooley-Tukey algorithm. View a row of length N = N1 N2 as an (N1, N2)
    # matrix. Transform the columns (they are real, so half of the frequencies suffice), multiply element (k1, n2) by
    # the twiddle factor exp(-2 pi i k1 n2 / N), and transform the rows. Element (k1, k2) is then frequency k1 + N1 k2.
    # A convolution needs no particular order of frequencies, so nothing is transposed: the spectrum is stored in this
    # order, and the inverse takes the steps backwards.

    def _prepare_split(self, spectrum: Spectrum) -> None:
        """Compute the twiddle factors and reorder the spectra for the split transform."""
        n_rest = self.length // self._n_columns
        first = np.arange(self._n_columns // 2 + 1)[:, np.newaxis]
        second = np.arange(n_rest)
        self._twiddles: NDArray[np.complex64] = np.empty((len(first), n_rest), dtype=np.complex64)
        for k in range(len(first)):  # row by row: all of them in complex128 would take twice the memory
            self._twiddles[k] = np.exp((-2j * np.pi * k / self.length) * second)
        self._inverse_twiddles = self._twiddles.conj()
        frequency = first + self._n_columns * second
        mirrored = frequency > self.length // 2
        frequency[mirrored] = self.length - frequency[mirrored]
        self._spectrum = spectrum[:, frequency]
        np.conjugate(self._spectrum, out=self._spectrum, where=mirrored)

    def _convolve_split(self, rows: Vectors) -> Vectors:
        """Convolve by the split transform, row by row, in place."""
        from scipy import fftpack

        n_columns, n_rest = self._n_columns, self.length // self._n_columns
        step = max(4, tuning().split_transform_values // n_rest)
        strip = np.empty((step, n_rest), dtype=np.complex64)
        for i, block in np.ndindex(rows.shape[:2]):
            # The rows of `grid` are re 0, re 1, im 1, re 2, im 2, ..., with re N1/2 last if N1 is even.
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
        """Transform the rows of some first frequencies, multiply by the spectrum, and transform back."""
        from scipy import fft

        part *= self._twiddles[frequencies]
        part = fft.fft(part, axis=1, overwrite_x=True)
        part *= self._spectrum[block, frequencies]
        part = fft.ifft(part, axis=1, overwrite_x=True)
        part *= self._inverse_twiddles[frequencies]
        return part


def _short_factor(length: int) -> int:
    """Return the divisor of `length` nearest to 512 by ratio, or 1 if there is none from 16 to 4,096."""
    divisors = [n for n in range(16, 4097) if length % n == 0]
    return min(divisors, key=lambda n: abs(np.log(n / 512)), default=1)
