"""The nearest rows of a segment in Hamming space, by the way that a plan names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._core.typing import Codes, Floats, Ids, Keys, Mask, Rows
from ..data.keys import NO_KEY
from ..store.segment import NOT_HIDDEN, Segment
from . import scan
from .buckets import Cells, Tables, clusters, substrings
from .planner import FEW, Plan


@dataclass(frozen=True)
class View:
    """Those rows of a segment that may be answers.

    Attributes
    ----------
    segment : Segment
    part : Segment
        What is looked at: the segment, or a copy of the few rows that are allowed.
    hidden : bool array
        Rows of the part that must not be answers, or empty.
    rows : int64 array, or None
        Rows of the segment that the part has.
    """

    segment: Segment
    part: Segment
    hidden: Mask
    rows: Rows | None

    @classmethod
    def of(cls, segment: Segment, allow: Ids | None, deny: Ids | None, names: tuple[str, ...] = ()) -> View:
        """Hide the rows that must not be answers; a part of few rows gets the columns in `names`."""
        if allow is not None:
            rows = segment.allowed(allow, deny)
            if len(rows) * FEW <= segment.n_rows:
                return cls(segment, segment.take(rows, names), NOT_HIDDEN, rows)
        return cls(segment, segment, segment.hidden(allow, deny), None)

    @property
    def n_visible(self) -> int:
        """Rows that may be answers."""
        return self.part.n_rows - int(np.count_nonzero(self.hidden))

    def of_segment(self, keys: Keys) -> Keys:
        """Return keys of the part as keys of the segment."""
        if self.rows is None:
            return keys
        ranks = self.segment.ranks[self.rows] if self.segment.ranks.size else self.rows
        none = keys == NO_KEY
        low = ranks[np.where(none, 0, keys & np.uint64(0xFFFFFFFF)).astype(np.int64)] if len(ranks) else 0
        return np.where(none, NO_KEY, (keys & np.uint64(0xFFFFFFFF00000000)) | np.asarray(low, dtype=np.uint64))


def nearest(
    view: View,
    plan: Plan,
    n_bits: int,
    queries: Codes,
    k: int,
    n_threads: int,
    stats: dict[str, Any],
    *,
    margins: Floats | None = None,
    miss: float = scan.DEFAULT_MISS,
) -> Keys:
    """Find the `k` nearest rows of each query: keys in ascending order; `stats` counts what was looked at.

    `margins`, (n_queries, n_bits), tells how certain a query is of its bits.
    """
    part, hidden = view.part, view.hidden
    if plan.mode == "buckets" and part.buckets is not None:
        keys = _in_buckets(view, plan, n_bits, queries, margins, k, n_threads, stats)
    elif plan.mode == "cascade" and part.codes.n_head and part.codes.tail.shape[1]:
        keys, survivors = scan.cascade(part.codes, part.n_rows, n_bits, queries, k, hidden, part.ranks, miss, n_threads)
        count(stats, survivors=survivors.sum())
    else:
        keys = scan.nearest(part.codes, part.n_rows, queries, k, hidden, part.ranks, n_threads)
    return view.of_segment(keys)


def cells_to_visit(view: View, plan: Plan) -> tuple[int, int] | None:
    """Return how many cells of a segment the plan visits, and how many rows that may be answers they have at least.

    None where all rows are looked at. Where rows are hidden, cells are visited until as many others have been met as
    without: what is hidden may be just what is near to a query.
    """
    cells = view.part.buckets
    if plan.mode != "buckets" or not isinstance(cells, Cells):
        return None
    n_probes = plan.n_probes or cells.probes_for(plan.k)
    if n_probes >= cells.n_cells:
        return None
    n_wanted = plan.k if plan.n_probes is not None else max(plan.k, cells.expected_rows(n_probes))
    return n_probes, min(n_wanted, view.n_visible)


def _in_buckets(
    view: View,
    plan: Plan,
    n_bits: int,
    queries: Codes,
    margins: Floats | None,
    k: int,
    n_threads: int,
    stats: dict[str, Any],
) -> Keys:
    """Find the nearest rows by buckets, and by a scan where these do not tell."""
    part, hidden = view.part, view.hidden
    open_ = np.ones(len(queries), dtype=np.bool_)
    keys: Keys = np.empty((len(queries), min(k, part.n_rows)), dtype=np.uint64)
    if isinstance(part.buckets, Tables):
        if plan.n_probes is None:
            keys, done, visits = substrings.nearest(part, n_bits, queries, k, hidden, n_threads)
            open_ = ~done
            count(stats, visited=visits[0], buckets=visits[1])
        elif plan.n_probes < 2**part.buckets.table_bits:
            n_wanted = min(plan.k, view.n_visible)
            keys, done, visits = substrings.probe(
                part, n_bits, queries, margins, k, plan.n_probes, n_wanted, hidden, n_threads
            )
            open_ = ~done
            count(stats, visited=visits[0], buckets=visits[1])
    elif (probes := cells_to_visit(view, plan)) is not None:
        keys, visits = clusters.nearest(part, n_bits, queries, k, *probes, hidden, n_threads)
        open_[:] = False
        count(stats, visited=visits[0], survivors=visits[1], buckets=visits[2])
    if open_.any():
        asked = np.ascontiguousarray(queries[open_])
        keys[open_] = scan.nearest(part.codes, part.n_rows, asked, k, hidden, part.ranks, n_threads)
        count(stats, visited=part.n_rows * len(asked))
    return keys


def count(stats: dict[str, Any], **numbers: int) -> None:
    """Add to what is counted."""
    for name, n in numbers.items():
        stats[name] = stats.get(name, 0) + int(n)
