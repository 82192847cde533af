"""A memo: what was computed from something that does not change, by the options of a call."""

from __future__ import annotations

from typing import Any

from .tuning import tuning

# Types whose values cannot change and are equal to no value of another of these types: 1 == True == 1.0.
_PLAIN = frozenset((int, str, type(None)))
_NUMBERS = frozenset((float, type(None)))
# Values that are kept. Most callers search with the same options again and again.
_MOST = 8


class Memo:
    """The values of some calls, by their options, while the constants of `tuning` stay the same."""

    __slots__ = ("_tuning", "_values")

    def __init__(self) -> None:
        self._tuning, self._values = tuning(), dict[tuple[Any, ...], Any]()

    def get(self, options: tuple[Any, ...], number: float | None = None) -> Any:
        """Return the value for these options, None if there is none or an option is not of a plain type.

        `number` is an option that is a float or None.
        """
        if type(number) not in _NUMBERS or not _PLAIN.issuperset(map(type, options)):
            return None
        return self._values.get((number, options)) if self._tuning is tuning() else None

    def put(self, options: tuple[Any, ...], value: Any, number: float | None = None) -> None:
        """Keep a value, unless an option is not of a plain type."""
        if type(number) not in _NUMBERS or not _PLAIN.issuperset(map(type, options)):
            return
        if self._tuning is not tuning() or len(self._values) >= _MOST:
            self._tuning, self._values = tuning(), {}
        self._values[number, options] = value
