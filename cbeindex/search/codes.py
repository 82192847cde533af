"""Search of binary codes: find the rows of each segment in Hamming distance, merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._core.typing import Codes
from . import candidates
from .plan import Plan, Selection
from .queries import CodeQueries
from .results import IdMatches, RangeResult, SearchResult
from .topk import merge_segments
from .view import View


class CodeSearch(NamedTuple):
    """A planned search, for any queries.

    Attributes
    ----------
    plan : Plan
    views : list of View
    stats : dict
        What all results of the search say.
    n_results : int
        Results wanted of each query, of which `plan.k` can exist.
    """

    plan: Plan
    views: list[View]
    stats: dict[str, Any]
    n_results: int

    @classmethod
    def of(cls, plan: Plan, n_results: int) -> CodeSearch:
        """Make the views that a plan selects."""
        views = _views(plan.selections)
        stats: dict[str, Any] = {"mode": plan.mode, "rows": sum(view.part.n_rows for view in views)}
        if plan.mode == "cascade":
            stats["survivors"] = 0
        return cls(plan, views, stats, n_results)

    def nearest(self, codes: Codes, n_bits: int, n_threads: int) -> SearchResult:
        """Find the nearest rows of each query."""
        queries, stats = CodeQueries(codes, n_bits, self.plan.k, n_threads), self.stats.copy()
        parts = [candidates.results(view, queries, self.plan, stats) for view in self.views]
        found = merge_segments(parts, len(codes), self.plan.k, np.int32)
        return SearchResult.of(*found.padded(self.n_results), stats)


def within(queries: CodeQueries, selections: Sequence[Selection], radius: int) -> RangeResult:
    """Find all rows within a Hamming distance of each query."""
    parts = []
    if len(queries):
        for view in _views(selections):
            found = candidates.within(view, queries, radius)
            parts.append(IdMatches(found.queries, found.distances, view.segment.ids[found.rows]))
    return RangeResult.of_matches(parts, len(queries), np.int32)


def _views(selections: Sequence[Selection]) -> list[View]:
    views = (View.of(selection) for selection in selections)
    return [view for view in views if view.part.n_rows]
