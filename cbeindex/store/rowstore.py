"""The rows of an index: immutable segments, and a buffer for new rows.

New rows go to the buffer. A full buffer becomes a segment and gets its buckets then. A new segment is merged with the
segments before it that are not much larger, so that there are few segments; with graphs, which take long to make, as
soon as there are several of them. A writer changes nothing that a reader can
see: it writes behind the rows in use, or to new arrays, and then replaces the contents in one step. So no search sees
half of a change, and readers wait at most until a few rows that were checked before have been encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._core.memo import Memo
from .._core.threads import write_lock
from .._core.tuning import tuning
from .._core.typing import Codes, Ids, Rows, Vectors
from ..data.codes import CodeRows, n_words
from ..data.columns import Column, take_rows
from ..data.ids import AnyIds, distinct, missing_text
from ..data.joinedrows import JoinedRows
from ..data.names import NAMES, NameColumn, Names, shown
from ..errors import CorruptIndexFileError
from .buffer import Buffer
from .segment import NOT_HIDDEN, Arranger, Segment, require_kind
from .snapshot import Snapshot
from .waiting import Encode, Waiting


class _Contents(NamedTuple):
    """The contents of a store, which a writer replaces in one step.

    Attributes
    ----------
    sealed : tuple of Segment
    buffer : Buffer
    newest : Segment
        The rows in the buffer, in the order in which they were added.
    next_id : int
        The smallest number above all ids that were ever in use.
    """

    sealed: tuple[Segment, ...]
    buffer: Buffer
    newest: Segment
    next_id: int

    def find_newest(self, ids: Ids) -> Rows:
        """Return the row of each id in the buffer, -1 for ids that the buffer does not have or that are removed."""
        rows = self.buffer.find(ids, self.newest.n_rows)
        if self.newest.removed.size:
            rows[(rows >= 0) & self.newest.removed[rows]] = -1
        return rows

    def has(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which ids are present."""
        return Snapshot(self.sealed).contains(ids) | (self.find_newest(ids) >= 0)

    def ids_of(self, names: Names) -> Ids:
        """Return the id of the row that has each name, -1 for names that are not present."""
        if not self.newest.has_names:
            return np.full(len(names), -1)
        ids = Snapshot(self.sealed).find(names)
        rows = self.buffer.find_names(names, self.newest.n_rows)
        if self.newest.removed.size:
            rows[(rows >= 0) & self.newest.removed[rows]] = -1
        ids[rows >= 0] = self.newest.ids[rows[rows >= 0]]
        return ids

    def without(self, ids: Ids) -> _Contents:
        """Mark the rows of `ids` as removed, and drop segments without remaining rows."""
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
    """The rows of an index, for one writer at a time and any number of readers.

    Parameters
    ----------
    n_bits : int
    columns : mapping of str to Column
        What is stored for each row beside its code.
    buckets : Arranger, or None
    """

    def __init__(
        self, n_bits: int, columns: Mapping[str, Column] | None = None, buckets: Arranger | None = None
    ) -> None:
        self.n_bits = n_bits
        self.columns = dict(columns or {})
        self.buckets = buckets
        row_bytes = 8 * n_words(n_bits) + sum(column.row_bytes for column in self.columns.values())
        limits = tuning()
        most = limits.buffer_rows if buckets is None else limits.bucket_buffer_rows
        self._buffer_rows = max(limits.least_buffer_rows, min(most, limits.buffer_bytes // max(1, row_bytes)))
        large_rows, large_bytes = limits.large_segment_rows, limits.large_segment_bytes
        if buckets is not None and buckets.uses_residuals:
            large_rows, large_bytes = limits.large_cell_segment_rows, limits.large_cell_segment_bytes
        self._large_rows = min(large_rows, large_bytes // max(1, row_bytes))
        self.lock, self._settling = write_lock(), write_lock()
        self._contents = self._sealed((), 0)
        # Copies of the rows in the buffer: in the order of ids, and then with buckets.
        self._ordered: tuple[Segment, Segment] | None = None
        self._arranged_newest: tuple[Segment, float, Segment] | None = None

    @property
    def _contents(self) -> _Contents:
        return self._settled()[0]

    @_contents.setter
    def _contents(self, contents: _Contents) -> None:
        self._published: tuple[_Contents, Memo, Waiting | None] = contents, Memo(), None

    def _settled(self) -> tuple[_Contents, Memo, None]:
        """Return the contents and their memo, after rows that wait have been encoded.

        This has a lock of its own, which no writer holds for long. While one is at work, no rows wait, because it has
        begun with this. There is room for them in the buffer, as no more rows wait than fit into it.
        """
        contents, memo, waiting = self._published
        if waiting is not None:
            with self._settling:
                contents, memo, waiting = self._published
                if waiting is not None:
                    contents = contents._replace(next_id=waiting.next_id)
                    self._contents = self._appended(contents, *waiting.encoded())
                    contents, memo, _ = self._published
        return contents, memo, None

    @property
    def memo(self) -> Memo:
        """What searches derive from the rows as they are now. It goes with the rows, so it keeps no old ones alive.

        A search reads it before it takes a snapshot: then what it puts there is no older than the memo.
        """
        return self._settled()[1]

    def snapshot(self) -> Snapshot:
        """Return the rows as they are now."""
        contents, cached = self._contents, self._ordered
        if cached is None or cached[0] is not contents.newest:
            cached = self._ordered = contents.newest, contents.newest.in_order()
        # The buffer may be empty, and sorting drops removed rows, which may be all of them.
        segments = tuple(segment for segment in (*contents.sealed, cached[1]) if segment.n_rows)
        return Snapshot(segments, self.has_names)

    def search_snapshot(self) -> Snapshot:
        """Return the rows as they are now, those of the buffer with buckets too if the kind of buckets can have any."""
        snapshot, cached = self.snapshot(), self._arranged_newest
        if self.buckets is None or not self.buckets.uses_residuals:
            return snapshot
        *sealed, last = snapshot.segments or (None,)
        if last is None or last.buckets is not None:
            return snapshot
        share = last.n_rows / sum(segment.n_rows for segment in snapshot.segments)
        if last.n_rows < tuning().least_cell_segment_rows or share < tuning().least_whole_share:
            share = 0.0  # the rest tells how well estimates do
        if cached is None or cached[0] is not last or cached[1] != share:
            cached = self._arranged_newest = last, share, self.buckets.arrange(last, share)
        return Snapshot((*sealed, cached[2]), self.has_names)

    def frozen(self) -> RowStore:
        """Return a store of the rows as they are now, to be read alone. It shares them, and their memo."""
        self.search_snapshot()  # arranges the newest rows once, and not in each store that is frozen
        store = RowStore.__new__(RowStore)
        settled = self._settled()
        store.__dict__.update(self.__dict__)
        store._published = settled
        return store

    @property
    def has_names(self) -> bool:
        """Whether the ids of the caller are names."""
        return NAMES in self.columns

    def require_kind(self, ids: AnyIds | None, n_rows: int) -> None:
        """Raise TypeError if the ids of new rows are of another kind than those of the store."""
        if self.has_names and ids is None and n_rows:
            raise TypeError("ids must be strings, as those of this index are, got no ids")
        if ids is not None:
            require_kind(ids, self.has_names)

    def keeping_names(self) -> RowStore:
        """Return an empty store like this one, with the same lock, whose rows have names."""
        store = RowStore(self.n_bits, {**self.columns, NAMES: NameColumn()}, self.buckets)
        store.lock = self.lock
        return store

    @property
    def n_rows(self) -> int:
        """Number of rows that are not removed."""
        contents, _, waiting = self._published
        n_rows = sum(segment.n_rows - segment.n_removed for segment in (*contents.sealed, contents.newest))
        return n_rows if waiting is None else n_rows + waiting.n_rows

    @property
    def next_id(self) -> int:
        """The smallest number above all ids that were ever in use."""
        contents, _, waiting = self._published
        return contents.next_id if waiting is None else waiting.next_id

    def reserve(self, next_id: int) -> None:
        """Assign no new ids below `next_id`."""
        with self.lock:
            self._contents = self._contents._replace(next_id=max(self.next_id, next_id))

    def add(
        self, ids: Ids | None, words: Codes, columns: Mapping[str, Any] | None = None, *, replace: bool = False
    ) -> Ids:
        """Add rows. All of them become visible at once, or none if the call fails.

        Parameters
        ----------
        ids : int64 array of shape (n,) without duplicates, or None for new ids
            In a store with names, None, or ids that were never in use in ascending order.
        words : uint64 array of shape (n, n_words)
        columns : dict of arrays, SparseRows or Names with n entries each
            The store takes ownership of them.
        replace : bool
            Replace rows that have one of `ids`, or one of the names. Otherwise such an id is an error.

        Returns
        -------
        int64 array of shape (n,)
        """
        with self.lock:
            contents = self._contents
            if self.has_names and columns:
                contents = self._without_names(contents, columns[NAMES], replace)
            if ids is None:
                if contents.next_id + len(words) >= 2**63:
                    raise ValueError(f"there are no new ids after {contents.next_id - 1}; pass ids")
                ids = np.arange(contents.next_id, contents.next_id + len(words), dtype=np.int64)
            elif not self.has_names and len(ids) and ids.min() < contents.next_id:  # larger ids cannot be in use
                taken = contents.has(ids)
                if taken.any():
                    if not replace:
                        raise ValueError(f"id {ids[taken][0]} is taken; remove it first, or add with replace=True")
                    contents = self._without(contents, ids[taken])
            if len(ids):
                contents = contents._replace(next_id=max(contents.next_id, int(ids.max()) + 1))
                self._contents = self._appended(contents, ids, words, columns or {})
            return ids

    def add_later(self, ids: Ids | None, vectors: Vectors, encode: Encode, most: int) -> Ids | None:
        """Add a few rows, which are encoded together with others before anybody sees them.

        Returns None, and adds nothing, if the rows do not fit into the buffer, if ids may be in use, or if they are
        names.

        Parameters
        ----------
        ids : int64 array of shape (n,) without duplicates, or None for new ids
        vectors : float32 array of shape (n, dim)
            Vectors that `encode` accepts.
        encode : callable
            The same one for all rows of a store.
        most : int
            Rows that wait at most.
        """
        n, dim = vectors.shape
        most = min(most, self._buffer_rows // 2 - 1)  # a reader makes no segment of them
        if n > most:
            return None
        with self.lock, self._settling:
            contents, _, waiting = self._published
            if waiting is not None and not waiting.has_room(n):
                contents, _, waiting = self._settled()
            n_waiting, next_id = (0, contents.next_id) if waiting is None else (waiting.n_rows, waiting.next_id)
            is_full = contents.newest.n_rows + n_waiting + n > self._buffer_rows
            if is_full or self.has_names or next_id + n >= 2**63 or (ids is not None and ids.min() < next_id):
                return None
            if waiting is None:
                waiting = Waiting.empty(most, dim, next_id, encode)
            added = np.arange(next_id, next_id + n, dtype=np.int64) if ids is None else ids
            self._published = contents, Memo(), waiting.added(added, vectors)
            return added

    def _without_names(self, contents: _Contents, names: Names, replace: bool) -> _Contents:
        """Return contents without the rows that have one of `names`, which is an error unless they are replaced."""
        ids = contents.ids_of(names)
        taken = ids >= 0
        if not taken.any():
            return contents
        if not replace:
            name = shown(names.tolist()[taken.argmax()])
            raise ValueError(f"id {name} is taken; remove it first, or add with replace=True")
        return self._without(contents, ids[taken])

    def remove(self, ids: AnyIds, *, ignore_missing: bool = False) -> None:
        """Remove rows. An id that is not present is an error, unless ignored, and then nothing is removed."""
        with self.lock:
            if self.next_id:
                require_kind(ids, self.has_names)
            if isinstance(ids, Names):
                numbers = self._contents.ids_of(ids)
                taken = numbers >= 0
            else:
                numbers, taken = ids, self._contents.has(ids)
            if not (ignore_missing or taken.all()):
                raise ValueError(missing_text(distinct(ids, ~taken)))
            self._contents = self._without(self._contents, np.unique(numbers[taken]))

    def _without(self, contents: _Contents, ids: Ids) -> _Contents:
        """Return contents without the rows of `ids`, and without segments and a buffer that have no other rows."""
        left = contents.without(ids)
        is_empty = left.newest.n_removed == left.newest.n_rows
        # Readers may still see the rows of the buffer, so that new rows need another one.
        return self._sealed(left.sealed, left.next_id) if is_empty else left

    def change_buckets(self, change: Callable[[Segment], Segment]) -> None:
        """Replace the buckets of sealed segments; `change` returns a segment of the same rows."""
        with self.lock:
            self._contents = self._contents._replace(sealed=tuple(map(change, self._contents.sealed)))

    def seal(self) -> tuple[Segment, ...]:
        """Turn the buffer into a segment, and return all segments."""
        with self.lock:
            if self._contents.newest.n_rows:
                self._contents = self._without_buffer(self._contents)
            return self._contents.sealed

    def restore(self, segments: tuple[Segment, ...], next_id: int) -> None:
        """Put segments from a file into an empty store."""
        self._contents = self._sealed(segments, next_id)

    def most_segments(self, n_rows: int) -> int:
        """Return the most segments that `n_rows` rows can be in, allowing for other limits on segment size.

        Of two adjacent segments, the first has at least twice the rows of the second, or both together are large. Where
        more segments are joined at a time, that many are similar at most.
        """
        return 64 + n_rows // min(64, max(1, self._large_rows // 16))

    def compact(self) -> None:
        """Drop removed rows, and merge all segments into one."""
        with self.lock:
            parts = [part for part in self.snapshot().segments if part.n_rows > part.n_removed]
            sealed = self._contents.sealed
            is_compact = len(parts) == 1 and not parts[0].removed.size and any(parts[0] is part for part in sealed)
            if not is_compact:
                sealed = (self._arranged(self._joined(parts, self.next_id), 1.0),) if parts else ()
            self._contents = self._sealed(sealed, self.next_id)

    def _sealed(self, segments: tuple[Segment, ...], next_id: int) -> _Contents:
        """Return contents with an empty buffer."""
        buffer = Buffer(self.n_bits, self.columns, 0)
        return _Contents(segments, buffer, buffer.first(0, NOT_HIDDEN), next_id)

    def _without_buffer(self, contents: _Contents) -> _Contents:
        """Return contents with the rows of the buffer in a segment."""
        rest = contents.newest.in_order().without_removed()
        segments = self._with_segment(contents, rest) if rest.n_rows else contents.sealed
        return self._sealed(segments, contents.next_id)

    def _with_segment(self, contents: _Contents, segment: Segment) -> tuple[Segment, ...]:
        """Append a segment, merged with the segments before it that are not much larger, if there are enough."""
        before = [part for part in contents.sealed if part.n_rows > part.n_removed]
        parts = [segment]
        n_rows, n_least = segment.n_rows, 1 if self.buckets is None else self.buckets.join_width - 1
        while len(near := self._similar(before, n_rows)) >= n_least:
            parts[:0], before = near, before[: -len(near)]
            n_rows += sum(part.n_rows for part in near)
        joined = self._joined(parts, contents.next_id) if len(parts) > 1 else segment
        n_all = joined.n_rows + sum(part.n_rows for part in before)
        return (*before, self._arranged(joined, joined.n_rows / n_all))

    def _similar(self, before: list[Segment], n_rows: int) -> list[Segment]:
        """Return the last segments that are not much larger than `n_rows` rows, and are not large with them."""
        n_similar, first = 0, len(before)
        while first and before[first - 1].n_rows < 2 * n_rows:
            n_similar += before[first - 1].n_rows
            if n_similar + n_rows > self._large_rows:
                break
            first -= 1
        return before[first:]

    def _arranged(self, segment: Segment, share: float) -> Segment:
        """Return the segment, which has a share of all rows, with buckets, if the store has any."""
        return segment if self.buckets is None else self.buckets.arrange(segment, share)

    def _joined(self, segments: Sequence[Segment], next_id: int) -> Segment:
        """Merge segments into one, in the order of ids, without removed rows and buckets.

        A mapped file may hold any ids. Ids that could not be loaded after the next save raise CorruptIndexFileError.
        """
        Snapshot(tuple(segments)).check_origins()
        joined = self._behind_each_other(segments) if len(segments) > 1 else segments[0].without_removed()
        if (joined.ids[1:] <= joined.ids[:-1]).any() or joined.ids[0] < 0 or joined.ids[-1] >= next_id:
            raise CorruptIndexFileError(f"ids must be unique and below next_id = {next_id}")
        return joined

    def _behind_each_other(self, segments: Sequence[Segment]) -> Segment:
        """Return the rows of segments in the order of ids, without removed rows and buckets.

        Cells put rows in an order of their own, and copy columns of fixed width then.
        """
        rows = [segment.rows_in_order() for segment in segments]
        parts = list(zip(segments, rows, strict=True))
        is_read_later = self.buckets is not None and self.buckets.uses_residuals
        columns: dict[str, Any] = {}
        for name, column in self.columns.items():
            if is_read_later and type(column) is Column and not column.is_sparse:
                columns[name] = JoinedRows(column, [segment.columns[name] for segment in segments], rows)
            else:
                columns[name] = column.joined([take_rows(segment.columns[name], some) for segment, some in parts])
        ids, words = (
            np.concatenate([segment.ids[some] for segment, some in parts]),
            np.concatenate([segment.codes.take(some) for segment, some in parts]),
        )
        return Segment(ids, CodeRows.of(words, self.n_bits), columns, NOT_HIDDEN).in_order()

    def _appended(self, contents: _Contents, ids: Ids, words: Codes, columns: Mapping[str, Any]) -> _Contents:
        """Return contents with rows added."""
        if len(ids) >= self._buffer_rows // 2:
            segment = Segment(ids.copy(), CodeRows.of(words, self.n_bits), dict(columns), NOT_HIDDEN)
            return contents._replace(sealed=self._with_segment(contents, segment.in_order()))
        if contents.newest.n_rows + len(ids) > self._buffer_rows:
            contents = self._without_buffer(contents)
        buffer, newest = contents.buffer, contents.newest
        n_rows = newest.n_rows + len(ids)
        if n_rows > buffer.capacity:
            # The capacity doubles each time, so that a row is copied at most twice on average.
            capacity = min(self._buffer_rows, max(n_rows, 2 * buffer.capacity, tuning().least_buffer_rows))
            buffer = Buffer(self.n_bits, self.columns, capacity)
            buffer.write(0, newest.ids, newest.codes.words(newest.n_rows), newest.columns)
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
                "segments": self.search_snapshot().segments,
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["n_bits"], state["columns"], state["buckets"])  # type: ignore[misc]
        self._contents = self._sealed(state["segments"], state["next_id"])
