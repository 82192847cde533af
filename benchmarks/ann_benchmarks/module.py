"""cbeindex for ann-benchmarks: this folder goes to its `ann_benchmarks/algorithms/cbeindex`."""

import numpy as np

from cbeindex import BinaryIndex, CBEIndex

from ..base.module import BaseANN


class _Searching(BaseANN):
    """What both kinds of index have in common. Subclasses define `_make`, `_rows` and `set_query_arguments`."""

    def __init__(self, method_param):
        self._param = method_param
        self._query = {}
        self._index = None

    def fit(self, X):
        """Build the index, with all cores."""
        self._index = self._make(X.shape[1])
        self._index.add(self._rows(X))

    def query(self, v, n):
        """Return the ids of the `n` nearest, found with one thread, as the rules require."""
        ids = self._index.search(self._rows(v), n, n_threads=1, **self._query).ids
        return ids[ids >= 0]

    def batch_query(self, X, n):
        """Search for all queries in one call, with all cores."""
        self.res = self._index.search(self._rows(X), n, **self._query).ids

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


class CBE(_Searching):
    """CBEIndex, asked for a recall.

    Parameters
    ----------
    metric : {"angular", "euclidean"}
    method_param : dict
        Arguments of CBEIndex: buckets, vectors and so on.
    """

    def __init__(self, metric, method_param):
        super().__init__(method_param)
        self._metric = {"angular": "cosine", "euclidean": "l2"}[metric]

    def _make(self, dim):
        return CBEIndex(dim, metric=self._metric, **self._param)

    def _rows(self, X):
        return np.asarray(X, dtype=np.float32)

    def set_query_arguments(self, recall=None, n_probes=None):
        """Choose the share of the true neighbours to find, or the buckets probed."""
        given = {"recall": recall, "n_probes": n_probes}
        self._query = {name: value for name, value in given.items() if value is not None}


class CBEBinary(_Searching):
    """BinaryIndex for sets of bits in Hamming distance.

    Parameters
    ----------
    method_param : dict
        Arguments of BinaryIndex: buckets and so on.
    """

    def _make(self, n_bits):
        return BinaryIndex(n_bits, **self._param)

    def _rows(self, X):
        return np.packbits(np.asarray(X, dtype=np.bool_), axis=-1, bitorder="little")

    def set_query_arguments(self, n_probes=None):
        """Choose the cells probed; None leaves the choice to the planner."""
        self._query = {} if n_probes is None else {"n_probes": n_probes}
