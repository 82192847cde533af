"""The measurement of a start: what is compiled, by whom, and that a second start compiles nothing."""

import json
import shutil
import sys

import pytest

from benchmarks import start, uses
from tests.conftest import COMPILED


@pytest.fixture(autouse=True)
def _own_uses(monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "0")
    monkeypatch.setattr(start, "pin", lambda n_threads: None)
    monkeypatch.setattr(start, "USES", {"tiny": "tests.tiny_uses:tiny", "failing": "tests.tiny_uses:failing"})


def test_start(tmp_path, capsys):
    path = tmp_path / "start.jsonl"
    start.main(["--quick", "--rounds", "2", "--output", str(path)])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    cold, warm = (row for row in rows if row["table"] == "start")
    assert [(row["kernels are"], row["kernels"]) for row in (cold, warm)] == [("compiled", 3), ("cached", 0)]
    assert warm["compiling"] == 0 < cold["compiling"] < cold["together"]
    for row in (cold, warm):
        assert row["together"] == pytest.approx(row["import s"] + row["add s"] + row["search s"] + row["others s"])
        assert row["share"] == pytest.approx(row["compiling"] / row["together"])
    kernels = {row["kernel"].split(".")[-1]: row for row in rows if row["table"] == "kernels"}
    assert {name: row["signatures"] for name, row in kernels.items()} == {
        "add": 2, "twice": 1, "twice_added": 1, "all": 4,
    }  # fmt: skip
    assert kernels["all"]["seconds"] == pytest.approx(cold["compiling"])
    pauses = {row["step"]: row for row in rows if row["table"] == "pauses"}
    assert list(pauses) == ["add", "search"]
    assert pauses["search"]["kernel"].endswith("twice_added")
    assert sum(row["compiling"] for row in pauses.values()) == pytest.approx(cold["compiling"])
    assert "compiled by tiny" in capsys.readouterr().out


def test_what_a_kernel_calls_is_compiled_with_it(tmp_path):
    found = start.run("tests.tiny_uses:tiny", str(tmp_path))["kernels"]
    names = [one["kernel"].split(".")[-1] for one in found]
    # What a kernel calls is compiled for it before it is done, also what is a kernel of its own already.
    assert names == ["add", "add", "add", "twice", "twice_added"]
    assert [one["step"] for one in found] == ["add", "add", "search", "search", "search"]
    callers = [one["caller"] and one["caller"].split(".")[-1] for one in found]
    assert callers == [None, None, "twice_added", "twice_added", None]
    assert found[4]["whole"] == pytest.approx(found[2]["whole"] + found[3]["whole"] + found[4]["seconds"])
    assert all(one["seconds"] > 0 for one in found)


def test_a_use_that_fails_says_why(tmp_path):
    with pytest.raises(RuntimeError, match=r"^tests.tiny_uses:failing failed: (?s:.*)RuntimeError: no rows$"):
        start.run("tests.tiny_uses:failing", str(tmp_path))


def test_another_place(tmp_path):
    """An installation is another Python in another folder, which has the uses alone."""
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(uses.__file__, tmp_path / "benchmarks")
    (tmp_path / "other.py").write_text("def use():\n    yield 'add'\n")
    place = start.Place(sys.executable, tmp_path)
    assert set(start.run("other:use", None, place)["seconds"]) == {"import", "add"}


@pytest.mark.skipif(not COMPILED, reason="takes minutes")
@pytest.mark.parametrize(
    "name", ["quickstart", "operations", "codes", "vectors", "clusters", "substrings", "sparse", "binary", "hnswlib"]
)
def test_uses_run(name, monkeypatch):
    """Here, in this process: kernels are cached. Other libraries get few rows."""
    pytest.importorskip(uses.LIBRARIES.get(name, "cbeindex"))
    if name in uses.LIBRARIES:
        few = uses._rows(768)[:500]
        monkeypatch.setattr(uses, "_rows", lambda dim: few)
    assert {"import", "add", "search"} <= set(uses.run(getattr(uses, name))["seconds"])
