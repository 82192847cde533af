"""The state of a vector index, which changes as a whole: first vectors without an encoder, then codes."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._core.tuning import tuning
from .._core.typing import Codes, Ids, Rows, Vectors
from ..data.columns import Column, pieces
from ..data.ids import AnyIds
from ..data.names import NAMES, Names
from ..data.source import VectorSource
from ..data.sparserows import SparseRows, VectorRows
from ..distances.codec import Codec
from ..distances.metrics import Metric, squares
from ..encoders import Encoder
from ..encoders.foreign import fitted_copy, is_ready, same_encoder
from ..errors import CorruptIndexFileError
from .ingest import EncodedRows, Ingest, NewRows
from .rowstore import RowStore
from .segment import require_kind
from .snapshot import Snapshot


class IndexState(NamedTuple):
    """An encoder and rows as codes, or no encoder and the first rows as vectors.

    Attributes
    ----------
    ingest : Ingest
    codec : Codec, or None until the index is fitted
    rows : RowStore
    """

    ingest: Ingest
    codec: Codec | None
    rows: RowStore

    @classmethod
    def empty(cls, ingest: Ingest, encoder: Encoder | None) -> IndexState:
        """Make the state of an index without rows; `encoder` is fitted, or None."""
        if encoder is None or ingest.needs_sample or ingest.vectors == "auto":  # centres come from the first rows
            return cls(ingest, None, ingest.vector_store())
        return cls(ingest, None, ingest.vector_store()).with_codec(ingest.codec_of(encoder))

    @property
    def encoder(self) -> Encoder | None:
        """The fitted encoder, None until the index is fitted."""
        return None if self.codec is None else self.codec.encoder

    def frozen(self) -> IndexState:
        """Return the state as it is now, for several searches of the same rows."""
        return self._replace(rows=self.rows.frozen())

    def keeping(self, is_sparse: bool, has_names: bool = False) -> IndexState:
        """Return the state of an index without rows that stores vectors sparse or dense, with names or without."""
        vectors = self.ingest.vectors
        if vectors == "auto":
            vectors = "float32" if is_sparse else "int8"
        ingest = replace(self.ingest, keeps_sparse=is_sparse, vectors=vectors, has_names=has_names)
        return self._replace(ingest=ingest, rows=ingest.vector_store() if self.codec is None else ingest.code_store())

    def add(self, new: NewRows, prototype: Encoder) -> tuple[Ids, IndexState]:
        """Add vectors, and fit a copy of `prototype` once there are enough; return their ids and the state then."""
        state = self
        if self.rows.next_id == 0:  # the first vectors decide whether vectors are stored sparse, and ids are strings
            state = self.keeping(new.source.is_sparse, new.names is not None)
        state.rows.require_kind(new.ids if new.names is None else new.names, new.source.n_rows)
        if state.ingest.has_names and new.names is None:  # no rows: an empty list of ids is of either kind
            new = new._replace(ids=None, names=Names.of([]))
        if state.codec is None:
            return state._add_first(new, prototype)
        encoded = state.ingest.encode(state.codec, new)
        return state.rows.add(new.ids, *encoded, replace=new.replace), state

    def add_later(self, source: VectorSource, ids: Ids | None) -> Ids | None:
        """Add a few vectors, which are checked now and encoded together with others; return their ids.

        Returns None, and adds nothing, if they have to be encoded now.
        """
        limits, codec = tuning(), self.codec
        if codec is None or not 0 < source.n_rows <= limits.few_rows or source.is_sparse or self.ingest.keeps_sparse:
            return None
        if not self.rows.next_id or not codec.accepts_all(limits.longest_waiting):
            return None
        vectors = np.array(source.read(slice(None)))  # the caller may change theirs after the check
        if self.ingest.check(source, 0, vectors).max() > limits.longest_waiting:
            return None
        most = min(limits.waiting_rows, limits.waiting_values // max(self.ingest.dim, self.ingest.n_bits))
        # What waits holds the encoder and not this state, whose rows hold what waits.
        return self.rows.add_later(ids, vectors, partial(_encoded, self.ingest, codec), most)

    def _add_first(self, new: NewRows, prototype: Encoder) -> tuple[Ids, IndexState]:
        """Add vectors to an index that is not fitted."""
        vectors, is_enough = self.ingest.read_first(new.source, self.rows)
        n_first = len(vectors)
        # A copy of the store is changed before fitting, so that a failure leaves the index as it was.
        first = self._replace(rows=copy.copy(self.rows)) if is_enough else self
        ids = None if new.ids is None else new.ids[:n_first]
        no_codes = np.empty((n_first, 0), dtype=np.uint64)
        columns = {"vectors": vectors} if new.names is None else {"vectors": vectors, NAMES: new.names[:n_first]}
        first_ids = first.rows.add(ids, no_codes, columns, replace=new.replace)
        if not is_enough:
            new.advance(n_first)
            return first_ids, first
        sample = None
        if self.ingest.needs_sample and n_first < new.source.n_rows:  # centres gain from a larger sample
            sample = self.ingest.sample_of(new.source, self._first_vectors(self.rows.snapshot()))
        state, stored_ids, stored = first._fitted(prototype, sample)
        new.advance(n_first)
        assert state.codec is not None
        encoded = state.ingest.encode(state.codec, new, n_first)
        ids = None if new.ids is None else new.ids[n_first:]
        next_id = first.rows.next_id
        if ids is None and next_id + len(encoded.codes) < 2**63:
            ids = np.arange(next_id, next_id + len(encoded.codes))
        is_new = ids is not None and not np.isin(ids, stored_ids).any() and stored.names_differ(encoded)
        if ids is not None and is_new:  # all rows together make one segment
            state.rows.add(np.concatenate([stored_ids, ids]), *stored.joined(encoded, state.rows.columns))
        else:
            state.rows.add(stored_ids, *stored)
            ids = state.rows.add(ids, *encoded, replace=new.replace)
        return np.concatenate([first_ids, ids]), state

    def fitted(self, prototype: Encoder, sample: VectorRows | None = None) -> IndexState:
        """Return the state with an encoder fitted to `sample`, or to the first rows, and the first rows as codes."""
        state, ids, encoded = self._fitted(prototype, sample)
        state.rows.add(ids, *encoded)
        return state

    def _first_vectors(self, snapshot: Snapshot) -> VectorRows:
        """Return the vectors of an index that is not fitted, in the order of ids."""
        vectors: VectorRows = snapshot.column_of("vectors", snapshot.ids(), self.rows.columns["vectors"])
        return vectors

    def _fitted(self, prototype: Encoder, sample: VectorRows | None = None) -> tuple[IndexState, Ids, EncodedRows]:
        """Return the state with a fitted encoder and without rows, and ids and codes of the first rows."""
        snapshot = self.rows.snapshot()
        snapshot.check_origins()
        ids = snapshot.ids()
        vectors = self._first_vectors(snapshot)
        sample = shortened(vectors if sample is None else sample, self.ingest.metric)
        encoder = prototype if is_ready(prototype) else fit_encoder(prototype, sample, self.ingest.metric)
        codec = self._codec_of(encoder, sample)
        state = self.with_codec(codec)
        state.rows.reserve(self.rows.next_id)
        new = NewRows.of_vectors(vectors, self.ingest.dim, ids, self.names_of(ids, snapshot))
        return state, ids, state.ingest.encode(codec, new, is_checked=True)

    def refitted(self, prototype: Encoder) -> IndexState:
        """Return the state with a copy of `prototype`, and centres of cells, fitted to the stored rows."""
        snapshot = self.rows.snapshot()
        snapshot.check_origins()
        ids = snapshot.ids()
        if len(ids) < 2:
            raise ValueError(f"refit needs at least 2 vectors, got {len(ids)}")
        vectors = self.vectors_of(ids, snapshot)
        sample = shortened(vectors[sample_rows(len(ids), self.ingest.dim)], self.ingest.metric)
        codec = self._codec_of(fit_encoder(prototype, sample, self.ingest.metric), sample)
        state = self.with_codec(codec)
        state.rows.reserve(self.rows.next_id)
        new = NewRows.of_vectors(vectors, self.ingest.dim, ids, self.names_of(ids, snapshot))
        state.rows.add(ids, *state.ingest.encode(codec, new, is_checked=True))
        return state

    def _codec_of(self, encoder: Encoder, sample: VectorRows) -> Codec:
        """Return the codec of a fitted encoder, with centres of a sample for cells and kept vectors."""
        ingest, codec = self.ingest, self.ingest.codec_of(encoder)
        if not ingest.needs_sample:
            return codec
        prepared = ingest.metric.prepare(sample)
        if ingest.cell_bits is not None:
            codec = ingest.with_kept(codec.with_residuals(prepared, ingest.cell_bits))
        return codec.with_kept_of(prepared)

    def with_codec(self, codec: Codec) -> IndexState:
        """Return the state of an index without rows whose codec is fitted."""
        ingest = self.ingest.fitted_to(codec)
        return IndexState(ingest, codec, ingest.code_store())

    def merge(self, other: IndexState, prototype: Encoder) -> IndexState:
        """Add all rows of another state with their ids, and return the state then.

        Codes and columns are copied if the encoders are equal. Otherwise kept vectors of `other` are encoded again.
        """
        snapshot = other.rows.snapshot()
        snapshot.check_origins()
        ids = snapshot.ids()
        if len(ids) == 0:
            return self
        names, state = other.names_of(ids, snapshot), self
        if self.rows.next_id == 0 and names is not None:
            state = self.keeping(self.ingest.keeps_sparse, True)
        require_kind(ids if names is None else names, state.ingest.has_names)
        kept_ids = ids if names is None else None  # rows with names are numbered anew
        columns = state.rows.columns
        if self._codes_like(other) and columns.items() <= other.rows.columns.items():
            values = {name: snapshot.column_of(name, ids, column) for name, column in columns.items()}
            state.rows.add(kept_ids, snapshot.codes_of(ids, self.ingest.code_bits), values)
            return state
        vectors = other.vectors_of(ids, snapshot)
        return self.add(NewRows.of_vectors(vectors, self.ingest.dim, kept_ids, names), prototype)[1]

    def _codes_like(self, other: IndexState) -> bool:
        """Return whether another state has every code that this one stores of a vector."""
        if not same_encoder(self.encoder, other.encoder) or self.codec is None or other.codec is None:
            return False
        ours, theirs = self.codec.residuals, other.codec.residuals
        is_equal = ours is None or (theirs is not None and np.array_equal(ours.centres, theirs.centres))
        kept, other_kept = self.codec.rows_of_levels, other.codec.rows_of_levels
        if kept is not None:
            centres = None if other_kept is None else other_kept.residuals.centres
            is_equal &= centres is not None and np.array_equal(kept.residuals.centres, centres)
        return is_equal and (other.ingest.keeps_codes or not self.ingest.keeps_codes)

    def codes_of(self, ids: AnyIds) -> Codes:
        """Return the Hamming codes of `ids` as words. Raises ValueError if there are none, or an id is not present."""
        if not self.ingest.keeps_codes:
            raise ValueError("this index keeps no Hamming codes: make it with hamming=True")
        if self.codec is None:
            raise ValueError("vectors have no codes until the index is fitted: call fit(X), or add more vectors")
        snapshot = self.rows.snapshot()
        return snapshot.codes_of(snapshot.require(ids), self.ingest.code_bits)

    def vectors_of(self, ids: Ids, snapshot: Snapshot) -> VectorRows:
        """Return the vectors of `ids`, all of which must be present in a snapshot of the rows, as float32."""
        if self.codec is not None and self.ingest.vectors is None:
            raise ValueError('this index keeps codes only; make it with vectors="float32" to get vectors back')
        if self.codec is not None and self.codec.kept is not None:
            return self._decoded(ids, snapshot)
        found: Any = snapshot.column_of("vectors", ids, self.rows.columns["vectors"])
        return found.astype(np.float32) if isinstance(found, SparseRows) else found.astype(np.float32, copy=False)

    def queries_of(self, ids: Ids, snapshot: Snapshot) -> VectorRows:
        """Return the vectors of `ids` as queries. Raises CorruptIndexFileError if a file holds unfit values."""
        vectors = self.vectors_of(ids, snapshot)
        if self.ingest.metric.name == "cosine" and not isinstance(vectors, SparseRows):
            # Decoded rows may be longer than the longest that can be added. Their lengths do not count.
            is_long = squares(vectors) > self.ingest.metric.longest
            vectors = np.where(is_long[:, np.newaxis], vectors / 2, vectors) if is_long.any() else vectors
        if all(segment.origin is None for segment in snapshot.segments):  # rows that were added have been checked
            return vectors
        if isinstance(vectors, SparseRows):
            vectors.check(self.ingest.dim)
        try:
            self.ingest.metric.check(VectorSource(vectors, self.ingest.dim, "kept vectors"), 0, vectors)
        except ValueError as error:
            raise CorruptIndexFileError(str(error)) from None
        return vectors

    def names_of(self, ids: Ids, snapshot: Snapshot) -> Names | None:
        """Return the names of `ids`, all of which must be present in a snapshot; None if the rows have no names."""
        return snapshot.names(ids) if self.ingest.has_names else None

    def _decoded(self, ids: Ids, snapshot: Snapshot) -> Vectors:
        """Return the vectors that are kept of `ids` in 4 or 8 bits.

        Levels of small values may stand for negative ones. 0 is nearer to what was added where the encoder takes no
        negative values, and can be encoded again.
        """
        column, columns = self._kept_rows(ids, snapshot), self.rows.columns
        assert self.codec is not None
        assert self.codec.kept is not None
        vectors = self.codec.kept.vectors_of(column)
        if "norms" in columns:
            norms, largest = snapshot.column_of("norms", ids, columns["norms"]), np.finfo(np.float32).max
            for piece in pieces(vectors):
                with np.errstate(over="ignore"):  # of vectors as long as float32 allows
                    vectors[piece] *= norms[piece, np.newaxis]
                np.clip(vectors[piece], -largest, largest, out=vectors[piece])
        if not getattr(self.codec.encoder, "takes_negative", True):
            for piece in pieces(vectors):
                np.maximum(vectors[piece], 0, out=vectors[piece])
        return vectors

    def _kept_rows(self, ids: Ids, snapshot: Snapshot) -> Any:
        """Return what is kept of `ids` in 4 or 8 bits."""
        name = str(self.ingest.kept_column)
        return snapshot.column_of(name, ids, self.rows.columns[name])

    def kept_error(self, snapshot: Snapshot) -> float | None:
        """Return the root mean square of the errors of kept vectors of 4 or 8 bits, over that of the vectors.

        Errors were measured when vectors were added, and are those of some rows. None for other vectors.
        """
        if self.codec is None or self.codec.kept is None:
            return None
        ids = snapshot.ids()
        ids = ids[:: max(1, len(ids) // tuning().kept_error_rows)]
        if not len(ids):
            return 0.0
        column = self._kept_rows(ids, snapshot)
        errors, wholes = self.codec.kept.squared_errors(column), squares(self._decoded(ids, snapshot))
        if "norms" in self.rows.columns:
            norms = snapshot.column_of("norms", ids, self.rows.columns["norms"]).astype(np.float64)
            errors = errors * norms**2
        whole = float(wholes.sum())
        return math.sqrt(float(errors.sum()) / whole) if whole > 0 else 0.0

    def values_per_vector(self, snapshot: Snapshot) -> int:
        """Return the number of values stored of a kept vector; of sparse vectors, the mean number of entries."""
        if not (self.ingest.vectors and self.ingest.keeps_sparse) or self.ingest.kept_bits is not None:
            return self.ingest.dim
        n_entries: int = sum(segment.columns["vectors"].values.size for segment in snapshot.segments)
        return n_entries // max(1, sum(segment.n_rows for segment in snapshot.segments))


def sample_rows(n_rows: int, dim: int) -> Rows:
    """Choose the rows that an index is fitted to anew, the same ones each time, in order."""
    limits = tuning()
    n_sample = min(limits.centre_sample_rows, max(limits.least_first_rows, limits.centre_sample_bytes // (4 * dim)))
    rows = np.random.default_rng(n_rows).permutation(n_rows)[:n_sample]
    return np.sort(rows)


def read_sample(source: VectorSource) -> VectorRows:
    """Read all rows of a sample; a sparse sample stays sparse. Raises ValueError if a row is not finite."""
    column = Column(np.float32, (source.dim,), source.is_sparse)
    step = tuning().fit_step_rows if source.is_sparse else max(1, tuning().fit_step_values // source.dim)
    sample: VectorRows = column.joined([column.of(rows) for _, rows in source.own_blocks(step)])
    return sample


def shortened(sample: VectorRows, metric: Metric) -> VectorRows:
    """Return a sample whose very long vectors are shortened: a few would move centres away from most vectors.

    Under "cosine" lengths do not matter, and the sample is returned as it is.
    """
    if metric.name == "cosine":
        return sample
    norms = _norms(sample)
    longest = tuning().longest_sample_norm * np.median(norms)
    return _scaled(sample, np.divide(longest, norms, out=np.ones_like(norms), where=(norms > longest) & (longest > 0)))


def fit_encoder(prototype: Encoder, sample: VectorRows, metric: Metric) -> Encoder:
    """Return a copy of an encoder, fitted to vectors, which have norm 1 under "cosine"."""
    if metric.name == "cosine":
        norms = _norms(sample)
        scales = np.divide(1, norms, out=np.ones_like(norms), where=norms > 0)
        sample = _scaled(sample, np.minimum(scales, np.finfo(np.float32).max))  # 1 / a subnormal norm exceeds float32
    return fitted_copy(prototype, sample.to_csr(prototype.dim) if isinstance(sample, SparseRows) else sample)


def _norms(sample: VectorRows) -> NDArray[np.float64]:
    if isinstance(sample, SparseRows):
        return np.sqrt(squares(sample))
    norms = np.empty(len(sample))
    for piece in pieces(sample):
        norms[piece] = np.sqrt(squares(sample[piece]))
    return norms


def _scaled(sample: VectorRows, scales: NDArray[np.float64]) -> VectorRows:
    if isinstance(sample, SparseRows):
        return sample.scaled(scales)
    scaled = np.empty(sample.shape, dtype=np.float32)
    for piece in pieces(sample):
        np.multiply(sample[piece], scales[piece, np.newaxis].astype(np.float32), out=scaled[piece])
    return scaled


def _encoded(ingest: Ingest, codec: Codec, vectors: Vectors) -> EncodedRows:
    """Return codes and columns of checked vectors."""
    new = NewRows(VectorSource(vectors, ingest.dim), None, False, 1, lambda n: None)
    return ingest.encode(codec, new, is_checked=True)
