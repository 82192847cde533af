"""Codes to search, with the true neighbours of queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets
from cbeindex import CirculantEncoder

BITS = {"fashion-mnist-784": 1_024, "glove6b-100": 512, "debian-desc-25600": 2_048}
MADE_UP = ("clustered", "near-duplicates")
N_TRUE = 10
LEVELS = (0.9, 0.95, 0.98)
# Queries that every search has at least.
LEAST_QUERIES = 100


@dataclass
class Problem:
    """Codes to search.

    Attributes
    ----------
    name : str
    n_bits : int
    base, queries : uint8 arrays of shape (n, n_bits / 8)
    pairs : int64 array
        Queries and rows that are true neighbours, as `datasets.near_pairs` gives them.
    k : int
        Number of results.
    levels : tuple of float
        Shares of the true neighbours at which contenders are compared.
    """

    name: str
    n_bits: int
    base: NDArray[np.uint8]
    queries: NDArray[np.uint8]
    pairs: NDArray[np.int64]
    k: int
    levels: tuple[float, ...]

    def recall(self, ids: NDArray[np.int64]) -> float:
        """Share of the true neighbours of the first queries that are in `ids`."""
        return datasets.pairs_found(self.pairs, len(self.base), ids, N_TRUE)


def problem(name: str, quick: bool, n_queries: int | None) -> Problem:
    """Load or make a set, and encode it."""
    if name == "near-duplicates":
        return near_duplicates(10_000 if quick else 1_000_000, n_queries or (LEAST_QUERIES if quick else 500))
    n_queries = n_queries or (LEAST_QUERIES if quick else 1_000)
    if name == "clustered":
        data = datasets.clustered(5_000 if quick else 50_000, 256, n_queries)
    else:
        data = datasets.load(name)
        if quick:
            data = datasets.Dataset(name, data.base[:5_000], data.queries)
    data = datasets.with_truth(data, n_queries)
    n_bits = BITS.get(name, 1_024)
    encoder = CirculantEncoder(data.dim, n_bits).fit(data.base)
    pairs = datasets.near_pairs(data, N_TRUE)
    return Problem(name, n_bits, encoder.encode(data.base), encoder.encode(data.queries), pairs, 100, LEVELS)


def near_duplicates(n: int, n_queries: int, *, n_bits: int = 256, n_near: int = 10, seed: int = 0) -> Problem:
    """Random codes, and `n_near` copies of each query with 2 to 10 % of the bits flipped."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 256, (n, n_bits // 8), dtype=np.uint8)
    queries = rng.integers(0, 256, (n_queries, n_bits // 8), dtype=np.uint8)
    rows = rng.choice(n, (n_queries, n_near), replace=False)
    flips = rng.random((n_queries, n_near, n_bits)) < np.linspace(0.02, 0.1, n_near)[:, np.newaxis]
    base[rows] = queries[:, np.newaxis] ^ np.packbits(flips, axis=2, bitorder="little")
    # Random codes of 256 bits differ in 128 bits, give or take 8: no other of a million is as near as a copy.
    distances = flips.sum(axis=2)
    last = np.sort(distances, axis=1)[:, N_TRUE - 1 : N_TRUE]
    pairs = np.sort((np.arange(n_queries)[:, np.newaxis] * n + rows)[distances <= last])
    return Problem("near-duplicates", n_bits, base, queries, pairs, 10, (*LEVELS, 1.0))
