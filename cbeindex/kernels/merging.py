"""Merging of sorted results."""

from typing import Any

from .._core.typing import Ids
from .jit import njit


@njit(cache=True, nogil=True)
def merge(distances: Any, ids: Ids, other_distances: Any, other_ids: Ids, out: Any, out_ids: Ids) -> None:
    """Merge two lists of results per query into `out` and `out_ids`, ordered by (distance, id).

    Both lists are ordered this way, and together they are at least as long as `out`.
    """
    n_one, n_other = distances.shape[1], other_distances.shape[1]
    for query in range(out.shape[0]):
        one, other = 0, 0
        for i in range(out.shape[1]):
            if other == n_other:
                is_one = True
            elif one == n_one:
                is_one = False
            else:
                near, far = distances[query, one], other_distances[query, other]
                is_one = near < far or (near == far and ids[query, one] <= other_ids[query, other])
            if is_one:
                out[query, i], out_ids[query, i] = distances[query, one], ids[query, one]
                one += 1
            else:
                out[query, i], out_ids[query, i] = other_distances[query, other], other_ids[query, other]
                other += 1
