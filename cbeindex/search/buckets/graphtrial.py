"""Searches of graphs for sampled queries: what a beam finds."""

from __future__ import annotations

import math

import numpy as np

from ..._core.threads import n_cores
from ..._core.tuning import tuning
from ..._core.typing import Floats, Projections
from ...data.source import VectorSource
from ...distances.metrics import squares
from ...store.segment import Segment
from ..measuring import Found
from .graphkernel import GraphCall, GraphCounts
from .graphs import VertexGraph
from .trials import BucketTrial, Sample


class GraphTrial(BucketTrial):
    """Searches of the graph of a segment. Walks do not pass through the row that is the query: it leads to the rest."""

    def __init__(self, segment: Segment, sample: Sample) -> None:
        super().__init__(segment, sample)
        self._graph: VertexGraph = segment.buckets
        self._projections, self._lines = self._projected()
        self.most_effort = self._graph.widest_beam

    def _projected(self) -> tuple[Projections, Floats]:
        """Return projections of the queries, and slope and intercept of their distances."""
        codec, vectors, rows = self._graph.codec, self.sample.vectors, self.sample.rows
        if vectors is not None:
            row_squares = codec.metric.check(VectorSource(vectors, codec.rotation.dim, "queries"), 0, vectors)
            return codec.project_queries(vectors, row_squares, self._graph.longest, n_cores())
        assert rows is not None
        points = codec.decode(self._segment.columns["vertices"][rows], n_cores())
        projections = codec.code_projections(points, n_cores())[:, : codec.shape.n_code_bits]
        return np.ascontiguousarray(projections), np.tile([1.0, 0.0], (len(rows), 1))

    def _find(self, effort: int, n: int, n_queries: int) -> Found:
        n_rows = self._segment.n_rows
        beam = 0 if effort >= self.most_effort else effort
        n = min(n, n_rows)
        counts, places = GraphCounts(beam, beam, n, 0, n), np.arange(n_rows)
        call = GraphCall(self._graph.codec, self._segment, self._hidden, counts, ids=places)
        no_vectors = np.empty((n_queries, 0), dtype=np.float32)
        rows = None if beam == 0 else self.sample.rows
        found = call.of_projections(
            self._projections[:n_queries], self._lines[:n_queries], no_vectors, n_cores(),
            skipped=None if rows is None else rows[:n_queries],
        )  # fmt: skip
        return Found(found.ids)

    def _with_errors(self, n_queries: int) -> tuple[Floats, Floats] | None:
        """Return the distances of the first queries to their nearest rows, and their standard errors; None: exact."""
        if "vectors" in self._segment.columns:
            return super()._with_errors(n_queries)
        rows = self.truth(tuning().most_sampled_results, n_queries)
        codec, column = self._graph.codec, self._segment.columns["vertices"]
        distances, errors = np.full((2, *rows.shape), np.inf, dtype=np.float32)
        for i, near in enumerate(rows):
            near = near[near >= 0]
            points, slope = codec.decode(column[near], 1), float(self._lines[i, 0])
            apart = squares(points - self._projections[i, : points.shape[1]])
            distances[i, : len(near)] = np.sort(slope * apart + self._lines[i, 1])
            errors[i, : len(near)] = codec.errors(self._projections[i], slope, column[near])
        return distances, errors

    def far(self) -> float:
        """Return a distance beyond which the nearest row of a query hardly ever is; infinity if it is not known.

        Products do not tell how far a query is. Queries of the caller have been measured themselves.
        """
        if self._near is None or self.sample.codec.metric.name == "ip":
            return math.inf
        first = self._near.distances[:, 0]
        found = first[np.isfinite(first)]  # a query may be the only row that is not removed
        return float(np.quantile(found, tuning().near_share)) if found.size else math.inf
