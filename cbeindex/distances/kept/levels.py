"""Kept vectors of 4 and 8 bits a dimension: their distances are estimates."""

from __future__ import annotations

import numpy as np

from ... import kernels
from ..._core.tuning import tuning
from ..._core.typing import Floats, Ids, Projections, Rows, Vectors
from ...data.sparserows import VectorRows
from ...errors import CorruptIndexFileError
from ..keptcodec import KeptCodec
from ..metrics import Metric, squares
from .base import Candidates, ExactNearest, KeptVectors


class LevelVectors(KeptVectors):
    """Rows of a column of kept vectors.

    Parameters
    ----------
    vectors : uint8 array of shape (n_rows, bytes of a row)
    ids : int64 array of shape (n_rows,)
    metric : Metric
    codec : KeptCodec
    """

    def __init__(self, vectors: np.ndarray, ids: Ids, metric: Metric, codec: KeptCodec) -> None:
        super().__init__(vectors, ids, metric, codec.rotation.dim)
        self._codec = codec
        self._arguments = vectors, codec.bits, codec.residuals.centres, codec.weights()

    def read(self, rows: Rows) -> Vectors:
        """Return the vectors that some rows stand for, under "cosine" of length 1."""
        return self._codec.vectors_of(self._vectors[rows])

    def points(self, rows: Rows) -> Projections:
        """Return projections, which are not turned back to vectors."""
        return self._codec.points_of(self._vectors[rows])

    def points_of(self, queries: VectorRows) -> Projections:
        """Return the projections of queries."""
        return self._codec.from_origin(self._prepared(queries)[0])

    def distances(self, rows: Rows, query: Vectors) -> Floats:
        """Return the estimated distances from `query` to some rows."""
        projections, shifts = self._prepared(query[np.newaxis])
        distances: Floats = np.empty(len(rows), dtype=np.float32)
        is_sound = kernels.kept.distances_to_kept(projections[0], shifts[0], *self._arguments, rows, distances)
        _require(is_sound)
        return distances

    def nearest(self, queries: VectorRows, candidates: Candidates, k: int) -> ExactNearest:
        """Find the `k` nearest candidates of each query by estimated distance."""
        if k > tuning().most_inserted_results:
            return super().nearest(queries, candidates, k)
        found = ExactNearest.empty(len(queries), k)
        is_sound = kernels.kept.nearest_kept(
            *self._prepared(queries), *self._arguments, self._ids, *candidates, *found
        )  # fmt: skip
        _require(is_sound)
        return found

    def nearest_of(self, query: Vectors, rows: Rows, lower: Floats, k: int) -> tuple[Floats, Ids, int]:
        """Find the `k` nearest of some rows, all of which are read."""
        distances, ids = self.distances(rows, query), self._ids[rows]
        best = np.lexsort((ids, distances))[:k]
        return distances[best], ids[best], len(rows)

    def _prepared(self, queries: VectorRows) -> tuple[Floats, Floats]:
        """Return the projections of queries, and what they add to their distances whatever the centre."""
        prepared = self._metric.prepare(queries, squares(queries))
        return self._codec.project_queries(prepared, 1), self._codec.residuals.query_shifts(prepared)


def _require(is_sound: bool) -> None:
    """Raise CorruptIndexFileError unless rows were sound: those of a mapped file are read here for the first time."""
    if not is_sound:
        raise CorruptIndexFileError("kept vectors must have finite numbers, and centres of the index")
