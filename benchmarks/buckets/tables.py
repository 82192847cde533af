"""What came out: a point for each setting, and tables of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.buckets.contenders import Entry
from benchmarks.buckets.problems import Problem
from benchmarks.harness import Timing
from benchmarks.report import Report

OURS = ("clusters", "substrings", "scan", "cascade")
FAISS = ("IVF", "HNSW", "Hash", "MultiHash", "Flat")
# Settings that find the nearest codes whatever these are.
EXACT = ("exact", "all rows", "heap", "counting")


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
        reading += "; without HNSW, which takes too long to build at this size"
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
