"""What a search returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._core.memory import memory_bytes
from .._core.typing import Ids, Mask, Rows
from .topk import TopK, pad_columns

# Bytes of a result: an id, a distance and its standard error.
_RESULT_BYTES = 16


Errors: TypeAlias = NDArray[np.float32] | Callable[[], NDArray[np.float32]] | None
"""Standard errors of estimated distances, or a function that computes them."""


Stats: TypeAlias = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""What a search did, or a function that says it."""


class _SearchResult(NamedTuple):
    distances: NDArray[Any]
    ids: NDArray[Any]


class SearchResult(_SearchResult):
    """The nearest vectors of each query: `distances, ids = index.search(...)`.

    Attributes
    ----------
    distances : array of shape (n_queries, k), or (k,) for a single query
        Ascending. A missing result has the largest int32 (Hamming distances) or infinity.
    ids : int64 array of the same shape, or of objects for strings
        Among equal distances integers are in ascending order, and strings in the order of insertion. A missing result
        has id -1, or None.
    stats : dict
        What the search did: its mode, the rows it scanned, and further counts of the mode.
    errors : float32 array of the same shape, or None
        Standard errors of estimated distances. They hold for each distance by itself: the smallest of many estimates
        tend to be too small. Where a search takes less time than its errors, they are computed when they are first
        read, and until then the result refers to the rows that were searched.
    """

    _stats: Stats = MappingProxyType({})
    _errors: Errors = None

    def __new__(
        cls,
        distances: NDArray[Any],
        ids: NDArray[Any],
        stats: Mapping[str, Any] | None = None,
        errors: Errors = None,
    ) -> SearchResult:
        """Store `stats` and `errors` beside the two fields."""
        return cls.of(distances, ids, dict(stats or {}), errors)

    @classmethod
    def of(
        cls,
        distances: NDArray[Any],
        ids: NDArray[Any],
        stats: Stats,
        errors: Errors = None,
    ) -> SearchResult:
        """Make a result that owns `stats`."""
        result = tuple.__new__(cls, (distances, ids))
        result._stats, result._errors = stats, errors
        return result

    @property
    def stats(self) -> Mapping[str, Any]:
        """What the search did."""
        stats = self._stats  # another thread may replace it
        if callable(stats):
            self._stats = stats = stats()
        return stats

    @stats.setter
    def stats(self, stats: Mapping[str, Any]) -> None:
        self._stats = stats

    @property
    def errors(self) -> NDArray[np.float32] | None:
        """Standard errors of estimated distances, None for other distances."""
        errors = self._errors  # another thread may replace them
        if callable(errors):
            self._errors = errors = errors()
        return errors

    def __reduce__(self) -> Any:
        """Compute the errors, and restore the attributes beside the fields."""
        return SearchResult, (self.distances, self.ids, dict(self.stats), self.errors)

    def _errors_as(self, change: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> Errors:
        """Return the errors in another shape, without computing them."""
        errors = self._errors
        if errors is None:
            return None
        return (lambda: change(errors())) if callable(errors) else change(errors)

    @classmethod
    def joined(cls, parts: list[SearchResult]) -> SearchResult:
        """Concatenate the results of batches of queries, and add up the counts in `stats`."""
        if len(parts) == 1:
            return parts[0]
        stats = _joined_stats([part.stats for part in parts])
        have_errors = all(part._errors is not None for part in parts)
        return cls(
            np.concatenate([part.distances for part in parts]),
            np.concatenate([part.ids for part in parts]),
            stats,
            (lambda: np.concatenate([part.errors for part in parts])) if have_errors else None,
        )

    def at(self, places: Rows) -> SearchResult:
        """Return the results of the queries at some places."""
        errors = self._errors_as(lambda values: values[places])
        return SearchResult(self.distances[places], self.ids[places], self.stats, errors)

    def padded(self, k: int) -> SearchResult:
        """Return `k` results for each query, adding missing results at the end."""
        n_more = k - self.ids.shape[1]
        if n_more <= 0:
            return self
        errors = self._errors_as(lambda values: pad_columns(values, n_more, np.nan))
        return SearchResult(*TopK(self.distances, self.ids).padded(k), self.stats, errors)

    def with_others(self, places: Mask, others: SearchResult, stats: Mapping[str, Any]) -> SearchResult:
        """Return the results with other ones for the queries at some places."""
        distances, ids = self.distances.copy(), self.ids.copy()
        distances[places], ids[places] = others

        def joined(errors: NDArray[np.float32]) -> NDArray[np.float32]:
            errors = errors.copy()
            errors[places] = others.errors
            return errors

        return SearchResult(distances, ids, stats, self._errors_as(joined))

    def with_ids(self, ids: NDArray[Any]) -> SearchResult:
        """Return the results with other ids."""
        return SearchResult.of(self.distances, ids, self._stats, self._errors)

    def without(self, ids: Ids) -> SearchResult:
        """Return the results of each query without one id, and without the last one where that is missing."""
        is_own, n_left = self.ids == ids[:, np.newaxis], self.ids.shape[1] - 1
        # A damaged file may give an id to several rows, and the results of a query must stay as many.
        places = np.where(is_own.any(axis=1), is_own.argmax(axis=1), n_left)
        is_other, shape = np.arange(n_left + 1) != places[:, np.newaxis], (len(ids), n_left)
        errors = None if self.errors is None else self.errors[is_other].reshape(shape)
        return SearchResult(
            self.distances[is_other].reshape(shape), self.ids[is_other].reshape(shape), self.stats, errors
        )

    def as_batch(self) -> SearchResult:
        """Return the results of a single query as those of a batch of one."""
        errors = self._errors_as(lambda values: values[np.newaxis])
        return SearchResult.of(self.distances[np.newaxis], self.ids[np.newaxis], self._stats, errors)

    def first(self) -> SearchResult:
        """Return the results of the first query, without the first axis."""
        errors = self._errors_as(lambda values: values[0])
        return SearchResult.of(self.distances[0], self.ids[0], self._stats, errors)


class _RangeResult(NamedTuple):
    lims: NDArray[np.int64]
    distances: NDArray[Any]
    ids: NDArray[Any]


class RangeResult(_RangeResult):
    """Vectors within a radius, the results of all queries one after the other: `lims, distances, ids`.

    Attributes
    ----------
    lims : int64 array of shape (n_queries + 1,)
        The results of query i are at [lims[i], lims[i + 1]), in ascending order of (distance, id).
    distances : array of shape (lims[-1],)
    ids : int64 array of shape (lims[-1],), or of objects for strings
    stats : dict
        What the search did: its mode, the rows it may find, and further counts of the mode.
    errors : float32 array of shape (lims[-1],), or None
        Standard errors of estimated distances. They are computed when they are first read, and until then the result
        refers to the rows that were searched.
    """

    stats: Mapping[str, Any] = MappingProxyType({})
    _errors: Errors = None

    def __new__(
        cls,
        lims: NDArray[np.int64],
        distances: NDArray[Any],
        ids: NDArray[Any],
        stats: Mapping[str, Any] | None = None,
        errors: Errors = None,
    ) -> RangeResult:
        """Store `stats` and `errors` beside the three fields."""
        result = tuple.__new__(cls, (lims, distances, ids))
        result.stats, result._errors = dict(stats or {}), errors
        return result

    @property
    def errors(self) -> NDArray[np.float32] | None:
        """Standard errors of estimated distances, None for other distances."""
        errors = self._errors  # another thread may replace them
        if callable(errors):
            self._errors = errors = errors()
        return errors

    def __reduce__(self) -> Any:
        """Compute the errors, and restore the attributes beside the fields."""
        return RangeResult, (*self, dict(self.stats), self.errors)

    def with_ids(self, ids: NDArray[Any]) -> RangeResult:
        """Return the results with other ids."""
        return RangeResult(self.lims, self.distances, ids, self.stats, self._errors)

    def with_errors(self, errors_of: Callable[[int, TopK], NDArray[np.float32]]) -> RangeResult:
        """Return the results with the errors that a function gives for the number of a query and its results."""
        lims, distances, ids = self

        def errors() -> NDArray[np.float32]:
            parts = [np.empty(0, dtype=np.float32)]
            for i in np.flatnonzero(np.diff(lims)).tolist():
                some = slice(lims[i], lims[i + 1])
                parts.append(errors_of(i, TopK(distances[np.newaxis, some], ids[np.newaxis, some]))[0])
            return np.concatenate(parts)

        return RangeResult(lims, distances, ids, self.stats, errors)

    @classmethod
    def joined(cls, parts: list[RangeResult]) -> RangeResult:
        """Concatenate the results of batches of queries, and add up the counts in `stats`."""
        if len(parts) == 1:
            return parts[0]
        counts = np.concatenate([np.diff(part.lims) for part in parts])
        have_errors = all(part._errors is not None for part in parts)
        return cls(
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            np.concatenate([part.distances for part in parts]),
            np.concatenate([part.ids for part in parts]),
            _joined_stats([part.stats for part in parts]),
            (lambda: np.concatenate([part.errors for part in parts])) if have_errors else None,
        )

    def at(self, places: Rows) -> RangeResult:
        """Return the results of the queries at some places."""
        counts = np.diff(self.lims)[places]
        lims = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        chosen = np.arange(lims[-1]) + np.repeat(self.lims[places] - lims[:-1], counts)
        errors = None if self._errors is None else lambda: np.asarray(self.errors)[chosen]
        return RangeResult(lims, self.distances[chosen], self.ids[chosen], self.stats, errors)

    @classmethod
    def of_matches(
        cls, parts: list[IdMatches], n_queries: int, dtype: Any, stats: Mapping[str, Any] | None = None
    ) -> RangeResult:
        """Sort the results of several segments, with distances of type `dtype`, by (query, distance, id)."""
        parts = [IdMatches(np.empty(0, np.int64), np.empty(0, dtype), np.empty(0, np.int64)), *parts]
        query, distance, id_ = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        order = np.lexsort((id_, distance, query))
        lims = np.zeros(n_queries + 1, dtype=np.int64)
        np.cumsum(np.bincount(query, minlength=n_queries), out=lims[1:])
        return cls(lims, distance[order], id_[order], stats)


class IdMatches(NamedTuple):
    """Results within a radius as flat arrays in any order: number of the query, distance and id."""

    queries: Rows
    distances: NDArray[Any]
    ids: Ids


def check_result_size(n_queries: int, k: int) -> None:
    """Raise ValueError if `k` results for each query would take more than half of the memory."""
    most = memory_bytes() // (2 * _RESULT_BYTES * max(1, n_queries))
    if k > most:
        raise ValueError(f"k must be at most {most} for {n_queries} queries, or results do not fit memory, got {k}")


def _joined_stats(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up the counts of batches of queries.

    Of other values that differ between batches, the smallest recall is kept, and of the rest those of most rows.
    """
    stats: dict[str, Any] = {}
    for name, value in (item for part in parts for item in part.items()):
        is_count = name != "rows" and isinstance(value, int)
        stats[name] = stats[name] + value if name in stats and is_count else value
    largest = max(parts, key=lambda part: part.get("rows", 0))
    stats |= {name: largest[name] for name in ("mode", "rerank", "rows") if name in largest}
    if "expected_recall" in stats:
        stats["expected_recall"] = min(part.get("expected_recall", 1.0) for part in parts)
    return stats
