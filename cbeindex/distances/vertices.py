"""Vertices: what a graph stores of a row, and the distances that follow from it.

A row x with the mean m has the projections p = P (x - m), by an orthogonal circulant matrix P of its own: also for
encoders that are not linear. They are quantised to int8 with a scale a row (`kernels/vertices.py`). Short vectors have
several such matrices, for codes with more bits; levels are those of the first. Where an index has fewer bits than
dimensions, P has as many rows as there are bits, and `unit` is the share of squared norms that is left on average.

Under "cosine" and "ip", the nearest row is the one with the largest product with the query. That is the nearest point
if rows have another coordinate sqrt(M^2 - |x|^2) and queries a 0 there, with M the norm of the longest row:

    |x - q|^2 + M^2 - |x|^2  =  |q|^2 + M^2 - 2 <x, q>

Queries get the length M first. Rows of equal norms, such as those of "cosine", have 0 there too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from .._core.threads import for_each_chunk
from .._core.tuning import tuning
from .._core.typing import Doubles, Floats, Projections, Vectors
from ..data.columns import Column
from ..data.source import VectorSource
from ..data.sparserows import SparseRows, VectorRows
from ..encoders import CirculantEncoder
from ..encoders.foreign import project_rows
from ..encoders.lengths import fast_length
from ..errors import CorruptIndexFileError
from .metrics import Metric, squares
from .rotations import decoded_vectors, rotation_around, turned_back

# Rounding of a squared distance in float32, over the sizes of its terms.
_ROUNDING = 4 * float(np.finfo(np.float32).eps)
# Rows that a task decodes.
_TASK_ROWS = 4096
# The largest of the numbers that vertices hold beside their levels.
_LARGEST = 1e37


class VertexShape(NamedTuple):
    """Sizes of a vertex.

    Attributes
    ----------
    n_levels : int
        Levels of a row.
    n_blocks : int
        Matrices that make the bits of codes from a row.
    """

    n_levels: int
    n_blocks: int

    @classmethod
    def of(cls, dim: int, n_bits: int) -> VertexShape:
        """Choose sizes: an isometry, unless there are fewer bits than dimensions."""
        if n_bits < dim:
            return cls(n_bits, 1)
        length = fast_length(dim)
        return cls(length, max(1, min(tuning().most_graph_blocks, -(-tuning().least_graph_bits // length))))

    @property
    def n_code_bits(self) -> int:
        """Bits of the code of a neighbour."""
        return self.n_levels * self.n_blocks

    @property
    def n_columns(self) -> int:
        """Projections of a row for codes, as kernels store them."""
        return -(-self.n_code_bits // 16) * 16

    @property
    def column(self) -> Column:
        """The column that holds vertices."""
        return Column(np.uint8, (12 + -(-self.n_levels // 4) * 4,))

    @property
    def record_bytes(self) -> int:
        """Bytes of a record of a graph."""
        return -(-(self.vertex_at + self.column.row_bytes) // 64) * 64

    @property
    def vertex_at(self) -> int:
        """The byte of a record at which the vertex begins."""
        return 4 * self.n_columns + 3 * 4 * 32


class Heads(NamedTuple):
    """What vertices hold beside levels: float32 arrays of shape (n,)."""

    scales: Floats
    squares: Floats
    norms: Floats


@dataclass(frozen=True)
class VertexCodec:
    """Makes vertices of rows, and prepares queries for them.

    Attributes
    ----------
    rotation : CirculantEncoder
        With all blocks, and the centre of the encoder of the index.
    first : CirculantEncoder
        The first block of it.
    shape : VertexShape
    metric : Metric
    """

    rotation: CirculantEncoder
    first: CirculantEncoder
    shape: VertexShape
    metric: Metric

    @classmethod
    def of(cls, centre: Floats, n_bits: int, seed: int, metric: Metric) -> VertexCodec:
        """Make the codec of an index whose encoder has this centre, and this many bits."""
        dim = len(centre)
        shape = VertexShape.of(dim, n_bits)
        rotation = rotation_around(centre, shape.n_code_bits, seed)
        return cls(rotation, rotation.shorten(shape.n_levels), shape, metric)

    @property
    def unit(self) -> float:
        """Squared norms of projections over those of vectors."""
        return min(1.0, self.shape.n_levels / self.rotation.length)

    @property
    def has_norms(self) -> bool:
        """Whether products count."""
        return self.metric.name != "l2"

    def encode(self, rows: VectorSource, prepared: VectorRows) -> NDArray[np.uint8]:
        """Return the vertices of rows that were prepared by the metric."""
        projections = project_rows(self.first, rows, 1)
        norms = self.unit * squares(prepared) if self.has_norms else np.zeros(len(projections))
        if self.metric.name == "cosine":  # 1 or 0, whatever the rounding
            norms = np.where(norms > 0, self.unit, 0.0)
        column = np.empty((len(projections), *self.shape.column.shape), dtype=np.uint8)
        kernels.vertices.write_vertices(
            np.ascontiguousarray(projections), self.shape.n_levels, norms.astype(np.float32), column
        )
        return column

    def check(self, column: NDArray[np.uint8], points: Floats | None = None) -> None:
        """Raise CorruptIndexFileError if vertices hold values that no row gives; `points` are their projections."""
        heads = np.stack(self.heads_of(column))
        if not np.isfinite(heads).all() or heads.max(initial=0) > _LARGEST or heads.min(initial=0) < 0:
            raise CorruptIndexFileError(f"scales and norms of vertices must be from 0 to {_LARGEST:g}")
        # Rows are up to twice as far from the centre as they are long.
        longest = 8 * self.unit * self.metric.longest
        if squares(self.decode(column, 1) if points is None else points).max(initial=0) > longest:
            raise CorruptIndexFileError(f"vertices must have norms up to {longest**0.5:g}")

    def decode(self, column: NDArray[np.uint8], n_threads: int, n_columns: int | None = None) -> Floats:
        """Return the projections that vertices stand for, with zeros up to `n_columns`."""
        width = n_columns or self.shape.n_levels
        projections = np.zeros((len(column), width), dtype=np.float32)

        def task(start: int, stop: int) -> None:
            kernels.vertices.read_vertices(column, self.shape.n_levels, start, stop, projections)

        for_each_chunk(task, len(column), _TASK_ROWS, n_threads)
        return projections

    def code_projections(self, points: Floats, n_threads: int) -> Projections:
        """Return the projections of all blocks of rows that are decoded, and zeros up to a multiple of 16 columns."""
        shape = self.shape
        if shape.n_blocks == 1 and points.shape[1] == shape.n_columns:
            return points
        projections = np.zeros((len(points), shape.n_columns), dtype=np.float32)
        if shape.n_blocks > 1:
            for start in range(0, len(points), _TASK_ROWS):
                some = slice(start, start + _TASK_ROWS)
                rows = turned_back(self.first, points[some, : shape.n_levels])
                projected = self.rotation.project_source(VectorSource(rows, self.rotation.dim), n_threads)
                projections[some, : shape.n_code_bits] = projected
        projections[:, : shape.n_levels] = points[:, : shape.n_levels]
        return projections

    def vectors_of(self, column: NDArray[np.uint8]) -> Vectors:
        """Return the vectors that vertices stand for, under "cosine" of length 1. Needs levels of all dimensions."""
        return decoded_vectors(self.first, lambda rows: self.decode(rows, 1), column)

    def squared_errors(self, column: NDArray[np.uint8]) -> Doubles:
        """Return the squared distances of rows to the vectors that their vertices stand for."""
        own = squares(self.decode(column, 1))
        errors: Doubles = np.abs(self.heads_of(column).squares - own)
        return errors

    @staticmethod
    def heads_of(column: NDArray[np.uint8]) -> Heads:
        """Return what vertices hold beside their levels."""
        heads = np.ascontiguousarray(column[:, :12]).view("<f4").astype(np.float32, copy=False)
        return Heads(*np.ascontiguousarray(heads.T))

    def longest(self, norms: Floats) -> float:
        """Return the norm of the longest row, from the norms of vertices; 1 under "cosine"."""
        if self.metric.name == "cosine":
            return 1.0
        return math.sqrt(float(norms.max(initial=0)) / self.unit)

    # --- queries ---

    def kernel_transform(self) -> tuple[Any, ...] | None:
        """Return what kernels need to project dense queries themselves; None for long queries."""
        if self.rotation.dim > tuning().longest_kernel_query:
            return None
        return *self.rotation.kernel_arrays(), len(self.rotation.make_work())

    def project_queries(
        self, queries: VectorRows, row_squares: NDArray[np.float64], longest: float, n_threads: int
    ) -> tuple[Projections, Floats]:
        """Return projections of queries, and slope and intercept of their distances, float64 (n, 2).

        `row_squares` are their squared norms, and `longest` is the norm of the longest row.
        """
        n, unit = len(queries), self.unit
        lines: Floats = np.tile([1 / unit, 0.0], (n, 1))
        prepared = self.metric.prepare(queries, row_squares)
        if self.has_norms:
            gains = np.ones(n)
            if self.metric.name == "ip" and longest > 0:
                norms = np.where(row_squares > 0, np.sqrt(row_squares) / longest, 1).astype(np.float32)
                prepared = queries.divided(norms) if isinstance(queries, SparseRows) else queries / norms[:, np.newaxis]
                gains = norms.astype(np.float64)
            lines = np.stack([gains / (2 * unit), 1 - gains * (squares(prepared) + longest**2) / 2], axis=1)
            lines[row_squares == 0] = 0, 1
        source = VectorSource(prepared, self.rotation.dim)
        return self.rotation.project_source(source, n_threads), lines

    def errors(self, projections: Projections, slope: float, column: NDArray[np.uint8]) -> Floats:
        """Return the standard errors of the distances of levels, for one query.

        The levels of a row miss a part r of its projections, which is orthogonal to the levels and has no preferred
        direction. The product of a query with r is the error: |r| times the part of the query that is orthogonal to
        the levels too, over the root of the dimensions. Fewer projections than dimensions add the variance of norms.

        Parameters
        ----------
        projections : float32 array of shape (n_bits,)
        slope : float
        column : uint8 array of shape (k, row bytes)
        """
        points, heads = self.decode(column, 1).astype(np.float64), self.heads_of(column)
        query = projections[: self.shape.n_levels].astype(np.float64)
        own, whole = squares(points), heads.squares.astype(np.float64)
        along = points @ query
        across = query @ query - np.divide(along**2, own, out=np.zeros_like(own), where=own > 0)
        missed = np.abs(whole - own)  # of files whose scales make levels nearest to rows, the rows are the longer ones
        product = 2 * np.sqrt(missed * np.maximum(across, missed) / max(1, self.shape.n_levels - 1))
        apart = np.maximum(whole + query @ query - 2 * along, 0)
        projected = math.sqrt(self.first.scale_variance) * apart
        rounding = _ROUNDING * (whole + heads.norms + query @ query)
        errors: Floats = (slope * np.sqrt(product**2 + projected**2 + rounding**2)).astype(np.float32)
        return errors


class RecordVertices:
    """Vertices that are stored in the records of a graph, read like an array of shape (n_rows, bytes of a vertex).

    Parameters
    ----------
    records : uint8 array of shape (n_rows, bytes of a record)
    shape : VertexShape
    """

    nbytes = 0  # buckets count the records

    def __init__(self, records: NDArray[np.uint8], shape: VertexShape) -> None:
        self._records, self._shape = records, shape

    def __len__(self) -> int:
        return len(self._records)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the array that the rows stand for."""
        return len(self), self._shape.column.row_bytes

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        start = self._shape.vertex_at
        return np.ascontiguousarray(self._records[rows, start : start + self.shape[1]])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.uint8]:
        return self[:]
