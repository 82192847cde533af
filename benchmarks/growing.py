"""Indexes that grow, for `benchmarks.growth`: each lives in a process of its own, which makes the rows itself.

Rows are in clusters, and are made block by block from the number of the block, so that any number of them takes the
memory of one block.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import resident_memory

Vectors = NDArray[np.float32]
Ids = NDArray[np.int64]

N_CLUSTERS = 2_000
N_TRUE = 10


def rows_of(block: int, n_rows: int, dim: int) -> Vectors:
    """Make a block of rows: clusters of different sizes and widths."""
    shared = np.random.default_rng(0)
    centres = shared.standard_normal((N_CLUSTERS, dim), dtype=np.float32)
    shares, widths = shared.pareto(3, N_CLUSTERS) + 0.2, shared.uniform(0.4, 0.9, N_CLUSTERS).astype(np.float32)
    rng = np.random.default_rng((1, block))
    which = rng.choice(N_CLUSTERS, n_rows, p=shares / shares.sum())
    noise = rng.standard_normal((n_rows, dim), dtype=np.float32)
    return centres[which] + widths[which, np.newaxis] * noise


class Truth:
    """The true neighbours of some queries among the rows so far, in a process of its own.

    Parameters
    ----------
    dim, step, n_queries : int
    """

    def __init__(self, dim: int, step: int, n_queries: int) -> None:
        self._dim, self._step = dim, step
        self._queries = rows_of(10**6, n_queries, dim)
        self._near = np.full((n_queries, N_TRUE), np.inf, dtype=np.float32)
        self._ids = np.full((n_queries, N_TRUE), -1)

    def add(self, block: int) -> None:
        """Compare a block of rows with the queries."""
        rows = rows_of(block, self._step, self._dim)
        apart = (rows**2).sum(axis=1) - 2 * self._queries @ rows.T
        near = np.concatenate([self._near, apart], axis=1)
        ids = np.concatenate(
            [self._ids, np.broadcast_to(block * self._step + np.arange(len(rows)), apart.shape)], axis=1
        )
        first = np.argpartition(near, N_TRUE, axis=1)[:, :N_TRUE]
        self._near, self._ids = np.take_along_axis(near, first, axis=1), np.take_along_axis(ids, first, axis=1)

    def ids(self) -> Ids:
        """Return the true neighbours, in no order."""
        return self._ids


class Growing(ABC):
    """An index to which blocks of rows are added.

    Parameters
    ----------
    dim, step, n_queries, n_threads : int
    """

    settings: ClassVar[tuple[int, ...]] = (1, 2, 4, 8, 16, 32, 64, 128, 256)

    def __init__(self, dim: int, step: int, n_queries: int, n_threads: int) -> None:
        self.dim, self.step, self.n_threads = dim, step, n_threads
        self.queries = rows_of(10**6, n_queries, dim)
        self.n_rows = 0
        self._memory = 0
        self.start(rows_of(0, step, dim))

    @abstractmethod
    def start(self, sample: Vectors) -> None:
        """Make the index; a sample is there for those who train before they add."""

    @abstractmethod
    def put(self, rows: Vectors) -> None:
        """Add rows, whose ids are consecutive numbers."""

    @abstractmethod
    def find(self, queries: Vectors, setting: int) -> Ids:
        """Find the nearest rows of queries."""

    def add(self, block: int) -> tuple[float, list[float]]:
        """Add a block; return the seconds of the call, and the seconds of searches of a reader beside it."""
        rows = rows_of(block, self.step, self.dim)
        if not self.n_rows:
            self._memory = resident_memory("/nowhere") or 0
        done, latencies = threading.Event(), []

        def read() -> None:
            while not done.is_set():
                begin = time.perf_counter()
                self.find(self.queries[:1], self.settings[2])
                latencies.append(time.perf_counter() - begin)
                done.wait(0.005)

        reader = threading.Thread(target=read)
        if self.n_rows and self.is_readable_while_adding:
            reader.start()
        begin = time.perf_counter()
        self.put(rows)
        seconds = time.perf_counter() - begin
        done.set()
        if reader.is_alive():
            reader.join()
        self.n_rows += len(rows)
        return seconds, latencies

    def add_singly(self, block: int, n_rows: int) -> float:
        """Add rows of a block one by one; return the seconds."""
        rows = rows_of(block, n_rows, self.dim)
        begin = time.perf_counter()
        for i in range(n_rows):
            self.put(rows[i : i + 1])
            self.n_rows += 1
        return time.perf_counter() - begin

    is_readable_while_adding: ClassVar[bool] = False

    def bytes_a_row(self) -> float:
        """Return how much the process has grown since the first row."""
        return max(0, (resident_memory("/nowhere") or 0) - self._memory) / max(1, self.n_rows)

    def search(self, setting: int) -> tuple[float, Ids]:
        """Search for all queries; return the seconds and the rows found."""
        begin = time.perf_counter()
        ids = self.find(self.queries, setting)
        return time.perf_counter() - begin, ids


class Cells(Growing):
    """CBEIndex with cells and float32 vectors. Kernels are compiled before the first row is added."""

    vectors: ClassVar[str | None] = "float32"
    buckets: ClassVar[str] = "cells"
    is_readable_while_adding = True

    def start(self, sample: Vectors) -> None:
        from cbeindex import CBEIndex

        warm, self.index = (
            CBEIndex(self.dim, metric="l2", vectors=self.vectors, buckets=self.buckets) for _ in range(2)
        )  # fmt: skip
        for _ in range(2):  # joins segments
            warm.add(sample, n_threads=self.n_threads)
        for queries in (self.queries, self.queries[:1]):
            warm.search(queries, N_TRUE, n_probes=self.settings[2], n_threads=1)

    def put(self, rows: Vectors) -> None:
        self.index.add(rows, n_threads=self.n_threads)

    def find(self, queries: Vectors, setting: int) -> Ids:
        return self.index.search(queries, N_TRUE, n_probes=setting, n_threads=1).ids


class CellsOfCodes(Cells):
    """CBEIndex with cells and codes only, of 4 bits a dimension."""

    vectors = None


class Clusters(Cells):
    """CBEIndex with clusters of Hamming codes and float32 vectors."""

    buckets = "clusters"


class FaissLists(Growing):
    """faiss IVF,PQfs with refinement, lists for the final number of rows, trained on the first block."""

    def start(self, sample: Vectors) -> None:
        import faiss

        n_lists = min(len(sample) // 40, 4 * int(math.sqrt(len(sample))))
        self.index: Any = faiss.index_factory(self.dim, f"IVF{n_lists},PQ{self.dim // 2}x4fs,RFlat")
        self.index.train(sample)

    def put(self, rows: Vectors) -> None:
        self.index.add(rows)

    def find(self, queries: Vectors, setting: int) -> Ids:
        import faiss

        self.index.k_factor = 8
        faiss.extract_index_ivf(self.index).nprobe = setting
        found: Ids = self.index.search(queries, N_TRUE)[1]
        return found


class Hnswlib(Growing):
    """hnswlib, M = 16; its room is enlarged as it grows."""

    settings = (16, 32, 64, 128, 256, 512)

    def start(self, sample: Vectors) -> None:
        import hnswlib

        self.index: Any = hnswlib.Index("l2", self.dim)
        self.index.init_index(len(sample), ef_construction=200, M=16)
        self.index.set_num_threads(self.n_threads)

    def put(self, rows: Vectors) -> None:
        if self.n_rows + len(rows) > self.index.get_max_elements():
            self.index.resize_index(self.n_rows + len(rows))
        self.index.add_items(rows, np.arange(self.n_rows, self.n_rows + len(rows)))

    def find(self, queries: Vectors, setting: int) -> Ids:
        self.index.set_ef(setting)
        return np.asarray(self.index.knn_query(queries, N_TRUE, num_threads=1)[0]).astype(np.int64)
