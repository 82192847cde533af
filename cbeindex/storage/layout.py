"""The bytes of an index file that are not arrays: header, commit slots and footer, and all checks of them.

Works on bytes in memory and does not know of files. What the bytes mean is told at the top of `storage.py`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptIndexFileError, IndexFileError, NotAnIndexFileError, UnsupportedVersionError
from .checksum import crc32

# As in PNG: the first byte is not text, and the line ends show a copy that translated them.
MAGIC = b"\x89CBE\r\n\x1a\n"
VERSION = 1
ALIGNMENT = 64
HEADER_BYTES = 192
SLOT_OFFSETS = (64, 128)
SLOT_BYTES = 32

DTYPES = ("|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "<c8")

# Bounds on what is made of a footer in memory: at worst some 80 MB, or half a second. A segment takes at most 17
# sections and 250 marks of JSON, and segments are joined until they have 2^21 rows or 2^29 bytes. So 2^19 marks do for
# 4 * 10^9 rows, or 1 TB; beyond that, compact() joins all segments to one.
FOOTER_LIMIT = 2**23
_MARKS_LIMIT = 2**19
_MARKS = (b"[", b"{", b",", b":")
_DEPTH_LIMIT = 100
_DIGITS_LIMIT = 100
_NDIM_LIMIT = 32
_SIZE_LIMIT = 2**63
# Far below what a slot can hold. No file comes near: at a thousand commits a second it would take 10^8 years.
_SEQUENCE_LIMIT = 2**62

_START = struct.Struct("<8sI")
_SLOT = struct.Struct("<QQQI")
_CRC = struct.Struct("<I")


class Commit(NamedTuple):
    """A state of the file: where its footer is."""

    sequence: int
    offset: int
    length: int
    crc32: int

    @property
    def end(self) -> int:
        """Where the next save goes on."""
        return self.offset + self.length

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next commit; an error if readers would refuse it."""
        if self.sequence + 1 >= _SEQUENCE_LIMIT:
            raise IndexFileError(f"no commit can follow number {self.sequence}; compact the index, or save it anew")
        return self.sequence + 1

    def pack(self) -> bytes:
        """Return the bytes of a slot."""
        return _with_crc(_SLOT.pack(*self))


class Section(NamedTuple):
    """Where the values of an array are."""

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
    def room(self) -> int:
        """Bytes of the values and of the zeros behind them."""
        return aligned(self.nbytes)


