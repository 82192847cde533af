"""Searches by estimated distances, and their naive forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.data.keys import EstimateKeys
from cbeindex.kernels import asymmetric
from tests.estimate_cases import Case, Estimates

pytestmark = pytest.mark.kernels

NONE = np.iinfo(np.uint64).max
WIDTHS = (1, 63, 64, 65, 130, 513, 1_025)
SIZES = (1, 2, 15, 16, 17, 63, 200, 700)


def cases(by_row=st.booleans()):  # noqa: B008
    return st.builds(
        Case, st.sampled_from(WIDTHS), st.sampled_from(SIZES), st.integers(1, 6), st.sampled_from([1, 15]),
        st.integers(0, 999), by_row,
    )  # fmt: skip


def estimates(case):
    return st.builds(
        Estimates, st.just(case), st.sampled_from([1, 1_000]), st.sampled_from([0, 3]),
        st.sampled_from([None, 0.1, 0.9, 1.0]), st.booleans(),
    )  # fmt: skip


def check(estimated, keys, rows, bounds):
    """Keys are those of the nearest of each query's `rows` within its bound, by distance and rank."""
    for i, (row, bound) in enumerate(zip(rows, bounds, strict=True)):
        row = [r for r in row if not (estimated.hidden.size and estimated.hidden[r])]
        row = [r for r in row if estimated.distances[i, r] <= bound]
        places = {r: int(estimated.ranks[r]) if estimated.ranks.size else r for r in row}
        expected = sorted(row, key=lambda r: (estimated.distances[i, r], places[r]))[: keys.shape[1]]
        n = len(expected)
        np.testing.assert_array_equal(keys[i, :n] & np.uint64(0xFFFFFFFF), [places[r] for r in expected])
        np.testing.assert_array_equal(EstimateKeys(keys[i, :n]).distances(), estimated.distances[i, expected])
        assert (keys[i, n:] == NONE).all()
        assert np.isinf(EstimateKeys(keys[i, n:]).distances()).all()


@settings(max_examples=50)
@given(case=cases(), k=st.sampled_from([1, 2, 10, 100, 600]), is_bounded=st.booleans(), data=st.data())
def test_scan(case, k, is_bounded, data):
    """The k nearest of a range of rows, which may begin and end within blocks."""
    estimated = data.draw(estimates(case))
    n_queries, n_rows = estimated.distances.shape
    bounds = np.median(estimated.distances, axis=1) if is_bounded else np.full(n_queries, np.inf, dtype=np.float32)
    start, stop = sorted(data.draw(st.integers(0, n_rows)) for _ in range(2)) if k == 2 else (0, n_rows)
    keys = np.zeros((n_queries, min(k, n_rows)), dtype=np.uint64)
    asymmetric.scan(*estimated.before, start, stop, bounds, keys)
    check(estimated, keys, [range(start, stop)] * n_queries, bounds)


@pytest.mark.parametrize("n_words", [16, 130])
@pytest.mark.parametrize("by_row", [False, True])
def test_scan_of_several_groups_of_blocks(n_words, by_row):
    """Rows that do not fit the cache are scanned group by group, all queries over each."""
    case = Case(64 * n_words, 2_100 if n_words == 16 else 300, 5, 15, 0, by_row)
    estimated = Estimates(case, 1_000, 0, 0.1, True)
    bounds, keys = np.full(5, np.inf, dtype=np.float32), np.zeros((5, 20), dtype=np.uint64)
    asymmetric.scan(*estimated.before, 0, case.n_rows, bounds, keys)
    check(estimated, keys, [range(case.n_rows)] * 5, bounds)
    assert np.isinf(bounds).all()


@settings(max_examples=50)
@given(case=cases(by_row=st.just(False)), n_cells=st.integers(1, 8), k=st.sampled_from([1, 2, 10, 600]), data=st.data())
def test_visit(case, n_cells, k, data):
    """What a scan finds among the rows of some cells, which may be empty, share a block or reach over several."""
    estimated = data.draw(estimates(case))
    n_queries, n_rows = estimated.distances.shape
    ends = np.sort(case.rng.integers(0, n_rows + 1, n_cells - 1))
    offsets = np.array([0, *ends, n_rows], dtype=np.int64)
    n_probes = data.draw(st.integers(1, n_cells))
    cells = np.array([case.rng.permutation(n_cells)[:n_probes] for _ in range(n_queries)])
    keys = np.zeros((n_queries, min(k, n_rows)), dtype=np.uint64)
    asymmetric.visit(*estimated.before, cells, offsets, keys)
    visited = [[row for cell in some for row in range(offsets[cell], offsets[cell + 1])] for some in cells]
    check(estimated, keys, visited, [np.inf] * n_queries)


@settings(max_examples=40)
@given(case=cases(), n=st.integers(0, 20), data=st.data())
def test_estimates_of_single_rows(case, n, data):
    estimated = data.draw(estimates(case))
    rows = case.rng.integers(0, case.n_rows, (case.n_queries, n))
    out = np.full(rows.shape, np.nan, dtype=np.float32)
    steps, shifts, _ = estimated.of_queries
    offsets, factors, _ = estimated.of_rows
    asymmetric.estimate_rows(case.levels, case.totals, steps, shifts, case.blocks, offsets, factors, rows, out)
    np.testing.assert_array_equal(out, np.take_along_axis(estimated.plain, rows, axis=1))


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
