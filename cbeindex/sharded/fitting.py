"""One encoder for all shards: when an index is fitted, to which rows, and which rows it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._core.tuning import tuning
from ..data.source import VectorSource
from ..data.sparserows import SparseRows
from ..index import CBEIndex


def first_rows(index: CBEIndex, X: Any) -> tuple[Any, bool]:
    """Return the rows of `X` that an index which is not fitted would fit itself to, and whether they are enough."""
    source, state = VectorSource(X, index.dim), index._state
    if state.rows.next_id == 0:
        state = state.keeping(source.is_sparse)
    rows, is_enough = state.ingest.read_first(source, state.rows)
    return rows.to_csr(index.dim) if isinstance(rows, SparseRows) else rows, is_enough


def sample_of(template: CBEIndex, stored: Any | None, X: Any) -> Any | None:
    """Return the rows that a single index with the rows `stored` fits itself to when it is given `X`.

    None if the rows are not enough yet. The template is an index without rows, and gets those of `stored`.
    """
    if stored is not None:
        first, is_enough = first_rows(template, stored)
        if is_enough:  # several clients have added rows at once
            return first
        template.add(stored)
    first, is_enough = first_rows(template, X)
    if not is_enough:
        return None
    return first if stored is None else stacked([stored, first])


def check_rows(template: CBEIndex, X: Any) -> VectorSource:
    """Raise the error that `add` would raise about the shape or the values of rows, before any shard has them."""
    source = VectorSource(X, template.dim)
    step = max(1, tuning().encode_step_values // template.dim)
    for first, block in source.own_blocks(step, check_finite=False):
        template._state.ingest.check(source, first, block)
    return source


def stacked(parts: list[Any]) -> Any:
    """Return dense or sparse rows one after the other."""
    if len(parts) == 1:
        return parts[0]
    if any(not isinstance(part, np.ndarray) for part in parts):
        from scipy import sparse

        return sparse.vstack([sparse.csr_array(part) for part in parts], format="csr")
    return np.concatenate(parts)
