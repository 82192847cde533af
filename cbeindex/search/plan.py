"""Plans: what the planner decides, and how `explain` shows it."""

from __future__ import annotations

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
    """

    segment: Segment
    rows: Rows | None
    hidden: Mask

    @property
    def n_scanned(self) -> int:
        """Number of rows that a scan reads."""
        return self.segment.n_rows if self.rows is None else len(self.rows)

    @property
    def n_visible(self) -> int:
        """Number of rows that may be results."""
        return self.n_scanned - int(np.count_nonzero(self.hidden))

    @property
    def buckets(self) -> Any:
        """The buckets of the rows that are scanned. Copied rows have none."""
        return self.segment.buckets if self.rows is None else None


class Plan(NamedTuple):
    """How a search is carried out.

    Attributes
    ----------
    mode : {"scan", "cascade", "buckets"}
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

    @property
    def reads_vectors(self) -> bool:
        """Whether distances come from vectors of any kind that are kept beside codes."""
        return self.rerank in ("exact", "levels")

    @property
    def n_stored(self) -> int:
        """Number of rows in the index, without removed rows."""
        return sum(selection.segment.n_rows - selection.segment.n_removed for selection in self.selections)


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
    """

    __slots__ = ("mode", "ways")
    mode: str
    ways: dict[str, Cost]

    def __new__(cls, head: str, plan: Plan, costs: dict[str, Cost]) -> Explanation:
        """Compose the text."""
        lines = [f"{head}: {plan.reason}"]
        for mode, cost in costs.items():
            sign = "->" if mode == plan.mode else "  "
            lines.append(f"{sign} {mode}: about {cost.rows:,} rows and {cost.bytes:,} bytes a query")
        explanation = super().__new__(cls, "\n".join(lines))
        explanation.mode, explanation.ways = plan.mode, costs
        return explanation

    def __reduce__(self) -> Any:
        """Restore the attributes after the text."""
        return str.__new__, (type(self), str(self)), (None, {"mode": self.mode, "ways": self.ways})
