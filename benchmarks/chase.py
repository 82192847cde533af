"""The speed of memory where each read depends on the one before: the least that a walk through records takes."""

from __future__ import annotations

import time
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

# Records that are read before the clock runs, and while it runs.
_N_STEPS = 20_000
_LINE_WORDS = 8


@numba.njit  # type: ignore[untyped-decorator,unused-ignore]
def read_in_turn(records: NDArray[np.uint64], order: NDArray[np.int64], at: int, n_steps: int) -> Any:
    """Read one word of every cache line of a record, then those of the record whose number they lead to."""
    for _ in range(n_steps):
        total = np.uint64(0)
        for j in range(0, records.shape[1], _LINE_WORDS):
            total += records[at, j]
        at = order[at + np.int64(total)]  # the words are 0, which the compiler does not know
    return at


def seconds_of_step(n_records: int, record_bytes: int) -> float:
    """Return the seconds that reading a random record takes, one after the other."""
    n_words = -(-record_bytes // (8 * _LINE_WORDS)) * _LINE_WORDS
    records = np.zeros((n_records, n_words), dtype=np.uint64)
    records.fill(0)  # touches the pages
    cycle = np.random.default_rng(0).permutation(n_records)
    order = np.empty(n_records, dtype=np.int64)
    order[cycle] = np.roll(cycle, -1)
    at = read_in_turn(records, order, 0, _N_STEPS)
    start = time.perf_counter()
    read_in_turn(records, order, at, _N_STEPS)
    return (time.perf_counter() - start) / _N_STEPS
