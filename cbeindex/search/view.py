"""A segment as one search sees it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, TypeVar

import numpy as np

from .._core.typing import Mask, Rows
from ..data.keys import SearchKeys
from ..store.segment import NOT_HIDDEN, Segment
from .plan import Selection

AnyKeys = TypeVar("AnyKeys", bound=SearchKeys)


class View(NamedTuple):
    """The rows of a segment that are scanned.

    Attributes
    ----------
    segment : Segment
    part : Segment
        The segment itself, or a copy of the few rows that are allowed.
    hidden : bool array, or empty
        Rows of `part` that must not be results.
    rows : int64 array, or None
        The rows of `segment` that `part` is a copy of.
    """

    segment: Segment
    part: Segment
    hidden: Mask
    rows: Rows | None = None

    @classmethod
    def of(cls, selection: Selection, columns: Collection[str] = ()) -> View:
        """Copy the selected rows with these columns if the plan says so."""
        segment = selection.segment
        if selection.rows is None:
            return cls(segment, segment, selection.hidden)
        return cls(segment, segment.take(selection.rows, columns), NOT_HIDDEN, selection.rows)

    @classmethod
    def whole(cls, segment: Segment, hidden: Mask = NOT_HIDDEN) -> View:
        """View all rows of a segment."""
        return cls(segment, segment, hidden)

    @property
    def n_visible(self) -> int:
        """Number of rows that may be results."""
        return self.part.n_rows - (int(np.count_nonzero(self.hidden)) if self.hidden.size else 0)

    def visible_rows(self) -> Rows:
        """Return the rows of `part` that may be results."""
        return np.flatnonzero(~self.hidden) if self.hidden.size else np.arange(self.part.n_rows)

    def segment_rows(self, rows: Rows) -> Rows:
        """Return rows of `part` as rows of `segment`."""
        return rows if self.rows is None else self.rows[rows]

    def segment_keys(self, keys: AnyKeys) -> AnyKeys:
        """Return keys of `part` as keys of `segment`."""
        if self.rows is None:
            return keys
        return keys.with_ranks(self.segment.ranks[self.rows] if self.segment.ranks.size else self.rows)
