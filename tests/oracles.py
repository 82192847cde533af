"""Naive counterparts of what the package computes: explicit matrices and plain loops."""

import math
from fractions import Fraction

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


def hamming(queries, codes):
    """All Hamming distances between packed codes, (n_queries, n)."""
    return np.bitwise_count(queries[:, np.newaxis] ^ codes[np.newaxis]).sum(axis=2, dtype=np.int32)


def is_permitted(ids, allow, deny):
    """Whether each of the ids is allowed, and not denied."""
    allowed = np.ones(len(ids), dtype=bool) if allow is None else np.isin(ids, list(allow))
    return allowed if deny is None else allowed & ~np.isin(ids, list(deny))


def _order(distances, ids, allow, deny):
    """Places of the permitted ids by (distance, id)."""
    order = np.lexsort((ids, distances))
    return order[is_permitted(ids, allow, deny)[order]]


def nearest(queries, codes, ids, k, allow=None, deny=None):
    """Distances and ids of the k nearest codes by (distance, id), padded with the largest int32 and -1."""
    distances = np.full((len(queries), k), np.iinfo(np.int32).max, dtype=np.int32)
    found = np.full((len(queries), k), -1, dtype=np.int64)
    for q, row in enumerate(hamming(queries, codes)):
        best = _order(row, ids, allow, deny)[:k]
        distances[q, : len(best)], found[q, : len(best)] = row[best], ids[best]
    return distances, found


def within(queries, codes, ids, radius, allow=None, deny=None):
    """Limits, distances and ids of all codes within a radius, query after query."""
    lims, distances, found = [0], [], []
    for row in hamming(queries, codes):
        best = _order(row, ids, allow, deny)
        best = best[row[best] <= radius]
        distances += row[best].tolist()
        found += ids[best].tolist()
        lims.append(len(found))
    return lims, distances, found


def prefix_limit(distance, n_bits, size, z):
    """Mean and z standard deviations of the differing bits among the first `size`, of `distance` among `n_bits`."""
    chances = {
        count: Fraction(
            math.comb(distance, count) * math.comb(n_bits - distance, size - count), math.comb(n_bits, size)
        )
        for count in range(min(distance, size) + 1)
        if size - count <= n_bits - distance
    }
    mean = sum(count * chance for count, chance in chances.items())
    variance = sum((count - mean) ** 2 * chance for count, chance in chances.items())
    return float(mean) + z * math.sqrt(variance)


def substrings(codes, first_bit, table_bits):
    """Values of the bits [first_bit, first_bit + table_bits) of packed codes, as plain integers."""
    return [int.from_bytes(code.tobytes(), "little") >> first_bit & (2**table_bits - 1) for code in codes]


def keys_of(distances, rows, ranks=()):
    """Keys of rows at these distances, ascending: distance << 32 | row, or rank where rows have such."""
    places = np.asarray(ranks)[rows] if len(ranks) else np.asarray(rows)
    return np.sort(np.asarray(distances).astype(np.uint64) << np.uint64(32) | places.astype(np.uint64))


def best_keys(distances, rows, k, hidden=(), ranks=()):
    """The k smallest keys of those of `rows` that are not hidden, padded with the largest uint64."""
    rows = np.asarray(rows, dtype=np.int64)
    rows = rows[~np.asarray(hidden)[rows]] if len(hidden) else rows
    keys = keys_of(np.asarray(distances)[rows], rows, ranks)[:k]
    return np.pad(keys, (0, k - len(keys)), constant_values=np.iinfo(np.uint64).max)


def centroid_vectors(centroids):
    """What centroids stand for: at each place plus or minus its weight."""

    def bits(words):
        return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little").astype(np.int64)

    signs, weights = bits(centroids.signs), 1
    if centroids.weights.size:
        weights = bits(centroids.weights[:, 0]) + 2 * bits(centroids.weights[:, 1])
    return (2 * signs - 1) * weights


def cosines(words, centroids):
    """Cosines of codes, with bits as +1 and -1, and centroids, (n, n_centroids)."""
    vectors = centroid_vectors(centroids)
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little").astype(np.int64)
    n_bits = max(1, np.count_nonzero(vectors, axis=1).max())
    lengths = np.maximum((vectors**2).sum(axis=1), 1)
    return (2 * bits - 1) @ vectors.T * (1 / np.sqrt(lengths * float(n_bits)))


def nearest_cells(words, centroids):
    """All centroids of each code, nearest first: cosines are told to 1 / 1,024, the first of equal ones is first."""
    steps = (1024 * (1 - np.clip(cosines(words, centroids), -1, 1))).astype(np.int64)
    return np.argsort(steps, axis=1, kind="stable")
