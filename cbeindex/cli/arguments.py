"""What the parsers of all commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

FORMATS = """\
formats of vector files, by suffix:
  .npy                   numpy.save: shape (n, dim), real numbers of any type
  .npz                   numpy.savez (--key chooses one of several arrays), or a
                         sparse array (CSR, CSC, COO) of scipy.sparse.save_npz
  .fvecs .ivecs .bvecs   each vector after its length (int32), in float32,
                         int32, uint8, as at corpus-texmex.irisa.fr
  .fbin .ibin            number and length of the vectors (uint32 each), then
  .u8bin .i8bin          all vectors, as at big-ann-benchmarks.com
  .parquet               lists of numbers (--key chooses one of several columns)
  .arrow .feather .ipc   the same in Arrow IPC files and streams; these and
                         Parquet files need pyarrow
Files are read in blocks of rows, so they may be larger than memory. Sparse and
compressed arrays of .npz files are read whole."""


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, so that all errors are reported in the same way."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise ValueError."""
        raise ValueError(f"{message} (see {self.prog} --help)")


def count(least: int) -> Callable[[str], int]:
    """Return a parser of integers that are at least `least`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be an integer, got {text!r}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    return parse
