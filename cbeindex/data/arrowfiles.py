"""Parquet and Arrow IPC files: a column of vectors that is read block by block, and a column of ids."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.tuning import tuning
from .._core.typing import Rows
from .foreign import as_native
from .ids import AnyIds, as_any_ids
from .npyfiles import checked_shape, rewording_errors
from .rowerror import RowError

ARROW_SUFFIXES = (".parquet", ".arrow", ".feather", ".ipc")
"""Suffixes of Parquet files, and of Arrow IPC files and streams."""


class ArrowVectors:
    """The vectors in a column of a file, read in ascending order.

    Reading rows behind those of the last call continues there. Reading earlier rows begins anew, which costs the time
    to read the file up to them.

    Parameters
    ----------
    path : str or path-like
    column : str, optional
        The column of vectors. Not needed if only one column has lists or tensors.

    Attributes
    ----------
    shape : tuple of int
    dtype : dtype of the values
    """

    def __init__(self, path: str | os.PathLike[str], column: str | None = None) -> None:
        self._name = os.fspath(path)
        self._column = self._chosen(column)
        n_rows = _count_rows(self._name)
        self._restart()
        first = self._block if n_rows and self._advance() else np.empty((0, 0), dtype=np.float32)
        self.shape = checked_shape((n_rows, first.shape[1]), self._name)
        self.dtype = first.dtype

    def __getitem__(self, rows: slice | Rows) -> NDArray[Any]:
        """Read some rows: a slice, or ascending numbers."""
        numbers = np.arange(*rows.indices(self.shape[0])) if isinstance(rows, slice) else np.asarray(rows)
        if len(numbers) and numbers[0] < self._first:
            self._restart()
        parts, n_read = [], 0
        while n_read < len(numbers):
            end = self._first + len(self._block)
            n_here = int(np.searchsorted(numbers, end)) - n_read
            if n_here:
                parts.append(self._block[numbers[n_read : n_read + n_here] - self._first])
                n_read += n_here
            elif not self._advance():
                raise ValueError(f"{self._name} must have {self.shape[0]} rows as it had at first, got {end}")
        return np.concatenate(parts) if parts else np.empty((0, self.shape[1]), dtype=self.dtype)

    def _chosen(self, column: str | None) -> str:
        """Return the name of the column of vectors."""
        schema = _schema(self._name)
        if column is not None:
            _require_column(schema, column, self._name)
            return column
        candidates: list[str] = [field.name for field in schema if _is_vectors(field.type)]
        if len(candidates) != 1:
            found = ", ".join(f"{field.name} ({field.type})" for field in schema)
            raise ValueError(f"{self._name} must have one column of vectors, or key must name one, got {found}")
        return candidates[0]

    def _restart(self) -> None:
        self._batches = _batches(self._name, self._column)
        self._first, self._block = 0, np.empty((0, 0), dtype=np.float32)

    def _advance(self) -> bool:
        """Read the next rows of the file, and return whether there are any."""
        first = self._first + len(self._block)
        with _rewording(self._name):
            batch = next((batch for batch in self._batches if len(batch)), None)
        if batch is None:
            return False
        try:
            block = as_native(batch, self._name)
        except RowError as error:
            raise error.relocated(self._name, first + error.row) from None
        if not isinstance(block, np.ndarray) or block.ndim != 2:
            raise ValueError(f"{self._name} must hold vectors in the column {self._column!r}, got {batch.type}")
        if first and block.shape[1] != self.shape[1]:
            raise RowError(self._name, f"must be vectors of length {self.shape[1]}", first, f"has {block.shape[1]}")
        self._first, self._block = first, block
        return True


def read_id_column(path: str | os.PathLike[str], column: str) -> AnyIds:
    """Read unique ids, integers or strings, from a column of a file."""
    name = os.fspath(path)
    if Path(name).suffix.lower() not in ARROW_SUFFIXES:
        raise ValueError(f"{name} must be a Parquet or Arrow file to have a column of ids, got {Path(name).suffix!r}")
    schema = _schema(name)
    _require_column(schema, column, name)
    ids: list[Any] = []
    for batch in _batches(name, column):
        values = batch.dictionary_decode() if hasattr(batch, "dictionary_decode") else batch
        if values.null_count:
            row = len(ids) + int(values.is_null().to_numpy(zero_copy_only=False).argmax())
            raise RowError(name, f"must not have missing values in {column!r}", row, "has one")
        ids += values.to_pylist()
    return as_any_ids(ids, f"{column!r} of {name}", n=len(ids))


def _is_vectors(kind: Any) -> bool:
    """Return whether a type is one of lists, or of tensors of fixed shape."""
    kind = getattr(kind, "storage_type", kind)
    return hasattr(kind, "value_type") and hasattr(kind, "value_field")


def _require_column(schema: Any, column: str, name: str) -> None:
    if schema.names.count(column) != 1:
        raise ValueError(f"{name} must have one column {column!r}, got {', '.join(schema.names)}")


def _pyarrow(name: str) -> Any:
    """Import pyarrow, which only these files need."""
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f'{name} needs pyarrow to be read: pip install "cbeindex[arrow]" ({error})') from None
    return pyarrow


@contextmanager
def _rewording(name: str) -> Iterator[None]:
    with rewording_errors(f"{name} must be a valid file of its kind"):
        yield


def _is_parquet(name: str) -> bool:
    return name.lower().endswith(".parquet")


def _ipc_reader(pyarrow: Any, name: str) -> Any:
    """Open an Arrow IPC file or stream, mapped."""
    source = pyarrow.memory_map(name)
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    return pyarrow.ipc.open_file(source) if is_file else pyarrow.ipc.open_stream(source)


def _schema(name: str) -> Any:
    """Return the schema of a file."""
    pyarrow = _pyarrow(name)
    with open(name, "rb"), _rewording(name):  # a missing file is an OSError, whatever pyarrow makes of it
        return pyarrow.parquet.read_schema(name) if _is_parquet(name) else _ipc_reader(pyarrow, name).schema


def _count_rows(name: str) -> int:
    """Count the rows of a file; of an Arrow file, by looking at every batch."""
    pyarrow = _pyarrow(name)
    with _rewording(name):
        if _is_parquet(name):
            return int(pyarrow.parquet.read_metadata(name).num_rows)
        return sum(batch.num_rows for batch in _record_batches(_ipc_reader(pyarrow, name)))


def _record_batches(reader: Any) -> Iterator[Any]:
    if hasattr(reader, "num_record_batches"):
        return (reader.get_batch(i) for i in range(reader.num_record_batches))
    return iter(reader)


def _batches(name: str, column: str) -> Iterator[Any]:
    """Yield the arrays of a column, a few rows at a time."""
    pyarrow = _pyarrow(name)
    if not _is_parquet(name):
        for batch in _record_batches(_ipc_reader(pyarrow, name)):
            yield batch.column(batch.schema.get_field_index(column))
        return
    # Pages are read one after the other: a group of rows may be as large as the file.
    with pyarrow.parquet.ParquetFile(name, buffer_size=tuning().parquet_buffer_bytes) as file:
        for batch in file.iter_batches(tuning().parquet_batch_rows, columns=[column]):
            yield batch.column(0)
