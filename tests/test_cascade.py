"""Kernels of the cascade, each against plain numpy."""

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.data.codes import to_words
from cbeindex.kernels import cascade, prefixes, scanrest
from cbeindex.search.scan import ScanState
from tests import oracles
from tests.kernel_cases import NO_KEY, NO_RANKS, NOT_HIDDEN, check_keys, expected_keys, in_blocks
from tests.strategies import code_batches, masks, rankings

pytestmark = pytest.mark.kernels

LONG = (300, 513, 1_025, 1_600)
# Beyond all distances over some words.
HIDDEN = 2**30


class Cascade:
    """The kernels, and the arrays that they pass on."""

    def __init__(self, queries, words, hidden, ranks, k, ends, z=0.0):
        self.queries, self.blocks, self.hidden, self.ranks = queries, in_blocks(words), hidden, ranks
        self.n_rows, self.n_bits, self.k, self.ends, self.z = len(words), 64 * words.shape[1], k, np.array(ends), z
        n_queries, n_blocks = len(queries), len(self.blocks)
        self.prefix = np.zeros((n_blocks * n_queries, 16), dtype=np.int32)
        self.least = np.full((n_queries, -(-2 * n_blocks // 64) * 64), 65_535, dtype=np.uint16)
        for begin in range(0, n_blocks, 7):  # in parts, as threads do
            end = min(begin + 7, n_blocks)
            prefixes.prefix_scan(queries, self.blocks, hidden, ends[0], begin, end, self.prefix, self.least)

    def nearest(self, query, most_left=2**62):
        """Return the keys of the nearest rows, the number of halves read, and the limits of stages."""
        keys = np.full((len(self.queries), self.k), 7, dtype=np.uint64)
        limits, n_read = np.zeros((len(self.ends), len(keys)), dtype=np.int64), np.full(len(keys), 7)
        cascade.nearest(
            self.queries, np.array([query]), self.blocks, self.prefix, self.least, self.n_rows, self.ranks,
            self.n_bits, self.ends, self.z, most_left, limits, keys, n_read,
        )  # fmt: skip
        others = np.arange(len(keys)) != query
        assert (keys[others] == 7).all()
        assert (n_read[others] == 7).all()
        return keys[query], n_read[query], limits[:, query]

    def scan_rest(self, numbers, cuts, limit):
        """Return the keys of the nearest rows of some queries, scanned in parts."""
        state = ScanState.empty(len(self.queries), self.k, limit)
        for begin, end in itertools.pairwise(cuts):
            scanrest.scan_rest(
                self.queries, numbers, self.blocks, self.ends[0], begin, end, self.prefix, self.n_rows, self.ranks,
                *state,
            )  # fmt: skip
        keys = np.empty((len(self.queries), self.k), dtype=np.uint64)
        state.write(keys)
        return keys[numbers]


@given(code_batches(max_queries=9), st.data())
def test_distances_over_the_prefix(batch, data):
    """Hidden rows are beyond all others."""
    queries, words = (to_words(part, batch.n_bits) for part in (batch.queries, batch.codes))
    hidden, n_words = data.draw(masks(len(words))), data.draw(st.integers(1, words.shape[1]))
    run = Cascade(queries, words, hidden, NO_RANKS, 1, (n_words,))
    expected = oracles.hamming(queries[:, :n_words], words[:, :n_words])
    expected[:, np.flatnonzero(hidden)] = HIDDEN
    found = run.prefix.reshape(len(run.blocks), len(queries), 16).transpose(1, 0, 2).reshape(len(queries), -1)
    np.testing.assert_array_equal(found[:, : len(words)], expected)
    if len(words) % 16 == 0 or hidden.size:  # otherwise the last block has rows of ones behind the last row
        padded = np.pad(expected, ((0, 0), (0, -len(words) % 16)), constant_values=HIDDEN)
        least = np.minimum(padded.reshape(len(queries), -1, 8).min(axis=2), 65_535)
        np.testing.assert_array_equal(run.least[:, : least.shape[1]], least)
        assert (run.least[:, least.shape[1] :] == 65_535).all()


@settings(max_examples=60)
@given(code_batches(widths=LONG, max_queries=6), st.data())
def test_nearest_rows(batch, data):
    """A cascade with room for any deviation is exact; with little room its results are rows at their distances."""
    queries, words = (to_words(part, batch.n_bits) for part in (batch.queries, batch.codes))
    n, n_words = words.shape
    hidden, ranks = data.draw(masks(n)), data.draw(rankings(n))
    k, query = data.draw(st.sampled_from([1, 10, 100])), data.draw(st.integers(0, len(queries) - 1))
    ends = data.draw(st.sampled_from([(1,), (4,), (1, 2, 4), (n_words - 1,)]))
    exact = expected_keys(queries, words, hidden, ranks, range(n))[query]
    for z in (1e6, 0.0):
        keys, _, _ = Cascade(queries, words, hidden, ranks, k, (*ends, n_words), z).nearest(query)
        valid = keys[keys != NO_KEY]
        assert np.isin(valid, exact).all()
        assert (np.diff(valid.astype(np.int64)) > 0).all()
        if z:
            np.testing.assert_array_equal(valid, exact[:k])


@settings(max_examples=60)
@given(code_batches(widths=LONG, max_queries=9), st.data())
def test_a_scan_of_what_is_left(batch, data):
    """It finds what a scan finds, for any of the queries and in parts, whatever the limit that is known."""
    queries, words = (to_words(part, batch.n_bits) for part in (batch.queries, batch.codes))
    n, n_words = words.shape
    hidden, ranks = data.draw(masks(n)), data.draw(rankings(n))
    k = data.draw(st.sampled_from([1, 10, 100]))
    chosen = data.draw(st.sets(st.integers(0, len(queries) - 1), min_size=1))
    numbers = np.array(sorted(chosen)) if data.draw(st.booleans()) else np.arange(len(queries))
    cuts = [0, data.draw(st.integers(0, -(-n // 16))), -(-n // 16)]
    limit = data.draw(st.sampled_from([batch.n_bits, batch.n_bits // 2]))
    run = Cascade(queries, words, hidden, ranks, k, (data.draw(st.integers(1, n_words - 1)), n_words))
    expected = expected_keys(queries, words, hidden, ranks, range(n), limit + 1)
    check_keys(run.scan_rest(numbers, cuts, limit), [expected[number] for number in numbers])


def test_ties_in_halves_that_are_read_late():
    """Rows at the k-th distance in halves that seem farther precede rows of later halves that were read before."""
    words = np.full((16 * 80, 4), 2**64 - 1, dtype=np.uint64)
    words[::16] = 0
    words[: 16 * 40 : 16, 0] = words[16 * 40 :: 16, 1] = 0xFF
    run = Cascade(np.zeros((1, 4), dtype=np.uint64), words, NOT_HIDDEN, NO_RANKS, 3, (1, 4), 1e6)
    keys, _, limits = run.nearest(0)
    assert limits.tolist() == [8, 8]
    np.testing.assert_array_equal(keys, [8 << 32, 8 << 32 | 16, 8 << 32 | 32])


def test_a_query_is_given_up_when_too_many_halves_are_left():
    """The last limit is then at least the k-th distance, and halves that were read to the end do not count."""
    words = np.random.default_rng(0).integers(0, 2**64, (1_600, 8), dtype=np.uint64)
    queries = words[:1] ^ np.uint64(1)
    distances = np.sort(oracles.hamming(queries, words)[0])
    run = Cascade(queries, words, NOT_HIDDEN, NO_RANKS, 3, (1, 8), 1e6)
    _, n_read, limits = run.nearest(0, most_left=100)
    assert n_read == -1
    assert limits[-1] >= distances[2]
    run = Cascade(queries, words, NOT_HIDDEN, NO_RANKS, 3, (1, 8), 1e6)
    keys, n_read, _ = run.nearest(0, most_left=200)
    assert n_read == 200
    np.testing.assert_array_equal(keys >> np.uint64(32), distances[:3])


@pytest.mark.parametrize(("step", "k"), [(1, 1), (1, 3), (4, 4), (4, 13)])
def test_survivors_of_a_sample(step, k):
    """Those within a quarter of the distance, over a quarter of the words, of the row at a rank; none is hidden."""
    words = np.full((16 * 100, 4), 2**64 - 1, dtype=np.uint64)
    words[::8, 1:] = 0
    words[::8, 1] = 2**40 - 1
    for block in range(100):
        near = 2 ** min(block // 4, 64) - 1 if block % 4 == 0 else 2**64 - 1
        words[16 * block, 0], words[16 * block + 8, 0] = near, 2**64 - 1
    hidden = np.zeros(len(words), dtype=np.bool_)
    hidden[0] = True
    queries = np.zeros((2, 4), dtype=np.uint64)
    queries[1] = 2**64 - 1  # rows of ones are in every half
    ends, n_halves = np.array([1, 4]), 2 * (100 // step)
    # Blocks 4, 8, ... have 1, 2, ... ones in the first word, and 40 in the second.
    n_left = (40 + max(1, k // step)) // 4
    for n_most, expected in ((n_left, [True, False]), (n_left - 1, [False, False]), (n_halves, [True, True])):
        flags = np.zeros(2, dtype=np.bool_)
        share = (n_most + 0.5) / n_halves
        cascade.find_promising(queries, in_blocks(words), hidden, 1_600, step, k, 256, ends, 0.0, share, flags)
        assert flags.tolist() == expected


def test_few_halves_are_read():
    """A nearest row whose differing bits are all in its first word is overlooked: others have one there at most."""
    words = np.full((4_096, 32), 2**64 - 1, dtype=np.uint64)
    words[500 : 500 + 16 * 40], words[3_000] = 0, 0
    words[500 : 500 + 16 * 40, 31], words[3_000, 0] = 0xFFFF, 0xFF
    run = Cascade(np.zeros((1, 32), dtype=np.uint64), words, NOT_HIDDEN, NO_RANKS, 1, (1, 32), 1.0)
    keys, n_read, _ = run.nearest(0)
    assert n_read <= 2 * 81
    assert keys[0] == 16 << 32 | 500
    assert run.scan_rest(np.array([0]), [0, 256], 2_048)[0, 0] == 8 << 32 | 3_000


def test_limits_of_stages():
    """Few rows at a distance exceed the limits: counts over the first words are hypergeometric."""
    limits, ends = np.zeros((3, 2), dtype=np.int64), np.array([8, 16, 32])
    cascade.set_stage_limits(700, 2_048, ends, 2.0, limits, 1)
    assert limits[2].tolist() == [0, 700]
    for limit, end in zip(limits[:2, 1], ends[:2], strict=True):  # two standard deviations: 0.023 of a normal
        assert 0.015 < scipy.stats.hypergeom.sf(limit, 2_048, 700, 64 * end) < 0.03
    for distance in (0, 2_048):
        cascade.set_stage_limits(distance, 2_048, ends, 5.0, limits, 1)
        np.testing.assert_array_equal(limits[:, 1], distance * ends // 32)


@given(st.integers(65, 2_000), st.data())
def test_limits_over_prefixes(n_bits, data):
    distance, z = data.draw(st.integers(0, n_bits)), data.draw(st.floats(-3, 8))
    n_words = -(-n_bits // 64)
    ends = np.array([*sorted(data.draw(st.sets(st.integers(1, n_words - 1), max_size=4))), n_words])
    limits = np.empty((len(ends), 1), dtype=np.int64)
    cascade.set_stage_limits(distance, n_bits, ends, z, limits, 0)
    for end, limit in zip(ends[:-1], limits[:-1, 0], strict=True):
        expected = oracles.prefix_limit(distance, n_bits, 64 * int(end), z)
        # Float64 errs by some 1e-12 here; within 1e-9 of a whole number either neighbour is right.
        assert limit in {min(distance, int(np.floor(expected + error))) for error in (-1e-9, 1e-9)}
    assert limits[-1, 0] == distance  # equal rows of a lower id would be lost with less
