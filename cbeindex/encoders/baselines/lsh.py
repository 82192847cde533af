"""Locality-sensitive hashing: signs of projections to independent Gaussian directions."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..._core.checks import as_seed, require_memory
from .parametric import Checks, Layout, MatrixEncoder


class LSHEncoder(MatrixEncoder):
    """Binary codes by a dense Gaussian matrix, with independent bits.

    The code of x is the signs of W (x - centre), with every entry of W drawn from N(0, 1) (Charikar, Similarity
    Estimation Techniques from Rounding Algorithms, STOC 2002). Two codes
    differ in a share theta / pi of their bits on average, where theta is the angle between the centred vectors.

    Encoding takes O(dim n_bits) time per vector, and W takes 4 dim n_bits bytes: 2.6 GB for dim = n_bits = 25,600. A
    matrix larger than the memory of the machine raises MemoryError.

    Parameters
    ----------
    dim : int
        Length of the vectors.
    n_bits : int, optional
        Length of the codes, below, at or above `dim`. By default `dim`. Codes of
        different lengths share their first bits.
    seed : int
        Seed of W.

    Attributes
    ----------
    is_fitted : bool
    centre : float32 array of shape (dim,)
        Subtracted before projecting. Zeros before `fit`, then the mean of the training rows.
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
        """The factor for which scale * |projections|^2 estimates the squared norm of a centred vector."""
        return 1 / self.n_bits

    @property
    def scale_variance(self) -> float:
        """The relative variance of that estimate: that of a mean of `n_bits` squared normal variables."""
        return 2 / self.n_bits

    @property
    def overlap(self) -> float:
        """The share of W^T W y that lies along y: 0, because W z is independent of W y for z orthogonal to y."""
        return 0.0

    def _layout(self) -> Layout:
        return {"weights": (np.float32, (self.n_bits, self.dim))}
