"""Kept vectors as rows of an array, whatever the type of their values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import kernels
from ..._core.pages import is_beyond_memory, read_ahead
from ..._core.tuning import tuning
from ..._core.typing import Floats, Rows, Vectors
from ...data.sparserows import VectorRows
from .base import Candidates, ExactNearest, KeptVectors


class DenseVectors(KeptVectors):
    """An array of shape (n_rows, dim)."""

    def nearest(self, queries: VectorRows, candidates: Candidates, k: int) -> ExactNearest:
        """Find the `k` nearest candidates of each query."""
        if is_beyond_memory(self._vectors):
            is_candidate = np.arange(candidates.rows.shape[1]) < candidates.counts[:, np.newaxis]
            read_ahead(self._vectors, candidates.rows[is_candidate])
        if k > tuning().most_inserted_results:
            return super().nearest(queries, candidates, k)
        found = ExactNearest.empty(len(queries), k)
        kernels.exact.nearest(
            self.dense(queries), self.for_kernels(), self._ids, *candidates, self._metric.number, *found
        )  # fmt: skip
        return found

    def distances(self, rows: Rows, query: Vectors) -> Floats:
        """Return the exact distances from `query` to some rows."""
        if is_beyond_memory(self._vectors):
            read_ahead(self._vectors, rows)
        distances: Floats = np.empty(len(rows), dtype=np.float32)
        kernels.exact.distances(query, self.for_kernels(), rows, self._metric.number, distances)
        return distances

    def for_kernels(self) -> NDArray[Any]:
        """Return the array in a type that kernels know."""
        array: NDArray[Any] = self._vectors
        return array
