"""Each method of the paper against its definition: explicit matrices, brute force, and what its theory promises."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import CBEIndex
from cbeindex.data.source import VectorSource
from cbeindex.encoders.baselines.aqbc import AQBCEncoder, nearest_vertices
from cbeindex.encoders.baselines.bilinear import BilinearEncoder, near_square
from cbeindex.encoders.baselines.itq import ITQEncoder
from cbeindex.encoders.baselines.lsh import LSHEncoder
from cbeindex.encoders.baselines.matrices import Lengths, nearest_orthonormal, principal_axes, random_directions
from cbeindex.encoders.baselines.sklsh import SKLSHEncoder
from cbeindex.encoders.baselines.spectral import SpectralEncoder, slowest_modes
from tests import paper_oracles


def correlated(n, dim, seed=0):
    """Rows whose covariance falls off: data on which learning has something to learn."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((dim, dim)) * np.geomspace(1, 0.03, dim)
    return (rng.standard_normal((n, dim)) @ mixing.T @ rng.standard_normal((dim, dim)) + 3).astype(np.float32)


def positive(n, dim, seed=0):
    """Rows without negative values, of few topics."""
    rng = np.random.default_rng(seed)
    return (rng.gamma(0.3, size=(n, 5)) @ rng.gamma(0.3, size=(5, dim)) + 0.1 * rng.random((n, dim))).astype(np.float32)


def check_projections(encoder, X, expected, scale=1.0):
    """float32 sums err by some ulp of |x| |w|: projections agree to that, and bits wherever it leaves them open."""
    atol = 2e-5 * scale * max(1, np.abs(expected).max())
    np.testing.assert_allclose(encoder.project(X), expected, rtol=0, atol=atol)
    certain = np.abs(expected) > atol
    assert certain.mean() > 0.95
    found = paper_oracles.bits(encoder.encode(X), encoder.n_bits)
    np.testing.assert_array_equal(found[certain], (expected > 0)[certain])


# The matrices that encoders learn.


@pytest.mark.parametrize(("n", "dim"), [(60, 20), (20, 60), (30, 30), (2, 5)])
def test_principal_axes(n, dim):
    X = correlated(n, dim)
    centre = X.mean(axis=0)
    axes = principal_axes(VectorSource(X, dim), centre, 10)
    expected = np.linalg.svd((X - centre).astype(np.float64), full_matrices=False)[2]
    assert len(axes) == min(10, dim, n - 1)
    np.testing.assert_allclose(axes @ axes.T, np.eye(len(axes)), atol=1e-12)
    # An axis and its neighbours differ in size by some percent, so rounding of float32 (6e-8) turns it by 1e-5 or so.
    for axis, other in zip(axes, expected, strict=False):
        assert abs(axis @ other) > 1 - 1e-6


def test_nearest_orthonormal_matrix():
    rng = np.random.default_rng(0)
    for shape in ((7, 7), (9, 4), (5, 1)):
        matrix = rng.standard_normal(shape)
        nearest = nearest_orthonormal(matrix)
        np.testing.assert_allclose(nearest.T @ nearest, np.eye(shape[1]), atol=1e-12)
        U, sizes, Vt = np.linalg.svd(matrix, full_matrices=False)
        np.testing.assert_allclose((nearest * matrix).sum(), sizes.sum())
        np.testing.assert_allclose(nearest, U @ Vt, atol=1e-12)
    weak = matrix = rng.standard_normal((6, 2)) @ rng.standard_normal(
        (2, 5)
    )  # of rank 2: not unique, still orthonormal
    nearest = nearest_orthonormal(weak)
    np.testing.assert_allclose(nearest.T @ nearest, np.eye(5), atol=1e-12)
    np.testing.assert_allclose((nearest * matrix).sum(), np.linalg.svd(matrix, compute_uv=False).sum())


def test_random_directions_keep_those_that_are_known():
    known = random_directions(np.random.default_rng(0), 3, 12)
    more = random_directions(np.random.default_rng(1), 12, 12, beside=known)
    np.testing.assert_array_equal(more[:3], known)
    np.testing.assert_allclose(more @ more.T, np.eye(12), atol=1e-12)


