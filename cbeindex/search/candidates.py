"""Candidates: the rows of a segment nearest to each query in Hamming distance, found in the mode of the plan."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.codes import is_long
from ..data.keys import HammingKeys
from . import cascade, scan
from .buckets.base import BucketResult, Buckets, Visits
from .plan import Plan
from .queries import CodeQueries
from .topk import TopK
from .view import View


def nearest(view: View, queries: CodeQueries, plan: Plan, stats: dict[str, Any]) -> HammingKeys:
    """Find the nearest rows of each query: keys of rows in `view.segment`, ascending. `stats` counts what was read."""
    part = view.part
    if plan.mode == "buckets" and part.buckets is not None:
        keys = _in_buckets(part.buckets, view, queries, plan, stats)
    else:
        found = _by_cascade(view, queries, plan, stats)
        keys = scan.nearest(view, queries) if found is None else found
    return view.segment_keys(keys)


def results(view: View, queries: CodeQueries, plan: Plan, stats: dict[str, Any]) -> TopK:
    """Find the nearest rows of each query, with their distances and ids. `stats` counts what was read."""
    if plan.mode != "buckets":
        found = _in_one_call(view, queries, plan, stats)
        if found is not None:
            return found
    return TopK.of_keys(nearest(view, queries, plan, stats), view.segment)


def within(view: View, queries: CodeQueries, radius: int) -> scan.Matches:
    """Find all rows within a Hamming distance of each query; `rows` are those of `view.segment`."""
    found = None if view.part.buckets is None else view.part.buckets.within(view, queries, radius)
    if found is None:
        found = scan.within(view, queries, radius)
    return found._replace(rows=view.segment_rows(found.rows))


def count(stats: dict[str, Any], **numbers: int) -> None:
    """Add to the counts in `stats`."""
    for name, n in numbers.items():
        stats[name] = stats.get(name, 0) + n


def count_visits(stats: dict[str, Any], visits: Visits) -> None:
    """Add the visits of a search by buckets to the counts in `stats`."""
    count(stats, visited=visits.rows, buckets=visits.buckets)
    if visits.survivors is not None:
        count(stats, survivors=visits.survivors)


def _has_cascade(view: View, queries: CodeQueries, plan: Plan) -> bool:
    """Return whether the plan has a cascade, and codes whose first words are worth comparing alone."""
    return plan.mode == "cascade" and is_long(queries.n_bits) and not view.part.codes.is_by_row and len(queries) > 0


def _in_one_call(view: View, queries: CodeQueries, plan: Plan, stats: dict[str, Any]) -> TopK | None:
    """Find the nearest rows of each query by one call of a kernel, if there is one that can do all of it."""
    if not _has_cascade(view, queries, plan):
        return scan.results(view, queries)
    found = cascade.results(view, queries, plan.miss)
    if found is None:
        return None
    count(stats, survivors=found[1])
    return found[0]


def _by_cascade(view: View, queries: CodeQueries, plan: Plan, stats: dict[str, Any]) -> HammingKeys | None:
    """Find the nearest rows by the cascade; None if the plan has none, or all rows are to be scanned."""
    if not _has_cascade(view, queries, plan):
        return None
    found = cascade.nearest(view, queries, plan.miss)
    if found is None:
        count(stats, survivors=view.n_visible * len(queries))
        return None
    count(stats, survivors=int(found[1].sum()))
    return found[0]


def _in_buckets(buckets: Buckets, view: View, queries: CodeQueries, plan: Plan, stats: dict[str, Any]) -> HammingKeys:
    """Search by buckets, and scan for the queries that buckets leave to a scan."""
    found = buckets.nearest(view, queries, plan)
    if found is None:
        count(stats, visited=view.part.n_rows * len(queries))
        return scan.nearest(view, queries)
    count_visits(stats, found.visits)
    return _scan_rest(found, view, queries, stats)


def _scan_rest(found: BucketResult, view: View, queries: CodeQueries, stats: dict[str, Any]) -> HammingKeys:
    left = np.flatnonzero(~found.is_done)
    if not left.size:
        return found.keys
    found.keys.packed[left] = scan.nearest(view, queries.some(left)).packed
    count(stats, visited=view.part.n_rows * len(left))
    return found.keys
