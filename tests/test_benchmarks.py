"""The benchmark harness: contenders in processes, failures reported, and a smoke run of each measurement."""

import importlib.util
import json
import os
import time

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import bytes as bytes_
from benchmarks import datasets, encode, plots, quality, scan
from benchmarks.encode.contenders import CONTENDERS
from benchmarks.harness import Contender, ContenderError, alternate
from benchmarks.report import Report


class Probe:
    """A contender that does what it is told."""

    def __init__(self, fail=False):
        if fail:
            raise RuntimeError("cannot build")

    def echo(self, value):
        return value, os.getpid(), os.environ["OMP_NUM_THREADS"]

    def variable(self, name):
        return os.environ.get(name)

    def sleep(self, seconds):
        time.sleep(seconds)

    def fail(self):
        raise ValueError("no result")

    def die(self):
        os._exit(3)


PROBE = "tests.test_benchmarks:Probe"


def test_calls_run_in_another_process():
    before = os.environ.get("OMP_NUM_THREADS")
    with Contender(PROBE, {}, n_threads=1) as contender:
        seconds, (value, pid, n_threads) = contender.timed("echo", [1, 2])
    assert value == [1, 2]
    assert pid != os.getpid()
    assert n_threads == "1"
    assert 0 <= seconds < 60
    assert os.environ.get("OMP_NUM_THREADS") == before


def test_a_process_has_environment_variables_of_its_own():
    with Contender(PROBE, {}, environment={"CBEINDEX_TEST": "there"}) as contender:
        assert contender.call("variable", "CBEINDEX_TEST") == "there"
    assert "CBEINDEX_TEST" not in os.environ


def test_failures_are_reported():
    with Contender(PROBE, {}) as contender:
        with pytest.raises(ContenderError, match="no result"):
            contender.call("fail")
        assert contender.is_alive()
        assert contender.call("echo", 5)[0] == 5
        with pytest.raises(ContenderError, match="exit code 3"):
            contender.call("die")
        assert not contender.is_alive()
        with pytest.raises(ContenderError):
            contender.call("echo", 5)
    with pytest.raises(ContenderError, match="cannot build"):
        Contender(PROBE, {"fail": True})


def test_a_slow_contender_is_given_up():
    with Contender(PROBE, {}, timeout=5) as contender, pytest.raises(ContenderError, match="no answer in 5 s"):
        contender.call("sleep", 60)


def test_calls_alternate():
    calls = []
    timings = alternate({"a": lambda: calls.append("a") or 1.0, "b": lambda: calls.append("b") or 3.0}, rounds=3)
    assert calls == ["a", "b"] * 4
    assert timings["a"].seconds == [1.0] * 3
    assert timings["b"].median == 3.0


def test_unknown_names_list_what_there_is(capsys):
    assert command.main([]) == 2
    assert command.main(["nothing"]) == 2
    assert command.main(["--help"]) == 0
    assert "encode" in capsys.readouterr().out


def test_encode(tmp_path, monkeypatch, capsys):
    pytest.importorskip("faiss")
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "0")
    monkeypatch.setattr(encode, "SPARSE_DIMS", (4_096,))
    monkeypatch.setattr(encode, "_n_rows", lambda dim: 500)
    path = tmp_path / "encode.jsonl"
    encode.main(["--quick", "--dims", "100", "--output", str(path)])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[0]["table"] == "machine"
    measured = [row for row in rows if row["table"] == "encode"]
    assert [row["d"] for row in measured] == [100]
    for row in measured:
        assert row["x hadamard"] == pytest.approx(row["hadamard"] / row["us/vector"])
        assert row["of peak"] > 0
        assert row["of memory"] > 0
    for table in ("transforms", "steps", "single", "accuracy"):
        assert [row["d"] for row in rows if row["table"] == table] == [100]
    for row in (row for row in rows if row["table"] == "accuracy"):
        assert 0 < row["cbeindex"] < 1e-6
    sparse = [row for row in rows if row["table"] == "sparse"]
    assert [(row["d"], row["entries"]) for row in sparse] == [(4_096, 32), (4_096, 256)]
    for row in sparse:
        assert row["x matrix"] == pytest.approx(row["matrix"] / row["us/vector"])
    assert [row["d"] for row in rows if row["table"] == "memory"] == [2**17]
    assert "above 1: cbeindex is faster" in capsys.readouterr().out


