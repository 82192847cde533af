"""Search of graphs: walks towards queries, and exact distances of the nearest vertices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import kernels
from .._core.pages import is_beyond_memory
from .._core.tuning import tuning
from .._core.typing import Floats, Ids, Mask, Projections, Rows, Vectors
from ..data.keys import NO_ID
from ..data.source import VectorSource
from ..data.sparserows import SparseRows, VectorRows
from ..distances.codec import Codec
from ..distances.kept import Candidates, kept_vectors
from ..distances.metrics import METRICS, squares
from ..store.segment import NOT_HIDDEN, Segment
from . import exact
from .batches import search_in_batches
from .buckets.graphkernel import GraphCall, GraphCounts
from .candidates import count
from .plan import Plan, Selection
from .request import IndexTraits
from .results import IdMatches, RangeResult, SearchResult
from .single import SingleQuery, plain
from .topk import TopK, merge_segments


class _Part(NamedTuple):
    """Rows that a search considers, and those of them that must not be results."""

    segment: Segment
    hidden: Mask
    effort: int | None = None

    @classmethod
    def of(cls, selection: Selection, columns: tuple[str, ...]) -> _Part:
        """Copy the selected rows if they are few."""
        if selection.rows is None:
            return cls(selection.segment, selection.hidden, selection.effort)
        return cls(selection.segment.take(selection.rows, columns), NOT_HIDDEN)

    @property
    def n_visible(self) -> int:
        """Number of rows that may be results."""
        return self.segment.n_rows - int(np.count_nonzero(self.hidden))


class _Queries(NamedTuple):
    """Queries of a segment: as they came, their projections, and slope and intercept of their distances."""

    vectors: VectorRows
    projections: Projections
    lines: Floats

    def one(self, i: int) -> _Queries:
        """Return query i alone."""
        some = slice(i, i + 1)
        return _Queries(self.vectors[some], self.projections[some], self.lines[some])


class GraphSearch:
    """A plan of a search of an index with graphs, for any queries.

    Parameters
    ----------
    traits : IndexTraits
    codec : Codec
    plan : Plan
    """

    def __init__(self, traits: IndexTraits, codec: Codec, plan: Plan) -> None:
        assert codec.vertices is not None
        self._plan, self._codec = plan, codec.vertices
        self.selections = plan.selections
        self._n_bits, self._dim, self._metric = traits.n_bits, traits.dim, METRICS[traits.metric]
        self._transform = self._codec.kernel_transform()
        columns = ("vertices", "vectors") if traits.keeps_vectors else ("vertices",)
        parts = (_Part.of(selection, columns) for selection in plan.selections)
        self._parts = [part for part in parts if part.n_visible]
        # Exact distances are computed by the kernel of the walks, or from what that has found.
        self._by_kernel = plan.rerank != "exact"
        if plan.rerank == "exact" and plan.k <= tuning().most_inserted_results:
            vectors = [part.segment.columns["vectors"] for part in self._parts]
            # Candidates of arrays that memory does not hold are read together.
            self._by_kernel = all(isinstance(some, np.ndarray) and not is_beyond_memory(some) for some in vectors)
        n_rows = sum(part.segment.n_rows for part in self._parts)
        self._first_stats = plan.stats(n_rows) | {"visited": 0, "steps": 0}
        self._calls = [self._call(part) for part in self._parts]

    def _call(self, part: _Part) -> GraphCall:
        """Prepare the search of a part."""
        plan, segment, n_visible = self._plan, part.segment, part.n_visible
        n_found = min(plan.n_exact if plan.rerank == "exact" else plan.k, segment.n_rows)
        beam = widest = 0
        if segment.buckets is not None and plan.mode != "scan":
            beam, widest = segment.buckets.walked_beam(part.effort), segment.buckets.widest_beam
        reads = plan.rerank == "exact" and self._by_kernel
        k = plan.k if self._by_kernel else n_found
        n_wanted = min(plan.k, n_visible, n_found)
        if beam and n_visible < segment.n_rows:
            n_wanted = max(n_wanted, int(tuning().met_part * beam * n_visible / segment.n_rows))
        counts = GraphCounts(beam, widest, n_found, n_wanted, k)
        vectors = None
        if reads:
            vectors = segment.columns["vectors"]
            vectors = vectors.view(np.uint16) if vectors.dtype == np.float16 else vectors
        rows = None if self._by_kernel else np.arange(segment.n_rows)
        return GraphCall(self._codec, segment, part.hidden, counts, vectors, rows)

    # --- nearest rows ---

    def nearest(self, source: VectorSource, n_threads: int) -> SearchResult:
        """Find the `plan.k` nearest rows of each query."""

        def find(first: int, vectors: VectorRows, n_threads: int) -> SearchResult:
            found = self.nearest_of(vectors, n_threads) if not isinstance(vectors, SparseRows) else None
            return found or self._nearest_projected(source, first, vectors, n_threads)

        return SearchResult.joined(search_in_batches(find, source, self._n_bits, self._plan, n_threads))

    def single(self) -> SingleQuery | None:
        """Return the search for one dense query; None if that takes more than one call of a kernel."""
        if self._transform is None or not self._by_kernel or len(self._calls) != 1:
            return None

        def errors(found: TopK, query: Vectors) -> Floats:
            return self._errors(found, [found], query, squares(query), 1)

        return SingleQuery(
            kernels.graphsearch.search_vectors, self._calls[0].arguments_of_vectors(self._transform), self._plan.k,
            self._first_stats, _count, None if self._plan.rerank == "exact" else errors, keeps=self._calls,
        )  # fmt: skip

    def nearest_of(self, queries: Vectors, n_threads: int) -> SearchResult | None:
        """Find the nearest rows of dense queries, float32 (n, dim) in C order, in one call of a kernel a segment.

        Returns None if there is no kernel for that, or if a query is not finite or too long.
        """
        if self._transform is None or not self._by_kernel or not len(queries):
            return None
        queries = plain(queries)
        stats, parts = self._stats(), []
        for call in self._calls:
            found = call.of_vectors(queries, self._transform, n_threads)
            if found.n_searched < len(queries):
                return None
            _count(stats, found.visits.tolist())
            parts.append(TopK(found.distances, found.ids))
        merged = merge_segments(parts, len(queries), self._plan.k, np.float32)
        errors = None
        if self._plan.rerank != "exact":
            own = queries.copy()  # the caller may change them before the errors are read
            errors = lambda: self._errors(merged, parts, own, squares(own), n_threads)  # noqa: E731
        return SearchResult.of(*merged, stats, errors)

    def _nearest_projected(self, source: VectorSource, first: int, vectors: VectorRows, n_threads: int) -> SearchResult:
        """Search a batch of queries, beginning with query `first`, after projecting them."""
        plan, stats, n = self._plan, self._stats(), len(vectors)
        row_squares = self._metric.check(source, first, vectors)
        parts = []
        for part, call in zip(self._parts, self._calls, strict=True):
            queries = self._projected(call, vectors, row_squares, n_threads)
            if plan.rerank == "exact":
                parts.append(self._nearest_exactly(part, call, queries, stats, n_threads))
                continue
            found = call.of_projections(queries.projections, queries.lines, _no_queries(n), n_threads)
            _count(stats, found.visits.tolist())
            parts.append(TopK(found.distances, found.ids))
        merged = merge_segments(parts, n, plan.k, np.float32)
        errors = None if plan.rerank == "exact" else self._errors(merged, parts, vectors, row_squares, n_threads)
        return SearchResult(*merged, stats, errors)

    def _projected(self, call: GraphCall, vectors: VectorRows, row_squares: Any, n_threads: int) -> _Queries:
        """Project queries as a segment needs them."""
        return _Queries(vectors, *self._codec.project_queries(vectors, row_squares, call.longest, n_threads))

    def _nearest_exactly(
        self, part: _Part, call: GraphCall, queries: _Queries, stats: dict[str, Any], n_threads: int
    ) -> TopK:
        """Find the nearest rows of one segment by exact distance, among the nearest by their levels."""
        segment, n = part.segment, len(queries.projections)
        kept = kept_vectors(segment.columns["vectors"], segment.ids, self._metric, self._dim)
        dense = kept.dense(queries.vectors) if self._by_kernel else _no_queries(n)
        found = call.of_projections(queries.projections, queries.lines, dense, n_threads)
        _count(stats, found.visits.tolist())
        if self._by_kernel:
            return TopK(found.distances, found.ids)
        rows, counts = np.maximum(found.ids, 0), np.count_nonzero(found.ids >= 0, axis=1)
        candidates = Candidates(rows, counts, np.full(rows.shape, -np.inf, dtype=np.float32))
        near, n_read = exact.nearest(kept, queries.vectors, candidates, self._plan.k, n_threads)
        count(stats, vectors_read=n_read)
        return near

    def _errors(self, merged: TopK, found: list[TopK], vectors: VectorRows, row_squares: Any, n_threads: int) -> Floats:
        """Return the standard errors of the distances of results that were found in parts, NaN for missing ones."""
        errors = []
        for part, call, near in zip(self._parts, self._calls, found, strict=True):
            errors.append(self._errors_in(part, self._projected(call, vectors, row_squares, n_threads), near.ids))
        return _errors_of(merged, found, errors)

    def _errors_in(self, part: _Part, queries: _Queries, ids: Ids) -> Floats:
        """Return the standard errors of the distances of rows of a part, NaN for missing ones."""
        errors = np.full(ids.shape, np.nan, dtype=np.float32)
        for i in range(len(ids)):
            is_here = ids[i] >= 0
            column = part.segment.columns["vertices"][part.segment.find(ids[i, is_here])]
            errors[i, is_here] = self._codec.errors(queries.projections[i], float(queries.lines[i, 0]), column)
        return errors

    def _stats(self) -> dict[str, Any]:
        return self._first_stats.copy()

    # --- rows within a radius ---

    def within(self, source: VectorSource, radius: np.float32, n_threads: int) -> RangeResult:
        """Find the rows within `radius` of each query: walks go on while their beams are within."""

        def find(first: int, vectors: VectorRows, n_threads: int) -> RangeResult:
            row_squares = self._metric.check(source, first, vectors)
            parts = []
            for part, call in zip(self._parts, self._calls, strict=True):
                queries = self._projected(call, vectors, row_squares, n_threads)
                for i in range(len(vectors)):
                    near, rows = self._within(part, queries.one(i), radius)
                    parts.append(IdMatches(np.full(len(rows), i), near, part.segment.ids[rows]))
            n_rows = sum(part.segment.n_rows for part in self._parts)
            found = RangeResult.of_matches(parts, len(vectors), np.float32, self._plan.stats(n_rows))
            if self._plan.rerank == "exact":
                return found
            own = vectors[np.arange(len(vectors))]  # a copy: the caller may change them before the errors are read
            return found.with_errors(self._range_errors(own, row_squares))

        return RangeResult.joined(search_in_batches(find, source, self._n_bits, self._plan, n_threads))

    def _range_errors(self, vectors: VectorRows, row_squares: Any) -> Callable[[int, TopK], Floats]:
        """Return a function that gives the standard errors of the distances of rows within a radius of a query."""

        def errors_of(i: int, near: TopK) -> Floats:
            errors = np.full(near.ids.shape, np.nan, dtype=np.float32)
            for part, call in zip(self._parts, self._calls, strict=True):
                query = self._projected(call, vectors[i : i + 1], row_squares[i : i + 1], 1)
                ids = np.where(part.segment.find(near.ids[0]) >= 0, near.ids[0], NO_ID)[np.newaxis]
                errors = np.where(ids >= 0, self._errors_in(part, query, ids), errors)
            return errors

        return errors_of

    def _within(self, part: _Part, query: _Queries, radius: np.float32) -> tuple[Floats, Rows]:
        """Find the rows of one segment within `radius` of one query; levels rule out most vectors."""
        segment, graph, n_rows = part.segment, part.segment.buckets, part.segment.n_rows
        n, is_done = min(n_rows, tuning().first_range_beam), False
        near, rows, doubts = (np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int64), np.empty(0, np.float32))
        while not is_done:
            is_walk = graph is not None and self._plan.mode != "scan" and n < n_rows
            beam = graph.walked_beam(4 * n) if is_walk else 0
            n = n_rows if beam == 0 else n
            counts = GraphCounts(beam, beam, n, 0, n)
            call = GraphCall(self._codec, segment, part.hidden, counts, ids=np.arange(n_rows))
            found = call.of_projections(query.projections, query.lines, _no_queries(1))
            n_present = int(np.count_nonzero(found.ids[0] >= 0))
            near, rows = found.distances[0, :n_present], found.ids[0, :n_present]
            doubts = self._doubts(query, segment.columns["vertices"][rows])
            is_done = beam == 0 or (n_present == n and bool((near - doubts)[-1] > radius))
            n = min(n_rows, 4 * n)
        if self._plan.rerank != "exact":
            return near[near <= radius], rows[near <= radius]
        kept = kept_vectors(segment.columns["vectors"], segment.ids, self._metric, self._dim)
        return exact.within(kept, kept.dense(query.vectors)[0], rows[near - doubts <= radius], radius)

    def _doubts(self, query: _Queries, column: Any) -> Floats:
        """Return how far below the distances of levels those of vectors may be."""
        errors = self._codec.errors(query.projections[0], float(query.lines[0, 0]), column)
        doubts: Floats = tuning().range_sigmas * errors
        return doubts


def _no_queries(n: int) -> Vectors:
    """Return what stands for queries where there are no vectors to compare them with."""
    return np.empty((n, 0), dtype=np.float32)


def _errors_of(merged: TopK, parts: list[TopK], errors: list[Floats]) -> Floats:
    """Return the errors of merged results, from those of the parts."""
    out = np.full(merged.ids.shape, np.nan, dtype=np.float32)
    for part, part_errors in zip(parts, errors, strict=True):
        for i in range(len(out)):
            places = np.flatnonzero(np.isin(merged.ids[i], part.ids[i][part.ids[i] >= 0]))
            order = np.argsort(part.ids[i], kind="stable")
            at = order[np.searchsorted(part.ids[i], merged.ids[i, places], sorter=order)]
            out[i, places] = part_errors[i, at]
    return out


def _count(stats: dict[str, Any], visits: Sequence[int]) -> None:
    """Add what a search has visited to the counts in `stats`."""
    n_steps, n_scanned, n_read = visits
    stats["visited"] += n_steps + n_scanned
    stats["steps"] += n_steps
    if n_read:
        count(stats, vectors_read=n_read)
