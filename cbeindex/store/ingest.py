"""Ingest: from vectors to the codes and columns that are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._core.threads import as_n_threads, for_each_chunk
from .._core.tuning import tuning
from .._core.typing import Codes, Floats, Ids
from ..data.codes import n_words
from ..data.columns import Column
from ..data.names import NAMES, NameColumn, Names
from ..data.source import VectorSource
from ..data.sparserows import SparseRows, VectorRows
from ..distances.codec import Codec
from ..distances.estimator import SCALARS
from ..distances.keptcodec import KEPT_BITS, kept_column
from ..distances.metrics import Metric, squares
from ..distances.residuals import residual_column
from ..distances.vertices import VertexShape
from ..encoders import Encoder
from .namefinder import NameFinder
from .rowstore import RowStore
from .segment import NOT_HIDDEN, Arranger


class NewRows(NamedTuple):
    """Vectors to be added, with checked arguments.

    Attributes
    ----------
    source : VectorSource
    ids : int64 array of shape (n_rows,), or None for new ids
    replace : bool
        Whether a vector replaces the one that has its id.
    n_threads : int
    advance : callable
        Called with the number of vectors that were processed.
    names : Names, or None
        The ids of the caller if they are strings.
    """

    source: VectorSource
    ids: Ids | None
    replace: bool
    n_threads: int
    advance: Callable[[int], object]
    names: Names | None = None

    @classmethod
    def of_vectors(cls, vectors: VectorRows, dim: int, ids: Ids | None, names: Names | None) -> NewRows:
        """Add vectors that are stored already under the same ids, on all cores."""
        return cls(VectorSource(vectors, dim), ids, False, as_n_threads(None), lambda n: None, names)


class EncodedRows(NamedTuple):
    """What is stored of some vectors: codes, (n, n_words), and columns by name."""

    codes: Codes
    columns: dict[str, Any]

    def names_differ(self, other: EncodedRows) -> bool:
        """Return whether no row of another part has the name of a row of this one."""
        if NAMES not in self.columns or not len(self.codes):
            return True
        return bool((NameFinder.of(self.columns[NAMES]).find(other.columns[NAMES], NOT_HIDDEN) < 0).all())

    def joined(self, other: EncodedRows, columns: Mapping[str, Column]) -> EncodedRows:
        """Return these rows and then others."""
        parts = {name: c.joined([self.columns[name], other.columns[name]]) for name, c in columns.items()}
        return EncodedRows(np.concatenate([self.codes, other.codes]), parts)


@dataclass(frozen=True)
class Ingest:
    """What an index stores of a vector.

    Attributes
    ----------
    dim, n_bits : int
    metric : Metric
    vectors : {None, "float32", "float16", "int8", "int4", "auto"}
        Type of the vectors kept beside codes, None if they are not kept, "auto" until the first vectors decide.
    buckets : Arranger, or None
    keeps_sparse : bool
        Whether kept vectors, and those that wait until the index is fitted, are stored sparse.
    cell_bits : int or None
        Bits a dimension of residual codes, None if there are no such codes.
    keeps_codes : bool
        Whether Hamming codes are stored, and the scalars that they need.
    has_vertices : bool
        Whether vertices of a graph are stored.
    n_levels : int
        Projections of a kept vector of 4 or 8 bits.
    shares_levels : bool
        Whether the Hamming codes of the encoder are of the same projections, and of no others.
    has_names : bool
        Whether names are stored: ids of the caller that are strings.
    """

    dim: int
    n_bits: int
    metric: Metric
    vectors: str | None
    buckets: Arranger | None = None
    keeps_sparse: bool = False
    cell_bits: int | None = None
    keeps_codes: bool = True
    has_vertices: bool = False
    n_levels: int = 0
    shares_levels: bool = False
    has_names: bool = False

    @property
    def kept_bits(self) -> int | None:
        """Bits a dimension of kept vectors that are levels, None if they are not."""
        return KEPT_BITS.get(self.vectors or "")

    @property
    def kept_column(self) -> str | None:
        """The column that kept vectors are read from."""
        if self.vectors is None or self.kept_bits is None:
            return None if self.vectors is None else "vectors"
        if self.has_vertices:
            return "vertices"
        return "residuals" if self.kept_bits == 4 == self.cell_bits and self.shares_levels else "vectors"

    @property
    def needs_sample(self) -> bool:
        """Whether centres are trained on the first rows."""
        return self.cell_bits is not None or (self.kept_bits is not None and not self.has_vertices)

    @property
    def vertex_shape(self) -> VertexShape:
        """Sizes of vertices."""
        return VertexShape.of(self.dim, self.vertex_bits)

    @property
    def vertex_bits(self) -> int:
        """Bits that vertices are made for: where they are the kept vectors, they have levels of all dimensions."""
        return self.n_bits if self.kept_bits is None else max(self.n_bits, self.dim)

    @property
    def code_bits(self) -> int:
        """Bits of the Hamming codes that are stored."""
        return self.n_bits if self.keeps_codes else 0

    @property
    def columns(self) -> dict[str, Column]:
        """Columns stored beside codes."""
        columns = dict(SCALARS) if self.keeps_codes else {}
        if self.cell_bits is not None:
            columns["residuals"] = residual_column(self.n_bits, self.cell_bits)
        if self.has_vertices:
            columns["vertices"] = self.vertex_shape.column
        if self.kept_bits is not None:
            if self.kept_column == "vectors":
                columns["vectors"] = kept_column(self.n_levels, self.kept_bits)
            if self.metric.name == "cosine":
                columns["norms"] = Column(np.float32)
        elif self.vectors is not None:
            columns["vectors"] = Column(np.dtype(self.vectors), (self.dim,), self.keeps_sparse)
        return columns | self._name_columns

    @property
    def _name_columns(self) -> dict[str, Column]:
        return {NAMES: NameColumn()} if self.has_names else {}

    @property
    def record_bytes(self) -> int:
        """Bytes of a row in a graph."""
        return self.vertex_shape.record_bytes

    def codec_of(self, encoder: Encoder) -> Codec:
        """Return the codec of a fitted encoder, without centres."""
        codec = Codec.of(encoder, self.metric)
        return self.with_kept(codec.with_vertices(self.vertex_bits) if self.has_vertices else codec)

    def with_kept(self, codec: Codec, centres: Floats | None = None) -> Codec:
        """Return a codec that keeps vectors too, if they are levels and it knows the centres of cells, if any."""
        if self.kept_bits is None or (self.cell_bits is not None and codec.residuals is None):
            return codec
        return codec.with_kept(self.kept_bits, self.kept_column == "residuals", centres)

    def fitted_to(self, codec: Codec) -> Ingest:
        """Return what an index with this codec stores."""
        if self.buckets is None:
            return self
        if codec.residuals is not None:
            return replace(self, buckets=self.buckets.with_codec(codec), cell_bits=codec.residuals.bits)
        return self if codec.vertices is None else replace(self, buckets=self.buckets.with_codec(codec))

    def code_store(self) -> RowStore:
        """Make an empty store of codes."""
        return RowStore(self.code_bits, self.columns, self.buckets)

    def vector_store(self) -> RowStore:
        """Make an empty store of vectors, for those added before the index is fitted."""
        return RowStore(0, {"vectors": Column(np.float32, (self.dim,), self.keeps_sparse)} | self._name_columns)

    def check(self, source: VectorSource, first: int, block: VectorRows) -> NDArray[np.float64]:
        """Return the squared norms of rows read from row `first` of `source` on.

        Raises ValueError, naming the row in `source`, if a row cannot be stored.
        """
        row_squares = self.metric.check(source, first, block)
        if self.kept_bits is not None and self.keeps_sparse and isinstance(block, SparseRows):
            _check_density(source, block, self.vectors, self.n_levels * self.kept_bits // 8)
        if self.vectors == "float16":
            _check_float16(source, first, block)
        return row_squares

    def read_first(self, source: VectorSource, present: RowStore) -> tuple[VectorRows, bool]:
        """Read the rows that an unfitted index takes beside the rows `present`, in the form in which it stores them.

        Also returns whether the index then has enough rows to be fitted. Rows beyond those are not read.
        """
        column = present.columns["vectors"]
        parts, n_present, n_bytes, has_enough = [], present.n_rows, self._first_bytes(present), False
        step = tuning().first_step_rows if source.is_sparse else max(1, tuning().encode_step_values // self.dim)
        for first, block in source.own_blocks(step, check_finite=False):
            n_rows, bytes_then = n_present + 1 + np.arange(len(block)), n_bytes + np.cumsum(self._row_bytes(block))
            has_bytes = (bytes_then >= tuning().first_bytes) & (n_rows >= tuning().least_first_rows)
            is_enough = (n_rows >= tuning().first_rows) | has_bytes
            has_enough = has_enough or bool(is_enough.any())
            taken = block[: int(is_enough.argmax()) + 1] if is_enough.any() else block
            self.check(source, first, taken)
            parts.append(column.of(taken))
            if is_enough.any():
                break
            n_present, n_bytes = n_present + len(block), int(bytes_then[-1])
        return column.joined(parts), has_enough

    def sample_of(self, source: VectorSource, present: VectorRows) -> VectorRows:
        """Return a sample for centres of residual codes: the rows `present`, and rows spread over all of `source`."""
        limits, n = tuning(), source.n_rows
        column = Column(np.float32, (self.dim,), self.keeps_sparse)
        most = min(limits.centre_sample_rows, max(1, limits.centre_sample_bytes // (4 * self.dim)))
        n_pieces = -(-min(n, most) // limits.sample_piece_rows)
        parts = [present]
        for i in range(n_pieces):
            begin, end = i * n // n_pieces, (i + 1) * n // n_pieces
            step = limits.sample_piece_rows
            for first, block in source.own_blocks(step, begin, min(end, begin + step), check_finite=False):
                self.check(source, first, block)
                parts.append(column.of(block))
        sample: VectorRows = column.joined(parts)
        return sample

    def encode(self, codec: Codec, new: NewRows, start: int = 0, *, is_checked: bool = False) -> EncodedRows:
        """Encode the rows of `new.source` from row `start` on; `is_checked` if `check` has passed them."""
        source, columns = new.source, self.columns
        n = source.n_rows - start
        codes = np.empty((n, n_words(self.code_bits)), dtype=np.uint64)
        step = max(1, tuning().encode_step_values // max(self.n_bits, 0 if source.is_sparse else self.dim))
        parts: dict[str, list[Any]] = {name: [None] * -(-n // step) for name in columns}

        def task(begin: int, end: int) -> None:
            for first, block in source.own_blocks(step, start + begin, start + end, check_finite=False):
                row_squares = None if is_checked else self.check(source, first, block)
                prepared = self.metric.prepare(block, row_squares)
                at = first - start
                words, encoded = codec.encode_rows(source, first, prepared)
                values: dict[str, Any] = {**encoded}
                codes[at : at + len(block)] = words[:, : codes.shape[1]]
                if self.kept_bits is None and self.vectors is not None:
                    values["vectors"] = columns["vectors"].of(block)
                if new.names is not None:
                    values[NAMES] = new.names[first : first + len(block)]
                if "norms" in columns:
                    values["norms"] = np.sqrt(squares(block)).astype(np.float32)
                for name in columns:
                    parts[name][at // step] = values[name]
                new.advance(len(block))

        for_each_chunk(task, n, step, new.n_threads)
        return EncodedRows(codes, {name: column.joined(parts[name]) for name, column in columns.items()})

    def _first_bytes(self, present: RowStore) -> int:
        """Return the bytes of rows in a store of vectors."""
        if not self.keeps_sparse:
            return 4 * self.dim * present.n_rows
        return sum(8 * segment.columns["vectors"].values.size for segment in present.snapshot().segments)

    def _row_bytes(self, block: VectorRows) -> NDArray[np.int64]:
        """Return the bytes of each row in a store of vectors."""
        if not self.keeps_sparse:
            return np.full(len(block), 4 * self.dim)
        return 8 * (block.counts() if isinstance(block, SparseRows) else np.count_nonzero(block, axis=1))


def _check_density(source: VectorSource, block: SparseRows, kind: str | None, n_bytes: int) -> None:
    """Raise ValueError if the levels of sparse rows, `n_bytes` each, take more memory than their entries."""
    n_entries = block.counts().sum()
    if 8 * n_entries < n_bytes * len(block):
        mean = 8 * n_entries // len(block)
        raise ValueError(
            f'{source.name} must be dense enough for vectors="{kind}", which keeps {n_bytes:,} bytes a row, but sparse '
            f'rows have {mean:,} bytes on average: use vectors="float32" or "float16", which keep sparse rows sparse'
        )


def _check_float16(source: VectorSource, first: int, block: VectorRows) -> None:
    """Raise ValueError if a row has values that float16 cannot hold, or only such as it rounds to 0."""
    largest = block.largest() if isinstance(block, SparseRows) else np.abs(block).max(axis=1, initial=0)
    if (largest > np.finfo(np.float16).max).any():
        row = first + int(largest.argmax())
        raise source.row_error('must fit vectors="float16"', row, "has values above 65504")
    vanishing = (largest > 0) & (largest < np.finfo(np.float16).tiny)
    if vanishing.any():
        row = first + int(vanishing.argmax())
        raise source.row_error('must fit vectors="float16"', row, "has only values below 6.1e-05")
