"""How fast part of the codes is searched: BinaryIndex with buckets next to the binary indexes of faiss, by recall.

All contenders get the same codes and search for all queries in one call. Each is built once, in a process of its own,
on as many cores as the largest `--threads`. A search is then pinned to the threads that its row names. A contender has
one or more sweeps: settings that compare more and more rows. A sweep ends early at a setting that reaches the recall of
the flat scan and took longer than the setting before, or at a setting that would take more than some seconds. That
setting gets fewer queries, and the column "asked" says how many. Searches that take longer than `--seconds` are timed
on fewer queries, and the column "timed" says how many.

Recall is the share of the 10 true neighbours by cosine among the first 100 results by Hamming distance. Levels of
recall are 0.9, 0.95 and 0.98 where the flat scan reaches them; where it does not, these shares of its recall come too.
For near duplicates the true neighbours are those by Hamming distance, k is 10, and 1 is a level too.
A last row compares the settings that are exact in Hamming space.
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.buckets.contenders import Entry, entries
from benchmarks.buckets.problems import BITS, MADE_UP, Problem, problem
from benchmarks.buckets.tables import Point, curves, every_recall, levels
from benchmarks.harness import Contender, ContenderError, alternate
from benchmarks.report import Progress, Report

# A setting that would take longer for all queries gets fewer queries, and ends its sweep.
LONGEST_SECONDS = 3.0
# Before shorter searches are timed, the same is done unrecorded: what other contenders left in the caches counts less.
SHORT_SECONDS = 0.1
# Recall this much below that of the flat scan is level with it.
LEVEL_WITH_FLAT = 0.0005


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
            process = Contender(
                f"benchmarks.buckets.contenders:{entry.adapter}", arguments, n_threads=n_threads, timeout=1_200
            )
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
    """Measure the recall of settings that compare more and more rows, until more rows do not help."""
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

        calls = {point.name: functools.partial(call, point) for point in points}
        timings = alternate(calls, options.repeats, warm_up=warm_up)
        for point in points:
            point.timings[n_threads] = timings[point.name]
