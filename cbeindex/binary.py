"""BinaryIndex: binary codes in, nearest codes out."""

from __future__ import annotations

import copy
from threading import RLock
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._core.checks import MOST_BITS, as_count, as_flag, as_missing, as_probability
from ._core.threads import as_n_threads
from ._core.tuning import tuning
from ._core.typing import Arrays, CodeBytes, Codes
from .data.codes import has_bits_past, to_bytes, to_words
from .data.ids import AnyIds, as_any_ids, is_id, is_one
from .data.names import NAMES, Names, as_objects
from .data.rowerror import RowError
from .data.source import as_codes
from .search.buckets import CODE_KINDS, bucket_maker
from .search.codes import CodeSearch, within
from .search.filters import NO_FILTER, FilterPerQuery, IdFilter, filter_of, one_filter
from .search.naming import named
from .search.perquery import search_each
from .search.plan import Explanation
from .search.planner import costs, plan, select
from .search.queries import CodeQueries
from .search.request import CODE_MODES, IndexTraits, SearchRequest
from .search.results import RangeResult, SearchResult, check_result_size
from .storage.saveable import Saveable
from .storage.settings import has_string_ids, ids_content, options_of
from .store.rowstore import RowStore


class BinaryIndex(Saveable):
    """Nearest neighbour index of binary codes in Hamming distance.

    For codes that you already have. `CBEIndex` computes codes of vectors. Any number of threads may search while one
    adds or removes codes. A search sees the index as it was when the search began.

    Parameters
    ----------
    n_bits : int
        Length of the codes. It need not be a multiple of 8 or 64.
    buckets : {None, "substrings", "clusters"}
        None: a search scans every code. "substrings": hash tables of parts of the codes find near duplicates fast and
        exactly. "clusters": similar codes are stored contiguously in cells, and a search scans the cells nearest the
        query.
    n_tables, table_bits : int, optional
        For "substrings": number of tables (at most 16, or one for each 8 bits of a code), and bits of each (at most
        24, and fewer in segments with less than half as many rows as a table would have entries). By default about
        log2(n) bits, and 16 tables or as many as fit into the code.
    n_cells : int, optional
        For "clusters": cells of each segment. By default twice the square root of its rows. At most one cell for each 8
        rows, and 16 times the square root.

    Notes
    -----
    Buckets are made once there are 4,096 codes, or 2,048 codes in one batch. Until then every code is scanned.

    Examples
    --------
    >>> import numpy as np
    >>> codes = np.random.default_rng(0).integers(0, 256, (1000, 32), dtype=np.uint8)
    >>> index = BinaryIndex(256)
    >>> ids = index.add(codes)
    >>> distances, ids = index.search(codes[:2], k=3)
    >>> ids[:, 0], distances[:, 0]
    (array([0, 1]), array([0, 0], dtype=int32))
    """

    def __init__(
        self,
        n_bits: int,
        buckets: str | None = None,
        *,
        n_tables: int | None = None,
        table_bits: int | None = None,
        n_cells: int | None = None,
    ) -> None:
        self.n_bits = as_count(n_bits, "n_bits", most=MOST_BITS)
        self.buckets = buckets
        self._options = {"n_tables": n_tables, "table_bits": table_bits, "n_cells": n_cells}
        self._rows = RowStore(self.n_bits, buckets=bucket_maker(buckets, self.n_bits, self._options, CODE_KINDS))
        self._traits = IndexTraits(self.n_bits, buckets=buckets)

    def __repr__(self) -> str:
        kind = f", buckets={self.buckets!r}" if self.buckets else ""
        return f"BinaryIndex(n_bits={self.n_bits}{kind}): {len(self):,} codes"

    def __copy__(self) -> BinaryIndex:
        other = BinaryIndex(self.n_bits, self.buckets, **self._options)
        other._rows = copy.copy(self._rows)  # shares the immutable segments
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_archive": None}  # a copy has no file

    def __len__(self) -> int:
        return self._rows.n_rows

    def __contains__(self, id_: object) -> bool:
        return is_id(id_) and self._rows.snapshot().has(id_)

    @property
    def ids(self) -> NDArray[Any]:
        """All ids: integers in ascending order, strings in the order of insertion."""
        return self._rows.snapshot().caller_ids()

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None, *, replace: bool = False) -> NDArray[Any]:
        """Add codes.

        Parameters
        ----------
        codes : uint8 array of shape (n, ceil(n_bits / 8)) or (ceil(n_bits / 8),)
            Bit j is bit j % 8 of byte j // 8, as in `np.packbits(..., bitorder="little")`. Spare bits are 0.
        ids : array_like of int or str, shape (n,), optional
            Unique ids, non-negative or not empty. The first codes decide whether ids are integers or strings. By
            default consecutive numbers that were never in use.
        replace : bool
            Replace codes whose ids are in use. Otherwise such an id is an error.

        Returns
        -------
        ids : int64 array of shape (n,), or objects for strings
        """
        words, _ = self._as_words(codes, "codes")
        checked_ids = None if ids is None else as_any_ids(ids, "ids", n=len(words))
        return self._add(checked_ids, words, as_flag(replace, "replace"))

    def _add(self, ids: AnyIds | None, words: Codes, replace: bool = False) -> NDArray[Any]:
        """Add words; the first rows decide whether ids are strings."""
        with self._rows.lock:
            is_first = isinstance(ids, Names) and not self._rows.next_id
            rows = self._rows.keeping_names() if is_first else self._rows
            rows.require_kind(ids, len(words))
            if not isinstance(ids, Names):
                return rows.add(ids, words, replace=replace)
            rows.add(None, words, {NAMES: ids}, replace=replace)
            self._rows = rows
            return as_objects(ids.tolist())

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        mode: str = "auto",
        n_probes: int | None = None,
        *,
        allow: Any = None,
        deny: Any = None,
        miss: float | None = None,
        n_threads: int | None = None,
    ) -> SearchResult:
        """Find the `k` nearest codes of each query.

        Parameters
        ----------
        queries : uint8 array of shape (n_queries, ceil(n_bits / 8)) or (ceil(n_bits / 8),)
        k : int
        mode : {"auto", "scan", "cascade", "buckets"}
            "scan" compares every code, and is exact. "cascade" compares 512 bits of every code first, and the rest of
            the codes that can still be among the nearest. It may miss some of them (see `miss`), scans codes of up to
            1,024 bits, and scans when too many codes remain. "buckets" compares the codes in some buckets. "auto" is
            exact, unless the index has clusters and they are cheaper. `explain` shows the mode that it chooses.
        n_probes : int, optional
            Buckets visited in each segment: cells of clusters, or buckets of each table of substrings. By default as
            many cells as hold 99 % of the `k` nearest of a stored code, or as many substrings as exact search needs.
            More buckets are visited until they hold `k` codes that may be results.
        allow, deny : IdFilter, array_like of int or str, set, bool array, or sequence of these, optional
            Ids that alone may be results, and ids that must not be results. A bool array has an entry for each of
            `index.ids`, in that order. `allow` may be what `filter` returns. A sequence of filters, entries of which
            may be None, has one for each query.
        miss : float, optional
            For the cascade: probability with which the k-th nearest code is missed, if differing bits are spread evenly
            over the code. By default 0.001.
        n_threads : int, optional
            By default one for each core. The result does not depend on it.

        Returns
        -------
        SearchResult
            int32 distances and int64 ids, or strings as objects. `stats["survivors"]` counts the codes that the
            cascade compared beyond 512 bits, `stats["visited"]` the codes in the visited buckets.
        """
        words, is_single = self._as_queries(queries)
        ids, options = filter_of(allow, deny), (k, mode, n_probes, miss)
        if not isinstance(ids, FilterPerQuery):
            found = self._search(self._rows, words, options, ids, n_threads)
            return found.first() if is_single else found
        groups, rows = ids.groups(len(words), is_single), self._rows.frozen()
        return search_each(
            groups, lambda at: words[at], lambda some, one: self._search(rows, some, options, one, n_threads)
        )

    def _search(
        self, rows: RowStore, words: Codes, options: tuple[Any, ...], ids: IdFilter, n_threads: Any
    ) -> SearchResult:
        """Search rows with the arguments of `search`. Searches with plain options are planned once."""
        k, mode, n_probes, miss = options
        is_batch, is_kept = int(len(words) >= tuning().batch_queries), ids is NO_FILTER or ids.number is not None
        memo, key = rows.memo, (*options, is_batch, ids.number)
        prepared: CodeSearch | None = memo.get(key) if is_kept else None
        if prepared is None:
            request = SearchRequest.checked(
                len(words), k, mode, ids=ids, n_probes=n_probes, n_threads=n_threads, modes=CODE_MODES
            )
            if miss is not None:
                if request.mode != "cascade":
                    raise ValueError(f"miss is for mode='cascade', got mode={mode!r}")
                request = request._replace(miss=as_probability(miss, "miss"))
            prepared = CodeSearch.of(plan(self._traits, request, rows.snapshot().segments), request.k)
            if is_kept:
                memo.put(key, prepared)
        threads = as_n_threads(n_threads)
        check_result_size(len(words), prepared.n_results)
        found = prepared.nearest(words, self.n_bits, threads)
        return named(found, prepared.plan.selections) if rows.has_names else found

    def explain(
        self,
        queries: ArrayLike,
        k: int = 10,
        mode: str = "auto",
        n_probes: int | None = None,
        *,
        allow: Any = None,
        deny: Any = None,
    ) -> Explanation:
        """Say what `search` with these arguments does and why, and what each mode costs: text with attributes."""
        words, _ = self._as_queries(queries)
        request = SearchRequest.checked(
            len(words), k, mode, ids=one_filter(allow, deny), n_probes=n_probes, modes=CODE_MODES
        )
        chosen = plan(self._traits, request, self._rows.snapshot().segments)
        head = f"{len(words):,} queries, {chosen.k:,} of {chosen.n_stored:,} codes each"
        return Explanation(head, chosen, costs(self._traits, chosen))

    def range_search(
        self,
        queries: ArrayLike,
        radius: int,
        *,
        allow: Any = None,
        deny: Any = None,
        n_threads: int | None = None,
    ) -> RangeResult:
        """Find all codes within a Hamming distance of each query, exactly.

        Parameters
        ----------
        queries : uint8 array of shape (n_queries, ceil(n_bits / 8)) or (ceil(n_bits / 8),)
        radius : int
            Inclusive: distance <= radius.
        allow, deny, n_threads
            As in `search`.

        Returns
        -------
        RangeResult
        """
        words, is_single = self._as_queries(queries)
        within_bits, threads = min(as_count(radius, "radius", least=0), self.n_bits), as_n_threads(n_threads)
        ids, rows = filter_of(allow, deny), self._rows.frozen()

        def search(some: Codes, one: IdFilter) -> RangeResult:
            selections = select(rows.snapshot().segments, one)
            found = within(CodeQueries(some, self.n_bits, 0, threads), selections, within_bits)
            return named(found, selections) if rows.has_names else found

        if not isinstance(ids, FilterPerQuery):
            return search(words, ids)
        return search_each(ids.groups(len(words), is_single), lambda at: words[at], search)

    def filter(self, allow: Any = None, deny: Any = None) -> IdFilter:
        """Prepare a filter for many searches, which then take about the time of searches without one.

        Parameters
        ----------
        allow, deny : array_like of int or str, set, or bool array, optional
            As in `search`. A bool array stands for the ids that it chooses now.

        Returns
        -------
        IdFilter
            The argument `allow` of searches. It stays right when codes are added, replaced or removed.
        """
        return IdFilter.prepared(allow, deny, self._rows.snapshot())

    def get(self, ids: ArrayLike) -> CodeBytes:
        """Return the codes of `ids`: uint8 (n, ceil(n_bits / 8)), or one code for a single id."""
        snapshot = self._rows.snapshot()
        numbers = snapshot.require(as_any_ids(ids, "ids"))
        codes = to_bytes(snapshot.codes_of(numbers, self.n_bits), self.n_bits)
        return codes[0] if is_one(ids) else codes

    def remove(self, ids: ArrayLike, *, missing: str = "raise") -> None:
        """Remove codes by id. Ids that are not in the index are named by a ValueError, and then nothing is removed.

        With `missing="ignore"` such ids are ignored.
        """
        given, ignored = as_any_ids(ids, "ids", is_ordered=False), as_missing(missing)
        self._rows.remove(given, ignore_missing=ignored)

    def merge(self, other: BinaryIndex) -> None:
        """Add all codes of another index with their ids. If an id is in use, nothing is added."""
        if not isinstance(other, BinaryIndex):
            raise TypeError(f"other must be a BinaryIndex, got {type(other).__name__}")
        if other.n_bits != self.n_bits:
            raise ValueError(f"other must have codes of {self.n_bits} bits, got {other.n_bits}")
        snapshot = other._rows.snapshot()
        snapshot.check_origins()
        ids = snapshot.ids()
        names = snapshot.names(ids) if snapshot.has_names else None
        self._add(ids if names is None else names, snapshot.codes_of(ids, self.n_bits))

    def stats(self) -> dict[str, Any]:
        """Count rows, segments and bytes."""
        return {"n_bits": self.n_bits, "kind_of_buckets": self.buckets, **self._rows.snapshot().stats()}

    def _write_lock(self) -> RLock:
        return self._rows.lock

    def _stored_rows(self) -> RowStore:
        return self._rows

    def _content(self) -> tuple[dict[str, Any], Arrays]:
        content = {"kind": "BinaryIndex", "n_bits": self.n_bits, "buckets": self.buckets, "options": self._options}
        return content | ids_content(self._rows), {}

    @classmethod
    def _from_content(cls, content: dict[str, Any], arrays: Arrays) -> tuple[Self, RowStore]:
        index = cls(content["n_bits"], content["buckets"], **options_of(content))
        if has_string_ids(content):
            index._rows = index._rows.keeping_names()
        return index, index._rows

    def _as_words(self, codes: ArrayLike, name: str) -> tuple[Codes, bool]:
        """Return codes as words, and whether they were a single code as a 1-D array."""
        array, is_single = as_codes(codes, self.n_bits, name)
        if self.n_bits % 8 and (bad := has_bits_past(array, self.n_bits)).any():
            problem = 'has not; cbeindex.interop.codes_from(codes, bit_order="big") reads codes made by np.packbits'
            raise RowError(name, f"must have zeros past bit {self.n_bits - 1}", int(bad.argmax()), problem)
        return to_words(array, self.n_bits), is_single

    def _as_queries(self, queries: ArrayLike) -> tuple[Codes, bool]:
        """Return queries as words in the layout that kernels are compiled for, and whether they were a single code."""
        words, is_single = self._as_words(queries, "queries")
        if not (words.flags.carray and words.flags.aligned):  # np.require takes 2 us to find this out
            words = np.require(words, requirements=["C", "ALIGNED", "WRITEABLE"])
        return words, is_single
