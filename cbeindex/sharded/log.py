r"""The write-ahead log of a shard: writes since the last save, so that a worker that dies loses none of them.

Format, version 1. Numbers are little-endian. CRC32 is that of zlib.

    bytes
        8  magic: \x89 C B E L O G \n
        4  format version (u32)
        8  base: sequence number of the last record that the index file holds (u64)
        4  CRC32 of the 20 bytes before
    then records, whose sequence numbers count on from the base:
        8  bytes of the payload (u64)
        8  sequence number (u64)
        4  CRC32 of the 16 bytes before (u32)
        4  CRC32 of the payload (u32)
           payload, see `records.py`
        8  end mark: W R I T T E N \n

A record is appended and, if the log is synced, synced before the write is acknowledged. A record that a crash has left
incomplete was never acknowledged: it lacks its end mark, is the last one, and is dropped. Any other difference from the
format is damage, and raises a CorruptIndexFileError.

After a save, a log with a larger base replaces the old one in one step. A worker may die between the save and this
step. The record "save", written before every save, therefore holds the commit slots of the index file at that moment:
if the file has other slots now, the save succeeded, and the records up to that one are in the file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from .._core.typing import Arrays
from ..errors import CorruptIndexFileError, NotAnIndexFileError, UnsupportedVersionError
from ..storage import files
from ..storage.checksum import crc32
from .records import pack, unpack

MAGIC = b"\x89CBELOG\n"
VERSION = 1
END = b"WRITTEN\n"

_HEADER = struct.Struct("<8sIQ")
_RECORD = struct.Struct("<QQ")
_CRC = struct.Struct("<I")
_CRCS = struct.Struct("<II")
HEADER_BYTES = _HEADER.size + _CRC.size
_HEAD_BYTES = _RECORD.size + _CRCS.size


class Record(NamedTuple):
    """One write.

    Attributes
    ----------
    sequence : int
    values : dict
        "kind", and the arguments of the write that are no arrays.
    arrays : dict of str to array
    """

    sequence: int
    values: dict[str, Any]
    arrays: Arrays


class LogReader:
    """Reads the records of a log, and goes on where it stopped when more are there.

    Attributes
    ----------
    base : int
    sequence : int
        That of the last record read, or the base.
    offset : int
        Where the next record begins.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO = files.open_file(path)
        header = files.read_at(self._file, 0, HEADER_BYTES)
        try:
            self.base = self.sequence = _base_of(header)
        except (CorruptIndexFileError, NotAnIndexFileError, UnsupportedVersionError) as error:
            self._file.close()
            raise type(error)(f"{path}: {error}") from None
        self.offset = HEADER_BYTES

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def is_replaced(self) -> bool:
        """Whether another log has taken the place of this one."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return True
        mine = os.fstat(self._file.fileno())
        return (now.st_dev, now.st_ino) != (mine.st_dev, mine.st_ino)

    @property
    def has_more(self) -> bool:
        """Whether there are bytes after the last record read."""
        return files.size(self._file) > self.offset

    def records(self) -> Iterator[Record]:
        """Yield the complete records after the last one read."""
        while (found := self._next()) is not None:
            yield found

    def _next(self) -> Record | None:
        n_left = files.size(self._file) - self.offset
        head = files.read_at(self._file, self.offset, min(n_left, _HEAD_BYTES))
        if len(head) < _HEAD_BYTES or not any(head):  # the end, or bytes that were never written
            return None
        n_payload, sequence = _RECORD.unpack_from(head)
        head_crc, payload_crc = _CRCS.unpack_from(head, _RECORD.size)
        if crc32(head[: _RECORD.size]) != head_crc:
            return self._torn(_HEAD_BYTES)
        n_record = _HEAD_BYTES + n_payload + len(END)
        if n_record > n_left:
            return None
        payload = files.read_at(self._file, self.offset + _HEAD_BYTES, n_payload)
        end = files.read_at(self._file, self.offset + _HEAD_BYTES + n_payload, len(END))
        if end != END:
            return self._torn(n_record)
        if crc32(payload) != payload_crc or sequence != self.sequence + 1:
            raise CorruptIndexFileError(f"{self.path}: record {self.sequence + 1} is damaged at byte {self.offset}")
        try:
            values, arrays = unpack(payload)
        except ValueError as error:
            raise CorruptIndexFileError(f"{self.path}: record {sequence}: {error}") from None
        self.offset, self.sequence = self.offset + n_record, sequence
        return Record(sequence, values, arrays)

    def _torn(self, n_bytes: int) -> Record | None:
        """Return None if `n_bytes` bytes were being written when the machine stopped; otherwise raise an error."""
        start = self.offset + n_bytes
        if any(files.read_at(self._file, start, files.size(self._file) - start)):
            raise CorruptIndexFileError(f"{self.path}: record {self.sequence + 1} is damaged at byte {self.offset}")
        return None


class Log:
    """The log of a shard, open for writing. Its owner holds a lock, so there is only one.

    Parameters
    ----------
    path : Path
    offset, sequence : int
        End and number of the last complete record: a torn one after it is overwritten.
    sync : bool
    """

    def __init__(self, path: Path, offset: int, sequence: int, sync: bool) -> None:
        self.path, self.sequence, self.sync = path, sequence, sync
        self._file = files.open_file(path, "r+")
        self.n_bytes = offset
        if files.size(self._file) > offset:
            files.truncate(self._file, offset)

    @classmethod
    def create(cls, path: Path, base: int, sync: bool, first: list[dict[str, Any]] | None = None) -> Log:
        """Write a log of the records `first`, which replaces the one at `path` in one step."""
        part = path.with_name(f".{path.name}.part")
        header = _HEADER.pack(MAGIC, VERSION, base)
        with FileIO(part, "w") as file:
            files.write_all(file, header + _CRC.pack(crc32(header)))
        log = cls(part, HEADER_BYTES, base, sync=False)
        for values in first or []:
            log.append(values, {})
        files.sync(log._file)
        os.replace(part, path)
        files.sync_directory(path.parent)
        log.path, log.sync = path, sync
        return log

    def append(self, values: dict[str, Any], arrays: Arrays) -> int:
        """Append a record, and return its sequence number. After an error the log is as before."""
        payload = pack(values, arrays)
        n_payload = sum(map(len, payload))
        crc = 0
        for piece in payload:
            crc = crc32(piece, crc)
        head = _RECORD.pack(n_payload, self.sequence + 1)
        head += _CRCS.pack(crc32(head), crc)
        try:
            self._file.seek(self.n_bytes)
            for piece in (head, *payload, END):
                files.write_all(self._file, piece)
            if self.sync:
                files.sync(self._file)
        except BaseException:
            files.truncate(self._file, self.n_bytes)
            raise
        self.n_bytes += _HEAD_BYTES + n_payload + len(END)
        self.sequence += 1
        return self.sequence

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _base_of(header: bytes) -> int:
    """Return the base in a header."""
    if header[: len(MAGIC)] != MAGIC:
        raise NotAnIndexFileError("expected the log of a shard, found another file")
    if len(header) < HEADER_BYTES:
        raise CorruptIndexFileError(f"truncated: expected a header of {HEADER_BYTES} bytes, found {len(header)}")
    _, version, base = _HEADER.unpack_from(header)
    if crc32(header[: _HEADER.size]) != _CRC.unpack_from(header, _HEADER.size)[0]:
        raise CorruptIndexFileError("the checksum of the header is wrong")
    if version != VERSION:
        raise UnsupportedVersionError(f"expected log version {VERSION}, found {version}")
    return int(base)
