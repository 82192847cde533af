"""The calls of the kernels that search graphs, and segments that are too small for one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ... import kernels
from ..._core.threads import for_each_chunk
from ..._core.tuning import tuning
from ..._core.typing import Floats, Ids, Mask, Projections, Rows, Vectors
from ...distances.vertices import VertexCodec
from ...errors import CorruptIndexFileError
from ...store.segment import Segment

_NO_VECTORS: Vectors = np.empty((0, 0), dtype=np.float32)


class GraphCounts(NamedTuple):
    """How much of a segment a search takes.

    Attributes
    ----------
    beam : int
        0 for a scan.
    widest_beam : int
        The beam up to which walks are repeated until enough rows are found.
    n_found : int
        Rows to find by their levels.
    n_wanted : int
        Rows that must be found, whatever beam it takes.
    k : int
        Results.
    """

    beam: int
    widest_beam: int
    n_found: int
    n_wanted: int
    k: int


class GraphFound(NamedTuple):
    """The nearest rows of a segment.

    Attributes
    ----------
    distances, ids : float32 and int64 arrays of shape (n_queries, k)
    visits : int64 array of shape (3,)
        Steps, rows that were scanned, vectors that were read.
    n_searched : int
        Queries that were searched; those from the first one on that is not finite or too long were not.
    """

    distances: Floats
    ids: Ids
    visits: Rows
    n_searched: int

    @classmethod
    def empty(cls, n: int, k: int) -> GraphFound:
        """Allocate the results of `n` queries."""
        return cls(np.empty((n, k), dtype=np.float32), np.empty((n, k), dtype=np.int64), np.zeros(3, dtype=np.int64), n)


class GraphCall:
    """A search of a segment, for any queries.

    Parameters
    ----------
    codec : VertexCodec
    segment : Segment
        With a graph, or with the column of vertices.
    hidden : bool array, or empty
    counts : GraphCounts
    vectors : array, or None
        Vectors for exact distances, as kernels know them. Without, results have the distances of levels.
    ids : int64 array, or None
        What results are named by, if not by their ids.
    """

    def __init__(
        self, codec: VertexCodec, segment: Segment, hidden: Mask, counts: GraphCounts, vectors: Any = None,
        ids: Ids | None = None,
    ) -> None:  # fmt: skip
        shape, graph = codec.shape, segment.buckets
        self._k, self._n_rows, self._is_scan = counts.k, segment.n_rows, counts.beam == 0
        self._level_bytes = shape.n_levels
        if graph is None:
            records, entries, at = segment.columns["vertices"], segment.columns["vertices"][:0], 0
            self.longest = codec.longest(codec.heads_of(records).norms)
        else:
            records, entries, at, self.longest = graph.records, graph.entries, shape.vertex_at, graph.longest
        largest_norm = codec.unit * self.longest**2 if codec.has_norms else 0.0
        self._lengths = codec.metric.longest, codec.unit, self.longest
        self._bound: tuple[Any, Rows] | None = None
        self._arguments = (
            np.array([shape.n_code_bits, shape.n_levels, at]), largest_norm, records, entries, hidden,
            segment.ids if ids is None else ids, _NO_VECTORS if vectors is None else vectors, codec.metric.number,
            np.array([counts.beam, counts.widest_beam, counts.n_found, counts.n_wanted]),
        )  # fmt: skip

    def of_projections(
        self, projections: Projections, lines: Floats, queries: Vectors, n_threads: int = 1,
        skipped: Rows | None = None,
    ) -> GraphFound:  # fmt: skip
        """Search for queries with these projections; `queries`, as they came, are for exact distances.

        `skipped` has for each query a row that walks do not pass through.
        """
        none: Rows = np.empty(0, dtype=np.int64)

        def search(some: slice, out: GraphFound) -> int:
            is_sound = kernels.graphsearch.search_projections(
                projections[some], lines[some], queries[some], *self._arguments,
                none if skipped is None else skipped[some], out.distances, out.ids, out.visits,
            )  # fmt: skip
            return some.stop if is_sound else -1

        return self._on_threads(search, len(projections), n_threads)

    def arguments_of_vectors(self, transform: tuple[Any, ...]) -> tuple[Any, Rows]:
        """Return what `graphsearch.search_vectors` takes between queries and the arrays of their results.

        `transform` is what the kernel knows of the rotation. The call keeps what the arguments refer to.
        """
        if self._bound is None:
            *others, vectors, metric, counts = self._arguments
            self._refers_to = *self._lengths, *transform, *others, metric, counts
            self._bound = vectors, kernels.binding.bind(kernels.graphsearch.BOUND, self._refers_to)
        return self._bound

    def of_vectors(self, queries: Vectors, transform: tuple[Any, ...], n_threads: int = 1) -> GraphFound:
        """Search for dense queries, aligned and writeable; `transform` is what the kernel knows of the rotation."""
        vectors, bound = self.arguments_of_vectors(transform)

        def search(some: slice, out: GraphFound) -> int:
            n, *visits = kernels.graphsearch.search_vectors(
                queries[some].reshape(-1), vectors, bound, out.distances.reshape(-1), out.ids.reshape(-1)
            )
            out.visits[:] = visits
            return some.start + n if n >= 0 else -1

        return self._on_threads(search, len(queries), n_threads)

    def _on_threads(self, search: Any, n: int, n_threads: int) -> GraphFound:
        """Divide queries among threads. Each of them is searched on its own, so that results do not depend on it."""
        found = GraphFound.empty(n, self._k)
        if n == 1:
            return found._replace(n_searched=self._checked(search(slice(0, 1), found)))
        visits, n_searched = [found.visits], [n]

        def task(start: int, stop: int) -> None:
            some = slice(start, stop)
            part = GraphFound(found.distances[some], found.ids[some], np.zeros(3, dtype=np.int64), 0)
            n_done = self._checked(search(some, part))
            visits.append(part.visits)
            if n_done < stop:
                n_searched.append(n_done)

        step = min(tuning().graph_task_queries, -(-n // (2 * n_threads)))
        if self._is_scan:
            step = min(step, tuning().graph_task_bytes // max(1, self._n_rows * self._level_bytes))
        for_each_chunk(task, n, max(1, step), n_threads)
        return found._replace(visits=np.sum(visits, axis=0), n_searched=min(n_searched))

    def _checked(self, n_searched: int) -> int:
        if n_searched < 0:
            raise CorruptIndexFileError(f"neighbours in a graph must be below {self._n_rows}")
        return n_searched
