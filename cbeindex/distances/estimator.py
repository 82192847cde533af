"""Estimated distances between a real-valued query and binary codes: what is stored per row and prepared per query.

A row has the centred vector y, projections P y and signs b. A query has the centred vector z. With
f = |P y|^2 / <P y, b>, the product f <P z, b> estimates <P y, P z>: it is exact for z = y and unbiased otherwise,
because the part of b orthogonal to P y has no preferred direction. With the scale c of the encoder, c |P w|^2
estimates |w|^2, and therefore

    |x - q|^2 ~ c (|P y|^2 + |P z|^2 - 2 f <P z, b>)

The error of this estimate is small where x is near q. With |y|^2 and |z|^2 in place of the projected norms, and fewer
bits than dimensions, near vectors would have errors as large as those of far vectors (10@100 at 128 bits for 784
dimensions: 0.84 with projected norms, 0.74 without). Cosine distances follow, since norms are known. Inner products
are large for far vectors as well, and come from <x, q> = <y, z> + <x, centre> + <centre, z> with
f = |y|^2 / <P y, b> instead.

So an estimated distance is the offset of the row, plus the offset of the query, minus the factor of the row times
<P z, b>. Offset and factor are stored per row, and so is the spread, from which standard errors are computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from .._core.typing import Arrays, Codes, Doubles, Floats, Projections, Rows, Vectors
from ..data.codes import n_words, pack_signs
from ..data.columns import Column
from ..data.sparserows import VectorRows
from .metrics import Metric, products_and_squares, squares

SCALARS = {name: Column(np.float32) for name in ("offsets", "factors", "spreads")}
"""Columns stored for each row beside its code."""

LARGEST_SCALARS = {"offsets": 1e37, "factors": 1e19, "spreads": 1e19}
"""Largest magnitudes in these columns.

