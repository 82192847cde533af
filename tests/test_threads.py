"""The thread driver: every chunk once, errors come back, forks and nested calls work."""

import _thread
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex._core import threads as _threads
from tests.conftest import ROOT


@given(n=st.integers(0, 100), chunk=st.integers(1, 30), n_threads=st.integers(1, 5))
def test_every_row_once(n, chunk, n_threads):
    counts = np.zeros(n, dtype=int)

    def task(start, stop):
        assert stop - start <= chunk
        counts[start:stop] += 1

    _threads.for_each_chunk(task, n, chunk, n_threads)
    assert (counts == 1).all()


def test_threads_work_at_the_same_time():
    barrier = threading.Barrier(3, timeout=10)
    _threads.for_each_chunk(lambda start, stop: barrier.wait(), 3, 1, 3)


def test_an_error_in_any_thread_is_raised():
    barrier = threading.Barrier(2, timeout=10)
    caller = threading.current_thread()

    def task(start, stop):
        barrier.wait()
        if threading.current_thread() is not caller:
            raise RuntimeError("from the helper")

    with pytest.raises(RuntimeError, match="from the helper"):
        _threads.for_each_chunk(task, 2, 1, 2)


def test_an_error_stops_the_rest():
    done = []

    def task(start, stop):
        done.append(start)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        _threads.for_each_chunk(task, 1_000, 1, 1)
    assert done == [0]


def test_nested_calls_do_not_wait_for_themselves():
    counts = np.zeros((40, 40), dtype=int)

    def outer(start, stop):
        def inner(first, last):
            counts[start, first:last] += 1

        _threads.for_each_chunk(inner, 40, 1, 40)

    _threads.for_each_chunk(outer, 40, 1, 40)
    assert (counts == 1).all()


