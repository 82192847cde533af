"""Contenders that turn dense rows into packed codes, one thread each."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Floats of vectors that come from memory: 128 MB.
_BEYOND_CACHES = 2**25


def _fastest(call: Callable[[], Any], calls: int) -> float:
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


class Encoding(ABC):
    """A contender: makes its own copy of the same rows, then encodes them when told."""

    def __init__(self, dim: int, n_rows: int) -> None:
        self.dim = dim
        self.rows = np.random.default_rng(dim).standard_normal((n_rows, dim), dtype=np.float32)
        self.rows.setflags(write=False)

    def run(self, calls: int = 1) -> float:
        """Return the seconds of the fastest of some calls: on a shared machine many short calls find a quiet one."""
        return _fastest(lambda: self.encode(self.rows), calls)

    @abstractmethod
    def encode(self, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Encode and pack the rows."""


class Circulant(Encoding):
    """cbeindex, all bits of one block, centred."""

    def __init__(self, dim: int, n_rows: int) -> None:
        from cbeindex import CirculantEncoder

        super().__init__(dim, n_rows)
        self.encoder = CirculantEncoder(dim, n_bits=dim)

    def encode(self, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        codes: NDArray[np.uint8] = self.encoder.encode(rows, n_threads=1)
        return codes

    def run_single(self, calls: int) -> tuple[float, float]:
        """Return the seconds of the fastest of some calls for one vector: of `encode`, and inside the kernel.

        The second is the time of the kernel without that of a call for no rows.
        """
        from cbeindex.kernels.transform import transform_rows

        n_bits = self.encoder.n_bits
        codes = np.empty((1, -(-n_bits // 64)), dtype=np.uint64)
        out = np.empty((0, n_bits), dtype=np.float32), codes, np.empty((0, 2))
        arguments = (*self.encoder.kernel_arrays(), self.encoder.make_work(), *out)
        row = self.rows[:1]
        whole = _fastest(lambda: self.encoder.encode(self.rows[0], n_threads=1), calls)
        one, none = (_fastest(partial(transform_rows, row, 0, n, *arguments), calls) for n in (1, 0))
        return whole, one - none

    def share_of_memory(self) -> float:
        """Return the time of a sum over vectors that no cache holds, over the time to encode them."""
        rows = np.ones((max(1, _BEYOND_CACHES // self.dim), self.dim), dtype=np.float32)
        seconds = [(_fastest(rows.sum, 1), _fastest(lambda: self.encode(rows), 1)) for _ in range(5)]
        added, encoded = map(min, zip(*seconds, strict=True))
        return float(added / encoded)

    def errors(self) -> tuple[float, float]:
        """Return the relative errors of projections in root mean square: ours, and those of scipy in float32."""
        from scipy import fft

        rows, length = self.rows[:4], self.encoder.length
        flipped, spectrum = rows * self.encoder.signs[0].astype(np.float32), self.encoder.spectrum[0]
        wide = fft.rfft(flipped.astype(np.float64), length) * spectrum.astype(np.complex128)
        exact = fft.irfft(wide, length)[:, : self.dim]
        single = fft.irfft(fft.rfft(flipped, length) * spectrum, length)[:, : self.dim]
        ours, theirs = (
            float(np.linalg.norm(some - exact) / np.linalg.norm(exact))
            for some in (self.encoder.project(rows, n_threads=1), single)
        )
        return ours, theirs


class Hadamard(Encoding):
    """faiss.HadamardRotation (three rounds, padded to a power of two), then packbits."""

    def __init__(self, dim: int, n_rows: int) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        super().__init__(dim, n_rows)
        self.rotation = faiss.HadamardRotation(dim, 1234)

    def encode(self, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        return np.packbits(self.rotation.apply(rows) >= 0, axis=1, bitorder="little")


class Lsh(Encoding):
    """faiss.IndexLSH with n_bits = dim: a dim x dim rotation."""

    def __init__(self, dim: int, n_rows: int) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        super().__init__(dim, n_rows)
        self.index = faiss.IndexLSH(dim, dim)
        self.index.train(self.rows)

    def encode(self, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        return np.asarray(self.index.sa_encode(rows))


class Matrix(Encoding):
    """numpy: rows @ Gaussian matrix, then packbits."""

    def __init__(self, dim: int, n_rows: int) -> None:
        super().__init__(dim, n_rows)
        self.matrix = np.random.default_rng(0).standard_normal((dim, dim), dtype=np.float32)

    def encode(self, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        return np.packbits(rows @ self.matrix >= 0, axis=1, bitorder="little")


class ByTransform(Encoding):
    """The same projections as cbeindex, by the real transforms of a library, then packbits."""

    def __init__(self, dim: int, n_rows: int) -> None:
        super().__init__(dim, n_rows)
        self.spectrum = np.exp(2j * np.pi * np.random.default_rng(0).random(dim // 2 + 1)).astype(np.complex64)
        self.signs = np.random.default_rng(1).choice(np.array([-1, 1], dtype=np.float32), dim)
        self.prepare()

    def encode(self, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        return np.packbits(self.convolve(rows * self.signs) >= 0, axis=1, bitorder="little")

    def prepare(self) -> None:
        """Import and plan what `convolve` needs."""

    @abstractmethod
    def convolve(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Convolve rows by their transforms; they may be overwritten."""


class Scipy(ByTransform):
    """scipy.fft."""

    def convolve(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        from scipy import fft

        convolved: NDArray[np.float32] = fft.irfft(fft.rfft(rows) * self.spectrum, self.dim)
        return convolved


class Ducc(ByTransform):
    """ducc0.fft."""

    def convolve(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        from ducc0 import fft

        spectra = fft.r2c(rows, axes=(1,)) * self.spectrum
        convolved: NDArray[np.float32] = fft.c2r(spectra, axes=(1,), lastsize=self.dim, forward=False, inorm=2)
        return convolved


class Fftw(ByTransform):
    """FFTW by pyfftw, measured plans for blocks of rows."""

    def prepare(self) -> None:
        import pyfftw

        self.block = max(1, min(len(self.rows), 2**15 // self.dim))
        self.real = pyfftw.empty_aligned((self.block, self.dim), dtype="float32")
        self.complex = pyfftw.empty_aligned((self.block, self.dim // 2 + 1), dtype="complex64")
        self.forward = pyfftw.FFTW(self.real, self.complex, flags=("FFTW_MEASURE",))
        backward = ("FFTW_MEASURE", "FFTW_DESTROY_INPUT")
        self.backward = pyfftw.FFTW(self.complex, self.real, direction="FFTW_BACKWARD", flags=backward)

    def convolve(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        for first in range(0, len(rows), self.block):
            some = rows[first : first + self.block]
            self.real[: len(some)] = some
            self.forward.execute()
            self.complex *= self.spectrum
            self.backward.execute()
            some[:] = self.real[: len(some)]
        return rows


class Mkl(ByTransform):
    """Intel MKL by mkl_fft."""

    def convolve(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        import mkl_fft

        convolved: NDArray[np.float32] = mkl_fft.irfft(mkl_fft.rfft(rows) * self.spectrum, self.dim)
        return convolved


class Torch(ByTransform):
    """torch.fft on the CPU."""

    def prepare(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch_spectrum = torch.from_numpy(self.spectrum)

    def convolve(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        import torch

        spectra = torch.fft.rfft(torch.from_numpy(rows)) * self.torch_spectrum
        convolved: NDArray[np.float32] = torch.fft.irfft(spectra, self.dim).numpy()
        return convolved


CONTENDERS: dict[str, type] = {"cbeindex": Circulant, "hadamard": Hadamard, "lsh": Lsh, "matrix": Matrix}
TRANSFORMS: dict[str, type] = {"scipy": Scipy, "ducc0": Ducc, "pyfftw": Fftw, "mkl_fft": Mkl, "torch": Torch}
PACKAGES = {"hadamard": "faiss", "lsh": "faiss"} | {name: name for name in TRANSFORMS}
"""What contenders need beyond numpy."""
