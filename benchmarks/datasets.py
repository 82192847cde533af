"""Data to measure on: real sets from the folder of shared data where it is there, made-up ones where it is not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

SHARED = Path(os.environ.get("CBEINDEX_DATA", Path(__file__).parents[2] / "shared" / "data"))

N_VLAD = 20_000
"""Images that VLAD vectors are made of."""


@dataclass
class Dataset:
    """Vectors to index and to ask for.

    Attributes
    ----------
    name : str
    base, queries : float32 arrays of shape (n, dim), or CSR; rows of norm 1 where the metric is cosine
    truth : int array of shape (n_queries, 100), or None
        The nearest rows of `base`, nearest first.
    metric : {"cosine", "l2"}
    """

    name: str
    base: Any
    queries: Any
    truth: NDArray[np.int64] | None = None
    metric: str = "cosine"

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return int(self.base.shape[1])


def available() -> list[str]:
    """Name the real sets that are there."""
    return [name for name, (_, file) in _REAL.items() if (SHARED / file).exists()]


def load(name: str) -> Dataset:
    """Load a real set by its name."""
    return _REAL[name][0](name)


def raw(name: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Load rows and queries of a dense set as they were measured, with their norms."""
    with np.load(SHARED / f"{name}.npz") as arrays:
        return arrays["base"].astype(np.float32), arrays["queries"].astype(np.float32)


def labels(name: str) -> NDArray[np.int64] | None:
    """Load the label of each row of a set; None if it has none."""
    path = SHARED / f"{name}.npz"
    if not path.exists():
        return None
    with np.load(path) as arrays:
        return arrays["base_labels"].astype(np.int64) if "base_labels" in arrays else None


def planted(n: int, dim: int, n_queries: int, *, n_near: int = 20, seed: int = 0) -> Dataset:
    """Random directions, with `n_near` neighbours of every query planted at angles from 10 to 60 degrees."""
    rng = np.random.default_rng(seed)
    queries = _normalised(rng.standard_normal((n_queries, dim), dtype=np.float32))
    base = _normalised(rng.standard_normal((n, dim), dtype=np.float32))
    angles = np.radians(np.linspace(10, 60, n_near, dtype=np.float32))
    rows = rng.choice(n, size=(n_queries, n_near), replace=False)
    for query, chosen in zip(queries, rows, strict=True):
        away = base[chosen] - (base[chosen] @ query)[:, np.newaxis] * query
        base[chosen] = np.cos(angles)[:, np.newaxis] * query + np.sin(angles)[:, np.newaxis] * _normalised(away)
    return Dataset("planted", base, queries)


