"""Counts of 16 rows at a time against plain numpy, in and beside the rows that are asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.kernels import lanes
from cbeindex.kernels.jit import njit

pytestmark = pytest.mark.kernels

N_ROWS, N_QUERIES, N_PLACES = 40, 7, 9


@njit(nogil=True)
def weighted(queries, numbers, places, columns, row, out):
    lanes.add_weighted(queries, numbers, places, columns, row, out)


def count(words, axis):
    return np.bitwise_count(words).sum(axis=axis, dtype=np.int64)


class Case:
    """Weighted rows word by word, and queries."""

    def __init__(self, seed, n_words):
        rng = np.random.default_rng(seed)
        self.columns = tuple(rng.integers(0, 2**64, (n_words, N_ROWS), dtype=np.uint64) for _ in range(3))
        self.queries = rng.integers(0, 2**64, (N_QUERIES, n_words), dtype=np.uint64)
        self.numbers = tuple(int(i) for i in rng.integers(0, N_QUERIES, 4))
        self.places = tuple(int(i) for i in rng.permutation(N_PLACES)[:4])
        self.row = int(rng.integers(0, N_ROWS - 16, endpoint=True))

    def weights(self, query):
        """Weights of the positions at which the rows that are asked for differ from a query, (16,)."""
        signs, ones, twos = (part[:, self.row : self.row + 16] for part in self.columns)
        apart = signs ^ query[:, np.newaxis]
        return count(apart & ones, 0) + 2 * count(apart & twos, 0)


@settings(max_examples=40)
@given(st.builds(Case, st.integers(0, 999), st.sampled_from([1, 2, 8, 17])), st.sampled_from([1, 4]))
def test_weights_of_rows(case, n):
    """The sums are added at their places, and nothing else changes."""
    out = np.arange(N_PLACES * N_ROWS, dtype=np.int32).reshape(N_PLACES, N_ROWS)
    expected = out.copy()
    for number, place in zip(case.numbers[:n], case.places[:n], strict=True):
        expected[place, case.row : case.row + 16] += case.weights(case.queries[number]).astype(np.int32)
    weighted(case.queries, case.numbers[:n], case.places[:n], case.columns, case.row, out)
    np.testing.assert_array_equal(out, expected)
