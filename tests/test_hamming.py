"""Kernels of Hamming distances, each against plain numpy."""

import itertools
import subprocess
import sys

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex.data.codes import CodeRows, to_words
from cbeindex.kernels import hamming
from cbeindex.kernels.popcount import popcount64
from cbeindex.search.scan import scan_state
from tests import oracles
from tests.conftest import COMPILED, ROOT
from tests.strategies import code_batches, masks, rankings, some_codes

pytestmark = pytest.mark.kernels

NONE = np.uint64(2**64 - 1)
LONG = (1_025, 1_087, 1_089, 1_535, 1_600, 2_100)
SMALL = (1, 2, 15, 16, 17, 40)


def keys_of(distances, rows, ranks=None):
    """Keys of rows, or of their ranks if they have such."""
    places = np.asarray(rows).astype(np.int64)
    if ranks is not None and ranks.size:
        places = ranks[places]
    return np.asarray(distances).astype(np.uint64) << np.uint64(32) | places.astype(np.uint64)


def stored(batch):
    """Queries and codes of a batch as words, and the codes as stored rows."""
    words = to_words(batch.codes, batch.n_bits)
    return to_words(batch.queries, batch.n_bits), words, CodeRows.of(words, batch.n_bits)


def tails_of(queries, rows):
    return np.ascontiguousarray(queries[:, rows.n_head :])


def head_distances(queries, words, hidden):
    """Distances over the head, the largest uint16 for hidden rows, and the least of each 16 rows."""
    n_head = CodeRows.empty(1, 64 * words.shape[1]).n_head
    heads = oracles.hamming(queries[:, :n_head], words[:, :n_head]).astype(np.uint16)
    if hidden.size:
        heads[:, hidden] = 65_535
    groups = np.pad(heads, ((0, 0), (0, -heads.shape[1] % 16)), constant_values=65_535)
    return heads, groups.reshape(len(heads), -1, 16).min(axis=2)


@numba.njit
def counted(words, out):
    for i in range(words.size):
        out[i] = popcount64(words[i])


def test_popcount():
    words = np.array([0, 1, 2**63, 2**64 - 1, 0xF0F0, 0x123456789ABCDEF], dtype=np.uint64)
    out = np.empty(6, dtype=np.uint64)
    counted(words, out)
    np.testing.assert_array_equal(out, [0, 1, 1, 64, 8, 32])


@given(code_batches(max_queries=11), st.data())
def test_distances_of_columns(batch, data):
    """Of any of the queries, to rows between two multiples of 16, over the words from any of them on."""
    queries, _, rows = stored(batch)
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    numbers, places = rng.permutation(len(queries)), rng.permutation(len(queries) + 2)
    n = data.draw(st.integers(0, len(queries)))
    first, last = sorted(16 * data.draw(st.integers(0, 32)) for _ in range(2))
    word = data.draw(st.integers(0, rows.n_head - 1))
    out = np.full((len(places), 512), 7, dtype=np.int32)
    hamming.add_distances(queries, numbers, places, n, word, rows.head[0][word:], first, last, out)
    expected = np.full((len(places), 512), 7, dtype=np.int32)
    for number, place in zip(numbers[:n], places[:n], strict=True):
        apart = rows.head[0][word:] ^ queries[number, word : rows.n_head, np.newaxis]
        expected[place, first:last] += np.bitwise_count(apart).sum(axis=0, dtype=np.int32)[first:last]
    np.testing.assert_array_equal(out, expected)


