"""What a start costs: the first add and search of a process, with kernels to compile and with kernels in the cache."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import pin
from benchmarks.report import Report

USES = {
    name: f"benchmarks.uses:{name}"
    for name in (
        "quickstart", "operations", "codes", "vectors", "cells", "graph", "clusters", "substrings", "sparse", "binary",
    )
}  # fmt: skip
"""Names of uses, and their functions."""

Run = dict[str, Any]


def main(arguments: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks start", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: the first use alone, one warm start")
    parser.add_argument("--uses", nargs="+", choices=list(USES), default=None, metavar="USE", help=", ".join(USES))
    parser.add_argument("--rounds", type=int, default=None, help="warm starts of each use (5)")
    parser.add_argument("--threads", type=int, default=1, help="cores of each process")
    parser.add_argument("--output", default=os.path.join("bench-report", "start.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    names = options.uses or (list(USES)[:1] if options.quick else list(USES))
    rounds = options.rounds or (1 if options.quick else 5)
    report = Report(f"Start of a process, cores: {options.threads}", options.output)
    pin(options.threads)
    cold = measure(report, names, rounds)
    print_pauses(report, cold)
    print_kernels(report, cold)
    print_use(report, names[0], cold[names[0]])


def measure(report: Report, names: list[str], rounds: int) -> dict[str, Run]:
    """Print the cold and the warm start of uses; return the cold ones."""
    table = report.table(
        "start",
        ["use", "cache", "import s", "add s", "search s", "others s", "together", "compiling", "share", "kernels"],
        "cold: no kernel is cached; warm: all are, median run; import: of cbeindex with numpy and numba, without the "
        "interpreter; others: all further steps; compiling: its seconds, its share of the time together, and how many "
        "kernels",
        widths={"use": 12},
    )
    cold = {}
    for name in names:
        with tempfile.TemporaryDirectory(prefix="cbeindex-start-") as cache:
            cold[name] = run(USES[name], cache)
            warm = sorted((run(USES[name], cache) for _ in range(rounds)), key=together)
            for kind, found in (("cold", cold[name]), ("warm", warm[len(warm) // 2])):
                steps, compiling = found["seconds"], sum(kernel["seconds"] for kernel in found["kernels"])
                table.row(
                    name, kind, steps["import"], steps["add"], steps["search"],
                    sum(seconds for step, seconds in steps.items() if step not in ("import", "add", "search")),
                    together(found), compiling, compiling / together(found),
                    len({kernel["kernel"] for kernel in found["kernels"]}),
                )  # fmt: skip
    return cold


def print_pauses(report: Report, cold: dict[str, Run]) -> None:
    """Print how long the first call of each step compiles, and which of its kernels takes longest."""
    table = report.table(
        "pauses",
        ["use", "step", "seconds", "compiling", "longest", "kernel"],
        "first calls, with no kernel cached; longest: the kernel that takes most of the seconds, with what it calls",
        widths={"use": 12, "step": 14, "kernel": 32},
    )
    for name, found in cold.items():
        for step, seconds in found["seconds"].items():
            called = [one for one in found["kernels"] if one["step"] == step and one["caller"] is None]
            if called:
                longest = max(called, key=lambda one: float(one["whole"]))
                compiling = sum(one["whole"] for one in called)
                table.row(name, step, seconds, compiling, longest["whole"], longest["kernel"])


def print_kernels(report: Report, cold: dict[str, Run]) -> None:
    """Print what each kernel takes to compile, over all uses."""
    table = report.table(
        "kernels",
        ["kernel", "seconds", "signatures", "uses"],
        "seconds: without the kernels that it calls, all signatures of the use that compiles longest",
        widths={"kernel": 32, "uses": 40},
    )
    of_use: dict[str, dict[str, float]] = {}
    signatures: dict[str, set[str]] = {}
    for name, found in cold.items():
        for one in found["kernels"]:
            seconds = of_use.setdefault(one["kernel"], {})
            seconds[name] = seconds.get(name, 0.0) + one["seconds"]
            signatures.setdefault(one["kernel"], set()).add(one["signature"])
    for kernel in sorted(of_use, key=lambda kernel: -max(of_use[kernel].values())):
        table.row(kernel, max(of_use[kernel].values()), len(signatures[kernel]), " ".join(of_use[kernel]))
    longest = sum(max(seconds.values()) for seconds in of_use.values())
    table.row("all", longest, sum(map(len, signatures.values())), "")


def print_use(report: Report, name: str, found: Run) -> None:
    """Print what one use compiles, step by step, under the kernels that it calls."""
    table = report.table(
        f"compiled by {name}",
        ["step", "kernel", "called by", "seconds", "with callees"],
        "no kernel is compiled before it is called, by a use or by another kernel",
        widths={"kernel": 32, "called by": 32},
    )
    for one in found["kernels"]:
        table.row(one["step"], one["kernel"], one["caller"] or "the use", one["seconds"], one["whole"])


def together(found: Run) -> float:
    """Return the seconds of all steps."""
    return float(sum(found["seconds"].values()))


def run(use: str, cache: str) -> Run:
    """Run a use in a new process, with kernels cached in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.uses", use],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{use} failed: {done.stderr.strip()}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]