def test_lengths_are_measured():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((50, 9)) * np.geomspace(1, 0.1, 9)
    P = random_directions(rng, 4, 9)
    found = Lengths.measured(rows.astype(np.float32), (rows @ P.T).astype(np.float32))
    gaps = [rows[i] - rows[25 + i] for i in range(25)]
    scale = sum(w @ w for w in gaps) / sum((P @ w) @ (P @ w) for w in gaps)
    variance = np.mean([(scale * (P @ w) @ (P @ w) / (w @ w) - 1) ** 2 for w in gaps])
    misses, sizes = [], []
    for y, z in zip(rows[:25], rows[25:], strict=True):
        misses.append((y @ y) / ((P @ y) @ (P @ y)) * ((P @ y) @ (P @ z)) - y @ z)
        sizes.append((y @ y) * (z @ z))
    np.testing.assert_allclose(found, (scale, variance, 1 - 4 * np.square(misses).sum() / np.sum(sizes)), rtol=1e-5)


# LSH


@pytest.mark.parametrize(("dim", "n_bits"), [(1, 3), (12, 12), (50, 20), (20, 70)])
def test_lsh_is_a_matrix_product(dim, n_bits):
    X = correlated(30, dim)
    encoder = LSHEncoder(dim, n_bits, seed=2).fit(X)
    np.testing.assert_allclose(encoder.centre, X.mean(axis=0, dtype=np.float64), rtol=1e-6)
    check_projections(encoder, X, paper_oracles.products(encoder, X), scale=np.sqrt(dim))


@pytest.mark.parametrize("p", [1 / 12, 1 / 3, 1 / 2])
def test_lsh_disagreement_tracks_the_angle(p):
    n_bits, theta = 20_000, np.pi * p
    pair = np.zeros((2, 8))
    pair[0, 0], pair[1, :2] = 1, (np.cos(theta), np.sin(theta))
    first, second = paper_oracles.bits(LSHEncoder(8, n_bits).encode(pair), n_bits)
    # Five standard errors of the mean of independent bits.
    assert abs((first != second).mean() - p) < 5 * np.sqrt(p * (1 - p) / n_bits)


def test_lsh_keeps_lengths_as_it_says():
    n, n_bits = 1_000, 32
    encoder = LSHEncoder(n, n_bits)
    # Columns of the matrix are independent: each is a draw of what happens to one vector.
    estimates = encoder.scale * (encoder.project(np.eye(n)) ** 2).sum(axis=1)
    assert abs(estimates.mean() - 1) < 5 * np.sqrt(encoder.scale_variance / n)
    # The fourth moment of a chi square of 32 degrees makes the variance of a variance (2 + 12 / 32) / n of its square.
    assert abs(estimates.var() / encoder.scale_variance - 1) < 5 * np.sqrt((2 + 12 / n_bits) / n)


# Bilinear


@given(dim=st.integers(1, 80), share=st.floats(0.01, 1), kind=st.sampled_from(["random", "learned"]))
def test_bilinear_is_a_kronecker_product(dim, share, kind):
    X = correlated(12, dim, seed=dim)
    encoder = BilinearEncoder(dim, max(1, int(share * dim)), kind, seed=dim, n_iter=2).fit(X)
    check_projections(encoder, X, paper_oracles.bilinear(encoder, X), scale=np.abs(X).max())
    for matrix in (encoder.left, encoder.right):
        np.testing.assert_allclose(matrix.T @ matrix, np.eye(matrix.shape[1]), atol=1e-6)


@given(n=st.integers(1, 3_000), data=st.data())
def test_near_square_shapes(n, data):
    d1, d2 = near_square(n, n, n)
    assert (d1 - 1) * d2 < n <= d1 * d2
    assert d1 * (d2 - 1) < n
    assert max(d1, d2) <= 2 * min(d1, d2)
    n_bits = data.draw(st.integers(1, n))
    c1, c2 = near_square(n_bits, d1, d2)
    assert (c1 - 1) * c2 < n_bits <= c1 * c2
    assert c1 * (c2 - 1) < n_bits
    assert c1 <= d1
    assert c2 <= d2
    assert max(c1, c2) <= 2 * min(c1, c2)


def test_shapes_of_the_paper():
    assert near_square(25_600, 25_600, 25_600) == (160, 160)
    assert near_square(784, 784, 784) == (28, 28)
    assert near_square(3_200, 160, 160) == (50, 64)


@pytest.mark.parametrize("n_bits", [61, 31, 20])
def test_bilinear_learning(n_bits):
    """The objective is the definition, never rises, and ends below that of any drawn rotations.

    Vectors fill 61 of 7 x 9 places, codes 61 of 63, 31 of 32, and all of 20.
    """
    X = correlated(200, 61)
    encoder = BilinearEncoder(61, n_bits, "learned", n_iter=8).fit(X)
    assert encoder.objective.shape == (9,)
    assert (np.diff(encoder.objective) <= 0).all()
    Y = paper_oracles.centred(encoder, X)
    reached = paper_oracles.bilinear_objective(paper_oracles.bilinear_matrix(encoder), Y)
    # Sums of float32 products, relative to some tenths.
    np.testing.assert_allclose(encoder.objective[-1], reached, atol=1e-5)
    drawn = [BilinearEncoder(61, n_bits, seed=seed) for seed in range(20)]
    others = [paper_oracles.bilinear_objective(paper_oracles.bilinear_matrix(other), Y) for other in drawn]
    np.testing.assert_allclose(encoder.objective[0], others[0], atol=1e-5)
    assert reached < min(others)


