"""Searches with the options of the search before: planned once, with equal results, and never of an older index."""

import numpy as np
import pytest

from cbeindex import CBEIndex
from tests.small import check_equal, small_buckets
from tests.vector_oracles import clustered

DIM = 20


@pytest.fixture(autouse=True)
def _small():
    with small_buckets({"least_centre_rows": 4}):
        yield


def an_index(**options):
    index = CBEIndex(DIM, buckets="cells", vectors="float32", **options)
    index.add(clustered(150, DIM, n_centres=5))
    return index


QUERIES = clustered(12, DIM, seed=1, n_centres=5)


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_results_are_those_of_a_first_search(metric):
    index = an_index(metric=metric)
    first = index.search(QUERIES, 4, n_probes=3)
    assert index._state.rows.memo.get((4, "auto", "auto", None, 3)) is not None
    check_equal(index.search(QUERIES, 4, n_probes=3), first)
    for i, query in enumerate(QUERIES):
        one = index.search(query, 4, n_probes=3)
        np.testing.assert_array_equal(one.ids, first.ids[i])
        np.testing.assert_array_equal(one.distances, first.distances[i])
        assert one.stats.keys() == first.stats.keys()
    doubled = index.search(QUERIES.astype(np.float64), 4, n_probes=3)
    check_equal(doubled, first)


def test_a_search_sees_the_index_as_it_is():
    index = an_index()
    assert index.search(QUERIES[0], 1).ids[0] != 7000
    index.add(QUERIES[:1], [7000])
    assert index.search(QUERIES[0], 1).ids.tolist() == [7000]
    index.remove([7000])
    assert index.search(QUERIES[0], 1).ids[0] != 7000
    index.add(QUERIES[:1], [3], replace=True)
    assert index.search(QUERIES[0], 1).ids.tolist() == [3]
    index.compact()
    assert index.search(QUERIES[0], 1).ids.tolist() == [3]


def test_other_options_and_filters_are_planned_anew():
    index = an_index()
    first = index.search(QUERIES, 4)
    assert index.search(QUERIES, 2).ids.shape == (12, 2)
    assert not np.isin(index.search(QUERIES, 4, deny=first.ids[:, 0]).ids, first.ids[:, 0]).any()
    assert index.search(QUERIES, 4, rerank="asymmetric").errors is not None
    check_equal(index.search(QUERIES, 4), first)


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        (np.full(DIM, np.nan, dtype=np.float32), {}, "queries must be finite"),
        (np.ones(DIM + 1, dtype=np.float32), {}, "shape"),
        (np.ones(DIM, dtype=np.float32), {"k": True}, "k must be"),
        (np.ones(DIM, dtype=np.float32), {"n_threads": 0}, "n_threads"),
        (np.ones(DIM, dtype=np.float32), {"mode": "maybe"}, "mode must be"),
    ],
)
def test_bad_input_is_refused_as_before(query, options, message):
    index = an_index()
    index.search(np.ones(DIM, dtype=np.float32), 1)
    with pytest.raises((ValueError, TypeError), match=message):
        index.search(query, **{"k": 1} | options)


def test_an_index_without_enough_rows_returns_missing_results_each_time():
    index = an_index()
    for _ in range(3):
        assert (index.search(QUERIES[0], 200).ids == -1).sum() == 50
