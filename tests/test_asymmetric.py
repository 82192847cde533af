"""Kernels of real-valued queries against packed bits, and their naive forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.data.codes import CodeRows, to_words
from cbeindex.data.keys import EstimateKeys
from cbeindex.kernels import asymmetric
from tests.strategies import masks, rankings

pytestmark = pytest.mark.kernels

NONE = np.iinfo(np.uint64).max
WIDTHS = (1, 63, 64, 65, 130, 511, 513, 1_024, 1_025, 1_100, 1_300)
SIZES = (1, 2, 63, 64, 65, 200, 511, 512, 513, 700)


def packed(bits):
    return to_words(np.packbits(bits, axis=-1, bitorder="little"), bits.shape[-1])


class Case:
    """Random rows and queries, in the forms of the kernels and in plain ones."""

    def __init__(self, n_bits, n_rows, n_queries, seed, by_row=False):
        rng = np.random.default_rng(seed)
        self.rng, self.n_rows = rng, n_rows
        self.bits = rng.random((n_rows, n_bits)) < 0.5
        self.query_bits = rng.random((n_queries, n_bits)) < 0.5
        self.levels = rng.integers(0, 16, (n_queries, n_bits))
        self.codes = CodeRows.of(packed(self.bits), n_bits, by_row)
        self.queries = packed(self.query_bits)
        self.planes = np.stack([packed((self.levels >> plane) & 1 == 1) for plane in range(4)], axis=1)

    def weights(self):
        """Sums of the levels of the bits that differ, (n_queries, n_rows)."""
        differ = self.query_bits[:, np.newaxis] != self.bits[np.newaxis]
        return (differ * self.levels[:, np.newaxis]).sum(axis=2)


def cases(max_queries=5, by_row=st.booleans()):  # noqa: B008
    return st.builds(
        Case, st.sampled_from(WIDTHS), st.sampled_from(SIZES), st.integers(1, max_queries), st.integers(0, 999), by_row
    )


@settings(max_examples=25)
@given(case=cases(max_queries=1), data=st.data())
def test_add_weights(case, data):
    """Of the rows of some blocks, added to what is there."""
    blocks = CodeRows.of(packed(case.bits), case.bits.shape[1]).blocks
    first, last = sorted(data.draw(st.integers(0, len(blocks))) for _ in range(2))
    out = np.full(16 * len(blocks), 7, dtype=np.int32)
    asymmetric.add_weights(case.queries[0], case.planes[0], blocks, first, last, out)
    expected = case.weights()[0][16 * first : 16 * last]
    np.testing.assert_array_equal(out[: len(expected)] - 7, expected)
    assert (out[16 * (last - first) :] == 7).all()


@settings(max_examples=25)
@given(case=cases(), n=st.integers(0, 20))
def test_weigh_rows(case, n):
    rows = case.rng.integers(0, case.n_rows, (len(case.queries), n))
    out = np.full(rows.shape, -1, dtype=np.int32)
    asymmetric.weigh_rows(case.queries, case.planes, case.codes.blocks, rows, out)
    np.testing.assert_array_equal(out, np.take_along_axis(case.weights(), rows, axis=1))


class Estimates:
    """A case with all that distances are made of; equal factors and few levels give equal ones."""

    def __init__(self, case, n_factors, margin, share_hidden, is_ranked):
        rng, n_rows, n_queries = case.rng, case.n_rows, len(case.queries)
        offsets = np.full(n_rows, 0.5) if n_factors == 1 else rng.normal(size=n_rows)
        factors = rng.uniform(0, 2, n_factors)[rng.integers(0, n_factors, n_rows)]
        steps, shifts = rng.uniform(0.01, 1, n_queries), rng.normal(size=n_queries)
        spreads, margins = rng.uniform(0, 1, n_rows), np.full(n_queries, margin)
        self.rows = [values.astype(np.float32) for values in (offsets, factors, spreads)]
        self.totals = case.levels.sum(axis=1, dtype=np.int32)
        self.steps, self.shifts, self.margins = (values.astype(np.float32) for values in (steps, shifts, margins))
        offsets, factors, spreads = self.rows
        products = self.steps[:, np.newaxis] * (self.totals[:, np.newaxis] - 2 * case.weights()).astype(np.float32)
        shifted = offsets + self.shifts[:, np.newaxis] - factors * products
        self.distances = shifted - self.margins[:, np.newaxis] * spreads
        assert self.distances.dtype == np.float32
        self.hidden = np.zeros(0, dtype=np.bool_) if share_hidden is None else rng.random(n_rows) < share_hidden
        self.ranks = rng.permutation(n_rows).astype(np.int32) if is_ranked else np.zeros(0, dtype=np.int32)
        self.before = (
            case.queries, case.planes, self.totals, self.steps, self.shifts, case.codes.blocks,
            *self.rows, self.margins, self.hidden, self.ranks,
        )  # fmt: skip

    def check(self, keys, rows, bounds):
        """Keys are those of the nearest of each query's `rows` within its bound, by distance and rank."""
        for i, (row, bound) in enumerate(zip(rows, bounds, strict=True)):
            row = [r for r in row if not (self.hidden.size and self.hidden[r]) and self.distances[i, r] <= bound]
            places = {r: int(self.ranks[r]) if self.ranks.size else r for r in row}
            expected = sorted(row, key=lambda r: (self.distances[i, r], places[r]))[: keys.shape[1]]
            n = len(expected)
            np.testing.assert_array_equal(keys[i, :n] & np.uint64(0xFFFFFFFF), [places[r] for r in expected])
            np.testing.assert_array_equal(EstimateKeys(keys[i, :n]).distances(), self.distances[i, expected])
            assert (keys[i, n:] == NONE).all()
            assert np.isinf(EstimateKeys(keys[i, n:]).distances()).all()


