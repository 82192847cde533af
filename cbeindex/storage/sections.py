"""The arrays of an index file: written, read, mapped and checked, in pieces and on as many cores as that takes.

The thread that saves does all the writing, in the order of the file; a second one computes checksums meanwhile, and
then lets the disk begin with what is written, so that there is less to wait for in the end. Pieces are read and checked
on any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.threads import for_each_chunk, n_cores
from .._core.typing import Arrays
from ..errors import CorruptIndexFileError
from . import files as _files
from .checksum import combine, crc32
from .layout import Commit, Section, dtype_of

# A piece stays in the cache between its checksum and the disk: 1 MiB took 0.6 of the time of 8 MiB.
_PIECE_BYTES = 2**20

_NO_BYTES = np.empty(0, dtype=np.uint8)


@dataclass
class MappedArrays:
    """Arrays of a mapped file, with the checksums of what was written.

    Attributes
    ----------
    path : Path
    arrays : dict of str to array
    crcs : dict of str to int
    """

    path: Path
    arrays: Arrays
    crcs: dict[str, int]
    _is_checked: bool = False

    def check(self) -> None:
        """Raise CorruptIndexFileError if the arrays are not as they were written; reads all of them, once."""
        for name in () if self._is_checked else self.arrays:
            if _checksum(self.arrays[name]) != self.crcs[name]:
                raise CorruptIndexFileError(f"{self.path}: the checksum of section {name!r} does not match")
        self._is_checked = True


def write_sections(file: FileIO, offset: int, arrays: Arrays, crcs: Mapping[str, int]) -> dict[str, Section]:
    """Write arrays at `offset`, where the file stands; `crcs` are the checksums that some of them must have."""
    sections = {}
    for name, array in arrays.items():
        dtype = dtype_of(array, name)
        section = sections[name] = Section(name, dtype, array.shape, offset, _write_values(file, array, dtype))
        if section.crc32 != crcs.get(name, section.crc32):
            raise CorruptIndexFileError(f"section {name!r} is damaged in the file that it was mapped from")
        _files.write_all(file, bytes(section.room - section.nbytes))
        offset += section.room
    return sections


def map_sections(file: FileIO, commit: Commit, sections: dict[str, Section]) -> Arrays:
    """Return arrays whose pages are read when they are touched."""
    mapping = _files.map_privately(file, commit.end)
    arrays = {}
    for name, section in sections.items():
        values = np.frombuffer(mapping, np.uint8, section.nbytes, section.offset) if section.nbytes else _NO_BYTES
        arrays[name] = values.view(section.dtype).reshape(section.shape)
    return arrays


def read_sections(file: FileIO, sections: dict[str, Section]) -> Arrays:
    """Read arrays and compare them with their checksums; MemoryError if they are larger than the memory."""
    n_bytes = sum(section.nbytes for section in sections.values())
    try:
        if n_bytes > _files.memory_bytes():
            raise MemoryError
        return {name: _read_section(file, section) for name, section in sections.items()}
    except MemoryError:
        raise MemoryError(f"the arrays take {n_bytes:,} bytes, for which there is no memory; use mmap=True") from None


def check_sections(file: FileIO, sections: Iterable[Section]) -> None:
    """Compare arrays with their checksums, with memory for a few pieces."""
    room = _Room()
    for section in sections:
        _check_section(file, section, lambda start, stop: room.values[: stop - start])


def _write_values(file: FileIO, array: NDArray[Any], dtype: str) -> int:
    """Write the values of an array in C order where the file stands, and return their CRC32."""
    is_as_stored = array.flags.c_contiguous and array.dtype == np.dtype(dtype)
    if is_as_stored and array.nbytes > _PIECE_BYTES and n_cores() > 1:
        return _write_beside_checksums(file, array.reshape(-1).view(np.uint8).data)
    crc = 0
    for piece in _pieces(array, dtype):
        crc = crc32(piece, crc)
        _files.write_all(file, piece)
    return crc


def _write_beside_checksums(file: FileIO, data: memoryview) -> int:
    """Write on this thread while another one computes checksums; return that of all bytes."""
    n_pieces = -(-len(data) // _PIECE_BYTES)
    to_write, to_check = iter(range(n_pieces)), iter(range(n_pieces))  # next() on them is atomic
    crcs = np.zeros(n_pieces, dtype=np.uint32)
    writer = threading.get_ident()

    def write(number: int) -> None:
        _files.write_all(file, data[number * _PIECE_BYTES : (number + 1) * _PIECE_BYTES])

    def check(number: int) -> None:
        crcs[number] = crc32(data[number * _PIECE_BYTES : (number + 1) * _PIECE_BYTES])

    def work(start: int, stop: int) -> None:
        is_writer = threading.get_ident() == writer
        if is_writer and (number := next(to_write, None)) is not None:
            write(number)
        elif (number := next(to_check, None)) is not None:
            check(number)
        elif not is_writer:
            _files.sync(file)

    for_each_chunk(work, 2 * n_pieces, 1, 2)
    # The other thread may have used up the calls: what is left is done here.
    for number in to_write:
        write(number)
    for number in to_check:
        check(number)
    return combine(crcs.tolist(), _PIECE_BYTES, len(data))


def _pieces(array: NDArray[Any], dtype: str) -> Iterator[memoryview]:
    """Yield the bytes of an array in C order; only pieces that are not stored so are copied."""
    contiguous: Any = ["readonly", "contig"]  # numpy's annotations do not know "contig"
    pieces: Any = np.nditer(
        [array],
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[contiguous],
        op_dtypes=[np.dtype(dtype)],
        order="C",
        casting="equiv",
        buffersize=_PIECE_BYTES // array.dtype.itemsize,
    )
    for piece in pieces:
        yield piece.view(np.uint8).data


def _checksum(array: NDArray[Any]) -> int:
    """Return the CRC32 of the values of a mapped array."""
    data = array.reshape(-1).view(np.uint8).data
    crcs = np.zeros(-(-len(data) // _PIECE_BYTES), dtype=np.uint32)

    def check(start: int, stop: int) -> None:
        crcs[start // _PIECE_BYTES] = crc32(data[start:stop])

    for_each_chunk(check, len(data), _PIECE_BYTES, n_cores())
    return combine(crcs.tolist(), _PIECE_BYTES, len(data))


def _n_readers() -> int:
    """Count the threads that read: where reading moves the place at which a file stands, it is one."""
    return n_cores() if hasattr(os, "preadv") else 1


def _read_section(file: FileIO, section: Section) -> NDArray[Any]:
    """Read and check a section."""
    array = np.empty(section.shape, section.dtype)
    values = array.reshape(-1).view(np.uint8)
    _check_section(file, section, lambda start, stop: values[start:stop])
    return array


class _Room(threading.local):
    """Memory for a piece, for each thread its own."""

    def __init__(self) -> None:
        self.values = np.empty(_PIECE_BYTES, dtype=np.uint8)


def _check_section(file: FileIO, section: Section, room: Callable[[int, int], NDArray[np.uint8]]) -> None:
    """Read bytes [start, stop) of a section into `room(start, stop)`; raise an error if they are not as written."""
    about = f"section {section.name!r}"
    crcs = np.zeros(-(-section.nbytes // _PIECE_BYTES), dtype=np.uint32)

    def check(start: int, stop: int) -> None:
        piece = room(start, stop)
        if _files.read_into(file, section.offset + start, piece.data) < len(piece):
            raise CorruptIndexFileError(f"truncated in {about}")
        crcs[start // _PIECE_BYTES] = crc32(piece.data)
        if section.dtype == "|b1" and piece.max() > 1:
            raise CorruptIndexFileError(f"{about} has other values than True and False")

    for_each_chunk(check, section.nbytes, _PIECE_BYTES, _n_readers())
    if combine(crcs.tolist(), _PIECE_BYTES, section.nbytes) != section.crc32:
        raise CorruptIndexFileError(f"the checksum of {about} does not match")
    if any(_files.read_at(file, section.offset + section.nbytes, section.room - section.nbytes)):
        raise CorruptIndexFileError(f"there are other bytes than 0 behind {about}")
