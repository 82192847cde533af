"""Exact distances between queries and stored vectors, for the candidates that can still be among the nearest."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._core.typing import Floats, Ids, Rows, SparseIndices, Vectors
from .asymmetric import key_of
from .halves import as_float
from .jit import njit
from .prefetch import prefetch
from .sorting import sort_keys
from .views import view_as

Numbers: TypeAlias = NDArray[Any]
"""Stored values: float32, or float16 as uint16."""

# Sums are accumulated in float64 and in any order: their error is far below the resolution of float32. Sums in float32,
# which take half the time, rule out most candidates first. Loops that LLVM vectorises, with fused operations in any
# order, take two thirds of the time of the sums in a fixed order of `dots.py` (384 and 784 dimensions).


@njit(cache=True, nogil=True, fastmath=True)
def squared_distance(row: Numbers, query: Vectors) -> Any:
    """Return the squared Euclidean distance."""
    total = 0.0
    for i in range(query.size):
        difference = np.float64(as_float(row[i])) - np.float64(query[i])
        total += difference * difference
    return total


@njit(cache=True, nogil=True, fastmath=True)
def product(row: Numbers, query: Vectors) -> Any:
    """Return the inner product."""
    total = 0.0
    for i in range(query.size):
        total += np.float64(as_float(row[i])) * np.float64(query[i])
    return total


@njit(cache=True, nogil=True, fastmath=True)
def square_and_product(row: Numbers, query: Vectors) -> Any:
    """Return the squared norm of a row, and its inner product with the query, in one pass."""
    square, total = 0.0, 0.0
    for i in range(query.size):
        value = np.float64(as_float(row[i]))
        square += value * value
        total += value * np.float64(query[i])
    return square, total


@njit(cache=True, nogil=True, fastmath=True)
def rough_squared_distance(row: Numbers, query: Vectors) -> Any:
    """Return the squared Euclidean distance, summed in float32."""
    total = np.float32(0)
    for i in range(query.size):
        difference = as_float(row[i]) - query[i]
        total += difference * difference
    return total


@njit(cache=True, nogil=True, fastmath=True)
def rough_square_and_product(row: Numbers, query: Vectors) -> Any:
    """Return the squared norm of a row, and its inner product with the query, summed in float32."""
    square, total = np.float32(0), np.float32(0)
    for i in range(query.size):
        value = as_float(row[i])
        square += value * value
        total += value * query[i]
    return square, total


@njit(cache=True, nogil=True)
def is_farther(row: Numbers, query: Vectors, query_square: float, metric: int, slack: float, bound: float) -> Any:
    """Return True if a row is certainly farther than `bound`, by float32 sums with a relative error of up to `slack`.

    Returns False if float32 cannot represent the sums.
    """
    if metric == 0:
        return np.float64(rough_squared_distance(row, query)) * (1 - slack) > bound
    row_square, total = rough_square_and_product(row, query)
    if not (1e-30 < row_square < 1e36 and 1e-30 < query_square < 1e36):
        return False
    scale = np.sqrt(np.float64(row_square) * query_square)
    if metric == 1:  # the bound is rounded to float32 too
        return 1 - np.float64(total) - slack * scale - 2e-7 * abs(bound) > bound
    return 1 - np.float64(total) / scale - slack > bound


@njit(cache=True, nogil=True)
def cosine_distance(total: float, square: float) -> Any:
    """Return the cosine distance from the inner product and the product of the squared norms; 1 for zero vectors."""
    if square == 0:
        return np.float32(1)
    distance = 1 - total / np.sqrt(square)
    return np.float32(0 if abs(distance) < 1e-15 else distance)  # rounding of 1 - 1


@njit(cache=True, nogil=True)
def distance_of(row: Numbers, query: Vectors, query_square: float, metric: int) -> Any:
    """Return the distance under a metric: 0 is l2, 1 is ip, 2 is cosine."""
    if metric == 0:
        return np.float32(squared_distance(row, query))
    if metric == 1:
        return np.float32(1 - product(row, query))
    row_square, total = square_and_product(row, query)
    return cosine_distance(total, row_square * query_square)


@njit(cache=True, nogil=True)
def distances(query: Vectors, vectors: Numbers, rows: Rows, metric: int, out: Floats) -> None:
    """Write the distances from a query to some rows of `vectors`."""
    square, dim, ahead = product(query, query), vectors.shape[1], 4
    for i in range(rows.size):
        if i + ahead < rows.size:
            for j in range(0, dim, 16):
                prefetch(vectors, rows[i + ahead] * dim + j)
        out[i] = distance_of(vectors[rows[i]], query, square, metric)


@njit(cache=True, nogil=True)
def sparse_sums(
    indices: SparseIndices, values: Numbers, begin: int, end: int, query: Vectors, is_l2: bool, number: int, seen: Rows
) -> Any:
    """Return the squared norm of the row with the entries [begin, end), and its inner product with a query.

    With `is_l2`, the first is the squared distance over the entries instead, and `seen` gets `number` at those where
    the query is not 0. Returns NaN if entries are invalid.
    """
    square, total = 0.0, 0.0
    if begin < 0 or end < begin or end > values.size:  # files are not trusted
        return np.nan, total
    for i in range(begin, end):
        index = indices[i]
        if index < 0 or index >= query.size:
            return np.nan, total
        value, other = np.float64(as_float(values[i])), np.float64(query[index])
        if is_l2:
            square += (value - other) * (value - other)
            if other != 0:
                seen[index] = number
        else:
            square += value * value
            total += value * other
    return square, total


@njit(cache=True, nogil=True)
def squares_elsewhere(indices: SparseIndices, values: Vectors, number: int, seen: Rows) -> Any:
    """Return the sum of the squares of a sparse query over the places where `seen` has no `number`.

    Added to the distance over the entries of a row, it gives the distance without cancellation of large numbers.
    """
    total = 0.0
    for i in range(indices.size):
        if seen[indices[i]] != number:
            total += np.float64(values[i]) * np.float64(values[i])
    return total


@njit(cache=True, nogil=True)
def insert(distance: float, id_: int, distances: Floats, ids: Ids, n: int) -> None:
    """Insert a result into the first `n`, which are sorted by (distance, id); drop the last if all slots are taken."""
    at = min(n, distances.size - 1)
    if n > at and (distance > distances[at] or (distance == distances[at] and id_ > ids[at])):
        return
    while at > 0 and (distance < distances[at - 1] or (distance == distances[at - 1] and id_ < ids[at - 1])):
        distances[at], ids[at] = distances[at - 1], ids[at - 1]
        at -= 1
    distances[at], ids[at] = distance, id_


@njit(cache=True, nogil=True)
def order_of(lower: Floats) -> Any:
    """Return the order of ascending lower bounds; skip the sort if they ascend already."""
    n, is_in_order = lower.size, True
    order = np.empty(n, dtype=np.int64)
    for i in range(n):
        order[i] = i
        is_in_order &= i == 0 or lower[i] >= lower[i - 1]
    if not is_in_order:
        # `np.argsort` takes 2 s to compile.
        keys, bits = np.empty(n, dtype=np.uint64), view_as(lower, np.int32)
        for i in range(n):
            keys[i] = key_of(bits[i], i)
        sort_keys(keys, 0, n)
        for i in range(n):
            order[i] = np.int64(keys[i] & np.uint64(0xFFFFFFFF))
    return order


@njit(cache=True, nogil=True)
def clear(near: Floats, near_ids: Ids) -> None:
    """Mark all results as missing."""
    for i in range(near.size):
        near[i], near_ids[i] = np.inf, -1


@njit(cache=True, nogil=True)
def nearest(
    queries: Vectors, vectors: Numbers, ids: Ids, rows: Rows, counts: Rows, lower: Floats, metric: int,
    distances: Floats, result_ids: Ids, n_read: Rows,
) -> None:  # fmt: skip
    """Write the `k` nearest candidates of each query to `distances` and `result_ids`, (n_queries, k), ascending.

    Query i has the candidates `rows[i, :counts[i]]`, and `lower[i]` holds lower bounds on their distances. Candidates
    whose bound exceeds the k-th distance so far are not read. Missing results have distance infinity and id -1.
    `n_read` counts the vectors read.
    """
    k, dim = distances.shape[1], vectors.shape[1]
    slack = 1e-6 * np.sqrt(dim)  # rounding errors grow with the square root of dim: eight float32 roundings per term
    for query in range(queries.shape[0]):
        n = counts[query]
        near, near_ids = distances[query], result_ids[query]
        clear(near, near_ids)
        square = product(queries[query], queries[query]) if metric != 0 else 0.0
        order = order_of(lower[query, :n])
        for i in range(n):
            if lower[query, order[i]] > near[k - 1]:
                break
            row = rows[query, order[i]]
            if i + 2 < n:
                ahead = rows[query, order[i + 2]] * dim
                for j in range(0, dim, 64 // vectors.itemsize):
                    prefetch(vectors, ahead + j)
            n_read[query] += 1
            if i < k or not is_farther(vectors[row], queries[query], square, metric, slack, near[k - 1]):
                insert(distance_of(vectors[row], queries[query], square, metric), ids[row], near, near_ids, i)


@njit(cache=True, nogil=True)
def nearest_sparse(
    query_offsets: Rows, query_indices: SparseIndices, query_values: Vectors, dim: int, offsets: Rows,
    indices: SparseIndices, values: Numbers, ids: Ids, rows: Rows, counts: Rows, lower: Floats, metric: int,
    distances: Floats, result_ids: Ids, n_read: Rows,
) -> bool:  # fmt: skip
    """Do as `nearest` for sparse queries and vectors; return False if a row read is invalid."""
    k = distances.shape[1]
    dense_query = np.zeros(dim, dtype=np.float32)  # one dense query at a time stays in the cache
    seen, number = np.zeros(dim if metric == 0 else 0, dtype=np.int64), 0
    for query in range(query_offsets.size - 1):
        places = query_indices[query_offsets[query] : query_offsets[query + 1]]
        entries = query_values[query_offsets[query] : query_offsets[query + 1]]
        square = 0.0
        for i in range(places.size):
            dense_query[places[i]] = entries[i]
            square += np.float64(entries[i]) * np.float64(entries[i])
        n = counts[query]
        near, near_ids = distances[query], result_ids[query]
        clear(near, near_ids)
        order = order_of(lower[query, :n])
        for i in range(n):
            if lower[query, order[i]] > near[k - 1]:
                break
            if i + 8 < n:
                prefetch(offsets, rows[query, order[i + 8]])
            if i + 4 < n:
                ahead = offsets[rows[query, order[i + 4]]]
                for j in range(0, 48, 16):  # the first 48 entries: all of most rows
                    prefetch(indices, ahead + j)
                    prefetch(values, ahead + j)
            row = rows[query, order[i]]
            number += 1
            row_square, total = sparse_sums(
                indices, values, offsets[row], offsets[row + 1], dense_query, metric == 0, number, seen
            )
            if np.isnan(row_square):
                return False
            if metric == 0:
                distance = np.float32(row_square + squares_elsewhere(places, entries, number, seen))
            elif metric == 1:
                distance = np.float32(1 - total)
            else:
                distance = cosine_distance(total, row_square * square)
            insert(distance, ids[row], near, near_ids, i)
            n_read[query] += 1
        for i in range(places.size):
            dense_query[places[i]] = 0
    return True
