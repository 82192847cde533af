"""The main comparison: CBEIndex next to faiss and others, recall@R and queries per second, with plots and a page."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import contenders, curves, encode, page, plots, sources, truth
from benchmarks.adapter import Setting, Task
from benchmarks.datasets import Dataset, available
from benchmarks.harness import Contender, last_line
from benchmarks.report import Progress, Report

# Number of results of a search from codes alone.
K = 100
# Codes that are compared where the user does not say: short vectors, and long ones.
SHORT_DIM, SHORT_BITS, LONG_BITS = 2_048, 1_024, 8_192
# Where the user names no set, all ends within minutes: rows of short and of long vectors, queries, every
# `BRIEF_STEP`-th setting of a sweep longer than `SHORT_SWEEP`, and no contender that is a slow variant of another.
BRIEF_SHORT_ROWS, BRIEF_LONG_ROWS, BRIEF_QUERIES, BRIEF_STEP, SHORT_SWEEP = 10_000, 8_000, 200, 2, 4
NOT_BRIEF = ("BinaryIVF-fine", "BinaryIVF-by-list")
ENCODE_DIMS = (256, 1_024, 4_096, 25_600)
# What is not said: depths, seconds and rounds of a full run, of a brief one and of a smoke run.
_FULL, _BRIEF, _QUICK = ([100, 400], 0.5, 7), ([100], 0.25, 7), ([100], 0.0, 1)
# Least rounds of every setting, however long they take, unless `--rounds` is lower. A median needs three values.
_LEAST_ROUNDS = 3
# A sweep ends when `_N_LEVEL` settings in a row have equal recall to `_LEVEL`, and a recall above `_LEAST_LEVEL`.
_N_LEVEL, _LEVEL, _LEAST_LEVEL = 3, 0.001, 0.1
# Rows that the encoder is fitted on.
_N_FIT = 10_000


class Log:
    """Rows of a run, kept and written as JSON lines as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[dict[str, Any]] = []

    def add(self, table: str, **row: Any) -> None:
        """Keep and write a row."""
        self.rows.append({"table": table, **row})
        with self._path.open("a") as file:
            file.write(json.dumps(self.rows[-1]) + "\n")


