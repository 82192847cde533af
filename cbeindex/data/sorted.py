"""Set operations on ascending arrays of ids."""

from __future__ import annotations

import numpy as np

from .._core.typing import Ids, Mask


def is_in(ids: Ids, others: Ids) -> Mask:
    """Return which of `ids` are in `others`, both ascending, by binary searches in the longer of the two."""
    found = np.zeros(len(ids), dtype=np.bool_)
    if not len(ids):
        return found
    others = others[np.searchsorted(others, ids[0]) : np.searchsorted(others, ids[-1], side="right")]
    if len(others) < len(ids):
        places = _places(others, ids)
        found[places[ids[places] == others]] = True
    else:
        found[:] = others[_places(ids, others)] == ids
    return found


def without(ids: Ids, others: Ids) -> Ids:
    """Return the `ids` that are not in `others`, both ascending."""
    return ids[~is_in(ids, others)]


def _places(ids: Ids, others: Ids) -> Ids:
    """Return the positions of `ids` in `others`; of ids that are not there, any position."""
    places = np.searchsorted(others, ids)
    places[places == len(others)] = 0
    return places
