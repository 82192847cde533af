"""Commits of an index file: finding the last one, and writing the footer of the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from .._core.typing import Arrays
from ..errors import CorruptIndexFileError, WriterConflictError
from . import files as _files
from .checksum import crc32
from .footer import pack_footer, parse_footer
from .layout import HEADER_BYTES, VERSION, Commit, Section, check_unused, newest_commit, version_of
from .sections import MappedArrays

# Opening a file is retried this often if its header changes meanwhile. A commit takes longer than reading the header.
_MAX_READS = 10


@dataclass(frozen=True, eq=False)
class Stored:
    """The state of a file at one commit.

    Attributes
    ----------
    path : Path
        Absolute, with symbolic links resolved.
    content : dict
    arrays : dict of str to array
        In file order.
    version : int
        Format version of the file.
    """

    path: Path
    content: dict[str, Any]
    arrays: Arrays
    _commit: Commit
    _sections: dict[str, Section]
    _is_synced: bool = True
    _is_mapped: bool = False
    version: int = VERSION

    @property
    def sequence(self) -> int:
        """The number of the commit. The first commit of a file is 1."""
        return self._commit.sequence

    @property
    def n_bytes(self) -> int:
        """Bytes of the file up to the end of this commit."""
        return self._commit.end

    @property
    def n_unused(self) -> int:
        """Bytes up to the end of this commit that a rewritten file would not have."""
        return self.n_bytes - n_needed(self._commit, self._sections)

    def mapped(self, prefix: str) -> MappedArrays | None:
        """Return the mapped arrays whose names begin with `prefix`, with `prefix` removed from the names.

        Returns None if the file was read instead of mapped. Arrays that were read have been checked already.
        """
        if not self._is_mapped:
            return None
        names = {name: name.removeprefix(prefix) for name in self._sections if name.startswith(prefix)}
        return MappedArrays(
            self.path,
            {short: self.arrays[name] for name, short in names.items()},
            {short: self._sections[name].crc32 for name, short in names.items()},
        )

    def check_mapped(self, prefix: str) -> None:
        """Compare the mapped arrays whose names begin with `prefix` with their checksums."""
        if self._is_mapped:
            crcs = {name: section.crc32 for name, section in self._sections.items() if name.startswith(prefix)}
            MappedArrays(self.path, {name: self.arrays[name] for name in crcs}, crcs).check()


def n_needed(commit: Commit, sections: Mapping[str, Section]) -> int:
    """Return the bytes of the header, the sections and the footer of a commit."""
    return HEADER_BYTES + sum(section.padded_nbytes for section in sections.values()) + commit.length


def last_commit(file: FileIO) -> tuple[Commit, int]:
    """Return the last commit of a file, and the offset of the other slot."""
    return newest_commit(_files.read_at(file, 0, HEADER_BYTES), _files.size(file))


def check_unchanged(file: FileIO, stored: Stored) -> tuple[Commit, int]:
    """Return what `last_commit` returns. Raises WriterConflictError unless the last commit is that of `stored`."""
    last, slot = last_commit(file)
    if last != stored._commit:
        raise WriterConflictError(
            "the file was changed since it was loaded "
            f"(it is at commit {last.sequence}, this index at {stored.sequence}); load it again"
        )
    return last, slot


class Opened(NamedTuple):
    """The last commit of a file, as its footer describes it."""

    version: int
    commit: Commit
    content: dict[str, Any]
    sections: dict[str, Section]


def open_commit(file: FileIO, *, strict: bool = False) -> Opened:
    """Return the last commit with its content and sections. With `strict`, both slots must be intact."""
    header = b""
    for attempt in range(_MAX_READS):
        before, header = header, _files.read_at(file, 0, HEADER_BYTES)
        try:
            commit, _ = newest_commit(header, _files.size(file))
            if strict:
                check_unused(header)
            content, sections = parse_footer(_files.read_at(file, commit.offset, commit.length), commit)
            return Opened(version_of(header), commit, content, sections)
        except CorruptIndexFileError:
            # A writer may have been in the middle of a slot: damage is what two reads agree on.
            if header == before or attempt == _MAX_READS - 1:
                raise
    raise AssertionError("unreachable")


def write_footer(file: FileIO, sequence: int, content: dict[str, Any], sections: dict[str, Section]) -> Commit:
    """Write the footer of a commit at the current position of the file."""
    footer, offset = pack_footer(content, sections.values()), file.tell()
    _files.write_all(file, footer)
    return Commit(sequence, offset, len(footer), crc32(footer))


def has_footer(file: FileIO, commit: Commit, footer: bytes) -> bool:
    """Tell whether `footer` is the footer of a commit."""
    return commit.length == len(footer) and _files.read_at(file, commit.offset, commit.length) == footer
