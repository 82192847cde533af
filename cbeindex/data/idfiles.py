"""Files of ids: integers or strings, one for each vector."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from .ids import AnyIds, as_any_ids
from .npyfiles import HEAD_BYTES, npy_layout


def read_ids(path: str | os.PathLike[str], n: int) -> AnyIds:
    """Read unique ids of `n` vectors.

    Parameters
    ----------
    path : str or path-like
        A `.npy` file of integers or strings, of shape (n,), (n, 1) or (1, n), or a `.txt` file in UTF-8 with a string
        on each line.
    n : int
    """
    name = os.fspath(path)
    suffix = Path(name).suffix.lower()
    if suffix == ".txt":
        return as_any_ids(_lines(name), name, n=n)
    if suffix != ".npy":
        raise ValueError(f"{name} must end in .npy or .txt, got {suffix!r}")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        layout = npy_layout(file.read(HEAD_BYTES), size, name)
        if max(layout.shape, default=0) != np.prod(layout.shape, dtype=np.int64) or layout.shape in ((), (0,)):
            raise ValueError(f"{name} must have shape ({n},), got {layout.shape}")
        values = np.memmap(file, layout.dtype, "r", layout.offset, layout.shape, layout.order)
        return as_any_ids(np.array(values).reshape(-1), name, n=n)


def _lines(name: str) -> list[str]:
    """Read the lines of a text file."""
    with open(name, encoding="utf-8", newline=None) as file:
        try:
            lines = file.read().split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name} must be text in UTF-8: {error.reason} at byte {error.start}") from None
    return lines[:-1] if lines[-1] == "" else lines
