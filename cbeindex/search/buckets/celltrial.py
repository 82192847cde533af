"""Searches of cells for sampled queries: what a number of probes finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ... import kernels
from ..._core.threads import n_cores
from ..._core.typing import Floats, Projections, Rows
from ...data.keys import EstimateKeys
from ...data.source import VectorSource
from ...store.segment import Segment
from .cellkernel import CellCall, CellCounts
from .residualcells import ResidualCells
from .trials import BucketTrial, Sample


class CellTrial(BucketTrial):
    """Searches of the cells of a segment."""

    def __init__(self, segment: Segment, sample: Sample) -> None:
        super().__init__(segment, sample)
        self._cells: ResidualCells = segment.buckets
        self._in_order = replace(segment, ranks=np.arange(segment.n_rows, dtype=np.int32))  # keys are those of rows
        self._projections, self._shifts = self._projected()
        self.most_effort = self._cells.n_cells

    def _projected(self) -> tuple[Projections, Floats]:
        """Return projections of the queries, and what they add to distances whatever the centre."""
        codec, vectors, rows = self._sample.codec, self._sample.vectors, self._sample.rows
        residuals = self._cells.codec
        if vectors is not None:
            source = VectorSource(vectors, codec.encoder.dim, "queries")
            prepared = codec.metric.prepare(vectors, codec.metric.check(source, 0, vectors))
            return codec.project_queries(source, 0, prepared, n_cores()), residuals.query_shifts(prepared)
        assert rows is not None
        projections = np.empty((len(rows), residuals.n_bits), dtype=np.float32)
        column = self._segment.columns["residuals"][rows]
        kernels.residuals.decode_rows(
            column, np.arange(len(rows)), residuals.n_bits, residuals.bits, residuals.centres, projections
        )
        return projections, np.zeros(len(rows), dtype=np.float32)

    def _find(self, effort: int, n: int, n_queries: int) -> Rows:
        n_probes = min(effort, self._cells.n_cells)
        # As searches do that read vectors.
        with_copies = "vectors" in self._segment.columns and n_probes < self._cells.n_cells
        counts = CellCounts(n_probes, min(n, self._segment.n_rows), 0, with_copies=with_copies)
        call = CellCall(self._in_order, self._hidden, counts)
        found = call.of_projections(self._projections[:n_queries], self._shifts[:n_queries], n_threads=n_cores())
        keys = EstimateKeys(found.keys)
        return np.where(keys.is_missing(), -1, keys.ranks())
