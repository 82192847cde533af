"""Hamming kernels, measured in a process of their own: single blocks, and scans next to faiss IndexBinaryFlat."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.kernels.timing import Memory, fastest, read
from cbeindex.kernels import blocks, hamming, topk
from cbeindex.kernels.jit import njit


@njit(nogil=True)
def distances(planes: Any, numbers: Any, codes: Any, order: Any, ahead: int, limits: Any, out: Any) -> None:
    """Measure the distances of some queries to blocks in some order."""
    for block in order:
        blocks.distances_within(planes, numbers, codes, block, 0, codes.shape[1], ahead, limits, 0, out, 0)


@njit(nogil=True)
def plain_distances(query: Any, codes: Any, order: Any, out: Any) -> None:
    """Do the same for one query by a loop that is left to the compiler."""
    for block in order:
        out[:] = 0
        for w in range(codes.shape[1]):
            for row in range(16):
                word = codes[block, w, row] ^ query[w]
                word = word - (word >> np.uint64(1) & np.uint64(0x5555555555555555))
                word = (word & np.uint64(0x3333333333333333)) + (word >> np.uint64(2) & np.uint64(0x3333333333333333))
                word = word + (word >> np.uint64(4)) & np.uint64(0x0F0F0F0F0F0F0F0F)
                out[0, row] += np.int32(word * np.uint64(0x0101010101010101) >> np.uint64(56))


@dataclass
class Codes:
    """Random codes as faiss and as kernels have them."""

    n_bits: int
    rows: NDArray[np.uint8]
    blocks: NDArray[np.uint64]

    @classmethod
    def random(cls, n_bits: int, n_bytes: int, rng: np.random.Generator) -> Codes:
        """Make codes that take `n_bytes`, in whole blocks."""
        rows = rng.integers(0, 256, (max(16, n_bytes * 8 // n_bits // 16 * 16), n_bits // 8), dtype=np.uint8)
        words = padded(rows)
        return cls(n_bits, rows, np.ascontiguousarray(words.reshape(-1, 16, words.shape[1]).transpose(0, 2, 1)))


class Scan:
    """The kernels of a whole scan, with the arrays that they fill."""

    def __init__(self, codes: Codes, queries: NDArray[np.uint64], k: int, limit: int = 2**31) -> None:
        n = len(queries)
        self._codes, self._queries, self._k, self._limit = codes, queries, k, limit
        self._hidden, self._ranks = np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int32)
        self._limits, self._counts = np.empty((1, n), dtype=np.int64), np.empty((n, 2), dtype=np.int64)
        self._found = np.empty((n, topk.room_for(k)), dtype=np.uint64)
        self.keys = np.empty((n, k), dtype=np.uint64)

    def __call__(self) -> None:
        """Find the nearest rows of all queries that are within the limit."""
        self._limits[:], self._counts[:] = self._limit, 0
        hamming.scan(
            self._queries, self._codes.blocks, self._hidden, self._ranks, 0, len(self._codes.rows), self._k,
            self._limits, self._found, self._counts,
        )  # fmt: skip
        topk.put_in_order(self._found, self._counts, self.keys)


class Hamming:
    """What is measured in the process."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._memories = {where: Memory(n_bytes) for where, n_bytes in sizes.items()}

    def blocks(self, n_bits: int, where: str, rounds: int) -> dict[str, float]:
        """Return the nanoseconds a block of 16 rows, in random order; "read": those of reading as many bytes."""
        memory, n_words = self._memories[where], -(-n_bits // 64)
        codes = memory.as_items(128 * n_words).view(np.uint64).reshape(-1, n_words, 16)
        queries = np.random.default_rng(1).integers(0, 2**64, (4, n_words), dtype=np.uint64)
        planes, out = blocks.planes_of(queries), np.zeros((4, 16), dtype=np.int32)
        limits = np.full((1, 4), 2**31, dtype=np.int64)
        calls: dict[str, Callable[[Any], Any]] = {
            "1 query": lambda order: distances(planes, (0,), codes, order, 0, limits, out),
            "4 queries": lambda order: distances(planes, (0, 1, 2, 3), codes, order, 0, limits, out),
            "read": lambda order: memory.read(order[0], 128 * n_words * len(order)),
        }
        ns = fastest(calls, len(codes), 500, rounds)
        return ns | fastest({"plain": lambda order: plain_distances(queries[0], codes, order, out)}, len(codes), 100, 3)

    def scan(self, n_bits: int, n_bytes: int, n_queries: int, k: int, seconds: float) -> dict[str, float]:
        """Return the least seconds of our scan, of its counting alone, of faiss, and of a sum of the same words.

        The calls take turns. Times are by the wall clock: the CPU clock of a thread falls short in some short calls.
        """
        import faiss

        codes = Codes.random(n_bits, n_bytes, np.random.default_rng(0))
        queries = np.random.default_rng(1).integers(0, 256, (n_queries, n_bits // 8), dtype=np.uint8)
        words, k = padded(queries), min(k, len(codes.rows))
        faiss.omp_set_num_threads(1)
        index = faiss.IndexBinaryFlat(n_bits)
        index.add(codes.rows)
        scan, count = Scan(codes, words, k), Scan(codes, words, k, limit=-1)
        calls: dict[str, Callable[[], object]] = {
            "scan": scan,
            "count": count,
            "faiss": lambda: index.search(queries, k),
            "sum": lambda: read(codes.blocks.reshape(-1), codes.blocks.size),
        }
        for call in calls.values():
            call()
        np.testing.assert_array_equal(scan.keys >> np.uint64(32), index.search(queries, k)[0])
        least = dict.fromkeys(calls, np.inf)
        end, n_rounds = time.perf_counter() + seconds, 0
        while n_rounds < 3 or time.perf_counter() < end:
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                least[name] = min(least[name], time.perf_counter() - start)
            n_rounds += 1
        return {"rows": len(codes.rows), "bytes": codes.blocks.nbytes, **least}


def padded(rows: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return codes as words, with zeros behind them."""
    words = np.zeros((len(rows), -(-rows.shape[1] // 8)), dtype=np.uint64)
    words.view(np.uint8)[:, : rows.shape[1]] = rows
    return words
