"""Places of cells in records, and centres in 8 bits a coordinate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import CBEIndex, CorruptIndexFileError
from cbeindex.distances.rounding import Rounded, rounded
from cbeindex.search.buckets.packing import pack
from fuzz import container
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


def saved_cells(path, ids):
    with small_sizes():
        index = CBEIndex(DIM, vectors="float32", buckets="cells", cell_bits=4)
        index.add(some_rows(90), ids)
        index.save(path)
    return index, {section.name.rpartition("/")[2] for section in container.parse(path.read_bytes()).sections}


def assert_same_answers(index, expected):
    queries = some_rows(5, seed=1)
    for options in ({}, {"n_probes": 2}, {"mode": "scan"}):
        found, wanted = (each.search(queries, 7, **options) for each in (index, expected))
        np.testing.assert_array_equal(found.ids, wanted.ids)
        np.testing.assert_array_equal(found.distances, wanted.distances)


@pytest.mark.parametrize("start", [0, 2**40])
def test_ids_that_are_a_range_are_not_stored(tmp_path, start):
    index, names = saved_cells(tmp_path / "items.cbe", range(start, start + 90))
    assert not names & {"ids", "order"}
    loaded = CBEIndex.load(tmp_path / "items.cbe", verify=True)
    np.testing.assert_array_equal(loaded.ids, np.arange(start, start + 90))
    assert_same_answers(loaded, index)


def test_other_ids_are_stored(tmp_path):
    index, names = saved_cells(tmp_path / "items.cbe", [*range(89), 200])
    assert "ids" in names
    assert_same_answers(CBEIndex.load(tmp_path / "items.cbe"), index)


@pytest.mark.parametrize("first_id", [-1, 5, 2**63 - 1, "0", None])
def test_first_ids_that_cannot_be_are_refused(tmp_path, first_id):
    """`next_id` is 90, so that rows may not begin at 5."""
    saved_cells(tmp_path / "items.cbe", range(90))
    file = container.parse((tmp_path / "items.cbe").read_bytes())
    file.content["rows"]["segments"][0]["first_id"] = first_id
    container.write(file, tmp_path / "items.cbe")
    with pytest.raises(CorruptIndexFileError):
        CBEIndex.load(tmp_path / "items.cbe")
