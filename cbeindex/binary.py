"""BinaryIndex: codes in, nearest codes out."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from ._core.checks import MOST_BITS, as_choice, as_count, as_flag, as_probability
from ._core.threads import as_n_threads
from ._core.typing import Arrays, CodeBytes, Codes, Ids
from .data.codes import has_bits_past, n_bytes, to_bytes, to_words
from .data.ids import as_filter, as_ids, is_id
from .data.keys import NO_HAMMING_DISTANCE
from .data.source import RowError, as_codes
from .search import candidates, scan
from .search.buckets import Tables, bucket_maker, substrings
from .search.candidates import View
from .search.planner import MODES, Explanation, Plan, n_allowed, plan, ways
from .search.results import RangeResult, SearchResult, check_room, nearest_of, ranges_of
from .storage.saveable import Saveable
from .storage.settings import options_of
from .store.rowstore import RowStore
from .store.snapshot import Snapshot


class BinaryIndex(Saveable):
    """Nearest neighbours of binary codes in Hamming distance.

    For codes that you already have; `CBEIndex` makes codes of vectors. Any number of threads may search while one adds
    or removes: a search works on the rows as they were when it began.

    Parameters
    ----------
    n_bits : int
        Length of the codes; any number, not only multiples of 8 or 64.
    buckets : {None, "substrings", "clusters"}
        None: every code is looked at. "substrings": tables of parts of the codes find near duplicates fast, and
        exactly. "clusters": similar codes stand together, and a search looks at the nearest of such cells.
    n_tables, table_bits : int, optional
        For "substrings": how many tables (at most 16, or one for 8 bits of a code), each of how many bits (at most 24,
        and fewer in segments that have less than half as many rows as a table would have entries). By default about
        log2(n) bits, and 16 tables or as many as the code has room for.
    n_cells : int, optional
        For "clusters": cells of each segment; by default twice the root of its rows. At most one for 8 rows, and 16
        times the root of the rows.

    Notes
    -----
    Buckets are made when 4,096 codes have gathered (2,048 if they come in one batch); until then all are looked at.

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
        self._rows = RowStore(self.n_bits, buckets=bucket_maker(buckets, self.n_bits, **self._options))

    def __repr__(self) -> str:
        kind = f", buckets={self.buckets!r}" if self.buckets else ""
        return f"BinaryIndex(n_bits={self.n_bits}{kind}): {len(self):,} codes"

    def __copy__(self) -> BinaryIndex:
        other = BinaryIndex(self.n_bits, self.buckets, **self._options)
        other._rows = copy.copy(self._rows)  # shares the segments, which do not change
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_archive": None}  # a copy has no file

    def __len__(self) -> int:
        return self._rows.n_rows

    def __contains__(self, id_: object) -> bool:
        return is_id(id_) and bool(self._rows.snapshot().contains(np.array([id_], dtype=np.int64))[0])

    @property
    def ids(self) -> Ids:
        """All ids, ascending."""
        return self._rows.snapshot().ids()

    def add(self, codes: ArrayLike, ids: ArrayLike | None = None, *, replace: bool = False) -> Ids:
        """Add codes.

        Parameters
        ----------
        codes : uint8 array of shape (n, ceil(n_bits / 8)) or (ceil(n_bits / 8),)
            Bit j is bit j % 8 of byte j // 8, as `np.packbits(..., bitorder="little")` packs; spare bits are 0.
        ids : array_like of int, shape (n,), optional
            Their names, 0 or more, none of them twice. By default the next numbers that no code ever had.
        replace : bool
            Whether a code whose id is taken replaces the one that has it; otherwise that is an error.

        Returns
        -------
        int64 array of shape (n,)
        """
        words, _ = self._as_words(codes, "codes")
        names = None if ids is None else as_ids(ids, "ids", n=len(words))
        return self._rows.add(names, words, replace=as_flag(replace, "replace"))

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        mode: str = "auto",
        n_probes: int | None = None,
        *,
        allow: ArrayLike | None = None,
        deny: ArrayLike | None = None,
        miss: float | None = None,
        n_threads: int | None = None,
    ) -> SearchResult:
        """Find the `k` nearest codes of each query.

        Parameters
        ----------
        queries : uint8 array of shape (n_queries, ceil(n_bits / 8)) or (ceil(n_bits / 8),)
        k : int
        mode : {"auto", "scan", "cascade", "buckets"}
            "scan" looks at every code: exact. "cascade" looks at 512 bits of every code and at the rest of those that
            can still be among the nearest; it may overlook some, see `miss`, and is a scan up to 1,024 bits, and where
            these are many. "buckets" looks at the codes in some buckets. "auto" is exact, unless the index has clusters
            and they are cheaper; `explain` says what it takes.
        n_probes : int, optional
            Buckets visited in each segment: cells of clusters, or buckets of each table of substrings. By default as
            many cells as hold 99 % of the `k` nearest of a stored code; and with substrings as many as it takes to be
            exact. More are visited where they have fewer than `k` codes that may be answers.
        allow, deny : array_like of int, optional
            Ids that alone may, or may not, be answers.
        miss : float, optional
            For the cascade: the probability that the k-th nearest code is overlooked, if differing bits are spread
            evenly over the code. By default 0.001.
        n_threads : int, optional
            By default one for each core. The answer does not depend on it.

        Returns
        -------
        SearchResult
            int32 distances and int64 ids. `stats["survivors"]` counts the codes of which the cascade looked at more
            than 512 bits, `stats["visited"]` those in the visited buckets.
        """
        words, is_single = self._as_queries(queries)
        allowed, denied = as_filter(allow, "allow"), as_filter(deny, "deny")
        snapshot = self._rows.snapshot()
        k = as_count(k, "k")
        way = self._plan(snapshot, len(words), k, mode, n_probes, n_allowed(allowed, denied))
        check_room(len(words), k)
        if miss is not None and mode != "cascade":
            raise ValueError(f"miss is for mode='cascade', got mode={mode!r}")
        miss = scan.DEFAULT_MISS if miss is None else as_probability(miss, "miss")
        threads = as_n_threads(n_threads)
        views = [View.of(segment, allowed, denied) for segment in snapshot.segments]
        views = [view for view in views if view.part.n_rows]
        stats: dict[str, Any] = {"mode": way.mode, "rows": sum(view.part.n_rows for view in views)}
        if way.mode == "cascade":
            stats["survivors"] = 0
        keys = [candidates.nearest(view, way, self.n_bits, words, way.k, threads, stats, miss=miss) for view in views]
        distances = [scan.distances_of(part) for part in keys]
        ids = [view.segment.ids_of(part) for view, part in zip(views, keys, strict=True)]
        best, best_ids = nearest_of(distances, ids, len(words), way.k, NO_HAMMING_DISTANCE)
        result = SearchResult(best, best_ids, stats).padded(k)
        return result.first() if is_single else result

    def explain(
        self,
        queries: ArrayLike,
        k: int = 10,
        mode: str = "auto",
        n_probes: int | None = None,
        *,
        allow: ArrayLike | None = None,
        deny: ArrayLike | None = None,
    ) -> Explanation:
        """Say what `search` with these arguments does, why, and what each mode costs: text with attributes."""
        words, _ = self._as_queries(queries)
        snapshot = self._rows.snapshot()
        n = n_allowed(as_filter(allow, "allow"), as_filter(deny, "deny"))
        way = self._plan(snapshot, len(words), k, mode, n_probes, n)
        costs = ways(self.n_bits, snapshot.parts(), way.k, self.buckets, way.n_probes, n)
        return Explanation(f"{len(words):,} queries, {way.k:,} of {len(self):,} codes each", way, costs)

    def range_search(
        self,
        queries: ArrayLike,
        radius: int,
        *,
        allow: ArrayLike | None = None,
        deny: ArrayLike | None = None,
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
        words, _ = self._as_queries(queries)
        radius = min(as_count(radius, "radius", least=0), self.n_bits)
        allowed, denied = as_filter(allow, "allow"), as_filter(deny, "deny")
        threads = as_n_threads(n_threads)
        numbers, distances = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int32)]
        ids = [np.empty(0, dtype=np.int64)]
        if len(words):
            for segment in self._rows.snapshot().segments:
                hidden = segment.hidden(allowed, denied)
                found = None
                if isinstance(segment.buckets, Tables):
                    found = substrings.within(segment, self.n_bits, words, radius, hidden, threads)
                if found is None:
                    found = scan.within(segment.codes, segment.n_rows, words, radius, hidden, threads)
                numbers.append(found[0])
                distances.append(found[1])
                ids.append(segment.ids[found[2]])
        return ranges_of(numbers, distances, ids, len(words))

    def get(self, ids: ArrayLike) -> CodeBytes:
        """Return the codes of `ids`: uint8 (n, ceil(n_bits / 8)), or one code for a single id."""
        names = as_ids(np.atleast_1d(np.asarray(ids)), "ids")
        snapshot = self._rows.snapshot()
        snapshot.require(names)
        codes = to_bytes(snapshot.codes_of(names, self.n_bits), self.n_bits)
        return codes[0] if np.ndim(ids) == 0 else codes

    def remove(self, ids: ArrayLike) -> None:
        """Remove codes by id. An id that is not there is an error, and then nothing is removed."""
        self._rows.remove(np.unique(as_ids(np.atleast_1d(np.asarray(ids)), "ids")))

    def merge(self, other: BinaryIndex) -> None:
        """Add all codes of another index under their own ids; if one of the ids is taken, nothing is added."""
        if not isinstance(other, BinaryIndex):
            raise TypeError(f"other must be a BinaryIndex, got {type(other).__name__}")
        if other.n_bits != self.n_bits:
            raise ValueError(f"other must have codes of {self.n_bits} bits, got {other.n_bits}")
        snapshot = other._rows.snapshot()
        snapshot.check_origins()
        ids = snapshot.ids()
        self._rows.add(ids, snapshot.codes_of(ids, self.n_bits))

    def stats(self) -> dict[str, Any]:
        """Count rows, segments and bytes."""
        return {"n_bits": self.n_bits, "kind_of_buckets": self.buckets, **self._rows.snapshot().stats()}

    @contextmanager
    def _writing(self) -> Iterator[RowStore]:
        with self._rows.lock:
            yield self._rows

    def _content(self) -> tuple[dict[str, Any], Arrays]:
        return {"kind": "BinaryIndex", "n_bits": self.n_bits, "buckets": self.buckets, "options": self._options}, {}

    @classmethod
    def _from_content(cls, content: dict[str, Any], arrays: Arrays) -> tuple[Self, RowStore]:
        index = cls(content["n_bits"], content["buckets"], **options_of(content))
        return index, index._rows

    def _plan(self, snapshot: Snapshot, n: int, k: Any, mode: Any, n_probes: Any, n_allowed: int | None) -> Plan:
        """Check what a search was asked for, and plan it."""
        return plan(
            n_bits=self.n_bits,
            parts=snapshot.parts(),
            k=as_count(k, "k"),
            mode=as_choice(mode, "mode", MODES),
            buckets=self.buckets,
            n_probes=None if n_probes is None else as_count(n_probes, "n_probes"),
            n_allowed=n_allowed,
            n_queries=n,
        )

    def _as_words(self, codes: ArrayLike, name: str) -> tuple[Codes, bool]:
        """Return codes as words, and whether a single code came as a 1-D array."""
        array, is_single = as_codes(codes, n_bytes(self.n_bits), name)
        bad = has_bits_past(array, self.n_bits)
        if bad.any():
            raise RowError(name, f"must have zeros past bit {self.n_bits - 1}", int(bad.argmax()), "has not")
        return to_words(array, self.n_bits), is_single

    def _as_queries(self, queries: ArrayLike) -> tuple[Codes, bool]:
        """Return queries as words in the one layout for which kernels are compiled, and whether a single one came."""
        words, is_single = self._as_words(queries, "queries")
        return np.require(words, requirements=["C", "ALIGNED", "WRITEABLE"]), is_single
