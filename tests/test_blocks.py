"""Distances of queries to blocks of 16 rows, the keys that are kept, and scans, each against plain numpy."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.data.codes import to_words
from cbeindex.kernels import blocks as block_kernels
from cbeindex.kernels import cascading, scanning, selecting
from cbeindex.kernels.jit import njit
from tests import oracles
from tests.strategies import code_batches, masks, rankings

pytestmark = pytest.mark.kernels

NO_KEY = np.uint64(2**64 - 1)
NOTHING, NO_RANKS = np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int32)
# Around the words of a register, and the 31 after which bytes are widened.
WORDS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 30, 31, 32, 33, 39, 62, 63, 65)


@njit(nogil=True)
def within_one(planes, number, blocks, block, begin, end, limits, out, at):
    return block_kernels.distances_within(planes, (number,), blocks, block, begin, end, 64, limits, 1, out, at)


@njit(nogil=True)
def within_four(planes, a, b, c, d, blocks, block, begin, end, limits, out):
    return block_kernels.distances_within(planes, (a, b, c, d), blocks, block, begin, end, 4096, limits, 1, out, 0)


@njit(nogil=True)
def least_of(planes, a, b, c, d, blocks, block, n_words, least):
    block_kernels.least_distances(planes, (a,), blocks, block, 0, n_words, 0, least)
    block_kernels.least_distances(planes, (a, b, c, d), blocks, block + 1, 0, n_words, 4096, least)


def in_blocks(words):
    """Store rows of words as blocks, the last of which is filled up with ones: padding must never be a result."""
    padded = np.full((-(-len(words) // 16) * 16, words.shape[1]), 2**64 - 1, dtype=np.uint64)
    padded[: len(words)] = words
    return np.ascontiguousarray(padded.reshape(-1, 16, words.shape[1]).transpose(0, 2, 1))


class Search:
    """What a scan is given and what it finds, for the `k` nearest of rows [start, stop), or all of them if `k` is 0."""

    def __init__(self, queries, words, hidden, ranks, start, stop, k, bound=2**31):
        n_queries, room = len(queries), selecting.room_for(k) if k else 16 * (len(words) // 16 + 1)
        self.queries, self.blocks = queries, in_blocks(words)
        self.rows = (start, stop, hidden, ranks, k)
        self.limits = np.full((1, n_queries), bound - 1, dtype=np.int64)
        self.found = np.empty((n_queries, room), dtype=np.uint64)
        self.counts = np.zeros((n_queries, 2), dtype=np.int64)

    def scan(self, start, stop):
        _, _, hidden, ranks, k = self.rows
        scanning.scan(self.queries, self.blocks, hidden, ranks, start, stop, k, self.limits, self.found, self.counts)

    def cascade(self, ends, z):
        """Return the numbers of blocks that were read."""
        start, stop, hidden, ranks, k = self.rows
        least = np.zeros((len(self.queries), len(self.blocks)), dtype=np.uint16)
        n_read, n_bits = np.zeros(len(self.queries), dtype=np.int64), 64 * self.queries.shape[1]
        cascading.prefix_scan(self.queries, self.blocks, ends[0], start // 16, -(-stop // 16), least)
        cascading.measure_blocks(
            self.queries, self.blocks, least, start, stop, hidden, ranks, k, n_bits, np.array(ends), z, self.limits,
            self.found, self.counts, n_read,
        )  # fmt: skip
        return n_read

    def keys(self):
        keys = np.empty((len(self.queries), self.rows[4]), dtype=np.uint64)
        selecting.put_in_order(self.found, self.counts, keys)
        return keys


def nearest(*arguments):
    """The `k` smallest keys of each query."""
    search = Search(*arguments)
    search.scan(*search.rows[:2])
    return search.keys()


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


@given(st.sampled_from(WORDS), st.integers(0, 999))
def test_least_distances_of_blocks(n_words, seed):
    rng = np.random.default_rng(seed)
    words, queries = (rng.integers(0, 2**64, (n, n_words + 1), dtype=np.uint64) for n in (48, 5))
    least = np.full((5, 3), 7, dtype=np.uint16)
    least_of(block_kernels.planes_of(queries), 4, 0, 1, 2, in_blocks(words), 1, n_words, least)
    expected = oracles.hamming(queries[:, :n_words], words[:, :n_words]).reshape(5, 3, 16).min(axis=2)
    assert least[4, 1] == expected[4, 1]
    np.testing.assert_array_equal(least[[4, 0, 1, 2], 2], expected[[4, 0, 1, 2], 2])
    assert least[3, 2] == 7


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
    keys = nearest(queries, words, hidden, ranks, start, stop, k, bound)
    expected = expected_keys(queries, words, hidden, ranks, start, stop, bound)
    for of_query, wanted in zip(keys, expected, strict=True):
        np.testing.assert_array_equal(of_query[: len(wanted)], wanted[:k])
        assert (of_query[len(wanted) :] == NO_KEY).all()


@settings(max_examples=30)
@given(code_batches(max_queries=6), st.data())
def test_rows_within_a_radius(batch, data):
    queries, words = (to_words(part, batch.n_bits) for part in (batch.queries, batch.codes))
    n = len(words)
    hidden, ranks = data.draw(masks(n)), data.draw(rankings(n))
    start, stop = sorted(data.draw(st.integers(0, n)) for _ in range(2))
    radius = data.draw(st.integers(0, batch.n_bits))
    search = Search(queries, words, hidden, ranks, start, stop, 0, radius + 1)
    search.scan(start, stop)
    expected = expected_keys(queries, words, hidden, ranks, start, stop, radius + 1)
    for found, count, wanted in zip(search.found, search.counts[:, 0], expected, strict=True):
        np.testing.assert_array_equal(np.sort(found[:count]), wanted)


def test_scans_of_parts_continue_each_other():
    """Limits, keys and counts of a scan of some rows carry over to that of later rows."""
    rng = np.random.default_rng(0)
    words, queries = (rng.integers(0, 2**64, (n, 3), dtype=np.uint64) for n in (1_000, 5))
    arguments = queries, words, NOTHING, NO_RANKS, 0, 1_000, 20
    search = Search(*arguments)
    for start, stop in ((0, 333), (333, 500), (500, 1_000)):
        search.scan(start, stop)
    np.testing.assert_array_equal(search.keys(), nearest(*arguments))


def test_mapped_codes_are_scanned():
    """Arrays that cannot be written, as mapped files are."""
    words = np.arange(48, dtype=np.uint64).reshape(48, 1)
    search = Search(words[5:7].copy(), words, NOTHING, NO_RANKS, 0, 48, 1)
    search.blocks.flags.writeable = search.queries.flags.writeable = False
    search.scan(0, 48)
    np.testing.assert_array_equal(search.keys()[:, 0], [5, 6])


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
    exact = expected_keys(queries, words, hidden, ranks, start, stop)
    for z in (1e6, 0.0):
        search = Search(queries, words, hidden, ranks, start, stop, k)
        n_read = search.cascade((*ends, n_words), z)
        assert (n_read <= -(-stop // 16) - start // 16).all()
        for keys, wanted in zip(search.keys(), exact, strict=True):
            valid = keys[keys != NO_KEY]
            assert np.isin(valid, wanted).all()
            assert (np.diff(valid.astype(np.int64)) > 0).all()
            if z:
                np.testing.assert_array_equal(valid, wanted[:k])


def test_cascade_reads_few_blocks():
    """A nearest row whose differing bits are all in its first word is overlooked: others have one there at most."""
    words = np.full((4_096, 32), 2**64 - 1, dtype=np.uint64)
    words[500:540], words[3_000] = 0, 0
    words[500:540, 31], words[3_000, 0] = 0xFFFF, 0xFF
    search = Search(np.zeros((1, 32), dtype=np.uint64), words, NOTHING, NO_RANKS, 0, 4_096, 1)
    assert search.cascade((1, 32), 1.0)[0] < 50
    assert search.keys()[0, 0] == 16 << 32 | 500
    search.scan(0, 4_096)
    assert search.keys()[0, 0] == 8 << 32 | 3_000


def test_limits_of_stages():
    """Few rows at a distance exceed the limits: counts over the first words are hypergeometric."""
    limits, ends = np.zeros((3, 1), dtype=np.int64), np.array([8, 16, 32])
    cascading.set_stage_limits(700, 2_048, ends, 2.0, limits)
    assert limits[2, 0] == 700
    for limit, end in zip(limits[:2, 0], ends[:2], strict=True):  # two standard deviations: 0.023 of a normal
        assert 0.015 < scipy.stats.hypergeom.sf(limit, 2_048, 700, 64 * end) < 0.03
    for distance in (0, 2_048):
        cascading.set_stage_limits(distance, 2_048, ends, 5.0, limits)
        np.testing.assert_array_equal(limits[:, 0], distance * ends // 32)


def test_blocks_that_a_bound_leaves():
    least = np.array([[9, 1, 5, 3], [0, 30, 31, 0]], dtype=np.uint16)
    # Over 64 of 128 bits, half of a distance is expected: 3 and 30.
    assert cascading.n_left(least, 1, 4, np.array([6, 60]), 128, np.array([1, 2]), 0.0) == 2 + 2


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
