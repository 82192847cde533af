"""A search with the options of the search before it, in an index that has not changed: it is not planned again.

Planning, and checking options, take some ten times as long as a query in cells. Results are the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._core.threads import as_n_threads
from .cellsearch import CellSearch
from .results import SearchResult


class Repeated(NamedTuple):
    """The last search in cells.

    Attributes
    ----------
    version : tuple
        Objects that are replaced whenever the index changes.
    options : tuple
        Options of the search, of plain types.
    search : CellSearch
    dim : int
    """

    version: tuple[Any, ...]
    options: tuple[Any, ...]
    search: CellSearch
    dim: int

    @classmethod
    def of(cls, version: tuple[Any, ...], options: tuple[Any, ...], search: CellSearch, dim: int) -> Repeated | None:
        """Remember a search; None if its options are of types that must be checked each time."""
        return cls(version, options, search, dim) if all(type(o) in (int, str, type(None)) for o in options) else None

    def nearest(
        self, version: tuple[Any, ...], options: tuple[Any, ...], queries: Any, n_threads: int | None
    ) -> SearchResult | None:
        """Search again; None if the index or the options differ, or queries are not ready for the kernel."""
        if any(ours is not theirs for ours, theirs in zip(self.version, version, strict=True)):
            return None
        if self.options != options or any(type(a) is not type(b) for a, b in zip(self.options, options, strict=True)):
            return None
        if type(queries) is not np.ndarray or queries.dtype != np.float32 or not queries.flags.c_contiguous:
            return None
        if queries.ndim not in (1, 2) or queries.shape[-1] != self.dim or queries.size > _MOST_QUERIES * self.dim:
            return None
        threads = as_n_threads(n_threads)
        if queries.ndim == 2:
            return self.search.nearest_of(queries, threads)
        found = self.search.nearest_of(queries[np.newaxis], threads)
        return None if found is None else found.first()


# Larger batches are divided, for which the time of planning does not count.
_MOST_QUERIES = 512
