"""Calibrations of range search: which cells a search must visit to find a share of the rows within a radius.

A row x within the radius r of a query z is in a cell c that is, for x, about the nearest, and another cell, c1, is the
nearest one for the query. If x is no nearer to c1 than to c, |z - c|^2 - |z - c1|^2 <= 2 <z - x, c1 - c>, which is at
most 2 r |c1 - c| and usually much less, because directions in many dimensions are nearly orthogonal. So the cells to
visit are those whose squared distance exceeds that of the nearest cell by no more than a gap, which grows with r. The
gap that finds a share of the rows is measured. Unlike a number of probes, a gap leaves queries that have no rows within
the radius with few cells, and follows queries that are unlike stored rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .._core.checks import as_real

SHARES = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
"""Shares of the rows within a radius that are measured. Beyond the last, all rows are scanned."""

_MOST_RADII = 32


@dataclass(frozen=True)
class RangeCalibration:
    """The measured gaps of a segment.

    Attributes
    ----------
    radii : tuple of float
        Ascending from 0. They are distances under "l2" and "cosine", which grow with the square of |z - x|.
    gaps : float64 array of shape (radii, shares)
        Gaps that find these shares of the rows within these radii; infinity: all cells.
    visits : float64 array of the same shape
        Shares of the rows of the segment in the cells that these gaps visit.
    """

    radii: tuple[float, ...]
    gaps: NDArray[np.float64]
    visits: NDArray[np.float64]

    def gap(self, radius: float, share: float) -> float:
        """Return the gap that finds a share of the rows within `radius`; infinity for all cells."""
        return self._at(self.gaps, radius, share, math.inf)

    def visited(self, radius: float, share: float) -> float:
        """Return the share of the rows of the segment that a search visits."""
        return self._at(self.visits, radius, share, 1.0)

    def _at(self, table: NDArray[np.float64], radius: float, share: float, beyond: float) -> float:
        """Return a value between those that were measured: over the root of the radius, and the logarithm of misses."""
        if share > SHARES[-1] or radius > self.radii[-1] or math.isnan(radius):
            return beyond
        values = _between(-np.log1p(-np.array(SHARES)), table.T, -math.log1p(-share))
        return float(_between(np.sqrt(self.radii), values, math.sqrt(max(0.0, radius))))

    # --- index file ---

    def describe(self) -> dict[str, Any]:
        """Describe the table in values that JSON can hold."""
        gaps = [[gap if math.isfinite(gap) else None for gap in row] for row in self.gaps.tolist()]
        return {"radii": list(self.radii), "gaps": gaps, "visits": np.round(self.visits, 4).tolist()}

    @classmethod
    def checked(cls, described: Any) -> Self:
        """Rebuild a table from a file. Raises ValueError, KeyError or TypeError if it cannot be."""
        if not isinstance(described, dict):
            raise ValueError(f"a calibration of ranges must be an object, got {type(described).__name__}")
        radii = described["radii"]
        if not isinstance(radii, list) or not 1 <= len(radii) <= _MOST_RADII:
            raise ValueError(f"radii of a calibration must be a list of 1 to {_MOST_RADII} numbers")
        radii = tuple(as_real(radius, "a radius of a calibration") for radius in radii)
        if radii[0] != 0 or radii[-1] == math.inf or any(a >= b for a, b in pairwise(radii)):
            raise ValueError(f"radii of a calibration must ascend from 0, got {list(radii)}")
        gaps, visits = (_table(described[name], name, len(radii)) for name in ("gaps", "visits"))
        if not (visits <= 1).all():
            raise ValueError("visits of a calibration must be shares")
        return cls(radii, rising(gaps), visits)


def describe_ranges(ranges: RangeCalibration | None) -> dict[str, Any]:
    """Return what the description of buckets says of range search."""
    return {} if ranges is None else {"ranges": ranges.describe()}


def load_ranges(described: dict[str, Any]) -> RangeCalibration | None:
    """Return the calibration of range search that buckets of a file have, if any."""
    return RangeCalibration.checked(described["ranges"]) if "ranges" in described else None


def rising(gaps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return gaps that shrink neither with the radius nor with the share."""
    rising: NDArray[np.float64] = np.maximum.accumulate(np.maximum.accumulate(gaps, axis=0), axis=1)
    return rising


def _between(places: NDArray[np.float64], values: NDArray[np.float64], place: float) -> Any:
    """Return a value on the line between two neighbours; before and behind all places, that of the nearest one."""
    after = min(int(np.searchsorted(places, place)), len(places) - 1)
    if after == 0 or place >= places[after]:
        return values[after]
    part = (place - places[after - 1]) / (places[after] - places[after - 1])
    # An infinite neighbour makes the value infinite, and does not meet a factor of 0.
    return values[after - 1] * (1 - part) + values[after] * part


def _table(rows: Any, name: str, n_rows: int) -> NDArray[np.float64]:
    """Return a table of a file, with infinity where it has null."""
    if not isinstance(rows, list) or len(rows) != n_rows or not all(isinstance(row, list) for row in rows):
        raise ValueError(f"{name} of a calibration must be {n_rows} lists")
    if any(len(row) != len(SHARES) for row in rows):
        raise ValueError(f"{name} of a calibration must be lists of {len(SHARES)}")
    values = [[math.inf if value is None else as_real(value, name) for value in row] for row in rows]
    table = np.array(values)
    if not (table >= 0).all():
        raise ValueError(f"{name} of a calibration must not be negative")
    return table
