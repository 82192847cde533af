"""The rows of an index: immutable segments and a buffer that grows.

New rows go to the buffer. It becomes a segment when it is full, and gets its buckets then. Segments that are not much
larger than those after them are joined with them, so that there are few. A writer changes nothing that a reader can
see: it fills room behind the rows in use, or makes new arrays, and then puts new contents in place of the old ones in
one step. So readers never wait, and no search sees half of a change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._core.threads import write_lock
from .._core.typing import Codes, Ids, Mask, Rows
from ..data.codes import CodeRows, n_words
from ..data.columns import Column
from ..errors import CorruptIndexFileError
from .segment import NOT_HIDDEN, BucketMaker, Segment
from .snapshot import Snapshot

# The buffer becomes a segment at this many rows, or at so many bytes; batches of half of it are segments at once.
_BUFFER_ROWS = 2**16
_BUFFER_BYTES = 2**27
_LEAST_ROWS = 64
# Rows without buckets are all looked at: with buckets, fewer of them wait in the buffer.
_BUCKETS_BUFFER_ROWS = 2**12
# Segments that are not joined with others: what is won does not pay for the copy.
_LARGE_ROWS = 2**22
_LARGE_BYTES = 2**30


class _Buffer:
    """Room for rows in the order in which they come.

    The caller says how many rows there are. What is written behind them does not count until the caller says so, so
    that a write which fails leaves nothing to undo.
    """

    def __init__(self, n_bits: int, columns: Mapping[str, Column], capacity: int) -> None:
        self.capacity = capacity
        self._ids = np.empty(capacity, dtype=np.int64)
        self._codes = CodeRows.empty(capacity, n_bits)
        self._columns = {name: column.buffer(capacity) for name, column in columns.items()}
        self._last_rows: dict[int, int] = {}
        self._n_indexed = 0

    def write(self, start: int, ids: Ids, words: Codes, columns: Mapping[str, Any]) -> None:
        """Write rows that fit behind the first `start` rows."""
        self._ids[start : start + len(ids)] = ids
        self._codes.write(start, words)
        for name, values in columns.items():
            self._columns[name].write(start, values)

    def find(self, ids: Ids, n_rows: int) -> Rows:
        """Return the last of the first `n_rows` rows that has each id, -1 where none has."""
        if self._n_indexed < n_rows:
            new = self._ids[self._n_indexed : n_rows].tolist()
            self._last_rows.update(zip(new, range(self._n_indexed, n_rows), strict=True))
            self._n_indexed = n_rows
        return np.fromiter((self._last_rows.get(id_, -1) for id_ in ids.tolist()), dtype=np.int64, count=len(ids))

    def first(self, n_rows: int, removed: Mask) -> Segment:
        """View the first `n_rows` rows, in the order in which they came."""
        columns = {name: values.first(n_rows) for name, values in self._columns.items()}
        return Segment(self._ids[:n_rows], self._codes.first(n_rows), columns, removed)


class _Contents(NamedTuple):
    """All that a store holds; a writer makes a new one and puts it in place of the old one in one step.

    Attributes
    ----------
    sealed : tuple of Segment
    buffer : _Buffer
    newest : Segment
        The rows in the buffer, in the order in which they came.
    next_id : int
        The least number above all ids that there ever were.
    """

    sealed: tuple[Segment, ...]
    buffer: _Buffer
    newest: Segment
    next_id: int

    def find_newest(self, ids: Ids) -> Rows:
        """Return the row of each id in the buffer, -1 where the buffer does not have it (any more)."""
        rows = self.buffer.find(ids, self.newest.n_rows)
        if self.newest.removed.size:
            rows[(rows >= 0) & self.newest.removed[rows]] = -1
        return rows

    def has(self, ids: Ids) -> NDArray[np.bool_]:
        """Tell which ids there are."""
        return Snapshot(self.sealed).contains(ids) | (self.find_newest(ids) >= 0)

    def without(self, ids: Ids) -> _Contents:
        """Mark the rows of `ids` as removed; segments of which no row is left are dropped."""
        changed = []
        for segment in self.sealed:
            rows = segment.find(ids)
            rows = rows[rows >= 0]
            changed.append(segment.without(rows) if len(rows) else segment)
        sealed = tuple(segment for segment in changed if segment.n_rows > segment.n_removed)
        rows = self.find_newest(ids)
        rows = rows[rows >= 0]
        return self._replace(sealed=sealed, newest=self.newest.without(rows) if len(rows) else self.newest)


class RowStore:
    """The rows of an index: one writer at a time, any number of readers.

    Parameters
    ----------
    n_bits : int
    columns : mapping of str to Column
        What else is stored for each row.
    buckets : BucketMaker, or None
    """

    def __init__(
        self, n_bits: int, columns: Mapping[str, Column] | None = None, buckets: BucketMaker | None = None
    ) -> None:
        self.n_bits = n_bits
        self.columns = dict(columns or {})
        self.buckets = buckets
        row_bytes = 8 * n_words(n_bits) + sum(column.row_bytes for column in self.columns.values())
        most = _BUFFER_ROWS if buckets is None else _BUCKETS_BUFFER_ROWS
        self._buffer_rows = max(_LEAST_ROWS, min(most, _BUFFER_BYTES // max(1, row_bytes)))
        self._large_rows = min(_LARGE_ROWS, _LARGE_BYTES // max(1, row_bytes))
        self.lock = write_lock()
        self._contents = self._sealed((), 0)
        self._ordered: tuple[Segment, Segment] | None = None

    def snapshot(self) -> Snapshot:
        """Return the rows as they are now."""
        contents, cached = self._contents, self._ordered
        if cached is None or cached[0] is not contents.newest:
            cached = self._ordered = contents.newest, contents.newest.in_order()
        # A buffer may be empty, and putting it in order may have dropped all of its rows.
        return Snapshot(tuple(segment for segment in (*contents.sealed, cached[1]) if segment.n_rows))

    @property
    def n_rows(self) -> int:
        """Rows that can be found."""
        contents = self._contents
        return sum(segment.n_rows - segment.n_removed for segment in (*contents.sealed, contents.newest))

    @property
    def next_id(self) -> int:
        """The least number above all ids that there ever were."""
        return self._contents.next_id

    def reserve(self, next_id: int) -> None:
        """Let new ids start at `next_id` at least."""
        with self.lock:
            self._contents = self._contents._replace(next_id=max(self.next_id, next_id))

    def add(
        self, ids: Ids | None, words: Codes, columns: Mapping[str, Any] | None = None, *, replace: bool = False
    ) -> Ids:
        """Add rows; all of them become visible at once, or none if that fails.

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
        with self.lock:
            contents = self._contents
            if ids is None:
                if contents.next_id + len(words) >= 2**63:
                    raise ValueError(f"there are no new ids after {contents.next_id - 1}; give ids")
                ids = np.arange(contents.next_id, contents.next_id + len(words), dtype=np.int64)
            elif len(ids) and ids.min() < contents.next_id:  # ids above all others cannot be taken
                taken = contents.has(ids)
                if taken.any():
                    if not replace:
                        raise ValueError(f"id {ids[taken][0]} is taken; remove it first, or add with replace=True")
                    contents = contents.without(ids[taken])
            if len(ids):
                contents = contents._replace(next_id=max(contents.next_id, int(ids.max()) + 1))
                self._contents = self._appended(contents, ids, words, columns or {})
            return ids

    def remove(self, ids: Ids) -> None:
        """Remove rows; an id that there is not is an error, and then nothing is removed."""
        with self.lock:
            taken = self._contents.has(ids)
            if not taken.all():
                raise ValueError(f"id {ids[~taken][0]} is not in the index")
            self._contents = self._contents.without(ids)

    def seal(self) -> tuple[Segment, ...]:
        """Turn the buffer into a segment too, and return all segments."""
        with self.lock:
            if self._contents.newest.n_rows:
                self._contents = self._without_buffer(self._contents)
            return self._contents.sealed

    def restore(self, segments: tuple[Segment, ...], next_id: int) -> None:
        """Put segments into an empty store."""
        self._contents = self._sealed(segments, next_id)

    def most_segments(self, n_rows: int) -> int:
        """Return how many segments so many rows can be in, with room for other sizes of large ones than ours.

        Of two segments in turn, the first has twice the rows of the second, or both together are large.
        """
        return 64 + n_rows // min(64, max(1, self._large_rows // 16))

    def compact(self) -> None:
        """Drop removed rows and join all segments to one."""
        with self.lock:
            parts = [part for part in self.snapshot().segments if part.n_rows > part.n_removed]
            sealed = self._contents.sealed
            is_compact = len(parts) == 1 and not parts[0].removed.size and any(parts[0] is part for part in sealed)
            if not is_compact:
                sealed = (self._arranged(self._joined(parts, self.next_id)),) if parts else ()
            self._contents = self._sealed(sealed, self.next_id)

    def _sealed(self, segments: tuple[Segment, ...], next_id: int) -> _Contents:
        """Return contents with an empty buffer."""
        buffer = _Buffer(self.n_bits, self.columns, 0)
        return _Contents(segments, buffer, buffer.first(0, NOT_HIDDEN), next_id)

    def _without_buffer(self, contents: _Contents) -> _Contents:
        """Return contents in which the rows of the buffer are in a segment."""
        rest = contents.newest.in_order().without_removed()
        segments = self._with_segment(contents, rest) if rest.n_rows else contents.sealed
        return self._sealed(segments, contents.next_id)

    def _with_segment(self, contents: _Contents, segment: Segment) -> tuple[Segment, ...]:
        """Put a segment behind the others, joined with those before it that are not much larger."""
        before = [part for part in contents.sealed if part.n_rows > part.n_removed]
        parts = [segment]
        n_rows = segment.n_rows
        while before and before[-1].n_rows < 2 * n_rows and before[-1].n_rows + n_rows <= self._large_rows:
            parts.insert(0, before.pop())
            n_rows += parts[0].n_rows
        joined = self._joined(parts, contents.next_id) if len(parts) > 1 else segment
        return (*before, self._arranged(joined))

    def _arranged(self, segment: Segment) -> Segment:
        return segment if self.buckets is None else self.buckets.arrange(segment)

    def _joined(self, segments: Sequence[Segment], next_id: int) -> Segment:
        """Join segments to one, in the order of ids, without removed rows and buckets.

        A mapped file may hold any ids: those that would make a file that cannot be loaded are refused.
        """
        Snapshot(tuple(segments)).check_origins()
        segments = [segment.without_removed() for segment in segments]
        joined = segments[0]
        if len(segments) > 1:
            words = np.concatenate([s.codes.take(np.arange(s.n_rows)) for s in segments])
            columns = {name: c.joined([s.columns[name] for s in segments]) for name, c in self.columns.items()}
            ids = np.concatenate([s.ids for s in segments])
            joined = Segment(ids, CodeRows.of(words, self.n_bits), columns, NOT_HIDDEN).in_order()
        if (joined.ids[1:] <= joined.ids[:-1]).any() or joined.ids[0] < 0 or joined.ids[-1] >= next_id:
            raise CorruptIndexFileError(f"ids must differ, and be below next_id = {next_id}")
        return joined

    def _appended(self, contents: _Contents, ids: Ids, words: Codes, columns: Mapping[str, Any]) -> _Contents:
        """Return contents with more rows."""
        if len(ids) >= self._buffer_rows // 2:
            segment = Segment(ids.copy(), CodeRows.of(words, self.n_bits), dict(columns), NOT_HIDDEN)
            return contents._replace(sealed=self._with_segment(contents, segment.in_order()))
        if contents.newest.n_rows + len(ids) > self._buffer_rows:
            contents = self._without_buffer(contents)
        buffer, newest = contents.buffer, contents.newest
        n_rows = newest.n_rows + len(ids)
        if n_rows > buffer.capacity:
            # Twice the room each time: every row is copied twice at most, on average.
            capacity = min(self._buffer_rows, max(n_rows, 2 * buffer.capacity, _LEAST_ROWS))
            buffer = _Buffer(self.n_bits, self.columns, capacity)
            buffer.write(0, newest.ids, newest.codes.take(np.arange(newest.n_rows)), newest.columns)
        buffer.write(newest.n_rows, ids, words, columns)
        removed = newest.removed
        if removed.size:
            removed = np.concatenate([removed, np.zeros(len(ids), dtype=np.bool_)])
        return contents._replace(buffer=buffer, newest=buffer.first(n_rows, removed))

    def __getstate__(self) -> dict[str, Any]:
        with self.lock:
            return {
                "n_bits": self.n_bits,
                "columns": self.columns,
                "buckets": self.buckets,
                "next_id": self.next_id,
                "segments": self.snapshot().segments,
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["n_bits"], state["columns"], state["buckets"])  # type: ignore[misc]
        self.restore(state["segments"], state["next_id"])
