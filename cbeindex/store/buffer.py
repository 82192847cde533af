"""Buffer: preallocated rows in the order in which they were added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._core.typing import Codes, Ids, Mask, Rows
from ..data.codes import CodeRows
from ..data.columns import Column
from .segment import Segment


class Buffer:
    """Capacity for rows.

    The caller keeps the number of rows in use. Rows written behind them do not count until the caller counts them, so
    a failed write leaves nothing to undo.
    """

    def __init__(self, n_bits: int, columns: Mapping[str, Column], capacity: int) -> None:
        self.capacity = capacity
        self._ids = np.empty(capacity, dtype=np.int64)
        self._codes = CodeRows.empty(capacity, n_bits)
        self._columns = {name: column.buffer(capacity) for name, column in columns.items()}
        self._last_rows: dict[int, int] = {}
        self._n_indexed = 0

    def write(self, start: int, ids: Ids, words: Codes, columns: Mapping[str, Any]) -> None:
        """Write rows behind the first `start` rows, within the capacity."""
        self._ids[start : start + len(ids)] = ids
        self._codes.write(start, words)
        for name, values in columns.items():
            self._columns[name].write(start, values)

    def find(self, ids: Ids, n_rows: int) -> Rows:
        """Return the last of the first `n_rows` rows with each id, -1 if there is none."""
        if self._n_indexed < n_rows:
            new = self._ids[self._n_indexed : n_rows].tolist()
            self._last_rows.update(zip(new, range(self._n_indexed, n_rows), strict=True))
            self._n_indexed = n_rows
        return np.fromiter((self._last_rows.get(id_, -1) for id_ in ids.tolist()), dtype=np.int64, count=len(ids))

    def first(self, n_rows: int, removed: Mask) -> Segment:
        """View the first `n_rows` rows, in the order in which they were added."""
        columns = {name: values.first(n_rows) for name, values in self._columns.items()}
        return Segment(self._ids[:n_rows], self._codes.first(n_rows), columns, removed)
