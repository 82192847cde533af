"""Counts the true nearest rows among candidates."""

import numpy as np

from .._core.typing import Rows
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
