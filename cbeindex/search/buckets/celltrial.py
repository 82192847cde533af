"""Searches of cells for sampled queries: what a number of probes finds."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ... import kernels
from ..._core.threads import n_cores
from ..._core.tuning import tuning
from ..._core.typing import Floats, Projections, Rows
from ...data.keys import EstimateKeys
from ...data.source import VectorSource
from ...distances.kept import KeptVectors
from ...store.segment import Segment
from ..measuring import Found
from .cellkernel import CellCall, CellCounts, probes_in_reach
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

    def _find(self, effort: int, n: int, n_queries: int) -> Found:
        n_probes = min(effort, self._cells.n_cells)
        # As searches do that read vectors.
        with_copies = "vectors" in self._segment.columns and n_probes < self._cells.n_cells
        n_found = min(n, self._segment.n_rows)
        counts = CellCounts(n_probes, n_found, 0, with_copies=with_copies, reach=self.reach(effort), n_own=self._n_own)
        keys = self._keys(counts, n_queries)
        rows = np.where(keys.is_missing(), -1, keys.ranks())
        return Found(rows, keys.distances() if self.is_graded else None)

    def _keys(self, counts: CellCounts, n_queries: int) -> EstimateKeys:
        """Return the keys of the nearest rows by estimate that the first queries find."""
        call = CellCall(self._in_order, self._hidden, counts)
        found = call.of_projections(self._projections[:n_queries], self._shifts[:n_queries], n_threads=n_cores())
        return EstimateKeys(found.keys)

    def truth(self, k: int, n_queries: int) -> Rows:
        """Return the true `k` nearest rows of the first queries, -1 for those that are not in the segment.

        Without vectors nobody knows them. Then they are drawn: estimates err about the truth as the truth does about
        estimates, so what estimates find of the nearest rows by estimates with errors is about what they find of the
        true ones.
        """
        if self.sample.truth is not None or self.kept() is not None:
            return super().truth(k, n_queries)
        limits, n_rows = tuning(), self._segment.n_rows
        n = min(n_rows, max(limits.true_rows_of_k * k, limits.least_true_rows) + self._n_own)
        n_taken = max(min(n_queries, limits.pilot_queries), min(n_queries, limits.calibration_reads // n))
        keys = self._keys(CellCounts(self._cells.n_cells, n, 0), n_taken)
        rows, estimates = np.where(keys.is_missing(), -1, keys.ranks()), keys.distances()
        if self.sample.rows is not None:
            estimates[rows == self.sample.rows[:n_taken, np.newaxis]] = np.inf
        drawn, random = np.full((n_taken, k), -1), np.random.default_rng(n_rows)
        for start in range(0, n_taken, limits.drawn_queries):
            some = slice(start, start + limits.drawn_queries)
            errors = self._errors(some, rows[some], estimates[some])
            noisy = estimates[some] + errors * random.standard_normal(errors.shape)
            near = np.argsort(np.where(np.isfinite(estimates[some]), noisy, np.inf), axis=1, kind="stable")[:, :k]
            found = np.take_along_axis(np.where(np.isfinite(estimates[some]), rows[some], -1), near, axis=1)
            drawn[some, : found.shape[1]] = found
        return drawn

    def _errors(self, queries: slice, rows: Rows, estimates: Floats) -> Floats:
        """Return the standard errors of estimates, which ascend: those of some rows, for the rows around them too."""
        codec, n = self._cells.codec, rows.shape[1]
        step = max(1, n // tuning().drawn_errors)
        places = np.arange(step // 2, n, step)
        column = self._segment.columns["residuals"][np.maximum(rows[:, places], 0).ravel()]
        distances = np.where(np.isfinite(estimates), estimates, np.float32(0))[:, places]
        errors = codec.errors(self._projections[queries], distances, column)
        return errors[:, np.minimum(np.arange(n) // step, len(places) - 1)]

    @property
    def is_graded(self) -> bool:
        """Whether distances tell what a query takes. Products do not."""
        return self.sample.codec.metric.name != "ip"

    @property
    def _n_own(self) -> int:
        return 0 if self.sample.rows is None else 1

    def reach(self, effort: int) -> float:
        """Return the reach of queries that visit `effort` cells on average, 0 if all visit as many."""
        n_cells = self._cells.n_cells
        least, most = probes_in_reach(effort, n_cells)
        if not self.is_graded or effort >= n_cells or effort == least:
            return 0.0
        between = self._ratios[:, least:most].ravel()
        place = (effort - least) * len(self._ratios)
        return float(min(np.partition(between, place)[place], np.finfo(np.float32).max))

    @cached_property
    def _ratios(self) -> NDArray[np.float64]:
        """The gaps of cells over the distance that makes out whether they are in reach, ascending, of some queries."""
        n_queries, rank = min(self.n_queries, tuning().graded_queries), tuning().reach_rank + self._n_own
        counts = CellCounts(self._cells.n_cells, min(rank, self._segment.n_rows), 0)
        squares = self._keys(counts, n_queries).distances()[:, -1]
        largest = float(squares[np.isfinite(squares)].max(initial=0))  # of queries that find as many rows
        distances = np.sqrt(np.maximum(squares, max(1e-6 * largest, 1e-30)))[:, np.newaxis]
        ratios: NDArray[np.float64] = np.sort(self.gaps(n_queries) / distances, axis=1)
        return ratios

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
