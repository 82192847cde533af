"""The three metrics: what a vector looks like to the encoder, and what distances are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.typing import Rows, Vectors
from ..data.sparserows import SparseRows, VectorRows

# What rounding in float64 leaves of 1 - 1.
_COSINE_ROUNDING = 1e-15
# A norm that differs from 1 by less is 1 but for the rounding of the vector.
_UNIT_ROUNDING = 1e-6
# Vectors from this length on are squared in pieces.
_LONG = 1024
# Squared norms that float32 sums to full precision.
_LEAST_SQUARE, _LARGEST_SQUARE = 1e-30, 1e36


@dataclass(frozen=True)
class Metric:
    """A way to compare vectors; lower distances are nearer.

    Attributes
    ----------
    name : {"cosine", "l2", "ip"}
    """

    name: str

    @property
    def number(self) -> int:
        """What kernels call it."""
        return ("l2", "ip", "cosine").index(self.name)

    def prepare(self, rows: VectorRows, row_squares: NDArray[np.float64] | None = None) -> VectorRows:
        """Return rows as the encoder sees them: of norm 1 for cosine (a zero vector stays as it is).

        `row_squares` are their squared norms, if these are known.
        """
        if self.name != "cosine":
            return rows
        norms = _norms(squares(rows) if row_squares is None else row_squares)
        return rows.divided(norms) if isinstance(rows, SparseRows) else _divided(rows, norms)

    def fast_distances(self, rows: Vectors | SparseRows, query: Vectors) -> NDArray[np.float32]:
        """Distances from one query to rows, neither of them prepared, in float32: right to `rounding`."""
        if isinstance(rows, SparseRows):
            return self.distances(rows, query)
        rows = rows.astype(np.float32, copy=False)
        near: NDArray[np.float32]
        if self.name == "l2":
            apart = rows - query
            near = np.einsum("ij,ij->i", apart, apart)
            return near
        if self.name == "ip":
            near = 1 - _products(rows, query)
            return near
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            unit = _divided(query[np.newaxis], _norms(squares(query[np.newaxis])))[0]
            products = _products(rows, unit)
            norms = np.einsum("ij,ij->i", rows, rows)
        if not ((norms > _LEAST_SQUARE) & (norms < _LARGEST_SQUARE)).all():
            return self.distances(rows, query)
        near = 1 - products / np.sqrt(norms)
        return near

    def rounding(self, distance: float, vectors: NDArray[Any] | SparseRows, rows: Rows, query: Vectors) -> float:
        """How far `fast_distances` of `vectors[rows]` may be from exact ones, near `distance`.

        Errors of sums grow as the root of their length.
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
        """Exact distances from one query to rows, neither of them prepared, summed in float64."""
        asked = query.astype(np.float64)
        exact: NDArray[np.float64]
        if isinstance(rows, SparseRows):
            if self.name == "l2":
                return rows.squared_distances(query).astype(np.float32)
            products, norms = rows.products(query), rows.squares()
        else:
            wide = rows.astype(np.float64)
            if self.name == "l2":
                return squares(wide - asked).astype(np.float32)
            products, norms = _products(wide, asked), squares(wide)
        if self.name == "ip":
            exact = 1 - products
        else:
            lengths = np.sqrt(norms * (asked @ asked))
            exact = 1 - products / np.where(lengths == 0, 1, lengths)
            exact[np.abs(exact) < _COSINE_ROUNDING] = 0  # a vector is at distance 0 of itself
        return exact.astype(np.float32)


METRICS = {name: Metric(name) for name in ("cosine", "l2", "ip")}


def _norms(row_squares: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return what rows are divided by to have norm 1: 1 for a zero vector, and for one that has it but for rounding."""
    norms = np.sqrt(row_squares).astype(np.float32)
    norms[(norms == 0) | (np.abs(norms - 1) < _UNIT_ROUNDING)] = 1
    return norms


def _divided(rows: Vectors, norms: NDArray[np.float32]) -> Vectors:
    """Divide dense rows by numbers; they may be the same rows."""
    divided: Vectors = rows if (norms == 1).all() else rows / norms[:, np.newaxis]
    return divided


def _products(rows: NDArray[Any], query: NDArray[Any]) -> NDArray[Any]:
    """Inner products, on this thread alone: the threads of a BLAS would get in the way of ours."""
    products: NDArray[Any] = np.einsum("ij,j->i", rows, query)
    return products


def squares(rows: NDArray[Any] | SparseRows) -> NDArray[np.float64]:
    """Squared norms, in float64."""
    if isinstance(rows, SparseRows):
        return rows.squares()
    if rows.dtype == np.float32 and rows.shape[1] >= _LONG and rows.flags.c_contiguous:
        return _long_squares(rows)
    norms: NDArray[np.float64] = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    return norms


def _long_squares(rows: Vectors) -> NDArray[np.float64]:
    """Do as `squares` in a third of the time: sums of 64 squares in float32, which are right to 1e-7, in float64."""
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


def products_and_squares(rows: VectorRows, centre: Vectors) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Inner products of rows with a vector, and their squared distances from it, in float64."""
    wide = centre.astype(np.float64)
    if isinstance(rows, SparseRows):
        products = rows.products(centre)
        return products, np.maximum(rows.squares() - 2 * products + wide @ wide, 0)
    return rows.astype(np.float64) @ wide, squares(rows - centre)
