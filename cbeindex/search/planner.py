"""Planner: choose how a search is carried out, and say why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .._core.tuning import tuning
from ..data.codes import PREFIX_WORDS, is_long, n_words
from ..store.segment import Segment
from . import cellplan, graphplan
from .buckets import MAKERS
from .filters import IdFilter
from .plan import Cost, Plan, Selection, exhaustive
from .request import IndexTraits, SearchRequest, wanted_recall


def plan(traits: IndexTraits, request: SearchRequest, segments: Sequence[Segment]) -> Plan:
    """Plan a search; raises ValueError for an option that the index cannot honour.

    "auto" is exact for an index of codes, unless it has clusters.
    """
    _refuse(traits, request)
    selections = select(segments, request.ids)
    n_rows = sum(segment.n_rows for segment in segments)
    k = max(1, min(request.k, n_rows))
    if not traits.is_fitted:
        reason = "the index is not fitted yet, so the exact distance of every vector is computed"
        return Plan("scan", "exact", k, None, 0, None, False, reason, selections, expected_recall=1.0)
    if is_exhaustive(request):
        return exhaustive(selections, k, "all neighbours are to be found")
    if cellplan.is_by_cells(traits, request):
        return cellplan.plan_cells(traits, request, selections, k)
    if graphplan.is_by_graph(traits, request):
        return graphplan.plan_graph(traits, request, selections, k)
    return _Draft(traits, request, selections, k, n_rows).plan()


def is_exhaustive(request: SearchRequest) -> bool:
    """Return whether the distances of all vectors are to be computed."""
    return request.mode == "exact" or request.recall == 1


def select(segments: Sequence[Segment], ids: IdFilter) -> tuple[Selection, ...]:
    """Choose the rows of each segment that a search considers: few allowed rows are copied, others are hidden."""
    ids = ids.on(segments)
    return tuple(Selection(segment, *ids.selected(segment)) for segment in segments)


def cautious(traits: IndexTraits, request: SearchRequest, chosen: Plan) -> Plan:
    """Plan a search of graphs for queries that are unlike stored rows: few of the misses, and more candidates."""
    more, misses = chosen, 1 - wanted_recall(traits, request)
    for share in tuning().far_shares_of_misses:
        asked = request._replace(recall=1 - share * misses)
        planned = graphplan.plan_graph(traits, asked, chosen.selections, chosen.k)
        if planned.mode != "exact":  # which is planned where so few misses were not measured
            more = planned
            break
    n_candidates = tuning().far_candidates * (more.n_candidates or 0)
    return more._replace(n_candidates=n_candidates, n_exact=n_candidates, far=math.inf)


def costs(traits: IndexTraits, plan: Plan) -> dict[str, Cost]:
    """Estimate what each mode costs for the rows that a plan selects."""
    if not traits.is_fitted or plan.mode == "exact":
        return {}
    if plan.by_cells:
        return cellplan.costs(plan)
    if plan.by_graph:
        return graphplan.costs(traits, plan)
    return _costs(traits, plan.selections, plan.k, plan.n_probes)


def _costs(traits: IndexTraits, selections: Sequence[Selection], k: int, n_probes: int | None) -> dict[str, Cost]:
    n_rows = sum(selection.n_scanned for selection in selections)
    code_bytes, prefix_bytes = 8 * n_words(traits.n_bits), 8 * PREFIX_WORDS
    by_mode = {"scan": Cost(n_rows, n_rows * code_bytes)}
    if selections and all(selection.rows is not None for selection in selections):  # copies have no other mode
        return by_mode
    by_mode["cascade"] = by_mode["scan"]  # of codes that are short or stored row by row
    if is_long(traits.n_bits) and _has_blocks(selections):
        n_survivors = int(tuning().cascade_survivor_share * n_rows) + min(n_rows, 2 * k)
        by_mode["cascade"] = Cost(n_rows, n_rows * prefix_bytes + n_survivors * (code_bytes - prefix_bytes))
    if traits.buckets is not None and MAKERS[traits.buckets].has_hamming_order:
        parts = [
            Cost(s.n_scanned, s.n_scanned * code_bytes)
            if s.buckets is None
            else s.buckets.expected_cost(k, n_probes, code_bytes)
            for s in selections
        ]
        by_mode["buckets"] = Cost(sum(part.rows for part in parts), sum(part.bytes for part in parts))
    return by_mode


def _has_blocks(selections: Sequence[Selection]) -> bool:
    """Return whether all codes are stored in blocks; segments with tables store codes row by row."""
    return not any(selection.buckets is not None and selection.buckets.stores_codes_by_row for selection in selections)


def _refuse(traits: IndexTraits, request: SearchRequest) -> None:
    """Raise ValueError for an option that the index cannot honour."""
    rerank, n_candidates, n_probes, mode = request.rerank, request.n_candidates, request.n_probes, request.mode
    if rerank == "exact" and traits.levels is not None:
        raise ValueError(
            f'rerank="exact" needs float or sparse vectors, but this index keeps vectors="{traits.levels}", whose '
            'distances are estimates with errors: use rerank="auto"'
        )
    if rerank == "exact" and not traits.keeps_vectors:
        raise ValueError(
            'rerank="exact" needs vectors, but this index keeps codes only: make it with vectors="float32"'
        )
    if rerank == "asymmetric" and not traits.can_estimate and traits.buckets != "graph":
        raise ValueError('rerank="asymmetric" needs a linear encoder, and that of this index is not: use rerank=None')
    if is_exhaustive(request):
        _refuse_exhaustive(traits, request)
        return
    if n_candidates is not None and rerank is None:
        raise ValueError("n_candidates is the number of re-ranked rows, but rerank is None")
    if n_candidates is not None and n_candidates < request.k:
        raise ValueError(f"n_candidates must be at least k = {request.k}, got {n_candidates}")
    if traits.buckets is None and mode == "buckets":
        raise ValueError('mode="buckets" needs buckets, but this index has none: make it with buckets="clusters"')
    if traits.buckets is None and n_probes is not None:
        raise ValueError(f"n_probes is the number of buckets visited, but this index has none, got {n_probes}")
    if n_probes is not None and mode not in ("auto", "buckets"):
        raise ValueError(f"n_probes is the number of buckets visited, but mode is {mode!r}")
    if traits.buckets == "cells":
        cellplan.refuse(traits, request)
    if traits.buckets == "graph":
        graphplan.refuse(traits, request)


def _refuse_exhaustive(traits: IndexTraits, request: SearchRequest) -> None:
    """Raise ValueError if an index cannot compute the distances of all vectors, or need not."""
    what = 'mode="exact"' if request.mode == "exact" else "recall=1.0"
    if not traits.keeps_vectors and traits.is_fitted:
        kept = traits.kept_words
        raise ValueError(
            f"{what} needs float or sparse vectors, but this index keeps {kept}: "
            'make it with vectors="float32", or ask for a recall below 1'
        )
    for name, value in (("n_probes", request.n_probes), ("n_candidates", request.n_candidates)):
        if value is not None:
            raise ValueError(f"{what} computes the distances of all vectors, so it has no {name}, got {value}")
    if request.rerank not in ("auto", "exact"):
        raise ValueError(f'{what} returns exact distances: rerank must be "auto" or "exact", got {request.rerank!r}')


class _Draft(NamedTuple):
    """What is known while a search of a fitted index is planned."""

    traits: IndexTraits
    request: SearchRequest
    selections: tuple[Selection, ...]
    k: int
    n_rows: int

    def plan(self) -> Plan:
        """Decide, in this order, on the kind of distances, the mode, and the candidates."""
        traits, request, reasons = self.traits, self.request, []
        rerank, mode, n_candidates = request.rerank, request.mode, request.n_candidates
        if n_candidates is not None:
            n_candidates = max(1, min(n_candidates, self.n_rows))
        if rerank == "auto":
            rerank, why = self._choose_rerank()
            reasons.append(f"rerank={rerank!r}, because {why}")
        if request.ids.allow is not None and all(s.rows is not None for s in self.selections):
            reasons.append(f"only the {self._n_visible:,} allowed rows are scanned")
            mode = "scan" if mode == "auto" else mode
        if mode == "auto":
            mode, why = self._choose_mode(rerank, n_candidates)
            reasons.append(f"{mode}, because {why}")
        if rerank is not None and n_candidates is None:
            why_all = self._why_estimate_all(mode)
            if why_all is None:
                n_candidates = self._enough
                reasons.append(f"the nearest {n_candidates:,} by Hamming distance are re-ranked")
            else:
                reasons.append(f"the distance of every scanned row is estimated, because {why_all}")
        # Reading a few candidates that are short vectors takes less time than weighing their codes.
        few = n_candidates is not None and n_candidates <= tuning().exact_rows_of_k * self.k
        reads_all = rerank == "exact" and few and traits.n_values <= 2 * traits.n_bits
        return Plan(
            mode,
            rerank,
            self.k,
            n_candidates,
            self._n_exact(),
            request.n_probes,
            estimates=traits.can_estimate and rerank is not None and not reads_all,
            reason="; ".join(reasons) or "as requested",
            selections=self.selections,
            miss=request.miss,
            n_more=self._n_more(),
        )

    @property
    def _enough(self) -> int:
        """The default number of candidates."""
        return max(8 * self.k, tuning().least_candidates)

    @property
    def _n_visible(self) -> int:
        return sum(selection.n_visible for selection in self.selections)

    def _n_exact(self) -> int:
        """Return the number of rows, nearest by estimate, whose exact distances may be computed."""
        is_short = self.traits.n_bits < tuning().few_exact_bits
        least = tuning().least_exact_rows_of_short_codes if is_short else tuning().least_exact_rows
        return max(tuning().exact_rows_of_k * self.k, least)

    def _n_more(self) -> int:
        """Return the number of these rows where norms count and errors turn out to be large."""
        if self.traits.metric == "cosine":
            return 0
        return max(tuning().exact_rows_of_k_with_norms * self.k, tuning().least_exact_rows_with_norms)

    def _choose_rerank(self) -> tuple[str | None, str]:
        """Return the best kind of distances that the index can compute, and why."""
        if self.traits.reads_vectors:
            return self.traits.best_rerank, f"the index keeps {self.traits.kept_words}"
        if self.traits.can_estimate:
            return "asymmetric", "the index keeps codes only"
        return None, "its encoder is not linear, so distances cannot be estimated"

    def _choose_mode(self, rerank: str | None, n_candidates: int | None) -> tuple[str, str]:
        """Return a mode, and why. The cascade, which may miss rows, is never chosen for an index of codes."""
        traits, request = self.traits, self.request
        if request.n_probes is not None:
            return "buckets", f"n_probes = {request.n_probes:,}"
        maker = None if traits.buckets is None else MAKERS[traits.buckets]
        maker = maker if maker is not None and maker.has_hamming_order else None
        has_buckets = any(selection.buckets is not None for selection in self.selections)
        n_wanted = self.k if rerank is None else n_candidates or self._enough
        if maker is not None and maker.is_exact and has_buckets and n_wanted <= tuning().most_substring_results:
            return "buckets", "substrings find the nearest rows exactly, or leave them to a scan"
        by_estimate = rerank is not None and n_candidates is None and self._why_estimate_all("scan") is not None
        mode, why_mode = self._scan_or_cascade(n_wanted, by_estimate)
        if maker is None:
            return mode, why_mode
        if not has_buckets:
            return mode, f"there are too few rows for buckets, and {why_mode}"
        if maker.is_exact:
            return mode, why_mode
        return self._cells_or(mode, why_mode)

    def _cells_or(self, mode: str, why_mode: str) -> tuple[str, str]:
        """Choose between cells and the best mode without them."""
        if self.traits.metric == "ip":
            return mode, f"cells ignore the norms of vectors, which count under 'ip', and {why_mode}"
        if self.request.ids.allow is not None and 2 * self._n_visible < self.n_rows:
            return mode, f"the {self._n_visible:,} allowed rows may be in any cell, and {why_mode}"
        by_mode = _costs(self.traits, self.selections, self.k, None)
        share = 100 * by_mode["buckets"].rows / max(1, by_mode["scan"].rows)
        why = f"the cells that hold the nearest rows have {share:.0f} in 100 of all rows"
        price = tuning().cell_byte_cost if self.request.n_queries >= tuning().batch_queries else 1
        if price * by_mode["buckets"].bytes < by_mode[mode].bytes:
            return "buckets", why
        return mode, f"{why}, and {why_mode}"

    def _scan_or_cascade(self, n_wanted: int, by_estimate: bool) -> tuple[str, str]:
        """Choose between the modes that need no buckets."""
        n_bits, is_batch = self.traits.n_bits, self.request.n_queries >= tuning().batch_queries
        if self.traits.metric == "hamming":
            return "scan", "it is exact"
        if not _has_blocks(self.selections):
            return "scan", "substrings do not pay for this many candidates, and codes with tables are read whole"
        if by_estimate:
            return "scan", "every row is scanned"
        if n_bits < (tuning().cascade_batch_bits if is_batch else tuning().cascade_bits):
            batch = " in a batch" if n_bits >= tuning().cascade_bits else ""
            return "scan", f"codes of {n_bits} bits are not long enough for the cascade{batch}"
        n_scanned = sum(selection.n_scanned for selection in self.selections)
        if n_wanted * tuning().cascade_share > n_scanned:
            return "scan", "too large a share of the rows is wanted"
        return "cascade", f"512 of {n_bits} bits rule most rows out"

    def _why_estimate_all(self, mode: str) -> str | None:
        """Say why the distances of all scanned rows are estimated, None if Hamming distances choose candidates."""
        traits = self.traits
        maker = None if traits.buckets is None else MAKERS[traits.buckets]
        if mode == "cascade" or not traits.can_estimate:
            return None
        if mode == "buckets" and maker is not None and not maker.can_estimate:
            return None
        if mode == "buckets" and traits.n_bits <= tuning().estimate_cell_bits:
            return "rows of a cell are stored contiguously"
        if traits.n_bits <= tuning().estimate_all_bits:
            return f"codes of {traits.n_bits} bits are short"
        if traits.metric != "cosine":
            return f"norms count under {traits.metric!r}, and Hamming distances ignore them"
        if self.n_rows <= 8 * self._enough:
            return f"there are only {self.n_rows:,}"
        return None
