"""Measures how far from a query the cells are that hold the rows within a radius of it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._core.tuning import tuning
from ..._core.typing import Rows
from ..rangecalibration import SHARES, RangeCalibration, rising
from .celltrial import CellTrial


class _Pairs(NamedTuple):
    """Pairs of a query and a row, by ascending distance.

    Attributes
    ----------
    distances : float64 array
    queries : int64 array
    gaps : float64 array
        How much farther the cell of the row is than the nearest cell of the query.
    weights : float64 array
        How many pairs each of them stands for.
    """

    distances: NDArray[np.float64]
    queries: Rows
    gaps: NDArray[np.float64]
    weights: NDArray[np.float64]

    def first(self, n: int) -> _Pairs:
        """Return the nearest `n` pairs."""
        return _Pairs(self.distances[:n], self.queries[:n], self.gaps[:n], self.weights[:n])


def measure_ranges(trial: CellTrial, own: CellTrial) -> RangeCalibration | None:
    """Measure the gaps of a segment; None if it has one cell, keeps no vectors, under "ip", or if it has too few rows.

    The nearest rows of each query stand for themselves, and a sample of the others for all others, so that the pairs
    are those of any radius. Under "ip" the distance of a row does not bound that of its cell.

    Parameters
    ----------
    trial : CellTrial
        With any queries.
    own : CellTrial
        With queries that are rows of the segment, which may be the same: how far the cells of rows are from themselves.
    """
    limits = tuning()
    if trial.most_effort == 1 or trial.kept() is None or trial.sample.codec.metric.name == "ip":
        return None
    pairs, gaps = _pairs_of(trial, min(trial.n_queries, limits.most_range_queries))
    n_near = np.cumsum(pairs.weights) / len(gaps)
    radii, found = [0.0], [[_gap(_pairs_with_themselves(own), share) for share in SHARES]]
    wanted = limits.least_range_rows
    while wanted <= limits.most_range_share * trial.n_visible:
        stop = int(np.searchsorted(n_near, wanted)) + 1
        wanted *= 2
        if stop > len(pairs.distances):
            break
        radius = float(pairs.distances[stop - 1])
        some = pairs.first(int(np.searchsorted(pairs.distances, radius, side="right")))
        if radius > radii[-1] and len(np.unique(some.queries)) >= limits.least_queries_of_radius:
            radii.append(radius)
            found.append([_gap(some, share) for share in SHARES])
    table = rising(np.array(found))
    visits = np.array([[trial.share_of_rows(gaps, gap) for gap in row] for row in table])
    return RangeCalibration(tuple(radii), table, visits) if len(radii) > 1 else None


def _pairs_with_themselves(own: CellTrial) -> _Pairs:
    """Return pairs of rows with themselves."""
    rows = own.sample.rows
    assert rows is not None
    n = len(rows)
    return _Pairs(np.zeros(n), np.arange(n), own.gaps(n)[np.arange(n), own.cells_of(rows)], np.ones(n))


def _pairs_of(trial: CellTrial, n: int) -> tuple[_Pairs, NDArray[np.float64]]:
    """Return pairs of the first queries, at most `n`, and the gaps of all cells for each of them, (n, n_cells)."""
    kept, sample, limits = trial.kept(), trial.sample, tuning()
    assert kept is not None
    assert sample.vectors is not None
    near = trial.truth(limits.near_range_rows, n)
    n = len(near)
    gaps = trial.gaps(n)
    visible = trial.visible_rows()
    others = np.random.default_rng(len(visible)).permutation(visible)[: limits.other_range_rows]
    dense = kept.dense(sample.vectors[np.arange(n)])
    parts = []
    for i in range(n):
        own = near[i][near[i] >= 0]
        rows = np.concatenate([own, others if sample.rows is None else others[others != sample.rows[i]]])
        distances = kept.distances(rows, dense[i]).astype(np.float64)
        weights = np.full(len(rows), len(visible) / max(1, len(others)))
        weights[: len(own)] = 1
        is_counted = np.arange(len(rows)) < len(own)
        is_counted |= distances > distances[: len(own)].max(initial=-math.inf)
        parts.append((distances, np.full(len(rows), i), gaps[i, trial.cells_of(rows)], weights, is_counted))
    distances, queries, found, weights, is_counted = (np.concatenate(values) for values in zip(*parts, strict=True))
    order = np.argsort(distances, kind="stable")
    order = order[is_counted[order]]
    return _Pairs(distances[order], queries[order], found[order], weights[order]), gaps


def _gap(pairs: _Pairs, share: float) -> float:
    """Return the gap within which a share of the pairs are, sampling error deducted.

    The share of all pairs, and that of the pairs of a query on average: few queries may have most of the pairs.
    """
    counts = np.bincount(pairs.queries, pairs.weights)
    by_query = pairs.weights / counts[pairs.queries]
    order = np.argsort(pairs.gaps, kind="stable")
    first = _quantile(pairs.gaps[order], by_query[order], share)
    shares = np.bincount(pairs.queries, by_query * (pairs.gaps <= first), minlength=len(counts))[counts > 0]
    # A share of all that was measured is not certain either: one more query might have missed its rows.
    variance = max(float(shares.var()), share * (1 - share) / len(shares))
    surely = share + math.sqrt(variance / len(shares))
    if surely >= 1:
        return math.inf
    return max(_quantile(pairs.gaps[order], weights[order], surely) for weights in (by_query, pairs.weights))


def _quantile(values: NDArray[np.float64], weights: NDArray[np.float64], share: float) -> float:
    """Return the smallest of ascending values that, with all before it, has a share of the weights."""
    sums = np.cumsum(weights)
    return float(values[min(len(values) - 1, int(np.searchsorted(sums, share * sums[-1])))])
