"""The searches of a vector index: from the arguments of a call over a plan to its results."""

from __future__ import annotations

from typing import Any

from .._core.threads import as_n_threads
from ..data.source import VectorSource
from ..distances.codec import Codec
from ..store.state import IndexState
from .filters import NO_FILTER, FilterPerQuery, IdFilter, filter_of, one_filter
from .naming import named
from .perquery import search_each, vectors_by_filter
from .pipeline import VectorSearch
from .plan import Explanation, Plan, Selection
from .planner import costs, plan
from .prepared import PreparedSearch, prepared
from .ranges import Range, plan_range, range_costs, within
from .request import IndexTraits, SearchRequest
from .results import RangeResult, SearchResult, check_result_size


class VectorSearches:
    """Carries out the searches of a vector index, each of them on one state of it.

    Parameters
    ----------
    traits : IndexTraits
        What does not change.
    """

    def __init__(self, traits: IndexTraits) -> None:
        self._traits, self._dim = traits, traits.dim

    def nearest(
        self,
        state: IndexState,
        queries: Any,
        options: tuple[Any, ...],
        recall: Any,
        allow: Any,
        deny: Any,
        threads: Any,
    ) -> SearchResult:
        """Search with the arguments of `CBEIndex.search`: `options` are those from `k` to `n_probes`."""
        planned: PreparedSearch | None = None
        if allow is None and deny is None and (threads is None or as_n_threads(threads)):
            planned = state.rows.memo.get(options, recall)
        if planned is not None:
            found = planned.nearest_of_one(queries)
            if found is not None:
                return named(found, planned.selections) if state.rows.has_names else found
        ids = filter_of(allow, deny)
        if not isinstance(ids, FilterPerQuery):
            return self._nearest(state, queries, options, recall, ids, threads)
        frozen = state.frozen()
        each = vectors_by_filter(VectorSource(queries, self._dim, "queries"), self._traits.metric, ids)
        return search_each(*each, lambda some, one: self._nearest(frozen, some, options, recall, one, threads))

    def _nearest(
        self, state: IndexState, queries: Any, options: tuple[Any, ...], recall: Any, ids: IdFilter, threads: Any
    ) -> SearchResult:
        """Search with one filter."""
        found, selections = self.nearest_rows(state, queries, options, recall, ids, threads)
        return named(found, selections) if state.rows.has_names else found

    def nearest_rows(
        self, state: IndexState, queries: Any, options: tuple[Any, ...], recall: Any, ids: IdFilter, threads: Any
    ) -> tuple[SearchResult, tuple[Selection, ...]]:
        """Search with one filter; return results whose ids are those of rows, and where these are.

        Searches with plain options, without a filter or with a prepared one, are planned once while no row changes.
        """
        memo, is_kept = state.rows.memo, ids is NO_FILTER or ids.number is not None
        key = options if ids.number is None else (*options, ids.number)
        planned: PreparedSearch | None = memo.get(key, recall) if is_kept else None
        again = None if planned is None else planned.nearest_of_array(queries, threads)
        if planned is not None and again is not None:
            return again, planned.selections
        source = VectorSource(queries, self._dim, "queries")
        k, mode, rerank, n_candidates, n_probes = options
        request = SearchRequest.checked(
            source.n_rows, k, mode, ids=ids, rerank=rerank, n_candidates=n_candidates, n_probes=n_probes,
            n_threads=threads, recall=recall,
        )  # fmt: skip
        codec, traits, chosen = self._plan(state, request)
        check_result_size(source.n_rows, request.k)
        search = prepared(traits, codec, request, chosen)
        if search is not None:
            if is_kept and chosen.k == request.k:
                memo.put(key, search, recall)
            found = search.nearest(source, request.n_threads).padded(request.k)
        else:
            codec = None if chosen.mode == "exact" else codec
            found = VectorSearch(source, traits, codec, chosen).nearest(request.n_threads).padded(request.k)
        return found.first() if source.is_single else found, chosen.selections

    def within(
        self, state: IndexState, queries: Any, options: tuple[Any, Any, Any], allow: Any, deny: Any, threads: Any
    ) -> RangeResult:
        """Search with the arguments of `CBEIndex.range_search`: `options` are `radius`, `rerank` and `recall`."""
        ids, source = filter_of(allow, deny), VectorSource(queries, self._dim, "queries")
        if not isinstance(ids, FilterPerQuery):
            return self._within(state, source, options, ids, threads)
        frozen = state.frozen()

        def search(some: Any, one: IdFilter) -> RangeResult:
            return self._within(frozen, VectorSource(some, self._dim, "queries"), options, one, threads)

        return search_each(*vectors_by_filter(source, self._traits.metric, ids), search)

    def _within(
        self, state: IndexState, source: VectorSource, options: tuple[Any, Any, Any], ids: IdFilter, threads: Any
    ) -> RangeResult:
        """Search with one filter."""
        codec, traits, chosen, wanted = self._plan_range(state, source, options, ids)
        found = within(source, traits, codec, chosen, wanted, as_n_threads(threads))
        return named(found, chosen.selections) if state.rows.has_names else found

    def _plan_range(
        self, state: IndexState, source: VectorSource, options: tuple[Any, Any, Any], ids: IdFilter
    ) -> tuple[Codec | None, IndexTraits, Plan, Range]:
        """Plan a range search of a state of the index."""
        radius, rerank, recall = options
        if rerank is None:
            raise ValueError("a radius is in the metric of the index: rerank must not be None")
        wanted = Range.checked(radius, recall, state.ingest.vectors is not None)
        mode = "auto" if self._traits.buckets == "graph" and wanted.share < 1 else "scan"
        request = SearchRequest.checked(source.n_rows, 1, mode, ids=ids, rerank=rerank)
        codec, traits, chosen = self._plan(state, request)
        if not traits.reads_vectors and not traits.can_estimate:
            raise ValueError('distances cannot be estimated with this encoder: make the index with vectors="float32"')
        return codec, traits, plan_range(traits, chosen, wanted), wanted

    def explain_range(
        self, state: IndexState, queries: Any, options: tuple[Any, Any, Any], allow: Any, deny: Any
    ) -> Explanation:
        """Explain the search with the arguments of `within`."""
        source = VectorSource(queries, self._dim, "queries")
        _, _, chosen, wanted = self._plan_range(state, source, options, one_filter(allow, deny))
        head = f"{source.n_rows:,} queries, all within {wanted.radius:g} of {chosen.n_stored:,} vectors each"
        return Explanation(head, chosen, range_costs(chosen, wanted))

    def explain(
        self, state: IndexState, queries: Any, options: tuple[Any, ...], recall: Any, allow: Any, deny: Any
    ) -> Explanation:
        """Explain the search with the arguments of `nearest`."""
        source = VectorSource(queries, self._dim, "queries")
        k, mode, rerank, n_candidates, n_probes = options
        request = SearchRequest.checked(
            source.n_rows, k, mode, ids=one_filter(allow, deny), rerank=rerank, n_candidates=n_candidates,
            n_probes=n_probes, recall=recall,
        )  # fmt: skip
        _, traits, chosen = self._plan(state, request)
        head = f"{source.n_rows:,} queries, {chosen.k:,} of {chosen.n_stored:,} vectors each"
        return Explanation(head, chosen, costs(traits, chosen))

    def _plan(self, state: IndexState, request: SearchRequest) -> tuple[Codec | None, IndexTraits, Plan]:
        """Plan a search of a state of the index."""
        snapshot, fixed, ingest = state.rows.search_snapshot(), self._traits, state.ingest
        traits = fixed._replace(
            is_fitted=state.codec is not None,
            keeps_vectors=ingest.vectors is not None and ingest.kept_bits is None,
            can_estimate=fixed.buckets == "graph" or getattr(state.encoder, "is_linear", fixed.can_estimate),
            n_values=state.values_per_vector(snapshot),
            levels=ingest.vectors if ingest.kept_bits is not None else None,
            keeps_levels=ingest.kept_bits is not None and ingest.kept_column == "vectors",
        )
        return state.codec, traits, plan(traits, request, snapshot.segments)
