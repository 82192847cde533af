"""Locality-sensitive hashing: the signs of projections to independent Gaussian directions."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..._core.checks import as_seed, require_memory
from .parametric import Checks, Layout, MatrixEncoder


class LSHEncoder(MatrixEncoder):
    """Binary codes by a full Gaussian matrix, whose bits are independent of each other.

    The code of x is the signs of W (x - centre), with every entry of W drawn from N(0, 1) (Charikar, Similarity
    Estimation Techniques from Rounding Algorithms, STOC 2002). The share of bits in which two codes differ has the mean
    theta / pi, theta the angle between the two centred vectors.

    A vector takes O(dim n_bits) time, and W takes 4 dim n_bits bytes: 2.6 GB for 25,600 bits of as many dimensions.
    More than the memory of the machine is a MemoryError.

    Parameters
    ----------
    dim : int
        Length of the vectors.
    n_bits : int, optional
        Length of the codes, below, at or above `dim`; by default `dim` rounded up to a multiple of 64. The first bits
        of a code do not depend on it.
    seed : int
        Chooses W.

    Attributes
    ----------
    is_fitted : bool
    centre : float32 array of shape (dim,)
        Subtracted before projecting; zeros until `fit`, which takes the mean.
    weights : float32 array of shape (n_bits, dim)
        The matrix W.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 300))
    >>> encoder = LSHEncoder(300, n_bits=256).fit(X)
    >>> encoder.encode(X).shape, encoder.project(X[0]).shape
    ((1000, 32), (256,))
    """

    name: ClassVar[str] = "lsh"
    _checks: ClassVar[Checks] = {"seed": as_seed}

    seed: int

    def __init__(self, dim: int, n_bits: int | None = None, seed: int = 0) -> None:
        super().__init__(dim, n_bits, seed=seed)
        require_memory(4 * self.dim * self.n_bits, "the matrix")
        rng = np.random.default_rng(self.seed)
        self.weights = rng.standard_normal((self.n_bits, self.dim), dtype=np.float32)

    def __repr__(self) -> str:
        return f"LSHEncoder(dim={self.dim}, n_bits={self.n_bits}, seed={self.seed})"

    @property
    def scale(self) -> float:
        """The factor that makes scale * |projections|^2 an estimate of the squared length of a centred vector."""
        return 1 / self.n_bits

    @property
    def scale_variance(self) -> float:
        """The relative variance of that estimate: of the mean of `n_bits` squares of normal numbers."""
        return 2 / self.n_bits

    @property
    def overlap(self) -> float:
        """0: what W does to a vector at right angles to y is independent of W y."""
        return 0.0

    def _layout(self) -> Layout:
        return {"weights": (np.float32, (self.n_bits, self.dim))}
