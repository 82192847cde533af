"""Iterative quantisation: principal axes, rotated to minimise the quantisation error of their signs."""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..._core.checks import as_iterations, as_real, as_seed
from .matrices import (
    OVERFLOW,
    Lengths,
    Matrix,
    alternate,
    lengths_of,
    nearest_orthonormal,
    principal_axes,
    products,
    products_of,
    random_directions,
)
from .parametric import Checks, Layout, MatrixEncoder


class ITQEncoder(MatrixEncoder):
    """Binary codes by principal axes and a learned rotation of them.

    The code of x is the signs of R^T A (x - centre). A holds the first `n_bits` principal axes of the data, and the
    rotation R is trained to minimise |B - V R|^2, where V are the projections to A and B are the signs. Training
    alternates between B = sign(V R) and the best rotation R for B (Gong and Lazebnik, Iterative Quantization: A
    Procrustean Approach to Learning Binary Codes, CVPR 2011).

    Encoding takes O(dim n_bits) time per vector, and the encoder takes 4 dim n_bits bytes. Training on n rows takes
    O(n dim min(n, dim) + n_iter (n n_bits^2 + n_bits^3)) time and the memory of a square matrix of min(n, dim) rows. If
    the data have fewer principal axes than bits, random orthogonal axes are added.

    Parameters
    ----------
    dim : int
        Length of the vectors.
    n_bits : int, optional
        Length of the codes, at most `dim`. By default `dim`.
    seed : int
        Seed of the initial rotation.
    n_iter : int
        Iterations of training.

    Attributes
    ----------
    is_fitted : bool
    centre : float32 array of shape (dim,)
        Subtracted before projecting. Zeros before `fit`.
    weights : float32 array of shape (n_bits, dim)
        R^T A, whose rows are orthonormal. No rows before `fit`.
    objective : float64 array of shape (n_iter + 1,)
        The mean of (b - v)^2 over all bits, with v scaled to a mean square of 1, at the start and after each
        iteration. Empty before `fit`.
    scale, scale_variance, overlap : float
        The effect of projections on norms, measured on the training rows. The axes preserve more of training rows than
        of other rows, so that estimated distances are too small unless there are many times more rows than bits.
        Stated errors assume that the quantisation error has a random direction. Along axes of large variance the true
        error is up to twice as large.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 300))
    >>> encoder = ITQEncoder(300, n_bits=64).fit(X)
    >>> encoder.encode(X).shape, encoder.project(X[0]).shape
    ((1000, 8), (64,))
    """

    name: ClassVar[str] = "itq"
    _at_most_dim: ClassVar[bool] = True
    _checks: ClassVar[Checks] = {
        "seed": as_seed,
        "n_iter": as_iterations,
        "scale": as_real,
        "scale_variance": as_real,
        "overlap": as_real,
    }

    seed: int
    n_iter: int
    scale: float
    scale_variance: float
    overlap: float

    def __init__(self, dim: int, n_bits: int | None = None, seed: int = 0, *, n_iter: int = 50) -> None:
        super().__init__(dim, n_bits, seed=seed, n_iter=n_iter, scale=1.0, scale_variance=0.0, overlap=1.0)
        self.weights = np.empty((0, self.dim), dtype=np.float32)
        self.objective: NDArray[np.float64] = np.empty(0)

    def __repr__(self) -> str:
        return f"ITQEncoder(dim={self.dim}, n_bits={self.n_bits}, seed={self.seed}, n_iter={self.n_iter})"

    def fit(self, X: ArrayLike) -> Self:
        """Find the centre and the principal axes of the rows of `X`, and train the rotation.

        Parameters
        ----------
        X : array_like or sparse of shape (n, dim)
            At least 2 rows that differ.

        Returns
        -------
        self
        """
        source = self._training_rows(X)
        rng = np.random.default_rng(self.seed)
        centre = self._mean_row(source)
        start = random_directions(rng, self.n_bits, self.n_bits)
        axes = random_directions(rng, self.n_bits, self.dim, beside=principal_axes(source, centre, self.n_bits))
        V = products_of(source, centre, axes.astype(np.float32))
        mean_square = float(np.einsum("ij,ij->", V, V, dtype=np.float64)) / V.size
        if not np.isfinite(mean_square):
            raise ValueError(OVERFLOW)
        V /= np.sqrt(mean_square)

        def measure(R: Matrix) -> tuple[float, Matrix]:
            projected = V @ R.astype(np.float32)
            signs = np.where(projected >= 0, np.float32(1), np.float32(-1))
            return float(np.mean((signs - projected) ** 2, dtype=np.float64)), V.T @ signs

        R, objective = alternate(start, measure, lambda _, matrix: nearest_orthonormal(matrix), self.n_iter)
        weights = (R.T @ axes).astype(np.float32)
        otherwise = Lengths.of_subspace(self.n_bits, self.dim)
        lengths = lengths_of(source, centre, lambda rows: products(rows, centre, weights), otherwise)
        self.centre, self.weights, self.objective = centre, weights, objective
        self.scale, self.scale_variance, self.overlap = lengths
        self.is_fitted = True
        return self

    def _layout(self) -> Layout:
        return {
            "weights": (np.float32, (self.n_bits if self.is_fitted else 0, self.dim)),
            "objective": (np.float64, (None,)),
        }
