"""From vectors to what is stored of them: fitting an encoder to a sample, and turning rows into codes and columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._threads import for_each_chunk
from ._typing import Codes, Vectors
from ._validation import VectorSource
from .codes import n_words, to_words
from .columns import Column, SparseRows
from .encoders import Encoder
from .encoders.foreign import fitted_copy, project_rows
from .metrics import Metric, squares
from .rerank import SCALARS, Geometry, scalars_of
from .segments import RowStore

# An index that is not fitted keeps its first rows until there are so many, or so many bytes, and fits on them.
_FIRST_ROWS = 2**13
_FIRST_BYTES = 2**26
_LEAST_FIRST_ROWS = 32
# Values of vectors, or of projections, that are worked on at a time: they stay in the second-level cache.
_STEP_FLOATS = 2**17
# Norms above this have squares that float32 cannot hold.
_LARGEST_NORM = 1e18
# The longest vectors of a sample count like vectors of so many times the median length.
_LONGEST = 2.0


@dataclass(frozen=True)
class Ingest:
    """What an index stores of a vector.

    Attributes
    ----------
    dim, n_bits : int
    metric : Metric
    vectors : {None, "float32", "float16"}
        Whether vectors are kept beside their codes, and how.
    keeps_sparse : bool
        Whether those vectors, and the first ones of an index that is not fitted, are kept sparse.
    """

    dim: int
    n_bits: int
    metric: Metric
    vectors: str | None
    keeps_sparse: bool = False

    @property
    def columns(self) -> dict[str, Column]:
        """What is stored of a row beside its code."""
        if self.vectors is None:
            return dict(SCALARS)
        return {**SCALARS, "vectors": Column(np.dtype(self.vectors), (self.dim,), self.keeps_sparse)}

    @property
    def first_column(self) -> Column:
        """How the first vectors are kept until there are enough of them to fit."""
        return Column(np.float32, (self.dim,), self.keeps_sparse)

    def prepare(self, source: VectorSource, first: int, block: Vectors) -> Vectors:
        """Prepare rows of `source` from row `first` on for the encoder; refuse those whose numbers would overflow."""
        if self.metric.name != "cosine" and (norms := np.sqrt(squares(block))).size and norms.max() > _LARGEST_NORM:
            source.refuse(first + int(norms.argmax()))
        return self.metric.prepare(block)

    def read_first(self, source: VectorSource, present: RowStore) -> tuple[Any, bool]:
        """Read the rows that an index which is not fitted takes, beside those present: rows, and if they are enough."""
        parts, column = [], self.first_column
        n_present, n_bytes = present.n_rows, 4 * self.dim * present.n_rows
        if self.keeps_sparse:
            n_bytes = sum(8 * segment.columns["vectors"].values.size for segment in present.snapshot().segments)
        for first, block in source.blocks(_STEP_FLOATS):
            self.prepare(source, first, block)  # refuses what codes could not hold either
            self._refuse_for_float16(first, block)
            sizes = 8 * np.count_nonzero(block, axis=1) if self.keeps_sparse else np.full(len(block), 4 * self.dim)
            n_rows, bytes_then = n_present + 1 + np.arange(len(block)), n_bytes + np.cumsum(sizes)
            enough = (n_rows >= _FIRST_ROWS) | ((bytes_then >= _FIRST_BYTES) & (n_rows >= _LEAST_FIRST_ROWS))
            n_taken = int(enough.argmax()) + 1 if enough.any() else len(block)
            parts.append(column.read(source, slice(first, first + n_taken), block[:n_taken]))
            if enough.any():
                return column.joined(parts), True
            n_present, n_bytes = n_present + len(block), int(bytes_then[-1])
        return column.joined(parts), False

    def fit(self, prototype: Encoder, sample: Vectors | SparseRows) -> Encoder:
        """Return a copy of an encoder, fitted to vectors.

        Where norms count, a few vectors that are much longer than all others would carry the centre away from where
        nearly all of the vectors are; they are shortened.
        """
        norms = np.sqrt(sample.squares() if isinstance(sample, SparseRows) else squares(sample))
        if self.metric.name == "cosine":
            scales = np.divide(1, norms, out=np.ones_like(norms), where=norms > 0)
        else:
            longest = _LONGEST * np.median(norms)
            scales = np.divide(longest, norms, out=np.ones_like(norms), where=(norms > longest) & (longest > 0))
        if isinstance(sample, SparseRows):
            return fitted_copy(prototype, sample.scaled(scales).to_csr(self.dim))
        return fitted_copy(prototype, sample * scales[:, np.newaxis].astype(np.float32))

    def encode(
        self, encoder: Encoder, source: VectorSource, start: int, n_threads: int, advance: Callable[[int], object]
    ) -> tuple[Codes, dict[str, Any]]:
        """Encode the rows of `source` from `start` on: codes, and columns."""
        n = source.n_rows - start
        words = np.empty((n, n_words(self.n_bits)), dtype=np.uint64)
        columns = self.columns
        geometry = Geometry.of(encoder)
        step = max(1, _STEP_FLOATS // max(self.dim, self.n_bits))
        parts: dict[str, list[Any]] = {name: [None] * -(-n // step) for name in columns}

        def task(begin: int, end: int) -> None:
            for first, block in source.blocks(step * self.dim, start + begin, start + end):
                prepared = self.prepare(source, first, block)
                projections = project_rows(encoder, prepared, 1)
                here = first - start
                words[here : here + len(block)] = signs_of(projections)
                for name, values in scalars_of(prepared, projections, geometry, self.metric).items():
                    parts[name][here // step] = values
                if "vectors" in columns:
                    self._refuse_for_float16(first, block)
                    parts["vectors"][here // step] = columns["vectors"].read(
                        source, slice(first, first + len(block)), block
                    )
                advance(len(block))

        for_each_chunk(task, n, step, n_threads)
        return words, {name: column.joined(parts[name]) for name, column in columns.items()}

    def _refuse_for_float16(self, first: int, block: Vectors) -> None:
        """Refuse rows to be kept in float16 that it cannot hold."""
        if self.vectors != "float16":
            return
        largest = np.abs(block).max(axis=1, initial=0)
        if (largest > np.finfo(np.float16).max).any():
            row = first + int(largest.argmax())
            raise ValueError(f'vectors="float16" holds values up to 65504, row {row} has larger ones')
        vanishing = (largest > 0) & (largest < np.finfo(np.float16).tiny)
        if vanishing.any():
            row = first + int(vanishing.argmax())
            raise ValueError(f'vectors="float16" loses values below 6.1e-05, row {row} has smaller ones only')


def signs_of(projections: NDArray[np.float32]) -> Codes:
    """Pack the signs of projections into words."""
    return to_words(np.packbits(projections >= 0, axis=1, bitorder="little"), projections.shape[1])
