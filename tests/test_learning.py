"""The time-frequency optimisation: its closed form, its monotone objective, and what it is for."""

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import CirculantEncoder
from cbeindex.encoders.learning import best_spectrum
from tests import oracles


def correlated(n, dim, seed=0):
    """Rows whose covariance falls off: data on which learning has something to learn."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, dim)) @ (rng.standard_normal((dim, dim)) * np.geomspace(1, 0.01, dim)) + 5


numbers = st.one_of(st.just(0.0), st.floats(-1e4, 1e4).filter(lambda x: abs(x) > 1e-6))


@given(quadratic=numbers, re=numbers, im=numbers, penalty=st.floats(1e-2, 1e5))
def test_closed_form_is_the_minimum(quadratic, re, im, penalty):
    def value(u, v):
        square = u * u + v * v
        return quadratic * square - 2 * (u * re + v * im) + penalty * (square - 1) ** 2

    best = best_spectrum(np.array([quadratic]), np.array([re + 1j * im]), penalty)[0]
    found = value(best.real, best.imag)
    starts = [best + offset for offset in (0.1, -0.1j)] + [1 + 0j, -1j, 2 * best, 0.01 + 0.01j]
    results = [scipy.optimize.minimize(lambda x: value(*x), [s.real, s.imag], method="BFGS") for s in starts]
    lowest = min(result.fun for result in results)
    # A numerical minimiser stops near the minimum, where the value is flat: it may not beat the closed form by more
    # than rounding of the largest term.
    size = abs(quadratic) * abs(best) ** 2 + 2 * abs(re + 1j * im) * abs(best) + penalty * (abs(best) ** 4 + 1)
    assert found <= lowest + 1e-12 * size


def test_closed_form_at_the_edges():
    # No correlation: the modulus is sqrt(1 - m / 2L), or 0 when the quadratic term outweighs the penalty.
    m, penalty = np.array([0.0, 1.0, 2.0, 50.0]), 1.0
    found = best_spectrum(m, np.zeros(4, dtype=complex), penalty)
    np.testing.assert_allclose(np.abs(found), [1, np.sqrt(0.5), 0, 0], atol=1e-7)
    # m = 2L: only the cubic and the constant are left.
    np.testing.assert_allclose(best_spectrum(np.array([2.0]), np.array([16.0j]), 1.0), [2j], atol=1e-12)


@pytest.mark.parametrize("dim", [31, 64])
@pytest.mark.parametrize("n_bits", [20, 31, 64, 100])
@pytest.mark.parametrize("pad", [True, False])
def test_objective_is_the_definition_and_never_increases(dim, n_bits, pad):
    X = correlated(80, dim)
    similar, dissimilar = [[0, 1], [2, 3]], [[4, 5]]
    encoder = CirculantEncoder(dim, n_bits, "learned", pad=pad, lam=0.5, mu=0.3, n_iter=8)
    encoder.fit(X, similar, dissimilar)
    assert encoder.objective.shape == (len(encoder.signs), 9)
    assert (np.diff(encoder.objective) <= 0).all()
    assert (encoder.objective[:, -1] < encoder.objective[:, 0]).all()
    for block in range(len(encoder.signs)):
        expected = oracles.learning_objective(encoder, X, block, similar, dissimilar)
        # Transforms are float32; the objective is a sum of some thousand terms of order 1.
        np.testing.assert_allclose(encoder.objective[block, -1], expected, rtol=1e-5)


@pytest.mark.parametrize("n_bits", [32, 64])
def test_learned_codes_have_a_lower_objective_than_drawn_ones(n_bits):
    X = correlated(300, 64)
    learned = CirculantEncoder(64, n_bits, "learned").fit(X)
    reached = oracles.learning_objective(learned, X)
    for seed in range(20):
        for kind in ("orthogonal", "random"):
            drawn = CirculantEncoder(64, n_bits, kind, seed).fit(X)
            if kind == "random":
                drawn.spectrum = drawn.spectrum / np.sqrt(64)  # to the scale of an orthogonal matrix
            assert reached < oracles.learning_objective(drawn, X)


def test_fit_again_starts_afresh():
    X = correlated(100, 20)
    encoder = CirculantEncoder(20, kind="learned").fit(X[:50]).fit(X)
    np.testing.assert_array_equal(encoder.encode(X), CirculantEncoder(20, kind="learned").fit(X).encode(X))


def test_scale_of_the_data_does_not_matter():
    X = correlated(100, 20)
    small, large = (CirculantEncoder(20, kind="learned").fit(X * scale) for scale in (2.0**-20, 2.0**20))
    np.testing.assert_array_equal(small.encode(X * 2.0**-20), large.encode(X * 2.0**20))


def test_pairs_move_together_and_apart():
    """Two classes that differ along a few directions: pairs bring their own class nearer, compared with the other."""
    rng = np.random.default_rng(0)
    dim, n = 64, 200
    labels = np.arange(n) % 2
    X = rng.standard_normal((n, dim))
    X[:, :4] += 1.5 * labels[:, np.newaxis]
    pairs = rng.integers(0, n, (4_000, 2))
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]

    def contrast(encoder):
        """Mean projected distance of dissimilar pairs over that of similar ones."""
        projected = encoder.project(X)
        distances = ((projected[pairs[:, 0]] - projected[pairs[:, 1]]) ** 2).sum(axis=1)
        return distances[~same].mean() / distances[same].mean()

    without = CirculantEncoder(dim, 64, "learned", mu=0.0).fit(X, pairs[same], pairs[~same])
    with_pairs = CirculantEncoder(dim, 64, "learned", mu=0.1).fit(X, pairs[same], pairs[~same])
    unsupervised = CirculantEncoder(dim, 64, "learned").fit(X)
    np.testing.assert_array_equal(without.spectrum, unsupervised.spectrum)
    assert contrast(with_pairs) > contrast(without) + 0.02
