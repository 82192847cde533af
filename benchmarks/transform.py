"""How fast kernels turn rows into codes by transforms, next to scipy's transforms, Hadamard rotations and matrices."""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Contender, Timing, alternate
from benchmarks.report import Report

DIMS = (64, 128, 256, 384, 512, 768, 784, 1_024, 1_536, 2_048, 3_072, 4_096, 25_600, 2**17, 2**20, 2**24)
QUICK_DIMS = (128, 784)
# A dense matrix of this many values is the largest that is multiplied by.
LARGEST_MATRIX = 2**24
# A longer row takes numpy and faiss most of a second.
LONGEST = 2**20


class Encoding(ABC):
    """A contender: makes its own copy of the same rows, then encodes them when told."""

    def __init__(self, dim: int, n_rows: int) -> None:
        self.dim = dim
        self.rows = np.random.default_rng(dim).standard_normal((n_rows, dim), dtype=np.float32)
        self.rows.setflags(write=False)

    def run(self, calls: int) -> float:
        """Return the seconds of the fastest of some calls: on a shared machine many short calls find a quiet one."""
        seconds = []
        for _ in range(calls):
            start = time.perf_counter()
            self.encode(self.rows)
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    @abstractmethod
    def encode(self, rows: NDArray[np.float32]) -> Any:
        """Encode and pack the rows."""


