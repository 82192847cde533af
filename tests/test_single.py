"""One query at a time, which takes a way of its own from the second call on, against the same queries in a batch."""

import numpy as np
import pytest

from cbeindex import CBEIndex
from tests.small import small_buckets
from tests.vector_oracles import clustered

DIM = 24


def an_index(**options):
    with small_buckets({"least_centre_rows": 4}):
        index = CBEIndex(DIM, **options)
        index.add(clustered(300, DIM, seed=0, n_centres=6))
    return index


@pytest.mark.parametrize("buckets", ["cells", "graph"])
@pytest.mark.parametrize("vectors", ["float32", "int8"])
@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_one_query_finds_what_it_finds_in_a_batch(buckets, vectors, metric):
    index, queries = an_index(buckets=buckets, vectors=vectors, metric=metric), clustered(20, DIM, seed=1, n_centres=6)
    batch = index.search(queries, k=5)
    visited = 0
    for i, query in enumerate(queries):
        own = query.copy()
        found = index.search(own, k=5)
        own[:] = np.nan  # before the errors are read
        np.testing.assert_array_equal(found.ids, batch.ids[i])
        np.testing.assert_array_equal(found.distances, batch.distances[i])
        assert (found.errors is None) == (batch.errors is None)
        if batch.errors is not None:
            np.testing.assert_array_equal(found.errors, batch.errors[i])
        assert found.stats.keys() | {"far_queries"} == batch.stats.keys() | {"far_queries"}
        visited += found.stats["visited"]
    assert visited == batch.stats["visited"]


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
    with small_buckets({"least_centre_rows": 4}):
        index = CBEIndex(DIM, buckets="cells")
        index.add(rows, ids=[f"row {i}" for i in range(300)])
        for _ in range(2):
            assert index.search(rows[7], k=1).ids.tolist() == ["row 7"]
        index.remove(["row 7"])
        for _ in range(2):
            assert index.search(rows[7], k=1).ids.tolist() != ["row 7"]
