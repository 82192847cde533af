"""The three metrics: how vectors are checked and prepared for the encoder, and exact distances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.tuning import tuning
from .._core.typing import Rows, Vectors
from ..data.source import VectorSource
from ..data.sparserows import SparseRows, VectorRows

# What float64 rounding leaves of 1 - 1.
_COSINE_ROUNDING = 1e-15
# A norm this close to 1 is 1 up to the rounding of the vector.
_UNIT_ROUNDING = 1e-6
# Squared norms between these bounds are summed in float32 at full precision.
_LEAST_SQUARE, _LARGEST_SQUARE = 1e-30, 1e36
# Under "l2" and "ip": the largest squared norm for which distances fit float32.
_LARGEST_ROW_SQUARE = 1e36
# Under "cosine" only the norm itself must fit float32.
_LARGEST_COSINE_SQUARE = float(np.finfo(np.float32).max) ** 2


@dataclass(frozen=True)
class Metric:
    """A distance between vectors; smaller is nearer.

    Attributes
    ----------
    name : {"cosine", "l2", "ip"}
    """

    name: str

    @property
    def number(self) -> int:
        """The number by which kernels know the metric."""
        return ("l2", "ip", "cosine").index(self.name)

    @property
    def longest(self) -> float:
        """The largest squared norm of a vector."""
        return _LARGEST_COSINE_SQUARE if self.name == "cosine" else _LARGEST_ROW_SQUARE

    def check(self, source: VectorSource, first: int, rows: VectorRows) -> NDArray[np.float64]:
        """Return the squared norms of rows read from row `first` of `source` on.

        Raises ValueError, naming the row in `source`, if a row is not finite or too long for float32 distances.
        """
        sums = squares(rows)
        finite = np.isfinite(sums)  # in float64, so the sum is finite if all values are
        if not finite.all():
            source.refuse(first + int(finite.argmin()))
        if sums.size and sums.max() > self.longest:
            source.refuse(first + int(sums.argmax()))
        return sums

    def prepare(self, rows: VectorRows, row_squares: NDArray[np.float64] | None = None) -> VectorRows:
        """Return rows as the encoder sees them: normalised for cosine (zero vectors stay zero), else unchanged.

        `row_squares` holds the squared norms if they are known.
        """
        if self.name != "cosine":
            return rows
        norms = _divisors(squares(rows) if row_squares is None else row_squares)
        return rows.divided(norms) if isinstance(rows, SparseRows) else _divide(rows, norms)

    def fast_distances(self, rows: Vectors | SparseRows, query: Vectors) -> NDArray[np.float32]:
        """Return distances from one query to rows, neither of them prepared, in float32 (see `rounding`)."""
        if isinstance(rows, SparseRows):
            return self.distances(rows, query)
        rows = rows.astype(np.float32, copy=False)
        near: NDArray[np.float32]
        if self.name == "l2":
            differences = rows - query
            near = np.einsum("ij,ij->i", differences, differences)
            return near
        if self.name == "ip":
            near = 1 - _products(rows, query)
            return near
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            unit = _divide(query[np.newaxis], _divisors(squares(query[np.newaxis])))[0]
            products = _products(rows, unit)
            norms = np.einsum("ij,ij->i", rows, rows)
        if not ((norms > _LEAST_SQUARE) & (norms < _LARGEST_SQUARE)).all():
            return self.distances(rows, query)
        near = 1 - products / np.sqrt(norms)
        return near

    def rounding(self, distance: float, vectors: NDArray[Any] | SparseRows, rows: Rows, query: Vectors) -> float:
        """Bound the error of `fast_distances` to `vectors[rows]` near `distance`.

        Errors of sums grow with the square root of their length.
        """
        if isinstance(vectors, SparseRows):
            return 0.0
        scale = 1.0
        if self.name == "l2":
            scale = float(distance)
        elif self.name == "ip":
            scale = float(np.abs(vectors[rows]).max(initial=0) * np.abs(query).sum(dtype=np.float64))
        return 8 * float(np.finfo(np.float32).eps) * math.sqrt(query.size) * scale

    def distances(self, rows: Vectors | SparseRows, query: Vectors) -> NDArray[np.float32]:
        """Return exact distances from one query to rows, neither of them prepared, summed in float64."""
        wide_query = query.astype(np.float64)
        exact: NDArray[np.float64]
        if isinstance(rows, SparseRows):
            if self.name == "l2":
                return rows.squared_distances(query).astype(np.float32)
            products, norms = rows.products(query), rows.squares()
        else:
            wide = rows.astype(np.float64)
            if self.name == "l2":
                return squares(wide - wide_query).astype(np.float32)
            products, norms = _products(wide, wide_query), squares(wide)
        if self.name == "ip":
            exact = 1 - products
        else:
            lengths = np.sqrt(norms * (wide_query @ wide_query))
            exact = 1 - products / np.where(lengths == 0, 1, lengths)
            exact[np.abs(exact) < _COSINE_ROUNDING] = 0  # a vector has distance 0 to itself
        return exact.astype(np.float32)


METRICS = {name: Metric(name) for name in ("cosine", "l2", "ip")}
"""All metrics by name."""

METRIC_ALIASES = {
    "angular": "cosine",
    "euclidean": "l2",
    "sqeuclidean": "l2",
    "dot": "ip",
    "inner_product": "ip",
}
"""Names of other libraries. Distances are those of the metric here: squared for "euclidean" too."""


def as_metric(name: Any) -> str:
    """Return the name of a metric that was given by its name or an alias."""
    known = METRIC_ALIASES.get(name, name) if isinstance(name, str) else name
    if isinstance(known, str) and known in METRICS:
        return known
    wanted = ", ".join(map(repr, METRICS))
    raise ValueError(f"metric must be one of {wanted} (or {', '.join(map(repr, METRIC_ALIASES))}), got {name!r}")


def norms(rows: VectorRows) -> NDArray[np.float32]:
    """Return the norms in float32."""
    return _roots(squares(rows))


def _roots(row_squares: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return square roots, at most the largest float32: decoded vectors may be longer than those that were added."""
    return np.minimum(np.sqrt(row_squares), float(np.finfo(np.float32).max)).astype(np.float32)


