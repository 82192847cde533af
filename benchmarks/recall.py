"""The main comparison: CBEIndex next to faiss and others, recall@R and queries per second, with plots and a page."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import contenders, curves, encode, page, plots, sources, truth
from benchmarks.adapter import Task, Way
from benchmarks.datasets import Dataset, available
from benchmarks.harness import Contender, ContenderError
from benchmarks.report import Progress, Report

# Answers that are asked for where they come from codes alone.
K = 100
# Codes that are compared where the user does not say: short vectors, and long ones.
SHORT_DIM, SHORT_BITS, LONG_BITS = 2_048, 1_024, 8_192
# Where the user names no set, all ends within minutes: rows of short and of long vectors, queries, every so manieth
# setting of a sweep, and no contender that is a variant of another and builds for long.
BRIEF_SHORT_ROWS, BRIEF_LONG_ROWS, BRIEF_QUERIES, BRIEF_STEP = 10_000, 8_000, 200, 2
NOT_BRIEF = ("BinaryIVF-fine",)
ENCODE_DIMS = (256, 1_024, 4_096, 25_600)
# A sweep ends when so many settings in a row find nearly the same.
_N_LEVEL, _LEVEL = 3, 0.001
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
    """A way of a contender: its recall, and its times as they come."""

    name: str
    way: Way
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
        report = Report("Recall and speed", path)
        log = Log(path)
        try:
            measure_all(options, names, log)
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
    add("--depth", type=positive, nargs="+", default=[100, 400], help="rows that are re-ranked exactly")
    add("--threads", type=positive, nargs="+", default=[1])
    add("--batch", type=positive, help="queries of a call; by default all in one")
    add("--seconds", type=float, default=0.5, help="time for each setting of a contender, after its first run")
    add("--rounds", type=positive, default=7, help="rounds in which contenders alternate, at most")
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
        options.depth, options.seconds, options.rounds = options.depth[:1], 0.0, 1
        options.encode_dims = [64, 256] if options.encode_dims is None else options.encode_dims
    if brief:
        dense = "fashion-mnist-784" if "fashion-mnist-784" in available() else "synthetic"
        options.data = ["synthetic"] if options.quick else ["docstrings", dense]
        options.rows_of = {"docstrings": BRIEF_LONG_ROWS, dense: BRIEF_SHORT_ROWS}
        options.queries = options.queries or BRIEF_QUERIES
        options.contenders = options.contenders or [name for name in contenders.REGISTRY if name not in NOT_BRIEF]
        options.depth, options.seconds = options.depth[:1], min(options.seconds, 0.25)
    options.queries = options.queries or 1_000
    options.encode_dims = ENCODE_DIMS if options.encode_dims is None else options.encode_dims
    return options


def positive(text: str) -> int:
    """Read a number of things."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {number}")
    return number


def measure_all(options: argparse.Namespace, names: list[str], log: Log) -> None:
    """Go through sets, bits and threads."""
    progress = Progress()
    tell = partial(progress.say, now=False)
    for name in options.data:
        n_rows = options.rows or options.rows_of.get(name)
        data = sources.open_set(name, metric=options.metric, n_rows=n_rows, n_queries=options.queries, tell=tell)
        for n_bits in options.bits or [SHORT_BITS if data.dim <= SHORT_DIM else LONG_BITS]:
            with tempfile.TemporaryDirectory(prefix="cbeindex-bench-") as folder:
                tell(f"{data.name}: encoding {data.base.shape[0]:,} rows into {n_bits:,} bits")
                task = write_task(data, n_bits, folder, max(options.threads), options.batch, log)
                measure(task, data, names, options, log, tell)
                progress.clear()
                for n_threads in options.threads:
                    print_part(curves.Part(data.name, n_bits, n_threads), log.rows, options.levels)


def write_task(data: Dataset, n_bits: int, folder: str, n_threads: int, batch: int | None, log: Log) -> Task:
    """Encode a set and write it for the contenders."""
    from cbeindex import CirculantEncoder

    n, n_queries = data.base.shape[0], data.queries.shape[0]
    task = Task(folder, n, data.dim, n_bits, data.metric, hasattr(data.base, "toarray"), n_threads, batch or n_queries)
    sample = np.sort(np.random.default_rng(0).permutation(n)[:_N_FIT])
    encoder = CirculantEncoder(data.dim, n_bits).fit(data.base[sample])
    start = time.perf_counter()
    codes = encoder.encode(data.base)
    seconds = time.perf_counter() - start
    task.write(data.base, data.queries, codes, encoder)
    facts = {"data": data.name, "bits": n_bits, "rows": n, "dim": data.dim, "queries": n_queries}
    log.add("set", **facts, metric=data.metric, sparse=task.is_sparse, batch=task.batch, encode_seconds=seconds, seed=0)
    return task


