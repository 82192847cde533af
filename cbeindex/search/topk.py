"""Partial top-k results: the only place that merges them.

Within a segment, parts are arrays of keys, which sort as integers. Across segments, parts are distances and ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from .._core.typing import Ids, Keys
from ..data.keys import NO_HAMMING_DISTANCE, NO_ID, EstimateKeys, HammingKeys
from ..store.segment import Segment


class TopK(NamedTuple):
    """The nearest rows of each query in ascending order of (distance, id).

    Attributes
    ----------
    distances : int32 (Hamming) or float32 array of shape (n_queries, k)
        `NO_HAMMING_DISTANCE` or infinity for a missing result.
    ids : int64 array of shape (n_queries, k)
        `NO_ID` for a missing result.
    """

    distances: NDArray[Any]
    ids: Ids

    @classmethod
    def of_keys(cls, keys: HammingKeys | EstimateKeys, segment: Segment) -> TopK:
        """Unpack sorted keys of rows in `segment`."""
        return cls(keys.distances(), segment.ids_of(keys))

    @classmethod
    def empty(cls, n_queries: int, k: int) -> TopK:
        """Allocate results with Hamming distances, for a kernel."""
        return cls(np.empty((n_queries, k), dtype=np.int32), np.empty((n_queries, k), dtype=np.int64))

    @classmethod
    def missing(cls, n_queries: int, k: int, dtype: Any) -> TopK:
        """Return `k` missing results for each query, with distances of type `dtype`."""
        distances = np.full((n_queries, k), missing_distance(dtype), dtype=dtype)
        return cls(distances, np.full((n_queries, k), NO_ID, dtype=np.int64))

    def smallest(self, k: int) -> TopK:
        """Sort results that are in any order, and return the first `k` of each query."""
        order = np.lexsort((self.ids, self.distances), axis=1)[:, :k]
        return TopK(np.take_along_axis(self.distances, order, axis=1), np.take_along_axis(self.ids, order, axis=1))

    def padded(self, k: int) -> TopK:
        """Return at least `k` results for each query, adding missing results at the end."""
        n_more = k - self.ids.shape[1]
        if n_more <= 0:
            return self
        value = missing_distance(self.distances.dtype)
        return TopK(pad_columns(self.distances, n_more, value), pad_columns(self.ids, n_more, NO_ID))


def merge_keys(parts: Keys) -> Keys:
    """Merge sorted keys of several parts of one segment, (n_parts, n_queries, k), into the `k` smallest, sorted."""
    return parts[0] if len(parts) == 1 else smallest_keys(list(parts), parts.shape[2])


def smallest_keys(parts: Sequence[Keys], k: int) -> Keys:
    """Return the `k` smallest of keys that are in any order, sorted along the last axis."""
    keys: Keys = np.sort(np.concatenate(parts, axis=-1), axis=-1)[..., :k]
    return keys


def merge_segments(parts: Sequence[TopK], n_queries: int, k: int, dtype: Any) -> TopK:
    """Merge the results of several segments into exactly `k` results for each query."""
    if len(parts) == 1 and parts[0].ids.shape[1] == k:
        return parts[0]
    merged = parts[0] if parts else TopK.missing(n_queries, 0, dtype)
    for part in parts[1:]:
        merged = _merge_two(merged, part, k) if merged.ids.size else part
    return TopK(merged.distances[:, :k], merged.ids[:, :k]).padded(k)


def missing_distance(dtype: Any) -> float:
    """Return the distance of a missing result: the largest int32 for Hamming distances, infinity for other ones."""
    return NO_HAMMING_DISTANCE if dtype == np.int32 else np.inf


def pad_columns(array: NDArray[Any], n: int, value: float) -> NDArray[Any]:
    """Append `n` columns of `value`."""
    return np.pad(array, ((0, 0), (0, n)), constant_values=value)


def _merge_two(one: TopK, other: TopK, k: int) -> TopK:
    """Merge two sorted parts into at most `k` results for each query."""
    shape = len(one.ids), min(k, one.ids.shape[1] + other.ids.shape[1])
    merged = TopK(np.empty(shape, dtype=one.distances.dtype), np.empty(shape, dtype=np.int64))
    # The kernel is compiled for C order alone.
    parts = (np.ascontiguousarray(array) for array in (*one, *other))
    kernels.merging.merge(*parts, *merged)
    return merged
