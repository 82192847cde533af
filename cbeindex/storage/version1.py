"""Codes of files of format version 1, which are converted when they are loaded.

Version 1 stored the head of a code, its first words, word by word in blocks of 512 rows, and its tail, the other words,
row by row. Codes of up to 1,024 bits were all head, longer ones had a head of 512 bits, and those with tables were all
tail. Everything else is the same in version 2.
"""

from __future__ import annotations

import numpy as np

from .._core.checks import require_memory
from .._core.threads import for_each_chunk, n_cores
from .._core.tuning import tuning
from .._core.typing import Codes
from ..data.codes import BLOCK_ROWS, CodeRows, n_words
from ..search.buckets.base import ArrayReader

_HEAD_ROWS = 512
_LONG_HEAD_WORDS = 8
_ALL_HEAD_WORDS = 16


def load_codes(read: ArrayReader, n_rows: int, n_bits: int, by_row: bool) -> CodeRows:
    """Read the head and the tail of a segment, and return its codes as version 2 stores them, on all cores."""
    whole = n_words(n_bits)
    n_head = 0 if by_row else whole if whole <= _ALL_HEAD_WORDS else _LONG_HEAD_WORDS
    head = read("head", np.uint64, -(-n_rows // _HEAD_ROWS), n_head, _HEAD_ROWS)
    tail = read("tail", np.uint64, n_rows, whole - n_head)
    require_memory(8 * whole * n_rows, "the conversion of codes of format version 1")
    codes = CodeRows.empty(n_rows, n_bits, by_row)

    def task(start: int, stop: int) -> None:
        for first in range(start, stop, _HEAD_ROWS):
            last = min(first + _HEAD_ROWS, stop)
            if by_row:
                codes.rows[first:last] = tail[first:last]
            else:
                blocks = codes.blocks[first // BLOCK_ROWS : -(-last // BLOCK_ROWS)]
                _convert(head[first // _HEAD_ROWS], tail[first:last], blocks)

    step = max(1, tuning().piece_bytes // (8 * max(whole, 1) * _HEAD_ROWS)) * _HEAD_ROWS
    for_each_chunk(task, n_rows, step, n_cores())
    return codes


def _convert(head: Codes, tail: Codes, blocks: Codes) -> None:
    """Fill the blocks of at most 512 rows from their head, (n_head, 512), and their tails, (n_rows, n_tail)."""
    n_head, n_tail = len(head), tail.shape[1]
    columns = head.reshape(n_head, _HEAD_ROWS // BLOCK_ROWS, BLOCK_ROWS).transpose(1, 0, 2)
    blocks[:, :n_head] = columns[: len(blocks)]
    if n_tail:
        n_whole = len(tail) // BLOCK_ROWS
        rows = tail[: n_whole * BLOCK_ROWS].reshape(n_whole, BLOCK_ROWS, n_tail)
        blocks[:n_whole, n_head:] = rows.transpose(0, 2, 1)
        rest = tail[n_whole * BLOCK_ROWS :]
        if len(rest):
            blocks[n_whole, n_head:, : len(rest)] = rest.T
