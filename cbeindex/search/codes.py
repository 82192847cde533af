"""Search of binary codes: find the rows of each segment in Hamming distance, merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import candidates
from .plan import Plan, Selection
from .queries import CodeQueries
from .results import IdMatches, RangeResult, SearchResult
from .topk import TopK, merge_segments
from .view import View


def nearest(queries: CodeQueries, plan: Plan) -> SearchResult:
    """Find the `queries.k` nearest rows of each query."""
    views = _views(plan.selections)
    stats: dict[str, Any] = {"mode": plan.mode, "rows": sum(view.part.n_rows for view in views)}
    if plan.mode == "cascade":
        stats["survivors"] = 0
    parts = [TopK.of_keys(candidates.nearest(view, queries, plan, stats), view.segment) for view in views]
    return SearchResult(*merge_segments(parts, len(queries), queries.k, np.int32), stats)


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
