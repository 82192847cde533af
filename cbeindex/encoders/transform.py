"""Projections of dense rows by Fourier transforms, which kernels compute: products with circulant matrices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from .._core.tuning import tuning
from .._core.typing import Floats, Spectrum, Vectors
from .longrows import transform_long_row
from .outputs import Outputs
from .plans import ConvolutionPlan

KernelArrays: TypeAlias = tuple[Vectors, NDArray[np.int8], NDArray[np.int64], Floats, Floats]
"""Centre, signs, layout, tables and coefficients: what the kernel `transform_rows` knows of an encoder."""


class CirculantTransform:
    """Centres rows, multiplies them by signs and convolves them with vectors that are given by their half spectra.

    Every row goes through the same operations, so that its result does not depend on the batch, to the last bit.
    Several threads may call it at once.

    Parameters
    ----------
    centre : float32 array of shape (dim,)
    signs : int8 array of shape (n_blocks, dim)
    spectrum : complex64 array of shape (n_blocks, length // 2 + 1)
    length : int

    Attributes
    ----------
    arrays : tuple of arrays
        The arguments of the kernel, read-only.
    """

    def __init__(self, centre: Vectors, signs: NDArray[np.int8], spectrum: Spectrum, length: int) -> None:
        self._plan = ConvolutionPlan(length, kernels.vectors.LANES)
        factors = self._plan.coefficients(spectrum)
        self.arrays: KernelArrays = (
            _read_only(centre),
            _read_only(signs),
            _read_only(self._plan.layout),
            _read_only(self._plan.tables),
            _read_only(factors),
        )
        self._spare_work: list[Floats] = []

    def __call__(self, rows: Vectors, out: Outputs) -> int:
        """Write the results of `rows`, float32 (n, dim), to `out`.

        Stops at the first row whose projections are not finite and returns its number; otherwise returns -1.
        """
        with self._work() as work:
            return int(kernels.transform.transform_rows(_read_only(rows), 0, len(rows), *self.arrays, work, *out))

    def on_threads(self, rows: Vectors, out: Outputs, n_threads: int) -> int:
        """Do the same, row by row, with several threads for each row."""
        rows = _read_only(rows)
        with self._work() as work:
            for row in range(len(rows)):
                if not transform_long_row(rows, row, self._plan, self.arrays, work, out, n_threads):
                    return row
        return -1

    def rows_per_block(self, n_bits: int) -> int:
        """Return the number of rows to transform at a time: whole batches of the kernel."""
        dim, batch = len(self.arrays[0]), self._plan.batch_rows
        n = tuning().transform_block_floats // max(dim, n_bits)
        return max(batch, n // batch * batch)

    def make_work(self) -> Floats:
        """Return working memory for the kernel. Every thread needs its own."""
        return self._plan.make_work()

    @contextmanager
    def _work(self) -> Iterator[Floats]:
        """Lend working memory: what an earlier call has left, or new memory, which costs page faults."""
        try:
            work = self._spare_work.pop()
        except IndexError:
            work = self.make_work()
        yield work
        if work.nbytes <= tuning().spare_work_bytes:
            self._spare_work.append(work)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view, aligned: kernels are compiled again for any other kind of array."""
    view = array.view() if array.flags.aligned else array.copy()
    view.flags.writeable = False
    return view
