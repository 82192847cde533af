"""Cascade: compare the first words of all rows with a query, and whole codes only where these leave a chance.

Half a block of rows is left at a check if the distances of its rows so far are improbable for a row within the current
k-th distance, assuming that differing bits are spread evenly over the code.
"""

from __future__ import annotations

import functools
import sys
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from .. import kernels
from .._core.threads import for_each_chunk, leave_if_interrupted
from .._core.tuning import tuning
from .._core.typing import Codes, Distances, Keys, LeastDistances, Mask, Rows
from ..data.codes import BLOCK_ROWS, HALF_ROWS, PREFIX_WORDS, is_long, n_words
from ..data.keys import NO_KEY, HammingKeys
from . import scan
from .queries import CodeQueries
from .topk import TopK, merge_keys
from .view import View

# Number of survivors that marks a query which is scanned, until all queries are done.
_SCANNED = -1


class Checks(NamedTuple):
    """Where the cascade checks rows.

    Attributes
    ----------
    ends : int64 array of shape (n_stages,)
        Words compared after each stage, in the end all of them.
    z : float
        Standard deviations that a row may exceed the expected distance by after all stages but the last.
    """

    ends: Rows
    z: float

    @classmethod
    @functools.lru_cache(maxsize=64)
    def of(cls, n_bits: int, miss: float) -> Checks:
        """Place a check after the prefix, and one each time the number of compared words has doubled."""
        whole = n_words(n_bits)
        ends = [PREFIX_WORDS * 2**i for i in range(32) if PREFIX_WORDS * 2**i < whole] if is_long(n_bits) else []
        # The checks share the probability. The last check, of the whole distance, misses nothing.
        share = max(miss / max(1, len(ends)), sys.float_info.min)
        return cls(np.array([*ends, whole], dtype=np.int64), -NormalDist().inv_cdf(share))


