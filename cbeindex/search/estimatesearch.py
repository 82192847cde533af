"""Search of an index of short codes without buckets: the distances of all rows are estimated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import kernels
from .._core.tuning import tuning
from .._core.typing import Floats, Vectors
from ..data.source import VectorSource
from ..distances.codec import Codec
from .pipeline import VectorSearch
from .plan import Plan
from .request import IndexTraits
from .results import SearchResult
from .single import SingleQuery, of_one
from .topk import TopK


def estimates_all(plan: Plan) -> bool:
    """Return whether a plan is to estimate the distances of all rows, and estimates are the result."""
    return plan.mode == "scan" and plan.rerank == "asymmetric" and plan.n_candidates is None


class EstimateSearch:
    """A plan of a search by the estimates of all rows, for any queries.

    Parameters
    ----------
    traits : IndexTraits
    codec : Codec
    plan : Plan
    """

    def __init__(self, traits: IndexTraits, codec: Codec, plan: Plan) -> None:
        self._traits, self._codec, self._plan = traits, codec, plan
        self._arguments = codec.kernel_arguments()

    def nearest(self, source: VectorSource, n_threads: int) -> SearchResult:
        """Find the `plan.k` nearest rows of each query."""
        return VectorSearch(source, self._traits, self._codec, self._plan).nearest(n_threads)

    def nearest_of(self, queries: Vectors, n_threads: int) -> SearchResult | None:
        """Find the nearest rows of dense queries, float32 (n, dim) in C order."""
        return self.nearest(VectorSource(queries, self._traits.dim, "queries"), n_threads)

    def single(self) -> SingleQuery | None:
        """Return the search for one dense query; None if that takes more than one call of a kernel.

        Rows that several threads would share are left to `nearest`.
        """
        plan = self._plan
        if self._arguments is None or len(plan.selections) != 1 or plan.selections[0].rows is not None:
            return None
        segment = plan.selections[0].segment
        if segment.order.size or segment.codes.blocks.nbytes > tuning().least_scan_task_bytes:
            return None
        columns = (segment.columns[name] for name in ("offsets", "factors", "spreads"))
        arguments = (
            *self._arguments, self._traits.n_bits, segment.codes.blocks, *columns, plan.selections[0].hidden,
            segment.ranks, segment.ids,
        )  # fmt: skip
        stats = plan.stats(segment.n_rows)
        return SingleQuery(of_one(kernels.encoding.nearest), arguments, plan.k, stats, _count_nothing, self._errors)

    def _errors(self, found: TopK, query: Vectors) -> Floats:
        """Return the standard errors of the results of one query."""
        source = VectorSource(query, self._traits.dim, "queries")
        return VectorSearch(source, self._traits, self._codec, self._plan).errors_of(found, query)


def _count_nothing(stats: dict[str, Any], visits: Sequence[int]) -> None:
    """Count nothing: the plan says that all rows are scanned."""
