"""Indexes in forked and spawned processes, also while other threads of the parent write and search."""

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import traceback

import numpy as np
import pytest

from cbeindex import BinaryIndex, CBEIndex
from tests.small import small_buckets, tune

DIM, ROWS, N_FORKS = 16, 8, 20

pytestmark = [
    pytest.mark.no_cover,  # a child may inherit the lock of coverage from a thread that held it
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    tune(monkeypatch, buffer_rows=64, bucket_buffer_rows=64, least_buffer_rows=2)


def in_a_child(work):
    """Run `work` in a forked process, with a limit on its time, and return its exit code."""
    tracer = sys.gettrace()
    sys.settrace(None)  # what is called after the fork must not wait for a lock of coverage either
    child = os.fork()
    if child > 0:
        sys.settrace(tracer)
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.dump_traceback_later(25)
            signal.alarm(30)
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def vectors_of(ids):
    return np.sin(np.multiply.outer(np.asarray(ids) + 1.0, np.arange(1, DIM + 1))).astype(np.float32)


def codes_of(ids):
    return np.random.default_rng(0).integers(0, 256, (1_000, 16), dtype=np.uint8)[np.asarray(ids)]


def cbe_index():
    return CBEIndex(DIM, 64, vectors="float32", buckets="clusters").fit(vectors_of(range(50)))


@pytest.mark.parametrize(("make", "of"), [(cbe_index, vectors_of), (lambda: BinaryIndex(128), codes_of)])
def test_fork_while_a_thread_writes(make, of, tmp_path):
    """Each child sees whole batches, and adds, searches and saves as the parent could."""
    index, stop = make(), threading.Event()

    def write():
        for batch in range(40):
            ids = np.arange(ROWS * batch, ROWS * (batch + 1))
            index.add(of(ids), ids, replace=True)
        index.compact()
        index.remove(index.ids)

    def write_until_stopped():
        while not stop.is_set():
            write()

    def use():
        ids = index.ids
        assert len(ids) % ROWS == 0
        np.testing.assert_array_equal(index.get(ids), of(ids))
        index.add(of([999]), [999])
        assert index.search(of(999), 1).ids == [999]
        np.testing.assert_array_equal(index.ids, [*ids, 999])
        np.testing.assert_array_equal(index.get(index.ids), of(index.ids))
        path = tmp_path / f"{os.getpid()}.cbe"
        index.save(path)
        np.testing.assert_array_equal(type(index).load(path).ids, index.ids)

    with small_buckets():
        # Kernels are loaded before: a process forked while another thread imports a module can never import it.
        write()
        use()
        index.remove([999])
        writer = threading.Thread(target=write_until_stopped)
        writer.start()
        try:
            codes = [in_a_child(use) for _ in range(N_FORKS)]
        finally:
            stop.set()
            writer.join()
    assert codes == [0] * N_FORKS


def test_fork_while_threads_search():
    index = cbe_index()
    queries = vectors_of(range(400))
    index.add(queries)
    expected, stop = index.search(queries, 5).ids, threading.Event()

    def search():
        while not stop.is_set():
            index.search(queries, 5, n_threads=3)

    def use():
        np.testing.assert_array_equal(index.search(queries, 5, n_threads=3).ids, expected)

    searchers = [threading.Thread(target=search) for _ in range(3)]
    for thread in searchers:
        thread.start()
    try:
        codes = [in_a_child(use) for _ in range(N_FORKS)]
    finally:
        stop.set()
        for thread in searchers:
            thread.join()
    assert codes == [0] * N_FORKS


def search_all(index, queries):
    return index.search(queries, 5, n_threads=2).ids


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(method):
    index = cbe_index()
    queries = vectors_of(range(100))
    index.add(queries)
    with multiprocessing.get_context(method).Pool(1) as pool:
        found = pool.apply_async(search_all, (index, queries)).get(60)
    np.testing.assert_array_equal(found, search_all(index, queries))
