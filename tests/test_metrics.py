"""Metrics: exact distances, their fast forms, and what the encoder sees."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex.distances.metrics import METRICS, squares
from tests import vector_oracles

NAMES = ("cosine", "l2", "ip")
EPS = float(np.finfo(np.float32).eps)


def vectors(n, dim, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)


@given(
    name=st.sampled_from(NAMES),
    dim=st.integers(1, 50),
    shift=st.sampled_from([0.0, 1.0, 1e3]),
    size=st.sampled_from([1e-3, 1.0, 1e4]),
    seed=st.integers(0, 99),
)
def test_distances(name, dim, shift, size, seed):
    X, query = (vectors(6, dim, seed) + shift) * size, (vectors(1, dim, seed + 1)[0] + shift) * size
    X[0] = query
    X[1] = 0
    X, query = X.astype(np.float32), query.astype(np.float32)
    expected = vector_oracles.distances(name, query, X)[0]
    exact = METRICS[name].distances(X, query)
    assert exact.dtype == np.float32
    # One rounding to float32; sums in float64 cancel down to 1e-14 of the products.
    scale = np.linalg.norm(X.astype(np.float64), axis=1).max() * np.linalg.norm(query.astype(np.float64))
    atol = 1e-14 * (1 if name == "cosine" else max(1, scale))
    np.testing.assert_allclose(exact, expected, rtol=EPS, atol=atol)
    fast = METRICS[name].fast_distances(X, query)
    assert fast.dtype == np.float32
    for i in range(len(X)):
        # The stated rounding, and one more of the result.
        slack = METRICS[name].rounding(expected[i], X, np.arange(len(X)), query) + EPS * abs(expected[i])
        assert abs(fast[i] - expected[i]) <= slack


def test_zero_vectors_have_cosine_zero():
    X = np.array([[0, 0], [1, 0]], dtype=np.float32)
    for query in X:
        expected = [1, 1] if not query.any() else [1, 0]
        np.testing.assert_array_equal(METRICS["cosine"].distances(X, query), expected)
        np.testing.assert_array_equal(METRICS["cosine"].fast_distances(X, query), expected)
    np.testing.assert_array_equal(METRICS["cosine"].prepare(X), X)


@pytest.mark.parametrize("size", [1e-40, 1e-25, 1e-12, 1e12, 1e25, 1e37])
@pytest.mark.parametrize("query_size", [1e-25, 1.0, 1e37])
def test_cosine_does_not_depend_on_the_size(size, query_size):
    """Also where squares leave the range of float32; at 1e-40 values have 16 bits left."""
    X, query = vectors(9, 30), vectors(1, 30, 1)[0]
    expected = vector_oracles.distances("cosine", query, X)[0]
    X, query = X * np.float32(size), query * np.float32(query_size)
    for compute in (METRICS["cosine"].distances, METRICS["cosine"].fast_distances):
        np.testing.assert_allclose(compute(X, query), expected, atol=1e-4 if size < 1e-38 else 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_rows(name):
    X, query = vectors(9, 30).astype(np.float16), vectors(1, 30, 1)[0]
    expected = vector_oracles.distances(name, query, X)[0]
    np.testing.assert_allclose(METRICS[name].distances(X, query), expected, rtol=1e-6)
    # Thirty products, each rounded to 6e-8 of at most 10.
    np.testing.assert_allclose(METRICS[name].fast_distances(X, query), expected, rtol=0, atol=2e-5)


def test_no_rows():
    for metric in METRICS.values():
        none = np.empty((0, 4), dtype=np.float32)
        assert metric.distances(none, np.ones(4, dtype=np.float32)).shape == (0,)
        assert metric.fast_distances(none, np.ones(4, dtype=np.float32)).shape == (0,)
        assert metric.prepare(none).shape == (0, 4)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_prepare(size):
    X = vectors(5, 20) * np.float32(size)
    for name in ("l2", "ip"):
        assert METRICS[name].prepare(X) is X
    prepared = METRICS["cosine"].prepare(X)
    assert prepared.dtype == np.float32
    np.testing.assert_allclose(prepared, vector_oracles.prepared("cosine", X), rtol=2e-7)


@pytest.mark.parametrize("dim", [1_023, 1_024, 1_025, 5_000])
@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1.0, 1e18, 1e30])
def test_squares_of_long_vectors(dim, scale):
    """Sums of 64 squares are rounded to float32, 6e-8 a time; what float32 cannot hold is summed in float64."""
    X = vectors(5, dim) * np.float32(scale)
    X[1] = 0
    X[2, :-1] = 0
    expected = (X.astype(np.float64) ** 2).sum(axis=1)
    np.testing.assert_allclose(squares(X), expected, rtol=1e-6)
    np.testing.assert_array_equal(squares(X[3:4]), squares(X)[3:4])
    X[4, 7] = np.nan
    assert np.isnan(squares(X)[4])


@pytest.mark.parametrize("dim", [10, 2_000])
def test_vectors_of_norm_1_stay_as_they_are(dim):
    X = vectors(50, dim)
    unit = METRICS["cosine"].prepare(X)
    np.testing.assert_allclose(np.linalg.norm(unit.astype(np.float64), axis=1), 1, rtol=1e-6)
    assert METRICS["cosine"].prepare(unit) is unit
    both = METRICS["cosine"].prepare(np.concatenate([X, unit]))
    np.testing.assert_array_equal(both[:50], unit)
    np.testing.assert_array_equal(both[50:], unit)
