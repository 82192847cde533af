"""How fast part of the codes is searched: BinaryIndex with buckets next to the binary indexes of faiss, by recall.

All contenders get the same codes and answer all queries in one call. Each is built once, in a process of its own, on as
many cores as the largest `--threads`; a search is then pinned to the threads that its row names. A contender has one or
more sweeps: settings that look at more and more rows. A sweep ends early at a setting that finds what the flat scan
finds and took longer than the one before, or at one that would take more than some seconds: that one is asked fewer
queries, and the column "asked" says how many. Searches that take longer than `--seconds` are timed on fewer queries;
the column "timed" says how many.

Recall is the share of the 10 true neighbours by cosine among the first 100 answers by Hamming distance. Levels of
recall are 0.9, 0.95 and 0.98 where the flat scan reaches them; where it does not, these shares of its recall come too.
For near duplicates the true neighbours are those by Hamming distance, 10 answers are asked for, and 1 is a level too.
A last row compares the settings that are exact in Hamming space.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets
from benchmarks.harness import Contender, ContenderError, Timing, alternate
from benchmarks.report import Progress, Report
from cbeindex import CirculantEncoder

BITS = {"fashion-mnist-784": 1_024, "glove6b-100": 512, "debian-desc-25600": 2_048}
MADE_UP = ("clustered", "near-duplicates")
OURS = ("clusters", "substrings", "scan", "cascade")
FAISS = ("IVF", "HNSW", "Hash", "MultiHash", "Flat")
# Settings that find the nearest codes whatever these are.
EXACT = ("exact", "all rows", "heap", "counting")
N_TRUE = 10
LEVELS = (0.9, 0.95, 0.98)
# A setting that would take longer to answer all queries is asked fewer of them, and ends its sweep.
LONGEST_SECONDS = 3.0
# But at least so many.
LEAST_QUERIES = 100
# Before shorter searches are timed, the same is done unrecorded: what other contenders left in the caches counts less.
SHORT_SECONDS = 0.1
# Recall this much below that of the flat scan is level with it.
LEVEL_WITH_FLAT = 0.0005


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
    n_probes=(1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512),
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
    n_probes=(1, 2, 4, 8, 12, 16, 24, 32, 48, 64),
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


@dataclass
class Problem:
    """Codes to search.

    Attributes
    ----------
    name : str
    n_bits : int
    base, queries : uint8 arrays of shape (n, n_bits / 8)
    pairs : int64 array
        Queries and rows that are true neighbours, as `datasets.near_pairs` gives them.
    k : int
        Answers asked for.
    levels : tuple of float
        Shares of the true neighbours at which contenders are compared.
    """

    name: str
    n_bits: int
    base: NDArray[np.uint8]
    queries: NDArray[np.uint8]
    pairs: NDArray[np.int64]
    k: int
    levels: tuple[float, ...]

    def recall(self, ids: NDArray[np.int64]) -> float:
        """Share of the true neighbours of the first queries that are in `ids`."""
        return datasets.pairs_found(self.pairs, len(self.base), ids, N_TRUE)


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


@dataclass
class Point:
    """What one setting of a contender found, and how long it took.

    Attributes
    ----------
    entry : Entry
    label : str
    setting : dict
    recall : float
    rows : float or None
        Rows that a query was compared with.
    n_asked, n_timed : int
        Queries that recall comes from, and that a timed search has.
    seconds : float
        What a timed search will take, about.
    timings : dict of int to Timing
        By the number of threads.
    """

    entry: Entry
    label: str
    setting: dict[str, Any]
    recall: float
    rows: float | None
    n_asked: int
    n_timed: int
    seconds: float
    timings: dict[int, Timing] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Contender and setting."""
        return f"{self.entry.name}, {self.label}"

    def qps(self, n_threads: int) -> float:
        """Queries per second."""
        return self.n_timed / self.timings[n_threads].median


