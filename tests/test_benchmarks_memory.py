"""The measurement of an index larger than memory: a smoke run, and the limit that it keeps."""

import json
import sys

import numpy as np
import pytest

from benchmarks import limits, memory
from benchmarks.growing import rows_of
from cbeindex import CBEIndex

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def pages(tmp_path):
    """The pages of a mapped index, and its vectors."""
    path = tmp_path / "items.cbe"
    index = CBEIndex(64, vectors="float32", buckets=None, metric="l2")
    index.add(rows_of(0, 9_000, 64))
    index.save(path)
    vectors = [s.columns["vectors"] for s in CBEIndex.load(path)._state.rows.snapshot().segments]
    found = limits.Pages(str(path), vectors)
    try:
        found.cached_bytes()
    except OSError as error:
        pytest.skip(str(error))
    return found, vectors


def test_pages_of_vectors_are_dropped(pages):
    found, vectors = pages
    before = [each.copy() for each in vectors]
    n_bytes = sum(each.nbytes for each in vectors)
    assert found.cached_bytes() >= n_bytes
    found.drop()
    # Pages at the ends of arrays are shared with what is beside them, and the system may keep some that it writes.
    assert found.cached_bytes() < 0.5 * n_bytes
    for each, expected in zip(vectors, before, strict=True):
        np.testing.assert_array_equal(each, expected)


def test_a_smoke_run(tmp_path, pages):
    path = tmp_path / "memory.jsonl"
    memory.main(["--quick", "--buckets", "none", "--folder", str(tmp_path), "--output", str(path)])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    searches = [row for row in rows if row["table"] == "searches"]
    assert [(row["vectors"], row["reads"]) for row in searches[::3]] == [
        ("float32", "one by one"), ("float32", "together"), ("int4", "one by one"),
    ]  # fmt: skip
    of_float32 = [row for row in searches if row["vectors"] == "float32"]
    assert len({row["recall"] for row in of_float32}) == 1  # however vectors are read
    # A short search may end between two samples on a busy machine.
    assert all(row["peak GB"] < 1 for row in searches)
    assert any(row["peak GB"] > 0 for row in searches)
    sizes = {row["vectors"]: row["file GB"] for row in rows if row["table"] == "files"}
    assert sizes["int4"] < 0.4 * sizes["float32"]
    assert not list(tmp_path.glob("tmp*"))
