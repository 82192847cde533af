"""A fitted encoder together with its geometry: vectors in, codes and columns or encoded queries out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from .. import kernels
from .._core.threads import for_each_chunk, n_cores
from .._core.tuning import tuning
from .._core.typing import Arrays, Codes, Floats, Projections, Vectors
from ..data.source import VectorSource
from ..data.sparserows import VectorRows
from ..encoders import CirculantEncoder, Encoder
from ..encoders.foreign import compute_rows, encode_rows, project_rows
from .estimator import LARGEST_SCALARS, EncodedQueries, Geometry, QueryArrays, scalars_of
from .keptcodec import KeptCodec
from .metrics import Metric, squares
from .residuals import ResidualCodec, spread_rows
from .rotations import loses_nothing
from .vertices import VertexCodec


@dataclass(frozen=True)
class Codec:
    """Encodes rows and queries for one metric.

    Attributes
    ----------
    encoder : Encoder
        Fitted.
    geometry : Geometry
    metric : Metric
    residuals : ResidualCodec, or None
        Makes residual codes beside Hamming codes.
    vertices : VertexCodec, or None
        Makes vertices of a graph beside Hamming codes.
    kept : KeptCodec, VertexCodec or None
        Makes kept vectors of 4 or 8 bits: in a column of their own, in residual codes of cells, or in vertices.
    """

    encoder: Encoder
    geometry: Geometry
    metric: Metric
    residuals: ResidualCodec | None = None
    vertices: VertexCodec | None = None
    kept: KeptCodec | VertexCodec | None = None

    @property
    def rows_of_levels(self) -> KeptCodec | None:
        """The codec of kept vectors of 4 or 8 bits that have a column of their own."""
        return self.kept if isinstance(self.kept, KeptCodec) and not self.kept.in_cells else None

    @classmethod
    def of(cls, encoder: Encoder, metric: Metric) -> Codec:
        """Compute the geometry of a fitted encoder."""
        return cls(encoder, Geometry.of(encoder), metric)

    def accepts_all(self, longest: float) -> bool:
        """Return whether rows of squared lengths up to `longest`, no more than 1e12, can be encoded whatever they are.

        The projections of a circulant encoder are in proportion to the rows, and so are all numbers stored of them.
        """
        return self._squared_centre <= longest and isinstance(self.encoder, CirculantEncoder)

    @cached_property
    def _squared_centre(self) -> float:
        return float(squares(self.geometry.centre[np.newaxis])[0])

    def encode_rows(self, source: VectorSource, first: int, prepared: VectorRows) -> tuple[Codes, Arrays]:
        """Return codes and columns of rows of `source` from row `first` on that were prepared by the metric."""
        rows, kept, projections = source.part(first, prepared), self.rows_of_levels, None
        if self.residuals is not None or (kept is not None and kept.is_shared):
            projections, codes, sums = compute_rows(self.encoder, rows, 1)
        else:
            codes, sums = encode_rows(self.encoder, rows, 1)
        columns = scalars_of(prepared, sums, self.encoder.n_bits, self.geometry, self.metric)
        _check_scalars(source, first, columns)
        if self.residuals is not None:
            assert projections is not None
            columns["residuals"] = self.residuals.encode(prepared, projections)
        if self.vertices is not None:
            columns["vertices"] = self.vertices.encode(rows, prepared)
        if kept is not None:
            columns["vectors"] = kept.encode(rows, prepared, projections)
        return codes, columns

    def project_queries(self, source: VectorSource, first: int, prepared: VectorRows, n_threads: int) -> Projections:
        """Project queries of `source` from query `first` on that were prepared by the metric."""
        return project_rows(self.encoder, source.part(first, prepared), n_threads)

    def kernel_transform(self) -> tuple[Any, ...] | None:
        """Return what kernels need to project dense queries themselves; None if the encoder has no such kernel."""
        if not isinstance(self.encoder, CirculantEncoder) or self.encoder.dim > tuning().longest_kernel_query:
            return None
        return *self.encoder.kernel_arrays(), len(self.encoder.make_work())

    def with_residuals(self, sample: VectorRows, bits: int) -> Codec:
        """Return a codec that makes residual codes too, relative to centres of a prepared sample."""
        n_rows = min(len(sample), tuning().centre_sample_rows, tuning().centre_sample_values // self.encoder.n_bits)
        some = sample if n_rows == len(sample) else sample[spread_rows(len(sample), n_rows)]
        projections = project_rows(self.encoder, VectorSource(some, self.encoder.dim), n_cores())
        return replace(self, residuals=ResidualCodec.fit(projections, bits, self.metric, self.geometry, self.mean()))

    def with_centres(self, centres: Floats, bits: int) -> Codec:
        """Return a codec that makes residual codes too, relative to given centres."""
        return replace(self, residuals=ResidualCodec(centres, bits, self.metric, self.geometry, self.mean()))

    def with_vertices(self, n_bits: int) -> Codec:
        """Return a codec that makes vertices of a graph too, by a rotation of its own around the same centre."""
        centre, seed = self.geometry.centre, getattr(self.encoder, "seed", 0)
        return replace(self, vertices=VertexCodec.of(centre, n_bits, seed, self.metric))

    def with_kept(self, bits: int, in_cells: bool, centres: Floats | None = None) -> Codec:
        """Return a codec that keeps vectors of 4 or 8 bits too, with given centres or those of cells if they fit."""
        if self.vertices is not None:
            return replace(self, kept=self.vertices)
        if centres is None and self.shares_centres:
            assert self.residuals is not None
            centres = self.residuals.centres
        kept = KeptCodec.of(self.encoder, self.geometry, self.metric, bits, centres)
        if in_cells:
            assert self.residuals is not None
            kept = replace(kept, residuals=self.residuals, in_cells=True)
        return replace(self, kept=kept)

    @property
    def shares_centres(self) -> bool:
        """Whether the centres of cells are those of kept vectors of 4 or 8 bits: both are of the same projections."""
        return (
            self.residuals is not None
            and loses_nothing(self.encoder)
            and self.encoder.n_bits == getattr(self.encoder, "length", None)
        )

    def with_kept_of(self, sample: VectorRows) -> Codec:
        """Return a codec whose kept vectors have centres of a prepared sample, unless cells or a graph have theirs."""
        kept = self.rows_of_levels
        return self if kept is None or self.shares_centres else replace(self, kept=kept.fitted(sample))

    def mean(self) -> Floats:
        """Return the projections of the centre of the encoder from the origin."""
        doubled = (2 * self.geometry.centre)[np.newaxis]
        mean: Floats = project_rows(self.encoder, VectorSource(doubled, self.encoder.dim), 1)[0]
        return mean

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

    def encode_dense(self, queries: Vectors, *, with_margins: bool, n_threads: int) -> EncodedQueries | None:
        """Check, prepare and encode dense queries for estimates by a kernel.

        Returns None if the encoder has no kernel, and if a query is not finite or too long.
        """
        arguments = self.kernel_arguments()
        if arguments is None:
            return None
        out = QueryArrays.empty(len(queries), self.encoder.n_bits)
        queries = queries.view()
        queries.flags.writeable = False
        n_encoded = np.zeros(len(queries), dtype=np.int64)

        def task(start: int, stop: int) -> None:
            some = (array[start:stop] for array in out)
            n_encoded[start] = kernels.encoding.encode_queries(queries[start:stop], *arguments, *some)

        for_each_chunk(task, len(queries), tuning().encoded_queries, n_threads)
        if n_encoded.sum() < len(queries):
            return None
        return EncodedQueries.of_arrays(out, self.geometry, self.metric, with_margins=with_margins)

    def kernel_arguments(self) -> tuple[Any, ...] | None:
        """Return what the kernel `encode_queries` knows of the metric and the encoder; None if that has no kernel."""
        transform = self.kernel_transform()
        if transform is None:
            return None
        return self.metric.longest, self.metric.number, self.geometry.scale, *transform


def _check_scalars(source: VectorSource, first: int, columns: Arrays) -> None:
    """Raise ValueError if a row from row `first` of `source` on has scalars that an index file must not hold."""
    for name, largest in LARGEST_SCALARS.items():
        is_bad = ~(np.abs(columns[name]) <= largest)
        if is_bad.any():
            row = first + int(is_bad.argmax())
            raise source.row_error("must have estimates within float32 by this encoder", row, f"has {name} beyond it")
