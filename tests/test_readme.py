"""The Python blocks of the README and of the documentation run as they are, one namespace a page."""

import re
from pathlib import Path

import pytest

from tests.conftest import COMPILED

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A language of its own for everything that is not run: output, commands, drawings, other languages.
LANGUAGES = {"python", "text", "sh", "sql", "dockerfile", "rooms", "json"}


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
    "page", [page for page in PAGES if python_blocks(page)], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    needs = re.match(r"---\nneeds: (\w+)\n---\n", page.read_text())
    if needs:
        pytest.importorskip(needs.group(1))
    namespace: dict[str, object] = {"__name__": "page"}
    for block in python_blocks(page):
        exec(compile(block, str(page), "exec"), namespace)


def test_the_readme_has_the_two_commands():
    text = (ROOT / "README.md").read_text()
    assert "make bench" in text
    assert "make test" in text
    assert "recall=" in "".join(python_blocks(ROOT / "README.md"))
