"""Columns of a segment: values that are stored with each code, of fixed width or sparse, behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.tuning import tuning
from .._core.typing import Rows
from .sparserows import SparseRows, VectorRows


@dataclass(frozen=True)
class Column:
    """The type of a column.

    Attributes
    ----------
    dtype : dtype of the values
    shape : tuple of int
        Shape of the value of one row.
    is_sparse : bool
        Whether the values are vectors, stored as `SparseRows`.
    """

    dtype: Any
    shape: tuple[int, ...] = ()
    is_sparse: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, or 0 for sparse rows, whose size is not known in advance."""
        return 0 if self.is_sparse else int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))

    def buffer(self, capacity: int) -> GrowingRows | GrowingRaggedRows:
        """Allocate a buffer for `capacity` rows."""
        if self.is_sparse:
            return GrowingRaggedRows(SparseRows, capacity, (np.int32, self.dtype))
        return GrowingRows(np.empty((capacity, *self.shape), dtype=self.dtype))

    def of(self, vectors: VectorRows) -> Any:
        """Return a copy of vectors in the form of the column."""
        if isinstance(vectors, SparseRows):
            return (
                vectors.astype(self.dtype)
                if self.is_sparse
                else vectors.to_dense(*self.shape).astype(self.dtype, copy=False)
            )
        return SparseRows.from_dense(vectors, self.dtype) if self.is_sparse else np.array(vectors, dtype=self.dtype)

    def joined(self, parts: Sequence[Any]) -> Any:
        """Concatenate the rows of several parts."""
        if self.is_sparse:
            return (
                SparseRows.joined(parts) if parts else SparseRows.from_dense(np.empty((0, 1), np.float32), self.dtype)
            )
        out = np.empty((sum(map(len, parts)), *self.shape), dtype=self.dtype)
        start = 0
        for part in parts:
            _copy(np.asarray(part), slice(None), out[start : start + len(part)])
            start += len(part)
        return out


def pieces(values: NDArray[Any]) -> Iterator[slice]:
    """Divide the rows of a large array: Ctrl-C takes effect between two calls of numpy."""
    step = max(1, tuning().copy_bytes * len(values) // max(1, values.nbytes))
    return (slice(start, start + step) for start in range(0, len(values), step))


def take_rows(values: Any, rows: Rows) -> Any:
    """Copy some rows of a column."""
    if not isinstance(values, np.ndarray):
        return values[rows]
    out: NDArray[Any] = np.empty((len(rows), *values.shape[1:]), dtype=values.dtype)
    _copy(values, rows, out)
    return out


def _copy(values: NDArray[Any], rows: Rows | slice, out: NDArray[Any]) -> None:
    """Copy rows of an array piece by piece."""
    for piece in pieces(out):
        out[piece] = values[piece if isinstance(rows, slice) else rows[piece]]


@dataclass(frozen=True)
class GrowingRows:
    """A buffer of rows of fixed width."""

    _values: NDArray[Any]

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Write rows at position `start`, after the rows before it."""
        self._values[start : start + len(rows)] = rows

    def first(self, n_rows: int) -> NDArray[Any]:
        """Return a view of the first `n_rows` rows."""
        return self._values[:n_rows]


class GrowingRaggedRows:
    """A buffer of rows of different lengths: offsets, and arrays of the entries between them.

    Parameters
    ----------
    kind : class of the rows, made of offsets and arrays, which are its `entries`
    capacity : int
    dtypes : sequence of dtypes of the arrays
    """

    def __init__(self, kind: Callable[..., Any], capacity: int, dtypes: Sequence[Any]) -> None:
        self._kind = kind
        self._offsets = np.zeros(capacity + 1, dtype=np.int64)
        self._arrays = [np.empty(16 * capacity, dtype=dtype) for dtype in dtypes]

    def write(self, start: int, rows: Any) -> None:
        """Write rows at position `start`, after the rows before it."""
        begin = self._offsets[start]
        offsets, *parts = rows.entries
        first, last = offsets[0], offsets[-1]
        end = begin + last - first
        arrays = self._arrays
        if end > len(arrays[0]):  # allocate new arrays, because views of the old ones may be in use
            capacity = max(end, 2 * len(arrays[0]))
            arrays = self._arrays = [_enlarged(array, begin, capacity) for array in arrays]
        for array, part in zip(arrays, parts, strict=True):
            array[begin:end] = part[first:last]
        self._offsets[start + 1 : start + 1 + len(rows)] = offsets[1:] - first + begin

    def first(self, n_rows: int) -> Any:
        """Return a view of the first `n_rows` rows."""
        n_used = self._offsets[n_rows]
        return self._kind(self._offsets[: n_rows + 1], *(array[:n_used] for array in self._arrays))


def _enlarged(array: NDArray[Any], n_used: int, capacity: int) -> NDArray[Any]:
    """Return a longer copy of the first `n_used` entries of an array."""
    larger = np.empty(capacity, dtype=array.dtype)
    larger[:n_used] = array[:n_used]
    return larger
