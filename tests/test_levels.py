"""Quantised projections of queries, and their planes and tables."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from cbeindex.kernels import levels
from tests.estimate_cases import Case, levels_of, packed

pytestmark = pytest.mark.kernels

WIDTHS = (1, 2, 15, 16, 17, 63, 64, 65, 130, 384)


def quantised(projections):
    n, n_bits = projections.shape
    out = np.zeros((n, -(-n_bits // 64) * 64), dtype=np.int8)
    steps, totals = np.full(n, -1, dtype=np.float32), np.full(n, -1, dtype=np.int32)
    projections.flags.writeable = False
    levels.quantise(projections, out, steps, totals)
    return out, steps, totals


def check(projections):
    out, steps, totals = quantised(projections)
    expected_steps, expected = levels_of(projections)
    np.testing.assert_array_equal(steps, expected_steps)
    np.testing.assert_array_equal(out[:, : projections.shape[1]], expected)
    assert not out[:, projections.shape[1] :].any()
    np.testing.assert_array_equal(totals, np.abs(expected.astype(np.int32)).sum(axis=1))


@given(st.sampled_from(WIDTHS), st.integers(1, 4), st.sampled_from([1e-30, 1.0, 1e30]), st.integers(0, 99))
def test_projections_are_quantised(n_bits, n_queries, size, seed):
    rng = np.random.default_rng(seed)
    check((size * rng.standard_normal((n_queries, n_bits))).astype(np.float32))


@settings(max_examples=60)
@given(arrays.arrays(np.float32, (2, 19), elements=st.floats(-(2.0**100), 2.0**100, width=32)))
@example(np.zeros((1, 70), dtype=np.float32))
@example(-np.zeros((2, 3), dtype=np.float32))
# Subnormal numbers: a step of one unit in the last place is half too small.
@example(np.array([[22, 3, 1]], dtype=np.int32).view(np.float32) * np.float32(1))
# Halves are rounded to even numbers.
@example(np.array([[15, 0.5, 1.5, -2.5, -14.5]], dtype=np.float32))
def test_any_projections_are_quantised(projections):
    check(projections)


def test_the_largest_projection_has_the_largest_level():
    out, steps, totals = quantised(np.array([[0.25, -7.5, 3.0]], dtype=np.float32))
    np.testing.assert_array_equal(out[0, :3], [0, -15, 6])
    assert (steps[0], totals[0]) == (0.5, 21)


cases = st.builds(
    Case, st.sampled_from(WIDTHS), st.just(1), st.integers(1, 4), st.sampled_from([0, 1, 15]), st.integers(0, 99)
)


@given(cases)
def test_planes(case):
    planes = levels.planes_of(case.levels).reshape(case.n_queries, -1, 5)
    bits = [case.signed > 0, *(np.abs(case.signed) >> plane & 1 == 1 for plane in range(4))]
    for plane, expected in zip(planes.transpose(2, 0, 1), bits, strict=True):
        np.testing.assert_array_equal(plane, packed(expected))


@given(cases)
def test_tables(case):
    """The weight of each value of each nibble, where the look-ups of `weights.py` read it."""
    tables = levels.tables_of(case.levels).view(np.uint8).reshape(case.n_queries, -1, 16)
    for query, signed in enumerate(case.levels.astype(int)):
        for nibble in range(signed.size // 4):
            of_nibble = signed[4 * nibble : 4 * nibble + 4]
            weights = [
                sum(abs(level) for i, level in enumerate(of_nibble) if (level > 0) != (value >> i & 1))
                for value in range(16)
            ]
            word, byte, is_upper = nibble // 16, nibble // 2 % 8, nibble % 2
            place = 16 * word + 8 * (byte // 4) + 4 * is_upper + byte % 4
            np.testing.assert_array_equal(tables[query, place], weights)
