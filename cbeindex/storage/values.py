"""Checked access to the values that an index file holds.

A file may hold anything, so no value is used before its presence, type and range are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import CorruptIndexFileError


@contextmanager
def reporting_damage(path: Path) -> Iterator[None]:
    """Turn the errors that invalid values cause into a CorruptIndexFileError that names the file.

    Wrap only code whose input comes from the file. KeyError, TypeError and ValueError then mean that a value is missing
    or invalid. Other exceptions, such as MemoryError, say nothing about the file and pass through.
    """
    try:
        yield
    except KeyError as error:
        raise CorruptIndexFileError(f"{path}: {error.args[0]!r} is missing") from error
    except (TypeError, ValueError) as error:
        raise CorruptIndexFileError(f"{path}: {error}") from error
    except CorruptIndexFileError as error:
        raise CorruptIndexFileError(f"{path}: {error}") from None


def value_of(values: Any, name: str, kind: type = object) -> Any:
    """Return the value `name` of a JSON object; raise ValueError if it is missing or not of type `kind`."""
    if not isinstance(values, dict):
        raise ValueError(f"{name!r} must be in an object, got {type(values).__name__}")
    if name not in values:
        raise ValueError(f"{name!r} is missing")
    if not isinstance(values[name], kind):
        raise ValueError(f"{name!r} must be of type {kind.__name__}, got {type(values[name]).__name__}")
    return values[name]
