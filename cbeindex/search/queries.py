"""Queries as the stages pass them on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.typing import Codes, Floats
from ..data.sparserows import VectorRows
from ..distances.estimator import EncodedQueries


@dataclass(frozen=True)
class CodeQueries:
    """A search for the rows nearest to some codes in Hamming distance.

    Attributes
    ----------
    codes : uint64 array of shape (n_queries, n_words)
    n_bits : int
    k : int
        Number of results for each query. A search within a radius ignores it.
    n_threads : int
    margins : float32 array of shape (n_queries, n_bits), or None
        How certain each bit of a query is.
    """

    codes: Codes
    n_bits: int
    k: int
    n_threads: int = 1
    margins: Floats | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def some(self, which: NDArray[np.bool_] | NDArray[np.int64] | slice) -> CodeQueries:
        """Return some of the queries, in C order as kernels need them."""
        margins = None if self.margins is None else self.margins[which]
        return replace(self, codes=np.ascontiguousarray(self.codes[which]), margins=margins)


@dataclass(frozen=True)
class EncodedBatch:
    """Vector queries that pass through all stages together.

    Attributes
    ----------
    vectors : float32 array of shape (n_queries, dim), or SparseRows
        The queries as the caller gave them.
    encoded : EncodedQueries
    n_bits : int
    n_threads : int
    stats : dict
        Counts of what the stages read.
    """

    vectors: VectorRows
    encoded: EncodedQueries
    n_bits: int
    n_threads: int
    stats: dict[str, Any] = field(default_factory=dict)

    def code_queries(self, k: int) -> CodeQueries:
        """Return a search for the `k` nearest rows in Hamming distance."""
        return CodeQueries(self.encoded.codes, self.n_bits, k, self.n_threads, self.encoded.margins)

    def some(self, which: NDArray[np.int64]) -> EncodedBatch:
        """Return some of the queries, which count what they read in the same place."""
        return replace(self, vectors=self.vectors[which], encoded=self.encoded.some(which))

    def one(self, i: int) -> EncodedBatch:
        """Return query i alone."""
        some = slice(i, i + 1)
        return replace(self, vectors=self.vectors[some], encoded=self.encoded.some(some))
