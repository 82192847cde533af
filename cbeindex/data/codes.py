"""The layout of codes: bytes for users, words for kernels, and the storage of rows of words.

Bit j of a code is bit j % 8 of byte j // 8, and therefore bit j % 64 of little-endian word j // 64. Bits past `n_bits`
are 0. The head of a code, its first words, is stored word by word in blocks of 512 rows, so that one vectorised pass
measures many rows. The tail, its other words, is stored row by row, so that single rows can be read. Codes of up to
1,024 bits are all head. Where rows are read in random order, codes are all tail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.typing import CodeBytes, Codes, Projections, Rows

BLOCK_ROWS = 512
"""Rows of a block of heads. Kernels contain this number as a literal."""

HEAD_WORDS = 8
"""Words in the head of a long code, 512 bits: the part that the cascade measures first."""

# Codes of up to this many words (1,024 bits) are all head: reading short tails costs more than it saves.
_ALL_HEAD_WORDS = 16


def n_bytes(n_bits: int) -> int:
    """Return the number of bytes of a packed code."""
    return -(-n_bits // 8)


def n_words(n_bits: int) -> int:
    """Return the number of 64-bit words of a code."""
    return -(-n_bits // 64)


def has_tail(n_bits: int) -> bool:
    """Return whether codes of `n_bits` bits are longer than codes that are all head."""
    return n_words(n_bits) > _ALL_HEAD_WORDS


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
    return np.ascontiguousarray(codes).view("<u8").astype(np.uint64, copy=False)


def to_bytes(words: Codes, n_bits: int) -> CodeBytes:
    """Return words, (n, n_words), as packed bytes, (n, n_bytes)."""
    return np.ascontiguousarray(words.astype("<u8", copy=False).view(np.uint8)[:, : n_bytes(n_bits)])


def has_bits_past(codes: CodeBytes, n_bits: int) -> NDArray[np.bool_]:
    """Return which codes have ones past `n_bits`."""
    spare = 8 * n_bytes(n_bits) - n_bits
    return (codes[:, -1] >> (8 - spare)) != 0 if spare else np.zeros(len(codes), dtype=np.bool_)


@dataclass(frozen=True)
class CodeRows:
    """Rows of codes, stored for scanning.

    Attributes
    ----------
    head : uint64 array of shape (n_blocks, n_head, 512)
    tail : uint64 array of shape (n_rows, n_tail)
    """

    head: Codes
    tail: Codes

    @classmethod
    def empty(cls, n_rows: int, n_bits: int, by_row: bool = False) -> CodeRows:
        """Allocate `n_rows` codes of zeros; `by_row` stores them without a head."""
        n_head = HEAD_WORDS if has_tail(n_bits) else n_words(n_bits)
        n_head = 0 if by_row else n_head
        return cls(
            np.zeros((-(-n_rows // BLOCK_ROWS), n_head, BLOCK_ROWS), dtype=np.uint64),
            np.zeros((n_rows, n_words(n_bits) - n_head), dtype=np.uint64),
        )

    @classmethod
    def of(cls, words: Codes, n_bits: int, by_row: bool = False) -> CodeRows:
        """Return words, (n, n_words), in this layout."""
        rows = cls.empty(len(words), n_bits, by_row)
        rows.write(0, words)
        return rows

    @property
    def n_head(self) -> int:
        """Number of words in the head."""
        return int(self.head.shape[1])

    @property
    def nbytes(self) -> int:
        """Memory of the codes in bytes."""
        return self.head.nbytes + self.tail.nbytes

    def write(self, start: int, words: Codes) -> None:
        """Store `words` as rows start, start + 1, ..."""
        stop = start + len(words)
        for block in range(start // BLOCK_ROWS, -(-stop // BLOCK_ROWS)):
            first, last = max(start, block * BLOCK_ROWS), min(stop, (block + 1) * BLOCK_ROWS)
            column = first - block * BLOCK_ROWS
            part = words[first - start : last - start, : self.n_head]
            self.head[block, :, column : column + last - first] = part.T
        self.tail[start:stop] = words[:, self.n_head :]

    def take(self, rows: Rows) -> Codes:
        """Return the codes of some rows as words, (n, n_words)."""
        words = np.empty((len(rows), self.n_head + self.tail.shape[1]), dtype=np.uint64)
        words[:, : self.n_head] = self.head[rows // BLOCK_ROWS, :, rows % BLOCK_ROWS]
        words[:, self.n_head :] = self.tail[rows]
        return words

    def first(self, n_rows: int) -> CodeRows:
        """Return a view of the first `n_rows` rows."""
        return CodeRows(self.head[: -(-n_rows // BLOCK_ROWS)], self.tail[:n_rows])
