"""What it costs to grow an index: time of adds, longest call, searches beside adds, speed at recall 0.95, memory."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import plots
from benchmarks.growing import N_TRUE, Ids
from benchmarks.harness import Contender, ContenderError, last_line
from benchmarks.report import Report, Table

CONTENDERS = {
    "cells": "benchmarks.growing:Cells",
    "cells-codes": "benchmarks.growing:CellsOfCodes",
    "clusters": "benchmarks.growing:Clusters",
    "IVF,PQfs": "benchmarks.growing:FaissLists",
    "hnswlib": "benchmarks.growing:Hnswlib",
}
"""Names of contenders, and their classes."""

RECALL = 0.95
COLUMNS = [
    "contender", "rows", "seconds", "longest s", "reader ms", "reader most ms", "recall", "setting", "queries/s",
    "bytes/row",
]  # fmt: skip


def main(arguments: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks growth", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="a smoke run: four blocks of 3,000 rows")
    add("--rows", type=int, default=4_000_000)
    add("--step", type=int, default=50_000, help="rows of an add")
    add("--dim", type=int, default=128)
    add("--threads", type=int, default=2)
    add("--queries", type=int, default=500)
    add("--singles", type=int, default=20_000, help="rows that are added one by one at the end")
    add("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    add("--seconds", type=float, default=1_800, help="adds of a contender that takes longer are given up")
    add("--output", default=os.path.join("bench-report", "growth.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rows, options.step, options.queries, options.singles = 12_000, 3_000, 50, 200
    report = Report(
        f"Growth to {options.rows:,} rows of {options.dim} dimensions, clustered, in adds of {options.step:,}; "
        f"{options.threads} threads to add, one to search",
        options.output,
    )
    truths = true_neighbours(options)
    note = (
        "seconds: of all adds so far; longest: of one add; reader: median and longest time of a search for one query "
        f"while rows are added; queries/s: one thread, at the least setting with recall 10@10 of {RECALL}"
    )
    table = report.table("growth", COLUMNS, note, widths={"contender": 12})
    speeds: dict[str, float] = {}
    rows = [row for name in options.contenders for row in grow(name, options, truths, table, speeds)]
    slopes = report.table(
        "slopes", ["contender", "slope"], "of the seconds of all adds, against rows, both logarithmic"
    )
    for name in options.contenders:
        slopes.row(name, slope([row for row in rows if row["contender"] == name]))
    singles = report.table("singles", ["contender", "rows", "adds/s"], "rows that are then added one by one")
    for name, speed_of_adds in speeds.items():
        singles.row(name, options.singles, speed_of_adds)
    draw(rows, Path(options.output).parent)


def checkpoints(options: argparse.Namespace) -> list[int]:
    """Return the numbers of blocks after which an index is searched: doublings, and the last one."""
    n_blocks = max(1, options.rows // options.step)
    doubled = [2**i for i in range(1, n_blocks.bit_length()) if 2**i < n_blocks]
    return [*doubled, n_blocks]


def true_neighbours(options: argparse.Namespace) -> dict[int, Ids]:
    """Find the true neighbours of the queries at each checkpoint."""
    found, wanted = {}, checkpoints(options)
    arguments = {"dim": options.dim, "step": options.step, "n_queries": options.queries}
    with Contender("benchmarks.growing:Truth", arguments, n_threads=options.threads) as truth:
        for block in range(wanted[-1]):
            truth.call("add", block)
            if block + 1 in wanted:
                found[block + 1] = truth.call("ids")
    return found


def grow(
    name: str, options: argparse.Namespace, truths: dict[int, Ids], table: Table, speeds: dict[str, float]
) -> list[dict[str, Any]]:
    """Let a contender grow; print a row for each checkpoint that it reaches, and return the rows.

    Puts into `speeds` how many rows a second it adds one by one in the end.
    """
    arguments = {
        "dim": options.dim, "step": options.step, "n_queries": options.queries, "n_threads": options.threads
    }  # fmt: skip
    rows: list[dict[str, Any]] = []
    total, longest = 0.0, 0.0
    latencies: list[float] = []
    try:
        with Contender(CONTENDERS[name], arguments, n_threads=options.threads, timeout=options.seconds) as contender:
            for block in range(max(truths)):
                seconds, more = contender.call("add", block)
                total, longest, latencies = total + seconds, max(longest, seconds), latencies + more
                if total > options.seconds:
                    break
                if block + 1 in truths:
                    values = [name, (block + 1) * options.step, total, longest, *_milliseconds(latencies)]
                    values += [*speed(contender, truths[block + 1]), contender.call("bytes_a_row")]
                    table.row(*values)
                    rows.append(dict(zip(COLUMNS, values, strict=True)))
                    latencies = []
            if options.singles and total <= options.seconds:
                speeds[name] = options.singles / contender.call("add_singly", max(truths), options.singles)
    except ContenderError as error:
        print(f"{name}: {last_line(error)}")
    return rows


def speed(contender: Contender, truth: Ids) -> tuple[float, int | None, float | None]:
    """Return recall, setting and queries a second of the least setting that reaches the recall, or of the last one."""
    from benchmarks.growing import Growing, Hnswlib

    recall, setting = 0.0, None
    for setting in Hnswlib.settings if contender.factory.endswith("Hnswlib") else Growing.settings:
        contender.call("search", setting)
        seconds, ids = contender.call("search", setting)
        recall = float(np.mean([np.isin(theirs, ours).sum() for theirs, ours in zip(truth, ids, strict=True)]) / N_TRUE)
        if recall >= RECALL:
            return recall, setting, len(truth) / seconds
    return recall, setting, None


def slope(rows: list[dict[str, Any]]) -> float | None:
    """Return the slope of seconds against rows, both logarithmic."""
    if len(rows) < 2:
        return None
    sizes, seconds = (np.log([row[key] for row in rows]) for key in ("rows", "seconds"))
    return float(np.polyfit(sizes, seconds, 1)[0])


def draw(rows: list[dict[str, Any]], folder: Path) -> None:
    """Draw the seconds of all adds against rows, both logarithmic."""
    if not rows or not plots.can_draw():
        return
    with plots.style():
        figure, axes = plots.canvas("Seconds of all adds", (8, 4.6))
        for i, name in enumerate(dict.fromkeys(row["contender"] for row in rows)):
            own = [(row["rows"], row["seconds"]) for row in rows if row["contender"] == name]
            axes.plot(*zip(*own, strict=True), label=name, marker=plots.MARKERS[i])
        axes.set_xscale("log")
        plots.log_axis(axes)
        axes.set_xlabel("rows")
        axes.set_ylabel("seconds; better below")
        plots.legend(axes)
        print(f"drawn: {plots.save(figure, folder / 'growth')}")


def _milliseconds(latencies: list[float]) -> tuple[float | None, float | None]:
    return (1e3 * float(np.median(latencies)), 1e3 * max(latencies)) if latencies else (None, None)
