"""From the ids of rows to the names that results give back: the last step of every search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from .._core.typing import Ids
from ..data.names import NAMES, Names
from ..errors import CorruptIndexFileError
from ..store.segment import Segment
from .plan import Selection
from .results import RangeResult, SearchResult

Found = TypeVar("Found", SearchResult, RangeResult)


def named(found: Found, selections: Sequence[Selection]) -> Found:
    """Return a result with names in place of ids. The rows of `selections` have names."""
    return found.with_ids(names_of(found.ids, (selection.segment for selection in selections)))


def names_of(ids: Ids, segments: Iterable[Segment]) -> NDArray[np.object_]:
    """Return the name of each id, None for missing results: an array of objects of the same shape."""
    flat = ids.reshape(-1)
    named: NDArray[np.object_] = np.full(len(flat), None, dtype=np.object_)
    numbers, begins, ends = np.empty((3, len(flat)), dtype=np.int64)
    for segment in segments:
        names: Names = segment.columns[NAMES]
        n_found = kernels.names.places_of_ids(
            flat, segment.ids, segment.order, names.offsets, len(names.data), numbers, begins, ends
        )
        if n_found < 0:
            raise CorruptIndexFileError("ids must be in order, and names must have offsets within their bytes")
        if n_found:
            named[numbers[:n_found]] = names.between(begins[:n_found].tolist(), ends[:n_found].tolist())
    return named.reshape(ids.shape)
