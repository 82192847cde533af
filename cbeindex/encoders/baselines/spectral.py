"""Spectral hashing: the waves of lowest frequency along the principal axes of the data."""

from __future__ import annotations

import heapq
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..._core.checks import as_seed
from ..._core.typing import Projections, Vectors
from .matrices import OVERFLOW, principal_axes, products_of
from .parametric import Checks, Layout, MatrixEncoder

# Limit on phases for which the cosine in float32 is finite, for vectors of any reasonable norm.
_LARGEST_PHASE = 1e30


class SpectralEncoder(MatrixEncoder):
    """Binary codes by Laplacian eigenfunctions of uniform data in a box (Weiss, Torralba and Fergus, NIPS 2008).

    On a principal axis with data from a to b, the eigenfunctions of the Laplacian of uniform data are
    sin(pi / 2 + m pi / (b - a) (v - a)) for the modes m = 1, 2, ..., where v is the position on the axis. Their
    eigenvalues 1 - exp(-epsilon^2 / 2 |m pi / (b - a)|^2) increase with m / (b - a). The bits are the signs of the
    `n_bits` eigenfunctions with the smallest eigenvalues. A long axis yields several bits and a short axis none, so
    that there may be more bits than dimensions.

    Projections are waves, not lengths along directions: distances cannot be estimated from them, and `is_linear` is
    False. The code of the centre is not special. Encoding takes O(dim n_axes + n_bits) time per vector, and the
    encoder takes 4 dim n_axes bytes, with `n_axes` at most min(n_bits, dim). Training takes the memory of a square
    matrix of min(n, dim) rows.

    Parameters
    ----------
    dim : int
        Length of the vectors.
    n_bits : int, optional
        Length of the codes, below, at or above `dim`. By default `dim`.
    seed : int
        Ignored, because nothing is drawn. All encoders have this parameter.

    Attributes
    ----------
    is_fitted : bool
    centre : float32 array of shape (dim,)
        Subtracted before projecting. Zeros before `fit`.
    weights : float32 array of shape (n_axes, dim)
        The principal axes in use. None before `fit`.
    lower, ranges : float32 arrays of shape (n_axes,)
        The smallest value and the range of the data on each axis.
    axes, modes : int64 arrays of shape (n_bits,)
        The axis and the mode of each bit, lowest frequency first. Empty before `fit`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 300))
    >>> encoder = SpectralEncoder(300, n_bits=64).fit(X)
    >>> encoder.encode(X).shape, encoder.project(X[0]).shape
    ((1000, 8), (64,))
    """

    name: ClassVar[str] = "spectral"
    is_linear: ClassVar[bool] = False
    _checks: ClassVar[Checks] = {"seed": as_seed}

    seed: int

    def __init__(self, dim: int, n_bits: int | None = None, seed: int = 0) -> None:
        super().__init__(dim, n_bits, seed=seed)
        self.weights = np.empty((0, self.dim), dtype=np.float32)
        self.lower: Vectors = np.empty(0, dtype=np.float32)
        self.ranges: Vectors = np.empty(0, dtype=np.float32)
        self.axes: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.modes: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def __repr__(self) -> str:
        return f"SpectralEncoder(dim={self.dim}, n_bits={self.n_bits}, seed={self.seed})"

    def fit(self, X: ArrayLike) -> Self:
        """Find the principal axes of the rows of `X`, the range of the data on them, and the waves of lowest frequency.

        Parameters
        ----------
        X : array_like or sparse of shape (n, dim)
            At least 2 rows that differ.

        Returns
        -------
        self
        """
        source = self._training_rows(X)
        centre = self._mean_row(source)
        weights = principal_axes(source, centre, self.n_bits).astype(np.float32)
        products = products_of(source, centre, weights)
        lower, upper = products.min(axis=0), products.max(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.isfinite(upper - lower).all():
                raise ValueError(OVERFLOW)
        axes, modes = slowest_modes(upper - lower, self.n_bits)
        used, axes = np.unique(axes, return_inverse=True)
        self.centre, self.weights = centre, weights[used]
        self.lower, self.ranges = lower[used], (upper - lower)[used]
        self.axes, self.modes = axes.astype(np.int64), modes
        self.is_fitted = True
        return self

    def _finish(self, products: Projections) -> Projections:
        products -= self.lower
        waves = products[:, self.axes]
        waves *= self._frequencies()
        # sin(pi / 2 + x) is cos(x).
        return np.cos(waves, out=waves)

    def _frequencies(self) -> Vectors:
        """Return the frequency of each bit's wave."""
        with np.errstate(over="ignore"):
            return (np.pi * self.modes / self.ranges[self.axes]).astype(np.float32)

    def _layout(self) -> Layout:
        n_bits = self.n_bits if self.is_fitted else 0
        return {
            "weights": (np.float32, (None, self.dim)),
            "lower": (np.float32, (None,)),
            "ranges": (np.float32, (None,)),
            "axes": (np.int64, (n_bits,)),
            "modes": (np.int64, (n_bits,)),
        }

    def _check_arrays(self) -> None:
        super()._check_arrays()
        n_axes = len(self.weights)
        if not (len(self.lower) == len(self.ranges) == n_axes <= self.n_bits) or (n_axes > 0) != self.is_fitted:
            raise ValueError(f"weights, lower and ranges must be of the same axes, got {n_axes} of {self.n_bits} bits")
        if not ((self.axes >= 0) & (self.axes < n_axes)).all():
            raise ValueError(f"axes must be from 0 to {n_axes - 1}")
        if not (self.modes >= 1).all() or not (self.ranges > 0).all():
            raise ValueError("modes must be at least 1 and ranges above 0")
        with np.errstate(over="ignore"):
            reach = self._frequencies() * np.abs(self.lower)[self.axes]
        if not (reach < _LARGEST_PHASE).all() or not (self._frequencies() < _LARGEST_PHASE).all():
            raise ValueError("waves must have frequencies that float32 can represent")


def slowest_modes(ranges: Vectors, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the axes and modes of the `n` waves with the smallest mode / range, ascending."""
    waves = [(1 / float(size), axis, 1) for axis, size in enumerate(ranges) if size > 0]
    if not waves:
        raise ValueError("fit needs rows that differ, all rows are equal")
    heapq.heapify(waves)
    chosen = np.empty((2, n), dtype=np.int64)
    for i in range(n):
        _, axis, mode = waves[0]
        chosen[:, i] = axis, mode
        heapq.heapreplace(waves, ((mode + 1) / float(ranges[axis]), axis, mode + 1))
    return chosen[0], chosen[1]
