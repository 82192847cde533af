"""Cells of residual codes: near rows are stored contiguously, and a search estimates distances in the nearest cells.

A row is encoded once, when it is added, relative to one of the centres of the index (`distances/residuals.py`). The
cells of a segment lie within centres: the rows of a centre are divided by k-means on what their codes say of their
projections. So segments are joined without vectors, and without encoding anything anew.

The codes of a cell are in records of 32 rows (`kernels/residuals.py`), some of which it shares with other cells
(`packing.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ... import kernels
from ..._core.checks import as_count, as_flag
from ..._core.tuning import tuning
from ..._core.typing import Arrays, Floats, Mask, Rows
from ...data.codes import CodeRows
from ...distances.metrics import squares
from ...distances.records import RECORD_ROWS, RecordRows, record_bytes
from ...distances.residuals import ResidualCodec
from ...distances.rounding import Rounded
from ...errors import CorruptIndexFileError
from ...store.segment import Segment
from ..calibration import Calibration, describe_calibration, load_calibration
from ..plan import Cost, Plan, Selection
from ..queries import CodeQueries
from ..rangecalibration import RangeCalibration, describe_ranges, load_ranges
from ..view import View
from .base import ArrayReader, BucketResult, Buckets
from .centroids import derived
from .spilling import Copies


class Directory(NamedTuple):
    """What the choice of cells reads.

    Attributes
    ----------
    records : uint8 array of shape (n_blocks, size)
        Codes, factors and offsets of centroids, 32 in a record.
    bases : float32 array of shape (n_cells,)
    weight : float
        The distance of a cell is its base less `weight` times the product of query and centroid.
    """

    records: NDArray[np.uint8]
    bases: Floats
    weight: float


@dataclass(frozen=True)
class ResidualCells(Buckets):
    """The cells of a segment.

    Attributes
    ----------
    codec : ResidualCodec
    records : uint8 array of shape (n_records, bytes of a record)
    places : int64 array of shape (n_cells,)
        The place of the first row of each cell in the records: record * 32 + lane.
    offsets : int64 array of shape (n_cells + 1,)
        The rows of each cell, which follow each other in the records.
    centroids : float32 array of shape (n_cells, width)
        Means of the first projections of rows.
    cell_centres : uint16 array of shape (n_cells,)
        The centre that the codes of a cell are relative to.
    copies : Copies
        Rows in their second cells.
    calibration : Calibration, or None
        What a number of probes finds; None for few rows.
    ranges : RangeCalibration, or None
        Which cells a range search visits; None if it visits all of them.
    is_rounded : bool
        Whether centroids are rounded to 8 bits, as files hold them. Those of older files are not.
    """

    codec: ResidualCodec
    records: NDArray[np.uint8]
    places: Rows
    offsets: Rows
    centroids: Floats
    cell_centres: NDArray[np.uint16]
    copies: Copies
    calibration: Calibration | None = None
    ranges: RangeCalibration | None = None
    is_rounded: bool = True

    kind: ClassVar[str] = "residual cells"
    stores_codes_by_row: ClassVar[bool] = False
    reorders_rows: ClassVar[bool] = True
    stored_columns: ClassVar[tuple[str, ...]] = ("residuals",)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("directory", "spans")}

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return len(self.cell_centres)

    @property
    def n_rows(self) -> int:
        """Number of rows, each counted once."""
        return int(self.offsets[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of the cells, apart from the order of rows and from copies."""
        arrays = (self.records, self.places, self.offsets, self.centroids, self.cell_centres)
        return sum(array.nbytes for array in arrays)

    @property
    def copied_nbytes(self) -> int:
        """Bytes of copies of rows."""
        return self.copies.nbytes if len(self.copies.records) else 0

    def cells_of(self, rows: Rows) -> Rows:
        """Return the cell of each row."""
        return np.searchsorted(self.offsets, rows, side="right") - 1

    def columns(self) -> dict[str, Any]:
        """Return the columns of a segment that records hold."""
        rows = RecordRows(self.records, self.offsets, self.places, self.cell_centres, self.codec.n_bytes)
        return {"residuals": rows}

    @derived
    def spans(self) -> Rows:
        """The records of each cell, and its rows, from and to before, (n_cells, 4)."""
        first, sizes = self.places // RECORD_ROWS, np.diff(self.offsets)
        stop = -(-(self.places + sizes) // RECORD_ROWS)
        return np.stack([first, np.where(sizes > 0, stop, first), self.offsets[:-1], self.offsets[1:]], axis=1)

    @property
    def is_packed(self) -> bool:
        """Whether cells share records. Those of older files do not."""
        return not np.array_equal(self.places, RECORD_ROWS * _starts_of(np.diff(self.offsets))[:-1])

    @derived
    def directory(self) -> Directory:
        """Encode the centroids for the choice of cells: look-ups find the nearest ones, products then order them."""
        codec, centroids = self.codec, self.centroids
        n_cells, width = centroids.shape
        n_bytes = -(-width * codec.bits // 8)
        one = np.zeros((1, width), dtype=np.float32)
        codes, chosen = np.empty((n_cells, n_bytes), dtype=np.uint8), np.empty(n_cells, dtype=np.uint16)
        sums = np.empty((n_cells, 5))
        kernels.residuals.encode_rows(
            np.ascontiguousarray(centroids), one, one.T, one[:, 0], codec.bits, codec.level_width, codes, chosen, sums
        )
        square, product = sums[:, 0], sums[:, 1]
        weight, bases = 2.0, square
        if codec.metric.name == "ip":
            weight, bases = 1.0, -(centroids.astype(np.float64) @ codec.mean[:width].astype(np.float64))
        factors = weight * np.divide(square, product, out=np.zeros(n_cells), where=product > 0)
        n_blocks = -(-n_cells // RECORD_ROWS)
        numbers = np.zeros((2, n_blocks * RECORD_ROWS), dtype=np.float32)
        numbers[:, :n_cells] = factors, bases
        padded = np.zeros((n_blocks * RECORD_ROWS, n_bytes), dtype=np.uint8)
        padded[:n_cells] = codes
        records = np.empty((n_blocks, RECORD_ROWS * (n_bytes + 8)), dtype=np.uint8)
        records[:, : -8 * RECORD_ROWS] = (
            padded.reshape(n_blocks, RECORD_ROWS, n_bytes).swapaxes(1, 2).reshape(n_blocks, -1)
        )
        by_block = numbers.reshape(2, n_blocks, RECORD_ROWS).swapaxes(0, 1)
        records[:, -8 * RECORD_ROWS :] = np.ascontiguousarray(by_block).reshape(n_blocks, -1).view(np.uint8)
        return Directory(records, bases.astype(np.float32), weight)

    # --- planner ---

    def expected_cost(self, k: int, n_probes: int | None, code_bytes: int) -> Cost:
        """Return the rows in the visited cells, and the bytes of their records and of the directory."""
        share = min(1.0, (n_probes or self.n_cells) / self.n_cells)
        n_bytes = self.records.nbytes + self.copies.records.nbytes
        return Cost(int(self.n_rows * share), int(n_bytes * share))

    def default_probes(self, k: int) -> int:
        """Return the number of cells to visit for `k` results."""
        if self.calibration is None:
            return self.n_cells
        depth = self.calibration.depth_of(1, tuning().cell_candidates_of_k)
        return self.calibration.least(k, depth, tuning().explicit_recall, self.n_cells).effort or self.n_cells

    @property
    def most_effort(self) -> int:
        """Number of probes that visits all rows."""
        return self.n_cells

    def depleted(self, selection: Selection) -> float:
        """Return the share of rows in cells where hardly any row is visible, beyond what is expected of random rows.

        Of few visible rows, it is 1 if they are in fewer cells than random rows would be, and 0 otherwise.
        """
        present = _counts_in(self.offsets, selection.segment.removed)
        share = selection.n_visible / max(1, int(present.sum()))
        expected = share * present
        if selection.rows is not None:
            n_occupied = np.count_nonzero(np.bincount(self.cells_of(selection.rows), minlength=self.n_cells))
            return float(n_occupied < tuning().clumped_share * np.sum(1 - np.exp(-expected)))
        is_depleted = _counts_in(self.offsets, selection.hidden) < np.maximum(1, tuning().depleted_density * expected)
        # Of a Poisson distribution, as far as it matters.
        by_chance = np.exp(-expected) * np.where(tuning().depleted_density * expected > 1, 1 + expected, 1)
        return max(0.0, float(present @ (is_depleted - by_chance)) / max(1, int(present.sum())))

    def microseconds(self, effort: int | None) -> float:
        """Return the time that a search of the cells takes, apart from exact distances."""
        n_probes, limits = min(self.n_cells, effort or self.n_cells), tuning()
        row = limits.scan_row_ns + limits.scan_byte_ns * self.records.shape[1] / RECORD_ROWS
        n_rows = self.n_rows * (2 if len(self.copies.records) else 1)
        n_chosen_from = self.n_cells if n_probes < self.n_cells else 0
        return float(1e-3 * row * (n_chosen_from + n_probes * n_rows / self.n_cells))

    # --- search ---

    def probes(self, plan: Plan, effort: int | None) -> int:
        """Return how many cells a plan visits."""
        if plan.mode == "scan" or effort is None or self.n_rows < tuning().least_cell_segment_rows:
            return self.n_cells
        return min(self.n_cells, effort)

    def reach(self, n_probes: int) -> float:
        """Return the reach within which queries visit this many cells on average; 0 if each visits as many."""
        if self.calibration is None or n_probes >= self.n_cells:
            return 0.0
        return self.calibration.reach(n_probes)

    def nearest(self, view: View, queries: CodeQueries, plan: Plan) -> BucketResult | None:
        """Return None: Hamming order does not follow cells, so that the rows are to be scanned."""
        return None

    # --- index file ---

    def describe(self) -> dict[str, Any]:
        """Describe the cells apart from their arrays."""
        spilled = {"has_copies": True} if len(self.copies.records) else {}
        packed = {"is_packed": True} if self.is_packed else {}
        measured = describe_calibration(self.calibration) | describe_ranges(self.ranges)
        rounded = {"is_rounded": True} if self.is_rounded else {}
        return {"n_cells": self.n_cells} | spilled | packed | rounded | measured

    def to_arrays(self) -> Arrays:
        """Return the arrays of the cells."""
        starts = {"places": self.places} if self.is_packed else {"starts": _starts_of(np.diff(self.offsets))}
        levels = Rounded.of(self.centroids) if self.is_rounded else None
        return {
            "records": self.records,
            **starts,
            "offsets": self.offsets,
            **({"centroids": levels.levels, "scales": levels.scales} if levels else {"centroids": self.centroids}),
            "centres": self.cell_centres.astype(_centre_type(self.codec), copy=False),
            **({"copies": self.copies.records, "copy_starts": self.copies.starts} if len(self.copies.records) else {}),
        }

    @classmethod
    def from_arrays(cls, described: dict[str, Any], read: ArrayReader, maker: Any, n_rows: int) -> Self:
        """Rebuild cells from a file."""
        codec: ResidualCodec | None = maker.codec
        if codec is None:
            raise ValueError("cells must not be in an index without centres")
        n_cells = as_count(described["n_cells"], "n_cells", most=n_rows)
        records = read("records", np.uint8, None, record_bytes(codec.n_bytes))
        offsets = read("offsets", np.int64, n_cells + 1)
        sizes = np.diff(offsets)
        if offsets[0] != 0 or offsets[-1] != n_rows or (sizes < 0).any():
            raise ValueError(f"offsets of cells must ascend from 0 to {n_rows}")
        places = _load_places(described, read, sizes, len(records))
        is_rounded = as_flag(described.get("is_rounded", False), "is_rounded")
        centroids = read("centroids", np.int8 if is_rounded else np.float32, n_cells, codec.width)
        if is_rounded:
            centroids = Rounded.checked(centroids, read("scales", np.float32, n_cells), _LARGEST**0.5).rows()
        centres = read("centres", _centre_type(codec), n_cells).astype(np.uint16)
        longest = squares(centroids).max(initial=0)
        if not longest <= _LARGEST or centres.max(initial=0) >= len(codec.centres):
            raise ValueError("centroids of cells must be short and finite, and their centres those of the index")
        copies = Copies.none(n_cells, codec.n_bytes)
        if as_flag(described.get("has_copies", False), "has_copies"):
            of_copies = read("copies", np.uint8, None, record_bytes(codec.n_bytes))
            copies = Copies(of_copies, read("copy_starts", np.int64, n_cells + 1))
            if copies.starts[0] != 0 or copies.starts[-1] != len(of_copies) or (np.diff(copies.starts) < 0).any():
                raise ValueError(f"records of copies must ascend from 0 to {len(of_copies)}")
        calibration, ranges = load_calibration(described), load_ranges(described)
        return cls(codec, records, places, offsets, centroids, centres, copies, calibration, ranges, is_rounded)

    def check(self, codes: CodeRows) -> None:
        """Raise CorruptIndexFileError if records hold numbers that no save writes."""
        step = tuning().verify_rows // RECORD_ROWS
        is_first = self._holds_rows()
        for start in range(0, len(self.records), step):
            rows, is_absent = self._checked_rows(self.records[start : start + step])
            expected = is_first[start : start + step]
            if (expected >= 0).any() and not np.array_equal(rows[expected >= 0], expected[expected >= 0]):
                raise CorruptIndexFileError("cells must hold their own rows in order")
            if not np.array_equal(is_absent, expected < 0):
                raise CorruptIndexFileError("cells must hold their own rows alone")

        self._check_copies(step)

    def _check_copies(self, step: int) -> None:
        """Raise CorruptIndexFileError unless each row has at most one copy, in another cell than its own."""
        if not len(self.copies.records):
            return
        for start in range(0, len(self.copies.records), step):
            self._checked_rows(self.copies.records[start : start + step])
        rows, cell, is_there = self.copies.rows(self.codec.n_bytes)
        copied = rows[is_there]
        if copied.size and not 0 <= copied.min() <= copied.max() < self.n_rows:
            raise CorruptIndexFileError(f"copies must be of rows below {self.n_rows}")
        of_copies = np.broadcast_to(cell[:, np.newaxis], rows.shape)[is_there]
        if (np.bincount(copied, minlength=1) > 1).any() or (self.cells_of(copied) == of_copies).any():
            raise CorruptIndexFileError("a row must have one copy at most, in another cell")

    def _checked_rows(self, records: NDArray[np.uint8]) -> tuple[NDArray[np.int32], Mask]:
        """Return the row numbers in some records, and which of them stand for no row, if the numbers are sound."""
        numbers = np.ascontiguousarray(records[:, RECORD_ROWS * self.codec.n_bytes :])
        floats = numbers[:, : 16 * RECORD_ROWS].view("<f4").reshape(len(numbers), 4, RECORD_ROWS)
        is_absent = np.isposinf(floats[:, 1])
        values = np.where(is_absent[:, np.newaxis], 0, floats)
        if not np.isfinite(values).all() or np.abs(values).max(initial=0) > _LARGEST or (values[:, ::2] < 0).any():
            raise CorruptIndexFileError("numbers of residual codes must be finite and in range")
        return numbers[:, 16 * RECORD_ROWS :].view("<i4"), is_absent

    def _holds_rows(self) -> Rows:
        """Return the row that must be at each place of the records, -1 for places that no cell has."""
        expected: Rows = np.full(RECORD_ROWS * len(self.records), -1)
        rows = np.arange(self.n_rows)
        expected[rows + np.repeat(self.places - self.offsets[:-1], np.diff(self.offsets))] = rows
        return expected.reshape(-1, RECORD_ROWS)


def _starts_of(sizes: Rows) -> Rows:
    """Return the first record of each cell, and their number, where each cell begins a new record."""
    return np.concatenate([[0], np.cumsum(-(-sizes // RECORD_ROWS))])


def _load_places(described: dict[str, Any], read: ArrayReader, sizes: Rows, n_records: int) -> Rows:
    """Return the places of cells of a file, by the sizes of the cells."""
    if not as_flag(described.get("is_packed", False), "is_packed"):
        starts: Rows = read("starts", np.int64, len(sizes) + 1)
        if starts[-1] != n_records or not np.array_equal(starts, _starts_of(sizes)):
            raise ValueError(f"records of cells must ascend from 0 to {n_records}, as many as hold their rows")
        return RECORD_ROWS * starts[:-1]
    places: Rows = read("places", np.int64, len(sizes))
    most = RECORD_ROWS * n_records
    if places[0] < 0 or places.max() > most or (places[1:] < (places + sizes)[:-1]).any():
        raise ValueError(f"places of cells must ascend from 0 to {most}, each behind the rows of the cell before it")
    if -(-int(places[-1] + sizes[-1]) // RECORD_ROWS) != n_records:
        raise ValueError(f"cells must end in the last of {n_records} records")
    return places


def _counts_in(offsets: Rows, hidden: Mask) -> Rows:
    """Return how many rows of each cell are not hidden."""
    if not hidden.size:
        return np.diff(offsets)
    before = np.zeros(len(hidden) + 1, dtype=np.int64)
    np.cumsum(~hidden, out=before[1:])
    return np.diff(before[offsets])


def _centre_type(codec: ResidualCodec) -> type[np.unsignedinteger[Any]]:
    """Return the type of centres in files: a byte where that is enough."""
    return np.uint8 if len(codec.centres) <= 256 else np.uint16


# The largest magnitude of a number of a row, and of the squared norm of a centroid: squared norms are up to 1e36.
_LARGEST = 1e37


def without_copies(segment: Segment) -> Segment:
    """Return a segment whose cells have no copies of rows."""
    cells = segment.buckets
    if not isinstance(cells, ResidualCells) or not len(cells.copies.records):
        return segment
    return replace(segment, buckets=replace(cells, copies=Copies.none(cells.n_cells, cells.codec.n_bytes)))
