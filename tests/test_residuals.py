"""Residual codes and their records, against plain numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex._core.tuning import tuned, tuning
from cbeindex.distances import kmeans
from cbeindex.distances import residuals as residuals_module
from cbeindex.distances.estimator import Geometry
from cbeindex.distances.metrics import METRICS
from cbeindex.distances.records import RecordRows, record_bytes
from cbeindex.distances.residuals import ResidualCodec, centres_of
from cbeindex.kernels.residuals import decode_rows, encode_rows, fill_records
from cbeindex.search.buckets.cellmaker import divide_points
from tests.conftest import COMPILED
from tests.lookup_oracles import pack_levels, values_of_levels
from tests.small import examples, tune

pytestmark = pytest.mark.kernels

BITS = (1, 2, 4)
WIDTHS = {1: 1.0, 2: 0.9957, 4: 0.3352}


def some_rows(seed, n_rows, n_bits, n_centres):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((n_centres, n_bits)).astype(np.float32)
    rows = centres[rng.integers(0, n_centres, n_rows)] + 0.5 * rng.standard_normal((n_rows, n_bits))
    rows = rows.astype(np.float32)
    rows[0] = centres[-1]  # a residual of zeros
    return rows, centres


def encoded(rows, centres, bits, width):
    """Codes, centres and sums of rows by the kernel."""
    n, n_bits = rows.shape
    codes = np.full((n, -(-n_bits * bits // 8)), 255, dtype=np.uint8)
    chosen, sums = np.full(n, 255, dtype=np.uint16), np.full((n, 5), np.nan)
    half_squares = ((centres[:, :width].astype(np.float64) ** 2).sum(axis=1) / 2).astype(np.float32)
    turned = np.ascontiguousarray(centres[:, :width].T)
    encode_rows(rows, centres, turned, half_squares, bits, WIDTHS[bits], codes, chosen, sums)
    return codes, chosen, sums


def levels_of(residuals, bits, share=1.0):
    """Levels of residuals, each as wide as a share of the root mean square."""
    steps = share * WIDTHS[bits] * np.sqrt((residuals**2).mean(axis=1, keepdims=True))
    scaled = np.divide(residuals, steps, out=np.zeros_like(residuals), where=steps > 0)
    return np.clip(np.floor(scaled) + 2 ** (bits - 1), 0, 2**bits - 1)


def fit_of(residuals, values):
    """Squared cosine of residuals with values, times the square of the residuals."""
    squares = (values**2).sum(axis=1)
    return np.divide((residuals * values).sum(axis=1) ** 2, squares, out=np.zeros(len(values)), where=squares > 0)


def unpacked(codes, bits, n):
    """Levels of codes."""
    parts = [(codes >> (bits * i)) & (2**bits - 1) for i in range(8 // bits)]
    return np.stack(parts, axis=2).reshape(len(codes), -1)[:, :n]


shapes = st.tuples(st.integers(0, 9), st.integers(1, 20), st.sampled_from([1, 3, 8, 17, 64, 100]), st.integers(1, 5))


@examples(40)
@given(shapes, st.sampled_from(BITS))
def test_rows_are_quantised_relative_to_the_nearest_centre(shape, bits):
    rows, centres = some_rows(*shape)
    width = max(1, rows.shape[1] // 2)
    codes, chosen, sums = encoded(rows, centres, bits, width)
    apart = ((rows[:, np.newaxis, :width].astype(np.float64) - centres[:, :width]) ** 2).sum(axis=2)
    # The kernel compares products in float32: of centres as near as rounding allows, it may take either.
    np.testing.assert_allclose(apart[np.arange(len(rows)), chosen], apart.min(axis=1), atol=1e-4)
    residuals = (rows - centres[chosen]).astype(np.float64)
    levels = unpacked(codes, bits, rows.shape[1])
    values, at = values_of_levels(levels.astype(np.float64), bits), centres[chosen].astype(np.float64)
    np.testing.assert_array_equal(codes, pack_levels(levels, bits))
    if bits < 4:
        np.testing.assert_array_equal(levels, levels_of(residuals, bits))
    for share in 1.35 / 1.12 ** np.arange(7 if bits == 4 else 0):
        tried = values_of_levels(levels_of(residuals, bits, share), bits)
        # The kernel compares sums of float32, and takes either of widths that are as good up to their rounding.
        assert (fit_of(residuals, values) >= fit_of(residuals, tried) * (1 - 1e-5) - 1e-12).all()
    expected = [residuals**2, residuals * values, values**2, at * values, at * residuals]
    # Sums of up to 100 terms of order 10 in float64, of which one is rounded to float32.
    np.testing.assert_allclose(sums, np.stack([terms.sum(axis=1) for terms in expected], axis=1), rtol=1e-5, atol=1e-4)


def column_of(rows, centres, bits):
    """Rows as a column: codes, factor, offset, spread, length, centre."""
    codes, chosen, sums = encoded(rows, centres, bits, rows.shape[1])
    numbers = np.stack([sums[:, 1], sums[:, 2], sums[:, 3], np.sqrt(sums[:, 0])], axis=1).astype("<f4")
    return np.concatenate([codes, numbers.view(np.uint8), chosen[:, np.newaxis].view(np.uint8)], axis=1)


@examples(40)
@given(shapes, st.sampled_from(BITS))
def test_decoded_rows_have_the_direction_of_their_levels_and_the_length_of_their_residuals(shape, bits):
    rows, centres = some_rows(*shape)
    column = column_of(rows, centres, bits)
    which = np.arange(len(rows))[::-1].copy()
    width = max(1, rows.shape[1] - 2)
    decoded = np.full((len(rows), width), np.nan, dtype=np.float32)
    decode_rows(column, which, rows.shape[1], bits, centres, decoded)
    at = centres[centres_of(column)[which]]
    residuals = (rows[which] - at).astype(np.float64)
    levels = unpacked(column[which, : -(-rows.shape[1] * bits // 8)], bits, rows.shape[1])
    values = values_of_levels(levels.astype(np.float64), bits)
    lengths = np.sqrt((residuals**2).sum(axis=1) / (values**2).sum(axis=1))[:, np.newaxis]
    np.testing.assert_allclose(decoded, (at + lengths * values)[:, :width], rtol=1e-5, atol=1e-5)


@given(st.integers(0, 9), st.integers(1, 90), st.sampled_from([1, 2, 13]))
def test_records_hold_what_was_written_to_them(seed, n_rows, n_bytes):
    rng = np.random.default_rng(seed)
    column = rng.integers(0, 256, (n_rows, n_bytes + 18), dtype=np.uint8)
    sizes = rng.multinomial(n_rows, [0.5, 0.3, 0.2])
    offsets, starts = (np.concatenate([[0], np.cumsum(n)]) for n in (sizes, -(-sizes // 32)))
    centres = np.array([7, 0, 1_000], dtype=np.uint16)
    column[:, -2:] = np.repeat(centres, sizes)[:, np.newaxis].view(np.uint8)
    records = np.zeros((max(1, starts[-1]), record_bytes(n_bytes)), dtype=np.uint8)
    order = rng.permutation(n_rows)
    places = (np.repeat(32 * starts[:-1] - offsets[:-1], sizes) + np.arange(n_rows))[order]
    fill_records(column, order, places, order, n_bytes, records)
    rows = RecordRows(records, offsets, 32 * starts[:-1], centres, n_bytes)
    assert len(rows) == n_rows
    assert rows.shape == column.shape
    np.testing.assert_array_equal(rows[:], column)
    some = rng.integers(0, n_rows, 5)
    np.testing.assert_array_equal(rows[some], column[some])
    flat = records[:, 32 * (n_bytes + 16) :].copy().view("<i4").ravel()
    np.testing.assert_array_equal(flat[places], order)
    np.testing.assert_array_equal(records[places // 32, 32 * (n_bytes - 1) + places % 32], column[order, n_bytes - 1])


@examples(30)
@given(
    st.integers(0, 9), st.integers(1, 40), st.integers(1, 6), st.sampled_from([0, 1, 4]), st.sampled_from([1, 3, 99])
)
def test_rows_are_divided_by_k_means(seed, n_points, n_parts, n_rounds, step):
    """Whatever the number of points that a call of the kernel takes."""
    rng = np.random.default_rng(seed)
    n_parts = min(n_parts, n_points)
    points = rng.standard_normal((n_points, 5)).astype(np.float32)
    with tuned(kmeans_rows=3, kmeans_step_products=5 * n_parts * step):
        cell, centroids = divide_points(points, n_parts, n_rounds)
    sample = np.random.default_rng(n_points).permutation(n_points)[: 3 * n_parts]
    expected = points[sample[:n_parts]].astype(np.float64)

    def nearest(rows):
        return ((points[rows, np.newaxis] - expected) ** 2).sum(axis=2).argmin(axis=1)

    for rows in [*[sample] * (n_rounds if n_parts > 1 else 0), np.arange(n_points)]:
        which = nearest(rows)
        for part in np.unique(which):
            expected[part] = points[rows[which == part]].mean(axis=0, dtype=np.float64)
    np.testing.assert_array_equal(cell, which)
    np.testing.assert_allclose(centroids, expected, rtol=1e-5, atol=1e-6)


def fitted(projections, monkeypatch):
    """The number of centres that are fitted to a sample, and the number of rounds of k-means."""
    n_rounds = []

    def counted(*arguments):
        for division in kmeans.rounds(*arguments):
            n_rounds.append(len(division.rows))
            yield division

    monkeypatch.setattr(residuals_module, "rounds", counted)
    mean = np.zeros(projections.shape[1], dtype=np.float32)
    codec = ResidualCodec.fit(projections, 1, METRICS["l2"], Geometry(mean, 1.0, 0.0, 1.0), mean)
    return len(codec.centres), len(n_rounds)


@pytest.mark.skipif(not COMPILED, reason="no kernel takes part")
def test_data_without_clusters_is_noticed_after_few_rounds(monkeypatch):
    """Normal values have no clusters. Wide clusters, whose centres explain a sixth of the variance, take all rounds."""
    rng = np.random.default_rng(0)
    tune(monkeypatch, centres_of_root=0.5)  # as many rows for each of 22 centres as large samples have
    noise = rng.standard_normal((2_000, 768), dtype=np.float32)
    assert fitted(noise, monkeypatch) == (1, tuning().kmeans_trial_rounds)
    clusters = (rng.standard_normal((20, 768))[np.arange(2_000) % 20] / 2 + noise).astype(np.float32)
    n_centres, n_rounds = fitted(clusters - clusters.mean(axis=0), monkeypatch)
    assert n_centres > 1
    assert n_rounds == tuning().kmeans_iterations


def test_a_sample_of_zeros_has_as_many_centres_as_are_filled(monkeypatch):
    assert fitted(np.zeros((200, 8), dtype=np.float32), monkeypatch)[0] >= 1