def aligned(offset: int) -> int:
    """Return the first place from `offset` on where something may start."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def dtype_of(array: NDArray[Any], name: str) -> str:
    """Return what the footer calls the dtype of an array, if a file can hold it."""
    if array.ndim > _NDIM_LIMIT:
        raise ValueError(f"{name} must have at most {_NDIM_LIMIT} dimensions, got {array.ndim}")
    dtype = array.dtype.newbyteorder("<").str
    if dtype not in DTYPES:
        raise TypeError(f"{name} must have one of the dtypes {', '.join(DTYPES)}, got {array.dtype}")
    return dtype


def pack_header(commit: Commit | None = None) -> bytes:
    """Return the header of a new file, with `commit` in the first slot; without it the file is not whole yet."""
    header = bytearray(HEADER_BYTES)
    start = _with_crc(_START.pack(MAGIC, VERSION))
    header[: len(start)] = start
    if commit is not None:
        header[SLOT_OFFSETS[0] : SLOT_OFFSETS[0] + SLOT_BYTES] = commit.pack()
    return bytes(header)


def newest_commit(header: bytes, file_bytes: int) -> tuple[Commit, int]:
    """Return the last commit of a file of `file_bytes`, and the offset of the slot that it is not in."""
    _check_start(header)
    found = [(commit, offset) for offset in SLOT_OFFSETS if (commit := _slot(header, offset)) is not None]
    if not found:
        raise CorruptIndexFileError("both commit slots are damaged")
    if len(found) == 2 and found[0][0].sequence == found[1][0].sequence:
        raise CorruptIndexFileError(f"both commit slots have the sequence number {found[0][0].sequence}")
    commit, offset = max(found)
    if not 0 < commit.sequence < _SEQUENCE_LIMIT:
        raise CorruptIndexFileError(f"the sequence number of a commit cannot be {commit.sequence}")
    if commit.offset % ALIGNMENT or commit.offset < HEADER_BYTES or not 0 < commit.length <= FOOTER_LIMIT:
        raise CorruptIndexFileError(f"a footer cannot have {commit.length} bytes at offset {commit.offset}")
    if commit.end > file_bytes:
        raise CorruptIndexFileError(f"truncated: {commit.end} bytes belong to it, {file_bytes} are there")
    return commit, sum(SLOT_OFFSETS) - offset


def check_unused(header: bytes) -> None:
    """Raise an error unless both slots are whole, or were never used, and there are zeros around them."""
    for number, offset in enumerate(SLOT_OFFSETS, start=1):
        if any(header[offset : offset + SLOT_BYTES]) and _slot(header, offset) is None:
            raise CorruptIndexFileError(f"commit slot {number} is damaged; the last commit in the other one counts")
    first, second = SLOT_OFFSETS
    if any(header[16:first]) or any(header[first + SLOT_BYTES : second]) or any(header[second + SLOT_BYTES :]):
        raise CorruptIndexFileError("the header has other bytes than 0 where it is not used")


def pack_footer(content: dict[str, Any], sections: Iterable[Section]) -> bytes:
    """Return the bytes of a footer."""
    rows = [section._asdict() for section in sections]
    footer = json.dumps({"content": content, "sections": rows}, allow_nan=False, separators=(",", ":")).encode()
    if len(footer) > FOOTER_LIMIT:
        raise ValueError(f"content and names must fit {FOOTER_LIMIT} bytes of JSON, got {len(footer)}")
    _check_marks(footer)
    return footer


def parse_footer(footer: bytes, commit: Commit) -> tuple[dict[str, Any], dict[str, Section]]:
    """Return the content and the sections that a footer lists."""
    if len(footer) < commit.length:
        raise CorruptIndexFileError("truncated in its footer")
    if crc32(footer) != commit.crc32:
        raise CorruptIndexFileError("the checksum of the footer does not match")
    try:
        _check_marks(footer)
        parsed = parse_json(footer.decode())
        if not isinstance(parsed, dict) or parsed.keys() != {"content", "sections"}:
            raise ValueError("its keys must be content and sections")
        content, rows = parsed["content"], parsed["sections"]
        if not isinstance(content, dict) or not isinstance(rows, list):
            raise ValueError("content must be an object and sections a list")
        sections = [_section(row, commit.offset) for row in rows]
    except ValueError as error:
        raise CorruptIndexFileError(f"the footer is not valid: {error}") from None
    _check_apart(sections)
    return content, {section.name: section for section in sections}


def checked_content(content: dict[str, Any]) -> dict[str, Any]:
    """Return `content` as it will come back from a file, or raise an error if it would not."""
    if not isinstance(content, dict):
        raise TypeError(f"content must be a dict, got {type(content).__name__}")
    try:
        # Inside of something, as in a footer: this is one of the depths that are counted.
        parsed: dict[str, Any] = parse_json(json.dumps([content], allow_nan=False))[0]
    except RecursionError:
        raise ValueError(f"content must not be nested more than {_DEPTH_LIMIT} deep") from None
    except ValueError as error:
        raise ValueError(f"content must be what JSON can hold: {error}") from None
    return parsed


def parse_json(text: str) -> Any:
    """Return the value of a JSON text; ValueError for what the standard leaves open and for what is out of bounds."""
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_int=_int, parse_float=_float, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise ValueError(f"nested more than {_DEPTH_LIMIT} deep") from None
    level = [value]
    for _ in range(_DEPTH_LIMIT):
        level = [
            child
            for parent in level
            if isinstance(parent, (dict, list))
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return value
    raise ValueError(f"nested more than {_DEPTH_LIMIT} deep")


def _check_marks(footer: bytes) -> None:
    """Raise an error if there is too much in a footer, before it is made in memory; marks in strings count too."""
    n_marks = sum(footer.count(mark) for mark in _MARKS)
    if n_marks > _MARKS_LIMIT:
        raise ValueError(f"content and sections must have at most {_MARKS_LIMIT} marks of JSON, got {n_marks}")


def _with_crc(data: bytes) -> bytes:
    return data + _CRC.pack(crc32(data))


def _check_start(header: bytes) -> None:
    """Check what is the same in every version, then the version."""
    if header[: len(MAGIC)] != MAGIC:
        raise NotAnIndexFileError("not an index file")
    start = header[: _START.size + _CRC.size]
    if len(start) == _START.size + _CRC.size:
        if _with_crc(start[: _START.size]) != start:
            raise CorruptIndexFileError("the checksum of the header does not match")
        version = _START.unpack_from(start)[1]
        if version != VERSION:
            hint = "; a newer release of cbeindex may read it" if version > VERSION else ""
            raise UnsupportedVersionError(
                f"the file has format version {version}, this release reads version {VERSION}{hint}"
            )
    if len(header) < HEADER_BYTES:
        raise CorruptIndexFileError("truncated in its header")


def _slot(header: bytes, offset: int) -> Commit | None:
    """Return the commit in a slot, None if its checksum does not match."""
    slot = header[offset : offset + SLOT_BYTES]
    return Commit(*_SLOT.unpack_from(slot)) if _with_crc(slot[: _SLOT.size]) == slot else None


def _section(row: Any, limit: int) -> Section:
    """Return a section that lies before `limit`."""
    if not isinstance(row, dict) or row.keys() != set(Section._fields):
        raise ValueError(f"a section must have {', '.join(Section._fields)}, got {_shown(row)}")
    name, dtype, shape, offset = row["name"], row["dtype"], row["shape"], row["offset"]
    if not isinstance(name, str):
        raise ValueError(f"the name of a section must be a string, got {_shown(name)}")
    about = f"section {_shown(name)}"
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{about} has the unknown dtype {_shown(dtype)}")
    if not isinstance(shape, list) or len(shape) > _NDIM_LIMIT or not all(_is_size(n) for n in shape):
        raise ValueError(f"{about} has the impossible shape {_shown(shape)}")
    # numpy multiplies all sizes but zeros, and refuses what does not fit even where nothing is stored.
    if math.prod(n or 1 for n in shape) * np.dtype(dtype).itemsize >= _SIZE_LIMIT:
        raise ValueError(f"{about} has the impossible shape {_shown(shape)}")
    if not _is_size(row["crc32"]) or row["crc32"] >= 2**32:
        raise ValueError(f"{about} has the impossible checksum {_shown(row['crc32'])}")
    if not _is_size(offset) or offset % ALIGNMENT or offset < HEADER_BYTES:
        raise ValueError(f"{about} cannot start at {_shown(offset)}")
    section = Section(name, dtype, tuple(shape), offset, row["crc32"])
    if offset + section.room > limit:
        raise ValueError(f"{about} of {section.nbytes} bytes at {offset} reaches past the footer at {limit}")
    return section


def _check_apart(sections: list[Section]) -> None:
    """Raise an error if sections share a name or a byte."""
    names = set()
    for section in sections:
        if section.name in names:
            raise CorruptIndexFileError(f"two sections have the name {_shown(section.name)}")
        names.add(section.name)
    ordered = sorted((s for s in sections if s.room), key=lambda s: s.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.room > after.offset:
            raise CorruptIndexFileError(f"sections {_shown(before.name)} and {_shown(after.name)} overlap")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < _SIZE_LIMIT


def _shown(value: Any) -> str:
    """Show a value in a message, which a crafted one could make very long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {_shown(key)} comes twice")
        result[key] = value
    return result


def _int(text: str) -> int:
    if len(text) > _DIGITS_LIMIT:  # the time to read digits grows with their square
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    if len(text) > _DIGITS_LIMIT or not math.isfinite(float(text)):
        raise ValueError(f"{_shown(text)} is not a finite number")
    return float(text)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")
