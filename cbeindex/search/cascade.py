"""Cascade: compare the heads of all rows with a query, and whole codes only where the head leaves a chance.

A row is dropped at a check if its distance so far is improbable for a row within the current k-th distance, assuming
that differing bits are spread evenly over the code.
"""

from __future__ import annotations

import sys
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from .. import kernels
from .._core.threads import for_each_chunk
from .._core.tuning import tuning
from .._core.typing import Codes, HeadDistances, Keys, Rows
from ..data.codes import BLOCK_ROWS, CodeRows
from ..data.keys import NO_KEY, HammingKeys
from . import scan
from .queries import CodeQueries
from .topk import smallest_keys
from .view import View

# Number of survivors that marks a query which is scanned, until all queries are done.
_SCANNED = -1


class Checks(NamedTuple):
    """Where the cascade checks a row.

    Attributes
    ----------
    stage_ends : uint64 array of shape (n_stages,)
        Ends of the stages, in words of the tail.
    prefix_bits : int64 array of shape (n_stages + 1,)
        Bits compared by each check; the first check is after the head.
    z : float
        Standard deviations that a row may exceed the expected distance by.
    """

    stage_ends: Keys
    prefix_bits: Rows
    z: float

    @classmethod
    def of(cls, codes: CodeRows, n_bits: int, miss: float) -> Checks:
        """Place a check after the head, and one each time the number of compared words has doubled."""
        n_head, n_tail = codes.n_head, codes.tail.shape[1]
        ends = [n_head * (2**i - 1) for i in range(1, 32) if n_head * (2**i - 1) < n_tail]
        stage_ends: Keys = np.array([*ends, n_tail], dtype=np.uint64)
        words = n_head + np.concatenate([[0], stage_ends.astype(np.int64)])
        prefix_bits: Rows = np.minimum(64 * words, n_bits)
        # The checks share the probability. The last check, of the whole distance, misses nothing.
        share = max(miss / len(stage_ends), sys.float_info.min)
        return cls(stage_ends, prefix_bits, -NormalDist().inv_cdf(share))


