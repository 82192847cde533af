"""CBEIndex in several threads: every result belongs to one published state, also across the moment of fitting."""

import copy
import pickle
import random
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from cbeindex import BinaryIndex, CBEIndex
from tests.conftest import ROOT
from tests.small import tune

DIM, ROWS, ALIVE, SECONDS = 16, 8, 3, 1.0


def vector_of(batch):
    """A vector that says which batch it is of, by its length."""
    return np.full(DIM, batch % 200 + 1, dtype=np.float32)


def check_state(distances, ids):
    """Return the newest batch in a result that has all ids: consecutive whole batches, each at its own distance.

    The newest may still be at the zero vector, with which every batch begins.
    """
    order = np.argsort(ids)
    distances, ids = distances[order], ids[order]
    if len(ids) == 0:
        return -1
    first, newest = ids[0] // ROWS, ids[-1] // ROWS
    assert ids.tolist() == list(range(ROWS * first, ROWS * (newest + 1)))
    n_alive = newest + 1 - first
    assert n_alive in (ALIVE, ALIVE + 1) or (first == 0 and n_alive <= ALIVE)
    for batch, found in zip(range(first, newest + 1), distances.reshape(-1, ROWS), strict=True):
        expected = [DIM * (batch % 200 + 1) ** 2] + ([0] if batch == newest else [])
        assert found.min() == found.max()
        assert found[0] in expected
    return newest


def write(index, stop):
    """Add batch after batch, first as zeros and then as they should be, and remove each when the third has come."""
    for batch in range(10**9):
        if stop.is_set():
            return
        ids = np.arange(ROWS * (batch + 1) - 1, ROWS * batch - 1, -1)
        index.add(np.zeros((ROWS, DIM)), ids, n_threads=1)
        index.add(np.tile(vector_of(batch), (ROWS, 1)), ids, replace=True, n_threads=1)
        if batch >= ALIVE:
            index.remove(ids - ROWS * ALIVE)
        if batch % 7 == 0:
            index.compact()


def read(index, stop, seen):
    """Search for everything, in every mode; a state is never older than one that was seen before."""
    query, newest, n_reads = np.zeros(DIM), -1, 0
    while not stop.is_set():
        turn = n_reads % 5
        if turn < 2:
            distances, ids = index.search(query, 50, n_candidates=(None, 50)[turn], n_threads=1 + n_reads % 2)
            assert (np.isinf(distances) == (ids == -1)).all()
            assert (np.diff(distances[ids >= 0]) >= 0).all()
            state = check_state(distances[ids >= 0], ids[ids >= 0])
        elif turn == 2:
            state = check_state(*index.range_search(query, np.inf)[1:])
        elif turn == 3:
            assert len(index) % ROWS == 0
            ids = index.ids
            assert len(ids) % ROWS == 0
            state = ids[-1] // ROWS if len(ids) else -1
        else:
            again = pickle.loads(pickle.dumps(index))
            state = check_state(*again.range_search(query, np.inf)[1:])
        assert state >= newest
        newest, n_reads = state, n_reads + 1
    seen.append(newest)


def run_together(index, works, seconds):
    """Run works, each in a thread of its own, until the time is over or one of them fails; return the errors."""
    stop, errors = threading.Event(), []

    def run(work):
        try:
            work(index, stop)
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return errors


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    tune(monkeypatch, buffer_rows=32, least_buffer_rows=2)


@pytest.fixture(scope="module", autouse=True)
def loaded_kernels():
    """Compiled kernels come from disk in a second or so, which is all the time that tests take."""
    index = CBEIndex(DIM, 64, metric="l2", vectors="float32", buckets=None).fit(
        np.random.default_rng(0).standard_normal((20, DIM))
    )
    index.add(np.ones((ROWS, DIM)))
    for n_candidates in (None, 50):
        index.search(np.zeros(DIM), 50, n_candidates=n_candidates)
    index.range_search(np.zeros(DIM), np.inf)


@pytest.mark.parametrize("fitted", [True, False])
def test_readers_beside_a_writer(fitted):
    """32 rows at most: an index that is not fitted stays so. Squared lengths are exact in float32."""
    index, seen = CBEIndex(DIM, 64, metric="l2", vectors="float32", buckets=None), []
    if fitted:
        index.fit(np.random.default_rng(0).standard_normal((20, DIM)))
    readers = [lambda index, stop: read(index, stop, seen)] * 3
    assert run_together(index, [write, *readers], SECONDS) == []
    assert index.is_fitted == fitted
    assert min(seen) > 0  # each reader has seen states come and go


