"""Vector files as one sequence of rows, read in blocks."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from .._core.tuning import tuning
from .._core.typing import Rows
from .arrowfiles import read_id_column
from .ids import as_any_ids
from .rowerror import RowError
from .source import is_sparse
from .vectorfiles import open_vectors


class Inputs:
    """One or more vector files, whose rows are numbered consecutively.

    Parameters
    ----------
    paths : sequence of str
    key : str or None
        The array to use of .npz files, and the column of Parquet and Arrow files.

    Attributes
    ----------
    n_rows, dim : int
    row_bytes : float
        Mean bytes of a row in float32.
    """

    def __init__(self, paths: Sequence[str], key: str | None) -> None:
        self._paths, self._key = paths, key
        self._opened: dict[int, Any] = {}
        self._firsts = [0]
        n_bytes = 0
        for number, path in enumerate(paths):
            rows = self.open(number)
            n_rows, dim = rows.shape
            if number == 0:
                self.dim = int(dim)
                self._is_sparse = is_sparse(rows)
            if dim != self.dim:
                raise ValueError(f"{path} must have vectors of length {self.dim}, as {paths[0]} has, got {dim}")
            if is_sparse(rows) != self._is_sparse:
                form = "sparse" if self._is_sparse else "dense"
                raise ValueError(f"{path} must be {form}, as {paths[0]} is")
            self._firsts.append(self._firsts[-1] + int(n_rows))
            n_bytes += 8 * int(rows.nnz) if self._is_sparse else 4 * int(n_rows) * self.dim
        self.n_rows = self._firsts[-1]
        self.row_bytes = n_bytes / self.n_rows

    def ids(self, column: str) -> Any:
        """Read the ids of all rows from a column of the files."""
        if len(self._paths) == 1:
            return read_id_column(self._paths[0], column)
        parts = [read_id_column(path, column).tolist() for path in self._paths]
        return as_any_ids([id_ for part in parts for id_ in part], f"{column!r} of all files", n=self.n_rows)

    def open(self, number: int) -> Any:
        """Return the rows of a file. Mapped files stay open; at most one file that is held in memory does."""
        if number not in self._opened:
            path = self._paths[number]
            if len(self._opened) >= tuning().cli_open_files or path.lower().endswith(".npz"):
                self._opened.clear()
            self._opened[number] = open_vectors(path, self._key)
        return self._opened[number]

    def blocks(self, least_bytes: int) -> Iterator[tuple[range, Any]]:
        """Yield all rows in blocks: their numbers, and the rows as they are in the file.

        The size of a block follows from the bytes of its rows. Rows count as at least `least_bytes` each.
        """
        for number, first in enumerate(self._firsts[:-1]):
            rows = self.open(number)
            n_rows = rows.shape[0]
            row_bytes = 8 * rows.nnz / n_rows if self._is_sparse else rows.dtype.itemsize * self.dim
            step = max(1, int(tuning().cli_block_bytes / max(least_bytes, row_bytes)))
            for start in range(0, n_rows, step):
                block = rows[start : start + step]
                if not self._is_sparse and block.strides[0] < block.strides[1]:
                    block = np.ascontiguousarray(block)  # Fortran order: gathering rows one by one is slow
                yield range(first + start, first + start + block.shape[0]), block
                _release_pages(rows)

    def sample_rows(self, n_sample: int | None, seed: int) -> Rows:
        """Choose the rows that an encoder is fitted to, in ascending order; by default as many as are affordable."""
        if n_sample is None:
            constants = tuning()
            n_affordable = int(constants.cli_sample_bytes / max(1, self.row_bytes))
            n_sample = max(constants.cli_least_sample_rows, min(constants.cli_sample_rows, n_affordable))
        rng = np.random.default_rng(seed)
        return np.sort(rng.choice(self.n_rows, min(n_sample, self.n_rows), replace=False, shuffle=False))

    def take(self, rows: Rows) -> Any:
        """Read some rows, given by ascending numbers, as float32, or as a CSR array if the files are sparse."""
        parts = []
        # Every row touches pages of its own, so a few rows are read before the pages are released.
        step = tuning().cli_sample_step_rows
        for number, (first, stop) in enumerate(pairwise(self._firsts)):
            here = rows[np.searchsorted(rows, first) : np.searchsorted(rows, stop)] - first
            for start in range(0, len(here), step):
                source = self.open(number)
                part = source[here[start : start + step]]
                with np.errstate(over="ignore"):  # infinite values are refused later, with the number of the row
                    parts.append(part if self._is_sparse else part.astype(np.float32))
                _release_pages(source)
        if not self._is_sparse:
            return np.concatenate(parts)
        from scipy import sparse

        return sparse.vstack(parts, format="csr")

    @contextmanager
    def locating(self, rows: range | Rows) -> Iterator[None]:
        """Make errors about a row name the file, and the row in that file.

        `rows` has the numbers of the rows that the block passes on.
        """
        try:
            yield
        except RowError as error:
            row = int(rows[error.row])
            number = int(np.searchsorted(self._firsts, row, side="right")) - 1
            raise error.relocated(self._paths[number], row - self._firsts[number]) from error


def _release_pages(rows: Any) -> None:
    """Release the pages of a mapped file, which otherwise count as memory in use once they are read."""
    while isinstance(rows, np.ndarray):
        rows = rows.base
    if isinstance(rows, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        rows.madvise(mmap.MADV_DONTNEED)
