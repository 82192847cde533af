"""Vectors kept beside codes, for exact distances or better estimates: one module for each kind of storage."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._core.typing import Ids
from ...data.sparserows import SparseRows
from ..keptcodec import KeptCodec
from ..metrics import Metric
from .base import Candidates, ExactNearest, KeptVectors
from .float16 import Float16Vectors
from .float32 import Float32Vectors
from .levels import LevelVectors
from .sparse import SparseVectors

__all__ = ["KINDS_OF_VECTORS", "Candidates", "ExactNearest", "KeptVectors", "kept_vectors"]

KINDS_OF_VECTORS = ("int4", "int8", "float16", "float32", "auto")
"""Types of kept vectors, by what they take of a dense row; "auto" chooses one of them."""


def kept_vectors(vectors: Any, ids: Ids, metric: Metric, dim: int, codec: KeptCodec | None = None) -> KeptVectors:
    """Return stored vectors of rows with `ids` behind the methods of their kind; `codec` is that of 4 and 8 bits."""
    if codec is not None:
        return LevelVectors(vectors, ids, metric, codec)
    if isinstance(vectors, SparseRows):
        return SparseVectors(vectors, ids, metric, dim)
    kind = Float32Vectors if vectors.dtype == np.float32 else Float16Vectors
    return kind(vectors, ids, metric, dim)
