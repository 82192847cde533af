"""The footer of a commit: JSON that holds the content and lists the sections.

A footer comes from an untrusted file, so its size, depth and numbers are bounded before and while it is parsed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np

from ..errors import CorruptIndexFileError
from .checksum import crc32
from .layout import ALIGNMENT, DTYPES, FOOTER_LIMIT, HEADER_BYTES, NDIM_LIMIT, Commit, Section

# Parsing a footer within these limits takes at most 80 MB and half a second. A segment takes at most 17 sections and
# 250 structural characters. Segments are merged until they have 2^21 rows or 2^29 bytes, so 2^19 characters suffice for
# 4 * 10^9 rows or 1 TB. Beyond that, compact() merges all segments.
_MARKS_LIMIT = 2**19
_MARKS = (b"[", b"{", b",", b":")
_DEPTH_LIMIT = 100
_DIGITS_LIMIT = 100
_SIZE_LIMIT = 2**63


def pack_footer(content: dict[str, Any], sections: Iterable[Section]) -> bytes:
    """Return the bytes of a footer. Raises ValueError if readers would refuse it."""
    rows = [section._asdict() for section in sections]
    footer = json.dumps({"content": content, "sections": rows}, allow_nan=False, separators=(",", ":")).encode()
    if len(footer) > FOOTER_LIMIT:
        raise ValueError(f"content and sections must take at most {FOOTER_LIMIT} bytes of JSON, got {len(footer)}")
    _check_marks(footer)
    return footer


def parse_footer(footer: bytes, commit: Commit) -> tuple[dict[str, Any], dict[str, Section]]:
    """Return the content and the sections of a footer, after checking both."""
    if len(footer) < commit.length:
        raise CorruptIndexFileError(f"truncated: expected a footer of {commit.length} bytes, found {len(footer)}")
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
    _check_disjoint(sections)
    return content, {section.name: section for section in sections}


def checked_content(content: dict[str, Any]) -> dict[str, Any]:
    """Return `content` as a reader of the file will see it. Raises an error if JSON cannot represent it."""
    if not isinstance(content, dict):
        raise TypeError(f"content must be a dict, got {type(content).__name__}")
    try:
        # The list adds one level of nesting, as the footer does.
        parsed: dict[str, Any] = parse_json(json.dumps([content], allow_nan=False))[0]
    except RecursionError:
        raise ValueError(f"content must be nested at most {_DEPTH_LIMIT} deep") from None
    except ValueError as error:
        raise ValueError(f"content must be valid JSON: {error}") from None
    return parsed


def parse_json(text: str) -> Any:
    """Parse JSON. Raises ValueError for repeated keys, numbers that are not finite, and values beyond the limits."""
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
    """Raise ValueError if a footer would expand to too many objects. Characters inside strings count too."""
    n_marks = sum(footer.count(mark) for mark in _MARKS)
    if n_marks > _MARKS_LIMIT:
        raise ValueError(
            f"content and sections must have at most {_MARKS_LIMIT} of the characters [ {{ , : in JSON, got {n_marks}"
        )


def _section(row: Any, limit: int) -> Section:
    """Return a checked section, which must end at or before offset `limit`."""
    if not isinstance(row, dict) or row.keys() != set(Section._fields):
        raise ValueError(f"a section must have {', '.join(Section._fields)}, got {_shown(row)}")
    name, dtype, shape, offset = row["name"], row["dtype"], row["shape"], row["offset"]
    if not isinstance(name, str):
        raise ValueError(f"the name of a section must be a string, got {_shown(name)}")
    about = f"section {_shown(name)}"
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{about} has the unknown dtype {_shown(dtype)}")
    if not isinstance(shape, list) or len(shape) > NDIM_LIMIT or not all(_is_size(n) for n in shape):
        raise ValueError(f"{about} has the impossible shape {_shown(shape)}")
    # numpy multiplies all sizes except zeros, and refuses a product that overflows even if the array is empty.
    if math.prod(n or 1 for n in shape) * np.dtype(dtype).itemsize >= _SIZE_LIMIT:
        raise ValueError(f"{about} has the impossible shape {_shown(shape)}")
    if not _is_size(row["crc32"]) or row["crc32"] >= 2**32:
        raise ValueError(f"{about} has the impossible checksum {_shown(row['crc32'])}")
    if not _is_size(offset) or offset % ALIGNMENT or offset < HEADER_BYTES:
        raise ValueError(f"{about} cannot start at {_shown(offset)}")
    section = Section(name, dtype, tuple(shape), offset, row["crc32"])
    if offset + section.padded_nbytes > limit:
        raise ValueError(f"{about} of {section.nbytes} bytes at {offset} reaches past the footer at {limit}")
    return section


def _check_disjoint(sections: list[Section]) -> None:
    """Raise CorruptIndexFileError if two sections share a name or a byte."""
    names = set()
    for section in sections:
        if section.name in names:
            raise CorruptIndexFileError(f"two sections have the name {_shown(section.name)}")
        names.add(section.name)
    ordered = sorted((s for s in sections if s.nbytes), key=lambda s: s.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.padded_nbytes > after.offset:
            raise CorruptIndexFileError(f"sections {_shown(before.name)} and {_shown(after.name)} overlap")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < _SIZE_LIMIT


def _shown(value: Any) -> str:
    """Return a short text for a message. A crafted value may be very long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {_shown(key)} is repeated")
        result[key] = value
    return result


def _int(text: str) -> int:
    if len(text) > _DIGITS_LIMIT:  # the time to parse digits grows with the square of their number
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    if len(text) > _DIGITS_LIMIT or not math.isfinite(float(text)):
        raise ValueError(f"{_shown(text)} is not a finite number")
    return float(text)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")
