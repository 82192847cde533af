"""Calibrations: which share of the nearest rows a search of a segment finds, by effort and depth.

Effort is the number of cells that are probed, or the beam of a walk. Depth is the number of candidates, the nearest by
estimate, whose exact distances are computed, as a multiple of the number of results. A table is measured on the rows of
the segment when its buckets are made (`measuring.py`), or on queries of the caller, and the planner inverts it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .._core.checks import as_count, as_real

N_NEAREST = (1, 10, 100, 1000)
"""Numbers of results that are measured."""

DEPTHS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)
"""Candidates for each result that are measured."""

# Shares are written to files as multiples of one in this many.
_UNITS = 10_000
# No table has more numbers of results, or more efforts.
_MOST_CLASSES, _MOST_EFFORTS = 8, 64
_MOST_QUERIES = 2**31 - 1
_LARGEST = float(np.finfo(np.float32).max)
# Tables that are kept.
_MOST_TABLES = 16


@dataclass(frozen=True)
class Setting:
    """How much of a segment a search takes, and what it finds.

    Attributes
    ----------
    effort : int or None
        None: everything.
    share : float
        Share of the nearest rows that is found, on average.
    is_enough : bool
        Whether that is what was asked for.
    """

    effort: int | None
    share: float
    is_enough: bool = True


@dataclass(frozen=True)
class Calibration:
    """The measured shares of a segment.

    Attributes
    ----------
    n_nearest : tuple of int
        Numbers of results, ascending.
    n_queries : tuple of int
        Queries that each of them was measured with.
    spreads : tuple of float
        Variance of the shares of single queries over s (1 - s), which it is if a query finds all rows or none.
    efforts : tuple of int
        Ascending.
    shares : float64 array of shape (n_nearest, efforts, depths)
    far : float
        Distance beyond which the nearest row of a query hardly ever is; infinity if that is not known, as of cells.
    reaches : tuple of float
        For each effort, the reach of queries that take it on average (see `cells_in_reach`), 0 where all take the same;
        empty if all do with any effort.
    widths : float64 array of shape (n_nearest, depths)
        The distance of the last candidate over that of the last result, both by estimate, 0 where it is not known.
    agreements : tuple of float
        For each number of results, the share of the true nearest rows that are nearest by the distances of results, if
        these come from kept vectors of 4 or 8 bits; empty if they are exact. Shares are of rows nearest by distances of
        results.
    """

    n_nearest: tuple[int, ...]
    n_queries: tuple[int, ...]
    spreads: tuple[float, ...]
    efforts: tuple[int, ...]
    shares: NDArray[np.float64]
    far: float = math.inf
    reaches: tuple[float, ...] = ()
    widths: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, len(DEPTHS))))
    agreements: tuple[float, ...] = ()
    _tables: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def table(self, k: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return shares for `k` results, (efforts, depths), and their standard errors, between measured numbers."""
        known = self._tables.get(k)
        if known is None:  # a plan looks at some dozen settings
            if len(self._tables) >= _MOST_TABLES:
                self._tables.clear()
            known = self._tables[k] = self._table_of(k)
        return known

    def _table_of(self, k: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Compute the table for `k` results."""
        at = float(np.interp(math.log(k), np.log(self.n_nearest), np.arange(len(self.n_nearest))))
        low, weight = int(at), at - int(at)
        high = min(low + 1, len(self.n_nearest) - 1)
        shares = (1 - weight) * self.shares[low] + weight * self.shares[high]
        spread = (1 - weight) * self.spreads[low] + weight * self.spreads[high]
        n = (1 - weight) * self.n_queries[low] + weight * self.n_queries[high]
        # A share of all that was measured is not certain either: one more query might have missed a row.
        doubtful = np.clip(shares, 0.5, 1 - 0.5 / (n + 1))
        errors = np.sqrt(max(spread, 1 / n) * doubtful * (1 - doubtful) / n)
        return shares, errors

    def least(self, k: int, depth: int, share: float, most: int) -> Setting:
        """Return the setting of least effort that finds `share` of the `k` nearest rows, sampling error deducted.

        Parameters
        ----------
        k : int
        depth : int
            Place in `DEPTHS`.
        share : float
        most : int
            Effort from which on everything is taken.
        """
        shares, errors = self.table(k)
        lower = shares[:, depth] - errors[:, depth]
        more = max(1.0, k / self.n_nearest[-1])  # effort grows with the results beyond what was measured
        reached = np.flatnonzero(lower >= share)
        if not len(reached):
            return Setting(None, float(shares[-1, depth]), is_enough=False)
        at = int(reached[0])
        effort: float = self.efforts[at]
        if effort >= most:  # where everything is taken, shares leap
            return Setting(None, float(shares[at, depth]))
        if at > 0 and lower[at] > lower[at - 1]:
            # Shares are concave over the logarithm of effort where they are large, so that the line is below them.
            part = (share - lower[at - 1]) / (lower[at] - lower[at - 1])
            effort = self.efforts[at - 1] * (self.efforts[at] / self.efforts[at - 1]) ** part
        effort = math.ceil(effort * more - 1e-9)
        found = self.share(k, effort / more, depth, most)
        return Setting(None if effort >= most else int(effort), found)

    def part_of_all(self, k: int, depth: int, share: float) -> float:
        """Return what to ask `least` for if a search should find this share of what a search of all rows finds.

        The sampling errors of both are nearly the same, so that none is to be deducted from their ratio.
        """
        shares, errors = self.table(k)
        return float(share * shares[-1, depth] - errors[-1, depth])

    def everything(self, k: int, depth: int, share: float) -> Setting:
        """Return the setting that searches all rows, at a place in `DEPTHS`."""
        shares, errors = self.table(k)
        found = float(shares[-1, depth])
        return Setting(None, found, is_enough=found - float(errors[-1, depth]) >= share)

    def share(self, k: int, effort: float, depth: int, most: int) -> float:
        """Return the share that is found with this effort, at a place in `DEPTHS`; `most` takes everything."""
        shares = self.table(k)[0][:, depth]
        n = len(shares) - (len(shares) > 1 and effort < most <= self.efforts[-1])  # the last is a scan
        return float(np.interp(math.log(max(effort, 1e-9)), np.log(self.efforts[:n]), shares[:n]))

    def reach(self, effort: int) -> float:
        """Return the reach of queries that take an effort on average, 0 beyond the efforts that were measured."""
        if not self.reaches or effort > self.efforts[-1]:
            return 0.0
        # The last effort may take all cells, which a reach of 0 stands for.
        n = len(self.efforts) - (self.reaches[-1] == 0)
        if effort == self.efforts[-1] or not n:
            return self.reaches[-1]
        return float(np.interp(math.log(effort), np.log(self.efforts[:n]), self.reaches[:n]))

    def width(self, k: int, depth: float) -> float:
        """Return the distance of the last of `depth` * `k` candidates over that of result k, 0 if it is not known."""
        if not len(self.widths):
            return 0.0
        at = float(np.interp(math.log(k), np.log(self.n_nearest), np.arange(len(self.n_nearest))))
        low, high = self.widths[math.floor(at)], self.widths[math.ceil(at)]
        widths = np.where((low > 0) & (high > 0), low + (at - math.floor(at)) * (high - low), 0)
        place = int(np.searchsorted(DEPTHS, depth - 1e-9))
        if place >= len(DEPTHS) or widths[place] == 0:
            return 0.0
        return float(np.interp(depth, DEPTHS, widths))

    def agreement(self, k: int) -> float:
        """Return the share of the true `k` nearest rows that are nearest by the distances of results."""
        return float(np.interp(math.log(k), np.log(self.n_nearest), self.agreements)) if self.agreements else 1.0

    @staticmethod
    def depth_of(k: int, n_candidates: float) -> int:
        """Return the largest place in `DEPTHS` that this many candidates reach."""
        return max(0, int(np.searchsorted(DEPTHS, n_candidates / k + 1e-9, side="right")) - 1)

    # --- index file ---

    def describe(self) -> dict[str, Any]:
        """Describe the table in values that JSON can hold."""
        return {
            "n_nearest": list(self.n_nearest),
            "n_queries": list(self.n_queries),
            "spreads": [round(_UNITS * spread) for spread in self.spreads],
            "efforts": list(self.efforts),
            "far": self.far if math.isfinite(self.far) else None,
            **({"reaches": list(self.reaches)} if self.reaches else {}),
            **({"widths": self.widths.tolist()} if len(self.widths) else {}),
            **({"agreements": list(self.agreements)} if self.agreements else {}),
            "shares": np.round(_UNITS * self.shares).astype(np.int64).tolist(),
        }

    @classmethod
    def checked(cls, described: Any) -> Self:
        """Rebuild a table from a file. Raises ValueError, KeyError or TypeError if it cannot be."""
        if not isinstance(described, dict):
            raise ValueError(f"a calibration must be an object, got {type(described).__name__}")
        n_nearest = _counts(described, "n_nearest", _MOST_CLASSES, 2**31 - 1)
        n_queries = _counts(described, "n_queries", _MOST_CLASSES, _MOST_QUERIES)
        spreads = _counts(described, "spreads", _MOST_CLASSES, _UNITS, least=0)
        efforts = _counts(described, "efforts", _MOST_EFFORTS, 2**31 - 1)
        for name, values in (("n_nearest", n_nearest), ("efforts", efforts)):
            if any(a >= b for a, b in pairwise(values)):
                raise ValueError(f"{name} of a calibration must ascend, got {list(values)}")
        if not len(n_nearest) == len(n_queries) == len(spreads):
            raise ValueError("a calibration must have as many n_queries and spreads as n_nearest")
        shape = len(n_nearest), len(efforts), len(DEPTHS)
        shares = np.empty(shape)
        for i, rows in enumerate(_items(described["shares"], "shares", shape[0])):
            for j, row in enumerate(_items(rows, "shares", shape[1])):
                found = _items(row, "shares", shape[2])
                shares[i, j] = [as_count(value, "a share", least=0, most=_UNITS) for value in found]
        far = math.inf if described["far"] is None else as_real(described["far"], "far")
        if described["far"] is not None and not abs(far) <= _LARGEST:
            raise ValueError(f"far must be a float32, or null, got {far:g}")
        listed = _items(described["reaches"], "reaches", len(efforts)) if "reaches" in described else []
        reaches = tuple(as_real(value, "a reach") for value in listed)
        if any(not 0 <= reach <= _LARGEST for reach in reaches):
            raise ValueError("reaches of a calibration must be float32 from 0 on")
        agreed = _items(described["agreements"], "agreements", len(n_nearest)) if "agreements" in described else []
        agreements = tuple(as_real(value, "an agreement") for value in agreed)
        if any(not 0 <= share <= 1 for share in agreements):
            raise ValueError("agreements of a calibration must be from 0 to 1")
        rising = np.maximum.accumulate(np.maximum.accumulate(shares, axis=1), axis=2)
        spread = tuple(s / _UNITS for s in spreads)
        widths = _widths(described, len(n_nearest))
        return cls(n_nearest, n_queries, spread, efforts, rising / _UNITS, far, reaches, widths, agreements)


def k_there(k: int, n_visible: int, n_rows: int) -> int:
    """Return to which rank among all rows the `k` nearest of some of them reach, on average."""
    rank = k if n_visible == n_rows else -(-(k + 1) * n_rows // max(1, n_visible)) - 1
    return max(1, min(n_rows, rank))


def describe_calibration(calibration: Calibration | None) -> dict[str, Any]:
    """Return what the description of buckets says of their calibration."""
    return {} if calibration is None else {"calibration": calibration.describe()}


def load_calibration(described: dict[str, Any]) -> Calibration | None:
    """Return the calibration that buckets of a file have, if any."""
    return Calibration.checked(described["calibration"]) if "calibration" in described else None


def _widths(described: dict[str, Any], n: int) -> NDArray[np.float64]:
    """Return the widths of a file, if there are any."""
    if "widths" not in described:
        return np.zeros((0, len(DEPTHS)))
    rows = _items(described["widths"], "widths", n)
    values = [[as_real(value, "a width") for value in _items(row, "widths", len(DEPTHS))] for row in rows]
    widths = np.array(values, dtype=np.float64)
    if not ((widths >= 0) & (widths <= _LARGEST)).all():
        raise ValueError("widths of a calibration must be float32 from 0 on")
    return widths


def _items(value: Any, name: str, n: int) -> list[Any]:
    """Return a list of `n` values of a file."""
    if not isinstance(value, list) or len(value) != n:
        raise ValueError(f"{name} of a calibration must be lists of {n}")
    return value


def _counts(described: dict[str, Any], name: str, most_items: int, most: int, least: int = 1) -> tuple[int, ...]:
    """Return a list of numbers of a file."""
    values = described[name]
    if not isinstance(values, list) or not 1 <= len(values) <= most_items:
        raise ValueError(f"{name} of a calibration must be a list of 1 to {most_items} numbers")
    return tuple(as_count(value, name, least=least, most=most) for value in values)
