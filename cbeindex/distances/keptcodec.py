"""Kept vectors of 4 and 8 bits a dimension: rows as levels of their residuals, and back.

Levels are those of `residuals.py`, of a rotation that loses nothing of a vector: that of the encoder where its first
projections are one, or else another one. So are their distances and standard errors. Rows are stored in a column of
their own (`kernels/kept.py`), or, where cells hold codes of 4 bits of the same projections, as those codes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from .._core.threads import n_cores
from .._core.tuning import tuning
from .._core.typing import Doubles, Floats, Projections, Vectors
from ..data.columns import Column
from ..data.source import VectorSource
from ..data.sparserows import VectorRows
from ..encoders import CirculantEncoder
from ..encoders.foreign import project_rows
from .estimator import Geometry
from .metrics import Metric, squares
from .residuals import Numbers, ResidualCodec, spread_rows
from .rotations import decoded_vectors, loses_nothing, rotation_of

KEPT_BITS = {"int4": 4, "int8": 8}
"""Bits a dimension of kept vectors, by the names of `vectors`."""

# Bytes of a row before its levels: factor, offset, and spread with the number of the centre.
_HEAD = 12
# Rounding of a query to whole numbers up to 32,767, over its largest projection: standard deviation.
_QUERY_ROUNDING = 1 / (32767 * np.sqrt(12))


@dataclass(frozen=True)
class KeptCodec:
    """Quantises vectors, and estimates distances from what is kept of them.

    Attributes
    ----------
    rotation : CirculantEncoder
    residuals : ResidualCodec
        Of the projections of the rotation, with levels of 4 or 8 bits.
    is_shared : bool
        Whether the projections are the first ones of the encoder of the index.
    in_cells : bool
        Whether the residual codes of cells are the kept vectors.
    """

    rotation: CirculantEncoder
    residuals: ResidualCodec
    is_shared: bool
    in_cells: bool = False

    @classmethod
    def of(
        cls, encoder: Any, geometry: Geometry, metric: Metric, bits: int, centres: Floats | None = None
    ) -> KeptCodec:
        """Make the codec of an index with this encoder, by default with one centre: the mean of the data."""
        rotation = rotation_of(encoder, geometry.centre)
        if centres is None:
            centres = np.zeros((1, rotation.n_bits), dtype=np.float32)
        mean = project_rows(rotation, VectorSource((2 * rotation.centre)[np.newaxis], rotation.dim), 1)[0]
        residuals = ResidualCodec(centres, bits, metric, Geometry.of(rotation), mean)
        return cls(rotation, residuals, loses_nothing(encoder))

    def fitted(self, sample: VectorRows) -> KeptCodec:
        """Return a codec with centres of a prepared sample."""
        own, limits = self.residuals, tuning()
        n_rows = min(len(sample), limits.centre_sample_rows, limits.centre_sample_values // self.rotation.n_bits)
        some = sample if n_rows == len(sample) else sample[spread_rows(len(sample), n_rows)]
        projections = project_rows(self.rotation, VectorSource(some, self.rotation.dim), n_cores())
        return replace(self, residuals=ResidualCodec.fit(projections, own.bits, own.metric, own.geometry, own.mean))

    @property
    def bits(self) -> int:
        """Bits a dimension."""
        return self.residuals.bits

    # --- rows ---

    def encode(self, rows: VectorSource, prepared: VectorRows, projections: Projections | None) -> NDArray[np.uint8]:
        """Return what is kept of prepared rows; `projections` are those of the encoder, if they are known."""
        if projections is None or not self.is_shared:
            projections = project_rows(self.rotation, rows, 1)
        codes, numbers = self.residuals.quantise(prepared, projections[:, : self.rotation.n_bits])
        column = np.zeros((len(codes), kept_bytes(self.rotation.n_bits, self.bits)), dtype=np.uint8)
        spreads = numbers.spreads.astype("<f4").view("<u4")
        # Rounded up to what the upper bits hold: a spread that is too small would claim more than is known.
        lower = _centre_mask(len(self.residuals.centres))
        spreads = np.where(spreads & lower, (spreads & ~lower) + (lower + np.uint32(1)), spreads) | numbers.centres
        head = np.stack([numbers.factors.astype("<f4").view("<u4"), numbers.offsets.astype("<f4").view("<u4"), spreads])
        column[:, :_HEAD] = np.ascontiguousarray(head.T.astype("<u4")).view(np.uint8)
        column[:, _HEAD : _HEAD + codes.shape[1]] = codes
        return column

    def _parts(self, column: NDArray[np.uint8]) -> tuple[Floats, Numbers]:
        """Return the values of the levels of rows, and their numbers."""
        residuals = self.residuals
        values = np.empty((len(column), residuals.n_bits), dtype=np.float32)
        codes = np.ascontiguousarray(column[:, : residuals.n_bytes] if self.in_cells else column[:, _HEAD:])
        kernels.kept.values_of_kept(codes, 0, len(codes), self.bits, values)
        if self.in_cells:
            return values, residuals.numbers_of(column)
        factors, offsets, spreads, centres = heads_of(column, len(residuals.centres))
        f = factors.astype(np.float64) / residuals.factor_scale
        square = f**2 * squares(values) - spreads.astype(np.float64) ** 2 * max(1, residuals.n_bits - 1)
        lengths = np.sqrt(np.maximum(square, 0)).astype(np.float32)
        return values, Numbers(factors, offsets, spreads, lengths, centres)

    def vectors_of(self, column: NDArray[np.uint8]) -> Vectors:
        """Return the vectors that rows stand for, under "cosine" of length 1."""
        return decoded_vectors(self.rotation, self._decode, column)

    def points_of(self, column: NDArray[np.uint8]) -> Projections:
        """Return the projections that rows stand for, from the origin under "ip", and from the centre otherwise."""
        return self.from_origin(self._decode(column))

    def from_origin(self, projections: Projections) -> Projections:
        """Return projections from the point that products or distances are taken from."""
        return projections + self.residuals.mean if self.residuals.metric.name == "ip" else projections

    def _decode(self, column: NDArray[np.uint8]) -> Projections:
        """Return the projections nearest to those of rows in the direction of their levels."""
        values, numbers = self._parts(column)
        f, own = numbers.factors.astype(np.float64) / self.residuals.factor_scale, squares(values)
        lengths = numbers.lengths.astype(np.float64) ** 2
        scales = np.divide(lengths, f * own, out=np.zeros_like(own), where=f * own > 0)
        centres = self.residuals.centres[np.minimum(numbers.centres, len(self.residuals.centres) - 1)]
        decoded: Projections = centres + scales[:, np.newaxis].astype(np.float32) * values
        return decoded

    def squared_errors(self, column: NDArray[np.uint8]) -> Doubles:
        """Return the squared distances of rows to the vectors that are kept of them, as measured when they came."""
        values, numbers = self._parts(column)  # of some rows
        whole = (numbers.factors.astype(np.float64) / self.residuals.factor_scale) ** 2 * squares(values)
        missed = numbers.spreads.astype(np.float64) ** 2 * max(1, self.residuals.n_bits - 1)
        shares = np.divide(missed, whole, out=np.zeros_like(whole), where=whole > 0)
        errors: Doubles = numbers.lengths.astype(np.float64) ** 2 * shares
        return errors

    # --- queries ---

    def project_queries(self, queries: VectorRows, n_threads: int) -> Projections:
        """Return the projections of prepared queries."""
        return project_rows(self.rotation, VectorSource(queries, self.rotation.dim), n_threads)

    def weights(self) -> Floats:
        """Return the factors of |z - c|^2 and of <c, z> in the shift of a query for a centre."""
        return np.array(self.residuals.shift_scales, dtype=np.float32)

    def errors(self, projections: Projections, distances: Floats, column: NDArray[np.uint8]) -> Floats:
        """Return the standard errors of estimated distances, float32 (n_queries, k), to the rows of a column."""
        return self.residuals.errors(projections, distances, column, self._parts, _QUERY_ROUNDING)


def heads_of(column: NDArray[np.uint8], n_centres: int) -> tuple[Floats, Floats, Floats, NDArray[np.uint16]]:
    """Return factors, offsets, spreads and centres of rows that have a column of their own."""
    head, lower = np.ascontiguousarray(column[:, :_HEAD]).view("<u4"), _centre_mask(n_centres)
    floats = np.ascontiguousarray(np.stack([head[:, 0], head[:, 1], head[:, 2] & ~lower])).view("<f4")
    factors, offsets, spreads = floats.astype(np.float32, copy=False)
    return factors, offsets, spreads, (head[:, 2] & lower).astype(np.uint16)


def _centre_mask(n_centres: int) -> np.uint32:
    """Return the bits of a spread that name the centre of a row: 8, or 10 where there are more centres."""
    return np.uint32(255 if n_centres <= 256 else 1023)


def kept_bytes(n_levels: int, bits: int) -> int:
    """Return the bytes of a row of kept vectors, a multiple of 4."""
    return _HEAD + -(-n_levels * bits // 32) * 4


def kept_column(n_levels: int, bits: int) -> Column:
    """Return the column of kept vectors of a rotation of `n_levels` projections."""
    return Column(np.uint8, (kept_bytes(n_levels, bits),))
