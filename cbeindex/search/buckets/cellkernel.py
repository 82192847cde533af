"""The calls of the kernels that search cells of residual codes."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import kernels
from ..._core.threads import for_each_chunk
from ..._core.tuning import tuning
from ..._core.typing import Floats, Ids, Keys, Mask, Projections, Rows, Vectors
from ...distances.residuals import CELL_BITS
from ...errors import CorruptIndexFileError
from ...store.segment import Segment
from .residualcells import ResidualCells
from .spilling import Copies

_NO_VECTORS: Vectors = np.empty((0, 0), dtype=np.float32)
_NO_KEPT: NDArray[np.uint8] = np.empty((0, 0), dtype=np.uint8)
# Stands for queries where there are no vectors to compare them with.
_NO_QUERIES: Vectors = np.empty((1, 0), dtype=np.float32)
_NO_KEYS: Keys = np.empty((1, 0), dtype=np.uint64)
_NO_RIVALS: Floats = np.empty((1, 0), dtype=np.float32)


class CellCounts(NamedTuple):
    """How many cells and rows a search takes.

    Attributes
    ----------
    n_probes : int
        Cells to visit.
    n_found : int
        Rows to find by estimate.
    n_wanted : int
        Rows that must be found, whatever cells it takes.
    k : int
        Rows to find by the distances of vectors among them; 0 if the rows by estimate are the result.
    kept_bits : int
        Bits a dimension of kept vectors that are levels, 0 for float32 vectors.
    with_copies : bool
        Whether to visit rows in their second cells too. Their estimates are for candidates only.
    reach : float
        If above 0, `n_probes` is a mean: a query visits some cells in any case, and more if they are in its reach.
    width : float
        If above 0, more rows than `n_found` are found if estimates do not tell them from the nearest `rank`.
    rank : int
        Number of results.
    n_own : int
        Rows that are the query itself, and do not count for its reach.
    are_candidates : bool
        Whether somebody else reads the vectors of the rows that are found.
    """

    n_probes: int
    n_found: int
    n_wanted: int
    k: int = 0
    kept_bits: int = 0
    with_copies: bool = False
    reach: float = 0.0
    width: float = 0.0
    rank: int = 0
    n_own: int = 0
    are_candidates: bool = False

    @property
    def most_found(self) -> int:
        """Rows to find by estimate at most."""
        return self.n_found * (tuning().most_candidates_times if self.width > 0 else 1)

    def probes(self, n_cells: int) -> tuple[int, int]:
        """Return how many cells a query visits at least and at most."""
        return probes_in_reach(self.n_probes, n_cells) if self.reach > 0 else (self.n_probes, self.n_probes)


def probes_in_reach(n_probes: int, n_cells: int) -> tuple[int, int]:
    """Return how many cells a query visits at least and at most if queries visit `n_probes` cells on average."""
    return -(-n_probes // tuning().least_probes_part), min(n_cells, tuning().most_probes_times * n_probes)


class CellsFound(NamedTuple):
    """The nearest rows in cells.

    Attributes
    ----------
    keys : uint64 array of shape (n_queries, most_found)
        Estimate keys, ascending; empty if vectors were read.
    distances, ids : float32 and int64 arrays of shape (n_queries, k)
        The nearest rows by the distances of vectors.
    visits : int64 array of shape (3,)
        Rows and cells that were scanned, vectors that were read.
    n_searched : int
        Queries that were searched; those from the first one on that is not finite or too long were not.
    """

    keys: Keys
    distances: Floats
    ids: Ids
    visits: Rows
    n_searched: int

    @classmethod
    def empty(cls, n: int, counts: CellCounts) -> CellsFound:
        """Allocate the results of `n` queries."""
        return cls(
            np.empty((n, 0 if counts.k else counts.most_found), dtype=np.uint64),
            np.empty((n, counts.k), dtype=np.float32),
            np.empty((n, counts.k), dtype=np.int64),
            np.zeros(3, dtype=np.int64),
            n,
        )

    def part(self, queries: slice) -> CellsFound:
        """Return the results of some queries, with visits of their own."""
        return CellsFound(
            self.keys[queries], self.distances[queries], self.ids[queries], np.zeros(3, dtype=np.int64), 0
        )


class CellCall:
    """A search of the cells of a segment, for any queries.

    Parameters
    ----------
    segment : Segment
        With vectors in float32, or in 4 or 8 bits relative to the centres of the cells, if those are to be read.
    hidden : bool array, or empty
    counts : CellCounts
    """

    def __init__(self, segment: Segment, hidden: Mask, counts: CellCounts) -> None:
        cells: ResidualCells = segment.buckets
        codec, directory = cells.codec, cells.directory
        self._n_rows, self._cells, self._n_cells, self._counts = segment.n_rows, cells, cells.n_cells, counts
        are_candidates = counts.k > 0 or counts.are_candidates
        precise = tuning().precise_shares if are_candidates else tuning().precise_shares_of_estimates
        share = precise[CELL_BITS.index(codec.bits)]
        least, most = counts.probes(cells.n_cells)
        n_exact = max(most, tuning().exact_cells_of_probe * counts.n_probes + tuning().least_exact_cells)
        copies = cells.copies if counts.with_copies else Copies.none(cells.n_cells, codec.n_bytes)
        copy_spans = copies.spans(segment.n_rows)
        numbers = [
            least, min(cells.n_cells, n_exact), counts.most_found, counts.n_wanted, counts.kept_bits, most,
            tuning().reach_rank + counts.n_own if counts.reach > 0 else 0, counts.rank, counts.n_found,
        ]  # fmt: skip
        weights = [*codec.shift_scales, directory.weight, share, counts.reach, counts.width]
        vectors = segment.columns["vectors"] if counts.k else None
        self._vector_bytes = 0 if vectors is None else vectors.itemsize * vectors.shape[1]
        self._arguments = (
            codec.centres, codec.bits, np.array(weights, dtype=np.float32), directory.records, cells.centroids,
            directory.bases, cells.cell_centres, cells.spans, cells.records, copy_spans, copies.records, hidden,
            segment.ranks, segment.order, segment.ids,
            _NO_VECTORS if vectors is None or counts.kept_bits else vectors, vectors if counts.kept_bits else _NO_KEPT,
            codec.metric.number, np.array(numbers, dtype=np.int64),
            kernels.querytables.room_for_tables(codec.n_bits, codec.bits),
        )  # fmt: skip

    @property
    def _most_together(self) -> int:
        """Queries that a task searches together at most: each of them has keys of the rows that it finds in memory."""
        limits, n_keys = tuning(), self._counts.most_found * (2 if self._counts.with_copies else 1)
        return min(limits.group_task_queries, limits.group_task_keys // max(1, n_keys), self._most_in_task)

    @cached_property
    def _most_in_task(self) -> int:
        """Queries that a task searches at most, by the time that one takes."""
        limits, counts = tuning(), self._counts
        n_kept = counts.n_found * (2 if counts.with_copies else 1)
        query_ns = 1e3 * self._cells.microseconds(counts.n_probes) + limits.found_row_ns * n_kept
        if counts.k:
            query_ns += counts.n_found * (limits.read_vector_ns + limits.read_byte_ns * self._vector_bytes)
        return max(1, int(limits.cell_task_ns // query_ns))

    def shares_cells(self, n_queries: int, n_threads: int) -> bool:
        """Tell whether enough of these queries visit the same cells to read cells once for all of them."""
        n = _in_task(n_queries, n_threads, self._most_together)
        n_visits = n * min(self._counts.n_probes, self._n_cells)
        return n >= tuning().least_group_queries and n_visits >= tuning().least_cell_visits * self._n_cells

    def of_projections(
        self, projections: Projections, shifts: Floats, queries: Vectors | None = None, n_threads: int = 1,
        rivals: Floats | None = None,
    ) -> CellsFound:  # fmt: skip
        """Search for queries with these projections; `queries`, as they came, are for exact distances.

        `rivals` are the smallest estimates of rows in other segments (see `rivals_of`), and get those of this one.
        """
        found = CellsFound.empty(len(projections), self._counts)
        vectors = _NO_QUERIES if queries is None else queries
        others = rivals_of(len(projections), 0) if rivals is None else rivals

        def search(some: Any, out: CellsFound) -> int:
            before = others[some]  # a copy, if the queries are not neighbours
            is_sound = kernels.cellsearch.search_projections(
                projections[some], shifts[some], vectors if queries is None else vectors[some], *self._arguments,
                before, out.keys, out.distances, out.ids, out.visits,
            )  # fmt: skip
            others[some] = before
            return len(out.ids) if is_sound else -1

        def search_group(some: slice, out: CellsFound) -> int:
            is_short = np.empty(len(out.ids), dtype=np.bool_)
            is_sound = kernels.cellgroups.search_group(
                projections[some], shifts[some], vectors if queries is None else vectors[some], *self._arguments,
                others[some], out.keys, out.distances, out.ids, out.visits, is_short,
            )  # fmt: skip
            if not is_sound:
                return -1
            left = np.flatnonzero(is_short)
            if len(left):
                more = CellsFound.empty(len(left), self._counts)
                if search(some.start + left, more) < 0:
                    return -1
                out.keys[left], out.distances[left], out.ids[left] = more.keys, more.distances, more.ids
                out.visits[:] += more.visits
            return len(out.ids)

        if self.shares_cells(len(projections), n_threads):
            return self._on_threads(search_group, found, n_threads, self._most_together)
        return self._on_threads(search, found, n_threads)

    def arguments_of_one(self, longest: float, transform: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what `cellsearch.search_vectors` takes between one query and the arrays of its results."""
        return longest, *transform, *self._arguments, _NO_RIVALS, _NO_KEYS

    def of_vectors(
        self, queries: Vectors, longest: float, transform: tuple[Any, ...], n_threads: int, rivals: Floats
    ) -> CellsFound:
        """Search for dense queries; `transform` is what the kernel knows of the encoder."""
        found = CellsFound.empty(len(queries), self._counts)

        def search(some: slice, out: CellsFound) -> int:
            n: int = kernels.cellsearch.search_vectors(
                queries[some], longest, *transform, *self._arguments, rivals[some], out.keys, out.distances, out.ids,
                out.visits,
            )  # fmt: skip
            return n

        return self._on_threads(search, found, n_threads)

    def _on_threads(self, search: Any, found: CellsFound, n_threads: int, most: int | None = None) -> CellsFound:
        """Divide queries among threads, at most `most` in a task. The results of a query do not depend on the others.

        `search` returns how many queries of a task it has searched, or -1.
        """
        n = len(found.ids)
        if n == 1:
            return found._replace(n_searched=self._checked(search(slice(0, 1), found)))
        visits, n_searched = [found.visits], [n]

        def task(start: int, stop: int) -> None:
            part = found.part(slice(start, stop))
            n_done = start + self._checked(search(slice(start, stop), part))
            visits.append(part.visits)
            if n_done < stop:
                n_searched.append(n_done)

        most = most or min(tuning().cell_task_queries, self._most_in_task)
        for_each_chunk(task, n, _in_task(n, n_threads, most), n_threads)
        return found._replace(visits=np.sum(visits, axis=0), n_searched=min(n_searched))

    def _checked(self, n_searched: int) -> int:
        if n_searched < 0:
            what = f"the order of rows must be of numbers below {self._n_rows}"
            if self._counts.kept_bits:
                what += ", and kept vectors must have finite numbers and centres of the index"
            raise CorruptIndexFileError(what)
        return n_searched


def rivals_of(n_queries: int, n: int) -> Floats:
    """Return the `n` smallest estimates of queries before any segment was searched."""
    return np.full((n_queries, n), np.finfo(np.float32).max, dtype=np.float32)


def _in_task(n_queries: int, n_threads: int, most: int) -> int:
    """Return how many queries a task takes, at most `most`: a thread has two tasks, to end when others do."""
    return max(1, min(most, -(-n_queries // (2 * n_threads)) if n_threads > 1 else n_queries))
