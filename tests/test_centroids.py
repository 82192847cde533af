"""Centroids of codes: what they round, which is nearest, and what training makes of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import kernels
from cbeindex.data.codes import to_words
from cbeindex.search.buckets import centroids as module
from cbeindex.search.buckets.centroids import Centroids
from tests import oracles
from tests.small import tune
from tests.strategies import code_batches, some_codes

pytestmark = pytest.mark.kernels

SIZES = (1, 17, 512, 530)


@st.composite
def weighted(draw, n_words):
    """Centroids of all kinds: any signs, and any weights, none at all included."""
    n = draw(st.sampled_from(SIZES))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    words = rng.integers(0, 2**64, (n, 3, n_words), dtype=np.uint64)
    words[rng.random(n) < 0.1, 1:] = 0
    return Centroids(words[:, 0].copy(), words[:, 1:].copy())


@given(code_batches(widths=(64, 192, 1_024), sizes=(1, 40)), st.data())
def test_the_nearest_come_first(batch, data):
    words = to_words(batch.codes, batch.n_bits)
    some = data.draw(weighted(words.shape[1]))
    expected = oracles.nearest_cells(words, some)
    for k in {1, len(some), data.draw(st.integers(1, len(some)))}:
        np.testing.assert_array_equal(some.nearest(words, k), expected[:, :k])
    np.testing.assert_array_equal(some.assign(words), oracles.cosines(words, some).argmax(axis=1))


@given(code_batches(widths=(1, 63, 64, 65, 1_000, 1_024), sizes=SIZES))
def test_codes_as_centroids_are_as_near_as_their_hamming_distance(batch):
    words = to_words(batch.codes, batch.n_bits)
    queries = to_words(batch.queries, batch.n_bits)
    expected = np.argsort(oracles.hamming(queries, words), axis=1, kind="stable")
    some = Centroids.of_codes(words)
    np.testing.assert_array_equal(some.nearest(queries, len(words)), expected)
    np.testing.assert_array_equal(some.assign(queries), expected[:, 0])


@given(code_batches(widths=(1, 64, 65, 200), sizes=(1, 17, 40)), st.data())
def test_bits_are_counted(batch, data):
    words = to_words(batch.codes, batch.n_bits)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    n_cells = 4
    cell = rng.integers(0, n_cells, len(words))
    counts = np.full((n_cells, 64 * words.shape[1]), 3, dtype=np.int32)
    kernels.centroids.add_bits(words, cell, counts)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").astype(np.int32)
    np.testing.assert_array_equal(counts - 3, [bits[cell == c].sum(axis=0) for c in range(n_cells)])


@given(code_batches(widths=(1, 64, 65, 200), sizes=(1, 17, 40)), st.integers(0, 99))
def test_means(batch, seed):
    words = to_words(batch.codes, batch.n_bits)
    cell = np.random.default_rng(seed).integers(0, 3, len(words))
    means = module.means_of(words, batch.n_bits, cell, 3)
    bits = np.unpackbits(batch.codes, axis=1, bitorder="little", count=batch.n_bits)
    for c in set(cell.tolist()):
        # Sums of up to 40 are rounded once, to float32.
        np.testing.assert_allclose(
            means[c, : batch.n_bits], (2.0 * bits[cell == c] - 1).mean(axis=0), rtol=0, atol=1e-7
        )
    assert (means[:, batch.n_bits :] == 0).all()


@given(st.integers(0, 99))
def test_means_are_rounded_to_four_weights(seed):
    means = np.random.default_rng(seed).uniform(-1, 1, (5, 128)).astype(np.float32)
    means[0, ::2] = 0
    means[1] = 0
    vectors = oracles.centroid_vectors(Centroids.of_means(means))
    steps = np.abs(means).max(axis=1, keepdims=True) / 3
    assert (np.abs(vectors * steps - means) <= steps / 2 + 1e-6).all()
    assert (vectors[1] == 0).all()
    assert np.abs(vectors).max(axis=1).tolist() == [3, 0, 3, 3, 3]


def test_training_brings_centroids_near(monkeypatch):
    """Rows are nearer to trained centroids than to the rows they began with; and no cell starves beside a full one."""
    tune(monkeypatch, kmeans_rows=32, kmeans_iterations=6)
    for seed in range(2):
        words = to_words(some_codes(np.random.default_rng(seed), 300, 256, 12, 0.15), 256)
        first = Centroids.of_codes(words[np.random.default_rng(seed).permutation(300)[:12]])
        trained = module.train(words, 256, 12, np.random.default_rng(seed))
        # Rows have a cosine of 1 - 2 * 0.15 = 0.7 with the centre of their group, and of 0.49 with one another.
        assert (
            oracles.cosines(words, trained).max(axis=1).mean() > oracles.cosines(words, first).max(axis=1).mean() + 0.05
        )
        assert np.bincount(trained.assign(words), minlength=12).min() > 0


def test_weights_tell_where_rows_agree():
    """Half of the places are random in every row: they weigh less than those that make the group."""
    rng = np.random.default_rng(0)
    codes = some_codes(rng, 400, 256, 4, 0.05)
    codes[:, 16:] = rng.integers(0, 256, (400, 16))
    vectors = oracles.centroid_vectors(module.train(to_words(codes, 256), 256, 4, rng))
    # The mean of 100 rows is 0.9 where they agree, three steps of 0.3; elsewhere it is 0.1 at most, a third of a step.
    assert np.abs(vectors[:, :128]).mean() > 2.5
    assert np.abs(vectors[:, 128:]).mean() < 0.5


@pytest.mark.parametrize("n_bits", [100, 64])
def test_what_is_beyond_the_bits_weighs_nothing(n_bits):
    words = to_words(some_codes(np.random.default_rng(0), 60, n_bits, 3, 0.1), n_bits)
    vectors = oracles.centroid_vectors(module.train(words, n_bits, 5, np.random.default_rng(0)))
    assert (vectors[:, n_bits:] == 0).all()
    assert (vectors[:, :n_bits] != 0).any(axis=1).all()
