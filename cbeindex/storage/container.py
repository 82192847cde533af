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
was cut off; they mean nothing, also behind the last footer. Readers refuse a footer of more than 2^23 bytes, or with
more than 2^19 of the marks [ { , : (strings included), and sequence numbers from 2^62 on.

A save writes new sections and a footer that lists these and the old ones behind the last footer, syncs, writes the slot
that the last commit is not in, and syncs. Nothing that a commit needs is ever overwritten, so the file holds the old
commit until the slot is whole, and readers keep what they have mapped. (Like SQLite, this expects that a power cut
while one slot is written leaves the other one of the same disk block alone.)

A save that fails before it writes the slot makes the file as long as it was. From then on nothing is taken back: a
reader may have seen the new commit, and a file that gets shorter kills the processes that have mapped its end. So if
the system reports an error for the slot, or for the sync behind it, the file holds the old commit or the new one, and
both are whole. For the same reason, what a save that was killed has left is not cut off, but overwritten by the next.

A first save, and one that drops what is not in use, makes a neighbour that replaces the file in one step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._core.typing import Arrays
from ..errors import CorruptIndexFileError, IndexFileError, NotAnIndexFileError, WriterConflictError
from . import files as _files
from .checksum import crc32
from .layout import (
    ALIGNMENT,
    HEADER_BYTES,
    MAGIC,
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
from .sections import MappedArrays, check_sections, map_sections, read_sections, write_sections

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
    _is_synced: bool = True
    _is_mapped: bool = False

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

    def mapped(self, prefix: str) -> MappedArrays | None:
        """Return the arrays whose names begin with `prefix`, to be checked, under the rest of their names.

        None if the arrays are not mapped; then they were checked when they were read.
        """
        if not self._is_mapped:
            return None
        names = {name: name.removeprefix(prefix) for name in self._sections if name.startswith(prefix)}
        return MappedArrays(
            self.path,
            {short: self.arrays[name] for name, short in names.items()},
            {short: self._sections[name].crc32 for name, short in names.items()},
        )


def write(
    path: str | os.PathLike[str],
    content: dict[str, Any],
    arrays: Mapping[str, ArrayLike],
    *,
    replaces: Stored | None = None,
    crcs: Mapping[str, int] | None = None,
    before_commit: Callable[[Stored], None] | None = None,
) -> Stored:
    """Make a file, or replace one in a single step.

    After an error the old file is as it was. (If somebody interrupts a save, the new file may be in its place.) A file
    that is there and is not an index file is not replaced.

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
    crcs : mapping of str to int, optional
        Checksums that arrays must have, because they were mapped from another file; otherwise that is an error.
    before_commit : callable, optional
        Called with what will be returned, before the file may come to hold it.

    Returns
    -------
    Stored
        With the arrays that were given.
    """
    given, path = path, _files.resolve(path)
    content, arrays = checked_content(content), _checked_arrays(arrays)
    with _naming(path, given), _files.replacing(path) as (file, old):
        if old is not None and _files.size(old) and _files.read_at(old, 0, len(MAGIC)) != MAGIC:
            raise NotAnIndexFileError("not an index file, so it is not overwritten; remove it first")
        if old is not None and replaces is not None:
            _check_unchanged(old, replaces)
        file.seek(0)
        _files.write_all(file, pack_header())
        sections = write_sections(file, HEADER_BYTES, arrays, crcs or {})
        commit = _write_footer(file, 1, content, sections)
        file.seek(0)
        _files.write_all(file, pack_header(commit))
        written = Stored(path, content, arrays, commit, sections, _is_synced=False)
        if before_commit is not None:
            before_commit(written)
    return replace_fields(written, _is_synced=True)


def append(
    stored: Stored,
    content: dict[str, Any],
    arrays: Mapping[str, ArrayLike],
    keep: Iterable[str],
    *,
    before_commit: Callable[[Stored], None] | None = None,
) -> Stored:
    """Commit new content and new arrays to a file, beside some of the arrays that it has.

    Where that would change nothing, nothing is written. After an error the file holds the old commit, or, if the error
    came while its commit slot was written, maybe the new one; `is_current` tells.

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
    before_commit : callable, optional
        Called with what will be returned, before the file may come to hold it.

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
    kept = {name: array for name, array in stored.arrays.items() if name in keep}
    with _naming(stored.path), _files.locked(stored.path) as file:
        last, slot = _check_unchanged(file, stored)
        sections = {name: section for name, section in stored._sections.items() if name in keep}
        # What is not known to be synced is written again: who asks for a save must be able to rely on it.
        if stored._is_synced and not arrays and _has_footer(file, last, pack_footer(content, sections.values())):
            return stored
        n_bytes = _files.size(file)
        try:
            file.seek(last.end)
            _files.write_all(file, bytes(-last.end % ALIGNMENT))
            sections |= write_sections(file, aligned(last.end), arrays, {})
            commit = _write_footer(file, last.next_sequence, content, sections)
            _files.sync(file)
            written = Stored(stored.path, content, kept | arrays, commit, sections, _is_synced=False)
            if before_commit is not None:
                before_commit(written)
        except BaseException:
            with suppress(OSError):
                _files.truncate(file, n_bytes)
            raise
        file.seek(slot)
        _files.write_all(file, commit.pack())
        _files.sync(file)
        if not stored._is_synced:
            _files.sync_directory(stored.path.parent)
    return replace_fields(written, _is_synced=True)


def is_current(stored: Stored) -> bool:
    """Tell whether the last commit of a file is that of `stored`."""
    try:
        with _files.open_file(stored.path) as file:
            return _last_commit(file)[0] == stored._commit
    except (OSError, IndexFileError):
        return False


def read(path: str | os.PathLike[str], *, mmap: bool = True, verify: bool = False) -> Stored:
    """Open the last commit of a file.

    Parameters
    ----------
    path : str or path-like
    mmap : bool
        Whether arrays are mapped: then opening takes the same time for all sizes, and memory is taken by what is
        touched. Arrays may be written to; the file does not change. The values of a file with errors can be anything,
        also neither 0 nor 1 in an array of bool, and nobody may cut the file off: like all mapped memory, arrays need
        the file behind them. Otherwise arrays are read and compared with their checksums; MemoryError if they are
        larger than the memory.
    verify : bool
        Whether to check the whole file as `verify` does.
    """
    given, path = path, _files.resolve(path)
    with _naming(path, given), _files.open_file(path) as file:
        commit, content, sections = _open_commit(file, strict=verify)
        if mmap:
            if verify:
                check_sections(file, sections.values())
            arrays = map_sections(file, commit, sections)
        else:
            arrays = read_sections(file, sections)
    return Stored(path, content, arrays, commit, sections, _is_mapped=mmap)


def verify(path: str | os.PathLike[str]) -> None:
    """Check every byte that the last commit of a file needs, and both commit slots.

    A slot that a crash left half written is an error here, though `read` opens the commit before it; the next save
    mends it.
    """
    given, path = path, _files.resolve(path)
    with _naming(path, given), _files.open_file(path) as file:
        check_sections(file, _open_commit(file, strict=True)[2].values())


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Tell what is in a file: version, sequence number, content, sections, its bytes and how many are not in use."""
    given, path = path, _files.resolve(path)
    with _naming(path, given), _files.open_file(path) as file:
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
def _naming(path: Path, given: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Name the file in all errors: those of the system name what the caller has `given`, as they do elsewhere."""
    try:
        yield
    except IndexFileError as error:
        raise type(error)(f"{path}: {error}") from None
    except MemoryError as error:
        raise MemoryError(f"{path}: {error}") from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(given or path)) from None


def _n_needed(commit: Commit, sections: Mapping[str, Section]) -> int:
    return HEADER_BYTES + sum(section.room for section in sections.values()) + commit.length


def _checked_arrays(arrays: Mapping[str, ArrayLike]) -> Arrays:
    checked = {name: np.asarray(array) for name, array in arrays.items()}
    for name, array in checked.items():
        if not isinstance(name, str):
            raise TypeError(f"names of arrays must be strings, got {name!r}")
        dtype_of(array, name)
    return checked


def _last_commit(file: FileIO) -> tuple[Commit, int]:
    """Return the last commit of a file, and the offset of the slot that it is not in."""
    return newest_commit(_files.read_at(file, 0, HEADER_BYTES), _files.size(file))


def _check_unchanged(file: FileIO, stored: Stored) -> tuple[Commit, int]:
    """Return what `_last_commit` does; an error unless the commit is that of `stored`."""
    last, slot = _last_commit(file)
    if last != stored._commit:
        raise WriterConflictError(
            "the file was changed since it was loaded "
            f"(commit {last.sequence} there, {stored.sequence} here); load it again"
        )
    return last, slot


def _write_footer(file: FileIO, sequence: int, content: dict[str, Any], sections: dict[str, Section]) -> Commit:
    """Write the footer of a commit where the file stands."""
    footer, offset = pack_footer(content, sections.values()), file.tell()
    _files.write_all(file, footer)
    return Commit(sequence, offset, len(footer), crc32(footer))


def _has_footer(file: FileIO, commit: Commit, footer: bytes) -> bool:
    """Tell whether the footer of a commit has these bytes."""
    return commit.length == len(footer) and _files.read_at(file, commit.offset, commit.length) == footer


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
            # Maybe a writer was half done with a slot.
            if header == before or look == _MAX_LOOKS - 1:
                raise
    raise AssertionError("unreachable")
