"""Calibration by queries of the caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .._core.typing import Ids
from ..data.columns import Column
from ..data.source import VectorSource
from ..data.sparserows import VectorRows
from ..distances.codec import Codec
from ..store.segment import Segment
from .buckets.celltrial import CellTrial
from .buckets.graphtrial import GraphTrial
from .buckets.rangetrial import measure_ranges
from .buckets.residualcells import ResidualCells
from .buckets.trials import Sample
from .calibration import N_NEAREST
from .measuring import measure, sample_rows

TRUE_CANDIDATES = 20
"""Candidates for each of the true nearest vectors of a query, when all codes are scanned."""


# Queries that are used, spread over those that are given.
_MOST_QUERIES = 2048


def tuning_sample(queries: VectorSource) -> VectorRows:
    """Read the queries that an index is tuned by. Raises ValueError if there are none, or one is not finite."""
    if not queries.n_rows:
        raise ValueError("tune needs at least 1 query, got 0")
    column = Column(np.float32, (queries.dim,), queries.is_sparse)
    vectors: VectorRows = column.joined([column.of(rows) for _, rows in queries.own_blocks(_MOST_QUERIES)])
    step = -(-len(vectors) // _MOST_QUERIES)
    return vectors if step == 1 else vectors[np.arange(0, len(vectors), step)]


def n_true(k: int, n_rows: int) -> int:
    """Return how many nearest vectors of each query a calibration for `k` results needs."""
    return max(1, min(max(k, 100), n_rows))


def calibrated_by(codec: Codec, queries: VectorRows, nearest: Ids, k: int) -> Callable[[Segment], Segment]:
    """Return a function that calibrates the buckets of a segment by queries whose true nearest ids are known."""

    def calibrated(segment: Segment) -> Segment:
        buckets = segment.buckets
        if buckets is None or getattr(buckets, "calibration", None) is None:
            return segment
        rows = segment.find(nearest.ravel()).reshape(nearest.shape)
        rows[nearest < 0] = -1
        sample = Sample(codec, queries, None, rows)
        trial = CellTrial(segment, sample) if isinstance(buckets, ResidualCells) else GraphTrial(segment, sample)
        classes = sorted({n for n in (*N_NEAREST, k) if n <= nearest.shape[1]})
        if not (rows >= 0).any():  # none of the queries is near to these rows
            return segment
        measured = measure(trial, segment.n_rows, classes)
        if measured is None:
            return segment
        if not isinstance(trial, CellTrial):
            return replace(segment, buckets=replace(buckets, calibration=measured))
        own = CellTrial(segment, Sample.of_rows(codec, segment, sample_rows(segment.n_rows)))
        ranges = measure_ranges(trial, own) or buckets.ranges  # few queries tell nothing: what stored rows told holds
        return replace(segment, buckets=replace(buckets, calibration=measured, ranges=ranges))

    return calibrated
