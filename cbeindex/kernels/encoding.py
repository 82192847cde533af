"""Queries of an index of codes: from vectors to what estimates need, and in one call to the nearest rows."""

from typing import Any

import numpy as np

from .._core.typing import Codes, Distances, Floats, Ids, Keys, Mask, Ranks, Rows, Vectors
from .asymmetric import float_of_key, scan
from .exact import product
from .jit import njit
from .levels import Levels, quantise
from .preparing import prepare_queries
from .topk import NO_KEY
from .transform import transform_rows
from .views import read_only

# Queries that are prepared at a time.
_TOGETHER = 32


@njit(cache=True, nogil=True, shared=True)
def encode_queries(
    queries: Vectors, longest: float, metric: int, scale: float, mean: Vectors, signs: Any, layout: Any, passes: Floats,
    coefficients: Floats, n_work: int, projections: Floats, levels: Levels, steps: Floats, totals: Distances,
    shifts: Floats, norms: Floats,
) -> int:  # fmt: skip
    """Project and quantise queries; return the number of those before the first that is not finite or too long.

    The same code encodes a query alone and in a batch, so that its values are equal to the last bit.

    Parameters
    ----------
    longest : float
        The largest squared norm of a query.
    scale : float
        That of `Geometry`.
    mean, signs, layout, passes, coefficients
        What `transform_rows` knows of the encoder.
    n_work : int
        Floats that it works in.
    projections : float32 array of shape (n_queries, n_bits)
    levels, steps, totals
        As for `levels.quantise`.
    shifts, norms : float32 arrays of shape (n_queries,)
        Offset of each query, and the norm that standard errors are proportional to.
    """
    n_together = min(_TOGETHER, queries.shape[0])
    prepared, work = np.empty((n_together, queries.shape[1]), dtype=np.float32), np.empty(n_work, dtype=np.float32)
    codes, sums = np.empty((0, levels.shape[1] // 64), dtype=np.uint64), np.empty((0, 2))
    for first in range(0, queries.shape[0], n_together):
        stop = min(first + n_together, queries.shape[0])
        n_prepared = prepare_queries(queries, first, stop, longest, metric, mean, prepared, shifts[first:])
        if n_prepared < stop:
            return int(n_prepared)
        bad = transform_rows(
            read_only(prepared), 0, stop - first, mean, signs, layout, passes, coefficients, work, projections[first:],
            codes, sums,
        )  # fmt: skip
        if bad >= 0:
            return int(first + bad)
        for query in range(first, stop):
            square = 0.0
            if metric == 1:
                for i in range(queries.shape[1]):
                    square += np.float64(queries[query, i] - mean[i]) ** 2
            else:
                square = product(projections[query], projections[query])
                shifts[query] += np.float32(scale * square / (2 if metric == 2 else 1))
            norms[query] = np.float32(np.sqrt(square))
    quantise(projections, levels, steps, totals)
    return int(queries.shape[0])


@njit(cache=True, nogil=True)
def nearest(
    queries: Vectors, longest: float, metric: int, scale: float, mean: Vectors, signs: Any, layout: Any, passes: Floats,
    coefficients: Floats, n_work: int, n_bits: int, codes: Codes, offsets: Floats, factors: Floats, spreads: Floats,
    hidden: Mask, ranks: Ranks, ids: Ids, distances: Floats, result_ids: Ids,
    visits: Rows,
) -> int:  # fmt: skip
    """Find the nearest rows of queries by estimate; return the number of queries that are finite and not too long.

    Rows are in the order of ids. `distances` and `result_ids`, (n_queries, k), are padded with infinity and -1. If a
    query is not encoded, nothing is written. `visits[0]` counts rows.
    """
    n, k = distances.shape
    projections = np.empty((n, n_bits), dtype=np.float32)
    levels = np.zeros((n, 64 * codes.shape[1]), dtype=np.int8)
    steps, totals = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.int32)
    shifts, norms = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.float32)
    n_encoded = encode_queries(
        queries, longest, metric, scale, mean, signs, layout, passes, coefficients, n_work, projections, levels, steps,
        totals, shifts, norms,
    )  # fmt: skip
    if n_encoded < n:
        return int(n_encoded)
    margins, bounds = np.zeros(n, dtype=np.float32), np.full(n, np.inf, dtype=np.float32)
    keys: Keys = np.empty((n, k), dtype=np.uint64)
    scan(
        levels, totals, steps, shifts, margins, codes, offsets, factors, spreads, hidden, ranks, 0, ids.size, bounds,
        keys,
    )  # fmt: skip
    for query in range(n):
        for i in range(k):
            key, is_missing = keys[query, i], keys[query, i] == NO_KEY
            distances[query, i] = np.float32(np.inf) if is_missing else float_of_key(key)
            result_ids[query, i] = -1 if is_missing else ids[np.int64(key & np.uint64(0xFFFFFFFF))]
    visits[0] += n * ids.size
    return int(n)
