"""CBEIndex: vectors in, neighbours out. The index connects the stages and computes nothing itself."""

from __future__ import annotations

import copy
from threading import RLock
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._core.checks import as_choice, as_count, as_flag, as_missing, dtype_name
from ._core.progress import progress_bar
from ._core.threads import as_n_threads, write_lock
from ._core.tuning import tuning
from ._core.typing import Arrays, CodeBytes
from .data.codes import to_bytes
from .data.ids import as_any_ids, is_id, is_one
from .data.names import Names, as_objects
from .data.source import VectorSource
from .data.sparserows import SparseRows
from .distances.codec import Codec
from .distances.kept import KINDS_OF_VECTORS
from .distances.metrics import METRICS, as_metric
from .distances.residuals import default_bits
from .distances.rotations import loses_nothing, rotation_length
from .encoders import KINDS, CirculantEncoder, Encoder
from .encoders.foreign import checked_encoder, is_ready
from .search.buckets import bucket_maker, kind_of
from .search.buckets.residualcells import without_copies
from .search.filters import NO_FILTER, IdFilter
from .search.plan import Explanation
from .search.request import IndexTraits
from .search.results import RangeResult, SearchResult
from .search.searches import VectorSearches
from .search.tuned import TRUE_CANDIDATES, calibrated_by, n_true, tuning_sample
from .storage.saveable import Saveable
from .storage.settings import (
    encoder_content,
    has_string_ids,
    ids_content,
    levels_content,
    load_encoder,
    load_levels,
    load_residuals,
    options_of,
    residuals_content,
)
from .store.ingest import Ingest, NewRows
from .store.rowstore import RowStore
from .store.shrinking import shrunk
from .store.state import IndexState, read_sample