class Kernel(Encoding):
    """The kernel on its own, with centre and signs."""

    def __init__(self, dim: int, n_rows: int) -> None:
        from cbeindex import CirculantEncoder
        from cbeindex.kernels import transform

        super().__init__(dim, n_rows)
        encoder = CirculantEncoder(dim, n_bits=dim, pad=False)
        codes = np.empty((n_rows, -(-dim // 64)), dtype=np.uint64)
        nothing = np.empty((0, dim), dtype=np.float32)
        self.spectrum, self.signs = encoder.spectrum[0], encoder.signs[0]
        self.arguments = (*encoder.kernel_arrays(), encoder.make_work())
        self.codes, self.nothing, self.no_sums = codes, nothing, np.empty((0, 2))
        self.transform = transform.transform_rows

    def encode(self, rows: NDArray[np.float32]) -> Any:
        return self.transform(rows, 0, len(rows), *self.arguments, self.nothing, self.codes, self.no_sums)

    def run_single(self, calls: int) -> float:
        """Return the seconds of the fastest of some calls for one row, without those of a call for none."""
        seconds = []
        for n in (0, 1):
            times = []
            for _ in range(calls):
                start = time.perf_counter()
                self.transform(self.rows, 0, n, *self.arguments, self.nothing, self.codes, self.no_sums)
                times.append(time.perf_counter() - start)
            seconds.append(min(times))
        return seconds[1] - seconds[0]

    def errors(self) -> tuple[float, float]:
        """Return the relative errors of projections, those of the kernel and of scipy's float32."""
        from scipy import fft

        rows = self.rows[:4]
        projections = np.empty((len(rows), self.dim), dtype=np.float32)
        self.transform(rows, 0, len(rows), *self.arguments, projections, self.codes[:0], self.no_sums)
        flipped = rows * self.signs.astype(np.float32)
        exact = fft.irfft(fft.rfft(flipped.astype(np.float64)) * self.spectrum.astype(np.complex128), self.dim)
        single = fft.irfft(fft.rfft(flipped) * self.spectrum, self.dim)
        ours, theirs = (float(np.linalg.norm(some - exact) / np.linalg.norm(exact)) for some in (projections, single))
        return ours, theirs


class Encoder(Encoding):
    """`CirculantEncoder.encode`, one thread."""

    def __init__(self, dim: int, n_rows: int) -> None:
        from cbeindex import CirculantEncoder

        super().__init__(dim, n_rows)
        self.encoder = CirculantEncoder(dim, n_bits=dim, pad=False)

    def encode(self, rows: NDArray[np.float32]) -> Any:
        return self.encoder.encode(rows, n_threads=1)


class Scipy(Encoding):
    """scipy: rfft, product, irfft, then packbits."""

    def __init__(self, dim: int, n_rows: int) -> None:
        super().__init__(dim, n_rows)
        phases = np.random.default_rng(0).random(dim // 2 + 1)
        self.spectrum = np.exp(2j * np.pi * phases).astype(np.complex64)
        self.signs = np.random.default_rng(1).choice(np.array([-1, 1], dtype=np.float32), dim)

    def encode(self, rows: NDArray[np.float32]) -> Any:
        from scipy import fft

        convolved = fft.irfft(fft.rfft(rows * self.signs) * self.spectrum, self.dim)
        return np.packbits(convolved >= 0, axis=1, bitorder="little")


class Hadamard(Encoding):
    """faiss.HadamardRotation (three rounds, padded to a power of two), then packbits."""

    def __init__(self, dim: int, n_rows: int) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        super().__init__(dim, n_rows)
        self.rotation = faiss.HadamardRotation(dim, 1234)

    def encode(self, rows: NDArray[np.float32]) -> Any:
        return np.packbits(self.rotation.apply(rows) >= 0, axis=1, bitorder="little")


class Matrix(Encoding):
    """numpy: rows @ Gaussian matrix, then packbits."""

    def __init__(self, dim: int, n_rows: int) -> None:
        super().__init__(dim, n_rows)
        self.matrix = np.random.default_rng(0).standard_normal((dim, dim), dtype=np.float32)

    def encode(self, rows: NDArray[np.float32]) -> Any:
        return np.packbits(rows @ self.matrix >= 0, axis=1, bitorder="little")


CONTENDERS = {"encoder": Encoder, "scipy": Scipy, "hadamard": Hadamard, "matrix": Matrix}


def main(arguments: list[str]) -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks transform", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: few dimensions, few rounds")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that the contenders alternate")
    parser.add_argument("--dims", type=int, nargs="+", help="dimensions to measure")
    parser.add_argument("--output", default=os.path.join("bench-report", "transform.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    report = Report("Transforms, one thread", options.output)
    dims = tuple(options.dims or (QUICK_DIMS if options.quick else DIMS))
    speed(report, dims, 2 if options.quick else options.rounds)
    accuracy(report, dims)


def speed(report: Report, dims: tuple[int, ...], rounds: int) -> None:
    """Microseconds a row for every dimension and contender."""
    names = [name for name in CONTENDERS if name != "hadamard" or importlib.util.find_spec("faiss") is not None]
    table = report.table(
        "transform",
        ["d", "kernel", "one row", *CONTENDERS, *(f"x {name}" for name in CONTENDERS)],
        "us a row, fastest of many calls; time includes packing; x: their time / kernel time, above 1: the kernel is "
        "faster; one row: a call for one row alone, without the cost of the call",
    )
    for dim in dims:
        n_rows, calls = max(1, min(1_024, 2**18 // dim)), max(1, 2**18 // dim)
        taken = [name for name in names if (name != "matrix" or dim * dim <= LARGEST_MATRIX) and dim <= LONGEST]
        processes = {"kernel": Contender("benchmarks.transform:Kernel", {"dim": dim, "n_rows": n_rows})}
        for name in taken:
            factory = f"benchmarks.transform:{CONTENDERS[name].__name__}"
            processes[name] = Contender(factory, {"dim": dim, "n_rows": n_rows})
        measured = {name: partial(process.call, "run", min(8, calls)) for name, process in processes.items()}
        timings: dict[str, Timing] = alternate(measured, rounds)
        single = min(processes["kernel"].call("run_single", calls) for _ in range(rounds))
        for process in processes.values():
            process.close()
        least = {name: min(timing.seconds) * 1e6 / n_rows for name, timing in timings.items()}
        others = [least.get(name) for name in CONTENDERS]
        ratios = [None if other is None else other / least["kernel"] for other in others]
        table.row(dim, least["kernel"], single * 1e6, *others, *ratios)


def accuracy(report: Report, dims: tuple[int, ...]) -> None:
    """Relative errors of projections against float64."""
    table = report.table(
        "accuracy", ["d", "kernel", "scipy"], "relative error of float32 projections in root mean square"
    )
    for dim in dims:
        with Contender("benchmarks.transform:Kernel", {"dim": dim, "n_rows": 4}) as process:
            table.row(dim, *process.call("errors"))
