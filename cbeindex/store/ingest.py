"""From vectors to what is stored of them: fitting an encoder to a sample, and turning rows into codes and columns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.threads import as_n_threads, for_each_chunk
from .._core.typing import Codes, Ids
from ..data.codes import n_words, pack_signs
from ..data.columns import Column
from ..data.source import VectorSource
from ..data.sparserows import SparseRows, VectorRows
from ..distances.estimator import SCALARS, Geometry, scalars_of
from ..distances.metrics import Metric, squares
from ..encoders import Encoder
from ..encoders.foreign import fitted_copy, project_rows
from ..errors import CorruptIndexFileError
from .rowstore import RowStore
from .segment import BucketMaker
from .snapshot import Snapshot

# An index that is not fitted keeps its first rows until there are so many, or so many bytes, and fits on them.
_FIRST_ROWS = 2**13
_FIRST_BYTES = 2**26
_LEAST_FIRST_ROWS = 32
# Values of vectors, or of projections, that are worked on at a time: they stay in the second-level cache.
_STEP_FLOATS = 2**17
# Sparse vectors that are read at a time before fitting.
_FIRST_STEP = 256
# The squared norm of the longest vectors whose distances float32 can hold.
_LARGEST_SQUARE = 1e36
# The same for norms that float32 can hold, where only the direction counts.
_LARGEST_COSINE_SQUARE = float(np.finfo(np.float32).max) ** 2
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
    buckets : BucketMaker, or None
    keeps_sparse : bool
        Whether those vectors, and the first ones of an index that is not fitted, are kept sparse.
    """

    dim: int
    n_bits: int
    metric: Metric
    vectors: str | None
    buckets: BucketMaker | None = None
    keeps_sparse: bool = False

    @property
    def columns(self) -> dict[str, Column]:
        """What is stored of a row beside its code."""
        if self.vectors is None:
            return dict(SCALARS)
        return {**SCALARS, "vectors": Column(np.dtype(self.vectors), (self.dim,), self.keeps_sparse)}

    def new_rows(self) -> RowStore:
        """Make an empty store of codes."""
        return RowStore(self.n_bits, self.columns, self.buckets)

    def first_rows(self) -> RowStore:
        """Make an empty store of vectors, for those that come before there are enough of them to fit."""
        return RowStore(0, {"vectors": Column(np.float32, (self.dim,), self.keeps_sparse)})

    def prepare(self, source: VectorSource, first: int, block: VectorRows) -> VectorRows:
        """Prepare rows of `source` from row `first` on for the encoder; refuse what is not finite or too long."""
        sums = squares(block)
        finite = np.isfinite(sums)  # in float64, so they are if all values are
        if not finite.all():
            source.refuse(first + int(finite.argmin()))
        largest = _LARGEST_COSINE_SQUARE if self.metric.name == "cosine" else _LARGEST_SQUARE
        if sums.size and sums.max() > largest:
            source.refuse(first + int(sums.argmax()))
        return self.metric.prepare(block, sums)

    def add_first(
        self,
        prototype: Encoder,
        rows: RowStore,
        source: VectorSource,
        names: Ids | None,
        replace: bool,
        n_threads: int,
        advance: Callable[[int], object],
    ) -> tuple[Ids, Encoder | None, RowStore]:
        """Add vectors to the store of an index that is not fitted yet, and fit when there are enough of them.

        Returns their ids, and an encoder and a store of codes when there were; `rows` is as it was then.
        """
        vectors, is_enough = self._read_first(source, rows)
        n_kept = len(vectors)
        no_codes = np.empty((n_kept, 0), dtype=np.uint64)
        if not is_enough:
            names = rows.add(names, no_codes, {"vectors": vectors}, replace=replace)
            advance(n_kept)
            return names, None, rows
        # All of it happens to the side, so that a failure changes nothing.
        first = copy.copy(rows)
        kept_names = None if names is None else names[:n_kept]
        first_names = first.add(kept_names, no_codes, {"vectors": vectors}, replace=replace)
        snapshot = first.snapshot()
        sample = self.kept_vectors(snapshot, snapshot.ids(), first.columns["vectors"])
        encoder = self.fit(prototype, sample)
        geometry = Geometry.of(encoder)
        fitted = self.encode_first(encoder, geometry, first)
        advance(n_kept)
        words, columns = self.encode(encoder, geometry, source, n_kept, n_threads, advance)
        other_names = fitted.add(None if names is None else names[n_kept:], words, columns, replace=replace)
        return np.concatenate([first_names, other_names]), encoder, fitted

    def encode_first(self, encoder: Encoder, geometry: Geometry, first: RowStore) -> RowStore:
        """Turn rows kept as vectors into codes."""
        snapshot = first.snapshot()
        snapshot.check_origins()
        names = snapshot.ids()
        vectors = self.kept_vectors(snapshot, names, first.columns["vectors"])
        source = VectorSource(vectors, self.dim)
        rows = self.new_rows()
        rows.reserve(first.next_id)
        rows.add(names, *self.encode(encoder, geometry, source, 0, as_n_threads(None), lambda n: None))
        return rows

    def kept_vectors(self, snapshot: Snapshot, ids: Ids, column: Column) -> Any:
        """Return vectors that are kept, to be encoded again; what a file claims of them is checked."""
        vectors = snapshot.column_of("vectors", ids, column)
        if isinstance(vectors, SparseRows):
            vectors.check(self.dim)
        try:
            self.prepare(VectorSource(vectors, self.dim, "kept vectors"), 0, vectors)
        except ValueError as error:  # they were not refused when they were added
            raise CorruptIndexFileError(str(error)) from None
        return vectors

    def _read_first(self, source: VectorSource, present: RowStore) -> tuple[Any, bool]:
        """Read the rows that an index which is not fitted takes, beside those present: rows, and if they are enough."""
        parts, column = [], present.columns["vectors"]
        n_present, n_bytes = present.n_rows, 4 * self.dim * present.n_rows
        if self.keeps_sparse:
            n_bytes = sum(8 * segment.columns["vectors"].values.size for segment in present.snapshot().segments)
        step = _FIRST_STEP if source.is_sparse else max(1, _STEP_FLOATS // self.dim)
        for first, block in source.own_blocks(step, is_checked=False):
            self.prepare(source, first, block)  # refuses what codes could not hold either
            self._refuse_for_float16(source, first, block)
            sizes = self._sizes(block)
            n_rows, bytes_then = n_present + 1 + np.arange(len(block)), n_bytes + np.cumsum(sizes)
            enough = (n_rows >= _FIRST_ROWS) | ((bytes_then >= _FIRST_BYTES) & (n_rows >= _LEAST_FIRST_ROWS))
            n_taken = int(enough.argmax()) + 1 if enough.any() else len(block)
            parts.append(column.of(block[:n_taken]))
            if enough.any():
                return column.joined(parts), True
            n_present, n_bytes = n_present + len(block), int(bytes_then[-1])
        return column.joined(parts), False

    def _sizes(self, block: VectorRows) -> NDArray[np.int64]:
        """Bytes of each row in a store of vectors."""
        if not self.keeps_sparse:
            return np.full(len(block), 4 * self.dim)
        return 8 * (block.counts() if isinstance(block, SparseRows) else np.count_nonzero(block, axis=1))

    def fit(self, prototype: Encoder, sample: VectorRows) -> Encoder:
        """Return a copy of an encoder, fitted to vectors.

        Where norms count, a few vectors that are much longer than all others would carry the centre away from where
        nearly all of the vectors are; they are shortened.
        """
        norms = np.sqrt(squares(sample))
        if self.metric.name == "cosine":
            scales = np.divide(1, norms, out=np.ones_like(norms), where=norms > 0)
            scales = np.minimum(scales, np.finfo(np.float32).max)  # of the shortest vectors that there are
        else:
            longest = _LONGEST * np.median(norms)
            scales = np.divide(longest, norms, out=np.ones_like(norms), where=(norms > longest) & (longest > 0))
        if isinstance(sample, SparseRows):
            return fitted_copy(prototype, sample.scaled(scales).to_csr(self.dim))
        return fitted_copy(prototype, sample * scales[:, np.newaxis].astype(np.float32))

    def encode(
        self,
        encoder: Encoder,
        geometry: Geometry,
        source: VectorSource,
        start: int,
        n_threads: int,
        advance: Callable[[int], object],
    ) -> tuple[Codes, dict[str, Any]]:
        """Encode the rows of `source` from `start` on: codes, and columns."""
        n = source.n_rows - start
        words = np.empty((n, n_words(self.n_bits)), dtype=np.uint64)
        columns = self.columns
        step = max(1, _STEP_FLOATS // max(self.n_bits, 0 if source.is_sparse else self.dim))
        parts: dict[str, list[Any]] = {name: [None] * -(-n // step) for name in columns}

        def task(begin: int, end: int) -> None:
            for first, block in source.own_blocks(step, start + begin, start + end, is_checked=False):
                prepared = self.prepare(source, first, block)
                projections = project_rows(encoder, source.part(first, prepared), 1)
                here = first - start
                words[here : here + len(block)] = pack_signs(projections)
                for name, values in scalars_of(prepared, projections, geometry, self.metric).items():
                    parts[name][here // step] = values
                if "vectors" in columns:
                    self._refuse_for_float16(source, first, block)
                    parts["vectors"][here // step] = columns["vectors"].of(block)
                advance(len(block))

        for_each_chunk(task, n, step, n_threads)
        return words, {name: column.joined(parts[name]) for name, column in columns.items()}

    def _refuse_for_float16(self, source: VectorSource, first: int, block: VectorRows) -> None:
        """Refuse rows to be kept in float16 that it cannot hold."""
        if self.vectors != "float16":
            return
        largest = block.largest() if isinstance(block, SparseRows) else np.abs(block).max(axis=1, initial=0)
        if (largest > np.finfo(np.float16).max).any():
            row = first + int(largest.argmax())
            raise source.row_error('must fit vectors="float16"', row, "has values above 65504")
        vanishing = (largest > 0) & (largest < np.finfo(np.float16).tiny)
        if vanishing.any():
            row = first + int(vanishing.argmax())
            raise source.row_error('must fit vectors="float16"', row, "has only values below 6.1e-05")
