"""Vectors in a file that memory does not hold: candidates are asked for together, and answers stay the same."""

import mmap

import numpy as np
import pytest

from cbeindex import CBEIndex
from cbeindex._core import pages
from cbeindex._core.tuning import tuned
from cbeindex.distances.kept import dense
from tests.small import small_buckets
from tests.vector_oracles import clustered

needs_madvise = pytest.mark.skipif(not hasattr(mmap, "MADV_WILLNEED"), reason="no madvise here")


@needs_madvise
def test_pages_of_rows_are_asked_for_in_runs(tmp_path, monkeypatch):
    path = tmp_path / "rows.bin"
    path.write_bytes(bytes(40 * mmap.PAGESIZE))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        size = mmap.PAGESIZE // 2
        rows = np.frombuffer(mapping, np.uint8, 60 * size, 3 * mmap.PAGESIZE).reshape(60, size)
        assert pages.mapping_of(rows) is mapping
        assert pages.mapping_of(rows.view(np.uint16)[5:]) is mapping
        assert pages.mapping_of(rows.copy()) is None
        assert pages.read_ahead(rows, np.array([0, 1, 2, 40, 1])) == 2
        assert pages.read_ahead(rows, np.array([59])) == 1
        assert pages.read_ahead(rows, np.arange(60)) == 1
        assert pages.read_ahead(rows, np.empty(0, dtype=np.int64)) == 0
        assert pages.read_ahead(rows.copy(), np.array([3])) == 0
        assert not pages.is_beyond_memory(rows)
        with tuned(most_resident_share=0.0):
            assert pages.is_beyond_memory(rows)
            assert not pages.is_beyond_memory(rows.copy())
        # Half of the rows are a segment of a file that exceeds memory, though the segment does not.
        monkeypatch.setattr(pages, "memory_bytes", lambda: 2 * 39 * mmap.PAGESIZE)
        assert pages.is_beyond_memory(rows[:30])
        monkeypatch.setattr(pages, "memory_bytes", lambda: 2 * 41 * mmap.PAGESIZE)
        assert not pages.is_beyond_memory(rows[:30])
        del rows


@pytest.mark.parametrize("buckets", [None, "cells", "graph"])
@pytest.mark.parametrize("vectors", ["float32", "float16"])
def test_candidates_are_read_together_and_answers_stay_the_same(buckets, vectors, tmp_path, monkeypatch):
    path, rows = tmp_path / "items.cbe", clustered(300, 24)
    with small_buckets():
        index = CBEIndex(24, vectors=vectors, buckets=buckets)
        index.add(rows)
        index.save(path)
        # Estimates of the last candidates are nearly equal, and their order may depend on how queries are projected.
        expected, asked = CBEIndex.load(path).search(rows[:9], 5, n_candidates=40), []
        monkeypatch.setattr(dense, "read_ahead", lambda array, some: asked.append(len(some)))
        CBEIndex.load(path).search(rows[:9], 5, n_candidates=40)
        assert not asked
        with tuned(most_resident_share=0.0):
            found = CBEIndex.load(path).search(rows[:9], 5, n_candidates=40)
        assert sum(asked) >= 9 * 5
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.distances, expected.distances)
