"""Estimates and exact distances: unbiased, with the error they state, and no vector read in vain."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import CBEIndex
from cbeindex._core.tuning import tuned
from cbeindex.data.sparserows import SparseRows
from cbeindex.distances.kept import Candidates, KeptVectors, kept_vectors
from cbeindex.distances.metrics import METRICS
from cbeindex.search import rerank
from tests import vector_oracles
from tests.strategies import masks

# More seeds for the statistical tests: CBEINDEX_TEST_SEEDS=100 make tests
N_SEEDS = 250 * int(os.environ.get("CBEINDEX_TEST_SEEDS", "1"))
METRIC_NAMES = ("cosine", "l2", "ip")


def exact_nearest(query, metric, vectors, ids, rows, lower, k):
    """Distances, ids and the number of vectors read, by numpy."""
    return KeptVectors(vectors, ids, metric, query.size).nearest_of(query, rows, lower, k)


def far_vectors(dim):
    """Rows and queries off the origin, of norms from 0.1 to 10 times their distance from it; a sample around it."""
    rng = np.random.default_rng(3)
    offset = 2 * rng.standard_normal(dim)
    sizes = np.array([0.1, 1, 3, 10])[:, np.newaxis]
    rows = offset + sizes * rng.standard_normal((4, dim))
    queries = offset + sizes[1:3] * rng.standard_normal((2, dim))
    sample = offset + rng.standard_normal((50, dim))
    return rows.astype(np.float32), queries.astype(np.float32), sample.astype(np.float32)


def estimates_by_seed(metric, dim, n_bits, encoder):
    """Estimated distances and their standard errors, (n_seeds, n_queries, n_rows)."""
    rows, queries, sample = far_vectors(dim)
    estimates, errors = np.empty((2, N_SEEDS, len(queries), len(rows)))
    for seed in range(N_SEEDS):
        index = CBEIndex(dim, n_bits, metric=metric, encoder=encoder, seed=seed, vectors=None, buckets=None).fit(sample)
        index.add(rows)
        result = index.search(queries, len(rows), rerank="asymmetric", n_threads=1)
        order = np.argsort(result.ids, axis=1)
        estimates[seed] = np.take_along_axis(result.distances, order, axis=1)
        errors[seed] = np.take_along_axis(result.errors, order, axis=1)
    return estimates, errors


def check_estimates(metric, dim, n_bits, encoder):
    rows, queries, sample = far_vectors(dim)
    estimates, errors = estimates_by_seed(metric, dim, n_bits, encoder)
    misses = estimates - vector_oracles.distances(metric, queries, rows)
    # Five standard errors: one in two million for each of the 96 means.
    assert (np.abs(misses.mean(axis=0)) < 5 * misses.std(axis=0) / np.sqrt(N_SEEDS)).all()
    # What is left of b beside P y is orthogonal to it, so that of P z only the part across P y meets an error: the
    # stated variance is that of queries across the row, and others have 1 - cos^2 of it, down to one half for these.
    # Rounding of the query adds one or two parts in a hundred, and averages over a sphere are of dim - 1 directions.
    centre = vector_oracles.prepared(metric, sample).mean(axis=0)
    Y, Z = (vector_oracles.prepared(metric, a) - centre for a in (rows, queries))
    cosines = (Z @ Y.T) / np.linalg.norm(Z, axis=1)[:, np.newaxis] / np.linalg.norm(Y, axis=1)
    assert (cosines**2 < 0.5).all()
    ratios = (misses**2).mean(axis=0) / (errors**2).mean(axis=0)
    slack = 5 * (misses**2).std(axis=0) / np.sqrt(N_SEEDS) / (errors**2).mean(axis=0)
    assert (ratios > 1 - cosines**2 - slack).all()
    assert (ratios < 1.05 + slack).all()


@pytest.mark.parametrize("metric", METRIC_NAMES)
@pytest.mark.parametrize(("dim", "n_bits"), [(64, 24), (64, 64), (60, 150)])
def test_estimates_are_unbiased_and_their_errors_right(metric, dim, n_bits):
    check_estimates(metric, dim, n_bits, "orthogonal")


@pytest.mark.parametrize("metric", METRIC_NAMES)
def test_estimates_of_the_random_kind(metric):
    check_estimates(metric, 64, 64, "random")


def test_near_vectors_have_small_errors():
    """Fewer bits than dimensions lose part of every vector, but of the difference of near ones they lose little."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 64)).astype(np.float32)
    index = CBEIndex(64, 32, metric="l2", vectors=None, buckets=None).fit(X)
    index.add(X)
    result = index.search(X + np.float32(0.01) * rng.standard_normal(X.shape).astype(np.float32), 50)
    own, others = result.errors[result.ids == np.arange(50)[:, np.newaxis]], result.errors
    assert (own < others.mean(axis=1)).all()


class Recording:
    """Vectors that remember which rows were read."""

    def __init__(self, vectors):
        self.vectors, self.read = vectors, set()

    def __getitem__(self, rows):
        self.read |= set(rows.tolist())
        return self.vectors[rows]


