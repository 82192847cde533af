"""How fast every code is compared: BinaryIndex scan and cascade next to faiss IndexBinaryFlat, on the same codes."""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets
from benchmarks.harness import Contender, alternate
from benchmarks.report import Report, Table
from cbeindex import CirculantEncoder

BITS = (64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 25_600)
# Codes of one run take at most this many bytes, so that long codes of many rows do not take minutes a search.
MOST_BYTES = 2**27


class _Codes(ABC):
    """A contender: maps the codes that the parent wrote."""

    def __init__(self, folder: str, n_bits: int, n_threads: int) -> None:
        self.n_bits, self.n_threads = n_bits, n_threads
        self.base: NDArray[np.uint8] = np.load(Path(folder) / "base.npy")
        self.queries: NDArray[np.uint8] = np.load(Path(folder) / "queries.npy")

    def run(self, n_queries: int, k: int) -> NDArray[np.int32]:
        """Search for `turn_queries` in calls of `n_queries` each; return the distances."""
        n_all = turn_queries(n_queries)
        return np.concatenate([self.search(self.queries[i : i + n_queries], k) for i in range(0, n_all, n_queries)])

    @abstractmethod
    def search(self, queries: NDArray[np.uint8], k: int) -> NDArray[np.int32]:
        """Return the distances of the results."""


class Faiss(_Codes):
    """IndexBinaryFlat, with a heap or with counting."""

    def __init__(self, folder: str, n_bits: int, n_threads: int, use_heap: bool) -> None:
        import faiss

        super().__init__(folder, n_bits, n_threads)
        faiss.omp_set_num_threads(n_threads)
        self.index = faiss.IndexBinaryFlat(n_bits)
        self.index.use_heap = use_heap
        self.index.add(self.base)

    def search(self, queries: NDArray[np.uint8], k: int) -> NDArray[np.int32]:
        """Return the distances of the results."""
        return np.asarray(self.index.search(queries, k)[0])


class Ours(_Codes):
    """BinaryIndex in one of its modes."""

    def __init__(self, folder: str, n_bits: int, n_threads: int, mode: str) -> None:
        from cbeindex import BinaryIndex

        super().__init__(folder, n_bits, n_threads)
        self.mode = mode
        self.index = BinaryIndex(n_bits)
        self.index.add(self.base)

    def search(self, queries: NDArray[np.uint8], k: int) -> NDArray[np.int32]:
        """Return the distances of the results."""
        return np.asarray(self.index.search(queries, k, self.mode, n_threads=self.n_threads)[0])


CONTENDERS: dict[str, tuple[type[_Codes], dict[str, Any]]] = {
    "heap": (Faiss, {"use_heap": True}),
    "counting": (Faiss, {"use_heap": False}),
    "scan": (Ours, {"mode": "scan"}),
    "cascade": (Ours, {"mode": "cascade"}),
}


