"""Substrings: tables of which rows have a given value in a part of their code (multi-index hashing).

A code is cut into parts. Rows within r bits of a query agree with it, in one of m parts, up to r // m bits; so looking
up all values that differ that little in each part finds all of them. It shines where near rows are very near.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ... import kernels
from ..._core.threads import for_each_chunk
from ..._core.typing import Codes, Distances, Floats, Keys, Mask, Ranks, Rows
from ...data.codes import CodeRows
from ...errors import CorruptIndexFileError
from ...store.segment import Segment

LEAST_ROWS = 2**11
"""Segments with fewer rows have no tables: all of them are looked at."""

MOST_TABLE_BITS = 24
"""A table has an entry for every value of its substring."""

# Tables by default; more take more room than the codes.
_N_TABLES = 16
# Entries of a table for each row, at most: it has one for every value of its substring, and most would be empty. Tables
# of so few bits are small in any case.
_MOST_ENTRIES = 2
_FEW_BITS = 12
# Words of codes that an exact search may cost, beside the words that a scan reads: beyond it, it becomes a scan.
_BUDGET_SHARE = 32
# Queries of a task, and the masks that they have at a time.
_GROUP_QUERIES = 32
_GROUP_MASKS = 2**20


@dataclass(frozen=True)
class Tables:
    """The tables of a segment.

    Attributes
    ----------
    table_bits : int
    first_bits : int64 array of shape (n_tables,)
    starts : int32 array of shape (n_tables, 2**table_bits + 1)
    rows : int32 array of shape (n_tables, n_rows)
        In table t, the rows with value v are `rows[t, starts[t, v] : starts[t, v + 1]]`.
    is_checked : bool
        Whether they are known to be places of rows; tables from a file are not.
    """

    table_bits: int
    first_bits: Rows
    starts: Ranks
    rows: Ranks
    is_checked: bool = True

    def checked(self) -> Tables:
        """Return the tables, after a look at them if they come from a file: kernels trust them."""
        if not self.is_checked:
            n_rows = self.rows.shape[1]
            divide = (self.starts[:, 0] == 0).all() and (self.starts[:, -1] == n_rows).all()
            if not divide or (self.starts[:, 1:] < self.starts[:, :-1]).any():
                raise CorruptIndexFileError(f"tables must divide the {n_rows} rows")
            if self.rows.min() < 0 or self.rows.max() >= n_rows:
                raise CorruptIndexFileError(f"tables must have rows below {n_rows}")
            object.__setattr__(self, "is_checked", True)
        return self

    @property
    def n_tables(self) -> int:
        """Number of tables."""
        return len(self.first_bits)

    @property
    def nbytes(self) -> int:
        """Bytes that the tables take."""
        return self.first_bits.nbytes + self.starts.nbytes + self.rows.nbytes

    def expected_rows(self, n_probes: int) -> int:
        """Rows in so many buckets of each table, if rows are spread evenly over them."""
        return int(self.rows.shape[1] * min(1.0, self.n_tables * n_probes / 2**self.table_bits))

    def n_lookups(self, radius: int) -> int:
        """Count the buckets in which all rows within `radius` are."""
        n = 0
        for table in range(self.n_tables):
            last = radius // self.n_tables - (table > radius % self.n_tables)
            n += sum(math.comb(self.table_bits, ones) for ones in range(min(last, self.table_bits) + 1))
        return n


@dataclass(frozen=True)
class Substrings:
    """Makes tables.

    Attributes
    ----------
    n_bits : int
    n_tables, table_bits : int or None
        By default a table has about as many entries as the segment has rows, and there are 16 tables, or as many as
        the code has room for. Where a segment has less than half as many rows as a table would have entries, fewer
        bits are taken.
    """

    n_bits: int
    n_tables: int | None = None
    table_bits: int | None = None

    def arrange(self, segment: Segment) -> Segment:
        """Return the segment with tables; a small one as it is."""
        if segment.n_rows < LEAST_ROWS:
            return segment
        table_bits = self._table_bits(segment.n_rows)
        n_tables = self.n_tables or max(1, min(_N_TABLES, self.n_bits // table_bits))
        first_bits = np.arange(n_tables, dtype=np.int64) * (self.n_bits // n_tables)
        starts = np.zeros((n_tables, 2**table_bits + 1), dtype=np.int32)
        rows = np.empty((n_tables, segment.n_rows), dtype=np.int32)
        words = segment.codes.take(np.arange(segment.n_rows))
        for table in range(n_tables):
            kernels.tables.fill(words, first_bits[table], table_bits, starts[table], rows[table])
        codes = CodeRows.of(words, self.n_bits, by_row=True)  # candidates are read one by one
        return replace(segment, codes=codes, buckets=Tables(table_bits, first_bits, starts, rows))

    def _table_bits(self, n_rows: int) -> int:
        if self.table_bits is not None:
            return min(self.table_bits, max(_FEW_BITS, int(math.log2(_MOST_ENTRIES * n_rows))))
        room = self.n_bits // (self.n_tables or 1)
        return max(1, min(round(math.log2(n_rows)), room, MOST_TABLE_BITS))


def most_tables(n_bits: int) -> int:
    """Return how many tables a code of `n_bits` may have: as many as there are by default, or one for each byte.

    A table takes 4 bytes a row and, with `_MOST_ENTRIES`, 8 more at most: all of them 12 times what codes do.
    """
    return min(n_bits, max(_N_TABLES, n_bits // 8))


def nearest(
    segment: Segment, n_bits: int, queries: Codes, k: int, hidden: Mask, n_threads: int
) -> tuple[Keys, NDArray[np.bool_], Rows]:
    """Find the `k` nearest rows of each query, exactly, where that costs less than a scan.

    Returns
    -------
    uint64 array of shape (n_queries, min(k, n_rows))
        Keys in ascending order, no key where there are fewer rows.
    bool array of shape (n_queries,)
        Whether they are the nearest; otherwise the search was given up.
    int64 array of shape (2,)
        Rows and buckets visited.
    """
    tables: Tables = segment.buckets.checked()
    budget = _budget(segment, queries)
    keys: Keys = np.empty((len(queries), min(k, segment.n_rows)), dtype=np.uint64)
    done = np.zeros(len(queries), dtype=np.bool_)
    visits: list[Rows] = [np.zeros(2, dtype=np.int64)]

    def task(start: int, stop: int) -> None:
        here = np.zeros(2, dtype=np.int64)
        kernels.tables.nearest(
            queries[start:stop], segment.codes.tail, tables.first_bits, tables.table_bits,
            tables.starts, tables.rows, hidden, segment.ranks, n_bits, budget,
            *_scratch(segment.n_rows), keys[start:stop], done[start:stop], here,
        )  # fmt: skip
        visits.append(here)

    for_each_chunk(task, len(queries), _GROUP_QUERIES, n_threads)
    return keys, done, np.sum(visits, axis=0)


def probe(
    segment: Segment,
    n_bits: int,
    queries: Codes,
    margins: Floats | None,
    k: int,
    n_probes: int,
    n_wanted: int,
    hidden: Mask,
    n_threads: int,
) -> tuple[Keys, NDArray[np.bool_], Rows]:
    """Find the `k` nearest of the rows in `n_probes` buckets of each table, or in more until `n_wanted` are found.

    With `margins`, (n_queries, n_bits), the bits with the smallest ones differ first: those of which the query is the
    least certain. Without, buckets come in the order of their Hamming distance. What would cost more than a scan is
    left to it; see `nearest` for what comes back.
    """
    tables: Tables = segment.buckets.checked()
    budget = _budget(segment, queries)
    keys: Keys = np.empty((len(queries), min(k, segment.n_rows)), dtype=np.uint64)
    done = np.zeros(len(queries), dtype=np.bool_)
    visits = np.zeros(2, dtype=np.int64)
    n_probes = min(n_probes, 2**tables.table_bits)
    most = min(2**tables.table_bits, budget // (8 * tables.n_tables))  # what the budget has room for
    if n_probes > most:
        return keys, done, visits
    for n_masks in (n_probes, most):  # few queries need more than they asked for
        left = np.flatnonzero(~done)
        its_margins = None if margins is None else margins[left]
        some = _probe(
            segment, n_bits, queries[left], its_margins, keys.shape[1], n_masks, n_probes, n_wanted, budget, hidden,
            n_threads,
        )  # fmt: skip
        keys[left], done[left] = some[:2]
        visits += some[2]
    return keys, done, visits


def _probe(
    segment: Segment,
    n_bits: int,
    queries: Codes,
    margins: Floats | None,
    k: int,
    n_masks: int,
    n_probes: int,
    n_wanted: int,
    budget: int,
    hidden: Mask,
    n_threads: int,
) -> tuple[Keys, NDArray[np.bool_], Rows]:
    """Do so with `n_masks` buckets of each table to choose from."""
    tables: Tables = segment.buckets
    keys: Keys = np.empty((len(queries), k), dtype=np.uint64)
    done = np.zeros(len(queries), dtype=np.bool_)
    visits: list[Rows] = [np.zeros(2, dtype=np.int64)]
    common: Keys = np.empty((1, 1, n_masks), dtype=np.uint64)
    kernels.tables.masks_by_distance(tables.table_bits, common[0, 0])

    def task(start: int, stop: int) -> None:
        here = np.zeros(2, dtype=np.int64)
        masks = common if margins is None else _likeliest_masks(margins[start:stop], tables, n_masks)
        kernels.tables.probe(
            queries[start:stop], segment.codes.tail, tables.first_bits, tables.table_bits, tables.starts, tables.rows,
            hidden, segment.ranks, budget, masks, n_probes, n_wanted, *_scratch(segment.n_rows),
            keys[start:stop], done[start:stop], here,
        )  # fmt: skip
        visits.append(here)

    group = max(1, min(_GROUP_QUERIES, _GROUP_MASKS // (tables.n_tables * n_masks)))
    for_each_chunk(task, len(queries), group, n_threads)
    return keys, done, np.sum(visits, axis=0)


def within(
    segment: Segment, n_bits: int, queries: Codes, radius: int, hidden: Mask, n_threads: int
) -> tuple[Rows, Distances, Rows] | None:
    """Find all rows within `radius` of each query: flat arrays of query, distance, row; None if a scan is cheaper."""
    tables: Tables = segment.buckets.checked()
    if 8 * tables.n_lookups(radius) > _budget(segment, queries):
        return None
    parts: list[Keys] = [np.empty(0, dtype=np.uint64)] * len(queries)

    def task(start: int, stop: int) -> None:
        seen, found, keys = _scratch(segment.n_rows)
        counts = np.zeros(64 * queries.shape[1] + 1, dtype=np.int64)
        for i in range(start, stop):
            n = kernels.tables.within(
                queries[i], segment.codes.tail, tables.first_bits, tables.table_bits, tables.starts,
                tables.rows, hidden, radius, seen, found, keys, counts,
            )  # fmt: skip
            parts[i] = keys[:n][keys[:n] >> np.uint64(32) <= np.uint64(radius)]

    for_each_chunk(task, len(queries), _GROUP_QUERIES, n_threads)
    numbers = np.repeat(np.arange(len(queries)), [len(part) for part in parts])
    keys = np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)
    return numbers, (keys >> np.uint64(32)).astype(np.int32), (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def _budget(segment: Segment, queries: Codes) -> int:
    """Return what a query may cost in buckets before a scan is cheaper."""
    return int(segment.n_rows * queries.shape[1] // _BUDGET_SHARE)


def _scratch(n_rows: int) -> tuple[Mask, Ranks, Keys]:
    """Make room for rows that are found; of large arrays only the touched pages cost something."""
    return np.zeros(n_rows, dtype=np.bool_), np.empty(n_rows, dtype=np.int32), np.empty(n_rows, dtype=np.uint64)


def _likeliest_masks(margins: Floats, tables: Tables, n: int) -> Keys:
    """Return, for each query and table, the `n` masks that cost least."""
    masks: Keys = np.empty((len(margins), tables.n_tables, n), dtype=np.uint64)
    for i in range(len(margins)):
        for table, first in enumerate(tables.first_bits):
            kernels.tables.likeliest_masks(margins[i, first : first + tables.table_bits], masks[i, table])
    return masks
