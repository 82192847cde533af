"""Contenders on dense vectors: faiss with as many bits of its own, and the outside world."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.adapter import Adapter, Ids, Setting, Task
from benchmarks.contenders.sizes import LARGEST_COPY, half_divisor, in_gb, memory, n_lists, probes, refuses_matrix

# Rows that a method is trained on.
_N_TRAINING = 20_000


class Dense(Adapter):
    """A contender that takes dense vectors."""

    copies: ClassVar[bool] = False

    @classmethod
    def refuses(cls, task: Task) -> str | None:
        if task.is_sparse and task.n_bytes > LARGEST_COPY:
            return f"takes dense vectors only, {in_gb(task.n_bytes)} of this sparse set"
        if cls.copies and task.n_bytes > memory() / 8:
            return f"copies the vectors, {in_gb(task.n_bytes)}"
        return None

    def encode(self, queries: Any) -> NDArray[np.float32]:
        return queries.toarray() if self.task.is_sparse else queries  # type: ignore[no-any-return]

    @cached_property
    def dense(self) -> NDArray[np.float32]:
        """The vectors, dense."""
        return self.base.toarray() if self.task.is_sparse else np.asarray(self.base)

    @property
    def sample(self) -> NDArray[np.float32]:
        """Some of them, to train on."""
        rows = np.random.default_rng(0).permutation(self.task.n_rows)[:_N_TRAINING]
        return self.dense[np.sort(rows)]


class Bits(Dense):
    """A float index of faiss with a given number of bits."""

    group = "bits"

    def build(self) -> None:
        self.index = self.make()
        self.index.train(self.sample)
        self.index.add(self.dense)

    @abstractmethod
    def make(self) -> Any:
        """Make the index."""

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        return np.asarray(self.index.search(queries, k)[1])

    def encode_apart(self, queries: Any) -> Any:
        return self.index.sa_encode(Dense.encode(self, queries))


class LSH(Bits):
    """IndexLSH: signs of a random rotation."""

    @classmethod
    def refuses(cls, task: Task) -> str | None:
        return super().refuses(task) or refuses_matrix("rotation", max(task.dim, task.n_bits) ** 2)

    def make(self) -> Any:
        import faiss

        return faiss.IndexLSH(self.task.dim, self.task.n_bits)


class HadamardLSH(Bits):
    """HR,LSH: signs of a Hadamard rotation, padded to a power of two."""

    @classmethod
    def refuses(cls, task: Task) -> str | None:
        padded = 1 << (task.dim - 1).bit_length()
        return super().refuses(task) or (f"has {padded} bits at most" if task.n_bits > padded else None)

    def make(self) -> Any:
        import faiss

        rotation = faiss.HadamardRotation(self.task.dim)
        return faiss.IndexPreTransform(rotation, faiss.IndexLSH(rotation.d_out, self.task.n_bits, False))


class ItqLSH(Bits):
    """ITQ,LSH: signs of a learned rotation after PCA."""

    @classmethod
    def refuses(cls, task: Task) -> str | None:
        many = f"has {task.dim} bits at most" if task.n_bits > task.dim else None
        return super().refuses(task) or many or refuses_matrix("covariance", task.dim**2)

    def make(self) -> Any:
        import faiss

        return faiss.index_factory(self.task.dim, f"ITQ{self.task.n_bits},LSH")


class RaBitQ(Bits):
    """IndexRaBitQ after a random rotation; queries of qb bits."""

    parameter_name = "qb"

    @classmethod
    def refuses(cls, task: Task) -> str | None:
        return super().refuses(task) or refuses_matrix("rotation", max(task.dim, task.n_bits) ** 2)

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return (4, 8)

    def make(self) -> Any:
        import faiss

        self.rotation = faiss.RandomRotationMatrix(self.task.dim, self.task.n_bits)
        self.inner = faiss.IndexRaBitQ(self.task.n_bits, faiss.METRIC_L2)
        return faiss.IndexPreTransform(self.rotation, self.inner)

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        self.inner.qb = parameter
        return np.asarray(self.index.search(queries, k)[1])

    def encode_apart(self, queries: Any) -> Any:
        return self.rotation.apply(Dense.encode(self, queries))


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
    """faiss RR,IVF,RaBitQ,RFlat: one bit a dimension."""

    factory = "RR{dim},IVF{n_lists},RaBitQ,RFlat"

    @classmethod
    def refuses(cls, task: Task) -> str | None:
        return super().refuses(task) or refuses_matrix("rotation", task.dim**2)


class Hnswlib(Dense):
    """hnswlib on the vectors, M = 16."""

    package, kinds, has_own_depth, parameter_name, copies = "hnswlib", ("exact",), True, "ef", True

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

    def build(self) -> None:
        import hnswlib

        self.index = hnswlib.Index(space="l2", dim=self.task.dim)
        self.index.init_index(max_elements=self.task.n_rows, ef_construction=128, M=16, random_seed=1)
        self.index.add_items(self.dense, np.arange(self.task.n_rows), num_threads=self.task.n_threads)

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        self.index.set_ef(max(k, parameter))
        return np.asarray(self.index.knn_query(queries, k, self.task.n_threads)[0]).astype(np.int64)


class Usearch(Dense):
    """usearch on the vectors, connectivity 16."""

    package, kinds, has_own_depth, copies = "usearch", ("exact",), True, True
    parameter_name = "expansion_search"

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return Hnswlib.parameters(task)

    def build(self) -> None:
        from usearch.index import Index

        self.index = Index(ndim=self.task.dim, metric="l2sq", dtype="f32", connectivity=16, expansion_add=128)
        self.index.add(np.arange(self.task.n_rows), self.dense, threads=self.task.n_threads)

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        self.index.expansion_search = parameter
        keys = np.asarray(self.index.search(queries, k, threads=self.task.n_threads).keys)
        return keys.reshape(len(queries), -1).astype(np.int64)
