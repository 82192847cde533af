"""Clusters: rows near the same centroid are stored contiguously, and a search scans only the cells nearest the query.

Cells come from k-means on the first 1,024 bits of the codes (see `centroids.py`). k-means on codes needs no vectors,
so it serves vectors of any length and codes from elsewhere alike, and choosing cells for a query costs as much as
scanning a few hundred rows. Each segment has cells of its own, in a number that suits its size. Merged segments get
new cells, so that cells follow the data as it grows or changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from ... import kernels
from ..._core.checks import as_count, as_flag
from ..._core.threads import for_each_chunk, n_cores
from ..._core.tuning import tuning
from ..._core.typing import Arrays, Codes, Keys, Mask, Rows
from ...data.codes import CodeRows, n_words
from ...data.columns import take_rows
from ...data.keys import EstimateKeys, HammingKeys
from ...distances.estimator import EncodedQueries
from ...store.segment import Segment
from .. import scan
from ..cascade import Checks
from ..plan import Cost, Plan
from ..queries import CodeQueries
from ..view import View
from .base import ArrayReader, BucketMaker, BucketResult, Buckets, Visits
from .centroids import Centroids, train

CELL_WORDS = 16
"""Words of a code that centroids cover."""

# Numbers of nearest rows for which the default number of probes is measured; index files hold one number for each.
_N_NEAREST = (10, 100, 1000)


class Probes(NamedTuple):
    """Cells that a search visits for each query.

    Attributes
    ----------
    n_probes : int
        Cells to visit, fewer than there are.
    n_wanted : int
        More cells are visited until they hold at least this many rows that may be results.
    """

    n_probes: int
    n_wanted: int


@dataclass(frozen=True)
class Cells(Buckets):
    """The cells of a segment.

    Attributes
    ----------
    centroids : Centroids
        Of the first words of codes, at most 16.
    offsets : int64 array of shape (n_cells + 1,)
        Cell c holds the rows [offsets[c], offsets[c + 1]).
    n_probes : tuple of int
        Cells that hold 99 % of the 10, 100 and 1,000 nearest rows of a row, on average.
    """

    centroids: Centroids
    offsets: Rows
    n_probes: tuple[int, ...]

    kind: ClassVar[str] = "cells"
    stores_codes_by_row: ClassVar[bool] = False
    reorders_rows: ClassVar[bool] = True

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return len(self.centroids)

    @property
    def nbytes(self) -> int:
        """Bytes of the cells, apart from the order of rows."""
        return self.centroids.nbytes + self.offsets.nbytes

    # --- planner ---

    def expected_rows(self, n_probes: int) -> int:
        """Return the mean number of rows in `n_probes` cells."""
        return int(self.offsets[-1] * min(1.0, n_probes / self.n_cells))

    def expected_cost(self, k: int, n_probes: int | None, code_bytes: int) -> Cost:
        """Return the rows in the visited cells, and the bytes of their codes and of all centroids."""
        rows = self.expected_rows(n_probes or self.default_probes(k))
        return Cost(rows, rows * code_bytes + self.centroids.nbytes)

    def default_probes(self, k: int) -> int:
        """Return the number of cells to visit for `k` results."""
        if k > _N_NEAREST[-1]:
            wanted = self.n_probes[-1] * k / _N_NEAREST[-1]
        else:
            wanted = math.exp(np.interp(math.log(k), np.log(_N_NEAREST), np.log(self.n_probes)))
        return min(self.n_cells, math.ceil(wanted - 1e-9))  # rounding of logarithms must not add a cell

    # --- search ---

    def probes(self, view: View, plan: Plan) -> Probes | None:
        """Return the cells that the plan visits, or None if it visits all of them.

        By default, hidden rows do not count as visited rows: they may be just the rows nearest the query.
        """
        n_probes = plan.n_probes or self.default_probes(plan.k)
        if n_probes >= self.n_cells:
            return None
        n_wanted = plan.k if plan.n_probes is not None else max(plan.k, self.expected_rows(n_probes))
        return Probes(n_probes, min(n_wanted, view.n_visible))

    def choose(self, queries: Codes, probes: Probes, hidden: Mask) -> Rows:
        """Return the cells to visit for each query, (n_queries, any), nearest first.

        A query with fewer cells than another one has `n_cells` at the end of its row, an empty cell in `cell_ends`.
        """
        sizes = np.diff(self.offsets)
        if hidden.size:
            n_visible = np.concatenate([[0], np.cumsum(~hidden)])
            sizes = n_visible[self.offsets[1:]] - n_visible[self.offsets[:-1]]
        chosen = self.centroids.nearest(queries, probes.n_probes)
        short = np.flatnonzero(sizes[chosen].sum(axis=1) < probes.n_wanted)
        if not short.size:
            return chosen
        every = self.centroids.nearest(queries[short], self.n_cells)
        enough = np.cumsum(sizes[every], axis=1) >= probes.n_wanted
        n_needed = np.where(enough.any(axis=1), enough.argmax(axis=1) + 1, self.n_cells)
        cells: Rows = np.full((len(queries), max(probes.n_probes, int(n_needed.max()))), self.n_cells)
        cells[:, : probes.n_probes] = chosen
        for i, query in enumerate(short):
            cells[query, : n_needed[i]] = every[i, : n_needed[i]]
        return cells

    def cell_ends(self) -> Rows:
        """Return `offsets` with an empty cell appended."""
        return np.append(self.offsets, self.offsets[-1])

    def nearest(self, view: View, queries: CodeQueries, plan: Plan) -> BucketResult | None:
        """Find the nearest rows in the cells that the plan visits; None if it visits all of them."""
        probes = self.probes(view, plan)
        if probes is None:
            return None
        keys, visits = self.search(view, queries, probes)
        return BucketResult(keys, np.ones(len(queries), dtype=np.bool_), visits)

    def search(self, view: View, queries: CodeQueries, probes: Probes) -> tuple[HammingKeys, Visits]:
        """Find the nearest rows in some cells of each query."""
        codes, offsets = view.part.codes, self.cell_ends()
        keys: Keys = np.empty((len(queries), min(queries.k, view.part.n_rows)), dtype=np.uint64)
        checks = Checks.of(queries.n_bits, tuning().cell_miss)
        visits = [Visits(0, 0, 0)]

        def task(start: int, stop: int) -> None:
            some = queries.codes[start:stop]
            chosen = self.choose(some, probes, view.hidden)
            n_measured = kernels.cells.nearest(
                some, codes.blocks, chosen, offsets, view.hidden, view.part.ranks, queries.n_bits, *checks,
                keys[start:stop],
            )  # fmt: skip
            visits.append(self._visits(chosen, offsets, int(n_measured)))

        step = min(tuning().cell_task_queries, -(-len(queries) // queries.n_threads))
        for_each_chunk(task, len(queries), max(1, step), queries.n_threads)
        return HammingKeys(keys), Visits.total(visits)

    def nearest_by_estimate(
        self, view: View, queries: EncodedQueries, k: int, n_sigmas: float, plan: Plan, n_threads: int
    ) -> tuple[EstimateKeys, Visits] | None:
        """Find the `k` nearest rows by estimate in the cells that the plan visits; None if it visits all of them."""
        probes = self.probes(view, plan)
        if probes is None:
            return None
        n_queries, part, offsets = len(queries.codes), view.part, self.cell_ends()
        keys: Keys = np.empty((n_queries, min(k, part.n_rows)), dtype=np.uint64)
        margins = np.float32(n_sigmas) * queries.norms
        visits = [Visits(0, 0)]

        def task(start: int, stop: int) -> None:
            some = slice(start, stop)
            q = queries.some(some)
            chosen = self.choose(q.codes, probes, view.hidden)
            kernels.asymmetric.visit(
                q.levels, q.totals, q.steps, q.offsets, margins[some], part.codes.blocks, part.columns["offsets"],
                part.columns["factors"], part.columns["spreads"], view.hidden, part.ranks, chosen, offsets, keys[some],
            )  # fmt: skip
            visits.append(self._visits(chosen, offsets))

        step = min(tuning().estimate_cell_queries, -(-n_queries // n_threads))
        for_each_chunk(task, n_queries, max(1, step), n_threads)
        return EstimateKeys(keys), Visits.total(visits)

    def _visits(self, chosen: Rows, offsets: Rows, survivors: int | None = None) -> Visits:
        n_rows = (offsets[chosen + 1] - offsets[chosen]).sum()
        return Visits(int(n_rows), int(np.count_nonzero(chosen < self.n_cells)), survivors)

    # --- index file ---

    def describe(self) -> dict[str, Any]:
        """Describe the cells apart from their arrays."""
        has_weights = self.centroids.weights.size > 0
        return {"n_cells": self.n_cells, "n_probes": list(self.n_probes), "weights": has_weights}

    def to_arrays(self) -> Arrays:
        """Return the arrays of the cells."""
        arrays: Arrays = {"centroids": self.centroids.signs, "offsets": self.offsets}
        return arrays | ({"weights": self.centroids.weights} if self.centroids.weights.size else {})

    @classmethod
    def from_arrays(cls, described: dict[str, Any], read: ArrayReader, maker: Any, n_rows: int) -> Self:
        """Rebuild cells from a file."""
        n_cells = as_count(described["n_cells"], "n_cells")
        width = min(n_words(maker.n_bits), CELL_WORDS)
        signs = read("centroids", np.uint64, n_cells, width)
        if as_flag(described.get("weights", False), "weights"):
            centroids = Centroids(signs, read("weights", np.uint64, n_cells, 2, width))
        else:  # files written before centroids had weights
            centroids = Centroids.of_codes(signs)
        offsets = read("offsets", np.int64, n_cells + 1)
        if offsets[0] != 0 or offsets[-1] != n_rows or (offsets[1:] < offsets[:-1]).any():
            raise ValueError(f"offsets of cells must ascend from 0 to {n_rows}")
        given = described["n_probes"]
        if not isinstance(given, list) or len(given) != len(_N_NEAREST):
            raise ValueError(f"n_probes must be a list of {len(_N_NEAREST)} numbers, got {given!r}")
        n_probes = tuple(as_count(n, "n_probes", most=n_cells) for n in given)
        return cls(centroids, offsets, n_probes)

    def check(self, codes: CodeRows) -> None:
        """Do nothing: `from_arrays` checks all that could do harm, and any division into cells is allowed."""


@dataclass(frozen=True)
class Clusters(BucketMaker):
    """Makes cells.

    Attributes
    ----------
    n_bits : int
    n_cells : int or None
        Cells of each segment. By default twice the square root of its rows.
    """

    n_bits: int
    n_cells: int | None = None

    buckets: ClassVar[type[Buckets]] = Cells
    options: ClassVar[tuple[str, ...]] = ("n_cells",)
    is_exact: ClassVar[bool] = False
    can_estimate: ClassVar[bool] = True
    uses_margins: ClassVar[bool] = False

    @classmethod
    def from_options(cls, n_bits: int, options: dict[str, int]) -> Self:
        """Make a maker from the options that are set."""
        return cls(n_bits, **options)

    def arrange(self, segment: Segment, share: float = 1.0) -> Segment:
        """Return the segment with its rows in the order of cells. Small segments are returned unchanged."""
        if segment.n_rows < tuning().least_cell_segment_rows:
            return segment
        words = segment.codes.words(segment.n_rows)
        first_words = np.ascontiguousarray(words[:, :CELL_WORDS])
        n_cells = self.n_cells_of(segment.n_rows)
        rng = np.random.default_rng(segment.n_rows)
        centroids = train(first_words, min(self.n_bits, 64 * CELL_WORDS), n_cells, rng)
        cell = centroids.assign(first_words)
        rows = np.argsort(cell, kind="stable")
        offsets = np.searchsorted(cell[rows], np.arange(n_cells + 1))
        ranks = rows.astype(np.int32)  # rows were in the order of ids
        order = np.empty_like(ranks)
        order[rows] = np.arange(len(rows), dtype=np.int32)
        arranged = replace(
            segment,
            ids=segment.ids[rows],
            codes=CodeRows.of(words[rows], self.n_bits),
            columns={name: take_rows(values, rows) for name, values in segment.columns.items()},
            removed=segment.removed[rows] if segment.removed.size else segment.removed,
            order=order,
            ranks=ranks,
        )
        n_probes = _measure_probes(arranged, self.n_bits, centroids, offsets, rng)
        return replace(arranged, buckets=Cells(centroids, offsets, n_probes))

    def n_cells_of(self, n_rows: int) -> int:
        """Return the number of cells of a segment of `n_rows` rows."""
        root = math.sqrt(n_rows)
        n_cells = self.n_cells or round(tuning().cells_of_root * root)
        return max(1, min(n_cells, round(tuning().most_cells_of_root * root), n_rows // tuning().least_cell_rows))


def _measure_probes(
    segment: Segment, n_bits: int, centroids: Centroids, offsets: Rows, rng: np.random.Generator
) -> tuple[int, ...]:
    """Count the cells that hold the wanted share of the nearest rows, for a sample of rows."""
    n_sampled = min(tuning().probe_sample_rows, segment.n_rows)
    sample = segment.codes.take(rng.choice(segment.n_rows, n_sampled, replace=False))
    in_order = replace(segment, ranks=segment.ranks[:0])  # keys of rows, not of ranks
    keys = scan.nearest(View.whole(in_order), CodeQueries(sample, n_bits, _N_NEAREST[-1] + 1, n_cores()))
    rows = keys.ranks()[:, 1:]  # without the sampled row itself
    cell = np.searchsorted(offsets, rows, side="right") - 1
    places = np.argsort(centroids.nearest(sample, len(centroids)), axis=1)
    needed = np.take_along_axis(places, cell, axis=1) + 1
    return tuple(int(np.quantile(needed[:, :n], tuning().probe_recall, method="higher")) for n in _N_NEAREST)
