"""Vectors of unusual scale and place: results stay right at the limits of float32."""

import numpy as np
import pytest
from scipy import sparse

from cbeindex import BinaryIndex, CBEIndex, CirculantEncoder
from cbeindex.distances.metrics import METRICS


def brute_force(metric, X, Q, k):
    """Nearest rows in float64."""
    return np.array([np.lexsort((np.arange(len(X)), METRICS[metric].distances(X, q)))[:k] for q in Q])


def found(index, X, Q, metric, k=5):
    ids = index.search(Q, k).ids
    return np.mean([len(np.intersect1d(a, b)) for a, b in zip(ids, brute_force(metric, X, Q, k), strict=True)]) / k


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.standard_normal((300, 32)).astype(np.float32), rng.standard_normal((8, 32)).astype(np.float32)


@pytest.mark.parametrize("shift", [0, 10, 300])
@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_far_from_the_origin(data, metric, shift):
    X, Q = (part + np.float32(shift) for part in data)
    index = CBEIndex(32, metric=metric, vectors="float32", buckets=None).fit(X)
    index.add(X)
    assert found(index, X, Q, metric) == 1


@pytest.mark.parametrize("scale", [1e-9, 1e-4, 1e4, 1e9, 1e15])
@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_scale(data, metric, scale):
    X, Q = (part * np.float32(scale) for part in data)
    index = CBEIndex(32, metric=metric, vectors="float32", buckets=None).fit(X)
    index.add(X)
    assert found(index, X, Q, metric) == 1
    assert np.isfinite(index.search(Q, 3, rerank="asymmetric").errors).all()


def test_sparse_vectors_keep_small_differences():
    """Beside one large entry, which all rows share, small ones decide: large squares must not swallow them."""
    rng = np.random.default_rng(0)
    X = np.hstack([np.full((200, 1), 1e6), 0.01 * rng.standard_normal((200, 20))]).astype(np.float32)
    index = CBEIndex(21, metric="l2", vectors="float32", buckets=None).fit(X)
    index.add(sparse.csr_array(X))
    distances, ids = index.search(X[:5], 3)
    np.testing.assert_array_equal(ids, brute_force("l2", X, X[:5], 3))
    expected = ((X[:5, np.newaxis].astype(np.float64) - X[ids]) ** 2).sum(axis=2)
    np.testing.assert_allclose(distances, expected, rtol=1e-6)


def test_a_vector_is_at_distance_0_of_itself(data):
    X, _ = data
    for index in (CBEIndex(32, vectors=None, buckets=None), CBEIndex(32, vectors="float32", buckets=None).fit(X)):
        index.add(X)
        distances, ids = index.search(X * np.float32(3), 1)
        np.testing.assert_array_equal(ids[:, 0], np.arange(len(X)))
        if index.is_fitted:
            # One unit of float32 in the input is 1e-7 in an angle, and its square in a cosine.
            np.testing.assert_allclose(distances, 0, atol=1e-12)
            assert index.range_search(X, 1e-12).lims[-1] == len(X)


def test_options_that_there_are_none_for(data):
    X, _ = data
    index = CBEIndex(32, vectors=None, buckets=None).fit(X)
    with pytest.raises(ValueError, match="this index has none, got 3"):
        index.search(X[0], n_probes=3)
    with pytest.raises(ValueError, match="needs buckets, but this index has none"):
        BinaryIndex(64).search(np.zeros(8, dtype=np.uint8), 3, "buckets")
    tiny = CBEIndex(32, vectors="float16", buckets=None).fit(X)
    with pytest.raises(ValueError, match="row 1 has only values below"):
        tiny.add(X[:3] * np.array([[1], [1e-6], [1]], dtype=np.float32))
    assert len(tiny) == 0


def test_an_empty_index_can_be_merged(data):
    X, _ = data
    index = CBEIndex(32, vectors=None, buckets=None)
    index.merge(CBEIndex(32, vectors=None, buckets=None).fit(X))
    assert len(index) == 0


def test_results_can_be_changed(data):
    X, _ = data
    index = CBEIndex(32, vectors=None, buckets=None)
    index.add(X)
    changed = index.search(X[0], 2)._replace(ids=np.zeros(2, dtype=np.int64))
    assert (dict(changed.stats), changed.errors) == ({}, None)


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_long_vectors_do_not_carry_the_centre_away(data, metric, convert):
    """Five vectors of 300, each a million times longer: the others are found as if those were not there."""
    X, Q = data
    mixed = X.copy()
    mixed[:5] *= 1e6
    index = CBEIndex(32, 512, metric=metric, vectors=None, buckets=None).fit(convert(mixed))
    # Each of the five counts like a vector of twice the median length: at most 2 * 5 / 300 of it in the mean of the
    # 300, beside that of the others, whose mean is about 1 / sqrt(300) of it.
    assert np.linalg.norm(index.encoder.centre) < np.median(np.linalg.norm(X, axis=1)) * (10 / 300 + 3 / np.sqrt(300))
    index.add(X)
    plain = CBEIndex(32, 512, metric=metric, vectors=None, buckets=None).fit(X)
    plain.add(X)
    # Codes of 16 bits a dimension find nine of ten; a tenth of them is five times the standard error of the difference.
    assert found(index, X, Q, metric) > found(plain, X, Q, metric) - 0.1


def test_rows_whose_estimates_leave_float32_are_refused():
    """What `verify` would refuse must not be added: here offsets of 1e40, by an encoder of a large scale."""
    encoder = CirculantEncoder(8).fit(np.eye(8, dtype=np.float32))

    class Shrinking:
        dim, n_bits, centre, is_fitted = 8, 8, encoder.centre, True
        scale, scale_variance, overlap = 1e9, 0.0, 1.0

        def fit(self, X):
            return self

        def project(self, X, n_threads=1):
            return encoder.project(X, n_threads=n_threads)

        def encode(self, X, n_threads=1):
            return encoder.encode(X, n_threads=n_threads)

    index = CBEIndex(8, encoder=Shrinking(), metric="l2", vectors=None, buckets=None)
    index.add(np.ones((3, 8), dtype=np.float32))
    rows = np.ones((4, 8), dtype=np.float32)
    rows[2] = 1e15
    with pytest.raises(ValueError, match="estimates within float32 by this encoder, row 2 has offsets beyond it"):
        index.add(rows)
    assert len(index) == 3
