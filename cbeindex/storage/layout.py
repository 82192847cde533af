"""The header of an index file: magic, version and commit slots.

These functions work on bytes in memory. `container.py` describes the whole format.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptIndexFileError, IndexFileError, NotAnIndexFileError, UnsupportedVersionError
from .checksum import crc32

# As in PNG: the first byte is not ASCII, and the line ends reveal a copy that translated them.
MAGIC = b"\x89CBE\r\n\x1a\n"
VERSION = 2
"""The version that is written."""

VERSIONS = (1, 2)
"""The versions that are read."""

ALIGNMENT = 64
HEADER_BYTES = 192
SLOT_OFFSETS = (64, 128)
SLOT_BYTES = 32

DTYPES = ("|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "<c8")

FOOTER_LIMIT = 2**23
NDIM_LIMIT = 32
# Far below the capacity of a slot. At a thousand commits a second, a file would reach this number in 10^8 years.
_SEQUENCE_LIMIT = 2**62

_START = struct.Struct("<8sI")
_SLOT = struct.Struct("<QQQI")
_CRC = struct.Struct("<I")


class Commit(NamedTuple):
    """One state of the file, given by its sequence number and the place of its footer."""

    sequence: int
    offset: int
    length: int
    crc32: int

    @property
    def end(self) -> int:
        """Offset of the first byte after the footer, where the next save continues."""
        return self.offset + self.length

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next commit. Raises IndexFileError if readers would refuse it."""
        if self.sequence + 1 >= _SEQUENCE_LIMIT:
            raise IndexFileError(
                f"commit {self.sequence} is the last that a file can hold; compact the index or save it to a new file"
            )
        return self.sequence + 1

    def pack(self) -> bytes:
        """Return the bytes of a commit slot."""
        return _with_crc(_SLOT.pack(*self))


class Section(NamedTuple):
    """The place of one array in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    crc32: int

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return int(np.dtype(self.dtype).itemsize) * math.prod(self.shape)

    @property
    def padded_nbytes(self) -> int:
        """Bytes of the values and of the zeros that pad them to the alignment."""
        return aligned(self.nbytes)


def aligned(offset: int) -> int:
    """Round `offset` up to the alignment of sections and footers."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def dtype_of(array: NDArray[Any], name: str) -> str:
    """Return the dtype of an array as the footer writes it. Raises an error for dtypes that a file cannot hold."""
    if array.ndim > NDIM_LIMIT:
        raise ValueError(f"{name} must have at most {NDIM_LIMIT} dimensions, got {array.ndim}")
    dtype = array.dtype.newbyteorder("<").str
    if dtype not in DTYPES:
        raise TypeError(f"{name} must have one of the dtypes {', '.join(DTYPES)}, got {array.dtype}")
    return dtype


def pack_header(commit: Commit | None = None) -> bytes:
    """Return the header of a new file with `commit` in the first slot. Without a commit, readers refuse the file."""
    header = bytearray(HEADER_BYTES)
    start = _with_crc(_START.pack(MAGIC, VERSION))
    header[: len(start)] = start
    if commit is not None:
        header[SLOT_OFFSETS[0] : SLOT_OFFSETS[0] + SLOT_BYTES] = commit.pack()
    return bytes(header)


def newest_commit(header: bytes, file_bytes: int) -> tuple[Commit, int]:
    """Return the last commit of a file of `file_bytes` bytes, and the offset of the other slot."""
    version_of(header)
    found = [(commit, offset) for offset in SLOT_OFFSETS if (commit := _slot(header, offset)) is not None]
    if not found:
        raise CorruptIndexFileError("both commit slots are damaged")
    if len(found) == 2 and found[0][0].sequence == found[1][0].sequence:
        raise CorruptIndexFileError(f"both commit slots have the sequence number {found[0][0].sequence}")
    commit, offset = max(found)
    if not 0 < commit.sequence < _SEQUENCE_LIMIT:
        raise CorruptIndexFileError(f"a commit cannot have the sequence number {commit.sequence}")
    if commit.offset % ALIGNMENT or commit.offset < HEADER_BYTES or not 0 < commit.length <= FOOTER_LIMIT:
        raise CorruptIndexFileError(f"a footer cannot have {commit.length} bytes at offset {commit.offset}")
    if commit.end > file_bytes:
        raise CorruptIndexFileError(f"truncated: expected {commit.end} bytes, found {file_bytes}")
    return commit, sum(SLOT_OFFSETS) - offset


def check_unused(header: bytes) -> None:
    """Raise CorruptIndexFileError unless each slot is valid or all zeros, and all bytes around the slots are 0."""
    for number, offset in enumerate(SLOT_OFFSETS, start=1):
        if any(header[offset : offset + SLOT_BYTES]) and _slot(header, offset) is None:
            raise CorruptIndexFileError(f"commit slot {number} is damaged; the commit in the other slot can be read")
    first, second = SLOT_OFFSETS
    if any(header[16:first]) or any(header[first + SLOT_BYTES : second]) or any(header[second + SLOT_BYTES :]):
        raise CorruptIndexFileError("unused bytes of the header must be 0")


def _with_crc(data: bytes) -> bytes:
    return data + _CRC.pack(crc32(data))


def version_of(header: bytes) -> int:
    """Return the format version. Raises an IndexFileError unless magic, version, their checksum and the size are right.

    These bytes are laid out alike in every version.
    """
    if header[: len(MAGIC)] != MAGIC:
        raise NotAnIndexFileError("not an index file")
    start = header[: _START.size + _CRC.size]
    version = VERSION
    if len(start) == _START.size + _CRC.size:
        if _with_crc(start[: _START.size]) != start:
            raise CorruptIndexFileError("the checksum of the header does not match")
        version = int(_START.unpack_from(start)[1])
        if version not in VERSIONS:
            hint = "; a newer release of cbeindex may read it" if version > VERSION else ""
            read = " and ".join(map(str, VERSIONS))
            raise UnsupportedVersionError(
                f"the file has format version {version}, this release reads versions {read}{hint}"
            )
    if len(header) < HEADER_BYTES:
        raise CorruptIndexFileError(f"truncated: expected a header of {HEADER_BYTES} bytes, found {len(header)}")
    return version


def _slot(header: bytes, offset: int) -> Commit | None:
    """Return the commit in a slot, or None if its checksum does not match."""
    slot = header[offset : offset + SLOT_BYTES]
    return Commit(*_SLOT.unpack_from(slot)) if _with_crc(slot[: _SLOT.size]) == slot else None
