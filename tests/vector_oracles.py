"""Naive counterparts of what the vector index computes: float64, explicit matrices and sums."""

import numpy as np
from scipy import sparse

from tests import oracles


def sparse_rows(n_rows, dim, density, seed=0):
    """CSR rows of float32 with values at random places, alike for all releases of scipy."""
    rng = np.random.default_rng(seed)
    places = rng.choice(n_rows * dim, int(density * n_rows * dim), replace=False)
    values = rng.random(len(places), dtype=np.float32)
    return sparse.csr_array((values, np.divmod(places, dim)), shape=(n_rows, dim))


def distances(metric, queries, vectors):
    """All distances, float64 (n_queries, n)."""
    Q, X = (np.atleast_2d(np.asarray(a, dtype=np.float64)) for a in (queries, vectors))
    lengths = np.linalg.norm(X, axis=1)
    out = np.empty((len(Q), len(X)))
    for i, q in enumerate(Q):
        if metric == "l2":
            out[i] = ((X - q) ** 2).sum(axis=1)
        elif metric == "ip":
            out[i] = 1 - (X * q).sum(axis=1)
        else:
            norms = lengths * np.linalg.norm(q)
            out[i] = 1 - np.divide((X * q).sum(axis=1), norms, out=np.zeros(len(X)), where=norms > 0)
    return out


def best(row, ids, k, allow=None, deny=None):
    """Places of the k best permitted ids by (float32 distance, id)."""
    order = np.lexsort((ids, row.astype(np.float32)))
    return order[oracles.is_permitted(ids, allow, deny)[order]][:k]


def nearest(metric, queries, vectors, ids, k, allow=None, deny=None):
    """Distances and ids of the k nearest by (distance, id), padded with infinity and -1."""
    return nearest_by(distances(metric, queries, vectors), ids, k, allow, deny)


def nearest_by(all_distances, ids, k, allow=None, deny=None):
    """The same, from distances that are known."""
    near = np.full((len(all_distances), k), np.inf, dtype=np.float32)
    found = np.full((len(all_distances), k), -1, dtype=np.int64)
    for q, row in enumerate(all_distances):
        places = best(row, ids, k, allow, deny)
        near[q, : len(places)], found[q, : len(places)] = row[places], np.asarray(ids)[places]
    return near, found


def within(metric, queries, vectors, ids, radius, allow=None, deny=None):
    """Limits, distances and ids of all vectors within a radius, query after query."""
    return within_by(distances(metric, queries, vectors), ids, radius, allow, deny)


def within_by(all_distances, ids, radius, allow=None, deny=None):
    """The same, from distances that are known."""
    lims, near, found = [0], [], []
    for row in all_distances:
        places = best(row, ids, len(ids), allow, deny)
        places = places[row[places].astype(np.float32) <= np.float32(radius)]
        near += row[places].tolist()
        found += [ids[i] for i in places]
        lims.append(len(found))
    return lims, near, found


def prepared(metric, vectors):
    """Vectors as the encoder sees them, float64."""
    X = np.atleast_2d(np.asarray(vectors, dtype=np.float64))
    if metric != "cosine":
        return X
    return np.array([x / np.linalg.norm(x) if x.any() else x for x in X])


def estimates(encoder, metric, queries, vectors):
    """Asymmetric estimates by explicit matrices, (n_queries, n), and how far one rounding the other way takes them.

    Magnitudes of the query's projections are rounded to fifteenths of the largest.
    """
    X, Q = prepared(metric, vectors), prepared(metric, queries)
    PY, PZ = oracles.projections(encoder, X), oracles.projections(encoder, Q)
    centre = encoder.centre.astype(np.float64)
    # A row of R has this squared norm, and so |P w|^2 is |w|^2 times the rows' share of it, on average.
    energy = np.mean([(oracles.circulant_matrix(encoder, b)[0] ** 2).sum() for b in range(len(encoder.signs))])
    scale = encoder.length / (encoder.n_bits * energy)
    out, slack = np.empty((len(Q), len(X))), np.empty((len(Q), len(X)))
    B = np.where(PY >= 0, 1, -1)
    along, energies = (PY * B).sum(axis=1), (PY**2).sum(axis=1)
    known = ((X - centre) ** 2).sum(axis=1) if metric == "ip" else scale * energies
    factors = np.divide(known, along, out=np.zeros(len(X)), where=along != 0)
    for i, (q, pz) in enumerate(zip(Q, PZ, strict=True)):
        step = np.abs(pz).max() / 15
        rounded = np.sign(pz) * np.rint(np.abs(pz) / step) * step if step else pz
        products = factors * (B * rounded).sum(axis=1)
        if metric == "ip":
            out[i] = 1 - (products + X @ centre + (q - centre) @ centre)
            slack[i] = factors * step
        else:
            apart = scale * (energies + (pz**2).sum()) - 2 * products
            out[i] = apart if metric == "l2" else 1 - ((X**2).sum(axis=1) + (q**2).sum() - apart) / 2
            slack[i] = 2 * factors * step
    return out, slack


def clustered(n, dim, seed=0, n_centres=8, spread=0.5, shift=1.0):
    """Vectors around some centres, away from the origin, of norms that differ by a factor of four."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((n_centres, dim))
    X = centres[rng.integers(0, n_centres, n)] + spread * rng.standard_normal((n, dim))
    return ((X + shift) * rng.uniform(0.5, 2, (n, 1))).astype(np.float32)
