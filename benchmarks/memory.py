"""What searches cost where float32 vectors exceed memory: codes in memory, vectors on disk, under a limit."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.growing import N_TRUE, Truth, rows_of
from benchmarks.harness import Contender
from benchmarks.limits import Pages, Warden
from benchmarks.report import Report
from cbeindex import CBEIndex
from cbeindex._core.memory import memory_bytes
from cbeindex._core.tuning import tuned

GIGA = 10**9
# Bytes of the float32 rows that are added at a time; the file then holds them.
_BLOCK_BYTES = 2**30
# Whether the candidates of a query are asked for together, or each is read when it is compared.
READS = {"one by one": float("inf"), "together": 0.0}


class Builder:
    """Writes an index file block by block, so that its rows are in the file and not in memory.

    Parameters
    ----------
    path : str
    dim : int
    vectors, buckets : str or None
    """

    def __init__(self, path: str, dim: int, vectors: str, buckets: str | None) -> None:
        self._path, self._dim = path, dim
        self._index = CBEIndex(dim, metric="l2", vectors=vectors, buckets=buckets, hamming=buckets is None)

    def add(self, block: int, n_rows: int) -> dict[str, int]:
        """Add a block of rows; return the bytes of the parts of the index."""
        self._index.add(rows_of(block, n_rows, self._dim))
        self._index.save(self._path)
        self._index = CBEIndex.load(self._path)
        return dict(self._index.stats()["bytes"])


class Searcher:
    """Searches a mapped index file in a process with a limit on memory.

    Parameters
    ----------
    path : str
    dim, n_queries : int
    limit : int
        Bytes that the process and the pages of the file may take.
    share : float
        Share of the memory above which the candidates of a query are asked for together.
    """

    def __init__(self, path: str, dim: int, n_queries: int, limit: int, share: float) -> None:
        self._share, self._queries = share, rows_of(10**6, n_queries, dim)
        self._index = CBEIndex.load(path)
        columns = [segment.columns for segment in self._index._state.rows.snapshot().segments]
        vectors = [each["vectors"] for each in columns if isinstance(each.get("vectors"), np.ndarray)]
        self._pages = Pages(path, vectors)
        self._warden = Warden(self._pages, limit)
        self._search(self._queries[:1])  # compiles
        self._search(self._queries[:2])

    def _search(self, queries: NDArray[np.float32]) -> Any:
        with tuned(most_resident_share=self._share):
            return self._index.search(queries, N_TRUE, recall=0.95, n_threads=1)

    def run(self, is_cold: bool, is_batch: bool) -> dict[str, Any]:
        """Search for all queries, one after the other or in one call; `is_cold` drops vectors from memory before."""
        if is_cold:
            self._pages.drop()
        self._warden.forget_peak()
        seconds, ids, n_read = [], [], 0
        before = _bytes_read()
        steps = len(self._queries) if is_batch else 1
        for start in range(0, len(self._queries), steps):
            begin = time.perf_counter()
            found = self._search(self._queries[start : start + steps])
            seconds.append(time.perf_counter() - begin)
            ids.append(found.ids)
            n_read += found.stats["vectors_read"]
        n = len(self._queries)
        return {
            "ids": np.concatenate(ids),
            "median": float(np.median(seconds)) / steps,
            "mean": sum(seconds) / n,
            "vectors": n_read / n,
            "bytes": (_bytes_read() - before) / n,
            "peak": self._warden.peak,
            "drops": self._warden.n_drops,
        }


def main(arguments: list[str]) -> None:
    """Build the files, and print a table of searches of each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: 40 MB under a limit of 1 GB")
    parser.add_argument("--gigabytes", type=float, default=8, help="bytes of the vectors in float32")
    parser.add_argument("--limit", type=float, default=2, help="gigabytes of a search, with cached pages")
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--vectors", nargs="+", default=["float32", "int4"], help="what is kept of vectors")
    parser.add_argument("--buckets", choices=["cells", "none"], default="cells")
    parser.add_argument("--folder", help="where files of the index are built; by default a temporary folder")
    parser.add_argument("--output", default=os.path.join("bench-report", "memory.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    if options.quick:
        options.gigabytes, options.limit, options.dim, options.queries = 0.04, 1, 256, 20
    report = Report("Larger than memory", options.output)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure(report, options, folder)


def measure(report: Report, options: argparse.Namespace, folder: str) -> None:
    """Build each index, and search it warm and cold, one query at a time and all together."""
    dim, limit = options.dim, int(options.limit * GIGA)
    n_rows = int(options.gigabytes * GIGA) // (4 * dim)
    step = min(n_rows, _BLOCK_BYTES // (4 * dim))
    n_blocks = n_rows // step
    is_by_system = memory_bytes() <= limit
    table = report.table(
        "searches",
        ["vectors", "pages", "reads", "queries", "median ms", "mean ms", "read/query", "MB/query", "recall", "peak GB"],
        f"limit {options.limit:g} GB, kept by {'the control group' if is_by_system else 'dropping pages of vectors'}; "
        "cold: vectors are not in memory; read/query: vectors, MB/query: from disk; peak: process and cached file",
        {"reads": 11},
    )
    truth = Truth(dim, step, options.queries)
    for block in range(n_blocks):
        truth.add(block)
    sizes = []
    for vectors in options.vectors:
        path = str(Path(folder, f"{vectors}.cbe"))
        buckets = None if options.buckets == "none" else options.buckets
        made = {"path": path, "dim": dim, "vectors": vectors, "buckets": buckets}
        with Contender("benchmarks.memory:Builder", made, n_threads=os.cpu_count() or 1, timeout=3600) as builder:
            timed = [builder.timed("add", block, step) for block in range(n_blocks)]
        parts = timed[-1][1]
        resident = sum(parts.values()) - (parts["vectors"] if vectors == "float32" else 0)
        seconds = sum(each for each, _ in timed)
        sizes.append((vectors, n_blocks * step, os.path.getsize(path) / GIGA, resident / GIGA, seconds))
        for reads, share in READS.items() if vectors == "float32" else [("one by one", float("inf"))]:
            asked = {"path": path, "dim": dim, "n_queries": options.queries, "limit": limit, "share": share}
            with Contender("benchmarks.memory:Searcher", asked, timeout=3600) as searcher:
                for is_cold, is_batch in ((True, False), (False, False), (True, True)):
                    run = searcher.call("run", is_cold, is_batch)
                    found = sum(len(set(a) & set(b)) for a, b in zip(run["ids"], truth.ids(), strict=True))
                    table.row(
                        vectors,
                        "cold" if is_cold else "warm",
                        reads,
                        "together" if is_batch else "single",
                        1e3 * run["median"],
                        1e3 * run["mean"],
                        run["vectors"],
                        run["bytes"] / 1e6,
                        found / (N_TRUE * options.queries),
                        run["peak"] / GIGA,
                    )
        os.remove(path)
    files = report.table(
        "files",
        ["vectors", "rows", "file GB", "in memory GB", "build s"],
        "in memory: all parts of the index but float32 vectors",
    )
    for row in sizes:
        files.row(*row)


def _bytes_read() -> int:
    """Return the bytes that this process has read from disk so far (Linux)."""
    return int(Path("/proc/self/io").read_text().split("read_bytes:")[1].split()[0])
