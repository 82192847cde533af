"""The thread pool of the library, and locks that survive a fork.

Work is a range of rows, split into chunks. A chunk is a call that releases the GIL (a kernel, a product) and writes to
its own part of the output, so that results do not depend on the number of threads.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from itertools import count
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

from .checks import as_count

T = TypeVar("T")

# A bound on `n_threads` beyond the cores of any machine: work is split by `n_threads`.
_MOST_THREADS = 1024
# How often a thread that waits for another one looks whether the caller of its task was interrupted.
_POLL_SECONDS = 0.02

# Calls that `run_aside` has not ended. Here and in the pool, locks and threads are those of the interpreter. An
# interrupt inside of `Event`, `Semaphore` or `Thread.start`, which are written in Python, can leave a lock held.
_running_aside: set[threading.Lock] = set()
# The call of `for_each_chunk` whose task this thread works on.
_current_run: ContextVar[_Run | None] = ContextVar("current_run", default=None)
_pool: _Pool | None = None
# The limit of `set_num_threads`.
_limit: int | None = None
_pool_lock = threading.Lock()
_write_locks: WeakSet[threading.RLock] = WeakSet()


def set_num_threads(n: int | None) -> None:
    """Limit the threads that calls use unless they are given `n_threads`, in this process.

    Without a limit, calls use as many threads as the environment variable `CBEINDEX_NUM_THREADS` says, or one for each
    core.

    Parameters
    ----------
    n : int or None
        None removes the limit.

    Examples
    --------
    >>> import cbeindex
    >>> cbeindex.set_num_threads(1)
    >>> cbeindex.set_num_threads(None)
    """
    global _limit
    _limit = None if n is None else as_count(n, "n", most=_MOST_THREADS)


def n_cores() -> int:
    """Return the number of threads that this process should use: that of its cores, unless it is limited."""
    if _limit is not None:
        return _limit
    given = os.environ.get("CBEINDEX_NUM_THREADS")
    if given:
        if not given.isdecimal() or not 1 <= int(given) <= _MOST_THREADS:
            raise ValueError(f"CBEINDEX_NUM_THREADS must be a number from 1 to {_MOST_THREADS}, got {given!r}")
        return int(given)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def as_n_threads(n_threads: int | None) -> int:
    """Return the number of threads to use; None means one per core."""
    return n_cores() if n_threads is None else as_count(n_threads, "n_threads", most=_MOST_THREADS)


def write_lock() -> threading.RLock:
    """Return a reentrant lock that is released in a forked child if another thread held it at the fork."""
    lock = threading.RLock()
    _write_locks.add(lock)
    return lock


def for_each_chunk(task: Callable[[int, int], None], n: int, chunk: int, n_threads: int) -> None:
    """Call `task(start, stop)` for every chunk of range(n), on up to `n_threads` threads.

    The calling thread takes part, and works alone if no other thread can be started. After an error, no further chunk
    is started. Of several errors, that of the first chunk is raised. An interrupt (Ctrl-C) also ends chunks in
    progress, as soon as they call this function or `leave_if_interrupted`. All chunks have ended when this function
    returns.
    """
    n_chunks = -(-n // chunk)
    if n_threads == 1 or n_chunks <= 1:
        for start in range(0, n, chunk):
            leave_if_interrupted()
            task(start, min(start + chunk, n))
        return
    run, has_worked = _Run(task, n, chunk), False
    try:
        run.start_helpers(min(n_threads, n_chunks) - 1)
        run.work()
        has_worked = True
    except BaseException as error:
        run.interruption = run.interruption or error  # a helper's, if this thread left its task because of that
    finally:
        run.wait(has_worked)
    run.raise_failure()
    leave_if_interrupted()


def leave_if_interrupted() -> None:
    """Leave the current task if its caller was interrupted: long loops inside of tasks call this."""
    run = _current_run.get()
    if run is not None and run.is_interrupted:
        raise _InterruptedError


def run_aside(call: Callable[..., T], *arguments: Any) -> T:
    """Return `call(*arguments)`, computed on a thread of its own that Ctrl-C cannot interrupt.

    If this thread is interrupted, or the caller of its task, it leaves at once and the call goes on to its end. So the
    call must be one that may be repeated, and that other threads may make at the same time.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    is_running = threading.Lock()
    is_running.acquire()

    def run() -> None:
        try:
            results.append(call(*arguments))
        except BaseException as error:
            errors.append(error)
        finally:
            _running_aside.discard(is_running)
            is_running.release()

    _running_aside.add(is_running)
    try:
        _start_thread(run)
    except RuntimeError:  # the interpreter is shutting down, or the system cannot start another thread
        _running_aside.discard(is_running)
        return call(*arguments)
    while not is_running.acquire(timeout=_POLL_SECONDS):
        leave_if_interrupted()
    if errors:
        raise errors[0]
    return results[0]