def test_many_callers():
    results = []

    def call():
        total = np.zeros(50)
        _threads.for_each_chunk(lambda start, stop: total.__setitem__(slice(start, stop), 1), 50, 3, 4)
        results.append(total.sum())

    threads = [threading.Thread(target=call) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [50] * 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own():
    _threads.for_each_chunk(lambda start, stop: None, 10, 1, 2)
    child = os.fork()
    if child == 0:
        counts = np.zeros(10)
        _threads.for_each_chunk(lambda start, stop: counts.__setitem__(slice(start, stop), 1), 10, 1, 3)
        os._exit(0 if counts.sum() == 10 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def sum_of_ones(n_threads):
    counts = np.zeros(10)
    _threads.for_each_chunk(lambda start, stop: counts.__setitem__(slice(start, stop), 1), 10, 1, n_threads)
    return counts.sum()


WORK_AT_THE_END = """
import atexit, threading, time
import numpy as np
from tests.test_threads import sum_of_ones

def work():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    print(sum_of_ones(4))

assert sum_of_ones(4) == 10
atexit.register(work)
threading.Thread(target=work).start()
"""


def test_work_while_the_interpreter_ends():
    """In a thread that outlives the main one, and at exit: then no new threads can be started."""
    done = subprocess.run(
        [sys.executable, "-c", WORK_AT_THE_END],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.split() == ["10.0", "10.0"]


@pytest.mark.parametrize("n_possible", [0, 2])
def test_work_where_few_threads_can_be_started(monkeypatch, n_possible):
    start, possible = _thread.start_new_thread, [None] * n_possible

    def start_if_possible(*arguments):
        if not possible:
            raise RuntimeError("can't start new thread")
        possible.pop()
        start(*arguments)

    monkeypatch.setattr(_threads, "_pool", _threads._Pool(16))
    monkeypatch.setattr(_thread, "start_new_thread", start_if_possible)
    assert [sum_of_ones(8) for _ in range(3)] == [10] * 3


def test_an_interrupt_ends_chunks_in_progress():
    """The caller is interrupted while a helper is in a long loop, or in a call of the same kind."""
    caller = threading.current_thread()
    for n_inner_threads in (None, 1, 3):
        barrier, begun, ended = threading.Barrier(2, timeout=10), [], []

        def task(start, stop, barrier=barrier, begun=begun, ended=ended, n=n_inner_threads):
            begun.append(start)
            barrier.wait()
            if threading.current_thread() is caller:
                raise KeyboardInterrupt
            try:
                if n is None:
                    while True:
                        _threads.leave_if_interrupted()
                _threads.for_each_chunk(lambda start, stop: None, 10**12, 1, n)
            finally:
                ended.append(start)

        with pytest.raises(KeyboardInterrupt):
            _threads.for_each_chunk(task, 1_000, 1, 2)
        assert sorted(begun) == [0, 1]
        assert len(ended) == 1


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to threads here")
@pytest.mark.no_cover  # an interrupt in the lock of coverage would never end
def test_an_interrupt_while_the_caller_waits_for_helpers():
    """Twice, as by a user who is impatient: the call still ends after its helpers."""
    barrier, ended = threading.Barrier(2, timeout=10), []
    caller = threading.main_thread()

    def task(start, stop):
        barrier.wait()
        if threading.current_thread() is caller:
            return
        for _ in range(2):
            signal.pthread_kill(caller.ident, signal.SIGINT)
        try:
            while True:
                _threads.leave_if_interrupted()
        finally:
            ended.append(start)

    with pytest.raises(KeyboardInterrupt):
        _threads.for_each_chunk(task, 2, 1, 2)
    assert len(ended) == 1
    assert sum_of_ones(2) == 10


def test_an_interrupt_of_the_handling_of_an_interrupt(monkeypatch):
    """The second one comes before the first is noted: helpers are told all the same."""
    barrier, ended = threading.Barrier(2, timeout=10), []

    def task(start, stop):
        barrier.wait()
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        try:
            while True:
                _threads.leave_if_interrupted()
        finally:
            ended.append(start)

    class Impatient(_threads._Run):
        is_first = True

        def __setattr__(self, name, value):
            if name == "interruption" and value is not None and self.is_first:
                object.__setattr__(self, "is_first", False)
                raise KeyboardInterrupt
            super().__setattr__(name, value)

    monkeypatch.setattr(_threads, "_Run", Impatient)
    with pytest.raises(KeyboardInterrupt):
        _threads.for_each_chunk(task, 2, 1, 2)
    assert ended


@pytest.mark.no_cover  # which would take the tracer away
def test_an_interrupt_at_any_line_of_the_driver():
    """Calls of the same thread that follow are not taken for tasks of the interrupted one."""

    def sum_in_two_threads():
        sums = []
        _threads.for_each_chunk(lambda start, stop: sums.append(stop - start), 6, 2, 2)
        return sum(sums)

    for code in (_threads.for_each_chunk, _threads._Run.work, _threads._Run._work_on_chunks, _threads._Run.wait):
        for number in {number for *_, number in code.__code__.co_lines() if number is not None}:

            def interrupt(frame, event, argument, code=code.__code__, number=number):
                if frame.f_code is code and event == "line" and frame.f_lineno == number:
                    sys.settrace(None)
                    raise KeyboardInterrupt
                return interrupt

            sys.settrace(interrupt)
            try:
                sum_in_two_threads()
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            _threads.leave_if_interrupted()
            assert sum_in_two_threads() == 6


def test_the_exit_of_a_helper_is_raised():
    """Not what ends the tasks of the caller because of it."""
    both, caller = threading.Barrier(2, timeout=10), threading.get_ident()

    def task(start, stop):
        both.wait()
        if threading.get_ident() != caller:
            raise SystemExit(3)
        while True:
            _threads.leave_if_interrupted()

    with pytest.raises(SystemExit):
        _threads.for_each_chunk(task, 2, 1, 2)


def test_an_error_does_not_end_chunks_in_progress():
    """So that the error of the first chunk is raised, whichever thread is faster."""
    barrier = threading.Barrier(2, timeout=10)

    def task(start, stop):
        barrier.wait()
        if start == 0:
            for _ in range(10_000):
                _threads.leave_if_interrupted()
        raise RuntimeError(f"chunk {start}")

    with pytest.raises(RuntimeError, match="chunk 0"):
        _threads.for_each_chunk(task, 2, 1, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT", "0") == "1", reason="nothing is compiled")
def test_fork_while_a_thread_compiles():
    """The fork waits for it, so that the child can compile too."""
    from numba.core.compiler_lock import global_compiler_lock

    from cbeindex.kernels import jit  # noqa: F401

    taken, over = threading.Event(), threading.Event()

    def compile_for_long():
        with global_compiler_lock:
            taken.set()
            over.wait(0.5)
            over.set()

    compiler = threading.Thread(target=compile_for_long)
    compiler.start()
    taken.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with global_compiler_lock:
            os._exit(0 if over.is_set() else 1)
    compiler.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert global_compiler_lock._lock.acquire(timeout=10)
    global_compiler_lock._lock.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_locks_in_a_forked_child():
    """A lock that another thread holds is free in the child; one that the forking thread holds stays its own."""
    theirs, ours = _threads.write_lock(), _threads.write_lock()
    taken, over = threading.Event(), threading.Event()

    def hold():
        with theirs:
            taken.set()
            over.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait(10)
    with ours:
        child = os.fork()
        if child == 0:
            is_free = theirs.acquire(timeout=10)
            ours.release()
            os._exit(0 if is_free else 1)
    over.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_default_is_the_cores_of_this_process():
    assert _threads.as_n_threads(None) == _threads.n_cores() >= 1
    assert _threads.as_n_threads(5) == 5


class TestRunAside:
    def test_returns_and_raises_what_the_call_does(self):
        assert _threads.run_aside(divmod, 17, 5) == (3, 2)
        with pytest.raises(ZeroDivisionError):
            _threads.run_aside(divmod, 17, 0)
        assert _threads.run_aside(threading.current_thread) is not threading.current_thread()

    def test_an_interrupt_leaves_the_call_to_its_end(self):
        may_end, has_ended = threading.Event(), threading.Event()

        def call():
            signal.raise_signal(signal.SIGINT)  # which Python delivers to the main thread
            assert may_end.wait(10)
            has_ended.set()

        with pytest.raises(KeyboardInterrupt):
            _threads.run_aside(call)
        assert not has_ended.is_set()
        may_end.set()
        assert has_ended.wait(10)

    def test_a_helper_leaves_when_its_caller_is_interrupted(self):
        """Otherwise Ctrl-C would wait until a kernel that a helper needs has been compiled."""
        may_end, helper_waits, caller = threading.Event(), threading.Event(), threading.current_thread()

        def call():
            helper_waits.set()
            assert may_end.wait(10)

        def task(start, stop):
            if threading.current_thread() is caller:
                assert helper_waits.wait(10)
                raise KeyboardInterrupt
            _threads.run_aside(call)

        with pytest.raises(KeyboardInterrupt):
            _threads.for_each_chunk(task, 2, 1, 2)
        may_end.set()

    def test_works_where_no_thread_can_be_started(self, monkeypatch):
        def refuse(*arguments):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(_thread, "start_new_thread", refuse)
        assert _threads.run_aside(divmod, 17, 5) == (3, 2)
