"""The checks that read every row of an index file.

Checksums find accidental damage. These checks find values that no save writes, whatever the checksums say. `verify`
makes them, and so does all that copies rows of a file: encoders, makers of buckets and kernels rely on sound rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._core.tuning import tuning
from ..data.codes import CodeRows
from ..data.columns import Column
from ..data.names import NAMES, shown
from ..data.sparserows import SparseRows, VectorRows
from ..distances.estimator import LARGEST_SCALARS
from ..distances.keptcodec import heads_of
from ..distances.metrics import Metric, squares
from ..errors import CorruptIndexFileError
from ..search.buckets.graphmaker import GraphMaker
from ..store.namefinder import repeated
from ..store.rowstore import RowStore
from ..store.segment import Arranger, Segment
from ..store.snapshot import Snapshot
from .commits import Stored
from .sections import MappedArrays
from .settings import n_kept_centres
from .values import reporting_damage

_LARGEST_HEAD = 1e37


@dataclass(frozen=True)
class RowRules:
    """What every segment of an index file must comply with.

    Attributes
    ----------
    columns : dict of str to Column
    n_bits : int
        Bits of a stored code.
    maker : Arranger, or None
    metric : str, or None for codes alone
    n_centres : int
        Centres that kept vectors of 4 or 8 bits are relative to.
    """

    columns: dict[str, Column]
    n_bits: int
    maker: Arranger | None
    metric: str | None
    n_centres: int

    @classmethod
    def of(cls, stored: Stored, rows: RowStore) -> RowRules:
        """Return the rules of a file whose rows go to the store `rows`."""
        metric = stored.content.get("metric")
        return cls(rows.columns, rows.n_bits, rows.buckets, metric, n_kept_centres(stored.arrays))

    def check(self, segment: Segment) -> None:
        """Raise CorruptIndexFileError if a segment holds values that no save writes."""
        segment.check(self.columns)
        for name, column in segment.columns.items():
            if name == NAMES:
                continue
            _check_values(name, column, LARGEST_SCALARS.get(name, float("inf")))
            if name == "vectors" and self.columns[name].dtype == np.uint8:
                _check_heads(column, self.n_centres)
            elif name == "vertices" and isinstance(column, np.ndarray):  # those of a graph are checked with it
                assert isinstance(self.maker, GraphMaker)
                _check_vertices(self.maker, column)
            elif name == "vectors":
                _check_norms(column, Metric(str(self.metric)).longest)
        if _has_spare_bits(segment.codes, self.n_bits):
            raise CorruptIndexFileError(f"codes must be 0 past bit {self.n_bits - 1}")


@dataclass
class FileOrigin:
    """The part of an index file that a segment comes from.

    Attributes
    ----------
    path : Path
    rules : RowRules
    mapped : MappedArrays, or None if arrays were read, which compares their checksums
    """

    path: Path
    rules: RowRules
    mapped: MappedArrays | None
    _is_checked: bool = False

    def check(self, segment: Segment) -> None:
        """Raise CorruptIndexFileError if a checksum or a value is wrong. The first call reads the whole segment."""
        if self._is_checked:
            return
        if self.mapped is not None:
            self.mapped.check()
        with reporting_damage(self.path):
            self.rules.check(segment)
        self._is_checked = True


def check_together(segments: Sequence[Segment], has_names: bool) -> None:
    """Raise CorruptIndexFileError if segments of a file have ids or names in common."""
    Snapshot(tuple(segments)).ids()  # refuses repeated ids
    if has_names:
        live = [s.columns[NAMES][np.flatnonzero(~s.removed)] if s.removed.size else s.columns[NAMES] for s in segments]
        twice = repeated(live)
        if twice is not None:
            raise CorruptIndexFileError(f"names must be unique, {shown(twice)} is repeated")


def _check_values(name: str, column: Any, largest: float) -> None:
    """Raise CorruptIndexFileError unless all values of a column are finite and within bounds."""
    values = column.values if isinstance(column, SparseRows) else column
    step = tuning().verify_rows
    for start in range(0, len(values), step):
        block = values[start : start + step]
        if not np.isfinite(block).all():
            raise CorruptIndexFileError(f"{name} must be finite")
        if float(np.abs(block).max(initial=0)) > largest:
            raise CorruptIndexFileError(f"{name} must be at most {largest:g}, got {np.abs(block).max():g}")
        if name in ("factors", "spreads", "norms") and (block < 0).any():
            raise CorruptIndexFileError(f"{name} must not be negative")


def _check_heads(column: Any, n_centres: int) -> None:
    """Raise CorruptIndexFileError unless the numbers of kept vectors of 4 or 8 bits are finite and in range."""
    step = tuning().verify_rows
    for start in range(0, len(column), step):
        factors, offsets, spreads, centres = heads_of(column[start : start + step], n_centres)
        for values in (factors, offsets, spreads):
            if not np.isfinite(values).all() or np.abs(values).max(initial=0) > _LARGEST_HEAD:
                raise CorruptIndexFileError(f"numbers of kept vectors must be finite and at most {_LARGEST_HEAD:g}")
        if (factors < 0).any() or (spreads < 0).any():
            raise CorruptIndexFileError("factors and spreads of kept vectors must not be negative")
        if centres.max(initial=0) >= n_centres:
            raise CorruptIndexFileError(f"centres of kept vectors must be below {n_centres}, got {centres.max()}")


def _check_vertices(maker: GraphMaker, column: Any) -> None:
    """Raise CorruptIndexFileError if vertices hold values that no row gives."""
    assert maker.codec is not None
    step = tuning().verify_rows
    for start in range(0, len(column), step):
        maker.codec.check(column[start : start + step])


def _check_norms(vectors: VectorRows, longest: float) -> None:
    """Raise CorruptIndexFileError if the squared norm of a finite vector is above `longest`."""
    step = tuning().verify_rows
    for start in range(0, len(vectors), step):
        largest = squares(vectors[start : start + step]).max(initial=0)
        if largest > longest:
            raise CorruptIndexFileError(f"vectors must have norms up to {longest**0.5:g}, got {largest**0.5:g}")


def _has_spare_bits(codes: CodeRows, n_bits: int) -> bool:
    """Tell whether any code has a 1 past bit `n_bits - 1`."""
    return n_bits % 64 > 0 and bool((codes.blocks[:, -1] >> np.uint64(n_bits % 64)).any())
