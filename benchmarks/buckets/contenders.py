"""Who is compared, with which settings; contenders live in processes of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.buckets.problems import LEAST_QUERIES, Problem
from benchmarks.harness import pin


class Grid(NamedTuple):
    """Settings that are tried.

    Attributes
    ----------
    n_probes : tuple of int
        Cells visited by clusters, and `nprobe` of IVF.
    substrings : dict of int or None to tuple of int
        Buckets visited in each table, by the number of tables.
    nlist, m, ef_search, hash_bits, multi_hash : tuple
        Lists of IVF; links and search width of HNSW; bits of Hash; tables of MultiHash and bits of each.
    """

    n_probes: tuple[int, ...]
    substrings: dict[int | None, tuple[int, ...]]
    nlist: tuple[int, ...]
    m: tuple[int, ...]
    ef_search: tuple[int, ...]
    hash_bits: tuple[int, ...]
    multi_hash: tuple[tuple[int, int], ...]


USUAL = Grid(
    n_probes=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512),
    substrings={
        None: (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024),
        4: (1, 4, 16, 64, 256, 1_024),
        32: (1, 4, 16, 64, 256, 1_024),
    },
    nlist=(256, 512, 1_024),
    m=(16, 32),
    ef_search=(100, 150, 200, 300, 400, 800),
    hash_bits=(8, 12, 16),
    multi_hash=((4, 16), (16, 12), (16, 16), (32, 16), (64, 16)),
)
# HNSW takes too long to build on a million codes, and IVF with more lists to train.
NEAR_DUPLICATES = Grid(
    n_probes=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64),
    substrings={None: (1, 4, 16), 4: (1, 4, 16)},
    nlist=(256, 1_024),
    m=(),
    ef_search=(),
    hash_bits=(16, 20, 24),
    multi_hash=((4, 20), (8, 20), (12, 20), (16, 16), (8, 32)),
)
QUICK = Grid(
    n_probes=(1, 4, 16, 64),
    substrings={None: (1, 16, 256), 4: (1, 16)},
    nlist=(32,),
    m=(16,),
    ef_search=(100, 200),
    hash_bits=(12,),
    multi_hash=((4, 16), (16, 16)),
)


class Entry(NamedTuple):
    """A contender.

    Attributes
    ----------
    family, name : str
    adapter : str
        Name of its class below.
    arguments : dict
        Arguments of the class.
    sweeps : list of dict
        Settings of a search by their labels.
    n_least : int
        Queries that every search has at least.
    """

    family: str
    name: str
    adapter: str
    arguments: dict[str, Any]
    sweeps: list[dict[str, dict[str, Any]]]
    n_least: int = LEAST_QUERIES


class _Index(ABC):
    """A contender: maps the codes that the parent wrote, builds an index of them, and searches it."""

    def __init__(self, folder: str, n_bits: int) -> None:
        self.n_bits, self.n_threads = n_bits, 1
        self.base: NDArray[np.uint8] = np.load(Path(folder) / "base.npy")
        self.queries: NDArray[np.uint8] = np.load(Path(folder) / "queries.npy")

    def pin(self, n_threads: int) -> None:
        """Run the following calls on `n_threads` threads and cores."""
        self.n_threads = n_threads
        pin(n_threads)

    @abstractmethod
    def build(self) -> None:
        """Index the codes."""

    @abstractmethod
    def n_bytes(self) -> int:
        """Bytes that the index takes, codes included."""

    @abstractmethod
    def search(self, n_queries: int, k: int, setting: dict[str, Any]) -> NDArray[np.int64]:
        """Return the ids of the results of the first `n_queries` queries."""

    @abstractmethod
    def n_rows(self) -> int | None:
        """Count the rows that the last search compared, over all queries; None if the library does not count them."""


class Ours(_Index):
    """BinaryIndex with buckets of some kind, or without."""

    def __init__(self, folder: str, n_bits: int, buckets: str | None, n_tables: int | None) -> None:
        from cbeindex import BinaryIndex

        super().__init__(folder, n_bits)
        self.index = BinaryIndex(n_bits, buckets, n_tables=n_tables)
        self.stats: dict[str, Any] = {}

    def build(self) -> None:
        """Index the codes."""
        self.index.add(self.base)

    def n_bytes(self) -> int:
        """Bytes that the index takes, codes included."""
        return sum(self.index.stats()["bytes"].values())

    def search(self, n_queries: int, k: int, setting: dict[str, Any]) -> NDArray[np.int64]:
        """Return the ids of the results of the first `n_queries` queries."""
        found = self.index.search(self.queries[:n_queries], k, n_threads=self.n_threads, **setting)
        self.stats = {"n_queries": n_queries, **found.stats}
        return found.ids

    def n_rows(self) -> int | None:
        """Count the rows that the last search compared: those in the visited buckets, or all rows."""
        return int(self.stats.get("visited", self.stats["n_queries"] * len(self.base)))


class Faiss(_Index):
    """One of the binary indexes of faiss."""

    def __init__(self, folder: str, n_bits: int, family: str, options: tuple[int, ...]) -> None:
        import faiss

        super().__init__(folder, n_bits)
        self.faiss = faiss
        if family == "IVF":
            self.quantizer = faiss.IndexBinaryFlat(n_bits)
            self.index = faiss.IndexBinaryIVF(self.quantizer, n_bits, *options)
        else:
            self.index = getattr(faiss, f"IndexBinary{family}")(n_bits, *options)
        counts = faiss.cvar
        hashes = counts.indexBinaryHash_stats
        by_family = {"IVF": counts.indexIVF_stats, "HNSW": counts.hnsw_stats, "Hash": hashes, "MultiHash": hashes}
        self.counts = by_family.get(family)

    def pin(self, n_threads: int) -> None:
        """Run the following calls on `n_threads` threads and cores."""
        super().pin(n_threads)
        self.faiss.omp_set_num_threads(n_threads)

    def build(self) -> None:
        """Index the codes."""
        if not self.index.is_trained:
            self.index.train(self.base)
        self.index.add(self.base)

    def n_bytes(self) -> int:
        """Bytes of the index as faiss stores it."""
        return len(self.faiss.serialize_index_binary(self.index))

    def search(self, n_queries: int, k: int, setting: dict[str, Any]) -> NDArray[np.int64]:
        """Return the ids of the results of the first `n_queries` queries."""
        for name, value in setting.items():
            setattr(self.index.hnsw if name == "efSearch" else self.index, name, value)
        if self.counts is not None:
            self.counts.reset()
        self.n_queries = n_queries
        return np.asarray(self.index.search(self.queries[:n_queries], k)[1])

    def n_rows(self) -> int | None:
        """Count the rows that the last search compared, as faiss counts them."""
        if self.counts is None:
            return self.n_queries * len(self.base)
        return int(self.counts.ndis) or None


def entries(problem: Problem, quick: bool) -> list[Entry]:
    """List the contenders; the flat scan of faiss comes first."""
    grid = QUICK if quick else NEAR_DUPLICATES if problem.name == "near-duplicates" else USUAL
    listed = [
        _faiss("Flat", (), {"heap": {"use_heap": True}}, {"counting": {"use_heap": False}}),
        _ours("scan", None, {"all rows": {"mode": "scan"}}),
    ]
    if problem.n_bits > 1_024:  # up to there it is a scan
        listed.append(_ours("cascade", None, {"default": {"mode": "cascade"}}))
    in_buckets = {"mode": "buckets"}
    cells = {f"n_probes {n}": in_buckets | {"n_probes": n} for n in grid.n_probes}
    listed.append(_ours("clusters", "clusters", cells, {"default": in_buckets}))
    for n_tables, numbers in grid.substrings.items():
        tables = {f"n_probes {n}": in_buckets | {"n_probes": n} for n in numbers}
        exact = {} if n_tables else {"exact": in_buckets}
        listed.append(_ours("substrings", "substrings", tables, exact, n_tables=n_tables))
    for nlist in grid.nlist:
        numbers = tuple(n for n in grid.n_probes if n <= nlist)
        plain = {f"nprobe {n}": {"nprobe": n, "per_invlist_search": False} for n in numbers}
        by_list = {f"nprobe {n} by list": {"nprobe": n, "per_invlist_search": True} for n in numbers}
        # List by list instead of query by query: with fewer queries than lists, faiss 1.15 writes past the end of an
        # array, and with as many it refuses. A third way, by counting (use_heap = False), finds nothing in faiss 1.15.
        if nlist < len(problem.queries):
            listed.append(_faiss("IVF", (nlist,), plain, by_list, n_least=max(LEAST_QUERIES, nlist + 1)))
        else:
            listed.append(_faiss("IVF", (nlist,), plain))
    listed += [_faiss("HNSW", (m,), {f"efSearch {n}": {"efSearch": n} for n in grid.ef_search}) for m in grid.m]
    listed += [_faiss("Hash", (b,), _flips(6)) for b in grid.hash_bits]
    listed += [_faiss("MultiHash", shape, _flips(4)) for shape in grid.multi_hash if np.prod(shape) <= problem.n_bits]
    return listed


def _flips(n: int) -> dict[str, dict[str, Any]]:
    return {f"nflip {i}": {"nflip": i} for i in range(n)}


def _ours(family: str, buckets: str | None, *sweeps: dict[str, dict[str, Any]], n_tables: int | None = None) -> Entry:
    name = f"cbeindex {family} {n_tables or ''}".strip()
    return Entry(family, name, "Ours", {"buckets": buckets, "n_tables": n_tables}, list(sweeps))


def _faiss(
    family: str, options: tuple[int, ...], *sweeps: dict[str, dict[str, Any]], n_least: int = LEAST_QUERIES
) -> Entry:
    name = " ".join([f"faiss {family}", "x".join(map(str, options))]).strip()
    return Entry(family, name, "Faiss", {"family": family, "options": options}, list(sweeps), n_least)
