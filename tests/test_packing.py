"""Places of cells in records, and centres in 8 bits a coordinate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import CBEIndex
from cbeindex.distances.rounding import Rounded, rounded
from cbeindex.search.buckets.packing import pack
from tests.sample_indexes import DIM, small_sizes, some_rows


@given(st.lists(st.integers(1, 200), min_size=1, max_size=60))
def test_cells_have_places_of_their_own_and_no_more_records_than_they_fill(sizes):
    sizes = np.array(sizes)
    order, places, n_records = pack(sizes)
    np.testing.assert_array_equal(np.sort(order), np.arange(len(sizes)))
    ends = places + sizes[order]
    assert places[0] >= 0
    assert (places[1:] >= ends[:-1]).all()
    assert -(-ends[-1] // 32) == n_records
    np.testing.assert_array_equal(-(-ends // 32) - places // 32, -(-sizes[order] // 32))


def test_cells_share_records():
    """Three cells of 40, 80 and 8 rows fill four records; each in records of its own, they take six."""
    assert pack(np.array([40, 8, 80])).n_records == 4


@given(st.integers(0, 99), st.integers(1, 9), st.integers(1, 30), st.sampled_from([1e-6, 1.0, 1e17]))
def test_rows_are_rounded_to_the_nearest_level(seed, n, width, size):
    rows = (size * np.random.default_rng(seed).standard_normal((n, width))).astype(np.float32)
    rows[0] = 0
    near = rounded(rows)
    steps = np.abs(rows).max(axis=1, keepdims=True) / 127
    assert (np.abs(near - rows) <= 0.501 * steps).all()
    np.testing.assert_array_equal(Rounded.of(near).rows(), near)
    assert near.dtype == np.float32


@pytest.mark.parametrize("vectors", ["float32", "int4"])
def test_files_hold_cells_as_they_are_in_memory(tmp_path, vectors):
    with small_sizes():
        index = CBEIndex(DIM, vectors=vectors, buckets="cells", cell_bits=4)
        index.add(some_rows(90))
        index.save(tmp_path / "items.cbe")
        loaded, queries = CBEIndex.load(tmp_path / "items.cbe", verify=True), some_rows(5, seed=1)
    for options in ({}, {"n_probes": 2}, {"mode": "scan"}):
        found, expected = (each.search(queries, 7, **options) for each in (loaded, index))
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.distances, expected.distances)
