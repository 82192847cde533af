"""Sparse rows: the form of sparse vectors between the stages and in storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._core.tuning import tuning
from .._core.typing import Arrays, Rows, Vectors
from ..errors import CorruptIndexFileError


@dataclass(frozen=True)
class SparseRows:
    """Rows of a sparse matrix in CSR form.

    Attributes
    ----------
    offsets : int64 array of shape (n_rows + 1,)
        Row i has the entries [offsets[i], offsets[i + 1]).
    indices : int32 array
        Columns of the entries, ascending within a row.
    values : float32 or float16 array
    """

    offsets: Rows
    indices: NDArray[np.int32]
    values: NDArray[Any]

    @classmethod
    def from_dense(cls, rows: Vectors, dtype: Any) -> SparseRows:
        """Return the non-zero entries of dense rows."""
        number, column = np.nonzero(rows)
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(np.bincount(number, minlength=len(rows)), out=offsets[1:])
        return cls(offsets, column.astype(np.int32), rows[number, column].astype(dtype))

    def check(self, dim: int) -> None:
        """Raise CorruptIndexFileError if these are not valid rows of `dim` values."""
        inside = not self.indices.size or (self.indices.min() >= 0 and self.indices.max() < dim)
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.values) or not inside:
            raise CorruptIndexFileError("sparse rows must have offsets within their entries")
        if (self.offsets[1:] < self.offsets[:-1]).any():
            raise CorruptIndexFileError("sparse rows must have offsets that do not decrease")
        ascends = self.indices[1:] > self.indices[:-1]
        starts = self.offsets[(self.offsets > 0) & (self.offsets < len(self.indices))]
        ascends[starts - 1] = True
        if not ascends.all():
            raise CorruptIndexFileError("sparse rows must have ascending columns")

    @classmethod
    def joined(cls, parts: Sequence[SparseRows]) -> SparseRows:
        """Concatenate the rows of several parts."""
        counts = np.concatenate([part.counts() for part in parts])
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(
            offsets,
            np.concatenate([part.indices[part._span] for part in parts]),
            np.concatenate([part.values[part._span] for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def entries(self) -> tuple[Rows, NDArray[np.int32], NDArray[Any]]:
        """Offsets, indices and values."""
        return self.offsets, self.indices, self.values

    def to_arrays(self) -> Arrays:
        """Return the arrays that a file stores."""
        offsets = self.offsets - self.offsets[0]
        return {"offsets": offsets, "indices": self.indices[self._span], "values": self.values[self._span]}

    @property
    def _span(self) -> slice:
        """The range of the entries of these rows."""
        return slice(self.offsets[0], self.offsets[-1])

    def __getitem__(self, rows: slice | Rows) -> SparseRows:
        """Return some rows: a view for a slice, otherwise a copy."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            return SparseRows(self.offsets[start : stop + 1], self.indices, self.values)
        starts, stops = self.offsets[rows], self.offsets[rows + 1]
        counts = stops - starts
        if counts.size and ((stops < starts).any() or starts.min() < 0 or stops.max() > len(self.values)):
            raise CorruptIndexFileError(
                "sparse rows must have offsets within their entries"
            )  # offsets may come from a damaged file
        distinct = np.unique(rows)
        if (self.offsets[distinct[1:]] < self.offsets[distinct[:-1] + 1]).any():
            raise CorruptIndexFileError("sparse rows must have offsets that do not decrease")
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        entries = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
        return SparseRows(offsets, self.indices[entries], self.values[entries])

    @property
    def nbytes(self) -> int:
        """Memory of these rows in bytes."""
        n_entries = int(self.offsets[-1] - self.offsets[0])
        return self.offsets.nbytes + n_entries * (self.indices.itemsize + self.values.itemsize)

    def products(self, query: Vectors) -> NDArray[np.float64]:
        """Return the inner products with a dense vector."""
        values, columns = self._entries(query.size)
        return self._row_sums(values.astype(np.float64) * query[columns])

    def squared_distances(self, query: Vectors) -> NDArray[np.float64]:
        """Return the squared Euclidean distances to a dense vector, without cancellation of large numbers."""
        values, columns = self._entries(query.size)
        wide = query.astype(np.float64)
        at_entries = self._row_sums((values.astype(np.float64) - wide[columns]) ** 2)
        return at_entries + self._squares_elsewhere(wide)

    def _squares_elsewhere(self, query: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, for each row, the sum of the squares of a vector over the columns without an entry of the row."""
        places = np.flatnonzero(query)
        number = np.full(len(query), -1)
        number[places] = np.arange(len(places))
        sums = np.empty(len(self))
        step = max(1, tuning().sparse_flag_bytes // max(1, len(places)))  # one flag per row and place
        for start in range(0, len(self), step):
            offsets = self.offsets[start : start + step + 1]
            columns = number[self.indices[offsets[0] : offsets[-1]]]
            rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
            absent = np.ones((len(offsets) - 1, len(places)), dtype=np.bool_)
            absent[rows[columns >= 0], columns[columns >= 0]] = False
            sums[start : start + step] = absent @ query[places] ** 2
        return sums

    def squares(self) -> NDArray[np.float64]:
        """Return the squared norms."""
        return self._row_sums(self.values[self.offsets[0] : self.offsets[-1]].astype(np.float64) ** 2)

    def largest(self) -> NDArray[np.float32]:
        """Return the largest magnitude of each row, 0 for rows without entries."""
        largest = np.zeros(len(self), dtype=np.float32)
        with np.errstate(invalid="ignore"):  # the maximum of a row with NaN is NaN
            np.maximum.at(largest, np.repeat(np.arange(len(self)), self.counts()), np.abs(self.values[self._span]))
        return largest

    def counts(self) -> Rows:
        """Return the number of entries of each row."""
        counts: Rows = np.diff(self.offsets)
        return counts

    def astype(self, dtype: Any) -> SparseRows:
        """Copy the rows, with values of another type."""
        return self._with(self.values[self._span].astype(dtype))

    def without_zeros(self) -> SparseRows:
        """Return the rows without explicit zeros."""
        kept = self.values[self._span] != 0
        if kept.all():
            return self
        n_before = np.concatenate([[0], np.cumsum(kept)])
        offsets = n_before[self.offsets - self.offsets[0]]
        return SparseRows(offsets, self.indices[self._span][kept], self.values[self._span][kept])

    def to_dense(self, dim: int) -> Vectors:
        """Return the rows as a float32 array of shape (n, dim)."""
        values, columns = self._entries(dim)
        rows: Vectors = np.zeros((len(self), dim), dtype=np.float32)
        rows[np.repeat(np.arange(len(self)), self.counts()), columns] = values
        return rows

    def scaled(self, scales: NDArray[np.float64]) -> SparseRows:
        """Return the rows, each multiplied by a number."""
        factors = np.repeat(scales.astype(np.float32), self.counts())
        return self._with(self.values[self._span] * factors)

    def divided(self, norms: NDArray[np.float32]) -> SparseRows:
        """Return the rows, each divided by a number."""
        return self._with(self.values[self._span] / np.repeat(norms, self.counts()))

    def column_sums(self, dim: int) -> NDArray[np.float64]:
        """Return the sum of all rows: float64 (dim,)."""
        values, columns = self._entries(dim)
        return np.bincount(columns, weights=values, minlength=dim).astype(np.float64, copy=False)

    def to_csr(self, dim: int) -> Any:
        """Return the rows as a float32 scipy.sparse.csr_array."""
        from scipy import sparse

        own = self.astype(np.float32)
        data = own.values, own.indices, own.offsets
        csr = sparse.csr_array(data, shape=(len(self), dim))
        try:
            csr.check_format(full_check=True)
        except ValueError as error:
            raise CorruptIndexFileError(f"sparse rows must be valid rows of {dim} values: {error}") from error
        return csr

    def _with(self, values: NDArray[Any]) -> SparseRows:
        """Return a copy of the rows with other values at the same places."""
        return SparseRows(self.offsets - self.offsets[0], self.indices[self._span].copy(), values)

    def _entries(self, dim: int) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Return the values and columns of the entries; raise CorruptIndexFileError for columns beyond `dim`."""
        columns = self.indices[self._span]
        if columns.size and (columns.min() < 0 or columns.max() >= dim):
            raise CorruptIndexFileError(f"sparse rows must have columns below {dim}")
        return self.values[self._span], columns

    def _row_sums(self, terms: NDArray[np.float64]) -> NDArray[np.float64]:
        counts = self.counts()
        if counts.size and counts.min() < 0:
            raise CorruptIndexFileError("sparse rows must have offsets that do not decrease")
        numbers = np.repeat(np.arange(len(self)), counts)
        return np.bincount(numbers, weights=terms, minlength=len(self)).astype(np.float64, copy=False)


VectorRows: TypeAlias = Vectors | SparseRows
"""Dense or sparse vectors."""
