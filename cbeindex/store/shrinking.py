"""Shrinking: the same index with less of its vectors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .._core.threads import for_each_chunk
from .._core.tuning import tuning
from .._core.typing import Rows, Vectors
from ..data.source import VectorSource
from ..data.sparserows import SparseRows, VectorRows
from ..distances.codec import Codec
from ..distances.kept import KINDS_OF_VECTORS
from ..distances.metrics import norms
from .ingest import Ingest
from .segment import Segment
from .state import IndexState, sample_rows

# What may be kept of vectors, from the least on.
_SIZES = (None, *(kind for kind in KINDS_OF_VECTORS if kind != "auto"))


def shrunk(state: IndexState, vectors: str | None, n_threads: int) -> IndexState:
    """Return the state of an index that keeps vectors of another type, with the same codes, buckets and ids.

    Raises ValueError if that type has more than is stored. Vectors of 4 or 8 bits are decoded and quantised anew: the
    best levels of 4 bits are not the upper bits of those of 8 bits.
    """
    ingest = state.ingest
    if ingest.vectors == "auto":
        raise ValueError('vectors="auto" is not decided before the first vectors are added: make a new index')
    if _SIZES.index(vectors) > _SIZES.index(ingest.vectors):
        kept = "codes only" if ingest.vectors is None else f'vectors="{ingest.vectors}"'
        raise ValueError(
            f'an index must keep at least vectors="{vectors}" to be shrunk to them, and this one keeps {kept}: '
            "what is not stored cannot be restored, so make a new index"
        )
    if vectors == ingest.vectors:
        return state
    return _Shrinking(state, replace(ingest, vectors=vectors), n_threads).state()


class _Shrinking:
    """The change of an index to less of its vectors.

    Parameters
    ----------
    state : IndexState
    ingest : Ingest
        What the index stores afterwards.
    n_threads : int
    """

    def __init__(self, state: IndexState, ingest: Ingest, n_threads: int) -> None:
        self._before, self._ingest, self._n_threads = state, ingest, n_threads

    def state(self) -> IndexState:
        """Return the new state. The one before stays as it is, apart from its buffer, which becomes a segment."""
        before = self._before
        if before.ingest.has_vertices and before.ingest.vertex_shape != self._ingest.vertex_shape:
            n, dim = before.ingest.vertex_shape.n_levels, before.ingest.dim
            raise ValueError(
                f"a graph must hold all {dim} dimensions of rows to keep them in 4 or 8 bits, and this one, made with "
                f"n_bits={before.ingest.n_bits}, has {n} projections: make a new index"
            )
        segments = before.rows.seal()
        before.rows.snapshot().check_origins()
        for segment in segments:
            self._check(segment)
        if before.codec is None:  # vectors wait as they are
            return before._replace(ingest=self._ingest)
        codec = self._codec(before.codec, segments)
        ingest = self._ingest.fitted_to(codec)
        rows = ingest.code_store()
        rows.restore(tuple(self._segment(segment, ingest, codec) for segment in segments), before.rows.next_id)
        return IndexState(ingest, codec, rows)

    def _check(self, segment: Segment) -> None:
        """Raise ValueError if float vectors do not fit what is to be kept of them."""
        vectors = segment.columns.get("vectors")
        if vectors is None or self._ingest.vectors is None or self._before.ingest.kept_bits is not None:
            return
        step = tuning().verify_rows
        for start in range(0, segment.n_rows, step):
            block = self._vectors(segment, np.arange(start, min(start + step, segment.n_rows)))
            self._ingest.check(VectorSource(block, self._ingest.dim, "kept vectors"), start, block)

    def _codec(self, before: Codec, segments: tuple[Segment, ...]) -> Codec:
        """Return the codec of the new state: centres of kept vectors are as before, or those of some stored rows."""
        codec = self._ingest.with_kept(replace(before, kept=None))
        kept, old = codec.rows_of_levels, before.rows_of_levels
        if kept is None or codec.shares_centres or not segments:
            return codec
        if old is not None:
            return self._ingest.with_kept(replace(before, kept=None), old.residuals.centres)
        n_rows = sum(segment.n_rows for segment in segments)
        chosen, ends = sample_rows(n_rows, self._ingest.dim), np.cumsum([segment.n_rows for segment in segments])
        parts = []
        for segment, end in zip(segments, ends, strict=True):
            own = chosen[(chosen < end) & (chosen >= end - segment.n_rows)] - (end - segment.n_rows)
            block = self._vectors(segment, own)
            parts.append(block.to_dense(self._ingest.dim) if isinstance(block, SparseRows) else block)
        return codec.with_kept_of(self._ingest.metric.prepare(np.concatenate(parts)))

    def _vectors(self, segment: Segment, rows: Rows) -> VectorRows:
        """Return the vectors of some rows of a segment as float32."""
        before = self._before
        if before.codec is None or before.codec.kept is None:
            found: Any = segment.columns["vectors"][rows]
            return found.astype(np.float32) if isinstance(found, SparseRows) else found.astype(np.float32, copy=False)
        column = segment.columns[str(before.ingest.kept_column)][rows]
        vectors: Vectors = before.codec.kept.vectors_of(column)
        if "norms" in segment.columns:
            with np.errstate(over="ignore"):  # of vectors as long as float32 allows
                vectors *= segment.columns["norms"][rows][:, np.newaxis]
            np.clip(vectors, np.finfo(np.float32).min, np.finfo(np.float32).max, out=vectors)
        return vectors

    def _segment(self, segment: Segment, ingest: Ingest, codec: Codec) -> Segment:
        """Return a segment with other vectors. It counts as a new one, so that the next save writes it."""
        columns = {name: segment.columns[name] for name in ingest.columns if name not in ("vectors", "norms")}
        if "norms" in ingest.columns:
            columns["norms"] = segment.columns.get("norms")
            if columns["norms"] is None:
                columns["norms"] = self._made(segment, norms)
        if "vectors" in ingest.columns:
            columns["vectors"] = self._made(segment, lambda block: self._kept(block, ingest, codec))
        # Values of sections of the file are checked already, and a copy of the ids makes this another segment.
        ordered = {name: columns[name] for name in ingest.columns}
        return replace(segment, ids=segment.ids.copy(), columns=ordered, origin=None)

    def _kept(self, block: VectorRows, ingest: Ingest, codec: Codec) -> Any:
        """Return what is kept of vectors."""
        kept = codec.rows_of_levels
        if kept is None:
            return ingest.columns["vectors"].of(block)
        prepared = ingest.metric.prepare(block)
        return kept.encode(VectorSource(prepared, ingest.dim), prepared, None)

    def _made(self, segment: Segment, make: Any) -> Any:
        """Return a column that is made of the vectors of a segment, block by block on threads."""
        step = max(1, tuning().encode_step_values // self._ingest.dim)
        parts: list[Any] = [None] * -(-segment.n_rows // step)

        def task(start: int, stop: int) -> None:
            for first in range(start, stop, step):
                parts[first // step] = make(self._vectors(segment, np.arange(first, min(first + step, stop))))

        for_each_chunk(task, segment.n_rows, step, self._n_threads)
        return SparseRows.joined(parts) if isinstance(parts[0], SparseRows) else np.concatenate(parts)
