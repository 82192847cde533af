"""Constants that were chosen by measurement, in one place that tests can replace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Tuning:
    """Constants that trade time against memory or accuracy; the comment at each gives the measurement behind it."""

    # --- data ---

    # --- encoders ---

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
    """Work with other constants, in all threads of this process: for tests."""
    global _current
    before = _current
    _current = replace(before, **changes)
    try:
        yield
    finally:
        _current = before
