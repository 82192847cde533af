"""Vertices: rows as whole numbers, from which distances are computed without the vectors.

A vertex is stored in the same way in a column and at the end of a record of a graph:

    scale   float32     the projections p of the centred row are about `scale * levels`
    square  float32     |p|^2
    norm    float32     squared norm of the row in units of projections where products count, else 0
    levels  int8        one for each projection, and zeros up to a multiple of 4 bytes

For a query with the projections z, walks and scans compare

    |p - z|^2 + largest norm - norm,

a squared distance of points with another coordinate sqrt(largest norm - norm), which is 0 in queries. Where products
count, its order is that of the products.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._core.typing import Floats, Keys, Mask, Projections
from .dots import Numbers, dot_floats, dot_int8
from .estimates import Records
from .jit import njit
from .quantising import best_inverse, quantise
from .topk import keep_smallest
from .views import view_as

Levels: TypeAlias = NDArray[np.int8]
"""Rows as whole numbers, one scale a row."""

HEAD = 12
"""Bytes of a vertex before its levels."""


def vertex_bytes(n_levels: int) -> int:
    """Return the size of a vertex, a multiple of 4."""
    return HEAD + -(-n_levels // 4) * 4


@njit(cache=True, nogil=True)
def quantise_row(row: Floats, levels: Any) -> Any:
    """Write a row as the bytes of levels -127 ... 127; return the scale s that makes products with s * levels unbiased.

    That is |p|^2 / <p, levels>, for which the product of the row with itself is exact.
    """
    product, _, _ = quantise(row, row, 8, best_inverse(row, 8, 1.0), levels)
    return np.float32(dot_floats(row, row, 0, row.size) / product) if product > 0 else np.float32(0)


@njit(cache=True, nogil=True)
def write_vertices(projections: Projections, n_levels: int, norms: Floats, column: Records) -> None:
    """Write rows as vertices, from their first `n_levels` projections and their norms."""
    size, levels = column.shape[1], np.empty(n_levels, dtype=np.uint8)
    for i in range(projections.shape[0]):
        row = projections[i, :n_levels]
        flat = column.reshape(-1)[i * size : (i + 1) * size]
        head = view_as(flat[:12], np.float32)
        head[0] = quantise_row(row, levels)
        head[1], head[2] = dot_floats(row, row, 0, n_levels), norms[i]
        flat[12 : 12 + n_levels] = levels
        flat[12 + n_levels :] = 0


@njit(cache=True, nogil=True)
def read_vertices(column: Records, n_levels: int, start: int, stop: int, projections: Projections) -> None:
    """Write the projections that the vertices of rows [start, stop) stand for to the first columns of `projections`."""
    size, levels = column.shape[1], view_as(column.reshape(-1), np.int8)
    scales = view_as(column.reshape(-1), np.float32)
    for row in range(start, stop):
        scale, base = scales[row * size // 4], row * size + 12
        for j in range(n_levels):
            projections[row, j] = scale * np.float32(levels[base + j])


@njit(cache=True, nogil=True)
def distance_to_vertex(levels: Levels, floats: Floats, at: int, numbers: Numbers, terms: Floats) -> Any:
    """Return the squared distance of a query to the vertex that begins at byte `at`; `terms` as in `walk.py`."""
    product = np.float32(dot_int8(numbers, levels, at + 12, numbers.size))
    scale, square, norm = floats[at // 4], floats[at // 4 + 1], floats[at // 4 + 2]
    return max((terms[3] + (square - norm)) - np.float32(2) * (terms[2] * scale) * product, np.float32(0))


@njit(cache=True, nogil=True)
def scan_vertices(
    records: Records, at: int, numbers: Numbers, terms: Floats, hidden: Mask, n_found: int, found: Keys
) -> int:
    """Find the `n_found` vertices nearest to a query that are not hidden; return how many there are.

    Parameters
    ----------
    records : uint8 array of shape (n, size)
        With vertices from byte `at` on.
    found : uint64 array of shape (n_found + 64 or more,)
        Gets bits of the distance << 32 | vertex, in any order.
    """
    size, flat = records.shape[1], records.reshape(-1)
    levels, floats = view_as(flat, np.int8), view_as(flat, np.float32)
    measured = np.empty(1, dtype=np.float32)
    bits = view_as(measured, np.int32)
    n, bound = 0, np.int64(0x7FFFFFFF)
    for row in range(records.shape[0]):
        if hidden.size > 0 and hidden[row]:
            continue
        measured[0] = distance_to_vertex(levels, floats, row * size + at, numbers, terms)
        if bits[0] <= bound:
            found[n] = np.uint64(np.int64(bits[0]) << 32 | row)
            n += 1
            if n == found.size:
                bound = np.int64(keep_smallest(found, n, n_found) >> np.uint64(32))
                n = n_found
    if n > n_found:
        keep_smallest(found, n, n_found)
        n = n_found
    return n
