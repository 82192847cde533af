"""The measurement of promised recall: a smoke run."""

import json

import numpy as np

from benchmarks import promise
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
    assert len(by_table["filters"]) == 2 * 2 * len(promise.KEPT)
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
