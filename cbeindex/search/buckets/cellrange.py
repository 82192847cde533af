"""The calls of the kernel that finds all rows of cells within a radius."""

from __future__ import annotations

import numpy as np

from ... import kernels
from ..._core.tuning import tuning
from ..._core.typing import Floats, Mask, Projections, Rows
from ...distances.metrics import squares
from ...distances.residuals import CELL_BITS
from ...store.segment import Segment
from .residualcells import ResidualCells


class RangeCall:
    """A search of the cells of a segment for all rows that may be within a radius, for any queries.

    Parameters
    ----------
    segment : Segment
    hidden : bool array, or empty
    gap : float
        Cells are visited that are at most this much farther than the nearest one.
    reads_vectors : bool
        Whether the distances of vectors decide. Then rows are found that are within the radius unless estimates are
        `range_sigmas` standard errors wrong. Otherwise estimates decide.
    """

    def __init__(self, segment: Segment, hidden: Mask, gap: float, reads_vectors: bool) -> None:
        cells: ResidualCells = segment.buckets
        codec, directory, limits = cells.codec, cells.directory, tuning()
        self._n_records = len(cells.records)
        # Plain tables are rounded by more than the errors of estimates of very near rows.
        share = limits.precise_shares_of_estimates[CELL_BITS.index(codec.bits)]
        weights = [*codec.shift_scales, directory.weight, share]
        self._arguments = (
            codec.centres, squares(codec.centres), codec.bits, np.array(weights, dtype=np.float32), directory.records,
            cells.centroids, directory.bases, cells.cell_centres, cells.spans, cells.records, hidden, float(gap),
        )  # fmt: skip
        self._terms = codec.doubt_terms(limits.range_sigmas if reads_vectors else 0.0)
        self._room = kernels.querytables.room_for_tables(codec.n_bits, codec.bits)

    def of_projections(self, projections: Projections, shift: float, radius: float) -> tuple[Floats, Rows, Rows]:
        """Return estimates and rows that may be within `radius` of a query, and counts of rows and cells visited."""
        room = tuning().first_range_room
        while True:
            rows, near = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.float32)
            visits = np.zeros(2, dtype=np.int64)
            n = kernels.cellrange.rows_within(
                projections, shift, *self._arguments, float(radius), self._terms, self._room, rows, near, visits
            )
            if n >= 0:
                return near[:n], rows[:n], visits
            room = 32 * (self._n_records + 1)
