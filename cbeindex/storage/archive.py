"""The file of one index: which segments it holds, and how commits are written to it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._core.checks import as_choice
from .._core.typing import Arrays
from ..errors import CorruptIndexFileError
from ..store.rowstore import RowStore
from . import container
from .checking import RowRules, check_together
from .container import Stored
from .layout import VERSION
from .segments import SavedSegment, describe_rows, load_segments, mapped_crcs
from .values import reporting_damage, value_of

_KINDS = ("BinaryIndex", "CBEIndex")


@dataclass
class Archive:
    """The last commit of a file, and the segments that it holds.

    Attributes
    ----------
    stored : Stored
    saved : list of SavedSegment
    """

    stored: Stored
    saved: list[SavedSegment] = field(default_factory=list)
    # The state that a save was about to commit. An interrupted save leaves the file in this state or the old one.
    _next: Archive | None = None

    @classmethod
    def read(cls, path: str | os.PathLike[str], kind: str, mmap: bool, verify: bool) -> Archive:
        """Open a file that must hold an index of class `kind`."""
        stored = container.read(path, mmap=mmap, verify=verify)
        with reporting_damage(stored.path):
            found = stored.content.get("kind")
            if found != kind and found in _KINDS:
                raise CorruptIndexFileError(f"the file holds a {found}: open it with {found}.load")
            as_choice(found, "kind", (kind,))
        return cls(stored)

    @classmethod
    def write(
        cls,
        path: str | os.PathLike[str],
        content: dict[str, Any],
        arrays: Arrays,
        rows: RowStore,
        before: Archive | None,
        only_unchanged: bool,
    ) -> Archive:
        """Write an index to a new file, which may replace an old one.

        `before` is the archive of the last save. With `only_unchanged`, the file to replace must still hold it.
        """
        described = describe_rows(rows, [], 1)

        def remember(stored: Stored) -> None:
            if before is not None and before.stored.path == stored.path:
                before._next = cls(stored, described.saved)

        before = before and before._latest()
        stored = container.write(
            path,
            {**content, "rows": described.content},
            {**arrays, **described.new},
            replaces=before.stored if before and only_unchanged else None,
            crcs=mapped_crcs(described.saved),
            before_commit=remember,
        )
        return cls(stored, described.saved)

    def append(self, content: dict[str, Any], arrays: Arrays, rows: RowStore) -> Archive:
        """Append new segments to the file, and those of `arrays` that differ from the file.

        A file of an older version is written anew.
        """
        before = self._latest()
        if before.stored.version != VERSION:
            return Archive.write(before.stored.path, content, arrays, rows, self, only_unchanged=True)
        described = describe_rows(rows, before.saved, before.stored.sequence + 1)
        same = {name for name, array in arrays.items() if _is_same(before.stored.arrays.get(name), array)}
        new = described.new | {name: array for name, array in arrays.items() if name not in same}

        def remember(stored: Stored) -> None:
            before._next = Archive(stored, described.saved)

        content = {**content, "rows": described.content}
        stored = container.append(before.stored, content, new, described.kept | same, before_commit=remember)
        return Archive(stored, described.saved)

    def _latest(self) -> Archive:
        """Return the last state that this index has committed, also if the save was interrupted after its commit."""
        archive = self
        while archive._next is not None and not container.is_current(archive.stored):
            archive = archive._next
        return archive

    def load_rows(self, rows: RowStore) -> None:
        """Fill an empty store with the rows of the file."""
        with reporting_damage(self.stored.path):
            described = value_of(self.stored.content, "rows", dict)
            self.saved, next_id = load_segments(described, self.stored, rows)
            rows.restore(tuple(saved.segment for saved in self.saved), next_id)
        for saved in self.saved:  # arrays that `load_segments` has read
            if saved.removed_name is not None:
                self.stored.check_mapped(saved.removed_name)
            if self.stored.version == 1:
                for part in ("head", "tail"):
                    self.stored.check_mapped(f"{saved.name}/{part}")

    def check(self, rows: RowStore) -> None:
        """Raise an IndexFileError if loaded rows hold values that no save writes. Reads all rows."""
        with reporting_damage(self.stored.path):
            rules, segments = RowRules.of(self.stored, rows), [saved.segment for saved in self.saved]
            for segment in segments:
                rules.check(segment)
            check_together(segments, rows.has_names)


def _is_same(old: Any, new: Any) -> bool:
    return old is not None and (old is new or (old.dtype == new.dtype and np.array_equal(old, new)))
