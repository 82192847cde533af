"""How fast Hamming kernels are alone: one query and batches, from memory and cache, next to faiss IndexBinaryFlat."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Report, Table

BITS = (64, 128, 256, 512, 1_024, 2_048, 4_096, 16_384)
MEMORY_BYTES, CACHE_BYTES, BATCH_BYTES = 2**28, 2**20, 2**23


@dataclass
class Codes:
    """Random codes as faiss and as kernels have them."""

    n_bits: int
    rows: NDArray[np.uint64]
    blocks: NDArray[np.uint64]

    @classmethod
    def random(cls, n_bits: int, n_bytes: int, rng: np.random.Generator) -> Codes:
        """Make codes that take `n_bytes`, in whole blocks."""
        n_words = n_bits // 64
        rows = rng.integers(0, 2**64, (max(16, n_bytes // (8 * n_words) // 16 * 16), n_words), dtype=np.uint64)
        blocks = np.ascontiguousarray(rows.reshape(-1, 16, n_words).transpose(0, 2, 1))
        return cls(n_bits, rows, blocks)


class Scan:
    """The kernels, with the arrays that they fill."""

    def __init__(self, codes: Codes, queries: NDArray[np.uint64], k: int, limit: int = 2**31) -> None:
        from cbeindex.kernels import topk

        n = len(queries)
        self._codes, self._queries, self._k, self._limit = codes, queries, k, limit
        self._hidden, self._ranks = np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int32)
        self._limits, self._counts = np.empty((1, n), dtype=np.int64), np.empty((n, 2), dtype=np.int64)
        self._found = np.empty((n, topk.room_for(k)), dtype=np.uint64)
        self.keys = np.empty((n, k), dtype=np.uint64)

    def __call__(self) -> None:
        """Find the nearest rows of all queries that are within the limit."""
        from cbeindex.kernels import hamming, topk

        self._limits[:], self._counts[:] = self._limit, 0
        hamming.scan(
            self._queries, self._codes.blocks, self._hidden, self._ranks, 0, len(self._codes.rows), self._k,
            self._limits, self._found, self._counts,
        )  # fmt: skip
        topk.put_in_order(self._found, self._counts, self.keys)


def main(arguments: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks kernels", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: few bits, few bytes, few rounds")
    parser.add_argument("--bits", type=int, nargs="+", default=None, help="multiples of 64")
    parser.add_argument("--queries", type=int, nargs="+", default=(4, 32, 256))
    parser.add_argument("--k", type=int, nargs="+", default=(10, 100, 1_000))
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each line")
    parser.add_argument("--output", default=os.path.join("bench-report", "kernels.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    options.bits = options.bits or ((64, 1_024) if options.quick else BITS)
    scale = 64 if options.quick else 1
    report = Report("Hamming kernels", options.output)
    compile_times(report)
    single = report.table(
        "one query, k = 10",
        ["bits", "rows", "from", "GB/s", "plain sum", "faiss", "x faiss", "of limit"],
        "GB/s of codes; limit: the plain sum from memory, and counting without any result from cache",
    )
    for n_bits in options.bits:
        for place, n_bytes in (("memory", MEMORY_BYTES // scale), ("cache", CACHE_BYTES)):
            one_query(single, Codes.random(n_bits, n_bytes, np.random.default_rng(0)), place, options.seconds)
    batches = report.table(
        "batches",
        ["bits", "rows", "queries", "k", "ns a row", "faiss", "x faiss", "of limit"],
        "ns for a row and a query; limit: counting without any result",
    )
    for n_bits in options.bits:
        codes = Codes.random(n_bits, BATCH_BYTES // scale, np.random.default_rng(0))
        for n_queries in options.queries:
            for k in options.k:
                if k <= len(codes.rows):
                    batch(batches, codes, n_queries, k, options.seconds)


def one_query(table: Table, codes: Codes, place: str, seconds: float) -> None:
    """One row of the table of single queries."""
    times = compare(codes, 1, min(10, len(codes.rows)), seconds)
    speed = {name: codes.rows.nbytes / 1e9 / least for name, least in times.items()}
    limit = speed["sum"] if place == "memory" else speed["count"]
    table.row(
        codes.n_bits, len(codes.rows), place, speed["scan"], speed["sum"], speed["faiss"],
        speed["scan"] / speed["faiss"], speed["scan"] / limit,
    )  # fmt: skip


def batch(table: Table, codes: Codes, n_queries: int, k: int, seconds: float) -> None:
    """One row of the table of batches."""
    times = compare(codes, n_queries, k, seconds)
    each = {name: least * 1e9 / len(codes.rows) / n_queries for name, least in times.items()}
    table.row(
        codes.n_bits, len(codes.rows), n_queries, k, each["scan"], each["faiss"], each["faiss"] / each["scan"],
        each["count"] / each["scan"],
    )  # fmt: skip


def compare(codes: Codes, n_queries: int, k: int, seconds: float) -> dict[str, float]:
    """Return the least times of our scan, of its counting alone, of faiss, and of a sum of the same words.

    The calls take turns. Times are by the wall clock: the CPU clock of a thread falls short in some short calls.
    """
    import faiss

    queries = np.random.default_rng(1).integers(0, 2**64, (n_queries, codes.n_bits // 64), dtype=np.uint64)
    faiss.omp_set_num_threads(1)
    index = faiss.IndexBinaryFlat(codes.n_bits)
    index.add(codes.rows.view(np.uint8))
    scan = Scan(codes, queries, k)
    calls: dict[str, Callable[[], object]] = {
        "scan": scan,
        "count": Scan(codes, queries, k, limit=-1),
        "faiss": lambda: index.search(queries.view(np.uint8), k),
        "sum": lambda: codes.rows.sum(),
    }
    for call in calls.values():
        call()
    np.testing.assert_array_equal(scan.keys >> np.uint64(32), index.search(queries.view(np.uint8), k)[0])
    least = dict.fromkeys(calls, np.inf)
    end = time.perf_counter() + seconds
    while True:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            least[name] = min(least[name], time.perf_counter() - start)
        if time.perf_counter() > end:
            return least


def compile_times(report: Report) -> None:
    """Compile the kernels, or load them if they are cached, and print how long it took."""
    from cbeindex.kernels import blocks

    table = report.table(f"first call, {blocks.TARGET}", ["seconds"], "compiled, or loaded if cached")
    codes = Codes.random(64, 128, np.random.default_rng(0))
    start = time.perf_counter()
    Scan(codes, codes.rows[:5].copy(), 1)()
    table.row(time.perf_counter() - start)
