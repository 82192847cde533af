"""A smoke run of the measurement of look-ups and products."""

import json

import pytest

from benchmarks import lookups
from tests.conftest import COMPILED

TABLES = ("look-ups", "tables", "weights", "products")


@pytest.mark.skipif(not COMPILED, reason="measures compiled code")
def test_lookups(tmp_path, monkeypatch):
    monkeypatch.setattr(lookups, "pin", lambda n_threads: None)
    path = tmp_path / "lookups.jsonl"
    lookups.main(["--quick", "--dims", "384", "4096", "--output", str(path)])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    by_table = {name: [row for row in rows if row["table"] == name] for name in TABLES}
    assert [len(found) for found in by_table.values()] == [12, 6, 4, 4]
    assert by_table["look-ups"][0]["trial"] == 42
    for found in by_table.values():
        for row in found:
            assert all(value > 0 for name, value in row.items() if name not in ("table", "where", "trial", "path"))
