"""Sparse vectors projected entry by entry: against explicit matrices, and against the transforms they stand in for."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import CirculantEncoder
from cbeindex.encoders import direct
from tests import oracles

pytestmark = pytest.mark.kernels


def sparse_rows(n, dim, n_entries, seed=0):
    """Rows of as many entries each, N(0, 1)."""
    rng = np.random.default_rng(seed)
    X = np.zeros((n, dim), dtype=np.float32)
    for row in X:
        row[rng.choice(dim, n_entries, replace=False)] = rng.standard_normal(n_entries)
    return X


def count_of(monkeypatch):
    """Count the rows that are projected directly."""
    counts, whole = [], direct.DirectConvolution.__call__

    def counted(self, rows):
        counts.append(len(rows))
        return whole(self, rows)

    monkeypatch.setattr(direct.DirectConvolution, "__call__", counted)
    return counts


@given(
    dim=st.integers(1, 70),
    n_bits=st.integers(1, 150),
    kind=st.sampled_from(("orthogonal", "random", "learned")),
    pad=st.booleans(),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
def test_projects_by_the_circulant_matrix(dim, n_bits, kind, pad, share, seed):
    X = sparse_rows(5, dim, int(share * dim), seed)
    X[0, 0] = 2  # kind "learned" wants rows that differ
    encoder = CirculantEncoder(dim, n_bits, kind, seed, pad).fit(X)
    expected = oracles.projections(encoder, X)
    # r is rounded to float32, and so is the result: 6e-8 each of sums that |x| |r| bounds.
    lengths = np.linalg.norm(X, axis=1).max() + np.linalg.norm(encoder.centre)
    scale = 4e-7 * lengths * max(1, np.abs(encoder.spectrum).max())
    np.testing.assert_allclose(encoder.project(scipy.sparse.csr_array(X)), expected, rtol=0, atol=scale)


@pytest.mark.parametrize("length", [1023, 1024, 1025, 5000])
def test_runs_of_r_go_round(length):
    """Around the size of a tile, one entry at a time and several, in the first and last columns."""
    encoder = CirculantEncoder(length, 2 * length + 3, pad=False)
    columns = np.array([0, 1, length // 3, length // 2, length - 1000, length - 2, length - 1])
    X = np.zeros((12, length), dtype=np.float32)
    for row, column in zip(X, columns, strict=False):
        row[column] = 1
    for n_entries, row in enumerate(X[7:], 3):
        row[columns[:n_entries]] = np.arange(1, n_entries + 1) / 8
    # Transforms of vectors of length 1 err by some 1e-7.
    np.testing.assert_allclose(encoder.project(scipy.sparse.csr_array(X)), encoder.project(X), rtol=0, atol=1e-6)


def test_long_rows_are_transformed(monkeypatch):
    counts = count_of(monkeypatch)
    encoder = CirculantEncoder(300, 2000)
    most = direct.most_entries(encoder.n_bits, encoder.length)
    assert 0 < most < 290
    X = np.concatenate([sparse_rows(3, 300, most), sparse_rows(4, 300, most + 1), sparse_rows(2, 300, 5)])
    X = X[np.random.default_rng(0).permutation(len(X))]
    is_long = np.count_nonzero(X, axis=1) > most
    found, dense = encoder.project(scipy.sparse.csr_array(X), n_threads=1), encoder.project(X)
    assert sum(counts) == 5
    np.testing.assert_array_equal(found[is_long], dense[is_long])
    alone = encoder.project(scipy.sparse.csr_array(X[~is_long]), n_threads=3)
    np.testing.assert_array_equal(found[~is_long], alone)
    np.testing.assert_allclose(found, dense, rtol=0, atol=1e-4)  # |x| is up to 17, float32 errs by 1e-6 of it


def test_a_row_has_the_same_bits_in_any_batch():
    X = scipy.sparse.csr_array(sparse_rows(300, 500, 9))
    encoder = CirculantEncoder(500, 700).fit(X)
    together = encoder.project(X)
    for start, stop in ((0, 1), (7, 9), (120, 300)):
        np.testing.assert_array_equal(encoder.project(X[start:stop], n_threads=1), together[start:stop])


@pytest.mark.parametrize("n_entries", [0, 3, 4, 7, 40, 400])
def test_a_row_equal_to_the_centre_becomes_ones(n_entries):
    """Whether the centre is projected directly or by a transform."""
    X = np.repeat(sparse_rows(1, 400, n_entries), 4, axis=0)
    encoder = CirculantEncoder(400, 3000).fit(X)
    np.testing.assert_array_equal(encoder.project(scipy.sparse.csr_array(X)), 0)
    assert (encoder.encode(scipy.sparse.csr_array(X)) == 255).all()


def test_rows_far_from_the_origin_keep_their_differences():
    """A column that all rows share, a million times as large as the rest, leaves no trace."""
    X = sparse_rows(50, 2000, 10)
    far = X.copy()
    far[:, 5] = 2**20
    near = X.copy()
    near[:, 5] = 0
    projections = [CirculantEncoder(2000, 512).fit(rows).project(scipy.sparse.csr_array(rows)) for rows in (far, near)]
    # r is rounded to 6e-8 of 0.02, but the same way for rows and centre; what is left are sums in float64.
    np.testing.assert_allclose(projections[0], projections[1], rtol=0, atol=1e-6)


def test_fitting_again_moves_the_centre():
    X = sparse_rows(20, 100, 5)
    encoder = CirculantEncoder(100, 64)
    for rows in (X, X[:10] + 1, X[:5]):
        encoder.fit(rows)
        np.testing.assert_allclose(
            encoder.project(scipy.sparse.csr_array(X)), encoder.project(X), rtol=0, atol=1e-5
        )  # |x - centre| is about 10


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_what_is_not_finite_is_named(bad):
    X = sparse_rows(9, 60, 4)
    X[6] = 0
    X[6, 2:5] = bad
    encoder = CirculantEncoder(60, 100, "random")
    with pytest.raises(ValueError, match="row 6"):
        encoder.encode(scipy.sparse.csr_array(X))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8])
def test_entries_of_any_type_in_any_order(dtype):
    """Repeated entries add up, spare zeros do not count, int64 indices pass."""
    rows, columns = np.array([0, 0, 0, 1, 2, 2]), np.array([7, 3, 7, 0, 9, 1], dtype=np.int64)
    data = np.array([1, 1, 1, 0, 1, 1]).astype(dtype)
    X = scipy.sparse.coo_array((data, (rows, columns)), shape=(3, 10))
    indptr = np.array([0, 3, 4, 6], dtype=np.int64)
    encoder = CirculantEncoder(10, 30)
    expected = np.zeros((3, 10))
    np.add.at(expected, (rows, columns), data.astype(float))
    for given_as in (X, scipy.sparse.csr_array((data, columns, indptr), shape=(3, 10))):
        np.testing.assert_allclose(encoder.project(given_as), encoder.project(expected), rtol=0, atol=1e-6)
