"""`python -m fuzz [KIND ...] --seconds N --seed S`: attack cbeindex; the exit status is 1 if anything was found."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from . import faults, files, processes, properties
from .report import Report

KINDS: dict[str, Callable[..., Report]] = {
    "files": files.run,
    "faults": faults.run,
    "processes": processes.run,
    "properties": properties.run,
}


def main(arguments: list[str] | None = None) -> int:
    """Run kinds of attacks one after the other, each for its share of the time."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"any of {', '.join(KINDS)}; by default all")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all kinds together (default: 60)")
    parser.add_argument("--seed", type=int, help="by default from the clock")
    parser.add_argument("--case", type=int, help="run this case alone")
    parser.add_argument("--keep", type=Path, help="folder for files that show a finding")
    options = parser.parse_args(arguments)
    unknown = [kind for kind in options.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"KIND must be one of {', '.join(KINDS)}, got {unknown[0]}")
    seed = time.time_ns() // 10**6 % 10**9 if options.seed is None else options.seed
    kinds = options.kinds or list(KINDS)
    print(f"seed {seed}", flush=True)
    reports = []
    for kind in kinds:
        cases = None if options.case is None else range(options.case, options.case + 1)
        reports.append(KINDS[kind](seed, options.seconds / len(kinds), cases, keep=options.keep))
        print(reports[-1].summary(), flush=True)
    return int(any(report.findings for report in reports))


if __name__ == "__main__":
    sys.exit(main())