def squares(rows: NDArray[Any] | SparseRows) -> NDArray[np.float64]:
    """Return squared norms in float64."""
    if isinstance(rows, SparseRows):
        return rows.squares()
    if rows.dtype == np.float32 and rows.shape[1] >= tuning().long_vector_values and rows.flags.c_contiguous:
        return _long_squares(rows)
    norms: NDArray[np.float64] = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    return norms


def products_and_squares(rows: VectorRows, centre: Vectors) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return inner products of rows with `centre`, and squared distances to it, in float64."""
    wide = centre.astype(np.float64)
    if isinstance(rows, SparseRows):
        products = rows.products(centre)
        return products, np.maximum(rows.squares() - 2 * products + wide @ wide, 0)
    return rows.astype(np.float64) @ wide, squares(rows - centre)


def _divisors(row_squares: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the norms that rows are divided by: 1 for zero vectors, and for unit vectors up to rounding."""
    norms = _roots(row_squares)
    norms[(norms == 0) | (np.abs(norms - 1) < _UNIT_ROUNDING)] = 1
    return norms


def _divide(rows: Vectors, norms: NDArray[np.float32]) -> Vectors:
    """Divide dense rows by `norms`. The result may be `rows` itself."""
    divided: Vectors = rows if (norms == 1).all() else rows / norms[:, np.newaxis]
    return divided


def _products(rows: NDArray[Any], query: NDArray[Any]) -> NDArray[Any]:
    """Return inner products, computed on this thread alone: BLAS threads would compete with those of the search."""
    products: NDArray[Any] = np.einsum("ij,j->i", rows, query)
    return products


def _long_squares(rows: Vectors) -> NDArray[np.float64]:
    """Compute `squares` faster: sums of 64 squares in float32, right to 1e-7, are added up in float64."""
    n, dim = rows.shape
    n_pieces = dim // 64
    pieces = np.lib.stride_tricks.as_strided(rows, (n, n_pieces, 64), (rows.strides[0], 256, 4), writeable=False)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        sums = np.einsum("ijk,ijk->ij", pieces, pieces).sum(axis=1, dtype=np.float64)
    rest = rows[:, 64 * n_pieces :]
    norms: NDArray[np.float64] = sums + np.einsum("ij,ij->i", rest, rest, dtype=np.float64)
    doubtful = ~((norms > _LEAST_SQUARE) & (norms < _LARGEST_SQUARE))
    if doubtful.any():
        norms[doubtful] = np.einsum("ij,ij->i", rows[doubtful], rows[doubtful], dtype=np.float64)
    return norms
