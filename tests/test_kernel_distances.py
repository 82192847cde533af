"""Hamming distances of rows, each kernel against plain numpy."""

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex.kernels.distances import add_distances, add_tails, add_tails_of_block, smallest, transpose_tails
from cbeindex.kernels.popcount import popcount64
from tests import oracles
from tests.kernel_cases import LONG, SMALL, stored, tails_of
from tests.strategies import code_batches

pytestmark = pytest.mark.kernels


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
    add_distances(queries, numbers, places, n, word, rows.head[0][word:], first, last, out)
    expected = np.full((len(places), 512), 7, dtype=np.int32)
    for number, place in zip(numbers[:n], places[:n], strict=True):
        xor = rows.head[0][word:] ^ queries[number, word : rows.n_head, np.newaxis]
        expected[place, first:last] += np.bitwise_count(xor).sum(axis=0, dtype=np.int32)[first:last]
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
    n_left = add_tails(
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
    add_tails_of_block(
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
    assert smallest(np.array(values, dtype=np.int32), n) == min([2**31 - 1, *values[:n]])


@given(code_batches(widths=LONG, sizes=SMALL), st.data())
def test_tails_are_transposed(batch, data):
    _, _, rows = stored(batch)
    n_rows, n_tail = rows.tail.shape
    first_row, first_word = data.draw(st.integers(0, n_rows)), data.draw(st.integers(0, n_tail))
    n, n_words = data.draw(st.integers(0, n_rows - first_row)), data.draw(st.integers(0, n_tail - first_word))
    columns = np.full((n_words, n + 5), 7, dtype=np.uint64)
    transpose_tails(rows.tail, first_row, n, first_word, n_words, columns, 3)
    some = rows.tail[first_row : first_row + n, first_word : first_word + n_words]
    np.testing.assert_array_equal(columns[:, 3 : 3 + n], some.T)
    assert (columns[:, :3] == 7).all()
    assert (columns[:, 3 + n :] == 7).all()
