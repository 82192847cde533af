"""What is stored of rows beside their codes: columns of fixed width, or sparse ones, behind the same few methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._typing import Rows, Vectors
from ._validation import VectorSource
from .errors import CorruptIndexFileError


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

    def from_dense(self, rows: NDArray[Any]) -> Any:
        """Return dense entries in the form of the column; the memory is not shared."""
        return SparseRows.from_dense(rows, self.dtype) if self.is_sparse else np.array(rows, dtype=self.dtype)

    def read(self, source: VectorSource, rows: slice, block: Vectors) -> Any:
        """Return some rows of `source`, which are `block`, in the form of the column."""
        if self.is_sparse and source.is_sparse:
            csr = source.read_sparse(rows)
            return SparseRows(csr.indptr.astype(np.int64), csr.indices.astype(np.int32), csr.data.astype(self.dtype))
        return self.from_dense(block)

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


@dataclass(frozen=True)
class SparseRows:
    """Rows of a sparse matrix, compressed like CSR.

    Attributes
    ----------
    offsets : int64 array of shape (n_rows + 1,)
        Row i has the entries [offsets[i], offsets[i + 1]).
    indices : int32 array
        Columns of the entries.
    values : float32 or float16 array
    """

    offsets: Rows
    indices: NDArray[np.int32]
    values: NDArray[Any]

    @classmethod
    def from_dense(cls, rows: Vectors, dtype: Any) -> SparseRows:
        """Keep the entries of `rows` that are not 0."""
        number, column = np.nonzero(rows)
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(np.bincount(number, minlength=len(rows)), out=offsets[1:])
        return cls(offsets, column.astype(np.int32), rows[number, column].astype(dtype))

    def check(self, dim: int) -> None:
        """Raise CorruptIndexFileError if these cannot be rows of `dim` values."""
        inside = not self.indices.size or (self.indices.min() >= 0 and self.indices.max() < dim)
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.values) or not inside:
            raise CorruptIndexFileError("sparse vectors must lie within their entries")
        if (self.offsets[1:] < self.offsets[:-1]).any():
            raise CorruptIndexFileError("sparse vectors must follow each other")

    @classmethod
    def joined(cls, parts: Sequence[SparseRows]) -> SparseRows:
        """Put the rows of several parts one after the other."""
        counts = np.concatenate([np.diff(part.offsets) for part in parts])
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        spans = [slice(part.offsets[0], part.offsets[-1]) for part in parts]
        return cls(
            offsets,
            np.concatenate([part.indices[span] for part, span in zip(parts, spans, strict=True)]),
            np.concatenate([part.values[span] for part, span in zip(parts, spans, strict=True)]),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice | Rows) -> SparseRows:
        """Take some rows: those of a slice in place, others as a copy."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            return SparseRows(self.offsets[start : stop + 1], self.indices, self.values)
        starts, stops = self.offsets[rows], self.offsets[rows + 1]
        counts = stops - starts
        if counts.size and ((stops < starts).any() or starts.min() < 0 or stops.max() > len(self.values)):
            raise CorruptIndexFileError("sparse vectors must lie within their entries")  # a file may say anything
        apart = np.unique(rows)
        if (self.offsets[apart[1:]] < self.offsets[apart[:-1] + 1]).any():
            raise CorruptIndexFileError("sparse vectors must follow each other")
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        entries = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
        return SparseRows(offsets, self.indices[entries], self.values[entries])

    @property
    def nbytes(self) -> int:
        """Bytes of these rows."""
        n_entries = int(self.offsets[-1] - self.offsets[0])
        return self.offsets.nbytes + n_entries * (self.indices.itemsize + self.values.itemsize)

    def products(self, query: Vectors) -> NDArray[np.float64]:
        """Inner products with a dense vector."""
        values, columns = self._entries(query.size)
        return self._row_sums(values.astype(np.float64) * query[columns])

    def squared_distances(self, query: Vectors) -> NDArray[np.float64]:
        """Squared Euclidean distances to a dense vector, without subtracting large numbers from each other."""
        values, columns = self._entries(query.size)
        asked = query.astype(np.float64)
        apart = self._row_sums((values.astype(np.float64) - asked[columns]) ** 2)
        return apart + self._squares_elsewhere(asked)

    def _squares_elsewhere(self, asked: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums of the squares of a vector over the columns where a row has no entry."""
        places = np.flatnonzero(asked)
        number = np.full(len(asked), -1)
        number[places] = np.arange(len(places))
        sums = np.empty(len(self))
        step = max(1, 2**22 // max(1, len(places)))  # rows at a time: a table of flags for each
        for start in range(0, len(self), step):
            offsets = self.offsets[start : start + step + 1]
            columns = number[self.indices[offsets[0] : offsets[-1]]]
            rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
            absent = np.ones((len(offsets) - 1, len(places)), dtype=np.bool_)
            absent[rows[columns >= 0], columns[columns >= 0]] = False
            sums[start : start + step] = absent @ asked[places] ** 2
        return sums

    def squares(self) -> NDArray[np.float64]:
        """Squared norms."""
        return self._row_sums(self.values[self.offsets[0] : self.offsets[-1]].astype(np.float64) ** 2)

    def scaled(self, scales: NDArray[np.float64]) -> SparseRows:
        """Return the rows, each times a number."""
        span = slice(self.offsets[0], self.offsets[-1])
        factors = np.repeat(scales, np.diff(self.offsets)).astype(np.float32)
        return SparseRows(self.offsets - self.offsets[0], self.indices[span], self.values[span] * factors)

    def to_csr(self, dim: int) -> Any:
        """Return the rows as a float32 scipy.sparse.csr_array."""
        from scipy import sparse

        span = slice(self.offsets[0], self.offsets[-1])
        data = self.values[span].astype(np.float32), self.indices[span].copy(), self.offsets - self.offsets[0]
        csr = sparse.csr_array(data, shape=(len(self), dim))
        try:
            csr.check_format(full_check=True)
        except ValueError as error:
            raise CorruptIndexFileError(f"sparse vectors must be of {dim} values: {error}") from error
        return csr

    def _entries(self, dim: int) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Return the entries of these rows, values and columns, which must be below `dim`."""
        span = slice(self.offsets[0], self.offsets[-1])
        columns = self.indices[span]
        if columns.size and (columns.min() < 0 or columns.max() >= dim):
            raise CorruptIndexFileError(f"sparse vectors must have columns below {dim}")
        return self.values[span], columns

    def _row_sums(self, terms: NDArray[np.float64]) -> NDArray[np.float64]:
        counts = np.diff(self.offsets)
        if counts.size and counts.min() < 0:
            raise CorruptIndexFileError("sparse vectors must follow each other")
        numbers = np.repeat(np.arange(len(self)), counts)
        return np.bincount(numbers, weights=terms, minlength=len(self)).astype(np.float64, copy=False)


class GrowingSparseRows:
    """Sparse rows with room for more behind them."""

    def __init__(self, capacity: int, dtype: Any) -> None:
        self._offsets = np.zeros(capacity + 1, dtype=np.int64)
        self._indices = np.empty(16 * capacity, dtype=np.int32)
        self._values = np.empty(16 * capacity, dtype=dtype)

    def write(self, start: int, rows: SparseRows) -> None:
        """Append rows behind the first `start`."""
        begin = self._offsets[start]
        first, last = rows.offsets[0], rows.offsets[-1]
        end = begin + last - first
        if end > len(self._indices):  # new arrays: views of the rows so far stay what they are
            room = max(end, 2 * len(self._indices))
            self._indices, self._values = _enlarged(self._indices, begin, room), _enlarged(self._values, begin, room)
        self._indices[begin:end] = rows.indices[first:last]
        self._values[begin:end] = rows.values[first:last]
        self._offsets[start + 1 : start + 1 + len(rows)] = rows.offsets[1:] - first + begin

    def first(self, n_rows: int) -> SparseRows:
        """View the first rows."""
        n_used = self._offsets[n_rows]
        return SparseRows(self._offsets[: n_rows + 1], self._indices[:n_used], self._values[:n_used])


def _enlarged(array: NDArray[Any], n_used: int, room: int) -> NDArray[Any]:
    larger = np.empty(room, dtype=array.dtype)
    larger[:n_used] = array[:n_used]
    return larger
