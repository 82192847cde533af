"""Who is compared: ours, faiss on the same codes, faiss with as many bits of its own, and others on vectors.

A contender is a class with `build` and `search`; a line in `REGISTRY` gives it its name.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from abc import abstractmethod
from functools import cached_property
from importlib import metadata
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.adapter import Adapter, Ids, Task, Way

# A matrix of more bytes than this is not made; nor a dense copy of sparse vectors.
LARGEST_MATRIX = 2**30
LARGEST_COPY = 2**29
# Rows that a method is trained on.
_N_TRAINING = 20_000


# ---- Ours


class Ours(Adapter):
    """CBEIndex."""

    group = "ours"
    package = None
    buckets: ClassVar[str | None] = None
    mode: ClassVar[str] = "auto"
    codes_rerank: ClassVar[str | None] = "asymmetric"

    def build(self) -> None:
        from cbeindex import CBEIndex

        task = self.task
        self.index = CBEIndex(
            task.dim, metric=task.metric, encoder=self.encoder, vectors="float32", buckets=self.buckets
        )
        self.index.add(self.base, n_threads=task.n_threads)

    def answer(self, queries: Any, way: Way) -> tuple[Ids, float, float]:
        """Leave encoding and re-ranking to the index."""
        rerank = "exact" if way.kind == "exact" else self.codes_rerank
        ids = self.index.search(
            queries,
            way.k,
            self.mode,
            rerank,
            n_candidates=way.depth,
            n_probes=way.parameter,
            n_threads=self.task.n_threads,
        ).ids
        return ids, 0.0, 0.0

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        """Find rows without re-ranking; `answer` does all at once."""
        return self.index.search(queries, k, self.mode, self.codes_rerank, n_probes=parameter).ids

    def encode_apart(self, queries: Any) -> Any:
        return self.encoder.encode(queries, n_threads=self.task.n_threads)


class Clusters(Ours):
    """CBEIndex with clusters: distances estimated from codes, then as many exact ones as it takes."""

    buckets, mode, parameter_name, has_own_depth = "clusters", "buckets", "n_probes", True

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return probes(round(4 * math.sqrt(task.n_rows)))


class ClustersHamming(Clusters):
    """CBEIndex with clusters, in Hamming order; re-ranked to the same depth as the others."""

    codes_rerank, has_own_depth = None, False


class Scan(Ours):
    """CBEIndex without buckets: every code is looked at."""

    has_own_depth = True


class Substrings(Ours):
    """CBEIndex with tables of substrings, in Hamming order; re-ranked to the same depth as the others."""

    buckets, mode, codes_rerank, parameter_name = "substrings", "buckets", None, "n_probes"

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return (1, 4, 16, 64, 256)


# ---- faiss on the same codes


class Binary(Adapter):
    """A binary index of faiss on our codes."""

    group = "binary"

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


# ---- faiss with as many bits of its own


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
        return self.base.toarray() if self.task.is_sparse else np.asarray(self.base)  # type: ignore[no-any-return]

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


# ---- The outside world


class Refined(Dense):
    """An IVF index of faiss that refines its answers."""

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

    def answer(self, queries: Any, way: Way) -> tuple[Ids, float, float]:
        """Leave re-ranking to the index, to the same depth."""
        self.lists.nprobe = way.parameter
        self.index.k_factor = (way.depth or way.k) / way.k
        return self.search(self.encode(queries), way.k, way.parameter), 0.0, 0.0

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
        self.index.set_num_threads(self.task.n_threads)
        self.index.add_items(self.dense, np.arange(self.task.n_rows))

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        self.index.set_ef(max(k, parameter))
        return np.asarray(self.index.knn_query(queries, k)[0]).astype(np.int64)


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


REGISTRY = {
    "cbeindex": "benchmarks.contenders:Clusters",
    "cbeindex-hamming": "benchmarks.contenders:ClustersHamming",
    "cbeindex-scan": "benchmarks.contenders:Scan",
    "cbeindex-substrings": "benchmarks.contenders:Substrings",
    "BinaryFlat": "benchmarks.contenders:BinaryFlat",
    "BinaryIVF": "benchmarks.contenders:BinaryIVF",
    "BinaryIVF-fine": "benchmarks.contenders:BinaryIVFFine",
    "BinaryHash": "benchmarks.contenders:BinaryHash",
    "BinaryMultiHash": "benchmarks.contenders:BinaryMultiHash",
    "BinaryHNSW": "benchmarks.contenders:BinaryHNSW",
    "LSH": "benchmarks.contenders:LSH",
    "HR,LSH": "benchmarks.contenders:HadamardLSH",
    "ITQ,LSH": "benchmarks.contenders:ItqLSH",
    "RaBitQ": "benchmarks.contenders:RaBitQ",
    "IVF,PQfs,Refine": "benchmarks.contenders:PQRefined",
    "IVF,RaBitQ,Refine": "benchmarks.contenders:RaBitQRefined",
    "hnswlib": "benchmarks.contenders:Hnswlib",
    "usearch": "benchmarks.contenders:Usearch",
}
"""Names of contenders, and their classes."""

GROUPS = {
    "ours": "cbeindex",
    "binary": "faiss binary, same codes",
    "bits": "faiss, as many bits of its own",
    "outside": "others, on vectors",
}
"""Groups of contenders, in the order of tables."""


def class_of(name: str) -> type[Adapter]:
    """Return the class of a contender."""
    module, attribute = REGISTRY[name].split(":")
    return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]


def chosen(words: list[str] | None) -> list[str]:
    """Return the names of contenders that words name: contenders or groups; all of them for None."""
    if words is None:
        return list(REGISTRY)
    names = []
    for word in words:
        if word not in REGISTRY and word not in GROUPS:
            raise ValueError(
                f"there is no contender {word!r}: there are {', '.join(REGISTRY)}; and the groups {', '.join(GROUPS)}"
            )
        names += [word] if word in REGISTRY else [name for name in REGISTRY if class_of(name).group == word]
    return list(dict.fromkeys(names))


def why_not(name: str, task: Task) -> str | None:
    """Say why a contender is left out; None if it takes part."""
    adapter = class_of(name)
    if adapter.package is not None and importlib.util.find_spec(adapter.package) is None:
        return f"{adapter.package} is not installed"
    return adapter.refuses(task)


def version(name: str) -> str:
    """Return the package of a contender, with its version."""
    package = {None: "cbeindex", "faiss": "faiss-cpu"}.get(class_of(name).package, class_of(name).package)
    try:
        return f"{package} {metadata.version(str(package))}"
    except metadata.PackageNotFoundError:
        return str(package)


def probes(most: int) -> tuple[int, ...]:
    """List numbers of buckets to look at."""
    steps = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
    return tuple(step for step in steps if step <= most)


def n_lists(task: Task, of_root: float) -> int:
    """Return the power of two that is nearest to so many times the root of the number of rows."""
    return 2 ** max(1, round(math.log2(of_root * math.sqrt(task.n_rows))))


def key_bits(task: Task) -> int:
    """Return the bits of a key of a hash table: one bucket for some rows."""
    return max(4, round(math.log2(task.n_rows)) - 2)


def half_divisor(dim: int) -> int:
    """Return the largest divisor up to dim / 2."""
    return next(m for m in range(max(1, dim // 2), 0, -1) if dim % m == 0)


def refuses_matrix(what: str, n_values: int) -> str | None:
    """Say that a matrix is too large, if it is."""
    return f"needs a {what} of {in_gb(4 * n_values)}" if 4 * n_values > LARGEST_MATRIX else None


def in_gb(n_bytes: int) -> str:
    """Return bytes as text."""
    return f"{n_bytes / 1e9:.1f} GB"


def memory() -> int:
    """Return the bytes of memory of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**34
