"""What is stored of rows beside their codes: columns of fixed width, or sparse ones, behind the same few methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sparserows import SparseRows, VectorRows


@dataclass(frozen=True)
class Column:
    """The kind of a column.

    Attributes
    ----------
    dtype : numpy type of the values
    shape : tuple of int
        Shape of the entry of one row.
    is_sparse : bool
        Whether entries, vectors, are kept as `SparseRows`.
    """

    dtype: Any
    shape: tuple[int, ...] = ()
    is_sparse: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, as far as they are known before it comes."""
        return 0 if self.is_sparse else int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))

    def room(self, capacity: int) -> GrowingRows | GrowingSparseRows:
        """Make room for `capacity` rows."""
        if self.is_sparse:
            return GrowingSparseRows(capacity, self.dtype)
        return GrowingRows(np.empty((capacity, *self.shape), dtype=self.dtype))

    def of(self, vectors: VectorRows) -> Any:
        """Return vectors in the form of the column; the memory is not shared."""
        if isinstance(vectors, SparseRows):
            return (
                vectors.astype(self.dtype)
                if self.is_sparse
                else vectors.to_dense(*self.shape).astype(self.dtype, copy=False)
            )
        return SparseRows.from_dense(vectors, self.dtype) if self.is_sparse else np.array(vectors, dtype=self.dtype)

    def joined(self, parts: Sequence[Any]) -> Any:
        """Put the rows of several parts one after the other."""
        if self.is_sparse:
            return (
                SparseRows.joined(parts) if parts else SparseRows.from_dense(np.empty((0, 1), np.float32), self.dtype)
            )
        return np.concatenate(parts) if parts else np.empty((0, *self.shape), dtype=self.dtype)


@dataclass(frozen=True)
class GrowingRows:
    """Rows of fixed width with room for more behind them."""

    _values: NDArray[Any]

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Append rows behind the first `start`."""
        self._values[start : start + len(rows)] = rows

    def first(self, n_rows: int) -> NDArray[Any]:
        """View the first rows."""
        return self._values[:n_rows]


class GrowingSparseRows:
    """Sparse rows with room for more behind them."""

    def __init__(self, capacity: int, dtype: Any) -> None:
        self._offsets = np.zeros(capacity + 1, dtype=np.int64)
        self._entries = np.empty(16 * capacity, dtype=np.int32), np.empty(16 * capacity, dtype=dtype)

    def write(self, start: int, rows: SparseRows) -> None:
        """Append rows behind the first `start`."""
        begin = self._offsets[start]
        first, last = rows.offsets[0], rows.offsets[-1]
        end = begin + last - first
        indices, values = self._entries
        if end > len(indices):  # new arrays: views of the rows so far stay what they are
            room = max(end, 2 * len(indices))
            indices, values = self._entries = _enlarged(indices, begin, room), _enlarged(values, begin, room)
        indices[begin:end] = rows.indices[first:last]
        values[begin:end] = rows.values[first:last]
        self._offsets[start + 1 : start + 1 + len(rows)] = rows.offsets[1:] - first + begin

    def first(self, n_rows: int) -> SparseRows:
        """View the first rows."""
        n_used = self._offsets[n_rows]
        indices, values = self._entries
        return SparseRows(self._offsets[: n_rows + 1], indices[:n_used], values[:n_used])


def _enlarged(array: NDArray[Any], n_used: int, room: int) -> NDArray[Any]:
    larger = np.empty(room, dtype=array.dtype)
    larger[:n_used] = array[:n_used]
    return larger
