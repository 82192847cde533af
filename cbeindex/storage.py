r"""Index files: arrays and a dict <-> one file. What they mean is for others to know.

Format, version 1. Numbers are little-endian, CRC32 is that of zlib and PNG, whatever starts does so at a multiple of
64 bytes, and the room before it is filled with zeros.

    offset  bytes
         0      8  magic: \x89 C B E \r \n \x1a \n
         8      4  version of the format (u32)
        12      4  CRC32 of the 12 bytes before; these 16 bytes are the same in every version
        16     48  zeros
        64     32  commit slot: sequence number, offset and length of a footer (u64 each), CRC32 of the footer (u32),
                   CRC32 of the 28 bytes before (u32)
        96     32  zeros
       128     32  another commit slot
       160     32  zeros
       192         sections and footers

A slot counts if its checksum is right; one that was never used is all zeros. Of two that count, the one with the larger
sequence number leads to the footer of the last commit. A footer is JSON in UTF-8:

    {"content": {...}, "sections": [{"name": "codes", "dtype": "<u8", "shape": [9, 4], "offset": 192, "crc32": 1}, ...]}

A section holds the values of one array in C order, its CRC32 is that of these bytes. The dtypes are those of numpy's
array interface: |b1 |u1 |i1 <u2 <i2 <u4 <i4 <u8 <i8 <f2 <f4 <f8 <c8. Sections do not overlap, and lie before the
footer that lists them. Bytes that belong to no section of the last commit are from earlier ones, or from a save that
was cut off; they mean nothing, also behind the last footer.

A save appends new sections and a footer that lists these and the old ones, syncs, writes the slot that the last commit
is not in, and syncs. Nothing that a commit needs is ever overwritten, so the file holds the old commit until the slot
is whole, and readers keep what they have mapped. (Like SQLite, this expects that a power cut while one slot is written
leaves the other one of the same disk block alone.) A first save, and one that drops what is not in use, makes a
neighbour that replaces the file in one step.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _files
from ._layout import (
    ALIGNMENT,
    HEADER_BYTES,
    MAGIC,
    SLOT_BYTES,
    VERSION,
    Commit,
    Section,
    aligned,
    check_unused,
    checked_content,
    dtype_of,
    newest_commit,
    pack_footer,
    pack_header,
    parse_footer,
)
from ._typing import Arrays
from .errors import CorruptIndexFileError, IndexFileError, NotAnIndexFileError, WriterConflictError

# A piece stays in the cache between its checksum and the disk: 1 MiB took 0.6 of the time of 8 MiB.
_PIECE_BYTES = 2**20

_NO_BYTES = np.empty(0, dtype=np.uint8)

# How often a file that changes while it is opened is looked at again. A commit takes a disk longer than a look.
_MAX_LOOKS = 10


@dataclass(frozen=True, eq=False)
class Stored:
    """A file as it was at one commit.

    Attributes
    ----------
    path : Path
        Absolute, without links.
    content : dict
    arrays : dict of str to array
        In the order of the file.
    """

    path: Path
    content: dict[str, Any]
    arrays: Arrays
    _commit: Commit
    _sections: dict[str, Section]

    @property
    def sequence(self) -> int:
        """The number of the commit; a new file begins with 1."""
        return self._commit.sequence

    @property
    def n_bytes(self) -> int:
        """Bytes of the file up to this commit."""
        return self._commit.end

    @property
    def n_unused(self) -> int:
        """Bytes among these that `write` would not write again."""
        return self.n_bytes - _n_needed(self._commit, self._sections)


def write(
    path: str | os.PathLike[str],
    content: dict[str, Any],
    arrays: Mapping[str, ArrayLike],
    *,
    replaces: Stored | None = None,
) -> Stored:
    """Make a file, or replace one in a single step.

    After an error the old file is as it was. A file that is there and is not an index file is not replaced.

    Parameters
    ----------
    path : str or path-like
        A link stays, what it leads to is replaced.
    content : dict
        What JSON can hold.
    arrays : mapping of str to array
        Of any size and layout; written in pieces.
    replaces : Stored, optional
        What a file that is there must hold; otherwise it is replaced whatever it holds.

    Returns
    -------
    Stored
        With the arrays that were given.
    """
    path, content, arrays = _files.resolve(path), checked_content(content), _checked_arrays(arrays)
    with _naming(path), _files.replacing(path) as (file, old):
        if old is not None and _files.size(old) and _files.read_at(old, 0, len(MAGIC)) != MAGIC:
            raise NotAnIndexFileError("not an index file, so it is not overwritten; remove it first")
        if old is not None and replaces is not None:
            _check_unchanged(old, replaces)
        file.seek(0)
        _files.write_all(file, bytes(HEADER_BYTES))
        sections = _write_sections(file, HEADER_BYTES, arrays)
        commit = _write_footer(file, 1, content, sections)
        file.seek(0)
        _files.write_all(file, pack_header(commit))
    return Stored(path, content, arrays, commit, sections)


def append(stored: Stored, content: dict[str, Any], arrays: Mapping[str, ArrayLike], keep: Iterable[str]) -> Stored:
    """Commit new content and new arrays to a file, beside some of the arrays that it has.

    After an error the file is as it was.

    Parameters
    ----------
    stored : Stored
        The last commit of the file.
    content : dict
        What JSON can hold, in place of the old content.
    arrays : mapping of str to array
        New arrays. The name of an old one may be used again if that is not kept.
    keep : iterable of str
        Names of the old arrays that stay; the time does not depend on their size.

    Returns
    -------
    Stored
        The new commit: arrays that were kept, as they are in `stored`, and those that were given.
    """
    content, arrays, keep = checked_content(content), _checked_arrays(arrays), set(keep)
    if not keep <= stored.arrays.keys():
        raise ValueError(f"keep must name arrays of the file, {min(keep - stored.arrays.keys())!r} is not one")
    if keep & arrays.keys():
        raise ValueError(f"{min(keep & arrays.keys())!r} must not be both kept and new")
    with _naming(stored.path), _files.locked(stored.path) as file:
        header, last, slot = _check_unchanged(file, stored)
        try:
            _files.truncate(file, last.end)  # what a save that was cut off has left
            file.seek(last.end)
            _files.write_all(file, bytes(-last.end % ALIGNMENT))
            sections = {name: section for name, section in stored._sections.items() if name in keep}
            sections |= _write_sections(file, aligned(last.end), arrays)
            commit = _write_footer(file, last.sequence + 1, content, sections)
            _files.sync(file)
            file.seek(slot)
            _files.write_all(file, commit.pack())
            _files.sync(file)
        except BaseException:
            with suppress(OSError):
                _roll_back(file, header, slot, last.end)
            raise
    kept = {name: array for name, array in stored.arrays.items() if name in keep}
    return Stored(stored.path, content, kept | arrays, commit, sections)


def read(path: str | os.PathLike[str], *, mmap: bool = True, verify: bool = False) -> Stored:
    """Open the last commit of a file.

    Parameters
    ----------
    path : str or path-like
    mmap : bool
        Whether arrays are mapped: then opening takes the same time for all sizes, and memory is taken by what is
        touched. Arrays may be written to; the file does not change. The values of a file with errors can be anything,
        also neither 0 nor 1 in an array of bool, and nobody but us may cut the file off: like all mapped memory,
        arrays need the file behind them. Otherwise arrays are read and compared with their checksums.
    verify : bool
        Whether to check the whole file as `verify` does.
    """
    path = _files.resolve(path)
    with _naming(path), _files.open_file(path) as file:
        commit, content, sections = _open_commit(file, strict=verify)
        if mmap:
            if verify:
                _check_sections(file, sections)
            arrays = _map_sections(file, commit, sections)
        else:
            arrays = {name: _read_section(file, section) for name, section in sections.items()}
    return Stored(path, content, arrays, commit, sections)


def verify(path: str | os.PathLike[str]) -> None:
    """Check every byte that the last commit of a file needs, and both commit slots.

    A slot that a crash left half written is an error here, though `read` opens the commit before it; the next save
    mends it.
    """
    path = _files.resolve(path)
    with _naming(path), _files.open_file(path) as file:
        _check_sections(file, _open_commit(file, strict=True)[2])


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Tell what is in a file: version, sequence number, content, sections, its bytes and how many are not in use."""
    path = _files.resolve(path)
    with _naming(path), _files.open_file(path) as file:
        commit, content, sections = _open_commit(file)
        n_bytes = _files.size(file)
    return {
        "version": VERSION,
        "sequence": commit.sequence,
        "content": content,
        "sections": [
            {"name": s.name, "dtype": str(np.dtype(s.dtype)), "shape": s.shape, "bytes": s.nbytes}
            for s in sections.values()
        ],
        "bytes": n_bytes,
        "unused": n_bytes - _n_needed(commit, sections),
    }


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the path before what is said about a file."""
    try:
        yield
    except IndexFileError as error:
        raise type(error)(f"{path}: {error}") from None


def _n_needed(commit: Commit, sections: Mapping[str, Section]) -> int:
    return HEADER_BYTES + sum(section.room for section in sections.values()) + commit.length


def _checked_arrays(arrays: Mapping[str, ArrayLike]) -> Arrays:
    checked = {name: np.asarray(array) for name, array in arrays.items()}
    for name, array in checked.items():
        if not isinstance(name, str):
            raise TypeError(f"names of arrays must be strings, got {name!r}")
        dtype_of(array, name)
    return checked


def _check_unchanged(file: FileIO, stored: Stored) -> tuple[bytes, Commit, int]:
    """Return the header of a file, its last commit, if it is that of `stored`, and the offset of the other slot."""
    header = _files.read_at(file, 0, HEADER_BYTES)
    last, slot = newest_commit(header, _files.size(file))
    if last != stored._commit:
        raise WriterConflictError(
            "the file was changed since it was loaded "
            f"(commit {last.sequence} there, {stored.sequence} here); load it again"
        )
    return header, last, slot


def _write_sections(file: FileIO, offset: int, arrays: Arrays) -> dict[str, Section]:
    """Write arrays at `offset`, where the file stands."""
    sections = {}
    for name, array in arrays.items():
        dtype, crc = dtype_of(array, name), 0
        for piece in _pieces(array, dtype):
            crc = crc32(piece, crc)
            _files.write_all(file, piece)
        section = sections[name] = Section(name, dtype, array.shape, offset, crc)
        _files.write_all(file, bytes(section.room - section.nbytes))
        offset += section.room
    return sections


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


def _write_footer(file: FileIO, sequence: int, content: dict[str, Any], sections: dict[str, Section]) -> Commit:
    """Write the footer of a commit where the file stands."""
    footer, offset = pack_footer(content, sections.values()), file.tell()
    _files.write_all(file, footer)
    return Commit(sequence, offset, len(footer), crc32(footer))


def _roll_back(file: FileIO, header: bytes, slot: int, end: int) -> None:
    """Undo what a failed save has done; the slot comes first, since it must not lead to where nothing is."""
    if _files.read_at(file, 0, HEADER_BYTES) != header:
        file.seek(slot)
        _files.write_all(file, header[slot : slot + SLOT_BYTES])
        _files.sync(file)
    _files.truncate(file, end)


def _open_commit(file: FileIO, *, strict: bool = False) -> tuple[Commit, dict[str, Any], dict[str, Section]]:
    """Return the last commit with its content and sections; with `strict`, both slots must be whole."""
    header = b""
    for look in range(_MAX_LOOKS):
        before, header = header, _files.read_at(file, 0, HEADER_BYTES)
        try:
            commit, _ = newest_commit(header, _files.size(file))
            if strict:
                check_unused(header)
            return commit, *parse_footer(_files.read_at(file, commit.offset, commit.length), commit)
        except CorruptIndexFileError:
            # Maybe a writer was half done with a slot, or took one back because the disk failed it.
            if header == before or look == _MAX_LOOKS - 1:
                raise
    raise AssertionError("unreachable")


def _map_sections(file: FileIO, commit: Commit, sections: dict[str, Section]) -> Arrays:
    mapping = _files.map_privately(file, commit.end)
    arrays = {}
    for name, section in sections.items():
        values = np.frombuffer(mapping, np.uint8, section.nbytes, section.offset) if section.nbytes else _NO_BYTES
        arrays[name] = values.view(section.dtype).reshape(section.shape)
    return arrays


def _read_section(file: FileIO, section: Section) -> NDArray[Any]:
    """Read and check a section; its size is known to be that of a part of the file."""
    array = np.empty(section.shape, section.dtype)
    values = array.reshape(-1).view(np.uint8)
    _check_section(file, section, values)
    return array


def _check_sections(file: FileIO, sections: dict[str, Section]) -> None:
    largest = max((section.nbytes for section in sections.values()), default=0)
    room = np.empty(min(largest, _PIECE_BYTES), dtype=np.uint8)
    for section in sections.values():
        _check_section(file, section, room)


def _check_section(file: FileIO, section: Section, room: NDArray[np.uint8]) -> None:
    """Read a section into `room`, all of it or piece after piece, and raise an error if it is not as it was written."""
    about, crc = f"section {section.name!r}", 0
    for start in range(0, section.nbytes, _PIECE_BYTES):
        n_bytes = min(_PIECE_BYTES, section.nbytes - start)
        place = start if len(room) == section.nbytes else 0
        piece = room[place : place + n_bytes]
        if _files.read_into(file, section.offset + start, piece.data) < n_bytes:
            raise CorruptIndexFileError(f"truncated in {about}")
        crc = crc32(piece.data, crc)
        if section.dtype == "|b1" and piece.max() > 1:
            raise CorruptIndexFileError(f"{about} has other values than True and False")
    if crc != section.crc32:
        raise CorruptIndexFileError(f"the checksum of {about} does not match")
    if any(_files.read_at(file, section.offset + section.nbytes, section.room - section.nbytes)):
        raise CorruptIndexFileError(f"there are other bytes than 0 behind {about}")
