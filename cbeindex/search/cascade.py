"""Cascade: compare the first words of all rows with a query, and whole codes only where these leave a chance.

A block of rows is left at a check if the distances of its rows so far are improbable for a row within the current k-th
distance, assuming that differing bits are spread evenly over the code.
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
from ..data.codes import BLOCK_ROWS, PREFIX_WORDS, is_long, n_words
from ..data.keys import NO_KEY, HammingKeys
from . import scan
from .queries import CodeQueries
from .topk import merge_keys, smallest_keys
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
    """Distances of all rows from a group of queries over their first words, as `kernels.cascade` stores them."""

    distances: Distances
    least: LeastDistances

    @classmethod
    def empty(cls, n_queries: int, n_blocks: int) -> _Prefixes:
        """Allocate the distances of some blocks."""
        shape = n_blocks * n_queries, BLOCK_ROWS
        return cls(np.empty(shape, dtype=np.int32), np.empty((n_queries, n_blocks), dtype=np.uint16))


def nearest(view: View, queries: CodeQueries, miss: float) -> tuple[HammingKeys, Rows]:
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
        Number of rows compared beyond the prefix, in whole blocks.
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
            n_others, scan.queries_per_task(n_others, queries.k, n_threads), n_threads,
        )  # fmt: skip
    n_survivors[n_survivors == _SCANNED] = view.n_visible
    return HammingKeys(keys), n_survivors


class _Cascade:
    """The cascade over one view."""

    def __init__(self, view: View, queries: CodeQueries, miss: float) -> None:
        self._view, self._hidden, self._ranks, self._n_rows = view, view.hidden, view.part.ranks, view.part.n_rows
        self._blocks, self._n_visible = view.part.codes.blocks, view.n_visible
        self._n_bits, self._k = queries.n_bits, min(queries.k, view.part.n_rows)
        self._checks = Checks.of(queries.n_bits, miss)
        share = 1 - tuning().cascade_left_words / n_words(queries.n_bits)
        self._most_blocks = int(share * len(self._blocks))

    def search(self, queries: CodeQueries, keys: Keys, n_survivors: Rows, n_threads: int) -> None:
        """Search for some queries, with the rows split over threads.

        Which queries are scanned does not depend on the queries of the same call, whose number depends on the threads.
        """
        n_survivors[:] = _SCANNED
        promising = self._promising(queries)
        if 2 * len(promising) > len(queries):  # the prefixes of the few others are not lost: their scan continues there
            self._search_from_prefixes(queries, promising, keys, n_survivors, n_threads)
            return
        others = np.setdiff1d(np.arange(len(queries)), promising)
        keys[others] = scan.nearest(self._view, queries.some(others)).packed
        if promising.size:
            some_keys, some_survivors = keys[promising], n_survivors[promising]
            every = np.arange(len(promising))
            self._search_from_prefixes(queries.some(promising), every, some_keys, some_survivors, n_threads)
            keys[promising], n_survivors[promising] = some_keys, some_survivors

    def _search_from_prefixes(
        self, queries: CodeQueries, promising: Rows, keys: Keys, n_survivors: Rows, n_threads: int
    ) -> None:
        """Compare the prefixes of all rows, search for the promising queries, and scan the rest of rows for others."""
        known = _Prefixes.empty(len(queries), len(self._blocks))

        def compare_prefixes(begin: int, end: int) -> None:
            kernels.cascade.prefix_scan(
                queries.codes, self._blocks, self._hidden, self._checks.ends[0], begin, end, *known
            )

        for_each_chunk(compare_prefixes, len(self._blocks), self._blocks_per_task(n_threads), n_threads)
        limits = np.full((1, len(queries)), self._n_bits)
        for i in promising:
            n_survivors[i] = self._search_one(queries, int(i), known, keys[i], limits, n_threads)
        left = np.flatnonzero(n_survivors == _SCANNED)
        if left.size:
            keys[left] = self._scan_rest(queries, left, known, limits, n_threads)

    def _promising(self, queries: CodeQueries) -> Rows:
        """Return the queries for which a sample of blocks says that few of them survive."""
        blocks, hidden, step = self._sample
        known, n_left = _Prefixes.empty(len(queries), len(blocks)), np.empty(len(queries), dtype=np.int64)
        kernels.cascade.prefix_scan(queries.codes, blocks, hidden, self._checks.ends[0], 0, len(blocks), *known)
        kernels.cascade.count_survivors(
            queries.codes, blocks, *known, step, self._k, self._n_bits, *self._checks, n_left
        )
        return np.flatnonzero(n_left * step <= self._most_blocks)

    @functools.cached_property
    def _sample(self) -> tuple[Codes, Mask, int]:
        """The first of each `step` blocks, without spare rows: a view of their words and more; hidden rows; `step`.

        Distances of the sample are adjacent. Where blocks are in place, new pages for them took a tenth of a scan.
        """
        n_blocks, n_words, size = self._n_rows // BLOCK_ROWS, *self._blocks.shape[1:]
        step = max(1, n_blocks // (tuning().cascade_sample_blocks + n_blocks // tuning().cascade_sample_share))
        n_sampled = n_blocks // step
        hidden = self._hidden
        if hidden.size:
            hidden = hidden[: n_sampled * step * size].reshape(n_sampled, step * size)[:, :size].ravel()
        return self._blocks[: n_sampled * step].reshape(n_sampled, step * n_words, size), hidden, step

    def _search_one(
        self, queries: CodeQueries, i: int, known: _Prefixes, keys: Keys, limits: Rows, n_threads: int
    ) -> int:
        """Write the keys of the nearest rows of query `i` to `keys`, and return the number of survivors.

        Returns _SCANNED if too many blocks survive; `limits[0, i]` is then a limit on the k-th distance.
        """
        code, (ends, z), n_blocks = queries.codes[i : i + 1], self._checks, len(self._blocks)
        stage_limits = np.empty((len(ends), 1), dtype=np.int64)
        first = scan.ScanState.empty(1, self._k, 0)
        reach, n_read = kernels.cascade.first_bound(
            code, self._blocks, *known, i, self._n_rows, self._ranks, self._k, self._n_bits, ends, z, stage_limits,
            first.found[0], first.counts[0],
        )  # fmt: skip
        limit, limits[0, i] = int(stage_limits[0, 0]), stage_limits[-1, 0]
        if limit > reach and np.count_nonzero(known.least[i] <= min(limit, 65535)) > self._most_blocks:
            return _SCANNED
        parts, n_all = [first.found[0, : first.counts[0, 0]]], [n_read]

        def measure(begin: int, end: int) -> None:
            more = scan.ScanState.empty(1, self._k, 0)
            n_more = kernels.cascade.measure_blocks(
                code, self._blocks, *known, i, begin, end, reach, limit, self._n_rows, self._ranks, self._k, ends,
                stage_limits.copy(), more.found[0], more.counts[0],
            )  # fmt: skip
            parts.append(more.found[0, : more.counts[0, 0]])
            n_all.append(n_more)

        if limit > reach:
            for_each_chunk(measure, n_blocks, self._blocks_per_task(n_threads), n_threads)
        found = smallest_keys(parts, self._k)
        keys[: len(found)] = found
        return min(self._n_visible, BLOCK_ROWS * int(sum(n_all)))

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
                kernels.cascade.scan_rest(
                    queries.codes, left, self._blocks, self._checks.ends[0], first, min(first + piece, end),
                    known.distances, self._n_rows, self._ranks, *state,
                )  # fmt: skip
            state.write(keys[begin // step])

        for_each_chunk(task, n_blocks, step, n_threads)
        return merge_keys(keys)[left]

    def _blocks_per_task(self, n_threads: int) -> int:
        return -(-scan.rows_per_task(self._n_rows, 8 * self._blocks.shape[1], n_threads) // BLOCK_ROWS)
