"""A segment: rows that do not change.

A segment holds rows in the order of their ids, so that "first row" and "smallest id" are the same to kernels, and an
id is found by bisection. Where buckets need another order, the segment knows both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from .._core.typing import Ids, Keys, Mask, Ranks, Rows
from ..data.codes import CodeRows
from ..data.columns import Column
from ..data.keys import NO_ID, NO_KEY
from ..data.sorted import is_in, without
from ..errors import CorruptIndexFileError


class Part(NamedTuple):
    """A segment as the planner sees it: its rows, and its buckets (`Cells`, `Tables` or None)."""

    n_rows: int
    buckets: Any


NOT_HIDDEN: Mask = np.zeros(0, dtype=np.bool_)

NO_RANKS: Ranks = np.zeros(0, dtype=np.int32)


class BucketMaker(Protocol):
    """A way to make buckets."""

    def arrange(self, segment: Segment) -> Segment:
        """Return the segment with buckets, its rows in the order that they want; as it is if it is too small."""


class Origin(Protocol):
    """Where the arrays of a segment are mapped from."""

    def check(self) -> None:
        """Raise an IndexFileError if the arrays are not as they were written, at the cost of reading all of them."""


@dataclass(frozen=True)
class Segment:
    """Rows that do not change.

    Attributes
    ----------
    ids : int64 array of shape (n_rows,)
        Ascending, unless there is `order`.
    codes : CodeRows
    columns : dict of arrays or SparseRows with n_rows entries each
    removed : bool array of shape (n_rows,), or empty while no row is removed
    order, ranks : int32 arrays of shape (n_rows,), or empty
        The rows in the order of their ids, and the place of each row in it; empty where rows are in that order.
    buckets : Cells, Tables or None
        What is known of the rows beyond their codes, to find near ones without looking at all.
    origin : Origin or None
        Where the rows are mapped from: to be checked before they are copied to where they get new checksums.
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
        """Stored rows, removed ones included."""
        return len(self.ids)

    @property
    def n_removed(self) -> int:
        """Removed rows that still take room."""
        return int(np.count_nonzero(self.removed))

    def find(self, ids: Ids) -> Rows:
        """Return the row of each id, -1 where this segment does not have it (any more)."""
        if not self.n_rows:
            return np.full(len(ids), -1)
        if not self.order.size:
            rows = np.searchsorted(self.ids, ids)
            rows[rows == self.n_rows] = 0
        else:
            try:
                ranks = np.searchsorted(self.ids, ids, sorter=self.order)
            except ValueError as error:
                raise CorruptIndexFileError(f"the order of rows must be of numbers below {self.n_rows}") from error
            ranks[ranks == self.n_rows] = 0
            rows = self._rows_of_ranks(ranks)
        found = self.ids[rows] == ids
        if self.removed.size:
            found &= ~self.removed[rows]
        return np.where(found, rows, -1)

    def rows_of(self, keys: Keys) -> Rows:
        """Return the rows of keys; 0 for no key."""
        ranks = np.where(keys == NO_KEY, 0, keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
        return self._rows_of_ranks(ranks) if self.order.size else ranks

    def _rows_of_ranks(self, ranks: Rows) -> Rows:
        """Return rows by their places in the order of ids."""
        if ranks.size and ranks.max() >= self.n_rows:
            raise CorruptIndexFileError(f"ranks of rows must be below {self.n_rows}")
        rows = self.order[ranks].astype(np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= self.n_rows):  # a file may say anything, and kernels trust it
            raise CorruptIndexFileError(f"the order of rows must be of numbers below {self.n_rows}")
        return rows

    def ids_of(self, keys: Keys) -> Ids:
        """Return the ids of keys; -1 for no key."""
        return np.where(keys == NO_KEY, NO_ID, self.ids[self.rows_of(keys)])

    def check(self, columns: Mapping[str, Column]) -> None:
        """Raise CorruptIndexFileError if a segment from a file makes no sense, at the cost of reading all of it."""
        places = np.arange(self.n_rows)
        ids = self.ids
        if self.order.size:
            if not np.array_equal(np.sort(self.order), places) or not np.array_equal(self.ranks[self.order], places):
                raise CorruptIndexFileError("the order of rows must have each of them once")
            ids = self.ids[self.order]
        if (ids[1:] <= ids[:-1]).any() or ids[0] < 0:
            raise CorruptIndexFileError("ids must be 0 or more and in order")
        for name, column in columns.items():
            if column.is_sparse:
                self.columns[name].check(column.shape[0])
        if hasattr(self.buckets, "checked"):
            self.buckets.checked()

    def without(self, rows: Rows) -> Segment:
        """Return the segment with some rows marked as removed."""
        removed = self.removed.copy() if self.removed.size else np.zeros(self.n_rows, dtype=np.bool_)
        removed[rows] = True
        return replace(self, removed=removed)

    def hidden(self, allow: Ids | None, deny: Ids | None) -> Mask:
        """Mark the rows that must not be answers; empty when all may."""
        if allow is None and deny is None:
            return self.removed
        if allow is not None:
            hidden = np.ones(self.n_rows, dtype=np.bool_)
            hidden[self._rows_among(allow)] = False
        else:
            hidden = self.removed.copy() if self.removed.size else np.zeros(self.n_rows, dtype=np.bool_)
        if deny is not None:
            hidden[self._rows_among(deny)] = True
        return hidden

    def allowed(self, allow: Ids, deny: Ids | None) -> Rows:
        """Return the rows that may be answers, in the order of their ids."""
        return self._rows_among(allow if deny is None else without(allow, deny))

    def _rows_among(self, ids: Ids) -> Rows:
        """Return the rows with one of `ids`, which ascend, in the order of their ids."""
        if len(ids) < self.n_rows:
            rows = self.find(ids)
            return rows[rows >= 0]
        rows = np.arange(self.n_rows)
        if self.order.size:
            rows = self._rows_of_ranks(rows)
        rows = rows[is_in(self.ids[rows] if self.order.size else self.ids, ids)]
        return rows[~self.removed[rows]] if self.removed.size else rows

    def take(self, rows: Rows, names: Collection[str] | None = None) -> Segment:
        """Return some rows as a segment without buckets, with all or some columns.

        `rows` must be in the order of their ids.
        """
        codes = CodeRows.empty(len(rows), 64 * (self.codes.n_head + self.codes.tail.shape[1]))
        codes.write(0, self.codes.take(rows))
        columns = {name: self.columns[name][rows] for name in (self.columns if names is None else names)}
        return Segment(self.ids[rows], codes, columns, self.removed[rows] if self.removed.size else NOT_HIDDEN)

    def in_order(self) -> Segment:
        """Return the segment with its rows in the order of their ids."""
        if (self.ids[1:] > self.ids[:-1]).all():
            return self
        # A removed row may have the id of a later one: the order of equal ids does not matter, but must be fixed.
        return self.take(np.argsort(self.ids, kind="stable")).without_removed()

    def without_removed(self) -> Segment:
        """Return the rows that are not removed, in the order of their ids, without buckets."""
        if not self.removed.size and not self.order.size:
            return replace(self, buckets=None)
        rows = self._rows_of_ranks(np.arange(self.n_rows)) if self.order.size else np.arange(self.n_rows)
        return replace(self.take(rows[~self.removed[rows]] if self.removed.size else rows), removed=NOT_HIDDEN)
