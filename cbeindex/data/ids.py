"""Validation of ids: integers, or strings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set, ValuesView
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from .._core.typing import Ids, Mask
from .names import Names, shown

AnyIds: TypeAlias = Ids | Names
"""Ids as the caller has them: integers, or names."""


@dataclass(frozen=True)
class Numbers:
    """The ids that rows have inside of an index whose ids are names: int64, ascending."""

    ids: Ids


# Messages name up to this many ids.
_MOST_NAMED = 100


def as_ids(ids: Any, name: str, *, n: int | None = None, unknown: bool = False) -> Ids:
    """Return ids as int64 of shape (n,).

    With `n`, there must be `n` unique ids. Negative ids are an error, unless the ids may be `unknown` to the index.
    """
    array = listed(ids)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind in "UT":  # lists of strings have been found before, so there were others among them
        raise TypeError(f"{name} must be integers, or a list of strings alone, got dtype {array.dtype}")
    if array.dtype.kind not in "iu":
        first = f" that begins with {type(array.flat[0]).__name__}" if array.dtype == object else ""
        raise TypeError(f"{name} must be integers or strings, got dtype {array.dtype}{first}")
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


def as_any_ids(ids: Any, name: str, *, n: int | None = None, is_ordered: bool = True) -> AnyIds:
    """Return one or more ids as int64 of shape (n,), or as names.

    With `n`, there must be `n` unique ids. Where ids are in the order of rows, `is_ordered`, sets are an error.
    """
    if is_ordered:
        _refuse_sets(ids, name)
    strings = _as_strings(ids, name)
    return as_ids(np.atleast_1d(listed(ids)), name, n=n) if strings is None else as_names(strings, name, n=n)


def is_one(ids: Any) -> bool:
    """Return whether a caller has passed one id, and not a list of them."""
    return isinstance(ids, str) or listed(ids).ndim == 0


def as_names(strings: list[Any], name: str, *, n: int | None = None) -> Names:
    """Encode ids that are strings. With `n`, there must be `n` unique ids."""
    for place, string in enumerate(strings):
        if not isinstance(string, str):
            kind = type(string).__name__
            if kind in ("NoneType", "NAType") or (isinstance(string, float) and string != string):
                kind = "a missing value"
            raise TypeError(f"{name} must be all strings or all integers, got {kind} beside strings, at {place}")
        if not string:
            raise ValueError(f"{name} must not be empty strings, got one at {place}")
    if n is not None and len(strings) != n:
        raise ValueError(f"{name} must have shape ({n},), got ({len(strings)},)")
    if n is not None and len(set(strings)) < n:
        seen: set[str] = set()
        twice = next(string for string in strings if string in seen or seen.add(string))  # type: ignore[func-returns-value]
        raise ValueError(f"{name} must not repeat, {shown(twice)} does")
    try:
        return Names.of(strings)
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} must be Unicode without surrogates, got {shown(error.object)}") from None


def _as_strings(ids: Any, name: str) -> list[Any] | None:
    """Return ids as a list if the first of them is a string, otherwise None."""
    if isinstance(ids, (str, Names)):
        return [ids] if isinstance(ids, str) else ids.tolist()
    if hasattr(ids, "__array__"):  # numpy, Arrow, and the columns of data frames
        array = np.asarray(ids)
        if array.dtype.kind not in "UTO":
            return None
        if array.ndim > 1:
            raise ValueError(f"{name} must have shape (n,), got {array.shape}")
        ids = np.atleast_1d(array).tolist()
    if not isinstance(ids, Collection):
        return None
    return list(ids) if isinstance(next(iter(ids), None), str) else None


def listed(ids: Any, ordered_for: str | None = None) -> NDArray[Any]:
    """Return ids as an array, also those of sets and of the views of a dictionary.

    With `ordered_for`, the name of the argument, sets are an error: each id belongs to a row, and sets have no order.
    """
    if isinstance(ids, np.ndarray):
        return ids
    if ordered_for:
        _refuse_sets(ids, ordered_for)
    if isinstance(ids, range):
        return np.arange(ids.start, ids.stop, ids.step)
    return np.asarray(list(ids) if isinstance(ids, Set | ValuesView) else ids)


def _refuse_sets(ids: Any, name: str) -> None:
    """Raise TypeError if ids that belong to rows have no order."""
    if isinstance(ids, set | frozenset):
        raise TypeError(f"{name} must be in the order of the rows, got a {type(ids).__name__}")


def distinct(ids: AnyIds, chosen: Mask) -> list[Any]:
    """Return some of `ids`, each of them once, integers ascending and strings in their order."""
    if not isinstance(ids, Names):
        return list(np.unique(ids[chosen]).tolist())
    return list(dict.fromkeys(ids[np.flatnonzero(chosen)]))


def missing_text(missing: Sequence[int | str]) -> str:
    """Say which ids are not in the index: all of them, up to a hundred."""
    if len(missing) == 1:
        return f"id {shown(missing[0])} is not in the index"
    more = f" and {len(missing) - _MOST_NAMED:,} more" if len(missing) > _MOST_NAMED else ""
    return f"ids {', '.join(map(shown, missing[:_MOST_NAMED]))}{more} are not in the index"


def as_filter(ids: Any, name: str) -> AnyIds | Mask | None:
    """Return the ids of a filter, integers ascending and unique, or a mask over all ids. Ids need not exist."""
    if ids is None:
        return None
    if isinstance(ids, Iterator):
        kind = type(ids).__name__
        raise TypeError(
            f"{name} must be a list, set or array of ids, got a {kind}, which can be read once: use list(...)"
        )
    strings = None if isinstance(ids, str) else _as_strings(ids, name)  # one id, as one integer, is not a filter
    if strings is not None:
        return as_names(strings, name)
    array = listed(ids)
    if array.dtype == np.bool_ and array.ndim == 1:
        return array
    given = as_ids(array, name, unknown=True)
    if (given[1:] > given[:-1]).all():
        return given
    ordered = np.sort(given)  # np.unique uses a hash table, which takes ten times as long
    distinct: Ids = ordered[np.append(True, ordered[1:] > ordered[:-1])]
    return distinct


def is_id(value: object) -> TypeGuard[int | str]:
    """Return whether `value` is a valid id: a non-negative integer, or a string that UTF-8 can hold."""
    if isinstance(value, str):
        return bool(value) and not any("\ud800" <= character <= "\udfff" for character in value)
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= int(value) < 2**63
