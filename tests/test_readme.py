"""The Python blocks of the README run as they are."""

import re
from pathlib import Path

from tests.conftest import COMPILED

README = Path(__file__).parent.parent / "README.md"


def test_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = README.read_text()
    if not COMPILED:  # kernels are slow then: fewer rows
        text = text.replace("20_000", "1_500").replace("50_000", "1_500")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), namespace)
