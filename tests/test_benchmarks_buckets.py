"""The measurement of buckets: recall by pairs, the made-up sets, when sweeps end, and a smoke run."""

import json

import numpy as np
import pytest

from benchmarks import buckets, datasets
from benchmarks.buckets import contenders, problems, tables
from benchmarks.harness import ContenderError, Timing


def test_pairs_count_as_recall_does():
    base = np.eye(8, dtype=np.float32)[[0, 1, 2, 3, 4, 4, 4, 5]]
    queries = np.eye(8, dtype=np.float32)[[4, 0]]
    data = datasets.with_truth(datasets.Dataset("tiny", base, queries), 10)
    for n_true in (1, 3):
        pairs = datasets.near_pairs(data, n_true)
        for ids in (
            [[4, 5, 6], [0, 1, 2]],
            [[6, 6, 0], [-1, -1, 0]],
            [[-1, -1, -1], [7, 4, 5]],
            [[1, 2, 3], [4, 5, 6]],
        ):
            answers = np.array(ids)
            assert datasets.pairs_found(pairs, len(base), answers, n_true) == datasets.recall(data, answers, n_true)


def test_pairs_of_the_first_queries():
    pairs = np.array([0 * 10 + 3, 1 * 10 + 4, 2 * 10 + 5])
    assert datasets.pairs_found(pairs, 10, np.array([[3, 0], [5, 0]]), 1) == 0.5


def test_clustered_rows_have_near_ones():
    data = datasets.clustered(2_000, 64, 50)
    assert data.base.shape == (2_000, 64)
    np.testing.assert_allclose(np.linalg.norm(data.queries, axis=1), 1, rtol=1e-5)
    nearest = np.sort(data.queries @ data.base.T, axis=1)[:, -10]
    assert np.median(nearest) > 0.5  # of 2,000 random directions, the tenth is at 0.3


def test_near_duplicates_are_the_nearest():
    problem = problems.near_duplicates(3_000, 20, n_near=15)
    bits = np.unpackbits(problem.base, axis=1).astype(np.int32)
    asked = np.unpackbits(problem.queries, axis=1).astype(np.int32)
    distances = bits.sum(axis=1) + asked.sum(axis=1)[:, np.newaxis] - 2 * asked @ bits.T
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :10]
    assert problem.recall(nearest) == 1
    assert problem.recall(nearest[:, :5]) == 0.5
    assert problem.recall(np.argsort(-distances, axis=1)[:, :10]) == 0


class FakeContender:
    """Answers at once, and says what a search is meant to take."""

    def __init__(self, problem, speeds):
        self.problem, self.speeds, self.asked = problem, speeds, []

    def timed(self, method, n_queries, k, setting):
        if setting["n"] not in self.speeds:
            raise ContenderError("no such setting")
        share, seconds = self.speeds[setting["n"]]
        self.asked.append((setting["n"], n_queries))
        n = len(self.problem.base)
        truth = self.problem.pairs.reshape(-1, 10)[:n_queries] % n
        return seconds * n_queries, truth[:, : round(share * 10)]

    def call(self, method, *arguments):
        return None if method == "n_rows" else self.timed(method, *arguments)[1]


class TestSweeps:
    problem = problems.near_duplicates(5_000, 200)

    def sweep(self, speeds):
        settings = {f"n {n}": {"n": n} for n in speeds}
        entry = contenders.Entry("Hash", "a", "Ours", {}, [settings])
        contender = FakeContender(self.problem, speeds)
        return buckets.sweep_one(self.problem, entry, settings, contender, 0.5, 1.0), contender.asked

    def test_it_ends_where_more_is_of_no_use(self):
        points, _ = self.sweep({1: (0.5, 1e-4), 2: (1.0, 2e-4), 4: (1.0, 4e-4)})
        assert [point.recall for point in points] == [0.5, 1.0]
        assert all(point.n_asked == point.n_timed == 200 for point in points)

    def test_a_slow_first_setting_does_not_end_it(self):
        points, _ = self.sweep({1: (1.0, 5e-4), 2: (0.5, 1e-4), 4: (1.0, 2e-4), 8: (1.0, 4e-4)})
        assert [point.label for point in points] == ["n 1", "n 2", "n 4"]

    def test_slow_settings_are_asked_fewer_queries(self):
        points, asked = self.sweep({1: (0.3, 1e-4), 2: (0.5, 1 / 256), 4: (0.6, 1 / 32), 8: (0.7, 1.0)})
        assert [(point.n_asked, point.n_timed) for point in points] == [(200, 200), (200, 128), (100, 100)]
        assert max(n for n, _ in asked) == 4


