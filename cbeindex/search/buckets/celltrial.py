"""Searches of cells for sampled queries: what a number of probes finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ... import kernels
from ..._core.threads import n_cores
from ..._core.typing import Floats, Projections, Rows
from ...data.keys import EstimateKeys
from ...data.source import VectorSource
from ...distances.kept import KeptVectors
from ...store.segment import Segment
from .cellkernel import CellCall, CellCounts
from .residualcells import ResidualCells
from .trials import BucketTrial, Sample, kept_of


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
        codec, vectors, rows = self.sample.codec, self.sample.vectors, self.sample.rows
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

    # --- range search ---

    def kept(self) -> KeptVectors | None:
        """Return the kept vectors, whose rows are known by their places; None if there are none."""
        return kept_of(self.sample.codec, self._segment)

    @property
    def n_visible(self) -> int:
        """Number of rows that are not removed."""
        return self._segment.n_rows - self._segment.n_removed

    def visible_rows(self) -> Rows:
        """Return the rows that are not removed."""
        return np.flatnonzero(~self._hidden) if self._hidden.size else np.arange(self._segment.n_rows)

    def cells_of(self, rows: Rows) -> Rows:
        """Return the cells of some rows."""
        return self._cells.cells_of(rows)

    def gaps(self, n_queries: int) -> NDArray[np.float64]:
        """Return how much farther each cell is than the nearest one, for the first queries, (n_queries, n_cells)."""
        cells, directory = self._cells, self._cells.directory
        products = self._projections[:n_queries, : cells.centroids.shape[1]] @ cells.centroids.T
        distances = directory.bases.astype(np.float64) - directory.weight * products.astype(np.float64)
        gaps: NDArray[np.float64] = distances - distances.min(axis=1, keepdims=True)
        return gaps

    def share_of_rows(self, gaps: NDArray[np.float64], gap: float) -> float:
        """Return the share of the rows in the cells within a gap, on average over queries."""
        return float(((gaps <= gap) @ np.diff(self._cells.offsets)).mean() / max(1, self._segment.n_rows))
