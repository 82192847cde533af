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
