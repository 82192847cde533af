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
from ...distances.residuals import CELL_BITS, ResidualCodec, centres_of, default_bits
from ...distances.rounding import rounded
from ...store.segment import Segment
from ..calibration import N_NEAREST
from ..measuring import measure, sample_rows
from .base import BucketMaker, Buckets
from .celltrial import CellTrial
from .packing import Packing, pack
from .rangetrial import measure_ranges
from .residualcells import ResidualCells
from .spilling import Copies, empty_records, make_copies
from .trials import Sample

# Copies are made from codes, which have to say enough of their rows.
_SPILL_BITS = 4
# Nearest rows of a sampled row by which the gain of copies is judged.
_N_JUDGED = 10
# Numbers of results that a small part of an index is calibrated for.
_FEW_NEAREST = N_NEAREST[:3]


class _Division(NamedTuple):
    """Cells of rows.

    Attributes
    ----------
    cell : int64 array of shape (n_rows,)
    centroids : float32 array of shape (n_cells, width)
    centres : uint16 array of shape (n_cells,)
    """

    cell: Rows
    centroids: Floats
    centres: NDArray[np.uint16]


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
    spill : bool or None
        Whether rows are copied to second cells. None: in segments with kept vectors where that saves enough.
    queries : Codec or None
        Prepares queries that calibrate cells; None for cells that are not calibrated.
    """

    n_bits: int
    n_cells: int | None = None
    cell_bits: int | None = None
    codec: ResidualCodec | None = None
    spill: bool | None = None
    queries: Codec | None = None

    buckets: ClassVar[type[Buckets]] = ResidualCells
    options: ClassVar[tuple[str, ...]] = ("n_cells", "cell_bits", "spill")
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
        spill = options.get("spill")
        if spill and (bits or default_bits(n_bits)) != _SPILL_BITS:
            raise ValueError(f"spill=True needs cell_bits={_SPILL_BITS}, got {bits or default_bits(n_bits)}")
        return cls(n_bits, options.get("n_cells"), bits, spill=None if spill is None else bool(spill))

    def with_codec(self, codec: Codec) -> Self:
        """Return the maker of an index that is fitted."""
        return replace(self, codec=codec.residuals, queries=codec)

    def arrange(self, segment: Segment, share: float = 1.0) -> Segment:
        """Return a segment of any size with its rows in the order of cells.

        The larger its `share` of the rows of the index, the more precisely are cells calibrated. Without a share, there
        is one cell for each centre, and all are searched unless the caller says how many.
        """
        assert self.codec is not None
        column: NDArray[np.uint8] = np.asarray(segment.columns["residuals"])
        division, packing = _packed(self._divide(column, self.n_cells_of(segment.n_rows) if share else 1))
        rows = np.argsort(division.cell, kind="stable")
        ranks = rows.astype(np.int32)  # rows were in the order of ids
        order = np.empty_like(ranks)
        order[rows] = np.arange(len(rows), dtype=np.int32)
        cells = _lay_out(self.codec, column, rows, division, packing)
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
        return self._measured(replace(arranged, buckets=cells), share, column, rows)

    def _measured(self, segment: Segment, share: float, column: NDArray[np.uint8], rows: Rows) -> Segment:
        """Return a segment with copies of all rows, if they save enough, that knows how many cells to probe.

        `rows` are the places in `column` of the rows of the segment.
        """
        cells, limits, n_rows, trial = segment.buckets, tuning(), segment.n_rows, None
        if self.queries is not None and share and n_rows >= limits.least_cell_segment_rows:
            most = limits.most_cell_queries if cells.n_cells > 1 else limits.most_undivided_queries
            trial = CellTrial(segment, Sample.of_rows(self.queries, segment, sample_rows(n_rows, share)[:most]))
        if share and self._wants_copies(segment, trial):
            cells = replace(cells, copies=make_copies(cells.codec, column, rows, cells))
            trial = trial and trial.with_copies(cells)
        if trial is not None:
            is_whole = n_rows >= limits.least_whole_rows or share >= limits.least_whole_share
            calibration = measure(trial, n_rows, N_NEAREST if is_whole else _FEW_NEAREST)
            ranges = measure_ranges(trial, trial) if is_whole and calibration is not None else None
            cells = replace(cells, calibration=calibration, ranges=ranges)
        return replace(segment, buckets=cells)

    def _wants_copies(self, segment: Segment, trial: CellTrial | None) -> bool:
        """Return whether rows are copied to second cells: as the caller says, or where that saves rows to visit."""
        limits = tuning()
        if segment.buckets.n_cells == 1 or self.spill is False or segment.buckets.codec.bits != _SPILL_BITS:
            return False
        if self.spill is not None or trial is None:
            return bool(self.spill)
        can_save = segment.n_rows >= limits.least_spill_rows and "vectors" in segment.columns
        return can_save and _gain_of_copies(trial) >= limits.least_spill_gain

    def n_cells_of(self, n_rows: int) -> int:
        """Return how many cells a segment of `n_rows` rows should have."""
        if n_rows < tuning().least_cell_segment_rows:
            return 1
        root = math.sqrt(n_rows)
        n_cells = self.n_cells or round(tuning().cells_of_root * root)
        return max(1, min(n_cells, round(tuning().most_cells_of_root * root), n_rows // tuning().least_cell_rows))

    def _divide(self, column: NDArray[np.uint8], n_cells: int) -> _Division:
        """Divide the rows of each centre into cells of about the same size."""
        codec = self.codec
        assert codec is not None
        centres = centres_of(column)
        n_rows, sizes = len(centres), np.bincount(centres, minlength=len(codec.centres))
        used, by_centre = np.flatnonzero(sizes), np.argsort(centres, kind="stable")
        ends = np.cumsum(sizes)
        # Data with one centre has no clusters, and nothing is gained by dividing it.
        share = n_cells / n_rows if len(codec.centres) > 1 else 0
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
                    points, n_rounds = codec.decode(column, rows), tuning().kmeans_iterations
                    part, centroids[mine] = divide_points(points, int(n_parts[i]), n_rounds)
                    cell[rows] = firsts[i] + part

        for_each_chunk(task, len(used), 1, n_cores())
        return _Division(cell, centroids, np.repeat(used, n_parts).astype(np.uint16))


def divide_points(points: Floats, n_parts: int, n_rounds: int) -> tuple[Rows, Floats]:
    """Divide points into cells by k-means; return the cell of each point, and the means of the cells.

    Rounds improve the first centroids, which are points of a sample, on the sample. Kernels are called with few enough
    points for Ctrl-C to be noticed.
    """
    n, width = points.shape
    sample = np.random.default_rng(n).permutation(n)[: tuning().kmeans_rows * n_parts]
    cell: Rows = np.empty(n, dtype=np.int64)
    centroids, step = points[sample[:n_parts]], max(1, tuning().kmeans_step_products // (n_parts * width))
    sums, sizes = np.zeros((n_parts, width)), np.zeros(n_parts, dtype=np.int64)
    passes = [sample] * (n_rounds if n_parts > 1 else 0) + [np.arange(n)]
    for rows in passes:
        for start in range(0, len(rows), step):
            some = slice(start, start + step)
            kernels.dividing.assign(points, rows[some], centroids, cell[some], sums, sizes)
        kernels.dividing.average(sums, sizes, centroids)
    return cell, centroids


def _packed(division: _Division) -> tuple[_Division, Packing]:
    """Return cells in the order of their places in records. Empty cells vanish."""
    sizes = np.bincount(division.cell, minlength=len(division.centres))
    filled = np.flatnonzero(sizes)
    packing = pack(sizes[filled])
    kept = filled[packing.order]
    numbers = np.zeros(len(sizes), dtype=np.int64)
    numbers[kept] = np.arange(len(kept))
    return _Division(numbers[division.cell], rounded(division.centroids[kept]), division.centres[kept]), packing


def _lay_out(
    codec: ResidualCodec, column: NDArray[np.uint8], rows: Rows, division: _Division, packing: Packing
) -> ResidualCells:
    """Write rows, which are in the order of cells, to records."""
    sizes = np.bincount(division.cell, minlength=len(division.centres))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    records = empty_records(codec.n_bytes, packing.n_records)
    numbers = np.arange(len(rows))
    places = np.repeat(packing.places - offsets[:-1], sizes) + numbers

    def task(start: int, stop: int) -> None:
        some = slice(start, stop)
        kernels.residuals.fill_records(column, rows[some], places[some], numbers[some], codec.n_bytes, records)

    for_each_chunk(task, len(rows), tuning().record_task_rows, n_cores())
    copies = Copies.none(len(sizes), codec.n_bytes)
    return ResidualCells(codec, records, packing.places, offsets, division.centroids, division.centres, copies)


def _gain_of_copies(trial: CellTrial) -> float:
    """Return the share of the visited rows that copies would save, by the ten nearest rows of a sample of rows."""
    needed = trial.needed(_N_JUDGED)
    before, after = (np.quantile(n, tuning().explicit_recall, method="higher") for n in needed)
    return float(1 - 2 * after / before)  # a cell has twice the rows then
