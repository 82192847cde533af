"""Kept vectors of 4 and 8 bits, against float64: levels, distances, standard errors and decoded vectors."""

import numpy as np
import pytest

from cbeindex import CirculantEncoder
from cbeindex.data.source import VectorSource
from cbeindex.distances.codec import Codec
from cbeindex.distances.kept import Candidates, kept_vectors
from cbeindex.distances.keptcodec import heads_of, kept_bytes
from cbeindex.distances.metrics import METRICS
from cbeindex.errors import CorruptIndexFileError
from cbeindex.kernels.quantising import best_inverse, quantise
from tests import vector_oracles
from tests.conftest import COMPILED
from tests.vector_oracles import clustered

pytestmark = pytest.mark.kernels

BITS = (4, 8)
DIMS = (1, 2, 3, 7, 17, 64, 100) + ((784, 2_000) if COMPILED else ())


def some_codec(sample, bits, metric="l2", seed=0, kind="orthogonal", n_bits=None):
    """A codec with centres of a sample."""
    dim = sample.shape[1]
    prepared = METRICS[metric].prepare(sample)
    encoder = CirculantEncoder(dim, n_bits, kind, seed).fit(prepared)
    return Codec.of(encoder, METRICS[metric]).with_kept(bits, False).with_kept_of(prepared).kept


def encoded(codec, rows):
    prepared = codec.residuals.metric.prepare(rows)
    return codec.encode(VectorSource(prepared, rows.shape[1]), prepared, None)


def values_of(codec, column):
    """Values of levels by plain numpy."""
    levels, n = column[:, 12:], codec.rotation.n_bits
    if codec.bits == 8:
        return levels.view(np.int8)[:, :n].astype(np.float64)
    return np.stack([levels & 15, levels >> 4], axis=2).reshape(len(column), -1)[:, :n] - 7.5


def estimates(codec, column, queries):
    """Distances that rows stand for, float64 (n_queries, n)."""
    factors, offsets, _, chosen = (part.astype(np.float64) for part in heads_of(column, len(codec.residuals.centres)))
    metric, values = codec.residuals.metric, values_of(codec, column)
    Q = vector_oracles.prepared(metric.name, queries)
    Z = codec.rotation.project(Q.astype(np.float32)).astype(np.float64)
    centres, mean = codec.residuals.centres[chosen.astype(int)].astype(np.float64), codec.rotation.centre
    apart = ((Z[:, np.newaxis] - centres) ** 2).sum(axis=2)
    shifts = {
        "l2": apart,
        "cosine": (apart + 1 - (Q**2).sum(axis=1)[:, np.newaxis]) / 2,
        "ip": 1 - ((Q - mean) @ mean.astype(np.float64))[:, np.newaxis] - Z @ centres.T,
    }[metric.name]
    return offsets + shifts - factors * (Z @ values.T)


def fit(row, bits, inverse):
    """Squared product of a row with the values of its levels, over the square of the values."""
    scaled = row * inverse
    values = np.clip(np.rint(scaled), -127, 127) if bits == 8 else np.clip(np.floor(scaled), -8, 7) + 0.5
    return (values @ row) ** 2 / max(values @ values, 1e-300)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("n", [1, 2, 15, 33, 100])
def test_the_width_of_levels_is_the_best_of_those_tried(bits, n):
    rng = np.random.default_rng(n)
    for _ in range(10):
        row = (rng.standard_normal(n) * 10.0 ** rng.integers(-12, 12)).astype(np.float32)
        inverse = best_inverse(row, bits, 0.3352)
        levels = np.empty(n, dtype=np.uint8)
        product, square, along = quantise(row, 2 * row, bits, inverse, levels)
        wide = row.astype(np.float64)
        values = levels.view(np.int8).astype(np.float64) if bits == 8 else levels - 7.5
        np.testing.assert_allclose([product, square, along], [wide @ values, values @ values, 2 * wide @ values], 1e-5)
        # No width twice as large or small is better, unless a few values happen to meet such levels.
        assert n < 15 or (values @ wide) ** 2 / (values @ values) >= (1 - 1e-5) * max(
            fit(wide, bits, 2 * inverse), fit(wide, bits, inverse / 2)
        )


