"""Compute true neighbours, and the recall of results, from distances that are computed here."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.datasets import Dataset

# What takes long to make is kept here.
CACHE = Path(os.environ.get("CBEINDEX_CACHE", Path.home() / ".cache" / "cbeindex"))

N_TRUE = 10
"""Nearest rows that are to be found."""

N_TRUTH = 100
"""True neighbours that are computed for a query."""

# Values of rows, and distances to them, that are held at a time while true neighbours are looked for.
_BLOCK_FLOATS = 2**23
# Rows that are kept beyond those wanted until the order is decided by differences: equal rows may differ in products.
_N_SPARE = 32
# Values of differences that are held at a time: they stay in a cache.
_DIFFERENCE_FLOATS = 2**16
# Values of queries that are dense at a time while they are multiplied with sparse rows.
_SPARSE_FLOATS = 2**21
# Queries whose given neighbours are compared with computed ones.
_N_CHECKED = 10
# Contenders sum distances in float32: rows as near as another but for this share of the distance count as equal.
_TOLERANCE = 1e-6
# Rows of norm 1 have been rounded to float32, and so have queries: a direction is accurate to this much.
# Vectors under l2 are not rounded, however far from the origin they are.
_ROUNDING = {"cosine": 2**-23, "l2": 0.0}


def with_truth(data: Dataset, tell: Callable[[str], object] = lambda text: None) -> Dataset:
    """Return the set with true neighbours: its own, which are checked, or cached ones, or new ones."""
    if data.base.shape[0] < N_TRUE or data.queries.shape[0] < 1:
        raise ValueError(f"{data.name} must have {N_TRUE} rows and a query at least, got {data.base.shape[0]} rows")
    if data.truth is None or data.truth.shape[1] < N_TRUE:
        return replace(data, truth=_cached(data, tell))
    _check(data)
    return data


def recall_curve(data: Dataset, ids: NDArray[np.int64], n_true: int = N_TRUE) -> NDArray[np.float64]:
    """Return the share of the `n_true` nearest rows among the first 1, 2, ... results, ids of shape (n_queries, k).

    A row as near as the last true neighbour counts as a true neighbour, up to `n_true` of them. A repeated id counts
    once.
    """
    assert data.truth is not None
    # The largest, not that of the last: neighbours that come with a set may be out of order by a rounding.
    last = np.sqrt(distances_to(data, data.truth[:, :n_true]).max(axis=1, keepdims=True))
    near = np.sqrt(distances_to(data, ids)) <= last * (1 + _TOLERANCE) + _ROUNDING[data.metric]
    order = np.argsort(ids, axis=1, kind="stable")
    ordered = np.take_along_axis(ids, order, axis=1)
    is_first = np.ones_like(near)
    np.put_along_axis(is_first, order[:, 1:], ordered[:, 1:] != ordered[:, :-1], axis=1)
    found: NDArray[np.float64] = np.minimum(np.cumsum(near & is_first, axis=1), n_true).mean(axis=0)
    return found / n_true


def nearest(
    base: Any, queries: Any, metric: str, k: int = N_TRUTH, tell: Callable[[str], object] = lambda text: None
) -> NDArray[np.int64]:
    """Return the `k` nearest rows of each query, nearest first, equal ones by their number; in blocks."""
    n, n_queries = base.shape[0], queries.shape[0]
    k = min(k, n)
    n_kept = min(n, k + _N_SPARE)
    centre = _centre(base, metric)
    doubles = _as_doubles(queries, centre)
    columns = np.ascontiguousarray((doubles.toarray() if hasattr(doubles, "toarray") else doubles).T)
    step = max(1, min(_BLOCK_FLOATS // n_queries, _BLOCK_FLOATS // base.shape[1]))
    best = np.full((n_queries, n_kept), np.inf)
    ids = np.full((n_queries, n_kept), n, dtype=np.int64)
    for start in range(0, n, step):
        rows = _as_doubles(base[start : start + step], centre)
        # Distances without the squares of the queries, which do not change their order.
        distances = (squared_norms(rows)[:, np.newaxis] - 2 * np.asarray(rows @ columns)).T
        numbers = np.broadcast_to(np.arange(start, start + rows.shape[0]), distances.shape)
        best, ids = _first(np.hstack([best, distances]), np.hstack([ids, numbers]), n_kept)
        tell(f"true neighbours: {min(start + step, n):,} of {n:,} rows")
    return _first(distances_to(Dataset("", base, queries, metric=metric), ids), ids, k)[1]


def distances_to(data: Dataset, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Squared Euclidean distances of each query to the rows in its line of `ids`; infinity for a negative id."""
    if ids.size and ids.max() >= data.base.shape[0]:
        raise ValueError(f"ids must be below {data.base.shape[0]}, got {ids.max()}")
    rows = np.maximum(ids, 0)
    out = np.empty(ids.shape)
    if hasattr(data.base, "toarray"):
        of_rows, of_queries = (squared_norms(part.astype(np.float64)) for part in (data.base, data.queries))
        squares = of_rows[rows] + of_queries[:, np.newaxis]
        out[:] = np.maximum(squares - 2 * sparse_products(data.base, data.queries, ids), 0)
    else:
        step = max(1, _DIFFERENCE_FLOATS // data.dim)
        for i in range(len(ids)):
            for start in range(0, ids.shape[1], step):
                some = slice(start, start + step)
                difference = np.subtract(data.base[rows[i, some]], data.queries[i], dtype=np.float64)
                out[i, some] = np.einsum("ij,ij->i", difference, difference)
    out[ids < 0] = np.inf
    return out


def sparse_products(base: Any, queries: Any, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Inner products of each query with the rows in its line of `ids`, all CSR; those of a block of queries at once."""
    n_queries, width = ids.shape
    products = np.empty(ids.shape)
    step = max(1, _SPARSE_FLOATS // queries.shape[1])
    for start in range(0, n_queries, step):
        rows = np.maximum(ids[start : start + step], 0).ravel()
        starts = base.indptr[rows].astype(np.int64)
        lengths = base.indptr[rows + 1] - starts
        row_of_entry = np.repeat(np.arange(len(rows)), lengths)
        entries = np.arange(len(row_of_entry)) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
        values = queries[start : start + step].toarray()[row_of_entry // width, base.indices[entries]]
        terms = np.multiply(values, base.data[entries], dtype=np.float64)
        sums = np.bincount(row_of_entry, weights=terms, minlength=len(rows))
        products[start : start + step] = sums.reshape(-1, width)
    return products


def squared_norms(rows: Any) -> NDArray[Any]:
    """Squared norms of rows, dense or sparse, in their own precision."""
    if hasattr(rows, "toarray"):
        return np.asarray(rows.power(2).sum(axis=1)).ravel().astype(rows.dtype)
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def digest(*parts: Any) -> str:
    """Name texts and arrays by what is in them."""
    made = hashlib.blake2b(digest_size=12)
    for part in parts:
        if isinstance(part, str):
            made.update(part.encode() + b"\0")
        else:
            made.update(f"{part.dtype}{part.shape}".encode())
            made.update(np.ascontiguousarray(part).data)
    return made.hexdigest()


def read_cached(path: Path, read: Callable[[Path], Any]) -> Any:
    """Read a file of the cache; None if it is not there, or not sound."""
    try:
        return read(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None


def write_cached(path: Path, write: Callable[[Any], object]) -> None:
    """Write a file of the cache, whole or not at all; a folder that cannot be written to is done without."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            write(file)
        aside.replace(path)
    except OSError:
        with suppress(OSError):
            aside.unlink()


def _centre(base: Any, metric: str) -> NDArray[np.float64]:
    """Return what is subtracted from rows before products are taken: the mean of rows that may lie far from the origin.

    Distances do not change, and products round to less the shorter rows are. Rows of norm 1 are short, and sparse rows
    would not be sparse any more: of these nothing is subtracted.
    """
    if metric != "l2" or hasattr(base, "toarray"):
        return np.zeros(base.shape[1])
    return np.asarray(base.mean(axis=0, dtype=np.float64))


def _as_doubles(rows: Any, centre: NDArray[np.float64]) -> Any:
    """Return rows as float64, the centre subtracted from dense ones."""
    return rows.astype(np.float64) if hasattr(rows, "toarray") else rows - centre


def _first(
    distances: NDArray[np.float64], ids: NDArray[np.int64], k: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Keep the `k` smallest distances of each line, and their ids, by (distance, id)."""
    # All that tie with the k-th must be there to be ordered, so the few that are left are sorted by both.
    last = np.partition(distances, k - 1, axis=1)[:, k - 1 : k]
    kept = np.empty((len(ids), k), dtype=np.int64)
    for i in range(len(ids)):
        few = np.flatnonzero(distances[i] <= last[i])
        kept[i] = few[np.lexsort((ids[i, few], distances[i, few]))[:k]]
    return np.take_along_axis(distances, kept, axis=1), np.take_along_axis(ids, kept, axis=1)


def _cached(data: Dataset, tell: Callable[[str], object]) -> NDArray[np.int64]:
    """Return the true neighbours from the cache, or compute them and put them there."""
    parts = [part for rows in (data.base, data.queries) for part in _arrays(rows)]
    # "float64" tells them from those that earlier versions computed in float32.
    path = CACHE / f"truth-{digest(data.metric, str(N_TRUTH), 'float64', *parts)}.npy"
    truth = read_cached(path, np.load)
    if truth is None:
        truth = nearest(data.base, data.queries, data.metric, tell=tell)
        write_cached(path, lambda file: np.save(file, truth))
    return truth  # type: ignore[no-any-return]


def _check(data: Dataset) -> None:
    """Raise ValueError where given neighbours are not those of the data under its metric."""
    assert data.truth is not None
    n = data.base.shape[0]
    if data.truth.min() < 0 or data.truth.max() >= n:
        raise ValueError(f"true neighbours of {data.name} must be rows 0 to {n - 1}, got others")
    some = replace(data, queries=data.queries[:_N_CHECKED])
    width = data.truth.shape[1]
    given = distances_to(some, data.truth[:_N_CHECKED])
    computed = distances_to(some, nearest(some.base, some.queries, some.metric, width))
    # Sets come with neighbours from computations in other precisions: those that are as near to 1 in 10,000 are right.
    scale = float(squared_norms(_as_doubles(some.queries, _centre(some.base, some.metric))).max())
    if not np.allclose(given, computed, rtol=1e-4, atol=1e-5 * scale):
        raise ValueError(f"true neighbours of {data.name} are not those of its vectors under {data.metric}")


def _arrays(rows: Any) -> list[Any]:
    """List the arrays that rows are made of."""
    return [rows.data, rows.indices, rows.indptr] if hasattr(rows, "toarray") else [rows]
