"""Bilinear codes: vectors as matrices, multiplied from the left and the right by small rotations."""

from __future__ import annotations

from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..._core.checks import as_choice, as_iterations, as_real, as_seed
from ..._core.typing import Projections, Vectors
from ...data.source import VectorSource
from ..base import Projector
from .matrices import (
    LARGEST_WEIGHT,
    OVERFLOW,
    Lengths,
    Matrix,
    alternate,
    lengths_of,
    nearest_orthonormal,
    random_directions,
    training_blocks,
)
from .parametric import Checks, Layout, ParametricEncoder

KINDS = ("random", "learned")
Pair: TypeAlias = tuple[Vectors, Vectors]


def as_kind(value: Any, name: str) -> str:
    """Return `value` if it is a kind of bilinear encoder."""
    return as_choice(value, name, KINDS)


class BilinearEncoder(ParametricEncoder):
    """Binary codes of long vectors in O(dim^1.5) time and O(dim) parameters.

    x - centre, padded with zeros, is reshaped to a nearly square matrix Z of d1 rows and d2 columns. The code is the
    first `n_bits` signs of R1^T Z R2, in row-major order. R1, of shape (d1, c1), and R2, (d2, c2), have orthonormal
    columns (Gong, Kumar, Rowley and Lazebnik, Learning Binary Codes for High-Dimensional Data Using Bilinear
    Projections, CVPR 2013). This is the projection by the Kronecker product of R1 and R2, which is never formed.

    Kind "learned" starts from the rotations of kind "random". Training alternates between the signs B = sign(R1^T Z R2)
    and the R1, then the R2, that maximise the sum of <B, R1^T Z R2> over the rows (orthogonal Procrustes problems).
    Training on n rows takes O(n_iter n dim^1.5) time and O(dim) memory in addition to the data.

    Parameters
    ----------
    dim : int
        Length of the vectors.
    n_bits : int, optional
        Length of the codes, at most `dim`. By default `dim`.
    kind : {"random", "learned"}
        How R1 and R2 are chosen: drawn (Bilinear-rand in the paper) or trained on the data in `fit` (Bilinear-opt).
    seed : int
        Seed of R1 and R2, or of their initial values in training.
    n_iter : int
        Iterations of training.

    Attributes
    ----------
    is_fitted : bool
    centre : float32 array of shape (dim,)
        Subtracted before projecting. Zeros before `fit`.
    left, right : float32 arrays of shape (d1, c1) and (d2, c2)
        R1 and R2.
    objective : float64 array of shape (n_iter + 1,)
        1 - mean <B, R1^T Z R2> / sqrt(n_bits mean |Z|^2) at the start and after each iteration. Empty unless kind is
        "learned" and fitted.
    scale, scale_variance, overlap : float
        The effect of projections on norms: for vectors of random direction before `fit`, then measured on the training
        rows. (The effect varies most between rows whose matrix has few large singular values.)

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 300))
    >>> encoder = BilinearEncoder(300, n_bits=256).fit(X)
    >>> encoder.encode(X).shape, encoder.project(X[0]).shape
    ((1000, 32), (256,))
    >>> encoder.left.shape, encoder.right.shape
    ((15, 13), (20, 20))
    """

    name: ClassVar[str] = "bilinear"
    _at_most_dim: ClassVar[bool] = True
    _checks: ClassVar[Checks] = {
        "kind": as_kind,
        "seed": as_seed,
        "n_iter": as_iterations,
        "scale": as_real,
        "scale_variance": as_real,
        "overlap": as_real,
    }

    kind: str
    seed: int
    n_iter: int
    scale: float
    scale_variance: float
    overlap: float

    def __init__(
        self, dim: int, n_bits: int | None = None, kind: str = "random", seed: int = 0, *, n_iter: int = 10
    ) -> None:
        options = {"kind": kind, "seed": seed, "n_iter": n_iter}
        super().__init__(dim, n_bits, **options, scale=1.0, scale_variance=0.0, overlap=1.0)
        self.left, self.right = self._draw()
        self.scale, self.scale_variance, self.overlap = self._lengths()
        self.objective: NDArray[np.float64] = np.empty(0)

    def __repr__(self) -> str:
        return f"BilinearEncoder(dim={self.dim}, n_bits={self.n_bits}, kind={self.kind!r}, seed={self.seed})"

    def fit(self, X: ArrayLike) -> Self:
        """Set the centre to the mean of the rows of `X`, and train the rotations if kind is "learned".

        Parameters
        ----------
        X : array_like or sparse of shape (n, dim)
            At least 2 rows, which must differ for kind "learned".

        Returns
        -------
        self
        """
        source = self._training_rows(X)
        centre = self._mean_row(source)
        pair, objective = self._draw(), self.objective
        if self.kind == "learned":
            pair, objective = self._learn(source, centre, pair)

        def project(rows: Vectors) -> Projections:
            return _project(rows, centre, *pair)[:, : self.n_bits]

        lengths = lengths_of(source, centre, project, self._lengths())
        self.centre, (self.left, self.right), self.objective = centre, pair, objective
        self.scale, self.scale_variance, self.overlap = lengths
        self.is_fitted = True
        return self

    def _draw(self) -> Pair:
        """Draw R1 and R2 from the seed."""
        rng = np.random.default_rng(self.seed)
        d1, d2 = near_square(self.dim, self.dim, self.dim)
        c1, c2 = near_square(self.n_bits, d1, d2)
        left, right = random_directions(rng, c1, d1).T, random_directions(rng, c2, d2).T
        return left.astype(np.float32, order="C"), right.astype(np.float32, order="C")

    def _lengths(self) -> Lengths:
        return Lengths.of_subspace(self.n_bits, len(self.left) * len(self.right))

    def _learn(self, source: VectorSource, centre: Vectors, start: Pair) -> tuple[Pair, NDArray[np.float64]]:
        """Train R1 and R2 alternately."""
        d1, d2 = len(start[0]), len(start[1])
        c1, c2 = start[0].shape[1], start[1].shape[1]
        used = (np.arange(c1 * c2) < self.n_bits).astype(np.float32).reshape(c1, 1, c2)

        def correlate(pair: Pair, side: str) -> tuple[float, Matrix]:
            """Return sums over all rows: of <B, R1^T Z R2>, and of Z R2 B^T, (d1, c1), or Z^T R1 B, (d2, c2)."""
            left, right = pair
            product, total = 0.0, np.zeros((d1, c1) if side == "left" else (d2, c2))
            for _, rows in training_blocks(source):
                Z = _as_matrices(rows, centre, d1, d2)
                if side == "left":
                    turned = _times(Z, right)  # (n, d1, c2)
                    projected = np.tensordot(left, turned, (0, 1))  # (c1, n, c2)
                    shared: Any = ((0, 2), (1, 2))
                else:
                    turned = np.tensordot(left, Z, (0, 1))  # (c1, n, d2)
                    projected = _times(turned, right)
                    shared = ((0, 1), (0, 1))
                signs = np.where(projected >= 0, used, -used)
                product += float(np.sum(projected * signs, dtype=np.float64))
                total += np.tensordot(turned, signs, shared)
            return product, total

        with np.errstate(over="ignore"):
            square = sum(float(np.square(rows - centre, dtype=np.float64).sum()) for _, rows in training_blocks(source))
        if not np.isfinite(square):
            raise ValueError(OVERFLOW)
        if not square > 0:
            raise ValueError("kind 'learned' needs rows that differ, all rows are equal")
        largest = np.sqrt(self.n_bits * source.n_rows * square)

        def measure(pair: Pair) -> tuple[float, Matrix]:
            product, total = correlate(pair, "left")
            return 1 - product / largest, total

        def improve(pair: Pair, total: Matrix) -> Pair:
            left = nearest_orthonormal(total).astype(np.float32)
            _, total = correlate((left, pair[1]), "right")
            return left, nearest_orthonormal(total).astype(np.float32)

        return alternate(start, measure, improve, self.n_iter)

    def _projector(self) -> Projector:
        if self.kind == "learned" and not self.is_fitted:
            raise ValueError("BilinearEncoder of kind 'learned' must be fitted before it can project: call fit(X)")
        return lambda rows: _project(rows, self.centre, self.left, self.right)

    def _layout(self) -> Layout:
        return {
            "left": (np.float32, (None, None)),
            "right": (np.float32, (None, None)),
            "objective": (np.float64, (None,)),
        }

    def _check_arrays(self) -> None:
        for name in ("left", "right"):
            largest = float(np.abs(getattr(self, name)).max(initial=0))
            if not 0 < largest <= LARGEST_WEIGHT:
                raise ValueError(f"{name} must be up to {LARGEST_WEIGHT:g} and not all 0, got up to {largest:.3g}")
        (d1, c1), (d2, c2) = self.left.shape, self.right.shape
        if not (_holds(d1, d2, self.dim) and _holds(c1, c2, self.n_bits) and c1 <= d1 and c2 <= d2):
            shapes = f"{self.left.shape} and {self.right.shape}"
            raise ValueError(f"left and right must fit dim={self.dim}, n_bits={self.n_bits}, got shapes {shapes}")


