"""Standard errors of results whose distances come from kept vectors of 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.typing import Floats, Ids
from ..data.sparserows import VectorRows
from ..distances.keptcodec import KeptCodec
from ..store.segment import Segment
from .topk import TopK


def gather_rows(name: str, segments: Sequence[Segment], ids: Ids) -> NDArray[Any]:
    """Return the entries of a column of bytes for ids, 0 for ids that are not found."""
    width = segments[0].columns[name].shape[1] if segments else 0
    column = np.zeros((len(ids), width), dtype=np.uint8)
    left = np.flatnonzero(ids >= 0)
    for segment in segments:
        rows = segment.find(ids[left])
        is_here = rows >= 0
        column[left[is_here]] = segment.columns[name][rows[is_here]]
        left = left[~is_here]
    return column


def level_errors(
    codec: KeptCodec, queries: VectorRows, found: TopK, segments: Sequence[Segment], n_threads: int
) -> Floats:
    """Return the standard errors of the distances of prepared queries to results, NaN for missing results."""
    if not segments:
        return np.full(found.ids.shape, np.nan, dtype=np.float32)
    column = gather_rows("vectors", segments, found.ids.ravel())
    distances = np.where(found.ids >= 0, found.distances, 0)
    errors = codec.errors(codec.project_queries(queries, n_threads), distances, column)
    return np.where(found.ids >= 0, errors, np.float32(np.nan))
