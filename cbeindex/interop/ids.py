"""Ids for libraries that know integers only."""

from __future__ import annotations

import numpy as np

from .._core.typing import Ids
from ..binary import BinaryIndex
from ..index import CBEIndex


def integer_ids(index: BinaryIndex | CBEIndex, owner: str) -> Ids:
    """Return all ids of an index for `owner`. Raises TypeError if they are not integers."""
    ids = np.asarray(index.ids)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"{owner} must have integers as ids, and those of this index are strings")
    return ids.astype(np.int64, copy=False)
