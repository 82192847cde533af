"""Hashing by shift-invariant kernels: random cosine waves with random thresholds."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..._core.checks import as_positive, as_seed, require_memory
from ..._core.typing import Projections, Vectors
from ...data.source import VectorSource
from .matrices import OVERFLOW, read_blocks, sample_numbers
from .parametric import Checks, Layout, MatrixEncoder

# The default bandwidth is a mean distance from _N_QUERIES rows to their _RANK-th neighbours among _N_ROWS rows.
_N_QUERIES, _RANK, _N_ROWS = 256, 50, 10_000
# Frequencies are sqrt(gamma) times numbers of order 1, in float32.
_LEAST_GAMMA, _LARGEST_GAMMA = 1e-70, 1e70


def as_gamma(value: Any, name: str) -> float | None:
    """Return `value` as a float whose square root fits float32, or None."""
    if value is None:
        return None
    gamma = as_positive(value, name)
    if not _LEAST_GAMMA < gamma < _LARGEST_GAMMA:
        raise ValueError(f"{name} must be between {_LEAST_GAMMA} and {_LARGEST_GAMMA}, got {value!r}")
    return gamma


class SKLSHEncoder(MatrixEncoder):
    """Binary codes whose Hamming distances follow a Gaussian kernel.

    A bit of x is the sign of cos(<w, x - centre> + b) + t, with w ~ N(0, gamma I), b ~ U[0, 2 pi] and t ~ U[-1, 1]
    (Raginsky and Lazebnik, Locality-Sensitive Binary Codes from Shift-Invariant Kernels, NIPS 2009). With the kernel
    K(x) = exp(-gamma |x|^2 / 2), the expected share of bits in which the codes of x and y differ is

        8 / pi^2 sum over m >= 1 of (1 - K(m (x - y))) / (4 m^2 - 1)

    which increases with the distance and approaches 4 / pi^2: codes do not distinguish distances beyond a few
    1 / sqrt(gamma). The share depends on x - y only, so that the centre affects nothing but rounding.

    Projections are waves, not lengths along directions: distances cannot be estimated from them, and `is_linear` is
    False. The code of the centre is not special. Encoding takes O(dim n_bits) time per vector, and the encoder takes
    4 dim n_bits bytes.

    Parameters
    ----------
    dim : int
        Length of the vectors.
    n_bits : int, optional
        Length of the codes, below, at or above `dim`. By default `dim`. Codes of
        different lengths share their first bits.
    seed : int
        Seed of w, b and t.
    gamma : float, optional
        Inverse squared width of the kernel. By default `fit` sets it to the inverse of the mean squared distance from
        a row to its 50th nearest neighbour among at most 10,000 rows.

    Attributes
    ----------
    is_fitted : bool
    gamma_used : float or None
        `gamma`, or the value that `fit` found.
    centre : float32 array of shape (dim,)
        Subtracted before projecting. Zeros before `fit`, then the mean of the training rows.
    weights : float32 array of shape (n_bits, dim)
        The frequencies w. No rows before gamma is known.
    phases, thresholds : float32 arrays of shape (n_bits,)
        b and t.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 300))
    >>> encoder = SKLSHEncoder(300, n_bits=256).fit(X)
    >>> encoder.encode(X).shape, encoder.project(X[0]).shape
    ((1000, 32), (256,))
    """

    name: ClassVar[str] = "sklsh"
    is_linear: ClassVar[bool] = False
    _checks: ClassVar[Checks] = {"seed": as_seed, "gamma": as_gamma, "gamma_used": as_gamma}

    seed: int
    gamma: float | None
    gamma_used: float | None

    def __init__(self, dim: int, n_bits: int | None = None, seed: int = 0, *, gamma: float | None = None) -> None:
        super().__init__(dim, n_bits, seed=seed, gamma=gamma, gamma_used=gamma)
        # Separate streams, so that encoders of any n_bits share their first bits.
        _, phases, thresholds = np.random.default_rng(self.seed).spawn(3)
        self.phases: Vectors = phases.uniform(0, 2 * np.pi, self.n_bits).astype(np.float32)
        self.thresholds: Vectors = thresholds.uniform(-1, 1, self.n_bits).astype(np.float32)
        self.weights = self._draw(self.gamma_used)

    def __repr__(self) -> str:
        return f"SKLSHEncoder(dim={self.dim}, n_bits={self.n_bits}, seed={self.seed}, gamma={self.gamma})"

    def fit(self, X: ArrayLike) -> Self:
        """Set the centre to the mean of the rows of `X`, and gamma from their distances if it was not given.

        Parameters
        ----------
        X : array_like or sparse of shape (n, dim)
            At least 2 rows, which must differ if gamma was not given.

        Returns
        -------
        self
        """
        source = self._training_rows(X)
        centre = self._mean_row(source)
        if self.gamma is None:
            square = _neighbour_square(source, centre)
            if not square > 1 / _LARGEST_GAMMA:
                raise ValueError("fit needs rows that differ to choose gamma, neighbours are equal")
            if not square < 1 / _LEAST_GAMMA:
                raise ValueError(OVERFLOW)
            self.weights = self._draw(1 / square)
            self.gamma_used = 1 / square
        self.centre = centre
        self.is_fitted = True
        return self

    def _draw(self, gamma: float | None) -> Vectors:
        """Draw the frequencies, or none if gamma is not known."""
        if gamma is None:
            return np.empty((0, self.dim), dtype=np.float32)
        require_memory(4 * self.dim * self.n_bits, "the matrix of frequencies")
        rng = np.random.default_rng(self.seed).spawn(1)[0]
        return rng.standard_normal((self.n_bits, self.dim), dtype=np.float32) * np.float32(np.sqrt(gamma))

    def _finish(self, products: Projections) -> Projections:
        products += self.phases
        np.cos(products, out=products)
        products += self.thresholds
        return products

    def _layout(self) -> Layout:
        return {
            "weights": (np.float32, (0 if self.gamma_used is None else self.n_bits, self.dim)),
            "phases": (np.float32, (self.n_bits,)),
            "thresholds": (np.float32, (self.n_bits,)),
        }

    def _check_arrays(self) -> None:
        if self.is_fitted and self.gamma_used is None:
            raise ValueError("gamma_used must be a number in a fitted encoder, got None")
        super()._check_arrays()
        if not ((self.phases >= 0) & (self.phases <= 7)).all() or not (np.abs(self.thresholds) <= 1).all():
            raise ValueError("phases must be from 0 to 2 pi and thresholds from -1 to 1")

    def _largest_weight(self) -> float:
        return super()._largest_weight() * math.sqrt(self.gamma_used or 0.0)


def _neighbour_square(source: VectorSource, centre: Vectors) -> float:
    """Return the mean squared distance from a sample of rows to their `_RANK`-th neighbour, or to the farthest row."""
    numbers = sample_numbers(source.n_rows, _N_ROWS)
    chosen = sample_numbers(len(numbers), _N_QUERIES)
    queries = source.read(numbers[chosen]).astype(np.float64) - centre
    lengths = np.einsum("ij,ij->i", queries, queries)
    squares: NDArray[np.float64] = np.empty((len(queries), len(numbers)))
    for start, rows in read_blocks(source, len(centre), numbers):
        wide = rows.astype(np.float64) - centre
        here = slice(start, start + len(rows))
        squares[:, here] = lengths[:, np.newaxis] + np.einsum("ij,ij->i", wide, wide) - 2 * queries @ wide.T
    squares[np.arange(len(chosen)), chosen] = np.inf  # a row is not its own neighbour
    rank = min(_RANK, len(numbers) - 1) - 1
    return float(np.maximum(np.partition(squares, rank, axis=1)[:, rank], 0).mean())
