"""The measurement of shards: a smoke run, and that it notices a wrong answer."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from cbeindex import CBEIndex

pytest.importorskip("ray")

from benchmarks import sharded

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(sys.platform == "win32", reason="Windows replaces no files that are open"),
]


def test_sharded(cluster, tmp_path, capsys):
    path = tmp_path / "sharded.jsonl"
    sharded.main(["--quick", "--output", str(path)])
    assert "fan-out" in capsys.readouterr().out
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["shards"] for row in rows if row["table"] == "speed"] == [1, 2]
    assert all(row["p99 us"] >= row["p50 us"] > 0 for row in rows if row["table"] == "speed")
    assert [row["shards"] for row in rows if row["table"] == "building"] == [1, 2]
    one, many = (row for row in rows if row["table"] == "bytes")
    assert many["sent"] - one["sent"] == pytest.approx(many["model"] - one["model"], abs=300)
    assert [(row["replicas"], row["wrong"], row["missing"]) for row in rows if row["table"] == "recovery"] == [
        (1, 0, 0), (2, 0, 0),
    ]  # fmt: skip


def test_a_wrong_answer_ends_the_measurement():
    X = np.random.default_rng(0).standard_normal((50, 16)).astype(np.float32)
    single = CBEIndex(16, vectors=None, buckets=None).fit(X)
    single.add(X)
    setting = sharded.Setting(Path(), X, X[:5], single, 0.0)
    assert setting.one(single, 2) > 0
    other = CBEIndex(16, encoder=single.encoder, vectors=None, buckets=None)
    other.add(X[1:])
    with pytest.raises(sharded.Wrong):
        setting.batch(other)
    with pytest.raises(sharded.Wrong):
        setting.one(other, 0)
