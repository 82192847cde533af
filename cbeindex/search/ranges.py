"""Range search: its plan, and the search that carries it out."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .._core.checks import as_real, as_share
from .._core.tuning import tuning
from ..data.source import VectorSource
from ..distances.codec import Codec
from .cellrange import CellRangeSearch
from .graphsearch import GraphSearch
from .pipeline import VectorSearch
from .plan import Cost, Plan, Selection
from .request import IndexTraits
from .results import RangeResult


class Range(NamedTuple):
    """The checked arguments of a range search.

    Attributes
    ----------
    radius : float
    share : float
        Share of the rows within the radius to find; 1: all rows are compared.
    """

    radius: float
    share: float

    @classmethod
    def checked(cls, radius: object, recall: object, keeps_vectors: bool) -> Range:
        """Check each argument. By default all rows of an index of codes only are compared."""
        default = tuning().default_recall if keeps_vectors else 1.0
        return cls(as_real(radius, "radius"), default if recall is None else as_share(recall, "recall"))

    @property
    def bound(self) -> np.float32:
        """The radius as distances are; a radius beyond float32 is infinite."""
        with np.errstate(over="ignore"):
            return np.float32(self.radius)


def plan_range(traits: IndexTraits, chosen: Plan, wanted: Range) -> Plan:
    """Plan a range search from the plan of a scan, or of walks in a graph."""
    if chosen.by_graph:
        is_walk = chosen.mode != "scan"
        reason = "graphs are walked while there are rows within the radius" if is_walk else "every row is compared"
        recall = None if is_walk else 1.0
        return chosen._replace(reason=reason, expected_recall=recall, microseconds=None, n_candidates=None)
    reason, mode, share = "every row is compared", "scan", 1.0
    selections = chosen.selections
    if chosen.by_cells and wanted.share < 1:
        selections = tuple(s._replace(gap=_gap(s, wanted)) for s in selections)
        finite = [s.gap for s in selections if s.gap < math.inf]
        reason = "no cells can be left out at this radius and recall, so every row is compared"
        if selections and all(s.rows is not None for s in selections):
            reason = "few rows are allowed, and all of them are compared"
        if finite:
            mode, share = "buckets", wanted.share
            reason = f"cells are visited whose squared distance is within {max(finite):.3g} of that of the nearest one"
    elif traits.buckets == "substrings" and wanted.share < 1 and traits.metric != "ip" and traits.can_estimate:
        mode, share = "buckets", wanted.share
        reason = "tables hold the rows whose codes differ in as few bits as the radius allows, or every row is compared"
    return chosen._replace(
        mode=mode, reason=reason, selections=selections, expected_recall=share, microseconds=None, n_candidates=None
    )


def range_costs(chosen: Plan, wanted: Range) -> dict[str, Cost]:
    """Estimate what a range search costs that visits cells, and one that compares all rows."""
    if not chosen.by_cells:
        return {}
    visited, everything = Cost(0, 0), Cost(0, 0)
    for selection in chosen.selections:
        n_rows, cells = selection.n_scanned, selection.buckets
        n_bytes = 0 if cells is None else cells.records.nbytes
        share = cells.ranges.visited(*wanted) if selection.gap < math.inf else 1.0
        visited = Cost(visited.rows + int(share * n_rows), visited.bytes + int(share * n_bytes))
        everything = Cost(everything.rows + n_rows, everything.bytes + n_bytes)
    return {"scan": everything} | ({"buckets": visited} if chosen.mode == "buckets" else {})


def within(
    source: VectorSource, traits: IndexTraits, codec: Codec | None, chosen: Plan, wanted: Range, n_threads: int
) -> RangeResult:
    """Find the rows within the radius of each query."""
    if codec is not None and chosen.by_cells:
        return CellRangeSearch(traits, codec, chosen).within(source, wanted.bound, n_threads)
    if codec is not None and chosen.by_graph:
        return GraphSearch(traits, codec, chosen).within(source, wanted.bound, n_threads)
    return VectorSearch(source, traits, codec, chosen).within(wanted.bound, wanted.share, n_threads)


def _gap(selection: Selection, wanted: Range) -> float:
    """Return the gap of the cells of a segment that are visited; infinity for all of them."""
    cells = selection.buckets
    return math.inf if cells is None or cells.ranges is None else cells.ranges.gap(*wanted)
