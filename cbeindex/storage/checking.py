"""The checks of `verify` that read every row of an index file.

Checksums find accidental damage. These checks find values that no save writes, whatever the checksums say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._core.tuning import tuning
from ..data.codes import CodeRows
from ..data.names import NAMES, shown
from ..data.sparserows import SparseRows, VectorRows
from ..distances.metrics import Metric, squares
from ..errors import CorruptIndexFileError
from ..store.namefinder import repeated
from ..store.rowstore import RowStore
from ..store.segment import Segment
from ..store.snapshot import Snapshot

# Largest magnitudes of column values. Vectors have norms up to 1e18, so squared norms are up to 1e36. Factors and
# spreads are multiplied by the norm of a query. Sums of a few such values stay within float32.
_LARGEST_VALUES = {"offsets": 1e37, "factors": 1e19, "spreads": 1e19}


def check_rows(segments: Sequence[Segment], rows: RowStore, metric: Any) -> None:
    """Raise CorruptIndexFileError if loaded segments hold values that no save writes."""
    for segment in segments:
        segment.check(rows.columns)
        for name, column in segment.columns.items():
            if name == NAMES:
                continue
            _check_values(name, column, _LARGEST_VALUES.get(name, float("inf")))
            if name == "vectors":
                _check_norms(column, Metric(metric).longest)
        if _has_spare_bits(segment.codes, rows.n_bits):
            raise CorruptIndexFileError(f"codes must be 0 past bit {rows.n_bits - 1}")
    Snapshot(tuple(segments)).ids()  # refuses repeated ids
    if rows.has_names:
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
        if name in ("factors", "spreads") and (block < 0).any():
            raise CorruptIndexFileError(f"{name} must not be negative")


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
