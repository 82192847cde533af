"""Plans: what the planner decides, and how `explain` shows it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .._core.typing import Mask, Rows
from ..store.segment import Segment
from .request import DEFAULT_MISS


class Selection(NamedTuple):
    """The rows of a segment that a search considers.

    Attributes
    ----------
    segment : Segment
    rows : int64 array, or None
        The allowed rows in the order of ids, if they are few enough to be copied and scanned alone. None if all rows
        are scanned.
    hidden : bool array of shape (n_rows,), or empty
        Rows that are scanned but must not be results.
    effort : int or None
        Cells to probe, or the beam of a walk; None: what the buckets do by default, or everything if the plan is to
        deliver a recall.
    gap : float
        Range search visits the cells that are at most this much farther than the nearest one.
    """

    segment: Segment
    rows: Rows | None
    hidden: Mask
    effort: int | None = None
    gap: float = math.inf

    @property
    def n_scanned(self) -> int:
        """Number of rows that a scan reads."""
        return self.segment.n_rows if self.rows is None else len(self.rows)

    @property
    def n_visible(self) -> int:
        """Number of rows that may be results."""
        return self.n_scanned - int(np.count_nonzero(self.hidden))

    def visible_rows(self) -> Rows:
        """Return the rows that may be results."""
        if self.rows is not None:
            return self.rows
        return np.flatnonzero(~self.hidden) if self.hidden.size else np.arange(self.segment.n_rows)

    @property
    def buckets(self) -> Any:
        """The buckets of the rows that are scanned. Copied rows have none."""
        return self.segment.buckets if self.rows is None else None


class Plan(NamedTuple):
    """How a search is carried out.

    Attributes
    ----------
    mode : {"scan", "cascade", "buckets", "exact"}
        How candidates are found.
    rerank : {None, "asymmetric", "levels", "exact"}
        Kind of the distances that are returned: Hamming, estimated from codes or from kept vectors of 4 or 8 bits, or
        exact.
    k : int
        Number of results, at most the number of rows.
    n_candidates : int or None
        Rows, the nearest by Hamming distance, that are re-ranked. None: the distance of every scanned row is estimated.
    n_exact : int
        Rows, the nearest by estimate, whose exact distances may be computed.
    n_probes : int or None
        Buckets visited in each segment (of substrings: in each table). None: as many as needed.
    estimates : bool
        Whether distances are estimated from codes.
    reason : str
    selections : tuple of Selection
        One for each segment.
    miss : float
        Probability with which the cascade may miss the k-th nearest row.
    by_cells : bool
        Whether distances are estimated from residual codes in cells.
    by_graph : bool
        Whether distances are those of the vertices of a graph.
    expected_recall : float or None
        Share of the true nearest rows that are found on average, None if it is not known.
    microseconds : float or None
        Expected time of a query on one thread, None if it is not known.
    far : float
        Queries whose nearest row is farther are unlike stored rows.
    n_more : int
        What `n_exact` is for queries whose results show that it is too small; 0: no more.
    is_graded : bool
        Whether `n_exact` is for queries like stored rows, and others may read more.
    """

    mode: str
    rerank: str | None
    k: int
    n_candidates: int | None
    n_exact: int
    n_probes: int | None
    estimates: bool
    reason: str
    selections: tuple[Selection, ...] = ()
    miss: float = DEFAULT_MISS
    by_cells: bool = False
    by_graph: bool = False
    expected_recall: float | None = None
    microseconds: float | None = None
    far: float = math.inf
    n_more: int = 0
    is_graded: bool = False

    @property
    def reads_vectors(self) -> bool:
        """Whether distances come from vectors of any kind that are kept beside codes."""
        return self.rerank in ("exact", "levels")

    @property
    def n_stored(self) -> int:
        """Number of rows in the index, without removed rows."""
        return sum(selection.segment.n_rows - selection.segment.n_removed for selection in self.selections)

    @property
    def n_held(self) -> int:
        """Rows that are held for a query at a time, at most: candidates or results."""
        return max(self.k, min(max(self.n_exact, self.n_more, self.n_candidates or 0), self.n_stored))

    def stats(self, n_rows: int) -> dict[str, Any]:
        """Return what results of a search of `n_rows` rows say of the plan."""
        known = {} if self.expected_recall is None else {"expected_recall": round(self.expected_recall, 4)}
        return {"mode": self.mode, "rerank": self.rerank, "rows": n_rows, **known}

    @property
    def largest_effort(self) -> int | None:
        """The effort in the largest segment; None if all of its rows are searched."""
        if self.n_probes is not None or not self.selections or self.mode == "scan":
            return self.n_probes
        return max(self.selections, key=lambda selection: selection.segment.n_rows).effort


def exhaustive(selections: tuple[Selection, ...], k: int, why: str) -> Plan:
    """Plan to compute the distances of all vectors."""
    reason = f"{why}, so the exact distance of every vector is computed"
    return Plan("exact", "exact", k, None, 0, None, False, reason, selections, expected_recall=1.0)


class Cost(NamedTuple):
    """Expected cost of one query: rows scanned, and bytes of codes read."""

    rows: int
    bytes: int


class Explanation(str):
    """What a search does and why, as text.

    Attributes
    ----------
    mode : str
        The mode of the search.
    ways : dict of str to Cost
        The expected cost of each mode.
    expected_recall : float or None
        Share of the true nearest vectors that the search finds on average, if it is known.
    n_probes : int or None
        Cells, or the beam, of the largest segment; None if everything is searched.
    n_candidates : int or None
        Candidates whose exact distances are computed.
    microseconds : float or None
        Expected time of a query on one thread.
    """

    __slots__ = ("expected_recall", "microseconds", "mode", "n_candidates", "n_probes", "ways")
    mode: str
    ways: dict[str, Cost]
    expected_recall: float | None
    n_probes: int | None
    n_candidates: int | None
    microseconds: float | None

    def __new__(cls, head: str, plan: Plan, costs: dict[str, Cost]) -> Explanation:
        """Compose the text."""
        lines = [f"{head}: {plan.reason}"]
        if plan.expected_recall is not None:
            time = "" if plan.microseconds is None else f", about {plan.microseconds:,.0f} microseconds a query"
            lines.append(f"   expected recall {plan.expected_recall:.3f}{time}")
        for mode, cost in costs.items():
            sign = "->" if mode == plan.mode else "  "
            lines.append(f"{sign} {mode}: about {cost.rows:,} rows and {cost.bytes:,} bytes a query")
        explanation = super().__new__(cls, "\n".join(lines))
        explanation.mode, explanation.ways = plan.mode, costs
        explanation.expected_recall, explanation.microseconds = plan.expected_recall, plan.microseconds
        explanation.n_probes, explanation.n_candidates = plan.largest_effort, plan.n_candidates
        return explanation

    def __reduce__(self) -> Any:
        """Restore the attributes after the text."""
        return str.__new__, (type(self), str(self)), (None, {name: getattr(self, name) for name in self.__slots__})