def clustered(n: int, dim: int, n_queries: int, *, seed: int = 0) -> Dataset:
    """Clouds of about 50 rows, in groups of about 20 clouds; queries come from the same clouds."""
    rng = np.random.default_rng(seed)
    n_clouds = max(1, n // 50)
    groups = _normalised(rng.standard_normal((max(1, n_clouds // 20), dim), dtype=np.float32))
    clouds = groups[rng.integers(len(groups), size=n_clouds)]
    clouds = _normalised(clouds + rng.standard_normal(clouds.shape, dtype=np.float32) / np.sqrt(dim))
    rows = clouds[rng.integers(n_clouds, size=n + n_queries)]
    rows = _normalised(rows + rng.standard_normal(rows.shape, dtype=np.float32) * np.float32(0.8 / np.sqrt(dim)))
    return Dataset("clustered", rows[:n], rows[n:])


def with_truth(data: Dataset, n_queries: int) -> Dataset:
    """Return the set with at most `n_queries` queries, and their true neighbours, computed if it has none."""
    queries = data.queries[:n_queries]
    if data.truth is not None:
        return Dataset(data.name, data.base, queries, data.truth[:n_queries])
    nearest = []
    for start in range(0, queries.shape[0], 100):
        similarities = _products(data.base, queries[start : start + 100])
        nearest.append(np.argsort(-similarities, axis=1, kind="stable")[:, :100])
    return Dataset(data.name, data.base, queries, np.concatenate(nearest))


def recall(data: Dataset, ids: NDArray[np.int64], n_true: int) -> float:
    """Share of the `n_true` nearest rows that are among `ids`, (n_queries, any); a row as near as the last counts."""
    assert data.truth is not None
    found = 0
    for i in range(len(ids)):
        query = data.queries[i : i + 1]
        valid = np.unique(ids[i][ids[i] >= 0])
        last = _products(data.base[data.truth[i, n_true - 1 : n_true]], query)[0, 0]
        # Similarities are float32 sums of products of unit vectors: equal rows differ by some units in 1e7.
        found += min(n_true, int((_products(data.base[valid], query)[0] >= last - 1e-6).sum()))
    return found / (n_true * len(ids))


def near_pairs(data: Dataset, n_true: int) -> NDArray[np.int64]:
    """Pairs of a query and a row as near as its `n_true`-th neighbour: numbers query * n_rows + row, ascending."""
    assert data.truth is not None
    pairs = []
    for start in range(0, len(data.truth), 100):
        last = data.truth[start : start + 100, n_true - 1 : n_true]
        similarities = _products(data.base, data.queries[start : start + 100])
        # The same tolerance as in `recall`.
        near = similarities >= np.take_along_axis(similarities, last, axis=1) - np.float32(1e-6)
        pairs.append(np.flatnonzero(near) + start * data.base.shape[0])
    return np.concatenate(pairs)


def pairs_found(pairs: NDArray[np.int64], n_rows: int, ids: NDArray[np.int64], n_true: int) -> float:
    """Compute `recall` from the `near_pairs` of the queries, for many results of the same queries."""
    numbers = np.arange(len(ids))[:, np.newaxis] * n_rows + ids
    found = np.unique(numbers[ids >= 0])
    hits = np.bincount(found[np.isin(found, pairs)] // n_rows, minlength=len(ids))
    return float(np.minimum(hits, n_true).sum() / (n_true * len(ids)))


def _products(base: Any, queries: Any) -> NDArray[np.float32]:
    """Inner products, (n_queries, n_rows)."""
    products = queries @ base.T
    return products.toarray() if hasattr(products, "toarray") else np.asarray(products)


def _normalised(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, np.where(norms == 0, 1, norms), dtype=np.float32)


def _dense(name: str) -> Dataset:
    with np.load(SHARED / f"{name}.npz") as arrays, np.load(SHARED / f"{name}.gt.npz") as truth:
        base, queries = (_normalised(arrays[key].astype(np.float32)) for key in ("base", "queries"))
        return Dataset(name, base, queries, truth["cosine"].astype(np.int64))


def _debian(name: str) -> Dataset:
    from scipy import sparse

    def load_normalised(part: str) -> Any:
        rows = sparse.csr_array(sparse.load_npz(SHARED / f"{name}.{part}.npz"), dtype=np.float32)
        norms = np.sqrt(rows.power(2).sum(axis=1))
        return sparse.csr_array(sparse.diags_array(1 / np.where(norms == 0, 1, norms)) @ rows, dtype=np.float32)

    with np.load(SHARED / f"{name}.gt.npz") as truth:
        return Dataset(name, load_normalised("base"), load_normalised("queries"), truth["cosine"].astype(np.int64))


def vlad(name: str, n_rows: int = N_VLAD, n_queries: int = 500) -> Dataset:
    """Residuals of image patches to their nearest codebook entries, summed: 25,600 dimensions.

    Two milliseconds a row; true neighbours are those of all rows, so fewer rows come without them.
    """
    with np.load(SHARED / "fashion-mnist-784.npz") as images, np.load(SHARED / f"{name}.npz") as made:
        codebook = made["codebook"]
        sizes = {"base": min(n_rows, N_VLAD), "queries": n_queries}
        base, queries = (_describe(images[key][:n], codebook) for key, n in sizes.items())
        truth = made["cosine"][:n_queries].astype(np.int64) if len(base) == N_VLAD else None
        return Dataset(name, base, queries, truth)


def _describe(images: NDArray[np.uint8], codebook: NDArray[np.float32]) -> NDArray[np.float32]:
    described = np.zeros((len(images), codebook.size), dtype=np.float32)
    squares = (codebook**2).sum(axis=1)
    for start in range(0, len(images), 200):
        some = images[start : start + 200]
        windows = sliding_window_view(some.reshape(-1, 28, 28), (10, 10), axis=(1, 2))[:, ::2, ::2]
        patches = windows.reshape(len(some), 100, 100).astype(np.float32)
        patches /= np.linalg.norm(patches, axis=2, keepdims=True) + 100
        nearest = (squares - 2 * patches @ codebook.T).argmin(axis=2)
        sums = described[start : start + 200].reshape(-1, *codebook.shape)
        np.add.at(sums, (np.arange(len(some))[:, np.newaxis], nearest), patches - codebook[nearest])
        sums[:] = np.sign(sums) * np.sqrt(np.abs(sums))
    return _normalised(described)


_REAL = {
    "fashion-mnist-784": (_dense, "fashion-mnist-784.npz"),
    "glove6b-100": (_dense, "glove6b-100.npz"),
    "debian-desc-25600": (_debian, "debian-desc-25600.base.npz"),
    "fashion-vlad-25600": (vlad, "fashion-vlad-25600.npz"),
    "sift5k-128": (_dense, "sift5k-128.npz"),
}