@dataclass
class Point:
    """A measured setting of a contender: its recall, and the times of its rounds so far."""

    name: str
    setting: Setting
    place: int
    recall: list[float]
    times: list[dict[str, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """What its rounds took so far."""
        return sum(times["total"] for times in self.times)


def main(arguments: list[str]) -> None:
    """Measure, print tables, and write the report."""
    options = parse(arguments)
    try:
        names = contenders.chosen(options.contenders)
        folder = Path(options.output)
        path = folder / "recall.jsonl"
        if options.redraw:
            write_report(folder, [json.loads(line) for line in path.read_text().splitlines()], options.levels)
            return
        for name in options.data:
            sources.check(name)
        folder.mkdir(parents=True, exist_ok=True)
        progress = Progress()
        sets = opened(options, partial(progress.say, now=False))
        sets = chain([next(sets)], sets)  # the results of an earlier run stay until there is data
        report = Report("Recall and speed", path)
        log = Log(path)
        try:
            for data in sets:
                measure_set(data, options, names, log, progress)
            if options.encode_dims:
                encode.speed(report, tuple(options.encode_dims), 3)
        finally:  # what there is is shown, also after an error
            write_report(folder, [json.loads(line) for line in path.read_text().splitlines()], options.levels)
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks recall", description=__doc__)
    add = parser.add_argument
    add("--data", nargs="+", help="names of sets, or files; by default docstrings and a dense set, cut to be brief")
    add("--contenders", nargs="+", help=f"names, or groups: {', '.join(contenders.GROUPS)}; by default all")
    add("--rows", type=positive, help="rows of a set to take at most")
    add("--queries", type=positive, help="queries of a set to take at most (1,000)")
    add("--metric", choices=sources.METRICS, help="for files that do not say; by default cosine")
    add("--bits", type=positive, nargs="+", help=f"{SHORT_BITS} for up to {SHORT_DIM} dimensions, else {LONG_BITS}")
    add("--depth", type=positive, nargs="+", help="rows that are re-ranked exactly (100 400; brief: 100)")
    add("--threads", type=positive, nargs="+", default=[1])
    add("--batch", type=positive, help="queries of a call; by default all in one")
    add("--seconds", type=float, help=f"time for each setting, after {_LEAST_ROUNDS} rounds (0.5; brief: 0.25)")
    add("--rounds", type=positive, help="rounds in which contenders alternate, at most (7; quick: 1)")
    add("--timeout", type=float, default=600, help="seconds after which a contender is given up")
    add("--levels", type=float, nargs="+", default=[0.9, 0.95, 0.99], help="recall at which speeds are compared")
    add("--encode-dims", type=positive, nargs="*", help="dimensions at which encoding is timed; none to leave it out")
    add("--output", default="bench-report", help="folder of the report")
    add("--quick", action="store_true", help="a smoke run: a small set, few settings")
    add("--redraw", action="store_true", help="make plots and page again from the JSON lines of an earlier run")
    options = parser.parse_args(arguments)
    brief = options.data is None
    options.rows_of = {}
    options.step = BRIEF_STEP if brief else 1
    if options.quick:
        options.rows, options.queries = options.rows or 3_000, options.queries or 100
        options.encode_dims = [64, 256] if options.encode_dims is None else options.encode_dims
    if brief:
        dense = "fashion-mnist-784" if "fashion-mnist-784" in available() else "synthetic"
        options.data = ["synthetic"] if options.quick else ["docstrings", dense]
        options.rows_of = {"docstrings": BRIEF_LONG_ROWS, dense: BRIEF_SHORT_ROWS}
        options.queries = options.queries or BRIEF_QUERIES
        options.contenders = options.contenders or [name for name in contenders.REGISTRY if name not in NOT_BRIEF]
    depth, seconds, rounds = _QUICK if options.quick else _BRIEF if brief else _FULL
    options.depth = options.depth or depth
    options.seconds = seconds if options.seconds is None else options.seconds
    options.rounds = options.rounds or rounds
    options.queries = options.queries or 1_000
    options.encode_dims = ENCODE_DIMS if options.encode_dims is None else options.encode_dims
    return options


def positive(text: str) -> int:
    """Read a number of things."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {number}")
    return number


def opened(options: argparse.Namespace, tell: Callable[[str], object]) -> Iterator[Dataset]:
    """Open the sets, one after the other."""
    for name in options.data:
        n_rows = options.rows or options.rows_of.get(name)
        yield sources.open_set(name, metric=options.metric, n_rows=n_rows, n_queries=options.queries, tell=tell)


def measure_set(data: Dataset, options: argparse.Namespace, names: list[str], log: Log, progress: Progress) -> None:
    """Go through bits and threads."""
    tell = partial(progress.say, now=False)
    for n_bits in options.bits or [SHORT_BITS if data.dim <= SHORT_DIM else LONG_BITS]:
        with tempfile.TemporaryDirectory(prefix="cbeindex-bench-") as folder:
            tell(f"{data.name}: encoding {data.base.shape[0]:,} rows into {n_bits:,} bits")
            task = write_task(data, n_bits, folder, max(options.threads), options.batch, log)
            match = Match(task, data, options, tell)
            try:
                for number, name in enumerate(names, 1):
                    tell(f"{data.name}, {n_bits:,} bits: building {name}, {number} of {len(names)}")
                    match.enter(name)
                for n_threads in options.threads:
                    match.time(n_threads, log)
            finally:
                match.close()
            progress.clear()
            for n_threads in options.threads:
                print_part(curves.Part(data.name, n_bits, n_threads), log.rows, options.levels)


def write_task(data: Dataset, n_bits: int, folder: str, n_threads: int, batch: int | None, log: Log) -> Task:
    """Encode a set and write it for the contenders."""
    from cbeindex import CirculantEncoder

    n, n_queries = data.base.shape[0], data.queries.shape[0]
    batch = min(batch or n_queries, n_queries)
    task = Task(folder, n, data.dim, n_bits, data.metric, hasattr(data.base, "toarray"), n_threads, batch)
    sample = np.sort(np.random.default_rng(0).permutation(n)[:_N_FIT])
    encoder = CirculantEncoder(data.dim, n_bits).fit(data.base[sample])
    start = time.perf_counter()
    codes = encoder.encode(data.base)
    seconds = time.perf_counter() - start
    task.write(data.base, data.queries, codes, encoder)
    facts = {"data": data.name, "bits": n_bits, "rows": n, "dim": data.dim, "queries": n_queries}
    log.add("set", **facts, metric=data.metric, sparse=task.is_sparse, batch=task.batch, encode_seconds=seconds, seed=0)
    return task


class Match:
    """Contenders on one task: their processes, the points of their sweeps, and what became of them.

    A contender that fails does not go on; what was measured of it before stays.
    """

    def __init__(
        self, task: Task, data: Dataset, options: argparse.Namespace, tell: Callable[[str], object] = lambda text: None
    ) -> None:
        self._task, self._data, self._options, self._tell = task, data, options, tell
        self._running: dict[str, Contender] = {}
        self.points: list[Point] = []
        self.rows: dict[str, dict[str, Any]] = {}

    def enter(self, name: str) -> None:
        """Build a contender, and run its sweeps once for their recall; or say why not."""
        adapter = contenders.class_of(name)
        row: dict[str, Any] = {"contender": name, "group": adapter.group, "package": contenders.version(name)}
        row |= {"about": (adapter.__doc__ or name).splitlines()[0], "status": "ok", "reason": ""}
        row |= {"build_seconds": None, "build_bytes": None}
        self.rows[name] = row
        # Whatever a contender does wrong is its failure, not that of the run.
        try:
            reason = contenders.why_not(name, self._task)
            if reason is not None:
                row.update(status="left out", reason=reason)
                return
            self._start(name)
            row |= self._running[name].call("built")
            depths, k = clipped(self._options.depth, self._task.n_rows), min(K, self._task.n_rows)
            sweeps = adapter.sweeps(self._task, depths, k, truth.N_TRUE)
        except Exception as error:
            self._give_up(name, error)
            return
        for sweep in sweeps:
            if row["status"] == "ok":
                self._sweep(name, sweep[:2] if self._options.quick else thinned(sweep, self._options.step))

    def time(self, n_threads: int, log: Log) -> None:
        """Time all settings in turn, in rounds, and log what came out."""
        part = curves.Part(self._data.name, self._task.n_bits, n_threads)
        # Settings in the order of their place in the sweep, so that contenders alternate within a round too.
        self.points.sort(key=lambda point: point.place)
        for point in self.points:
            point.times.clear()
        for name in list(self._running):
            try:
                self._running[name].call("use_threads", n_threads)
            except Exception as error:
                self._give_up(name, error)
        for number in range(self._options.rounds):
            for i, point in enumerate(self.points, 1):
                if point.name in self._running and (number < _LEAST_ROUNDS or point.seconds <= self._options.seconds):
                    where = f"round {number + 1} of {self._options.rounds}, setting {i} of {len(self.points)}"
                    self._tell(f"{part}: {where}, {point.name}")
                    self._time_once(point)
        for row in self.rows.values():
            log.add("contender", **part._asdict(), **row)
        for point in self.points:
            if point.times:
                log.add("point", **part._asdict(), **as_row(point, self._data.queries.shape[0]))

    def call(self, name: str, method: str, *arguments: Any) -> Any:
        """Call a method of a contender that is built."""
        return self._running[name].call(method, *arguments)

    def close(self) -> None:
        """End all processes."""
        for process in self._running.values():
            process.close()
        self._running.clear()

    def _start(self, name: str) -> None:
        """Build a contender in a process of its own."""
        self._running[name] = Contender(
            contenders.REGISTRY[name],
            {"task": self._task},
            n_threads=self._task.n_threads,
            timeout=self._options.timeout,
        )

    def _sweep(self, name: str, sweep: list[Setting]) -> None:
        """Run a sweep once, and begin again with what was found before if the process ends in it."""
        points: list[Point] = []
        try:
            for point in swept(self._running[name], name, sweep, self._data):
                points.append(point)
        except Exception as error:
            self._say_failed(name, error, sweep[len(points)])
        self.points += points
        if self._running[name].is_alive():
            return
        self._running.pop(name).close()
        if any(point.name == name for point in self.points):
            try:
                self._start(name)
            except Exception as error:
                self._give_up(name, error)

    def _time_once(self, point: Point) -> None:
        """Time a setting; where it fails its contender does not go on."""
        try:
            point.times.append(self._running[point.name].call("times", point.setting))
        except Exception as error:
            self._say_failed(point.name, error, point.setting)
            self._running.pop(point.name).close()

    def _give_up(self, name: str, error: Exception) -> None:
        """Go on without a contender, and without what it found."""
        if name in self._running:
            self._running.pop(name).close()
        self.points = [point for point in self.points if point.name != name]
        self._say_failed(name, error)

    def _say_failed(self, name: str, error: Exception, setting: Setting | None = None) -> None:
        """Put down why a contender failed, and at which setting; the first failure stays."""
        row = self.rows[name]
        if row["status"] == "ok":
            where = "" if setting is None else f" at {label(name, setting)}"
            row.update(status=f"failed{where}", reason=last_line(error))


def swept(process: Contender, name: str, sweep: list[Setting], data: Dataset) -> Iterator[Point]:
    """Run a sweep once, until more of the parameter finds no more."""
    found: list[float] = []
    for place, setting in enumerate(sweep):
        ids = np.asarray(process.call("run", setting)["ids"])
        if ids.shape != (data.queries.shape[0], setting.k) or ids.dtype.kind not in "iu":
            wanted = f"integers of shape {(data.queries.shape[0], setting.k)}"
            raise ValueError(f"ids must be {wanted}, got {ids.dtype} {ids.shape}")
        point = Point(name, setting, place, truth.recall_curve(data, ids).tolist())
        yield point
        found.append(point.recall[-1])
        last = found[-_N_LEVEL:]
        is_level = len(last) == _N_LEVEL and max(last) - min(last) < _LEVEL and last[-1] > _LEAST_LEVEL
        if is_level and last[-1] > max(found) - 2 * _LEVEL:
            break


def thinned(sweep: list[Setting], step: int) -> list[Setting]:
    """Take every `step`-th setting of a sweep, with the last. A short sweep may list alternatives, and stays whole."""
    return sweep if len(sweep) <= SHORT_SWEEP else sweep[::-step][::-1]


def label(name: str, setting: Setting) -> str:
    """Return the parameter and the depth of a setting as text."""
    said = {
        "parameter_name": contenders.class_of(name).parameter_name,
        "parameter": setting.parameter,
        "depth": setting.depth,
    }
    return curves.setting_of(said) or {"codes": "codes alone", "exact": "re-ranking"}[setting.kind]


def middle(times: list[dict[str, float]]) -> dict[str, float]:
    """Return the times of the median round; of an even number, the mean of the two in the middle, in every stage."""
    ordered = sorted(times, key=lambda one: one["total"])
    some = ordered[(len(times) - 1) // 2 : len(times) // 2 + 1]
    return {stage: float(np.mean([one[stage] for one in some])) for stage in some[0]}


def as_row(point: Point, n_queries: int) -> dict[str, Any]:
    """Put a point into the report; times are medians, in microseconds a query."""
    adapter = contenders.class_of(point.name)
    totals = [times["total"] for times in point.times]
    median = middle(point.times)
    scale = 1e6 / n_queries
    return {
        "contender": point.name,
        "group": adapter.group,
        "kind": point.setting.kind,
        "k": point.setting.k,
        "depth": point.setting.depth,
        "parameter_name": adapter.parameter_name,
        "parameter": point.setting.parameter,
        "recall": [round(value, 5) for value in point.recall],
        "qps": n_queries / median["total"],
        "us_encode": median["encode"] * scale,
        "us_search": (median["total"] - median["encode"] - median["rerank"]) * scale,
        "us_rerank": median["rerank"] * scale,
        "us_total": median["total"] * scale,
        "us_min": min(totals) * scale,
        "us_max": max(totals) * scale,
        "rounds": len(totals),
    }


def print_part(part: curves.Part, rows: list[dict[str, Any]], levels: list[float]) -> None:
    """Print the tables of a part."""
    points = curves.rows_of(rows, "point", part)
    for kind, counted in curves.KINDS.items():
        some = [point for point in points if point["kind"] == kind]
        if not some:
            continue
        print(f"\n{part}, {counted}\n(QPS: queries per second, encoding included;\n{curves.READING})\n")
        print(curves.as_text(curves.comparison_table(some, levels)))
        print(f"\nwho is ahead\n{curves.as_text(curves.verdict_table(some, levels))}")
        level = levels[len(levels) // 2]
        lines = curves.time_table(some, level)
        if len(lines) > 1:
            print(f"\nmicroseconds a query, fastest setting that reaches recall {level:g}\n{curves.as_text(lines)}")
    lines = curves.contender_table(curves.rows_of(rows, "contender", part))
    print(f"\n{part}, contenders\n{curves.as_text(lines)}", flush=True)


def write_report(folder: Path, rows: list[dict[str, Any]], levels: list[float]) -> None:
    """Draw the plots and write the page."""
    pictures = plots.draw(rows, folder, levels)
    target = folder / "index.html"
    target.write_text(page.html(rows, pictures or {}, levels), encoding="utf-8")
    print(f"\nreport: {os.path.relpath(target)}", flush=True)


def clipped(depths: list[int], most: int) -> list[int]:
    """Return depths of at least `truth.N_TRUE` and at most `most` rows."""
    return sorted({max(truth.N_TRUE, min(depth, most)) for depth in depths})
