"""An index in shards on Ray: build it, kill a worker, and go on. No write is lost, and no answer is incomplete.

Run: python examples/many_machines.py   (needs: pip install "cbeindex[ray]")
"""

from __future__ import annotations

import os
import signal
import tempfile
import time

import numpy as np

from cbeindex.sharded import ShardedIndex


def main() -> None:
    """Build an index of two shards, and kill one of its workers."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((10_000, 128), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        # On a cluster, the folder is one that all machines see. Here, Ray starts on this machine alone.
        with ShardedIndex.create(f"{folder}/items", dim=128, n_shards=2, vectors="float32") as index:
            index.add(X)
            index.save()
            index.add(X[:3] + 0.01, ids=[20_000, 20_001, 20_002])  # in the log of each shard, not saved
            before = index.search(X[:100], k=10)
            print(f"{len(index):,} rows in {index.n_shards} shards")

            worker = index.stats()["shards"][0]
            os.kill(worker["pid"], signal.SIGKILL)
            began = time.perf_counter()
            after = index.search(X[:100], k=10)  # waits for the worker that Ray starts in its place
            print(f"a worker was killed; the next answer took {time.perf_counter() - began:.1f} s")
            print(f"same answers: {np.array_equal(before.ids, after.ids)}")
            print(f"rows that were not saved are there: {20_001 in index}")
            index.add(X[:1] + 1, ids=[30_000])
            print(f"restarts: {[shard['restarts'] for shard in index.stats()['shards']]}, rows: {len(index):,}")
        with ShardedIndex.open(f"{folder}/items") as index:
            print(f"opened again: {len(index):,} rows")


if __name__ == "__main__":
    main()
