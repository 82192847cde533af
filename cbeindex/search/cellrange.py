"""Range search in cells: estimates from residual codes rule out most rows, and the distances of vectors decide."""

from __future__ import annotations

import numpy as np

from .._core.threads import for_each_chunk
from .._core.typing import Floats, Rows
from ..data.source import VectorSource
from ..data.sparserows import VectorRows
from . import exact
from .batches import search_in_batches
from .buckets.cellrange import RangeCall
from .candidates import count
from .cellsearch import CellPart, CellQueries, CellSearch
from .results import IdMatches, RangeResult
from .topk import TopK

_NO_MATCHES = IdMatches(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int64))


class CellRangeSearch(CellSearch):
    """A plan of a range search of an index with cells, for any queries."""

    def within(self, source: VectorSource, radius: np.float32, n_threads: int) -> RangeResult:
        """Find the rows within `radius` of each query, in the cells within the gaps of the plan."""
        calls = [RangeCall(p.segment, p.hidden, p.gap, self._plan.reads_vectors) for p in self._parts]

        def find(first: int, vectors: VectorRows, n_threads: int) -> RangeResult:
            return self._within(source, first, vectors, radius, calls, n_threads)

        return RangeResult.joined(search_in_batches(find, source, self._n_bits, self._plan, n_threads))

    def _within(
        self,
        source: VectorSource,
        first: int,
        vectors: VectorRows,
        radius: np.float32,
        calls: list[RangeCall],
        n_threads: int,
    ) -> RangeResult:
        """Search a batch of queries, beginning with query `first`."""
        queries, n, stats = self._encode(source, first, vectors, n_threads), len(vectors), self._stats()
        found, visits = [_NO_MATCHES] * (n * len(calls)), np.zeros((n * len(calls), 2), dtype=np.int64)

        def task(start: int, stop: int) -> None:
            for place in range(start, stop):
                i, number = divmod(place, len(calls))
                found[place], visits[place] = self._matches(self._parts[number], calls[number], queries, i, radius)

        for_each_chunk(task, len(found), 16, n_threads)
        n_rows, n_cells = visits.sum(axis=0).tolist()
        count(stats, visited=n_rows, buckets=n_cells)
        result = RangeResult.of_matches(found, n, np.float32, stats)
        if self._plan.rerank == "exact":
            return result

        own = vectors[np.arange(n)]  # a copy: the caller may change them before the errors are read

        def errors_of(i: int, near: TopK) -> Floats:
            return self._errors(near, own[i : i + 1], 1)

        return result.with_errors(errors_of)

    def _matches(
        self, part: CellPart, call: RangeCall, queries: CellQueries, i: int, radius: np.float32
    ) -> tuple[IdMatches, Rows]:
        """Find the rows of one segment within `radius` of query i, and count the rows and cells visited."""
        near, rows, visits = call.of_projections(queries.projections[i], queries.shifts[i], float(radius))
        if self._plan.reads_vectors and len(rows):
            kept = self._vectors_of(part.segment)
            near, rows = exact.within(kept, kept.dense(queries.vectors[i : i + 1])[0], rows, radius)
        return IdMatches(np.full(len(rows), i), near, part.segment.ids[rows]), visits
