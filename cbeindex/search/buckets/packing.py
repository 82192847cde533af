"""The places of cells in records of 32 rows: without gaps, cells take no more records to read than they fill.

A cell begins or ends in the middle of a record where another cell, or several small ones, have the rest of it. At
most two cells that are larger than a record meet in one: the first ends there, and the second begins there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..._core.typing import Rows
from ...distances.records import RECORD_ROWS


class Packing(NamedTuple):
    """Where cells are.

    Attributes
    ----------
    order : int64 array of shape (n_cells,)
        The cells in the order of their places.
    places : int64 array of shape (n_cells,)
        The place of the first row of each cell, in this order: record * 32 + lane.
    n_records : int
    """

    order: Rows
    places: Rows
    n_records: int


class _Shared:
    """A record that cells share: up to two large ones, and any number that fit into it."""

    def __init__(self) -> None:
        self.large: list[int] = []
        self.small: list[int] = []


def pack(sizes: Rows) -> Packing:
    """Find places for cells of these sizes, at least 1 each."""
    order, places, end = [], [], 0
    for shared in _share([int(size) for size in sizes]):
        for cell in shared.large[:1] + shared.small:
            order.append(cell)
            places.append(end)
            end += int(sizes[cell])
        end = -(-end // RECORD_ROWS) * RECORD_ROWS
        for cell in shared.large[1:]:
            order.append(cell)
            places.append(end - int(sizes[cell]) % RECORD_ROWS)
            end += int(sizes[cell]) // RECORD_ROWS * RECORD_ROWS
    return Packing(np.array(order), np.array(places), end // RECORD_ROWS)


def _share(sizes: list[int]) -> list[_Shared]:
    """Assign the part of each cell that does not fill a record, largest first, to the record with the least room."""
    tails = [size % RECORD_ROWS for size in sizes]
    found: list[_Shared] = []
    # Records by their room, and whether another large cell may share them.
    rooms: dict[bool, list[list[_Shared]]] = {may: [[] for _ in range(RECORD_ROWS + 1)] for may in (False, True)}
    for cell in sorted(range(len(sizes)), key=lambda cell: -tails[cell]):
        tail, is_large = tails[cell], sizes[cell] >= RECORD_ROWS
        places = ((room, may) for room in range(tail, RECORD_ROWS) for may in ((True,) if is_large else (False, True)))
        room, may = next(((room, may) for room, may in places if tail and rooms[may][room]), (RECORD_ROWS, True))
        if room < RECORD_ROWS:
            shared = rooms[may][room].pop()
        else:
            shared = _Shared()
            found.append(shared)
        (shared.large if is_large else shared.small).append(cell)
        rooms[len(shared.large) < 2][room - tail].append(shared)
    return found
