"""Filters of metadata: mappings of names to values or operators, as other vector stores take them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Test: TypeAlias = Callable[[Mapping[str, Any]], bool]

_MISSING = object()

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
    "$in": lambda value, choices: value in choices,
    "$nin": lambda value, choices: value not in choices,
}
_NEGATIVE = ("$ne", "$nin")


def compiled(wanted: Mapping[str, Any]) -> Test:
    """Turn a filter into a function of metadata. Raises ValueError for an operator that is not known.

    A filter holds if all of its entries hold: `{"year": 2020}`, `{"year": {"$gte": 2000, "$lt": 2010}}`,
    `{"lang": {"$in": ["de", "fr"]}}`, `{"$or": [filter, filter]}`, also `"$and"`, and `{"$not": filter}`. Metadata
    without the name, or with a value that cannot be compared, satisfies "$ne" and "$nin" only.
    """
    if not isinstance(wanted, Mapping):
        raise TypeError(f"filter must be a function or a mapping of names, got {type(wanted).__name__}")
    tests = [_entry(name, value) for name, value in wanted.items()]
    return lambda metadata: all(test(metadata) for test in tests)


def _entry(name: str, value: Any) -> Test:
    """Turn one entry of a filter into a function of metadata."""
    if name in ("$and", "$or"):
        if not isinstance(value, list | tuple) or not value:
            raise ValueError(f"{name} must have a list of filters, got {value!r}")
        tests, combine = [compiled(part) for part in value], all if name == "$and" else any
        return lambda metadata: combine(test(metadata) for test in tests)
    if name == "$not":
        test = compiled(value)
        return lambda metadata: not test(metadata)
    if name.startswith("$"):
        raise ValueError(f"a filter must have names, '$and', '$or' or '$not', got {name!r}")
    if not (isinstance(value, Mapping) and any(str(key).startswith("$") for key in value)):
        value = {"$eq": value}
    parts = [_comparison(name, *part) for part in value.items()]
    return lambda metadata: all(part(metadata) for part in parts)


def _comparison(name: str, symbol: str, wanted: Any) -> Test:
    """Turn a comparison of one name into a function of metadata."""
    if symbol not in _COMPARISONS:
        raise ValueError(f"{name} must be compared by one of {', '.join(_COMPARISONS)}, got {symbol!r}")
    if symbol in ("$in", "$nin") and not isinstance(wanted, list | tuple | set | frozenset):
        raise ValueError(f"{symbol} must have a list of values, got {wanted!r}")
    compare, otherwise = _COMPARISONS[symbol], symbol in _NEGATIVE

    def test(metadata: Mapping[str, Any]) -> bool:
        value = metadata.get(name, _MISSING)
        if value is _MISSING:
            return otherwise
        try:
            return bool(compare(value, wanted))
        except TypeError:  # a string and a number have no order
            return otherwise

    return test
