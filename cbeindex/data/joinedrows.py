"""Rows of several arrays, one behind the other, that are copied once: to the order in which somebody takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.typing import Rows
from .columns import Column, pieces


class JoinedRows:
    """Some rows of each of several arrays or record rows, as one column that is read when rows are taken.

    Parameters
    ----------
    column : Column
        Of fixed width.
    parts : sequence of arrays or RecordRows
    rows : sequence of int64 arrays
        The rows of each part, in order.
    """

    def __init__(self, column: Column, parts: Sequence[Any], rows: Sequence[Rows]) -> None:
        self._column, self._parts, self._rows = column, parts, rows
        self._starts = np.cumsum([0, *map(len, rows)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, rows: Rows) -> NDArray[Any]:
        """Copy some rows."""
        out = np.empty((len(rows), *self._column.shape), dtype=self._column.dtype)
        for piece in pieces(out):
            some, target = rows[piece], out[piece]
            part_of = np.searchsorted(self._starts, some, side="right") - 1
            for i, part in enumerate(self._parts):
                mine = np.flatnonzero(part_of == i)
                if len(mine):
                    target[mine] = part[self._rows[i][some[mine] - self._starts[i]]]
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Copy all rows."""
        return self[np.arange(len(self))]
