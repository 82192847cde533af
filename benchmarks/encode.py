"""How fast vectors become codes, next to Hadamard rotations, LSH matrices and plain numpy; and in what memory."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import (
    Contender,
    ContenderError,
    Timing,
    alternate,
    forget_peak_memory,
    last_line,
    peak_memory,
)
from benchmarks.report import Report

DIMS = (128, 384, 768, 1_024, 1_536, 4_096, 25_600, 51_200, 2**17, 2**20)
QUICK_DIMS = (128, 768, 4_096)
# Sparse vectors: dimensions, entries of a vector, bits of a code.
SPARSE_DIMS, SPARSE_ENTRIES, SPARSE_BITS = (25_600, 2**17, 2**20), (32, 256), 2_048
# A dense matrix of this many values (1 GiB of float32) is the largest that the matrix methods get.
LARGEST_MATRIX = 2**28


class _Encoding(ABC):
    """A contender: makes its own copy of the same rows, then encodes them when told."""

    def __init__(self, dim: int, n_rows: int) -> None:
        self.dim = dim
        self.rows = np.random.default_rng(dim).standard_normal((n_rows, dim), dtype=np.float32)
        self.rows.setflags(write=False)

    def run(self) -> int:
        """Encode all rows; return the bytes of the codes."""
        return self.encode(self.rows).nbytes

    @abstractmethod
    def encode(self, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Encode and pack the rows."""


