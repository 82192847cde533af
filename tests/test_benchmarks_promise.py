"""The measurement of promised recall: a smoke run."""

import json

import numpy as np

from benchmarks import datasets, promise
from cbeindex import CBEIndex


def test_promise(tmp_path, capsys):
    path = tmp_path / "promise.jsonl"
    promise.main(["--quick", "--metrics", "cosine", "--kinds", "cells", "--output", str(path)])
    assert "delivered" in capsys.readouterr().out
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    by_table = {name: [row for row in rows if row["table"] == name] for name in ("promise", "filters", "other queries")}
    assert [(row["k"], row["asked"]) for row in by_table["promise"]] == [
        (k, asked) for k in promise.RESULTS for asked in promise.RECALLS
    ]
    assert all(row["ok"] == "yes" for row in by_table["promise"])
    assert len(by_table["filters"]) == 2 * 4 * len(promise.KEPT)
    assert all(row["ok"] == "yes" for row in by_table["filters"])
    assert [row["tuned"] for row in by_table["other queries"]] == ["no"] * 4 + ["yes"] * 4


def test_true_neighbours_follow_the_metric():
    rng = np.random.default_rng(0)
    base, queries = (rng.standard_normal((n, 5), dtype=np.float32) for n in (60, 7))
    for metric in promise.METRICS:
        index = CBEIndex(5, metric=metric, vectors=None, buckets=None)
        index.add(base)  # not fitted yet: exact
        case = promise.Case(base, queries, index, ("set", metric, "cells"))
        np.testing.assert_array_equal(promise.nearest(case, np.arange(60), 4), index.search(queries, 4).ids)
        some = np.arange(0, 60, 2)
        np.testing.assert_array_equal(promise.nearest(case, some, 4), index.search(queries, 4, allow=some).ids)


def test_filters_of_labels(monkeypatch):
    rng = np.random.default_rng(0)
    base = rng.standard_normal((50, 5), dtype=np.float32)
    index = CBEIndex(5)
    index.add(base)
    monkeypatch.setattr(datasets, "labels", lambda name: np.arange(50) % 10)
    case = promise.Case(base, base[:3], index, ("set", "cosine", "default"))
    found = {how: (kept, rows.tolist()) for how, kept, rows in promise._filters(case) if "labels" in how}
    assert found["labels 0 to 0"] == (0.1, [0, 10, 20, 30, 40])
    assert found["not labels 0 to 4"] == (0.5, [i for i in range(50) if i % 10 >= 5])
    assert len(found) == 4
