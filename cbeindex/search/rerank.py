"""Re-ranking: from the rows of a segment to a shortlist with estimated distances, and on to exact distances."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._core.tuning import tuning
from .._core.typing import Floats, Mask, Rows
from ..data.keys import NO_ID, EstimateKeys
from ..distances.kept import Candidates, KeptVectors
from ..store.segment import Segment
from . import candidates, estimates, exact
from .buckets.base import Buckets
from .plan import Plan
from .queries import EncodedBatch
from .topk import TopK
from .view import View


class Shortlist(NamedTuple):
    """Rows of a segment that are re-ranked.

    Attributes
    ----------
    segment : Segment
    rows : int64 array of shape (n_queries, any)
    is_missing : bool array of the same shape
        Places at the end without a row.
    estimates : float32 array of the same shape, or None if distances are not estimated
    """

    segment: Segment
    rows: Rows
    is_missing: Mask
    estimates: Floats | None


def nearest_by_hamming(view: View, batch: EncodedBatch, plan: Plan) -> TopK:
    """Find the nearest rows by Hamming distance."""
    return candidates.results(view, batch.code_queries(plan.k), plan, batch.stats)


def nearest_by_estimate(view: View, batch: EncodedBatch, plan: Plan) -> TopK:
    """Find the nearest rows by estimated distance."""
    if plan.n_candidates is None:
        return TopK.of_keys(_estimate_all(view, batch, plan, plan.k, 0.0), view.segment)
    shortlist = _shortlist_by_hamming(view, batch, plan, plan.n_candidates)
    assert shortlist.estimates is not None
    ids = np.where(shortlist.is_missing, NO_ID, view.segment.ids[shortlist.rows])
    return TopK(shortlist.estimates, ids).smallest(plan.k)


def nearest_exactly(view: View, batch: EncodedBatch, plan: Plan, kept: KeptVectors) -> TopK:
    """Find the nearest rows by exact distance, reading only vectors whose estimate leaves them a chance."""
    if plan.n_candidates is not None:
        shortlist = _shortlist_by_hamming(view, batch, plan, plan.n_candidates)
        return _read(shortlist, batch, plan, kept)
    shortlist = _shortlist_by_estimate(view, batch, plan, plan.n_exact)
    found = _read(shortlist, batch, plan, kept)
    if plan.n_more > plan.n_exact and (left := np.flatnonzero(_is_short(shortlist, found))).size:
        some = batch.some(left)
        longer = _shortlist_by_estimate(view, some, plan, plan.n_more)
        found.distances[left], found.ids[left] = _read(longer, some, plan, kept)
    return found


def _read(shortlist: Shortlist, batch: EncodedBatch, plan: Plan, kept: KeptVectors) -> TopK:
    """Find the nearest rows of a shortlist by exact distance."""
    found, n_read = exact.nearest(kept, batch.vectors, _bounded(shortlist, batch), plan.k, batch.n_threads)
    candidates.count(batch.stats, vectors_read=n_read)
    return found


def _is_short(shortlist: Shortlist, found: TopK) -> Mask:
    """Return for which queries one of the farthest results comes from the second half of a shortlist.

    Rows that are not in the list may then be among the nearest too: errors are large, or differ much between rows.
    """
    segment, rows, is_missing, _ = shortlist
    deep = segment.ids[rows[:, rows.shape[1] // 2 :]]
    is_short = np.zeros(len(rows), dtype=np.bool_)
    for ids in found.ids[:, -tuning().deep_results :].T:
        is_short |= (deep == ids[:, np.newaxis]).any(axis=1)
    return is_short & ~is_missing[:, -1]


def _shortlist_by_hamming(view: View, batch: EncodedBatch, plan: Plan, n_candidates: int) -> Shortlist:
    """Take the nearest rows by Hamming distance, and estimate their distances if the plan says so."""
    segment = view.segment
    keys = candidates.nearest(view, batch.code_queries(n_candidates), plan, batch.stats)
    rows, is_missing = segment.rows_of(keys), keys.is_missing()
    if not plan.estimates:
        return Shortlist(segment, rows, is_missing, None)
    near = estimates.distances(segment, batch.encoded, rows, batch.n_threads)
    near[is_missing] = np.inf
    return Shortlist(segment, rows, is_missing, near)


def _shortlist_by_estimate(view: View, batch: EncodedBatch, plan: Plan, n_exact: int) -> Shortlist:
    """Take the `n_exact` rows that are most likely to be nearest, by their estimates and standard errors."""
    segment, n_sigmas = view.segment, tuning().knn_sigmas
    keys = _estimate_all(view, batch, plan, n_exact, n_sigmas)
    rows = segment.rows_of(keys)
    margins = n_sigmas * batch.encoded.norms[:, np.newaxis] * segment.columns["spreads"][rows]
    return Shortlist(segment, rows, keys.is_missing(), keys.distances() + margins)


def _estimate_all(view: View, batch: EncodedBatch, plan: Plan, k: int, n_sigmas: float) -> EstimateKeys:
    """Estimate the distances of all rows, or of those in the cells that the plan visits; see `estimates.nearest`."""
    queries, n_threads = batch.encoded, batch.n_threads
    buckets: Buckets | None = view.part.buckets
    if plan.mode == "buckets" and buckets is not None:
        found = buckets.nearest_by_estimate(view, queries, k, n_sigmas, plan, n_threads)
        if found is not None:
            keys, visits = found
            candidates.count_visits(batch.stats, visits)
            return view.segment_keys(keys)
    return view.segment_keys(estimates.nearest(view, queries, k, n_sigmas, n_threads))


def _bounded(shortlist: Shortlist, batch: EncodedBatch) -> Candidates:
    """Bound the distances of a shortlist from below."""
    segment, rows, is_missing, near = shortlist
    counts = np.count_nonzero(~is_missing, axis=1)
    if near is None:
        return Candidates(rows, counts, np.full(rows.shape, -np.inf, dtype=np.float32))
    lower = batch.encoded.lower_bounds(np.where(is_missing, 0, near), segment.columns, rows, tuning().knn_sigmas)
    return Candidates(rows, counts, lower)
