"""The time-frequency optimisation: its closed form, its monotone objective, and what it is for."""

import numpy as np
import pytest
import scipy.linalg
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


@pytest.mark.parametrize("exponent", [40, 80])
def test_scale_of_the_data_does_not_matter(exponent):
    X = correlated(100, 20).astype(np.float32)
    small, large = (CirculantEncoder(20, kind="learned").fit(X * scale) for scale in (2.0**-exponent, 2.0**exponent))
    np.testing.assert_array_equal(small.encode(X * 2.0**-exponent), large.encode(X * 2.0**exponent))


def test_a_step_reaches_the_minimum_for_its_signs():
    """After one iteration no direction of r leads downhill, with B as the start had it (explicit matrices)."""
    X, lam = correlated(60, 12), 0.7
    start = CirculantEncoder(12, 9, "orthogonal").fit(X)
    learned = CirculantEncoder(12, 9, "learned", lam=lam, n_iter=1).fit(X)
    flipped = (X - start.centre) * start.signs[0]
    flipped /= np.sqrt((flipped**2).sum(axis=1).mean())
    B = np.where(flipped @ oracles.circulant_matrix(start, 0).T >= 0, 1, -1) / np.sqrt(12)
    B[:, 9:] = 0

    def objective(r):
        R = scipy.linalg.circulant(r)
        return ((B - flipped @ R.T) ** 2).sum() + lam * ((R @ R.T - np.eye(12)) ** 2).sum()

    reached = np.fft.irfft(learned.spectrum[0].astype(complex), n=12)
    gradient = scipy.optimize.approx_fprime(reached, objective, 1e-6)
    # Forward differences err by about 1e-6 times the second derivative, some hundred here; at the start it is large.
    assert np.abs(gradient).max() < 1e-2
    assert np.abs(scipy.optimize.approx_fprime(np.fft.irfft(start.spectrum[0]), objective, 1e-6)).max() > 1


@pytest.mark.parametrize("given", ["similar", "dissimilar", "both"])
def test_pairs_move_together_and_apart(given):
    """Each kind of pairs, alone and together, widens the gap between the Hamming distances of the two.

    A circulant matrix can weigh frequencies and nothing else, so the classes differ in a few of them: of the rows as
    the matrix sees them, after the signs.
    """
    rng = np.random.default_rng(0)
    dim, n = 64, 400
    labels = np.arange(n) % 2
    waves = np.cos(2 * np.pi * np.outer([3, 7, 12], np.arange(dim)) / dim)
    flipped = rng.standard_normal((n, dim)) + 0.8 * np.where(labels[:, np.newaxis], waves[0] + waves[1], waves[2])
    X = flipped * CirculantEncoder(dim, dim).signs[0]
    pairs = rng.integers(0, n, (4_000, 2))
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]

    def gap(encoder):
        bits = np.unpackbits(encoder.encode(X), axis=1).astype(int)
        shares = np.abs(bits[pairs[:, 0]] - bits[pairs[:, 1]]).mean(axis=1)
        return shares[~same].mean() - shares[same].mean()

    chosen = {"similar": pairs[same], "dissimilar": pairs[~same]}
    chosen = chosen if given == "both" else {given: chosen[given]}
    plain = CirculantEncoder(dim, dim, "learned").fit(X)
    ignored = CirculantEncoder(dim, dim, "learned", mu=0).fit(X, **chosen)
    np.testing.assert_array_equal(plain.spectrum, ignored.spectrum)
    trained = CirculantEncoder(dim, dim, "learned", mu=0.4).fit(X, **chosen)
    assert gap(trained) > 2 * gap(plain)
