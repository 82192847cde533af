"""A limit on memory that counts the cached pages of a file, kept without a control group (Linux 6.5 or newer).

A control group does this by itself: `systemd-run --scope -p MemoryMax=2G python -m benchmarks memory`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbeindex._core.memory import memory_bytes
from cbeindex._core.pages import mapping_of

_CACHESTAT = 451
# Seconds between two looks at the memory: a disk of 2 GB a second reads 20 MB meanwhile.
_PERIOD = 0.01


class Pages:
    """The pages of an index file that memory holds.

    Parameters
    ----------
    path : str
    vectors : list of arrays, mapped from the file
    """

    def __init__(self, path: str, vectors: list[NDArray[Any]]) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._ranges = []
        for array in vectors:
            mapping = mapping_of(array)
            if mapping is not None:
                first = array.ctypes.data - np.frombuffer(mapping, np.uint8, 1).ctypes.data
                start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
                n_bytes = (first + array.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
                if n_bytes > 0:
                    self._ranges.append((mapping, start, n_bytes))

    def cached_bytes(self) -> int:
        """Return the bytes of the file that are in the page cache, mapped or not."""
        whole, counts = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
        if self._call(_CACHESTAT, self._fd, ctypes.byref(whole), ctypes.byref(counts), 0):
            raise OSError(ctypes.get_errno(), "cachestat, of Linux 6.5 and newer, must be there, or a control group")
        return int(counts[0]) * mmap.PAGESIZE

    def drop(self) -> None:
        """Drop the pages of vectors from the mapping and from the page cache."""
        for mapping, start, n_bytes in self._ranges:
            mapping.madvise(mmap.MADV_DONTNEED, start, n_bytes)
            os.posix_fadvise(self._fd, start, n_bytes, os.POSIX_FADV_DONTNEED)


class Warden:
    """Holds this process and the cached pages of a file to a limit: pages of vectors are dropped before it is reached.

    What is dropped was used a moment ago, so that searches find less in memory than under a limit of the system, which
    keeps the pages used last. Does nothing but count if a control group has the limit.

    Parameters
    ----------
    pages : Pages
    limit : int
        Bytes.
    """

    def __init__(self, pages: Pages, limit: int) -> None:
        self._pages, self._limit, self._is_by_system = pages, limit, memory_bytes() <= limit
        self.peak = self.n_drops = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def forget_peak(self) -> None:
        """Let `peak` count from now on."""
        self.peak = 0

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(_PERIOD):
            used = _own_bytes() + self._pages.cached_bytes()
            self.peak = max(self.peak, used)
            if used > 0.9 * self._limit and not self._is_by_system:
                self._pages.drop()
                self.n_drops += 1


def _own_bytes() -> int:
    """Return the bytes that this process holds beside pages of files."""
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024
