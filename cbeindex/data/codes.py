"""The layout of codes: bytes for users, words for kernels, and the storage of rows of words.

Bit j of a code is bit j % 8 of byte j // 8, and therefore bit j % 64 of little-endian word j // 64. Bits past `n_bits`
are 0. Rows are stored in blocks of 16, word by word, so that one vectorised pass measures all rows of a block. Where
rows are read in random order, they are stored row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.typing import CodeBytes, Codes, Projections, Rows

BLOCK_ROWS = 16
"""Rows of a block. Kernels contain this number as a literal."""

HALF_ROWS = 8
"""Rows of a half of a block, of which a word fills a cache line."""

PREFIX_WORDS = 8
"""Words of a long code that the cascade compares first, 512 bits."""

_WORD = np.dtype("<u8")
# Codes of up to this many words (1,024 bits) are short: comparing a part of them costs more than it saves.
_SHORT_WORDS = 16


def n_bytes(n_bits: int) -> int:
    """Return the number of bytes of a packed code."""
    return -(-n_bits // 8)


def n_words(n_bits: int) -> int:
    """Return the number of 64-bit words of a code."""
    return -(-n_bits // 64)


def is_long(n_bits: int) -> bool:
    """Return whether comparing the first words of codes of `n_bits` bits can save comparing all of them."""
    return n_words(n_bits) > _SHORT_WORDS


def pack_signs(projections: Projections) -> Codes:
    """Pack the signs of projections, (n, n_bits), into words, (n, n_words): a bit is 1 where the projection is >= 0."""
    return pack_bits(projections >= 0)


def pack_bits(bits: NDArray[Any]) -> Codes:
    """Pack bits, (n, n_bits), into words, (n, n_words): a bit is 1 where the entry is not 0."""
    return to_words(np.packbits(bits, axis=1, bitorder="little"), bits.shape[1])


def to_words(codes: CodeBytes, n_bits: int) -> Codes:
    """Return packed bytes, (n, n_bytes), as words, (n, n_words): a view if possible."""
    width = 8 * n_words(n_bits)
    if codes.shape[1] != width:
        padded = np.zeros((len(codes), width), dtype=np.uint8)
        padded[:, : codes.shape[1]] = codes
        codes = padded
    words = np.ascontiguousarray(codes).view(_WORD)
    return words if _WORD.isnative else words.astype(np.uint64)


def to_bytes(words: Codes, n_bits: int) -> CodeBytes:
    """Return words, (n, n_words), as packed bytes, (n, n_bytes)."""
    return np.ascontiguousarray(words.astype("<u8", copy=False).view(np.uint8)[:, : n_bytes(n_bits)])


def has_bits_past(codes: CodeBytes, n_bits: int) -> NDArray[np.bool_]:
    """Return which codes have ones past `n_bits`."""
    spare = 8 * n_bytes(n_bits) - n_bits
    return (codes[:, -1] >> (8 - spare)) != 0 if spare else np.zeros(len(codes), dtype=np.bool_)


@dataclass(frozen=True)
class CodeRows:
    """Rows of codes, stored for scanning or for reading single rows.

    Attributes
    ----------
    blocks : uint64 array of shape (n_blocks, n_words, 16) or (n_rows, n_words, 1)
        `blocks[b, w, i]` is word w of row 16 * b + i. Rows past the last one may be any. Codes with one row in a block
        are stored row by row.
    """

    blocks: Codes

    @classmethod
    def empty(cls, n_rows: int, n_bits: int, by_row: bool = False) -> CodeRows:
        """Allocate `n_rows` codes of zeros."""
        size = 1 if by_row else BLOCK_ROWS
        return cls(np.zeros((-(-n_rows // size), n_words(n_bits), size), dtype=np.uint64))

    @classmethod
    def of(cls, words: Codes, n_bits: int, by_row: bool = False) -> CodeRows:
        """Return words, (n, n_words), in this layout."""
        rows = cls.empty(len(words), n_bits, by_row)
        rows.write(0, words)
        return rows

    @property
    def n_words(self) -> int:
        """Number of words of a code."""
        return int(self.blocks.shape[1])

    @property
    def is_by_row(self) -> bool:
        """Whether codes are stored row by row."""
        return bool(self.blocks.shape[2] == 1)

    @property
    def rows(self) -> Codes:
        """View codes that are stored row by row as words, (n_rows, n_words)."""
        assert self.is_by_row
        return self.blocks[:, :, 0]

    @property
    def nbytes(self) -> int:
        """Memory of the codes in bytes."""
        return self.blocks.nbytes

    def write(self, start: int, words: Codes) -> None:
        """Store `words` as rows start, start + 1, ..."""
        size, stop = self.blocks.shape[2], start + len(words)
        first, last = -(-start // size), stop // size  # whole blocks
        if first < last:
            whole = words[size * first - start : size * last - start]
            self.blocks[first:last] = whole.reshape(last - first, size, self.n_words).transpose(0, 2, 1)
        rows = np.arange(start, stop)
        rows = rows[(rows < size * first) | (rows >= size * last)]
        self.blocks[rows // size, :, rows % size] = words[rows - start]

    def take(self, rows: Rows) -> Codes:
        """Return the codes of some rows as words, (n, n_words)."""
        size = self.blocks.shape[2]
        return self.blocks[rows // size, :, rows % size]

    def words(self, n_rows: int) -> Codes:
        """Return the codes of the first `n_rows` rows as words, (n_rows, n_words)."""
        n_blocks, width, size = self.blocks.shape
        return np.ascontiguousarray(self.blocks.transpose(0, 2, 1)).reshape(n_blocks * size, width)[:n_rows]

    def first(self, n_rows: int) -> CodeRows:
        """Return a view of the first `n_rows` rows."""
        return CodeRows(self.blocks[: -(-n_rows // self.blocks.shape[2])])
