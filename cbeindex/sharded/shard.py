"""One shard: a `CBEIndex`, its file, and the log of writes since the last save. Knows nothing of Ray."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._core.typing import Arrays, Mask
from ..errors import CorruptIndexFileError, WriterConflictError
from ..index import CBEIndex
from ..storage import files
from ..storage.layout import HEADER_BYTES
from ..storage.saveable import verify
from .errors import FrozenError, LostWritesError, NotFittedError, StaleLayoutError
from .fitting import first_rows
from .log import Log, LogReader, Record
from .manifest import TEMPLATE, Manifest, log_file
from .records import pack_vectors, unpack_vectors

READS = ("search", "range_search", "explain", "get", "codes")
"""Methods of `CBEIndex` that a shard passes on."""

CHECKPOINT_BYTES = 2**28
"""A shard whose log is longer saves itself: replaying 256 MB takes a few seconds."""

# Writes that are remembered, so that one whose acknowledgement was lost is not made twice.
_N_TOKENS = 1_000
# How long a worker waits for the lock of one that is about to end.
_LOCK_SECONDS = 20.0
# Attempts to read an index file and a log that belong together, beside a worker that saves.
_N_TRIES = 100


class Reply(NamedTuple):
    """The answer of a shard, and the sequence number of the last write that it has seen."""

    value: Any
    sequence: int


class Shard:
    """A shard of an index.

    Replica 0 takes writes: it appends them to the log, and holds the lock of the shard. Other replicas follow the log.

    Parameters
    ----------
    folder : str
        The folder of the index, as this machine sees it.
    number, replica : int
    layout : str
        The layout of the manifest that the worker belongs to.
    checkpoint_bytes : int
    """

    def __init__(
        self, folder: str, number: int, replica: int, layout: str, checkpoint_bytes: int = CHECKPOINT_BYTES
    ) -> None:
        self.folder, self.number, self.replica, self._layout = Path(folder), number, replica, layout
        self._checkpoint_bytes = checkpoint_bytes
        self._lock = threading.RLock()
        self._lock_file: FileIO | None = None
        self._index: CBEIndex | None = None
        self._reader: LogReader | None = None
        self._log: Log | None = None
        self._sequence = 0
        self._tokens: OrderedDict[str, None] = OrderedDict()
        self._refused: int | None = None
        self._is_frozen = False

    @property
    def path(self) -> Path:
        """The index file."""
        return self.folder / f"{self._layout}/shard-{self.number:04}.cbe"

    # Reading.

    def ping(self) -> Reply:
        """Answer without opening the files."""
        return Reply(None, self._sequence)

    def call(self, name: str, least: int, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Reply:
        """Call a reading method of the index, once it has seen the writes up to number `least`.

        The arguments are one object, because Ray takes 20 us for each.
        """
        args, options = arguments
        if name not in READS:
            raise ValueError(f"name must be one of {', '.join(READS)}, got {name!r}")
        index, sequence = self._ready(least)
        return Reply(getattr(index, name)(*args, **options), sequence)

    def contains(self, least: int, ids: Any) -> Reply:
        """Return which ids are in the shard."""
        index, sequence = self._ready(least)
        return Reply(_contains(index, ids), sequence)

    def count(self, least: int) -> Reply:
        """Return number of rows, and the id after the largest that was ever in use."""
        index, sequence = self._ready(least)
        return Reply((len(index), index._stored_rows().next_id), sequence)

    def ids(self, least: int) -> Reply:
        """Return all ids."""
        index, sequence = self._ready(least)
        return Reply(index.ids, sequence)

    def stats(self, least: int) -> Reply:
        """Describe the shard and its files."""
        index, sequence = self._ready(least)
        described = {"shard": self.number, "replica": self.replica, "pid": os.getpid(), **index.stats()}
        described |= {"file": str(self.path), "file_bytes": self.path.stat().st_size, "sequence": sequence}
        return Reply(described | {"log_bytes": log_file(self.path).stat().st_size}, sequence)

    def knows(self, least: int, token: str) -> Reply:
        """Return whether a write with this token has been made."""
        _, sequence = self._ready(least)
        return Reply(token in self._tokens, sequence)

    def verify(self, least: int) -> Reply:
        """Check every byte of the index file and of the log."""
        del least  # files that cannot be opened are checked too
        with self._lock:
            check_files(self.path)
            return Reply(None, self._sequence)

    # Writing.

    def add(self, token: str, X: Any, ids: Any, options: dict[str, Any]) -> Reply:
        """Add rows. A second call with the same token does nothing."""
        values: dict[str, Any] = {"kind": "add", "options": options}
        with self._lock:
            index, _ = self._ready(0)
            if not index.is_fitted and token not in self._tokens and first_rows(index, X)[1]:
                raise NotFittedError("the shard has enough rows to be fitted, but the index is not fitted")
            return self._write(token, *_with_ids(values, pack_vectors(X), ids))

    def remove(self, token: str, ids: Any) -> Reply:
        """Remove rows. A second call with the same token does nothing."""
        with self._lock:
            self._ready(0)
            return self._write(token, *_with_ids({"kind": "remove"}, {}, ids))

    def save(self) -> Reply:
        """Write all rows to the index file, and begin a new log."""
        with self._lock:
            index, _ = self._ready(0)
            self._commit(index.save)
            return Reply(None, self._sequence)

    def compact(self) -> Reply:
        """Save without removed rows."""
        with self._lock:
            index, _ = self._ready(0)
            self._commit(index.save)  # rows of the log first, so that nothing is lost if compacting fails
            self._commit(index.compact)
            return Reply(None, self._sequence)

    def adopt(self) -> Reply:
        """Encode rows that are stored as vectors by the common encoder, if that has not been done."""
        with self._lock:
            index, _ = self._ready(0)
            self._index = self._adopted(index)
            return Reply(None, self._sequence)

    def freeze(self, is_frozen: bool) -> Reply:
        """Refuse writes from now on, or take them again."""
        with self._lock:
            self._ready(0)
            self._is_frozen = is_frozen
            return Reply(None, self._sequence)

    def close(self) -> None:
        """Release the files. The next call opens them again."""
        with self._lock:
            for file in (self._reader, self._log, self._lock_file):
                if file is not None:
                    file.close()
            self._index = self._reader = self._log = self._lock_file = None

    # The state: index file and log.

    def _ready(self, least: int) -> tuple[CBEIndex, int]:
        """Return the index with all writes up to number `least`, and the number of its last write."""
        index, sequence = self._index, self._sequence
        if index is not None and sequence >= least and (self.replica == 0 or not self._has_news()):
            return index, sequence
        with self._lock:
            if self._index is None:
                try:
                    self._open()
                except BaseException:
                    self.close()
                    raise
            elif self.replica > 0:
                self._follow(least)
            if self._sequence < least:
                raise LostWritesError(
                    f"shard {self.number} has acknowledged writes up to number {least}, "
                    f"but its files hold them up to number {self._sequence}"
                )
            assert self._index is not None
            return self._index, self._sequence

    def _open(self) -> None:
        """Load the index file, and replay the log."""
        manifest = Manifest.read(self.folder)
        if manifest.layout != self._layout:
            raise StaleLayoutError(f"the layout must be {manifest.layout}, got {self._layout}")
        if self.replica == 0 and self._lock_file is None:
            self._lock_file = _locked(self.path.with_suffix(".lock"))
        self._load()
        self._is_frozen = manifest.moving
        if self.replica == 0:
            assert self._reader is not None
            self._log = Log(log_file(self.path), self._reader.offset, self._sequence, manifest.sync)
            self._reader.close()
            self._reader = None
            if self._refused is not None:
                self._cancel(self._refused)
            if manifest.fitted and self._index is not None and not self._index.is_fitted:
                self._index = self._adopted(self._index)

    def _load(self) -> None:
        """Load the index file, and the records of the log that the file does not hold."""
        for _ in range(_N_TRIES):
            if self._reader is not None:
                self._reader.close()
            self._reader = LogReader(log_file(self.path))
            slots = _slots(self.path)
            index = CBEIndex.load(self.path)
            if _slots(self.path) == slots:
                break
        else:
            raise WriterConflictError(f"{self.path}: another process keeps changing the file; try again later")
        records = list(self._reader.records())
        saved = [r.sequence for r in records if _kind_of(r) == "save" and r.values.get("slots") != slots]
        self._tokens.clear()
        self._replay(index, records, max(saved, default=0))
        self._index, self._sequence = index, self._reader.sequence

    def _has_news(self) -> bool:
        """Whether the log holds records that this follower has not read."""
        reader = self._reader
        return reader is not None and (reader.is_replaced or reader.has_more)

    def _follow(self, least: int) -> None:
        """Read what has been added to the log; load the files again if there is a new log."""
        assert self._reader is not None
        assert self._index is not None
        self._replay(self._index, list(self._reader.records()), self._sequence)
        self._sequence = self._reader.sequence
        if self._reader.is_replaced or self._sequence < least:  # a network folder shows new bytes in files opened anew
            self._load()

    def _replay(self, index: CBEIndex, records: list[Record], done: int) -> None:
        """Carry out the writes of a log after number `done`.

        The last one may be a write that the index refused, if the worker died before it could cancel it.
        """
        self._refused = None
        cancelled = {r.values["sequence"] for r in records if _kind_of(r) == "cancel"}
        for record in records:
            if "token" in record.values:
                self._remember(record.values["token"])
            for token in record.values.get("tokens", ()):
                self._remember(token)
            if record.sequence > done and record.sequence not in cancelled:
                try:
                    _apply(index, record)
                except (OSError, MemoryError):
                    raise
                except Exception as error:  # values of a log can be anything
                    if record is not records[-1]:
                        where = f"{log_file(self.path)}: record {record.sequence}"
                        raise CorruptIndexFileError(f"{where} cannot be carried out: {error}") from None
                    self._refused = record.sequence

    def _write(self, token: str, values: dict[str, Any], arrays: Arrays) -> Reply:
        """Log a write, carry it out, and cancel it in the log if the index refuses it."""
        assert self._log is not None
        assert self._index is not None
        if token in self._tokens:
            return Reply(None, self._sequence)
        if self._is_frozen:
            raise FrozenError("the rows of this shard are being moved to another layout")
        values = values | {"token": token}
        sequence = self._log.append(values, arrays)
        try:
            _apply(self._index, Record(sequence, values, arrays))
        except BaseException:
            self._cancel(sequence)
            raise
        self._remember(token)
        self._sequence = sequence
        if self._log.n_bytes > self._checkpoint_bytes:
            self._commit(self._index.save)
            self._index = CBEIndex.load(self.path)  # mapped, so that rows of bulk loads do not take memory
        return Reply(None, self._sequence)

    def _cancel(self, sequence: int) -> None:
        """Log that a write was refused. If that fails, the next call opens the files again, and cancels it then."""
        assert self._log is not None
        try:
            self._sequence = self._log.append({"kind": "cancel", "sequence": sequence}, {})
        except BaseException:
            self.close()
            raise

    def _remember(self, token: str) -> None:
        self._tokens[token] = None
        while len(self._tokens) > _N_TOKENS:
            self._tokens.popitem(last=False)

    def _commit(self, save: Callable[[], None]) -> None:
        """Save the index by `save`, and begin a new log."""
        assert self._log is not None
        self._sequence = self._log.append({"kind": "save", "slots": _slots(self.path)}, {})
        save()
        first = [{"kind": "tokens", "tokens": list(self._tokens)}]
        old, self._log = self._log, Log.create(self._log.path, self._sequence, self._log.sync, first)
        self._sequence = self._log.sequence
        old.close()

    def _adopted(self, index: CBEIndex) -> CBEIndex:
        """Return the index with the common encoder."""
        if index.is_fitted:
            return index
        fitted = CBEIndex.load(self.folder / TEMPLATE)
        fitted.merge(index)
        self._commit(lambda: fitted.save(self.path))
        return fitted


def create_files(path: Path, index: CBEIndex) -> None:
    """Write index file and log of a shard with the rows of `index`."""
    index.save(path)
    Log.create(log_file(path), 0, sync=True).close()


def check_files(path: Path) -> None:
    """Check every byte of the files of a shard. Raises an IndexFileError that names the file."""
    verify(path)
    reader = LogReader(log_file(path))
    try:
        for record in reader.records():
            _kind_of(record)
    finally:
        reader.close()


def _apply(index: CBEIndex, record: Record) -> None:
    """Carry out a write."""
    kind, values = _kind_of(record), record.values
    ids: Any = values.get("ids", record.arrays.get("ids"))
    if kind == "add":
        X = unpack_vectors(record.arrays, index.dim)
        index.add(X, ids, **values["options"])
    elif kind == "remove":
        index.remove(ids)


def _kind_of(record: Record) -> str:
    """Return the kind of a record, whose values can be anything, after checking those that the shard itself uses."""
    values = record.values
    kind, tokens = values.get("kind"), [values.get("token", ""), *_list_of(values.get("tokens", []))]
    is_right = kind in ("add", "remove", "save", "cancel", "tokens") and all(type(token) is str for token in tokens)
    if not is_right or (kind == "cancel" and type(values.get("sequence")) is not int):
        raise CorruptIndexFileError(f"record {record.sequence} of a log must be a write, got {str(values)[:80]}")
    return str(kind)


def _list_of(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


def _with_ids(values: dict[str, Any], arrays: Arrays, ids: Any) -> tuple[dict[str, Any], Arrays]:
    """Put ids into a record: integers as an array, strings as JSON."""
    array = np.asarray(ids)
    if array.dtype.kind in "iu":
        return values, arrays | {"ids": array}
    return values | {"ids": [str(id_) for id_ in ids]}, arrays


def _contains(index: CBEIndex, ids: Any) -> Mask:
    """Return which ids, all integers or all strings, are in an index; those of the other type are not."""
    array, snapshot = np.asarray(ids), index._stored_rows().snapshot()
    if array.dtype.kind in "iu" and not snapshot.has_names:
        found: Mask = snapshot.contains(array.astype(np.int64))
        return found
    return np.array([snapshot.has(id_) for id_ in ids], dtype=bool)


def _locked(path: Path) -> FileIO:
    """Lock a file, and wait for a worker that is about to end."""
    path.touch()  # it holds nothing, and a copy of the folder may lack it
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return files.locked(path)
        except WriterConflictError:
            if time.monotonic() > deadline:
                raise WriterConflictError(f"{path}: another process holds the shard open") from None
            time.sleep(0.05)


def _slots(path: Path) -> str:
    """Return the commit slots of an index file, which every save changes."""
    with files.open_file(path) as file:
        return files.read_at(file, 0, HEADER_BYTES).hex()
