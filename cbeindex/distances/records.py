"""Residual codes of the rows of cells, as the column that they were made from."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from .._core.typing import Rows
from .residuals import row_bytes

RECORD_ROWS = 32
"""Rows of a record. Kernels contain this number as a literal."""


def record_bytes(n_bytes: int) -> int:
    """Return the size of a record of codes of `n_bytes` bytes: codes, four float32 numbers and a row number a row."""
    return RECORD_ROWS * (row_bytes(n_bytes) + 2)


class RecordRows:
    """Rows that are stored in records, read like an array of shape (n_rows, bytes of a row).

    Parameters
    ----------
    records : uint8 array of shape (n_records, bytes of a record)
    offsets : int64 array of shape (n_cells + 1,)
        Cell c holds the rows [offsets[c], offsets[c + 1]).
    places : int64 array of shape (n_cells,)
        The place of the first of them: record * 32 + lane. The others follow it.
    centres : uint16 array of shape (n_cells,)
    n_bytes : int
        Bytes of a code.
    """

    nbytes = 0  # buckets count the records

    def __init__(
        self, records: NDArray[np.uint8], offsets: Rows, places: Rows, centres: NDArray[np.uint16], n_bytes: int
    ) -> None:
        self._records, self._offsets, self._centres = records, offsets, centres
        self._shifts = places - offsets[:-1]
        self._n_bytes = n_bytes

    def __len__(self) -> int:
        return int(self._offsets[-1])

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the array that the rows stand for."""
        return len(self), row_bytes(self._n_bytes)

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        numbers = np.arange(len(self))[rows]
        cell = np.searchsorted(self._offsets, numbers, side="right") - 1
        places = numbers + self._shifts[cell]
        column = np.empty((len(numbers), self.shape[1]), dtype=np.uint8)
        kernels.residuals.read_records(self._records, places, self._centres[cell], self._n_bytes, column)
        return column
