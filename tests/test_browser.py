"""Pages in a real browser: the documentation and the page of `python -m examples.explore`, on a desk and on a phone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cbeindex import CBEIndex
from tests.browser import CHROMIUM, Browser
from tests.conftest import COMPILED
from tests.small_package import write_functions

ROOT = Path(__file__).parent.parent

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: make test-browser installs Debian's"),
    pytest.mark.skipif(not COMPILED, reason="pages are made with real sizes, by compiled code"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The documentation, built as `make docs` builds it."""
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return folder


@pytest.fixture(scope="module")
def explorer(tmp_path_factory):
    """The page of the example, of a small folder."""
    folder = tmp_path_factory.mktemp("functions")
    write_functions(folder)
    page = folder / "explore.html"
    command = [sys.executable, "-m", "examples.explore", "--packages", str(folder), "--output", str(page), "-k", "2"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return page


def outside(browser):
    """What the page asked other hosts for."""
    return [address for address in browser.requests if not address.startswith(("file:", "data:", "about:", "blob:"))]


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1_400, False)])
def test_pages_fit_and_ask_nobody(site, width, dark):
    """No page is wider than the screen, has a script that fails, or loads anything from elsewhere."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    with Browser(width, 844, dark) as browser:
        for page in pages:
            if page.name == "404.html":  # its links begin at the root of a server
                continue
            browser.open(page)
            assert browser.run("document.documentElement.scrollWidth") <= width, page
            assert outside(browser) == [], page
            assert browser.failures == [], page
            background = browser.run("getComputedStyle(document.body).backgroundColor")
            red = int(background.split("(")[1].split(",")[0])
            assert (red < 128) == dark, (page, background)


def test_search_works_from_a_disk(site):
    with Browser() as browser:
        browser.open(site / "index.html")
        browser.run("document.querySelector('[data-md-component=search-query]').focus()")
        browser.type("WriterConflictError")
        browser.wait_for("document.querySelector('.md-search-result__item a')")
        found = browser.run("[...document.querySelectorAll('.md-search-result__item a')].map((a) => a.href).join(' ')")
        assert "reference/files.html" in found
        assert outside(browser) == []


@pytest.mark.parametrize(
    "options",
    [
        {"vectors": None, "buckets": None},
        {"vectors": "float32", "buckets": None},
        {"vectors": "float16", "buckets": "cells"},
        {"vectors": None, "buckets": "cells"},
        {"vectors": "int8", "buckets": None},
        {"vectors": "int4", "buckets": "cells"},
        {"vectors": None, "buckets": "clusters"},
        {"vectors": None, "buckets": "substrings"},
        {"vectors": None, "buckets": "graph", "hamming": False},
    ],
    ids=str,
)
def test_the_calculator_agrees_with_an_index(site, options):
    """Within a fifth of what `stats` says of 9,000 rows."""
    rows, dim = 9_000, 256
    index = CBEIndex(dim, **{"vectors": None, "buckets": None, **options})
    index.add(np.random.default_rng(0).standard_normal((rows, dim), dtype=np.float32))
    stored = sum(index.stats()["bytes"].values()) / rows
    asked = {"rows": rows, "dim": dim, "bits": 0, "hamming": True} | options
    with Browser() as browser:
        browser.open(site / "choosing.html")
        parts = browser.run(f"cbeindexBytes({json.dumps(asked)})")
    assert 0.8 < sum(parts.values()) / stored < 1.25, (parts, index.stats()["bytes"])


def test_the_calculator_answers_to_input(site):
    with Browser(390, 844) as browser:
        browser.open(site / "choosing.html")
        before = browser.run("document.querySelector('.calculator output').textContent")
        browser.run("document.querySelector('.calculator [name=rows]').select()")
        browser.type("5000000")
        after = browser.run("document.querySelector('.calculator output').textContent")
        assert "1,000,000 rows" in before
        assert "5,000,000 rows" in after


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1_400, False)])
def test_explorer(explorer, width, dark):
    """Typing a name and pressing Enter shows its neighbours with error bars, and the plan."""
    with Browser(width, 844, dark) as browser:
        browser.open(explorer)
        browser.run("document.getElementById('query').focus()")
        browser.type("circle area")
        browser.wait_for("document.querySelectorAll('#suggestions li').length === 1")
        browser.press("Enter", 13)
        browser.wait_for("document.getElementById('name').textContent === 'shapes.circle.area'")
        names = browser.run("[...document.querySelectorAll('#results a')].map((a) => a.textContent)")
        assert names[0] == "shapes.circle.extent"
        assert len(names) == browser.run("document.querySelectorAll('#results svg .bar').length") == 2
        assert "±" in browser.run("document.querySelector('#results .number').textContent")
        assert "scan" in browser.run("document.getElementById('plan').textContent")
        browser.run("document.querySelector('#results a').click()")
        browser.wait_for("document.getElementById('name').textContent === 'shapes.circle.extent'")
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.failures == outside(browser) == []


def test_explorer_shows_docstrings_as_text(explorer):
    """A docstring that ends a script is shown, not obeyed."""
    with Browser() as browser:
        browser.open(explorer.as_uri() + "#shapes.text.lower")
        assert "</script><b>" in browser.run("document.getElementById('text').textContent")
        assert browser.run("document.querySelectorAll('b').length") == 0
