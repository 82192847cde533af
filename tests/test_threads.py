"""The thread driver: every chunk once, errors come back, forks and nested calls work."""

import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import _threads


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


def test_default_is_the_cores_of_this_process():
    assert _threads.as_n_threads(None) == _threads.n_cores() >= 1
    assert _threads.as_n_threads(5) == 5
