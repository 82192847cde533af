"""Products and squared distances of rows against plain numpy: whole numbers exactly, floats in the stated order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.kernels import dots

pytestmark = pytest.mark.kernels

# Around 16 and 32 elements, four vectors of 16, and the steps after which sums of whole numbers are flushed.
LENGTHS = (0, 1, 7, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 80, 100, 127, 384, 784, 1_000)
ROWS = np.array([3, 0, 4, 1, 2, 2, 0])


def frozen(array):
    array.flags.writeable = False
    return array


@settings(max_examples=40)
@given(st.sampled_from(LENGTHS), st.integers(0, 999))
def test_whole_numbers(n, seed):
    rng = np.random.default_rng(seed)
    check_whole(rng.integers(-128, 128, (5, n)).astype(np.int8), rng.integers(-(2**15), 2**15, (2, n)).astype(np.int16))


@pytest.mark.parametrize("n", [4_064, 4_096, 4_128, 20_011])
@pytest.mark.parametrize("query", [-(2**15), 2**15 - 1])
@pytest.mark.parametrize("row", [-128, 127, -1])
def test_the_largest_sums(n, query, row):
    """-1 has the largest nibbles."""
    check_whole(np.full((5, n), row, dtype=np.int8), np.full((2, n), query, dtype=np.int16))


def check_whole(matrix, query):
    out, first = np.empty(len(ROWS), dtype=np.int64), frozen(query[0].copy())
    rows, whole = matrix.astype(np.int64), query.astype(np.int64)
    dots.dots_of_int8(first, frozen(matrix), ROWS, out)
    np.testing.assert_array_equal(out, (rows @ whole[0])[ROWS])
    dots.squares_of_int8(first, np.sum(whole[0] ** 2), matrix, ROWS, out)
    np.testing.assert_array_equal(out, ((rows - whole[0]) ** 2).sum(axis=1)[ROWS])
    lower, upper = rows & 15, rows >> 4 & 15
    as_bytes = matrix.view(np.uint8)
    dots.dots_of_int4(frozen(query), as_bytes, ROWS, out)
    np.testing.assert_array_equal(out, (lower @ whole[0] + upper @ whole[1])[ROWS])
    dots.squares_of_int4(query, np.sum(whole**2), as_bytes, ROWS, out)
    np.testing.assert_array_equal(out, ((lower - whole[0]) ** 2 + (upper - whole[1]) ** 2).sum(axis=1)[ROWS])


def in_order(terms):
    """Sum of float32 terms as the kernels add them: see `dots.py`."""
    n, sums = terms.size, np.zeros((4, 16), dtype=np.float32)
    whole, fours = terms[: n // 16 * 16].reshape(-1, 16), n // 64 * 4
    for i, vector in enumerate(whole):
        sums[i % 4 if i < fours else 0] += vector
    if n % 16:
        tail = terms[-16:].copy() if n > 16 else np.pad(terms, (0, 16 - n))
        tail[: 16 - n % 16 if n > 16 else 0] = 0
        sums[1] += tail
    total = (sums[0] + sums[1]) + (sums[2] + sums[3])
    for size in (8, 4, 2, 1):
        total = total[:size] + total[size:]
    return total[0]


@settings(max_examples=60)
@given(st.sampled_from(LENGTHS), st.booleans(), st.integers(0, 999))
def test_floats_are_added_in_one_order(n, is_half, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((5, n)).astype(np.float16 if is_half else np.float32)
    query, wide = rng.standard_normal(n).astype(np.float32), matrix.astype(np.float32)
    given_as = frozen(matrix.view(np.uint16) if is_half else matrix)
    out = np.empty(len(ROWS), dtype=np.float32)
    dots.dots_of_floats(frozen(query), given_as, ROWS, out)
    np.testing.assert_array_equal(out, [in_order(query * wide[row]) for row in ROWS])
    dots.squares_of_floats(query, given_as, ROWS, out)
    np.testing.assert_array_equal(out, [in_order((query - wide[row]) * (query - wide[row])) for row in ROWS])


def test_every_float16_is_read_right():
    every = np.arange(2**16, dtype=np.uint16)
    matrix = every[:, np.newaxis]
    out = np.empty(len(every), dtype=np.float32)
    with np.errstate(invalid="ignore"):  # some are signalling nans
        dots.dots_of_floats(np.ones(1, dtype=np.float32), matrix, np.arange(len(every)), out)
        np.testing.assert_array_equal(out, every.view(np.float16).astype(np.float32))
