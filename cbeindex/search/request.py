"""The checked arguments of a search, and what the planner must know of the index."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._core.checks import as_choice, as_count, as_share
from .._core.threads import as_n_threads
from .._core.tuning import tuning
from .filters import NO_FILTER, IdFilter

CODE_MODES = ("auto", "scan", "cascade", "buckets")
MODES = (*CODE_MODES, "exact")
RERANKS = ("asymmetric", "exact", "auto")

DEFAULT_MISS = 1e-3
"""Probability with which the cascade may miss the k-th nearest row."""


class SearchRequest(NamedTuple):
    """The checked arguments of a search.

    Attributes
    ----------
    n_queries, k : int
    mode : one of `MODES`
    rerank : one of `RERANKS`, or None
    n_candidates, n_probes : int or None
    ids : IdFilter
    miss : float
        Probability with which the cascade may miss the k-th nearest row.
    n_threads : int
    recall : float or None
        Share of the true nearest rows to find on average.
    """

    n_queries: int
    k: int
    mode: str = "auto"
    rerank: str | None = None
    n_candidates: int | None = None
    n_probes: int | None = None
    ids: IdFilter = NO_FILTER
    miss: float = DEFAULT_MISS
    n_threads: int = 1
    recall: float | None = None

    @property
    def is_free(self) -> bool:
        """Whether the planner chooses how candidates are found, and how many."""
        return self.mode == "auto" and self.n_candidates is None and self.n_probes is None

    @classmethod
    def checked(
        cls,
        n_queries: int,
        k: Any,
        mode: Any,
        *,
        ids: IdFilter,
        rerank: Any = None,
        n_candidates: Any = None,
        n_probes: Any = None,
        n_threads: Any = None,
        recall: Any = None,
        modes: tuple[str, ...] = MODES,
    ) -> SearchRequest:
        """Check each argument by itself, and `recall` against the others.

        Whether the index can honour them is for the planner to check.
        """
        request = cls(
            n_queries,
            k=as_count(k, "k"),
            mode=as_choice(mode, "mode", modes),
            rerank=None if rerank is None else as_choice(rerank, "rerank", RERANKS),
            n_candidates=None if n_candidates is None else as_count(n_candidates, "n_candidates"),
            n_probes=None if n_probes is None else as_count(n_probes, "n_probes"),
            ids=ids,
            n_threads=as_n_threads(n_threads),
            recall=None if recall is None else as_share(recall, "recall"),
        )
        if request.recall is not None:
            _refuse_with_recall(request)
        return request


def _refuse_with_recall(request: SearchRequest) -> None:
    """Raise ValueError if a recall is asked for together with settings that decide it."""
    if request.rerank is None:
        raise ValueError("recall is the share of the nearest vectors, but rerank=None orders by Hamming distance")
    given = [
        f"{name}={value!r}"
        for name, value in (
            ("mode", request.mode), ("n_probes", request.n_probes), ("n_candidates", request.n_candidates),
        )
        if value not in (None, "auto")
    ]  # fmt: skip
    if given:
        raise ValueError(
            f"recall chooses mode, n_probes and n_candidates, so give recall or {' and '.join(given)}, but not both"
        )


class IndexTraits(NamedTuple):
    """What the planner must know of an index.

    Attributes
    ----------
    n_bits : int
    metric : {"hamming", "cosine", "l2", "ip"}
    buckets : {None, "substrings", "clusters", "cells", "graph"}
    dim : int
        Length of vectors, 0 for an index of codes.
    is_fitted : bool
        Whether rows are stored as codes. Until then they are vectors.
    keeps_vectors : bool
        Whether vectors are kept beside codes.
    can_estimate : bool
        Whether distances can be estimated from codes.
    n_values : int
        Values of a kept vector; of sparse vectors, the mean number of entries.
    keeps_codes : bool
        Whether rows have Hamming codes.
    is_auto : bool
        Whether the index chose the kind of its buckets.
    levels : {None, "int8", "int4"}
        Kind of kept vectors whose distances are estimates.
    keeps_levels : bool
        Whether these are stored beside codes, and not as the residual codes of cells or in the vertices of a graph.
    """

    n_bits: int
    metric: str = "hamming"
    buckets: str | None = None
    dim: int = 0
    is_fitted: bool = True
    keeps_vectors: bool = False
    can_estimate: bool = True
    n_values: int = 0
    keeps_codes: bool = True
    is_auto: bool = False
    levels: str | None = None
    keeps_levels: bool = False

    @property
    def reads_vectors(self) -> bool:
        """Whether `rerank="auto"` reads vectors of any kind that are kept beside codes."""
        return self.keeps_vectors or self.keeps_levels

    @property
    def best_rerank(self) -> str:
        """The kind of the best distances, if they can be estimated."""
        return "exact" if self.keeps_vectors else "levels" if self.keeps_levels else "asymmetric"

    @property
    def kept_words(self) -> str:
        """What the index keeps of vectors, in words."""
        if self.levels is not None:
            return f'vectors="{self.levels}"'
        return "vectors" if self.keeps_vectors else "codes only"


def wanted_recall(traits: IndexTraits, request: SearchRequest) -> float:
    """Return the recall that a search is to deliver, or to come near to if the index keeps codes only."""
    if request.recall is not None:
        return request.recall
    keeps_any = traits.keeps_vectors or traits.levels is not None
    return tuning().default_recall if keeps_any else tuning().explicit_recall


def vector_bytes(traits: IndexTraits, rerank: str | None) -> int:
    """Return the bytes of a kept vector that a search reads; 0 if it reads none."""
    return max(1, 4 * traits.n_values) if rerank in ("exact", "levels") else 0
