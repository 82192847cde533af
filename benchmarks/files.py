"""What index files cost: saving, loading, appending and memory, next to write_index_binary and its reader of faiss."""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Contender, alternate, forget_peak_memory, peak_memory
from benchmarks.report import Report, Table
from cbeindex._core.threads import n_cores

N_BITS = 1_024
MEGABYTES = (16, 64, 256, 1_024, 3_072)
BATCH = 1_000


class Ours:
    """BinaryIndex and its file."""

    def __init__(self, folder: str, n_rows: int) -> None:
        from cbeindex import BinaryIndex

        self.path = str(Path(folder) / "ours.cbe")
        self.kind = BinaryIndex
        self.index: Any = BinaryIndex(N_BITS)
        for codes in _codes(n_rows):
            self.index.add(codes)
        self.query = self.index.get(0)
        self.index.search(self.query, 10, n_threads=1)  # compiles
        self.mapped: Any = None

    def save(self) -> int:
        """Save all to a new file; return its bytes."""
        self.index.save(self.path)
        return os.path.getsize(self.path)

    def free(self) -> None:
        """Forget the index in memory."""
        self.index = None

    def load(self) -> None:
        """Read all of the file."""
        self.kind.load(self.path, mmap=False)

    def open(self) -> None:
        """Map the file."""
        self.mapped = self.kind.load(self.path)

    def open_and_search(self) -> int:
        """Map the file and search for a code; return the memory that it took."""
        forget_peak_memory()
        before = peak_memory()
        self.kind.load(self.path).search(self.query, 10, n_threads=1)
        return peak_memory() - before

    def append(self) -> int:
        """Add a small batch to the mapped index and save it; return by how many bytes the file grew."""
        size = os.path.getsize(self.path)
        self.mapped.add(next(_codes(BATCH)))
        self.mapped.save()
        return os.path.getsize(self.path) - size

    def verify(self) -> None:
        """Check every byte."""
        from cbeindex import verify

        verify(self.path)


class Faiss:
    """IndexBinaryFlat and its file."""

    def __init__(self, folder: str, n_rows: int) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        self.faiss = faiss
        self.path = str(Path(folder) / "faiss.index")
        self.index = faiss.IndexBinaryFlat(N_BITS)
        for codes in _codes(n_rows):
            self.index.add(codes)

    def save(self) -> int:
        """Write the file, and sync it as ours is; return its bytes."""
        self.faiss.write_index_binary(self.index, self.path)
        with open(self.path, "rb+") as file:
            os.fsync(file.fileno())
        return os.path.getsize(self.path)

    def free(self) -> None:
        """Forget the index in memory."""
        self.index = None

    def load(self) -> None:
        """Read all of the file."""
        self.faiss.read_index_binary(self.path)


def main(arguments: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks files", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: small files, few rounds")
    parser.add_argument("--megabytes", type=int, nargs="+", default=None, help="bytes of codes, in MB")
    parser.add_argument("--folder", default=None, help="where the files go; by default a temporary folder")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--output", default=os.path.join("bench-report", "files.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    sizes = options.megabytes or ((1, 4) if options.quick else MEGABYTES)
    rounds = options.rounds or (2 if options.quick else 5)
    report = Report("Index files", options.output)
    table = report.table(
        "files",
        ["MB", "contender", "what", "ms", "min-max ms", "MB/s", "x faiss", "MB used"],
        f"codes of {N_BITS} bits; saves are synced; MB used: written, or memory that a search in a mapped file took; "
        "x faiss: faiss time / this time, above 1: faster",
    )
    for megabytes in sizes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            if shutil.disk_usage(folder).free < 4 * megabytes * 10**6:
                print(f"{megabytes:,} MB left out: no room on the disk")
                continue
            measure(table, folder, megabytes, rounds)


def measure(table: Table, folder: str, megabytes: int, rounds: int) -> None:
    """Measure files of one size."""
    n_rows = megabytes * 10**6 // (N_BITS // 8)
    made = {"folder": folder, "n_rows": n_rows}
    n = n_cores()  # ours takes two cores where there are two; faiss may have them too, and takes one
    with (
        Contender("benchmarks.files:Ours", made, n_threads=n) as ours,
        Contender("benchmarks.files:Faiss", made, n_threads=n) as faiss,
    ):
        both = {"ours": ours, "faiss": faiss}
        for what in ("save", "load"):
            sizes = {name: contender.call(what) for name, contender in both.items()}
            timings = alternate({name: functools.partial(_seconds, c, what) for name, c in both.items()}, rounds)
            for name, timing in timings.items():
                ms, written = timing.median * 1e3, sizes[name] / 1e6 if what == "save" else None
                times = timings["faiss"].median / timing.median
                table.row(megabytes, name, what, ms, timing.spread(1e3), megabytes / timing.median, times, written)
            if what == "save":
                for contender in both.values():
                    contender.call("free")
        for what, label in (
            ("open", "load mapped"),
            ("open_and_search", "and search"),
            ("append", f"append {BATCH:,}"),
        ):
            taken = ours.call(what)
            timing = alternate({what: functools.partial(_seconds, ours, what)}, rounds)[what]
            used = None if taken is None else taken / 1e6
            table.row(megabytes, "ours", label, timing.median * 1e3, timing.spread(1e3), None, None, used)
        start = time.perf_counter()
        ours.call("verify")
        ms = (time.perf_counter() - start) * 1e3
        table.row(megabytes, "ours", "verify", ms, None, megabytes / ms * 1e3, None, None)


def _seconds(contender: Contender, what: str) -> float:
    return contender.timed(what)[0]


def _codes(n_rows: int) -> Any:
    """Make random codes, some at a time."""
    rng = np.random.default_rng(n_rows)
    for start in range(0, n_rows, 2**20):
        yield rng.integers(0, 256, (min(2**20, n_rows - start), N_BITS // 8), dtype=np.uint8)
