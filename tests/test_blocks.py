"""Distances of queries to blocks of 16 rows, the keys that are kept, and scans, each against plain numpy."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.codes import to_words
from cbeindex.kernels import blocks as block_kernels
from cbeindex.kernels import scanning, selecting
from cbeindex.kernels.jit import njit
from tests import oracles
from tests.strategies import code_batches, masks, rankings

NO_KEY = np.uint64(2**64 - 1)
# Around the two words that an adder takes, the eight of a group, and the 31 after which bytes are widened.
WORDS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 30, 31, 32, 33, 39, 62, 63, 65)


@njit(nogil=True)
def within_one(planes, number, blocks, block, begin, end, limits, out, at):
    return block_kernels.distances_within(planes, (number,), blocks, block, begin, end, limits, 1, out, at, 64)


@njit(nogil=True)
def within_four(planes, a, b, c, d, blocks, block, begin, end, limits, out):
    return block_kernels.distances_within(planes, (a, b, c, d), blocks, block, begin, end, limits, 1, out, 0, 4096)


def in_blocks(words):
    """Store rows of words as blocks, the last of which is filled up with ones: padding must never be a result."""
    padded = np.full((-(-len(words) // 16) * 16, words.shape[1]), 2**64 - 1, dtype=np.uint64)
    padded[: len(words)] = words
    return np.ascontiguousarray(padded.reshape(-1, 16, words.shape[1]).transpose(0, 2, 1))


def nearest(queries, blocks, hidden, ranks, start, stop, k, bound=2**31, ends=(), z=0.0):
    """The `k` smallest keys of each query."""
    n_words = queries.shape[1]
    bounds = np.full(len(queries), bound - 1, dtype=np.int64)
    found = np.empty((len(queries), selecting.room_for(k)), dtype=np.uint64)
    counts, keys = np.zeros((len(queries), 2), dtype=np.int64), np.empty((len(queries), k), dtype=np.uint64)
    ends = np.array([*ends, n_words])
    scanning.scan(queries, blocks, hidden, ranks, start, stop, k, 64 * n_words, ends, z, bounds, found, counts)
    selecting.put_in_order(found, counts, keys)
    return keys


def expected_keys(queries, words, hidden, ranks, start, stop, bound=2**31):
    """Ascending keys of all rows that may be results, one array for each query."""
    places = (ranks if ranks.size else np.arange(len(words)))[start:stop].astype(np.uint64)
    distances = np.bitwise_count(queries[:, np.newaxis] ^ words[np.newaxis, start:stop]).sum(axis=2, dtype=np.uint64)
    valid = (distances < bound) & ~(hidden[start:stop] if hidden.size else np.zeros(stop - start, dtype=np.bool_))
    return [np.sort((d << np.uint64(32) | places)[v]) for d, v in zip(distances, valid, strict=True)]


@settings(max_examples=60)
@given(
    st.sampled_from(WORDS),
    st.sampled_from([0, 1, 4, 9]),
    st.integers(0, 3),
    st.sampled_from(["random", "equal", "opposite"]),
    st.integers(0, 999),
)
def test_distances_of_a_block(n_words, begin, n_more, kind, seed):
    """Of one and of four queries, over some words of longer codes, and the rows within each query's limit."""
    n_words += begin
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**64, (32, n_words + n_more), dtype=np.uint64)
    queries = rng.integers(0, 2**64, (7, n_words + n_more), dtype=np.uint64)
    if kind != "random":
        queries[:] = words[17] if kind == "equal" else ~words[17]
    planes, blocks = block_kernels.planes_of(queries), in_blocks(words)
    distances = oracles.hamming(queries[:, begin:n_words], words[16:, begin:n_words])
    before = rng.integers(0, 100, (4, 16)).astype(np.int32)
    distances += before[2] if begin else 0
    limits = np.sort(distances, axis=1)[:, rng.integers(0, 16)].astype(np.int64)
    both = np.stack([np.zeros_like(limits), limits])
    expected = [sum(int(near) << i for i, near in enumerate(row)) for row in distances <= limits[:, np.newaxis]]
    out = before.copy()
    assert within_one(planes, 5, blocks, 1, begin, n_words, both, out, 2) == expected[5]
    np.testing.assert_array_equal(out[2], distances[5])
    np.testing.assert_array_equal(out[[0, 1, 3]], before[[0, 1, 3]])
    numbers = (int(rng.integers(7)), 3, 0, 6)
    out[:] = before[2]
    found = int(within_four(planes, *numbers, blocks, 1, begin, n_words, both, out))
    assert found == sum(expected[number] << (16 * i) for i, number in enumerate(numbers))
    np.testing.assert_array_equal(out, distances[list(numbers)])


