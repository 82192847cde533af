"""Packages that only some modules need: the extras of pyproject.toml."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Turn a failed import into an error that says which extra of cbeindex installs the package."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f'this module needs {error.name}, which is not installed: pip install "cbeindex[{extra}]"'
        raise ModuleNotFoundError(message, name=error.name) from error