def test_bilinear_keeps_lengths_as_it_says():
    """Before it is fitted: of vectors that point anywhere, over the choice of the rotations."""
    n, dim, n_bits = 1_000, 36, 16
    rng = np.random.default_rng(0)
    estimates = []
    for seed in range(n):
        encoder = BilinearEncoder(dim, n_bits, seed=seed)
        w = rng.standard_normal(dim)
        estimates.append(encoder.scale * (encoder.project(w / np.linalg.norm(w)) ** 2).sum())
    assert encoder.overlap == n_bits / dim
    assert abs(np.mean(estimates) - 1) < 5 * np.sqrt(encoder.scale_variance / n)
    # Vectors on a sphere, not in all of space: dim / (dim + 2) of the variance, within five standard errors, 0.22: a
    # factor of 3 in place of 2 in the variance would be off by 0.33.
    ratio = np.var(estimates) / encoder.scale_variance * (dim + 2) / dim
    assert abs(ratio - 1) < 5 * np.sqrt(2 / n)


# ITQ


@pytest.mark.parametrize("n_bits", [1, 8, 20])
def test_itq_turns_the_principal_axes(n_bits):
    X = correlated(100, 20)
    encoder = ITQEncoder(20, n_bits).fit(X)
    Y = paper_oracles.centred(encoder, X)
    np.testing.assert_allclose(encoder.weights @ encoder.weights.T, np.eye(n_bits), atol=1e-6)
    axes = np.linalg.svd(Y)[2][:n_bits]
    np.testing.assert_allclose(encoder.weights.T @ encoder.weights, axes.T @ axes, atol=1e-4)
    check_projections(encoder, X, paper_oracles.products(encoder, X), scale=np.abs(X).max())


@pytest.mark.parametrize("n_bits", [6, 20])
def test_itq_learning(n_bits):
    """The objective is the definition, never rises, and ends below that of any drawn rotation of the same axes."""
    X = correlated(300, 20)
    encoder = ITQEncoder(20, n_bits).fit(X)
    assert encoder.objective.shape == (51,)
    assert (np.diff(encoder.objective) <= 0).all()
    Y = paper_oracles.centred(encoder, X)
    reached = paper_oracles.itq_objective(encoder.weights.astype(np.float64), Y)
    np.testing.assert_allclose(encoder.objective[-1], reached, atol=1e-5)
    axes = np.linalg.svd(Y)[2][:n_bits]
    rng = np.random.default_rng(0)
    drawn = [random_directions(rng, n_bits, n_bits) @ axes for _ in range(20)]
    assert reached < min(paper_oracles.itq_objective(weights, Y) for weights in drawn)


def test_itq_with_fewer_rows_than_bits():
    X = correlated(10, 40)
    encoder = ITQEncoder(40, 30).fit(X)
    np.testing.assert_allclose(encoder.weights @ encoder.weights.T, np.eye(30), atol=1e-6)
    Y = paper_oracles.centred(encoder, X)
    # All of the training rows is kept, and rows it has not seen are told apart as well.
    np.testing.assert_allclose((encoder.project(X) ** 2).sum(axis=1), (Y**2).sum(axis=1), rtol=1e-4)
    assert len(np.unique(encoder.encode(correlated(50, 40, seed=1)), axis=0)) == 50


@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize(
    "encoder",
    [ITQEncoder(30, 16), ITQEncoder(30), BilinearEncoder(30, 16, "learned"), BilinearEncoder(30, 16)],
    ids=repr,
)
def test_measured_lengths_make_distances_right(metric, encoder):
    """Fewer bits than dimensions: estimated distances of new rows have the right size, and the error they state."""
    X = correlated(3_000, 30)
    index = CBEIndex(30, encoder=encoder, metric=metric, vectors=None, buckets=None).fit(X[:2_000])
    index.add(X[2_000:])
    queries = X[:100]
    result = index.search(queries, 1_000, rerank="asymmetric")
    rows = X[2_000:][result.ids].astype(np.float64)
    gaps = rows - queries[:, np.newaxis]
    true = (gaps**2).sum(axis=2) if metric == "l2" else 1 - np.einsum("qij,qj->qi", rows, queries.astype(np.float64))
    misses = result.distances - true
    if metric == "l2":
        assert abs(result.distances.mean() / true.mean() - 1) < 0.05
    # The signs of a learned rotation lose more where rows vary more, so errors are not quite as they are stated.
    assert 0.5 < np.sqrt((misses**2).mean() / (result.errors**2).mean()) < 2


