"""Files of vectors, opened as arrays that are read block by block."""

from __future__ import annotations

import errno
import io
import math
import os
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from .._core.checks import memory_bytes
from .source import RowError

# Little-endian, whatever the machine. http://corpus-texmex.irisa.fr: the length, int32, before each vector.
_PREFIXED = {".fvecs": "<f4", ".ivecs": "<i4", ".bvecs": "|u1"}
# https://big-ann-benchmarks.com: number and length of the vectors, uint32 each, before all of them.
_HEADED = {".fbin": "<f4", ".ibin": "<i4", ".u8bin": "|u1", ".i8bin": "|i1"}

SUFFIXES = (".npy", ".npz", *_PREFIXED, *_HEADED)
"""Ends of the names of files that `open_vectors` reads."""

# More than the longest header that numpy parses, 10,000 characters; what a header claims of its length is not trusted.
_HEAD_BYTES = 2**14
# Bytes mapped at a time when the lengths before all vectors are compared.
_BLOCK_BYTES = 2**26
# Rows of a CSC or COO file may be empty, so their number is only claimed; more than these are not believed.
_ROWS_ANYWAY = 2**20
_ROWS_PER_ENTRY = 16
# Compressed arrays of more bytes than these must not expand by more than so many times: only zeros do.
_EXPANDED_ANYWAY = 2**28
_EXPANSION = 1000


def open_vectors(path: str | os.PathLike[str], key: str | None = None) -> Any:
    """Open a file of vectors, in the format that its suffix names, without reading it whole.

    Formats: `.npy`; `.npz`, an archive of arrays or one sparse array (CSR, CSC or COO) of `scipy.sparse.save_npz`;
    `.fvecs`, `.ivecs`, `.bvecs`; `.fbin`, `.ibin`, `.u8bin`, `.i8bin`.

    Sizes and structure are checked (for that, opening passes once through `.fvecs` and the like), values are not.
    Dense arrays are mapped, so that `rows[start:stop]` reads these rows and memory need not hold the others; compressed
    and sparse ones of an `.npz` file are read into memory, if they take up to half of it. More than 256 MiB must not
    come from a thousandth of that in the file.

    Parameters
    ----------
    path : str or path-like
    key : str, optional
        Which array of an `.npz` archive; not needed when it has only one.

    Returns
    -------
    rows : array or scipy.sparse.csr_array of shape (n, dim)
        Real numbers of the type in the file, not to be written to. At least one row; a 1-D array is one row.

    Raises
    ------
    OSError
        The file is missing or cannot be read.
    ValueError
        The suffix is unknown, the file is malformed, or there is no array of that key.

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
    if key is not None and suffix != ".npz":
        raise ValueError(f"{name} holds one array, so key must be None, got {key!r}")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise ValueError(f"{name} must hold vectors, got an empty file")
        if suffix == ".npy":
            return _map_npy(file, file.read(_HEAD_BYTES), 0, size, name)
        if suffix == ".npz":
            return _Archive(file, size, name).open(key)
        if suffix in _PREFIXED:
            return _map_prefixed(file, size, np.dtype(_PREFIXED[suffix]), name)
        return _map_headed(file, size, np.dtype(_HEADED[suffix]), name)


def _map_prefixed(file: BinaryIO, size: int, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """Map vectors that are each preceded by their length."""
    dim = int.from_bytes(file.read(4), "little", signed=True)
    record = 4 + dim * dtype.itemsize
    if size < 4 or dim < 1:
        raise ValueError(f"{name} must start with the length of a vector, got {dim} in a file of {size} bytes")
    if size % record:
        raise ValueError(f"{name} must be a multiple of {record} bytes for vectors of length {dim}, got {size}")
    n_rows = size // record
    step = max(1, _BLOCK_BYTES // record)
    for start in range(0, n_rows, step):
        # A map for each block, so that the pages of the others do not count as memory in use.
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
    """Map vectors behind a header of their number and length."""
    if size < 8:
        raise ValueError(f"{name} must start with 8 bytes of header, got {size} bytes")
    n_rows, dim = struct.unpack("<II", file.read(8))
    _checked_shape((n_rows, dim), name)
    n_bytes = 8 + n_rows * dim * dtype.itemsize
    if size != n_bytes:
        raise ValueError(f"{name} must have {n_bytes} bytes for {n_rows} vectors of length {dim}, got {size}")
    return np.memmap(file, dtype, "r", offset=8, shape=(n_rows, dim))


class _Layout(NamedTuple):
    """How an array lies in the bytes of a .npy file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    offset: int


