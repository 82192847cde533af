"""The examples run as they are, and print what they should."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_package import write_functions

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, *arguments):
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def _compiled(monkeypatch):
    """Examples have real sizes: they run compiled, as users run them."""
    monkeypatch.delenv("NUMBA_DISABLE_JIT", raising=False)


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "quickstart.py", "docstrings.py", "explore.py", "near_duplicates.py"
    }  # fmt: skip


def test_quickstart():
    output = run("quickstart.py")
    assert "20,000 vectors" in output
    assert "query 0: 0 at" in output
    assert "[0 1 2 3 4]" in output
    assert "[1000000 " in output


def test_near_duplicates():
    output = run("near_duplicates.py")
    assert "40 pairs of near duplicates, 40 were planted, the same: True" in output


def test_docstrings(tmp_path):
    """On a small folder of functions: a function's nearest neighbour is the one that does nearly the same."""
    write_functions(tmp_path)
    output = run("docstrings.py", "shapes.circle.area", "letter upper case", "--packages", str(tmp_path))
    assert "4 vectors" in output
    first, second = output.split("like ")[1:]
    assert "shapes.circle.extent" in first.splitlines()[1]
    assert "shapes.text.upper" in second.splitlines()[1]