Vectors have norms up to 1e18, so squared norms are up to 1e36. Factors and spreads are multiplied by the norm of a
query. Sums of a few such values stay within float32.
"""


@dataclass(frozen=True)
class Geometry:
    """How an encoder changes lengths.

    Attributes
    ----------
    centre : float32 array of shape (dim,)
    scale : float
        Makes scale |P w|^2 an estimate of |w|^2.
    variance : float
        Relative variance of that estimate.
    overlap : float
        Share of P^T P y along y: 1 for whole orthogonal blocks, 0 if nothing is known about P.
    """

    centre: Vectors
    scale: float
    variance: float
    overlap: float

    @classmethod
    def of(cls, encoder: Any) -> Geometry:
        """Return the geometry that an encoder states, or measure it on random vectors."""
        centre = getattr(encoder, "centre", None)
        centre = np.zeros(encoder.dim, dtype=np.float32) if centre is None else np.asarray(centre, dtype=np.float32)
        if hasattr(encoder, "scale"):
            return cls(centre, encoder.scale, encoder.scale_variance, encoder.overlap)
        if not getattr(encoder, "is_linear", True):  # distances are not estimated
            return cls(centre, 1.0, 0.0, 0.0)
        probes = np.random.default_rng(0).standard_normal((64, encoder.dim)).astype(np.float32)
        ratios = squares(np.asarray(encoder.project(probes + centre))) / squares(probes)
        return cls(centre, 1 / float(ratios.mean()), float(ratios.var() / ratios.mean() ** 2), 0.0)


def scalars_of(rows: VectorRows, sums: Doubles, n_bits: int, geometry: Geometry, metric: Metric) -> Arrays:
    """Compute the columns of prepared rows from the sums of magnitudes and squares of their projections, (n, 2)."""
    product, projected = sums.T  # <P y, b> and |P y|^2
    inverse = np.divide(1, product, out=np.zeros_like(product), where=product > 0)
    openness = n_bits * projected * inverse**2  # 1 / a^2, with a the cosine of P y and b
    if metric.name == "ip":
        along, centred = products_and_squares(rows, geometry.centre)
        offset = -along
        factor = centred * inverse
        spread = np.sqrt(centred * np.maximum(openness - geometry.overlap, 0) / n_bits)
    else:
        offset = geometry.scale * projected
        factor = 2 * geometry.scale * projected * inverse
        spread = 2 * geometry.scale * np.sqrt(projected * np.maximum(openness - 1, 0) / max(1, n_bits - 1))
        if metric.name == "cosine":
            # Row and query share the 1 of 1 - cosine, so that both offsets are small where distances are.
            offset, factor, spread = (offset + 1 - squares(rows)) / 2, factor / 2, spread / 2
    with np.errstate(over="ignore"):  # the caller refuses rows whose scalars are beyond float32
        return {
            "offsets": offset.astype(np.float32),
            "factors": factor.astype(np.float32),
            "spreads": spread.astype(np.float32),
        }


class QueryArrays(NamedTuple):
    """What the kernel `encode_queries` writes: projections, and attributes of `EncodedQueries`."""

    projections: Projections
    levels: NDArray[np.int8]
    steps: Floats
    totals: NDArray[np.int32]
    offsets: Floats
    norms: Floats

    @classmethod
    def empty(cls, n_queries: int, n_bits: int) -> QueryArrays:
        """Allocate the arrays."""
        steps, offsets, norms = (np.empty(n_queries, dtype=np.float32) for _ in range(3))
        levels = np.zeros((n_queries, 64 * n_words(n_bits)), dtype=np.int8)
        projections = np.empty((n_queries, n_bits), dtype=np.float32)
        return cls(projections, levels, steps, np.empty(n_queries, dtype=np.int32), offsets, norms)


@dataclass(frozen=True)
class EncodedQueries:
    """Codes of queries, and what estimated distances need beside them.

    Projections are quantised, which adds a hundredth of the error of the codes.

    Attributes
    ----------
    codes : uint64 array of shape (n_queries, n_words)
        Signs of the projections.
    levels : int8 array of shape (n_queries, 64 * n_words)
        Projections, quantised to -15 ... 15 steps.
    steps, totals : float32 and int32 arrays of shape (n_queries,)
        Unit of the levels, and the sum of their magnitudes.
    offsets, norms : float32 arrays of shape (n_queries,)
        Offset of each query, and the norm that standard errors are proportional to.
    variance : float
        Relative variance of distances that is due to projection.
    margins : float32 array of shape (n_queries, n_bits), or None
        Magnitudes of the projections: how certain each bit of a code is.
    """

    codes: Codes
    levels: NDArray[np.int8]
    steps: Floats
    totals: NDArray[np.int32]
    offsets: Floats
    norms: Floats
    variance: float
    margins: Floats | None = None

    @classmethod
    def of_codes(cls, projections: Projections, *, with_margins: bool) -> EncodedQueries:
        """Encode queries whose distances are not estimated."""
        empty = np.empty(0, dtype=np.float32)
        levels = np.empty((0, 0), dtype=np.int8)
        margins = np.abs(projections) if with_margins else None
        return cls(pack_signs(projections), levels, empty, np.empty(0, np.int32), empty, empty, 0.0, margins)

    @classmethod
    def of(
        cls, queries: VectorRows, projections: Projections, geometry: Geometry, metric: Metric, *, with_margins: bool
    ) -> EncodedQueries:
        """Encode prepared queries from their projections."""
        n_queries, n_bits = projections.shape
        levels = np.zeros((n_queries, 64 * n_words(n_bits)), dtype=np.int8)
        steps, totals = np.empty(n_queries, dtype=np.float32), np.empty(n_queries, dtype=np.int32)
        kernels.levels.quantise(projections, levels, steps, totals)
        if metric.name == "ip":
            along, centred = products_and_squares(queries, geometry.centre)
            offsets = 1 - along + squares(geometry.centre[np.newaxis])
            norms, variance = np.sqrt(centred), 0.0
        else:
            projected = squares(projections)
            offsets = geometry.scale * projected
            norms, variance = np.sqrt(projected), geometry.variance
            if metric.name == "cosine":
                offsets = (offsets + 1 - squares(queries)) / 2
        return cls(
            pack_signs(projections),
            levels,
            steps,
            totals,
            offsets.astype(np.float32),
            norms.astype(np.float32),
            variance,
            np.abs(projections) if with_margins else None,
        )

    @classmethod
    def of_arrays(
        cls, arrays: QueryArrays, geometry: Geometry, metric: Metric, *, with_margins: bool
    ) -> EncodedQueries:
        """Take what a kernel has encoded."""
        projections, levels, steps, totals, offsets, norms = arrays
        variance = 0.0 if metric.name == "ip" else geometry.variance
        margins = np.abs(projections) if with_margins else None
        return cls(pack_signs(projections), levels, steps, totals, offsets, norms, variance, margins)

    def some(self, which: slice | Rows) -> EncodedQueries:
        """Return some of the queries."""
        return EncodedQueries(
            self.codes[which], self.levels[which], self.steps[which], self.totals[which], self.offsets[which],
            self.norms[which], self.variance, None if self.margins is None else self.margins[which],
        )  # fmt: skip

    def errors(self, distances: Floats, spreads: Floats) -> Floats:
        """Return standard errors of estimated distances to rows with these spreads, both (n_queries, any)."""
        products = spreads * self.norms[:, np.newaxis]
        if self.variance == 0:
            return products
        errors: Floats = np.hypot(products, np.float32(np.sqrt(self.variance)) * distances)
        return errors

    def lower_bounds(self, distances: Floats, columns: Arrays, rows: Rows, n_sigmas: float) -> Floats:
        """Return lower confidence bounds on estimated distances, `n_sigmas` standard errors and rounding below them.

        `distances` and `rows` are (n_queries, any).
        """
        parts = np.abs(columns["offsets"][rows]) + np.abs(self.offsets[:, np.newaxis]) + np.abs(distances)
        rounding = np.float32(16 * np.finfo(np.float32).eps) * parts
        bounds: Floats = distances - n_sigmas * self.errors(distances, columns["spreads"][rows]) - rounding
        return bounds
