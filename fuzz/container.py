"""A second reader and writer of index files, independent of `cbeindex`, that can also write what nobody should.

The format is described at the top of `cbeindex/storage/container.py`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

MAGIC = b"\x89CBE\r\n\x1a\n"
ALIGNMENT = 64
SLOTS = (64, 128)
FIRST_SECTION = 192
_PIECE = bytes(2**20)


@dataclass(frozen=True)
class Raw:
    """JSON that is written as it is, whether it is JSON or not."""

    text: str


@dataclass
class Section:
    """An array of the file.

    Attributes
    ----------
    name, dtype, shape
        What the footer says; in a damaged file of any type.
    data : bytes
    hole : int
        Zeros behind `data` that take no room on the disk.
    fields : dict
        What the footer says in place of the truth, by name of the field; None leaves the field out.
    """

    name: Any
    dtype: Any
    shape: Any
    data: bytes
    hole: int = 0
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def array(self) -> np.ndarray:
        """A copy of the values."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape).copy()

    @array.setter
    def array(self, values: np.ndarray) -> None:
        self.dtype, self.shape = values.dtype.newbyteorder("<").str, list(values.shape)
        self.data = np.ascontiguousarray(values).tobytes()


@dataclass
class Slot:
    """A commit slot; None stands for the truth about the footer."""

    sequence: int = 1
    offset: int | None = None
    length: int | None = None
    crc: int | None = None
    slot_crc: int | None = None


@dataclass
class IndexFile:
    """The last commit of a file.

    Attributes
    ----------
    content : dict
    sections : list of Section
    slots : list of Slot or bytes
        The two commit slots; bytes are written as they are.
    version : int
    start_crc : int, optional
        In place of the checksum of magic and version.
    before : bytes
        Old sections and footers, between the header and the first section.
    footer : bytes, optional
        In place of the footer that content and sections make.
    """

    content: Any
    sections: list[Section]
    slots: list[Slot | bytes] = field(default_factory=lambda: [Slot(), bytes(32)])
    version: int = 2
    start_crc: int | None = None
    before: bytes = b""
    footer: bytes | None = None

    def section(self, name: str) -> Section:
        """Return the section of this name."""
        return next(section for section in self.sections if section.name == name)


def parse(data: bytes) -> IndexFile:
    """Read the last commit of a valid file."""
    magic, version, crc = struct.unpack_from("<8sII", data)
    assert (magic, crc) == (MAGIC, crc32(data[:12]))
    assert version in (1, 2)
    slots = [struct.unpack_from("<QQQII", data, place) for place in SLOTS]
    whole = [slot for slot, place in zip(slots, SLOTS, strict=True) if slot[4] == crc32(data[place : place + 28])]
    sequence, offset, length, crc, _ = max(whole)
    footer = data[offset : offset + length]
    assert crc == crc32(footer)
    parsed = json.loads(footer)
    sections = []
    for row in parsed["sections"]:
        n_bytes = np.dtype(row["dtype"]).itemsize * math.prod(row["shape"])
        values = data[row["offset"] : row["offset"] + n_bytes]
        assert row["crc32"] == crc32(values)
        sections.append(Section(row["name"], row["dtype"], row["shape"], values))
    return IndexFile(parsed["content"], sections, [Slot(sequence), bytes(32)], version)


def as_version_1(file: IndexFile) -> IndexFile:
    """Return a file of version 2 as version 1 stored it: codes as heads in blocks of 512 rows, and tails row by row."""
    sections = []
    for section in file.sections:
        name, _, part = section.name.rpartition("/")
        if part == "blocks":
            words = section.array.transpose(0, 2, 1).reshape(16 * section.shape[0], section.shape[1])
            words = words[: file.section(f"{name}/ids").shape[0]]
            n_head = words.shape[1] if words.shape[1] <= 16 else 8
        elif part == "rows" and not name.endswith("/tables"):
            words, n_head = section.array, 0
        else:
            sections.append(section)
            continue
        padded = np.zeros((-(-len(words) // 512) * 512, n_head), dtype=np.uint64)
        padded[: len(words)] = words[:, :n_head]
        for part, array in (
            ("head", padded.reshape(len(padded) // 512, 512, n_head).transpose(0, 2, 1)),
            ("tail", words[:, n_head:]),
        ):
            converted = Section(f"{name}/{part}", "<u8", [], b"")
            converted.array = array
            sections.append(converted)
    return IndexFile(file.content, sections, file.slots, 1)


def write(file: IndexFile, path: Path) -> None:
    """Write a file, with holes where sections have them."""
    with path.open("wb") as out:
        for offset, piece in _pieces(file):
            out.seek(offset)
            out.write(piece)


def _pieces(file: IndexFile) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of a file and their offsets, the header last."""
    offset, rows = FIRST_SECTION, []
    if file.before:
        yield offset, file.before
        offset = _aligned(offset + len(file.before))
    for section in file.sections:
        yield offset, section.data
        truth = {"name": section.name, "dtype": section.dtype, "shape": section.shape, "offset": offset}
        row = truth | {"crc32": _crc_with_hole(section)} | section.fields
        rows.append({name: value for name, value in row.items() if value is not None})
        offset = _aligned(offset + len(section.data) + section.hole)
    footer = file.footer
    if footer is None:
        footer = to_json({"content": file.content, "sections": rows}).encode("utf-8", "surrogatepass")
    yield offset, footer
    start = struct.pack("<8sI", MAGIC, file.version)
    start += struct.pack("<I", crc32(start) if file.start_crc is None else file.start_crc)
    header = bytearray(FIRST_SECTION)
    header[: len(start)] = start
    for place, slot in zip(SLOTS, file.slots, strict=True):
        header[place : place + 32] = slot if isinstance(slot, bytes) else _packed(slot, offset, footer)
    yield 0, bytes(header)


def _packed(slot: Slot, offset: int, footer: bytes) -> bytes:
    truth = (offset, len(footer), crc32(footer))
    said = (
        true if value is None else value
        for value, true in zip((slot.offset, slot.length, slot.crc), truth, strict=True)
    )
    packed = struct.pack("<QQQI", slot.sequence, *said)
    return packed + struct.pack("<I", crc32(packed) if slot.slot_crc is None else slot.slot_crc)


def _crc_with_hole(section: Section) -> int:
    crc, left = crc32(section.data), section.hole
    while left:
        n_bytes = min(left, len(_PIECE))
        crc, left = crc32(_PIECE[:n_bytes], crc), left - n_bytes
    return crc


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def to_json(value: Any) -> str:
    """Write JSON without spaces; what is `Raw` as it is, and a dict of `Raw` keys too."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{to_json(key)}:{to_json(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(to_json, value)) + "]"
    return json.dumps(value)
