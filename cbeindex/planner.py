"""Which way a search goes, and why."""

from __future__ import annotations

from dataclasses import dataclass

# Measured on codes of 832 to 2,048 bits: 99.5 % of the true ten are among the nearest 600 by Hamming distance.
_LEAST_CANDIDATES = 640
# Codes of which every row's distance can be estimated in about the time of a Hamming scan and its re-ranking.
_SHORT_BITS = 512
# Where the cascade overtakes the scan: codes of so many bits, and no more than one row in so many wanted.
_CASCADE_BITS = 2048
_CASCADE_SHARE = 256

MODES = ("auto", "scan", "cascade")
RERANKS = ("asymmetric", "exact", "auto")


@dataclass(frozen=True)
class Plan:
    """A way through the stages.

    Attributes
    ----------
    mode : {"scan", "cascade"}
        How rows are looked at.
    rerank : {None, "asymmetric", "exact"}
        What distances are.
    n_candidates : int or None
        Rows, the nearest by Hamming distance, that are re-ranked; None: the distance of every row is estimated.
    n_exact : int
        Rows, the nearest by estimate, that go on to exact distances.
    reason : str
    """

    mode: str
    rerank: str | None
    n_candidates: int | None
    n_exact: int
    reason: str


def plan(
    *,
    n_bits: int,
    metric: str,
    has_vectors: bool,
    n_rows: int,
    k: int,
    mode: str,
    rerank: str | None,
    n_candidates: int | None,
) -> Plan:
    """Choose the way of a search; an option that the index cannot honour raises ValueError."""
    if rerank == "exact" and not has_vectors:
        raise ValueError(
            'rerank="exact" needs vectors, and this index keeps codes only: make it with vectors="float32"'
        )
    if n_candidates is not None and rerank is None:
        raise ValueError("n_candidates is how many rows are re-ranked, but rerank is None")
    if n_candidates is not None and n_candidates < k:
        raise ValueError(f"n_candidates must be at least k = {k}, got {n_candidates}")
    reasons = []
    if rerank == "auto":
        rerank = "exact" if has_vectors else "asymmetric"
        reasons.append(f"rerank={rerank!r}, because the index keeps {'vectors' if has_vectors else 'codes only'}")
    if rerank is not None and n_candidates is None:
        enough = max(8 * k, _LEAST_CANDIDATES)
        why = _why_every_row(n_bits, metric, n_rows, enough, mode)
        if why is None:
            n_candidates = enough
            reasons.append(f"the nearest {enough:,} by Hamming distance are re-ranked")
        else:
            reasons.append(f"the distance of every row is estimated, because {why}")
    if mode == "auto":
        every_row = rerank is not None and n_candidates is None
        few = (n_candidates or k) * _CASCADE_SHARE <= n_rows
        mode = "cascade" if n_bits >= _CASCADE_BITS and few and not every_row else "scan"
        reasons.append(f"{mode}, because " + _why_mode(n_bits, few, every_row))
    # Measured: of the true ten, 97 % are among the first 1,000 by estimate on codes of 128 bits, 99.5 % on longer ones.
    # Where norms differ, errors do too, and a poor estimate may be that of a near row: more of them stay open.
    n_exact = max(16 * k, 1024) if metric == "cosine" else max(64 * k, 8192)
    return Plan(mode, rerank, n_candidates, n_exact, "; ".join(reasons) or "as asked")


def _why_every_row(n_bits: int, metric: str, n_rows: int, enough: int, mode: str) -> str | None:
    """Say why the distances of all rows are estimated, or None where Hamming distances choose among them."""
    if mode == "cascade":
        return None
    if n_bits <= _SHORT_BITS:
        return f"codes of {n_bits} bits are short"
    if metric != "cosine":
        return f"norms count under {metric!r}, and Hamming distances do not see them"
    if n_rows <= 8 * enough:
        return f"there are only {n_rows:,}"
    return None


def _why_mode(n_bits: int, few: bool, every_row: bool) -> str:
    """Say why rows are scanned or go through the cascade."""
    if every_row:
        return "every row is looked at"
    if n_bits < _CASCADE_BITS:
        return f"codes of {n_bits} bits are not long enough for the cascade"
    return f"512 of {n_bits} bits rule most rows out" if few else "too large a share of the rows is wanted"
