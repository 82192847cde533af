"""Segments: immutable rows.

A segment holds rows in the order of their ids, so that "first row" and "smallest id" are the same to kernels, and ids
are found by bisection. Where buckets need another order of rows, the segment stores the order of ids beside them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from .._core.typing import Ids, Mask, Ranks, Rows
from ..data.codes import CodeRows
from ..data.columns import Column, take_rows
from ..data.ids import AnyIds, Numbers
from ..data.keys import NO_ID, SearchKeys
from ..data.names import NAMES, NameColumn, Names
from ..data.sorted import is_in
from ..errors import CorruptIndexFileError
from .namefinder import NameFinder

NOT_HIDDEN: Mask = np.zeros(0, dtype=np.bool_)
"""The mask of a segment without removed or hidden rows."""

NO_RANKS: Ranks = np.zeros(0, dtype=np.int32)
"""The ranks of rows that are in the order of ids."""


class Arranger(Protocol):
    """Makes buckets."""

    uses_residuals: ClassVar[bool]
    join_width: ClassVar[int]

    def with_codec(self, codec: Any) -> Arranger:
        """Return the arranger of an index whose codec of residuals or vertices is fitted."""

    def arrange(self, segment: Segment, share: float = 1.0) -> Segment:
        """Return the segment with buckets, in the row order that they need. Small segments are returned unchanged.

        `share` is that of the rows of the index that the segment has, 0 for rows that are arranged for one search.
        """


class Origin(Protocol):
    """The file that a segment was loaded from."""

    def check(self, segment: Segment) -> None:
        """Raise an IndexFileError if arrays differ from what was written, or hold values that are never written.

        The first call reads the whole segment.
        """


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows that do not change. A segment equals itself alone.

    Attributes
    ----------
    ids : int64 array of shape (n_rows,)
        Ascending, unless there is `order`.
    codes : CodeRows
    columns : dict of arrays, SparseRows or Names with n_rows entries each
    removed : bool array of shape (n_rows,), or empty if no row is removed
    order, ranks : int32 arrays of shape (n_rows,), or empty
        The rows in the order of their ids, and the rank of each row in that order. Empty if rows are in that order.
    buckets : search.buckets.Buckets, or None
        Finds rows near a query without scanning all rows.
    origin : Origin or None
        The file that the arrays come from. They are checked before they are copied to a place that gives them new
        checksums, or buckets are made of them.
    """

    ids: Ids
    codes: CodeRows
    columns: dict[str, Any]
    removed: Mask
    order: Ranks = field(default_factory=lambda: NO_RANKS)
    ranks: Ranks = field(default_factory=lambda: NO_RANKS)
    buckets: Any = None
    origin: Origin | None = None

    @property
    def n_rows(self) -> int:
        """Number of stored rows, including removed rows."""
        return len(self.ids)

    @property
    def n_removed(self) -> int:
        """Number of removed rows that are still stored."""
        return int(np.count_nonzero(self.removed))

    def present_ids(self) -> Ids:
        """Return the ids of all rows that are not removed, ascending."""
        if self.order.size:
            rows = self._rows_of_ranks(np.arange(self.n_rows))
            return self.ids[rows[~self.removed[rows]] if self.removed.size else rows]
        return self.ids[~self.removed] if self.removed.size else self.ids

    def find(self, ids: Ids) -> Rows:
        """Return the row of each id, -1 for ids that this segment does not have or that are removed."""
        if not self.n_rows:
            return np.full(len(ids), -1)
        ranks = self._ranks_of(ids)
        rows = self._rows_of_ranks(ranks) if self.order.size else ranks
        found = self.ids[rows] == ids
        if self.removed.size:
            found &= ~self.removed[rows]
        return np.where(found, rows, -1)

    @property
    def has_names(self) -> bool:
        """Whether the ids of the caller are names, and `ids` are numbers of insertions."""
        return NAMES in self.columns

    def find_any(self, ids: AnyIds) -> Rows:
        """Return the row of each id or name, -1 for those that this segment does not have or that are removed."""
        require_kind(ids, self.has_names)
        if not isinstance(ids, Names):
            return self.find(ids)
        return NameFinder.of(self.columns[NAMES]).find(ids, self.removed)

    def rows_among(self, ids: AnyIds | Numbers) -> Rows:
        """Return the rows with one of `ids`, names or ascending integers, in the order of ids."""
        if isinstance(ids, Numbers):
            ids = ids.ids
        elif isinstance(ids, Names) or self.has_names:
            rows = np.unique(self.find_any(ids))
            rows = rows[rows >= 0]
            return rows[np.argsort(self.ranks[rows])] if self.order.size else rows
        if len(ids) < self.n_rows:
            rows = self.find(ids)
            return rows[rows >= 0]
        rows = np.arange(self.n_rows)
        if self.order.size:
            rows = self._rows_of_ranks(rows)
        rows = rows[is_in(self.ids[rows] if self.order.size else self.ids, ids)]
        return rows[~self.removed[rows]] if self.removed.size else rows

    def rows_of(self, keys: SearchKeys) -> Rows:
        """Return the rows of keys, row 0 for a missing result."""
        ranks = keys.ranks()
        return self._rows_of_ranks(ranks) if self.order.size else ranks

    def ids_of(self, keys: SearchKeys) -> Ids:
        """Return the ids of keys, `NO_ID` for a missing result."""
        return np.where(keys.is_missing(), NO_ID, self.ids[self.rows_of(keys)])

    def check(self, columns: Mapping[str, Column]) -> None:
        """Raise CorruptIndexFileError if a segment from a file is inconsistent, at the cost of reading all of it."""
        places = np.arange(self.n_rows)
        ids = self.ids
        if self.order.size:
            if not np.array_equal(np.sort(self.order), places) or not np.array_equal(self.ranks[self.order], places):
                raise CorruptIndexFileError("the order of rows must have each of them once")
            ids = self.ids[self.order]
        if (ids[1:] <= ids[:-1]).any() or ids[0] < 0:
            raise CorruptIndexFileError("ids must be ascending and non-negative")
        for name, column in columns.items():
            if column.is_sparse:
                self.columns[name].check(column.shape[0])
            elif isinstance(column, NameColumn):
                self.columns[name].check()
        if self.buckets is not None:
            self.buckets.check(self.codes)

    def without(self, rows: Rows) -> Segment:
        """Return the segment with some rows marked as removed."""
        removed = self.removed.copy() if self.removed.size else np.zeros(self.n_rows, dtype=np.bool_)
        removed[rows] = True
        return replace(self, removed=removed)

    def take(self, rows: Rows, names: Collection[str] | None = None) -> Segment:
        """Copy some rows, in the order of ids, to a segment without buckets, with all columns or those in `names`."""
        codes = CodeRows.of(self.codes.take(rows), 64 * self.codes.n_words)
        columns = {name: take_rows(self.columns[name], rows) for name in (self.columns if names is None else names)}
        return Segment(self.ids[rows], codes, columns, self.removed[rows] if self.removed.size else NOT_HIDDEN)

    def in_order(self) -> Segment:
        """Return the segment with its rows in the order of ids."""
        if (self.ids[1:] > self.ids[:-1]).all():
            return self
        # A removed row may have the id of a later row. Their order does not matter, but must be deterministic.
        return self.take(np.argsort(self.ids, kind="stable")).without_removed()

    def without_removed(self) -> Segment:
        """Return the rows that are not removed, in the order of ids, without buckets."""
        if not self.removed.size and not self.order.size:
            return replace(self, buckets=None)
        return replace(self.take(self.rows_in_order()), removed=NOT_HIDDEN)

    def rows_in_order(self) -> Rows:
        """Return the rows that are not removed, in the order of ids."""
        rows = np.arange(self.n_rows)
        if self.order.size:
            rows = self._rows_of_ranks(rows)
        return rows[~self.removed[rows]] if self.removed.size else rows

    def _ranks_of(self, ids: Ids) -> Rows:
        """Return the rank that each id has if the segment has it, otherwise any rank."""
        ends = np.array([0, self.n_rows - 1])
        first, last = self.ids[self._rows_of_ranks(ends) if self.order.size else ends]
        if int(last) - int(first) == self.n_rows - 1:  # consecutive ids, as rows get them by default, need no search
            ranks: Rows = ids - first
            ranks[(ranks < 0) | (ranks >= self.n_rows)] = 0
            return ranks
        try:
            ranks = np.searchsorted(self.ids, ids, sorter=self.order if self.order.size else None)
        except ValueError as error:
            raise CorruptIndexFileError(f"the order of rows must be of numbers below {self.n_rows}") from error
        ranks[ranks == self.n_rows] = 0
        return ranks

    def _rows_of_ranks(self, ranks: Rows) -> Rows:
        """Return rows by their ranks; a mapped file may hold any ranks, and kernels rely on rows being valid."""
        if ranks.size and ranks.max() >= self.n_rows:
            raise CorruptIndexFileError(f"ranks of rows must be below {self.n_rows}")
        rows = self.order[ranks].astype(np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= self.n_rows):
            raise CorruptIndexFileError(f"the order of rows must be of numbers below {self.n_rows}")
        return rows


def require_kind(ids: AnyIds, has_names: bool) -> None:
    """Raise TypeError if ids are of another kind than those of the index."""
    if len(ids) and isinstance(ids, Names) != has_names:
        kinds = ("strings", "integers") if has_names else ("integers", "strings")
        raise TypeError(f"ids must be {kinds[0]}, as those of this index are, got {kinds[1]}")
