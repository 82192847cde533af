"""Plans of searches that estimate distances from residual codes."""

from __future__ import annotations

from collections.abc import Sequence

from .._core.tuning import tuning
from .plan import Cost, Plan, Selection, exhaustive
from .request import IndexTraits, SearchRequest, vector_bytes, wanted_recall
from .settings import cheapest, expected_share


def is_by_cells(traits: IndexTraits, request: SearchRequest) -> bool:
    """Return whether a search estimates distances from residual codes, and not from Hamming codes."""
    return traits.buckets == "cells" and request.rerank is not None and request.mode != "cascade"


def refuse(traits: IndexTraits, request: SearchRequest) -> None:
    """Raise ValueError for an option that an index with cells cannot honour."""
    by_cells = is_by_cells(traits, request)
    if not by_cells and not traits.keeps_codes:
        what = 'mode="cascade"' if request.mode == "cascade" else "rerank=None"
        raise ValueError(f"{what} needs Hamming codes, but this index was made with hamming=False")
    if not by_cells and request.mode == "buckets":
        raise ValueError('mode="buckets" visits cells, whose rows have no Hamming order: use another rerank or mode')
    if not by_cells and request.n_probes is not None:
        raise ValueError("n_probes is the number of cells visited, and Hamming distances are searched without cells")
    if by_cells and request.n_candidates is not None and not _reads_vectors(traits, request):
        raise ValueError("n_candidates is the number of vectors read, but all distances are estimates")


def plan_cells(traits: IndexTraits, request: SearchRequest, selections: Sequence[Selection], k: int) -> Plan:
    """Plan a search in cells."""
    reasons = []
    selections = tuple(selections)
    rerank = traits.best_rerank if _reads_vectors(traits, request) else "asymmetric"
    if request.rerank == "auto":
        reasons.append(f"rerank={rerank!r}, because the index keeps {traits.kept_words}")
    n_candidates = microseconds = expected = None
    if request.is_free:
        settings = cheapest(selections, k, wanted_recall(traits, request), vector_bytes(traits, rerank))
        if not settings.is_enough and rerank == "exact":
            return exhaustive(selections, k, "no number of candidates that was measured finds enough")
        selections, microseconds, expected = settings.selections, settings.microseconds, settings.share
        n_candidates = settings.n_candidates if rerank != "asymmetric" else None
    elif rerank != "asymmetric":
        n_candidates = request.n_candidates or max(tuning().cell_candidates_of_k * k, tuning().least_cell_candidates)
    mode, why = _choose_mode(request, selections)
    if not request.is_free and mode == "buckets":
        selections = tuple(s._replace(effort=request.n_probes or _default_effort(s, k)) for s in selections)
    if request.mode == "auto":
        reasons.append(f"{mode}, because {why}")
    if n_candidates is not None:
        more = ", and more where estimates do not tell them apart" if request.is_free else ""
        reasons.append(f"the nearest {n_candidates:,} by estimate are read{more}")
    return Plan(
        mode,
        rerank,
        k,
        n_candidates,
        n_candidates or 0,
        request.n_probes,
        estimates=True,
        reason="; ".join(reasons) or "as requested",
        selections=selections,
        by_cells=True,
        expected_recall=expected if request.is_free else expected_share(selections, k, n_candidates),
        microseconds=microseconds,
        is_graded=request.is_free,
    )


def costs(plan: Plan) -> dict[str, Cost]:
    """Estimate what each mode costs for the rows that a plan selects."""
    parts = [selection.buckets for selection in plan.selections if selection.buckets is not None]
    n_copied = sum(selection.n_scanned for selection in plan.selections if selection.buckets is None)
    by_mode = {"scan": Cost(n_copied + sum(cells.n_rows for cells in parts), sum(c.records.nbytes for c in parts))}
    if parts:
        some = [s.buckets.expected_cost(plan.k, s.effort, 0) for s in plan.selections if s.buckets is not None]
        by_mode["buckets"] = Cost(n_copied + sum(cost.rows for cost in some), sum(cost.bytes for cost in some))
    return by_mode


def _reads_vectors(traits: IndexTraits, request: SearchRequest) -> bool:
    return traits.reads_vectors and request.rerank != "asymmetric"


def _default_effort(selection: Selection, k: int) -> int | None:
    """Return the probes of a search whose mode or candidates are given, but not the probes."""
    if selection.buckets is None:
        return None
    n: int = selection.buckets.default_probes(-(-k * selection.segment.n_rows // max(1, selection.n_visible)))
    return n


def _choose_mode(request: SearchRequest, selections: Sequence[Selection]) -> tuple[str, str]:
    """Return a mode, and why."""
    if request.mode != "auto":
        return request.mode, "it was requested"
    if request.n_probes is not None:
        return "buckets", f"n_probes = {request.n_probes:,}"
    if request.ids.allow is not None and all(selection.rows is not None for selection in selections):
        return "scan", "few rows are allowed"
    divided = [s.buckets for s in selections if s.buckets is not None and s.buckets.n_cells > 1]
    if not divided:
        return "scan", "the data has no clusters" if selections else "there are no rows"
    n_cells, n_centres = sum(cells.n_cells for cells in divided), len(divided[0].codec.centres)
    why = f"there are {n_cells:,} cells in {n_centres} centres, with codes of {divided[0].codec.bits} bits"
    if not request.is_free:
        return "buckets", why
    efforts = [s.effort for s in selections if s.buckets is not None]
    if all(effort is None for effort in efforts):
        return "scan", f"{why}, too many of which would have to be probed"
    return "buckets", f"{why}, of which {max(e for e in efforts if e is not None):,} are probed"
