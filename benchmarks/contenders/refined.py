"""faiss on vectors: inverted lists of short codes with re-ranking, and graphs."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from benchmarks.adapter import Ids, Setting, Task
from benchmarks.contenders.dense import Dense
from benchmarks.contenders.sizes import BEAMS, half_divisor, n_lists, probes, refuses_matrix


class Refined(Dense):
    """An IVF index of faiss that refines its results."""

    kinds, parameter_name, copies = ("exact",), "nprobe", True
    factory: ClassVar[str] = ""

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return probes(n_lists(task, 2))

    @classmethod
    def description(cls, task: Task) -> str:
        """Return what index_factory makes."""
        return cls.factory.format(n_lists=n_lists(task, 2), dim=task.dim, m=half_divisor(task.dim))

    def build(self) -> None:
        import faiss

        self.index = faiss.index_factory(self.task.dim, self.description(self.task))
        self.lists = faiss.extract_index_ivf(faiss.downcast_index(self.index.base_index))
        self.lists.cp.min_points_per_centroid = 1  # no warnings
        self.index.train(self.sample)
        self.index.add(self.dense)

    def search_timed(self, queries: Any, setting: Setting) -> tuple[Ids, float, float]:
        """Leave re-ranking to the index, to the same depth."""
        self.lists.nprobe = setting.parameter
        self.index.k_factor = (setting.depth or setting.k) / setting.k
        return self.search(self.encode(queries), setting.k, setting.parameter), 0.0, 0.0

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        return np.asarray(self.index.search(queries, k)[1])


class PQRefined(Refined):
    """faiss IVF,PQ..x4fs,RFlat: product quantiser, 2 bits a dimension."""

    factory = "IVF{n_lists},PQ{m}x4fs,RFlat"

    @classmethod
    def refuses(cls, task: Task) -> str | None:
        odd = f"cannot divide {task.dim} dimensions" if half_divisor(task.dim) * 8 < task.dim else None
        return super().refuses(task) or odd


class RaBitQRefined(Refined):
    """faiss RR,IVF,RaBitQfs,RFlat: one bit a dimension, by fast scan."""

    factory = "RR{dim},IVF{n_lists},RaBitQfs,RFlat"

    @classmethod
    def refuses(cls, task: Task) -> str | None:
        return super().refuses(task) or refuses_matrix("rotation", task.dim**2)


class Graph(Dense):
    """faiss HNSW32 on the vectors."""

    kinds, has_own_depth, parameter_name, copies = ("exact",), True, "efSearch", True
    factory: ClassVar[str] = "HNSW32"

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return BEAMS

    def build(self) -> None:
        import faiss

        self.index = faiss.index_factory(self.task.dim, self.factory)
        self.index.hnsw.efConstruction = 200
        if not self.index.is_trained:
            self.index.train(self.sample)
        self.index.add(self.dense)

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        self.index.hnsw.efSearch = max(k, parameter)
        return np.asarray(self.index.search(queries, k)[1])


class GraphOfBytes(Graph):
    """faiss HNSW32_SQ8: a graph of vectors of 8 bits a dimension, which are all that it keeps."""

    factory = "HNSW32_SQ8"