@given(code_batches(widths=LONG, sizes=SMALL, max_queries=1), st.data())
def test_tails_of_rows(batch, data):
    """Rows are left at the first stage at which they exceed its limit; the others have their whole distance."""
    queries, words, rows = stored(batch)
    n_tail = rows.tail.shape[1]
    ends = sorted({n_tail, *data.draw(st.lists(st.integers(1, n_tail), max_size=3))})
    prefixes = [oracles.hamming(queries[:, : 8 + end], words[:, : 8 + end])[0] for end in ends]
    limits = [int(np.quantile(p, data.draw(st.sampled_from([0.3, 0.7, 1.0])))) for p in prefixes]
    some = np.array(data.draw(st.permutations(range(len(words)))), dtype=np.int64)
    distances = oracles.hamming(queries[:, : rows.n_head], words[:, : rows.n_head])[0][some].astype(np.int64)
    expected = [row for row in some if all(p[row] <= limit for p, limit in zip(prefixes, limits, strict=True))]
    n_left = hamming.add_tails(
        tails_of(queries, rows)[0], rows.tail, some, distances, len(some),
        np.array(ends, dtype=np.uint64), np.array(limits, dtype=np.int64),
    )  # fmt: skip
    np.testing.assert_array_equal(some[:n_left], expected)
    np.testing.assert_array_equal(distances[:n_left], prefixes[-1][expected])


@given(code_batches(widths=LONG, sizes=(1, 40, 513)), st.data())
def test_tails_of_a_block(batch, data):
    """Distances are whole where a query can still have an answer in the block, and not below its bound elsewhere."""
    queries, words, rows = stored(batch)
    block = len(rows.head) - 1
    block_words = words[512 * block :]
    first = data.draw(st.integers(0, len(queries) - 1))
    exact = oracles.hamming(queries, block_words)
    bounds = np.array([data.draw(st.sampled_from([0, d.min(), d.min() + 1, 2**31 - 1])) for d in exact], np.int32)
    out = np.zeros((len(queries), 512), dtype=np.int32)
    out[: len(queries) - first, : len(block_words)] = oracles.hamming(queries[first:, :8], block_words[:, :8])
    columns = np.empty((8, 512), dtype=np.uint64)
    hamming.add_tails_of_block(
        tails_of(queries, rows), first, len(queries), rows.tail, block, len(block_words), bounds, columns, out
    )
    for query in range(first, len(queries)):
        near = out[query - first, : len(block_words)]
        if exact[query].min() < bounds[query]:
            np.testing.assert_array_equal(near, exact[query])
        else:
            assert near.min() >= bounds[query]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.data())
def test_least(values, data):
    n = data.draw(st.integers(0, len(values)))
    assert hamming.least_of(np.array(values, dtype=np.int32), n) == min([2**31 - 1, *values[:n]])


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5), min_size=1, max_size=60), st.data())
def test_smallest_keys(values, data):
    n = data.draw(st.integers(1, len(values)))
    k = data.draw(st.integers(1, n))
    keys = np.array(values, dtype=np.uint64)
    assert hamming.keep_smallest(keys, n, k) == sorted(values[:n])[k - 1]
    assert sorted(keys[:k].tolist()) == sorted(values[:n])[:k]
    assert sorted(keys[:n].tolist()) == sorted(values[:n])
    assert keys[n:].tolist() == values[n:]


@given(st.lists(st.integers(0, 2**64 - 2), max_size=40), st.integers(1, 50), st.data())
def test_keys_in_order(values, k, data):
    count = data.draw(st.integers(0, len(values)))
    keys = np.empty(k, dtype=np.uint64)
    hamming.put_ascending(np.array([*values, 0], dtype=np.uint64), count, keys)
    expected = sorted(values[:count])[:k]
    assert keys.tolist() == expected + [int(NONE)] * (k - len(expected))


@given(st.lists(st.integers(0, 9), min_size=64, max_size=64), st.integers(-1, 9), st.integers(0, 1000), st.data())
def test_rows_within_a_limit(distances, limit, first_row, data):
    at = data.draw(st.integers(0, 63))
    n = data.draw(st.integers(0, 64 - at))
    rows, near = np.empty(64, dtype=np.int64), np.empty(64, dtype=np.int64)
    n_near = hamming.rows_within(np.array(distances, dtype=np.int32), limit, at, n, first_row, rows, near)
    expected = [(first_row + i, value) for i, value in enumerate(distances[at : at + n]) if value <= limit]
    assert list(zip(rows[:n_near].tolist(), near[:n_near].tolist(), strict=True)) == expected