@given(
    metric=st.sampled_from(METRIC_NAMES),
    n=st.integers(0, 80),
    k=st.sampled_from([1, 2, 5, 30]),
    n_centres=st.sampled_from([1, 3, 1_000]),
    tightness=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
def test_exact_nearest(metric, n, k, n_centres, tightness, seed):
    """Brute force over the candidates; equal rows make ties, far more of them than are wanted."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((n_centres, 10)).astype(np.float32)
    vectors = Recording(centres[rng.integers(0, n_centres, 100)])
    query = rng.standard_normal(10).astype(np.float32)
    rows = rng.permutation(100)[:n]
    distances = METRICS[metric].distances(vectors.vectors, query)
    # Bounds from far below the distances to just below them.
    lower = distances[rows] - np.float32((1 - tightness) * rng.uniform(0, 3, n) + 1e-4)
    ids = rng.permutation(100)
    near, best, n_read = exact_nearest(query, METRICS[metric], vectors, ids, rows, lower, k)
    expected = sorted(rows.tolist(), key=lambda row: (distances[row], ids[row]))[:k]
    np.testing.assert_array_equal(best, ids[expected])
    np.testing.assert_array_equal(near, distances[expected])
    assert near.dtype == np.float32
    assert n_read == len(vectors.read)
    if n > 4 * k:
        # The 4 k lowest bounds are read at once; their k-th distance settles which others must be.
        first = rows[np.argsort(lower, kind="stable")[: 4 * k]]
        kth = np.sort(distances[first])[k - 1]
        allowed = set(first.tolist()) | set(rows[lower <= kth + 1e-5].tolist())
        assert vectors.read <= allowed
        assert set(rows[lower <= kth - 1e-5].tolist()) <= vectors.read
    else:
        assert vectors.read == set(rows.tolist())


@given(
    metric=st.sampled_from(METRIC_NAMES),
    k=st.sampled_from([1, 5, 100, 120]),
    n_centres=st.sampled_from([1, 3, 1_000]),
    data=st.data(),
)
def test_exact_of_all(metric, k, n_centres, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    vectors = rng.standard_normal((n_centres, 10)).astype(np.float32)[rng.integers(0, n_centres, 100)]
    query, ids = rng.standard_normal(10).astype(np.float32), rng.permutation(100)
    hidden = data.draw(masks(100))
    near, best = kept_vectors(vectors, ids, METRICS[metric], 10).nearest_of_all(query, hidden, k)
    distances = METRICS[metric].distances(vectors, query)
    visible = [row for row in range(100) if not (hidden.size and hidden[row])]
    expected = sorted(visible, key=lambda row: (distances[row], ids[row]))[:k]
    np.testing.assert_array_equal(best, ids[expected])
    np.testing.assert_array_equal(near, distances[expected])


def test_equal_rows_come_in_the_order_of_their_ids():
    vectors = np.tile(np.random.default_rng(0).standard_normal(33).astype(np.float32), (500, 1))
    for metric in METRICS.values():
        for ids, expected in ((np.arange(500), [0, 1, 2]), (np.arange(500)[::-1].copy(), [0, 1, 2])):
            for rows in (np.arange(500), np.arange(500)[::-1].copy()):
                lower = np.full(500, -np.inf, dtype=np.float32)
                _, best, _ = exact_nearest(vectors[0] + 1, metric, vectors, ids, rows, lower, 3)
                assert best.tolist() == expected


def test_a_bound_that_equals_the_kth_distance_is_read():
    """Equal rows, the last first, with bounds that are their distances: the first row is still the result."""
    vectors = Recording(np.ones((50, 4), dtype=np.float32))
    lower, ids, rows = np.full(50, 4, dtype=np.float32), np.arange(50), np.arange(50)[::-1]
    near, best, _ = exact_nearest(np.zeros(4, np.float32), METRICS["l2"], vectors, ids, rows, lower, 1)
    assert (best.tolist(), near.tolist()) == ([0], [4])


@pytest.mark.parametrize("metric", METRIC_NAMES)
def test_float64_decides_where_float32_cannot(metric):
    """Two hundred nearly equal rows far from the origin: float32 products have lost all differences."""
    rng = np.random.default_rng(1)
    vectors = (100 + 1e-4 * rng.standard_normal((200, 40))).astype(np.float32)
    query = (100 + rng.standard_normal(40)).astype(np.float32)
    near, best, _ = exact_nearest(
        query, METRICS[metric], vectors, np.arange(200), np.arange(200), np.full(200, -np.inf, dtype=np.float32), 5
    )
    expected, ids = vector_oracles.nearest(metric, query, vectors, list(range(200)), 5)
    np.testing.assert_array_equal(best, ids[0])
    np.testing.assert_allclose(near, expected[0], rtol=1e-6)


@pytest.mark.parametrize("metric", METRIC_NAMES)
@pytest.mark.parametrize("kind", ["float32", "float16", "sparse", "sparse float16"])
@pytest.mark.parametrize("k", [1, 7, 300])
def test_every_kind_of_kept_vectors(metric, kind, k):
    """By kernels and by numpy (k above 256), for dense and for sparse queries: brute force in float64."""
    rng = np.random.default_rng(k)
    rows, queries = (rng.standard_normal((n, 12)) * (rng.random((n, 12)) < 0.5) for n in (400, 3))
    dtype = np.float16 if "float16" in kind else np.float32
    rows, queries = rows.astype(dtype).astype(np.float32), queries.astype(np.float32)
    stored = SparseRows.from_dense(rows, dtype) if "sparse" in kind else rows.astype(dtype)
    ids = rng.permutation(1_000)[:400]
    kept = kept_vectors(stored, ids, METRICS[metric], 12)
    counts = np.array([400, 350, 0])
    lower = np.full((3, 400), -np.inf, dtype=np.float32)
    chosen = np.array([rng.permutation(400) for _ in range(3)])
    for some in (queries, SparseRows.from_dense(queries, np.float32)):
        distances, found, n_read = kept.nearest(some, Candidates(chosen, counts, lower), k)
        assert n_read.tolist() == counts.tolist()
        for i, n in enumerate(counts):
            near = vector_oracles.distances(metric, queries[i : i + 1], rows[chosen[i, :n]])[0].astype(np.float32)
            order = np.lexsort((ids[chosen[i, :n]], near))[:k]
            np.testing.assert_allclose(distances[i, : len(order)], near[order], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(kept.distances(chosen[i, :n], queries[i]), near, rtol=1e-5, atol=1e-6)
            assert set(found[i, : len(order)]) <= set(ids[chosen[i, :n]])
            assert np.isinf(distances[i, len(order) :]).all()
            assert (found[i, len(order) :] == -1).all()


def test_few_vectors_are_read():
    X = vector_oracles.clustered(900, 64, n_centres=30)
    index = CBEIndex(64, 256, vectors="float32", buckets=None).fit(X)
    index.add(X)
    result = index.search(X[:20], 5)
    np.testing.assert_array_equal(result.ids, vector_oracles.nearest("cosine", X[:20], X, list(range(900)), 5)[1])
    # At least the 4 k that are always read; far from all of the 20 * 900.
    assert 20 * 20 <= result.stats["vectors_read"] < 20 * 900 / 4


@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_more_vectors_are_read_where_errors_are_large(metric, monkeypatch):
    """Rows of very different norms with short codes: results that come from deep in a list ask for a longer one."""
    rng, lengths, shortlist = np.random.default_rng(2), [], rerank._shortlist_by_estimate
    X = rng.standard_normal((3_000, 24), dtype=np.float32) * rng.uniform(0.5, 2, (3_000, 1)).astype(np.float32)
    queries = rng.standard_normal((60, 24), dtype=np.float32)
    truth = vector_oracles.nearest(metric, queries, X, np.arange(3_000), 5)[1]
    index = CBEIndex(24, 16, metric=metric, vectors="float32", buckets=None).fit(X)
    index.add(X)

    def counted(view, batch, plan, n_exact):
        lengths.append((len(batch.vectors), n_exact))
        return shortlist(view, batch, plan, n_exact)

    monkeypatch.setattr(rerank, "_shortlist_by_estimate", counted)
    found = {}
    for n_more in (0, 1_000):
        with tuned(least_exact_rows_of_short_codes=40, exact_rows_of_k=2, exact_rows_of_k_with_norms=0,
                   least_exact_rows_with_norms=n_more):  # fmt: skip
            found[n_more] = index.search(queries, 5, n_threads=1)
    recalls = {
        n: np.mean([np.isin(*ids).mean() for ids in zip(truth, one.ids, strict=True)]) for n, one in found.items()
    }
    assert recalls[0] + 0.02 < recalls[1_000]
    (
        (first, n_first),
        (again, n_again),
    ) = lengths[1:]
    assert (first, n_first, n_again) == (60, 40, 1_000)
    assert 0 < again <= 60
    is_same = (found[0].ids == found[1_000].ids).all(axis=1)
    assert is_same.sum() >= 60 - again
    np.testing.assert_array_equal(found[0].distances[is_same], found[1_000].distances[is_same])


@pytest.mark.parametrize("metric", METRIC_NAMES)
def test_no_more_vectors_are_read_where_estimates_are_good(metric, monkeypatch):
    """Norms that differ do not cost anything by themselves."""
    lengths, shortlist = [], rerank._shortlist_by_estimate
    monkeypatch.setattr(rerank, "_shortlist_by_estimate", lambda *args: lengths.append(args[-1]) or shortlist(*args))
    X = vector_oracles.clustered(2_000, 64, n_centres=30)
    index = CBEIndex(64, 1_024, metric=metric, vectors="float32", buckets=None).fit(X)
    index.add(X)
    found = index.search(X[:10], 5, n_threads=1)
    np.testing.assert_array_equal(found.ids, vector_oracles.nearest(metric, X[:10], X, np.arange(2_000), 5)[1])
    assert lengths == [256]