def test_encoders_that_cannot_run_are_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "0")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "faiss" else find_spec(name))
    monkeypatch.setitem(CONTENDERS, "matrix", type("Nobody", (), {}))
    path = tmp_path / "encode.jsonl"
    encode.speed(Report("Encoding", path), (64, 100), 1)
    for row, dim in zip(map(json.loads, path.read_text().splitlines()[-2:]), (64, 100), strict=True):
        assert row["d"] == dim
        assert row["us/vector"] > 0
        assert [row[name] for name in ("hadamard", "lsh", "matrix", "x matrix")] == [None] * 4
    said = capsys.readouterr().out
    assert "hadamard and lsh are left out: faiss is not installed" in said
    assert "matrix is left out: AttributeError" in said


def test_scan(tmp_path, monkeypatch, capsys):
    pytest.importorskip("faiss")
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "0")
    monkeypatch.setattr(datasets, "SHARED", tmp_path)
    path = tmp_path / "scan.jsonl"
    scan.main(["--quick", "--bits", "1024", "--queries", "1", "5", "--k", "10", "--output", str(path)])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    measured = [row for row in rows if row["table"] == "scan planted"]
    assert len(measured) == 2 * len(scan.CONTENDERS)
    for row in measured:
        assert row["rows"] == 5_000
        assert row["found"] > 0.99 if row["contender"] == "cascade" else row["found"] == 1
    assert [row["rows"] for row in rows if row["table"] == "growth planted"][::6] == [312, 1250, 5000]
    assert "share of exact results" in capsys.readouterr().out


def test_quality(tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(datasets, "SHARED", tmp_path)
    monkeypatch.setattr(datasets, "planted", lambda n, dim, n_queries: datasets.Dataset("tiny", *tiny_vectors()))
    path = tmp_path / "quality.jsonl"
    quality.main(["--quick", "--output", str(path)])
    rows = [json.loads(line) for line in path.read_text().splitlines() if '"tiny"' in line or "quality" in line]
    by_method = {row["method"]: row for row in rows if "method" in row}
    assert {"cbeindex orthogonal, asymmetric", "faiss RaBitQ", "faiss LSH", "faiss ITQ,LSH"} <= set(by_method)
    for row in by_method.values():
        assert 0 < row["10@10"] <= row["10@50"] <= row["10@100"] <= 1


def test_bytes(tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(datasets, "SHARED", tmp_path)
    monkeypatch.setattr(datasets, "clustered", lambda n, dim, n_queries: datasets.Dataset("tiny", *tiny_vectors()))
    path = tmp_path / "report" / "bytes.jsonl"
    bytes_.main(["--quick", "--output", str(path)])
    rows = {row["contender"]: row for row in map(json.loads, path.read_text().splitlines()) if "contender" in row}
    assert {"cbeindex codes", "cbeindex int4", "cbeindex int8", "faiss RaBitQ 4", "faiss SQ8"} <= set(rows)
    for row in rows.values():
        assert 0 < row["10@10"] <= row["10@100"] <= 1
        assert row["bytes/row"] > 8
    assert (tmp_path / "report" / "bytes-tiny.svg").exists() == plots.can_draw()


def tiny_vectors():
    rng = np.random.default_rng(0)
    base = rng.standard_normal((300, 32)).astype(np.float32)
    base /= np.linalg.norm(base, axis=1, keepdims=True)
    return base, base[:7] + np.float32(0.01)


class TestRecall:
    """Recall of contenders that are known to be perfect, useless, or saved by a tie."""

    base = np.eye(8, dtype=np.float32)[[0, 1, 2, 3, 4, 4, 4, 5]]
    queries = np.eye(8, dtype=np.float32)[[4, 0]]
    data = datasets.with_truth(datasets.Dataset("tiny", base, queries), 10)

    def test_truth(self):
        np.testing.assert_array_equal(self.data.truth[0, :3], [4, 5, 6])
        assert self.data.truth[1, 0] == 0

    def test_known_answers(self):
        perfect = self.data.truth[:, :3]
        assert datasets.recall(self.data, perfect, 1) == 1
        assert datasets.recall(self.data, np.array([[0, 1, 2], [4, 5, 6]]), 1) == 0
        assert datasets.recall(self.data, np.array([[-1, -1, -1], [0, -1, -1]]), 1) == 0.5

    def test_a_tie_counts_and_a_repetition_does_not(self):
        assert datasets.recall(self.data, np.array([[6, 0], [0, 1]]), 1) == 1
        assert datasets.recall(self.data, np.array([[6, 6, 6], [0, 1, 2]]), 3) == pytest.approx((1 + 3) / 6)
