"""What a start costs: the first add and search of a process, with kernels to compile and with kernels in the cache.

`--installed` adds an installation from source into an empty environment: it has compiled the kernels, and the cache is
empty.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import pin
from benchmarks.report import Report
from benchmarks.uses import LIBRARIES

USES = {
    name: f"benchmarks.uses:{name}"
    for name in (
        "quickstart", "operations", "codes", "vectors", "cells", "graph", "clusters", "substrings", "sparse", "binary",
        "hnswlib", "pynndescent",
    )
}  # fmt: skip
"""Names of uses, and their functions. Those of other libraries are left out where these are not installed."""

ROOT = Path(__file__).parent.parent

Run = dict[str, Any]


class Place(NamedTuple):
    """A Python, and the folder that it runs in."""

    python: str
    folder: Path


HERE = Place(sys.executable, ROOT)


def main(arguments: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks start", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: the first use alone, one warm start")
    parser.add_argument("--uses", nargs="+", choices=list(USES), default=None, metavar="USE", help=", ".join(USES))
    parser.add_argument("--rounds", type=int, default=None, help="cold and warm starts of each use (5)")
    parser.add_argument("--installed", action="store_true", help="also install from source, which takes some minutes")
    parser.add_argument("--threads", type=int, default=1, help="cores of each process")
    parser.add_argument("--output", default=os.path.join("bench-report", "start.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    names = [name for name in options.uses or USES if find_spec(LIBRARIES.get(name, "cbeindex"))]
    if options.quick and not options.uses:
        names = names[:1]
    rounds = options.rounds or (1 if options.quick else 5)
    report = Report(f"Start of a process, cores: {options.threads}", options.output)
    pin(options.threads)
    with tempfile.TemporaryDirectory(prefix="cbeindex-installed-") as folder:
        installed = install(Path(folder)) if options.installed else None
        cold = measure(report, names, rounds, installed)
    print_pauses(report, cold)
    print_kernels(report, cold)
    for name in list(cold)[:1]:
        print_use(report, name, cold[name])


def install(folder: Path) -> Place:
    """Install this source tree into an empty environment, and put the uses beside it."""
    print("installing from source, with kernels", file=sys.stderr)
    venv.create(folder / "env", with_pip=True)
    python = str(folder / "env" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(ROOT)], check=True)
    uses = folder / "benchmarks" / "uses.py"
    uses.parent.mkdir()
    shutil.copy(ROOT / "benchmarks" / "uses.py", uses)
    return Place(python, folder)


def measure(report: Report, names: list[str], rounds: int, installed: Place | None = None) -> dict[str, Run]:
    """Print the starts of uses; return the cold ones."""
    table = report.table(
        "start",
        [
            "use",
            "kernels are",
            "import s",
            "add s",
            "search s",
            "others s",
            "together",
            "compiling",
            "share",
            "kernels",
        ],
        "compiled: there are none at the start; installed: the installation has compiled them, and the cache is empty; "
        "cached: an earlier process has left them. Median runs. import: with numpy and numba, without the interpreter; "
        "others: all further steps; compiling: its seconds, its share of the time together, and how many kernels",
        widths={"use": 12},
    )
    cold = {}
    for name in names:
        is_ours = name not in LIBRARIES
        starts = {"compiled" if is_ours else "": [run(USES[name], None) for _ in range(rounds)]}
        cold[name] = median(next(iter(starts.values())))
        if installed and is_ours:
            starts["installed"] = [run(USES[name], None, installed) for _ in range(rounds)]
        if is_ours:
            with tempfile.TemporaryDirectory(prefix="cbeindex-start-") as cache:
                run(USES[name], cache)
                starts["cached"] = [run(USES[name], cache) for _ in range(rounds)]
        for kind, found in starts.items():
            middle = median(found)
            steps, compiling = middle["seconds"], sum(kernel["seconds"] for kernel in middle["kernels"])
            table.row(
                name, kind, steps["import"], steps["add"], steps["search"],
                sum(seconds for step, seconds in steps.items() if step not in ("import", "add", "search")),
                together(middle), compiling, compiling / together(middle),
                len({kernel["kernel"] for kernel in middle["kernels"]}),
            )  # fmt: skip
    return {name: found for name, found in cold.items() if name not in LIBRARIES}


def median(found: list[Run]) -> Run:
    """Return the run that takes neither long nor short."""
    return sorted(found, key=together)[len(found) // 2]


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


def run(use: str, cache: str | None, place: Place = HERE) -> Run:
    """Run a use in a new process, with kernels cached in a folder, or in an empty one."""
    with tempfile.TemporaryDirectory(prefix="cbeindex-start-") as empty:
        done = subprocess.run(
            [place.python, "-m", "benchmarks.uses", use],
            cwd=place.folder,
            env={**os.environ, "NUMBA_CACHE_DIR": cache or empty},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"{use} failed: {done.stderr.strip()}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]
