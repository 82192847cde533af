"""Search in cells: the rows nearest to the same centroid are stored contiguously, and a query probes a few cells.

Cell c has the rows [offsets[c], offsets[c + 1]), so its first and its last block may hold rows of other cells. Blocks
are those of `blocks.py`, and keys, `hidden` and `ranks` those of `topk.py`.
"""

from typing import Any

import numpy as np

from .._core.typing import Codes, Distances, Keys, Mask, Ranks, Rows
from .blocks import distances_within, planes_of
from .cascade import set_stage_limits
from .jit import njit
from .popcount import popcount64
from .scanrest import append_rows
from .topk import put_in_order, settle


@njit(cache=True, nogil=True)
def order_by_cell(cells: Rows, offsets: Rows, n_first: int) -> Rows:
    """Return the order in which to make the probes of all queries, as numbers query * n_probes + probe.

    Probes of the same cell are consecutive. The nearest cells of each query, up to `n_first` rows, come before all
    other probes: the rows found there give a bound that rules out most of the remaining rows. `cells` is
    (n_queries, n_probes).
    """
    n_cells, n_probes = offsets.size - 1, cells.shape[1]
    turns = np.empty(cells.shape, dtype=np.int64)
    begins = np.zeros(2 * n_cells + 1, dtype=np.int64)
    for query in range(cells.shape[0]):
        n_rows = 0
        for probe in range(n_probes):
            cell = cells[query, probe]
            turn = cell if n_rows < n_first else n_cells + cell
            n_rows += offsets[cell + 1] - offsets[cell]
            turns[query, probe] = turn
            begins[turn + 1] += 1
    for i in range(2 * n_cells):
        begins[i + 1] += begins[i]
    order = np.empty(cells.size, dtype=np.int64)
    for query in range(cells.shape[0]):
        for probe in range(n_probes):
            turn = turns[query, probe]
            order[begins[turn]] = query * n_probes + probe
            begins[turn] += 1
    return order


@njit(cache=True, nogil=True)
def rows_between(block: int, first: int, stop: int) -> Any:
    """Return the bits of the rows of a block that are in [first, stop)."""
    begin, end = max(first - 16 * block, 0), min(stop - 16 * block, 16)
    return (np.uint64(1) << np.uint64(end)) - (np.uint64(1) << np.uint64(begin))


@njit(cache=True, nogil=True, inline="always")
def visit_cell(
    planes: Codes, numbers: Any, blocks: Codes, first: int, stop: int, hidden: Mask, ranks: Ranks, k: int, n_bits: int,
    ends: Rows, z: float, limits: Rows, found: Keys, counts: Rows, distances: Distances, tally: Distances, spare: Keys,
) -> int:  # fmt: skip
    """Collect the nearest rows of a cell for the queries in the tuple `numbers`; return how many rows passed a stage.

    A block is read stage by stage for a query, and left when no row is within the limit of a stage.
    """
    last, full, n_passed = ends.size - 1, found.shape[1] - 16, 0
    for block in range(first // 16, (stop + 15) // 16):
        near = distances_within(planes, numbers, blocks, block, 0, ends[0], 4096, limits, 0, distances, 0)
        if near == 0:
            continue
        valid = rows_between(block, first, stop)
        for i in range(len(numbers)):
            query, mine, stage = numbers[i], near >> np.uint64(16 * i) & valid, 0
            while mine != 0 and stage < last:
                n_passed += int(np.int64(popcount64(mine))) if stage == 0 else 0
                mine = valid & distances_within(
                    planes, (query,), blocks, block, ends[stage], ends[stage + 1], 0, limits, stage + 1, distances, i
                )
                stage += 1
            append_rows(mine, distances[i], 16 * block, found[query], counts[query])
            if counts[query, 0] > full:
                before = limits[last, query]
                limit = settle(
                    found[query], counts[query], 0, 16 * blocks.shape[0], hidden, ranks, k, before, False, tally, spare
                )
                if limit < before:
                    set_stage_limits(limit, n_bits, ends, z, limits, query)
    return n_passed


@njit(cache=True, nogil=True)
def nearest(
    queries: Codes, blocks: Codes, cells: Rows, offsets: Rows, hidden: Mask, ranks: Ranks, n_bits: int, ends: Rows,
    z: float, keys: Keys,
) -> int:  # fmt: skip
    """Write to `keys`, for each query, the keys of its nearest rows in its cells, ascending.

    This is the cascade of `cascade.py`, one cell at a time: the rows found so far bound the k-th distance, which limits
    the distances over the first `ends` words of the rows that follow. Returns the number of rows that passed the first
    limit, if there are several.
    """
    n_queries, k = keys.shape
    n_probes, room = cells.shape[1], k + max(k, 16) + 16
    planes, order, flat = planes_of(queries), order_by_cell(cells, offsets, 2 * k), cells.ravel()
    found, counts = np.empty((n_queries, room), dtype=np.uint64), np.zeros((n_queries, 2), dtype=np.int64)
    limits = np.full((ends.size, n_queries), n_bits, dtype=np.int64)
    distances, tally = np.empty((4, 16), dtype=np.int32), np.empty(512, dtype=np.int32)
    spare = np.empty(room, dtype=np.uint64)
    n_passed, begin = 0, 0
    while begin < order.size:
        cell, end = flat[order[begin]], begin + 1
        while end < order.size and flat[order[end]] == cell:
            end += 1
        first, stop = offsets[cell], offsets[cell + 1]
        while begin < end:
            query = order[begin] // n_probes
            if begin + 4 <= end:  # four queries share the words that are read
                four = (
                    query, order[begin + 1] // n_probes, order[begin + 2] // n_probes, order[begin + 3] // n_probes
                )  # fmt: skip
                n_passed += visit_cell(
                    planes, four, blocks, first, stop, hidden, ranks, k, n_bits, ends, z, limits, found, counts,
                    distances, tally, spare,
                )  # fmt: skip
                begin += 4
            else:
                n_passed += visit_cell(
                    planes, (query,), blocks, first, stop, hidden, ranks, k, n_bits, ends, z, limits, found, counts,
                    distances, tally, spare,
                )  # fmt: skip
                begin += 1
    n_rows = offsets[offsets.size - 1]
    for query in range(n_queries):
        settle(found[query], counts[query], 0, n_rows, hidden, ranks, k, n_bits, False, tally, spare)
    put_in_order(found, counts, keys)
    return n_passed
