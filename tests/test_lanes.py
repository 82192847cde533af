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
def weights(query, planes, word, columns, n_words, row, out):
    lanes.add_weights(query, planes, word, columns, n_words, row, out)


@njit(nogil=True)
def weighted(queries, numbers, places, columns, row, out):
    lanes.add_weighted(queries, numbers, places, columns, row, out)


@njit(nogil=True)
def within(distances, row, limit):
    return lanes.within(distances, row, limit)


def count(words, axis):
    return np.bitwise_count(words).sum(axis=axis, dtype=np.int64)


class Case:
    """Rows word by word, in wider arrays, and queries with more words before and after those that count."""

    def __init__(self, seed, n_words, n_before, n_after):
        rng = np.random.default_rng(seed)

        def some(*shape):
            return rng.integers(0, 2**64, shape, dtype=np.uint64)

        self.columns = [some(n_words + n_after, N_ROWS) for _ in range(3)]
        self.queries, self.planes = (some(*shape, n_before + n_words + n_after) for shape in ((N_QUERIES,), (4,)))
        self.words = slice(n_before, n_before + n_words)
        self.numbers = tuple(int(i) for i in rng.integers(0, N_QUERIES, 4))
        self.places = tuple(int(i) for i in rng.permutation(N_PLACES)[:4])
        self.row = int(rng.integers(0, N_ROWS - 16, endpoint=True))
        self.n_words = n_words

    def apart(self, query):
        """The words in which the rows that are asked for differ from a query, (n_words, 16)."""
        rows = self.columns[0][: self.n_words, self.row : self.row + 16]
        return rows ^ query[self.words, np.newaxis]

    def check(self, out, expected):
        """The sums are added at their places, and nothing else changes."""
        before = np.arange(out.size, dtype=np.int32).reshape(out.shape)
        for place, values in expected.items():
            before[place, self.row : self.row + 16] += values.astype(np.int32)
        np.testing.assert_array_equal(out, before)


def numbered(n_places):
    return np.arange(n_places * N_ROWS, dtype=np.int32).reshape(n_places, N_ROWS)


cases = st.builds(Case, st.integers(0, 999), st.sampled_from([0, 1, 2, 8, 17]), st.integers(0, 2), st.integers(0, 2))


@settings(max_examples=40)
@given(cases)
def test_weights_of_a_query(case):
    query, planes, out = case.queries[0], case.planes, numbered(1)
    weights(query, planes, case.words.start, case.columns[0], case.n_words, case.row, out[0])
    of_plane = [count(case.apart(query) & plane[case.words, np.newaxis], 0) for plane in planes]
    case.check(out, {0: of_plane[0] + 2 * of_plane[1] + 4 * of_plane[2] + 8 * of_plane[3]})


@settings(max_examples=40)
@given(
    st.builds(Case, st.integers(0, 999), st.sampled_from([1, 2, 8, 17]), st.just(0), st.just(0)),
    st.sampled_from([1, 4]),
)
def test_weights_of_rows(case, n):
    out, numbers, places = numbered(N_PLACES), case.numbers[:n], case.places[:n]
    weighted(case.queries, numbers, places, tuple(case.columns), case.row, out)
    ones, twos = (part[:, case.row : case.row + 16] for part in case.columns[1:])
    apart = [case.apart(case.queries[i]) for i in numbers]
    case.check(out, {p: count(a & ones, 0) + 2 * count(a & twos, 0) for a, p in zip(apart, places, strict=True)})


@pytest.mark.parametrize("n_words", [1, 600])
def test_counts_of_many_words_do_not_run_over(n_words):
    columns = np.full((n_words, 16), 2**64 - 1, dtype=np.uint64)
    query, planes = np.zeros(n_words, dtype=np.uint64), np.full((4, n_words), 2**64 - 1, dtype=np.uint64)
    out = np.zeros(16, dtype=np.int32)
    weights(query, planes, 0, columns, n_words, 0, out)
    assert (out == 15 * 64 * n_words).all()


@given(st.lists(st.integers(-3, 3), min_size=40, max_size=40), st.integers(-4, 4), st.integers(0, 24))
def test_rows_within_a_limit(distances, limit, row):
    found = int(within(np.array(distances, dtype=np.float32), row, np.float32(limit)))
    near = [int(value <= limit) for value in distances[row : row + 16]]
    assert [found >> i & 1 for i in range(64)] == near + [0] * 48
