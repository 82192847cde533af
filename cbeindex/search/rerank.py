"""Better distances than Hamming's: estimates from codes, and exact ones from vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from .._core.threads import for_each_chunk
from .._core.typing import Arrays, Floats, Ids, Keys, Mask, Ranks, Rows, Vectors
from ..data.codes import BLOCK_ROWS, CodeRows
from ..data.sparserows import SparseRows
from ..distances.estimator import AsymmetricQueries
from ..distances.metrics import Metric
from ..store.segment import NO_RANKS, Segment

_TASK_QUERIES = 32
_VISIT_QUERIES = 256


def estimate_all(
    queries: AsymmetricQueries,
    codes: CodeRows,
    columns: Arrays,
    k: int,
    hidden: Mask,
    n_threads: int,
    *,
    ranks: Ranks = NO_RANKS,
    bounds: Floats | None = None,
    n_errors: float = 0.0,
) -> Keys:
    """Estimate the distance of every row; return the keys of the `k` nearest within `bounds`, ascending.

    With `n_errors`, the distance of a row is its estimate less so many standard errors of the product in it: of rows
    with very different errors, those that may be nearest come first.
    """
    n_rows, n_queries = len(columns["offsets"]), len(queries.codes)
    k = min(k, n_rows)
    bounds = np.full(n_queries, np.inf, dtype=np.float32) if bounds is None else bounds
    margins = np.float32(n_errors) * queries.norms
    split_rows = n_queries < 2 * n_threads and n_threads > 1
    task_rows = max(8, -(-n_rows // (2 * n_threads * BLOCK_ROWS))) * BLOCK_ROWS if split_rows else max(1, n_rows)
    starts = range(0, n_rows, task_rows)
    keys: Keys = np.empty((len(starts), n_queries, k), dtype=np.uint64)
    step = n_queries if split_rows else min(n_queries, _TASK_QUERIES)
    grid = [(part, first) for part in range(len(starts)) for first in range(0, n_queries, max(1, step))]

    def task(begin: int, end: int) -> None:
        for part, first in grid[begin:end]:
            which = slice(first, first + step)
            q = queries.some(which)
            kernels.asymmetric.scan(
                q.codes, q.planes, q.totals, q.steps, q.offsets, codes.head, codes.tail, columns["offsets"],
                columns["factors"], columns["spreads"], margins[which], hidden, ranks, starts[part],
                min(starts[part] + task_rows, n_rows), bounds[which], keys[part, which],
            )  # fmt: skip

    for_each_chunk(task, len(grid), 1, n_threads)
    return keys[0] if len(starts) == 1 else np.sort(np.concatenate(list(keys), axis=1), axis=1)[:, :k]


def estimate_visited(
    queries: AsymmetricQueries,
    segment: Segment,
    k: int,
    n_probes: int,
    n_wanted: int,
    hidden: Mask,
    n_threads: int,
    *,
    n_errors: float = 0.0,
) -> tuple[Keys, Rows]:
    """Do as `estimate_all` for the rows in the nearest cells of each query; also count rows and cells visited."""
    n_queries, cells, columns = len(queries.codes), segment.buckets, segment.columns
    keys: Keys = np.empty((n_queries, min(k, segment.n_rows)), dtype=np.uint64)
    margins, offsets = np.float32(n_errors) * queries.norms, cells.ends_of_cells()
    counts: list[Rows] = [np.zeros(2, dtype=np.int64)]

    def task(start: int, stop: int) -> None:
        some = slice(start, stop)
        q = queries.some(some)
        chosen = cells.choose(q.codes, n_probes, n_wanted, hidden)
        kernels.asymmetric.visit(
            q.codes, q.planes, q.totals, q.steps, q.offsets, segment.codes.head, segment.codes.tail, columns["offsets"],
            columns["factors"], columns["spreads"], margins[some], hidden, segment.ranks, chosen, offsets, keys[some],
        )  # fmt: skip
        n_rows = (offsets[chosen + 1] - offsets[chosen]).sum()
        counts.append(np.array([n_rows, np.count_nonzero(chosen < cells.n_cells)]))

    for_each_chunk(task, n_queries, min(_VISIT_QUERIES, -(-n_queries // n_threads)) or 1, n_threads)
    return keys, np.sum(counts, axis=0)


def estimate_rows(queries: AsymmetricQueries, codes: CodeRows, columns: Arrays, rows: Rows, n_threads: int) -> Floats:
    """Estimate the distances of each query to its own candidates: `rows` and the result are (n_queries, any)."""
    weights = np.empty(rows.shape, dtype=np.int32)

    def task(start: int, stop: int) -> None:
        some = slice(start, stop)
        kernels.asymmetric.weigh_rows(
            queries.codes[some], queries.planes[some], codes.head, codes.tail, rows[some], weights[some]
        )

    for_each_chunk(task, len(rows), 8, n_threads)
    products = queries.steps[:, np.newaxis] * (queries.totals[:, np.newaxis] - 2 * weights).astype(np.float32)
    distances = columns["offsets"][rows] + queries.offsets[:, np.newaxis] - columns["factors"][rows] * products
    return distances.astype(np.float32, copy=False)


def distances_of(keys: Keys) -> Floats:
    """Return the estimated distances of keys; for the largest uint64, infinity."""
    ordered = (keys >> np.uint64(32)).astype(np.uint32)
    bits = np.where(ordered >> 31, ordered & np.uint32(0x7FFFFFFF), ~ordered)
    distances = bits.astype(np.uint32).view(np.float32)
    return np.where(keys == np.uint64(np.iinfo(np.uint64).max), np.float32(np.inf), distances)


def exact_nearest(
    query: Vectors,
    metric: Metric,
    vectors: NDArray[np.floating] | SparseRows,
    ids: Ids,
    rows: Rows,
    lower: Floats,
    k: int,
) -> tuple[Rows, Floats, int]:
    """Find the `k` nearest of candidate rows by their vectors, without reading those that cannot be among them.

    Parameters
    ----------
    ids : int64 array
        Those of all rows, not only of candidates.
    rows : int64 array of shape (n,)
        Candidates.
    lower : float32 array of shape (n,)
        What the distance of each is at least.

    Returns
    -------
    int64 array of shape (min(k, n),)
        Rows, nearest first; of equal distances the smaller id first.
    float32 array of the same shape
        Their distances.
    int
        How many vectors were read.
    """
    order = np.argsort(lower, kind="stable")
    read, rest = order[: 4 * k], order[4 * k :]
    distances = metric.fast_distances(vectors[rows[read]], query)
    if len(rest):
        bound = np.partition(distances, k - 1)[k - 1]
        rest = rest[: np.searchsorted(lower[rest], bound, side="right")]
        distances = np.concatenate([distances, metric.fast_distances(vectors[rows[rest]], query)])
        read = np.concatenate([read, rest])
    best, exact = _decide(query, metric, vectors, ids, rows[read], distances, k)
    return best, exact, len(read)


def exact_of_all(
    query: Vectors, metric: Metric, vectors: NDArray[np.floating] | SparseRows, ids: Ids, hidden: Mask, k: int
) -> tuple[Rows, Floats]:
    """Find the `k` nearest of all rows that are not hidden, by their vectors: rows and distances, nearest first."""
    distances = metric.fast_distances(vectors, query)
    rows = np.flatnonzero(~hidden) if hidden.size else np.arange(len(vectors))
    return _decide(query, metric, vectors, ids, rows, distances[rows] if hidden.size else distances, k)


def _decide(
    query: Vectors,
    metric: Metric,
    vectors: NDArray[np.floating] | SparseRows,
    ids: Ids,
    rows: Rows,
    distances: Floats,
    k: int,
) -> tuple[Rows, Floats]:
    """Choose the `k` nearest of rows: float32 finds all that may be among them, ties included, float64 decides."""
    if len(rows) > k:
        bound = np.partition(distances, k - 1)[k - 1]
        rows = rows[distances <= bound + metric.rounding(bound, vectors, rows, query)]
    exact = metric.distances(vectors[rows], query)
    best = np.lexsort((ids[rows], exact))[:k]
    return rows[best], exact[best]
