"""Contenders from other packages: the settings that they are given, and what is made of their answers."""

import importlib.util
import subprocess
import sys
import types

import numpy as np
import pytest

from benchmarks import contenders, datasets, recall
from benchmarks.adapter import Adapter, Task
from benchmarks.harness import resident_memory
from cbeindex import CirculantEncoder
from tests.conftest import ROOT

PACKAGES = ("alayalite", "hnswlib", "rabitqlib", "scann", "usearch", "zvec")


class Calls:
    """A package, a class or an index: remembers every call by its dotted name, and answers with itself or ids."""

    def __init__(self, name="", log=None, answer=None):
        self.name, self.log, self.answer = name, {} if log is None else log, answer

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Calls(f"{self.name}.{name}".lstrip("."), self.log, self.answer)

    def __call__(self, *arguments, **options):
        self.log[self.name.split(".")[-1]] = (arguments, options)
        return self.answer if "search" in self.name else self


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.setattr(Adapter, "use_threads", lambda self, n_threads: None)
    base = np.random.default_rng(0).standard_normal((100, 16)).astype(np.float32)
    task = Task(str(tmp_path), 100, 16, 64, "cosine", False, 2, 4)
    task.write(base, base[:4], np.zeros((100, 8), dtype=np.uint8), CirculantEncoder(16, 64))
    return task


def made(name, task, monkeypatch, answer=None):
    """Return a contender on a package that only remembers, and what it remembers."""
    package = Calls(answer=answer)
    monkeypatch.setitem(sys.modules, contenders.class_of(name).package, package)
    return contenders.class_of(name)(task), package.log


def test_the_graph_of_rabitqlib_has_its_strong_settings(task, monkeypatch):
    missing = np.array([[5, 2**32 - 1]], dtype=np.uint32)
    graph, log = made("SymphonyQG", task, monkeypatch, (missing, None))
    assert log["SymqgIndex"] == ((16, 32, "l2", 0), {})
    rows, *settings = log["build"][0]
    assert (rows.shape, settings) == ((100, 16), [200, 2, "pipnn"])
    np.testing.assert_array_equal(graph.search(graph.queries, 10, 4), [[5, -1]])
    assert log["search_batch"][0][1:] == (10, 10, 2), "a beam is at least as wide as there are results"


def test_scann_has_a_tree_of_two_roots(task, monkeypatch):
    _, log = made("ScaNN", task, monkeypatch)
    assert log["builder"][0][1:] == (10, "dot_product")
    assert log["tree"][1]["num_leaves"] == 20
    assert log["score_ah"] == ((2,), {"anisotropic_quantization_threshold": 0.2})


def test_scann_takes_the_call_for_so_many_queries(task, monkeypatch):
    tree, log = made("ScaNN", task, monkeypatch, (np.array([7, 8], dtype=np.uint32), None))
    np.testing.assert_array_equal(tree.search(tree.queries[:1], 3, 5), [[7, 8, -1]])
    assert (log["search"][0][1:], "search_batched_parallel" in log) == ((3, 3, 5), False)
    tree.search(tree.queries, 3, 5)
    assert log["search_batched_parallel"][0][1:] == (3, 3, 5)


def test_scann_is_anisotropic_for_products_only(task, monkeypatch):
    _, log = made("ScaNN", Task(**{**vars(task), "metric": "l2"}), monkeypatch)
    assert log["builder"][0][1:] == (10, "squared_l2")
    assert log["score_ah"] == ((2,), {})


def test_packages_that_are_missing_are_left_out(task, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    match = recall.Match(task, datasets.Dataset("", None, None), types.SimpleNamespace(quick=True))
    names = [name for name in contenders.REGISTRY if contenders.class_of(name).package in PACKAGES]
    assert {contenders.class_of(name).package for name in names} == set(PACKAGES)
    for name in names:
        match.enter(name)
        row = match.rows[name]
        assert (row["status"], row["reason"]) == ("left out", f"{contenders.class_of(name).package} is not installed")


NOISE = """
import os
from benchmarks.contenders.outside import silence

print("before")
with silence():
    print("from Python")
    os.write(1, b"from compiled code")
    os.write(2, b"and its errors")
print("after")
"""


def test_a_build_is_silent():
    done = subprocess.run([sys.executable, "-c", NOISE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("before\nafter\n", "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_counts_what_is_kept_and_not_what_is_given(tmp_path):
    size = 2**26
    (tmp_path / "given.bin").write_bytes(bytes(size))
    before = resident_memory(tmp_path)
    given = np.memmap(tmp_path / "given.bin", mode="r")
    assert given.sum() == 0
    # Other allocations of the process are far below half of 64 MB.
    assert abs(resident_memory(tmp_path) - before) < size / 2
    assert resident_memory(tmp_path.parent) - before > size / 2
    kept = np.ones(size, dtype=np.uint8)
    assert size / 2 < resident_memory(tmp_path) - before < 2 * size
    del kept
    assert resident_memory(tmp_path) - before < size / 2
