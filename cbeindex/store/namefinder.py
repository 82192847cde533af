"""Finding the rows of names in a segment."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np

from .. import kernels
from .._core.tuning import tuning
from .._core.typing import Mask, Ranks, Rows
from ..data.names import Names

# Secret, so that nobody can choose names whose hashes collide.
_POINTS = tuple(2**16 + secrets.randbelow(2**31 - 2**17) for _ in range(2))


def hashes_of(names: Names) -> Rows:
    """Hash names, whose offsets must be valid. The hash differs between processes."""
    hashes: Rows = np.empty(len(names), dtype=np.int64)
    kernels.names.hash_names(names.offsets, names.data, *_POINTS, hashes)
    return hashes


class NameFinder:
    """Finds the rows of names: first by comparing all of them, and soon by a table of hashes.

    A table takes as long to make as some dozen comparisons of all names, so it is made after as many. Rows of a
    buffer, which are new after every write, are thus found without a table, and those of a segment with one.
    """

    def __init__(self, names: Names) -> None:
        names.check_offsets()  # they may come from a damaged file
        self._names = names
        self._n_scans = 0
        self._table: tuple[Rows, Ranks] | None = None

    @classmethod
    def of(cls, names: Names) -> NameFinder:
        """Return the finder of some names."""
        finder: NameFinder | None = names.finder
        if finder is None:
            finder = names.finder = cls(names)
        return finder

    def find(self, wanted: Names, removed: Mask) -> Rows:
        """Return the row of each name, -1 for names that are not there or are removed."""
        names, rows = self._names, np.empty(len(wanted), dtype=np.int64)
        self._n_scans += len(wanted)
        if self._table is None and self._n_scans <= tuning().name_scans:
            kernels.names.find_by_scan(*wanted.entries, *names.entries, removed, rows)
            return rows
        if self._table is None:
            hashes = hashes_of(names)
            order = np.argsort(hashes, kind="stable")
            self._table = hashes[order], order.astype(np.int32)
        kernels.names.find_by_hash(*wanted.entries, hashes_of(wanted), *names.entries, *self._table, removed, rows)
        return rows


def repeated(parts: Sequence[Names]) -> str | None:
    """Return a name that is there twice, None if there is none."""
    every = Names.joined(parts)
    every.check_offsets()
    hashes = hashes_of(every)
    ordered = np.sort(hashes)
    alike = np.flatnonzero(np.isin(hashes, ordered[1:][ordered[1:] == ordered[:-1]]))
    seen: set[str] = set()
    for name in every[alike]:
        if name in seen:
            return name
        seen.add(name)
    return None
