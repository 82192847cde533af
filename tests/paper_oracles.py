"""Naive counterparts of the encoders that the circulant one is compared with: float64, explicit matrices, loops."""

import itertools

import numpy as np


def centred(encoder, X):
    return np.atleast_2d(np.asarray(X, dtype=np.float64)) - encoder.centre.astype(np.float64)


def products(encoder, X):
    """<w, x - centre> for every row of the encoder's matrix, one by one."""
    weights = encoder.weights.astype(np.float64)
    return np.array([[np.dot(w, y) for w in weights] for y in centred(encoder, X)])


def bilinear_matrix(encoder):
    """The whole matrix of a bilinear encoder, (n_bits, dim): the Kronecker product that it stands for."""
    whole = np.kron(encoder.left.astype(np.float64), encoder.right.astype(np.float64)).T
    return whole[: encoder.n_bits, : encoder.dim]


def bilinear(encoder, X):
    return centred(encoder, X) @ bilinear_matrix(encoder).T


def spectral(encoder, X):
    """sin(pi / 2 + m pi / (b - a) (v - a)), bit by bit."""
    v = products(encoder, X)
    out = np.empty((len(v), encoder.n_bits))
    for bit, (axis, mode) in enumerate(zip(encoder.axes, encoder.modes, strict=True)):
        a, size = float(encoder.lower[axis]), float(encoder.ranges[axis])
        out[:, bit] = np.sin(np.pi / 2 + mode * np.pi / size * (v[:, axis] - a))
    return out


def slowest_modes(ranges, n):
    """All waves, sorted by their eigenvalue, with epsilon so small that the exponential keeps them apart."""
    waves = []
    for axis, size in enumerate(ranges):
        for mode in range(1, n + 1):
            waves.append((1 - np.exp(-1e-4 / 2 * (mode * np.pi / size) ** 2), axis, mode))
    return [(axis, mode) for _, axis, mode in sorted(waves)[:n]]


def sklsh(encoder, X):
    return np.cos(products(encoder, X) + encoder.phases) + encoder.thresholds


def sklsh_share(gamma, distance):
    """The expected share of differing bits: a series, cut where the rest is below 1e-5."""
    m = np.arange(1, 50_000)
    return 8 / np.pi**2 * np.sum((1 - np.exp(-gamma * (m * distance) ** 2 / 2)) / (4 * m**2 - 1))


def nearest_vertex(values):
    """The vertex of {0, 1}^n, except 0, at the smallest angle: by trying all of them."""
    vertices = np.array(list(itertools.product([0, 1], repeat=len(values)))[1:])
    cosines = vertices @ values / np.sqrt(vertices.sum(axis=1))
    return vertices[cosines.argmax()], cosines.max()


def aqbc_objective(R, X):
    """1 - the mean of <b, R^T x> / (|b| |x|)."""
    unit = [x / np.linalg.norm(x) for x in np.asarray(X, dtype=np.float64) if x.any()]
    return 1 - np.mean([nearest_vertex(R.T @ x)[1] for x in unit])


def itq_objective(weights, Y):
    """Mean of (b - v)^2, v the projections of centred rows at a mean square of 1."""
    v = Y @ weights.T
    v /= np.sqrt((v**2).mean())
    return ((np.where(v >= 0, 1, -1) - v) ** 2).mean()


def bilinear_objective(matrix, Y):
    """1 - mean <b, v> / sqrt(n_bits mean |y|^2), v the projections of centred rows."""
    v = Y @ matrix.T
    return 1 - np.abs(v).sum(axis=1).mean() / np.sqrt(len(matrix) * (Y**2).sum(axis=1).mean())


def bits(codes, n_bits):
    return np.unpackbits(codes, axis=-1, bitorder="little")[..., :n_bits]
