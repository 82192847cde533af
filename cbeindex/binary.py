"""BinaryIndex: codes in, nearest codes out."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import scan
from ._threads import as_n_threads
from ._typing import CodeBytes, Codes, Ids
from ._validation import as_choice, as_codes, as_count, as_filter, as_flag, as_ids, as_probability, is_id
from .codes import has_bits_past, n_bytes, to_bytes, to_words
from .results import NO_HAMMING_DISTANCE, RangeResult, SearchResult, nearest_of, ranges_of
from .segments import RowStore

MODES = ("auto", "scan", "cascade")


class BinaryIndex:
    """Nearest neighbours of binary codes in Hamming distance.

    For codes that you already have; `CBEIndex` makes codes of vectors. Any number of threads may search while one adds
    or removes: a search works on the rows as they were when it began.

    Parameters
    ----------
    n_bits : int
        Length of the codes; any number, not only multiples of 8 or 64.
    buckets : None
        Every code is looked at.

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

    def __init__(self, n_bits: int, buckets: None = None) -> None:
        if buckets is not None:
            raise ValueError(f"buckets must be None, got {buckets!r}: this release looks at every code")
        self.n_bits = as_count(n_bits, "n_bits")
        self._rows = RowStore(self.n_bits)

    def __repr__(self) -> str:
        return f"BinaryIndex(n_bits={self.n_bits}): {len(self):,} codes"

    def __copy__(self) -> BinaryIndex:
        other = BinaryIndex(self.n_bits)
        other._rows = copy.copy(self._rows)  # shares the segments, which do not change
        return other

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
        mode : {"auto", "scan", "cascade"}
            "scan" looks at every code: exact. "cascade" looks at 512 bits of every code and at the rest of those that
            can still be among the nearest; it may overlook some, see `miss`, and is a scan up to 1,024 bits. "auto" is
            exact.
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
            int32 distances and int64 ids; `stats["survivors"]` counts the codes of which the cascade looked at more
            than 512 bits.
        """
        words, is_single = self._as_queries(queries)
        k = as_count(k, "k")
        mode = as_choice(mode, "mode", MODES)
        if miss is not None and mode != "cascade":
            raise ValueError(f"miss is for mode='cascade', got mode={mode!r}")
        miss = scan.DEFAULT_MISS if miss is None else as_probability(miss, "miss")
        allowed, denied = as_filter(allow, "allow"), as_filter(deny, "deny")
        threads = as_n_threads(n_threads)
        segments = self._rows.snapshot().segments
        distances, ids = [], []
        stats: dict[str, Any] = {"mode": "cascade" if mode == "cascade" else "scan"}
        stats["rows"] = sum(segment.n_rows for segment in segments)
        survivors = np.zeros(len(words), dtype=np.int64)
        for segment in segments:
            hidden = segment.hidden(allowed, denied)
            if mode == "cascade" and segment.codes.tail.shape[1]:
                keys, n_survivors = scan.cascade(
                    segment.codes, segment.n_rows, self.n_bits, words, k, hidden, miss, threads
                )
                survivors += n_survivors
            else:
                keys = scan.nearest(segment.codes, segment.n_rows, words, k, hidden, threads)
            distances.append(scan.distances_of(keys))
            ids.append(scan.ids_of(keys, segment.ids))
        if mode == "cascade":
            stats["survivors"] = int(survivors.sum())
        best, best_ids = nearest_of(distances, ids, len(words), k, NO_HAMMING_DISTANCE)
        result = SearchResult(best, best_ids, stats)
        return result.first() if is_single else result

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

    def compact(self) -> None:
        """Give back the room of removed codes."""
        self._rows.compact()

    def merge(self, other: BinaryIndex) -> None:
        """Add all codes of another index under their own ids; if one of the ids is taken, nothing is added."""
        if not isinstance(other, BinaryIndex):
            raise TypeError(f"other must be a BinaryIndex, got {type(other).__name__}")
        if other.n_bits != self.n_bits:
            raise ValueError(f"other must have codes of {self.n_bits} bits, got {other.n_bits}")
        snapshot = other._rows.snapshot()
        ids = snapshot.ids()
        self._rows.add(ids, snapshot.codes_of(ids, self.n_bits))

    def stats(self) -> dict[str, Any]:
        """Count rows, segments and bytes."""
        return {"n_bits": self.n_bits, **self._rows.snapshot().stats()}

    def _as_words(self, codes: ArrayLike, name: str) -> tuple[Codes, bool]:
        """Return codes as words, and whether a single code came as a 1-D array."""
        array, is_single = as_codes(codes, n_bytes(self.n_bits), name)
        bad = has_bits_past(array, self.n_bits)
        if bad.any():
            raise ValueError(f"{name} must have zeros past bit {self.n_bits - 1}, row {bad.argmax()} has not")
        return to_words(array, self.n_bits), is_single

    def _as_queries(self, queries: ArrayLike) -> tuple[Codes, bool]:
        """Return queries as words in the one layout for which kernels are compiled, and whether a single one came."""
        words, is_single = self._as_words(queries, "queries")
        return np.require(words, requirements=["C", "ALIGNED", "WRITEABLE"]), is_single