def test_readers_while_it_fits(monkeypatch):
    """Many small indexes, each of which fits itself while it is read: before, after, and nothing between."""
    tune(monkeypatch, first_rows=3 * ROWS, least_first_rows=2)
    for _ in range(6):
        index, seen, written = CBEIndex(DIM, 64, metric="l2", vectors="float32", buckets=None), [], threading.Event()

        def write_six(index, stop, written=written):
            for batch in range(6):
                ids = np.arange(ROWS * batch, ROWS * (batch + 1))
                index.add(np.tile(vector_of(batch), (ROWS, 1)), ids, n_threads=1)
                stop.wait(0.005)
            written.set()

        def read_all(index, stop, written=written, seen=seen):
            newest = 0
            while newest < 6 * ROWS and not stop.is_set():
                distances, ids = index.search(np.zeros(DIM), 60, n_candidates=60, n_threads=1)
                n = int((ids >= 0).sum())
                assert n % ROWS == 0
                assert n >= newest
                assert ids[:n].tolist() == list(range(n))
                assert distances[:n].tolist() == [DIM * (id_ // ROWS + 1) ** 2 for id_ in range(n)]
                newest = n
            seen.append(newest)
            if written.wait(5) and len(seen) == 2:
                stop.set()

        assert run_together(index, [write_six, read_all, read_all], 10) == []
        assert seen == [6 * ROWS] * 2
        assert index.is_fitted


def vectors_of(ids):
    return np.sin(np.multiply.outer(np.asarray(ids) + 1.0, np.arange(1, DIM + 1))).astype(np.float32)


def codes_of(ids):
    return np.random.default_rng(0).integers(0, 256, (1_000, 16), dtype=np.uint8)[np.asarray(ids)]


def do_anything(index, other, of, path, choose):
    """Do one of the things that an index can do; only what another thread came first with may be refused."""
    ids = np.arange(choose.randrange(900), 900)[: choose.choice([1, 5, 40])]
    what = choose.choice(["add", "replace", "remove", "search", "save", "merge", "compact", "pickle", "copy"])
    if what == "replace":
        index.add(of(ids), ids, replace=True)
    elif what == "search":
        found = index.search(of(ids), 3).ids
        assert ((found[found >= 0] >= 0) & (found[found >= 0] < 900)).all()
    elif what == "save":
        index.save(path)
    elif what == "compact":
        index.compact()
    elif what in ("pickle", "copy"):
        again = pickle.loads(pickle.dumps(index)) if what == "pickle" else copy.copy(index)
        np.testing.assert_array_equal(again.get(again.ids), of(again.ids))
        again.add(of([999]), [999])
        assert 999 not in index
    else:
        try:
            if what == "add":
                index.add(of(ids), ids)
            elif what == "remove":
                index.remove(index.ids[::2])
            else:
                index.merge(other)
        except ValueError as error:
            if "is taken" not in str(error) and not (what == "remove" and "not in the index" in str(error)):
                raise


@pytest.mark.parametrize(
    ("make", "of"),
    [
        (lambda seed: CBEIndex(DIM, 64, metric="l2", vectors="float32", seed=seed, buckets=None), vectors_of),
        (lambda seed: BinaryIndex(128), codes_of),
    ],
)
def test_ten_threads_that_do_anything(make, of, tmp_path, monkeypatch):
    """Two indexes, each also merged into the other: nothing fails, nothing waits for ever, and all rows are whole."""
    tune(monkeypatch, first_rows=60, least_first_rows=2)
    indexes, numbers = [make(0), make(1)], iter(range(10))

    def work(_, stop):
        number = next(numbers)
        choose = random.Random(number)
        while not stop.is_set():
            first = choose.randrange(2)
            path = tmp_path / f"{number}.{first}"
            do_anything(indexes[first], indexes[1 - first], of, path, choose)

    assert run_together(None, [work] * 10, SECONDS) == []
    for index in indexes:
        np.testing.assert_array_equal(index.get(index.ids), of(index.ids))


def test_merge_of_an_index_that_changes(monkeypatch):
    """All vectors come from one state, whatever is removed meanwhile."""
    index, other = (CBEIndex(DIM, 64, vectors="float32", seed=seed, buckets=None) for seed in (0, 1))
    other.fit(vectors_of(range(50)))
    other.add(vectors_of(range(20)))

    def remove_meanwhile(*encoders):
        other.remove(other.ids[::2])
        return False

    monkeypatch.setattr("cbeindex.store.state.same_encoder", remove_meanwhile)
    index.merge(other)
    assert len(other) == 10
    np.testing.assert_array_equal(index.get(np.arange(20)), vectors_of(range(20)))


LONG_SEARCH = """
import numpy as np
from cbeindex import BinaryIndex
codes = np.random.default_rng(0).integers(0, 256, (100_000, 128), dtype=np.uint8)
index = BinaryIndex(1_024)
index.add(codes)
index.search(codes[:100])
try:
    print("ready", flush=True)
    while True:
        index.search(codes, mode="scan")
except KeyboardInterrupt:
    assert index.search(codes[7], 1).ids == [7]
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no signals to other processes here")
def test_a_long_search_can_be_interrupted():
    command = [sys.executable, "-c", LONG_SEARCH]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert output == "interrupted\n"
    assert process.returncode == 0