class _Index(ABC):
    """A contender: maps the codes that the parent wrote, builds an index of them, and searches it."""

    def __init__(self, folder: str, n_bits: int) -> None:
        self.n_bits, self.n_threads = n_bits, 1
        self.base: NDArray[np.uint8] = np.load(Path(folder) / "base.npy")
        self.queries: NDArray[np.uint8] = np.load(Path(folder) / "queries.npy")
        self.cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

    def pin(self, n_threads: int) -> None:
        """Let what follows run on so many threads and cores."""
        self.n_threads = n_threads
        if self.cores:
            os.sched_setaffinity(0, self.cores[-n_threads:])

    @abstractmethod
    def build(self) -> None:
        """Index the codes."""

    @abstractmethod
    def n_bytes(self) -> int:
        """Bytes that the index takes, codes included."""

    @abstractmethod
    def search(self, n_queries: int, k: int, setting: dict[str, Any]) -> NDArray[np.int64]:
        """Ids of the answers to the first queries."""

    @abstractmethod
    def n_rows(self) -> int | None:
        """Rows that the last search looked at, over all its queries, where that is counted."""


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
        """Ids of the answers to the first queries."""
        found = self.index.search(self.queries[:n_queries], k, n_threads=self.n_threads, **setting)
        self.stats = {"n_queries": n_queries, **found.stats}
        return found.ids

    def n_rows(self) -> int | None:
        """Rows that the last search looked at: in the visited buckets, or all of them."""
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
        self.counts = {"IVF": counts.indexIVF_stats, "HNSW": counts.hnsw_stats, "Hash": hashes, "MultiHash": hashes}
        self.counts = self.counts.get(family)

    def pin(self, n_threads: int) -> None:
        """Let what follows run on so many threads and cores."""
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
        """Ids of the answers to the first queries."""
        for name, value in setting.items():
            setattr(self.index.hnsw if name == "efSearch" else self.index, name, value)
        if self.counts is not None:
            self.counts.reset()
        self.n_queries = n_queries
        return np.asarray(self.index.search(self.queries[:n_queries], k)[1])

    def n_rows(self) -> int | None:
        """Rows that the last search looked at, as faiss counts them."""
        if self.counts is None:
            return self.n_queries * len(self.base)
        return int(self.counts.ndis) or None


