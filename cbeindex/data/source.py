"""Validation and conversion of the arrays that callers pass: vectors, codes and pairs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._core.typing import CodeBytes, Mask, Vectors
from .codes import n_bytes
from .foreign import as_native
from .rowerror import RowError
from .sparserows import SparseRows, VectorRows

Block = TypeVar("Block", Vectors, SparseRows, VectorRows)


def is_sparse(array: Any) -> bool:
    """Return whether `array` is a scipy.sparse array or matrix, without importing scipy.sparse."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(array))


class VectorSource:
    """Vectors of a caller, read in blocks of float32 rows.

    A source holds a dense array or a CSR matrix of any numeric dtype without copying it, and converts blocks when they
    are read. Sparse vectors can be read as dense or as sparse blocks. `read` does not check values: NaN and infinity
    show in the results computed from a block, which costs nothing, and `refuse` then raises the error. The iterators
    over blocks check values by default.

    Parameters
    ----------
    array : array_like, sparse or SparseRows of shape (n, dim) or (dim,), or what `as_native` reads
    dim : int
    name : str
        Name of the argument in error messages.
    first : int
        Number of the first row in error messages.

    Attributes
    ----------
    dim, n_rows : int
    is_single : bool
        Whether a single vector was passed as a 1-D array. Results then have no first axis either.
    is_sparse : bool
    """

    def __init__(self, array: ArrayLike | SparseRows, dim: int, name: str = "X", first: int = 0) -> None:
        self.name, self.dim, self.first = name, dim, first
        self._rows: Any
        if isinstance(array, SparseRows):
            self._rows, self.n_rows, self.is_single, self.is_sparse = array, len(array), False, True
            return
        rows: Any = as_native(array, name)
        if is_sparse(rows) and rows.ndim == 1:
            rows = rows.toarray()
        self._rows = _as_csr(rows, name) if is_sparse(rows) else _as_dense(rows, dim, name)
        shape = self._rows.shape
        self.is_single = len(shape) == 1
        if self.is_single:
            self._rows = self._rows[np.newaxis]
        if self._rows.ndim != 2 or self._rows.shape[1] != dim:
            raise ValueError(f"{name} must have shape (n, {dim}) or ({dim},), got {shape}")
        self.n_rows = int(self._rows.shape[0])
        self.is_sparse = is_sparse(self._rows)

    def part(self, first: int, rows: VectorRows) -> VectorSource:
        """Return rows from row `first` of this source on, after preparation, as a source with the same row numbers."""
        return VectorSource(rows, self.dim, self.name, self.first + first)

    def read(self, rows: slice | NDArray[np.int64]) -> Vectors:
        """Return some rows as float32 of shape (n, dim), read-only: they may be a view of the caller's array."""
        taken = self._rows[rows]
        if isinstance(taken, SparseRows):
            return taken.to_dense(self.dim)
        if taken.dtype == np.float32 and not self.is_sparse and taken.flags.c_contiguous:
            return taken  # type: ignore[no-any-return]
        with np.errstate(over="ignore"):  # float64 values beyond float32 become infinite, and are refused as such
            if is_sparse(taken):
                taken = _summable(taken).toarray()
            block: Vectors = taken.astype(np.float32, order="C", copy=False)
        return block

    def read_sparse(self, rows: slice) -> SparseRows:
        """Return some rows of a sparse source: their non-zero entries in the order of columns."""
        if isinstance(self._rows, SparseRows):
            return self._rows[rows]
        taken = self._rows
        start, stop, _ = rows.indices(self.n_rows)
        if not taken.has_canonical_format:
            taken, start, stop = _summable(taken[rows]), 0, stop - start
            taken.sum_duplicates()
        offsets = taken.indptr[start : stop + 1].astype(np.int64)
        span = slice(offsets[0], offsets[-1])
        with np.errstate(over="ignore"):
            values = taken.data[span].astype(np.float32, copy=False)
        return SparseRows(
            offsets - offsets[0], taken.indices[span].astype(np.int32, copy=False), values
        ).without_zeros()

    def blocks(self, n_floats: int) -> Iterator[tuple[int, Vectors]]:
        """Yield all rows as dense blocks of about `n_floats` values: pairs of first row and finite rows."""
        return self._in_blocks(self.read, max(1, n_floats // self.dim))

    def entry_blocks(self, step: int) -> Iterator[tuple[int, SparseRows]]:
        """Yield all rows of a sparse source, `step` at a time: pairs of first row and finite rows."""
        return self._in_blocks(self.read_sparse, step)

    def own_blocks(
        self, step: int, start: int = 0, stop: int | None = None, *, check_finite: bool = True
    ) -> Iterator[tuple[int, VectorRows]]:
        """Yield rows [start, stop), `step` at a time, dense or sparse like the source: pairs of first row and rows.

        Rows that are not finite are refused, unless `check_finite` is False because the caller checks them.
        """
        read: Callable[[slice], VectorRows] = self.read_sparse if self.is_sparse else self.read
        return self._in_blocks(read, step, start, stop, check_finite)

    def _in_blocks(
        self,
        read: Callable[[slice], Block],
        step: int,
        start: int = 0,
        stop: int | None = None,
        check_finite: bool = True,
    ) -> Iterator[tuple[int, Block]]:
        stop = self.n_rows if stop is None else stop
        for first in range(start, stop, step):
            rows = read(slice(first, min(first + step, stop)))
            if check_finite and not (finite := _finite(rows)).all():
                self.refuse(first + int(finite.argmin()))
            yield first, rows

    def refuse(self, row: int) -> NoReturn:
        """Raise the RowError that says why no finite result can be computed from a row."""
        values = self.read(slice(row, row + 1))
        if np.isfinite(values).all():
            rule = f"must be small enough for sums of {values.size} values in float32"
            largest = np.abs(values).max()
            raise self.row_error(rule, row, f"has values up to {largest:.3g}; scale the vectors down")
        raise self.row_error("must be finite in float32", row, "is not")

    def row_error(self, rule: str, row: int, problem: str) -> RowError:
        """Return the error that row `row` of this source breaks `rule`."""
        return RowError(self.name, rule, self.first + row, problem)


def _finite(rows: VectorRows) -> Mask:
    """Return which rows are finite."""
    if isinstance(rows, SparseRows):
        return np.isfinite(rows.largest())
    return np.asarray(np.isfinite(rows).all(axis=1))


def _summable(csr: Any) -> Any:
    """Copy CSR rows to a dtype in which duplicate entries can be summed without overflow, unlike small integers."""
    return csr.astype(np.float64 if csr.dtype.kind in "iub" else csr.dtype, copy=True)


def _as_dense(array: ArrayLike, dim: int, name: str) -> NDArray[Any]:
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise TypeError(f"{name} must not have masked values; fill them first")
    try:
        dense = np.asarray(array)
    except ValueError as error:
        raise ValueError(f"{name} must have shape (n, {dim}): {error}") from None
    if dense.dtype.kind not in "fiub":
        first = f" that begins with {type(dense.flat[0]).__name__}" if dense.dtype == object and dense.size else ""
        hint = "; a model for embeddings makes vectors of texts" if dense.dtype.kind in "UT" else ""
        raise TypeError(f"{name} must hold real numbers, got an array of dtype {dense.dtype}{first}{hint}")
    return dense.reshape(0, dim) if dense.shape == (0,) else dense


def _as_csr(array: Any, name: str) -> Any:
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers, got a sparse array of dtype {array.dtype}")
    csr = array.tocsr()
    # The check may modify the matrix, so check a new object that shares the arrays. Without the check, scipy would
    # write out of bounds for an index beyond the row.
    csr = type(csr)((csr.data, csr.indices, csr.indptr), shape=csr.shape)
    csr.check_format(full_check=True)
    if (csr.indptr[1:] < csr.indptr[:-1]).any():  # scipy misses this if differences overflow or the last pointer is 0
        raise ValueError(f"{name} must have index pointers that do not decrease")
    return csr.astype(np.float32) if csr.dtype == np.float16 else csr


def as_pairs(pairs: ArrayLike | None, n_rows: int, name: str) -> NDArray[np.int64]:
    """Return `pairs` of row numbers as int64 of shape (n, 2), with no rows for None."""
    if pairs is None:
        return np.empty((0, 2), dtype=np.int64)
    array = np.asarray(pairs)
    if array.shape == (0,):
        return np.empty((0, 2), dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold integer row numbers, got dtype {array.dtype}")
    if array.ndim != 2 or array.shape[1] != 2:
        raise ValueError(f"{name} must have shape (n, 2), got {array.shape}")
    outside = (array < 0) | (array >= n_rows)
    if outside.any():
        worst = array[outside][0]
        raise ValueError(f"{name} must hold row numbers from 0 to {n_rows - 1}, got {worst}")
    return array.astype(np.int64)


def as_codes(codes: ArrayLike, n_bits: int, name: str) -> tuple[CodeBytes, bool]:
    """Return packed codes as uint8 of shape (n, n_bytes), and whether a single code was passed as a 1-D array."""
    array, width = np.asarray(as_native(codes, name)), n_bytes(n_bits)
    columns = "cbeindex.interop.codes_from(bits, packed=False) packs 0s and 1s, one per column"
    if array.dtype == np.int8 and array.shape[-1:] == (width,):
        hint = "cbeindex.interop.codes_from(codes, signed=True) reads codes of signed bytes"
        raise TypeError(f"{name} must be packed bits of dtype uint8, got int8; {hint}")
    if array.dtype != np.uint8:
        hint = f"{columns}, and words.view(np.uint8) converts words"
        raise TypeError(f"{name} must be packed bits of dtype uint8, got {array.dtype}; {hint}")
    is_single = array.ndim == 1
    if array.ndim not in (1, 2) or array.shape[-1] != width:
        hint = f"; {columns}" if array.shape[-1:] == (n_bits,) else ""
        raise ValueError(f"{name} must have shape (n, {width}) or ({width},), got {array.shape}{hint}")
    return array[np.newaxis] if is_single else array, is_single
