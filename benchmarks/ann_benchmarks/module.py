"""cbeindex for ann-benchmarks: this folder goes to its `ann_benchmarks/algorithms/cbeindex`."""

import numpy as np

from cbeindex import CBEIndex

from ..base.module import BaseANN


class CBE(BaseANN):
    """CBEIndex with clusters and exact re-ranking.

    Parameters
    ----------
    metric : {"angular", "euclidean"}
    method_param : dict
        n_bits (bits of a code, or None), vectors ("float32", "float16" or None), buckets ("clusters", ...).
    """

    def __init__(self, metric, method_param):
        self._metric = {"angular": "cosine", "euclidean": "l2"}[metric]
        self._param = method_param
        self._query = {}
        self._index = None

    def fit(self, X):
        """Build the index, with all cores."""
        self._index = CBEIndex(X.shape[1], metric=self._metric, **self._param)
        self._index.add(np.asarray(X, dtype=np.float32))
        self._index.search(X[0], 10, n_threads=1)  # compiles

    def set_query_arguments(self, n_probes, n_candidates=None):
        """Choose the buckets probed and the rows re-ranked; None leaves the choice to the planner."""
        self._query = {"n_probes": n_probes, "n_candidates": n_candidates}

    def query(self, v, n):
        """Return the ids of the `n` nearest, found with one thread, as the rules require."""
        ids = self._index.search(v, n, n_threads=1, **self._query).ids
        return ids[ids >= 0]

    def batch_query(self, X, n):
        """Search for all queries in one call, with all cores."""
        self.res = self._index.search(X, n, **self._query).ids

    def get_batch_results(self):
        """Return what `batch_query` found."""
        return [ids[ids >= 0] for ids in self.res]

    def get_memory_usage(self):
        """Kilobytes of codes, kept vectors and buckets: none before `fit`, when the runner asks for the first time."""
        if self._index is None:
            return 0.0
        return sum(self._index.stats()["bytes"].values()) / 1024

    def __str__(self):
        return f"cbeindex({self._param}, {self._query})"
