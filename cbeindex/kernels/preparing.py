"""Queries as the encoder sees them: checked, and normalised under cosine."""

from typing import Any

import numpy as np

from .._core.typing import Floats, Vectors
from .exact import product
from .jit import njit


@njit(cache=True, nogil=True)
def prepare_query(query: Vectors, square: float, metric: int, mean: Vectors, prepared: Vectors) -> Any:
    """Write a query as the encoder sees it, and return what it adds to its distances whatever the centre.

    The squared norm is known. Queries are divided by their norms under cosine, unless these are 0, or 1 up to rounding.
    """
    norm = np.float32(np.sqrt(square)) if metric == 2 else np.float32(1)
    if norm == 0 or abs(norm - np.float32(1)) < np.float32(1e-6):
        norm = np.float32(1)
    for i in range(query.size):
        prepared[i] = query[i] / norm
    if metric == 2:
        return np.float32((1 - product(prepared, prepared)) / 2)
    return np.float32(1 - product(query, mean) + product(mean, mean)) if metric == 1 else np.float32(0)


@njit(cache=True, nogil=True)
def prepare_queries(
    queries: Vectors, first: int, stop: int, longest: float, metric: int, mean: Vectors, prepared: Vectors,
    shifts: Floats,
) -> int:  # fmt: skip
    """Prepare queries [first, stop); return the number of the first one that is not finite or too long, or `stop`."""
    for i in range(first, stop):
        square = product(queries[i], queries[i])
        if not square <= longest:
            return i
        shifts[i - first] = prepare_query(queries[i], square, metric, mean, prepared[i - first])
    return stop