def main(arguments: list[str]) -> None:
    """Print tables for each set."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks buckets", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run: few rows, settings and rounds")
    parser.add_argument(
        "--data",
        nargs="+",
        metavar="NAME",
        help="names of sets; by default three real ones, or made-up clusters, and made-up near duplicates",
    )
    parser.add_argument("--threads", type=int, nargs="+", help="by default 1 and all cores")
    parser.add_argument("--queries", type=int, default=None, help="by default 1,000, for near duplicates 500")
    parser.add_argument("--repeats", type=int, default=None, help="rounds of timed searches, by default 5")
    parser.add_argument("--seconds", type=float, default=0.3, help="longer searches are timed on fewer queries")
    parser.add_argument("--output", default=os.path.join("bench-report", "buckets.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    n_cores = os.cpu_count() or 1
    options.threads = sorted({min(n, n_cores) for n in options.threads or ((1,) if options.quick else (1, n_cores))})
    options.repeats = options.repeats or (2 if options.quick else 5)
    known = [*datasets.available(), *MADE_UP]
    if unknown := sorted(set(options.data or ()) - set(known)):
        parser.error(f"--data must be among {', '.join(known)}, got {', '.join(unknown)}")
    names = options.data
    if names is None:
        names = [name for name in BITS if name in datasets.available()] or ["clustered"]
        names = [*(names[:1] if options.quick else names), "near-duplicates"]
    report, progress = Report("Searching part of the codes", options.output), Progress()
    for name in names:
        progress.say(f"{name}: making codes")
        compare(report, progress, problem(name, options.quick, options.queries), options)


def problem(name: str, quick: bool, n_queries: int | None) -> Problem:
    """Load or make a set, and encode it."""
    if name == "near-duplicates":
        return near_duplicates(10_000 if quick else 1_000_000, n_queries or (LEAST_QUERIES if quick else 500))
    n_queries = n_queries or (LEAST_QUERIES if quick else 1_000)
    if name == "clustered":
        data = datasets.clustered(5_000 if quick else 50_000, 256, n_queries)
    else:
        data = datasets.load(name)
        if quick:
            data = datasets.Dataset(name, data.base[:5_000], data.queries)
    data = datasets.with_truth(data, n_queries)
    n_bits = BITS.get(name, 1_024)
    encoder = CirculantEncoder(data.dim, n_bits).fit(data.base)
    pairs = datasets.near_pairs(data, N_TRUE)
    return Problem(name, n_bits, encoder.encode(data.base), encoder.encode(data.queries), pairs, 100, LEVELS)


def near_duplicates(n: int, n_queries: int, *, n_bits: int = 256, n_near: int = 10, seed: int = 0) -> Problem:
    """Random codes, and `n_near` copies of each query with 2 to 10 % of the bits flipped."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 256, (n, n_bits // 8), dtype=np.uint8)
    queries = rng.integers(0, 256, (n_queries, n_bits // 8), dtype=np.uint8)
    rows = rng.choice(n, (n_queries, n_near), replace=False)
    flips = rng.random((n_queries, n_near, n_bits)) < np.linspace(0.02, 0.1, n_near)[:, np.newaxis]
    base[rows] = queries[:, np.newaxis] ^ np.packbits(flips, axis=2, bitorder="little")
    # Random codes of 256 bits differ in 128 bits, give or take 8: no other of a million is as near as a copy.
    distances = flips.sum(axis=2)
    last = np.sort(distances, axis=1)[:, N_TRUE - 1 : N_TRUE]
    pairs = np.sort((np.arange(n_queries)[:, np.newaxis] * n + rows)[distances <= last])
    return Problem("near-duplicates", n_bits, base, queries, pairs, 10, (*LEVELS, 1.0))


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
        numbers = [n for n in grid.n_probes if n <= nlist]
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


def compare(report: Report, progress: Progress, problem: Problem, options: argparse.Namespace) -> None:
    """All tables of one set."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "base.npy", problem.base)
        np.save(Path(folder) / "queries.npy", problem.queries)
        processes: dict[str, Contender] = {}
        try:
            listed = build(report, progress, problem, folder, processes, options)
            points = sweep_all(progress, problem, listed, processes, options)
            time_all(progress, problem, points, processes, options)
        finally:
            for process in processes.values():
                process.close()
    progress.clear()
    curves(report, problem, points, options.threads)
    levels(report, problem, points, options.threads)
    every_recall(report, problem, points, options.threads)


def build(
    report: Report,
    progress: Progress,
    problem: Problem,
    folder: str,
    processes: dict[str, Contender],
    options: argparse.Namespace,
) -> list[Entry]:
    """Build one contender after the other; return those that could be built."""
    n_threads = max(options.threads)
    table = report.table(
        f"build {problem.name}",
        ["contender", "rows", "bits", "threads", "build s", "bytes/vector", "x code"],
        "bytes of a vector with its code, and as multiples of the code; faiss: as it stores the index on disk, "
        "where its hash tables are packed; first builds of cbeindex may include compiling",
        {"contender": 24},
    )
    built = []
    for entry in entries(problem, options.quick):
        progress.say(f"{problem.name}: building {entry.name}")
        arguments = {"folder": folder, "n_bits": problem.n_bits, **entry.arguments}
        seconds = n_bytes = share = None
        try:
            process = Contender(f"{__name__}:{entry.adapter}", arguments, n_threads=n_threads, timeout=1_200)
            processes[entry.name] = process
            process.call("pin", n_threads)
            seconds, _ = process.timed("build")
            n_bytes = process.call("n_bytes") / len(problem.base)
            share = n_bytes / (problem.n_bits / 8)
            built.append(entry)
        except ContenderError as error:
            progress.say(f"{entry.name} failed: {error}")
        progress.clear()
        table.row(entry.name, len(problem.base), problem.n_bits, n_threads, seconds, n_bytes, share)
    return built


def sweep_all(
    progress: Progress,
    problem: Problem,
    listed: list[Entry],
    processes: dict[str, Contender],
    options: argparse.Namespace,
) -> list[Point]:
    """Find the recall of all settings, on the fewest threads, and how many queries each can be timed on."""
    points: list[Point] = []
    flat = 1.0
    for entry in listed:
        processes[entry.name].call("pin", min(options.threads))
        progress.say(f"{problem.name}: recall of {entry.name}", now=False)
        try:
            found = [
                sweep_one(problem, entry, sweep, processes[entry.name], options.seconds, flat) for sweep in entry.sweeps
            ]
            points += chain.from_iterable(found)
        except ContenderError as error:  # it may be gone: none of its settings can be timed
            progress.say(f"{entry.name} failed: {error}")
        flat = max(point.recall for point in points if point.entry.family == "Flat")
    return points


def sweep_one(
    problem: Problem, entry: Entry, sweep: dict[str, dict[str, Any]], process: Contender, most: float, flat: float
) -> list[Point]:
    """Find the recall of settings that look at more and more rows, until more of them are of no use."""
    points: list[Point] = []
    n_all = len(problem.queries)
    n_least = min(entry.n_least, n_all)
    last = np.inf
    for label, setting in sweep.items():
        # The first search may compile, or be the first to touch memory.
        estimate = min(process.timed("search", n_least, problem.k, setting)[0] for _ in range(2)) / n_least * n_all
        n_asked = n_all if estimate <= LONGEST_SECONDS else max(n_least, int(n_all * LONGEST_SECONDS / estimate))
        seconds, ids = process.timed("search", n_asked, problem.k, setting)
        seconds *= n_all / n_asked
        n_timed = n_all if seconds <= most else max(n_least, int(n_all * most / seconds))
        rows = process.call("n_rows")
        recall = problem.recall(ids)
        rows = None if rows is None else rows / n_asked
        points.append(Point(entry, label, setting, recall, rows, n_asked, n_timed, seconds * n_timed / n_all))
        if n_asked < n_all or (recall >= flat - LEVEL_WITH_FLAT and seconds > last):
            break
        last = seconds
    return points


def time_all(
    progress: Progress,
    problem: Problem,
    points: list[Point],
    processes: dict[str, Contender],
    options: argparse.Namespace,
) -> None:
    """Time all settings in turn, on each number of threads."""
    for n_threads in options.threads:
        for name in {point.entry.name for point in points}:
            processes[name].call("pin", n_threads)
        done = 0
        warm_up = n_threads != min(options.threads)  # there, the sweeps were one
        n_calls = len(points) * (options.repeats + warm_up)

        def call(point: Point, n_threads: int = n_threads, n_calls: int = n_calls) -> float:
            nonlocal done
            done += 1
            progress.say(f"{problem.name}, threads {n_threads}: search {done:,} of {n_calls:,}", now=False)
            arguments = ("search", point.n_timed, problem.k, point.setting)
            if point.seconds < SHORT_SECONDS:
                processes[point.entry.name].call(*arguments)
            return processes[point.entry.name].timed(*arguments)[0]

        calls = {point.name: (lambda point=point, call=call: call(point)) for point in points}
        timings = alternate(calls, options.repeats, warm_up=warm_up)
        for point in points:
            point.timings[n_threads] = timings[point.name]


def curves(report: Report, problem: Problem, points: list[Point], threads: list[int]) -> None:
    """Print recall and queries per second of every setting."""
    n_runs = len(points[0].timings[threads[0]].seconds)
    table = report.table(
        f"curves {problem.name}",
        ["contender", "setting", "threads", "recall", "QPS", "min-max", "rows/query", "asked", "timed"],
        f"recall 10@{problem.k} of the queries asked; queries per second of batches of the queries timed, median of "
        f"{n_runs}, without encoding; rows that a query was compared with, as each library counts them",
        {"contender": 24, "setting": 22, "min-max": 15},
    )
    for n_threads in threads:
        for point in points:
            seconds = point.timings[n_threads].seconds
            spread = f"{point.n_timed / max(seconds):,.0f}-{point.n_timed / min(seconds):,.0f}"
            table.row(
                point.entry.name, point.label, n_threads, round(point.recall, 4), point.qps(n_threads), spread,
                point.rows, point.n_asked, point.n_timed,
            )  # fmt: skip


def levels(report: Report, problem: Problem, points: list[Point], threads: list[int]) -> None:
    """Print the best queries per second at levels of recall."""
    flat = max(point.recall for point in points if point.entry.family == "Flat")
    wanted = {f"{level:g}": level for level in problem.levels if level <= flat}
    if len(wanted) < len(problem.levels):
        wanted |= {f"{level:g} of flat": level * flat for level in problem.levels}
    reading = (
        "best queries per second with at least this recall: cbeindex, then faiss; -: no setting reaches it; exact: "
        "settings that are exact in Hamming space; x: first / second (faiss: its best), above 1: the first, "
        "of cbeindex, is faster"
    )
    if all(point.entry.family != "HNSW" for point in points):
        reading += "; without HNSW, which takes too long to build on so many codes"
    ratios = ["clusters x faiss", "substrings x MultiHash", "substrings x scan"]
    table = report.table(
        f"levels {problem.name}", ["level", "recall", "threads", *OURS, *FAISS, *ratios], reading, {"level": 12}
    )
    for n_threads in threads:
        for name, level in (wanted | {"exact": flat}).items():
            some = [point for point in points if name != "exact" or point.label in EXACT]
            best = {family: best_qps(some, family, level, n_threads) for family in (*OURS, *FAISS)}
            rival = max(best[family] or 0.0 for family in FAISS)
            table.row(
                name, round(level, 4), n_threads, *best.values(), _ratio(best["clusters"], rival),
                _ratio(best["substrings"], best["MultiHash"]), _ratio(best["substrings"], best["scan"]),
            )  # fmt: skip


def every_recall(report: Report, problem: Problem, points: list[Point], threads: list[int]) -> None:
    """Print substrings next to the settings of MultiHash that no other one beats in both recall and speed."""
    table = report.table(
        f"substrings {problem.name}",
        ["recall", "threads", "MultiHash", "QPS", "substrings", "substrings x MultiHash"],
        "the best settings of faiss MultiHash, and the best queries per second of substrings with at least their "
        "recall; x: above 1: cbeindex is faster",
        {"MultiHash": 32, "substrings": 10},
    )
    rivals = sorted((p for p in points if p.entry.family == "MultiHash"), key=lambda point: point.recall)
    for n_threads in threads:
        for rival in rivals:
            theirs = rival.qps(n_threads)
            if theirs < (best_qps(points, "MultiHash", rival.recall, n_threads) or 0.0):
                continue
            ours = best_qps(points, "substrings", rival.recall, n_threads)
            table.row(round(rival.recall, 4), n_threads, rival.name, theirs, ours, _ratio(ours, theirs))


def best_qps(points: list[Point], family: str, recall: float, n_threads: int) -> float | None:
    """Most queries per second of a family with at least some recall, or None if it does not reach it."""
    enough = (p for p in points if p.entry.family == family and p.recall >= recall - 1e-9)
    return max((point.qps(n_threads) for point in enough), default=None)


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours and theirs else None
