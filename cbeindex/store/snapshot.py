"""Snapshots: the rows of an index at one moment."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._core.typing import Codes, Ids, Rows
from ..data.codes import n_words
from ..data.columns import Column
from ..data.ids import missing_text
from ..errors import CorruptIndexFileError
from .segment import Segment


class Snapshot(NamedTuple):
    """The segments of an index at one moment. A search works on one snapshot."""

    segments: tuple[Segment, ...]

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
        """Raise an IndexFileError if mapped rows are damaged; copies of them would get new, valid checksums."""
        for segment in self.segments:
            if segment.origin is not None:
                segment.origin.check()

    def require(self, ids: Ids) -> None:
        """Raise ValueError if one of `ids` is not present."""
        found = self.contains(ids)
        if not found.all():
            raise ValueError(missing_text(ids[~found]))

    def stats(self) -> dict[str, Any]:
        """Count rows, segments and bytes."""
        columns = {name for segment in self.segments for name in segment.columns}
        buckets = [s.order.nbytes + s.ranks.nbytes + s.buckets.nbytes for s in self.segments if s.buckets is not None]
        return {
            "rows": self.n_rows,
            "removed": sum(s.n_removed for s in self.segments),
            "segments": len(self.segments),
            "bytes": {
                "codes": sum(s.codes.nbytes for s in self.segments),
                "ids": sum(s.ids.nbytes for s in self.segments),
                "removed": sum(s.removed.nbytes for s in self.segments),
                "buckets": sum(buckets),
                **{name: sum(s.columns[name].nbytes for s in self.segments) for name in sorted(columns)},
            },
        }

    def ids(self) -> Ids:
        """Return all ids in ascending order."""
        parts = [s.ids[~s.removed] if s.removed.size else s.ids for s in self.segments]
        ids = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]))
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