def estimates(case):
    return st.builds(
        Estimates, case, st.sampled_from([1, 1_000]), st.sampled_from([0, 3]), st.sampled_from([None, 0.1, 0.9, 1.0]),
        st.booleans(),
    )  # fmt: skip


@settings(max_examples=50)
@given(case=cases(), k=st.sampled_from([1, 2, 10, 600]), is_bounded=st.booleans(), data=st.data())
def test_scan(case, k, is_bounded, data):
    estimated = data.draw(estimates(st.just(case)))
    n_queries, n_rows = estimated.distances.shape
    bounds = np.median(estimated.distances, axis=1) if is_bounded else np.full(n_queries, np.inf, dtype=np.float32)
    start = 512 if n_rows > 512 and k == 2 else 0
    keys = np.zeros((n_queries, min(k, n_rows)), dtype=np.uint64)
    asymmetric.scan(*estimated.before, start, n_rows, bounds, keys)
    estimated.check(keys, [range(start, n_rows)] * n_queries, bounds)


@settings(max_examples=50)
@given(case=cases(by_row=st.just(False)), n_cells=st.integers(1, 8), k=st.sampled_from([1, 2, 10, 600]), data=st.data())
def test_visit(case, n_cells, k, data):
    """What a scan finds among the rows of some cells, which may be empty or reach over several blocks."""
    estimated = data.draw(estimates(st.just(case)))
    n_queries, n_rows = estimated.distances.shape
    ends = np.sort(case.rng.integers(0, n_rows + 1, n_cells - 1))
    offsets = np.array([0, *ends, n_rows], dtype=np.int64)
    n_probes = data.draw(st.integers(1, n_cells))
    cells = np.array([case.rng.permutation(n_cells)[:n_probes] for _ in range(n_queries)])
    keys = np.zeros((n_queries, min(k, n_rows)), dtype=np.uint64)
    asymmetric.visit(*estimated.before, cells, offsets, keys)
    visited = [[row for cell in some for row in range(offsets[cell], offsets[cell + 1])] for some in cells]
    estimated.check(keys, visited, [np.inf] * n_queries)


@given(values=st.lists(st.sampled_from([-1.5, 0.0, 0.25, 3.0]), min_size=1, max_size=150), data=st.data())
def test_rows_within_are_collected(values, data):
    distances, first_row = np.full(160, -9, dtype=np.float32), 512
    distances[: len(values)] = values
    hidden, ranks = data.draw(masks(first_row + len(values))), data.draw(rankings(first_row + len(values)))
    bound = data.draw(st.sampled_from([-np.inf, -1.5, 0.0, 1.0, np.inf]))
    keys = np.full(3 + len(values), NONE, dtype=np.uint64)
    count = asymmetric.collect_within(distances, len(values), bound, first_row, hidden, ranks, keys, 3)
    near = [i for i, d in enumerate(values) if d <= bound and not (hidden.size and hidden[first_row + i])]
    np.testing.assert_array_equal(EstimateKeys(keys[3:count]).distances(), distances[near])
    rows = np.array(near, dtype=np.int64) + first_row
    np.testing.assert_array_equal(keys[3:count] & np.uint64(0xFFFFFFFF), ranks[rows] if ranks.size else rows)
    assert (keys[:3] == NONE).all()
    assert (keys[count:] == NONE).all()


FLOATS = st.floats(width=32, allow_nan=False).map(np.float32)


@given(values=st.lists(FLOATS, min_size=2, max_size=20), rows=st.data())
def test_keys_order_like_distances(values, rows):
    numbers = rows.draw(st.lists(st.integers(0, 2**32 - 2), min_size=len(values), max_size=len(values)))
    # Two zeros are one distance to numpy; kernels never make the negative one.
    values = np.array(values, dtype=np.float32) + np.float32(0)
    keys = np.array(
        [asymmetric.key_of(bits, row) for bits, row in zip(values.view(np.int32), numbers, strict=True)],
        dtype=np.uint64,
    )
    np.testing.assert_array_equal(EstimateKeys(keys).distances(), values)
    np.testing.assert_array_equal([asymmetric.float_of_key(key) for key in keys], values)
    by_key = np.argsort(keys, kind="stable")
    by_value = np.lexsort((numbers, values))
    np.testing.assert_array_equal(values[by_key], values[by_value])
    np.testing.assert_array_equal(np.array(numbers)[by_key], np.array(numbers)[by_value])


@pytest.mark.parametrize("value", [-np.inf, -1.0, -1e-45, 0.0, 1e-45, 1.0, 3e38, np.inf])
def test_a_distance_survives_its_key(value):
    bits = np.array([value], dtype=np.float32).view(np.int32)[0]
    key = asymmetric.key_of(bits, 12)
    assert key < NONE
    assert asymmetric.float_of_key(np.uint64(key)) == np.float32(value)
