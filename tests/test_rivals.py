"""Rows of several segments, which read the vectors of those alone that are among the nearest by estimate so far."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import CBEIndex
from cbeindex._core.tuning import tuned
from cbeindex.data.keys import EstimateKeys
from cbeindex.kernels import asymmetric, cellsteps
from tests.small import examples, segments_of

LARGEST = np.finfo(np.float32).max
DIM = 24


@pytest.mark.kernels
@given(st.lists(st.lists(st.floats(-2, 2, width=32), max_size=8), max_size=4), st.integers(0, 6))
@examples(60)
def test_rivals_are_the_smallest_estimates(segments, n):
    rivals = np.full(n, LARGEST)
    for estimates in segments:
        bits = np.sort(np.array(estimates, dtype=np.float32)).view(np.int32)
        keys = np.array([asymmetric.key_of(int(value), row) for row, value in enumerate(bits)], dtype=np.uint64)
        n_left = cellsteps.among_rivals(keys, len(keys), np.zeros(9, dtype=np.int64), 0.0, rivals)
        bound = rivals[-1] if n else LARGEST
        assert n_left == np.count_nonzero(bits.view(np.float32) <= bound)
    expected = np.sort([*(value for some in segments for value in some), *[LARGEST] * n])[:n]
    np.testing.assert_array_equal(rivals, expected.astype(np.float32))


@pytest.mark.kernels
@pytest.mark.parametrize(("width", "rank", "bound"), [(0.0, 2, 4.0), (1.5, 2, 4.0), (2.5, 2, 5.0), (9.0, 4, 4.0)])
def test_bound_is_that_of_one_segment(width, rank, bound):
    sizes = np.zeros(9, dtype=np.int64)
    sizes[7] = rank
    rivals = np.array([1, 2, 4], dtype=np.float32)
    assert cellsteps.bound_by_rivals(rivals, sizes, width) == bound
    assert cellsteps.bound_by_rivals(np.array([1, 2, LARGEST]), sizes, width) == LARGEST
    assert cellsteps.bound_by_rivals(rivals[:0], sizes, width) == LARGEST


def some_vectors(n, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.integers(0, 3, (n, 1)) + rng.standard_normal((n, DIM))).astype(np.float32)


@pytest.fixture(scope="module", params=["float32", "int8", None])
def in_segments(request):
    """Rows in four segments, and the same rows in one."""
    with tuned(least_cell_segment_rows=64, bucket_buffer_rows=128, large_cell_segment_rows=300):
        parts, one = (CBEIndex(DIM, metric="l2", vectors=request.param, buckets="cells") for _ in range(2))
        for index in (parts, one):
            index.fit(some_vectors(1000))
        for first in range(0, 1000, 250):
            parts.add(some_vectors(1000)[first : first + 250])
        one.add(some_vectors(1000))
        one.compact()
        assert len(segments_of(parts)) == 4
        yield parts, one


def test_segments_read_fewer_vectors_than_they_have_candidates(in_segments):
    parts, one = in_segments
    if parts.vectors is None:
        pytest.skip("there are no vectors to read")
    queries = some_vectors(30, seed=1)
    found, expected = (
        index.search(queries, 5, n_probes=10**6, n_candidates=20) for index in (parts, one)
    )  # fmt: skip
    assert expected.stats["vectors_read"] == 20 * 30
    assert 20 * 30 <= found.stats["vectors_read"] < 2.5 * 20 * 30  # about 1 + 1/2 + 1/3 + 1/4 = 2.08 times as many
    # All candidates of the one segment are read, so that what is found is as near.
    assert (found.distances <= expected.distances + 1e-5).all()


@pytest.mark.parametrize("options", [{}, {"recall": 0.9}, {"n_probes": 3}, {"mode": "scan"}])
def test_batches_find_what_single_queries_find(in_segments, options):
    parts, _ = in_segments
    queries = some_vectors(30, seed=1)
    for k in (1, 5, 30):
        together = parts.search(queries, k, **options)
        for query, distances, ids in zip(queries, together.distances, together.ids, strict=True):
            alone = parts.search(query, k, **options)
            np.testing.assert_array_equal(alone.ids, ids)
            np.testing.assert_array_equal(alone.distances, distances)


def test_estimates_are_the_nearest_of_all_segments(in_segments):
    parts, one = in_segments
    queries = some_vectors(30, seed=1)
    found, expected = (index.search(queries, 5, "scan", "asymmetric") for index in (parts, one))
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.distances, expected.distances)


def test_keys_hold_the_estimates():
    """The order of keys that `among_rivals` relies on."""
    bits = np.array([-1.5, -0.0, 0.5], dtype=np.float32).view(np.int32)
    keys = np.array([[asymmetric.key_of(int(value), 1) for value in bits]], dtype=np.uint64)
    np.testing.assert_array_equal(EstimateKeys(keys).distances(), [[-1.5, 0, 0.5]])
    assert (np.diff(keys.astype(object)) > 0).all()