@given(st.lists(st.integers(0, 9), max_size=30), st.data())
def test_hidden_rows_are_dropped(distances, data):
    n = len(distances)
    hidden = np.random.default_rng(data.draw(st.integers(0, 99))).random(n + 1) < 0.5
    rows, near = np.arange(n)[::-1].copy(), np.array(distances, dtype=np.int64)
    expected = [(row, value) for row, value in zip(rows.tolist(), distances, strict=True) if not hidden[row]]
    n_left = hamming.drop_hidden(rows, near, n, hidden)
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
            hamming.append_nearer(
                rows, near, len(rows), self.ranks, self.k, self.shift, self.tally, self.state, self.keys
            )
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
    n = hamming.keep_within(kept, len(kept), bound)
    np.testing.assert_array_equal(kept[:n], [key for key in made.tolist() if key >> 32 <= bound])


@given(st.lists(st.integers(0, 40), min_size=1, max_size=200), st.integers(1, 30), st.integers(0, 3), st.data())
def test_keys_are_put_in_order(distances, k, shift, data):
    """By distance and rank; also where so many are at one distance that some were left out before."""
    ranks, keys = data.draw(rankings(len(distances))), np.zeros(k, dtype=np.uint64)
    found = Found(distances, k, shift, ranks)
    assert list(found.parts())[-1] == len(distances)
    count, last, _ = found.state
    n_left = hamming.keep_within(found.keys, count, ((last + 1) << shift) - 1)
    hamming.put_in_order(found.keys, n_left, shift, found.tally, last, keys)
    np.testing.assert_array_equal(keys, oracles.best_keys(distances, range(len(distances)), k, (), ranks))


@given(st.lists(st.integers(0, 2_000), max_size=30, unique=True), st.data())
def test_keys_are_appended(rows, data):
    hidden, ranks = data.draw(masks(2_001)), data.draw(rankings(2_001))
    distances = np.arange(len(rows), dtype=np.int64) * 1_000
    keys = np.full(2 + len(rows), NONE)
    n = data.draw(st.integers(0, len(rows)))
    count = hamming.append_keys(np.array(rows, dtype=np.int64), distances, n, hidden, ranks, keys, 2)
    left = [i for i, row in enumerate(rows[:n]) if not (hidden.size and hidden[row])]
    np.testing.assert_array_equal(keys[2:count], keys_of(distances[left], np.array(rows, dtype=np.int64)[left], ranks))
    assert (keys[count:] == NONE).all()


def scan(queries, rows, hidden, ranks, cuts, bound, stage_ends, keys):
    """Scan the rows between cuts, one part after the other."""
    n_bits, k = 64 * queries.shape[1], keys.shape[1]
    state = scan_state(len(queries), k, n_bits, bound)
    for start, stop in itertools.pairwise(cuts):
        tails = tails_of(queries, rows)
        hamming.scan(queries, tails, rows.head, rows.tail, hidden, ranks, start, stop, stage_ends, k, *state)
    hamming.finish_all(state[0], n_bits, *state[1:3], keys)


