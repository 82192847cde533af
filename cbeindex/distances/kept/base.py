"""Kept vectors: what every kind of storage offers, and how any of them is searched with numpy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..._core.typing import Floats, Ids, Mask, Rows, Vectors
from ...data.keys import NO_ID
from ...data.sparserows import SparseRows, VectorRows
from ..metrics import Metric


class Candidates(NamedTuple):
    """Rows whose exact distances may be computed.

    Attributes
    ----------
    rows : int64 array of shape (n_queries, any)
    counts : int64 array of shape (n_queries,)
        The candidates of query i are `rows[i, :counts[i]]`.
    lower : float32 array of the shape of `rows`
        Lower bounds on the distances of the candidates.
    """

    rows: Rows
    counts: Rows
    lower: Floats

    def some(self, queries: slice) -> Candidates:
        """Return the candidates of some queries."""
        return Candidates(self.rows[queries], self.counts[queries], self.lower[queries])


class ExactNearest(NamedTuple):
    """The nearest candidates of each query.

    Attributes
    ----------
    distances : float32 array of shape (n_queries, k)
        Ascending, infinity for a missing result.
    ids : int64 array of shape (n_queries, k)
        In ascending order among equal distances, `NO_ID` for a missing result.
    n_read : int64 array of shape (n_queries,)
        Number of vectors that were read.
    """

    distances: Floats
    ids: Ids
    n_read: Rows

    @classmethod
    def empty(cls, n_queries: int, k: int) -> ExactNearest:
        """Return missing results only."""
        return cls(
            np.full((n_queries, k), np.inf, dtype=np.float32),
            np.full((n_queries, k), NO_ID, dtype=np.int64),
            np.zeros(n_queries, dtype=np.int64),
        )


class KeptVectors:
    """The vectors of a segment.

    A kind of storage overrides `read`, and `nearest` if it has a kernel.

    Parameters
    ----------
    vectors : array or SparseRows with n_rows entries
    ids : int64 array of shape (n_rows,)
    metric : Metric
    dim : int
    """

    def __init__(self, vectors: Any, ids: Ids, metric: Metric, dim: int) -> None:
        self.dim = dim
        self._vectors, self._ids, self._metric = vectors, ids, metric

    def dense(self, queries: VectorRows) -> Vectors:
        """Return queries as an array of shape (n_queries, dim)."""
        return queries.to_dense(self.dim) if isinstance(queries, SparseRows) else queries

    def read(self, rows: Rows) -> VectorRows:
        """Return the vectors of some rows in float32."""
        read: VectorRows = self._vectors[rows]
        return read

    def points(self, rows: Rows) -> VectorRows:
        """Return points whose distances to those of queries, or products with them, are in the order of distances."""
        return self._metric.prepare(self.read(rows))

    def points_of(self, queries: VectorRows) -> VectorRows:
        """Return the points of queries."""
        return self._metric.prepare(queries)

    def distances(self, rows: Rows, query: Vectors) -> Floats:
        """Return the exact distances from `query` to some rows."""
        return self._metric.distances(self.read(rows), query)

    def nearest(self, queries: VectorRows, candidates: Candidates, k: int) -> ExactNearest:
        """Find the `k` nearest candidates of each query, without reading those whose lower bound rules them out."""
        found = ExactNearest.empty(len(queries), k)
        for i, query in enumerate(self.dense(queries)):
            n = candidates.counts[i]
            near, ids, found.n_read[i] = self.nearest_of(query, candidates.rows[i, :n], candidates.lower[i, :n], k)
            found.distances[i, : len(near)], found.ids[i, : len(near)] = near, ids
        return found

    def nearest_of(self, query: Vectors, rows: Rows, lower: Floats, k: int) -> tuple[Floats, Ids, int]:
        """Find the `k` nearest of some rows with lower bounds on their distances.

        Returns distances and ids in ascending order of (distance, id), and the number of vectors read.
        """
        order = np.argsort(lower, kind="stable")
        first, rest = order[: 4 * k], order[4 * k :]
        distances = self._metric.fast_distances(self.read(rows[first]), query)
        if len(rest):
            bound = np.partition(distances, k - 1)[k - 1]
            rest = rest[: np.searchsorted(lower[rest], bound, side="right")]
            distances = np.concatenate([distances, self._metric.fast_distances(self.read(rows[rest]), query)])
        taken = rows[np.concatenate([first, rest])]
        near, ids = self._decide(query, taken, distances, k)
        return near, ids, len(taken)

    def nearest_of_all(self, query: Vectors, hidden: Mask, k: int) -> tuple[Floats, Ids]:
        """Find the `k` nearest of all rows that are not hidden: distances and ids in order of (distance, id)."""
        distances = self._metric.fast_distances(self._vectors, query)
        if not hidden.size:
            return self._decide(query, np.arange(len(self._vectors)), distances, k)
        rows = np.flatnonzero(~hidden)
        return self._decide(query, rows, distances[rows], k)

    def _decide(self, query: Vectors, rows: Rows, distances: Floats, k: int) -> tuple[Floats, Ids]:
        """Choose the `k` nearest rows: float32 `distances` rule out most rows, float64 distances order the others."""
        if len(rows) > k:
            bound = np.partition(distances, k - 1)[k - 1]
            rows = rows[distances <= bound + self._metric.rounding(bound, self._vectors, rows, query)]
        exact, ids = self.distances(rows, query), self._ids[rows]
        best = np.lexsort((ids, exact))[:k]
        return exact[best], ids[best]
