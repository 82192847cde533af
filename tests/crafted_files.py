"""Bytes of index files with correct checksums, built part by part so that tests can change any part."""

import json
import struct
import zlib


def with_crc(data):
    return data + struct.pack("<I", zlib.crc32(data))


def slot(sequence, offset, footer, length=None):
    """Return a commit slot with correct checksums."""
    return with_crc(
        struct.pack("<QQQI", sequence, offset, len(footer) if length is None else length, zlib.crc32(footer))
    )


def build(footer, *, body=bytes(64), version=2, slots=None):
    """Return a file with correct checksums: header, slots, `body`, `footer`."""
    first, second = slots or (slot(1, 192 + len(body), footer), b"")
    start = with_crc(b"\x89CBE\r\n\x1a\n" + struct.pack("<I", version))
    return start.ljust(64, b"\0") + first.ljust(64, b"\0") + second.ljust(64, b"\0") + body + footer


def section(**changes):
    """Return the footer entry of a section of 64 zeros, with `changes`; a value of None drops an entry."""
    row = {"name": "a", "dtype": "<u8", "shape": [8], "offset": 192, "crc32": zlib.crc32(bytes(64)), **changes}
    return {key: value for key, value in row.items() if value is not None}


def footer_of(*sections, **more):
    return json.dumps({"content": {}, "sections": sections, **more}).encode()


def content_of(text):
    """Return a footer whose content is `text`, valid JSON or not."""
    return b'{"content":' + text + b',"sections":[]}'