def nearest(view: View, queries: CodeQueries, miss: float) -> tuple[HammingKeys, Rows]:
    """Find the nearest rows of each query, comparing the whole code of few rows.

    A row at the k-th distance is missed with a probability of about `miss`, nearer rows with less. A query whose head
    rules out too few rows is scanned. If most of the first queries are, all remaining ones are scanned too. So the
    missed rows may depend on the other queries of the batch, but not on the number of threads.

    Returns
    -------
    HammingKeys of shape (n_queries, min(k, n_rows))
        Ascending.
    int64 array of shape (n_queries,)
        Number of rows compared beyond the head.
    """
    n_queries, n_rows, n_threads = len(queries), view.part.n_rows, queries.n_threads
    run = _Cascade(view, queries, miss)
    keys: Keys = np.full((n_queries, min(queries.k, n_rows)), NO_KEY)
    n_survivors: Rows = np.zeros(n_queries, dtype=np.int64)
    group = max(1, min(tuning().shared_queries, tuning().cascade_values // n_rows))

    def task(start: int, stop: int, threads: int = 1) -> None:
        for first in range(start, stop, group):
            some = slice(first, min(first + group, stop))
            run.search(queries.some(some), keys[some], n_survivors[some], threads)

    n_first = min(max(group, tuning().cascade_first_queries), n_queries)
    n_others = n_queries - n_first
    task(0, n_first, n_threads)
    if 2 * np.count_nonzero(n_survivors[:n_first] == _SCANNED) > n_first:
        keys[n_first:] = scan.nearest(view, queries.some(slice(n_first, None))).packed
        n_survivors[n_first:] = _SCANNED
    elif n_others < 2 * n_threads:  # too few queries to occupy all threads: split the rows
        task(n_first, n_queries, n_threads)
    else:
        for_each_chunk(
            lambda start, stop: task(n_first + start, n_first + stop),
            n_others, scan.queries_per_task(n_others, n_threads), n_threads,
        )  # fmt: skip
    n_survivors[n_survivors == _SCANNED] = view.n_visible
    return HammingKeys(keys), n_survivors


class _Cascade:
    """The cascade over one view."""

    def __init__(self, view: View, queries: CodeQueries, miss: float) -> None:
        self._view, self._codes, self._n_rows = view, view.part.codes, view.part.n_rows
        self._n_bits, self._k = queries.n_bits, min(queries.k, view.part.n_rows)
        self._checks = Checks.of(self._codes, queries.n_bits, miss)
        few = len(queries) < tuning().cascade_few_queries
        row_words = tuning().cascade_row_words_of_few if few else tuning().cascade_row_words
        self._most_survivors = self._n_rows * self._codes.tail.shape[1] // row_words

    def search(self, queries: CodeQueries, keys: Keys, n_survivors: Rows, n_threads: int) -> None:
        """Search for some queries, with the rows split over threads."""
        heads = np.empty((len(queries), self._n_rows), dtype=np.uint16)
        least = np.empty((len(queries), len(self._codes.head) * (BLOCK_ROWS // 16)), dtype=np.uint16)

        def measure_heads(start: int, stop: int) -> None:
            kernels.cascade.head_scan(queries.codes, self._codes.head, self._view.hidden, start, stop, heads, least)

        for_each_chunk(measure_heads, self._n_rows, scan.rows_per_task(self._n_rows, n_threads), n_threads)
        n_survivors[:] = _SCANNED
        for i in range(len(queries)):
            found = self._search_one(queries.codes[i], heads[i], least[i], n_threads)
            if found is not None:
                nearest_keys, n_survivors[i] = found
                keys[i, : len(nearest_keys)] = nearest_keys
        left = n_survivors == _SCANNED
        if left.any():
            keys[left] = scan.nearest(self._view, queries.some(left)).packed

    def _search_one(
        self, query: Codes, heads: HeadDistances, least: HeadDistances, n_threads: int
    ) -> tuple[Keys, int] | None:
        """Search for one query with known head distances: ascending keys, and the number of survivors.

        Returns None if too many rows survive.
        """
        tail, query_tail = self._codes.tail, query[self._codes.n_head :]
        stage_ends, prefix_bits, z = self._checks
        capacity = self._k + min(self._k, 256) + BLOCK_ROWS
        limits = np.empty(len(prefix_bits), dtype=np.int64)
        first_keys = np.empty(capacity, dtype=np.uint64)
        count, reach, n_first = kernels.cascade.first_bound(
            query_tail, tail, heads, least, self._view.part.ranks, self._n_rows, self._n_bits, stage_ends, prefix_bits,
            z, 2 * self._k + 32, first_keys, self._k, limits,
        )  # fmt: skip
        if limits[0] > reach and self._leaves_too_many(heads, least, np.uint16(limits[0])):
            return None
        parts, counts = [first_keys[:count]], [n_first]

        def measure(start: int, stop: int) -> None:
            more = np.empty(capacity, dtype=np.uint64)
            n_more, n_measured = kernels.cascade.measure_survivors(
                query_tail, tail, heads, least, self._view.part.ranks, start, stop, reach, limits[0], stage_ends,
                limits[1:], more, self._k,
            )  # fmt: skip
            parts.append(more[:n_more])
            counts.append(n_measured)

        if limits[0] > reach:
            for_each_chunk(measure, self._n_rows, scan.rows_per_task(self._n_rows, n_threads), n_threads)
        return smallest_keys(parts, self._k), sum(counts)

    def _leaves_too_many(self, heads: HeadDistances, least: HeadDistances, limit: np.uint16) -> bool:
        """Return whether too many head distances are within `limit` for the cascade to pay.

        The minima of 16 rows each decide most of the time.
        """
        if 16 * np.count_nonzero(least <= limit) <= self._most_survivors:
            return False
        return bool(np.count_nonzero(heads <= limit) > self._most_survivors)
