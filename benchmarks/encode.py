"""How fast vectors become codes, next to Hadamard rotations, LSH matrices and plain numpy; and in what memory."""

from __future__ import annotations

import argparse
import os
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Contender, alternate, forget_peak_memory, peak_memory
from benchmarks.report import Report

DIMS = (128, 384, 768, 1_024, 1_536, 4_096, 25_600, 51_200, 2**17, 2**20)
QUICK_DIMS = (128, 768, 4_096)
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
        return self.index.sa_encode(rows)


class Matrix(_Encoding):
    """numpy: rows @ Gaussian matrix, then packbits."""

    def __init__(self, dim: int, n_rows: int) -> None:
        super().__init__(dim, n_rows)
        self.matrix = np.random.default_rng(0).standard_normal((dim, dim), dtype=np.float32)

    def encode(self, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        return np.packbits(rows @ self.matrix >= 0, axis=1, bitorder="little")


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


CONTENDERS = {"cbeindex": Circulant, "hadamard": Hadamard, "lsh": Lsh, "matrix": Matrix}


def main(arguments: list[str]) -> None:
    """Print both tables."""
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
    memory(report, (2**17,) if options.quick else (2**20, 2**24))


def speed(report: Report, dims: tuple[int, ...], rounds: int) -> None:
    """Microseconds a vector for every dimension and contender."""
    table = report.table(
        "encode",
        ["d", "us/vector", "min-max", "hadamard", "lsh", "matrix", "x hadamard", "x lsh", "x matrix"],
        "n_bits = d; time includes packing; x: their time / cbeindex time, above 1: cbeindex is faster",
    )
    for dim in dims:
        n_rows = max(4, min(4_096, 2**23 // dim))
        names = [name for name in CONTENDERS if name in ("cbeindex", "hadamard") or dim * dim <= LARGEST_MATRIX]
        processes = {
            name: Contender(f"benchmarks.encode:{CONTENDERS[name].__name__}", {"dim": dim, "n_rows": n_rows})
            for name in names
        }
        timings = alternate({name: (lambda p=p: p.timed("run")[0]) for name, p in processes.items()}, rounds)
        for process in processes.values():
            process.close()
        scale = 1e6 / n_rows
        times = {name: timings[name].median * scale if name in timings else None for name in CONTENDERS}
        others = [times[name] for name in ("hadamard", "lsh", "matrix")]
        own = timings["cbeindex"]
        ratios = [None if other is None else other / times["cbeindex"] for other in others]
        table.row(dim, times["cbeindex"], own.spread(scale), *others, *ratios)


def memory(report: Report, dims: tuple[int, ...]) -> None:
    """Peak memory beyond the input."""
    table = report.table("memory", ["d", "rows", "input MB", "beyond MB"], "resident peak while encoding")
    for dim in dims:
        n_rows = max(2, 2**23 // dim)
        with Contender("benchmarks.encode:Memory", {}) as process:
            peak = process.call("peak", dim, n_rows)
        table.row(dim, n_rows, peak["input"] / 1e6, peak["beyond"] / 1e6)
