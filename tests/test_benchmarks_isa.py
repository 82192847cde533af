"""Instruction levels: what a run that is held to one uses, and which code it caches."""

import importlib.util
import os
import platform
import subprocess
import sys

import pytest

from benchmarks import __main__ as command
from benchmarks import contenders, isa
from benchmarks.adapter import Task
from tests.conftest import ROOT

x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="levels of x86")

USED = """
import sys
from benchmarks import isa
if len(sys.argv) > 1:
    isa.use(sys.argv[1])
from benchmarks.report import machine
print(machine()["instructions"])
"""

FAISS = """
from benchmarks import isa
isa.use("avx2")
import faiss
print(faiss.SIMDConfig.get_level_name() if hasattr(faiss, "SIMDConfig") else "AVX2")
"""

CACHED = """
import sys
from benchmarks import isa
if len(sys.argv) > 1:
    isa.use(sys.argv[1])
import numpy as np
from cbeindex.kernels.popcount import popcount64
from cbeindex.kernels.jit import njit

@njit(cache=True, nogil=True)
def count(word):
    return popcount64(word)

print(count(np.uint64(7)), sum(count.stats.cache_hits.values()))
"""


def run(code, *arguments, file=None, **environment):
    """Run code in a process of its own, and return what it prints."""
    source = ["-c", code] if file is None else [str(file)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")} | environment
    variables["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, *source, *arguments], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@x86
def test_a_run_is_held_to_its_level():
    for level in isa.LEVELS:
        assert run(USED, level) == level
    assert run(USED) in ("avx512", "avx2", "portable")


@x86
def test_faiss_is_held_to_it():
    if importlib.util.find_spec("faiss") is None:
        pytest.skip("faiss is not installed")
    assert run(FAISS) == "AVX2"


@x86
def test_the_caches_of_levels_do_not_overwrite_each_other(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(CACHED)
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    # A name that no CPU of a test has, so that a machine with AVX2 alone has two levels as well.
    other = cache | {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "+sse4.2,+popcnt"}
    assert run("", file=file, **other) == "3 0"
    assert run("", "avx2", file=file, **cache) == "3 0"
    assert run("", file=file, **other) == "3 1"
    assert run("", "avx2", file=file, **cache) == "3 1"


def test_a_level_is_set_before_anything_is_imported():
    if platform.machine() in ("x86_64", "AMD64"):
        with pytest.raises(AssertionError, match="imported before the level was set"):
            isa.use("avx2")


def test_unknown_levels_and_other_machines_are_refused(monkeypatch, capsys):
    assert command.main(["--isa", "avx3", "scan"]) == 2
    assert command.main(["--isa"]) == 2
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert command.main(["--isa", "avx2", "scan"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: --isa must be one of avx2, portable, got 'avx3'",
        "error: --isa must be one of avx2, portable, got 'nothing'",
        "error: --isa avx2 needs an x86-64 CPU, this is aarch64",
    ]


@pytest.mark.parametrize("has_avx512", [False, True])
def test_packages_that_cannot_be_held_to_it_are_left_out(has_avx512, monkeypatch):
    monkeypatch.setattr(isa, "_has_avx512", lambda: has_avx512)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    task = Task("", 1_000, 128, 64, "cosine", False, 1, 10)
    assert contenders.why_not("hnswlib", task) is None
    monkeypatch.setenv("CBEINDEX_BENCH_ISA", "avx2")
    assert contenders.why_not("hnswlib", task) == ("cannot be held to avx2" if has_avx512 else None)
    assert contenders.why_not("HNSW32", task) is None
    assert contenders.why_not("cbeindex", task) is None
