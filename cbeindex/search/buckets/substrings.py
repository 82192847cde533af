"""Substrings: tables of the rows that have a given value in a part of their code (multi-index hashing).

A code is cut into m parts. A row within r bits of a query agrees with the query up to r // m bits in at least one
part. So looking up all values that differ by at most r // m bits in each part finds all such rows. Tables pay where
near rows are very near, as with near duplicates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from ... import kernels
from ..._core.checks import as_count
from ..._core.tuning import tuning
from ..._core.typing import Arrays, Ranks, Rows
from ...data.codes import CodeRows
from ...errors import CorruptIndexFileError
from ...store.segment import Segment
from ..plan import Cost, Plan
from ..queries import CodeQueries
from ..scan import Matches
from ..view import View
from . import lookup
from .base import ArrayReader, BucketMaker, BucketResult, Buckets

MOST_TABLE_BITS = 24
"""A table has an entry for every value of its substring."""

# Bytes that one bucket lookup reads, a cache line, as a planner counts them.
_LOOKUP_BYTES = 64


@dataclass(frozen=True)
class Tables(Buckets):
    """The tables of a segment.

    Attributes
    ----------
    table_bits : int
    first_bits : int64 array of shape (n_tables,)
    starts : int32 array of shape (n_tables, 2**table_bits + 1)
    rows : int32 array of shape (n_tables, n_rows)
        In table t, the rows with value v are `rows[t, starts[t, v] : starts[t, v + 1]]`.
    is_checked : bool
        Whether all entries are known to be valid rows. Entries from a file are checked when they are first used.
    """

    table_bits: int
    first_bits: Rows
    starts: Ranks
    rows: Ranks
    is_checked: bool = True

    kind: ClassVar[str] = "tables"
    stores_codes_by_row: ClassVar[bool] = True
    reorders_rows: ClassVar[bool] = False

    @property
    def n_tables(self) -> int:
        """Number of tables."""
        return len(self.first_bits)

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return self.first_bits.nbytes + self.starts.nbytes + self.rows.nbytes

    # --- planner ---

    def expected_rows(self, n_probes: int) -> int:
        """Return the number of rows in `n_probes` buckets of each table, for rows spread evenly over buckets."""
        return int(self.rows.shape[1] * min(1.0, self.n_tables * n_probes / 2**self.table_bits))

    def expected_cost(self, k: int, n_probes: int | None, code_bytes: int) -> Cost:
        """Return the rows in the visited buckets, and the bytes of their codes and of the lookups."""
        n_lookups = n_probes or 1 + self.table_bits  # near duplicates are found after about two rounds
        rows = self.expected_rows(n_lookups)
        return Cost(rows, rows * code_bytes + _LOOKUP_BYTES * self.n_tables * n_lookups)

    # --- search ---

    def nearest(self, view: View, queries: CodeQueries, plan: Plan) -> BucketResult | None:
        """Find the nearest rows exactly, or those in `plan.n_probes` buckets; None if these are all buckets."""
        self._require_valid()
        if plan.n_probes is None:
            return lookup.nearest(self, view, queries)
        if plan.n_probes >= 2**self.table_bits:
            return None
        return lookup.probe(self, view, queries, plan.n_probes, min(plan.k, view.n_visible))

    def within(self, view: View, queries: CodeQueries, radius: int) -> Matches | None:
        """Find all rows within `radius` of each query; None if a scan is cheaper."""
        self._require_valid()
        return lookup.within(self, view, queries, radius)

    # --- index file ---

    def describe(self) -> dict[str, Any]:
        """Describe the tables apart from their arrays."""
        return {"n_tables": self.n_tables, "table_bits": self.table_bits}

    def to_arrays(self) -> Arrays:
        """Return the arrays of the tables."""
        return {"starts": self.starts, "rows": self.rows, "first_bits": self.first_bits}

    @classmethod
    def from_arrays(cls, described: dict[str, Any], read: ArrayReader, maker: Any, n_rows: int) -> Self:
        """Rebuild tables from a file. Entries are not read before they are used."""
        n_bits = maker.n_bits
        table_bits = as_count(described["table_bits"], "table_bits", most=MOST_TABLE_BITS)
        n_tables = as_count(described["n_tables"], "n_tables", most=n_bits // table_bits)
        first_bits = read("first_bits", np.int64, n_tables)
        # With overlapping substrings, one differing bit would count twice and near rows could be missed.
        if not np.array_equal(first_bits, _first_bits(n_bits, n_tables)):
            raise ValueError(f"first bits of tables must divide the {n_bits} bits of a code evenly")
        starts = read("starts", np.int32, n_tables, 2**table_bits + 1)
        return cls(table_bits, first_bits, starts, read("rows", np.int32, n_tables, n_rows), is_checked=False)

    def check(self, codes: CodeRows) -> None:
        """Raise CorruptIndexFileError unless each table holds each row once, at the value of its code."""
        self._require_valid()
        for table, first_bit in enumerate(self.first_bits):
            starts, rows = np.zeros_like(self.starts[table]), np.empty_like(self.rows[table])
            kernels.tables.fill(codes.rows, first_bit, self.table_bits, starts, rows)
            if not np.array_equal(starts, self.starts[table]) or not np.array_equal(rows, self.rows[table]):
                raise CorruptIndexFileError(f"table {table} must list each row once, in the bucket of its code")

    def _require_valid(self) -> None:
        """Raise CorruptIndexFileError if entries from a file are not rows; kernels rely on them."""
        if self.is_checked:
            return
        n_rows = self.rows.shape[1]
        is_divided = (self.starts[:, 0] == 0).all() and (self.starts[:, -1] == n_rows).all()
        if not is_divided or (self.starts[:, 1:] < self.starts[:, :-1]).any():
            raise CorruptIndexFileError(f"tables must divide the {n_rows} rows")
        if self.rows.min() < 0 or self.rows.max() >= n_rows:
            raise CorruptIndexFileError(f"tables must have rows below {n_rows}")
        object.__setattr__(self, "is_checked", True)


@dataclass(frozen=True)
class Substrings(BucketMaker):
    """Makes tables.

    Attributes
    ----------
    n_bits : int
    n_tables, table_bits : int or None
        By default a table has about as many entries as the segment has rows, and there are 16 tables or as many as fit
        into the code. Fewer bits are used in segments with less than half as many rows as a table would have entries.
    """

    n_bits: int
    n_tables: int | None = None
    table_bits: int | None = None

    buckets: ClassVar[type[Buckets]] = Tables
    options: ClassVar[tuple[str, ...]] = ("n_tables", "table_bits")
    is_exact: ClassVar[bool] = True
    can_estimate: ClassVar[bool] = False
    uses_margins: ClassVar[bool] = True

    @classmethod
    def from_options(cls, n_bits: int, options: dict[str, int]) -> Self:
        """Make a maker from the options that are set; raises ValueError for more tables or bits than allowed."""
        n_tables, table_bits = options.get("n_tables"), options.get("table_bits")
        most = most_tables(n_bits)
        if n_tables is not None and n_tables > most:
            raise ValueError(f"n_tables must be at most {most} for codes of {n_bits} bits, got {n_tables}")
        most = min(MOST_TABLE_BITS, n_bits // (n_tables or 1))
        if table_bits is not None and table_bits > most:
            tables = f" in {n_tables} tables" if n_tables else ""
            raise ValueError(f"table_bits must be at most {most} for codes of {n_bits} bits{tables}, got {table_bits}")
        if n_tables is None and table_bits is not None:
            n_tables = max(1, min(tuning().default_tables, n_bits // table_bits))
        return cls(n_bits, n_tables, table_bits)

    def arrange(self, segment: Segment, share: float = 1.0) -> Segment:
        """Return the segment with tables. Small segments are returned unchanged."""
        if segment.n_rows < tuning().least_table_segment_rows:
            return segment
        table_bits = self._table_bits_of(segment.n_rows)
        n_tables = self.n_tables or max(1, min(tuning().default_tables, self.n_bits // table_bits))
        first_bits = _first_bits(self.n_bits, n_tables)
        starts = np.zeros((n_tables, 2**table_bits + 1), dtype=np.int32)
        rows = np.empty((n_tables, segment.n_rows), dtype=np.int32)
        words = segment.codes.words(segment.n_rows)
        for table in range(n_tables):
            kernels.tables.fill(words, first_bits[table], table_bits, starts[table], rows[table])
        codes = CodeRows.of(words, self.n_bits, by_row=True)  # candidates are read one at a time
        return replace(segment, codes=codes, buckets=Tables(table_bits, first_bits, starts, rows))

    def _table_bits_of(self, n_rows: int) -> int:
        if self.table_bits is not None:
            most_entries = tuning().most_table_entries_of_row * n_rows
            return min(self.table_bits, max(tuning().small_table_bits, int(math.log2(most_entries))))
        available = self.n_bits // (self.n_tables or 1)
        return max(1, min(round(math.log2(n_rows)), available, MOST_TABLE_BITS))


def most_tables(n_bits: int) -> int:
    """Return the largest number of tables for codes of `n_bits` bits: the default number, or one for each byte.

    A table takes 4 bytes a row for the rows, and at most 8 bytes a row for the entries. So tables take at most 12 times
    the memory of the codes.
    """
    return min(n_bits, max(tuning().default_tables, n_bits // 8))


def _first_bits(n_bits: int, n_tables: int) -> Rows:
    """Return the first bit of each substring."""
    return np.arange(n_tables, dtype=np.int64) * (n_bits // n_tables)
