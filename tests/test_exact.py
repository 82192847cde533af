"""The kernel of exact re-ranking."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.data.sparserows import SparseRows
from cbeindex.distances.metrics import METRICS
from cbeindex.kernels import exact

pytestmark = pytest.mark.kernels


def run(queries, vectors, ids, rows, counts, lower, metric, k):
    distances = np.empty((len(queries), k), dtype=np.float32)
    found = np.empty((len(queries), k), dtype=np.int64)
    n_read = np.zeros(len(queries), dtype=np.int64)
    number = METRICS[metric].number
    exact.nearest(queries, vectors, ids, rows, counts, lower, number, distances, found, n_read)
    return distances, found, n_read


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 40),
    dim=st.integers(1, 20),
    k=st.integers(1, 12),
    metric=st.sampled_from(["l2", "ip", "cosine"]),
    slack=st.sampled_from([0.0, 0.5, np.inf]),
    is_half=st.booleans(),
)
def test_nearest(seed, n, dim, k, metric, slack, is_half):
    """The k nearest by (distance, id) of the candidates, also with bounds that are met exactly, and equal rows."""
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-2, 3, (n, dim)).astype(np.float32)[rng.integers(0, n, n)]
    queries = rng.integers(-2, 3, (3, dim)).astype(np.float32)
    ids = rng.permutation(10 * n)[:n]
    rows = np.array([rng.permutation(n) for _ in queries])
    counts = rng.integers(0, n + 1, len(queries))
    truth = np.array([METRICS[metric].distances(vectors, query) for query in queries])
    lower = np.take_along_axis(truth, rows, axis=1) - np.float32(slack)
    stored = vectors.astype(np.float16).view(np.uint16) if is_half else vectors
    distances, found, n_read = run(queries, stored, ids, rows, counts, lower, metric, k)
    for i in range(len(queries)):
        some = rows[i, : counts[i]]
        expected = some[np.lexsort((ids[some], truth[i, some]))][:k]
        # Sums of small integers are exact; a cosine is rounded once from float64, in which its order may differ.
        np.testing.assert_allclose(distances[i, : len(expected)], truth[i, expected], rtol=0, atol=1e-7)
        if metric != "cosine":
            np.testing.assert_array_equal(found[i, : len(expected)], ids[expected])
        assert len(set(found[i, : len(expected)])) == len(expected)
        assert (found[i, len(expected) :] == -1).all()
        assert np.isinf(distances[i, len(expected) :]).all()
        assert len(expected) <= n_read[i] <= counts[i]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 40),
    dim=st.integers(1, 20),
    k=st.integers(1, 12),
    metric=st.sampled_from(["l2", "ip", "cosine"]),
    slack=st.sampled_from([0.0, 0.5, np.inf]),
    dtype=st.sampled_from([np.float32, np.float16]),
)
def test_sparse_rows_are_read_as_dense_ones(seed, n, dim, k, metric, slack, dtype):
    """The same results, and the same rows read; rows and queries of zeros among them."""
    rng = np.random.default_rng(seed)
    vectors = (rng.integers(-2, 3, (n, dim)) * (rng.random((n, dim)) < 0.4)).astype(np.float32)
    queries = rng.integers(-1, 2, (3, dim)).astype(np.float32)
    ids = rng.permutation(10 * n)[:n]
    rows = np.array([rng.permutation(n) for _ in queries])
    counts = rng.integers(0, n + 1, len(queries))
    truth = np.array([METRICS[metric].distances(vectors, query) for query in queries])
    lower = np.take_along_axis(truth, rows, axis=1) - np.float32(slack)
    expected = run(queries, vectors, ids, rows, counts, lower, metric, k)
    kept = SparseRows.from_dense(vectors, dtype)
    found = run_sparse(queries, kept, ids, rows, counts, lower, metric, k)
    for given_, same in zip(found, (True, *expected), strict=True):
        np.testing.assert_array_equal(given_, same)


def run_sparse(queries, kept, ids, rows, counts, lower, metric, k):
    distances = np.empty((len(queries), k), dtype=np.float32)
    found = np.empty((len(queries), k), dtype=np.int64)
    n_read = np.zeros(len(queries), dtype=np.int64)
    entries, dim = SparseRows.from_dense(queries, np.float32), queries.shape[1]
    offsets, indices, values = kept.entries
    is_sound = exact.nearest_sparse(
        *entries.entries,
        dim,
        offsets,
        indices,
        values.view(np.uint16) if values.dtype == np.float16 else values,
        ids,
        rows,
        counts,
        lower,
        METRICS[metric].number,
        distances,
        found,
        n_read,
    )
    return is_sound, distances, found, n_read


@pytest.mark.parametrize(
    ("offsets", "indices"),
    [
        ([0, 2, 9], [0, 1, 2]),
        ([0, -1, 3], [0, 1, 2]),
        ([2, 0, 3], [0, 1, 2]),
        ([0, 1, 3], [0, 3, 1]),
        ([0, 1, 3], [0, 1, -1]),
    ],
)
@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_entries_that_cannot_be_are_noticed(offsets, indices, metric):
    """What a damaged file may say: nothing is read outside of the arrays."""
    kept = SparseRows(np.array(offsets), np.array(indices, dtype=np.int32), np.ones(3, dtype=np.float32))
    queries, rows = np.ones((1, 3), dtype=np.float32), np.array([[0, 1]])
    lower = np.full((1, 2), -np.inf, dtype=np.float32)
    assert not run_sparse(queries, kept, np.arange(2), rows, np.array([2]), lower, metric, 2)[0]


def test_sparse_distances_do_not_cancel():
    """A row near a long query: of |x|^2 + |q|^2 - 2 <x, q> nothing would be left."""
    query = np.array([[1e9, 0, 3e9, 0, 1.0]], dtype=np.float32)
    vectors = np.array([[1e9, 0.25, 3e9, 0, 0], [1e9, 0, 3e9, 0.5, 1.0]], dtype=np.float32)
    kept, lower = SparseRows.from_dense(vectors, np.float32), np.full((1, 2), -np.inf, dtype=np.float32)
    rows, counts = np.array([[0, 1]]), np.array([2])
    _, distances, found, _ = run_sparse(query, kept, np.arange(2), rows, counts, lower, "l2", 2)
    np.testing.assert_array_equal(found, [[1, 0]])
    np.testing.assert_array_equal(distances, [[0.25, 1.0625]])


def test_candidates_that_cannot_be_among_the_nearest_are_not_read():
    vectors = np.arange(100, dtype=np.float32)[:, np.newaxis]
    query, rows, counts = np.zeros((1, 1), dtype=np.float32), np.arange(100)[np.newaxis], np.array([100])
    lower = vectors[:, 0][np.newaxis] ** 2
    distances, found, n_read = run(query, vectors, np.arange(100), rows, counts, lower, "l2", 5)
    np.testing.assert_array_equal(found, [[0, 1, 2, 3, 4]])
    np.testing.assert_array_equal(distances, [[0, 1, 4, 9, 16]])
    assert n_read[0] == 5


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_distances_are_those_of_the_metric(metric, dtype):
    """To one unit of float32: both are rounded once from float64 sums, in different orders."""
    rng = np.random.default_rng(0)
    stored, queries = (
        rng.standard_normal((50, 300)).astype(dtype),
        rng.standard_normal((4, 300)).astype(np.float32),
    )
    vectors = stored.astype(np.float32)
    rows, counts = np.tile(np.arange(50), (4, 1)), np.full(4, 50)
    lower = np.full(rows.shape, -np.inf, dtype=np.float32)
    stored = stored.view(np.uint16) if dtype == np.float16 else stored
    distances, found, _ = run(queries, stored, np.arange(50), rows, counts, lower, metric, 50)
    for i, query in enumerate(queries):
        np.testing.assert_array_max_ulp(distances[i], METRICS[metric].distances(vectors, query)[found[i]], maxulp=1)


def test_zero_vectors_have_cosine_0():
    vectors, queries = np.eye(2, 3, dtype=np.float32), np.zeros((1, 3), dtype=np.float32)
    vectors[1] = 0
    rows, lower = np.array([[0, 1]]), np.full((1, 2), -np.inf, dtype=np.float32)
    distances, found, _ = run(queries, vectors, np.array([7, 3]), rows, np.array([2]), lower, "cosine", 3)
    np.testing.assert_array_equal(distances, [[1, 1, np.inf]])
    np.testing.assert_array_equal(found, [[3, 7, -1]])


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    dim=st.sampled_from([1, 7, 33, 300]),
    offset=st.sampled_from([0.0, 1.0, 100.0]),
    spread=st.sampled_from([1e-7, 1e-5, 1e-3, 1.0]),
    scale=st.sampled_from([1e-16, 1e-12, 1.0, 1e12, 1e15]),
    metric=st.sampled_from(["l2", "ip", "cosine"]),
)
def test_rough_distances_rule_out_nothing_near(seed, dim, offset, spread, scale, metric):
    """Rows at nearly the same distance, of norms that float32 can square or not: the nearest are those in float64."""
    rng = np.random.default_rng(seed)
    n, k = 30, 4
    query = (scale * (offset + rng.standard_normal((1, dim)))).astype(np.float32)
    vectors = (scale * (offset + rng.standard_normal(dim) + spread * rng.standard_normal((n, dim)))).astype(np.float32)
    rows, counts = rng.permutation(n)[np.newaxis], np.array([n])
    nothing_known = np.full((1, n), -np.inf, dtype=np.float32)
    distances, found, n_read = run(query, vectors, np.arange(n), rows, counts, nothing_known, metric, k)
    exact_distances = METRICS[metric].distances(vectors, query[0])
    expected = np.lexsort((np.arange(n), exact_distances))[:k]
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(distances[0], exact_distances[expected])
    assert n_read.tolist() == [n]
