"""What an index is built from: vector files, or a dataset of Ray. Both are read block by block."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from .._core.tuning import tuning
from ..data.inputs import Inputs
from ..data.rowerror import RowError
from .fitting import stacked


class Block(NamedTuple):
    """Some rows, and their ids if the source has ids.

    Attributes
    ----------
    rows : range
        Their numbers in the source.
    vectors : array or CSR array
    ids : array or list, or None
    """

    rows: range
    vectors: Any
    ids: Any


class Source(Protocol):
    """Vectors in blocks."""

    dim: int
    n_rows: int

    def sample(self, n_sample: int | None, seed: int) -> Any:
        """Return a random sample of the rows."""

    def blocks(self) -> Iterator[Block]:
        """Yield all rows in order."""

    def locating(self, rows: range) -> AbstractContextManager[None]:
        """Make errors about a row of a block say where the row came from."""


class FileSource:
    """Vector files of any format of the command line.

    Parameters
    ----------
    paths : sequence of str
    key : str, optional
        The array of `.npz` files.
    ids : array of shape (n,), or sequence of str, optional
        Ids of all rows of all files. By default their numbers.
    """

    def __init__(self, paths: Sequence[str], key: str | None = None, ids: Any = None) -> None:
        self._inputs, self._ids = Inputs(paths, key), ids
        self.dim, self.n_rows = self._inputs.dim, self._inputs.n_rows

    def sample(self, n_sample: int | None, seed: int) -> Any:
        """Return a random sample of the rows."""
        rows = self._inputs.sample_rows(n_sample, seed)
        with self._inputs.locating(rows):
            return self._inputs.take(rows)

    def blocks(self) -> Iterator[Block]:
        """Yield all rows in order."""
        for rows, vectors in self._inputs.blocks(64):
            ids = np.arange(rows.start, rows.stop) if self._ids is None else self._ids[rows.start : rows.stop]
            yield Block(rows, vectors, ids)

    def locating(self, rows: range) -> AbstractContextManager[None]:
        """Make errors about a row name the file, and the row in that file."""
        return self._inputs.locating(rows)


class DatasetSource:
    """A dataset of Ray: Parquet, numpy, or anything else that `ray.data` reads.

    Parameters
    ----------
    dataset : ray.data.Dataset
    column : str, optional
        The column of the vectors. By default the only one beside the ids.
    id_column : str, optional
        The column of the ids. By default ids are the numbers of the rows.
    """

    def __init__(self, dataset: Any, column: str | None = None, id_column: str | None = None) -> None:
        names = [name for name in dataset.columns() if name != id_column]
        if column is None and len(names) != 1:
            raise ValueError(f"column must be one of {names}, got None")
        self._dataset, self._column, self._id_column = dataset, column or names[0], id_column
        self.n_rows = dataset.count()
        if self.n_rows == 0:
            raise ValueError("the dataset must have rows, got 0")
        self.dim = int(self._vectors(dataset.take_batch(1, batch_format="numpy")).shape[1])

    def sample(self, n_sample: int | None, seed: int) -> Any:
        """Return a random sample of the rows, of about as many as wanted."""
        constants = tuning()
        if n_sample is None:
            n_affordable = constants.cli_sample_bytes // (4 * self.dim)
            n_sample = max(constants.cli_least_sample_rows, min(constants.cli_sample_rows, n_affordable))
        if n_sample >= self.n_rows:
            return stacked([block.vectors for block in self.blocks()])
        sampled = self._dataset.random_sample(n_sample / self.n_rows, seed=seed)
        parts = [self._vectors(batch) for batch in sampled.iter_batches(batch_format="numpy")]
        return stacked(parts)

    def blocks(self) -> Iterator[Block]:
        """Yield all rows in the order in which Ray delivers them."""
        start, step = 0, max(1, tuning().cli_block_bytes // (4 * self.dim))
        for batch in self._dataset.iter_batches(batch_size=step, batch_format="numpy"):
            vectors = self._vectors(batch)
            rows = range(start, start + len(vectors))
            ids = np.arange(rows.start, rows.stop) if self._id_column is None else batch[self._id_column]
            yield Block(rows, vectors, ids)
            start = rows.stop

    @contextmanager
    def locating(self, rows: range) -> Iterator[None]:
        """Make errors about a row name the dataset, and the number of the row in it."""
        try:
            yield
        except RowError as error:
            raise error.relocated("the dataset", rows[error.row]) from error

    def _vectors(self, batch: Any) -> Any:
        """Return the vectors of a batch; columns of lists come as an array of arrays."""
        values = batch[self._column]
        return np.stack(list(values)) if values.dtype == object else values


def source_of(source: Any, *, key: str | None, ids: Any, column: str | None, id_column: str | None) -> Source:
    """Return the source that a caller means: a path, several paths, or a dataset."""
    if hasattr(source, "iter_batches"):
        if key is not None or ids is not None:
            raise ValueError("key= and ids= belong to files; a dataset has column= and id_column=")
        return DatasetSource(source, column, id_column)
    if column is not None or id_column is not None:
        raise ValueError("column= and id_column= belong to a dataset; files have key= and ids=")
    paths = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    return FileSource([os.fspath(path) for path in paths], key, ids)
