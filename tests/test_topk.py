"""Candidate keys and the selection of the smallest, each kernel against plain numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex.kernels import topk
from tests.kernel_cases import NO_KEY, NO_RANKS, NOT_HIDDEN, keys_of
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


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 9)), min_size=1, max_size=300), st.data())
def test_reducing_a_buffer(pairs, data):
    """Distances near each other and far apart, and many at the same distance."""
    scale = data.draw(st.sampled_from([1, 20, 10_000]))
    keys = np.array([(d // scale) << 32 | i % (r + 1) for i, (d, r) in enumerate(pairs)], dtype=np.uint64)
    k = data.draw(st.integers(1, len(keys)))
    reduced = keys.copy()
    largest = topk.reduce_buffer(reduced, len(keys), k, np.empty(512, dtype=np.int32), np.empty_like(keys))
    expected = np.sort(keys)[:k]
    assert largest == expected[-1]
    np.testing.assert_array_equal(np.sort(reduced[:k]), expected)


class Buffer:
    """Keys of the rows of a query, put in as a scan does: those within the limit, until the buffer is full."""

    def __init__(self, k):
        self.k, self.limit = k, 2**31
        self.found, self.counts = np.zeros(topk.room_for(k), dtype=np.uint64), np.zeros(2, dtype=np.int64)

    def add(self, distances, hidden, ranks, in_order):
        for row, distance in enumerate(distances):
            if distance <= self.limit:
                self.found[self.counts[0]] = distance << 32 | row
                self.counts[0] += 1
            if self.counts[0] == self.found.size:
                self.settle(len(distances), hidden, ranks, in_order)

    def settle(self, n_rows, hidden, ranks, in_order):
        tally, spare = np.empty(512, dtype=np.int32), np.empty_like(self.found)
        self.limit = topk.settle(
            self.found, self.counts, 2, n_rows - 1, hidden, ranks, self.k, self.limit, in_order, tally, spare
        )


@pytest.mark.parametrize("scale", [1, 1_000])
@given(st.lists(st.integers(0, 40), min_size=3, max_size=200), st.sampled_from([1, 5, 40]), st.data())
def test_a_buffer_keeps_the_smallest_keys(scale, distances, k, data):
    """Without hidden rows and those outside of a range; ties are many, and the limit follows the k-th distance."""
    n, distances = len(distances), [scale * distance for distance in distances]
    hidden, ranks = data.draw(masks(n)), data.draw(rankings(n))
    in_order = not ranks.size and data.draw(st.booleans())
    buffer = Buffer(k)
    buffer.add(distances, hidden, ranks, in_order)
    buffer.settle(n, hidden, ranks, in_order)
    rows = [row for row in range(2, n - 1) if not (hidden.size and hidden[row])]
    expected = np.sort(keys_of(np.array(distances)[rows], np.array(rows, dtype=np.int64), ranks))[:k]
    assert buffer.counts.tolist() == [len(expected)] * 2
    np.testing.assert_array_equal(np.sort(buffer.found[: len(expected)]), expected)
    if len(rows) > k:
        assert buffer.limit == int(expected[-1] >> np.uint64(32)) - in_order
    keys = np.zeros((1, k + 3), dtype=np.uint64)
    topk.put_in_order(buffer.found[np.newaxis], buffer.counts[np.newaxis], keys)
    np.testing.assert_array_equal(keys[0, : len(expected)], expected)
    assert (keys[0, len(expected) :] == NO_KEY).all()


def test_wrong_ranks_leave_distances_alone():
    """A file may hold any ranks: they must not reach into the distance of a key."""
    buffer = Buffer(2)
    buffer.add([9, 9, 5, 7, 9], NOT_HIDDEN, NO_RANKS, True)
    buffer.settle(5, NOT_HIDDEN, np.full(5, -1, dtype=np.int32), False)
    np.testing.assert_array_equal(np.sort(buffer.found[:2] >> np.uint64(32)), [5, 7])
