"""Pages of mapped files: rows of an array that memory does not hold are read together, and not one after the other."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .memory import memory_bytes
from .tuning import tuning


def is_beyond_memory(array: Any) -> bool:
    """Return whether an array is mapped from a file that takes a large part of the memory, or more.

    The whole file counts: an index of many segments exceeds memory while none of its segments does.
    """
    mapping = mapping_of(array) if isinstance(array, np.ndarray) else None
    return mapping is not None and len(mapping) > tuning().most_resident_share * memory_bytes()


def mapping_of(array: NDArray[Any]) -> mmap.mmap | None:
    """Return the mapping that holds an array, None for an array in memory."""
    base: Any = array
    while base is not None:
        if isinstance(base, mmap.mmap):
            return base
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return None


def read_ahead(array: NDArray[Any], rows: NDArray[np.int64]) -> int:
    """Let the system read the pages of some rows of a mapped array; return the number of runs of pages asked for.

    Without this, a search waits for the pages of one row after the other. Where the system has no such call, nothing
    happens.
    """
    mapping = mapping_of(array)
    if mapping is None or not rows.size or not hasattr(mapping, "madvise") or not hasattr(mmap, "MADV_WILLNEED"):
        return 0
    page, size = mmap.PAGESIZE, array.strides[0]
    begin = array.ctypes.data - np.frombuffer(mapping, np.uint8, 1).ctypes.data
    starts = (begin + np.unique(rows) * size) // page
    ends = (begin + np.unique(rows) * size + size - 1) // page + 1
    is_first = np.concatenate([[True], starts[1:] > ends[:-1]])  # of a run of pages
    firsts = np.flatnonzero(is_first)
    lasts = np.concatenate([firsts[1:], [len(starts)]]) - 1
    for first, last in zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True):
        mapping.madvise(mmap.MADV_WILLNEED, first * page, min(last * page, len(mapping)) - first * page)
    return len(firsts)
