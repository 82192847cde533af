"""What a measurement prints: where it ran, then tables; and JSON lines for programs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import isa


def machine() -> dict[str, Any]:
    """Describe the machine, the versions and the commit."""
    versions = {}
    for package in ("numpy", "scipy", "numba", "faiss-cpu"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": "python -m benchmarks " + " ".join(sys.argv[1:]),
        "commit": _commit(),
        "cpu": _cpu(),
        "instructions": isa.in_use(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **versions,
    }


class Report:
    """Prints tables as they come and keeps every row for a file of JSON lines.

    Parameters
    ----------
    title : str
    path : str or Path, optional
        Where the JSON lines go; each is a row with its table's name.
    """

    def __init__(self, title: str, path: str | Path | None = None) -> None:
        self._path = Path(path) if path is not None else None
        facts = machine()
        print(f"{title}\n" + ", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
        self._write({"table": "machine", **facts}, mode="w")

    def table(
        self, name: str, columns: Sequence[str], reading: str = "", widths: dict[str, int] | None = None
    ) -> Table:
        """Begin a table; `reading` says how to read it, `widths` which columns need more room than their names."""
        print(f"\n{name}" + (f" ({reading})" if reading else ""))
        return Table(self, name, columns, widths or {})

    def _write(self, row: dict[str, Any], mode: str = "a") -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open(mode) as file:
                file.write(json.dumps(row) + "\n")


class Table:
    """Rows under fixed columns, printed one by one."""

    def __init__(self, report: Report, name: str, columns: Sequence[str], widths: dict[str, int]) -> None:
        self._report, self._name, self._columns = report, name, list(columns)
        self._widths = [max(widths.get(column, 9), len(column)) for column in columns]
        self._print(self._columns)

    def row(self, *values: Any) -> None:
        """Print and keep one row; None is an empty cell."""
        self._print([_as_text(value) for value in values])
        self._report._write({"table": self._name, **dict(zip(self._columns, values, strict=True))})

    def _print(self, cells: list[str]) -> None:
        print("  ".join(cell.rjust(width) for cell, width in zip(cells, self._widths, strict=True)), flush=True)


class Progress:
    """Says on stderr what goes on, and since when: one line that changes on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._start = self._said = time.perf_counter()

    def say(self, text: str, *, now: bool = True) -> None:
        """Show a text; what need not be shown now is left out if another was shown a moment ago."""
        at = time.perf_counter()
        terminal = sys.stderr.isatty()
        if now or at - self._said > (0.2 if terminal else 15):
            self._said = at
            line = f"[{at - self._start:5.0f} s] {text}"
            print(f"\r\x1b[K{line}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Make room for what is printed next."""
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _as_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        # What is found nearly always needs a digit more.
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if 0.95 <= value < 1 else f"{value:.3g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    return done.stdout.strip() or "unknown"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
