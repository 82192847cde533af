"""What encoders compute from rows: projections, codes, and the sums that estimated distances need."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._core.typing import Codes, Doubles, Projections
from ..data.codes import n_words, pack_signs


class Outputs(NamedTuple):
    """Arrays for the results of n rows. An array without rows is not wanted.

    Attributes
    ----------
    projections : float32 array of shape (n or 0, n_bits)
    codes : uint64 array of shape (n or 0, n_words)
    sums : float64 array of shape (n or 0, 2)
        Sums of the magnitudes and of the squares of the projections of each row.
    """

    projections: Projections
    codes: Codes
    sums: Doubles

    @classmethod
    def of(
        cls, n_rows: int, n_bits: int, *, projections: bool = False, codes: bool = False, sums: bool = False
    ) -> Outputs:
        """Allocate the arrays that are wanted."""
        return cls(
            np.empty((n_rows if projections else 0, n_bits), dtype=np.float32),
            np.empty((n_rows if codes else 0, n_words(n_bits)), dtype=np.uint64),
            np.empty((n_rows if sums else 0, 2)),
        )

    def part(self, rows: slice) -> Outputs:
        """Return views of the results of some rows."""
        return Outputs(self.projections[rows], self.codes[rows], self.sums[rows])

    def write(self, first: int, block: Projections) -> None:
        """Write the results of rows `first`, `first` + 1, ... from their projections."""
        rows = slice(first, first + len(block))
        if len(self.projections):
            self.projections[rows] = block
        if len(self.codes):
            self.codes[rows] = pack_signs(block)
        if len(self.sums):
            self.sums[rows, 0] = np.abs(block).sum(axis=1, dtype=np.float64)
            self.sums[rows, 1] = np.einsum("ij,ij->i", block, block, dtype=np.float64)
