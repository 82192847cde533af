"""Rows that wait to be encoded: calls that add a few rows leave them here, and they are encoded many at a time.

A row is checked before it waits, so that its encoding does not fail for reasons of the row, and whoever looks at the
rows of a store encodes those that wait first. So nobody can tell that a row has waited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from .._core.typing import Codes, Ids, Vectors

Encode: TypeAlias = Callable[[Vectors], tuple[Codes, dict[str, Any]]]
"""Returns codes and columns of vectors."""


class Waiting(NamedTuple):
    """Rows behind those of a buffer, in the order in which they were added.

    Attributes
    ----------
    vectors : float32 array of shape (capacity, dim)
    ids : int64 array of shape (capacity,)
    n_rows : int
        Rows in use. Rows that are written behind them do not count until the caller counts them.
    next_id : int
        The smallest number above all ids that were ever in use.
    encode : callable
    """

    vectors: Vectors
    ids: Ids
    n_rows: int
    next_id: int
    encode: Encode

    @classmethod
    def empty(cls, capacity: int, dim: int, next_id: int, encode: Encode) -> Self:
        """Make room for rows."""
        ids = np.empty(capacity, dtype=np.int64)
        return cls(np.empty((capacity, dim), dtype=np.float32), ids, 0, next_id, encode)

    def has_room(self, n_rows: int) -> bool:
        """Return whether so many more rows may wait."""
        return self.n_rows + n_rows <= len(self.ids)

    def added(self, ids: Ids, vectors: Vectors) -> Waiting:
        """Return these rows and more of them, for which there is room."""
        stop = self.n_rows + len(ids)
        self.ids[self.n_rows : stop], self.vectors[self.n_rows : stop] = ids, vectors
        return Waiting(self.vectors, self.ids, stop, max(self.next_id, int(ids.max()) + 1), self.encode)

    def encoded(self) -> tuple[Ids, Codes, dict[str, Any]]:
        """Return ids, codes and columns."""
        return self.ids[: self.n_rows], *self.encode(self.vectors[: self.n_rows])
