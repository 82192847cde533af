"""Contenders that turn sparse rows into packed codes, and what encoding holds in memory."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import forget_peak_memory, peak_memory

SPARSE_BITS = 2_048


class Sparse(ABC):
    """A contender on sparse rows: entries in random columns."""

    def __init__(self, dim: int, n_rows: int, n_entries: int) -> None:
        from scipy import sparse

        rng = np.random.default_rng(dim)
        # A column from each of as many equal ranges: no column twice, and in order.
        width = dim // n_entries
        columns = (np.arange(n_entries) * width + rng.integers(0, width, (n_rows, n_entries))).ravel()
        values = rng.standard_normal(n_rows * n_entries, dtype=np.float32)
        self.rows = sparse.csr_array((values, columns, np.arange(n_rows + 1) * n_entries), shape=(n_rows, dim))

    def run(self, calls: int = 1) -> float:
        """Return the seconds of the fastest of some calls."""
        seconds = []
        for _ in range(calls):
            start = time.perf_counter()
            self.encode()
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    @abstractmethod
    def encode(self) -> NDArray[np.uint8]:
        """Encode and pack the rows."""


class SparseCirculant(Sparse):
    """cbeindex, entry by entry."""

    def __init__(self, dim: int, n_rows: int, n_entries: int) -> None:
        from cbeindex import CirculantEncoder

        super().__init__(dim, n_rows, n_entries)
        self.encoder = CirculantEncoder(dim, n_bits=SPARSE_BITS).fit(self.rows)

    def encode(self) -> NDArray[np.uint8]:
        codes: NDArray[np.uint8] = self.encoder.encode(self.rows, n_threads=1)
        return codes


class SparseTransform(SparseCirculant):
    """cbeindex on the same rows, dense: by transforms."""

    def __init__(self, dim: int, n_rows: int, n_entries: int) -> None:
        super().__init__(dim, n_rows, n_entries)
        self.rows = self.rows.toarray()


class SparseMatrix(Sparse):
    """scipy: CSR rows @ Gaussian matrix, then packbits."""

    def __init__(self, dim: int, n_rows: int, n_entries: int) -> None:
        super().__init__(dim, n_rows, n_entries)
        self.matrix = np.random.default_rng(0).standard_normal((dim, SPARSE_BITS), dtype=np.float32)

    def encode(self) -> NDArray[np.uint8]:
        return np.packbits(self.rows @ self.matrix >= 0, axis=1, bitorder="little")


class Memory:
    """cbeindex on rows that are read one at a time: what it holds at most beyond its input."""

    def peak(self, dim: int, n_rows: int) -> dict[str, int]:
        """Encode rows of `dim` values; return bytes of input and peak above what there was before encoding."""
        from cbeindex import CirculantEncoder

        CirculantEncoder(8).encode(np.zeros((1, 8)))  # so that imports and compiled kernels do not count
        rows = np.random.default_rng(0).standard_normal((n_rows, dim), dtype=np.float32)
        forget_peak_memory()
        before = peak_memory()
        CirculantEncoder(dim, n_bits=dim).encode(rows, n_threads=1)
        return {"input": rows.nbytes, "beyond": peak_memory() - before}


SPARSE_CONTENDERS: dict[str, type] = {"cbeindex": SparseCirculant, "transform": SparseTransform, "matrix": SparseMatrix}
