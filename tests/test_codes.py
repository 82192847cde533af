"""The layout of codes: bytes, words, and rows stored in blocks or row by row."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex.data import codes as layout
from cbeindex.data.codes import BLOCK_ROWS, CodeRows
from tests.strategies import WIDTHS, code_batches, some_codes


@pytest.mark.parametrize(
    ("n_bits", "n_bytes", "n_words"),
    [(1, 1, 1), (8, 1, 1), (9, 2, 1), (64, 8, 1), (65, 9, 2), (512, 64, 8), (513, 65, 9), (100_000, 12_500, 1_563)],
)
def test_sizes(n_bits, n_bytes, n_words):
    assert layout.n_bytes(n_bits) == n_bytes
    assert layout.n_words(n_bits) == n_words


@given(code_batches())
def test_bit_j_is_bit_j_mod_64_of_word_j_div_64(batch):
    words = layout.to_words(batch.codes, batch.n_bits)
    assert words.shape == (len(batch.codes), layout.n_words(batch.n_bits))
    assert words.dtype == np.uint64
    j = np.arange(64 * words.shape[1])
    bits = words[:, j // 64] >> (j % 64).astype(np.uint64) & np.uint64(1)
    expected = np.unpackbits(batch.codes, axis=1, bitorder="little")
    np.testing.assert_array_equal(bits[:, : expected.shape[1]], expected)
    assert not bits[:, batch.n_bits :].any()


@given(code_batches())
def test_bytes_come_back_from_words(batch):
    words = layout.to_words(batch.codes, batch.n_bits)
    back = layout.to_bytes(words, batch.n_bits)
    np.testing.assert_array_equal(back, batch.codes)
    assert back.dtype == np.uint8
    assert back.flags.c_contiguous


@pytest.mark.parametrize("n_bits", WIDTHS)
def test_signs_are_packed_in_the_same_order(n_bits):
    projections = np.random.default_rng(n_bits).standard_normal((5, n_bits)).astype(np.float32)
    projections[0], projections[1] = 0.0, -0.0  # a projection of 0 gives bit 1
    expected = layout.to_words(np.packbits(projections >= 0, axis=1, bitorder="little"), n_bits)
    np.testing.assert_array_equal(layout.pack_signs(projections), expected)
    assert np.bitwise_count(expected[:2]).sum() == 2 * n_bits
    levels = (4 * (projections >= 0)).astype(np.uint8)  # what is not 0 is a one
    np.testing.assert_array_equal(layout.pack_bits(levels), expected)


def test_words_of_any_layout():
    codes = some_codes(np.random.default_rng(0), 20, 128)
    expected = layout.to_words(codes, 128)
    shifted = np.empty(20 * 16 + 1, dtype=np.uint8)[1:].reshape(20, 16)
    shifted[:] = codes
    for same in (np.asfortranarray(codes), np.repeat(codes, 2, axis=0)[::2], shifted):
        np.testing.assert_array_equal(layout.to_words(same, 128), expected)
    assert layout.to_words(codes[:0], 128).shape == (0, 2)


@pytest.mark.parametrize("n_bits", WIDTHS)
def test_ones_past_the_last_bit_are_noticed(n_bits):
    codes = np.zeros((8 * layout.n_bytes(n_bits) - n_bits + 1, layout.n_bytes(n_bits)), dtype=np.uint8)
    codes[0] = 255
    codes[0, -1] >>= len(codes) - 1  # a code of ones; the others have a single one, past the last bit
    for spare in range(1, len(codes)):
        codes[spare, -1] = 1 << 8 - spare
    np.testing.assert_array_equal(layout.has_bits_past(codes, n_bits), [False] + [True] * (len(codes) - 1))


@given(code_batches())
def test_rows_come_back(batch):
    words = layout.to_words(batch.codes, batch.n_bits)
    last = len(words) - 1
    for by_row, shape in ((False, (-(-len(words) // 16), words.shape[1], 16)), (True, (*words.shape, 1))):
        rows = CodeRows.of(words, batch.n_bits, by_row)
        assert (rows.blocks.shape, rows.n_words, rows.is_by_row) == (shape, words.shape[1], by_row)
        assert rows.nbytes == 8 * np.prod(shape)
        np.testing.assert_array_equal(rows.take(np.array([last, 0, last])), words[[last, 0, last]])
        np.testing.assert_array_equal(rows.words(last), words[:last])
        np.testing.assert_array_equal(rows.words(len(words)), words)
    np.testing.assert_array_equal(rows.rows, words)


def test_words_of_a_block_are_contiguous():
    words = np.arange(40 * 3, dtype=np.uint64).reshape(40, 3)
    assert CodeRows.of(words, 192).blocks[1, 2].tolist() == words[16:32, 2].tolist()


@given(code_batches(widths=(9, 64, 600, 1_100)), st.lists(st.integers(0, 1_030), max_size=4), st.booleans())
def test_rows_are_written_in_parts(batch, cuts, by_row):
    """However a batch is cut, and whatever rows are written first, the arrays are the same."""
    words = layout.to_words(batch.codes, batch.n_bits)
    expected = CodeRows.of(words, batch.n_bits, by_row)
    rows = CodeRows.empty(len(words), batch.n_bits, by_row)
    edges = sorted({0, len(words), *(cut for cut in cuts if cut < len(words))})
    for start, stop in reversed(list(itertools.pairwise(edges))):
        rows.write(start, words[start:stop])
    np.testing.assert_array_equal(rows.blocks, expected.blocks)


@pytest.mark.parametrize("n", [0, 1, 16, 17, 513])
def test_the_first_rows_are_a_view(n):
    words = layout.to_words(some_codes(np.random.default_rng(0), 600, 1_100), 1_100)
    rows = CodeRows.of(words, 1_100)
    first = rows.first(n)
    np.testing.assert_array_equal(first.words(n), words[:n])
    assert len(first.blocks) == -(-n // BLOCK_ROWS)
    assert n == 0 or np.shares_memory(first.blocks, rows.blocks)
