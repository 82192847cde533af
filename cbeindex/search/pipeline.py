"""One search: from prepared queries, through the stages that the plan names, to answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from .._core.threads import for_each_chunk
from .._core.typing import Floats, Ids, Keys, Mask, Rows, Vectors
from ..data.keys import NO_HAMMING_DISTANCE, NO_ID, NO_KEY
from ..data.source import VectorSource
from ..data.sparserows import SparseRows, VectorRows
from ..distances.estimator import SCALARS, AsymmetricQueries
from ..distances.metrics import Metric
from ..errors import CorruptIndexFileError
from ..store.segment import Segment
from . import candidates, rerank, scan
from .candidates import View
from .planner import Plan
from .results import RangeResult, SearchResult, nearest_of, ranges_of

# So many standard errors from an estimate the true distance does not lie (once in 16,000 times).
_SURE = 4.0
# So many that of the nearest few one in a thousand is not read; measured, 4 reads half as many vectors again and finds
# nothing more.
_LIKELY = 3.0
# Up to so many answers are kept in order while vectors are read; more of them are sorted afterwards.
_MOST_INSERTED = 256
# Queries whose candidates are read by one call, and values of them, at most.
_READ_QUERIES = 64
_READ_FLOATS = 2**21
# Vectors of a range search that are read at a time.
_READ_ROWS = 1024
# Values of queries, and queries, that are searched for at a time on all threads; and queries of a thread at least.
_QUERY_FLOATS = 2**24
_QUERY_ROWS = 2048
_LEAST_QUERY_ROWS = 32

Answer = TypeVar("Answer", SearchResult, RangeResult)


def in_parts(
    answer: Callable[[int, VectorRows, int], Answer], source: VectorSource, n_bits: int, mode: str, n_threads: int
) -> list[Answer]:
    """Call `answer(first, vectors, n_threads)` for parts of the queries in `source`, and return what it gives in order.

    Each thread takes parts of its own through all stages, where there are queries enough for that; where the threads
    are twice as many, or more, they share the work inside of a part. The cascade judges by its first queries whether
    it pays, and shares them out itself.
    """
    width = max(n_bits, 0 if source.is_sparse else source.dim)
    most = max(1, min(_QUERY_ROWS, _QUERY_FLOATS // width))
    beside = max(1, min(n_threads, min(source.n_rows, most) // _LEAST_QUERY_ROWS)) if mode != "cascade" else 1
    n_rounds = max(1, -(-source.n_rows // most))
    step = max(1, -(-source.n_rows // (beside * n_rounds)))
    if not source.n_rows:  # no queries are a search too
        return [answer(0, np.empty((0, source.dim), dtype=np.float32), n_threads)]
    answers: dict[int, Answer] = {}  # by their first query

    def task(start: int, stop: int) -> None:
        for first, vectors in source.own_blocks(step, start, stop, is_checked=False):
            answers[first] = answer(first, vectors, n_threads // beside)

    for_each_chunk(task, source.n_rows, step, beside)
    return [answers[first] for first in sorted(answers)]


@dataclass
class Search:
    """A search over a snapshot of segments.

    Attributes
    ----------
    segments : tuple of Segment
    metric : Metric
    dim : int
    vectors : float32 array of shape (n_queries, dim), or SparseRows
        The queries as they came.
    queries : AsymmetricQueries, or None where the segments have no codes
    n_bits : int
    allow, deny : int64 arrays, or None
    n_threads : int
    margins : float32 array of shape (n_queries, n_bits), or None
        How certain queries are of their bits.
    """

    segments: tuple[Segment, ...]
    metric: Metric
    dim: int
    vectors: VectorRows
    queries: AsymmetricQueries | None
    n_bits: int
    allow: Ids | None
    deny: Ids | None
    n_threads: int
    margins: Floats | None = None
    stats: dict[str, Any] = field(default_factory=dict)

    def nearest(self, plan: Plan, k: int) -> SearchResult:
        """Find the `k` nearest rows of each query."""
        if self.queries is None:
            plan = replace(plan, mode="scan", rerank="exact")
        answers = [self._nearest_in(segment, plan, k) for segment in self.segments]
        missing = NO_HAMMING_DISTANCE if plan.rerank is None else np.inf
        distances, ids = nearest_of([a[0] for a in answers], [a[1] for a in answers], len(self.vectors), k, missing)
        errors = self._errors_of(distances, ids) if plan.rerank == "asymmetric" else None
        self.stats = {"mode": plan.mode, "rerank": plan.rerank, "rows": 0, **self.stats}
        return SearchResult(distances, ids, self.stats, errors)

    def within(self, plan: Plan, radius: float) -> RangeResult:
        """Find all rows within `radius` of each query."""
        with np.errstate(over="ignore"):  # beyond float32 it is infinite
            bound = np.float32(radius)
        numbers, distances, ids = [np.empty(0, np.int64)], [np.empty(0, np.float32)], [np.empty(0, np.int64)]
        for segment in self.segments:
            hidden = segment.hidden(self.allow, self.deny)
            for i in range(len(self.vectors)):
                rows, near = self._within_in(segment, plan, i, hidden, bound)
                numbers.append(np.full(len(rows), i))
                distances.append(near)
                ids.append(segment.ids[rows])
        return ranges_of(numbers, distances, ids, len(self.vectors))

    def _nearest_in(self, segment: Segment, plan: Plan, k: int) -> tuple[NDArray[Any], Ids]:
        """Find the nearest rows of one segment: distances and ids, ascending."""
        if self.queries is None:
            self.stats["rows"] = self.stats.get("rows", 0) + segment.n_rows
            return self._exactly_of_all(segment, segment.hidden(self.allow, self.deny), k)
        view = View.of(segment, self.allow, self.deny, tuple(SCALARS))
        self.stats["rows"] = self.stats.get("rows", 0) + view.part.n_rows
        if not view.part.n_rows:
            none = np.empty((len(self.vectors), 0), dtype=np.int32 if plan.rerank is None else np.float32)
            return none, none.astype(np.int64)
        if plan.rerank is None or plan.n_candidates is not None:
            keys = candidates.nearest(
                view, plan, self.n_bits, self.queries.codes, plan.n_candidates or k, self.n_threads, self.stats,
                margins=self.margins,
            )  # fmt: skip
            if plan.rerank is None:
                return scan.distances_of(keys), segment.ids_of(keys)
            return self._rerank(segment, plan, keys, k)
        wanted, n_errors = (plan.n_exact, _LIKELY) if plan.rerank == "exact" else (k, 0.0)
        keys = view.of_segment(self._estimated_keys(view, plan, wanted, n_errors))
        if plan.rerank == "asymmetric":
            return rerank.distances_of(keys), segment.ids_of(keys)
        margins = n_errors * self.queries.norms[:, np.newaxis] * segment.columns["spreads"][segment.rows_of(keys)]
        return self._exactly_by_keys(segment, keys, rerank.distances_of(keys) + margins, k)

    def _estimated_keys(self, view: View, plan: Plan, k: int, n_errors: float) -> Keys:
        """Find the nearest rows by estimated distances: in the cells that the plan visits, or among all rows."""
        assert self.queries is not None
        part, hidden = view.part, view.hidden
        probes = candidates.cells_to_visit(view, plan)
        if probes is None:
            return rerank.estimate_all(
                self.queries, part.codes, part.columns, k, hidden, self.n_threads, ranks=part.ranks, n_errors=n_errors
            )
        keys, visits = rerank.estimate_visited(
            self.queries, part, k, *probes, hidden, self.n_threads, n_errors=n_errors
        )
        candidates.count(self.stats, visited=visits[0], buckets=visits[1])
        return keys

    def _rerank(self, segment: Segment, plan: Plan, keys: Keys, k: int) -> tuple[NDArray[Any], Ids]:
        """Estimate the distances of candidates, and go on to exact ones if the plan says so."""
        assert self.queries is not None
        if not plan.estimates:
            nothing_known = np.full(keys.shape, -np.inf, dtype=np.float32)
            return self._exactly(segment, segment.rows_of(keys), (keys != NO_KEY).sum(axis=1), nothing_known, k)
        rows = segment.rows_of(keys)
        estimates = rerank.estimate_rows(self.queries, segment.codes, segment.columns, rows, self.n_threads)
        estimates[keys == NO_KEY] = np.inf
        if plan.rerank == "exact":
            return self._exactly_by_keys(segment, keys, estimates, k)
        ids = segment.ids_of(keys)
        order = np.lexsort((ids, estimates), axis=1)[:, :k]
        return np.take_along_axis(estimates, order, axis=1), np.take_along_axis(ids, order, axis=1)

    def _exactly_by_keys(self, segment: Segment, keys: Keys, estimates: Floats, k: int) -> tuple[NDArray[Any], Ids]:
        """Compute the distances of candidates from their vectors, where their estimates leave it open."""
        assert self.queries is not None
        valid = keys != NO_KEY
        rows = segment.rows_of(keys)
        lower = self.queries.lower_bounds(np.where(valid, estimates, 0), segment.columns, rows, _LIKELY)
        return self._exactly(segment, rows, valid.sum(axis=1), lower, k)

    def _exactly_of_all(self, segment: Segment, hidden: Mask, k: int) -> tuple[NDArray[Any], Ids]:
        """Find the nearest of all rows by their vectors, for each query."""
        distances = np.full((len(self.vectors), k), np.inf, dtype=np.float32)
        ids = np.full((len(self.vectors), k), NO_ID, dtype=np.int64)

        def task(start: int, stop: int) -> None:
            for i in range(start, stop):
                best, near = rerank.exact_of_all(
                    self._dense(slice(i, i + 1))[0], self.metric, segment.columns["vectors"], segment.ids, hidden, k
                )
                distances[i, : len(near)], ids[i, : len(near)] = near, segment.ids[best]

        for_each_chunk(task, len(self.vectors), 1, self.n_threads)
        return distances, ids

    def _exactly(self, segment: Segment, rows: Rows, counts: Rows, lower: Floats, k: int) -> tuple[NDArray[Any], Ids]:
        """Find the nearest of candidates by their vectors: of the first `counts` of `rows`, for each query."""
        distances = np.full((len(rows), k), np.inf, dtype=np.float32)
        ids = np.full((len(rows), k), NO_ID, dtype=np.int64)
        n_read = np.zeros(len(rows), dtype=np.int64)
        vectors = segment.columns["vectors"]

        is_sparse = isinstance(vectors, SparseRows)
        is_float32 = (vectors.values if is_sparse else vectors).dtype == np.float32

        def task(start: int, stop: int) -> None:
            some = slice(start, stop)
            candidates_of = segment.ids, rows[some], counts[some], lower[some], self.metric.number
            answers = distances[some], ids[some], n_read[some]
            if is_float32 and is_sparse and k <= _MOST_INSERTED and self.metric.name != "l2":
                asked_entries, entries = self._sparse(some).entries, vectors.entries
                if not kernels.exact.nearest_sparse(*asked_entries, self.dim, *entries, *candidates_of, *answers):
                    raise CorruptIndexFileError("sparse vectors must lie within their entries")
                return
            asked = self._dense(some)
            if is_float32 and not is_sparse and k <= _MOST_INSERTED:
                kernels.exact.nearest(asked, vectors, *candidates_of, *answers)
                return
            for i in range(start, stop):
                best, near, n_read[i] = rerank.exact_nearest(
                    asked[i - start], self.metric, vectors, segment.ids, rows[i, : counts[i]], lower[i, : counts[i]], k
                )
                distances[i, : len(near)], ids[i, : len(near)] = near, segment.ids[best]

        step = min(_READ_QUERIES, _READ_FLOATS // self.dim, len(rows) // (4 * self.n_threads))
        for_each_chunk(task, len(rows), max(1, step), self.n_threads)
        self.stats["vectors_read"] = self.stats.get("vectors_read", 0) + int(n_read.sum())
        return distances, ids

    def _within_in(self, segment: Segment, plan: Plan, i: int, hidden: Mask, radius: np.float32) -> tuple[Rows, Floats]:
        """Find the rows of one segment within `radius` of query `i`: rows and distances."""
        if self.queries is None or plan.rerank == "exact":
            rows = np.arange(segment.n_rows)[~hidden] if hidden.size else np.arange(segment.n_rows)
            if self.queries is not None and plan.estimates:
                query = self.queries.some(slice(i, i + 1))
                estimates = rerank.estimate_rows(
                    query, segment.codes, segment.columns, rows[np.newaxis], self.n_threads
                )
                lower = query.lower_bounds(estimates, segment.columns, rows[np.newaxis], _SURE)
                rows = rows[lower[0] <= radius]
            vectors, asked = segment.columns["vectors"], self._dense(slice(i, i + 1))[0]
            parts = [rows[start : start + _READ_ROWS] for start in range(0, len(rows), _READ_ROWS)]
            near = np.concatenate(
                [np.empty(0, np.float32), *(self.metric.distances(vectors[part], asked) for part in parts)]
            )
            return rows[near <= radius], near[near <= radius]
        bounds = np.full(1, radius, dtype=np.float32)
        query = self.queries.some(slice(i, i + 1))
        keys = rerank.estimate_all(
            query, segment.codes, segment.columns, segment.n_rows, hidden, self.n_threads, bounds=bounds
        )[0]
        keys = keys[keys != NO_KEY]
        return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64), rerank.distances_of(keys)

    def _dense(self, some: slice) -> Vectors:
        """Return the vectors of some queries, dense."""
        taken = self.vectors[some]
        return taken.to_dense(self.dim) if isinstance(taken, SparseRows) else taken

    def _sparse(self, some: slice) -> SparseRows:
        """Return the vectors of some queries, sparse."""
        taken = self.vectors[some]
        return taken if isinstance(taken, SparseRows) else SparseRows.from_dense(taken, np.float32)

    def _errors_of(self, distances: Floats, ids: Ids) -> Floats:
        """Standard errors of the estimated distances to `ids`; NaN for none."""
        assert self.queries is not None
        spreads = np.full(ids.shape, np.nan, dtype=np.float32)
        for segment in self.segments:
            rows = segment.find(ids.ravel()).reshape(ids.shape)
            here = rows >= 0
            spreads[here] = segment.columns["spreads"][rows[here]]
        return self.queries.errors(np.where(ids >= 0, distances, 0), spreads)
