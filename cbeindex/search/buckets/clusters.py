"""Clusters: rows that are near to the same centroid stand together, and a search looks at the nearest cells only.

Cells are found by k-means on the first 1,024 bits of the codes (see `centroids.py`). It needs no
vectors, so it serves vectors of any length and codes from elsewhere alike, and choosing cells for a query costs as
little as a scan of some hundred rows. Each segment has cells of its own, as many as suit its size; when segments are
joined, new cells are made, so that cells follow the data as it grows or moves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ... import kernels
from ..._core.threads import for_each_chunk, n_cores
from ..._core.typing import Codes, Keys, Mask, Rows
from ...data.codes import CodeRows
from ...store.segment import NO_RANKS, NOT_HIDDEN, Segment
from .. import scan
from .centroids import Centroids, train

LEAST_ROWS = 2**11
"""Segments with fewer rows have no cells: all of them are looked at."""

CELL_WORDS = 16
"""Words of codes that cells are made of, and by which they are chosen."""

# Cells: so many times the root of the number of rows, with some rows in each. Choosing cells then costs about as much
# as looking at the rows of those that are chosen.
_CELLS_OF_ROOT = 2
_LEAST_CELL_ROWS = 8
# Cells that a user may ask for, as a multiple of that root: the time to make them grows with their number.
_MOST_OF_ROOT = 16
# Rows that are asked for to find how many cells hold the nearest rows of a row, how many of those, and the share of
# them that should.
_N_ASKED = 128
_N_NEAREST = (10, 100, 1000)
_SHARE = 0.99
# Overlooking by the cascade inside of cells: far below what the choice of cells overlooks.
_MISS = 1e-5
# Queries that are searched for together, and share the cells that they visit.
_GROUP_QUERIES = 512


@dataclass(frozen=True)
class Cells:
    """The cells of a segment.

    Attributes
    ----------
    centroids : Centroids
        Of the first words of codes, at most 16.
    offsets : int64 array of shape (n_cells + 1,)
        Cell c has the rows [offsets[c], offsets[c + 1]).
    n_probes : tuple of int
        Cells that hold 99 % of the nearest 10, 100 and 1,000 of a row, on average.
    """

    centroids: Centroids
    offsets: Rows
    n_probes: tuple[int, ...]

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return len(self.centroids)

    @property
    def nbytes(self) -> int:
        """Bytes that the cells take beyond codes in another order."""
        return self.centroids.nbytes + self.offsets.nbytes

    def choose(self, queries: Codes, n_probes: int, n_wanted: int, hidden: Mask) -> Rows:
        """Return the nearest cells of each query: `n_probes`, or more until they have `n_wanted` rows to be answers.

        The result is (n_queries, any), nearest first; where a query has fewer cells than another, the number after
        that of the last cell stands, a cell without rows in `ends_of_cells`.
        """
        sizes = np.diff(self.offsets)
        if hidden.size:
            until = np.concatenate([[0], np.cumsum(~hidden)])
            sizes = until[self.offsets[1:]] - until[self.offsets[:-1]]
        chosen = self.centroids.nearest(queries, n_probes)
        short = np.flatnonzero(sizes[chosen].sum(axis=1) < n_wanted)
        if not short.size:
            return chosen
        every = self.centroids.nearest(queries[short], self.n_cells)
        enough = np.cumsum(sizes[every], axis=1) >= n_wanted
        n_needed = np.where(enough.any(axis=1), enough.argmax(axis=1) + 1, self.n_cells)
        cells: Rows = np.full((len(queries), max(n_probes, int(n_needed.max()))), self.n_cells)
        cells[:, :n_probes] = chosen
        for i, query in enumerate(short):
            cells[query, : n_needed[i]] = every[i, : n_needed[i]]
        return cells

    def ends_of_cells(self) -> Rows:
        """Return `offsets` with one more cell, which has no rows."""
        return np.append(self.offsets, self.offsets[-1])

    def expected_rows(self, n_probes: int) -> int:
        """Rows in so many cells, on average."""
        return int(self.offsets[-1] * min(1.0, n_probes / self.n_cells))

    def probes_for(self, k: int) -> int:
        """Return how many cells to visit for `k` answers."""
        if k > _N_NEAREST[-1]:
            wanted = self.n_probes[-1] * k / _N_NEAREST[-1]
        else:
            wanted = math.exp(np.interp(math.log(k), np.log(_N_NEAREST), np.log(self.n_probes)))
        return min(self.n_cells, math.ceil(wanted - 1e-9))  # logarithms leave a little


@dataclass(frozen=True)
class Clusters:
    """Makes cells.

    Attributes
    ----------
    n_bits : int
    n_cells : int or None
        For each segment; by default twice the root of its rows. At most one for 8 rows, and 16 times that root.
    """

    n_bits: int
    n_cells: int | None = None

    def arrange(self, segment: Segment) -> Segment:
        """Return the segment with its rows in the order of cells; a small one as it is."""
        if segment.n_rows < LEAST_ROWS:
            return segment
        words = segment.codes.take(np.arange(segment.n_rows))
        first_words = np.ascontiguousarray(words[:, :CELL_WORDS])
        n_cells = self.n_cells_of(segment.n_rows)
        rng = np.random.default_rng(segment.n_rows)
        centroids = train(first_words, min(self.n_bits, 64 * CELL_WORDS), n_cells, rng)
        cell = centroids.assign(first_words)
        rows = np.argsort(cell, kind="stable")
        offsets = np.searchsorted(cell[rows], np.arange(n_cells + 1))
        columns = {name: values[rows] for name, values in segment.columns.items()}
        ranks = rows.astype(np.int32)  # they were in the order of their ids
        order = np.empty_like(ranks)
        order[rows] = np.arange(len(rows), dtype=np.int32)
        arranged = replace(
            segment,
            ids=segment.ids[rows],
            codes=CodeRows.of(words[rows], self.n_bits),
            columns=columns,
            removed=segment.removed[rows] if segment.removed.size else segment.removed,
            order=order,
            ranks=ranks,
        )
        n_probes = _probes_needed(arranged, centroids, offsets, rng)
        return replace(arranged, buckets=Cells(centroids, offsets, n_probes))

    def n_cells_of(self, n_rows: int) -> int:
        """Return how many cells a segment of `n_rows` gets."""
        root = math.sqrt(n_rows)
        n_cells = self.n_cells or round(_CELLS_OF_ROOT * root)
        return max(1, min(n_cells, round(_MOST_OF_ROOT * root), n_rows // _LEAST_CELL_ROWS))


def nearest(
    segment: Segment, n_bits: int, queries: Codes, k: int, n_probes: int, n_wanted: int, hidden: Mask, n_threads: int
) -> tuple[Keys, Rows]:
    """Find the `k` nearest rows of each query in its nearest cells, see `Cells.choose`.

    Returns
    -------
    uint64 array of shape (n_queries, min(k, n_rows))
        Keys in ascending order, no key where there are fewer rows.
    int64 array of shape (3,)
        Rows in the visited cells, rows of which more than the head was looked at, and cells, over all queries.
    """
    cells: Cells = segment.buckets
    codes, offsets = segment.codes, cells.ends_of_cells()
    keys: Keys = np.empty((len(queries), min(k, segment.n_rows)), dtype=np.uint64)
    stage_ends, prefix_bits, z = scan.checks_of(codes, n_bits, _MISS)
    counts: list[Rows] = [np.zeros(3, dtype=np.int64)]

    def task(start: int, stop: int) -> None:
        some = queries[start:stop]
        chosen = cells.choose(some, n_probes, n_wanted, hidden)
        tails = np.ascontiguousarray(some[:, codes.n_head :])
        n_measured = kernels.cells.nearest(
            some, tails, codes.head, codes.tail, chosen, offsets, hidden, segment.ranks, n_bits, stage_ends,
            prefix_bits, z, keys[start:stop],
        )  # fmt: skip
        n_rows = (offsets[chosen + 1] - offsets[chosen]).sum()
        counts.append(np.array([n_rows, n_measured, np.count_nonzero(chosen < cells.n_cells)]))

    for_each_chunk(task, len(queries), max(1, min(_GROUP_QUERIES, -(-len(queries) // n_threads))), n_threads)
    return keys, np.sum(counts, axis=0)


def _probes_needed(segment: Segment, centroids: Centroids, offsets: Rows, rng: np.random.Generator) -> tuple[int, ...]:
    """Count the cells that hold the nearest rows of some rows, most of the time."""
    asked = segment.codes.take(rng.choice(segment.n_rows, min(_N_ASKED, segment.n_rows), replace=False))
    keys = scan.nearest(segment.codes, segment.n_rows, asked, _N_NEAREST[-1] + 1, NOT_HIDDEN, NO_RANKS, n_cores())
    rows = (keys[:, 1:] & np.uint64(0xFFFFFFFF)).astype(np.int64)  # without the row itself
    cell = np.searchsorted(offsets, rows, side="right") - 1
    chosen = centroids.nearest(asked, len(centroids))
    places = np.argsort(chosen, axis=1)
    needed = np.take_along_axis(places, cell, axis=1) + 1
    return tuple(int(np.quantile(needed[:, :n], _SHARE, method="higher")) for n in _N_NEAREST)
