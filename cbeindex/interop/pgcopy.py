"""Rows in the binary format of PostgreSQL's COPY, made and read by numpy.

A row of fixed size is a record: the number of fields, then the length and the bytes of each field, big-endian. The
stream begins with a signature, flags and the length of a header extension, and ends with -1 as a number of fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.typing import CodeBytes
from ..data.codes import n_bytes
from .codes import codes_from

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

_WIDE_ID = np.dtype(">i8")
# Bytes of rows that are read or written at a time.
_BLOCK_BYTES = 2**24


@dataclass(frozen=True)
class BitColumn:
    """Codes as `bit(n)`: the number of bits, then bytes whose first bit is the highest."""

    n_bits: int

    @property
    def sql_type(self) -> str:
        """Type of the column."""
        return f"bit({self.n_bits})"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Bytes of a field."""
        return np.dtype([("size", ">i4"), ("values", "u1", (n_bytes(self.n_bits),))])

    @property
    def size(self) -> int:
        """Number of bits."""
        return self.n_bits

    def to_values(self, codes: CodeBytes) -> CodeBytes:
        """Return codes as they are sent."""
        return codes_from(codes)  # reversing the bits of bytes is its own inverse

    def from_values(self, values: NDArray[Any]) -> CodeBytes:
        """Return codes from what was received."""
        return codes_from(values)


@dataclass(frozen=True)
class VectorColumn:
    """Vectors as `vector(n)` of float32 or `halfvec(n)` of float16: length and 0 as short numbers, then values."""

    dim: int
    kind: str

    @property
    def sql_type(self) -> str:
        """Type of the column."""
        return f"{self.kind}({self.dim})"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Bytes of a field. The length and the 0 after it are read as one number."""
        value = ">f4" if self.kind == "vector" else ">f2"
        return np.dtype([("size", ">i4"), ("values", value, (self.dim,))])

    @property
    def size(self) -> int:
        """Length of a vector, as the upper half of a number."""
        return self.dim << 16

    def to_values(self, vectors: NDArray[Any]) -> NDArray[Any]:
        """Return vectors as they are sent."""
        return vectors

    def from_values(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return vectors from what was received."""
        return values.astype(np.float32 if self.kind == "vector" else np.float16)


Column = BitColumn | VectorColumn


def row_dtype(columns: Sequence[Column]) -> np.dtype[Any]:
    """Return the record of a row: an id and the columns."""
    fields: list[Any] = [("n_fields", ">i2"), ("id_bytes", ">i4"), ("id", _WIDE_ID)]
    for number, column in enumerate(columns):
        fields += [(f"bytes{number}", ">i4"), (f"field{number}", column.dtype)]
    return np.dtype(fields)


def rows_per_block(columns: Sequence[Column]) -> int:
    """Return the number of rows to send at a time."""
    return max(1, _BLOCK_BYTES // row_dtype(columns).itemsize)


def pack(columns: Sequence[Column], ids: NDArray[np.int64], values: Sequence[NDArray[Any]]) -> bytes:
    """Return rows as bytes: `values` holds the codes or vectors of each column."""
    rows = np.zeros(len(ids), dtype=row_dtype(columns))
    rows["n_fields"], rows["id_bytes"], rows["id"] = 1 + len(columns), _WIDE_ID.itemsize, ids
    for number, (column, value) in enumerate(zip(columns, values, strict=True)):
        rows[f"bytes{number}"] = column.dtype.itemsize
        rows[f"field{number}"]["size"] = column.size
        rows[f"field{number}"]["values"] = column.to_values(value)
    return rows.tobytes()


def unpack(chunks: Iterable[Any], column: Column) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """Yield ids and values of the rows in a stream of one column, block by block.

    Raises ValueError for a row of another size: a value is missing, or has another length.
    """
    buffer, dtype, is_started = bytearray(), row_dtype([column]), False
    for chunk in chunks:
        buffer += chunk
        if not is_started and len(buffer) >= len(HEADER):
            if bytes(buffer[: len(HEADER)]) != HEADER:
                raise ValueError(f"the stream must begin with {HEADER!r}, got {bytes(buffer[: len(HEADER)])!r}")
            del buffer[: len(HEADER)]
            is_started = True
        if is_started and len(buffer) >= _BLOCK_BYTES:
            yield _take(buffer, dtype, column)
    if is_started:
        yield _take(buffer, dtype, column)
    if bytes(buffer) != TRAILER:
        _refuse_rest(buffer, column)


def _take(buffer: bytearray, dtype: np.dtype[Any], column: Column) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Take all complete rows out of a buffer."""
    n_rows = len(buffer) // dtype.itemsize
    rows = np.frombuffer(bytes(buffer[: n_rows * dtype.itemsize]), dtype=dtype)
    right = (rows["n_fields"] == 2) & (rows["id_bytes"] == 8) & (rows["bytes0"] == column.dtype.itemsize)
    right &= rows["field0"]["size"] == column.size
    if not right.all():
        _refuse_rest(buffer[int(right.argmin()) * dtype.itemsize :], column)
    del buffer[: n_rows * dtype.itemsize]
    return rows["id"].astype(np.int64), column.from_values(np.ascontiguousarray(rows["field0"]["values"]))


def _refuse_rest(buffer: bytearray, column: Column) -> None:
    """Raise the error about the row at the beginning of a buffer."""
    start = np.dtype([("n_fields", ">i2"), ("id_bytes", ">i4"), ("id", _WIDE_ID), ("bytes", ">i4")])
    if len(buffer) < start.itemsize:
        raise ValueError(f"the stream must end with {TRAILER!r}, got {bytes(buffer)!r}")
    row = np.frombuffer(bytes(buffer[: start.itemsize]), dtype=start)[0]
    if row["id_bytes"] != 8:
        raise ValueError("ids must not be NULL, and there is one that is")
    problem = "is NULL" if row["bytes"] < 0 else f"has {row['bytes']} bytes in place of {column.dtype.itemsize}"
    raise ValueError(f"every row must have a value of type {column.sql_type}, that of id {row['id']} {problem}")
