"""The Python blocks of the README, and of the pages for users of other libraries, run as they are."""

import re

import pytest

from tests.conftest import COMPILED, ROOT

# Pages, and the packages that their blocks import.
PAGES = {"README.md": None, "docs/coming-from-faiss.md": "faiss", "docs/coming-from-hnswlib.md": "hnswlib"}


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text()
    if package := PAGES[page]:
        pytest.importorskip(package, reason=f"{package} has no wheel for this platform")
    if not COMPILED:  # kernels are slow then: fewer rows
        text = text.replace("20_000", "1_500").replace("50_000", "1_500")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)
