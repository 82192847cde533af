"""Searches of cells for sampled queries: what a number of probes finds.

One search of all cells tells what any number of probes finds: of the nearest rows by estimate, those in the cells that
are visited. A row with a copy is found where the nearer one of its two cells is visited, with the estimate of the row.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

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
from .spilling import second_cells
from .trials import BucketTrial, Sample, kept_of


class _InCells(NamedTuple):
    """The nearest rows of queries by estimate, among all rows, and where they are; all of shape (n_queries, n).

    Attributes
    ----------
    rows : int64 array
        -1 behind them.
    estimates : float32 array
        Infinity behind them.
    places : int32 array
        Place of the cell of a row, or of the nearer one of its two, in the order in which the query visits cells.
    gaps : float64 array
        How much farther that cell is than the nearest one.
    """

    rows: Rows
    estimates: Floats
    places: NDArray[np.int32]
    gaps: NDArray[np.float64]

    def first(self, n_queries: int, n: int) -> _InCells:
        """Return the nearest `n` rows of the first queries."""
        some = slice(n_queries), slice(n)
        return _InCells(self.rows[some], self.estimates[some], self.places[some], self.gaps[some])


class CellTrial(BucketTrial):
    """Searches of the cells of a segment."""

    def __init__(self, segment: Segment, sample: Sample) -> None:
        super().__init__(segment, sample)
        self._cells = _without(segment, sample.rows)
        ranks = np.arange(segment.n_rows, dtype=np.int32)  # keys are those of rows
        self._in_order = replace(segment, ranks=ranks, buckets=self._cells)
        self._projections, self._shifts = self._projected()
        self.most_effort = self._cells.n_cells
        self._in_all: list[_InCells] = []
        self._second_cells = self._cells_of_copies()

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

    def with_copies(self, cells: ResidualCells) -> CellTrial:
        """Return searches of the same cells with copies, for the same queries: what is known of rows stays known."""
        trial = copy.copy(self)
        trial._cells = replace(self._cells, copies=cells.copies)
        trial._in_order = replace(self._in_order, buckets=trial._cells)
        trial._second_cells = trial._cells_of_copies()
        trial._in_all = [trial._placed(known.rows, known.estimates) for known in self._in_all]
        return trial

    def _find(self, effort: int, n: int, n_queries: int) -> Found:
        n_probes = min(effort, self._cells.n_cells)
        reads_vectors = "vectors" in self._segment.columns
        counts = CellCounts(
            n_probes, min(n, self._segment.n_rows), 0, with_copies=reads_vectors and n_probes < self._cells.n_cells,
            reach=self.reach(effort), n_own=self._n_own, are_candidates=reads_vectors,
        )  # fmt: skip
        keys = self._keys(counts, n_queries)
        rows = np.where(keys.is_missing(), -1, keys.ranks())
        return Found(rows, keys.distances())

    def candidates(self, effort: int, n: int, n_queries: int) -> Found:
        """Return the nearest `n` rows by estimate that the first queries find with an effort.

        Rows are missing that are not among the nearest of all cells: they are none of the nearest rows, as long as
        `deepest` estimates hold these.
        """
        n_cells = self._cells.n_cells
        found = self._in_all_cells(n, n_queries)
        if effort >= n_cells:
            return Found(found.rows, found.estimates if self.is_graded else None)
        reach = self.reach(effort)
        least, most = probes_in_reach(effort, n_cells) if reach > 0 else (effort, effort)
        rows, estimates = np.empty_like(found.rows), np.empty_like(found.estimates)
        kernels.counting.keep_visited(*found, least, most, reach, tuning().reach_rank, rows, estimates)
        return Found(rows, estimates if self.is_graded else None)

    def _in_all_cells(self, n: int, n_queries: int) -> _InCells:
        """Return the nearest `n` of all rows by estimate, for the first queries."""
        for known in self._in_all:
            if len(known.rows) >= n_queries and known.rows.shape[1] >= n:
                break
        else:
            found = super().candidates(self.most_effort, max(n, tuning().most_calibrated_depth), n_queries)
            assert found.estimates is not None
            known = self._placed(found.rows, found.estimates)
            self._in_all.append(known)
        return known.first(n_queries, n)

    def _placed(self, rows: Rows, estimates: Floats) -> _InCells:
        """Return the nearest rows of the first queries with their places."""
        known = np.maximum(rows, 0)
        places, gaps = self._places(self._cell_of_row[known])
        if self._second_cells is not None:
            other_places, other_gaps = self._places(self._second_cells[known])
            places, gaps = np.minimum(places, other_places), np.minimum(gaps, other_gaps)  # gaps ascend with places
        return _InCells(rows, estimates, places, gaps)

    def _cells_of_copies(self) -> Rows | None:
        """Return the cell that holds the copy of each row, None if no search finds copies."""
        copies = self._cells.copies
        if not len(copies.records) or "vectors" not in self._segment.columns:
            return None
        return copies.cells_of(self._segment.n_rows, self._cells.codec.n_bytes)

    def _places(self, cells: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the places and the gaps of cells for the first queries, (n_queries, n)."""
        gaps, places = self._order[0][: len(cells)], self._order[1][: len(cells)]
        return np.take_along_axis(places, cells, axis=1), np.take_along_axis(gaps, cells, axis=1)

    def needed(self, n: int) -> tuple[Rows, Rows]:
        """Return how many cells queries visit to find each of their nearest `n` rows, without copies and with them."""
        found = self._in_all_cells(n, self.n_queries)
        is_there = found.rows >= 0
        rows, queries = found.rows[is_there], np.nonzero(is_there)[0]
        own = self._cell_of_row[rows].astype(np.int64)
        points = self._cells.codec.decode(self._segment.columns["residuals"][rows], np.arange(len(rows)))
        second = second_cells(points, own, self._cells.centroids, np.arange(self._cells.n_cells))
        places = self._order[1]
        first, other = (places[queries, cells].astype(np.int64) + 1 for cells in (own, second))
        return first, np.minimum(first, other)

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
        n_queries = min(self.n_queries, tuning().graded_queries)
        squares = self._in_all_cells(tuning().reach_rank, n_queries).estimates[:, -1]
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

    def cells_of(self, rows: Rows) -> NDArray[np.int32]:
        """Return the cells of some rows."""
        return self._cell_of_row[rows]

    @cached_property
    def _cell_of_row(self) -> NDArray[np.int32]:
        return np.repeat(np.arange(self._cells.n_cells, dtype=np.int32), np.diff(self._cells.offsets))

    def gaps(self, n_queries: int) -> NDArray[np.float64]:
        """Return how much farther each cell is than the nearest one, for the first queries, (n_queries, n_cells)."""
        return self._order[0][:n_queries]

    @cached_property
    def _order(self) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """Gaps of all cells for all queries, and the places of cells in the order in which queries visit them."""
        cells, directory = self._cells, self._cells.directory
        products = self._projections[:, : cells.centroids.shape[1]] @ cells.centroids.T
        distances = directory.bases.astype(np.float64) - directory.weight * products.astype(np.float64)
        gaps: NDArray[np.float64] = distances - distances.min(axis=1, keepdims=True)
        places = np.empty(gaps.shape, dtype=np.int32)
        numbers = np.broadcast_to(np.arange(gaps.shape[1], dtype=np.int32), gaps.shape)
        np.put_along_axis(places, np.argsort(gaps, axis=1, kind="stable"), numbers, axis=1)
        return gaps, places

    def share_of_rows(self, gaps: NDArray[np.float64], gap: float) -> float:
        """Return the share of the rows in the cells within a gap, on average over queries."""
        return float(((gaps <= gap) @ np.diff(self._cells.offsets)).mean() / max(1, self._segment.n_rows))


def _without(segment: Segment, rows: Rows | None) -> ResidualCells:
    """Return the cells of a segment with centroids that are the means of other rows than those given, if there are any.

    A centroid is nearer to a row that it is the mean of than to a query that is like this row.
    """
    cells: ResidualCells = segment.buckets
    if rows is None:
        return cells
    own, sizes = cells.cells_of(rows), np.diff(cells.offsets)
    points = cells.codec.decode(segment.columns["residuals"][rows], np.arange(len(rows)))
    left = (sizes - np.bincount(own, minlength=cells.n_cells))[:, np.newaxis]
    sums = sizes[:, np.newaxis] * cells.centroids.astype(np.float64)
    by_cell = np.argsort(own, kind="stable")
    used, firsts = np.unique(own[by_cell], return_index=True)
    sums[used] -= np.add.reduceat(points[by_cell], firsts, axis=0, dtype=np.float64)
    means = np.divide(sums, left, out=cells.centroids.astype(np.float64), where=left > 0)
    return replace(cells, centroids=means.astype(np.float32))
