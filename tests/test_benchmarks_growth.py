"""The measurement of growth: a smoke run."""

import json

import numpy as np
import pytest

from benchmarks import growing, growth


def test_growth(tmp_path, capsys):
    path = tmp_path / "growth.jsonl"
    growth.main(["--quick", "--dim", "16", "--contenders", "cells", "cells-codes", "--output", str(path)])
    assert "queries/s" in capsys.readouterr().out
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    measured = [row for row in rows if row["table"] == "growth"]
    assert [(row["contender"], row["rows"]) for row in measured] == [
        (name, n) for name in ("cells", "cells-codes") for n in (6_000, 12_000)
    ]
    assert all(row["seconds"] >= row["longest s"] > 0 for row in measured)
    assert measured[1]["recall"] >= 0.95
    assert [row["contender"] for row in rows if row["table"] == "slopes"] == ["cells", "cells-codes"]
    singles = [row for row in rows if row["table"] == "singles"]
    assert [(row["contender"], row["rows"]) for row in singles] == [("cells", 200), ("cells-codes", 200)]
    assert all(row["adds/s"] > 0 for row in singles)


def test_true_neighbours_are_found_block_by_block():
    truth = growing.Truth(8, 40, 5)
    for block in range(3):
        truth.add(block)
    rows = np.concatenate([growing.rows_of(block, 40, 8) for block in range(3)])
    queries = growing.rows_of(10**6, 5, 8)
    apart = ((queries[:, np.newaxis] - rows) ** 2).sum(axis=2)
    expected = np.argsort(apart, axis=1)[:, :10]
    np.testing.assert_array_equal(np.sort(truth.ids(), axis=1), np.sort(expected, axis=1))


def test_a_line_has_slope_one():
    rows = [{"rows": n, "seconds": 3e-6 * n} for n in (1_000, 2_000, 8_000)]
    assert growth.slope(rows) == pytest.approx(1)
    assert growth.slope(rows[:1]) is None
