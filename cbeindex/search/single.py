"""One query at a time, the commonest call of all: every microsecond beside the kernel counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._core.typing import Floats, Rows, Vectors
from .results import SearchResult
from .topk import TopK


def read_only(queries: Vectors) -> Vectors:
    """Return queries as kernels are compiled for them: those of a caller may be read-only."""
    view = queries.view()
    view.flags.writeable = False
    return view


class SingleQuery:
    """A search of one segment by one call of a kernel, for any query.

    Parameters
    ----------
    kernel : callable
        Called with a query, the arguments, and arrays for distances, ids and visits; returns 1 if all went well.
    arguments : tuple
    k : int
        Results.
    stats : dict
        Of a search that has visited nothing.
    count : callable
        Adds visits to `stats`.
    errors : callable, or None
        Returns the standard errors of results, from the results and the query.
    """

    def __init__(
        self,
        kernel: Callable[..., int],
        arguments: tuple[Any, ...],
        k: int,
        stats: dict[str, Any],
        count: Callable[[dict[str, Any], Rows], None],
        errors: Callable[[TopK, Vectors], Floats] | None,
    ) -> None:
        self._kernel, self._arguments, self._shape = kernel, arguments, (1, k)
        self._stats, self._count, self._errors = stats, count, errors

    def nearest(self, query: Vectors) -> SearchResult | None:
        """Find the nearest rows of a batch of one query, float32 (1, dim) in C order: a view, which becomes read-only.

        Returns None if something is wrong with the query or the segment, which another way finds out.
        """
        query.flags.writeable = False  # as `read_only` does
        distances, ids = np.empty(self._shape, np.float32), np.empty(self._shape, np.int64)
        visits = np.zeros(3, np.int64)
        if self._kernel(query, *self._arguments, distances, ids, visits) != 1:
            return None
        stats = self._stats.copy()
        self._count(stats, visits)
        errors = None
        if self._errors is not None:
            errors_of, own = self._errors, query.copy()  # the caller may change it before the errors are read
            errors = lambda: errors_of(TopK(distances, ids), own)  # noqa: E731
        return SearchResult.of(distances, ids, stats, errors)
