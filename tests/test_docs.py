"""The documents for contributors agree with the code."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "cbeindex"
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/architecture.md",
    "docs/coming-from-faiss.md",
    "docs/coming-from-hnswlib.md",
    "docs/many-machines.md",
)


def rooms():
    """The rooms in the order of the contract in pyproject.toml, the first one first."""
    contract, *_ = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [room for layer in reversed(contract["layers"]) for room in re.findall(r"cbeindex\.(\w+)", layer)]


@cache
def exported():
    """The room that defines each name that the package exports."""
    return {
        alias.asname or alias.name: node.module.split(".")[0]
        for node in ast.parse((PACKAGE / "__init__.py").read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def imported_rooms(path):
    """The rooms that a module imports from, at its top or inside of functions."""
    here = path.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = (*here[: len(here) - node.level + 1], *(node.module or "").split("."))
        base = tuple(part for part in base if part)
        for alias in node.names:
            room = base[0] if base else alias.name
            yield exported().get(room, room)


def arrows_in_code():
    arrows = {room: set() for room in rooms()}
    for room in arrows:
        paths = (PACKAGE / room).rglob("*.py") if (PACKAGE / room).is_dir() else [PACKAGE / f"{room}.py"]
        for path in paths:
            arrows[room] |= set(imported_rooms(path)) & arrows.keys() - {room}
    return arrows


def arrows_in_document():
    (block,) = re.findall(r"```rooms\n(.*?)```", (ROOT / "docs/architecture.md").read_text(), flags=re.DOTALL)
    lines = [line.split(" -> ") for line in block.splitlines()]
    return {room.strip(): set(re.findall(r"\w+", others)) - {"nothing"} for room, others in lines}


def test_arrows_between_rooms_are_those_of_the_imports():
    assert arrows_in_document() == arrows_in_code()


def test_rooms_are_documented_in_their_order():
    assert list(arrows_in_document()) == rooms()
    table = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/architecture.md").read_text(), flags=re.MULTILINE)
    assert table == rooms()


def test_every_module_is_in_a_room():
    found = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    assert found - {"__init__", "__main__"} == set(rooms())


def names_in(tree):
    """The dotted names of all functions, classes and methods of a module."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
            if isinstance(node, ast.ClassDef):
                yield from (f"{node.name}.{name}" for name in names_in(node))


@pytest.mark.parametrize(
    ("path", "name"),
    sorted(set(re.findall(r"`([\w/]+\.py)(?::([\w.]+))?`", (ROOT / "docs/architecture.md").read_text()))),
)
def test_names_in_the_architecture_exist(path, name):
    module = PACKAGE / path
    assert module.exists()
    assert not name or name in names_in(ast.parse(module.read_text()))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_exist(document):
    text = (ROOT / document).read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make ([\w-]+)", text, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    for path in re.findall(r"`((?:cbeindex|tests|benchmarks|docs|examples)/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"pytest -q (\S+)", text):
        assert (ROOT / path).exists(), path
    for name in re.findall(r"python -m benchmarks (\w+)", text):
        assert name.isupper() or (ROOT / "benchmarks" / f"{name}.py").exists() or (ROOT / "benchmarks" / name).is_dir()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_between_documents_work(document):
    for target in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / document).read_text()):
        assert (ROOT / document).parent.joinpath(target).exists(), target


def test_continuous_integration_covers_the_supported_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    (versions,) = re.findall(r"python: \[(.*)\]", workflow)
    assert project["requires-python"] == ">=" + re.findall(r"[\d.]+", versions)[0]
    for target in re.findall(r"run: make (.*)", workflow):
        for name in target.split():
            assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
