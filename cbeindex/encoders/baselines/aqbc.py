"""Angular quantisation: the vertex of the hypercube that is nearest by angle, for non-negative vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..._core.checks import as_iterations, as_seed
from ..._core.typing import Projections
from ...data.source import VectorSource
from ..outputs import Outputs
from .matrices import Matrix, alternate, nearest_orthonormal, training_blocks
from .parametric import Checks, Layout, MatrixEncoder


class AQBCEncoder(MatrixEncoder):
    """Binary codes by angular quantisation, for non-negative vectors such as counts.

    The code of x is the vertex b != 0 of the hypercube {0, 1}^n_bits with the smallest angle to v = R^T x: it maximises
    <b, v> / |b|. The best vertex with m ones has them at the m largest values of v, so that sorting finds the best
    vertex. R, of shape (dim, n_bits) with orthonormal columns, is trained to maximise the sum of <b, R^T x> / |b| over
    the rows, scaled to norm 1. Training starts with a random vertex per row and alternates between the best R and the
    nearest vertices (Gong, Kumar, Verma and Lazebnik, Angular Quantization-based Binary Codes for Fast Similarity
    Search, NIPS 2012). The paper compares codes by the cosine between vertices. Here, Hamming distances are used.

    Every vector has its own threshold: with m chosen values of sum s, it is s (sqrt(1 + 1 / m) - 1), the smallest value
    with which one more would be chosen. A projection is a value minus the threshold. Projections are therefore not
    linear in the vector: distances cannot be estimated from them, and `is_linear` is False. Angles are measured at the
    origin, so that the centre stays 0. The code of the zero vector is all ones.

    Encoding takes O(dim n_bits) time per vector, and the encoder takes 4 dim n_bits bytes. Training on n rows takes
    O(n_iter (n dim n_bits + dim n_bits^2)) time.

    Parameters
    ----------
    dim : int
        Length of the vectors.
    n_bits : int, optional
        Length of the codes, at most `dim`. By default `dim`.
    seed : int
        Seed of the initial vertices.
    n_iter : int
        Iterations of training.

    Attributes
    ----------
    is_fitted : bool
    centre : float32 array of shape (dim,)
        Zeros.
    weights : float32 array of shape (n_bits, dim)
        R^T, whose rows are orthonormal. No rows before `fit`.
    objective : float64 array of shape (n_iter + 1,)
        1 - the mean of <b, R^T x> / (|b| |x|) at the start and after each iteration. Empty before `fit`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).poisson(1.0, (1000, 300))
    >>> encoder = AQBCEncoder(300, n_bits=64).fit(X)
    >>> encoder.encode(X).shape, encoder.project(X[0]).shape
    ((1000, 8), (64,))
    """

    name: ClassVar[str] = "aqbc"
    is_linear: ClassVar[bool] = False
    takes_negative: ClassVar[bool] = False
    _at_most_dim: ClassVar[bool] = True
    _checks: ClassVar[Checks] = {"seed": as_seed, "n_iter": as_iterations}

    seed: int
    n_iter: int

    def __init__(self, dim: int, n_bits: int | None = None, seed: int = 0, *, n_iter: int = 10) -> None:
        super().__init__(dim, n_bits, seed=seed, n_iter=n_iter)
        self.weights = np.empty((0, self.dim), dtype=np.float32)
        self.objective: NDArray[np.float64] = np.empty(0)

    def __repr__(self) -> str:
        return f"AQBCEncoder(dim={self.dim}, n_bits={self.n_bits}, seed={self.seed}, n_iter={self.n_iter})"

    def fit(self, X: ArrayLike) -> Self:
        """Train R on the rows of `X`.

        Parameters
        ----------
        X : array_like or sparse of shape (n, dim)
            At least 2 rows of non-negative values, not all of them 0.

        Returns
        -------
        self
        """
        source = self._training_rows(X)
        refuse_negative(source)
        rng = np.random.default_rng(self.seed)

        def sum_of(vertices_of: Callable[[Projections], Matrix]) -> tuple[Matrix, int]:
            """Sum x b^T / |b| over rows scaled to norm 1, float64 (dim, n_bits), and count the rows that are not 0."""
            total, n_rows = np.zeros((self.dim, self.n_bits)), 0
            for _, rows in training_blocks(source):
                wide = rows.astype(np.float64)
                norms = np.sqrt(np.einsum("ij,ij->i", wide, wide))
                unit = (wide[norms > 0] / norms[norms > 0, np.newaxis]).astype(np.float32)
                vertices = vertices_of(unit)
                total += unit.T @ (vertices / np.sqrt(vertices.sum(axis=1, keepdims=True))).astype(np.float32)
                n_rows += len(unit)
            return total, n_rows

        def draw(unit: Projections) -> Matrix:
            vertices = rng.random((len(unit), self.n_bits)) < 0.5
            vertices[np.arange(len(unit)), rng.integers(0, self.n_bits, len(unit))] = True  # never 0
            return vertices.astype(np.float32)

        drawn, n_rows = sum_of(draw)
        if n_rows == 0:
            raise ValueError("fit needs rows that are not 0, all rows are 0")

        def measure(R: Matrix) -> tuple[float, Matrix]:
            weights = R.T.astype(np.float32, order="C")
            total, _ = sum_of(lambda unit: nearest_vertices(unit @ weights.T)[0].astype(np.float32))
            return 1 - float((total * R).sum()) / n_rows, total

        R, objective = alternate(
            nearest_orthonormal(drawn), measure, lambda _, matrix: nearest_orthonormal(matrix), self.n_iter
        )
        self.weights, self.objective = R.T.astype(np.float32, order="C"), objective
        self.is_fitted = True
        return self

    def _compute(self, source: VectorSource, out: Outputs, n_threads: int) -> None:
        refuse_negative(source)
        super()._compute(source, out, n_threads)

    def _finish(self, products: Projections) -> Projections:
        chosen, thresholds = nearest_vertices(products)
        margins = (products - thresholds[:, np.newaxis]).astype(np.float32)
        # Rounding must not change the sign of a projection.
        below = -np.finfo(np.float32).smallest_subnormal
        return np.where(chosen, np.maximum(margins, np.float32(0)), np.minimum(margins, below))

    def _layout(self) -> Layout:
        return {
            "weights": (np.float32, (self.n_bits if self.is_fitted else 0, self.dim)),
            "objective": (np.float64, (None,)),
        }


def nearest_vertices(values: Projections) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return the vertex of {0, 1}^n, except 0, at the smallest angle to each row, and its threshold.

    Equal values get equal bits: if they are positive, choosing all of them gives a smaller angle than choosing some.
    """
    counts = np.arange(1, values.shape[1] + 1)
    descending = np.sort(values, axis=1)[:, ::-1]
    sums = np.cumsum(descending, axis=1, dtype=np.float64)
    best = np.argmax(sums / np.sqrt(counts), axis=1)[:, np.newaxis]
    chosen = values >= np.take_along_axis(descending, best, axis=1)
    thresholds = np.take_along_axis(sums, best, axis=1) * (np.sqrt(1 + 1 / counts[best]) - 1)
    return chosen, thresholds[:, 0]


def refuse_negative(source: VectorSource) -> None:
    """Raise a RowError if a row has a negative value."""
    for start, rows in training_blocks(source):
        negative = (rows < 0).any(axis=1)
        if negative.any():
            row = int(negative.argmax())
            rule = "must not be negative for angular quantisation"
            raise source.row_error(rule, start + row, f"has a value of {rows[row].min()}")
