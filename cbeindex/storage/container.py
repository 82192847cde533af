r"""Index files: a dict and named arrays as one file. This module gives them no meaning.

Format, versions 1 and 2. Numbers are little-endian. CRC32 is that of zlib and PNG. Sections and footers start at
multiples of 64 bytes, and the bytes before them are padded with zeros. The versions differ in the arrays of codes
alone, see `version1.py`. Files are written in version 2.

    offset  bytes
         0      8  magic: \x89 C B E \r \n \x1a \n
         8      4  format version (u32)
        12      4  CRC32 of the first 12 bytes; these 16 bytes are laid out alike in every version
        16     48  zeros
        64     32  commit slot: sequence number, offset and length of a footer (u64 each), CRC32 of the footer (u32),
                   CRC32 of the first 28 bytes of the slot (u32)
        96     32  zeros
       128     32  second commit slot
       160     32  zeros
       192         sections and footers

A slot is valid if its checksum matches. A slot that was never used is all zeros. The valid slot with the larger
sequence number points to the footer of the last commit. A footer is JSON in UTF-8:

    {"content": {...}, "sections": [{"name": "codes", "dtype": "<u8", "shape": [9, 4], "offset": 192, "crc32": 1}, ...]}

A section holds the values of one array in C order, and its CRC32 is that of these bytes. The dtypes are those of
numpy's array interface: |b1 |u1 |i1 <u2 <i2 <u4 <i4 <u8 <i8 <f2 <f4 <f8 <c8. Sections do not overlap, and precede the
footer that lists them. Bytes that belong to no section of the last commit, also those after its footer, are left over
from earlier commits or interrupted saves, and are ignored. Readers refuse footers of more than 2^23 bytes, footers with
more than 2^19 of the characters [ { , : (inside strings too), and sequence numbers of 2^62 or more.

A save appends the new sections, and a footer that lists the new and the old sections, after the last footer. It syncs,
writes the slot that does not hold the last commit, and syncs again. Nothing that a commit needs is ever overwritten.
The file therefore holds the old commit until the slot is complete, and readers keep what they have mapped. (Like
SQLite, this assumes that a power cut during the write of one slot leaves the other slot of the same disk block intact.)

A save that fails before it writes the slot restores the length of the file. After that point nothing is undone, because
a reader may have seen the new commit, and truncating a mapped file kills the processes that touch its end. So if the
system reports an error for the slot or the sync after it, the file holds either the old commit or the new one, and both
are complete. For the same reason, the next save overwrites the leftovers of a killed save instead of truncating them.

The first save, and a save that drops unused bytes, writes a new file beside the old one and renames it into place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._core.typing import Arrays
from ..errors import IndexFileError, NotAnIndexFileError
from . import files as _files
from .commits import Stored, check_unchanged, has_footer, last_commit, n_needed, open_commit, write_footer
from .footer import checked_content, pack_footer
from .layout import ALIGNMENT, HEADER_BYTES, MAGIC, VERSION, aligned, dtype_of, pack_header
from .sections import check_sections, map_sections, read_sections, write_sections

__all__ = ["Stored", "append", "describe", "is_current", "read", "verify", "write"]


def write(
    path: str | os.PathLike[str],
    content: dict[str, Any],
    arrays: Mapping[str, ArrayLike],
    *,
    replaces: Stored | None = None,
    crcs: Mapping[str, int] | None = None,
    before_commit: Callable[[Stored], None] | None = None,
) -> Stored:
    """Create a file, or replace one atomically.

    After an error the old file is unchanged. After an interrupt the new file may be in its place. An existing file that
    is not an index file is never replaced.

    Parameters
    ----------
    path : str or path-like
        A symbolic link is followed, and its target is replaced.
    content : dict
        Values that JSON can represent.
    arrays : mapping of str to array
        Arrays of any size and memory layout, written piece by piece.
    replaces : Stored, optional
        The state that an existing file must be in. By default any index file is replaced.
    crcs : mapping of str to int, optional
        Checksums that arrays mapped from another file must have. A mismatch raises CorruptIndexFileError.
    before_commit : callable, optional
        Called with the result just before the file may come to hold it.

    Returns
    -------
    Stored
        The new state, with the arrays that were given.
    """
    given, path = path, _files.resolve(path)
    content, arrays = checked_content(content), _checked_arrays(arrays)
    with (
        _naming_file(path, given),
        _files.locked_part(path) as file,
        _files.locked_if_any(path, file) as old,
        _files.replacing(path, file, old),
    ):
        if old is not None and _files.size(old) and _files.read_at(old, 0, len(MAGIC)) != MAGIC:
            raise NotAnIndexFileError("not an index file, so it is not overwritten; remove it first")
        if old is not None and replaces is not None:
            check_unchanged(old, replaces)
        file.seek(0)
        _files.write_all(file, pack_header())
        sections = write_sections(file, HEADER_BYTES, arrays, crcs or {})
        commit = write_footer(file, 1, content, sections)
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
    """Commit new content and new arrays to a file, and keep some of its arrays.

    Nothing is written if nothing would change. After an error the file holds the old commit. If the error came while
    the commit slot was written, the file may hold the new commit instead; `is_current` tells which.

    Parameters
    ----------
    stored : Stored
        The last commit of the file, which is of the version that is written.
    content : dict
        Values that JSON can represent, in place of the old content.
    arrays : mapping of str to array
        New arrays. They may reuse names of arrays that are not kept.
    keep : iterable of str
        Names of old arrays to keep. The time does not depend on their size.
    before_commit : callable, optional
        Called with the result just before the file may come to hold it.

    Returns
    -------
    Stored
        The new commit, with the kept arrays of `stored` and the arrays that were given.
    """
    assert stored.version == VERSION
    content, arrays, keep = checked_content(content), _checked_arrays(arrays), set(keep)
    if not keep <= stored.arrays.keys():
        raise ValueError(f"keep must name arrays of the file, got {min(keep - stored.arrays.keys())!r}")
    if keep & arrays.keys():
        raise ValueError(f"{min(keep & arrays.keys())!r} must not be both kept and new")
    kept = {name: array for name, array in stored.arrays.items() if name in keep}
    with _naming_file(stored.path), _files.locked(stored.path) as file, _files.unlocking(file):
        last, slot = check_unchanged(file, stored)
        sections = {name: section for name, section in stored._sections.items() if name in keep}
        # A commit that may not have been synced is written again, since callers of save rely on the sync.
        if stored._is_synced and not arrays and has_footer(file, last, pack_footer(content, sections.values())):
            return stored
        n_bytes = _files.size(file)
        try:
            file.seek(last.end)
            _files.write_all(file, bytes(-last.end % ALIGNMENT))
            sections |= write_sections(file, aligned(last.end), arrays, {})
            commit = write_footer(file, last.next_sequence, content, sections)
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
    """Tell whether `stored` is the last commit of its file."""
    try:
        with _files.open_file(stored.path) as file:
            return last_commit(file)[0] == stored._commit
    except (OSError, IndexFileError):
        return False


def read(path: str | os.PathLike[str], *, mmap: bool = True, verify: bool = False) -> Stored:
    """Open the last commit of a file.

    Parameters
    ----------
    path : str or path-like
    mmap : bool
        Map the arrays instead of reading them. Opening then takes the same time for any size, and memory is used only
        for pages that are touched. Writing to an array does not change the file. Mapped values are not checked: those
        of a damaged file can be anything, including bytes other than 0 and 1 in a bool array. The file must not be
        truncated while it is mapped. With False, arrays are read and compared with their checksums, and a MemoryError
        is raised if they do not fit in memory.
    verify : bool
        Check the whole file as `verify` does.
    """
    given, path = path, _files.resolve(path)
    with _naming_file(path, given), _files.open_file(path) as file:
        version, commit, content, sections = open_commit(file, strict=verify)
        if mmap:
            if verify:
                check_sections(file, sections.values())
            arrays = map_sections(file, commit, sections)
        else:
            arrays = read_sections(file, sections)
    return Stored(path, content, arrays, commit, sections, _is_mapped=mmap, version=version)


def verify(path: str | os.PathLike[str]) -> None:
    """Check every byte that the last commit of a file needs, and both commit slots.

    A slot that a crash left half written is an error here, although `read` opens the commit in the other slot. The next
    save repairs it.
    """
    given, path = path, _files.resolve(path)
    with _naming_file(path, given), _files.open_file(path) as file:
        check_sections(file, open_commit(file, strict=True).sections.values())


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return version, sequence number, content, sections, size and unused bytes of a file."""
    given, path = path, _files.resolve(path)
    with _naming_file(path, given), _files.open_file(path) as file:
        version, commit, content, sections = open_commit(file)
        n_bytes = _files.size(file)
    return {
        "version": version,
        "sequence": commit.sequence,
        "content": content,
        "sections": [
            {"name": s.name, "dtype": str(np.dtype(s.dtype)), "shape": s.shape, "bytes": s.nbytes}
            for s in sections.values()
        ],
        "bytes": n_bytes,
        "unused": n_bytes - n_needed(commit, sections),
    }


@contextmanager
def _naming_file(path: Path, given: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Name the file in all errors. An OSError names the path as the caller has `given` it, as elsewhere in Python."""
    try:
        yield
    except IndexFileError as error:
        raise type(error)(f"{path}: {error}") from None
    except MemoryError as error:
        raise MemoryError(f"{path}: {error}") from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(given or path)) from None


def _checked_arrays(arrays: Mapping[str, ArrayLike]) -> Arrays:
    """Return `arrays` as numpy arrays. Raises an error for names and dtypes that a file cannot hold."""
    checked = {name: np.asarray(array) for name, array in arrays.items()}
    for name, array in checked.items():
        if not isinstance(name, str):
            raise TypeError(f"names of arrays must be strings, got {name!r}")
        dtype_of(array, name)
    return checked
