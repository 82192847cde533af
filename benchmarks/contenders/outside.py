"""Contenders on vectors from other packages: graphs and inverted lists, with the settings that suit each best.

All search by squared Euclidean distance, which orders unit vectors as cosine does, unless their class says otherwise.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.adapter import Ids, Setting, Task
from benchmarks.contenders.dense import Dense
from benchmarks.contenders.sizes import BEAMS, n_lists, probes


class Outside(Dense):
    """A graph of another package; its parameter is the width of the beam."""

    kinds, has_own_depth, copies = ("exact",), True, True
    parameter_name = "ef"

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return BEAMS


class Hnswlib(Outside):
    """hnswlib on the vectors, M = 16."""

    package = "hnswlib"

    def build(self) -> None:
        import hnswlib

        self.index = hnswlib.Index(space="l2", dim=self.task.dim)
        self.index.init_index(max_elements=self.task.n_rows, ef_construction=200, M=16, random_seed=1)
        self.index.add_items(self.dense, np.arange(self.task.n_rows), num_threads=self.task.n_threads)

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        self.index.set_ef(max(k, parameter))
        return np.asarray(self.index.knn_query(queries, k, self.task.n_threads)[0]).astype(np.int64)


class Usearch(Outside):
    """usearch on the vectors, connectivity 16."""

    package, parameter_name = "usearch", "expansion_search"

    def build(self) -> None:
        from usearch.index import Index

        self.index = Index(ndim=self.task.dim, metric="l2sq", dtype="f32", connectivity=16, expansion_add=128)
        self.index.add(np.arange(self.task.n_rows), self.dense, threads=self.task.n_threads)

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        self.index.expansion_search = parameter
        keys = np.asarray(self.index.search(queries, k, threads=self.task.n_threads).keys)
        return keys.reshape(len(queries), -1).astype(np.int64)


class SymphonyQG(Outside):
    """rabitqlib SymphonyQG: a graph of degree 32 whose vertices hold the RaBitQ codes of their neighbours."""

    package = "rabitqlib"

    def build(self) -> None:
        import rabitqlib

        self.index = rabitqlib.SymqgIndex(self.task.dim, 32, "l2", 0)
        self.index.build(self.dense, 200, self.task.n_threads, "pipnn")

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        n_threads = min(self.task.n_threads, len(queries))
        return unsigned(self.index.search_batch(queries, k, max(k, parameter), n_threads)[0])


class RaBitQLists(Outside):
    """rabitqlib IVF: one-bit codes by fast scan, then the vectors of those that may be among the nearest."""

    package, parameter_name = "rabitqlib", "nprobe"

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return probes(n_lists(task, 2))

    def build(self) -> None:
        import rabitqlib

        task = self.task
        clustering = rabitqlib.QGKMeans(task.dim, n_lists(task, 2), num_threads=task.n_threads)
        clustering.train(self.dense)
        self.index = rabitqlib.IvfIndex(task.dim, task.n_rows, n_lists(task, 2), 32, "l2")
        self.index.build(self.dense, clustering.centroids, clustering.assignments, task.n_threads)

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        return unsigned(self.index.search(queries, k, parameter, num_threads=self.task.n_threads)[0])


class AlayaLite(Outside):
    """alayalite with RaBitQ codes in its graph, degree 32."""

    package = "alayalite"

    def build(self) -> None:
        from alayalite import Index
        from alayalite.schema import IndexParams

        params = IndexParams(quantization_type="rabitq", metric="l2", capacity=np.uint32(self.task.n_rows), max_nbrs=32)
        self.index = Index("benchmark", params)
        with silence():
            self.index.fit(self.dense, ef_construction=200, num_threads=self.task.n_threads)

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        return unsigned(self.index.batch_search(queries, k, max(k, parameter), self.task.n_threads))


class Scann(Outside):
    """ScaNN: a tree of 2 sqrt(n) leaves, anisotropic product quantiser of 2 dimensions a block, then the vectors."""

    package, has_own_depth, parameter_name = "scann", False, "leaves"

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        return probes(cls.n_leaves(task))

    @staticmethod
    def n_leaves(task: Task) -> int:
        """Return the number of leaves."""
        return max(1, round(2 * math.sqrt(task.n_rows)))

    def build(self) -> None:
        import scann

        is_cosine = self.task.metric == "cosine"
        builder = scann.scann_ops_pybind.builder(self.dense, 10, "dot_product" if is_cosine else "squared_l2")
        builder.set_n_training_threads(self.task.n_threads)
        builder.tree(
            num_leaves=self.n_leaves(self.task), num_leaves_to_search=10, training_sample_size=self.task.n_rows
        )
        # Anisotropic codes weigh errors along a vector more, which serves inner products only.
        builder.score_ah(2, **({"anisotropic_quantization_threshold": 0.2} if is_cosine else {}))
        with silence():
            self.index = builder.reorder(100).build()
        self.use_threads(self.task.n_threads)

    def use_threads(self, n_threads: int) -> None:
        super().use_threads(n_threads)
        if hasattr(self, "index"):
            self.index.set_num_threads(n_threads)

    def search_timed(self, queries: Any, setting: Setting) -> tuple[Ids, float, float]:
        """Leave re-ranking to the index, to the same depth."""
        return self._find(self.encode(queries), setting.k, setting.depth or setting.k, setting.parameter), 0.0, 0.0

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        return self._find(queries, k, k, parameter)

    def _find(self, queries: Any, k: int, depth: int, n_leaves: Any) -> Ids:
        """Search by the call that is fastest for so many queries and threads."""
        if len(queries) == 1:
            found = np.full((1, k), -1, dtype=np.int64)
            ids = self.index.search(queries[0], k, depth, n_leaves)[0]
            found[0, : len(ids)] = ids
            return found
        is_parallel = self.task.n_threads > 1
        call = self.index.search_batched_parallel if is_parallel else self.index.search_batched
        return unsigned(call(queries, k, depth, n_leaves)[0])


class Zvec(Outside):
    """zvec Vamana on vectors of 8 bits a dimension, degree 64; it answers one query a call."""

    package, parameter_name = "zvec", "ef_search"
    is_refined: ClassVar[bool] = False

    def build(self) -> None:
        import zvec

        task = self.task
        with suppress(RuntimeError):  # it is initialised once in a process
            zvec.init(log_level=zvec.LogLevel.ERROR, query_threads=task.n_threads, optimize_threads=task.n_threads)
        param = zvec.VamanaIndexParam(
            zvec.MetricType.L2, 64, 200, use_contiguous_memory=True, quantize_type=zvec.QuantizeType.UNIFORM_UINT8
        )
        vectors = zvec.VectorSchema("vector", zvec.DataType.VECTOR_FP32, task.dim, index_param=param)
        path = str(Path(tempfile.mkdtemp(prefix="zvec-", dir=task.folder)) / "rows")
        rows = zvec.create_and_open(path, zvec.CollectionSchema("rows", vectors=vectors))
        for first in range(0, task.n_rows, 500):
            block = self.dense[first : first + 500]
            rows.insert([zvec.Doc(str(first + i), vectors={"vector": row}) for i, row in enumerate(block)])
        rows.optimize(zvec.OptimizeOption(concurrency=task.n_threads))
        rows.close()
        # What is opened to be read answers with numbers of rows, in the order in which they came.
        self.index = zvec.open(path, zvec.CollectionOption(read_only=True, enable_mmap=False))

    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        import zvec

        param = zvec.VamanaQueryParam(max(k, parameter), is_using_refiner=self.is_refined)

        def find(query: Any) -> Ids:
            return self.index.query_internal_ids(zvec.Query("vector", vector=query, param=param), topk=k)  # type: ignore[no-any-return]

        if self.task.n_threads == 1 or len(queries) == 1:
            return np.stack([find(query) for query in queries])
        with ThreadPoolExecutor(self.task.n_threads) as pool:
            return np.stack(list(pool.map(find, queries)))


class ZvecRefined(Zvec):
    """zvec Vamana on vectors of 8 bits a dimension, degree 64, then the vectors; it answers one query a call."""

    is_refined = True


@contextmanager
def silence() -> Iterator[None]:
    """Discard what this process prints, also from compiled code: logs of a build have no place between tables."""
    sys.stdout.flush()
    saved = {number: os.dup(number) for number in (1, 2)}
    try:
        with open(os.devnull, "w") as nowhere:
            for number in saved:
                os.dup2(nowhere.fileno(), number)
        yield
        sys.stdout.flush()
    finally:
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)


def unsigned(ids: Any) -> Ids:
    """Return ids of 32 bits, of which the largest means that there is none, as int64 with -1 for it."""
    found = np.asarray(ids).astype(np.int64)
    found[found == 2**32 - 1] = -1
    return found
