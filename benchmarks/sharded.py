"""What shards on Ray cost and give: latency and speed against one index, bytes, building, recovery after a kill."""

from __future__ import annotations

import argparse
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Report
from cbeindex import CBEIndex
from cbeindex._core.threads import n_cores

# Hamming order over all rows: answers of any number of shards must be those of one index, bit for bit.
OPTIONS: dict[str, Any] = {"rerank": None, "mode": "scan", "n_threads": 1}
K = 10


class Wrong(Exception):
    """An answer differs from that of the single index."""


def main(arguments: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks sharded", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="a smoke run: 3,000 rows, one and two shards, one kill")
    add("--rows", type=int, default=200_000)
    add("--dim", type=int, default=768)
    add("--shards", type=int, nargs="+", default=[1, 2, 4, 8])
    add("--rounds", type=int, default=300, help="single queries measured for each number of shards")
    add("--batch", type=int, default=256, help="queries of a batch")
    add("--kills", type=int, default=10)
    add("--output", default=os.path.join("bench-report", "sharded.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rows, options.dim, options.shards, options.rounds, options.batch, options.kills = (
            3_000, 64, [1, 2], 10, 16, 1,
        )  # fmt: skip
    title = f"Shards on Ray: {options.rows:,} rows of {options.dim} dimensions, {options.dim} bits, Hamming order"
    report = Report(title, options.output)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((options.rows, options.dim), dtype=np.float32)
    queries = rng.standard_normal((options.batch, options.dim), dtype=np.float32)
    single = CBEIndex(options.dim, vectors=None, buckets=None).fit(rows[:8_192])
    began = time.perf_counter()
    single.add(rows)
    seconds = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        _measure(report, options, Setting(Path(folder), rows, queries, single, seconds))


class Setting:
    """What all measurements share.

    Parameters
    ----------
    folder : Path
    rows, queries : float32 arrays
    single : CBEIndex
        One index in this process, with all rows.
    add_seconds : float
        What adding the rows to it took.
    """

    def __init__(self, folder: Path, rows: Any, queries: Any, single: CBEIndex, add_seconds: float) -> None:
        self.folder, self.rows, self.queries, self.single = folder, rows, queries, single
        self.add_seconds = add_seconds
        self.expected = single.search(queries, K, **OPTIONS)

    def one(self, index: Any, number: int) -> float:
        """Return the seconds of a search for one query, whose answer is checked."""
        began = time.perf_counter()
        found = index.search(self.queries[number], K, **OPTIONS)
        seconds = time.perf_counter() - began
        self._check(found, number)
        return seconds

    def batch(self, index: Any) -> float:
        """Return the seconds of a search for all queries, whose answers are checked."""
        began = time.perf_counter()
        found = index.search(self.queries, K, **OPTIONS)
        seconds = time.perf_counter() - began
        self._check(found, slice(None))
        return seconds

    def _check(self, found: Any, which: Any) -> None:
        if not np.array_equal(found.ids, self.expected.ids[which]):
            raise Wrong("a result has other ids than that of the single index")
        if not np.array_equal(found.distances, self.expected.distances[which]):
            raise Wrong("a result has other distances than that of the single index")


def _measure(report: Report, options: argparse.Namespace, setting: Setting) -> None:
    import ray

    from cbeindex.sharded.workers import start_ray

    is_mine = start_ray("local")
    try:
        builds = _speeds(report, options, setting)
        _print_builds(report, options, setting, builds)
        _print_bytes(report, options, setting)
        _print_recovery(report, options, setting)
    finally:
        if is_mine:
            ray.shutdown()


def _speeds(report: Report, options: argparse.Namespace, setting: Setting) -> dict[int, float]:
    """Print latency and throughput by number of shards; return the seconds of building."""
    from cbeindex.sharded import build

    table = report.table(
        "speed",
        ["shards", "least us", "p50 us", "p99 us", "single us", "overhead us", "model us", "batch q/s", "single q/s"],
        "one query, and batches; single: one index in this process, alternating with the shards, all with one thread; "
        "overhead: the least time less the least of the single index, which shards share among the cores; model: "
        "a + b n for n shards, by least squares; batch: the fastest of five",
    )
    np.save(setting.folder / "rows.npy", setting.rows)
    measured, builds = [], {}
    for n_shards in options.shards:
        began = time.perf_counter()
        index = build(setting.folder / f"index-{n_shards}", setting.folder / "rows.npy", n_shards=n_shards,
                      encoder=setting.single.encoder)  # fmt: skip
        builds[n_shards] = time.perf_counter() - began
        with index:
            for _ in range(5):
                setting.one(index, 0)
                setting.batch(index)
            ours, theirs = _alternating(options, lambda i, index=index: setting.one(index, i), setting)  # type: ignore[misc]
            batches = [(setting.batch(index), setting.batch(setting.single)) for _ in range(5)]
        n_workers = min(n_shards, n_cores())
        measured.append([n_shards, ours, theirs, min(ours) - min(theirs) / n_workers, batches])
    slope, base = _line([m[0] for m in measured], [m[3] for m in measured])
    for n_shards, ours, theirs, overhead, batches in measured:
        sharded, alone = (options.batch / min(some) for some in zip(*batches, strict=True))
        table.row(
            n_shards, 1e6 * min(ours), 1e6 * float(np.median(ours)), 1e6 * float(np.percentile(ours, 99)),
            1e6 * min(theirs), 1e6 * overhead, 1e6 * (base + slope * n_shards), sharded, alone,
        )  # fmt: skip
    fitted = report.table("fan-out", ["a us", "b us"], "overhead of a call to n shards: a + b n")
    fitted.row(1e6 * base, 1e6 * slope)
    return builds


def _alternating(
    options: argparse.Namespace, sharded: Callable[[int], float], setting: Setting
) -> tuple[list[float], list[float]]:
    """Return the seconds of single queries, in shards and in one index by turns."""
    ours, theirs = [], []
    for i in range(options.rounds):
        ours.append(sharded(i % options.batch))
        theirs.append(setting.one(setting.single, i % options.batch))
    return ours, theirs


def _line(sizes: list[int], seconds: list[float]) -> tuple[float, float]:
    """Return slope and intercept of a line through measurements."""
    if len(sizes) < 2:
        return 0.0, seconds[0]
    slope, base = np.polyfit(sizes, seconds, 1)
    return float(slope), float(base)


def _print_builds(report: Report, options: argparse.Namespace, setting: Setting, builds: dict[int, float]) -> None:
    table = report.table(
        "building",
        ["shards", "seconds", "rows/s", "single add s"],
        "from a .npy file, with start of the workers, log, save and reopening; single: add alone, in this process",
    )
    for n_shards, seconds in builds.items():
        table.row(n_shards, seconds, options.rows / seconds, setting.add_seconds)


def _print_bytes(report: Report, options: argparse.Namespace, setting: Setting) -> None:
    """Print what a query sends to a shard and gets back, and what the model says."""
    from cbeindex.sharded.shard import Reply

    table = report.table(
        "bytes",
        ["queries", "sent", "model", "received", "model "],
        "between a client and one shard; model: 4 dim a query; 12 k a query in Hamming order",
    )
    for n in (1, options.batch):
        queries = setting.queries[:n]
        found = setting.single.search(queries, K, **OPTIONS)
        sent = len(pickle.dumps(("search", 0, queries, K, OPTIONS)))
        table.row(n, sent, 4 * options.dim * n, len(pickle.dumps(Reply(found, 0))), 12 * K * n)


def _print_recovery(report: Report, options: argparse.Namespace, setting: Setting) -> None:
    """Kill workers, and print how long the next complete answer takes; then the same with two replicas."""
    from cbeindex.sharded import ShardedIndex

    table = report.table(
        "recovery",
        ["replicas", "kills", "median s", "least s", "most s", "searches", "wrong", "missing"],
        "the longest of four searches after the kill of a worker (SIGKILL); every answer is checked",
    )
    n_shards = options.shards[min(1, len(options.shards) - 1)]
    for replicas in (1, 2):
        with ShardedIndex.open(setting.folder / f"index-{n_shards}", replicas=replicas) as index:
            pauses, n_searches = [], 0
            for round_ in range(options.kills):
                for number in range(5):
                    setting.one(index, number)
                pid = index.stats()["shards"][round_ % n_shards]["pid"]
                os.kill(pid, signal.SIGKILL)
                pauses.append(max(setting.one(index, number) for number in range(4)))  # replicas are asked in turn
                n_searches += 9
                _wait_for_workers(index)
            table.row(
                replicas, options.kills, float(np.median(pauses)), min(pauses), max(pauses), n_searches, 0, 0
            )  # wrong or missing answers raise an error


def _wait_for_workers(index: Any) -> None:
    """Wait until every replica answers: a kill must not find the other one gone."""
    import ray

    workers, query = index._connection.view.workers, np.zeros(index.dim, dtype=np.float32)
    for number in range(index.n_shards):
        for replica in range(index.replicas):
            worker = workers.handle(number, replica)
            while True:
                try:
                    ray.get(worker.call.remote("search", 0, ((query, K), OPTIONS)))
                    break
                except ray.exceptions.RayActorError:
                    time.sleep(0.1)