def measure(
    task: Task,
    data: Dataset,
    names: list[str],
    options: argparse.Namespace,
    log: Log,
    tell: Callable[[str], object],
) -> None:
    """Build all contenders, sweep each once for its recall, then time all settings in turn, for each thread count."""
    running: dict[str, Contender] = {}
    points: list[Point] = []
    rows: dict[str, dict[str, Any]] = {}
    what = f"{data.name}, {task.n_bits:,} bits"

    def give_up(name: str, error: object) -> None:
        process = running.pop(name, None)
        if process is not None:
            process.close()
        points[:] = [point for point in points if point.name != name]
        rows[name].update(status="failed", reason=last_line(error))

    for number, name in enumerate(names, 1):
        adapter = contenders.class_of(name)
        rows[name] = {"contender": name, "group": adapter.group, "package": contenders.version(name)}
        rows[name].update(about=(adapter.__doc__ or "").splitlines()[0], status="ok", reason="", build_seconds=None)
        reason = contenders.why_not(name, task)
        if reason is not None:
            rows[name].update(status="left out", reason=reason)
            continue
        tell(f"{what}: building {name}, {number} of {len(names)}")
        try:
            running[name] = Contender(
                contenders.REGISTRY[name], {"task": task}, n_threads=task.n_threads, timeout=options.timeout
            )
            rows[name]["build_seconds"] = running[name].call("build_seconds")
            for sweep in adapter.ways(task, clipped(options.depth, task.n_rows), min(K, task.n_rows), truth.N_TRUE):
                points += swept(
                    running[name], name, sweep[:2] if options.quick else sweep[:: -options.step][::-1], data
                )
        except (ContenderError, ValueError) as error:
            give_up(name, error)
    # Settings in the order of their place in the sweep, so that contenders alternate within a round too.
    points.sort(key=lambda point: point.place)
    for n_threads in options.threads:
        part = curves.Part(data.name, task.n_bits, n_threads)
        for point in points:
            point.times.clear()
        for name in list(running):
            try:
                running[name].call("use_threads", n_threads)
            except ContenderError as error:
                give_up(name, error)
        for number in range(options.rounds):
            for i, point in enumerate(list(points)):
                if point.name not in running or (number and point.seconds > options.seconds):
                    continue
                tell(f"{part}: round {number + 1} of {options.rounds}, setting {i + 1} of {len(points)}, {point.name}")
                try:
                    point.times.append(running[point.name].call("times", point.way))
                except ContenderError as error:
                    give_up(point.name, error)
        for row in rows.values():
            log.add("contender", **part._asdict(), **row)
        for point in points:
            log.add("point", **part._asdict(), **as_row(point, data.queries.shape[0]))
    for process in running.values():
        process.close()


def swept(process: Contender, name: str, sweep: list[Way], data: Dataset) -> list[Point]:
    """Run a sweep once, until more of the parameter finds no more."""
    points: list[Point] = []
    for place, way in enumerate(sweep):
        ids = np.asarray(process.call("run", way)["ids"])
        if ids.shape != (data.queries.shape[0], way.k):
            raise ValueError(f"answers must have shape {(data.queries.shape[0], way.k)}, got {ids.shape}")
        points.append(Point(name, way, place, truth.recall_curve(data, ids).tolist()))
        last = [point.recall[-1] for point in points[-_N_LEVEL:]]
        is_level = len(last) == _N_LEVEL and max(last) - min(last) < _LEVEL
        if is_level and last[-1] > max(point.recall[-1] for point in points) - 2 * _LEVEL:
            break
    return points


def as_row(point: Point, n_queries: int) -> dict[str, Any]:
    """Put a point into the report; times are medians, in microseconds a query."""
    adapter = contenders.class_of(point.name)
    totals = [times["total"] for times in point.times]
    median = point.times[int(np.argsort(totals)[len(totals) // 2])]
    scale = 1e6 / n_queries
    return {
        "contender": point.name,
        "group": adapter.group,
        "kind": point.way.kind,
        "k": point.way.k,
        "depth": point.way.depth,
        "parameter_name": adapter.parameter_name,
        "parameter": point.way.parameter,
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
    """Return depths that are not more than all rows, and enough for the answers."""
    return sorted({max(truth.N_TRUE, min(depth, most)) for depth in depths})


def last_line(error: object) -> str:
    """Return what an error says at its end."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]