@given(code_batches(), st.data())
def test_scan(batch, data):
    queries, words, rows = stored(batch)
    n, k = len(words), data.draw(st.sampled_from([1, 2, 10, 300, 1_100]))
    start = 512 * data.draw(st.integers(0, (n - 1) // 512))
    stop = data.draw(st.sampled_from([n, min(n, start + 512)]))
    hidden, ranks = data.draw(masks(n)), data.draw(rankings(n))
    exact = oracles.hamming(queries, words)
    bound = data.draw(st.sampled_from([2**31 - 1, int(np.median(exact)) + 1, 0]))
    n_tail = rows.tail.shape[1]
    ends = np.array(data.draw(st.sampled_from([[n_tail], [n_tail // 2, n_tail]])), dtype=np.uint64)
    keys = np.empty((len(queries), k), dtype=np.uint64)
    step = 512 * data.draw(st.integers(1, 3))
    scan(queries, rows, hidden, ranks, [*range(start, stop, step), stop], bound, ends, keys)
    for query in range(len(queries)):
        near = [r for r in range(start, stop) if exact[query, r] < bound and not (hidden.size and hidden[r])]
        expected = np.sort(keys_of(exact[query, near], near, ranks))[:k]
        np.testing.assert_array_equal(keys[query, : len(expected)], expected)
        assert (keys[query, len(expected) :] == NONE).all()


@pytest.mark.parametrize("n_bits", [64, 1_100])
@pytest.mark.parametrize("n_queries", [1, 3, 4, 33, 257])
def test_scan_of_groups_of_queries(n_bits, n_queries):
    """Below 4 queries tails are read row by row; above, 256 queries share a block."""
    rng = np.random.default_rng(n_queries)
    both = to_words(some_codes(rng, n_queries + 100, n_bits, 5, 0.2), n_bits)
    queries, words = both[:n_queries], both[n_queries:]
    rows = CodeRows.of(words, n_bits)
    keys = np.empty((n_queries, 7), dtype=np.uint64)
    ends, none = np.array([rows.tail.shape[1]], dtype=np.uint64), np.zeros(0, dtype=np.bool_)
    for ranks in (np.zeros(0, dtype=np.int32), rng.permutation(100).astype(np.int32)):
        scan(queries, rows, none, ranks, [0, 100], 2**31 - 1, ends, keys)
        every = keys_of(oracles.hamming(queries, words), np.arange(100)[np.newaxis], ranks)
        np.testing.assert_array_equal(keys, np.sort(every, axis=1)[:, :7])


def test_tallies_have_at_most_512_places():
    assert [hamming.step_of_tally(n_bits) for n_bits in (1, 511, 512, 1_023, 1_024, 102_400)] == [0, 0, 1, 1, 2, 8]


@pytest.mark.parametrize("k", [1, 10, 600])
def test_scan_of_very_long_codes(k):
    """The distances of nearly all rows are in two or three places of a tally."""
    n_bits, n, n_queries = 102_400, 600, 5
    rng = np.random.default_rng(k)
    both = to_words(some_codes(rng, n_queries + n, n_bits, 1_000, 0.5), n_bits)
    queries, words = both[:n_queries], both[n_queries:]
    rows, hidden, ranks = CodeRows.of(words, n_bits), rng.random(n) < 0.1, rng.permutation(n).astype(np.int32)
    keys, ends = np.empty((n_queries, k), dtype=np.uint64), np.array([rows.tail.shape[1]], dtype=np.uint64)
    scan(queries, rows, hidden, ranks, [0, n], 2**31 - 1, ends, keys)
    for distances, found in zip(oracles.hamming(queries, words), keys, strict=True):
        np.testing.assert_array_equal(found, oracles.best_keys(distances, range(n), k, hidden, ranks))


@pytest.mark.parametrize("n_bits", [64, 1_100])
@pytest.mark.parametrize("n_queries", [1, 5])
@pytest.mark.parametrize("k", [1, 40])
def test_ties_in_a_later_block(n_bits, n_queries, k):
    """Rows at the k-th distance that come last may have the first ranks."""
    rng = np.random.default_rng(k)
    words = to_words(np.tile(some_codes(rng, 1, n_bits), (1_100, 1)), n_bits)
    queries = to_words(some_codes(rng, n_queries, n_bits), n_bits)
    rows = CodeRows.of(words, n_bits)
    keys, none = np.empty((n_queries, k), dtype=np.uint64), np.zeros(0, dtype=np.bool_)
    ends = np.array([rows.tail.shape[1]], dtype=np.uint64)
    for ranks in (np.arange(1_100)[::-1].astype(np.int32), rng.permutation(1_100).astype(np.int32)):
        scan(queries, rows, none, ranks, [0, 512, 1_100], 2**31 - 1, ends, keys)
        distances = oracles.hamming(queries, words[:1])
        np.testing.assert_array_equal(keys, keys_of(distances, np.arange(k)[np.newaxis]))


@given(code_batches(), st.data())
def test_head_scan(batch, data):
    queries, words, rows = stored(batch)
    hidden = data.draw(masks(len(words)))
    expected, expected_least = head_distances(queries, words, hidden)
    heads = np.zeros((len(queries), len(words)), dtype=np.uint16)
    least = np.zeros((len(queries), 32 * len(rows.head)), dtype=np.uint16)
    for start in range(0, len(words), 512):  # in parts, as threads do
        hamming.head_scan(queries, rows.head, hidden, start, min(start + 512, len(words)), heads, least)
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
    count, n_measured = hamming.measure_survivors(
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
    count, reach, n_measured = hamming.first_bound(
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
        hamming.prefix_limits(distance, batch.n_bits, prefix_bits, z, expected)
        np.testing.assert_array_equal(limits, expected)


@given(st.integers(1, 200), st.data())
def test_limits_over_prefixes(n_bits, data):
    distance = data.draw(st.integers(0, n_bits))
    prefix_bits = np.array(data.draw(st.lists(st.integers(1, n_bits), min_size=1, max_size=5)))
    z = data.draw(st.floats(-3, 8))
    limits = np.empty(len(prefix_bits), dtype=np.int64)
    hamming.prefix_limits(distance, n_bits, prefix_bits, z, limits)
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
            hamming.prefix_limits(distance, size, np.array([size]), z, limits)
            assert limits[0] == distance


USE_EVERYTHING = """
import pickle
import numpy as np
from numba.core.types import Array
from cbeindex import BinaryIndex
from cbeindex.kernels import hamming

for n_bits in (8, 64, 512, 1_088, 2_000):
    rng = np.random.default_rng(n_bits)
    codes = rng.integers(0, 256, (5_000, n_bits // 8), dtype=np.uint8)
    codes[::25] = codes[0]  # a cluster, for which the cascade does not give way to the scan
    codes[::25] ^= rng.integers(0, 2, (200, n_bits // 8), dtype=np.uint8)
    index = BinaryIndex(n_bits)
    index.add(codes)
    index.add(codes[:7], ids=np.arange(9_000, 8_993, -1))
    frozen = codes[:3].copy()
    frozen.setflags(write=False)
    shifted = np.zeros(3 * codes.shape[1] + 1, dtype=np.uint8)[1:].reshape(3, -1)
    for index in (index, pickle.loads(pickle.dumps(index))):
        for queries in (codes[0], codes[:1], codes[:40], codes[:9:2], np.asfortranarray(codes[:5]), frozen, shifted):
            for n_threads in (1, 2):
                for mode in ("scan", "cascade"):
                    index.search(queries, 3, mode, n_threads=n_threads)
                    index.search(queries, 3, mode, n_threads=n_threads, allow=[1, 2, 3])
                index.range_search(queries, n_bits // 3, n_threads=n_threads)
        index.remove([0, 8_999])
for kernel in (hamming.scan, hamming.head_scan, hamming.first_bound, hamming.measure_survivors):
    arrays = {tuple(t for t in signature if isinstance(t, Array)) for signature in kernel.signatures}
    print(kernel.__name__, len(arrays), all(t.layout == "C" and t.mutable and t.aligned for t in sum(arrays, ())))
"""


@pytest.mark.skipif(not COMPILED, reason="nothing is compiled")
def test_the_index_uses_one_layout():
    """In a process of its own, since other tests call kernels too: no use compiles a kernel a second time."""
    run = subprocess.run([sys.executable, "-c", USE_EVERYTHING], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stderr == ""
    kernels = ("scan", "head_scan", "first_bound", "measure_survivors")
    assert run.stdout.splitlines() == [f"{name} 1 True" for name in kernels]
