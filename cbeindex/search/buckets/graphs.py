"""Graphs of residual codes: a search walks from row to row towards the query.

Every row of a segment is a vertex with 32 neighbours. Its record holds the codes of their residuals, so that one step
of a walk estimates 32 distances (`kernels/records.py`). Rows stay in the order of ids. A row is encoded once, when it
is added (`distances/vertices.py`), and segments are joined without vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..._core.tuning import tuning
from ..._core.typing import Arrays
from ...data.codes import CodeRows
from ...distances.vertices import RecordVertices, VertexCodec
from ...errors import CorruptIndexFileError
from ..calibration import Calibration, describe_calibration, load_calibration
from ..plan import Cost, Plan, Selection
from ..queries import CodeQueries
from ..view import View
from .base import ArrayReader, BucketResult, Buckets
from .graph_building import DEGREE, neighbours_of

# The largest magnitude of a number of a record: squared norms are up to 1e36.
_LARGEST = 1e37


@dataclass(frozen=True)
class VertexGraph(Buckets):
    """The graph of a segment.

    Attributes
    ----------
    codec : VertexCodec
    records : uint8 array of shape (n_rows, bytes of a record)
    entries : uint8 array of shape (1, bytes of a record)
        The record whose neighbours walks start from.
    longest : float
        Norm of the longest row where products count.
    calibration : Calibration, or None
        What a beam finds; None for few rows.
    """

    codec: VertexCodec
    records: NDArray[np.uint8]
    entries: NDArray[np.uint8]
    longest: float
    calibration: Calibration | None = None

    kind: ClassVar[str] = "graph"
    stores_codes_by_row: ClassVar[bool] = False
    reorders_rows: ClassVar[bool] = False
    stored_columns: ClassVar[tuple[str, ...]] = ("vertices",)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.records)

    @property
    def nbytes(self) -> int:
        """Bytes of the records."""
        return self.records.nbytes + self.entries.nbytes

    def columns(self) -> dict[str, Any]:
        """Return the column of a segment that records hold."""
        return {"vertices": RecordVertices(self.records, self.codec.shape)}

    # --- planner ---

    def expected_cost(self, k: int, n_probes: int | None, code_bytes: int) -> Cost:
        """Return the steps of a walk, each of which reads a record."""
        beam = self.walked_beam(n_probes)
        if beam == 0:
            return Cost(self.n_rows, self.n_rows * self.codec.shape.column.row_bytes)
        return Cost(beam, beam * self.records.shape[1])

    def default_beam(self, k: int) -> int:
        """Return the beam for `k` results."""
        if self.calibration is None:
            return max(k, self.widest_beam)
        depth = self.calibration.depth_of(1, 1 + tuning().graph_candidate_share)
        setting = self.calibration.least(k, depth, tuning().explicit_recall, self.widest_beam)
        return max(k, setting.effort or self.widest_beam)

    @property
    def most_effort(self) -> int:
        """The beam from which on rows are scanned."""
        return self.widest_beam

    def depleted(self, selection: Selection) -> float:
        """Return 1 if visible rows have more neighbours among them than random rows would have, and 0 otherwise."""
        rows = selection.visible_rows()
        is_visible = np.zeros(self.n_rows, dtype=np.bool_)
        is_visible[rows] = True
        some = rows[:: max(1, len(rows) // tuning().clump_sample_rows)]
        neighbours = neighbours_of(self.records[some], self.codec.shape.n_columns)
        is_valid = (neighbours >= 0) & (neighbours < self.n_rows)
        if not is_valid.any():
            return 0.0
        share, found = len(rows) / max(1, self.n_rows), float(is_visible[neighbours[is_valid]].mean())
        return float(found > share + (1 - tuning().clumped_share) * (1 - share))

    def microseconds(self, effort: int | None) -> float:
        """Return the time that a walk takes, or a scan, apart from exact distances."""
        step = tuning().graph_step_ns + tuning().graph_byte_ns * self.records.shape[1]
        n_steps = effort if effort is not None else self.n_rows / max(1, tuning().graph_step_rows)
        return float(1e-3 * step * n_steps)

    # --- search ---

    def walked_beam(self, effort: int | None) -> int:
        """Return the beam of a walk; 0 where a scan takes no longer, and for an effort of everything."""
        if effort is None or effort * tuning().graph_step_rows > self.n_rows:
            return 0
        return min(effort, self.widest_beam)

    @property
    def widest_beam(self) -> int:
        """The beam beyond which a scan is faster; at most one that has room for all edges."""
        least = max(1, tuning().graph_step_rows)
        return max(1, self.n_rows // least) if tuning().graph_step_rows else (DEGREE + 1) * self.n_rows + DEGREE

    def nearest(self, view: View, queries: CodeQueries, plan: Plan) -> BucketResult | None:
        """Return None: Hamming order does not follow the graph, so that the rows are to be scanned."""
        return None

    # --- index file ---

    def describe(self) -> dict[str, Any]:
        """Describe the graph apart from its records."""
        return {"longest": self.longest} | describe_calibration(self.calibration)

    def to_arrays(self) -> Arrays:
        """Return the records."""
        return {"records": self.records, "entries": self.entries}

    @classmethod
    def from_arrays(cls, described: dict[str, Any], read: ArrayReader, maker: Any, n_rows: int) -> Self:
        """Rebuild a graph from a file. Neighbours are checked by the walks that meet them."""
        codec: VertexCodec | None = maker.codec
        if codec is None:
            raise ValueError("a graph must not be in an index that is not fitted")
        size, longest = codec.shape.record_bytes, described["longest"]
        if type(longest) is not float or not 0 <= longest <= _LARGEST:
            raise ValueError(f"the longest row of a graph must have a norm from 0 to {_LARGEST:g}, got {longest!r}")
        records, entries = read("records", np.uint8, n_rows, size), read("entries", np.uint8, 1, size)
        return cls(codec, records, entries, longest, load_calibration(described))

    def check(self, codes: CodeRows) -> None:
        """Raise CorruptIndexFileError if records hold values that no save writes."""
        step = max(1, tuning().verify_rows // DEGREE)
        for start in range(0, self.n_rows, step):
            self._check_records(self.records[start : start + step])
        self._check_records(self.entries)

    def _check_records(self, records: NDArray[np.uint8]) -> None:
        shape = self.codec.shape
        neighbours = neighbours_of(records, shape.n_columns)
        is_absent = neighbours == -1
        if ((neighbours < 0) & ~is_absent).any() or neighbours.max(initial=-1) >= self.n_rows:
            raise CorruptIndexFileError(f"neighbours in a graph must be below {self.n_rows}")
        start = 4 * shape.n_columns
        numbers = np.ascontiguousarray(records[:, start : start + 8 * DEGREE]).view("<f4").reshape(-1, 2, DEGREE)
        factors, offsets = np.where(is_absent, 0, numbers[:, 0]), np.where(is_absent, 0, numbers[:, 1])
        if not np.isposinf(numbers[:, 1][is_absent]).all():
            raise CorruptIndexFileError("neighbours that a graph does not have must be infinitely far")
        for values in (factors, offsets):
            if not np.isfinite(values).all() or np.abs(values).max(initial=0) > _LARGEST:
                raise CorruptIndexFileError("numbers of a graph must be finite and in range")
        if (factors < 0).any():
            raise CorruptIndexFileError("factors in a graph must not be negative")
        self.codec.check(np.ascontiguousarray(records[:, shape.vertex_at : shape.vertex_at + shape.column.row_bytes]))
