"""The package as a whole: names, imports, and documentation that runs."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import cbeindex


def modules():
    return [name for _, name, _ in pkgutil.walk_packages(cbeindex.__path__, "cbeindex.")]


def test_public_names():
    exposed = {name for name, value in vars(cbeindex).items() if not name.startswith("_")}
    submodules = {name.split(".")[1] for name in modules()}
    assert exposed - submodules == set(cbeindex.__all__)
    assert cbeindex.__all__ == sorted(cbeindex.__all__)


def test_import_is_light():
    """Heavy packages (numba, scipy) take most of a second to import: they wait until they are needed."""
    program = "import sys, cbeindex; print(*{name.split('.')[0] for name in sys.modules} & {'numba', 'scipy', 'faiss'})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", ["cbeindex", *modules()])
def test_docstring_examples(name):
    module = importlib.import_module(name)
    assert module.__doc__
    assert doctest.testmod(module).failed == 0
