"""Plans of searches that walk through graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .._core.tuning import tuning
from ..distances.vertices import VertexShape
from .plan import Cost, Plan, Selection, exhaustive
from .request import IndexTraits, SearchRequest, vector_bytes, wanted_recall
from .settings import cheapest, expected_share


def is_by_graph(traits: IndexTraits, request: SearchRequest) -> bool:
    """Return whether a search compares the vertices of a graph, and not Hamming codes."""
    return traits.buckets == "graph" and request.rerank is not None and request.mode != "cascade"


def refuse(traits: IndexTraits, request: SearchRequest) -> None:
    """Raise ValueError for an option that an index with graphs cannot honour."""
    by_graph = is_by_graph(traits, request)
    if not by_graph and not traits.keeps_codes:
        what = 'mode="cascade"' if request.mode == "cascade" else "rerank=None"
        raise ValueError(f"{what} needs Hamming codes, but this index was made with hamming=False")
    if not by_graph and request.mode == "buckets":
        raise ValueError('mode="buckets" walks through graphs, which have no Hamming order: use another rerank or mode')
    if not by_graph and request.n_probes is not None:
        raise ValueError("n_probes is the beam of a walk, and Hamming distances are searched without graphs")
    if by_graph and request.n_candidates is not None and not _reads_vectors(traits, request):
        raise ValueError("n_candidates is the number of exact distances, but all distances are those of levels")


def plan_graph(traits: IndexTraits, request: SearchRequest, selections: Sequence[Selection], k: int) -> Plan:
    """Plan a search of graphs."""
    reasons = []
    selections = tuple(selections)
    rerank = "exact" if _reads_vectors(traits, request) else "asymmetric"
    if request.rerank == "auto":
        why = "vectors" if rerank == "exact" else "no vectors but 8 bits a dimension"
        reasons.append(f"rerank={rerank!r}, because the index keeps {why}")
    n_candidates = microseconds = expected = None
    far = math.inf
    if request.is_free:
        settings = cheapest(selections, k, wanted_recall(traits, request), vector_bytes(traits, rerank))
        if not settings.is_enough and rerank == "exact":
            return exhaustive(selections, k, "no number of candidates that was measured finds enough")
        selections, microseconds, expected = settings.selections, settings.microseconds, settings.share
        n_candidates = settings.n_candidates if rerank == "exact" else None
        far = settings.far if rerank == "exact" else math.inf
    else:
        selections = tuple(s._replace(effort=request.n_probes or _default_effort(s, k)) for s in selections)
        if rerank == "exact":
            more = max(tuning().least_graph_candidates, math.ceil(tuning().graph_candidate_share * k))
            n_candidates = request.n_candidates or k + more
    mode, why = _choose_mode(traits, request, selections, k)
    reasons.append(f"{mode}, because {why}")
    if n_candidates is not None:
        reasons.append(f"the nearest {n_candidates:,} by 8 bits a dimension are read")
    return Plan(
        mode,
        rerank,
        k,
        n_candidates,
        n_candidates or 0,
        request.n_probes,
        estimates=True,
        reason="; ".join(reasons),
        selections=selections,
        by_graph=True,
        expected_recall=expected if request.is_free else expected_share(selections, k, n_candidates),
        microseconds=microseconds,
        far=far,
    )


def costs(traits: IndexTraits, plan: Plan) -> dict[str, Cost]:
    """Estimate what each mode costs for the rows that a plan selects."""
    row_bytes = _shape_of(traits).column.row_bytes
    n_all = sum(selection.n_scanned for selection in plan.selections)
    by_mode = {"scan": Cost(n_all, n_all * row_bytes)}
    graphs = [selection.buckets for selection in plan.selections if selection.buckets is not None]
    if graphs:
        some = [s.buckets.expected_cost(plan.k, s.effort, 0) for s in plan.selections if s.buckets is not None]
        n_scanned = n_all - sum(graph.n_rows for graph in graphs)
        by_mode["buckets"] = Cost(
            n_scanned + sum(cost.rows for cost in some), n_scanned * row_bytes + sum(cost.bytes for cost in some)
        )
    return by_mode


def _shape_of(traits: IndexTraits) -> VertexShape:
    """Return the sizes of vertices, which have levels of all dimensions where they are the kept vectors."""
    return VertexShape.of(traits.dim, traits.n_bits if traits.levels is None else max(traits.n_bits, traits.dim))


def _reads_vectors(traits: IndexTraits, request: SearchRequest) -> bool:
    return traits.keeps_vectors and request.rerank != "asymmetric"


def _default_effort(selection: Selection, k: int) -> int | None:
    """Return the beam of a search whose mode or candidates are given, but not the beam."""
    if selection.buckets is None:
        return None
    n: int = selection.buckets.default_beam(-(-k * selection.segment.n_rows // max(1, selection.n_visible)))
    return n


def _choose_mode(
    traits: IndexTraits, request: SearchRequest, selections: Sequence[Selection], k: int
) -> tuple[str, str]:
    """Return a mode, and why. Where no graph is worth a walk, that is a scan, also if walks were requested."""
    if request.mode == "scan":
        return "scan", "it was requested"
    if request.ids.allow is not None and all(selection.rows is not None for selection in selections):
        return "scan", "few rows are allowed"
    if all(s.buckets is None for s in selections):
        return "scan", "there are too few rows for a graph" if selections else "there are no rows"
    beams = [s.buckets.walked_beam(s.effort) for s in selections if s.buckets is not None]
    if not any(beams):
        return "scan", "walks with the beam that is needed among the rows that may be results take longer"
    n_bytes = _shape_of(traits).record_bytes
    return "buckets", f"graphs with records of {n_bytes:,} bytes a row are walked with a beam of {max(beams):,}"