def test_the_best_setting_at_a_recall():
    def point(family, label, recall, seconds):
        entry = contenders.Entry(family, family, "Ours", {}, [])
        return tables.Point(entry, label, {}, recall, None, 100, 100, seconds, {1: Timing([seconds])})

    points = [point("IVF", "a", 0.9, 0.1), point("IVF", "b", 0.95, 0.2), point("HNSW", "c", 1.0, 0.01)]
    assert tables.best_qps(points, "IVF", 0.9, 1) == pytest.approx(1_000)
    assert tables.best_qps(points, "IVF", 0.91, 1) == pytest.approx(500)
    assert tables.best_qps(points, "IVF", 0.96, 1) is None


def test_faiss_is_not_asked_list_by_list_for_few_queries():
    """With fewer queries than lists it overwrites memory that is not its own."""
    entries = contenders.entries(problems.near_duplicates(3_000, 200), quick=False)
    by_list = [entry.name for entry in entries if any("by list" in label for sweep in entry.sweeps for label in sweep)]
    assert by_list == []
    assert any(entry.family == "IVF" for entry in entries)
    for entry in contenders.entries(problems.near_duplicates(20_000, 400), quick=False):
        if any("by list" in label for sweep in entry.sweeps for label in sweep):
            assert entry.n_least > entry.arguments["options"][0]


def test_unknown_sets_are_named(capsys):
    with pytest.raises(SystemExit):
        buckets.main(["--data", "nothing"])
    assert "near-duplicates" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["clustered", "near-duplicates"])
def test_buckets(name, tmp_path, monkeypatch, capsys):
    pytest.importorskip("faiss")
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "0")
    monkeypatch.setattr(datasets, "SHARED", tmp_path)
    path = tmp_path / "buckets.jsonl"
    buckets.main(["--quick", "--data", name, "--repeats", "1", "--output", str(path)])
    rows = [json.loads(line) for line in path.read_text().splitlines()]

    curves = [row for row in rows if row["table"] == f"curves {name}"]
    recall = {(row["contender"], row["setting"]): row["recall"] for row in curves}
    exact = {recall[key] for key in recall if key[1] in tables.EXACT}
    assert len(exact) == 1  # all exact searches find the same
    assert exact == {1} or name == "clustered"
    assert all(row["QPS"] > 0 for row in curves)
    built = {row["contender"]: row for row in rows if row["table"] == f"build {name}"}
    assert set(built) == {row["contender"] for row in curves}
    assert all(row["x code"] >= 1 for row in built.values())
    assert {"faiss IVF 32", "faiss HNSW 16", "faiss Hash 12", "faiss MultiHash 4x16"} <= set(built)

    levels = {row["level"]: row for row in rows if row["table"] == f"levels {name}"}
    assert {"0.9", "0.95", "0.98", "exact"} <= {level.removesuffix(" of flat") for level in levels}
    for row in levels.values():
        assert row["Flat"] > 0
        if row["clusters"] is not None:
            best = max(row[family] or 0 for family in tables.FAISS)
            assert row["clusters x faiss"] == pytest.approx(row["clusters"] / best)
        if row["substrings x scan"] is not None:
            assert row["substrings x scan"] == pytest.approx(row["substrings"] / row["scan"])
    printed = capsys.readouterr()
    assert "of cbeindex, is faster" in printed.out
    assert "building faiss IVF 32" in printed.err
