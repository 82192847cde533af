"""Estimators for scikit-learn: circulant projections and codes, and graphs of nearest neighbours.

Needs scikit-learn: `pip install "cbeindex[sklearn]"`.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ._core.checks import as_choice, as_count
from ._core.extras import needs_extra
from .data.codes import n_bytes
from .encoders import CirculantEncoder
from .index import CBEIndex

with needs_extra("sklearn"):
    from joblib import effective_n_jobs
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = ["CBENeighborsTransformer", "CirculantTransformer"]

_OUTPUTS = ("projections", "signs", "codes")
# Metrics of the index behind those of scikit-learn.
_METRICS = {"cosine": "cosine", "euclidean": "l2", "sqeuclidean": "l2"}
_MODES = ("distance", "connectivity")


def _checked(estimator: Any, X: Any, reset: bool) -> Any:
    """Check the input of an estimator; CSR input stays sparse."""
    return validate_data(
        estimator,
        X,
        accept_sparse="csr",
        dtype=[np.float64, np.float32],
        reset=reset,
        ensure_min_samples=2 if reset else 1,
    )


def _seed_of(random_state: Any) -> int:
    """Return the seed of an encoder: the state itself if it is a number, else drawn from it."""
    if isinstance(random_state, (int, np.integer)):
        return as_count(random_state, "random_state", least=0)
    return int(check_random_state(random_state).randint(2**31 - 1))


class CirculantTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Project rows by a circulant matrix, in O(d log d) time and O(d) parameters, and optionally binarise them.

    Parameters
    ----------
    n_bits : int, optional
        Number of projections: below, at or above the number of features. By default the number of features.
    output : {"projections", "signs", "codes"}
        "projections": float32, one column for each bit. "signs": int8, -1 and 1, one column for each bit. "codes":
        uint8, eight bits in each column, as `BinaryIndex` takes them.
    kind : {"orthogonal", "random", "learned"}
        How the circulant matrix is chosen, see `CirculantEncoder`.
    random_state : int, RandomState or None
        A number is the seed of the `CirculantEncoder`.
    n_jobs : int, optional
        Number of threads, -1 for one a core.

    Attributes
    ----------
    encoder_ : CirculantEncoder
    n_features_in_ : int
    feature_names_in_ : array of str
        If `fit` got a frame with names of columns.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((100, 300))
    >>> CirculantTransformer(n_bits=256, output="codes").fit_transform(X).shape
    (100, 32)
    """

    def __init__(
        self,
        n_bits: int | None = None,
        *,
        output: str = "projections",
        kind: str = "orthogonal",
        random_state: Any = 0,
        n_jobs: int | None = None,
    ) -> None:
        self.n_bits = n_bits
        self.output = output
        self.kind = kind
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any = None) -> Self:
        """Centre the encoder on the rows of `X`, and train it if its kind is "learned"; `y` is ignored."""
        as_choice(self.output, "output", _OUTPUTS)
        rows = _checked(self, X, reset=True)
        encoder = CirculantEncoder(rows.shape[1], self.n_bits, self.kind, _seed_of(self.random_state))
        self.encoder_ = encoder.fit(rows, n_threads=effective_n_jobs(self.n_jobs))
        return self

    def transform(self, X: Any) -> NDArray[Any]:
        """Return the projections, signs or codes of rows.

        Parameters
        ----------
        X : array_like or sparse of shape (n, n_features)

        Returns
        -------
        array of shape (n, n_bits), or (n, ceil(n_bits / 8)) for codes
        """
        check_is_fitted(self)
        rows, n_threads = _checked(self, X, reset=False), effective_n_jobs(self.n_jobs)
        if self.output == "projections":
            projections: NDArray[Any] = self.encoder_.project(rows, n_threads=n_threads)
            return projections
        codes: NDArray[Any] = self.encoder_.encode(rows, n_threads=n_threads)
        if self.output == "codes":
            return codes
        bits = np.unpackbits(codes, axis=1, count=self.encoder_.n_bits, bitorder="little").view(np.int8)
        return 2 * bits - 1

    @property
    def _n_features_out(self) -> int:
        """Number of columns that `transform` returns."""
        n_bits: int = self.encoder_.n_bits
        return n_bytes(n_bits) if self.output == "codes" else n_bits

    def __sklearn_tags__(self) -> Any:
        """Describe the estimator to scikit-learn."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float32"] if self.output == "projections" else []
        return tags


class CBENeighborsTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Graph of the nearest neighbours of rows, for estimators with `metric="precomputed"`.

    Replaces `sklearn.neighbors.KNeighborsTransformer` where exact search takes too long: in front of
    KNeighborsClassifier, DBSCAN, TSNE, Isomap and others that take a sparse graph. UMAP takes the same neighbours as
    arrays, because it accepts symmetric matrices alone:
    `UMAP(n_neighbors=15, precomputed_knn=(graph.indices.reshape(n, -1), graph.data.reshape(n, -1)))`.

    Parameters
    ----------
    n_neighbors : int
        Neighbours of each row. In mode "distance" the graph has one more, because the nearest neighbour of a row that
        the transformer was fitted to is the row itself.
    mode : {"distance", "connectivity"}
        Whether the graph holds distances, or ones.
    metric : {"euclidean", "sqeuclidean", "cosine"}
        As in scikit-learn, "euclidean" is not squared.
    n_bits : int, optional
        Bits of the codes, by default the number of features. More bits find more of the true neighbours.
    vectors : {"float32", "float16", "int8", "int4", "auto"}
        Type of the vectors that the index keeps. Distances are computed from them: estimates for "int8" and "int4".
    buckets : str, optional
        Buckets of the index, see `CBEIndex`. By default every code is scanned.
    search_options : dict, optional
        Further arguments of `CBEIndex.search`, for example `{"n_candidates": 2_000}`.
    random_state : int, RandomState or None
        A number is the seed of the encoder.
    n_jobs : int, optional
        Number of threads, -1 for one a core.

    Attributes
    ----------
    index_ : CBEIndex
    n_samples_fit_, n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((100, 300))
    >>> graph = CBENeighborsTransformer(n_neighbors=5).fit_transform(X)
    >>> graph.shape, graph.nnz
    ((100, 100), 600)
    """

    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        mode: str = "distance",
        metric: str = "euclidean",
        n_bits: int | None = None,
        vectors: str = "float32",
        buckets: str | None = None,
        search_options: dict[str, Any] | None = None,
        random_state: Any = 0,
        n_jobs: int | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.mode = mode
        self.metric = metric
        self.n_bits = n_bits
        self.vectors = vectors
        self.buckets = buckets
        self.search_options = search_options
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any = None) -> Self:
        """Build an index of the rows of `X`; `y` is ignored."""
        as_count(self.n_neighbors, "n_neighbors")
        as_choice(self.mode, "mode", _MODES)
        metric = _METRICS[as_choice(self.metric, "metric", tuple(_METRICS))]
        if self.vectors is None:
            raise ValueError("vectors must be the name of a type, because distances come from vectors, got None")
        rows = _checked(self, X, reset=True)
        index = CBEIndex(
            rows.shape[1],
            self.n_bits,
            metric=metric,
            vectors=self.vectors,
            buckets=self.buckets,
            seed=_seed_of(self.random_state),
        )
        index.fit(rows)
        index.add(rows, n_threads=effective_n_jobs(self.n_jobs))
        self.index_ = index
        self.n_samples_fit_ = rows.shape[0]
        return self

    def transform(self, X: Any) -> sparse.csr_matrix:
        """Return the neighbours of rows among those that the transformer was fitted to.

        Parameters
        ----------
        X : array_like or sparse of shape (n, n_features)

        Returns
        -------
        float64 CSR matrix of shape (n, n_samples_fit_)
            The entries of a row are in ascending order of distance.
        """
        check_is_fitted(self)
        rows = _checked(self, X, reset=False)
        k = as_count(self.n_neighbors, "n_neighbors") + (self.mode == "distance")
        if k > self.n_samples_fit_:
            raise ValueError(f"n_neighbors must be below n_samples_fit = {self.n_samples_fit_}, got {self.n_neighbors}")
        n_threads = effective_n_jobs(self.n_jobs)
        distances, ids = self.index_.search(rows, k, n_threads=n_threads, **(self.search_options or {}))
        is_found = ids >= 0
        offsets = np.concatenate([[0], np.cumsum(is_found.sum(axis=1))])
        values = np.ones(offsets[-1])
        if self.mode == "distance":
            # Rounding may leave a distance of -1e-16 between equal rows.
            values = np.maximum(distances[is_found], 0).astype(np.float64)
            values = np.sqrt(values) if self.metric == "euclidean" else values
        return sparse.csr_matrix((values, ids[is_found], offsets), shape=(rows.shape[0], self.n_samples_fit_))

    def fit_transform(self, X: Any, y: Any = None) -> sparse.csr_matrix:
        """Build an index of the rows of `X`, and return their neighbours, which include the rows themselves."""
        return self.fit(X).transform(X)

    @property
    def _n_features_out(self) -> int:
        """Number of columns that `transform` returns."""
        n_samples: int = self.n_samples_fit_
        return n_samples

    def __sklearn_tags__(self) -> Any:
        """Describe the estimator to scikit-learn."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = []
        return tags
