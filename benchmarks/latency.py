"""One query at a time, as a web service asks: microseconds at equal recall, from one thread of Python and several."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import contenders, recall, sources
from benchmarks.adapter import Setting
from benchmarks.datasets import Dataset, available
from benchmarks.report import Progress, Report

CONTENDERS = (
    "cbeindex-graph", "cbeindex-graph-int8", "cbeindex-cells", "SymphonyQG", "zvec", "alayalite", "ScaNN", "hnswlib",
    "HNSW32_SQ8", "usearch",
)  # fmt: skip
"""Contenders where the user names none: those that answer one query fast."""

_SETS = ("fashion-mnist-784", "glove6b-100", "sift5k-128")
_OURS = "cbeindex-graph"


class Entry(NamedTuple):
    """A setting of a contender that reaches a level of recall."""

    name: str
    level: float
    setting: Setting
    recall: float


def main(arguments: list[str]) -> None:
    """Print the tables."""
    options = parse(arguments)
    report = Report(f"Latency of single queries, cores: {options.threads}", options.output)
    progress = Progress()
    tell = partial(progress.say, now=False)
    for name in options.data:
        data = sources.open_set(name, n_rows=options.rows, n_queries=options.queries, tell=tell)
        measure(data, options, report, tell)
        progress.clear()


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks latency", description=__doc__)
    add = parser.add_argument
    add("--data", nargs="+", help=f"names of sets, or files; by default {', '.join(_SETS)}")
    add("--contenders", nargs="+", default=list(CONTENDERS), help="names, or groups; by default the fastest ones")
    add("--rows", type=recall.positive, help="rows of a set to take at most")
    add("--queries", type=recall.positive, default=1_000, help="queries of a set to take at most")
    add("--levels", type=float, nargs="+", default=[0.9, 0.95, 0.99], help="recall 10@10 to compare at")
    add("--threads", type=recall.positive, default=1, help="cores of a contender while one thread asks")
    add("--callers", type=recall.positive, default=8, help="threads of Python that ask at the same time")
    add("--rounds", type=recall.positive, help="rounds in which contenders alternate (5)")
    add("--timeout", type=float, default=900, help="seconds after which a contender is given up")
    add("--quick", action="store_true", help="a smoke run: a small set, few settings")
    add("--output", default=os.path.join("bench-report", "latency.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    options.data = options.data or [name for name in _SETS if name in available()][: 1 if options.quick else None]
    options.data = options.data or ["synthetic"]
    if options.quick:
        options.rows, options.queries = options.rows or 9_000, min(options.queries, 50)
    options.rounds = options.rounds or (1 if options.quick else 5)
    options.depth, options.step = [12, 20, 40, 100], 1
    return options


def measure(data: Dataset, options: argparse.Namespace, report: Report, tell: Callable[[str], object]) -> None:
    """Build all contenders on a set, and time them in turn."""
    with tempfile.TemporaryDirectory(prefix="cbeindex-bench-") as folder:
        log = recall.Log(Path(folder) / "log.jsonl")
        task = recall.write_task(data, min(data.dim, recall.SHORT_BITS), folder, options.threads, None, log)
        match = recall.Match(task, data, options, tell)
        try:
            for name in contenders.chosen(options.contenders):
                tell(f"{data.name}: building {name}")
                match.enter(name)
            entries = [entry for level in options.levels for entry in reaching(match.points, level)]
            print_builds(data, match, report)
            best = print_latencies(data, match, entries, options, report, tell)
            print_callers(data, match, best, options, report, tell)
            print_reads(data, match, best, report)
        finally:
            match.close()


def reaching(points: list[recall.Point], level: float) -> list[Entry]:
    """Return, for each contender and depth, the first setting of its sweep that reaches a level of exact results."""
    first: dict[tuple[str, int | None], Entry] = {}
    for point in points:
        if point.setting.kind == "exact" and point.recall[-1] >= level:
            entry = Entry(point.name, level, point.setting, point.recall[-1])
            first.setdefault((point.name, point.setting.depth), entry)
    return list(first.values())


def print_builds(data: Dataset, match: recall.Match, report: Report) -> None:
    """Print what building took; contenders that do not take part say why."""
    table = report.table(f"{data.name}: builds", ["contender", "seconds", "MB", "note"], widths=_NAME | {"note": 30})
    for name, row in match.rows.items():
        n_bytes = row["build_bytes"]
        note = row["status"] if row["status"] == "ok" else f"{row['status']}: {row['reason']}"
        table.row(name, row["build_seconds"], None if n_bytes is None else n_bytes / 1e6, note)


def print_latencies(
    data: Dataset, match: recall.Match, entries: list[Entry], options: argparse.Namespace, report: Report,
    tell: Callable[[str], object],
) -> list[Entry]:  # fmt: skip
    """Time one query after the other; print and return the fastest setting of each contender at each level."""
    seconds: dict[Entry, list[NDArray[np.float64]]] = {entry: [] for entry in entries}
    for number in range(options.rounds + 1):
        for entry in entries:
            tell(f"{data.name}: round {number} of {options.rounds}, {entry.name}")
            seconds[entry].append(match.call(entry.name, "latencies", entry.setting))
    # The first round warms up. Percentiles are those of the median round.
    middle = {
        entry: np.median([np.percentile(one, [50, 99]) for one in rounds[1:]], axis=0)
        for entry, rounds in seconds.items()
    }
    best = []
    table = report.table(
        f"{data.name}: one query at a time",
        ["contender", "level", "setting", "recall", "p50 us", "p99 us", "x ours"],
        f"x ours: p50 / p50 of {_OURS} at the same level, above 1: {_OURS} is faster",
        widths=_NAME | {"setting": 28},
    )
    for level in options.levels:
        here = [entry for entry in entries if entry.level == level]
        fastest = [min((e for e in here if e.name == name), key=lambda e: middle[e][0]) for name in _names(here)]
        ours = next((middle[entry][0] for entry in fastest if entry.name == _OURS), None)
        for entry in sorted(fastest, key=lambda e: middle[e][0]):
            p50, p99 = middle[entry]
            label = recall.label(entry.name, entry.setting)
            table.row(
                entry.name, level, label, entry.recall, p50 * 1e6, p99 * 1e6, None if ours is None else p50 / ours
            )
        best += fastest
    return best


def print_callers(
    data: Dataset, match: recall.Match, best: list[Entry], options: argparse.Namespace, report: Report,
    tell: Callable[[str], object],
) -> None:  # fmt: skip
    """Print queries per second where several threads of Python ask at the same time, on all cores."""
    n_cores = os.cpu_count() or 1
    seconds: dict[Entry, list[float]] = {entry: [] for entry in best}
    for name in _names(best):
        match.call(name, "use_threads", n_cores)
    for number in range(options.rounds + 1):
        for entry in best:
            tell(f"{data.name}: {options.callers} threads, round {number} of {options.rounds}, {entry.name}")
            seconds[entry].append(match.call(entry.name, "seconds_on_threads", entry.setting, options.callers))
    table = report.table(
        f"{data.name}: {options.callers} threads of Python on {n_cores} cores",
        ["contender", "level", "recall", "queries/s"],
        widths=_NAME,
    )
    for entry in best:
        qps = data.queries.shape[0] / float(np.median(seconds[entry][1:]))
        table.row(entry.name, entry.level, entry.recall, qps)


def print_reads(data: Dataset, match: recall.Match, best: list[Entry], report: Report) -> None:
    """Print what walks through our graph read, next to the time that memory alone takes for it."""
    ours = [entry for entry in best if entry.name == _OURS]
    if not ours:
        return
    table = report.table(
        f"{data.name}: what {_OURS} reads",
        ["level", "steps", "vectors", "KB", "us of memory"],
        "a query; us of memory: as many records of this size at random, each found by the one before",
        widths={"us of memory": 12},
    )
    for entry in ours:
        reads: dict[str, Any] = match.call(_OURS, "reads", entry.setting)
        table.row(entry.level, reads["steps"], reads["vectors"], reads["bytes"] / 1e3, reads["seconds"] * 1e6)


def _names(entries: list[Entry]) -> list[str]:
    """Return the contenders of some entries, each once."""
    return list(dict.fromkeys(entry.name for entry in entries))


_NAME = {"contender": 20}
