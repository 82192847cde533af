"""Kept vectors in float16: half the memory, and each value is rounded to 11 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core.typing import Rows, Vectors
from .dense import DenseVectors


class Float16Vectors(DenseVectors):
    """A float16 array of shape (n_rows, dim)."""

    def read(self, rows: Rows) -> Vectors:
        """Return the vectors of some rows in float32."""
        read: Vectors = self._vectors[rows].astype(np.float32)
        return read

    def for_kernels(self) -> NDArray[Any]:
        """Return the bits of the values."""
        bits: NDArray[Any] = self._vectors.view(np.uint16)
        return bits
