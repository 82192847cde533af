"""Contenders on dense vectors: what they share, and faiss with as many bits of its own."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.adapter import Adapter, Ids, Task
from benchmarks.contenders.sizes import LARGEST_COPY, in_gb, memory, refuses_matrix

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

    def warm_up(self) -> None:
        super().warm_up()
        assert len(self.dense)  # a dense copy of sparse rows is not the index

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