def near_square(n: int, most_rows: int, most_columns: int) -> tuple[int, int]:
    """Return the shape of a matrix of at least `n` entries whose sides differ by a factor of at most 2.

    Of these shapes, return one with the fewest entries, and of several the one nearest to a square.
    """
    root = int(np.sqrt(n))
    shapes = ((rows, -(-n // rows)) for rows in range(max(1, root // 2), min(most_rows, 2 * root + 2) + 1))
    fitting = [s for s in shapes if s[1] <= most_columns and max(s) <= 2 * min(s)]
    return min(fitting, key=lambda s: (s[0] * s[1], s[0] + s[1]))


def _holds(rows: int, columns: int, n: int) -> bool:
    """Return whether a matrix holds `n` entries without a superfluous row or column."""
    return rows * columns >= n > max((rows - 1) * columns, rows * (columns - 1))


def _project(rows: Vectors, centre: Vectors, left: Vectors, right: Vectors) -> Projections:
    """Return R1^T Z R2 of each row, (n, c1 * c2), by products per row: results do not depend on the batch."""
    Z = _as_matrices(rows, centre, len(left), len(right))
    projected: Projections = np.matmul(left.T, np.matmul(Z, right))
    return projected.reshape(len(rows), -1)


def _as_matrices(rows: Vectors, centre: Vectors, d1: int, d2: int) -> Vectors:
    """Centre rows, pad them with zeros and reshape them to matrices, (n, d1, d2)."""
    padded = np.zeros((len(rows), d1 * d2), dtype=np.float32)
    np.subtract(rows, centre, out=padded[:, : rows.shape[1]])
    return padded.reshape(-1, d1, d2)


def _times(stack: Vectors, matrix: Vectors) -> Vectors:
    """Multiply a stack of matrices by one matrix from the right, in a single product."""
    product: Vectors = stack.reshape(-1, len(matrix)) @ matrix
    return product.reshape(*stack.shape[:2], -1)
