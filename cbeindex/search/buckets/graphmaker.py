"""Makes graphs of the rows of segments, and measures the beams that they need."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from ..._core.threads import n_cores
from ..._core.tuning import tuning
from ..._core.typing import Floats, Projections, Rows
from ...distances.metrics import squares
from ...distances.vertices import VertexCodec
from ...store.segment import NOT_HIDDEN, Segment
from .base import BucketMaker, Buckets
from .graph_building import GraphBuilder
from .graphkernel import GraphCall, GraphCounts
from .graphs import N_NEAREST, VertexGraph

# Beams that are tried in turn, as multiples of the number of results, to find the default one.
_TRIED = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 13, 16, 20, 26, 32, 40)


@dataclass(frozen=True)
class GraphMaker(BucketMaker):
    """Makes graphs.

    Attributes
    ----------
    n_bits : int
    codec : VertexCodec or None
        None until the index is fitted.
    """

    n_bits: int
    codec: VertexCodec | None = None

    buckets: ClassVar[type[Buckets]] = VertexGraph
    options: ClassVar[tuple[str, ...]] = ()
    is_exact: ClassVar[bool] = False
    can_estimate: ClassVar[bool] = True
    uses_margins: ClassVar[bool] = False
    needs_vectors: ClassVar[bool] = True
    has_hamming_order: ClassVar[bool] = False
    join_width: ClassVar[int] = 4

    @classmethod
    def from_options(cls, n_bits: int, options: dict[str, int]) -> Self:
        """Make a maker; graphs have no options."""
        return cls(n_bits)

    def with_codec(self, codec: VertexCodec) -> Self:
        """Return the maker of an index that is fitted."""
        return replace(self, codec=codec)

    def arrange(self, segment: Segment) -> Segment:
        """Return a segment with a graph. Small segments have none."""
        assert self.codec is not None
        column = np.asarray(segment.columns["vertices"])
        plain = replace(segment, columns=segment.columns | {"vertices": column})
        if segment.n_rows < max(2, tuning().least_graph_segment_rows):
            return plain
        built = GraphBuilder(self.codec, column, self.codec.rotation.seed, n_cores()).build()
        longest = self.codec.longest(self.codec.heads_of(column).norms)
        graph = VertexGraph(self.codec, built.records, built.entries, longest, N_NEAREST)
        graph = replace(graph, beams=_measure_beams(plain, graph))
        return replace(plain, columns=plain.columns | graph.columns(), buckets=graph)


def _measure_beams(segment: Segment, graph: VertexGraph) -> tuple[int, ...]:
    """Find the least beams with which walks find the wanted share of the nearest rows of some rows."""
    n_rows, limits = segment.n_rows, tuning()
    rng = np.random.default_rng(n_rows)
    sample = rng.choice(n_rows, min(limits.graph_sample_rows, n_rows), replace=False)
    beams: list[int] = []
    for i, k in enumerate(N_NEAREST):
        n = min(k + 1, n_rows)
        walks = _Walks(replace(segment, buckets=graph), graph, np.sort(sample[: -(-len(sample) // 3**i)]))
        truth, beam = walks.nearest(n, 0), 1
        for factor in _TRIED:
            beam = max(int(factor * k), *beams, 1)
            if beam >= graph.widest_beam:
                break
            found = walks.nearest(n, beam)
            if np.mean([np.isin(*rows).mean() for rows in zip(truth, found, strict=True)]) >= limits.graph_beam_recall:
                break
        beams.append(beam)
    return tuple(beams)


class _Walks:
    """Searches by levels for points near some rows of a segment.

    The points are as far from the rows, in random directions, as the rows are from their nearest neighbours: walks find
    rows of the graph itself more easily than anything else.
    """

    def __init__(self, segment: Segment, graph: VertexGraph, sample: Rows) -> None:
        codec = graph.codec
        self._codec, self._segment = codec, segment
        points = codec.decode(segment.columns["vertices"][sample], n_cores())
        self._projections = self._projected(points)
        nearest = self.nearest(min(2, segment.n_rows), 0)[:, -1]
        apart = points - codec.decode(segment.columns["vertices"][nearest], n_cores())
        directions = np.random.default_rng(len(sample)).standard_normal(points.shape, dtype=np.float32)
        sizes = np.sqrt(squares(apart) / np.maximum(squares(directions), 1e-30)).astype(np.float32)
        self._projections = self._projected(points + sizes[:, np.newaxis] * directions)

    def _projected(self, points: Floats) -> Projections:
        """Return the projections of all blocks of points that are given by those of the first."""
        codec = self._codec
        projections = codec.code_projections(points, n_cores())
        return np.ascontiguousarray(projections[:, : codec.shape.n_code_bits])

    def nearest(self, k: int, beam: int) -> Rows:
        """Return the rows that a beam finds, those of a scan if it is 0."""
        n_queries, rows = len(self._projections), np.arange(self._segment.n_rows)
        call = GraphCall(self._codec, self._segment, NOT_HIDDEN, GraphCounts(beam, beam, k, 0, k), ids=rows)
        lines, no_queries = np.tile([1.0, 0.0], (n_queries, 1)), np.empty((n_queries, 0), dtype=np.float32)
        return call.of_projections(self._projections, lines, no_queries, n_cores()).ids
