"""The benchmark harness: contenders in processes, failures reported, and a smoke run of each measurement."""

import json
import os
import time

import pytest

from benchmarks import __main__ as command
from benchmarks import encode
from benchmarks.harness import Contender, ContenderError, alternate


class Probe:
    """A contender that does what it is told."""

    def __init__(self, fail=False):
        if fail:
            raise RuntimeError("cannot build")

    def echo(self, value):
        return value, os.getpid(), os.environ["OMP_NUM_THREADS"]

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


def test_failures_are_reported():
    with Contender(PROBE, {}) as contender:
        with pytest.raises(ContenderError, match="no result"):
            contender.call("fail")
        assert contender.call("echo", 5)[0] == 5
        with pytest.raises(ContenderError, match="exit code 3"):
            contender.call("die")
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


def test_encode(tmp_path, capsys):
    pytest.importorskip("faiss")
    path = tmp_path / "encode.jsonl"
    encode.main(["--quick", "--dims", "64", "100", "--output", str(path)])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[0]["table"] == "machine"
    measured = [row for row in rows if row["table"] == "encode"]
    assert [row["d"] for row in measured] == [64, 100]
    for row in measured:
        assert row["x hadamard"] == pytest.approx(row["hadamard"] / row["us/vector"])
    assert [row["d"] for row in rows if row["table"] == "memory"] == [2**17]
    assert "above 1: cbeindex is faster" in capsys.readouterr().out
