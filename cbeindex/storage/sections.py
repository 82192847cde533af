"""The arrays of an index file: writing, reading, mapping and checking them piece by piece, on all cores.

The thread that saves does all the writing, in file order. A second thread computes checksums meanwhile, and then syncs
what has been written, so that less remains for the final sync. Pieces are read and checked on any thread.
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

from .._core.memory import memory_bytes
from .._core.threads import for_each_chunk, n_cores
from .._core.tuning import tuning
from .._core.typing import Arrays
from ..errors import CorruptIndexFileError
from . import files as _files
from .checksum import combine, crc32
from .layout import Commit, Section, dtype_of

_NO_BYTES = np.empty(0, dtype=np.uint8)


@dataclass
class MappedArrays:
    """Arrays of a mapped file, with the checksums that the file lists for them.

    Attributes
    ----------
    path : Path
    arrays : dict of str to array
    crcs : dict of str to int
    """

    path: Path
    arrays: Arrays
    crcs: dict[str, int]

    def check(self) -> None:
        """Raise CorruptIndexFileError if a checksum does not match. Reads all arrays."""
        for name in self.arrays:
            if _checksum(self.arrays[name]) != self.crcs[name]:
                raise CorruptIndexFileError(f"{self.path}: the checksum of section {name!r} does not match")


def write_sections(file: FileIO, offset: int, arrays: Arrays, crcs: Mapping[str, int]) -> dict[str, Section]:
    """Write arrays at `offset`, the current position of the file. Arrays named in `crcs` must have these checksums."""
    sections = {}
    for name, array in arrays.items():
        dtype = dtype_of(array, name)
        section = sections[name] = Section(name, dtype, array.shape, offset, _write_values(file, array, dtype))
        if section.crc32 != crcs.get(name, section.crc32):
            raise CorruptIndexFileError(f"section {name!r} is damaged in the file that it was mapped from")
        _files.write_all(file, bytes(section.padded_nbytes - section.nbytes))
        offset += section.padded_nbytes
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
    """Read arrays and compare them with their checksums. Raises MemoryError if they do not fit in memory."""
    n_bytes = sum(section.nbytes for section in sections.values())
    try:
        if n_bytes > memory_bytes():
            raise MemoryError
        return {name: _read_section(file, section) for name, section in sections.items()}
    except MemoryError:
        raise MemoryError(f"the arrays take {n_bytes:,} bytes, which do not fit in memory; use mmap=True") from None


def check_sections(file: FileIO, sections: Iterable[Section]) -> None:
    """Compare arrays with their checksums, in memory for one piece per thread."""
    scratch = _Scratch()
    for section in sections:
        _check_section(file, section, lambda start, stop: scratch.values[: stop - start])


def _write_values(file: FileIO, array: NDArray[Any], dtype: str) -> int:
    """Write the values of an array in C order at the current position, and return their CRC32."""
    is_as_stored = array.flags.c_contiguous and array.dtype == np.dtype(dtype)
    if is_as_stored and array.nbytes > tuning().piece_bytes and n_cores() > 1:
        return _write_beside_checksums(file, array.reshape(-1).view(np.uint8).data)
    crc = 0
    for piece in _pieces(array, dtype):
        crc = crc32(piece, crc)
        _files.write_all(file, piece)
    return crc


def _write_beside_checksums(file: FileIO, data: memoryview) -> int:
    """Write on this thread while another one computes checksums, and return the CRC32 of all bytes."""
    size = tuning().piece_bytes
    n_pieces = -(-len(data) // size)
    to_write, to_check = iter(range(n_pieces)), iter(range(n_pieces))  # next() on a range iterator is atomic
    crcs = np.zeros(n_pieces, dtype=np.uint32)
    writer = threading.get_ident()

    def write(number: int) -> None:
        _files.write_all(file, data[number * size : (number + 1) * size])

    def check(number: int) -> None:
        crcs[number] = crc32(data[number * size : (number + 1) * size])

    def work(start: int, stop: int) -> None:
        is_writer = threading.get_ident() == writer
        if is_writer and (number := next(to_write, None)) is not None:
            write(number)
        elif (number := next(to_check, None)) is not None:
            check(number)
        elif not is_writer:
            _files.sync(file)

    for_each_chunk(work, 2 * n_pieces, 1, 2)
    # The other thread may have taken more than its half of the calls. The remaining pieces are done here.
    for number in to_write:
        write(number)
    for number in to_check:
        check(number)
    return combine(crcs.tolist(), size, len(data))


def _pieces(array: NDArray[Any], dtype: str) -> Iterator[memoryview]:
    """Yield the bytes of an array in C order. Only pieces that memory holds in another order are copied."""
    contiguous: Any = ["readonly", "contig"]  # numpy's annotations do not know "contig"
    pieces: Any = np.nditer(
        [np.atleast_1d(array)],  # numpy 2.0 reads uninitialised memory where it converts a scalar
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[contiguous],
        op_dtypes=[np.dtype(dtype)],
        order="C",
        casting="equiv",
        buffersize=tuning().piece_bytes // array.dtype.itemsize,
    )
    for piece in pieces:
        yield piece.view(np.uint8).data


def _checksum(array: NDArray[Any]) -> int:
    """Return the CRC32 of the values of a mapped array."""
    data = array.reshape(-1).view(np.uint8).data
    size = tuning().piece_bytes
    crcs = np.zeros(-(-len(data) // size), dtype=np.uint32)

    def check(start: int, stop: int) -> None:
        crcs[start // size] = crc32(data[start:stop])

    for_each_chunk(check, len(data), size, n_cores())
    return combine(crcs.tolist(), size, len(data))


def _n_readers() -> int:
    """Return the number of threads that may read a file: one where reading moves the position of the file."""
    return n_cores() if hasattr(os, "preadv") else 1


def _read_section(file: FileIO, section: Section) -> NDArray[Any]:
    """Read and check a section."""
    array = np.empty(section.shape, section.dtype)
    values = array.reshape(-1).view(np.uint8)
    _check_section(file, section, lambda start, stop: values[start:stop])
    return array


class _Scratch(threading.local):
    """Memory for one piece, separate for each thread."""

    def __init__(self) -> None:
        self.values = np.empty(tuning().piece_bytes, dtype=np.uint8)


def _check_section(file: FileIO, section: Section, target: Callable[[int, int], NDArray[np.uint8]]) -> None:
    """Read bytes [start, stop) of a section into `target(start, stop)`, and compare the whole with its checksum."""
    about = f"section {section.name!r}"
    size = tuning().piece_bytes
    crcs = np.zeros(-(-section.nbytes // size), dtype=np.uint32)

    def check(start: int, stop: int) -> None:
        piece = target(start, stop)
        if _files.read_into(file, section.offset + start, piece.data) < len(piece):
            raise CorruptIndexFileError(f"truncated in {about}")
        crcs[start // size] = crc32(piece.data)
        if section.dtype == "|b1" and piece.max() > 1:
            raise CorruptIndexFileError(f"{about} must hold bytes of 0 and 1 only")

    for_each_chunk(check, section.nbytes, size, _n_readers())
    if combine(crcs.tolist(), size, section.nbytes) != section.crc32:
        raise CorruptIndexFileError(f"the checksum of {about} does not match")
    if any(_files.read_at(file, section.offset + section.nbytes, section.padded_nbytes - section.nbytes)):
        raise CorruptIndexFileError(f"the padding after {about} must be 0")
