"""Times of single kernels: memory to read from, in cache or far larger, and calls that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import alternate
from cbeindex._core.typing import Rows
from cbeindex.kernels.jit import njit


@njit(nogil=True)
def read(words: NDArray[np.uint64], n: int) -> Any:
    """Read `n` words from one end to the other, again from the first one where there are fewer: their sum."""
    total = np.uint64(0)
    while n > 0:
        total *= np.uint64(3)  # each turn needs the one before
        for i in range(min(n, words.size)):
            total += words[i]
        n -= words.size
    return total


class Memory:
    """Random bytes, cut into items of any size."""

    def __init__(self, n_bytes: int) -> None:
        self._words = np.random.default_rng(0).integers(0, 2**64, n_bytes // 8, dtype=np.uint64)

    def as_items(self, size: int) -> NDArray[np.uint8]:
        """Return as many items of `size` bytes as there are, two at least."""
        if self._words.nbytes < 2 * size:
            self._words = np.resize(self._words, -(-2 * size // 8))
        n_bytes = self._words.nbytes // size * size
        return self._words.view(np.uint8)[:n_bytes].reshape(-1, size)

    def read(self, seed: int, n_bytes: int) -> None:
        """Read `n_bytes` in a row, from a place that the seed chooses, in turns where there are fewer."""
        n = n_bytes // 8
        start = seed * 1_000_003 % max(1, self._words.size - n + 1)
        read(self._words[start:], n)


def fastest(calls: dict[str, Callable[[Rows], Any]], n_items: int, n_taken: int, rounds: int) -> dict[str, float]:
    """Return the nanoseconds an item of the fastest of some rounds; a call takes `n_taken` items in a given order.

    Each round has an order of its own, so that no call finds in the cache what the one before has read.
    """
    rng = np.random.default_rng(0)

    def timed(call: Callable[[Rows], Any]) -> float:
        order = rng.integers(0, n_items, n_taken)
        start = time.perf_counter()
        call(order)
        return time.perf_counter() - start

    timings = alternate({name: partial(timed, call) for name, call in calls.items()}, rounds)
    return {name: min(timing.seconds) / n_taken * 1e9 for name, timing in timings.items()}
