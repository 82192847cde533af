"""One query at a time, which takes a way of its own from the second call on, against the same queries in a batch."""

import numpy as np
import pytest

from cbeindex import CBEIndex
from cbeindex.kernels import cellsearch
from tests.small import small_buckets
from tests.vector_oracles import clustered

DIM = 24


@pytest.fixture(autouse=True)
def _small():
    with small_buckets({"least_centre_rows": 4, "least_cell_rows": 4}):
        yield


def an_index(**options):
    index = CBEIndex(DIM, **options)
    index.add(clustered(1_500, DIM, seed=0, n_centres=40))
    return index


@pytest.mark.parametrize("buckets", ["cells", "graph"])
@pytest.mark.parametrize("vectors", ["float32", "int8"])
@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_one_query_finds_what_it_finds_in_a_batch(buckets, vectors, metric):
    index, queries = an_index(buckets=buckets, vectors=vectors, metric=metric), clustered(20, DIM, seed=0, n_centres=40)
    batch = index.search(queries, k=5, recall=0.8)
    visited = 0
    for i, query in enumerate(queries):
        own = query.copy()
        found = index.search(own, k=5, recall=0.8)
        own[:] = np.nan  # before the errors are read
        np.testing.assert_array_equal(found.ids, batch.ids[i])
        np.testing.assert_array_equal(found.distances, batch.distances[i])
        assert (found.errors is None) == (batch.errors is None)
        if batch.errors is not None:
            np.testing.assert_array_equal(found.errors, batch.errors[i])
        of_one = index.search(query[np.newaxis], k=5, recall=0.8)
        np.testing.assert_array_equal(of_one.ids, [found.ids])
        np.testing.assert_array_equal(of_one.distances, [found.distances])
        if batch.errors is not None:
            np.testing.assert_array_equal(of_one.errors, [found.errors])
        assert found.stats.keys() | {"far_queries"} == batch.stats.keys() | {"far_queries"}
        visited += found.stats["visited"]
    assert visited == batch.stats["visited"]
    assert 0 < visited < 1_500 * 20 / 2  # walks, and some of the cells


@pytest.mark.parametrize("buckets", ["cells", "graph"])
def test_queries_that_need_conversion_or_checks(buckets):
    """After a plain query has been planned, others that look alike are still checked and converted."""
    index, query = an_index(buckets=buckets), clustered(1, DIM, seed=1, n_centres=6)[0]
    expected = index.search(query, k=5).ids.tolist()
    for same in (query, query.tolist(), query.astype(np.float64), np.repeat(query, 2)[::2], query[np.newaxis][0]):
        assert index.search(same, k=5).ids.tolist() == expected
    assert index.search(query[np.newaxis], k=5).ids.tolist() == [expected]
    with pytest.raises(ValueError, match="finite"):
        index.search(np.where(np.arange(DIM) == 3, np.nan, query), k=5)
    with pytest.raises(ValueError, match="must have shape"):
        index.search(query[:-1], k=5)
    with pytest.raises(ValueError, match="n_threads"):
        index.search(query, k=5, n_threads=0)
    with pytest.raises(TypeError, match="n_threads"):
        index.search(query, k=5, n_threads="two")


def test_names_and_changes():
    """A plan goes with the rows that it was made for."""
    rows = clustered(300, DIM, seed=0, n_centres=6)
    index = CBEIndex(DIM, buckets="cells")
    index.add(rows, ids=[f"row {i}" for i in range(300)])
    for _ in range(2):
        assert index.search(rows[7], k=1).ids.tolist() == ["row 7"]
    index.remove(["row 7"])
    for _ in range(2):
        assert index.search(rows[7], k=1).ids.tolist() != ["row 7"]


def test_a_query_that_is_far_from_all_rows():
    """It is searched again, once."""
    index = an_index(buckets="graph", vectors="float32", metric="l2")
    far = 4 * clustered(1, DIM, seed=9, n_centres=6)[0] + 3
    batch = index.search(far[np.newaxis], k=5)
    assert batch.stats["far_queries"] == 1
    for _ in range(3):
        found = index.search(far, k=5)
        np.testing.assert_array_equal(found.ids, batch.ids[0])
        assert found.stats == batch.stats


def test_queries_that_cannot_be_written_to_take_the_same_kernels():
    index, queries = an_index(buckets="cells"), clustered(3, DIM, seed=1, n_centres=6)
    expected = index.search(queries[0], k=5)
    n_compiled = len(cellsearch.search_vectors.signatures)
    queries.flags.writeable = False
    np.testing.assert_array_equal(index.search(queries[0], k=5).ids, expected.ids)
    index.search(queries, k=5)
    assert len(cellsearch.search_vectors.signatures) == n_compiled
