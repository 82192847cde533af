"""Kept vectors in float32, as they came."""

from __future__ import annotations

from ... import kernels
from ..._core.tuning import tuning
from ...data.sparserows import VectorRows
from .base import Candidates, ExactNearest, KeptVectors


class Float32Vectors(KeptVectors):
    """A float32 array of shape (n_rows, dim)."""

    def nearest(self, queries: VectorRows, candidates: Candidates, k: int) -> ExactNearest:
        """Find the `k` nearest candidates of each query."""
        if k > tuning().most_inserted_results:
            return super().nearest(queries, candidates, k)
        found = ExactNearest.empty(len(queries), k)
        kernels.exact.nearest(
            self.dense(queries), self._vectors, self._ids, *candidates, self._metric.number, *found
        )  # fmt: skip
        return found
