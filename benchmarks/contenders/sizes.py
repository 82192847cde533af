"""Choose sizes for contenders: numbers of buckets for the number of rows, and limits on memory."""

from __future__ import annotations

import math
import os

from benchmarks.adapter import Task

# A matrix of more bytes than this is not made; nor a dense copy of sparse vectors.
LARGEST_MATRIX = 2**30
LARGEST_COPY = 2**29
# Widths of the beam of a graph, from ten results to recall 0.99 and beyond on the sets at hand.
BEAMS = (10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512, 768)


def probes(most: int) -> tuple[int, ...]:
    """List numbers of buckets to probe, up to all of them."""
    steps = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
    return (*(step for step in steps if step < most), most)


def n_lists(task: Task, of_root: float) -> int:
    """Return the power of two nearest to `of_root` times the square root of the number of rows."""
    return 1 << max(1, round(math.log2(of_root * math.sqrt(task.n_rows))))


def key_bits(task: Task) -> int:
    """Return the bits of a key of a hash table: one bucket for some rows."""
    return max(4, round(math.log2(task.n_rows)) - 2)


def half_divisor(dim: int) -> int:
    """Return the largest divisor up to dim / 2."""
    return next(m for m in range(max(1, dim // 2), 0, -1) if dim % m == 0)


def refuses_matrix(what: str, n_values: int) -> str | None:
    """Say that a matrix is too large, if it is."""
    return f"needs a {what} of {in_gb(4 * n_values)}" if 4 * n_values > LARGEST_MATRIX else None


def in_gb(n_bytes: int) -> str:
    """Return bytes as text."""
    return f"{n_bytes / 1e9:.1f} GB"


def memory() -> int:
    """Return the bytes of memory of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**34
