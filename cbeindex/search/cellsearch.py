"""Search in cells: estimates from residual codes, and the distances of vectors for the nearest rows by estimate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import kernels
from .._core.pages import is_beyond_memory
from .._core.tuning import tuning
from .._core.typing import Floats, Mask, Projections, Vectors
from ..data.keys import EstimateKeys
from ..data.rowerror import RowError
from ..data.source import VectorSource
from ..data.sparserows import SparseRows, VectorRows
from ..distances.codec import Codec
from ..distances.kept import Candidates, KeptVectors, kept_vectors
from ..distances.metrics import METRICS
from ..store.segment import NOT_HIDDEN, Segment
from . import exact
from .batches import search_in_batches
from .buckets.cellkernel import CellCall, CellCounts, rivals_of
from .buckets.cellmaker import CellMaker
from .calibration import k_there
from .candidates import count
from .errors import gather_rows, level_errors
from .plan import Plan, Selection
from .request import IndexTraits
from .results import SearchResult
from .single import SingleQuery, of_one, read_only
from .topk import TopK, merge_segments


class CellPart(NamedTuple):
    """Rows in cells that a search considers, and those of them that must not be results."""

    segment: Segment
    hidden: Mask
    effort: int | None = None
    gap: float = math.inf

    @classmethod
    def of(cls, selection: Selection, columns: tuple[str, ...]) -> CellPart:
        """Copy the selected rows if they are few."""
        segment = selection.segment
        if selection.rows is None:
            return cls(segment, selection.hidden, selection.effort, selection.gap)
        codec = segment.buckets.codec
        few = segment.take(selection.rows, columns)
        maker = CellMaker(codec.n_bits, n_cells=1, codec=codec, spill=False)
        return cls(maker.arrange(few) if few.n_rows else few, NOT_HIDDEN)

    @property
    def n_visible(self) -> int:
        """Number of rows that may be results."""
        return self.segment.n_rows - int(np.count_nonzero(self.hidden))


class CellQueries(NamedTuple):
    """A batch of queries: as they came, their projections, and what they add to distances whatever the centre."""

    vectors: VectorRows
    projections: Projections
    shifts: Floats


class CellSearch:
    """A plan of a search of an index with cells, by estimates from residual codes, for any queries.

    Parameters
    ----------
    traits : IndexTraits
    codec : Codec
    plan : Plan
    """

    def __init__(self, traits: IndexTraits, codec: Codec, plan: Plan) -> None:
        assert codec.residuals is not None
        self._codec, self._plan, self._residuals = codec, plan, codec.residuals
        self.selections = plan.selections
        self._n_bits, self._dim, self._metric = traits.n_bits, traits.dim, METRICS[traits.metric]
        self._transform = codec.kernel_transform()
        columns = ("residuals", "vectors") if traits.reads_vectors else ("residuals",)
        self._kept = codec.rows_of_levels
        parts = (CellPart.of(selection, columns) for selection in plan.selections)
        self._parts = [part for part in parts if part.n_visible]
        # Vectors are read by the kernel of the cells, or after it has found candidates.
        vectors = [part.segment.columns["vectors"] for part in self._parts] if plan.rerank == "exact" else []
        self._has_kernel = plan.reads_vectors and plan.k <= tuning().most_inserted_results
        self._has_kernel &= all(isinstance(some, np.ndarray) and some.dtype == np.float32 for some in vectors)
        self._has_kernel &= not any(is_beyond_memory(some) for some in vectors)  # whose candidates are read together
        self._has_kernel &= plan.rerank != "levels" or codec.shares_centres
        n_rows = sum(part.segment.n_rows for part in self._parts)
        self._first_stats = plan.stats(n_rows) | {"visited": 0, "buckets": 0}
        self._calls = [CellCall(part.segment, part.hidden, self._counts(part)) for part in self._parts]
        self._count = _count_vectors if self._has_kernel else _count_visits
        # Segments after the first read those rows alone that are as near as the candidates of those before.
        self._n_rivals = plan.n_exact if plan.reads_vectors else plan.k
        if len(self._parts) < 2:
            self._n_rivals = 0

    def _counts(self, part: CellPart) -> CellCounts:
        """Return how many cells and rows of a part the plan takes."""
        plan, n_visible = self._plan, part.n_visible
        n_found = min(plan.n_exact if plan.reads_vectors else plan.k, part.segment.n_rows)
        n_probes = part.segment.buckets.probes(plan, part.effort)
        kept_bits = self._kept.bits if self._kept is not None and plan.rerank == "levels" and self._has_kernel else 0
        with_copies = plan.reads_vectors and n_probes < part.segment.buckets.n_cells
        k = plan.k if self._has_kernel else 0
        reach = part.segment.buckets.reach(n_probes) if plan.n_probes is None else 0.0
        width = 0.0
        if plan.is_graded and plan.reads_vectors and part.segment.buckets.calibration is not None:
            there = k_there(plan.k, n_visible, part.segment.n_rows)
            width = part.segment.buckets.calibration.width(there, plan.n_exact / plan.k)
        n_wanted = min(plan.k, n_visible, n_found)
        return CellCounts(n_probes, n_found, n_wanted, k, kept_bits, with_copies, reach, width, plan.k)

    # --- nearest rows ---

    def nearest(self, source: VectorSource, n_threads: int) -> SearchResult:
        """Find the `plan.k` nearest rows of each query."""

        def find(first: int, vectors: VectorRows, n_threads: int) -> SearchResult:
            found = self.nearest_of(vectors, n_threads) if not isinstance(vectors, SparseRows) else None
            return found or self._nearest_projected(source, first, vectors, n_threads)

        return SearchResult.joined(search_in_batches(find, source, self._n_bits, self._plan, n_threads))

    def single(self) -> SingleQuery | None:
        """Return the search for one dense query; None if that takes more than one call of a kernel."""
        if self._transform is None or not self._has_kernel or len(self._calls) != 1:
            return None
        errors = None if self._plan.rerank == "exact" else lambda found, query: self._errors(found, query, 1)
        arguments = self._calls[0].arguments_of_one(self._metric.longest, self._transform)
        kernel = of_one(kernels.cellsearch.search_vectors)
        return SingleQuery(kernel, arguments, self._plan.k, self._first_stats, _count_vectors, errors)

    def nearest_of(self, queries: Vectors, n_threads: int) -> SearchResult | None:
        """Find the nearest rows of dense queries, float32 (n, dim) in C order, in one call of a kernel a segment.

        Returns None if there is no kernel for that, or if a query is not finite or too long.
        """
        if self._transform is None or (self._plan.reads_vectors and not self._has_kernel) or not len(queries):
            return None
        queries = read_only(queries)
        stats, parts = self._stats(), []
        rivals, projected = rivals_of(len(queries), self._n_rivals), None
        if len(queries) > 1 and any(call.shares_cells(len(queries), n_threads) for call in self._calls):
            projected = self._project(queries, n_threads)
            if projected is None:
                return None
        for part, call in zip(self._parts, self._calls, strict=True):
            if projected is not None:
                vectors = queries if self._plan.rerank == "exact" else None
                found = call.of_projections(projected.projections, projected.shifts, vectors, n_threads, rivals)
            else:
                found = call.of_vectors(queries, self._metric.longest, self._transform, n_threads, rivals)
            if found.n_searched < len(queries):
                return None
            self._count(stats, found.visits.tolist())
            near = TopK(found.distances, found.ids)
            parts.append(near if self._has_kernel else TopK.of_keys(EstimateKeys(found.keys), part.segment))
        merged = merge_segments(parts, len(queries), self._plan.k, np.float32)
        errors = None
        if self._plan.rerank != "exact":
            own = queries.copy()  # the caller may change them before the errors are read
            errors = lambda: self._errors(merged, own, n_threads)  # noqa: E731
        return SearchResult.of(*merged, stats, errors)

    def _project(self, queries: Vectors, n_threads: int) -> CellQueries | None:
        """Project dense queries as the kernel of single queries does; None if one is not finite or too long."""
        assert self._transform is not None
        prepared, shifts = np.empty_like(queries), np.empty(len(queries), dtype=np.float32)
        mean, longest = self._transform[0], self._metric.longest
        n = kernels.preparing.prepare_queries(
            queries, 0, len(queries), longest, self._metric.number, mean, prepared, shifts
        )
        if n < len(queries):
            return None
        try:
            projections = self._codec.project_queries(VectorSource(prepared, self._dim), 0, prepared, n_threads)
        except RowError:  # which the way that checks queries one by one raises with the number of the caller's row
            return None
        return CellQueries(queries, projections, shifts)

    def _nearest_projected(self, source: VectorSource, first: int, vectors: VectorRows, n_threads: int) -> SearchResult:
        """Search a batch of queries, beginning with query `first`, after projecting them."""
        plan, stats = self._plan, self._stats()
        queries, rivals = self._encode(source, first, vectors, n_threads), rivals_of(len(vectors), self._n_rivals)
        find = self._nearest_by_vectors if plan.reads_vectors else self._nearest_by_estimate
        parts = [
            find(part, call, queries, rivals, stats, n_threads)
            for part, call in zip(self._parts, self._calls, strict=True)
        ]
        found = merge_segments(parts, len(vectors), plan.k, np.float32)
        errors = None if plan.rerank == "exact" else self._errors(found, vectors, n_threads)
        return SearchResult(*found, stats, errors)

    def _encode(self, source: VectorSource, first: int, vectors: VectorRows, n_threads: int) -> CellQueries:
        """Check and project a batch of queries."""
        prepared = self._metric.prepare(vectors, self._metric.check(source, first, vectors))
        projections = self._codec.project_queries(source, first, prepared, n_threads)
        return CellQueries(vectors, projections, self._residuals.query_shifts(prepared))

    def _nearest_by_estimate(
        self,
        part: CellPart,
        call: CellCall,
        queries: CellQueries,
        rivals: Floats,
        stats: dict[str, Any],
        n_threads: int,
    ) -> TopK:
        """Find the nearest rows of one segment by estimate."""
        found = call.of_projections(queries.projections, queries.shifts, None, n_threads, rivals)
        self._count(stats, found.visits.tolist())
        return TopK.of_keys(EstimateKeys(found.keys), part.segment)

    def _nearest_by_vectors(
        self,
        part: CellPart,
        call: CellCall,
        queries: CellQueries,
        rivals: Floats,
        stats: dict[str, Any],
        n_threads: int,
    ) -> TopK:
        """Find the nearest rows of one segment by the distances of vectors, among the nearest by estimate."""
        segment, kept = part.segment, self._vectors_of(part.segment)
        dense = kept.dense(queries.vectors) if self._has_kernel and self._plan.rerank == "exact" else None
        found = call.of_projections(queries.projections, queries.shifts, dense, n_threads, rivals)
        self._count(stats, found.visits.tolist())
        if self._has_kernel:
            return TopK(found.distances, found.ids)
        keys = EstimateKeys(found.keys)
        rows, counts = segment.rows_of(keys), np.count_nonzero(~keys.is_missing(), axis=1)
        candidates = Candidates(rows, counts, np.full(rows.shape, -np.inf, dtype=np.float32))
        near, n_read = exact.nearest(kept, queries.vectors, candidates, self._plan.k, n_threads)
        count(stats, vectors_read=n_read)
        return near

    def _vectors_of(self, segment: Segment) -> KeptVectors:
        """Return the vectors of a segment."""
        return kept_vectors(segment.columns["vectors"], segment.ids, self._metric, self._dim, self._kept)

    def _errors(self, found: TopK, vectors: VectorRows, n_threads: int) -> Floats:
        """Return the standard errors of estimated distances, NaN for missing results."""
        prepared, segments = self._metric.prepare(vectors), [part.segment for part in self._parts]
        if self._plan.rerank == "levels":
            assert self._kept is not None
            return level_errors(self._kept, prepared, found, segments, n_threads)
        if not segments:
            return np.full(found.ids.shape, np.nan, dtype=np.float32)
        column = gather_rows("residuals", segments, found.ids.ravel())
        projections = self._codec.project_queries(VectorSource(prepared, self._dim), 0, prepared, n_threads)
        distances = np.where(found.ids >= 0, found.distances, 0)
        errors = self._residuals.errors(projections, distances, column)
        return np.where(found.ids >= 0, errors, np.float32(np.nan))

    def _stats(self) -> dict[str, Any]:
        return self._first_stats.copy()


def _count_visits(stats: dict[str, Any], visits: Sequence[int]) -> None:
    """Add what a search has visited to the counts in `stats`."""
    n_rows, n_cells, _ = visits
    stats["visited"] += n_rows
    stats["buckets"] += n_cells


def _count_vectors(stats: dict[str, Any], visits: Sequence[int]) -> None:
    """Add what a search has visited, and the vectors that it has read, to the counts in `stats`."""
    n_rows, n_cells, n_read = visits
    stats["visited"] += n_rows
    stats["buckets"] += n_cells
    stats["vectors_read"] = stats.get("vectors_read", 0) + n_read
