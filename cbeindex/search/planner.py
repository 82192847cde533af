"""Which way a search goes, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._core.typing import Ids
from ..data.codes import HEAD_WORDS, n_words
from ..data.sorted import without
from ..store.segment import Part

# Measured on codes of 832 to 2,048 bits: 99.5 % of the true ten are among the nearest 600 by Hamming distance.
_LEAST_CANDIDATES = 640
# Codes of which every row's distance can be estimated in about the time of a Hamming scan and its re-ranking.
_SHORT_BITS = 512
# The same for rows in cells: estimating all of them is faster than reading the best by Hamming distance again.
_CELL_BITS = 1024
# Codes whose estimates leave few candidates open.
_SURE_BITS = 512
# Where the cascade overtakes the scan: codes of so many bits for one query, and for a batch, which a scan answers
# together; and no more than one row in so many wanted.
_CASCADE_BITS = 2048
_CASCADE_BITS_OF_BATCH = 4096
_CASCADE_SHARE = 256
# Rows of which the cascade looks at more than the head: measured, 2 to 10 in a hundred.
_SURVIVORS = 0.05
# A byte in buckets costs as much as so many of a scan of a batch, which shares what it reads among queries (measured:
# 2.7 on Fashion-MNIST, 3.7 on GloVe and on Debian text); so many queries are a batch.
_BUCKETS_BYTE = 3
_BATCH = 4
# An exact search of substrings pays where so few answers are wanted.
_FEW_ANSWERS = 64

FEW = 16
"""One row in so many, or fewer, that a filter allows are looked at alone."""

MODES = ("auto", "scan", "cascade", "buckets")
RERANKS = ("asymmetric", "exact", "auto")


@dataclass(frozen=True)
class Plan:
    """A way through the stages.

    Attributes
    ----------
    mode : {"scan", "cascade", "buckets"}
        How rows are looked at.
    rerank : {None, "asymmetric", "exact"}
        What distances are.
    k : int
        Answers wanted, no more than there are rows.
    n_candidates : int or None
        Rows, the nearest by Hamming distance, that are re-ranked; None: the distance of every row is estimated.
    n_exact : int
        Rows, the nearest by estimate, that go on to exact distances.
    n_probes : int or None
        Buckets to visit in each segment (and table); None: as many as it takes.
    estimates : bool
        Whether distances are estimated from codes.
    reason : str
    """

    mode: str
    rerank: str | None
    k: int
    n_candidates: int | None
    n_exact: int
    n_probes: int | None
    estimates: bool
    reason: str


class Way(NamedTuple):
    """What a mode costs for one query: rows that are looked at, and bytes of codes that are read."""

    rows: int
    bytes: int


class Explanation(str):
    """What a search does and why, in words.

    Attributes
    ----------
    mode : str
        What it chose.
    ways : dict of str to Way
        What each mode would cost.
    """

    __slots__ = ("mode", "ways")
    mode: str
    ways: dict[str, Way]

    def __new__(cls, head: str, plan: Plan, ways: dict[str, Way]) -> Explanation:
        """Put the words together."""
        lines = [f"{head}: {plan.reason}"]
        for mode, way in ways.items():
            sign = "->" if mode == plan.mode else "  "
            lines.append(f"{sign} {mode}: about {way.rows:,} rows and {way.bytes:,} bytes a query")
        explanation = super().__new__(cls, "\n".join(lines))
        explanation.mode, explanation.ways = plan.mode, ways
        return explanation

    def __reduce__(self) -> Any:
        """Put the attributes back after the text."""
        return str.__new__, (type(self), str(self)), (None, {"mode": self.mode, "ways": self.ways})


def plan(
    *,
    n_bits: int,
    parts: Sequence[Part],
    k: int,
    mode: str,
    buckets: str | None,
    n_values: int = 0,
    n_probes: int | None = None,
    metric: str = "hamming",
    has_vectors: bool = False,
    can_estimate: bool = True,
    rerank: str | None = None,
    n_candidates: int | None = None,
    n_allowed: int | None = None,
    n_queries: int = 1,
) -> Plan:
    """Choose the way of a search; an option that the index cannot honour raises ValueError.

    Without a metric of vectors, "auto" is exact unless there are clusters. A vector that is kept has `n_values` values.
    """
    _refuse(k, mode, buckets, n_probes, has_vectors, can_estimate, rerank, n_candidates)
    n_rows = sum(part.n_rows for part in parts)
    k = max(1, min(k, n_rows))
    n_candidates = None if n_candidates is None else max(1, min(n_candidates, n_rows))
    reasons = []
    if rerank == "auto":
        rerank = "exact" if has_vectors else "asymmetric" if can_estimate else None
        kept = "vectors" if has_vectors else "codes only"
        why = f"the index keeps {kept}" if rerank else "its encoder is not linear, so that nothing can be estimated"
        reasons.append(f"rerank={rerank!r}, because {why}")
    if n_allowed is not None and n_allowed * FEW <= n_rows:
        reasons.append(f"only the {n_allowed:,} rows that are allowed are looked at")
        mode = "scan" if mode == "auto" else mode
    enough = max(8 * k, _LEAST_CANDIDATES)
    if mode == "auto":
        wanted = k if rerank is None else n_candidates or enough
        estimates = rerank is not None and n_candidates is None and can_estimate
        mode, why = _choose(n_bits, metric, parts, n_queries, k, wanted, buckets, n_probes, estimates, n_allowed)
        reasons.append(f"{mode}, because {why}")
    if rerank is not None and n_candidates is None:
        why_all = _why_every_row(n_bits, metric, n_rows, enough, mode, buckets, can_estimate)
        if why_all is None:
            n_candidates = enough
            reasons.append(f"the nearest {enough:,} by Hamming distance are re-ranked")
        else:
            reasons.append(f"the distance of every row that is looked at is estimated, because {why_all}")
    # Measured: of the true ten, 97 % are among the first 1,000 by estimate on codes of 128 bits, 99.5 % on longer ones;
    # on codes of 400 bits and more, 99.5 % among the first 100.
    # Where norms differ, errors do too, and a poor estimate may be that of a near row: more of them stay open.
    least = 1024 if n_bits < _SURE_BITS else 256
    n_exact = max(16 * k, least) if metric == "cosine" else max(64 * k, 8192)
    # Few candidates of short vectors are read sooner than their codes are weighed.
    reads_all = rerank == "exact" and n_candidates is not None and n_candidates <= 16 * k and n_values <= 2 * n_bits
    estimates = can_estimate and rerank is not None and not reads_all
    return Plan(mode, rerank, k, n_candidates, n_exact, n_probes, estimates, "; ".join(reasons) or "as asked")


def ways(
    n_bits: int,
    parts: Sequence[Part],
    k: int,
    buckets: str | None,
    n_probes: int | None,
    n_allowed: int | None = None,
) -> dict[str, Way]:
    """Estimate what each mode costs."""
    n_rows = sum(part.n_rows for part in parts)
    code = 8 * n_words(n_bits)
    if n_allowed is not None and n_allowed * FEW <= n_rows:
        return {"scan": Way(n_allowed, n_allowed * code)}
    all_ways = {"scan": Way(n_rows, n_rows * code)}
    all_ways["cascade"] = all_ways["scan"]  # of short codes, and of codes with tables, which have no head
    tail = code - 8 * HEAD_WORDS
    if n_bits > 1024 and _has_heads(parts, buckets):
        n_left = int(_SURVIVORS * n_rows) + min(n_rows, 2 * k)
        all_ways["cascade"] = Way(n_rows, n_rows * 8 * HEAD_WORDS + n_left * tail)
    if buckets is not None:
        looked_at, read = 0, 0
        for part in parts:
            if part.buckets is None:
                looked_at, read = looked_at + part.n_rows, read + part.n_rows * code
                continue
            rows, more = _in_buckets(part, k, n_probes)
            looked_at, read = looked_at + rows, read + rows * code + more
        all_ways["buckets"] = Way(looked_at, read)
    return all_ways


def _has_heads(parts: Sequence[Part], buckets: str | None) -> bool:
    """Tell whether codes have heads, which those with tables have not."""
    return buckets != "substrings" or all(part.buckets is None for part in parts)


def n_allowed(allow: Ids | None, deny: Ids | None) -> int | None:
    """Count the ids that a filter leaves; None where it does not say which."""
    if allow is None:
        return None
    return len(allow if deny is None else without(allow, deny))


def _in_buckets(part: Part, k: int, n_probes: int | None) -> tuple[int, int]:
    """Rows that a query finds in the buckets of a segment, and bytes that are read to choose buckets."""
    if hasattr(part.buckets, "probes_for"):
        rows = part.buckets.expected_rows(n_probes or part.buckets.probes_for(k))
        return rows, part.buckets.centroids.nbytes
    # Without a number of probes, near duplicates are found after two rounds or so.
    n_lookups = n_probes or 1 + part.buckets.table_bits
    return part.buckets.expected_rows(n_lookups), 64 * part.buckets.n_tables * n_lookups


def _refuse(
    k: int,
    mode: str,
    buckets: str | None,
    n_probes: int | None,
    has_vectors: bool,
    can_estimate: bool,
    rerank: str | None,
    n_candidates: int | None,
) -> None:
    """Raise ValueError for an option that the index cannot honour."""
    if rerank == "exact" and not has_vectors:
        raise ValueError(
            'rerank="exact" needs vectors, and this index keeps codes only: make it with vectors="float32"'
        )
    if rerank == "asymmetric" and not can_estimate:
        raise ValueError('rerank="asymmetric" needs a linear encoder, and that of this index is not: use rerank=None')
    if n_candidates is not None and rerank is None:
        raise ValueError("n_candidates is how many rows are re-ranked, but rerank is None")
    if n_candidates is not None and n_candidates < k:
        raise ValueError(f"n_candidates must be at least k = {k}, got {n_candidates}")
    if buckets is None and mode == "buckets":
        raise ValueError('mode="buckets" needs buckets, and this index has none: make it with buckets="clusters"')
    if buckets is None and n_probes is not None:
        raise ValueError(f"n_probes is the number of buckets visited, and this index has none, got {n_probes}")
    if n_probes is not None and mode not in ("auto", "buckets"):
        raise ValueError(f"n_probes is the number of buckets visited, but mode is {mode!r}")


def _choose(
    n_bits: int,
    metric: str,
    parts: Sequence[Part],
    n_queries: int,
    k: int,
    wanted: int,
    buckets: str | None,
    n_probes: int | None,
    estimates: bool,
    n_allowed: int | None,
) -> tuple[str, str]:
    """Choose a mode: its name, and why. Without a metric of vectors the cascade, which may overlook, is not chosen."""
    if n_probes is not None:
        return "buckets", f"{n_probes:,} of them are to be visited"
    has_buckets = any(part.buckets is not None for part in parts)
    if buckets == "substrings" and has_buckets and wanted <= _FEW_ANSWERS:
        return "buckets", "substrings find the nearest rows exactly, or leave them to a scan"
    costs = ways(n_bits, parts, k, buckets, n_probes)
    n_rows = costs["scan"].rows
    every_row = estimates and _why_every_row(n_bits, metric, n_rows, wanted, "scan", buckets, True) is not None
    few, has_heads = wanted * _CASCADE_SHARE <= n_rows, _has_heads(parts, buckets)
    long = n_bits >= (_CASCADE_BITS_OF_BATCH if n_queries >= _BATCH else _CASCADE_BITS)
    can_cascade = metric != "hamming" and long and few and has_heads and not every_row
    mode = "cascade" if can_cascade else "scan"
    why = "" if buckets is None or has_buckets else "there are too few rows for buckets, and "
    if buckets == "clusters" and has_buckets:
        share = 100 * costs["buckets"].rows / max(1, n_rows)
        price = _BUCKETS_BYTE if n_queries >= _BATCH else 1
        if metric == "ip":
            why = "cells do not see the lengths of vectors, which count under 'ip', and "
        elif n_allowed is not None and 2 * n_allowed < n_rows:
            why = f"the {n_allowed:,} rows that are allowed may be in any cell, and "
        elif price * costs["buckets"].bytes < costs[mode].bytes:
            return "buckets", f"the cells that hold the nearest rows have {share:.0f} in 100 of all rows"
        else:
            why = f"the cells that hold the nearest rows have {share:.0f} in 100 of all rows, and "
    if metric == "hamming":
        return mode, why + "it is exact"
    return mode, why + _why_mode(n_bits, long, few, has_heads, every_row)


def _why_every_row(
    n_bits: int, metric: str, n_rows: int, enough: int, mode: str, buckets: str | None, can_estimate: bool
) -> str | None:
    """Say why the distances of all rows are estimated, or None where Hamming distances choose among them."""
    if mode == "cascade" or not can_estimate or (buckets == "substrings" and mode == "buckets"):
        return None
    if mode == "buckets" and n_bits <= _CELL_BITS:
        return "rows of a cell stand together"
    if n_bits <= _SHORT_BITS:
        return f"codes of {n_bits} bits are short"
    if metric != "cosine":
        return f"norms count under {metric!r}, and Hamming distances do not see them"
    if n_rows <= 8 * enough:
        return f"there are only {n_rows:,}"
    return None


def _why_mode(n_bits: int, long: bool, few: bool, has_heads: bool, every_row: bool) -> str:
    """Say why rows are scanned or go through the cascade."""
    if not has_heads:
        return "substrings do not pay for so many candidates, and codes with tables are read whole"
    if every_row:
        return "every row is looked at"
    if not long:
        batch = " in a batch" if n_bits >= _CASCADE_BITS else ""
        return f"codes of {n_bits} bits are not long enough for the cascade{batch}"
    return f"512 of {n_bits} bits rule most rows out" if few else "too large a share of the rows is wanted"
