"""One query at a time, the commonest call of all: every microsecond beside the kernel counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._core.typing import Floats, Ids, Vectors
from .results import SearchResult
from .topk import TopK

_empty, _FLOAT32, _INT64 = np.empty, np.dtype(np.float32), np.dtype(np.int64)


def plain(queries: Vectors) -> Vectors:
    """Return queries in C order as kernels are compiled for them, aligned and writeable: as they are, or a copy."""
    return queries if queries.flags.carray else queries.copy()


def read_only(queries: Vectors) -> Vectors:
    """Return queries for kernels that are compiled for those that may not be written to."""
    view = queries.view()
    view.flags.writeable = False
    return view


def of_one(kernel: Callable[..., int]) -> Callable[..., Sequence[int]]:
    """Return what `SingleQuery` calls, of a kernel for batches that writes counts to an array behind its results."""

    def search_one(query: Vectors, *arguments: Any) -> Sequence[int]:
        batch, visits = query.reshape(1, -1), np.zeros(3, dtype=_INT64)
        batch.flags.writeable = False  # as `read_only` does
        *others, distances, ids = arguments
        n_searched = kernel(batch, *others, distances.reshape(1, -1), ids.reshape(1, -1), visits)
        return n_searched, *visits.tolist()

    return search_one


class SingleQuery:
    """A search of one segment by one call of a kernel, for any query.

    Parameters
    ----------
    kernel : callable
        Called with a query, (dim,), the arguments, and arrays for distances and ids, (k,). Returns 1 if all went well,
        and counts of what it has visited.
    arguments : tuple
    k : int
        Results.
    stats : dict
        Of a search that has visited nothing.
    count : callable
        Adds counts to `stats`.
    errors : callable, or None
        Returns the standard errors of results, from the results and the query, in a batch of one.
    keeps : object
        What the arguments refer to by address.
    """

    def __init__(
        self,
        kernel: Callable[..., Sequence[int]],
        arguments: tuple[Any, ...],
        k: int,
        stats: dict[str, Any],
        count: Callable[[dict[str, Any], Sequence[int]], None],
        errors: Callable[[TopK, Vectors], Floats] | None,
        keeps: Any = None,
    ) -> None:
        self._kernel, self._arguments, self._k = kernel, arguments, k
        self._stats, self._count, self._errors, self._keeps = stats, count, errors, keeps

    def nearest(self, query: Vectors, is_batch: bool) -> SearchResult | None:
        """Find the nearest rows of a query, float32 (dim,) as `plain` returns it; `is_batch`: as a batch of one.

        Returns None if something is wrong with the query or the segment, which another way finds out.
        """
        distances: Floats = _empty(self._k, _FLOAT32)
        ids: Ids = _empty(self._k, _INT64)
        n_searched, *visits = self._kernel(query, *self._arguments, distances, ids)
        if n_searched != 1:
            return None
        if is_batch:
            distances, ids = distances.reshape(1, -1), ids.reshape(1, -1)
        errors = None if self._errors is None else self._errors_later(query, is_batch, distances, ids)
        return SearchResult.of(distances, ids, self._stats_later(visits), errors)

    def _stats_later(self, visits: Sequence[int]) -> Callable[[], dict[str, Any]]:
        """Return a function that makes the stats of a search, and does not hold what has been searched."""
        first, count = self._stats, self._count

        def stats() -> dict[str, Any]:
            counted = first.copy()
            count(counted, visits)
            return counted

        return stats

    def _errors_later(self, query: Vectors, is_batch: bool, distances: Floats, ids: Ids) -> Callable[[], Floats]:
        """Return a function that computes the errors of results."""
        assert self._errors is not None
        errors_of, own = self._errors, query[np.newaxis].copy()  # the caller may change it before the errors are read
        if is_batch:
            return lambda: errors_of(TopK(distances, ids), own)
        return lambda: errors_of(TopK(distances[np.newaxis], ids[np.newaxis]), own)[0]
