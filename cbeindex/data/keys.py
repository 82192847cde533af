"""Search keys: a distance and a row packed into one uint64, so that sorted keys are in the order of (distance, id).

The low 32 bits of a key hold the rank of the row in the order of ids, which is the row itself where rows are stored in
that order. The high 32 bits hold the distance in one of two encodings, and each encoding has a class:

    HammingKeys     the distance as an unsigned integer
    EstimateKeys    a float32 distance with its bits mapped so that unsigned integers order like the floats: negative
                    numbers have all bits inverted, other numbers have the sign bit set

Kernels pack keys inline in the same layout: those of `hamming`, `cells` and `tables` pack Hamming keys, those of
`asymmetric` pack estimate keys. `NO_KEY` marks a missing result in both encodings and sorts behind every other key.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .._core.typing import Distances, Floats, Mask, Rows

NO_ID = -1
"""The id of a missing result."""

NO_HAMMING_DISTANCE = np.iinfo(np.int32).max
"""The Hamming distance of a missing result."""

NO_KEY = np.uint64(np.iinfo(np.uint64).max)
"""The key of a missing result."""

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(0xFFFFFFFF00000000)


class SearchKeys:
    """Keys of any shape.

    Attributes
    ----------
    packed : uint64 array
        The keys as kernels write them.
    """

    __slots__ = ("packed",)

    def __init__(self, packed: NDArray[np.uint64]) -> None:
        self.packed = packed

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the keys."""
        return self.packed.shape

    def is_missing(self) -> Mask:
        """Return which keys mark a missing result."""
        is_missing: Mask = self.packed == NO_KEY
        return is_missing

    def ranks(self) -> Rows:
        """Return the ranks of the rows, 0 for a missing result."""
        return np.where(self.is_missing(), 0, self.packed & _LOW).astype(np.int64)

    def with_ranks(self, ranks: NDArray[Any]) -> Self:
        """Return keys of the same distances in which rank r is replaced by `ranks[r]`."""
        if not len(ranks):
            return self
        low = ranks[self.ranks()].astype(np.uint64)
        return type(self)(np.where(self.is_missing(), NO_KEY, (self.packed & _HIGH) | low))

    def present(self) -> Self:
        """Return the keys that are not missing, as a flat array."""
        return type(self)(self.packed[~self.is_missing()])


class HammingKeys(SearchKeys):
    """Keys of Hamming distances."""

    __slots__ = ()

    def distances(self) -> Distances:
        """Return the distances, `NO_HAMMING_DISTANCE` for a missing result."""
        distances: Distances = np.minimum(self.packed >> _HALF, NO_HAMMING_DISTANCE).astype(np.int32)
        return distances


class EstimateKeys(SearchKeys):
    """Keys of estimated distances."""

    __slots__ = ()

    def distances(self) -> Floats:
        """Return the distances, infinity for a missing result."""
        ordered = (self.packed >> _HALF).astype(np.uint32)
        bits = np.where(ordered >> 31, ordered & np.uint32(0x7FFFFFFF), ~ordered)
        distances = bits.astype(np.uint32).view(np.float32)
        return np.where(self.is_missing(), np.float32(np.inf), distances)
