"""Tells what searches of cells would find, and counts the true nearest rows among it."""

import numpy as np

from .._core.typing import Floats, Ranks, Rows
from .jit import njit


@njit(cache=True, nogil=True)
def count_found(rows: Rows, truth: Rows, n_nearest: Rows, depths: Rows, n_rows: int, found: Rows) -> None:
    """Count, for each query, how many of its nearest rows are among the first candidates.

    Parameters
    ----------
    rows : int64 array of shape (n_queries, n_candidates)
        Candidates in order, below `n_rows`; -1 for none.
    truth : int64 array of shape (n_queries, k)
        The nearest rows in order; -1 for none.
    n_nearest : int64 array of shape (n_classes,)
        Numbers of nearest rows, at most k.
    depths : int64 array of shape (n_queries, n_classes, n_depths)
        Numbers of candidates, ascending.
    found : int64 array of shape (n_queries, n_classes, n_depths)
    """
    n_candidates, n_depths = rows.shape[1], depths.shape[2]
    places = np.empty(n_rows, dtype=np.int32)
    for row in range(n_rows):
        places[row] = truth.shape[1]  # behind all that count
    for query in range(rows.shape[0]):
        for place in range(truth.shape[1]):
            if truth[query, place] >= 0:
                places[truth[query, place]] = place
        for i in range(n_nearest.size):
            count, taken = 0, 0
            for j in range(n_depths):
                while taken < min(depths[query, i, j], n_candidates):
                    row = rows[query, taken]
                    count += row >= 0 and places[row] < n_nearest[i]
                    taken += 1
                found[query, i, j] = count
        for place in range(truth.shape[1]):
            if truth[query, place] >= 0:
                places[truth[query, place]] = truth.shape[1]


@njit(cache=True, nogil=True)
def keep_visited(
    rows: Rows, estimates: Floats, places: Ranks, gaps: Floats, least: int, most: int, reach: float, rank: int,
    kept_rows: Rows, kept_estimates: Floats,
) -> None:  # fmt: skip
    """Keep those of the nearest rows that are in visited cells: the `least` nearest ones, and those in reach.

    Of the `most` nearest cells, those are in reach that are farther than the nearest one by at most `reach` times the
    distance of the visited row of a rank (see `cellsteps.cells_in_reach`), or of the last row, if that is nearer.

    Parameters
    ----------
    rows, estimates : int64 and float32 arrays of shape (n_queries, n)
        In the order of the estimates; -1 and infinity behind them.
    places, gaps : int32 and float64 arrays of shape (n_queries, n)
        Of the cell of a row: its place in the order of distance, and how much farther it is than the nearest one.
    kept_rows, kept_estimates : int64 and float32 arrays of shape (n_queries, n)
    """
    n = rows.shape[1]
    for query in range(rows.shape[0]):
        n_rows, n_visited, n_kept, limit = 0, 0, 0, 0.0
        while n_rows < n and rows[query, n_rows] >= 0:
            if most > least and n_visited < rank:
                n_visited += places[query, n_rows] < least
                limit = reach * np.sqrt(max(np.float32(0), estimates[query, n_rows]))
            n_rows += 1
        for i in range(n_rows):
            place = places[query, i]
            if place < least or (place < most and gaps[query, i] <= limit):
                kept_rows[query, n_kept], kept_estimates[query, n_kept] = rows[query, i], estimates[query, i]
                n_kept += 1
        for i in range(n_kept, n):
            kept_rows[query, i], kept_estimates[query, i] = -1, np.inf
