"""Arrays in `.npy` format: parsing their headers without trust, and mapping them."""

from __future__ import annotations

import errno
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

HEAD_BYTES = 2**14
"""Bytes read to parse a header: more than the longest header that numpy parses, 10,000 characters.

The length that a header claims is not trusted.
"""


class Layout(NamedTuple):
    """The layout of an array in a `.npy` file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    offset: int


def npy_layout(head: bytes, size: int, name: str) -> Layout:
    """Parse the header of a `.npy` file of `size` bytes; the array must have at most two axes and fill the file."""
    stream = io.BytesIO(head)
    with rewording_errors(f"{name} must be in the format of numpy.save"):
        version = npy.read_magic(stream)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"version {version}")
        # Version 3 differs from 2 in the encoding of field names only, and arrays with fields are refused below.
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        try:
            shape, fortran_order, dtype = read_header(stream)
        except MemoryError:  # raised by the parser for brackets that are nested too deep
            raise ValueError("nested too deep") from None
    if dtype.hasobject:
        raise ValueError(f"{name} must hold numbers, got pickled objects")
    if dtype.itemsize == 0:  # a file could claim any number of them
        raise ValueError(f"{name} must hold numbers, got values of 0 bytes")
    if len(shape) > 2:
        raise ValueError(f"{name} must have shape (n, dim) or (dim,), got {len(shape)} axes")
    if not all(0 <= length < 2**63 for length in shape):
        raise ValueError(f"{name} must have axes of 0 to 2**63 - 1, got others in its header")
    n_bytes = stream.tell() + math.prod(shape) * dtype.itemsize
    if size != n_bytes:
        raise ValueError(f"{name} must have {n_bytes} bytes for its header and shape {shape}, got {size}")
    return Layout(dtype, shape, "F" if fortran_order else "C", stream.tell())


def map_npy(file: BinaryIO, head: bytes, start: int, size: int, name: str) -> NDArray[Any]:
    """Map the array of a `.npy` file that occupies the bytes [start, start + size) of `file`."""
    layout = npy_layout(head, size, name)
    shape = as_rows(layout.shape, layout.dtype, name)
    return np.memmap(file, layout.dtype, "r", start + layout.offset, shape, layout.order)


def as_rows(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> tuple[int, int]:
    """Return the shape of an array of real numbers as (n, dim); a 1-D array is one row."""
    if dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold real numbers, got dtype {shortened(dtype)}")
    if len(shape) not in (1, 2):
        raise ValueError(f"{name} must have shape (n, dim) or (dim,), got {shape}")
    return checked_shape((1, *shape)[-2:], name)


def checked_shape(shape: tuple[int, ...], name: str) -> tuple[int, int]:
    """Return the shape (n, dim) if there is at least one vector, of a length that fits int32."""
    n_rows, dim = shape
    if n_rows < 1 or not 1 <= dim < 2**31:
        raise ValueError(f"{name} must hold 1 or more vectors of length 1 to 2**31 - 1, got shape {shape}")
    return n_rows, dim


@contextmanager
def rewording_errors(wanted: str) -> Iterator[None]:
    """Convert all errors that numpy, zipfile and scipy raise for damaged files to a ValueError of one line."""
    try:
        yield
    except Exception as error:
        # zipfile raises OSError with these numbers for bad offsets in an archive. Failing disks have other numbers.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        if isinstance(error, MemoryError):  # not caused by the file
            raise
        raise ValueError(f"{wanted}: {shortened(error) or type(error).__name__}") from error


def shortened(value: object) -> str:
    """Return the text of a value as a single line of bounded length: it may come from a damaged file."""
    line = " ".join(str(value).split())
    return line if len(line) <= 200 else f"{line[:197]}..."
