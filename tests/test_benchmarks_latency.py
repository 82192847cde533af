"""The measurement of single queries: a smoke run, and the choice of settings."""

import json

import numpy as np

from benchmarks import chase, latency
from benchmarks.adapter import Setting
from benchmarks.recall import Point


def test_latency(tmp_path, capsys):
    path = tmp_path / "latency.jsonl"
    latency.main(["--quick", "--data", "synthetic", "--contenders", "cbeindex-graph", "HNSW32_SQ8", "--levels", "0.1",
                  "--output", str(path)])  # fmt: skip
    assert "queries/s" in capsys.readouterr().out
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    asked = [row for row in rows if row["table"].endswith(": one query at a time")]
    assert {row["contender"] for row in asked} == {"cbeindex-graph", "HNSW32_SQ8"}
    assert all(0 < row["p50 us"] <= row["p99 us"] and row["recall"] >= 0.1 for row in asked)
    assert [row["x ours"] for row in asked if row["contender"] == "cbeindex-graph"] == [1.0]
    read = next(row for row in rows if row["table"].endswith(": what cbeindex-graph reads"))
    assert read["steps"] > 0
    assert read["KB"] > 0


def test_the_first_setting_that_reaches_a_level_is_taken_for_each_depth():
    def point(depth, parameter, recall):
        return Point("a", Setting("exact", 10, depth, parameter), 0, [recall])

    points = [point(10, 1, 0.5), point(10, 2, 0.9), point(10, 3, 0.95), point(20, 1, 0.92), point(30, 1, 0.1)]
    points.append(Point("a", Setting("codes", 10, None, 1), 0, [1.0]))
    chosen = [(entry.setting.depth, entry.setting.parameter) for entry in latency.reaching(points, 0.9)]
    assert chosen == [(10, 2), (20, 1)]


def test_records_are_read_in_the_order_of_the_cycle():
    order = np.array([2, 0, 1])
    records = np.zeros((3, 8), dtype=np.uint64)
    assert [chase.read_in_turn(records, order, 0, n) for n in range(4)] == [0, 2, 1, 0]
    assert chase.seconds_of_step(100, 100) > 0
