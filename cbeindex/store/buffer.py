"""Buffer: preallocated rows in the order in which they were added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._core.typing import Codes, Ids, Mask, Rows
from ..data.codes import CodeRows
from ..data.columns import Column
from ..data.ids import AnyIds
from ..data.names import NAMES, Names
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
        self._by_id, self._by_name = _LastRows(), _LastRows()

    def write(self, start: int, ids: Ids, words: Codes, columns: Mapping[str, Any]) -> None:
        """Write rows behind the first `start` rows, within the capacity."""
        self._ids[start : start + len(ids)] = ids
        self._codes.write(start, words)
        for name, values in columns.items():
            self._columns[name].write(start, values)

    def find(self, ids: Ids, n_rows: int) -> Rows:
        """Return the last of the first `n_rows` rows with each id, -1 if there is none."""
        return self._by_id.find(ids, self._ids[self._by_id.n_rows : n_rows])

    def find_names(self, names: Names, n_rows: int) -> Rows:
        """Return the last of the first `n_rows` rows with each name, -1 if there is none."""
        return self._by_name.find(names, self._columns[NAMES].first(n_rows)[self._by_name.n_rows :])

    def first(self, n_rows: int, removed: Mask) -> Segment:
        """View the first `n_rows` rows, in the order in which they were added."""
        columns = {name: values.first(n_rows) for name, values in self._columns.items()}
        return Segment(self._ids[:n_rows], self._codes.first(n_rows), columns, removed)


class _LastRows:
    """The last row that has each id or name, of the first `n_rows` rows."""

    def __init__(self) -> None:
        self.n_rows = 0
        self._rows: dict[int | str, int] = {}

    def find(self, wanted: AnyIds, new: AnyIds) -> Rows:
        """Take in the ids of the rows behind the first `n_rows`, and return the row of each wanted id, or -1."""
        n_rows = self.n_rows + len(new)
        self._rows.update(zip(new.tolist(), range(self.n_rows, n_rows), strict=True))
        self.n_rows = n_rows
        return np.fromiter((self._rows.get(id_, -1) for id_ in wanted.tolist()), dtype=np.int64, count=len(wanted))