@pytest.mark.parametrize("bits", BITS)
def test_a_row_of_zeros_has_no_levels_to_speak_of(bits):
    levels = np.empty(5, dtype=np.uint8)
    assert best_inverse(np.zeros(5, dtype=np.float32), bits, 0.3) == 0
    product, _, _ = quantise(np.zeros(5, np.float32), np.ones(5, np.float32), bits, np.float32(0), levels)
    assert product == 0


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", DIMS)
def test_distances_are_those_of_the_bytes(dim, bits, metric):
    rows, queries = clustered(60, dim, seed=1), clustered(5, dim, seed=2)
    rows[3] = 0
    codec = some_codec(rows, bits, metric)
    column = encoded(codec, rows)
    assert column.shape == (60, kept_bytes(codec.rotation.n_bits, bits))
    expected = estimates(codec, column, queries)
    kept = kept_vectors(column, np.arange(100, 160), METRICS[metric], dim, codec)
    size = np.abs(expected).max() + (queries**2).sum(axis=1).max()
    for i, query in enumerate(queries):
        near = kept.distances(np.arange(60), query)
        # Queries are rounded to 1 / 65,534 of their largest projection, and distances to float32.
        np.testing.assert_allclose(near, expected[i], atol=2e-5 * size)
    lower = np.full((5, 60), -np.inf, dtype=np.float32)
    candidates = Candidates(np.tile(np.arange(60), (5, 1)), np.array([60, 0, 7, 60, 60]), lower)
    found = kept.nearest(queries, candidates, 8)
    for i, n in enumerate(candidates.counts):
        near = kept.distances(np.arange(n), queries[i])
        order = np.lexsort((np.arange(n), near))[:8]
        np.testing.assert_array_equal(found.ids[i, : len(order)], order + 100)
        np.testing.assert_array_equal(found.distances[i, : len(order)], near[order])
        assert (found.ids[i, len(order) :] == -1).all()
        assert found.n_read[i] == n


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", DIMS)
def test_estimates_are_unbiased_and_their_errors_right(dim, bits, metric):
    """Over seeds: the mean of error / standard error is 0, and its mean square about 1."""
    rows, queries = clustered(100, dim, seed=dim), clustered(10, dim, seed=dim + 1)
    truth = vector_oracles.distances(metric, queries, rows)
    ratios = []
    for seed in range(12 if COMPILED else 2):
        codec = some_codec(rows, bits, metric, seed)
        column = encoded(codec, rows)
        prepared = METRICS[metric].prepare(queries)
        kept = kept_vectors(column, np.arange(100), METRICS[metric], dim, codec)
        near = np.stack([kept.distances(np.arange(100), query) for query in queries])
        errors = codec.errors(codec.project_queries(prepared, 1), near, np.tile(column, (10, 1)))
        assert np.isfinite(errors).all()
        assert (errors > 0).all()
        ratios.append((near - truth) / errors)
    ratio = np.array(ratios)
    if dim > 16:
        # Rows and queries are the same for all seeds, but errors of different seeds are independent: 12 seeds of 1,000
        # pairs, of which those of a row share its levels, so count 100 a seed. Five standard errors.
        assert abs(ratio.mean()) < 5 / np.sqrt(100 * len(ratios))
        assert 0.7 < np.sqrt((ratio**2).mean()) < 1.3
    else:  # few dimensions have few directions, and errors are those of roundings
        assert np.sqrt((ratio**2).mean()) < 2


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("n_bits", [24, 30, 60, 10])
@pytest.mark.parametrize("kind", ["orthogonal", "random"])
def test_vectors_come_back_whatever_the_encoder(kind, n_bits, bits):
    rows = clustered(80, 23)
    codec = some_codec(rows, bits, "l2", kind=kind, n_bits=n_bits)
    column = encoded(codec, rows)
    errors = ((codec.vectors_of(column).astype(np.float64) - rows) ** 2).sum(axis=1)
    # Of normally distributed values, levels of 4 bits miss a share of 0.0115 of the square, and of 8 bits 0.00008.
    assert errors.mean() < {4: 0.02, 8: 0.0002}[bits] * ((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean()
    # Rotations have 24 projections of the 23 dimensions, so a part of the error is not in the vectors.
    missed = codec.squared_errors(column)
    assert (missed * (1 + 1e-3) + 1e-6 * (rows**2).sum(axis=1) >= errors).all()
    np.testing.assert_allclose(missed.mean(), errors.mean(), rtol=0.1)


@pytest.mark.parametrize("bits", BITS)
def test_tight_clusters_keep_their_distances(bits):
    """Rows that are a hundred times nearer to each other than to the mean of the data: residuals are small."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((4, 64))
    rows = (np.repeat(centres, 50, axis=0) + 0.01 * rng.standard_normal((200, 64))).astype(np.float32)
    codec = some_codec(rows, bits)
    column = encoded(codec, rows)
    assert len(codec.residuals.centres) > 1
    kept = kept_vectors(column, np.arange(200), METRICS["l2"], 64, codec)
    truth = vector_oracles.distances("l2", rows[:20], rows[:50])
    near = np.stack([kept.distances(np.arange(50), row) for row in rows[:20]])
    errors = codec.errors(codec.project_queries(rows[:20], 1), near, np.tile(column[:50], (20, 1)))
    assert np.abs(near - truth).mean() < {4: 0.1, 8: 0.01}[bits] * truth.mean()
    assert np.sqrt((((near - truth) / errors) ** 2).mean()) < 1.3


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
def test_constant_and_very_long_vectors(scale, bits):
    rows = (np.arange(1, 31)[:, np.newaxis] * np.ones((1, 12)) * scale).astype(np.float32)
    codec = some_codec(rows, bits)
    column = encoded(codec, rows)
    back = codec.vectors_of(column)
    assert np.isfinite(back).all()
    assert np.abs(back - rows).max() <= {4: 0.2, 8: 0.02}[bits] * np.abs(rows).max()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_estimates_of_extreme_norms_zeros_and_constants(scale, bits, metric):
    """Distances of rows that are tiny, huge, zero, constant or equal are within their errors of the true ones."""
    rows, queries = clustered(60, 33, seed=5), clustered(12, 33, seed=6)
    rows[0], rows[1], queries[0], queries[1] = 0, 3, 0, -2
    rows[2] = rows[3]
    rows, queries = (rows * scale).astype(np.float32), (queries * scale).astype(np.float32)
    codec = some_codec(rows, bits, metric)
    column = encoded(codec, rows)
    kept = kept_vectors(column, np.arange(60), METRICS[metric], 33, codec)
    near = np.stack([kept.distances(np.arange(60), query) for query in queries])
    errors = codec.errors(codec.project_queries(METRICS[metric].prepare(queries), 1), near, np.tile(column, (12, 1)))
    truth = vector_oracles.distances(metric, queries, rows)
    np.testing.assert_array_equal(near[:, 2], near[:, 3])
    assert np.isfinite(errors).all()
    if metric == "cosine":  # zeros have no angle: their distances are 1, to within the levels
        # Levels of 4 bits err by a tenth of a residual, which is at most about 1: 0.1 / sqrt(33) in a distance.
        assert np.abs(near - truth)[:, 0].max() < {4: 0.05, 8: 0.005}[bits]
        assert np.abs(near - truth)[0].max() < {4: 0.05, 8: 0.005}[bits]
        near, truth, errors = near[1:, 1:], truth[1:, 1:], errors[1:, 1:]
    # Errors are nearly normal: of 720, the largest is beyond six standard errors once in a million.
    assert (np.abs(near - truth) <= 6 * errors).all()
    assert np.sqrt((((near - truth) / errors) ** 2).mean()) < 1.3


@pytest.mark.parametrize("place", [(3, 0, np.nan), (5, 1, np.inf)])
def test_numbers_of_a_file_that_are_not_finite_are_noticed(place):
    rows = clustered(20, 12)
    codec = some_codec(rows, 8)
    column = encoded(codec, rows)
    row, number, value = place
    column[row, 4 * number : 4 * number + 4] = np.array([value], dtype="<f4").view(np.uint8)
    kept = kept_vectors(column, np.arange(20), METRICS["l2"], 12, codec)
    if np.isnan(value):
        with pytest.raises(CorruptIndexFileError, match="finite"):
            kept.distances(np.arange(20), rows[0])
    else:
        assert np.isinf(kept.distances(np.arange(20), rows[0])[row])


def test_a_centre_that_does_not_exist_is_noticed():
    rows = clustered(20, 12)
    codec = some_codec(rows, 4)
    column = encoded(codec, rows)
    column[7, 8] = 255
    kept = kept_vectors(column, np.arange(20), METRICS["l2"], 12, codec)
    with pytest.raises(CorruptIndexFileError, match="centres"):
        kept.distances(np.arange(20), rows[0])
    candidates = Candidates(np.arange(20)[np.newaxis], np.array([20]), np.full((1, 20), -np.inf, np.float32))
    with pytest.raises(CorruptIndexFileError, match="centres"):
        kept.nearest(rows[:1], candidates, 3)
