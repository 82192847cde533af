"""Validation of ids."""

from __future__ import annotations

from collections.abc import Set, ValuesView
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._core.typing import Ids

# Messages name up to this many ids.
_MOST_NAMED = 100


def as_ids(ids: Any, name: str, *, n: int | None = None, unknown: bool = False) -> Ids:
    """Return ids as int64 of shape (n,).

    With `n`, there must be `n` unique ids. Negative ids are an error, unless the ids may be `unknown` to the index.
    """
    array = listed(ids)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got dtype {array.dtype}")
    if array.ndim != 1 or (n is not None and len(array) != n):
        raise ValueError(f"{name} must have shape ({'n' if n is None else n},), got {array.shape}")
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} must fit int64, got {array.max()}")
    result = array.astype(np.int64)
    if not unknown and result.size and result.min() < 0:
        raise ValueError(f"{name} must be 0 or more, got {result.min()}")
    if n is not None and not (result[1:] > result[:-1]).all():
        ordered = np.sort(result)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if twice.size:
            raise ValueError(f"{name} must not repeat, {twice[0]} does")
    return result


def listed(ids: Any, ordered_for: str | None = None) -> NDArray[Any]:
    """Return ids as an array, also those of sets and of the views of a dictionary.

    With `ordered_for`, the name of the argument, sets are an error: each id belongs to a row, and sets have no order.
    """
    if isinstance(ids, np.ndarray):
        return ids
    if ordered_for and isinstance(ids, set | frozenset):
        raise TypeError(f"{ordered_for} must be in the order of the rows, got a {type(ids).__name__}")
    return np.asarray(list(ids) if isinstance(ids, Set | ValuesView) else ids)


def missing_text(missing: Ids) -> str:
    """Say which ids are not in the index: all of them, up to a hundred."""
    if len(missing) == 1:
        return f"id {missing[0]} is not in the index"
    more = f" and {len(missing) - _MOST_NAMED:,} more" if len(missing) > _MOST_NAMED else ""
    return f"ids {', '.join(map(str, missing[:_MOST_NAMED]))}{more} are not in the index"


def as_filter(ids: ArrayLike | None, name: str) -> Ids | None:
    """Return the ids of a filter, ascending and unique; they need not exist in the index."""
    if ids is None:
        return None
    given = as_ids(ids, name, unknown=True)
    if (given[1:] > given[:-1]).all():
        return given
    ordered = np.sort(given)  # np.unique uses a hash table, which takes ten times as long
    distinct: Ids = ordered[np.append(True, ordered[1:] > ordered[:-1])]
    return distinct


def is_id(value: object) -> bool:
    """Return whether `value` is a valid id."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= int(value) < 2**63
