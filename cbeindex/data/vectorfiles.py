"""Vector files, opened as arrays that are read block by block."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .._core.tuning import tuning
from .arrowfiles import ARROW_SUFFIXES, ArrowVectors
from .npyfiles import HEAD_BYTES, checked_shape, map_npy
from .npzfiles import Archive
from .rowerror import RowError

# Vectors each preceded by their length as int32 (http://corpus-texmex.irisa.fr), little-endian on every machine.
_PREFIXED = {".fvecs": "<f4", ".ivecs": "<i4", ".bvecs": "|u1"}
# Vectors after a header of their number and length as uint32 (https://big-ann-benchmarks.com), little-endian too.
_HEADED = {".fbin": "<f4", ".ibin": "<i4", ".u8bin": "|u1", ".i8bin": "|i1"}

SUFFIXES = (".npy", ".npz", *_PREFIXED, *_HEADED, *ARROW_SUFFIXES)
"""Suffixes of the files that `open_vectors` reads."""


def open_vectors(path: str | os.PathLike[str], key: str | None = None) -> Any:
    """Open a vector file, in the format of its suffix, without reading all of it into memory.

    Formats are `.npy`, `.npz` (an archive of arrays, or one CSR, CSC or COO array of `scipy.sparse.save_npz`),
    `.fvecs`, `.ivecs`, `.bvecs`, `.fbin`, `.ibin`, `.u8bin` and `.i8bin`; with pyarrow also `.parquet`, and Arrow IPC
    files and streams: `.arrow`, `.feather` and `.ipc`.

    Sizes and structure are checked, values are not. (To check `.fvecs` and the like, opening reads the file once.)
    Dense arrays are memory-mapped: `rows[start:stop]` reads only these rows. Compressed and sparse arrays of an `.npz`
    file are read into memory. They may take up to half of the memory, and arrays of more than 256 MiB may not expand
    to more than 1,000 times their compressed size.

    Parameters
    ----------
    path : str or path-like
    key : str, optional
        The array of an `.npz` archive, or the column of a Parquet or Arrow file. Not needed if there is only one.

    Returns
    -------
    rows : array, scipy.sparse.csr_array or ArrowVectors of shape (n, dim)
        Real numbers in the dtype of the file, read-only. There is at least one row. A 1-D array is one row.

    Raises
    ------
    OSError
        The file is missing or cannot be read.
    ValueError
        The suffix is unknown, the file is malformed, or the archive has no array of that key.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/vectors.npy", np.ones((5000, 300), dtype=np.float16))
    ...     rows = open_vectors(f"{folder}/vectors.npy")
    ...     [rows[start : start + 2000].shape for start in range(0, rows.shape[0], 2000)]
    [(2000, 300), (2000, 300), (1000, 300)]
    """
    name = os.fspath(path)
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{name} must end in one of {', '.join(SUFFIXES)}, got {suffix!r}")
    if key is not None and suffix not in (".npz", *ARROW_SUFFIXES):
        raise ValueError(f"{name} holds one array, so key must be None, got {key!r}")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise ValueError(f"{name} must hold vectors, got an empty file")
        if suffix in ARROW_SUFFIXES:
            return ArrowVectors(name, key)
        if suffix == ".npy":
            return map_npy(file, file.read(HEAD_BYTES), 0, size, name)
        if suffix == ".npz":
            return Archive(file, size, name).open(key)
        if suffix in _PREFIXED:
            return _map_prefixed(file, size, np.dtype(_PREFIXED[suffix]), name)
        return _map_headed(file, size, np.dtype(_HEADED[suffix]), name)


def _map_prefixed(file: BinaryIO, size: int, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """Map vectors that are each preceded by their length, and check the lengths."""
    dim = int.from_bytes(file.read(4), "little", signed=True)
    record = 4 + dim * dtype.itemsize
    if size < 4 or dim < 1:
        raise ValueError(f"{name} must start with the length of a vector, got {dim} in a file of {size} bytes")
    if size % record:
        raise ValueError(f"{name} must be a multiple of {record} bytes for vectors of length {dim}, got {size}")
    n_rows = size // record
    step = max(1, tuning().length_check_bytes // record)
    for start in range(0, n_rows, step):
        # A new map for each block, so that the pages of earlier blocks do not count as memory in use.
        shape = min(step, n_rows - start), record
        block = np.memmap(file, np.uint8, "r", offset=start * record, shape=shape)
        lengths = np.ascontiguousarray(block[:, :4]).view("<i4")[:, 0]
        other = lengths != dim
        if other.any():
            row = int(other.argmax())
            raise RowError(name, f"must have vectors of length {dim}", start + row, f"has length {lengths[row]}")
    records = np.memmap(file, np.uint8, "r", shape=(n_rows, record))
    return records[:, 4:].view(dtype)


def _map_headed(file: BinaryIO, size: int, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """Map vectors after a header of their number and length."""
    if size < 8:
        raise ValueError(f"{name} must start with 8 bytes of header, got {size} bytes")
    n_rows, dim = struct.unpack("<II", file.read(8))
    checked_shape((n_rows, dim), name)
    n_bytes = 8 + n_rows * dim * dtype.itemsize
    if size != n_bytes:
        raise ValueError(f"{name} must have {n_bytes} bytes for {n_rows} vectors of length {dim}, got {size}")
    return np.memmap(file, dtype, "r", offset=8, shape=(n_rows, dim))
