"""Makes graphs of the rows of segments, and calibrates them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from ..._core.threads import n_cores
from ..._core.tuning import tuning
from ...distances.codec import Codec
from ...distances.vertices import VertexCodec
from ...store.segment import Segment
from ..measuring import measure, sample_rows
from .base import BucketMaker, Buckets
from .graph_building import GraphBuilder
from .graphs import VertexGraph
from .graphtrial import GraphTrial
from .trials import Sample


@dataclass(frozen=True)
class GraphMaker(BucketMaker):
    """Makes graphs.

    Attributes
    ----------
    n_bits : int
    codec : VertexCodec or None
        None until the index is fitted.
    queries : Codec or None
        Prepares queries that calibrate graphs.
    """

    n_bits: int
    codec: VertexCodec | None = None
    queries: Codec | None = None

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

    def with_codec(self, codec: Codec) -> Self:
        """Return the maker of an index that is fitted."""
        return replace(self, codec=codec.vertices, queries=codec)

    def arrange(self, segment: Segment, share: float = 1.0) -> Segment:
        """Return a segment with a graph. Small segments have none."""
        assert self.codec is not None
        column = np.asarray(segment.columns["vertices"])
        plain = replace(segment, columns=segment.columns | {"vertices": column})
        if segment.n_rows < max(2, tuning().least_graph_segment_rows):
            return plain
        built = GraphBuilder(self.codec, column, self.codec.rotation.seed, n_cores()).build()
        longest = self.codec.longest(self.codec.heads_of(column).norms)
        graph = VertexGraph(self.codec, built.records, built.entries, longest)
        return self._calibrated(replace(plain, columns=plain.columns | graph.columns(), buckets=graph))

    def _calibrated(self, segment: Segment) -> Segment:
        """Return a segment with a graph that knows which beam a search should use."""
        if self.queries is None:
            return segment
        sample = Sample.of_rows(self.queries, segment, sample_rows(segment.n_rows))
        calibration = measure(GraphTrial(segment, sample), segment.n_rows)
        return replace(segment, buckets=replace(segment.buckets, calibration=calibration))
