"""Arrays in `.npz` archives, dense or sparse."""

from __future__ import annotations

import struct
import zipfile
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .._core.memory import memory_bytes
from .._core.tuning import tuning
from .npyfiles import HEAD_BYTES, as_rows, checked_shape, map_npy, npy_layout, rewording_errors, shortened


class Archive:
    """The arrays of an `.npz` file."""

    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self._file, self._size, self._name = file, size, name
        self._n_bytes = 0  # read into memory so far
        with rewording_errors(f"{name} must be an archive of numpy.savez or scipy.sparse.save_npz"):
            self._zip = zipfile.ZipFile(file)
        infos = [info for info in self._zip.infolist() if info.filename.endswith(".npy")]
        self._members = {info.filename.removesuffix(".npy"): info for info in infos}

    def open(self, key: str | None) -> Any:
        """Open the array of that key, or the sparse array that the archive holds."""
        if self._members.keys() >= {"format", "shape", "data"}:
            if key is not None:
                raise ValueError(f"{self._name} holds one sparse array, so key must be None, got {key!r}")
            return self._read_sparse()
        if key is None and len(self._members) == 1:
            (key,) = self._members
        if key is None or key not in self._members:
            keys = shortened(", ".join(map(repr, self._members))) or "none, as it holds no arrays"
            raise ValueError(f"{self._name} must be opened with a key out of {keys}, got {key!r}")
        info = self._members[key]
        if info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size:
            return self._map(info, self._label(key))
        rows = self._read(key)
        return rows.reshape(as_rows(rows.shape, rows.dtype, self._label(key)))

    def _label(self, key: str) -> str:
        """Return the name of an array in messages."""
        return f"{self._name}[{shortened(repr(key))}]"

    def _map(self, info: zipfile.ZipInfo, name: str) -> NDArray[Any]:
        """Map an array that is not compressed."""
        with rewording_errors(f"{name} must be readable"), self._zip.open(info) as member:
            head = member.read(HEAD_BYTES)
        # zipfile has checked the local header of 30 bytes, which ends with the lengths of two fields that follow.
        self._file.seek(info.header_offset + 26)
        start = info.header_offset + 30 + sum(struct.unpack("<HH", self._file.read(4)))
        if start + info.file_size > self._size:
            raise ValueError(f"{name} must end within {self._size} bytes, got {info.file_size} bytes from {start} on")
        return map_npy(self._file, head, start, info.file_size, name)

    def _read(self, key: str) -> NDArray[Any]:
        """Read an array into memory, which grows with the data, not with the size that the archive claims."""
        name, info = self._label(key), self._members[key]
        with rewording_errors(f"{name} must be readable"), self._zip.open(info) as member:
            content = bytearray(member.read(HEAD_BYTES))
        npy_layout(bytes(content), info.file_size, name)
        self._check_size(info, name)
        with rewording_errors(f"{name} must be readable"), self._zip.open(info) as member:
            content.clear()
            while chunk := member.read(2**20):
                content += chunk
        layout = npy_layout(bytes(content[:HEAD_BYTES]), len(content), name)
        return np.ndarray(layout.shape, layout.dtype, content, layout.offset, order=layout.order)

    def _check_size(self, info: zipfile.ZipInfo, name: str) -> None:
        """Raise ValueError if an array is too large for memory, together with the arrays read before."""
        self._n_bytes += info.file_size
        advice = "save it without compression, by numpy.save or numpy.savez, to be mapped"
        if self._n_bytes > memory_bytes() // 2:
            raise ValueError(f"{name} must fit half of the memory, got {self._n_bytes} bytes; {advice}")
        if info.file_size > max(tuning().free_expansion_bytes, tuning().max_expansion * info.compress_size):
            sizes = f"{info.file_size} bytes from {info.compress_size}"
            raise ValueError(
                f"{name} must not expand by more than {tuning().max_expansion} times, got {sizes}; {advice}"
            )

    def _read_part(self, key: str, kinds: str) -> NDArray[Any]:
        """Read an array of a sparse matrix, whose dtype must be one of `kinds`."""
        if key not in self._members:
            raise ValueError(f"{self._name} must have an array {key!r} for its sparse format, got none")
        array = self._read(key)
        if array.dtype.kind not in kinds:
            wanted = {"SU": "text", "iu": "integers"}.get(kinds, "real numbers")
            raise ValueError(f"{self._label(key)} must hold {wanted}, got dtype {shortened(array.dtype)}")
        # scipy supports neither unaligned data, nor foreign byte orders, nor float16.
        dtype = np.float32 if array.dtype == np.float16 else array.dtype.newbyteorder("=")
        return np.require(array, dtype, "A")

    def _read_sparse(self) -> Any:
        """Read an archive of scipy.sparse.save_npz as a valid CSR array."""
        from scipy import sparse

        text = self._read_part("format", "SU")
        with rewording_errors(f"{self._name}['format'] must be ASCII"):
            form = text.astype(bytes).tobytes().decode("ascii")
        if form not in ("csr", "csc", "coo"):
            raise ValueError(f"{self._name} must be sparse in format csr, csc or coo, got {shortened(form)!r}")
        lengths = self._read_part("shape", "iu")
        if lengths.shape not in ((1,), (2,)):
            raise ValueError(f"{self._name} must have shape (n, dim) or (dim,), got {lengths.size} axes")
        shape = checked_shape((1, *lengths.tolist())[-2:], self._name)
        data = self._read_part("data", "fiub")
        if form != "csr" and shape[0] > tuning().free_sparse_rows + tuning().sparse_rows_per_entry * data.size:
            raise ValueError(
                f"{self._name} must be in format csr to have {shape[0]} rows for {data.size} entries, got {form}"
            )
        if form == "coo":
            coords = self._read_coords(len(lengths))
            with rewording_errors(f"{self._name} must be a valid coo array"):
                return sparse.coo_array((data, coords), shape=shape).tocsr()
        indices, indptr = self._read_part("indices", "iu"), self._read_part("indptr", "iu")
        with rewording_errors(f"{self._name} must be a valid {form} array"):
            rows = getattr(sparse, f"{form}_array")((data, indices, indptr), shape=shape)
            rows.check_format(full_check=True)
            # scipy does not check the offsets if the last one is 0, and its differences may overflow.
            if (rows.indptr[1:] < rows.indptr[:-1]).any():
                raise ValueError("indptr must be a non-decreasing sequence")
            return rows.tocsr()

    def _read_coords(self, n_axes: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Read the row and column numbers of the entries of a COO array."""
        if "coords" not in self._members:
            return self._read_part("row", "iu"), self._read_part("col", "iu")
        coords = self._read_part("coords", "iu")
        if coords.ndim != 2 or len(coords) != n_axes:
            raise ValueError(f"{self._name}['coords'] must have shape ({n_axes}, n), got {coords.shape}")
        return coords[0] if n_axes == 2 else np.zeros_like(coords[0]), coords[-1]
