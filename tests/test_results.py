"""Partial top-k results, merged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import SearchResult, kernels
from cbeindex.data.keys import NO_HAMMING_DISTANCE, NO_ID
from cbeindex.search.topk import TopK, merge_segments
from tests.conftest import CHECKS_BOUNDS

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize(("dtype", "missing"), [(np.int32, NO_HAMMING_DISTANCE), (np.float32, np.inf)])
@given(st.lists(st.integers(0, 7), max_size=5), st.integers(0, 3), st.integers(1, 12), st.integers(0, 999))
def test_the_best_of_all_parts(dtype, missing, widths, n_queries, k, seed):
    """By distance and id, ties included; parts may be empty, or end with places that have no answer."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(100)[: sum(widths)]
    distances, ids = [], []
    for width, here in zip(widths, np.split(names, np.cumsum(widths)[:-1]) if widths else [], strict=True):
        near = rng.integers(0, 3, (n_queries, width)).astype(dtype)
        own = np.array([rng.permutation(here) for _ in range(n_queries)], dtype=np.int64).reshape(n_queries, width)
        is_none = rng.random((n_queries, width)) < 0.2
        near[is_none], own[is_none] = missing, NO_ID
        order = np.lexsort((own, near), axis=1)
        distances.append(np.asfortranarray(np.take_along_axis(near, order, axis=1)))
        ids.append(np.take_along_axis(own, order, axis=1))
    parts = [TopK(*part) for part in zip(distances, ids, strict=True)]
    best, best_ids = merge_segments(parts, n_queries, k, dtype)
    for query in range(n_queries):
        every = sorted(
            (d, i)
            for near, own in zip(distances, ids, strict=True)
            for d, i in zip(near[query], own[query], strict=True)
        )
        expected = (every + [(missing, NO_ID)] * k)[:k]
        assert list(zip(best[query].tolist(), best_ids[query].tolist(), strict=True)) == expected
    assert best.shape == best_ids.shape == (n_queries, k)
    assert best.dtype == dtype


@pytest.mark.skipif(not CHECKS_BOUNDS, reason="kernels do not check bounds")
def test_kernels_check_bounds_where_they_are_told_to():
    """A stale cache of kernels without checks would let all other tests pass unchecked."""
    distances, ids = np.zeros((1, 3), dtype=np.int32), np.zeros((1, 3), dtype=np.int64)
    with pytest.raises(IndexError):
        kernels.merging.merge(distances, ids, distances, ids, np.empty((1, 4), np.int32), np.empty((1, 2), np.int64))


def test_results_without_an_id():
    """The first one goes, or the last result where the id is missing. A damaged file may repeat ids."""
    ids = np.array([[4, 7, 9], [8, 4, 5], [6, 6, 2], [3, 6, 6]])
    result = SearchResult(np.arange(12, dtype=np.float32).reshape(4, 3), ids, {}, None)
    left = result.without(np.array([7, 1, 6, 6]))
    np.testing.assert_array_equal(left.ids, [[4, 9], [8, 4], [6, 2], [3, 6]])
    np.testing.assert_array_equal(left.distances, [[0, 2], [3, 4], [7, 8], [9, 11]])
