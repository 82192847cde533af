"""Answers of shards put together: results by (distance, id), rows in the order of the ids that were asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._core.typing import Rows
from ..search.results import RangeResult, SearchResult
from .fitting import stacked


def merge_results(parts: Sequence[SearchResult], k: int) -> SearchResult:
    """Return the `k` nearest of all results, in the order of (distance, id), with missing results last."""
    stats = merge_stats([part.stats for part in parts])
    if len(parts) == 1:
        return SearchResult(*parts[0], stats, parts[0].errors)
    is_single = parts[0].ids.ndim == 1
    distances = np.concatenate([np.atleast_2d(part.distances) for part in parts], axis=1)
    ids = np.concatenate([np.atleast_2d(part.ids) for part in parts], axis=1)
    order = np.lexsort((_ranks(ids), _is_missing(ids), distances), axis=1)[:, :k]
    estimated = [np.atleast_2d(part.errors) for part in parts if part.errors is not None]
    errors = None
    if len(estimated) == len(parts):
        errors = np.take_along_axis(np.concatenate(estimated, axis=1), order, axis=1)
    merged = SearchResult(np.take_along_axis(distances, order, 1), np.take_along_axis(ids, order, 1), stats, errors)
    return merged.first() if is_single else merged


def merge_ranges(parts: Sequence[RangeResult]) -> RangeResult:
    """Return all results within a radius, in the order of (query, distance, id)."""
    if len(parts) == 1:
        return parts[0]
    n_queries = len(parts[0].lims) - 1
    queries = np.concatenate([np.repeat(np.arange(n_queries), np.diff(part.lims)) for part in parts])
    distances = np.concatenate([part.distances for part in parts])
    ids = np.concatenate([part.ids for part in parts])
    order = np.lexsort((_ranks(ids), distances, queries))
    lims = np.zeros(n_queries + 1, dtype=np.int64)
    np.cumsum(np.bincount(queries, minlength=n_queries), out=lims[1:])
    errors = [part.errors for part in parts if part.errors is not None]
    return RangeResult(
        lims,
        distances[order],
        ids[order],
        merge_stats([part.stats for part in parts]),
        np.concatenate(errors)[order] if len(errors) == len(parts) else None,
    )


def merge_rows(parts: Mapping[int, Any], rows: Mapping[int, Rows]) -> Any:
    """Return rows of several shards in the order in which they were asked for: `rows` are their positions."""
    positions = np.concatenate([rows[number] for number in parts])
    together = stacked(list(parts.values()))
    return together[np.argsort(positions)]


def merge_stats(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up counts; take the mean of shares, and the common value of everything else, or all values."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part[name] for part in parts if name in part]
        if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            merged[name] = sum(values)
        elif all(isinstance(value, float) for value in values):
            merged[name] = float(np.mean(values))
        else:
            merged[name] = values[0] if all(str(value) == str(values[0]) for value in values) else values
    return merged


def _is_missing(ids: Any) -> Any:
    return ids < 0 if ids.dtype.kind in "iu" else ids == np.array(None)


def _ranks(ids: Any) -> Any:
    """Return numbers that order ids: integers themselves, or the ranks of strings, with missing ones first."""
    if ids.dtype.kind in "iu":
        return ids
    _, ranks = np.unique(np.where(_is_missing(ids), "", ids).astype(str), return_inverse=True)
    return ranks.reshape(ids.shape)
