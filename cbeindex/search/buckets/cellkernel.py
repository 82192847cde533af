"""The calls of the kernels that search cells of residual codes."""

from __future__ import annotations

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
    """

    n_probes: int
    n_found: int
    n_wanted: int
    k: int = 0
    kept_bits: int = 0
    with_copies: bool = False


class CellsFound(NamedTuple):
    """The nearest rows in cells.

    Attributes
    ----------
    keys : uint64 array of shape (n_queries, n_found)
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
            np.empty((n, 0 if counts.k else counts.n_found), dtype=np.uint64),
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
        self._n_rows, self._counts = segment.n_rows, counts
        precise = tuning().precise_shares if counts.k else tuning().precise_shares_of_estimates
        share = precise[CELL_BITS.index(codec.bits)]
        n_exact = min(cells.n_cells, tuning().exact_cells_of_probe * counts.n_probes + tuning().least_exact_cells)
        copies = cells.copies if counts.with_copies else Copies.none(cells.n_cells, codec.n_bytes)
        numbers = [counts.n_probes, n_exact, counts.n_found, counts.n_wanted, counts.kept_bits]
        vectors = segment.columns["vectors"] if counts.k else None
        self._arguments = (
            codec.centres, codec.bits, np.array([*codec.shift_scales, directory.weight, share], dtype=np.float32),
            directory.records, cells.centroids, directory.bases, cells.cell_centres, cells.starts, cells.records,
            copies.starts, copies.records, hidden, segment.ranks, segment.order, segment.ids,
            _NO_VECTORS if vectors is None or counts.kept_bits else vectors, vectors if counts.kept_bits else _NO_KEPT,
            codec.metric.number, np.array(numbers, dtype=np.int64),
            kernels.querytables.room_for_tables(codec.n_bits, codec.bits),
        )  # fmt: skip

    def of_projections(
        self, projections: Projections, shifts: Floats, queries: Vectors | None = None, n_threads: int = 1
    ) -> CellsFound:
        """Search for queries with these projections; `queries`, as they came, are for exact distances."""
        found = CellsFound.empty(len(projections), self._counts)
        vectors = _NO_QUERIES if queries is None else queries

        def search(some: slice, out: CellsFound) -> int:
            is_sound = kernels.cellsearch.search_projections(
                projections[some], shifts[some], vectors if queries is None else vectors[some], *self._arguments,
                out.keys, out.distances, out.ids, out.visits,
            )  # fmt: skip
            return some.stop if is_sound else -1

        return self._on_threads(search, found, n_threads)

    def of_vectors(
        self, queries: Vectors, longest: float, transform: tuple[Any, ...], n_threads: int = 1
    ) -> CellsFound:
        """Search for dense queries; `transform` is what the kernel knows of the encoder."""
        found = CellsFound.empty(len(queries), self._counts)
        if len(queries) == 1:
            n_done = kernels.cellsearch.search_vectors(
                queries, longest, *transform, *self._arguments, found.keys, found.distances, found.ids, found.visits
            )
            return found if n_done == 1 else found._replace(n_searched=self._checked(n_done))

        def search(some: slice, out: CellsFound) -> int:
            n: int = kernels.cellsearch.search_vectors(
                queries[some], longest, *transform, *self._arguments, out.keys, out.distances, out.ids, out.visits
            )
            return some.start + n if n >= 0 else -1

        return self._on_threads(search, found, n_threads)

    def _on_threads(self, search: Any, found: CellsFound, n_threads: int) -> CellsFound:
        """Divide queries among threads. Each of them is searched on its own, so that results do not depend on it."""
        n = len(found.ids)
        if n == 1:
            return found._replace(n_searched=self._checked(search(slice(0, 1), found)))
        visits, n_searched = [found.visits], [n]

        def task(start: int, stop: int) -> None:
            part = found.part(slice(start, stop))
            n_done = self._checked(search(slice(start, stop), part))
            visits.append(part.visits)
            if n_done < stop:
                n_searched.append(n_done)

        step = max(1, min(tuning().cell_task_queries, -(-n // (2 * n_threads)) if n_threads > 1 else n))
        for_each_chunk(task, n, step, n_threads)
        return found._replace(visits=np.sum(visits, axis=0), n_searched=min(n_searched))

    def _checked(self, n_searched: int) -> int:
        if n_searched < 0:
            what = f"the order of rows must be of numbers below {self._n_rows}"
            if self._counts.kept_bits:
                what += ", and kept vectors must have finite numbers and centres of the index"
            raise CorruptIndexFileError(what)
        return n_searched
