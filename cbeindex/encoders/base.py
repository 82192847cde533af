"""The base class of encoders: it reads vectors in blocks, projects them on several threads and packs the signs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._core.checks import MOST_BITS, MOST_DIM, as_count
from .._core.threads import as_n_threads, for_each_chunk, leave_if_interrupted
from .._core.tuning import tuning
from .._core.typing import Arrays, CodeBytes, Codes, Doubles, Projections, Vectors
from ..data.codes import to_bytes
from ..data.source import VectorSource
from .outputs import Outputs

# Norm up to which the projections of a centre are far from the largest float32.
_LONGEST_CENTRE = 1e36

Projector: TypeAlias = Callable[[Vectors], Projections]
RowsProjector: TypeAlias = Callable[[Any], Projections]  # takes a slice of rows or an array of row numbers


class Encoder(ABC):
    """Encodes vectors of `dim` values as codes of `n_bits` bits: the signs of projections of the centred vector.

    A subclass defines how a block of rows is projected (`_projector`), how it is fitted, and which arrays describe it.
    This class reads the input, splits it into blocks, distributes blocks over threads and packs the signs.
    """

    name: ClassVar[str]
    """The name of this class of encoder in index files."""

    is_linear: ClassVar[bool] = True
    """Whether projections are linear in the vector. Distances are estimated for linear encoders only."""

    takes_negative: ClassVar[bool] = True
    """Whether vectors may have negative values."""

    def __init__(self, dim: int, n_bits: int | None) -> None:
        self.dim = as_count(dim, "dim", most=MOST_DIM)
        self.n_bits = self.dim if n_bits is None else as_count(n_bits, "n_bits", most=MOST_BITS)
        self.centre: Vectors = np.zeros(self.dim, dtype=np.float32)
        self.is_fitted = False

    @abstractmethod
    def _projector(self) -> Projector:
        """Return a function that centres rows, (n, dim), and projects them to at least `n_bits` columns.

        The function is used by one thread. Its result is valid until the next call, so that it can reuse its memory.
        Rows with NaN or infinity must give projections that are not finite.
        """

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the options of the encoder as JSON values."""

    @abstractmethod
    def to_arrays(self) -> Arrays:
        """Return the parameters as named arrays."""

    @classmethod
    @abstractmethod
    def from_arrays(cls, config: dict[str, Any], arrays: Arrays) -> Self:
        """Rebuild an encoder from its `config` and `arrays`."""

    def fit(self, X: ArrayLike) -> Self:
        """Set the centre to the mean of the rows of `X`, and return self."""
        self.centre = self._mean_row(self._training_rows(X))
        self.is_fitted = True
        return self

    def project(self, X: ArrayLike, n_threads: int | None = None) -> Projections:
        """Return the projections of vectors: the real numbers whose signs are the code.

        Parameters
        ----------
        X : array_like or sparse of shape (n, dim) or (dim,)
        n_threads : int, optional
            By default one per core.

        Returns
        -------
        float32 array of shape (n, n_bits), or (n_bits,) for a single vector
        """
        source = VectorSource(X, self.dim)
        projections = self.project_source(source, as_n_threads(n_threads))
        return projections[0] if source.is_single else projections

    def project_source(self, source: VectorSource, n_threads: int) -> Projections:
        """Project the vectors of a source: float32 (n, n_bits)."""
        out = Outputs.of(source.n_rows, self.n_bits, projections=True)
        self._compute(source, out, n_threads)
        return out.projections

    def encode_source(self, source: VectorSource, n_threads: int) -> Codes:
        """Encode the vectors of a source: uint64 (n, n_words)."""
        out = Outputs.of(source.n_rows, self.n_bits, codes=True)
        self._compute(source, out, n_threads)
        return out.codes

    def encode_with_sums(self, source: VectorSource, n_threads: int) -> tuple[Codes, Doubles]:
        """Encode the vectors of a source; also return the sums of magnitudes and squares of projections, (n, 2)."""
        out = Outputs.of(source.n_rows, self.n_bits, codes=True, sums=True)
        self._compute(source, out, n_threads)
        return out.codes, out.sums

    def compute_source(self, source: VectorSource, n_threads: int) -> Outputs:
        """Compute projections, codes and sums of the vectors of a source."""
        out = Outputs.of(source.n_rows, self.n_bits, projections=True, codes=True, sums=True)
        self._compute(source, out, n_threads)
        return out

    def encode(self, X: ArrayLike, n_threads: int | None = None) -> CodeBytes:
        """Encode vectors: one bit per projection, which is 1 if the projection is at least 0.

        Bit j of a code is bit j % 8 of byte j // 8. Bits past `n_bits` are 0. A vector equal to the centre (the zero
        vector before `fit`) has projections of exactly 0, so that its code is all ones.

        Parameters
        ----------
        X : array_like or sparse of shape (n, dim) or (dim,)
        n_threads : int, optional
            By default one per core.

        Returns
        -------
        uint8 array of shape (n, ceil(n_bits / 8)), or (ceil(n_bits / 8),) for a single vector
        """
        source = VectorSource(X, self.dim)
        codes = to_bytes(self.encode_source(source, as_n_threads(n_threads)), self.n_bits)
        return codes[0] if source.is_single else codes

    def _training_rows(self, X: ArrayLike) -> VectorSource:
        """Return `X` as a source of at least 2 training rows."""
        source = VectorSource(X, self.dim)
        if source.n_rows < 2:
            raise ValueError(f"fit needs at least 2 rows of {self.dim} values, got {source.n_rows}")
        return source

    def _mean_row(self, source: VectorSource) -> Vectors:
        """Return the mean of all rows, summed in float64."""
        total: NDArray[np.float64] = np.zeros(self.dim)
        if source.is_sparse:
            for _, entries in source.entry_blocks(tuning().mean_sparse_rows):
                total += entries.column_sums(self.dim)
            return self._as_centre(total / source.n_rows)
        step = rows_per_block(self.dim)
        for start in range(0, source.n_rows, step):
            rows = source.read(slice(start, start + step))
            with np.errstate(invalid="ignore"):
                total += rows.sum(axis=0, dtype=np.float64)
            if not np.isfinite(total).all():
                source.refuse(start + int(np.argmin(np.isfinite(rows).all(axis=1))))
        return self._as_centre(total / source.n_rows)

    def _as_centre(self, mean: NDArray[np.float64]) -> Vectors:
        """Return a mean as a centre; raise ValueError if its projections would overflow float32."""
        length = float(np.linalg.norm(mean))
        if length > _LONGEST_CENTRE:
            raise ValueError(
                f"X must be small enough for sums in float32, its mean row has length {length:.3g}; "
                "scale the vectors down"
            )
        return mean.astype(np.float32)

    def _compute(self, source: VectorSource, out: Outputs, n_threads: int) -> None:
        """Project all rows in blocks, on several threads, and write what is wanted of each block to `out`."""
        step = self._rows_per_block(source)
        n_blocks = -(-source.n_rows // step)
        # Several chunks per thread balance the load; each chunk allocates the memory of its projector once.
        chunk = step * max(1, n_blocks // (4 * n_threads))

        make_projector = self._projectors(source)

        def task(start: int, stop: int) -> None:
            project = make_projector()
            for first in range(start, stop, step):
                leave_if_interrupted()
                with np.errstate(invalid="ignore", over="ignore"):
                    projections = project(slice(first, min(first + step, stop)))[:, : self.n_bits]
                    suspicious = not np.isfinite(projections.sum(axis=1)).all()
                if suspicious:  # check each projection, because a sum of finite ones may overflow too
                    bad = ~np.isfinite(projections).all(axis=1)
                    if bad.any():
                        source.refuse(first + int(bad.argmax()))
                out.write(first, projections)

        for_each_chunk(task, source.n_rows, chunk, n_threads)

    def _projectors(self, source: VectorSource) -> Callable[[], RowsProjector]:
        """Return a factory, called once per thread, of functions that project rows of `source`."""

        def make() -> RowsProjector:
            project = self._projector()
            return lambda rows: project(source.read(rows))

        return make

    def _rows_per_block(self, source: VectorSource) -> int:
        """Return the number of rows of `source` to project at a time."""
        return rows_per_block(max(self.dim, self.n_bits))


def rows_per_block(width: int) -> int:
    """Return the number of rows of `width` floats to process at a time, so that a stage needs O(width) memory."""
    return max(tuning().least_block_rows, tuning().projection_block_floats // width)