def _npy_layout(head: bytes, size: int, name: str) -> _Layout:
    """Parse the first bytes of a .npy file of `size` bytes; the array has at most two axes and just fills it."""
    stream = io.BytesIO(head)
    with _reworded(f"{name} must be in the format of numpy.save"):
        version = npy.read_magic(stream)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"version {version}")
        # Version 3 differs from 2 in the names of fields only, and we take no arrays with fields.
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        try:
            shape, fortran_order, dtype = read_header(stream)
        except MemoryError:  # so the parser says that brackets are nested too deep for it
            raise ValueError("nested too deep") from None
    if dtype.hasobject:
        raise ValueError(f"{name} must hold numbers, got pickled objects")
    if dtype.itemsize == 0:  # any number of these would fit
        raise ValueError(f"{name} must hold numbers, got values of 0 bytes")
    if len(shape) > 2:
        raise ValueError(f"{name} must have shape (n, dim) or (dim,), got {len(shape)} axes")
    if not all(0 <= length < 2**63 for length in shape):
        raise ValueError(f"{name} must have axes of 0 to 2**63 - 1, got others in its header")
    n_bytes = stream.tell() + math.prod(shape) * dtype.itemsize
    if size != n_bytes:
        raise ValueError(f"{name} must have {n_bytes} bytes for its header and shape {shape}, got {size}")
    return _Layout(dtype, shape, "F" if fortran_order else "C", stream.tell())


def _map_npy(file: BinaryIO, head: bytes, start: int, size: int, name: str) -> NDArray[Any]:
    """Map the array of a .npy file, the bytes [start, start + size) of `file`."""
    layout = _npy_layout(head, size, name)
    shape = _as_rows(layout.shape, layout.dtype, name)
    return np.memmap(file, layout.dtype, "r", start + layout.offset, shape, layout.order)


