"""The call of the kernel that searches cells of residual codes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ... import kernels
from ..._core.threads import for_each_chunk
from ..._core.tuning import tuning
from ..._core.typing import Floats, Ids, Keys, Mask, Projections, Rows, Vectors
from ...distances.residuals import CELL_BITS
from ...errors import CorruptIndexFileError
from ...store.segment import Segment
from .residualcells import ResidualCells

_NO_VECTORS: Vectors = np.empty((0, 0), dtype=np.float32)


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
    """

    n_probes: int
    n_found: int
    n_wanted: int


class CellsFound(NamedTuple):
    """The nearest rows in cells.

    Attributes
    ----------
    keys : uint64 array of shape (n_queries, n_found)
        Estimate keys, ascending.
    distances, ids : float32 and int64 arrays of shape (n_queries, k)
        The nearest rows by exact distance; k is 0 without vectors.
    visits : int64 array of shape (3,)
        Rows and cells that were scanned, vectors that were read.
    """

    keys: Keys
    distances: Floats
    ids: Ids
    visits: Rows


def search_cells(
    cells: ResidualCells,
    segment: Segment,
    hidden: Mask,
    projections: Projections,
    query_shifts: Floats,
    counts: CellCounts,
    exact: tuple[Vectors, int] | None = None,
    n_threads: int = 1,
) -> CellsFound:
    """Find the nearest rows of queries in the cells of a segment.

    `exact` holds the queries as they came and the number of results, if the segment has float32 vectors whose exact
    distances are to be computed.
    """
    codec, directory, n = cells.codec, cells.directory, len(projections)
    queries, k = exact if exact is not None else (_NO_VECTORS, 0)
    vectors = segment.columns["vectors"] if exact is not None else _NO_VECTORS
    keys: Keys = np.empty((n, counts.n_found), dtype=np.uint64)
    distances, ids = np.empty((n, k), dtype=np.float32), np.empty((n, k), dtype=np.int64)
    visits = [np.zeros(3, dtype=np.int64)]
    precise = tuning().precise_shares if exact is not None else tuning().precise_shares_of_estimates
    weights = np.array([*codec.shift_scales, directory.weight, precise[CELL_BITS.index(codec.bits)]], dtype=np.float32)
    n_exact = min(cells.n_cells, tuning().exact_cells_of_probe * counts.n_probes + tuning().least_exact_cells)
    numbers = np.array([counts.n_probes, n_exact, counts.n_found, counts.n_wanted, cells.has_copies], dtype=np.int64)
    room = kernels.querytables.room_for_tables(codec.n_bits, codec.bits)

    def task(start: int, stop: int) -> None:
        some = slice(start, stop)
        mine = np.zeros(3, dtype=np.int64)
        visits.append(mine)
        is_sound = kernels.cellsearch.search(
            projections[some], query_shifts[some], queries[some] if k else queries, codec.centres, codec.bits, weights,
            directory.records, cells.centroids, directory.bases, cells.cell_centres, cells.starts, cells.records,
            hidden, segment.ranks, segment.order, segment.ids, vectors, codec.metric.number, numbers, room,
            keys[some], distances[some], ids[some], mine,
        )  # fmt: skip
        if not is_sound:
            raise CorruptIndexFileError(f"the order of rows must be of numbers below {segment.n_rows}")

    step = max(1, min(tuning().cell_task_queries, -(-n // (2 * n_threads) if n_threads > 1 else n)))
    for_each_chunk(task, n, step, n_threads)
    return CellsFound(keys, distances, ids, np.sum(visits, axis=0))
