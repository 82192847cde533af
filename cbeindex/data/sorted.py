"""Sets of ids as ascending arrays."""

from __future__ import annotations

import numpy as np

from .._core.typing import Ids, Mask


def is_in(ids: Ids, others: Ids) -> Mask:
    """Tell which of `ids` are among `others`, both ascending; those of the shorter one are looked up in the longer."""
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
    """Return those of `ids` that are not among `others`, both ascending."""
    return ids[~is_in(ids, others)]


def _places(ids: Ids, others: Ids) -> Ids:
    """Return the place in `others` at which each of `ids` is, if it is there."""
    places = np.searchsorted(others, ids)
    places[places == len(others)] = 0
    return places
