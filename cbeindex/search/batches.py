"""Batches: queries are read and searched in parts, so that memory stays bounded and threads have enough work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from .._core.threads import for_each_chunk
from .._core.tuning import tuning
from ..data.source import VectorSource
from ..data.sparserows import VectorRows
from .plan import Plan

Result = TypeVar("Result")


def search_in_batches(
    search: Callable[[int, VectorRows, int], Result], source: VectorSource, n_bits: int, plan: Plan, n_threads: int
) -> list[Result]:
    """Call `search(first, vectors, n_threads)` for batches of the queries in `source`; return the results in order.

    With enough queries each thread takes batches of its own through all stages. With at least twice as many threads as
    batches, several threads share the work of one batch. So they do in the cascade, which decides by the first queries
    of a batch whether it pays.
    """
    if not source.n_rows:  # a search without queries has a result too
        return [search(0, np.empty((0, source.dim), dtype=np.float32), n_threads)]
    width = max(n_bits, 0 if source.is_sparse else source.dim, tuning().found_row_values * plan.n_held)
    most = max(1, min(tuning().query_rows, tuning().query_values // width))
    n_parallel = 1
    if plan.mode != "cascade":
        n_parallel = max(1, min(n_threads, min(source.n_rows, most) // tuning().least_thread_queries))
    n_rounds = -(-source.n_rows // most)
    step = max(1, -(-source.n_rows // (n_parallel * n_rounds)))
    results: dict[int, Result] = {}  # by first query

    def task(start: int, stop: int) -> None:
        for first, vectors in source.own_blocks(step, start, stop, check_finite=False):
            results[first] = search(first, vectors, n_threads // n_parallel)

    for_each_chunk(task, source.n_rows, step, n_parallel)
    return [results[first] for first in sorted(results)]
