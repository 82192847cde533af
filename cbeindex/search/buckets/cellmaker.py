"""Makes cells of residual codes: divides the rows of each centre, and lays out their records."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ... import kernels
from ..._core.threads import for_each_chunk, n_cores
from ..._core.tuning import tuning
from ..._core.typing import Floats, Rows
from ...data.codes import CodeRows
from ...data.columns import take_rows
from ...distances.codec import Codec
from ...distances.records import RECORD_ROWS, record_bytes
from ...distances.residuals import CELL_BITS, ResidualCodec
from ...store.segment import Segment
from ..measuring import measure, sample_rows
from .base import BucketMaker, Buckets
from .celltrial import CellTrial
from .residualcells import ResidualCells
from .trials import Sample


class _Division(NamedTuple):
    """Cells of rows.

    Attributes
    ----------
    cell : int64 array of shape (n_rows,)
    centroids : float32 array of shape (n_cells, width)
    centres : uint8 array of shape (n_cells,)
    """

    cell: Rows
    centroids: Floats
    centres: NDArray[np.uint8]


@dataclass(frozen=True)
class CellMaker(BucketMaker):
    """Makes cells of residual codes.

    Attributes
    ----------
    n_bits : int
    n_cells : int or None
        Cells of each segment. By default twice the square root of its rows.
    cell_bits : int or None
        Bits a dimension of residual codes. By default the dimension decides.
    codec : ResidualCodec or None
        None until the index is fitted.
    queries : Codec or None
        Prepares queries that calibrate cells; None for cells that are not calibrated.
    """

    n_bits: int
    n_cells: int | None = None
    cell_bits: int | None = None
    codec: ResidualCodec | None = None
    queries: Codec | None = None

    buckets: ClassVar[type[Buckets]] = ResidualCells
    options: ClassVar[tuple[str, ...]] = ("n_cells", "cell_bits")
    is_exact: ClassVar[bool] = False
    can_estimate: ClassVar[bool] = True
    uses_margins: ClassVar[bool] = False
    uses_residuals: ClassVar[bool] = True
    needs_vectors: ClassVar[bool] = True
    has_hamming_order: ClassVar[bool] = False

    @classmethod
    def from_options(cls, n_bits: int, options: dict[str, int]) -> Self:
        """Make a maker from the options that are set."""
        bits = options.get("cell_bits")
        if bits is not None and bits not in CELL_BITS:
            raise ValueError(f"cell_bits must be one of {CELL_BITS}, got {bits}")
        return cls(n_bits, options.get("n_cells"), bits)

    def with_codec(self, codec: Codec) -> Self:
        """Return the maker of an index that is fitted."""
        return replace(self, codec=codec.residuals, queries=codec)

    def arrange(self, segment: Segment) -> Segment:
        """Return a segment of any size with its rows in the order of cells."""
        assert self.codec is not None
        column: NDArray[np.uint8] = segment.columns["residuals"]
        division = self._divide(column)
        rows = np.argsort(division.cell, kind="stable")
        ranks = rows.astype(np.int32)  # rows were in the order of ids
        order = np.empty_like(ranks)
        order[rows] = np.arange(len(rows), dtype=np.int32)
        cells = _lay_out(self.codec, column, rows, division)
        words = segment.codes.take(rows)
        others = {name: take_rows(values, rows) for name, values in segment.columns.items() if name != "residuals"}
        arranged = replace(
            segment,
            ids=segment.ids[rows],
            codes=CodeRows.of(words, 64 * words.shape[1]),
            columns={name: others.get(name) for name in segment.columns} | cells.columns(),
            removed=segment.removed[rows] if segment.removed.size else segment.removed,
            order=order,
            ranks=ranks,
        )
        return self._calibrated(replace(arranged, buckets=cells))

    def _calibrated(self, segment: Segment) -> Segment:
        """Return a segment with cells that know how many of them a search should probe."""
        if self.queries is None or segment.n_rows < tuning().least_cell_segment_rows:
            return segment
        sample = Sample.of_rows(self.queries, segment, sample_rows(segment.n_rows))
        calibration = measure(CellTrial(segment, sample), segment.n_rows)
        return replace(segment, buckets=replace(segment.buckets, calibration=calibration))

    def n_cells_of(self, n_rows: int) -> int:
        """Return how many cells a segment of `n_rows` rows should have."""
        if n_rows < tuning().least_cell_segment_rows:
            return 1
        root = math.sqrt(n_rows)
        n_cells = self.n_cells or round(tuning().cells_of_root * root)
        return max(1, min(n_cells, round(tuning().most_cells_of_root * root), n_rows // tuning().least_cell_rows))

    def _divide(self, column: NDArray[np.uint8]) -> _Division:
        """Divide the rows of each centre into cells of about the same size."""
        codec = self.codec
        assert codec is not None
        centres = column[:, -1]
        n_rows, sizes = len(centres), np.bincount(centres, minlength=len(codec.centres))
        used, by_centre = np.flatnonzero(sizes), np.argsort(centres, kind="stable")
        ends = np.cumsum(sizes)
        # Data with one centre has no clusters, and nothing is gained by dividing it.
        share = self.n_cells_of(n_rows) / n_rows if len(codec.centres) > 1 else 0
        n_parts = np.clip(np.rint(sizes[used] * share).astype(np.int64), 1, sizes[used])
        firsts = np.concatenate([[0], np.cumsum(n_parts)])
        cell: Rows = np.empty(n_rows, dtype=np.int64)
        centroids = np.empty((firsts[-1], codec.width), dtype=np.float32)

        def task(start: int, stop: int) -> None:
            for i in range(start, stop):
                rows, mine = by_centre[ends[used[i]] - sizes[used[i]] : ends[used[i]]], slice(firsts[i], firsts[i + 1])
                if share * n_rows <= 1:
                    cell[rows], centroids[mine] = firsts[i], codec.centres[used[i], : codec.width]
                else:
                    part, centroids[mine] = _divide_centre(codec.decode(column, rows), int(n_parts[i]))
                    cell[rows] = firsts[i] + part

        for_each_chunk(task, len(used), 1, n_cores())
        return _Division(cell, centroids, np.repeat(used, n_parts).astype(np.uint8))


def _divide_centre(points: Floats, n_parts: int) -> tuple[Rows, Floats]:
    """Divide points into cells by k-means; return the cell of each point, and the means of the cells."""
    sample = np.random.default_rng(len(points)).permutation(len(points))[: tuning().kmeans_rows * n_parts]
    cell: Rows = np.empty(len(points), dtype=np.int64)
    centroids = np.empty((n_parts, points.shape[1]), dtype=np.float32)
    kernels.dividing.divide(points, sample, tuning().kmeans_iterations, centroids, cell)
    return cell, centroids


def _lay_out(codec: ResidualCodec, column: NDArray[np.uint8], rows: Rows, division: _Division) -> ResidualCells:
    """Write rows, which are in the order of cells, to records. Empty cells vanish."""
    sizes = np.bincount(division.cell, minlength=len(division.centres))
    filled = np.flatnonzero(sizes)
    sizes = sizes[filled]
    offsets, starts = (np.concatenate([[0], np.cumsum(n)]) for n in (sizes, -(-sizes // RECORD_ROWS)))
    records = np.zeros((starts[-1], record_bytes(codec.n_bytes)), dtype=np.uint8)
    offsets_at = RECORD_ROWS * (codec.n_bytes + 4)
    infinite = np.full(RECORD_ROWS, np.inf, dtype="<f4").view(np.uint8)
    records[starts[1:] - 1, offsets_at : offsets_at + 4 * RECORD_ROWS] = infinite
    numbers = np.arange(len(rows))
    places = np.repeat(RECORD_ROWS * starts[:-1] - offsets[:-1], sizes) + numbers

    def task(start: int, stop: int) -> None:
        some = slice(start, stop)
        kernels.residuals.fill_records(column, rows[some], places[some], numbers[some], codec.n_bytes, records)

    for_each_chunk(task, len(rows), tuning().record_task_rows, n_cores())
    return ResidualCells(codec, records, starts, offsets, division.centroids[filled], division.centres[filled])