@pytest.mark.parametrize("n_words", [1, 300])
def test_no_row_is_within_a_limit_below_all_distances(n_words):
    blocks = np.full((1, n_words, 16), 2**64 - 1, dtype=np.uint64)
    planes, out = block_kernels.planes_of(np.zeros((4, n_words), dtype=np.uint64)), np.empty((4, 16), dtype=np.int32)
    limits = np.array([[0] * 4, [64 * n_words - 1, -1, 64 * n_words - 1, 0]])
    assert within_one(planes, 0, blocks, 0, 0, n_words, limits, out, 0) == 0
    assert within_four(planes, 0, 1, 2, 3, blocks, 0, 0, n_words, limits, out) == 0
    limits[1, 2] += 1
    assert int(within_four(planes, 0, 1, 2, 3, blocks, 0, 0, n_words, limits, out)) == 0xFFFF << 32


@settings(max_examples=60)
@given(code_batches(max_queries=9), st.data())
def test_nearest_rows(batch, data):
    """Any k, rows from anywhere to anywhere, hidden rows, ranks and a bound."""
    queries, words = (to_words(part, batch.n_bits) for part in (batch.queries, batch.codes))
    n = len(words)
    hidden, ranks = data.draw(masks(n)), data.draw(rankings(n))
    start, stop = sorted(data.draw(st.integers(0, n)) for _ in range(2))
    k = data.draw(st.sampled_from([1, 2, 10, 33, 100, 700]))
    bound = data.draw(st.sampled_from([2**31, batch.n_bits // 2 + 1]))
    keys = nearest(queries, in_blocks(words), hidden, ranks, start, stop, k, bound)
    expected = expected_keys(queries, words, hidden, ranks, start, stop, bound)
    for of_query, wanted in zip(keys, expected, strict=True):
        np.testing.assert_array_equal(of_query[: len(wanted)], wanted[:k])
        assert (of_query[len(wanted) :] == NO_KEY).all()


@settings(max_examples=40)
@given(code_batches(widths=(300, 513, 1_025, 1_600), max_queries=6), st.data())
def test_cascade(batch, data):
    """A cascade with room for any deviation is exact; with little room its results are rows at their distances."""
    queries, words = (to_words(part, batch.n_bits) for part in (batch.queries, batch.codes))
    n, n_words = words.shape
    hidden, ranks = data.draw(masks(n)), data.draw(rankings(n))
    start, stop = sorted(data.draw(st.integers(0, n)) for _ in range(2))
    k = data.draw(st.sampled_from([1, 10, 100]))
    ends = data.draw(st.sampled_from([(1,), (4,), (1, 2, 4), (n_words - 1,)]))
    blocks, exact = in_blocks(words), expected_keys(queries, words, hidden, ranks, start, stop)
    keys = nearest(queries, blocks, hidden, ranks, start, stop, k, ends=ends, z=1e6)
    for of_query, wanted in zip(keys, exact, strict=True):
        np.testing.assert_array_equal(of_query[: len(wanted)], wanted[:k])
    keys = nearest(queries, blocks, hidden, ranks, start, stop, k, ends=ends, z=0.0)
    for of_query, wanted in zip(keys, exact, strict=True):
        valid = of_query[of_query != NO_KEY]
        assert np.isin(valid, wanted).all()
        assert (np.diff(valid.astype(np.int64)) > 0).all()


def test_cascade_leaves_rows_that_differ_early():
    """A nearest row whose differing bits are all in its first word is overlooked: others have one there at most."""
    words = np.full((4_096, 32), 2**64 - 1, dtype=np.uint64)
    words[500:540], words[3_000] = 0, 0
    words[500:540, 31], words[3_000, 0] = 0xFFFF, 0xFF
    queries, nothing, no_ranks = np.zeros((1, 32), dtype=np.uint64), np.zeros(0, dtype=np.bool_), np.zeros(0, np.int32)
    exact, cascade = (
        nearest(queries, in_blocks(words), nothing, no_ranks, 0, 4_096, 1, ends=ends, z=1.0) for ends in ((), (1,))
    )
    assert exact[0, 0] == 8 << 32 | 3_000
    assert cascade[0, 0] == 16 << 32 | 500


def test_limits_of_stages():
    """Few rows at a distance exceed the limits: counts over the first words are hypergeometric."""
    limits, ends = np.zeros((3, 2), dtype=np.int64), np.array([8, 16, 32])
    scanning.set_stage_limits(1, 700, 2_048, ends, 2.0, limits)
    assert limits[2, 1] == 700
    for limit, end in zip(limits[:2, 1], ends[:2], strict=True):  # two standard deviations: 0.023 of a normal
        assert 0.015 < scipy.stats.hypergeom.sf(limit, 2_048, 700, 64 * end) < 0.03
    assert (limits[:, 0] == 0).all()
    for distance in (0, 2_048):
        scanning.set_stage_limits(0, distance, 2_048, ends, 5.0, limits)
        np.testing.assert_array_equal(limits[:, 0], distance * ends // 32)


@settings(max_examples=30)
@given(code_batches(max_queries=6), st.data())
def test_rows_within_a_radius(batch, data):
    queries, words = (to_words(part, batch.n_bits) for part in (batch.queries, batch.codes))
    n = len(words)
    hidden, ranks = data.draw(masks(n)), data.draw(rankings(n))
    start, stop = sorted(data.draw(st.integers(0, n)) for _ in range(2))
    radius = data.draw(st.integers(0, batch.n_bits))
    limits, counts = np.full(len(queries), radius), np.zeros((len(queries), 2), dtype=np.int64)
    found = np.empty((len(queries), -(-n // 16) * 16), dtype=np.uint64)
    ends = np.array([queries.shape[1]])
    scanning.scan(
        queries, in_blocks(words), hidden, ranks, start, stop, 0, batch.n_bits, ends, 0.0, limits, found, counts
    )
    expected = expected_keys(queries, words, hidden, ranks, start, stop, radius + 1)
    for of_query, count, wanted in zip(found, counts[:, 0], expected, strict=True):
        np.testing.assert_array_equal(np.sort(of_query[:count]), wanted)


def test_scans_of_parts_continue_each_other():
    """Limits, keys and counts of a scan of some rows carry over to that of later rows."""
    rng = np.random.default_rng(0)
    words, queries = (rng.integers(0, 2**64, (n, 3), dtype=np.uint64) for n in (1_000, 5))
    nothing, no_ranks, blocks = np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int32), in_blocks(words)
    limits, counts = np.full(5, 2**30), np.zeros((5, 2), dtype=np.int64)
    found, keys = np.empty((5, selecting.room_for(20)), dtype=np.uint64), np.empty((5, 20), dtype=np.uint64)
    for start, stop in ((0, 333), (333, 500), (500, 1_000)):
        scanning.scan(
            queries, blocks, nothing, no_ranks, start, stop, 20, 192, np.array([3]), 0.0, limits, found, counts
        )
    selecting.put_in_order(found, counts, keys)
    np.testing.assert_array_equal(keys, nearest(queries, blocks, nothing, no_ranks, 0, 1_000, 20))


def test_mapped_codes_are_scanned():
    """Arrays that cannot be written, as mapped files are."""
    words = np.arange(48, dtype=np.uint64).reshape(48, 1)
    blocks, queries = in_blocks(words), words[5:7].copy()
    blocks.flags.writeable = queries.flags.writeable = False
    keys = nearest(queries, blocks, np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int32), 0, 48, 1)
    np.testing.assert_array_equal(keys[:, 0], [5, 6])


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 9)), min_size=1, max_size=300), st.data())
def test_reducing_a_buffer(pairs, data):
    """Distances near each other and far apart, and many at the same distance."""
    scale = data.draw(st.sampled_from([1, 20, 10_000]))
    keys = np.array([(d // scale) << 32 | i % (r + 1) for i, (d, r) in enumerate(pairs)], dtype=np.uint64)
    k = data.draw(st.integers(1, len(keys)))
    reduced = keys.copy()
    largest = selecting.reduce_buffer(reduced, len(keys), k, np.empty(512, dtype=np.int32), np.empty_like(keys))
    expected = np.sort(keys)[:k]
    assert largest == expected[-1]
    np.testing.assert_array_equal(np.sort(reduced[:k]), expected)
