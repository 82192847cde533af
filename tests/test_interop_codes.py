"""Codes that other libraries packed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cbeindex import BinaryIndex, interop

bit_columns = st.tuples(st.integers(0, 5), st.integers(1, 70)).flatmap(lambda shape: arrays(np.bool_, shape))


def little(bits):
    return np.packbits(bits, axis=-1, bitorder="little")


@given(bit_columns)
def test_every_way_of_packing_gives_the_same_codes(bits):
    packed = np.packbits(bits, axis=1)
    cases = [
        interop.codes_from(packed),
        interop.codes_from((packed.astype(np.int16) - 128).astype(np.int8), signed=True),
        interop.codes_from(packed.view(np.int8), signed="view"),
        interop.codes_from(little(bits), bit_order="little"),
        interop.codes_from(little(bits).view(np.int8), bit_order="little", signed="view"),
        interop.codes_from(bits, packed=False),
        interop.codes_from(bits.astype(np.float32), packed=False),
        interop.codes_from(np.where(bits, 1, -1), packed=False),
    ]
    for codes in cases:
        assert codes.dtype == np.uint8
        np.testing.assert_array_equal(codes, little(bits))


def test_single_codes_and_copies():
    bits = np.arange(60) % 3 == 0
    np.testing.assert_array_equal(interop.codes_from(np.packbits(bits)), little(bits))
    codes = little(bits)
    assert not np.shares_memory(interop.codes_from(codes, bit_order="little"), codes)


def test_sixty_bits_in_big_order_go_into_an_index_by_the_helper():
    bits = np.random.default_rng(0).random((40, 60)) < 0.5
    packed = np.packbits(bits, axis=1)
    index = BinaryIndex(60)
    with pytest.raises(ValueError, match=r'zeros past bit 59, row \d+ has not; cbeindex.interop.codes_from\(.*"big"'):
        index.add(packed)
    index.add(interop.codes_from(packed))
    distances, ids = index.search(interop.codes_from(packed[3]), k=40)
    np.testing.assert_array_equal(distances, (bits[ids] != bits[3]).sum(axis=1))


@pytest.mark.parametrize(
    ("codes", "error", "message"),
    [
        (
            np.zeros((3, 64), np.uint8),
            ValueError,
            r"shape \(n, 8\) or \(8,\), got \(3, 64\); .*codes_from\(bits, packed",
        ),
        (
            np.zeros((3, 64), np.int64),
            TypeError,
            r"uint8, got int64; cbeindex.interop.codes_from\(bits, packed=False\)",
        ),
        (np.zeros((3, 8), np.int8), TypeError, r"uint8, got int8; cbeindex.interop.codes_from\(codes, signed=True\)"),
        (np.zeros((3, 9), np.uint8), ValueError, r"got \(3, 9\)$"),
    ],
)
def test_errors_of_the_index_name_the_helper(codes, error, message):
    with pytest.raises(error, match=message):
        BinaryIndex(64).add(codes)


@pytest.mark.parametrize(
    ("array", "options", "error", "message"),
    [
        (np.zeros((2, 8), np.int8), {}, TypeError, "dtype uint8, got int8; read signed bytes with signed=True"),
        (np.zeros((2, 8), np.uint8), {"signed": True}, TypeError, "dtype int8, got uint8; unsigned bytes need no"),
        (np.zeros((2, 8)), {}, TypeError, "dtype uint8, got float64; pass columns of bits with packed=False"),
        (np.zeros((2, 8), np.uint8), {"bit_order": "middle"}, ValueError, "bit_order must be one of 'big', 'little'"),
        (np.zeros((2, 8), np.int8), {"signed": "twos"}, ValueError, "signed must be one of 'offset', 'view'"),
        (np.zeros((2, 8, 1), np.uint8), {}, ValueError, r"shape \(n, n_bytes\) or \(n_bytes,\), got \(2, 8, 1\)"),
        (np.full((2, 8), 0.5), {"packed": False}, ValueError, "bits must be 0 or 1, or signs -1 and 1, got 0.5; make"),
        (np.full((2, 8), 3, np.uint8), {"packed": False}, ValueError, "must be 0 or 1, .* got 3"),
        (np.array([["a"]]), {"packed": False}, TypeError, "bits must be booleans or numbers, got dtype <U1"),
        (np.zeros((2, 8)), {"packed": False, "signed": True}, ValueError, "describe packed bytes"),
        (np.zeros((2, 8)), {"packed": 0}, TypeError, "packed must be True or False"),
    ],
)
def test_bad_input(array, options, error, message):
    with pytest.raises(error, match=message):
        interop.codes_from(array, **options)
