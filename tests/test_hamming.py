"""Scans by Hamming distance against plain numpy."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.data.codes import to_words
from cbeindex.kernels import hamming
from cbeindex.search.scan import ScanState
from tests import oracles
from tests.conftest import COMPILED, ROOT
from tests.kernel_cases import NO_RANKS, NOT_HIDDEN, check_keys, expected_keys, in_blocks, keys_of
from tests.strategies import code_batches, masks, rankings, some_codes

pytestmark = pytest.mark.kernels


def scan(queries, codes, hidden, ranks, cuts, k, bound=2**31):
    """Scan the rows between cuts, one part after the other, for the `k` nearest of each query."""
    state = ScanState.empty(len(queries), k, bound - 1)
    for start, stop in itertools.pairwise(cuts):
        hamming.scan(queries, codes, hidden, ranks, start, stop, *state)
    keys = np.empty((len(queries), k), dtype=np.uint64)
    state.write(keys)
    return keys


def stored(words, by_row):
    return words[:, :, np.newaxis].copy() if by_row else in_blocks(words)


@settings(max_examples=80)
@given(code_batches(max_queries=9), st.booleans(), st.data())
def test_nearest_rows(batch, by_row, data):
    """Any k, rows from anywhere to anywhere, in parts, with hidden rows, ranks and a bound."""
    queries, words = (to_words(part, batch.n_bits) for part in (batch.queries, batch.codes))
    n = len(words)
    hidden, ranks = data.draw(masks(n)), data.draw(rankings(n))
    cuts = sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=4)))
    k = data.draw(st.sampled_from([1, 2, 10, 33, 100, 700]))
    bound = data.draw(st.sampled_from([2**31, batch.n_bits // 2 + 1, 0]))
    keys = scan(queries, stored(words, by_row), hidden, ranks, cuts, k, bound)
    check_keys(keys, expected_keys(queries, words, hidden, ranks, range(cuts[0], cuts[-1]), bound))


@settings(max_examples=40)
@given(code_batches(max_queries=6), st.booleans(), st.data())
def test_rows_within_a_radius(batch, by_row, data):
    queries, words = (to_words(part, batch.n_bits) for part in (batch.queries, batch.codes))
    n = len(words)
    hidden, ranks = data.draw(masks(n)), data.draw(rankings(n))
    start, stop = sorted(data.draw(st.integers(0, n)) for _ in range(2))
    radius = data.draw(st.integers(0, batch.n_bits))
    state = ScanState.empty(len(queries), 0, radius, 16 * (n // 16 + 1))
    hamming.scan(queries, stored(words, by_row), hidden, ranks, start, stop, *state)
    expected = expected_keys(queries, words, hidden, ranks, range(start, stop), radius + 1)
    for found, count, wanted in zip(state.found, state.counts[:, 0], expected, strict=True):
        np.testing.assert_array_equal(np.sort(found[:count]), wanted)


def test_mapped_codes_are_scanned():
    """Arrays that cannot be written, as mapped files may be."""
    words = np.arange(48, dtype=np.uint64).reshape(48, 1)
    for codes in (stored(words, by_row=False), stored(words, by_row=True)):
        queries = words[5:7].copy()
        codes.flags.writeable = queries.flags.writeable = False
        keys = scan(queries, codes, NOT_HIDDEN, NO_RANKS, [0, 48], 1)
        np.testing.assert_array_equal(keys[:, 0], [5, 6])


@pytest.mark.parametrize("n_bits", [64, 1_100])
@pytest.mark.parametrize("n_queries", [1, 3, 4, 33, 257])
def test_scan_of_groups_of_queries(n_bits, n_queries):
    """Queries go by fours, and the others one by one."""
    rng = np.random.default_rng(n_queries)
    both = to_words(some_codes(rng, n_queries + 100, n_bits, 5, 0.2), n_bits)
    queries, words = both[:n_queries].copy(), both[n_queries:]
    for ranks in (NO_RANKS, rng.permutation(100).astype(np.int32)):
        keys = scan(queries, in_blocks(words), NOT_HIDDEN, ranks, [0, 100], 7)
        check_keys(keys, expected_keys(queries, words, NOT_HIDDEN, ranks, range(100)))


@pytest.mark.parametrize("k", [1, 10, 600])
def test_scan_of_very_long_codes(k):
    """The distances of nearly all rows are in two or three places of a tally."""
    n_bits, n, n_queries = 102_400, 600, 5
    rng = np.random.default_rng(k)
    both = to_words(some_codes(rng, n_queries + n, n_bits, 1_000, 0.5), n_bits)
    queries, words = both[:n_queries].copy(), both[n_queries:]
    hidden, ranks = rng.random(n) < 0.1, rng.permutation(n).astype(np.int32)
    keys = scan(queries, in_blocks(words), hidden, ranks, [0, n], k)
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
    for ranks in (np.arange(1_100)[::-1].astype(np.int32), rng.permutation(1_100).astype(np.int32)):
        keys = scan(queries, in_blocks(words), NOT_HIDDEN, ranks, [0, 512, 1_100], k)
        distances = oracles.hamming(queries, words[:1])
        np.testing.assert_array_equal(keys, keys_of(distances, np.arange(k)[np.newaxis]))


USE_EVERYTHING = """
import pickle
import numpy as np
from numba.core.types import Array
from cbeindex import BinaryIndex
from cbeindex.kernels import cascade, cascadesearch, hamming, prefixes, scanrest

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
stages = cascadesearch.search, cascade.find_promising, prefixes.prefix_scan, cascade.nearest, scanrest.scan_rest
for kernel in (hamming.scan, hamming.nearest, *stages):
    arrays = {tuple(t for t in signature if isinstance(t, Array)) for signature in kernel.signatures}
    print(kernel.__name__, len(arrays), all(t.layout == "C" and t.mutable and t.aligned for t in sum(arrays, ())))
"""


@pytest.mark.skipif(not COMPILED, reason="nothing is compiled")
def test_the_index_uses_one_layout():
    """In a process of its own, since other tests call kernels too: no use compiles a kernel a second time."""
    run = subprocess.run([sys.executable, "-c", USE_EVERYTHING], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stderr == ""
    kernels = ("scan", "nearest", "search", "find_promising", "prefix_scan", "nearest", "scan_rest")
    assert run.stdout.splitlines() == [f"{name} 1 True" for name in kernels]


@settings(max_examples=40)
@given(code_batches(max_queries=6), st.booleans(), st.sampled_from([1, 2, 10, 33, 700]), st.data())
def test_results_of_one_call(batch, by_row, k, data):
    """Distances and ids in order, and missing results where too few rows are visible."""
    queries, words = (to_words(part, batch.n_bits) for part in (batch.queries, batch.codes))
    n = len(words)
    hidden, ids = data.draw(masks(n)), 5 + 3 * np.arange(n)
    distances, found = np.full((len(queries), k), -7, dtype=np.int32), np.full((len(queries), k), -7, dtype=np.int64)
    hamming.nearest(queries, stored(words, by_row), hidden, NO_RANKS, ids, distances, found)
    allow = ids[~hidden] if hidden.size else ids
    expected = oracles.nearest(batch.queries, batch.codes, ids, k, allow=allow)
    np.testing.assert_array_equal(distances, expected[0])
    np.testing.assert_array_equal(found, expected[1])