# Spectral hashing


@given(ranges=st.lists(st.floats(0.1, 10), min_size=1, max_size=6), n=st.integers(1, 40))
def test_slowest_modes(ranges, n):
    axes, modes = slowest_modes(np.array(ranges), n)
    found = [(mode / ranges[axis]) for axis, mode in zip(axes, modes, strict=True)]
    expected = [mode / ranges[axis] for axis, mode in paper_oracles.slowest_modes(ranges, n)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert len(set(zip(axes.tolist(), modes.tolist(), strict=True))) == n


@pytest.mark.parametrize(("dim", "n_bits"), [(12, 5), (12, 12), (6, 40), (1, 9)])
def test_spectral_is_the_definition(dim, n_bits):
    X = correlated(80, dim)
    encoder = SpectralEncoder(dim, n_bits).fit(X)
    Y = paper_oracles.centred(encoder, X)
    axes = np.linalg.svd(Y, full_matrices=False)[2][:n_bits]
    positions = Y @ axes.T
    expected = paper_oracles.slowest_modes(np.ptp(positions, axis=0), n_bits)
    used = np.unique([axis for axis, _ in expected])
    assert [(used[axis], mode) for axis, mode in zip(encoder.axes, encoder.modes, strict=True)] == expected
    # The axes are the principal ones, one way round or the other, and the data begin and end where they say.
    np.testing.assert_allclose(np.abs(np.sum(encoder.weights * axes[used], axis=1)), 1, atol=1e-5)
    products = paper_oracles.products(encoder, X)
    np.testing.assert_allclose(products.min(axis=0), encoder.lower, atol=1e-4 * np.abs(Y).max())
    np.testing.assert_allclose(np.ptp(products, axis=0), encoder.ranges, atol=1e-4 * np.abs(Y).max())
    # The phase of a wave is its mode times pi times a position, which rounding moves by some 1e-6.
    check_projections(encoder, X, paper_oracles.spectral(encoder, X), scale=encoder.modes.max())


def test_spectral_on_a_line():
    """Uniform data on a segment: the first bit halves it, the second one tells the middle from the ends."""
    X = np.zeros((101, 3))
    X[:, 1] = np.linspace(0, 8, 101)
    found = SpectralEncoder(3, 2).fit(X).project(X) >= 0
    np.testing.assert_array_equal(found[:50, 0], ~found[51:, 0][::-1])
    assert (np.diff(found[:, 0]) != 0).sum() == 1
    assert (np.diff(found[:, 1]) != 0).sum() == 2


# SKLSH


@pytest.mark.parametrize("gamma", [None, 0.01])
def test_sklsh_is_the_definition(gamma):
    X = correlated(60, 15)
    encoder = SKLSHEncoder(15, 80, seed=3, gamma=gamma).fit(X)
    check_projections(
        encoder, X, paper_oracles.sklsh(encoder, X), scale=np.abs(paper_oracles.products(encoder, X)).max()
    )


def test_sklsh_draws_what_it_says():
    n = 20_000
    encoder = SKLSHEncoder(5, n, gamma=4)
    # Five standard errors of a mean square, and the ends of uniform numbers.
    assert abs((encoder.weights.astype(float) ** 2).mean() / 4 - 1) < 5 * np.sqrt(2 / (5 * n))
    for values, low, high in ((encoder.phases, 0, 2 * np.pi), (encoder.thresholds, -1, 1)):
        assert low <= values.min() < low + 0.01
        assert high - 0.01 < values.max() <= high + 1e-6
        assert abs(values.mean() - (low + high) / 2) < 5 * (high - low) / np.sqrt(12 * n)


@pytest.mark.parametrize("distance", [0.05, 0.3, 1.0, 2.0, 20.0])
def test_sklsh_disagreement_follows_the_kernel(distance):
    n_bits, gamma = 20_000, 2.0
    encoder = SKLSHEncoder(6, n_bits, seed=1, gamma=gamma)
    pair = np.random.default_rng(0).standard_normal((2, 6))
    pair[1] = pair[0] + distance * pair[1] / np.linalg.norm(pair[1])
    first, second = paper_oracles.bits(encoder.encode(pair), n_bits)
    p = paper_oracles.sklsh_share(gamma, distance)
    # Five standard errors of the mean of independent bits, and what the series leaves out.
    assert abs((first != second).mean() - p) < 5 * np.sqrt(p * (1 - p) / n_bits) + 1e-5
    assert distance < 20 or abs(p - 4 / np.pi**2) < 1e-4


def test_sklsh_chooses_gamma_by_neighbours():
    X = correlated(70, 4).astype(np.float64)
    squares = ((X[:, np.newaxis] - X) ** 2).sum(axis=2)
    np.fill_diagonal(squares, np.inf)
    encoder = SKLSHEncoder(4, 8).fit(X)
    assert encoder.gamma is None
    np.testing.assert_allclose(1 / encoder.gamma_used, np.sort(squares, axis=1)[:, 49].mean(), rtol=1e-5)
    few = SKLSHEncoder(4, 8).fit(X[:2])
    np.testing.assert_allclose(1 / few.gamma_used, squares[0, 1], rtol=1e-5)


# AQBC


@given(
    values=st.lists(st.sampled_from([-3.0, -1.0, -0.2, 0.0, 0.1, 0.4, 0.5, 1.0, 2.5, 7.0]), min_size=1, max_size=7)
    | st.lists(st.floats(-1, 4, width=32), min_size=1, max_size=7)
)
def test_nearest_vertices(values):
    """Of all vertices none is nearer by angle, also where values are equal, negative or 0."""
    v = np.array([values], dtype=np.float32)
    chosen, thresholds = nearest_vertices(v)
    _, best = paper_oracles.nearest_vertex(v[0].astype(np.float64))
    reached = (v[0].astype(np.float64) * chosen[0]).sum() / np.sqrt(chosen.sum())
    if v.max() > 0:
        np.testing.assert_allclose(reached, best, rtol=1e-6)
        # The threshold stands between the two sides, to rounding where a value is a tie.
        assert v[chosen].min() >= thresholds[0] * (1 - 1e-6)
        assert (v[~chosen] <= thresholds[0] * (1 + 1e-6)).all()
    else:  # no vertex is within a right angle: the largest values, all that are equal
        np.testing.assert_array_equal(chosen, v == v.max())


def test_aqbc_is_the_nearest_vertex():
    X = positive(60, 12)
    encoder = AQBCEncoder(12, 8).fit(X)
    assert not encoder.centre.any()
    np.testing.assert_allclose(encoder.weights @ encoder.weights.T, np.eye(8), atol=1e-6)
    values = paper_oracles.products(encoder, X)
    expected = np.array([paper_oracles.nearest_vertex(v)[0] for v in values])
    np.testing.assert_array_equal(paper_oracles.bits(encoder.encode(X), 8), expected)
    # A projection is a value minus a threshold: what two bits of a vector differ by is what two values differ by.
    projected = encoder.project(X).astype(np.float64)
    np.testing.assert_allclose(np.diff(projected, axis=1), np.diff(values, axis=1), atol=1e-5 * np.abs(values).max())


def test_aqbc_sees_directions_only():
    X = positive(60, 12)
    encoder = AQBCEncoder(12, 8).fit(X)
    longer = X * np.random.default_rng(0).choice([0.25, 2.0, 64.0], (60, 1)).astype(np.float32)
    np.testing.assert_array_equal(encoder.encode(longer), encoder.encode(X))
    np.testing.assert_allclose(AQBCEncoder(12, 8).fit(longer).weights, encoder.weights, atol=1e-5)
    np.testing.assert_array_equal(encoder.encode(np.zeros(12)), [255])


@pytest.mark.parametrize("n_bits", [4, 9])
def test_aqbc_learning(n_bits):
    """The objective is the definition, never rises, and ends below that of any drawn directions."""
    X = positive(80, 9)
    X[3] = 0
    encoder = AQBCEncoder(9, n_bits).fit(X)
    assert encoder.objective.shape == (11,)
    assert (np.diff(encoder.objective) <= 0).all()
    reached = paper_oracles.aqbc_objective(encoder.weights.T.astype(np.float64), X)
    np.testing.assert_allclose(encoder.objective[-1], reached, atol=1e-5)
    rng = np.random.default_rng(0)
    drawn = [random_directions(rng, n_bits, 9).T for _ in range(10)]
    assert reached < min(paper_oracles.aqbc_objective(R, X) for R in drawn)


def test_aqbc_refuses_negative_values():
    X = positive(60, 12)
    encoder = AQBCEncoder(12, 8).fit(X)
    X[41, 5] = -0.5
    for call in (encoder.encode, encoder.project, AQBCEncoder(12, 8).fit):
        with pytest.raises(ValueError, match=r"must not be negative .*, row 41 has a value of -0\.5"):
            call(X)