class CBEIndex(Saveable):
    """Approximate nearest neighbour index of long vectors, based on circulant binary codes.

    Any number of threads may search while one adds or removes vectors. A search sees the index as it was when the
    search began.

    Parameters
    ----------
    dim : int
        Length of the vectors, 1 to millions.
    n_bits : int, optional
        Length of the codes, below, at or above `dim`. By default `dim`, and at most 2,048: longer codes of long vectors
        find little more where vectors are kept. For codes alone, say how many.
    metric : {"cosine", "l2", "ip"}
        "cosine": 1 - cosine, where a zero vector has cosine 0 to all others. "l2": squared Euclidean distance. "ip":
        1 - inner product. Names of other libraries are aliases: "angular" of "cosine", "euclidean" and "sqeuclidean" of
        "l2", "dot" and "inner_product" of "ip". Distances are the same by either name.
    encoder : {"orthogonal", "random", "learned"} or Encoder
        A kind of `CirculantEncoder`, or an encoder. A fitted encoder is used as it is. Under "cosine" the encoder gets
        vectors of norm 1, so fit it on such vectors.
    vectors : {None, "int4", "int8", "float16", "float32", "auto"}
        Type of the vectors kept beside codes, for re-ranking and `get`. None keeps codes only. Float vectors give exact
        distances, and are stored sparse if the first vectors added are sparse. "int8" and "int4" keep projections of
        vectors in 8 or 4 bits a dimension: their distances are estimates with standard errors, and `get` returns
        vectors that are about 1 % (8 bits) or 6 to 11 % (4 bits) of their length from the originals. Cells with codes
        of 4 bits, and graphs, keep such vectors as their own codes and store them once: a graph has 8 bits a dimension
        for "int4" too. "auto": "int8", or "float32" if the first vectors are sparse. `np.float32` and `np.float16` are
        as good as their names, and True is "float32".
    buckets : {None, "auto", "substrings", "clusters", "cells", "graph"}
        None: a search scans every code. "auto": cells, where the encoder is linear; data without clusters is scanned.
        "cells": rows near the same float centroid are stored contiguously, with codes of their residuals beside the
        Hamming codes, and a search visits the cells nearest the query. The fastest kind for batches of ordinary
        embeddings. "graph": every row has 32 neighbours, whose codes are stored with it, and a
        search walks from row to row towards the query. The fastest kind for single queries where rows change rarely:
        making a graph takes a millisecond for a few rows, and `stats()["record_bytes"]` bytes a row. "clusters": cells
        of similar Hamming codes. "substrings": hash tables of parts of the codes, for near duplicates.
    n_tables, table_bits : int, optional
        For "substrings": number of tables (at most 16, or one for each 8 bits of a code), and bits of each (at most
        24, and fewer in segments with less than half as many rows as a table would have entries).
    n_cells : int, optional
        For "clusters" and "cells": cells of each segment. By default twice the square root of its rows. At most one
        cell for each 8 rows, and 16 times the square root.
    cell_bits : {1, 2, 4}, optional
        For "cells": bits a dimension of residual codes. By default 4 for codes of fewer than 200 dimensions, else 1.
    spill : bool, optional
        For "cells" with kept vectors and 4 bits: whether every row is also in a second cell, from where searches with
        exact distances find it in fewer probes. By default where that saves 30 % of the visited rows. Copies take
        the memory of the codes again, `stats()["bytes"]["copies"]`.
    hamming : bool
        Whether Hamming codes are kept beside cells or a graph. Without them, `rerank=None` and `mode="cascade"` raise
        an error.
    seed : int
        Seed of the encoder.

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
        vectors: str | bool | type[np.generic] | np.dtype[Any] | None = "auto",
        buckets: str | None = "auto",
        seed: int = 0,
        n_tables: int | None = None,
        table_bits: int | None = None,
        n_cells: int | None = None,
        cell_bits: int | None = None,
        spill: bool | None = None,
        hamming: bool = True,
    ) -> None:
        self.metric = as_metric(metric)
        vectors = dtype_name(vectors)
        kept = None if vectors is None else as_choice(vectors, "vectors", KINDS_OF_VECTORS)
        if isinstance(encoder, str):
            most = tuning().most_default_bits
            n_bits = most if n_bits is None and isinstance(dim, int) and dim > most else n_bits
            self._prototype: Encoder = CirculantEncoder(dim, n_bits, as_choice(encoder, "encoder", KINDS), seed)
        else:
            self._prototype = checked_encoder(encoder, dim, n_bits)
        self.dim, self.n_bits = self._prototype.dim, self._prototype.n_bits
        is_linear = getattr(self._prototype, "is_linear", True)
        self.buckets, self._kind = buckets, kind_of(buckets, is_linear)
        self.hamming = as_flag(hamming, "hamming")
        self._options = {"n_tables": n_tables, "table_bits": table_bits, "n_cells": n_cells}
        if self._kind == "cells" or cell_bits is not None:
            self._options["cell_bits"] = cell_bits
        if spill is not None:
            self._options["spill"] = spill
        maker = bucket_maker(self._kind, self.n_bits, self._options)
        has_cells = maker is not None and maker.uses_residuals
        if not self.hamming and not (maker is not None and maker.needs_vectors):
            raise ValueError(f'hamming=False needs buckets="cells" or "graph", got buckets={buckets!r}')
        if has_cells and not is_linear:
            raise ValueError('buckets="cells" needs a linear encoder, and this one is not: use buckets="clusters"')
        ingest = Ingest(
            self.dim,
            self.n_bits,
            METRICS[self.metric],
            kept,
            maker,
            cell_bits=(cell_bits or default_bits(self.n_bits)) if has_cells else None,
            keeps_codes=self.hamming,
            has_vertices=self._kind == "graph",
            n_levels=rotation_length(self._prototype),
            shares_levels=rotation_length(self._prototype) == self.n_bits and loses_nothing(self._prototype),
        )
        if spill and ingest.kept_column in (None, "residuals"):
            raise ValueError(f"spill=True needs vectors that are read beside codes, got vectors={vectors!r}")
        self._searches = VectorSearches(
            IndexTraits(
                self.n_bits, self.metric, self._kind, self.dim, can_estimate=is_linear, keeps_codes=self.hamming,
                is_auto=self.buckets == "auto",
            )
        )  # fmt: skip
        self._lock = write_lock()
        self._state = IndexState.empty(ingest, self._prototype if is_ready(self._prototype) else None)

    def __repr__(self) -> str:
        kept = f", vectors={self.vectors!r}" if self.vectors else ""
        kept += f", buckets={self.buckets!r}" if self.buckets else ""
        return f"CBEIndex(dim={self.dim}, n_bits={self.n_bits}, metric={self.metric!r}{kept}): {len(self):,} vectors"

    def __len__(self) -> int:
        return self._state.rows.n_rows

    def __contains__(self, id_: object) -> bool:
        return is_id(id_) and self._state.rows.snapshot().has(id_)

    @property
    def ids(self) -> NDArray[Any]:
        """All ids: integers in ascending order, strings in the order of insertion."""
        return self._state.rows.snapshot().caller_ids()

    @property
    def is_fitted(self) -> bool:
        """Whether vectors are stored as codes. Until then they are stored as they are and searched exactly."""
        return self._state.codec is not None

    @property
    def vectors(self) -> str | None:
        """Type of the vectors kept beside codes; "auto" until the first vectors decide."""
        return self._state.ingest.vectors

    @property
    def encoder(self) -> Encoder:
        """The encoder."""
        return self._state.encoder or self._prototype

    def fit(self, X: ArrayLike) -> Self:
        """Fit the encoder: compute the centre of the data, and train a learned encoder.

        This is optional. An index that was not fitted fits itself once it has some thousand vectors. Vectors added
        before are encoded by this call.

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
                raise ValueError("the index is fitted already; make a new index to fit it to other data")
            if source.n_rows < 2:
                raise ValueError(f"fit needs at least 2 rows of {self.dim} values, got {source.n_rows}")
            state = self._state
            if self.vectors == "auto":
                state = state.keeping(source.is_sparse, state.ingest.has_names)
            self._state = state.fitted(self._prototype, read_sample(source))
        return self

    def add(
        self,
        X: ArrayLike,
        ids: ArrayLike | None = None,
        *,
        replace: bool = False,
        progress: bool = False,
        n_threads: int | None = None,
    ) -> NDArray[Any]:
        """Add vectors. All of them become visible to searches at once, or none if the call fails.

        Parameters
        ----------
        X : array_like or sparse of shape (n, dim) or (dim,)
        ids : array_like of int or str, shape (n,), optional
            Unique ids, non-negative or not empty. The first vectors decide whether ids are integers or strings. By
            default consecutive numbers that were never in use.
        replace : bool
            Replace vectors whose ids are in use. Otherwise such an id is an error.
        progress : bool
            Show a progress bar (needs tqdm).
        n_threads : int, optional
            By default one for each core.

        Returns
        -------
        ids : int64 array of shape (n,), or objects for strings
        """
        source = VectorSource(X, self.dim)
        checked_ids = None if ids is None else as_any_ids(ids, "ids", n=source.n_rows)
        replaces, threads = as_flag(replace, "replace"), as_n_threads(n_threads)
        wanted = as_flag(progress, "progress")
        with self._lock:
            if not wanted and not isinstance(checked_ids, Names):
                added_later = self._state.add_later(source, checked_ids)
                if added_later is not None:
                    return added_later
        with self._lock, progress_bar(wanted, source.n_rows, "vectors") as advance:
            numbers, names = (None, checked_ids) if isinstance(checked_ids, Names) else (checked_ids, None)
            new = NewRows(source, numbers, replaces, threads, advance, names)
            added, self._state = self._state.add(new, self._prototype)
            return added if names is None else as_objects(names.tolist())

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        mode: str = "auto",
        rerank: str | None = "auto",
        n_candidates: int | None = None,
        n_probes: int | None = None,
        *,
        recall: float | None = None,
        allow: Any = None,
        deny: Any = None,
        n_threads: int | None = None,
    ) -> SearchResult:
        """Find the `k` nearest vectors of each query.

        Parameters
        ----------
        queries : array_like or sparse of shape (n_queries, dim) or (dim,)
        k : int
        recall : float, optional
            Share of the true `k` nearest vectors to find on average, by default 0.95 if the index keeps vectors. Mode,
            probes and candidates are chosen so that the search is fast, by what the index has measured on stored
            vectors, or on queries (`tune`). 1.0 computes the distances of all vectors. An index of codes only comes
            as near as its codes allow. `stats["expected_recall"]` is what the index expects to have found.
        mode : {"auto", "scan", "cascade", "buckets", "exact"}
            "scan" compares every code. "cascade" compares 512 bits of every code first, and more bits of the codes that
            can still be among the nearest. It scans codes of up to 1,024 bits, and scans when too many codes remain.
            "buckets" compares the codes in some buckets. "exact" computes the distances of all vectors, which must be
            kept. "auto" chooses the fastest mode, which `explain` shows.
        rerank : {None, "asymmetric", "exact", "auto"}
            None: order by Hamming distance, and return Hamming distances. "asymmetric": estimate distances from the
            real-valued query and the codes. "exact": compute distances from the kept vectors, which "int8" and "int4"
            do not allow. "auto": the most accurate distances that the index can compute.
        n_candidates : int, optional
            Number of vectors, the nearest in Hamming distance, that are re-ranked. By default max(8 k, 640). By
            default every scanned vector is re-ranked where codes have up to 512 bits, norms count, or there are few
            vectors (not with substrings, nor in the cascade). With cells and graphs: number of vectors, the nearest by
            estimate, whose exact distances are computed, by default as many as `recall` needs.
        n_probes : int, optional
            With a graph, the beam of a walk: as many of the nearest vectors seen so far are visited. The beam widens
            until `k` vectors that may be results are found, and where a walk takes longer than a scan, vectors are
            scanned. Otherwise buckets visited in each segment: cells, or buckets of each table of substrings, where
            those that differ in the least certain bits of the query come first. More buckets are visited until they
            hold `k` vectors that may be results. By default as many as `recall` needs; as many clusters as hold 99 %
            of the `k` nearest of a stored vector (too few under "ip"); and as many substrings as exact search in
            Hamming distance needs.
        allow, deny : IdFilter, array_like of int or str, set, bool array, or sequence of these, optional
            Ids that alone may be results, and ids that must not be results. A bool array has an entry for each of
            `index.ids`, in that order. `allow` may be what `filter` returns. A sequence of filters, entries of which
            may be None, has one for each query.
        n_threads : int, optional
            By default one for each core. The result does not depend on it.

        Returns
        -------
        SearchResult
            float32 distances (int32 for `rerank=None`) and int64 ids, or strings as objects. `errors` holds the
            standard errors of estimated distances, also of those from vectors of 4 or 8 bits. An index that is not
            fitted yet returns exact distances.
        """
        options = k, mode, rerank, n_candidates, n_probes
        return self._searches.nearest(self._state, queries, options, recall, allow, deny, n_threads)

    def range_search(
        self,
        queries: ArrayLike,
        radius: float,
        rerank: str = "auto",
        *,
        recall: float | None = None,
        allow: Any = None,
        deny: Any = None,
        n_threads: int | None = None,
    ) -> RangeResult:
        """Find the vectors within a distance of each query.

        Parameters
        ----------
        queries : array_like or sparse of shape (n_queries, dim) or (dim,)
        radius : float
            Inclusive: distance <= radius, in the metric of the index.
        rerank : {"asymmetric", "exact", "auto"}
            Whether distances are estimated or exact. With exact distances, vectors whose estimate is more than four
            standard errors outside the radius are not read.
        recall : float, optional
            Share of the vectors within the radius to find on average, by default 0.95 if the index keeps vectors. Cells
            and tables of substrings are searched in part for it, but not under "ip". Everything else, and 1.0, compares
            all vectors; so does, by default, an index of codes only. A graph is walked while there are vectors within
            the radius, at any recall below 1.
        allow, deny, n_threads
            As in `search`.

        Returns
        -------
        RangeResult
            Every result is within the radius by the distance that is returned. `errors` holds the standard errors of
            estimated distances.
        """
        return self._searches.within(self._state, queries, (radius, rerank, recall), allow, deny, n_threads)

    def explain(
        self,
        queries: ArrayLike,
        k: int = 10,
        mode: str = "auto",
        rerank: str | None = "auto",
        n_candidates: int | None = None,
        n_probes: int | None = None,
        *,
        recall: float | None = None,
        radius: float | None = None,
        allow: Any = None,
        deny: Any = None,
    ) -> Explanation:
        """Say what `search` with these arguments does and why, and what each mode costs: text with attributes.

        With a `radius`, say what `range_search` does, which has neither `k`, `mode`, `n_candidates` nor `n_probes`.
        """
        options = k, mode, rerank, n_candidates, n_probes
        if radius is None:
            return self._searches.explain(self._state, queries, options, recall, allow, deny)
        if (k, mode, n_candidates, n_probes) != (10, "auto", None, None):
            raise ValueError("a range search has no k, mode, n_candidates or n_probes: give radius, rerank, recall")
        return self._searches.explain_range(self._state, queries, (radius, rerank, recall), allow, deny)

    def filter(self, allow: Any = None, deny: Any = None) -> IdFilter:
        """Prepare a filter for many searches, which then take about the time of searches without one.

        Parameters
        ----------
        allow, deny : array_like of int or str, set, or bool array, optional
            As in `search`. A bool array stands for the ids that it chooses now.

        Returns
        -------
        IdFilter
            The argument `allow` of searches. It stays right when vectors are added, replaced or removed.
        """
        return IdFilter.prepared(allow, deny, self._state.rows.snapshot())

    def search_ids(self, ids: ArrayLike, k: int = 10, **options: Any) -> SearchResult:
        """Find the `k` nearest vectors of each of some stored vectors, which must be kept, without the vector itself.

        Parameters
        ----------
        ids : array_like of int, shape (n,), or int
        k : int
        **options
            As in `search`.

        Returns
        -------
        SearchResult
            1-D for a single id.
        """
        state = self._state
        snapshot = state.rows.snapshot()
        numbers = snapshot.require(as_any_ids(ids, "ids"))
        vectors: Any = state.queries_of(numbers, snapshot)
        own: Any = as_objects(snapshot.names(numbers).tolist()) if state.rows.has_names else numbers
        found = self.search(vectors, as_count(k, "k") + 1, **options).without(own)
        return found.first() if is_one(ids) else found

    def tune(self, queries: ArrayLike, k: int = 10) -> Self:
        """Calibrate cells or graphs by queries of the caller, for indexes whose queries differ from what is stored.

        Otherwise an index is calibrated by stored vectors when its cells or graphs are made. Vectors that are added
        later are calibrated that way too, so repeat the call when the index has grown.

        Parameters
        ----------
        queries : array_like or sparse of shape (n_queries, dim)
            Some hundred queries at least; up to 2,048 of them are used.
        k : int
            The number of results that matters most.

        Returns
        -------
        self
        """
        sample: Any = tuning_sample(VectorSource(queries, self.dim, "queries"))
        n_results = as_count(k, "k")
        with self._lock:
            codec = self._state.codec
            if self._state.ingest.vectors is None or self._kind not in ("cells", "graph"):
                raise ValueError(
                    'tune needs cells or a graph, and vectors: make the index with buckets="auto" and vectors="float32"'
                )
            if codec is None:
                raise ValueError(f"tune needs a fitted index: call fit, or add more than the {len(self):,} vectors now")
            self._state.rows.snapshot().check_origins()  # stored rows stand for queries, too
            n = n_true(n_results, len(self))
            n_read = TRUE_CANDIDATES * n if self._state.ingest.kept_column == "vectors" else None
            options = n, "scan", "auto", n_read, None
            found, _ = self._searches.nearest_rows(self._state, sample, options, None, NO_FILTER, None)
            self._state.rows.change_buckets(calibrated_by(codec, sample, found.ids, n_results))
        return self

    def get(self, ids: ArrayLike) -> Any:
        """Return the vectors of `ids`: float32 (n, dim), or (dim,) for a single id; a CSR array if stored sparse.

        Vectors that are kept as "int8" or "int4" are decoded. `stats()["relative_error"]` is the root mean square of
        their distances to the vectors that were added, over the root mean square of the lengths of these.
        """
        checked_ids = as_any_ids(ids, "ids")
        state = self._state
        snapshot = state.rows.snapshot()
        found = state.vectors_of(snapshot.require(checked_ids), snapshot)
        if isinstance(found, SparseRows):
            return found.to_csr(self.dim)
        return found[0] if is_one(ids) else found

    def codes(self, ids: ArrayLike) -> CodeBytes:
        """Return the Hamming codes of `ids`: uint8 (n, ceil(n_bits / 8)), or one code for a single id.

        The index must be fitted, and must keep Hamming codes.
        """
        words = self._state.codes_of(as_any_ids(ids, "ids"))
        codes = to_bytes(words, self.n_bits)
        return codes[0] if is_one(ids) else codes

    def remove(self, ids: ArrayLike, *, missing: str = "raise") -> None:
        """Remove vectors by id. Ids that are not in the index are named by a ValueError, and then nothing is removed.

        With `missing="ignore"` such ids are ignored.
        """
        given, ignored = as_any_ids(ids, "ids", is_ordered=False), as_missing(missing)
        with self._lock:
            self._state.rows.remove(given, ignore_missing=ignored)

    def merge(self, other: CBEIndex) -> None:
        """Add all vectors of another index with their ids. If an id is in use, nothing is added.

        Codes are copied if both indexes have equal encoders. Otherwise the other index must keep vectors, which are
        encoded again.
        """
        if not isinstance(other, CBEIndex):
            raise TypeError(f"other must be a CBEIndex, got {type(other).__name__}")
        if (other.dim, other.metric) != (self.dim, self.metric):
            theirs = f"dim={other.dim}, metric={other.metric!r}"
            raise ValueError(f"other must have dim={self.dim}, metric={self.metric!r}, got {theirs}")
        with self._lock:
            self._state = self._state.merge(other._state, self._prototype)

    def refit(self) -> Self:
        """Fit the encoder, the centres of cells and all codes anew to the vectors that the index keeps.

        For an index whose data has changed since it was fitted. Searches see the old index until the new one is
        complete. Needs kept vectors, and memory for a second copy of the index.

        Returns
        -------
        self
        """
        with self._lock:
            if self.is_fitted and self.vectors is None:
                raise ValueError('refit needs vectors, but this index keeps codes only: make it with vectors="float32"')
            self._state = self._state.refitted(self._prototype)
        return self

    def shrink(self, vectors: str | None, *, n_threads: int | None = None) -> Self:
        """Keep less of the vectors: another type of `vectors` that needs no more than the present one.

        Codes, buckets and ids stay. Vectors of 8 bits are decoded and quantised anew to become those of 4 bits.
        Searches see the old index until the new one is complete. The next `save` without a path writes the file anew;
        until then it holds the old index. Needs memory for the new vectors beside the old ones.

        Parameters
        ----------
        vectors : {"float16", "int8", "int4", None}
            From "float32" over "float16", "int8" and "int4" to None, which keeps codes only. Sparse vectors become
            "int8" or "int4" only if that takes less memory.
        n_threads : int, optional
            By default one for each core.

        Returns
        -------
        self

        Examples
        --------
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((2000, 100), dtype=np.float32)
        >>> index = CBEIndex(100, vectors="float32").fit(X)
        >>> ids = index.add(X)
        >>> index.shrink("int4").vectors
        'int4'
        """
        target = None if vectors is None else as_choice(vectors, "vectors", KINDS_OF_VECTORS[:-1])
        threads = as_n_threads(n_threads)
        with self._lock, self._state.rows.lock:
            state = shrunk(self._state, target, threads)
            if state.ingest.kept_column in (None, "residuals"):  # copies serve searches that read vectors beside codes
                self._options = {name: value for name, value in self._options.items() if name != "spill"}
                state.rows.change_buckets(without_copies)
            self._rewrites = self._rewrites or state is not self._state
            self._state = state
        return self

    def stats(self) -> dict[str, Any]:
        """Describe the index: its parameters, its rows, and their bytes by part.

        Where vectors are kept as "int8" or "int4", `relative_error` says how far they are from those that were added.
        """
        error = self._state.kept_error(self._state.rows.snapshot())
        return {
            "dim": self.dim,
            "n_bits": self.n_bits,
            "metric": self.metric,
            "encoder": repr(self.encoder),
            "fitted": self.is_fitted,
            "vectors": self.vectors,
            **({} if error is None else {"relative_error": error}),
            "kind_of_buckets": self.buckets,
            **({"record_bytes": self._state.ingest.record_bytes} if self.buckets == "graph" else {}),
            **self._state.rows.snapshot().stats(),
        }

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            state = {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_archive")}
            return state | {"_state": self._state._replace(rows=copy.copy(self._state.rows))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = write_lock()

    def _write_lock(self) -> RLock:
        return self._lock

    def _stored_rows(self) -> RowStore:
        return self._state.rows

    def _content(self) -> tuple[dict[str, Any], Arrays]:
        config, arrays = encoder_content(self.encoder)
        names = ("dim", "n_bits", "metric", "vectors", "buckets")
        content = {"kind": "CBEIndex"} | {name: getattr(self, name) for name in names}
        content |= {"options": self._options, "sparse": self._state.ingest.keeps_sparse, "encoder": config}
        content |= ids_content(self._state.rows)
        if self._kind == "cells":
            residuals = None if self._state.codec is None else self._state.codec.residuals
            described, centres = residuals_content(residuals)
            content |= {"hamming": self.hamming, "residuals": described}
            arrays |= centres
        if self.buckets == "graph":
            content |= {"hamming": self.hamming}
        if self._state.ingest.kept_bits is not None and self.buckets != "graph":
            described, centres = levels_content(self._state.codec)
            content |= {"levels": described}
            arrays |= centres
        return content, arrays

    @classmethod
    def _from_content(cls, content: dict[str, Any], arrays: Arrays) -> tuple[Self, RowStore]:
        encoder = load_encoder(content["encoder"], arrays, content["dim"], content["n_bits"])
        options = {name: content[name] for name in ("metric", "vectors", "buckets")}
        options["hamming"] = content.get("hamming", True)
        index = cls(encoder.dim, encoder=encoder, **options, **options_of(content))
        index._state = index._state.keeping(as_flag(content["sparse"], "sparse"), has_string_ids(content))
        residuals = load_residuals(content, arrays, index.n_bits)
        ingest = index._state.ingest
        has_levels, centres = load_levels(content, arrays, ingest.n_levels)
        if residuals is not None or has_levels:
            codec = Codec.of(encoder, METRICS[index.metric])
            codec = codec if residuals is None else codec.with_centres(*residuals)
            index._state = index._state.with_codec(ingest.with_kept(codec, centres))
        return index, index._state.rows
