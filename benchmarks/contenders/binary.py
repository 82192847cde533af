"""Binary indexes of faiss on the same codes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.adapter import Adapter, Ids, Task
from benchmarks.contenders.sizes import key_bits, n_lists, probes


class Binary(Adapter):
    """A binary index of faiss on our codes."""

    group = "binary"

    def warm_up(self) -> None:
        super().warm_up()
        assert len(self.codes)

    def encode(self, queries: Any) -> NDArray[np.uint8]:
        return self.encoder.encode(queries, n_threads=self.task.n_threads)  # type: ignore[no-any-return]

    @classmethod
    def refuses(cls, task: Task) -> str | None:
        return f"has no codes of {task.n_bits} bits" if task.n_bits % 8 else None


class BinaryFlat(Binary):
    """IndexBinaryFlat, with a heap (1) or counting (0)."""

    parameter_name = "use_heap"

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return (0, 1)

    def build(self) -> None:
        import faiss

        self.index = faiss.IndexBinaryFlat(self.task.n_bits)
        self.index.add(self.codes)

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        self.index.use_heap = bool(parameter)
        return np.asarray(self.index.search(queries, k)[1])


class BinaryIVF(Binary):
    """IndexBinaryIVF with about 2 sqrt(n) lists."""

    parameter_name = "nprobe"
    lists_of_root: ClassVar[float] = 2

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return probes(n_lists(task, cls.lists_of_root))

    def build(self) -> None:
        import faiss

        task = self.task
        self.quantizer = faiss.IndexBinaryFlat(task.n_bits)
        self.index = faiss.IndexBinaryIVF(self.quantizer, task.n_bits, n_lists(task, self.lists_of_root))
        self.index.cp.min_points_per_centroid = 1  # no warnings
        self.index.train(self.codes)
        self.index.add(self.codes)

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        self.index.nprobe = parameter
        return np.asarray(self.index.search(queries, k)[1])


class BinaryIVFFine(BinaryIVF):
    """IndexBinaryIVF with about 4 sqrt(n) lists."""

    lists_of_root = 4


class BinaryIVFByList(BinaryIVF):
    """IndexBinaryIVF with about 2 sqrt(n) lists, list by list instead of query by query."""

    @classmethod
    def refuses(cls, task: Task) -> str | None:
        lists = n_lists(task, cls.lists_of_root)
        few = f"needs more queries in a call than its {lists} lists, got {task.batch}" if task.batch <= lists else None
        return super().refuses(task) or few

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        # With fewer queries than lists, faiss 1.15 writes past the end of an array, and with as many it raises. The
        # few queries of a last call are therefore searched by query.
        self.index.per_invlist_search = len(queries) > self.index.nlist
        return super().search(queries, k, parameter)


class BinaryHash(Binary):
    """IndexBinaryHash on the first log2(n) bits or so."""

    parameter_name = "nflip"

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return (0, 1, 2, 3, 4, 5)

    def build(self) -> None:
        import faiss

        n_bits = self.task.n_bits
        self.index = faiss.IndexBinaryHash(n_bits, min(n_bits, key_bits(self.task)))
        self.index.add(self.codes)

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        self.index.nflip = parameter
        return np.asarray(self.index.search(queries, k)[1])


class BinaryMultiHash(BinaryHash):
    """IndexBinaryMultiHash: 16 tables or as many as there is room for, of log2(n) bits or so."""

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return (0, 1, 2, 3)

    def build(self) -> None:
        import faiss

        n_bits = self.task.n_bits
        b = min(n_bits, key_bits(self.task))
        self.index = faiss.IndexBinaryMultiHash(n_bits, min(16, n_bits // b), b)
        self.index.add(self.codes)


class BinaryHNSW(Binary):
    """IndexBinaryHNSW, M = 16."""

    parameter_name = "efSearch"

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return (16, 32, 64, 96, 128, 192, 256, 384, 512, 1024)

    def build(self) -> None:
        import faiss

        self.index = faiss.IndexBinaryHNSW(self.task.n_bits, 16)
        self.index.hnsw.efConstruction = 128
        self.index.add(self.codes)

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        self.index.hnsw.efSearch = parameter
        return np.asarray(self.index.search(queries, k)[1])
