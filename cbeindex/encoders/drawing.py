"""Random parameters of the circulant encoder.

They are drawn from the raw words of PCG64: numpy guarantees this stream for all releases, but not the streams of its
distributions. A seed therefore defines the same encoder in every version.
"""

import numpy as np
from numpy.typing import NDArray

from .._core.typing import Spectrum


def _uniform(bits: np.random.PCG64, size: int) -> NDArray[np.float64]:
    """Draw uniform numbers in [0, 1) of 53 bits each."""
    words: NDArray[np.uint64] = bits.random_raw(size)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw_signs(bits: np.random.PCG64, size: int) -> NDArray[np.int8]:
    """Draw signs, +1 or -1, from one bit each."""
    words = bits.random_raw(-(-size // 64)).astype("<u8")
    flips = np.unpackbits(words.view(np.uint8), count=size, bitorder="little").view(np.int8)
    return np.int8(1) - np.int8(2) * flips


def flat_spectrum(bits: np.random.PCG64, length: int) -> Spectrum:
    """Draw a half spectrum of modulus 1 and random phases: its circulant matrix is orthogonal."""
    spectrum = np.exp(2j * np.pi * _uniform(bits, length // 2 + 1))
    single = [0, -1] if length % 2 == 0 else [0]  # DC and Nyquist are real
    spectrum[single] = np.where(spectrum[single].real >= 0, 1, -1)
    rounded: Spectrum = spectrum.astype(np.complex64)
    return rounded


def gaussian_spectrum(bits: np.random.PCG64, length: int) -> Spectrum:
    """Draw r ~ N(0, 1) by the Box-Muller transform, and return its half spectrum."""
    from scipy import fft

    radius = np.sqrt(-2 * np.log1p(-_uniform(bits, length)))
    r = radius * np.cos(2 * np.pi * _uniform(bits, length))
    spectrum: Spectrum = fft.rfft(r).astype(np.complex64)
    return spectrum