class Circulant(_Encoding):
    """cbeindex, all bits of one block, centred."""

    def __init__(self, dim: int, n_rows: int) -> None:
        from cbeindex import CirculantEncoder

        super().__init__(dim, n_rows)
        self.encoder = CirculantEncoder(dim, n_bits=dim).fit(self.rows)

    def encode(self, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        return self.encoder.encode(rows, n_threads=1)


class Hadamard(_Encoding):
    """faiss.HadamardRotation (three rounds, padded to a power of two), then packbits."""

    def __init__(self, dim: int, n_rows: int) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        super().__init__(dim, n_rows)
        self.rotation = faiss.HadamardRotation(dim, 1234)

    def encode(self, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        return np.packbits(self.rotation.apply(rows) >= 0, axis=1, bitorder="little")


class Lsh(_Encoding):
    """faiss.IndexLSH with n_bits = dim: a dim x dim rotation."""

    def __init__(self, dim: int, n_rows: int) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        super().__init__(dim, n_rows)
        self.index = faiss.IndexLSH(dim, dim)
        self.index.train(self.rows)

    def encode(self, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        return np.asarray(self.index.sa_encode(rows))


class Matrix(_Encoding):
    """numpy: rows @ Gaussian matrix, then packbits."""

    def __init__(self, dim: int, n_rows: int) -> None:
        super().__init__(dim, n_rows)
        self.matrix = np.random.default_rng(0).standard_normal((dim, dim), dtype=np.float32)

    def encode(self, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        return np.packbits(rows @ self.matrix >= 0, axis=1, bitorder="little")


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

    def run(self) -> int:
        """Encode all rows; return the bytes of the codes."""
        return self.encode().nbytes

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
        return self.encoder.encode(self.rows, n_threads=1)


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
        from scipy import fft  # so that its import does not count

        from cbeindex import CirculantEncoder

        fft.rfft(np.zeros(8, dtype=np.float32))
        rows = np.random.default_rng(0).standard_normal((n_rows, dim), dtype=np.float32)
        forget_peak_memory()
        before = peak_memory()
        CirculantEncoder(dim, n_bits=dim).encode(rows, n_threads=1)
        return {"input": rows.nbytes, "beyond": peak_memory() - before}


SPARSE_CONTENDERS = {"cbeindex": SparseCirculant, "transform": SparseTransform, "matrix": SparseMatrix}
CONTENDERS = {"cbeindex": Circulant, "hadamard": Hadamard, "lsh": Lsh, "matrix": Matrix}
OF_FAISS = ("hadamard", "lsh")


def main(arguments: list[str]) -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks encode", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: few dimensions, few rounds")
    parser.add_argument("--rounds", type=int, default=9, help="rounds that the contenders alternate")
    parser.add_argument("--dims", type=int, nargs="+", help="dimensions to measure")
    parser.add_argument("--output", default=os.path.join("bench-report", "encode.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    report = Report("Encoding, one thread", options.output)
    speed(
        report,
        options.dims or (QUICK_DIMS if options.quick else DIMS),
        3 if options.quick else options.rounds,
    )
    sparse(report, SPARSE_DIMS[:1] if options.quick else SPARSE_DIMS, 3 if options.quick else options.rounds)
    memory(report, (2**17,) if options.quick else (2**20, 2**24))


def speed(report: Report, dims: tuple[int, ...], rounds: int) -> None:
    """Microseconds a vector for every dimension and contender."""
    table = report.table(
        "encode",
        ["d", "us/vector", "min-max", "hadamard", "lsh", "matrix", "x hadamard", "x lsh", "x matrix"],
        "n_bits = d; time includes packing; x: their time / cbeindex time, above 1: cbeindex is faster",
    )
    usable = list(CONTENDERS)
    if importlib.util.find_spec("faiss") is None:
        usable = [name for name in usable if name not in OF_FAISS]
        print(f"{' and '.join(OF_FAISS)} are left out: faiss is not installed")
    for dim in dims:
        n_rows = max(4, min(4_096, 2**23 // dim))
        names = [name for name in usable if name in ("cbeindex", "hadamard") or dim * dim <= LARGEST_MATRIX]
        timings = _timings({name: CONTENDERS[name] for name in names}, rounds, dim=dim, n_rows=n_rows)
        table.row(dim, *_cells(timings, n_rows, ("hadamard", "lsh", "matrix")))


def sparse(report: Report, dims: tuple[int, ...], rounds: int) -> None:
    """Microseconds a vector for sparse vectors."""
    table = report.table(
        "sparse",
        ["d", "entries", "us/vector", "min-max", "transform", "matrix", "x transform", "x matrix"],
        f"{SPARSE_BITS:,} bits; transform: cbeindex on the same vectors, dense; x as above",
    )
    for dim in dims:
        for n_entries in SPARSE_ENTRIES:
            n_rows = max(16, 2**22 // dim)
            names = [name for name in SPARSE_CONTENDERS if name != "matrix" or dim * SPARSE_BITS <= LARGEST_MATRIX]
            contenders = {name: SPARSE_CONTENDERS[name] for name in names}
            timings = _timings(contenders, rounds, dim=dim, n_rows=n_rows, n_entries=n_entries)
            table.row(dim, n_entries, *_cells(timings, n_rows, ("transform", "matrix")))


def _timings(contenders: Mapping[str, type], rounds: int, **arguments: int) -> dict[str, Timing]:
    """Run contenders in turn, each in its process; one that fails is left out, and it is said why."""
    processes: dict[str, Contender] = {}
    failed: set[str] = set()

    def fail(name: str, error: ContenderError) -> float:
        failed.add(name)
        print(f"{name} is left out: {last_line(error)}", flush=True)
        return math.nan

    def seconds(name: str) -> float:
        if name in failed:
            return math.nan
        try:
            return processes[name].timed("run")[0]
        except ContenderError as error:
            return fail(name, error)

    for name, contender in contenders.items():
        try:
            processes[name] = Contender(f"benchmarks.encode:{contender.__name__}", arguments)
        except ContenderError as error:
            fail(name, error)
    timings = alternate({name: partial(seconds, name) for name in processes}, rounds)
    for process in processes.values():
        process.close()
    return {name: timing for name, timing in timings.items() if name not in failed}


def _cells(timings: dict[str, Timing], n_rows: int, others: tuple[str, ...]) -> list[Any]:
    """Put our time, its spread, the times of others and the ratios into cells; None where there is no time."""
    scale = 1e6 / n_rows
    own = timings.get("cbeindex")
    of_others = [timings[name].median * scale if name in timings else None for name in others]
    if own is None:
        return [None, None, *of_others, *(None for _ in others)]
    ratios = [None if other is None else other / (own.median * scale) for other in of_others]
    return [own.median * scale, own.spread(scale), *of_others, *ratios]


def memory(report: Report, dims: tuple[int, ...]) -> None:
    """Peak memory beyond the input."""
    table = report.table("memory", ["d", "rows", "input MB", "beyond MB"], "resident peak while encoding")
    for dim in dims:
        n_rows = max(2, 2**23 // dim)
        with Contender("benchmarks.encode:Memory", {}) as process:
            peak = process.call("peak", dim, n_rows)
        table.row(dim, n_rows, peak["input"] / 1e6, peak["beyond"] / 1e6)
