"""What look-ups, tables, estimates and products are, in plain numpy."""

from typing import NamedTuple

import numpy as np


def values_of_levels(levels, bits):
    """Values that the levels of codes stand for."""
    return 2.0 * levels - 1 if bits == 1 else levels - (2**bits - 1) / 2


def pack_levels(levels, bits):
    """Levels, (n, dims), as bytes: 4 // bits levels a nibble, two nibbles a byte, the first in the lowest bits."""
    per_byte = 8 // bits
    levels = np.pad(levels, ((0, 0), (0, -levels.shape[1] % per_byte))).astype(np.uint8)
    shifted = levels.reshape(len(levels), -1, per_byte) << (bits * np.arange(per_byte, dtype=np.uint8))
    return np.bitwise_or.reduce(shifted, axis=2)


def sums_of_block(block, tables):
    """Sums of the entries that the nibbles of a block, (n_bytes, 32), choose from tables, (2 * n_bytes or more, 16)."""
    total = np.zeros(32, dtype=np.int64)
    for j, row_bytes in enumerate(block):
        total += tables[2 * j].astype(np.int64)[row_bytes & 15] + tables[2 * j + 1].astype(np.int64)[row_bytes >> 4]
    return total


def entries_of(tables, is_precise):
    """Entries of a query's tables, (n_nibbles, 16)."""
    if not is_precise:
        return tables.astype(np.int64).reshape(-1, 16)
    upper, lower = np.split(tables.astype(np.int64), 2)
    return (128 * upper + lower).reshape(-1, 16)


class Coded(NamedTuple):
    """Coded rows in records, and what the records hold. `rows` are the numbers that records give them."""

    records: np.ndarray
    n_bytes: int
    codes: np.ndarray
    factors: np.ndarray
    offsets: np.ndarray
    spreads: np.ndarray
    rows: np.ndarray


def coded_rows(rng, rows, n_dims, bits, n_equal=1):
    """Records of random rows; `n_equal` rows in turn are equal, and places behind the last row are empty."""
    n_rows = len(rows)
    n_blocks = -(-n_rows // 32)
    n_some = -(-n_rows // n_equal)

    def spread_out(values):
        return np.repeat(values, n_equal, axis=0)[:n_rows]

    codes = spread_out(pack_levels((2**bits * rng.random((n_some, n_dims))).astype(np.uint8), bits))
    numbers = spread_out(rng.random((n_some, 4)).astype(np.float32)).T
    n_bytes = codes.shape[1]
    records = np.zeros((n_blocks, 32 * n_bytes + 128 * 5), dtype=np.uint8)
    all_codes = np.zeros((32 * n_blocks, n_bytes), dtype=np.uint8)
    all_codes[:n_rows] = codes
    all_numbers = np.zeros((5, 32 * n_blocks), dtype=np.float32)
    all_numbers[1] = np.inf
    all_numbers[:4, :n_rows] = numbers
    all_numbers[4].view(np.int32)[:n_rows] = rows
    for block in range(n_blocks):
        some = slice(32 * block, 32 * block + 32)
        records[block, : 32 * n_bytes] = all_codes[some].T.ravel()
        records[block, 32 * n_bytes :] = np.ascontiguousarray(all_numbers[:, some]).ravel().view(np.uint8)
    factors, offsets, spreads = numbers[:3]
    return Coded(records, n_bytes, codes, factors, offsets, spreads, np.asarray(rows))


def ordered_keys(distances, rows):
    """Keys that order rows by distance, then row."""
    bits = distances.astype(np.float32).view(np.uint32).astype(np.uint64)
    ordered = np.where(bits >> np.uint64(31), ~bits & np.uint64(0xFFFFFFFF), bits | np.uint64(0x80000000))
    return (ordered << np.uint64(32)) | rows.astype(np.uint64)
