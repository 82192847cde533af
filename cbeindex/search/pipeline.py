"""Vector search, from top to bottom: read and encode queries, find and re-rank the rows of each segment, merge."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .._core.tuning import tuning
from .._core.typing import Floats, Rows
from ..data.source import VectorSource
from ..data.sparserows import SparseRows, VectorRows
from ..distances.codec import Codec
from ..distances.estimator import SCALARS, EncodedQueries
from ..distances.kept import KeptVectors, kept_vectors
from ..distances.metrics import METRICS
from ..store.segment import Segment
from . import estimates, exact, rerank
from .batches import search_in_batches
from .buckets import MAKERS
from .errors import level_errors
from .plan import Plan
from .queries import EncodedBatch
from .request import IndexTraits
from .results import IdMatches, RangeResult, SearchResult
from .tablerange import rows_in_tables
from .topk import TopK, merge_segments
from .view import View


class VectorSearch:
    """One search of a vector index.

    Parameters
    ----------
    source : VectorSource
        The queries.
    traits : IndexTraits
    codec : Codec, or None for an index that is not fitted
    plan : Plan
    """

    def __init__(self, source: VectorSource, traits: IndexTraits, codec: Codec | None, plan: Plan) -> None:
        self._source, self._codec, self._plan = source, codec, plan
        self._n_bits, self._dim, self._metric = traits.n_bits, traits.dim, METRICS[traits.metric]
        self._uses_margins = traits.buckets is not None and MAKERS[traits.buckets].uses_margins
        # Views are made once, and all batches of queries share them.
        columns = ("vectors",) if codec is None else tuple(SCALARS)
        views = (View.of(selection, columns) for selection in plan.selections)
        self._views = [view for view in views if view.part.n_rows]

    # --- nearest rows ---

    def nearest(self, n_threads: int) -> SearchResult:
        """Find the `plan.k` nearest rows of each query."""
        find = self._nearest_vectors if self._codec is None else self._nearest_codes
        return SearchResult.joined(search_in_batches(find, self._source, self._n_bits, self._plan, n_threads))

    def _nearest_vectors(self, first: int, vectors: VectorRows, n_threads: int) -> SearchResult:
        """Search a batch of queries, beginning with query `first`, in an index that is not fitted."""
        self._metric.check(self._source, first, vectors)
        parts = [
            exact.nearest_of_all(self._kept(view.part), vectors, view.hidden, self._plan.k, n_threads)
            for view in self._views
        ]
        found = merge_segments(parts, len(vectors), self._plan.k, np.float32)
        return SearchResult(*found, self._stats())

    def _nearest_codes(self, first: int, vectors: VectorRows, n_threads: int) -> SearchResult:
        """Search a batch of queries, beginning with query `first`, in a fitted index."""
        batch = self._encode(first, vectors, n_threads)
        parts = [self._nearest_in(view, batch) for view in self._views]
        dtype = np.int32 if self._plan.rerank is None else np.float32
        found = merge_segments(parts, len(vectors), self._plan.k, dtype)
        errors = self._errors(found, batch) if self._plan.rerank == "asymmetric" else None
        if self._plan.rerank == "levels":
            errors = self._level_errors(found, batch)
        return SearchResult(*found, self._stats() | batch.stats, errors)

    def _encode(self, first: int, vectors: VectorRows, n_threads: int) -> EncodedBatch:
        """Check and encode a batch of queries."""
        assert self._codec is not None
        if self._plan.estimates and not isinstance(vectors, SparseRows):
            dense = self._codec.encode_dense(vectors, with_margins=self._uses_margins, n_threads=n_threads)
            if dense is not None:
                return EncodedBatch(vectors, dense, self._n_bits, n_threads)
        prepared = self._metric.prepare(vectors, self._metric.check(self._source, first, vectors))
        encoded = self._codec.encode_queries(
            self._source,
            first,
            prepared,
            with_estimates=self._plan.estimates,
            with_margins=self._uses_margins,
            n_threads=n_threads,
        )
        return EncodedBatch(vectors, encoded, self._n_bits, n_threads)

    def _nearest_in(self, view: View, batch: EncodedBatch) -> TopK:
        """Find the nearest rows of one segment, by the kind of distance in the plan."""
        if self._plan.rerank is None:
            return rerank.nearest_by_hamming(view, batch, self._plan)
        if self._plan.rerank == "asymmetric":
            return rerank.nearest_by_estimate(view, batch, self._plan)
        return rerank.nearest_exactly(view, batch, self._plan, self._kept(view.segment))

    def errors_of(self, found: TopK, vectors: VectorRows) -> Floats:
        """Return the standard errors of estimated distances from queries that were searched before."""
        return self._errors(found, self._encode(0, vectors, 1))

    def _errors(self, found: TopK, batch: EncodedBatch) -> Floats:
        """Return the standard errors of estimated distances, NaN for missing results."""
        ids = found.ids.ravel()
        spreads = np.full(len(ids), np.nan, dtype=np.float32)
        left = np.flatnonzero(ids >= 0)
        for segment in (view.segment for view in self._views):
            rows = segment.find(ids[left])
            is_here = rows >= 0
            spreads[left[is_here]] = segment.columns["spreads"][rows[is_here]]
            left = left[~is_here]
        distances = np.where(found.ids >= 0, found.distances, 0)
        return batch.encoded.errors(distances, spreads.reshape(found.ids.shape))

    def _level_errors(self, found: TopK, batch: EncodedBatch) -> Floats:
        """Return the standard errors of distances from kept vectors of 4 or 8 bits, NaN for missing results."""
        assert self._codec is not None
        assert self._codec.rows_of_levels is not None
        queries = self._metric.prepare(batch.vectors)
        segments = [view.segment for view in self._views]
        return level_errors(self._codec.rows_of_levels, queries, found, segments, batch.n_threads)

    def _stats(self) -> dict[str, object]:
        n_rows = sum(view.part.n_rows for view in self._views)
        return self._plan.stats(n_rows)

    def _kept(self, segment: Segment) -> KeptVectors:
        codec = None if self._codec is None else self._codec.rows_of_levels
        return kept_vectors(segment.columns["vectors"], segment.ids, self._metric, self._dim, codec)

    # --- rows within a radius ---

    def within(self, radius: np.float32, share: float, n_threads: int) -> RangeResult:
        """Find the rows within `radius` of each query: a share of them if there are tables, otherwise all."""
        visible = [view.visible_rows() for view in self._views]

        def find(first: int, vectors: VectorRows, n_threads: int) -> RangeResult:
            return self._within(first, vectors, _Within(radius, share, visible), n_threads)

        return RangeResult.joined(search_in_batches(find, self._source, self._n_bits, self._plan, n_threads))

    def _within(self, first: int, vectors: VectorRows, wanted: _Within, n_threads: int) -> RangeResult:
        """Search a batch of queries, beginning with query `first`."""
        batch = None
        if self._codec is None:
            self._metric.check(self._source, first, vectors)
        else:
            batch = self._encode(first, vectors, n_threads)
        parts = []
        for view, visible in zip(self._views, wanted.visible, strict=True):
            for i in range(len(vectors)):
                query = None if batch is None else batch.encoded.some(slice(i, i + 1))
                rows = None if query is None else self._rows_in_tables(view, query, wanted)
                if self._plan.reads_vectors:
                    rows = visible if rows is None else rows
                    near, found = self._within_exactly(view, vectors[i : i + 1], query, rows, wanted.radius, n_threads)
                else:
                    near, found = self._within_by_estimate(view, query, rows, wanted.radius, n_threads)
                parts.append(IdMatches(np.full(len(found), i), near, view.segment.ids[found]))
        result = RangeResult.of_matches(parts, len(vectors), np.float32, self._stats())
        if batch is None or self._plan.rerank == "exact":
            return result
        errors = self._level_errors if self._plan.rerank == "levels" else self._errors
        # A copy: the caller may change queries before the errors are read.
        own = replace(batch, vectors=vectors[np.arange(len(vectors))])
        return result.with_errors(lambda i, near: errors(near, own.one(i)))

    def _rows_in_tables(self, view: View, query: EncodedQueries, wanted: _Within) -> Rows | None:
        """Return the rows of tables that may be within a radius of one query; None if all rows are compared."""
        if self._codec is None or self._plan.mode != "buckets":
            return None
        half = 2 if self._metric.name == "cosine" else 1
        square = half * max(0.0, float(wanted.radius)) / self._codec.geometry.scale
        return rows_in_tables(view, query, math.sqrt(square), wanted.share)

    def _within_by_estimate(
        self, view: View, query: EncodedQueries | None, rows: Rows | None, radius: np.float32, n_threads: int
    ) -> tuple[Floats, Rows]:
        """Return estimated distances and rows of one segment within `radius` of one query, of `rows` or all rows."""
        assert query is not None
        if rows is None:
            keys = estimates.within(view, query, radius, n_threads).present()
            return keys.distances(), view.segment_rows(keys.ranks())
        near = estimates.distances(view.part, query, rows[np.newaxis], n_threads)[0]
        return near[near <= radius], view.segment_rows(rows[near <= radius])

    def _within_exactly(
        self,
        view: View,
        vector: VectorRows,
        query: EncodedQueries | None,
        rows: Rows,
        radius: np.float32,
        n_threads: int,
    ) -> tuple[Floats, Rows]:
        """Return exact distances and rows of one segment within `radius` of one query, of the visible rows `rows`.

        Vectors are not read if the estimate rules them out.
        """
        if query is not None and self._plan.estimates:
            near = estimates.distances(view.part, query, rows[np.newaxis], n_threads)
            lower = query.lower_bounds(near, view.part.columns, rows[np.newaxis], tuning().range_sigmas)
            rows = rows[lower[0] <= radius]
        kept = self._kept(view.segment)
        return exact.within(kept, kept.dense(vector)[0], view.segment_rows(rows), radius)


class _Within(NamedTuple):
    """A radius, the share of the rows within it to find, and the visible rows of each view."""

    radius: np.float32
    share: float
    visible: list[Rows]
