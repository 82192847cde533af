"""CBEIndex: vectors in, neighbours out; wires the stages, computes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as replace_fields
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from ._core.checks import as_choice, as_count, as_flag, as_real
from ._core.progress import progress_bar
from ._core.threads import as_n_threads, write_lock
from ._core.typing import Arrays, Ids
from .data.columns import Column
from .data.ids import as_filter, as_ids, is_id
from .data.source import VectorSource
from .data.sparserows import VectorRows
from .distances.estimator import AsymmetricQueries, Geometry
from .distances.metrics import METRICS
from .encoders import KINDS, CirculantEncoder, Encoder
from .encoders.foreign import checked_encoder, is_ready, project_rows, same_encoder
from .search.buckets import bucket_maker
from .search.pipeline import Answer, Search, in_parts
from .search.planner import MODES, RERANKS, Explanation, Plan, n_allowed, plan, ways
from .search.results import RangeResult, SearchResult, check_room
from .storage.saveable import Saveable
from .storage.settings import encoder_content, load_encoder, options_of
from .store.ingest import Ingest
from .store.rowstore import RowStore
from .store.snapshot import Snapshot

# Values of a sample, and sparse rows of it, that are read at a time.
_FIT_FLOATS = 2**20
_FIT_ROWS = 1024


class _State(NamedTuple):
    """What changes as a whole: an encoder and rows as codes, or no encoder and the first rows as vectors."""

    ingest: Ingest
    encoder: Encoder | None
    rows: RowStore
    geometry: Geometry | None

    @classmethod
    def empty(cls, ingest: Ingest, encoder: Encoder | None) -> _State:
        """Make the state of an index without rows."""
        if encoder is None:
            return cls(ingest, None, ingest.first_rows(), None)
        return cls(ingest, encoder, ingest.new_rows(), Geometry.of(encoder))

    def keeping(self, is_sparse: bool) -> _State:
        """Return the state of an index without rows whose vectors will be kept in this form."""
        ingest = replace_fields(self.ingest, keeps_sparse=is_sparse)
        return self._replace(ingest=ingest, rows=ingest.first_rows() if self.encoder is None else ingest.new_rows())


class CBEIndex(Saveable):
    """Approximate nearest neighbours of long vectors, by circulant binary codes.

    Any number of threads may search while one adds or removes: a search works on the rows as they were when it began.

    Parameters
    ----------
    dim : int
        Length of the vectors, 1 to millions.
    n_bits : int, optional
        Length of the codes, below, at or above `dim`; by default `dim` rounded up to a multiple of 64.
    metric : {"cosine", "l2", "ip"}
        "cosine": 1 - cosine (a zero vector has cosine 0 to all others). "l2": squared Euclidean distance. "ip": 1 -
        inner product.
    encoder : {"orthogonal", "random", "learned"} or Encoder
        A kind of `CirculantEncoder`, or an encoder; one that is fitted stays as it is. Under "cosine" it gets vectors
        of norm 1, so fit it on such.
    vectors : {None, "float32", "float16"}
        Whether vectors are kept beside their codes, for exact re-ranking and `get`. They are kept sparse if the first
        ones came sparse.
    buckets : {None, "substrings", "clusters"}
        None: every code is looked at. "clusters": similar codes stand together, and a search looks at the nearest of
        such cells; for large indexes. "substrings": tables of parts of the codes, for near duplicates.
    n_tables, table_bits : int, optional
        For "substrings": how many tables (at most 16, or one for 8 bits of a code), each of how many bits (at most 24,
        and fewer in segments that have less than half as many rows as a table would have entries).
    n_cells : int, optional
        For "clusters": cells of each segment; by default twice the root of its rows. At most one for 8 rows, and 16
        times the root of the rows.
    seed : int
        Chooses the encoder.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((5000, 300), dtype=np.float32)
    >>> index = CBEIndex(300, vectors="float32")
    >>> ids = index.add(X)
    >>> distances, ids = index.search(X[:2], k=3)
    >>> ids[:, 0]
    array([0, 1])
    """

    def __init__(
        self,
        dim: int,
        n_bits: int | None = None,
        *,
        metric: str = "cosine",
        encoder: str | Encoder = "orthogonal",
        vectors: str | None = None,
        buckets: str | None = None,
        seed: int = 0,
        n_tables: int | None = None,
        table_bits: int | None = None,
        n_cells: int | None = None,
    ) -> None:
        self.metric = as_choice(metric, "metric", tuple(METRICS))
        self.vectors = None if vectors is None else as_choice(vectors, "vectors", ("float32", "float16"))
        self._metric = METRICS[self.metric]
        if isinstance(encoder, str):
            self._prototype: Encoder = CirculantEncoder(dim, n_bits, as_choice(encoder, "encoder", KINDS), seed)
        else:
            self._prototype = checked_encoder(encoder, dim, n_bits)
        self.dim, self.n_bits = self._prototype.dim, self._prototype.n_bits
        self.buckets = buckets
        self._options = {"n_tables": n_tables, "table_bits": table_bits, "n_cells": n_cells}
        maker = bucket_maker(buckets, self.n_bits, **self._options)
        ingest = Ingest(self.dim, self.n_bits, self._metric, self.vectors, maker)
        self._lock = write_lock()
        self._state = _State.empty(ingest, self._prototype if is_ready(self._prototype) else None)

    def __repr__(self) -> str:
        kept = f", vectors={self.vectors!r}" if self.vectors else ""
        kept += f", buckets={self.buckets!r}" if self.buckets else ""
        return f"CBEIndex(dim={self.dim}, n_bits={self.n_bits}, metric={self.metric!r}{kept}): {len(self):,} vectors"

    def __len__(self) -> int:
        return self._state.rows.n_rows

    def __contains__(self, id_: object) -> bool:
        return is_id(id_) and bool(self._state.rows.snapshot().contains(np.array([id_], dtype=np.int64))[0])

    @property
    def ids(self) -> Ids:
        """All ids, ascending."""
        return self._state.rows.snapshot().ids()

    @property
    def is_fitted(self) -> bool:
        """Whether vectors are codes already; until then the first ones are kept as they are and searched exactly."""
        return self._state.encoder is not None

    @property
    def encoder(self) -> Encoder:
        """The encoder."""
        return self._state.encoder or self._prototype

    def fit(self, X: ArrayLike) -> Self:
        """Fit the encoder: find the centre of the data, and train it if it is a learned one.

        Optional: an index that was not fitted fits itself on its first rows, some thousands of them. Rows that were
        added before become codes now.

        Parameters
        ----------
        X : array_like or sparse of shape (n, dim)
            A sample of the data, at least 2 rows.

        Returns
        -------
        self
        """
        source = VectorSource(X, self.dim)
        with self._lock:
            if self.is_fitted:
                raise ValueError("the index is fitted already; make a new one to fit it to other data")
            if source.n_rows < 2:
                raise ValueError(f"fit needs at least 2 rows of {self.dim} values, got {source.n_rows}")
            column = Column(np.float32, (self.dim,), source.is_sparse)  # a sparse sample stays sparse
            step = _FIT_ROWS if source.is_sparse else max(1, _FIT_FLOATS // self.dim)
            sample = column.joined([column.of(rows) for _, rows in source.own_blocks(step)])
            ingest, _, first, _ = self._state
            encoder = ingest.fit(self._prototype, sample)
            geometry = Geometry.of(encoder)
            self._state = _State(ingest, encoder, ingest.encode_first(encoder, geometry, first), geometry)
        return self

    def add(
        self,
        X: ArrayLike,
        ids: ArrayLike | None = None,
        *,
        replace: bool = False,
        progress: bool = False,
        n_threads: int | None = None,
    ) -> Ids:
        """Add vectors; all of them become visible to searches at once, or none if one is refused.

        Parameters
        ----------
        X : array_like or sparse of shape (n, dim) or (dim,)
        ids : array_like of int, shape (n,), optional
            Their names, 0 or more, none of them twice. By default the next numbers that no vector ever had.
        replace : bool
            Whether a vector whose id is taken replaces the one that has it; otherwise that is an error.
        progress : bool
            Show a progress bar (needs tqdm).
        n_threads : int, optional
            By default one for each core.

        Returns
        -------
        int64 array of shape (n,)
        """
        source = VectorSource(X, self.dim)
        names = None if ids is None else as_ids(np.atleast_1d(np.asarray(ids)), "ids", n=source.n_rows)
        as_flag(replace, "replace")
        threads = as_n_threads(n_threads)
        with self._lock, progress_bar(as_flag(progress, "progress"), source.n_rows, "vectors") as advance:
            state = self._state
            if state.rows.next_id == 0:  # the first vectors decide in which form vectors are kept
                state = state.keeping(source.is_sparse)
            if state.encoder is not None and state.geometry is not None:
                words, columns = state.ingest.encode(state.encoder, state.geometry, source, 0, threads, advance)
                added = state.rows.add(names, words, columns, replace=replace)
            else:
                added, encoder, rows = state.ingest.add_first(
                    self._prototype, state.rows, source, names, replace, threads, advance
                )
                if encoder is not None:
                    state = state._replace(encoder=encoder, rows=rows, geometry=Geometry.of(encoder))
            self._state = state
            return added

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        mode: str = "auto",
        rerank: str | None = "auto",
        n_candidates: int | None = None,
        n_probes: int | None = None,
        *,
        allow: ArrayLike | None = None,
        deny: ArrayLike | None = None,
        n_threads: int | None = None,
    ) -> SearchResult:
        """Find the `k` nearest vectors of each query.

        Parameters
        ----------
        queries : array_like or sparse of shape (n_queries, dim) or (dim,)
        k : int
        mode : {"auto", "scan", "cascade", "buckets"}
            "scan" looks at every code. "cascade" looks at 512 bits of every code first, and at more of those that can
            still be among the nearest; codes of up to 1,024 bits, and where these are many all codes, it looks at
            whole. "buckets" looks at the codes in some buckets. "auto" takes what is faster; `explain` says which.
        rerank : {None, "asymmetric", "exact", "auto"}
            None: order by Hamming distance, which is then what `distances` are. "asymmetric": estimate distances from
            the real-valued query and the codes. "exact": compute them from the kept vectors. "auto": the best that the
            index can do.
        n_candidates : int, optional
            How many vectors, the nearest in Hamming distance, are re-ranked. By default max(8 k, 640); and every vector
            that is looked at where codes have up to 512 bits, norms count, or there are few vectors (not with
            substrings, nor in the cascade).
        n_probes : int, optional
            Buckets visited in each segment: cells of clusters, or buckets of each table of substrings, those first
            that differ where the query is least certain. By default as many cells as hold 99 % of the `k` nearest of
            a stored vector (for queries unlike the data, and for "ip", that may be too few); and with substrings as
            many as it takes to be exact in Hamming space. More are visited where they have fewer than `k` vectors
            that may be answers.
        allow, deny : array_like of int, optional
            Ids that alone may, or may not, be answers.
        n_threads : int, optional
            By default one for each core. The answer does not depend on it.

        Returns
        -------
        SearchResult
            float32 distances (int32 for `rerank=None`) and int64 ids; `errors` has the standard errors of estimated
            distances. An index that is not fitted yet has vectors in place of codes: its answers are exact.
        """
        allowed, denied = as_filter(allow, "allow"), as_filter(deny, "deny")
        state = self._state
        snapshot = state.rows.snapshot()
        n = n_allowed(allowed, denied)
        k = as_count(k, "k")
        source, way = self._request(queries, snapshot, k, mode, rerank, n_candidates, n_probes, n)
        check_room(source.n_rows, k)
        found = self._answers(
            source, state, snapshot, allowed, denied, n_threads, way, lambda search: search.nearest(way, way.k)
        )
        result = SearchResult.joined(found).padded(k)
        return result.first() if source.is_single else result

    def range_search(
        self,
        queries: ArrayLike,
        radius: float,
        rerank: str = "auto",
        *,
        allow: ArrayLike | None = None,
        deny: ArrayLike | None = None,
        n_threads: int | None = None,
    ) -> RangeResult:
        """Find all vectors within a distance of each query.

        Parameters
        ----------
        queries : array_like or sparse of shape (n_queries, dim) or (dim,)
        radius : float
            Inclusive: distance <= radius, in the metric of the index.
        rerank : {"asymmetric", "exact", "auto"}
            Whether distances are estimates or exact. Vectors whose estimate is more than four standard errors outside
            the radius are not read.
        allow, deny, n_threads
            As in `search`.

        Returns
        -------
        RangeResult
        """
        if rerank is None:
            raise ValueError("a radius is in the metric of the index: rerank must not be None")
        allowed, denied = as_filter(allow, "allow"), as_filter(deny, "deny")
        state = self._state
        snapshot = state.rows.snapshot()
        source, way = self._request(queries, snapshot, 1, "scan", rerank, None, None, None)
        if way.rerank is None:
            raise ValueError('codes of this encoder tell no distances: make the index with vectors="float32"')
        radius = as_real(radius, "radius")
        found = self._answers(
            source, state, snapshot, allowed, denied, n_threads, way, lambda search: search.within(way, radius)
        )
        return RangeResult.joined(found)

    def explain(
        self,
        queries: ArrayLike,
        k: int = 10,
        mode: str = "auto",
        rerank: str | None = "auto",
        n_candidates: int | None = None,
        n_probes: int | None = None,
        *,
        allow: ArrayLike | None = None,
        deny: ArrayLike | None = None,
    ) -> Explanation:
        """Say what `search` with these arguments does, why, and what each mode costs: text with attributes."""
        snapshot = self._state.rows.snapshot()
        n = n_allowed(as_filter(allow, "allow"), as_filter(deny, "deny"))
        source, way = self._request(queries, snapshot, k, mode, rerank, n_candidates, n_probes, n)
        head = f"{source.n_rows:,} queries, {way.k:,} of {snapshot.n_rows:,} vectors each"
        if not self.is_fitted:
            why = "the index is not fitted yet, so that exact distances of all vectors are computed"
            return Explanation(head, replace_fields(way, mode="scan", reason=why), {})
        return Explanation(head, way, ways(self.n_bits, snapshot.parts(), way.k, self.buckets, way.n_probes, n))

    def get(self, ids: ArrayLike) -> Any:
        """Return the vectors of `ids`: float32 (n, dim), or (dim,) for a single id; a CSR array if kept sparse."""
        names = as_ids(np.atleast_1d(np.asarray(ids)), "ids")
        state = self._state
        snapshot = state.rows.snapshot()
        snapshot.require(names)
        found = self._vectors_of(names, state, snapshot)
        return found[0] if np.ndim(ids) == 0 and isinstance(found, np.ndarray) else found

    def remove(self, ids: ArrayLike) -> None:
        """Remove vectors by id. An id that is not there is an error, and then nothing is removed."""
        with self._lock:
            self._state.rows.remove(np.unique(as_ids(np.atleast_1d(np.asarray(ids)), "ids")))

    def merge(self, other: CBEIndex) -> None:
        """Add all vectors of another index under their own ids; if one of the ids is taken, nothing is added.

        Codes of an equal encoder are taken over. Otherwise the other index must have vectors, to be encoded anew.
        """
        if not isinstance(other, CBEIndex):
            raise TypeError(f"other must be a CBEIndex, got {type(other).__name__}")
        if (other.dim, other.metric) != (self.dim, self.metric):
            theirs = f"dim={other.dim}, metric={other.metric!r}"
            raise ValueError(f"other must have dim={self.dim}, metric={self.metric!r}, got {theirs}")
        with self._lock:
            state, their_state = self._state, other._state
            snapshot = their_state.rows.snapshot()
            snapshot.check_origins()
            names = snapshot.ids()
            if len(names) == 0:
                return
            kept = state.rows.columns
            if same_encoder(state.encoder, their_state.encoder) and kept.items() <= their_state.rows.columns.items():
                columns = {name: snapshot.column_of(name, names, column) for name, column in kept.items()}
                state.rows.add(names, snapshot.codes_of(names, self.n_bits), columns)
            else:
                vectors = other._vectors_of(names, their_state, snapshot)
                their_state.ingest.kept_vectors(snapshot, names, their_state.rows.columns["vectors"])  # refuses damage
                self.add(vectors, names)

    def stats(self) -> dict[str, Any]:
        """Describe the index: how it was made, its rows, and their bytes by part."""
        return {
            "dim": self.dim,
            "n_bits": self.n_bits,
            "metric": self.metric,
            "encoder": repr(self.encoder),
            "fitted": self.is_fitted,
            "vectors": self.vectors,
            "kind_of_buckets": self.buckets,
            **self._state.rows.snapshot().stats(),
        }

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            state = {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_archive")}
            return state | {"_state": self._state._replace(rows=copy.copy(self._state.rows))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = write_lock()

    @contextmanager
    def _writing(self) -> Iterator[RowStore]:
        with self._lock, self._state.rows.lock:
            yield self._state.rows

    def _content(self) -> tuple[dict[str, Any], Arrays]:
        config, arrays = encoder_content(self.encoder)
        names = ("dim", "n_bits", "metric", "vectors", "buckets")
        content = {"kind": "CBEIndex"} | {name: getattr(self, name) for name in names}
        return {
            **content,
            "options": self._options,
            "sparse": self._state.ingest.keeps_sparse,
            "encoder": config,
        }, arrays

    @classmethod
    def _from_content(cls, content: dict[str, Any], arrays: Arrays) -> tuple[Self, RowStore]:
        encoder = load_encoder(content["encoder"], arrays, content["dim"], content["n_bits"])
        index = cls(
            encoder.dim,
            metric=content["metric"],
            encoder=encoder,
            vectors=content["vectors"],
            buckets=content["buckets"],
            **options_of(content),
        )
        index._state = index._state.keeping(as_flag(content["sparse"], "sparse"))
        return index, index._state.rows

    def _request(
        self,
        queries: ArrayLike,
        snapshot: Snapshot,
        k: Any,
        mode: Any,
        rerank: Any,
        n_candidates: Any,
        n_probes: Any,
        n_allowed: int | None,
    ) -> tuple[VectorSource, Plan]:
        """Check what a search was asked for, and plan it."""
        source = VectorSource(queries, self.dim, "queries")
        way = plan(
            n_bits=self.n_bits,
            parts=snapshot.parts(),
            k=as_count(k, "k"),
            mode=as_choice(mode, "mode", MODES),
            buckets=self.buckets,
            n_values=self._n_values(snapshot),
            n_probes=None if n_probes is None else as_count(n_probes, "n_probes"),
            metric=self.metric,
            has_vectors=self.vectors is not None,
            can_estimate=getattr(self.encoder, "is_linear", True),
            rerank=None if rerank is None else as_choice(rerank, "rerank", RERANKS),
            n_candidates=None if n_candidates is None else as_count(n_candidates, "n_candidates"),
            n_allowed=n_allowed,
            n_queries=source.n_rows,
        )
        return source, way

    def _vectors_of(self, ids: Ids, state: _State, snapshot: Snapshot) -> Any:
        """Return the vectors of `ids` in a snapshot of a state: float32 (n, dim), or a CSR array if kept sparse."""
        if state.encoder is not None and self.vectors is None:
            raise ValueError('this index keeps codes only; make it with vectors="float32" to get vectors back')
        column = state.rows.columns["vectors"]
        found: Any = snapshot.column_of("vectors", ids, column)
        return found.to_csr(self.dim) if column.is_sparse else found.astype(np.float32, copy=False)

    def _n_values(self, snapshot: Snapshot) -> int:
        """Count the values that are kept of a vector: of sparse ones those that are not 0, on average."""
        if not (self.vectors and self._state.ingest.keeps_sparse):
            return self.dim
        n_entries: int = sum(segment.columns["vectors"].values.size for segment in snapshot.segments)
        return n_entries // max(1, sum(segment.n_rows for segment in snapshot.segments))

    def _answers(
        self,
        source: VectorSource,
        state: _State,
        snapshot: Snapshot,
        allow: Ids | None,
        deny: Ids | None,
        n_threads: Any,
        way: Plan,
        answer: Callable[[Search], Answer],
    ) -> list[Answer]:
        """Answer all queries on the rows of a snapshot, in parts (see `in_parts`)."""

        def answer_part(first: int, vectors: VectorRows, threads: int) -> Answer:
            queries = margins = None
            prepared = state.ingest.prepare(source, first, vectors)
            if state.encoder is not None and state.geometry is not None:
                projections = project_rows(state.encoder, source.part(first, prepared), threads)
                queries = (
                    AsymmetricQueries.of(prepared, projections, state.geometry, self._metric)
                    if way.estimates
                    else AsymmetricQueries.of_codes(projections)
                )
                margins = np.abs(projections) if self.buckets == "substrings" else None
            return answer(
                Search(
                    snapshot.segments, self._metric, self.dim, vectors, queries, self.n_bits, allow, deny, threads,
                    margins,
                )
            )  # fmt: skip

        return in_parts(answer_part, source, self.n_bits, way.mode, as_n_threads(n_threads))
