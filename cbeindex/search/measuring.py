"""Measures calibrations: searches for sampled queries with growing effort, and counts what they find."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from .._core.tuning import tuning
from .._core.typing import Floats, Rows
from .calibration import DEPTHS, N_NEAREST, Calibration

# Efforts grow by this factor.
_GROWTH = 1.5
# Shares between which the variance among queries is measured.
_LEAST_SHARE, _LARGEST_SHARE = 0.6, 0.995


class Found(NamedTuple):
    """The nearest rows of queries by estimate.

    Attributes
    ----------
    rows : int64 array of shape (n_queries, n)
        In order of the estimates, -1 behind them.
    estimates : float32 array of shape (n_queries, n), or None
        Their distances, infinity behind them. None if all queries read the vectors of equally many rows.
    """

    rows: Rows
    estimates: Floats | None = None


class Trial(Protocol):
    """Searches of a segment for a sample of queries.

    Attributes
    ----------
    n_queries : int
    most_effort : int
        Effort that takes everything.
    deepest : int
        Candidates among which nearly all nearest rows are, once they are known.
    """

    n_queries: int
    most_effort: int
    deepest: int

    @property
    def is_graded(self) -> bool:
        """Whether distances tell how much a query takes."""

    def truth(self, k: int, n_queries: int) -> Rows:
        """Return the true `k` nearest rows of the first queries, -1 for those that are not in the segment."""

    def far(self) -> float:
        """Return a distance beyond which the nearest row of a query hardly ever is; infinity if it is not known."""

    def reach(self, effort: int) -> float:
        """Return the reach of queries that take an effort on average, 0 if all take the same."""

    def agreements(self, n_nearest: Sequence[int]) -> list[float]:
        """Return for numbers of results which share of the true nearest rows is nearest by the distances of results."""

    def candidates(self, effort: int, n: int, n_queries: int) -> Found:
        """Return the nearest `n` rows by estimate that the first queries find with an effort."""


def sample_size(n_rows: int, share: float = 1.0) -> int:
    """Return how many rows of a segment are sampled: a bounded part of the time that its buckets take.

    `share` is that of the rows of the index that the segment has: what it finds counts for as much.
    """
    limits = tuning()
    most = min(limits.calibration_pairs // max(1, n_rows), round(share * limits.most_calibration_queries))
    least = max(limits.fewest_calibration_queries, n_rows // limits.rows_of_calibration_query)
    return min(n_rows, max(min(least, limits.least_calibration_queries), most))


def sample_rows(n_rows: int, share: float = 1.0) -> Rows:
    """Choose the rows of a segment that stand for queries, the same ones each time, in random order."""
    rows: Rows = np.random.default_rng(n_rows).permutation(n_rows)[: sample_size(n_rows, share)]
    return rows


def measure(trial: Trial, n_rows: int, n_nearest: Sequence[int] = N_NEAREST) -> Calibration | None:
    """Measure the calibration of a segment of `n_rows` rows; None if there are too few rows."""
    classes = tuple(k for k in n_nearest if 4 * k <= n_rows)
    if not classes or not trial.n_queries:
        return None
    limits = tuning()
    # Large numbers of results have small variances, and take long.
    few = tuple(k for k in classes if k <= limits.most_sampled_results)
    many = tuple(k for k in classes if k > limits.most_sampled_results)
    n_many = min(trial.n_queries, max(limits.pilot_queries, trial.n_queries // limits.fewer_queries))
    # Larger numbers first: where these take products of all rows, smaller ones are known by the same products.
    groups = [_Group.of(trial, n_rows, many, n_many)] if many else []
    groups = ([_Group.of(trial, n_rows, few, trial.n_queries)] if few else []) + groups
    efforts, effort = [], 1
    while True:
        efforts.append(effort)
        is_enough = [group.has_enough or group.try_effort(trial, effort) for group in groups]
        if all(is_enough) or effort >= trial.most_effort:
            break
        effort = min(trial.most_effort, max(effort + 1, math.ceil(_GROWTH * effort)))
    measured = np.concatenate([group.means(len(efforts)) for group in groups])
    rising = np.maximum.accumulate(np.maximum.accumulate(measured, axis=1), axis=2)
    sizes = tuple(group.n_queries for group in groups for _ in group.classes)
    spreads = tuple(spread for group in groups for spread in group.spreads())
    reaches = tuple(trial.reach(effort) for effort in efforts)
    widths = np.concatenate([group.widths for group in groups])
    agreements = trial.agreements(classes)
    return Calibration(
        classes, sizes, spreads, tuple(efforts), rising, trial.far(), reaches if any(reaches) else (),
        widths if widths.any() else widths[:0], tuple(agreements) if min(agreements) < 1 else (),
    )  # fmt: skip


class _Group:
    """Numbers of results that are measured with the same queries."""

    def __init__(self, trial: Trial, classes: tuple[int, ...], truth: Rows, n_rows: int) -> None:
        self.classes, self.n_queries = classes, len(truth)
        self._truth, self._n_rows = truth, n_rows
        self._depths = np.array([[math.ceil(depth * k - 1e-9) for depth in DEPTHS] for k in classes])
        wanted = np.array([np.count_nonzero(truth[:, :k] >= 0) for k in classes]) / max(1, len(truth))
        self._n_wanted = np.maximum(wanted, 1e-9)[:, np.newaxis]
        self._means: list[NDArray[np.float64]] = []
        self._variances: list[NDArray[np.float64]] = []
        self.has_enough = False
        self.widths = self._measured_widths(trial)

    @classmethod
    def of(cls, trial: Trial, n_rows: int, classes: tuple[int, ...], n_queries: int) -> _Group:
        """Find the nearest rows of the first queries."""
        return cls(trial, classes, np.ascontiguousarray(trial.truth(classes[-1], n_queries)), n_rows)

    def try_effort(self, trial: Trial, effort: int) -> bool:
        """Search with an effort; return whether more effort need not be measured."""
        limits, k = tuning(), self.classes[-1]
        candidates = trial.candidates(effort, self._n_candidates(trial), self.n_queries)
        rows, depths = np.ascontiguousarray(candidates.rows), self._depths_of(candidates)
        found: Rows = np.empty(depths.shape, dtype=np.int64)
        kernels.counting.count_found(rows, self._truth, np.array(self.classes), depths, self._n_rows, found)
        # Queries whose nearest rows are in other segments count for less.
        shares = found / self._n_wanted
        self._means.append(shares.mean(axis=0))
        self._variances.append(shares.var(axis=0))
        enough = limits.calibrated_share if k <= limits.most_sampled_results else limits.calibrated_share_of_many
        self.has_enough = bool(self._means[-1][:, -1].min() >= enough)
        return self.has_enough

    def _n_candidates(self, trial: Trial) -> int:
        """Return how many candidates are found at most."""
        limits = tuning()
        deep = min(max(limits.most_calibrated_depth, trial.deepest), 2 * limits.most_calibrated_depth)
        return max(limits.calibrated_depth_of_k * self.classes[-1], min(int(self._depths.max()), deep))

    def _measured_widths(self, trial: Trial) -> NDArray[np.float64]:
        """Return the estimates of the last candidates over those of the last results, 0 where they are not known."""
        widths = np.zeros(self._depths.shape)
        n_queries = min(self.n_queries, tuning().graded_queries)
        if not trial.is_graded:
            return widths
        estimates = trial.candidates(trial.most_effort, self._n_candidates(trial), n_queries).estimates
        for i, k in enumerate(self.classes):
            if estimates is None or estimates.shape[1] < k:
                break
            known = estimates[(estimates[:, k - 1] > 0) & np.isfinite(estimates[:, k - 1])]
            for j in np.flatnonzero(self._depths[i] <= estimates.shape[1]) if len(known) else ():
                width = np.median(known[:, self._depths[i, j] - 1] / known[:, k - 1])
                widths[i, j] = width if np.isfinite(width) else 0.0
        return np.maximum.accumulate(widths, axis=1) * (widths > 0)

    def _depths_of(self, candidates: Found) -> Rows:
        """Return how many candidates of each query are read, (n_queries, classes, depths)."""
        least = np.broadcast_to(self._depths, (self.n_queries, *self._depths.shape))
        if candidates.estimates is None or not self.widths.any():
            return np.ascontiguousarray(least)
        last = candidates.estimates[:, np.minimum(self.classes, candidates.estimates.shape[1]) - 1]
        is_known = self.widths > 0
        limits = np.where(is_known, np.where(is_known, self.widths, 1) * last[:, :, np.newaxis], -np.inf)
        pairs = zip(candidates.estimates, limits, strict=True)
        within = np.array([np.searchsorted(row, limit, side="right") for row, limit in pairs])
        depths: Rows = np.clip(within, least, tuning().most_candidates_times * least)
        return depths

    def means(self, n_efforts: int) -> NDArray[np.float64]:
        """Return the shares that were found, (classes, efforts, depths); more effort finds no less."""
        means = self._means + [self._means[-1]] * (n_efforts - len(self._means))
        return np.array(means).swapaxes(0, 1)

    def spreads(self) -> list[float]:
        """Return the variance of the shares of single queries over s (1 - s), where shares are large but not all."""
        means, variances = self.means(0), np.array(self._variances).swapaxes(0, 1)
        spreads = []
        for mean, variance in zip(means, variances, strict=True):
            is_used = (mean > _LEAST_SHARE) & (mean < _LARGEST_SHARE)
            ratios = variance[is_used] / (mean * (1 - mean))[is_used]
            spreads.append(float(min(1.0, ratios.mean())) if len(ratios) else 1.0)
        return spreads
