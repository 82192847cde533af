"""Settings of a search that is asked for a recall: efforts of segments and depth, the cheapest that deliver it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from .._core.tuning import tuning
from .calibration import DEPTHS, Calibration, Setting, k_there
from .plan import Selection


class Settings(NamedTuple):
    """What a search takes.

    Attributes
    ----------
    selections : tuple of Selection
        With their efforts.
    n_candidates : int
        Candidates of each segment whose exact distances are computed.
    share : float
        Share of the nearest rows that is found, on average.
    microseconds : float
        Expected time of a query on one thread.
    far : float
        Queries whose nearest row is farther are unlike stored rows.
    is_enough : bool
        Whether that is the share that was asked for.
    """

    selections: tuple[Selection, ...]
    n_candidates: int
    share: float
    microseconds: float
    far: float
    is_enough: bool


def cheapest(selections: Sequence[Selection], k: int, share: float, vector_bytes: int) -> Settings:
    """Choose the cheapest settings that find `share` of the `k` nearest rows, or those that find most of them.

    `vector_bytes` are the bytes of a kept vector. Where they are 0, estimates are the result, and the share is one of
    what estimates can find.
    """
    parts = [_Part.of(selection, k) for selection in selections]
    if not vector_bytes:
        return _at_depth(parts, k, share, 0, vector_bytes)
    tried = [_at_depth(parts, k, share, depth, vector_bytes) for depth in range(len(DEPTHS))]
    enough = [settings for settings in tried if settings.is_enough]
    if enough:
        return min(enough, key=lambda settings: settings.microseconds)
    return max(tried, key=lambda settings: settings.share)


def expected_share(selections: Sequence[Selection], k: int, n_candidates: int | None) -> float | None:
    """Return what a search with given efforts finds; None if a segment is not calibrated for that.

    Where effort and candidates differ from one query to the next, nobody knows what fixed ones find.
    """
    depth = Calibration.depth_of(k, n_candidates or k)
    found, n_visible = 0.0, 0
    for part in (_Part.of(selection, k) for selection in selections):
        if part.calibration is None:
            return None
        share = part.calibration.everything(part.k, depth, 0).share
        effort = part.selection.effort
        if part.calibration.reaches and (n_candidates is not None or effort is not None):
            return None
        if effort is not None and part.selection.rows is None and effort < part.buckets.most_effort:
            share = part.calibration.share(part.k, effort, depth, part.buckets.most_effort)
        share *= part.calibration.agreement(part.n_results)
        found, n_visible = found + part.n_visible * share, n_visible + part.n_visible
    return found / n_visible if n_visible else 1.0


class _Part(NamedTuple):
    """The rows of a segment that a search considers.

    Attributes
    ----------
    selection : Selection
    n_visible : int
    n_results : int
    k : int
        How many of all rows of the segment the nearest visible ones reach to, if those are spread evenly.
    buckets : Buckets, or None
    calibration : Calibration, or None
    depleted : float
        Share of rows that have hardly any visible rows near them, if a filter hides rows. A search for what is like
        these rows meets few visible ones where it begins.
    """

    selection: Selection
    n_visible: int
    n_results: int
    k: int
    buckets: Any
    calibration: Calibration | None
    depleted: float

    @classmethod
    def of(cls, selection: Selection, k: int) -> _Part:
        """Count the rows of a selection."""
        segment, n_visible = selection.segment, selection.n_visible
        calibration = None if segment.buckets is None else segment.buckets.calibration
        # Queries are not like removed rows more than like others, so that those do not count.
        is_filtered = selection.rows is not None or selection.hidden is not segment.removed
        depleted = segment.buckets.depleted(selection) if calibration is not None and is_filtered and n_visible else 0.0
        return cls(
            selection, n_visible, k, k_there(k, n_visible, segment.n_rows), segment.buckets, calibration, depleted
        )

    def elsewhere(self, share: float) -> float:
        """Return the share to find where there are visible rows, for `share` to be found on average; 1 or more: all."""
        least = tuning().depleted_share_found
        return (share - self.depleted * least) / (1 - self.depleted) if self.depleted < 1 else math.inf

    def is_clumped(self, share: float) -> bool:
        """Return whether visible rows are so near each other that all of them are to be searched."""
        return self.depleted > 0 and self.elsewhere(share) >= tuning().calibrated_share

    def setting(self, share: float, depth: int, by_estimates: bool) -> Setting:
        """Return the setting of least effort."""
        calibration = self.calibration
        if calibration is None:  # few rows: all of them are estimated, and many of them are candidates
            is_deep = DEPTHS[depth] * self.n_results >= min(self.n_visible, _candidates_of_scan(self.n_results))
            return Setting(None, 1.0, is_enough=is_deep)
        found = self._setting(calibration, self._wanted(share), depth, by_estimates)
        return replace(found, share=calibration.agreement(self.n_results) * found.share)

    def _wanted(self, share: float) -> float:
        """Return the share of the nearest rows by the distances of results to find, for `share` of the true ones.

        Where these distances do not tell enough of them, more effort would find no more.
        """
        agreed = 1.0 if self.calibration is None else self.calibration.agreement(self.n_results)
        return min(share / max(agreed, 1e-9), max(share, tuning().most_share_wanted))

    def _setting(self, calibration: Calibration, share: float, depth: int, by_estimates: bool) -> Setting:
        """Return the setting of least effort, and its share of the rows that are nearest by distances of results."""
        everything = calibration.everything(self.k, depth, share)
        if by_estimates:
            share = calibration.part_of_all(self.k, depth, share)
        if DEPTHS[depth] * self.n_results >= self.n_visible:
            everything = Setting(None, 1.0)
        if self.is_clumped(share):
            return Setting(None, calibration.everything(self.n_results, len(DEPTHS) - 1, 0).share)
        if self.selection.rows is not None:  # copies are scanned
            return everything
        share = self.elsewhere(share)
        if self.k > self.n_results:  # among few visible rows, estimates must tell the nearest from the next as well
            share /= max(0.5, calibration.everything(self.n_results, depth, 0).share)
        buckets = self.buckets
        least = calibration.least(self.k, depth, share, buckets.most_effort)
        if not least.is_enough or buckets.microseconds(least.effort) >= buckets.microseconds(None):
            return everything
        found = (1 - self.depleted) * least.share + self.depleted * tuning().depleted_share_found
        return replace(least, share=found)

    def least_candidates(self, share: float) -> int:
        """Return the number of candidates that are read at least."""
        limits = tuning()
        if not self.is_clumped(self._wanted(share)):  # how well estimates tell few rows apart was not measured
            return _candidates_of_scan(self.n_results) if self.selection.rows is not None else 0
        return max(limits.clump_candidates_of_k * self.n_results, limits.least_clump_candidates)

    def microseconds(self, setting: Setting) -> float:
        """Return the time that a search takes, apart from exact distances."""
        limits = tuning()
        if self.selection.rows is not None or self.buckets is None:
            n_bytes = 0 if self.buckets is None else self.buckets.nbytes / max(1, self.selection.segment.n_rows)
            return 1e-3 * self.n_visible * (limits.scan_row_ns + limits.scan_byte_ns * n_bytes)
        time: float = self.buckets.microseconds(setting.effort)
        return time


def _at_depth(parts: Sequence[_Part], k: int, share: float, depth: int, vector_bytes: int) -> Settings:
    """Return the settings of least effort at a depth."""
    limits = tuning()
    n_candidates = max(k, math.ceil(DEPTHS[depth] * k - 1e-9), *(part.least_candidates(share) for part in parts))
    chosen, found, n_visible, is_enough, time = [], 0.0, 0, True, limits.query_us
    for part in parts:
        n, setting = part.n_visible, part.setting(share, depth, not vector_bytes)
        chosen.append(part.selection._replace(effort=setting.effort))
        found, n_visible, is_enough = found + n * setting.share, n_visible + n, is_enough and setting.is_enough
        time += part.microseconds(setting)
        if vector_bytes:
            time += 1e-3 * min(n, n_candidates) * (limits.read_vector_ns + limits.read_byte_ns * vector_bytes)
    share = found / n_visible if n_visible else 1.0
    return Settings(tuple(chosen), n_candidates, share, time, _far(parts), is_enough)


def _candidates_of_scan(k: int) -> int:
    """Return how many candidates a scan of few rows has, for `k` results."""
    return max(tuning().scan_candidates_of_k * k, tuning().least_scan_candidates)


def _far(parts: Sequence[_Part]) -> float:
    """Return the distance beyond which nearest rows hardly ever are; infinity if few rows are visible."""
    largest = max(parts, key=lambda part: part.n_visible, default=None)
    if largest is None or largest.calibration is None or 2 * largest.n_visible < largest.selection.segment.n_rows:
        return math.inf
    return largest.calibration.far
