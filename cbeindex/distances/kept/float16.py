"""Kept vectors in float16: half the memory, and each value is rounded to 11 bits."""

from __future__ import annotations

import numpy as np

from ..._core.typing import Rows, Vectors
from .base import KeptVectors


class Float16Vectors(KeptVectors):
    """A float16 array of shape (n_rows, dim)."""

    def read(self, rows: Rows) -> Vectors:
        """Return the vectors of some rows in float32."""
        read: Vectors = self._vectors[rows].astype(np.float32)
        return read
