"""Limits below which the smallest distances lie, against sorting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex.kernels.thresholds import (
    keep_first,
    kth_smallest,
    limit_of_smallest,
    order_bits,
    places_within,
    put_first,
)
from tests.small import examples

pytestmark = pytest.mark.kernels

values = st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf])


def ordered(distances):
    out = np.empty(len(distances), dtype=np.int32)
    order_bits(distances, len(distances), out)
    return out


@examples(100)
@given(st.lists(values, min_size=1, max_size=60))
def test_bits_order_like_distances(given_values):
    distances = np.array(given_values, dtype=np.float32)
    bits = ordered(distances)
    for i in range(len(distances)):
        np.testing.assert_array_equal(bits[distances < distances[i]] < bits[i], True)
        is_same = (distances == distances[i]) & (np.signbit(distances) == np.signbit(distances[i]))
        np.testing.assert_array_equal(bits[is_same], bits[i])


@examples(100)
@given(st.lists(values, min_size=1, max_size=60), st.data())
def test_limit_lets_the_smallest_pass_and_hardly_more(given_values, data):
    bits = ordered(np.array(given_values, dtype=np.float32))
    k = data.draw(st.integers(1, len(bits)))
    limit = limit_of_smallest(bits, len(bits), k)
    smallest = np.sort(bits)[k - 1]
    assert limit >= smallest
    # More than k + k / 8 pass only if the k-th is equal to them.
    assert np.count_nonzero(bits <= limit) <= max(k + k // 8, np.count_nonzero(bits <= smallest))
    places = np.full(len(bits), -1)
    n = places_within(bits, len(bits), limit, places)
    np.testing.assert_array_equal(places[:n], np.flatnonzero(bits <= limit))


some_keys = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5), min_size=1, max_size=60)


@examples(100)
@given(some_keys, st.data())
def test_smallest_keys_are_counted(given_keys, data):
    n = data.draw(st.integers(1, len(given_keys)))
    k = data.draw(st.integers(1, n))
    smallest = sorted(given_keys[:n])[:k]
    keys = np.array(given_keys, dtype=np.uint64)
    assert kth_smallest(keys, n, k) == smallest[-1]
    assert keys.tolist() == given_keys
    assert keep_first(keys, n, k) == smallest[-1]
    assert sorted(keys[:k].tolist()) == smallest
    assert keys[n:].tolist() == given_keys[n:]


@examples(100)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=60, unique=True), st.data())
def test_smallest_keys_come_first(given_keys, data):
    n = data.draw(st.integers(1, len(given_keys)))
    k = data.draw(st.integers(1, n))
    keys = np.array(given_keys, dtype=np.uint64)
    put_first(keys, n, k)
    assert sorted(keys[:k].tolist()) == sorted(given_keys[:n])[:k]
    assert sorted(keys[:n].tolist()) == sorted(given_keys[:n])
    assert keys[n:].tolist() == given_keys[n:]
