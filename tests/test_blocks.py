"""Distances of queries to blocks of 16 rows, and rows as blocks, each against plain numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.kernels import blocks as block_kernels
from cbeindex.kernels import layout
from cbeindex.kernels.jit import njit
from tests import oracles
from tests.kernel_cases import in_blocks

pytestmark = pytest.mark.kernels

# Around the words of a register, and the 31 after which bytes are widened.
WORDS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 30, 31, 32, 33, 39, 62, 63, 65)


@njit(nogil=True)
def within_one(planes, number, blocks, block, begin, end, limits, out, at):
    return block_kernels.distances_within(planes, (number,), blocks, block, begin, end, 64, limits, 1, out, at)


@njit(nogil=True)
def within_four(planes, a, b, c, d, blocks, block, begin, end, limits, out):
    return block_kernels.distances_within(planes, (a, b, c, d), blocks, block, begin, end, 4096, limits, 1, out, 0)


@njit(nogil=True)
def within_half(planes, number, blocks, half, begin, end, limits, out, at):
    return block_kernels.half_within(planes, (number,), blocks, half, begin, end, 64, limits, 1, out, at)


@njit(nogil=True)
def prefix_of(planes, a, b, c, d, blocks, block, n_words, least, out):
    block_kernels.prefix_distances(planes, (a,), blocks, block, 0, n_words, 0, least, out, 1)
    block_kernels.prefix_distances(planes, (a, b, c, d), blocks, block + 1, 0, n_words, 4096, least, out, 3)


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
    for side in range(2):
        some, of_half = slice(8 * side, 8 * side + 8), before.reshape(8, 8).copy()
        of_half[3] = before[2, some]
        near = int(within_half(planes, 5, blocks, 2 + side, begin, n_words, both, of_half, 3))
        assert near == expected[5] >> 8 * side & 0xFF
        if near:
            np.testing.assert_array_equal(of_half[3], distances[5, some])
        np.testing.assert_array_equal(np.delete(of_half, 3, axis=0), np.delete(before.reshape(8, 8), 3, axis=0))
    numbers = (int(rng.integers(7)), 3, 0, 6)
    out[:] = before[2]
    found = int(within_four(planes, *numbers, blocks, 1, begin, n_words, both, out))
    assert found == sum(expected[number] << (16 * i) for i, number in enumerate(numbers))
    np.testing.assert_array_equal(out, distances[list(numbers)])


@given(st.sampled_from(WORDS), st.integers(0, 999))
def test_distances_over_the_first_words(n_words, seed):
    """Of all rows of a block, and the least of each half of them, for one query and for four."""
    rng = np.random.default_rng(seed)
    words, queries = (rng.integers(0, 2**64, (n, n_words + 1), dtype=np.uint64) for n in (48, 5))
    least, out = np.full((5, 6), 7, dtype=np.uint16), np.full((8, 16), 7, dtype=np.int32)
    prefix_of(block_kernels.planes_of(queries), 4, 0, 1, 2, in_blocks(words), 1, n_words, least, out)
    expected = oracles.hamming(queries[:, :n_words], words[:, :n_words]).reshape(5, 3, 16)
    np.testing.assert_array_equal(out[1], expected[4, 1])
    np.testing.assert_array_equal(out[3:7], expected[[4, 0, 1, 2], 2])
    assert (out[[0, 2, 7]] == 7).all()
    smallest = expected.reshape(5, 6, 8).min(axis=2)
    np.testing.assert_array_equal(least[4, 2:4], smallest[4, 2:4])
    np.testing.assert_array_equal(least[[4, 0, 1, 2], 4:], smallest[[4, 0, 1, 2], 4:])
    assert (least[3] == 7).all()
    assert (least[:, :2] == 7).all()


@given(st.sampled_from(WORDS), st.integers(0, 70), st.data())
def test_rows_as_blocks(n_words, n_rows, data):
    words = np.random.default_rng(n_rows).integers(0, 2**64, (n_rows, n_words), dtype=np.uint64)
    start, stop = sorted(data.draw(st.integers(0, n_rows)) for _ in range(2))
    blocks = np.full((n_rows // 16 + 1, n_words, 16), 7, dtype=np.uint64)
    layout.fill_blocks(words[:, :, np.newaxis], start, stop, blocks)
    filled = blocks.transpose(0, 2, 1).reshape(-1, n_words)
    np.testing.assert_array_equal(filled[: stop - start], words[start:stop])
    assert (filled[stop - start :] == 7).all()


@pytest.mark.parametrize("n_words", [1, 300])
def test_no_row_is_within_a_limit_below_all_distances(n_words):
    blocks = np.full((1, n_words, 16), 2**64 - 1, dtype=np.uint64)
    planes, out = block_kernels.planes_of(np.zeros((4, n_words), dtype=np.uint64)), np.empty((4, 16), dtype=np.int32)
    limits = np.array([[0] * 4, [64 * n_words - 1, -1, 64 * n_words - 1, 0]])
    assert within_one(planes, 0, blocks, 0, 0, n_words, limits, out, 0) == 0
    assert within_four(planes, 0, 1, 2, 3, blocks, 0, 0, n_words, limits, out) == 0
    limits[1, 2] += 1
    assert int(within_four(planes, 0, 1, 2, 3, blocks, 0, 0, n_words, limits, out)) == 0xFFFF << 32
