"""Ids of either type: integers as an int64 array, strings as a list."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.ids import as_any_ids
from ..data.names import Names


def checked_ids(ids: Any, n: int | None = None) -> tuple[Any, str]:
    """Return ids and their type, "int" or "str"; with `n`, there must be `n` distinct ones, in the order of rows."""
    checked = as_any_ids(ids, "ids", n=n, is_ordered=n is not None)
    return (checked.tolist(), "str") if isinstance(checked, Names) else (checked, "int")


def take(ids: Any, rows: Any) -> Any:
    """Return some of the ids."""
    return ids[rows] if isinstance(ids, np.ndarray) else [ids[row] for row in rows]
