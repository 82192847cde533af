"""Constants chosen by measurement, in one object that tests can replace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Tuning:
    """Constants that trade time for memory or accuracy, each with the reason or measurement behind it."""

    # --- data ---

    length_check_bytes: int = 2**26
    """Bytes of a `.fvecs` file that are mapped at a time to compare the lengths before its vectors."""

    sparse_flag_bytes: int = 2**22
    """Bytes of flags (row, column of the query) that exact distances of sparse rows use at a time."""

    free_expansion_bytes: int = 2**28
    """Compressed arrays up to this size may expand by any factor."""

    max_expansion: int = 1000
    """Larger compressed arrays may expand by this factor. Deflate exceeds it only for constant data."""

    free_sparse_rows: int = 2**20
    """A CSC or COO file may claim this many rows, plus `sparse_rows_per_entry` for each entry.

    Empty rows take no bytes in such a file, so that their number alone says nothing about the file.
    """

    sparse_rows_per_entry: int = 16

    # --- encoders ---

    projection_block_floats: int = 2**16
    """Floats in a block of rows that is projected at a time.

    The few arrays of this size that a projection needs fit the second-level cache together. Larger blocks cost page
    faults too (2**17: two per vector at dim 768).
    """

    least_block_rows: int = 4
    """Rows of a block at least: scipy transforms four float32 rows at a time in one register."""

    mean_sparse_rows: int = 4096
    """Sparse rows that are added to a mean at a time."""

    split_transform_length: int = 2**16
    """Transforms from this length on are split in two, because they exceed the second-level cache.

    Speed-up measured at 2**16: 1.3, 2**17: 1.1, 2**18: 1.5, 2**20: 1.6.
    """

    split_transform_values: int = 2**15
    """Complex values that a stage of a split transform processes at a time, to stay in the second-level cache."""

    direct_gain: float = 4
    """Cost of one of the length * log2(length) steps of a transform, in multiply-adds of a direct convolution.

    Measured with 256 entries and 2,048 bits: 5.7 at length 25,600, 5 at 131,072 and 2.7 at 2**20, where the
    circulant vector exceeds the cache.
    """

    direct_tile: int = 1024
    """Projections that a direct convolution sums at a time, in the first-level cache."""

    foreign_block_floats: int = 2**20
    """Floats of sparse rows that are passed as a dense block to an encoder which does not accept sparse rows."""

    product_block_floats: int = 2**24
    """Floats of rows that are multiplied by a matrix at a time (64 MB), but at least 32 and at most 256 rows.

    A matrix of 25,600 x 2,048 takes 16 ms per row in blocks of 4 rows, 3.0 ms in blocks of 32, 1.2 ms in blocks of 256.
    """

    training_block_floats: int = 2**22
    """Floats of rows that are read at a time to train the baselines."""

    # --- store ---

    # --- search ---

    # --- storage ---

    # Bytes of an array that are checksummed and written or read together. A piece should stay in the cache between its
    # checksum and the disk: saves with pieces of 1 MiB took 0.6 of the time of 8 MiB.
    piece_bytes: int = 2**20
    # Rows of a column that `verify` checks together.
    verify_rows: int = 2**14

    # --- cli ---

    # Bytes of vectors that are read and encoded, or searched for, together.
    cli_block_bytes: int = 2**26
    # Bytes of codes and kept vectors that `build` holds in memory before it appends them to the file. Half the size up
    # to which the store merges segments, so most segments in the file are not merged, and written, again.
    cli_spill_bytes: int = 2**29
    # The sample that `build` fits the encoder to: as many rows as fit the bytes, within the bounds.
    cli_sample_rows: int = 2**13
    cli_sample_bytes: int = 2**26
    cli_least_sample_rows: int = 32
    # Sample rows that are read before the pages that they touched are released.
    cli_sample_step_rows: int = 2**8
    # Vector files that are mapped at once, well below common limits on open files.
    cli_open_files: int = 32
    # A file with a larger share of unused bytes is worth rewriting.
    cli_unused_share: float = 1 / 3
    # Seconds between lines of progress where there is no progress bar.
    cli_progress_seconds: float = 5.0
    # Queries that are searched for together.
    cli_query_rows: int = 2**10


_current = Tuning()


def tuning() -> Tuning:
    """Return the constants in use."""
    return _current


@contextmanager
def tuned(**changes: Any) -> Iterator[None]:
    """Replace constants in all threads of this process: for tests."""
    global _current
    before = _current
    _current = replace(before, **changes)
    try:
        yield
    finally:
        _current = before
