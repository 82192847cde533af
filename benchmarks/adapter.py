"""What a contender is: a class that builds an index and searches it, in a process of its own; it is measured here."""

from __future__ import annotations

import gc
import importlib
import pickle
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import pin, resident_memory

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """What a contender is given: where the arrays are, and what they are.

    The folder has `base` and `queries` (`.npy`, or `.npz` if sparse), `codes.npy` of the base, and `encoder.pickle`,
    which made them. Where the metric is cosine, vectors have norm 1; so squared Euclidean distances serve both metrics.
    """

    folder: str
    n_rows: int
    dim: int
    n_bits: int
    metric: str
    is_sparse: bool
    n_threads: int
    batch: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the vectors, dense."""
        return 4 * self.n_rows * self.dim

    def read(self, name: str) -> Any:
        """Open `base` or `queries`."""
        if self.is_sparse:
            from scipy import sparse

            return sparse.csr_array(sparse.load_npz(Path(self.folder) / f"{name}.npz"))
        return np.load(Path(self.folder) / f"{name}.npy", mmap_mode="r")

    def write(self, base: Any, queries: Any, codes: NDArray[np.uint8], encoder: Any) -> None:
        """Put the arrays there."""
        folder = Path(self.folder)
        for name, rows in (("base", base), ("queries", queries)):
            if self.is_sparse:
                from scipy import sparse

                sparse.save_npz(folder / f"{name}.npz", rows, compressed=False)
            else:
                np.save(folder / f"{name}.npy", rows)
        np.save(folder / "codes.npy", codes)
        (folder / "encoder.pickle").write_bytes(pickle.dumps(encoder))


@dataclass(frozen=True)
class Setting:
    """One search of a sweep.

    Attributes
    ----------
    kind : {"codes", "exact"}
        Whether results come from codes alone, or are re-ranked by (or found with) vectors, exact or of 8 bits.
    k : int
    depth : int or None
        Number of rows that are re-ranked. None: no rows, or as many as the contender chooses.
    parameter : int or None
        What the contender makes of it is its `parameter_name`.
    """

    kind: str
    k: int
    depth: int | None
    parameter: int | None


class Adapter(ABC):
    """A contender in its process: builds when it is made, then searches for all queries on request.

    Attributes
    ----------
    group : {"ours", "binary", "bits", "outside"}
        Ours; faiss on the same codes; faiss with as many bits of its own; others.
    kinds : tuple of {"codes", "exact"}
        The kinds of search that it supports.
    has_own_depth : bool
        Whether it chooses itself how many rows exact distances are computed of.
    """

    group: ClassVar[str] = "outside"
    package: ClassVar[str | None] = "faiss"
    kinds: ClassVar[tuple[str, ...]] = ("codes", "exact")
    has_own_depth: ClassVar[bool] = False
    parameter_name: ClassVar[str] = ""

    @classmethod
    def refuses(cls, task: Task) -> str | None:
        """Say why it cannot do a task; None if it can."""
        return None

    @classmethod
    def parameters(cls, task: Task) -> tuple[int | None, ...]:
        """List the parameters to try: a sweep, more of it takes longer and finds more; or up to four alternatives.

        A brief run leaves out settings of longer lists only.
        """
        return (None,)

    @classmethod
    def sweeps(cls, task: Task, depths: list[int], k: int, n_true: int) -> list[list[Setting]]:
        """List the sweeps: `k` results from codes alone, and `n_true` re-ranked results for each depth."""
        sweeps: list[tuple[str, int, int | None]] = [("codes", k, None)] if "codes" in cls.kinds else []
        if "exact" in cls.kinds:
            sweeps += [("exact", n_true, depth) for depth in ([None] if cls.has_own_depth else depths)]
        return [[Setting(*sweep, parameter) for parameter in cls.parameters(task)] for sweep in sweeps]

    def __init__(self, task: Task) -> None:
        self.task = task
        self.queries = task.read("queries")
        if not task.is_sparse:
            self.queries = np.array(self.queries)
        self.use_threads(task.n_threads)
        self.warm_up()
        before = resident_memory(task.folder)
        start = time.perf_counter()
        self.build()
        self._build_seconds = time.perf_counter() - start
        gc.collect()
        after = resident_memory(task.folder)
        self._n_bytes = None if before is None or after is None else max(0, after - before)

    def use_threads(self, n_threads: int) -> None:
        """Use `n_threads` cores from now on."""
        self.task = replace(self.task, n_threads=n_threads)
        self.__dict__.pop("_encode_seconds", None)
        pin(n_threads)
        if self.package == "faiss":
            import faiss

            faiss.omp_set_num_threads(n_threads)

    def built(self) -> dict[str, Any]:
        """Return the seconds that building took, and by how many bytes the memory of the process has grown in it."""
        return {"build_seconds": self._build_seconds, "build_bytes": self._n_bytes}

    def run(self, setting: Setting) -> dict[str, Any]:
        """Search for all queries; return ids and the seconds in total, of encoding and of re-ranking."""
        found = []
        encoding = reranking = 0.0
        start = time.perf_counter()
        for first in range(0, self.queries.shape[0], self.task.batch):
            ids, encoded, reranked = self.search_timed(self.queries[first : first + self.task.batch], setting)
            found.append(ids)
            encoding, reranking = encoding + encoded, reranking + reranked
        total = time.perf_counter() - start
        if self._encodes_inside:
            encoding = min(total, self._encode_seconds)
        return {"ids": np.concatenate(found), "total": total, "encode": encoding, "rerank": reranking}

    def times(self, setting: Setting) -> dict[str, float]:
        """Search for all queries; return the seconds alone."""
        return {key: value for key, value in self.run(setting).items() if key != "ids"}

    def latencies(self, setting: Setting) -> NDArray[np.float64]:
        """Search for one query after the other; return the seconds of each."""
        seconds = np.empty(self.queries.shape[0])
        for i in range(len(seconds)):
            start = time.perf_counter()
            self.search_timed(self.queries[i : i + 1], setting)
            seconds[i] = time.perf_counter() - start
        return seconds

    def seconds_on_threads(self, setting: Setting, n_callers: int) -> float:
        """Search for one query a call, from several threads of Python; return the seconds of all queries together."""
        numbers = iter(range(self.queries.shape[0]))  # next() is atomic

        def work() -> None:
            for i in numbers:
                self.search_timed(self.queries[i : i + 1], setting)

        callers = [threading.Thread(target=work) for _ in range(n_callers)]
        start = time.perf_counter()
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        return time.perf_counter() - start

    def search_timed(self, queries: Any, setting: Setting) -> tuple[Ids, float, float]:
        """Return ids, (n_queries, setting.k), and the seconds of encoding and of re-ranking."""
        start = time.perf_counter()
        encoded = self.encode(queries)
        middle = time.perf_counter()
        ids = self.search(encoded, setting.depth or setting.k, setting.parameter)
        end = time.perf_counter()
        if setting.depth is None:
            return ids, middle - start, 0.0
        return self.rerank(queries, ids, setting.k), middle - start, time.perf_counter() - end

    def warm_up(self) -> None:
        """Load what counts neither as time nor as memory of the index: code, and the rows as `build` reads them."""
        if self.package is not None:
            importlib.import_module(self.package)

    @abstractmethod
    def build(self) -> None:
        """Build the index."""

    @abstractmethod
    def search(self, queries: Any, k: int, parameter: Any) -> Ids:
        """Find `k` rows for each of the encoded queries; -1 where there are none."""

    def encode(self, queries: Any) -> Any:
        """Make of queries what `search` takes."""
        return queries

    def encode_apart(self, queries: Any) -> Any:
        """Repeat the encoding that `search` does itself, so that it can be timed separately."""
        return None

    def rerank(self, queries: Any, ids: Ids, k: int) -> Ids:
        """Return the `k` rows that are nearest by exact distance."""
        return self._reranker(queries, ids, k, self.task.n_threads)  # type: ignore[no-any-return]

    @cached_property
    def base(self) -> Any:
        """The vectors."""
        return self.task.read("base")

    @cached_property
    def codes(self) -> NDArray[np.uint8]:
        """Their codes."""
        return np.load(Path(self.task.folder) / "codes.npy")  # type: ignore[no-any-return]

    @cached_property
    def encoder(self) -> Any:
        """What made them."""
        return pickle.loads((Path(self.task.folder) / "encoder.pickle").read_bytes())

    @cached_property
    def _reranker(self) -> Any:
        return SparseReranker(self.base, self.task.metric) if self.task.is_sparse else rerank_dense(self.base)

    @property
    def _encodes_inside(self) -> bool:
        return type(self).encode_apart is not Adapter.encode_apart

    @cached_property
    def _encode_seconds(self) -> float:
        """Median of some runs over all queries."""
        seconds = []
        for _ in range(4):
            start = time.perf_counter()
            for first in range(0, self.queries.shape[0], self.task.batch):
                self.encode_apart(self.queries[first : first + self.task.batch])
            seconds.append(time.perf_counter() - start)
        return float(np.median(seconds[1:]))


def rerank_dense(base: NDArray[np.float32]) -> Any:
    """Return a function that re-ranks candidates by faiss's own loop over rows."""
    import faiss

    def rerank(queries: NDArray[np.float32], ids: Ids, k: int, n_threads: int = 1) -> Ids:
        faiss.omp_set_num_threads(n_threads)
        # Missing ones come last, and the loop ends at the first.
        n, depth = ids.shape
        k = min(k, depth)
        queries, ids = np.ascontiguousarray(queries), np.ascontiguousarray(ids, dtype=np.int64)
        distances, found = np.empty((n, k), dtype=np.float32), np.empty((n, k), dtype=np.int64)
        x, y, subset, out, out_ids = map(faiss.swig_ptr, (queries, base, ids, distances, found))
        # The last is the length of a line of `ids`: by default every query gets the candidates of the first.
        faiss.knn_L2sqr_by_idx(x, y, subset, base.shape[1], n, len(base), depth, k, out, out_ids, depth)
        return found

    return rerank


