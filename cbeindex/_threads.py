"""The only place that runs work on several threads.

Work is a range of rows cut into chunks; each chunk is a call that releases the GIL (an FFT, a kernel) and writes
into its own part of the output, so results do not depend on the number of threads.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count

from ._validation import as_count

# More than any machine has cores; work is cut into parts by the number that was asked for.
_MOST_THREADS = 1024

_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def n_cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def as_n_threads(n_threads: int | None) -> int:
    """Return how many threads to use; None means one for each core."""
    return n_cores() if n_threads is None else as_count(n_threads, "n_threads", most=_MOST_THREADS)


def for_each_chunk(task: Callable[[int, int], None], n: int, chunk: int, n_threads: int) -> None:
    """Call `task(start, stop)` for every chunk of range(n), on up to `n_threads` threads.

    The calling thread works too. An error stops the hand-out of chunks; of several that of the first chunk is raised.
    """
    n_chunks = -(-n // chunk)
    if n_threads == 1 or n_chunks <= 1:
        for start in range(0, n, chunk):
            task(start, min(start + chunk, n))
        return
    tickets = count()  # next() on it is atomic
    failures: dict[int, BaseException] = {}

    def work() -> None:
        while not failures and (ticket := next(tickets)) < n_chunks:
            try:
                task(ticket * chunk, min((ticket + 1) * chunk, n))
            except BaseException as error:
                failures[ticket] = error

    n_helpers = min(n_threads, n_chunks) - 1
    helpers: list[Future[None]] = [_executor().submit(work) for _ in range(n_helpers)]
    try:
        work()
    finally:
        # A helper that still waits behind another caller's work has nothing left to do: take it back, so that
        # work started from inside a task cannot wait for itself.
        for helper in helpers:
            if not helper.cancel():
                helper.exception()
    if failures:
        raise failures[min(failures)]


def _executor() -> ThreadPoolExecutor:
    """Return the pool of this process, made on first use."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(max(n_cores(), 16), thread_name_prefix="cbeindex")
        return _pool


def _forget_pool() -> None:
    """Drop the pool in a forked child, where its threads do not exist."""
    global _pool, _pool_lock
    _pool = None
    _pool_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
