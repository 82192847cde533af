"""Scans by Hamming distance against plain numpy."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex.data.codes import CodeRows, to_words
from cbeindex.kernels import hamming
from cbeindex.search.scan import allocate_scan_state
from tests import oracles
from tests.conftest import COMPILED, ROOT
from tests.kernel_cases import NO_KEY, keys_of, stored, tails_of
from tests.strategies import code_batches, masks, rankings, some_codes

pytestmark = pytest.mark.kernels


def scan(queries, rows, hidden, ranks, cuts, bound, stage_ends, keys):
    """Scan the rows between cuts, one part after the other."""
    state, tails = allocate_scan_state(*keys.shape), tails_of(queries, rows)
    for start, stop in itertools.pairwise(cuts):
        hamming.scan(
            queries, tails, rows.head, rows.tail, hidden, ranks, cuts[0], start, stop, cuts[-1], bound, stage_ends,
            *state, keys,
        )  # fmt: skip


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
        assert (keys[query, len(expected) :] == NO_KEY).all()


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


USE_EVERYTHING = """
import pickle
import numpy as np
from numba.core.types import Array
from cbeindex import BinaryIndex
from cbeindex.kernels import cascade, hamming

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
for kernel in (hamming.scan, cascade.head_scan, cascade.first_bound, cascade.measure_survivors):
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