def main(arguments: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scan", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: few bits, few rows, few rounds")
    parser.add_argument(
        "--data", nargs="+", default=None, help="names of sets; by default two real ones or made-up data"
    )
    parser.add_argument("--bits", type=int, nargs="+", default=None)
    parser.add_argument("--queries", type=int, nargs="+", default=(1, 32, 256))
    parser.add_argument("--threads", type=int, nargs="+", default=None)
    parser.add_argument("--k", type=int, nargs="+", default=(10, 100))
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each cell and contender")
    parser.add_argument("--output", default=os.path.join("bench-report", "scan.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    options.bits = options.bits or ((256, 1_024) if options.quick else BITS)
    options.threads = options.threads or ((1,) if options.quick else (1, os.cpu_count() or 1))
    names = (
        options.data or [n for n in ("fashion-mnist-784", "glove6b-100") if n in datasets.available()] or ["planted"]
    )
    report = Report("Scanning codes", options.output)
    for name in names[:1] if options.quick else names:
        n_rows = 5_000 if options.quick else None
        data = (
            datasets.planted(10_000 if options.quick else 100_000, 256, 256)
            if name == "planted"
            else datasets.load(name)
        )
        compare(report, data, n_rows, options)
        growth(report, data, n_rows, options)


def compare(report: Report, data: datasets.Dataset, n_rows: int | None, options: argparse.Namespace) -> None:
    """Compare all contenders for all numbers of bits, queries, threads and results."""
    table = report.table(
        f"scan {data.name}",
        ["bits", "rows", "threads", "queries", "k", "contender", "QPS", "min-max", "GB/s", "x heap", "x best", "found"],
        "x: faiss time / this time, above 1: faster than faiss (heap; the better one); found: share of exact results",
    )
    for n_bits in options.bits:
        with tempfile.TemporaryDirectory() as folder:
            n = write_codes(data, n_bits, folder, n_rows)
            for n_threads in options.threads:
                measure(table, folder, n, n_bits, n_threads, options)


def measure(table: Table, folder: str, n: int, n_bits: int, n_threads: int, options: argparse.Namespace) -> None:
    """Add a row to the table for each number of queries, number of results and contender."""
    processes = start(folder, n_bits, n_threads, list(CONTENDERS))
    for n_queries in options.queries:
        for k in options.k:
            results = {name: p.call("run", n_queries, k) for name, p in processes.items()}
            once = processes["heap"].timed("run", n_queries, k)[0]
            rounds = 2 if options.quick else int(np.clip(options.seconds / once, 3, 200))
            timings = alternate(timed_searches(processes, n_queries, k), rounds)
            best = min(timings["heap"].median, timings["counting"].median)
            for name, timing in timings.items():
                seconds = timing.median * n_queries / turn_queries(n_queries)
                table.row(
                    n_bits, n, n_threads, n_queries, k, name, n_queries / seconds,
                    timing.spread(1e3 / turn_queries(n_queries)) + " ms",
                    n * n_bits / 8 * n_queries / seconds / 1e9, timings["heap"].median / timing.median,
                    best / timing.median,
                    float((results[name] <= results["heap"][:, -1:]).mean()),
                )  # fmt: skip
    for process in processes.values():
        process.close()


def growth(report: Report, data: datasets.Dataset, n_rows: int | None, options: argparse.Namespace) -> None:
    """How time grows with rows, at 1,024 bits, for one query and for many."""
    table = report.table(
        f"growth {data.name}", ["rows", "queries", "contender", "us/query", "ns/row"], "1,024 bits, one thread, k = 10"
    )
    n_all = n_rows or min(data.base.shape[0], MOST_BYTES // 128)
    for n in (n_all // 16, n_all // 4, n_all):
        with tempfile.TemporaryDirectory() as folder:
            write_codes(data, 1_024, folder, n)
            processes = start(folder, 1_024, 1, ["heap", "scan", "cascade"])
            for n_queries in (1, 256):
                calls = timed_searches(processes, n_queries, 10)
                for name, timing in alternate(calls, 2 if options.quick else 9).items():
                    seconds = timing.median / turn_queries(n_queries)
                    table.row(n, n_queries, name, seconds * 1e6, seconds / n * 1e9)
            for process in processes.values():
                process.close()


def turn_queries(n_queries: int) -> int:
    """Queries of a turn: single ones come several in a row, as they do in use."""
    return max(n_queries, 32 // n_queries * n_queries)


def start(folder: str, n_bits: int, n_threads: int, names: list[str]) -> dict[str, Contender]:
    """Start contenders on the codes in a folder."""
    return {
        name: Contender(
            f"benchmarks.scan:{CONTENDERS[name][0].__name__}",
            {"folder": folder, "n_bits": n_bits, "n_threads": n_threads, **CONTENDERS[name][1]},
            n_threads=n_threads,
        )
        for name in names
    }


def timed_searches(processes: dict[str, Contender], n_queries: int, k: int) -> dict[str, Callable[[], float]]:
    """Return the calls that `alternate` makes."""
    return {name: functools.partial(_seconds, p, n_queries, k) for name, p in processes.items()}


def _seconds(process: Contender, n_queries: int, k: int) -> float:
    return process.timed("run", n_queries, k)[0]


def write_codes(data: datasets.Dataset, n_bits: int, folder: str, n_rows: int | None = None) -> int:
    """Encode a set and write its codes for the contenders; return the number of rows."""
    n: int = min(n_rows or data.base.shape[0], data.base.shape[0], MOST_BYTES // (n_bits // 8))
    encoder = CirculantEncoder(data.dim, n_bits).fit(data.base[: min(n, 10_000)])
    np.save(Path(folder) / "base.npy", encoder.encode(data.base[:n]))
    np.save(Path(folder) / "queries.npy", encoder.encode(data.queries[:256]))
    return n
