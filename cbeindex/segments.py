"""Rows: immutable segments, a buffer that grows, and the snapshot that a search works on.

A segment holds rows in the order of their ids, so that "first row" and "smallest id" are the same to kernels, and an
id is found by bisection. New rows go to the buffer; it becomes a segment when it is full. A writer changes nothing that
a reader can see: it fills room behind the rows in use, or makes new arrays, and then puts a new snapshot in place of
the old one in one step. So readers never wait, and no search sees half of a change.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._typing import Codes, Ids, Mask, Rows
from .codes import CodeRows, n_words
from .columns import Column

# The buffer becomes a segment at this many rows, or at so many bytes; batches of half of it are segments at once.
_BUFFER_ROWS = 2**16
_BUFFER_BYTES = 2**27
_LEAST_ROWS = 64

NOT_HIDDEN: Mask = np.zeros(0, dtype=np.bool_)


@dataclass(frozen=True)
class Segment:
    """Rows that do not change.

    Attributes
    ----------
    ids : int64 array of shape (n_rows,), ascending
    codes : CodeRows
    columns : dict of arrays or SparseRows with n_rows entries each
    removed : bool array of shape (n_rows,), or empty while no row is removed
    """

    ids: Ids
    codes: CodeRows
    columns: dict[str, Any]
    removed: Mask

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
        rows = np.searchsorted(self.ids, ids)
        rows[rows == self.n_rows] = 0
        found = self.ids[rows] == ids if self.n_rows else np.zeros(len(ids), dtype=np.bool_)
        if self.removed.size:
            found &= ~self.removed[rows]
        return np.where(found, rows, -1)

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
            rows = self.find(allow)
            hidden[rows[rows >= 0]] = False
        else:
            hidden = self.removed.copy() if self.removed.size else np.zeros(self.n_rows, dtype=np.bool_)
        if deny is not None:
            rows = self.find(deny)
            hidden[rows[rows >= 0]] = True
        return hidden

    def take(self, rows: Rows) -> Segment:
        """Return some rows as a segment; `rows` must be in the order of their ids."""
        codes = CodeRows.empty(len(rows), 64 * (self.codes.n_head + self.codes.tail.shape[1]))
        codes.write(0, self.codes.take(rows))
        columns = {name: values[rows] for name, values in self.columns.items()}
        return Segment(self.ids[rows], codes, columns, self.removed[rows] if self.removed.size else NOT_HIDDEN)

    def in_order(self) -> Segment:
        """Return the segment with its rows in the order of their ids."""
        if (self.ids[1:] > self.ids[:-1]).all():
            return self
        # A removed row may have the id of a later one: the order of equal ids does not matter, but must be fixed.
        return self.take(np.argsort(self.ids, kind="stable")).without_removed()

    def without_removed(self) -> Segment:
        """Return the rows that are not removed."""
        if not self.removed.size:
            return self
        return replace(self.take(np.flatnonzero(~self.removed)), removed=NOT_HIDDEN)


class Snapshot(NamedTuple):
    """The rows at one moment."""

    segments: tuple[Segment, ...]

    @property
    def n_rows(self) -> int:
        """Rows that can be found."""
        return sum(segment.n_rows - segment.n_removed for segment in self.segments)

    def contains(self, ids: Ids) -> NDArray[np.bool_]:
        """Tell which ids there are."""
        found = np.zeros(len(ids), dtype=np.bool_)
        for segment in self.segments:
            found |= segment.find(ids) >= 0
        return found

    def require(self, ids: Ids) -> None:
        """Raise ValueError if one of `ids` is not there."""
        found = self.contains(ids)
        if not found.all():
            raise ValueError(f"id {ids[~found][0]} is not in the index")

    def stats(self) -> dict[str, Any]:
        """Count rows, segments and bytes."""
        columns = {name for segment in self.segments for name in segment.columns}
        return {
            "rows": self.n_rows,
            "removed": sum(s.n_removed for s in self.segments),
            "segments": len(self.segments),
            "bytes": {
                "codes": sum(s.codes.nbytes for s in self.segments),
                "ids": sum(s.ids.nbytes for s in self.segments),
                "removed": sum(s.removed.nbytes for s in self.segments),
                **{name: sum(s.columns[name].nbytes for s in self.segments) for name in sorted(columns)},
            },
        }

    def ids(self) -> Ids:
        """Return all ids, ascending."""
        parts = [s.ids[~s.removed] if s.removed.size else s.ids for s in self.segments]
        return np.sort(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)

    def codes_of(self, ids: Ids, n_bits: int) -> Codes:
        """Return the codes of `ids`, all of which there are."""
        words = np.empty((len(ids), n_words(n_bits)), dtype=np.uint64)
        for segment in self.segments:
            rows = segment.find(ids)
            words[rows >= 0] = segment.codes.take(rows[rows >= 0])
        return words

    def column_of(self, name: str, ids: Ids, column: Column) -> Any:
        """Return the entries of a column for `ids`, all of which there are, in the form of the column."""
        parts, places = [], []
        for segment in self.segments:
            rows = segment.find(ids)
            places.append(np.flatnonzero(rows >= 0))
            parts.append(segment.columns[name][rows[rows >= 0]])
        values = column.joined(parts)
        return values[np.argsort(np.concatenate(places))] if len(parts) > 1 else values[: len(ids)]


class _Buffer:
    """Rows in the order in which they came, with room for more behind them."""

    def __init__(self, n_bits: int, columns: Mapping[str, Column], capacity: int) -> None:
        self.n_rows = 0
        self.rows: dict[int, int] = {}
        self._ids = np.empty(capacity, dtype=np.int64)
        self._codes = CodeRows.empty(capacity, n_bits)
        self._columns = {name: column.room(capacity) for name, column in columns.items()}
        self.removed: Mask = NOT_HIDDEN

    @property
    def capacity(self) -> int:
        return len(self._ids)

    def write(self, ids: Ids, words: Codes, columns: Mapping[str, Any]) -> None:
        """Append rows that fit."""
        start, stop = self.n_rows, self.n_rows + len(ids)
        self._ids[start:stop] = ids
        self._codes.write(start, words)
        for name, values in columns.items():
            self._columns[name].write(start, values)
        self.rows.update(zip(ids.tolist(), range(start, stop), strict=True))
        if self.removed.size:
            self.removed = np.concatenate([self.removed, np.zeros(len(ids), dtype=np.bool_)])
        self.n_rows = stop

    def remove(self, ids: Ids) -> None:
        """Remove those of `ids` that are here."""
        rows = list(map(self.rows.pop, self.rows.keys() & ids.tolist()))
        if rows:
            removed = self.removed.copy() if self.removed.size else np.zeros(self.n_rows, dtype=np.bool_)
            removed[rows] = True
            self.removed = removed

    def view(self) -> Segment:
        """View the rows so far, in the order in which they came."""
        columns = {name: values.first(self.n_rows) for name, values in self._columns.items()}
        return Segment(self._ids[: self.n_rows], self._codes.first(self.n_rows), columns, self.removed)


class RowStore:
    """The rows of an index: one writer at a time, any number of readers.

    Parameters
    ----------
    n_bits : int
    columns : mapping of str to Column
        What else is stored for each row.
    """

    def __init__(self, n_bits: int, columns: Mapping[str, Column] | None = None) -> None:
        self.n_bits = n_bits
        self.columns = dict(columns or {})
        row_bytes = 8 * n_words(n_bits) + sum(column.row_bytes for column in self.columns.values())
        self._buffer_rows = max(_LEAST_ROWS, min(_BUFFER_ROWS, _BUFFER_BYTES // max(1, row_bytes)))
        self._lock = threading.RLock()
        self._next_id = 0
        self._sealed: tuple[Segment, ...] = ()
        self._buffer = self._new_buffer(_LEAST_ROWS)
        self._published: tuple[tuple[Segment, ...], Segment] = (), self._buffer.view()
        self._ordered: tuple[Segment, Segment] | None = None

    def snapshot(self) -> Snapshot:
        """Return the rows as they are now."""
        sealed, newest = self._published
        cached = self._ordered
        if cached is None or cached[0] is not newest:
            cached = self._ordered = newest, newest.in_order()
        # A buffer may be empty, and putting it in order may have dropped all of its rows.
        return Snapshot(tuple(segment for segment in (*sealed, cached[1]) if segment.n_rows))

    @property
    def n_rows(self) -> int:
        """Rows that can be found."""
        sealed, newest = self._published
        return sum(segment.n_rows - segment.n_removed for segment in (*sealed, newest))

    @property
    def next_id(self) -> int:
        """The least number above all ids that there ever were."""
        return self._next_id

    def reserve(self, next_id: int) -> None:
        """Let new ids start at `next_id` at least."""
        self._next_id = max(self._next_id, next_id)

    def add(
        self, ids: Ids | None, words: Codes, columns: Mapping[str, Any] | None = None, *, replace: bool = False
    ) -> Ids:
        """Add rows; all of them become visible at once.

        Parameters
        ----------
        ids : int64 array of shape (n,), without repetition, or None for new ones
        words : uint64 array of shape (n, n_words)
        columns : dict of arrays or SparseRows with n entries each; they become the store's own
        replace : bool
            Whether rows that have one of `ids` give way; otherwise such an id is an error.

        Returns
        -------
        int64 array of shape (n,)
        """
        with self._lock:
            if ids is None:
                if self._next_id + len(words) >= 2**63:
                    raise ValueError(f"there are no new ids after {self._next_id - 1}; give ids")
                ids = np.arange(self._next_id, self._next_id + len(words), dtype=np.int64)
            elif len(ids) and ids.min() < self._next_id:  # ids above all others cannot be taken
                taken = self._taken(ids)
                if taken.any():
                    if not replace:
                        raise ValueError(f"id {ids[taken][0]} is taken; remove it first, or add with replace=True")
                    self._remove(ids[taken])
            if len(ids) == 0:
                return ids
            self._append(ids, words, columns or {})
            self._next_id = max(self._next_id, int(ids.max()) + 1)
            self._publish()
            return ids

    def remove(self, ids: Ids) -> None:
        """Remove rows; an id that there is not is an error, and then nothing is removed."""
        with self._lock:
            taken = self._taken(ids)
            if not taken.all():
                raise ValueError(f"id {ids[~taken][0]} is not in the index")
            self._remove(ids)
            self._publish()

    def compact(self) -> None:
        """Drop removed rows and join all segments to one."""
        with self._lock:
            self._replace_all(self.snapshot().segments)

    def _replace_all(self, segments: tuple[Segment, ...]) -> None:
        parts = [segment.without_removed() for segment in segments]
        parts = [part for part in parts if part.n_rows]
        self._sealed = (self._joined(parts),) if parts else ()
        self._buffer = self._new_buffer(_LEAST_ROWS)
        self._publish()

    def _joined(self, segments: list[Segment]) -> Segment:
        """Join segments without removed rows to one, in the order of ids."""
        if len(segments) == 1:
            return segments[0]
        words = np.concatenate([s.codes.take(np.arange(s.n_rows)) for s in segments])
        columns = {name: c.joined([s.columns[name] for s in segments]) for name, c in self.columns.items()}
        ids = np.concatenate([s.ids for s in segments])
        return Segment(ids, CodeRows.of(words, self.n_bits), columns, NOT_HIDDEN).in_order()

    def _new_buffer(self, capacity: int) -> _Buffer:
        return _Buffer(self.n_bits, self.columns, capacity)

    def _taken(self, ids: Ids) -> NDArray[np.bool_]:
        taken = Snapshot(self._sealed).contains(ids)
        here = self._buffer.rows.keys() & ids.tolist()
        return taken | np.isin(ids, list(here)) if here else taken

    def _remove(self, ids: Ids) -> None:
        changed = []
        for segment in self._sealed:
            rows = segment.find(ids)
            rows = rows[rows >= 0]
            changed.append(segment.without(rows) if len(rows) else segment)
        self._sealed = tuple(changed)
        self._buffer.remove(ids)

    def _append(self, ids: Ids, words: Codes, columns: Mapping[str, Any]) -> None:
        if len(ids) >= self._buffer_rows // 2:
            segment = Segment(ids.copy(), CodeRows.of(words, self.n_bits), dict(columns), NOT_HIDDEN)
            self._sealed = (*self._sealed, segment.in_order())
            return
        needed = self._buffer.n_rows + len(ids)
        if needed > self._buffer_rows:
            self._sealed = (*self._sealed, self._buffer.view().in_order())
            self._buffer = self._new_buffer(_LEAST_ROWS)
            needed = len(ids)
        if needed > self._buffer.capacity:
            # Twice the room each time: every row is copied twice at most, on average.
            old, capacity = self._buffer, min(self._buffer_rows, max(needed, 2 * self._buffer.capacity))
            self._buffer = self._new_buffer(capacity)
            view = old.view()
            self._buffer.write(view.ids, view.codes.take(np.arange(old.n_rows)), view.columns)
            self._buffer.rows, self._buffer.removed = old.rows, old.removed
        self._buffer.write(ids, words, columns)

    def _publish(self) -> None:
        self._published = self._sealed, self._buffer.view()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {
                "n_bits": self.n_bits,
                "columns": self.columns,
                "next_id": self._next_id,
                "segments": self.snapshot().segments,
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["n_bits"], state["columns"])  # type: ignore[misc]
        self._next_id, self._sealed = state["next_id"], state["segments"]
        self._publish()
