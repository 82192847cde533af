"""Ids of either type: integers as an int64 array, strings as a list."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..data.ids import as_ids, listed


def checked_ids(ids: Any, n: int | None = None) -> tuple[Any, str]:
    """Return ids and their type, "int" or "str"; with `n`, there must be `n` distinct ones."""
    values = np.atleast_1d(np.asarray(ids, dtype=object) if _are_strings(ids) else listed(ids, "ids" if n else None))
    if values.dtype != object:
        return as_ids(values, "ids", n=n), "int"
    if values.ndim != 1 or (n is not None and len(values) != n):
        raise ValueError(f"ids must have shape ({'n' if n is None else n},), got {values.shape}")
    texts = [_text(value) for value in values]
    if n is not None and len(set(texts)) != n:
        twice = next(text for i, text in enumerate(texts) if text in texts[:i])
        raise ValueError(f"ids must not repeat, {twice!r} does")
    return texts, "str"


def take(ids: Any, rows: Any) -> Any:
    """Return some of the ids."""
    return ids[rows] if isinstance(ids, np.ndarray) else [ids[row] for row in rows]


def _are_strings(ids: Any) -> bool:
    if isinstance(ids, str):
        return True
    dtype = getattr(ids, "dtype", None)
    if dtype is not None:
        return bool(np.dtype(dtype).kind in "UTO") if isinstance(dtype, np.dtype) else False
    return isinstance(ids, list | tuple) and any(isinstance(id_, str) for id_ in ids)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"ids must be all integers or all strings, got {type(value).__name__}")
    return str(value)