def _start_thread(run: Callable[[], None]) -> None:
    """Start a thread without waiting for it. Debuggers and coverage trace it as they trace those of `threading`."""

    def run_traced() -> None:
        sys.settrace(threading.gettrace())
        run()

    _thread.start_new_thread(run_traced, ())


@atexit.register
def _wait_for_calls_aside() -> None:
    """Wait for calls that were left: the interpreter must not unload libraries while they are in use."""
    for is_running in list(_running_aside):
        is_running.acquire()


class _InterruptedError(BaseException):
    """Ends a task whose caller was interrupted. The caller raises the original interrupt."""


class _Run:
    """One call of `for_each_chunk` on several threads."""

    def __init__(self, task: Callable[[int, int], None], n: int, chunk: int) -> None:
        self._task, self._n, self._chunk = task, n, chunk
        self._tickets = count()  # next() is atomic
        self._failures: dict[int, Exception] = {}
        self._outer = _current_run.get()
        self._helpers: list[threading.RLock] = []
        self.interruption: BaseException | None = None

    @property
    def is_interrupted(self) -> bool:
        """Whether this call, or a call that it is nested in, was interrupted."""
        return self.interruption is not None or (self._outer is not None and self._outer.is_interrupted)

    def start_helpers(self, n: int) -> None:
        """Submit the work to `n` threads of the pool."""
        try:
            for _ in range(n):
                # Either the helper acquires the lock and begins, or the caller does and the helper never begins.
                lock = threading.RLock()
                self._helpers.append(lock)
                _executor().submit(self._help, lock)
        except RuntimeError:  # the interpreter is shutting down, or the system cannot start another thread
            _forget_pool()  # together with the helper that is queued in it

    def _help(self, lock: threading.RLock) -> None:
        if lock.acquire(blocking=False):
            try:
                self.work()
            except BaseException as error:
                self.interruption = self.interruption or error
            finally:
                lock.release()

    def work(self) -> None:
        """Process chunks until none is left."""
        # In a context of its own, which the interpreter leaves even if an interrupt comes at that very moment.
        copy_context().run(self._work_on_chunks)

    def _work_on_chunks(self) -> None:
        _current_run.set(self)
        while not self._failures and not self.is_interrupted:
            start = next(self._tickets) * self._chunk
            if start >= self._n:
                return
            try:
                self._task(start, min(start + self._chunk, self._n))
            except Exception as error:
                self._failures[start] = error

    def wait(self, has_worked: bool) -> None:
        """Wait for the helpers that have begun, and prevent the others from beginning.

        Helpers that are still queued are not waited for. Otherwise nested calls could wait for themselves. If the
        caller has not worked to the end, it was interrupted, and a second interrupt may have come before it could say
        so: the helpers are told here.
        """
        while True:
            try:
                if not has_worked and self.interruption is None:
                    self.interruption = KeyboardInterrupt()
                for lock in self._helpers:
                    lock.acquire()
                return
            except BaseException as error:  # keep waiting, because helpers still write to arrays of the caller
                self.interruption = error

    def raise_failure(self) -> None:
        """Raise the interrupt or the error of the first chunk, if any."""
        if self.interruption is not None:
            raise self.interruption
        if self._failures:
            raise self._failures[min(self._failures)]


class _Pool:
    """Threads that work on calls from a queue.

    The interpreter does not wait for idle threads when it ends. A thread of `concurrent.futures` whose start was
    interrupted by Ctrl-C would keep the process from ending.
    """

    def __init__(self, n_threads: int) -> None:
        self._n_threads = n_threads
        self._n_started = 0
        self._idle: deque[None] = deque()  # an entry for each thread that waits; its methods are atomic
        self._calls: SimpleQueue[tuple[Callable[[threading.RLock], None], threading.RLock]] = SimpleQueue()

    def submit(self, call: Callable[[threading.RLock], None], lock: threading.RLock) -> None:
        """Let a thread call `call(lock)`; RuntimeError if the system cannot start a thread for it."""
        self._calls.put((call, lock))
        try:
            self._idle.pop()
        except IndexError:
            if self._n_started < self._n_threads:
                self._n_started += 1
                _start_thread(self._work)

    def _work(self) -> None:
        while True:
            call, lock = self._calls.get()
            call(lock)
            del call, lock  # they hold arrays of the caller
            self._idle.append(None)


def _executor() -> _Pool:
    """Return the thread pool of this process, created on first use."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = _Pool(max(n_cores(), 16))
        return _pool


def _forget_pool() -> None:
    """Drop the pool; its threads wait for calls that never come, at no cost."""
    global _pool
    _pool = None


def _after_fork() -> None:
    """Reset the pool and the locks in a forked child, in which only the forking thread exists."""
    global _pool_lock
    _pool_lock = threading.Lock()
    _running_aside.clear()
    _forget_pool()
    for lock in _write_locks:
        if not lock._is_owned():  # type: ignore[attr-defined]
            lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
