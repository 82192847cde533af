"""A fitted encoder together with its geometry: vectors in, codes and columns or encoded queries out."""

from __future__ import annotations

from dataclasses import dataclass

from .._core.typing import Arrays, Codes
from ..data.source import VectorSource
from ..data.sparserows import VectorRows
from ..encoders import Encoder
from ..encoders.foreign import encode_rows, project_rows
from .estimator import EncodedQueries, Geometry, scalars_of
from .metrics import Metric


@dataclass(frozen=True)
class Codec:
    """Encodes rows and queries for one metric.

    Attributes
    ----------
    encoder : Encoder
        Fitted.
    geometry : Geometry
    metric : Metric
    """

    encoder: Encoder
    geometry: Geometry
    metric: Metric

    @classmethod
    def of(cls, encoder: Encoder, metric: Metric) -> Codec:
        """Compute the geometry of a fitted encoder."""
        return cls(encoder, Geometry.of(encoder), metric)

    def encode_rows(self, source: VectorSource, first: int, prepared: VectorRows) -> tuple[Codes, Arrays]:
        """Return codes and columns of rows of `source` from row `first` on that were prepared by the metric."""
        codes, sums = encode_rows(self.encoder, source.part(first, prepared), 1)
        return codes, scalars_of(prepared, sums, self.encoder.n_bits, self.geometry, self.metric)

    def encode_queries(
        self,
        source: VectorSource,
        first: int,
        prepared: VectorRows,
        *,
        with_estimates: bool,
        with_margins: bool,
        n_threads: int,
    ) -> EncodedQueries:
        """Encode queries of `source` from query `first` on that were prepared by the metric.

        `with_estimates` adds what estimated distances need, and `with_margins` how certain each bit is.
        """
        projections = project_rows(self.encoder, source.part(first, prepared), n_threads)
        if not with_estimates:
            return EncodedQueries.of_codes(projections, with_margins=with_margins)
        return EncodedQueries.of(prepared, projections, self.geometry, self.metric, with_margins=with_margins)
