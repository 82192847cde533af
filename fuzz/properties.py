"""The property tests of tests/, run by hypothesis with fresh seeds and more examples than `make test` draws.

Each case runs some property tests, chosen at random, with a seed of its own.
"""

from __future__ import annotations

import functools
import itertools
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import pytest

from .report import Report, random_of

_ROOT = Path(__file__).parent.parent
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
# Starting pytest takes some seconds, longer than most tests.
_TESTS_PER_CASE = 16
# After an interrupt pytest reports the failures so far. It gets this time to do so before it is killed.
_REPORT_SECONDS = 60.0


def run(
    seed: int,
    seconds: float,
    cases: range | None = None,
    *,
    keep: Path | None = None,
    root: Path = _ROOT,
    out: TextIO | None = None,
) -> Report:
    """Run cases of the tests below `root` until the time is over, or the given cases to their end."""
    report = Report("properties", seed, keep, out)
    deadline = time.monotonic() + seconds
    names = property_tests(root)
    for case in itertools.count() if cases is None else cases:
        remaining = deadline - time.monotonic()
        if cases is None and remaining <= 0:
            break
        rng = random_of(seed, "properties", case)
        chosen = rng.sample(names, min(len(names), _TESTS_PER_CASE))
        findings = _examine(root, chosen, rng.randrange(2**32), None if cases is not None else remaining)
        report.n_cases += 1
        report.counts["tests"] += len(chosen)
        report.add(case, findings)
    return report


@functools.cache
def property_tests(root: Path) -> tuple[str, ...]:
    """Return the node ids of all tests that hypothesis draws examples for."""
    command = [*_PYTEST, "--collect-only", "-m", "hypothesis"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    names = tuple(line for line in done.stdout.splitlines() if "::" in line)
    if done.returncode or not names:
        raise RuntimeError(f"pytest found no property tests:\n{done.stdout}{done.stderr}")
    return names


def _examine(root: Path, names: Sequence[str], seed: int, seconds: float | None) -> list[str]:
    """Run tests with a seed of hypothesis and return those that failed; the first comes with the output of pytest."""
    output, status = _run(root, ["-n", "2", f"--hypothesis-seed={seed}", *names], seconds)
    failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if not failed and status not in (pytest.ExitCode.OK, pytest.ExitCode.INTERRUPTED):
        failed = [f"pytest ended with status {status}"]
    if failed:
        repeat = f"HYPOTHESIS_PROFILE=fuzz python -m pytest --hypothesis-seed={seed} {shlex.join(names)}"
        failed[0] = f"{failed[0]}\n{output}\n{repeat}"
    return failed


def _run(root: Path, arguments: list[str], seconds: float | None) -> tuple[str, int]:
    """Run pytest, interrupted when the time is over, and return its output and exit status."""
    with subprocess.Popen(
        [*_PYTEST, *arguments], cwd=root, env=os.environ | {"HYPOTHESIS_PROFILE": "fuzz"}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                output, _ = process.communicate(timeout=_REPORT_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
    return output, process.returncode
