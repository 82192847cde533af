"""Kernels of the cascade, each against plain numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex.data.codes import CodeRows
from cbeindex.kernels import cascade
from tests import oracles
from tests.kernel_cases import LONG, keys_of, stored, tails_of
from tests.strategies import code_batches, masks, rankings

pytestmark = pytest.mark.kernels


def head_distances(queries, words, hidden):
    """Distances over the head, the largest uint16 for hidden rows, and the least of each 16 rows."""
    n_head = CodeRows.empty(1, 64 * words.shape[1]).n_head
    heads = oracles.hamming(queries[:, :n_head], words[:, :n_head]).astype(np.uint16)
    if hidden.size:
        heads[:, hidden] = 65_535
    groups = np.pad(heads, ((0, 0), (0, -heads.shape[1] % 16)), constant_values=65_535)
    return heads, groups.reshape(len(heads), -1, 16).min(axis=2)


@given(code_batches(), st.data())
def test_head_scan(batch, data):
    queries, words, rows = stored(batch)
    hidden = data.draw(masks(len(words)))
    expected, expected_least = head_distances(queries, words, hidden)
    heads = np.zeros((len(queries), len(words)), dtype=np.uint16)
    least = np.zeros((len(queries), 32 * len(rows.head)), dtype=np.uint16)
    for start in range(0, len(words), 512):  # in parts, as threads do
        cascade.head_scan(queries, rows.head, hidden, start, min(start + 512, len(words)), heads, least)
    np.testing.assert_array_equal(heads, expected)
    np.testing.assert_array_equal(least[:, : expected_least.shape[1]], expected_least)


@given(code_batches(widths=LONG, max_queries=1), st.data())
def test_survivors_are_measured(batch, data):
    queries, words, rows = stored(batch)
    n, k = len(words), data.draw(st.sampled_from([1, 3, 300]))
    hidden, ranks = data.draw(masks(n)), data.draw(rankings(n))
    heads, least = head_distances(queries, words, hidden)
    start = data.draw(st.sampled_from([0, 512])) if n > 512 else 0
    above, limit = sorted(data.draw(st.sampled_from([-1, *heads[0].tolist()])) for _ in range(2))
    limit = min(limit, 65_534)
    exact = oracles.hamming(queries, words)[0]
    last_limit = int(np.quantile(exact, data.draw(st.sampled_from([0.5, 1.0]))))
    found = np.empty(k + 512 + min(k, 256), dtype=np.uint64)
    count, n_measured = cascade.measure_survivors(
        tails_of(queries, rows)[0], rows.tail, heads[0], least[0], ranks, start, n, above, limit,
        np.array([rows.tail.shape[1]], dtype=np.uint64), np.array([last_limit], dtype=np.int64), found, k,
    )  # fmt: skip
    survivors = np.array([row for row in range(start, n) if above < heads[0, row] <= limit], dtype=np.int64)
    assert n_measured == len(survivors)
    near = survivors[exact[survivors] <= last_limit]
    np.testing.assert_array_equal(np.sort(found[:count]), np.sort(keys_of(exact[near], near, ranks))[:k])


@given(code_batches(widths=LONG, max_queries=1), st.data())
def test_first_bound(batch, data):
    """The rows within reach of the head are measured, and the limits follow from the k-th distance among them."""
    queries, words, rows = stored(batch)
    n, k, z = len(words), data.draw(st.sampled_from([1, 3, 300])), 3.0
    n_first = 2 * k + data.draw(st.integers(0, 32))
    hidden, ranks = data.draw(masks(n)), data.draw(rankings(n))
    heads, least = head_distances(queries, words, hidden)
    n_words = words.shape[1]
    prefix_bits, limits = np.array([512, batch.n_bits]), np.empty(2, dtype=np.int64)
    found = np.empty(k + 512 + min(k, 256), dtype=np.uint64)
    count, reach, n_measured = cascade.first_bound(
        tails_of(queries, rows)[0], rows.tail, heads[0], least[0], ranks, n, batch.n_bits,
        np.array([n_words - 8], dtype=np.uint64), prefix_bits, z, n_first, found, k, limits,
    )  # fmt: skip
    measured = np.flatnonzero((heads[0] <= reach) & (heads[0] < 65_535))
    n_visible = n - np.count_nonzero(hidden)
    assert n_measured == len(measured) >= min(n_first, n_visible)
    exact = np.sort(keys_of(oracles.hamming(queries, words)[0][measured], measured, ranks))[:k]
    np.testing.assert_array_equal(np.sort(found[:count]), exact)
    if count < k:
        assert n_measured == n_visible
        assert limits[0] == reach  # nothing is left to measure
    else:
        distance = int(exact[-1] >> np.uint64(32))
        expected = np.empty(2, dtype=np.int64)
        cascade.prefix_limits(distance, batch.n_bits, prefix_bits, z, expected)
        np.testing.assert_array_equal(limits, expected)


@given(st.integers(1, 200), st.data())
def test_limits_over_prefixes(n_bits, data):
    distance = data.draw(st.integers(0, n_bits))
    prefix_bits = np.array(data.draw(st.lists(st.integers(1, n_bits), min_size=1, max_size=5)))
    z = data.draw(st.floats(-3, 8))
    limits = np.empty(len(prefix_bits), dtype=np.int64)
    cascade.prefix_limits(distance, n_bits, prefix_bits, z, limits)
    for size, limit in zip(prefix_bits, limits, strict=True):
        expected = oracles.prefix_limit(distance, n_bits, int(size), z)
        # Float64 errs by some 1e-12 here; within 1e-9 of a whole number either neighbour is right.
        assert limit in {min(distance, int(np.floor(expected + error))) for error in (-1e-9, 1e-9)}


@pytest.mark.parametrize("z", [0.0, 3.1, 38.0])
def test_the_whole_distance_is_its_own_limit(z):
    """Not one less, which p * n_bits rounds to for a tenth of all distances: equal rows of a lower id would be lost."""
    n_bits = np.repeat(np.arange(1, 130), 130)
    limits = np.empty(1, dtype=np.int64)
    for size, distance in zip(n_bits.tolist(), np.tile(np.arange(130), 129).tolist(), strict=True):
        if distance <= size:
            cascade.prefix_limits(distance, size, np.array([size]), z, limits)
            assert limits[0] == distance
