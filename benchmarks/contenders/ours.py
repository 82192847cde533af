"""CBEIndex in its ways."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from benchmarks.adapter import Adapter, Ids, Setting, Task
from benchmarks.chase import seconds_of_step
from benchmarks.contenders.sizes import BEAMS, probes
from cbeindex import CBEIndex

# Rows of an index that is made before the clock runs: enough to be fitted, and for buckets of every kind.
_N_WARM_UP = 9_000


class Ours(Adapter):
    """CBEIndex."""

    group = "ours"
    package = None
    buckets: ClassVar[str | None] = None
    mode: ClassVar[str] = "auto"
    vectors: ClassVar[str] = "float32"
    codes_rerank: ClassVar[str | None] = "asymmetric"
    vectors_rerank: ClassVar[str] = "exact"
    has_default_bits: ClassVar[bool] = False

    def warm_up(self) -> None:
        """Compile what a small index takes, or load it from the cache."""
        self.made(self.base[:_N_WARM_UP])

    def build(self) -> None:
        self.index = self.made(self.base)

    def made(self, rows: Any) -> CBEIndex:
        """Return an index of some rows."""
        task = self.task
        encoder = "orthogonal" if self.has_default_bits else self.encoder
        index = CBEIndex(task.dim, metric=task.metric, encoder=encoder, vectors=self.vectors, buckets=self.buckets)
        index.add(rows, n_threads=task.n_threads)
        return index

    def search_timed(self, queries: Any, setting: Setting) -> tuple[Ids, float, float]:
        """Leave encoding and re-ranking to the index."""
        rerank = self.vectors_rerank if setting.kind == "exact" else self.codes_rerank
        ids = self.index.search(
            queries,
            setting.k,
            self.mode,
            rerank,
            n_candidates=setting.depth,
            n_probes=setting.parameter,
            n_threads=self.task.n_threads,
        ).ids
        return ids, 0.0, 0.0

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        """Find rows without re-ranking; `search_timed` does everything in one call."""
        return self.index.search(queries, k, self.mode, self.codes_rerank, n_probes=parameter).ids

    def encode_apart(self, queries: Any) -> Any:
        return self.encoder.encode(queries, n_threads=self.task.n_threads)


class Clusters(Ours):
    """CBEIndex with clusters: distances estimated from codes, then as many exact ones as it takes."""

    buckets, mode, parameter_name, has_own_depth = "clusters", "buckets", "n_probes", True

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return probes(round(2 * math.sqrt(task.n_rows)))


class Cells(Ours):
    """CBEIndex with cells of residual codes, as many bits as dimensions, at every pair of probes and depth."""

    buckets, mode, parameter_name = "cells", "buckets", "n_probes"
    has_default_bits = True  # more levels are better than more bits, and residual codes are compared with nobody's

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return (2, 3, 4, 6, 8, 10, 13, 16, 20, 26, 32, 40, 52, 64, 90, 128, 180, 256)

    @classmethod
    def sweeps(cls, task: Task, depths: list[int], k: int, n_true: int) -> list[list[Setting]]:
        """Re-rank few rows: what is found depends on the probes, and depths beyond the default gain nothing."""
        few = [depth for depth in (12, 15, 20, 30, 40, 60, 100) if n_true <= depth <= task.n_rows]
        return super().sweeps(task, few, k, n_true)


class Graph(Ours):
    """CBEIndex with a graph of residual codes; its parameter is the width of the beam."""

    buckets, mode, parameter_name, kinds, has_own_depth = "graph", "buckets", "n_probes", ("exact",), True
    has_default_bits = True

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return BEAMS

    def reads(self, setting: Setting) -> dict[str, float]:
        """Return what a query reads, on average, and the seconds that memory alone takes for the steps."""
        n, stats = len(self.queries), self.index.stats()
        counts = self.index.search(
            self.queries, setting.k, self.mode, n_candidates=setting.depth, n_probes=setting.parameter
        ).stats
        steps, vectors = counts.get("steps", 0) / n, counts.get("vectors_read", 0) / n
        n_bytes = steps * stats["record_bytes"] + vectors * 4 * self.task.dim
        seconds = steps * seconds_of_step(self.task.n_rows, stats["record_bytes"])
        return {"steps": steps, "vectors": vectors, "bytes": n_bytes, "seconds": seconds}


class GraphOfBytes(Graph):
    """CBEIndex with a graph and vectors of 8 bits a dimension, by default: its vertices are all that it keeps."""

    vectors, vectors_rerank = "int8", "auto"


class ClustersHamming(Clusters):
    """CBEIndex with clusters, in Hamming order; re-ranked to the same depth as the others."""

    codes_rerank, has_own_depth = None, False


class Scan(Ours):
    """CBEIndex without buckets: every code is scanned."""

    has_own_depth = True


class ScanHamming(Scan):
    """CBEIndex without buckets, in Hamming order; re-ranked to the same depth as the others."""

    codes_rerank, has_own_depth = None, False


class Substrings(Ours):
    """CBEIndex with tables of substrings, in Hamming order; re-ranked to the same depth as the others."""

    buckets, mode, codes_rerank, parameter_name = "substrings", "buckets", None, "n_probes"

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return (1, 4, 16, 64, 256)
