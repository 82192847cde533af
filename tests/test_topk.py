"""Candidate keys and the selection of the smallest, each kernel against plain numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex.kernels import topk
from tests import oracles
from tests.kernel_cases import NO_KEY, keys_of
from tests.strategies import masks, rankings

pytestmark = pytest.mark.kernels


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5), min_size=1, max_size=60), st.data())
def test_smallest_keys(values, data):
    n = data.draw(st.integers(1, len(values)))
    k = data.draw(st.integers(1, n))
    keys = np.array(values, dtype=np.uint64)
    assert topk.keep_smallest(keys, n, k) == sorted(values[:n])[k - 1]
    assert sorted(keys[:k].tolist()) == sorted(values[:n])[:k]
    assert sorted(keys[:n].tolist()) == sorted(values[:n])
    assert keys[n:].tolist() == values[n:]


@given(st.lists(st.integers(0, 2**64 - 2), max_size=40), st.integers(1, 50), st.data())
def test_keys_in_order(values, k, data):
    count = data.draw(st.integers(0, len(values)))
    keys = np.empty(k, dtype=np.uint64)
    topk.put_ascending(np.array([*values, 0], dtype=np.uint64), count, keys)
    expected = sorted(values[:count])[:k]
    assert keys.tolist() == expected + [int(NO_KEY)] * (k - len(expected))


@given(st.lists(st.integers(0, 9), min_size=64, max_size=64), st.integers(-1, 9), st.integers(0, 1000), st.data())
def test_rows_within_a_limit(distances, limit, first_row, data):
    at = data.draw(st.integers(0, 63))
    n = data.draw(st.integers(0, 64 - at))
    rows, near = np.empty(64, dtype=np.int64), np.empty(64, dtype=np.int64)
    n_near = topk.rows_within(np.array(distances, dtype=np.int32), limit, at, n, first_row, rows, near)
    expected = [(first_row + i, value) for i, value in enumerate(distances[at : at + n]) if value <= limit]
    assert list(zip(rows[:n_near].tolist(), near[:n_near].tolist(), strict=True)) == expected


@given(st.lists(st.integers(0, 9), max_size=30), st.data())
def test_hidden_rows_are_dropped(distances, data):
    n = len(distances)
    hidden = np.random.default_rng(data.draw(st.integers(0, 99))).random(n + 1) < 0.5
    rows, near = np.arange(n)[::-1].copy(), np.array(distances, dtype=np.int64)
    expected = [(row, value) for row, value in zip(rows.tolist(), distances, strict=True) if not hidden[row]]
    n_left = topk.drop_hidden(rows, near, n, hidden)
    assert list(zip(rows[:n_left].tolist(), near[:n_left].tolist(), strict=True)) == expected


class Found:
    """Keys of rows as they are found, seven at a time, in as little room as that needs."""

    def __init__(self, distances, k, shift, ranks):
        self.distances, self.k, self.shift, self.ranks = np.array(distances, dtype=np.int64), k, shift, ranks
        self.keys = np.zeros(k + 8, dtype=np.uint64)
        self.tally, self.state = np.zeros((40 >> shift) + 1, dtype=np.int32), np.array([0, 40 >> shift, 0])

    def parts(self):
        """Append all rows, and tell after each part how many there are."""
        for start in range(0, len(self.distances), 7):
            rows = np.arange(start, min(start + 7, len(self.distances)))
            near = self.distances[rows]
            topk.append_nearer(rows, near, len(rows), self.ranks, self.k, self.shift, self.tally, self.state, self.keys)
            yield rows[-1] + 1


@given(st.lists(st.integers(0, 40), min_size=1, max_size=120), st.integers(1, 30), st.integers(0, 3), st.data())
def test_the_bound_follows_what_is_found(distances, k, shift, data):
    """After every few rows the keys hold the k nearest so far, and the bound is their last distance, cut to places."""
    ranks = data.draw(rankings(len(distances)))
    found = Found(distances, k, shift, ranks)
    for n in found.parts():
        expected = oracles.best_keys(distances, range(n), k, (), ranks)
        assert set(expected[expected != 2**64 - 1].tolist()) <= set(found.keys[: found.state[0]].tolist())
        full = expected[-1] != 2**64 - 1
        assert found.state[1] == (int(expected[-1] >> np.uint64(32)) >> shift if full else 40 >> shift)


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(-1, 10))
def test_keys_within_a_bound_stay(distances, bound):
    made = np.array([distance << 32 | row for row, distance in enumerate(distances)], dtype=np.uint64)
    kept = made.copy()
    n = topk.keep_within(kept, len(kept), bound)
    np.testing.assert_array_equal(kept[:n], [key for key in made.tolist() if key >> 32 <= bound])


@given(st.lists(st.integers(0, 40), min_size=1, max_size=200), st.integers(1, 30), st.integers(0, 3), st.data())
def test_keys_are_put_in_order(distances, k, shift, data):
    """Keys are ordered by distance and rank, also if more rows are at one distance than are kept."""
    ranks, keys = data.draw(rankings(len(distances))), np.zeros(k, dtype=np.uint64)
    found = Found(distances, k, shift, ranks)
    assert list(found.parts())[-1] == len(distances)
    count, last, _ = found.state
    n_left = topk.keep_within(found.keys, count, ((last + 1) << shift) - 1)
    topk.put_in_order(found.keys, n_left, shift, found.tally, last, keys)
    np.testing.assert_array_equal(keys, oracles.best_keys(distances, range(len(distances)), k, (), ranks))


@given(st.lists(st.integers(0, 2_000), max_size=30, unique=True), st.data())
def test_keys_are_appended(rows, data):
    hidden, ranks = data.draw(masks(2_001)), data.draw(rankings(2_001))
    distances = np.arange(len(rows), dtype=np.int64) * 1_000
    keys = np.full(2 + len(rows), NO_KEY)
    n = data.draw(st.integers(0, len(rows)))
    count = topk.append_keys(np.array(rows, dtype=np.int64), distances, n, hidden, ranks, keys, 2)
    left = [i for i, row in enumerate(rows[:n]) if not (hidden.size and hidden[row])]
    np.testing.assert_array_equal(keys[2:count], keys_of(distances[left], np.array(rows, dtype=np.int64)[left], ranks))
    assert (keys[count:] == NO_KEY).all()


def test_tallies_have_at_most_512_places():
    assert [topk.tally_shift(n_bits) for n_bits in (1, 511, 512, 1_023, 1_024, 102_400)] == [0, 0, 1, 1, 2, 8]
