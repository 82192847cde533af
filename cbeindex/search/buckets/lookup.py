"""Lookups in tables of substrings: exact search, probing, and search within a radius."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ... import kernels
from ..._core.threads import for_each_chunk
from ..._core.tuning import tuning
from ..._core.typing import Floats, Keys, Mask, Ranks
from ...data.keys import HammingKeys
from ..queries import CodeQueries
from ..scan import Matches
from ..view import View
from .base import BucketResult, Visits

if TYPE_CHECKING:
    from .substrings import Tables

# A bucket costs a search as much as this many words of a scan.
_BUCKET_WORDS = 8


class _Probing(NamedTuple):
    """How many buckets of each table a search probes.

    Attributes
    ----------
    n_probes : int
    n_wanted : int
        More buckets are probed until this many rows are found.
    n_masks : int
        Buckets to choose from, in the order in which they are probed.
    """

    n_probes: int
    n_wanted: int
    n_masks: int


def nearest(tables: Tables, view: View, queries: CodeQueries) -> BucketResult:
    """Find the nearest rows of each query exactly, where that costs less than a scan."""
    keys: Keys = np.empty((len(queries), min(queries.k, view.part.n_rows)), dtype=np.uint64)
    is_done = np.zeros(len(queries), dtype=np.bool_)
    visits, budget = [Visits(0, 0)], _budget(view, queries)

    def task(start: int, stop: int) -> None:
        counts = np.zeros(2, dtype=np.int64)
        kernels.tables.nearest(
            queries.codes[start:stop], view.part.codes.rows, tables.first_bits, tables.table_bits, tables.starts,
            tables.rows, view.hidden, view.part.ranks, queries.n_bits, budget, *_scratch(view.part.n_rows),
            keys[start:stop], is_done[start:stop], counts,
        )  # fmt: skip
        visits.append(Visits(*counts.tolist()))

    for_each_chunk(task, len(queries), tuning().table_task_queries, queries.n_threads)
    return BucketResult(HammingKeys(keys), is_done, Visits.total(visits))


def probe(tables: Tables, view: View, queries: CodeQueries, n_probes: int, n_wanted: int) -> BucketResult:
    """Find the nearest rows in `n_probes` buckets of each table, or in more buckets until `n_wanted` rows are found.

    If the queries have margins, buckets that differ in the least certain bits are probed first. Otherwise buckets are
    probed in the order of their Hamming distance. Queries for which a scan is cheaper are not done.
    """
    n_buckets = 2**tables.table_bits
    n_probes = min(n_probes, n_buckets)
    most = min(n_buckets, _budget(view, queries) // (_BUCKET_WORDS * tables.n_tables))  # what the budget pays for
    keys: Keys = np.empty((len(queries), min(queries.k, view.part.n_rows)), dtype=np.uint64)
    is_done, visits = np.zeros(len(queries), dtype=np.bool_), Visits(0, 0)
    if n_probes > most:
        return BucketResult(HammingKeys(keys), is_done, visits)
    for n_masks in (n_probes, most):  # few queries need more than `n_probes` buckets
        left = np.flatnonzero(~is_done)
        found = _probe(tables, view, queries.some(left), _Probing(n_probes, n_wanted, n_masks))
        keys[left], is_done[left] = found.keys.packed, found.is_done
        visits = Visits.total([visits, found.visits])
    return BucketResult(HammingKeys(keys), is_done, visits)


def _probe(tables: Tables, view: View, queries: CodeQueries, probing: _Probing) -> BucketResult:
    """Probe with one number of masks for all queries."""
    keys: Keys = np.empty((len(queries), min(queries.k, view.part.n_rows)), dtype=np.uint64)
    is_done = np.zeros(len(queries), dtype=np.bool_)
    visits, budget = [Visits(0, 0)], _budget(view, queries)
    common: Keys = np.empty((1, 1, probing.n_masks), dtype=np.uint64)
    kernels.tables.masks_by_distance(tables.table_bits, common[0, 0])

    def task(start: int, stop: int) -> None:
        counts = np.zeros(2, dtype=np.int64)
        margins = None if queries.margins is None else queries.margins[start:stop]
        masks = common if margins is None else _likeliest_masks(margins, tables, probing.n_masks)
        kernels.tables.probe(
            queries.codes[start:stop], view.part.codes.rows, tables.first_bits, tables.table_bits, tables.starts,
            tables.rows, view.hidden, view.part.ranks, budget, masks, probing.n_probes, probing.n_wanted,
            *_scratch(view.part.n_rows), keys[start:stop], is_done[start:stop], counts,
        )  # fmt: skip
        visits.append(Visits(*counts.tolist()))

    step = min(tuning().table_task_queries, tuning().table_task_masks // (tables.n_tables * probing.n_masks))
    for_each_chunk(task, len(queries), max(1, step), queries.n_threads)
    return BucketResult(HammingKeys(keys), is_done, Visits.total(visits))


def within(tables: Tables, view: View, queries: CodeQueries, radius: int) -> Matches | None:
    """Find all rows within `radius` of each query; None if a scan is cheaper."""
    if _BUCKET_WORDS * n_lookups(tables, radius) > _budget(view, queries):
        return None
    parts: list[Keys] = [np.empty(0, dtype=np.uint64)] * len(queries)

    def task(start: int, stop: int) -> None:
        seen, found, keys = _scratch(view.part.n_rows)
        counts = np.zeros(64 * queries.codes.shape[1] + 1, dtype=np.int64)
        for i in range(start, stop):
            n = kernels.tables.within(
                queries.codes[i], view.part.codes.rows, tables.first_bits, tables.table_bits, tables.starts,
                tables.rows, view.hidden, radius, seen, found, keys, counts,
            )  # fmt: skip
            parts[i] = keys[:n][HammingKeys(keys[:n]).distances() <= radius]

    for_each_chunk(task, len(queries), tuning().table_task_queries, queries.n_threads)
    numbers = np.repeat(np.arange(len(queries)), [len(part) for part in parts])
    keys = HammingKeys(np.concatenate([np.empty(0, dtype=np.uint64), *parts]))
    return Matches(numbers, keys.distances(), keys.ranks())


def n_lookups(tables: Tables, radius: int) -> int:
    """Count the buckets that together hold all rows within `radius`."""
    n = 0
    for table in range(tables.n_tables):
        last = radius // tables.n_tables - (table > radius % tables.n_tables)
        n += sum(math.comb(tables.table_bits, ones) for ones in range(min(last, tables.table_bits) + 1))
    return n


def _budget(view: View, queries: CodeQueries) -> int:
    """Return the cost of a query in words beyond which a scan is cheaper."""
    return int(view.part.n_rows * queries.codes.shape[1] // tuning().table_budget_share)


def _scratch(n_rows: int) -> tuple[Mask, Ranks, Keys]:
    """Allocate memory for the rows found; of large arrays only the pages that are written cost anything."""
    return np.zeros(n_rows, dtype=np.bool_), np.empty(n_rows, dtype=np.int32), np.empty(n_rows, dtype=np.uint64)


def _likeliest_masks(margins: Floats, tables: Tables, n: int) -> Keys:
    """Return the `n` likeliest masks of differing bits for each query and table."""
    masks: Keys = np.empty((len(margins), tables.n_tables, n), dtype=np.uint64)
    for i in range(len(margins)):
        for table, first in enumerate(tables.first_bits):
            kernels.tables.likeliest_masks(margins[i, first : first + tables.table_bits], masks[i, table])
    return masks
