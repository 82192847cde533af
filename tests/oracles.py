"""Naive counterparts of what the package computes: explicit matrices and plain loops."""

import numpy as np
import scipy.fft
import scipy.linalg


def circulant_matrix(encoder, block):
    """The explicit matrix R of one block of a circulant encoder, float64."""
    r = scipy.fft.irfft(encoder.spectrum[block].astype(np.complex128), n=encoder.length)
    return scipy.linalg.circulant(r)


def projections(encoder, X):
    """R D (x - centre) by explicit matrices in float64."""
    centred = np.asarray(X, dtype=np.float64) - encoder.centre
    blocks = []
    for block in range(len(encoder.signs)):
        flipped = np.zeros((len(centred), encoder.length))
        flipped[:, : encoder.dim] = centred * encoder.signs[block]
        blocks.append(flipped @ circulant_matrix(encoder, block).T)
    return np.concatenate(blocks, axis=1)[:, : encoder.n_bits]


def learning_objective(encoder, X, block=0, similar=(), dissimilar=()):
    """The training objective of a learned encoder at its present spectrum, by explicit matrices."""
    n_bits = min(encoder.length, encoder.n_bits - block * encoder.length)
    R = circulant_matrix(encoder, block)
    flipped = np.zeros((len(X), encoder.length))
    flipped[:, : encoder.dim] = (np.asarray(X, dtype=np.float64) - encoder.centre) * encoder.signs[block]
    flipped /= np.sqrt((flipped**2).sum(axis=1).mean())
    projected = flipped @ R.T
    B = np.where(projected >= 0, 1, -1) / np.sqrt(encoder.length)
    B[:, n_bits:] = 0

    def spread(pairs):
        return np.mean([((projected[i] - projected[j]) ** 2).sum() for i, j in pairs]) if len(pairs) else 0

    return (
        ((B - projected) ** 2).sum()
        + encoder.lam * ((R @ R.T - np.eye(encoder.length)) ** 2).sum()
        + encoder.mu * len(X) * (spread(similar) - spread(dissimilar))
    )
