"""Kept vectors as sparse rows."""

from __future__ import annotations

import numpy as np

from ... import kernels
from ..._core.tuning import tuning
from ..._core.typing import Rows
from ...data.sparserows import SparseRows, VectorRows
from ...errors import CorruptIndexFileError
from .base import Candidates, ExactNearest, KeptVectors


class SparseVectors(KeptVectors):
    """SparseRows of float32 or float16 values."""

    def read(self, rows: Rows) -> SparseRows:
        """Return the vectors of some rows in float32."""
        read: SparseRows = self._vectors[rows]
        return read if read.values.dtype == np.float32 else read.astype(np.float32)

    def nearest(self, queries: VectorRows, candidates: Candidates, k: int) -> ExactNearest:
        """Find the `k` nearest candidates of each query."""
        if k > tuning().most_inserted_results:
            return super().nearest(queries, candidates, k)
        entries = queries if isinstance(queries, SparseRows) else SparseRows.from_dense(queries, np.float32)
        offsets, indices, values = self._vectors.entries
        stored = values.view(np.uint16) if values.dtype == np.float16 else values
        found = ExactNearest.empty(len(queries), k)
        if not kernels.exact.nearest_sparse(
            *entries.entries, self.dim, offsets, indices, stored, self._ids, *candidates, self._metric.number, *found
        ):
            # Entries of a mapped file are read, and so checked, here for the first time.
            raise CorruptIndexFileError("sparse vectors must lie within their entries")
        return found
