"""What a search returns: the order of answers, and what stands where there are none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from .._core.checks import memory_bytes
from .._core.typing import Ids
from ..data.keys import NO_HAMMING_DISTANCE, NO_ID

# Of an id, a distance and its standard error.
_ANSWER_BYTES = 16


class _SearchResult(NamedTuple):
    distances: NDArray[Any]
    ids: Ids


class SearchResult(_SearchResult):
    """Nearest vectors, a row for each query: `distances, ids = index.search(...)`.

    Attributes
    ----------
    distances : array of shape (n_queries, k), or (k,) for a single query
        Ascending; where there are fewer than k answers, the largest int32 (Hamming) or infinity.
    ids : int64 array of the same shape
        Equal distances are in the order of ids; -1 where there is no answer.
    stats : dict
        What the search did: its mode, the rows it looked at, and what else the mode counts.
    errors : float32 array of the same shape, or None
        Standard errors of estimated distances, each by itself: the nearest of many are a little nearer than they are.
    """

    stats: Mapping[str, Any] = MappingProxyType({})
    errors: NDArray[np.float32] | None = None

    def __new__(
        cls,
        distances: NDArray[Any],
        ids: Ids,
        stats: Mapping[str, Any] | None = None,
        errors: NDArray[np.float32] | None = None,
    ) -> SearchResult:
        """Keep `stats` and `errors` beside the two fields."""
        result = super().__new__(cls, distances, ids)
        result.stats, result.errors = dict(stats or {}), errors
        return result

    @classmethod
    def joined(cls, parts: list[SearchResult]) -> SearchResult:
        """Put the answers of some queries after those of others; counts in `stats` add up."""
        if len(parts) == 1:
            return parts[0]
        stats: dict[str, Any] = {}
        for name, value in (item for part in parts for item in part.stats.items()):
            stats[name] = stats[name] + value if name in stats and name != "rows" and isinstance(value, int) else value
        errors = [part.errors for part in parts if part.errors is not None]
        return cls(
            np.concatenate([part.distances for part in parts]),
            np.concatenate([part.ids for part in parts]),
            stats,
            np.concatenate(errors) if errors else None,
        )

    def padded(self, k: int) -> SearchResult:
        """Return `k` answers of each query: behind those that there are, the marks of missing ones."""
        short = k - self.ids.shape[1]
        if short <= 0:
            return self
        missing = NO_HAMMING_DISTANCE if self.distances.dtype == np.int32 else np.inf
        errors = None if self.errors is None else _padded(self.errors, short, np.nan)
        return SearchResult(
            _padded(self.distances, short, missing), _padded(self.ids, short, NO_ID), self.stats, errors
        )

    def first(self) -> SearchResult:
        """Return the answers of the first query, without the first axis."""
        return SearchResult(self.distances[0], self.ids[0], self.stats, None if self.errors is None else self.errors[0])


class RangeResult(NamedTuple):
    """Vectors within a radius, all queries one after the other.

    Attributes
    ----------
    lims : int64 array of shape (n_queries + 1,)
        The answers of query i are at [lims[i], lims[i + 1]), ascending by (distance, id).
    distances : array of shape (lims[-1],)
    ids : int64 array of shape (lims[-1],)
    """

    lims: NDArray[np.int64]
    distances: NDArray[Any]
    ids: Ids

    @classmethod
    def joined(cls, parts: list[RangeResult]) -> RangeResult:
        """Put the answers of some queries after those of others."""
        counts = np.concatenate([np.diff(part.lims) for part in parts])
        return cls(
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            np.concatenate([part.distances for part in parts]),
            np.concatenate([part.ids for part in parts]),
        )


def nearest_of(
    distances: list[NDArray[Any]], ids: list[Ids], n_queries: int, k: int, missing: float
) -> tuple[NDArray[Any], Ids]:
    """Join answers of several parts to the `k` best of all, padded with `missing` where there are fewer.

    Each part is (n_queries, any), in order; the parts together are not.
    """
    dtype = np.int32 if isinstance(missing, int) else np.float32
    best, best_ids = np.empty((n_queries, 0), dtype=dtype), np.empty((n_queries, 0), dtype=np.int64)
    for more, more_ids in zip(distances, ids, strict=True):
        best, best_ids = _merged(best, best_ids, more, more_ids, k) if best.size else (more, more_ids)
    best, best_ids = best[:, :k], best_ids[:, :k]
    short = k - best.shape[1]
    if short > 0:
        best, best_ids = _padded(best, short, missing), _padded(best_ids, short, NO_ID)
    return best, best_ids


def check_room(n_queries: int, k: int) -> None:
    """Raise ValueError if there is no room for `k` answers to each query, in half of the memory."""
    most = memory_bytes() // (2 * _ANSWER_BYTES * max(1, n_queries))
    if k > most:
        raise ValueError(f"k must be at most {most} for {n_queries} queries, or results do not fit memory, got {k}")


def _padded(array: NDArray[Any], n: int, value: float) -> NDArray[Any]:
    """Put `n` columns of a value behind those of an array."""
    return np.pad(array, ((0, 0), (0, n)), constant_values=value)


def _merged(distances: NDArray[Any], ids: Ids, more: NDArray[Any], more_ids: Ids, k: int) -> tuple[NDArray[Any], Ids]:
    """Join answers of two parts to the `k` best."""
    shape = len(distances), min(k, distances.shape[1] + more.shape[1])
    merged, merged_ids = np.empty(shape, dtype=distances.dtype), np.empty(shape, dtype=np.int64)
    parts = (np.ascontiguousarray(part) for part in (distances, ids, more, more_ids))  # the kernel knows no other
    kernels.merging.merge(*parts, merged, merged_ids)
    return merged, merged_ids


def ranges_of(queries: list[NDArray[np.int64]], distances: list[NDArray[Any]], ids: list[Ids], n: int) -> RangeResult:
    """Lay out answers of several parts, flat arrays with the number of the query of each, by query."""
    query, distance, id_ = (np.concatenate(parts) for parts in (queries, distances, ids))
    order = np.lexsort((id_, distance, query))
    lims = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(query, minlength=n), out=lims[1:])
    return RangeResult(lims, distance[order], id_[order])
