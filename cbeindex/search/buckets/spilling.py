"""Spilling: every row is also in a second cell, as a copy that only searches with exact distances visit.

The second cell is SOAR's (Sun et al., NeurIPS 2023): of the cells around that of a row, the one with the least
|x - c|^2 + lambda <r / |r|, x - c>^2, where r is the residual of the row in its own cell. A query that is far from the
first centroid for the sake of r then has no reason to be far from the second.

Copies are postings. They lie in records of their own, so that whatever counts, checks, copies or joins rows never sees
a row twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import kernels
from ..._core.threads import for_each_chunk, n_cores
from ..._core.tuning import tuning
from ..._core.typing import Floats, Mask, Rows
from ...distances.metrics import squares
from ...distances.recoding import recode
from ...distances.records import RECORD_ROWS, record_bytes
from ...distances.residuals import ResidualCodec


class Copies(NamedTuple):
    """Rows in their second cells.

    Attributes
    ----------
    records : uint8 array of shape (n_records, bytes of a record)
    starts : int64 array of shape (n_cells + 1,)
        The records of each cell.
    """

    records: NDArray[np.uint8]
    starts: Rows

    @classmethod
    def none(cls, n_cells: int, n_bytes: int) -> Copies:
        """Return the copies of cells that have none."""
        return cls(np.empty((0, record_bytes(n_bytes)), dtype=np.uint8), np.zeros(n_cells + 1, dtype=np.int64))

    def spans(self, n_rows: int) -> Rows:
        """Return the records of each cell, and which rows they may hold, (n_cells, 4)."""
        n_cells = len(self.starts) - 1
        return np.stack([self.starts[:-1], self.starts[1:], np.zeros(n_cells, np.int64), np.full(n_cells, n_rows)], 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the copies."""
        return self.records.nbytes + self.starts.nbytes

    def rows(self, n_bytes: int) -> tuple[Rows, Rows, Mask]:
        """Return the row at each place, (n_records, 32), the cell of each record, and which places hold a row."""
        floats = np.ascontiguousarray(self.records[:, RECORD_ROWS * (n_bytes + 4) : RECORD_ROWS * (n_bytes + 8)])
        numbers = np.ascontiguousarray(self.records[:, RECORD_ROWS * (n_bytes + 16) :])
        cell = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        return numbers.view("<i4").astype(np.int64), cell, ~np.isposinf(floats.view("<f4"))

    def cells_of(self, n_rows: int, n_bytes: int) -> Rows:
        """Return the cell that holds the copy of each row, -1 for rows without one."""
        rows, cell, is_there = self.rows(n_bytes)
        cells: Rows = np.full(n_rows, -1, dtype=np.int64)
        cells[rows[is_there]] = np.broadcast_to(cell[:, np.newaxis], rows.shape)[is_there]
        return cells


def empty_records(n_bytes: int, n_records: int) -> NDArray[np.uint8]:
    """Return records without rows: all offsets are infinite."""
    records = np.zeros((n_records, record_bytes(n_bytes)), dtype=np.uint8)
    infinite = np.full(RECORD_ROWS, np.inf, dtype="<f4").view(np.uint8)
    records[:, RECORD_ROWS * (n_bytes + 4) : RECORD_ROWS * (n_bytes + 8)] = infinite
    return records


def make_copies(codec: ResidualCodec, column: NDArray[np.uint8], rows: Rows, cells: Any) -> Copies:
    """Copy every row to its second cell.

    Parameters
    ----------
    codec : ResidualCodec
    column : uint8 array of shape (n_rows, row bytes)
    rows : int64 array of shape (n_rows,)
        The place in the column of each row of the segment, whose rows are in the order of cells.
    cells : ResidualCells
    """
    second = _second_cells(codec, column, rows, cells.offsets, cells.centroids)
    order = np.argsort(second, kind="stable")
    sizes = np.bincount(second, minlength=cells.n_cells)
    offsets, starts = (np.concatenate([[0], np.cumsum(n)]) for n in (sizes, -(-sizes // RECORD_ROWS)))
    records = empty_records(codec.n_bytes, int(starts[-1]))
    places = np.repeat(RECORD_ROWS * starts[:-1] - offsets[:-1], sizes) + np.arange(len(rows))

    def task(start: int, stop: int) -> None:
        some = order[start:stop]
        coded = recode(codec, column, rows[some], cells.cell_centres[second[some]])
        kernels.residuals.fill_records(coded, np.arange(len(some)), places[start:stop], some, codec.n_bytes, records)

    for_each_chunk(task, len(rows), tuning().record_task_rows, n_cores())
    return Copies(records, starts)


def second_cells(points: Floats, own: Rows, centroids: Floats, choice: Rows) -> Rows:
    """Return the second cell of each point, other than its own, by SOAR's loss, from the cells in `choice`."""
    chosen: Rows = np.empty(len(own), dtype=np.int64)
    kernels.dividing.choose_second(points, own, centroids, choice, tuning().spill_lambda, chosen)
    return chosen


def _second_cells(
    codec: ResidualCodec, column: NDArray[np.uint8], rows: Rows, offsets: Rows, centroids: Floats
) -> Rows:
    """Return the second cell of each row, one of those whose centroids are nearest to that of its own cell."""
    limits, n_cells, width = tuning(), len(centroids), centroids.shape[1]
    n_near = min(n_cells, max(limits.spill_neighbours, limits.spill_products // max(1, len(rows) * width)))
    half = squares(centroids) / 2
    second: Rows = np.empty(len(rows), dtype=np.int64)

    def task(start: int, stop: int) -> None:
        scores = half - centroids[start:stop] @ centroids.T
        near = np.sort(np.argpartition(scores, n_near - 1, axis=1)[:, :n_near], axis=1)
        for cell in range(start, stop):
            mine = slice(int(offsets[cell]), int(offsets[cell + 1]))
            points, own = codec.decode(column, rows[mine]), np.full(mine.stop - mine.start, cell)
            second[mine] = second_cells(points, own, centroids, near[cell - start])

    for_each_chunk(task, n_cells, 16, n_cores())
    return second