class _Prefixes(NamedTuple):
    """Distances of all rows from a group of queries over their first words, as `kernels.prefixes` has them."""

    distances: Distances
    least: LeastDistances

    @classmethod
    def empty(cls, n_queries: int, n_blocks: int) -> _Prefixes:
        """Allocate the distances of some blocks."""
        least = np.empty((n_queries, -(-2 * n_blocks // 64) * 64), dtype=np.uint16)
        least[:, 2 * n_blocks :] = 65535
        return cls(np.empty((n_blocks * n_queries, BLOCK_ROWS), dtype=np.int32), least)


def nearest(view: View, queries: CodeQueries, miss: float) -> tuple[HammingKeys, Rows] | None:
    """Find the nearest rows of each query, comparing the whole code of few rows.

    A row at the k-th distance is missed with a probability of about `miss`, nearer rows with less. A query whose prefix
    rules out too few rows is scanned. A sample of the rows tells most of the time, at the cost of some hundredths of a
    scan. If most of the first queries are scanned, all remaining ones are too. So the missed rows may depend on the
    other queries of the batch, but not on the number of threads.

    Returns
    -------
    HammingKeys of shape (n_queries, min(k, n_rows))
        Ascending.
    int64 array of shape (n_queries,)
        Number of rows left after the prefix, in whole halves of blocks.

    Returns None if all queries are to be scanned: the sample says so of all of the first queries.
    """
    n_queries, n_threads = len(queries), queries.n_threads
    run = _Cascade(view, queries, miss)
    group = _group_size(view.part.n_rows)
    n_first = min(max(group, tuning().cascade_first_queries), n_queries)
    n_others = n_queries - n_first
    of_first, n_promising = run.promising(queries.codes[:n_first])
    if n_promising == 0:
        return None
    keys: Keys = np.full((n_queries, min(queries.k, view.part.n_rows)), NO_KEY)
    n_survivors: Rows = np.zeros(n_queries, dtype=np.int64)

    def task(start: int, stop: int, threads: int = 1) -> None:
        for first in range(start, stop, group):
            some = slice(first, min(first + group, stop))
            part = queries.some(some)
            flags = of_first[some] if stop <= n_first else run.promising(part.codes)[0]
            run.search(part, flags, keys[some], n_survivors[some], threads)

    task(0, n_first, n_threads)
    if 2 * np.count_nonzero(n_survivors[:n_first] == _SCANNED) > n_first:
        keys[n_first:] = scan.nearest(view, queries.some(slice(n_first, None))).packed
        n_survivors[n_first:] = _SCANNED
    elif n_others < 2 * n_threads:  # too few queries to occupy all threads: split the rows
        task(n_first, n_queries, n_threads)
    else:
        for_each_chunk(
            lambda start, stop: task(n_first + start, n_first + stop),
            n_others, scan.queries_per_task(n_others, queries.k, n_threads), n_threads,
        )  # fmt: skip
    n_survivors[n_survivors == _SCANNED] = view.n_visible
    return HammingKeys(keys), n_survivors


def results(view: View, queries: CodeQueries, miss: float) -> tuple[TopK, int] | None:
    """Find the nearest rows of each query, as `nearest` does, if one kernel call can do all of it.

    Returns distances and ids, and the number of rows left after the prefix. For one query, Python between kernels takes
    as long as they do.
    """
    n_rows, n_bits = view.part.n_rows, queries.n_bits
    if len(queries) > _group_size(n_rows) or not scan.is_one_call(view, queries):
        return None
    leave_if_interrupted()
    part, found = view.part, TopK.empty(len(queries), queries.k)
    n_survivors = kernels.cascadesearch.search(
        queries.codes, part.codes.blocks, view.hidden, part.ids, _sample_step(n_rows), n_bits,
        *Checks.of(n_bits, miss), _most_share(n_bits), view.n_visible, *found,
    )  # fmt: skip
    return None if n_survivors < 0 else (found, n_survivors)


def _group_size(n_rows: int) -> int:
    """Return the number of queries whose prefixes are compared together."""
    return max(1, min(tuning().shared_queries, tuning().cascade_values // n_rows))


def _sample_step(n_rows: int) -> int:
    """Return of how many blocks one is in the sample."""
    n_blocks = n_rows // BLOCK_ROWS
    return max(1, n_blocks // (tuning().cascade_sample_blocks + n_blocks // tuning().cascade_sample_share))


def _most_share(n_bits: int) -> float:
    """Return the share of the halves of blocks that may be left after the prefix."""
    return 1 - tuning().cascade_left_words / n_words(n_bits)


class _Cascade:
    """The cascade over one view."""

    def __init__(self, view: View, queries: CodeQueries, miss: float) -> None:
        self._view, self._hidden, self._ranks, self._n_rows = view, view.hidden, view.part.ranks, view.part.n_rows
        self._blocks, self._n_bits, self._k = view.part.codes.blocks, queries.n_bits, min(queries.k, view.part.n_rows)
        self._checks = Checks.of(queries.n_bits, miss)
        self._most_share = _most_share(queries.n_bits)

    def search(self, queries: CodeQueries, is_promising: Mask, keys: Keys, n_survivors: Rows, n_threads: int) -> None:
        """Search for some queries, of which a sample says which are promising, with the rows split over threads.

        Which queries are scanned does not depend on the queries of the same call, whose number depends on the threads.
        """
        n_survivors[:] = _SCANNED
        promising, others = np.flatnonzero(is_promising), np.flatnonzero(~is_promising)
        if 2 * len(promising) > len(queries):  # the prefixes of the few others are not lost: their scan continues there
            self._search_from_prefixes(queries, promising, keys, n_survivors, n_threads)
            return
        keys[others] = scan.nearest(self._view, queries.some(others)).packed
        if promising.size:
            some_keys, some_survivors = keys[promising], n_survivors[promising]
            every = np.arange(len(promising))
            self._search_from_prefixes(queries.some(promising), every, some_keys, some_survivors, n_threads)
            keys[promising], n_survivors[promising] = some_keys, some_survivors

    def promising(self, queries: Codes) -> tuple[Mask, int]:
        """Return for which queries a sample of blocks says that few rows survive, and how many they are."""
        flags, step = np.empty(len(queries), dtype=np.bool_), _sample_step(self._n_rows)
        n_promising = kernels.cascade.find_promising(
            queries, self._blocks, self._hidden, self._n_rows, step, self._k, self._n_bits, *self._checks,
            self._most_share, flags,
        )  # fmt: skip
        return flags, n_promising

    def _search_from_prefixes(
        self, queries: CodeQueries, promising: Rows, keys: Keys, n_survivors: Rows, n_threads: int
    ) -> None:
        """Compare the prefixes of all rows, search for the promising queries, and scan the rest of rows for others."""
        ends, n_blocks = self._checks.ends, len(self._blocks)
        known = _Prefixes.empty(len(queries), n_blocks)

        def compare_prefixes(begin: int, end: int) -> None:
            kernels.prefixes.prefix_scan(queries.codes, self._blocks, self._hidden, ends[0], begin, end, *known)

        for_each_chunk(compare_prefixes, n_blocks, self._blocks_per_task(n_threads), n_threads)
        limits = np.full((len(ends), len(queries)), self._n_bits)

        def search_some(begin: int, end: int) -> None:
            kernels.cascade.nearest(
                queries.codes, promising[begin:end], self._blocks, *known, self._n_rows, self._ranks, self._n_bits,
                *self._checks, int(self._most_share * 2 * n_blocks), limits, keys, n_survivors,
            )  # fmt: skip

        for_each_chunk(search_some, len(promising), max(1, tuning().cascade_call_rows // self._n_rows), n_threads)
        left = np.flatnonzero(n_survivors == _SCANNED)
        n_survivors[n_survivors != _SCANNED] *= HALF_ROWS
        if self._hidden.size or self._n_rows % HALF_ROWS:
            np.minimum(n_survivors, self._view.n_visible, out=n_survivors)
        if left.size:
            keys[left] = self._scan_rest(queries, left, known, limits[-1:], n_threads)

    def _scan_rest(self, queries: CodeQueries, left: Rows, known: _Prefixes, limits: Rows, n_threads: int) -> Keys:
        """Return the keys of the nearest rows of some queries, which are scanned from the end of the prefix on."""
        n_blocks, step = len(self._blocks), self._blocks_per_task(n_threads)
        piece = max(1, tuning().scan_call_words // (BLOCK_ROWS * queries.codes.size))
        keys: Keys = np.empty((max(1, -(-n_blocks // step)), len(queries), self._k), dtype=np.uint64)

        def task(begin: int, end: int) -> None:
            state = scan.ScanState.empty(len(queries), self._k, 0)
            state.limits[:] = limits
            for first in range(begin, end, piece):
                leave_if_interrupted()
                kernels.scanrest.scan_rest(
                    queries.codes, left, self._blocks, self._checks.ends[0], first, min(first + piece, end),
                    known.distances, self._n_rows, self._ranks, *state,
                )  # fmt: skip
            state.write(keys[begin // step])

        for_each_chunk(task, n_blocks, step, n_threads)
        return merge_keys(keys)[left]

    def _blocks_per_task(self, n_threads: int) -> int:
        return -(-scan.rows_per_task(self._n_rows, 8 * self._blocks.shape[1], n_threads) // BLOCK_ROWS)
