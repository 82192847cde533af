"""Checks of arguments: each function returns the value in its canonical type, or raises an error with the rule."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .memory import memory_bytes
from .typing import Arrays

MOST_DIM = 2**31 - 64
"""Columns of sparse vectors are int32, and so is `n_bits`, `dim` by default, rounded up to whole words."""

MOST_BITS = 2**31 - 1
"""Hamming distances are int32."""

MOST_SEED = 2**128 - 1
"""Seeds have 128 bits, as numpy recommends."""

MOST_ITERATIONS = 10_000
"""Far beyond the tens of iterations after which training converges."""

# Messages show numbers of up to this many digits.
_MOST_DIGITS = 50


def as_count(value: Any, name: str, *, least: int = 1, most: int = 2**63 - 1) -> int:
    """Return `value` as an int from `least` to `most`, by default the largest int64."""
    try:
        count = operator.index(value)
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}") from None
    if count < least:
        raise ValueError(f"{name} must be at least {least}, got {_number_text(count)}")
    if count > most:
        raise ValueError(f"{name} must be at most {most}, got {_number_text(count)}")
    return count


def _number_text(number: int) -> str:
    """Return the digits of a number, or their count if there are too many for a message."""
    n_digits = int(number.bit_length() * 0.30103) + 1
    return str(number) if n_digits <= _MOST_DIGITS else f"a number of about {n_digits} digits"


def as_iterations(value: Any, name: str) -> int:
    """Return `value` as a number of training iterations."""
    return as_count(value, name, most=MOST_ITERATIONS)


def as_seed(value: Any, name: str) -> int:
    """Return `value` as a seed."""
    return as_count(value, name, least=0, most=MOST_SEED)


def require_memory(n_bytes: int, what: str) -> None:
    """Raise MemoryError if `what` exceeds the memory that this process may use, before any of it is allocated."""
    if n_bytes > memory_bytes():
        raise MemoryError(f"{what} needs {n_bytes / 1e9:,.3g} GB, this process may use {memory_bytes() / 1e9:,.3g} GB")


def as_positive(value: Any, name: str, *, zero: bool = False) -> float:
    """Return `value` as a finite float above 0 (or at least 0 with `zero`)."""
    number = _as_float(value, name)
    if not (0 <= number < float("inf")) or (number == 0 and not zero):
        raise ValueError(f"{name} must be finite and {'at least' if zero else 'above'} 0, got {value!r}")
    return number


def as_real(value: Any, name: str) -> float:
    """Return `value` as a float that is not NaN."""
    number = _as_float(value, name)
    if number != number:
        raise ValueError(f"{name} must not be NaN")
    return number


def _as_float(value: Any, name: str) -> float:
    if isinstance(value, (bool, np.bool_, str, bytes)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    except OverflowError:
        raise ValueError(f"{name} must fit a float, got {_number_text(int(value))}") from None


def as_probability(value: Any, name: str) -> float:
    """Return `value` as a float between 0 and 1, both excluded."""
    number = as_positive(value, name)
    if number >= 1:
        raise ValueError(f"{name} must be below 1, got {value!r}")
    return number


def as_share(value: Any, name: str) -> float:
    """Return `value` as a float above 0 and at most 1."""
    number = as_real(value, name)
    if not 0 < number <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1, got {value!r}")
    return number


def as_flag(value: Any, name: str) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def as_choice(value: Any, name: str, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def as_missing(value: Any) -> bool:
    """Return whether ids that are not in the index are ignored, from the argument `missing`."""
    return as_choice(value, "missing", ("raise", "ignore")) == "ignore"


def dtype_name(value: Any) -> Any:
    """Return the name of a numpy dtype or scalar type, "float32" for True, None for False, and other values as is."""
    if isinstance(value, (bool, np.bool_)):
        return "float32" if value else None
    is_dtype = isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic))
    return np.dtype(value).name if is_dtype else value


def as_array(arrays: Arrays, name: str, dtype: Any, shape: tuple[int | None, ...]) -> NDArray[Any]:
    """Return a copy of `arrays[name]` if it has this dtype and shape, where None stands for any size."""
    array = arrays[name]
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be an array, got {type(array).__name__}")
    fits = array.ndim == len(shape) and all(want in (None, got) for got, want in zip(array.shape, shape, strict=True))
    if array.dtype != dtype or not fits:
        wanted = f"{np.dtype(dtype)} of shape {tuple(shape)}"
        raise ValueError(f"{name} must be {wanted}, got {array.dtype} of shape {array.shape}")
    return array.copy()
