"""Snapshots: the rows of an index at one moment."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._core.typing import Codes, Ids, Rows, StringIds
from ..data.codes import n_words
from ..data.columns import Column
from ..data.ids import AnyIds, distinct, missing_text
from ..data.names import NAMES, NameColumn, Names, as_objects
from ..errors import CorruptIndexFileError
from .segment import Segment, require_kind


class Snapshot(NamedTuple):
    """The segments of an index at one moment, and whether their rows have names. A search works on one snapshot."""

    segments: tuple[Segment, ...]
    has_names: bool = False

    @property
    def n_rows(self) -> int:
        """Number of rows that are not removed."""
        return sum(segment.n_rows - segment.n_removed for segment in self.segments)

    def contains(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which ids are present."""
        found = np.zeros(len(ids), dtype=np.bool_)
        for segment in self.segments:
            found |= segment.find(ids) >= 0
        return found

    def check_origins(self) -> None:
        """Raise an IndexFileError if rows of a file are damaged.

        Copies of mapped rows would get new, valid checksums, and what is made of rows relies on their values.
        """
        for segment in self.segments:
            if segment.origin is not None:
                segment.origin.check(segment)

    def find(self, ids: AnyIds) -> Ids:
        """Return the integer id of the row that has each id or name, -1 for those that are not present."""
        if not isinstance(ids, Names):
            for segment in self.segments[:1]:
                require_kind(ids, segment.has_names)
            return np.where(self.contains(ids), ids, -1)
        numbers = np.full(len(ids), -1)
        for segment in self.segments:
            rows = segment.find_any(ids)
            numbers[rows >= 0] = segment.ids[rows[rows >= 0]]
        return numbers

    def require(self, ids: AnyIds) -> Ids:
        """Return the integer id of the row that has each id or name. Raises ValueError if one is not present."""
        numbers = self.find(ids)
        if (missing := numbers < 0).any():
            raise ValueError(missing_text(distinct(ids, missing)))
        return numbers

    def has(self, id_: int | str) -> bool:
        """Return whether an id of the caller is present."""
        if isinstance(id_, str) != self.has_names:
            return False
        return bool(self.find(Names.of([id_]) if isinstance(id_, str) else np.array([id_]))[0] >= 0)

    def caller_ids(self) -> Ids | StringIds:
        """Return all ids of the caller in the order of the ids of rows: integers ascending, names as inserted."""
        ids = self.ids()
        return as_objects(self.names(ids).tolist()) if self.has_names else ids

    def names(self, ids: Ids) -> Names:
        """Return the names of `ids`, all of which must be present in segments with names."""
        names: Names = self.column_of(NAMES, ids, NameColumn())
        return names

    def stats(self) -> dict[str, Any]:
        """Count rows, segments and bytes."""
        columns = {name for segment in self.segments for name in segment.columns}
        buckets = [s.order.nbytes + s.ranks.nbytes + s.buckets.nbytes for s in self.segments if s.buckets is not None]
        n_copied = sum(getattr(s.buckets, "copied_nbytes", 0) for s in self.segments)
        return {
            "rows": self.n_rows,
            "removed": sum(s.n_removed for s in self.segments),
            "segments": len(self.segments),
            "bytes": {
                "codes": sum(s.codes.nbytes for s in self.segments),
                "ids": sum(s.ids.nbytes for s in self.segments),
                "removed": sum(s.removed.nbytes for s in self.segments),
                "buckets": sum(buckets),
                **({"copies": n_copied} if n_copied else {}),
                **{name: sum(s.columns[name].nbytes for s in self.segments) for name in sorted(columns)},
            },
        }

    def ids(self) -> Ids:
        """Return all ids in ascending order."""
        parts = [segment.present_ids() for segment in self.segments]
        # Stable sorts merge parts that are in order, and take little time if all are.
        ids = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]), kind="stable")
        twice = ids[1:][ids[1:] == ids[:-1]]
        if twice.size:
            raise CorruptIndexFileError(f"id {twice[0]} must not occur twice")
        return ids

    def codes_of(self, ids: Ids, n_bits: int) -> Codes:
        """Return the codes of `ids`, all of which must be present."""
        words = np.empty((len(ids), n_words(n_bits)), dtype=np.uint64)
        for segment, rows in zip(self.segments, self._rows_of(ids), strict=True):
            words[rows >= 0] = segment.codes.take(rows[rows >= 0])
        return words

    def column_of(self, name: str, ids: Ids, column: Column) -> Any:
        """Return the entries of a column for `ids`, all of which must be present, in the form of the column."""
        parts, places = [], []
        for segment, rows in zip(self.segments, self._rows_of(ids), strict=True):
            places.append(np.flatnonzero(rows >= 0))
            parts.append(segment.columns[name][rows[rows >= 0]])
        values = column.joined(parts)
        return values[np.argsort(np.concatenate(places))] if len(parts) > 1 else values

    def _rows_of(self, ids: Ids) -> list[Rows]:
        """Return the rows of `ids` in each segment, -1 where an id is elsewhere.

        Raises CorruptIndexFileError if an id is not found: a file may hold ids in any order.
        """
        found = [segment.find(ids) for segment in self.segments]
        if sum(np.count_nonzero(rows >= 0) for rows in found) != len(ids):
            raise CorruptIndexFileError("ids must be unique and in order")
        return found
