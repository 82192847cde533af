"""Kernels of real-valued queries against packed bits, and their naive forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.codes import CodeRows, to_words
from cbeindex.kernels import asymmetric
from cbeindex.rerank import distances_of

NONE = np.iinfo(np.uint64).max
WIDTHS = (1, 63, 64, 65, 130, 511, 512, 513, 600, 1_100)
SIZES = (1, 2, 63, 64, 65, 200, 511, 512, 513, 700)


def packed(bits):
    return to_words(np.packbits(bits, axis=-1, bitorder="little"), bits.shape[-1])


class Case:
    """Random rows and queries, in the forms of the kernels and in plain ones."""

    def __init__(self, n_bits, n_rows, n_queries, seed):
        rng = np.random.default_rng(seed)
        self.rng, self.n_rows = rng, n_rows
        self.bits = rng.random((n_rows, n_bits)) < 0.5
        self.query_bits = rng.random((n_queries, n_bits)) < 0.5
        self.levels = rng.integers(0, 16, (n_queries, n_bits))
        self.codes = CodeRows.of(packed(self.bits), n_bits)
        self.queries = packed(self.query_bits)
        self.planes = np.stack([packed((self.levels >> plane) & 1 == 1) for plane in range(4)], axis=1)

    def weights(self):
        """Sums of the levels of the bits that differ, (n_queries, n_rows)."""
        differ = self.query_bits[:, np.newaxis] != self.bits[np.newaxis]
        return (differ * self.levels[:, np.newaxis]).sum(axis=2)


def cases(max_queries=5):
    return st.builds(
        Case, st.sampled_from(WIDTHS), st.sampled_from(SIZES), st.integers(1, max_queries), st.integers(0, 999)
    )


@settings(max_examples=25)
@given(case=cases(max_queries=1))
def test_add_weights(case):
    n_head = case.codes.n_head
    expected = case.weights()[0]
    for block in range(len(case.codes.head)):
        n = min(512, case.n_rows - 512 * block)
        out = np.full(512, 7, dtype=np.int32)
        asymmetric.add_weights(case.queries[0], case.planes[0], case.codes.head[block], n_head, n, out)
        asymmetric.add_weights_by_row(case.queries[0], case.planes[0], n_head, case.codes.tail, 512 * block, n, out)
        np.testing.assert_array_equal(out[:n] - 7, expected[512 * block : 512 * block + n])
        assert (out[n:] == 7).all()


@settings(max_examples=15)
@given(case=cases())
def test_weights_of_a_block(case):
    """The tails of several queries at once are those of one query after the other."""
    n_head, n = case.codes.n_head, min(512, case.n_rows)
    first = len(case.queries) // 2
    together = np.zeros((len(case.queries) - first, 512), dtype=np.int32)
    columns = np.empty((8, 512), dtype=np.uint64)
    asymmetric.add_weights_of_block(
        case.queries, case.planes, first, len(case.queries), n_head, case.codes.tail, 0, n, columns, together
    )
    for i in range(first, len(case.queries)):
        out = np.zeros(512, dtype=np.int32)
        asymmetric.add_weights_by_row(case.queries[i], case.planes[i], n_head, case.codes.tail, 0, n, out)
        np.testing.assert_array_equal(together[i - first], out)


@settings(max_examples=25)
@given(case=cases(), n=st.integers(0, 20))
def test_weigh_rows(case, n):
    rows = case.rng.integers(0, case.n_rows, (len(case.queries), n))
    out = np.full(rows.shape, -1, dtype=np.int32)
    asymmetric.weigh_rows(case.queries, case.planes, case.codes.head, case.codes.tail, rows, out)
    np.testing.assert_array_equal(out, np.take_along_axis(case.weights(), rows, axis=1))


@settings(max_examples=40)
@given(
    case=cases(),
    k=st.sampled_from([1, 2, 10, 600]),
    share_hidden=st.sampled_from([None, 0.1, 0.9, 1.0]),
    is_bounded=st.booleans(),
    n_factors=st.sampled_from([1, 1_000]),
    margin=st.sampled_from([0, 3]),
)
def test_scan(case, k, share_hidden, is_bounded, n_factors, margin):
    """The nearest by (distance, row): equal ones come from equal factors and few levels."""
    rng, n_rows, n_queries = case.rng, case.n_rows, len(case.queries)
    offsets = np.full(n_rows, 0.5, dtype=np.float32) if n_factors == 1 else rng.normal(size=n_rows).astype(np.float32)
    factors = rng.uniform(0, 2, n_factors).astype(np.float32)[rng.integers(0, n_factors, n_rows)]
    steps, shifts = rng.uniform(0.01, 1, n_queries).astype(np.float32), rng.normal(size=n_queries).astype(np.float32)
    totals = case.levels.sum(axis=1, dtype=np.int32)
    products = steps[:, np.newaxis] * (totals[:, np.newaxis] - 2 * case.weights()).astype(np.float32)
    spreads, margins = rng.uniform(0, 1, n_rows).astype(np.float32), np.full(n_queries, margin, dtype=np.float32)
    distances = offsets + shifts[:, np.newaxis] - factors * products - margins[:, np.newaxis] * spreads
    assert distances.dtype == np.float32
    hidden = np.zeros(0, dtype=np.bool_) if share_hidden is None else rng.random(n_rows) < share_hidden
    bounds = np.median(distances, axis=1) if is_bounded else np.full(n_queries, np.inf, dtype=np.float32)
    start = 512 if n_rows > 512 and k == 2 else 0
    keys = np.zeros((n_queries, min(k, n_rows)), dtype=np.uint64)
    asymmetric.scan(
        case.queries, case.planes, totals, steps, shifts, case.codes.head, case.codes.tail, offsets, factors, spreads,
        margins, hidden, start, n_rows, bounds, keys,
    )  # fmt: skip
    for i in range(n_queries):
        allowed = [
            row
            for row in range(start, n_rows)
            if (not hidden.size or not hidden[row]) and distances[i, row] <= bounds[i]
        ]
        expected = sorted(allowed, key=lambda row: (distances[i, row], row))[: keys.shape[1]]
        n = len(expected)
        np.testing.assert_array_equal(keys[i, :n] & np.uint64(0xFFFFFFFF), expected)
        np.testing.assert_array_equal(distances_of(keys[i, :n]), distances[i, expected])
        assert (keys[i, n:] == NONE).all()
        assert np.isinf(distances_of(keys[i, n:])).all()


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
    np.testing.assert_array_equal(distances_of(keys), values)
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
