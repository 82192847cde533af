"""The nearest rows of a segment in Hamming space, by the way that a plan names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from . import scan
from ._typing import Codes, Floats, Ids, Keys, Mask, Rows
from .buckets import Cells, Tables, clusters, substrings
from .planner import FEW, Plan
from .results import NO_KEY
from .segments import NOT_HIDDEN, Segment


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
        _count(stats, "survivors", int(survivors.sum()))
    else:
        keys = scan.nearest(part.codes, part.n_rows, queries, k, hidden, part.ranks, n_threads)
    return view.of_segment(keys)


def cells_to_visit(view: View, plan: Plan) -> int | None:
    """Return how many cells of a segment the plan visits; None where all rows are looked at."""
    cells = view.part.buckets
    if plan.mode != "buckets" or not isinstance(cells, Cells):
        return None
    share = view.n_visible / max(1, view.part.n_rows)
    n_probes = plan.n_probes or cells.probes_for(plan.k, share)
    return n_probes if n_probes < cells.n_cells else None


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
    if isinstance(part.buckets, Tables):
        if plan.n_probes is not None:
            keys, visits = substrings.probe(part, n_bits, queries, margins, k, plan.n_probes, hidden, n_threads)
            open_ = np.zeros(len(queries), dtype=np.bool_)
        else:
            keys, done, visits = substrings.nearest(part, n_bits, queries, k, hidden, n_threads)
            open_ = ~done
        _count(stats, "visited", int(visits[0]))
        _count(stats, "buckets", int(visits[1]))
    else:
        n_probes = cells_to_visit(view, plan)
        if n_probes is None:
            open_ = np.ones(len(queries), dtype=np.bool_)
            keys = np.empty((len(queries), min(k, part.n_rows)), dtype=np.uint64)
        else:
            keys, n_visited, n_survivors = clusters.nearest(part, n_bits, queries, k, n_probes, hidden, n_threads)
            open_ = missing_answers(keys, plan.k, view.n_visible)
            _count(stats, "visited", n_visited)
            _count(stats, "survivors", n_survivors)
            _count(stats, "buckets", n_probes * len(queries))
    if open_.any():
        asked = np.ascontiguousarray(queries[open_])
        keys[open_] = scan.nearest(part.codes, part.n_rows, asked, k, hidden, part.ranks, n_threads)
        _count(stats, "visited", part.n_rows * len(asked))
    return keys


def missing_answers(keys: Keys, k: int, n_visible: int) -> Mask:
    """Tell which queries have fewer than `k` keys, though there are rows for them."""
    wanted = min(k, keys.shape[1], n_visible)
    return keys[:, wanted - 1] == NO_KEY if wanted else np.zeros(len(keys), dtype=np.bool_)


def _count(stats: dict[str, Any], name: str, n: int) -> None:
    stats[name] = stats.get(name, 0) + n