class _Archive:
    """The arrays of an .npz file."""

    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self._file, self._size, self._name = file, size, name
        self._n_bytes = 0  # that were read into memory
        with _reworded(f"{name} must be an archive of numpy.savez or scipy.sparse.save_npz"):
            self._zip = zipfile.ZipFile(file)
        infos = [info for info in self._zip.infolist() if info.filename.endswith(".npy")]
        self._members = {info.filename.removesuffix(".npy"): info for info in infos}

    def open(self, key: str | None) -> Any:
        """Open the array of that key, or the sparse array that the archive is."""
        if self._members.keys() >= {"format", "shape", "data"}:
            if key is not None:
                raise ValueError(f"{self._name} holds one sparse array, so key must be None, got {key!r}")
            return self._read_sparse()
        if key is None and len(self._members) == 1:
            (key,) = self._members
        if key is None or key not in self._members:
            keys = _shortened(", ".join(map(repr, self._members))) or "none, as it holds no arrays"
            raise ValueError(f"{self._name} must be opened with a key out of {keys}, got {key!r}")
        info = self._members[key]
        if info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size:
            return self._map(info, self._label(key))
        rows = self._read(key)
        return rows.reshape(_as_rows(rows.shape, rows.dtype, self._label(key)))

    def _label(self, key: str) -> str:
        """Return what messages call an array."""
        return f"{self._name}[{_shortened(repr(key))}]"

    def _map(self, info: zipfile.ZipInfo, name: str) -> NDArray[Any]:
        """Map an array that is not compressed."""
        with _reworded(f"{name} must be readable"), self._zip.open(info) as member:
            head = member.read(_HEAD_BYTES)
        # Opening it has found a local header there: 30 bytes, the last four of them the lengths of what follows.
        self._file.seek(info.header_offset + 26)
        start = info.header_offset + 30 + sum(struct.unpack("<HH", self._file.read(4)))
        if start + info.file_size > self._size:
            raise ValueError(f"{name} must end within {self._size} bytes, got {info.file_size} bytes from {start} on")
        return _map_npy(self._file, head, start, info.file_size, name)

    def _read(self, key: str) -> NDArray[Any]:
        """Read an array; memory grows with what comes, not with what the archive says will come."""
        name, info = self._label(key), self._members[key]
        with _reworded(f"{name} must be readable"), self._zip.open(info) as member:
            content = bytearray(member.read(_HEAD_BYTES))
        _npy_layout(bytes(content), info.file_size, name)
        self._check_size(info, name)
        with _reworded(f"{name} must be readable"), self._zip.open(info) as member:
            content.clear()
            while chunk := member.read(2**20):
                content += chunk
        layout = _npy_layout(bytes(content[:_HEAD_BYTES]), len(content), name)
        return np.ndarray(layout.shape, layout.dtype, content, layout.offset, order=layout.order)

    def _check_size(self, info: zipfile.ZipInfo, name: str) -> None:
        """Raise ValueError if an array, beside those that were read before it, is too large for memory."""
        self._n_bytes += info.file_size
        advice = "save it without compression, by numpy.save or numpy.savez, to be mapped"
        if self._n_bytes > memory_bytes() // 2:
            raise ValueError(f"{name} must fit half of the memory, got {self._n_bytes} bytes; {advice}")
        if info.file_size > max(_EXPANDED_ANYWAY, _EXPANSION * info.compress_size):
            sizes = f"{info.file_size} bytes from {info.compress_size}"
            raise ValueError(f"{name} must not expand by more than {_EXPANSION} times, got {sizes}; {advice}")

    def _read_part(self, key: str, kinds: str) -> NDArray[Any]:
        """Read an array that a sparse one is made of, of a type out of `kinds`."""
        if key not in self._members:
            raise ValueError(f"{self._name} must have an array {key!r} for its sparse format, got none")
        array = self._read(key)
        if array.dtype.kind not in kinds:
            wanted = {"SU": "text", "iu": "integers"}.get(kinds, "real numbers")
            raise ValueError(f"{self._label(key)} must hold {wanted}, got dtype {_shortened(array.dtype)}")
        # Compiled code of scipy is not made for odd addresses and foreign byte orders, and scipy not for float16.
        dtype = np.float32 if array.dtype == np.float16 else array.dtype.newbyteorder("=")
        return np.require(array, dtype, "A")

    def _read_sparse(self) -> Any:
        """Read what scipy.sparse.save_npz wrote, as a CSR array with all entries in their place."""
        from scipy import sparse

        text = self._read_part("format", "SU")
        with _reworded(f"{self._name}['format'] must be ASCII"):
            form = text.astype(bytes).tobytes().decode("ascii")
        if form not in ("csr", "csc", "coo"):
            raise ValueError(f"{self._name} must be sparse in format csr, csc or coo, got {_shortened(form)!r}")
        lengths = self._read_part("shape", "iu")
        if lengths.shape not in ((1,), (2,)):
            raise ValueError(f"{self._name} must have shape (n, dim) or (dim,), got {lengths.size} axes")
        shape = _checked_shape((1, *lengths.tolist())[-2:], self._name)
        data = self._read_part("data", "fiub")
        if form != "csr" and shape[0] > _ROWS_ANYWAY + _ROWS_PER_ENTRY * data.size:
            raise ValueError(
                f"{self._name} must be in format csr to have {shape[0]} rows for {data.size} entries, got {form}"
            )
        if form == "coo":
            places = self._read_coords(len(lengths))
            with _reworded(f"{self._name} must be a sound coo array"):
                return sparse.coo_array((data, places), shape=shape).tocsr()
        indices, indptr = self._read_part("indices", "iu"), self._read_part("indptr", "iu")
        with _reworded(f"{self._name} must be a sound {form} array"):
            rows = getattr(sparse, f"{form}_array")((data, indices, indptr), shape=shape)
            rows.check_format(full_check=True)
            # scipy does not look at the offsets when the last one is 0, and the differences it looks at may overflow.
            if (rows.indptr[1:] < rows.indptr[:-1]).any():
                raise ValueError("indptr must be a non-decreasing sequence")
            return rows.tocsr()

    def _read_coords(self, n_axes: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Read the rows and columns of the entries of a COO array."""
        if "coords" not in self._members:
            return self._read_part("row", "iu"), self._read_part("col", "iu")
        coords = self._read_part("coords", "iu")
        if coords.ndim != 2 or len(coords) != n_axes:
            raise ValueError(f"{self._name}['coords'] must have shape ({n_axes}, n), got {coords.shape}")
        return coords[0] if n_axes == 2 else np.zeros_like(coords[0]), coords[-1]


def _as_rows(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> tuple[int, int]:
    """Return the shape of an array of real numbers, as rows."""
    if dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold real numbers, got dtype {_shortened(dtype)}")
    if len(shape) not in (1, 2):
        raise ValueError(f"{name} must have shape (n, dim) or (dim,), got {shape}")
    return _checked_shape((1, *shape)[-2:], name)


def _checked_shape(shape: tuple[int, ...], name: str) -> tuple[int, int]:
    """Return the shape of at least one vector, of a length that fits int32."""
    n_rows, dim = shape
    if n_rows < 1 or not 1 <= dim < 2**31:
        raise ValueError(f"{name} must hold 1 or more vectors of length 1 to 2**31 - 1, got shape {shape}")
    return n_rows, dim


@contextmanager
def _reworded(wanted: str) -> Iterator[None]:
    """Turn whatever numpy, zipfile and scipy raise about a damaged file into a ValueError of one line."""
    try:
        yield
    except Exception as error:
        # Places and streams in damaged archives are OSErrors too, of these numbers; failing disks have others.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        if isinstance(error, MemoryError):  # no fault of the file
            raise
        raise ValueError(f"{wanted}: {_shortened(error) or type(error).__name__}") from error


def _shortened(value: object) -> str:
    """Return a text from a file, or about one, as a single line of bounded length."""
    line = " ".join(str(value).split())
    return line if len(line) <= 200 else f"{line[:197]}..."
