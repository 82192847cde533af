"""What searches of cells and graphs for sampled queries have in common: who the queries are, and their true nearest."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import kernels
from ..._core.threads import n_cores
from ..._core.tuning import tuning
from ..._core.typing import Floats, Mask, Rows
from ...data.sparserows import VectorRows
from ...distances.codec import Codec
from ...distances.kept import Candidates, KeptVectors, kept_vectors
from ...distances.metrics import squares
from ...store.segment import NOT_HIDDEN, Segment
from .. import exact
from ..measuring import Found
from ..topk import TopK


class Sample(NamedTuple):
    """Queries that a segment is calibrated with.

    Attributes
    ----------
    codec : Codec
    vectors : VectorRows, or None
        The queries as a caller would give them; None if the segment keeps no vectors.
    rows : int64 array of shape (n,), or None
        Rows of the segment that are the queries: they are not found. None for queries from outside.
    truth : int64 array of shape (n, any), or None
        The true nearest rows of queries in order, -1 for rows of other segments. None: the segment finds them itself.
    """

    codec: Codec
    vectors: VectorRows | None
    rows: Rows | None
    truth: Rows | None = None

    @classmethod
    def of_rows(cls, codec: Codec, segment: Segment, rows: Rows) -> Sample:
        """Take rows of a segment for queries."""
        kept = kept_of(codec, segment)
        return cls(codec, None if kept is None else kept.read(rows), rows)

    @property
    def n_queries(self) -> int:
        """Number of queries."""
        if self.rows is not None:
            return len(self.rows)
        return 0 if self.vectors is None else len(self.vectors)


class BucketTrial(ABC):
    """Searches of the buckets of a segment for a sample of queries, in all of its visible rows.

    Parameters
    ----------
    segment : Segment
    sample : Sample
    """

    most_effort: int
    deepest: int = 0
    _near: TopK | None = None
    _by_products: Rows | None = None

    def __init__(self, segment: Segment, sample: Sample) -> None:
        self._segment, self.sample = segment, sample
        self._hidden: Mask = segment.removed if segment.removed.size else NOT_HIDDEN
        self.n_queries = sample.n_queries

    @property
    def is_graded(self) -> bool:
        """Whether distances tell how much a query takes."""
        return False

    @abstractmethod
    def _find(self, effort: int, n: int, n_queries: int) -> Found:
        """Return the nearest `n` rows by estimate, which may be queries themselves."""

    def candidates(self, effort: int, n: int, n_queries: int) -> Found:
        """Return the nearest `n` rows by estimate that the first queries find with an effort."""
        own = self.sample.rows
        if own is None:
            return self._find(effort, n, n_queries)
        found = self._find(effort, n + 1, n_queries)
        is_own = found.rows == own[:n_queries, np.newaxis]
        order = np.argsort(is_own, axis=1, kind="stable")[:, :n]
        is_last = np.take_along_axis(is_own, order, axis=1)
        rows = np.where(is_last, -1, np.take_along_axis(found.rows, order, axis=1))
        if found.estimates is None:
            return Found(rows)
        return Found(rows, np.where(is_last, np.float32(np.inf), np.take_along_axis(found.estimates, order, axis=1)))

    def reach(self, effort: int) -> float:
        """Return the reach of queries that take an effort on average, 0 if all take the same."""
        return 0.0

    def truth(self, k: int, n_queries: int) -> Rows:
        """Return the true `k` nearest rows of the first queries, -1 for those that are not in the segment.

        Estimates of all rows choose the rows whose vectors are read. A few queries tell how many it takes: the deeper
        half must hold hardly any of the nearest. Where it takes many, products of all vectors choose them instead.
        There may be fewer queries than were asked for.
        """
        if self.sample.truth is not None:
            return self.sample.truth[:n_queries, :k]
        if self._near is not None and k <= self._near.ids.shape[1]:
            return self._near.ids[:n_queries, :k]
        kept, limits = kept_of(self.sample.codec, self._segment), tuning()
        if kept is None:
            return self.candidates(self.most_effort, k, n_queries).rows
        n, n_first = max(limits.true_rows_of_k * k, limits.least_true_rows), min(n_queries, limits.pilot_queries)
        is_dense, n_rows = isinstance(self.sample.vectors, np.ndarray), self._segment.n_rows
        rows, deepest = self._best_known(k, n_queries), n_rows
        while rows is None:
            if is_dense and n * limits.products_of_read > n_rows:
                rows = self._best_by_products(kept, k, n_queries)
            elif self._reaches(kept, n, k, n_first):
                rows, deepest = self._best(n, max(n_first, min(n_queries, limits.calibration_reads // n))), n // 2
            else:
                n *= 2
        if k <= limits.most_sampled_results:
            self.deepest = max(self.deepest, deepest)
        near = self._nearest(kept, rows, k)
        if n_queries == self.n_queries:
            self._near = near
        return near.ids

    def _reaches(self, kept: KeptVectors, n: int, k: int, n_queries: int) -> bool:
        """Return whether the best `n` rows by estimate hold nearly all of the `k` nearest, or are all that is tried."""
        n_rows, limits = self._segment.n_rows, tuning()
        if n >= min(n_rows, limits.most_true_rows):
            return True
        rows = self._best(n, n_queries)
        return _share_among(self._nearest(kept, rows, k).ids, rows[:, n // 2 :], n_rows) <= limits.deep_share

    def _best(self, n: int, n_queries: int) -> Rows:
        """Return the best `n` of all rows by estimate."""
        return self.candidates(self.most_effort, min(n, self._segment.n_rows), n_queries).rows

    def _best_known(self, k: int, n_queries: int) -> Rows | None:
        """Return twice the best `k` of all rows by products of vectors, if they are known for the first queries."""
        best = self._by_products
        if best is None or len(best) < n_queries or best.shape[1] < min(2 * k, self._segment.n_rows):
            return None
        return best[:n_queries, : 2 * k]

    def _best_by_products(self, kept: KeptVectors, k: int, n_queries: int) -> Rows:
        """Return twice the best `k` of all rows by products of vectors, the best first, -1 for missing ones.

        These are known for all queries from then on, unless that takes too many products.
        """
        assert self.sample.vectors is not None
        metric, n_rows, limits = self.sample.codec.metric, self._segment.n_rows, tuning()
        n_most = min(limits.calibration_products // (n_rows * kept.dim), limits.calibration_pairs // n_rows)
        n_asked, n_first = n_queries, min(n_queries, limits.pilot_queries)
        n_queries = self.n_queries if n_most >= self.n_queries else max(n_first, min(n_queries, n_most))
        queries: Any = kept.points_of(self.sample.vectors[:n_queries])
        apart = np.empty((n_queries, n_rows), dtype=np.float32)
        step = max(1, tuning().decode_step_values // kept.dim)
        for start in range(0, n_rows, step):
            block: Any = kept.points(np.arange(start, min(start + step, n_rows)))
            squared = 0 if metric.name == "ip" else squares(block).astype(np.float32)
            apart[:, start : start + step] = squared - (1 if metric.name == "ip" else 2) * (queries @ block.T)
        if self._hidden.size:
            apart[:, self._hidden] = np.inf
        if self.sample.rows is not None:
            apart[np.arange(n_queries), self.sample.rows[:n_queries]] = np.inf
        n = min(2 * k, n_rows)
        best = np.argpartition(apart, n - 1, axis=1)[:, :n]
        apart = np.take_along_axis(apart, best, axis=1)
        order = np.argsort(apart, axis=1)
        is_there = np.isfinite(np.take_along_axis(apart, order, axis=1))
        self._by_products = np.where(is_there, np.take_along_axis(best, order, axis=1), -1)
        return self._by_products[:n_asked]

    def _nearest(self, kept: KeptVectors, rows: Rows, k: int) -> TopK:
        """Return the `k` nearest of some rows by exact distance."""
        assert self.sample.vectors is not None
        rows = np.take_along_axis(rows, np.argsort(rows < 0, axis=1, kind="stable"), axis=1)
        candidates = Candidates(
            np.maximum(rows, 0), np.count_nonzero(rows >= 0, axis=1), np.full(rows.shape, -np.inf, dtype=np.float32)
        )
        return exact.nearest(kept, self.sample.vectors[: len(rows)], candidates, k, n_cores())[0]

    # --- distances with errors ---

    def agreements(self, n_nearest: Sequence[int]) -> list[float]:
        """Return for numbers of results which share of the true nearest rows is nearest by the distances of results.

        It is 1 unless these come from levels. Then the true distances are drawn: levels err about them as they do about
        levels. Larger numbers than half of the rows that are known have the share of the last smaller one.
        """
        known = self._with_errors(min(self.n_queries, tuning().graded_queries))
        if known is None:
            return [1.0] * len(n_nearest)
        distances, errors = known
        is_there = np.isfinite(distances)
        noise = np.random.default_rng(self._segment.n_rows).standard_normal(distances.shape)
        drawn = np.where(is_there, distances + np.where(is_there, errors, 0) * noise, np.inf)
        order, shares = np.argsort(drawn, axis=1, kind="stable"), [1.0]
        for k in n_nearest:
            n_wanted = np.count_nonzero(is_there[:, :k])
            is_known = 2 * k <= distances.shape[1] and n_wanted > 0
            n_agreed = np.count_nonzero((order[:, :k] < k) & is_there[:, :k])
            shares.append(n_agreed / n_wanted if is_known else shares[-1])
        return shares[1:]

    def _with_errors(self, n_queries: int) -> tuple[Floats, Floats] | None:
        """Return the distances of the first queries to their nearest rows, ascending, and their standard errors.

        Returns None if the distances of results are exact, or if estimates are the results.
        """
        kept, codec = kept_of(self.sample.codec, self._segment), self.sample.codec.rows_of_levels
        if kept is None or codec is None or self.sample.vectors is None:
            return None
        rows = self.truth(tuning().most_sampled_results, n_queries)
        near = self._nearest(kept, rows, rows.shape[1])
        prepared = self.sample.codec.metric.prepare(self.sample.vectors[: len(rows)])
        column = self._segment.columns["vectors"][np.maximum(near.ids, 0).ravel()]
        distances = np.where(near.ids >= 0, near.distances, 0)
        return near.distances, codec.errors(codec.project_queries(prepared, n_cores()), distances, column)

    def far(self) -> float:
        """Return a distance beyond which the nearest row of a query hardly ever is; infinity if it is not known."""
        return math.inf


def _share_among(near: Rows, rows: Rows, n_rows: int) -> float:
    """Return the share of the nearest rows of queries that are among some of their candidates."""
    found: Rows = np.empty((len(near), 1, 1), dtype=np.int64)
    n_near, n_all = np.array([near.shape[1]]), np.full((len(near), 1, 1), rows.shape[1])
    kernels.counting.count_found(np.ascontiguousarray(rows), near, n_near, n_all, n_rows, found)
    return float(found.sum() / max(1, near.size))


def kept_of(codec: Codec, segment: Segment) -> KeptVectors | None:
    """Return the kept vectors of a segment, whose rows are known by their places; None if there are none."""
    if "vectors" not in segment.columns:
        return None
    places, dim = np.arange(segment.n_rows), codec.encoder.dim
    return kept_vectors(segment.columns["vectors"], places, codec.metric, dim, codec.rows_of_levels)