class SparseReranker:
    """Re-ranks candidates among sparse rows by the loop that CBEIndex has for them, compiled and on all threads."""

    def __init__(self, base: Any, metric: str) -> None:
        from cbeindex.distances.kept import kept_vectors
        from cbeindex.distances.metrics import Metric

        rows = sparse_rows(base)
        self._kept = kept_vectors(rows, np.arange(len(rows)), Metric(metric), base.shape[1])

    def __call__(self, queries: Any, ids: Ids, k: int, n_threads: int = 1) -> Ids:
        """Return the `k` rows that are nearest by exact distance."""
        from cbeindex.distances.kept import Candidates
        from cbeindex.search import exact

        rows, counts = missing_last(ids)
        candidates = Candidates(rows, counts, np.full(rows.shape, -np.inf, dtype=np.float32))
        found, _ = exact.nearest(self._kept, sparse_rows(queries), candidates, min(k, ids.shape[1]), n_threads)
        return found.ids


def sparse_rows(rows: Any) -> Any:
    """Return CSR rows as CBEIndex keeps them."""
    from cbeindex.data.sparserows import SparseRows

    parts = (rows.indptr, np.int64), (rows.indices, np.int32), (rows.data, np.float32)
    return SparseRows(*(part.astype(dtype, copy=False) for part, dtype in parts))


def missing_last(ids: Ids) -> tuple[Ids, Ids]:
    """Return ids, those below 0 after the others, and the number of the others in each line."""
    is_missing = ids < 0
    if is_missing.any():
        ids = np.take_along_axis(ids, np.argsort(is_missing, axis=1, kind="stable"), axis=1)
    return np.ascontiguousarray(ids, dtype=np.int64), (~is_missing).sum(axis=1)
