"""Test modules share code by helper modules, so that each of them can be run, changed and removed alone."""

import ast
from pathlib import Path

import pytest

from tests import conftest

TESTS = Path(__file__).parent


def imported_modules(source):
    """Return the dotted names of all modules, and of all names in modules, that a source of tests/ imports."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = ".".join(filter(None, ["tests" if node.level else "", node.module or ""]))
            names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return names


def imports_of_test_modules(source):
    return [name for name in imported_modules(source) if name.startswith("tests.test_")]


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: path.stem)
def test_no_module_imports_a_test_module(path):
    assert imports_of_test_modules(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "from tests.test_files import answers",
        "from tests import oracles, test_files",
        "from .test_files import answers",
        "from . import test_files",
        "import tests.test_files as files",
        "def f():\n    from tests.test_files import answers",
    ],
)
def test_all_forms_of_imports_are_seen(source):
    assert imports_of_test_modules(source)


def test_files_that_are_started_first_exist():
    for name in conftest.LONG:
        assert name == "ray" or (conftest.ROOT / "tests" / f"{name}.py").exists(), name
