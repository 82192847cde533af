"""The three metrics: what a vector looks like to the encoder, and what distances are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._typing import Vectors

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

    def prepare(self, rows: Vectors) -> Vectors:
        """Return rows as the encoder sees them: of norm 1 for cosine (a zero vector stays as it is)."""
        if self.name != "cosine":
            return rows
        norms = np.sqrt(squares(rows))
        return (rows / np.where(norms == 0, 1, norms)[:, np.newaxis]).astype(np.float32)

    def fast_distances(self, rows: Vectors, query: Vectors) -> NDArray[np.float32]:
        """Distances from one query to rows, neither of them prepared, in float32: right to `rounding`."""
        rows = rows.astype(np.float32, copy=False)
        near: NDArray[np.float32]
        if self.name == "l2":
            apart = rows - query
            near = np.einsum("ij,ij->i", apart, apart)
            return near
        if self.name == "ip":
            near = 1 - rows @ query
            return near
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            products = rows @ self.prepare(query[np.newaxis])[0]
            norms = np.einsum("ij,ij->i", rows, rows)
        if not ((norms > _LEAST_SQUARE) & (norms < _LARGEST_SQUARE)).all():
            return self.distances(rows, query)
        near = 1 - products / np.sqrt(norms)
        return near

    def rounding(self, distance: float, rows: Vectors, query: Vectors) -> float:
        """How far `fast_distances` may be from exact ones, near `distance`: errors of sums grow as the root of dim."""
        scale = 1.0
        if self.name == "l2":
            scale = float(distance)
        elif self.name == "ip":
            scale = float(np.abs(rows).max(initial=0) * np.abs(query).sum())
        return 8 * float(np.finfo(np.float32).eps) * math.sqrt(rows.shape[1]) * scale

    def distances(self, rows: Vectors, query: Vectors) -> NDArray[np.float32]:
        """Exact distances from one query to rows, neither of them prepared, summed in float64."""
        wide, asked = rows.astype(np.float64), query.astype(np.float64)
        exact: NDArray[Any]
        if self.name == "l2":
            exact = squares(wide - asked)
        elif self.name == "ip":
            exact = 1 - wide @ asked
        else:
            norms = np.sqrt(squares(wide) * (asked @ asked))
            exact = 1 - (wide @ asked) / np.where(norms == 0, 1, norms)
        return exact.astype(np.float32)


METRICS = {name: Metric(name) for name in ("cosine", "l2", "ip")}


def squares(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Squared norms, in float64."""
    norms: NDArray[np.float64] = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    return norms
