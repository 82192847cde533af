"""Rows that are added a few at a time, which wait to be encoded together, against rows that are encoded at once."""

import copy
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import CBEIndex, verify
from cbeindex._core.tuning import tuned
from cbeindex.store.ingest import Ingest
from tests.small import check_equal, examples, small_buckets
from tests.vector_oracles import clustered

DIM = 24
KINDS = [
    {"vectors": "int8"}, {"vectors": "float32", "metric": "l2"}, {"vectors": "float16", "metric": "ip"},
    {"vectors": None}, {"vectors": "int4", "hamming": False}, {"vectors": "float32", "buckets": None},
    {"vectors": "int8", "buckets": "graph"},
]  # fmt: skip


@pytest.fixture(autouse=True)
def _small():
    with small_buckets({"least_centre_rows": 4, "waiting_rows": 6, "few_rows": 3}):
        yield


def some_vectors(n, seed=0):
    return clustered(n, DIM, seed=seed, n_centres=6)


def an_index(n=60, **options):
    index = CBEIndex(DIM, **options)
    index.add(some_vectors(n))
    return index


def n_waiting(index):
    waiting = index._state.rows._published[2]
    return 0 if waiting is None else waiting.n_rows


def content(index):
    """The arrays of all rows."""
    return [
        (segment.ids, segment.codes.words(segment.n_rows), {name: segment.columns[name][:] for name in segment.columns})
        for segment in index._state.rows.snapshot().segments
    ]


@pytest.mark.parametrize("options", KINDS)
def test_rows_that_waited_are_encoded_as_others_are(options):
    waited, at_once = an_index(**options), an_index(**options)
    rows = some_vectors(70, seed=1)
    for i in range(0, 70, 2):
        ids = waited.add(rows[i : i + 2])
        with tuned(few_rows=0):
            np.testing.assert_array_equal(at_once.add(rows[i : i + 2]), ids)
    assert n_waiting(waited)
    for ours, theirs in zip(content(waited), content(at_once), strict=True):
        np.testing.assert_equal(ours, theirs)
    assert not n_waiting(waited)


def test_rows_wait_until_there_are_enough():
    index = an_index()
    n_encoded = [n_waiting(index)]
    for row in some_vectors(14, seed=1):
        index.add(row)
        n_encoded.append(n_waiting(index))
    assert n_encoded == [0, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1, 2]
    index.add(some_vectors(4, seed=2))  # too many to wait
    assert n_waiting(index) == 0
    assert len(index) == 60 + 14 + 4


LOOKS = {
    "search": lambda index, row, id_: int(index.search(row, 1).ids[0]) == id_,
    "scan": lambda index, row, id_: int(index.search(row, 1, mode="scan").ids[0]) == id_,
    "range_search": lambda index, row, id_: id_ in index.range_search(row, 1e-3).ids,
    "explain": lambda index, row, id_: bool(str(index.explain(row))),
    "len": lambda index, row, id_: len(index) == id_ + 1,
    "contains": lambda index, row, id_: id_ in index,
    "ids": lambda index, row, id_: index.ids[-1] == id_,
    "get": lambda index, row, id_: np.array_equal(index.get(id_), row),
    "codes": lambda index, row, id_: len(index.codes(id_)) == 3,
    "filter": lambda index, row, id_: index.search(row, 1, allow=index.filter([id_])).ids[0] == id_,
    "copy": lambda index, row, id_: id_ in copy.deepcopy(index),
    "pickle": lambda index, row, id_: id_ in pickle.loads(pickle.dumps(index)),
    "stats": lambda index, row, id_: index.stats()["rows"] == id_ + 1,
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_row_that_waits_is_there(look):
    index = an_index(metric="l2", vectors="float32")
    for i, row in enumerate(some_vectors(20, seed=1)):
        assert index.add(row).tolist() == [60 + i]
        assert n_waiting(index)
        assert LOOKS[look](index, row, 60 + i)


@pytest.mark.parametrize("change", ["remove", "replace", "merge", "compact", "refit", "save", "shrink", "tune"])
def test_rows_that_wait_are_there_for_changes(change, tmp_path):
    index = an_index(metric="l2", vectors="float32")
    rows = some_vectors(5, seed=1)
    for row in rows:
        index.add(row)
    assert n_waiting(index) == 5
    if change == "remove":
        index.remove([62, 64])
        assert index.ids.tolist() == [*range(62), 63]
    elif change == "replace":
        index.add(rows[0], [64], replace=True)
        np.testing.assert_array_equal(index.get(64), rows[0])
    elif change == "merge":
        index.merge(_with_encoder_of(index))
        assert index.ids.tolist() == [*range(65), *range(900, 905)]
    elif change == "save":
        index.save(tmp_path / "some.cbe")
        verify(tmp_path / "some.cbe")
        assert len(CBEIndex.load(tmp_path / "some.cbe")) == 65
    elif change == "shrink":
        index.shrink("float16")
        np.testing.assert_allclose(index.get(64), rows[4], rtol=1e-3)
    else:
        {"compact": index.compact, "refit": index.refit, "tune": lambda: index.tune(rows)}[change]()
        np.testing.assert_array_equal(index.get([60, 64]), rows[[0, 4]])
    assert not n_waiting(index)


def _with_encoder_of(index):
    """Return an index of five rows with the encoder of another one, and with other ids."""
    other = CBEIndex(DIM, metric="l2", vectors="float32", encoder=index.encoder)
    other.add(some_vectors(5, seed=2), np.arange(900, 905))
    return other


def test_refused_rows_leave_those_that_wait():
    index = an_index(vectors="float16", metric="l2")
    rows = some_vectors(3, seed=1)
    index.add(rows[0])
    bad, large = rows[1].copy(), rows[1].copy()
    bad[3], large[3] = np.nan, 1e30
    for row, problem in ((bad, "finite"), (large, "scale the vectors down|float16"), (np.full(DIM, 1e5), "65504")):
        with pytest.raises(ValueError, match=problem):
            index.add(row)
    for ids in ([60], [5]):
        with pytest.raises(ValueError, match="taken"):
            index.add(rows[1], ids)
    for ids in ([-1], [1, 2], [0.5], ["a"]):
        with pytest.raises((TypeError, ValueError)):
            index.add(rows[1], ids)
    assert len(index) == 61
    assert index.add(rows[1]).tolist() == [61]
    assert index.add(rows[2], [70]).tolist() == [70]
    assert index.ids.tolist() == [*range(62), 70]


def test_rows_far_out_are_encoded_at_once():
    """Nothing that is derived from a row that waits may be refused later."""
    index = an_index(metric="l2", vectors="float32")
    index.add(np.full(DIM, 1e7, dtype=np.float32))
    assert n_waiting(index) == 0
    index.add(np.full(DIM, 1e3, dtype=np.float32))
    assert n_waiting(index) == 1
    assert len(index) == 62


def test_ids_in_use_and_small_ids_are_looked_up():
    index = an_index()
    rows = some_vectors(4, seed=1)
    assert index.add(rows[0], [100]).tolist() == [100]
    assert index.add(rows[1], [80]).tolist() == [80]  # below the largest: it might be in use
    assert index.add(rows[2]).tolist() == [101]
    assert index.add(rows[3:], [101], replace=True).tolist() == [101]
    assert index.ids.tolist() == [*range(60), 80, 100, 101]
    np.testing.assert_allclose(index.get(101), rows[3], atol=0.03 * np.linalg.norm(rows[3]))


def test_rows_wait_through_a_failed_encoding(monkeypatch):
    index = an_index(metric="l2", vectors="float32")
    rows = some_vectors(3, seed=1)
    for row in rows:
        index.add(row)

    def fails(*arguments, **options):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(Ingest, "encode", fails)
        with pytest.raises(MemoryError):
            index.search(rows[0], 1)
        assert len(index) == 63
    assert [int(index.search(row, 1).ids[0]) for row in rows] == [60, 61, 62]


def test_readers_encode_no_more_than_waits_and_make_no_segments():
    """A full buffer becomes a segment in the call of the writer."""
    index = an_index(metric="l2", vectors="float32")
    rows = some_vectors(200, seed=1)
    for i, row in enumerate(rows):
        index.add(row)
        store = index._state.rows
        sealed = store._published[0].sealed
        index.search(row, 1)
        assert store._published[0].sealed == sealed
        assert store._published[0].newest.n_rows <= store._buffer_rows
        assert len(index) == 61 + i


@examples(15)
@given(st.lists(st.sampled_from(["one", "two", "many", "search", "remove"]), min_size=5, max_size=60))
def test_any_sequence_gives_the_index_of_rows_encoded_at_once(steps):
    with small_buckets({"least_centre_rows": 4, "waiting_rows": 6, "few_rows": 3}):
        waited, at_once = (an_index(50, metric="l2", vectors="int8") for _ in range(2))
        rows = some_vectors(400, seed=1)
        n_used = 0
        for step in steps:
            if step == "search":
                check_equal(waited.search(rows[:3], 4), at_once.search(rows[:3], 4))
            elif step == "remove":
                for index in (waited, at_once):
                    index.remove([len(index) // 2], missing="ignore")
            else:
                some = rows[n_used : n_used + {"one": 1, "two": 2, "many": 5}[step]]
                n_used += len(some)
                ids = waited.add(some)
                with tuned(few_rows=0):
                    np.testing.assert_array_equal(at_once.add(some), ids)
        assert len(waited) == len(at_once)
        for ours, theirs in zip(content(waited), content(at_once), strict=True):
            np.testing.assert_equal(ours, theirs)


def test_a_row_is_found_by_all_threads_as_soon_as_it_is_added():
    index = an_index(metric="l2", vectors="float32")
    rows = some_vectors(300, seed=1)
    added, missed, is_done = [-1], [], threading.Event()

    def read():
        while not is_done.is_set():
            i = added[0]
            if i >= 0 and int(index.search(rows[i], 1).ids[0]) != 60 + i:
                missed.append(i)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i, row in enumerate(rows):
        index.add(row)
        added[0] = i
    is_done.set()
    for reader in readers:
        reader.join()
    assert not missed
    assert len(index) == 360
    assert index.ids.tolist() == list(range(360))


def test_a_reader_does_not_wait_for_a_writer_that_encodes_waiting_rows(monkeypatch):
    index = an_index(metric="l2", vectors="float32")
    rows = some_vectors(60, seed=1)
    index.add(rows[0])
    store, is_joining, may_join = index._state.rows, threading.Event(), threading.Event()
    joined = type(store)._with_segment

    def slowly(self, *arguments):
        is_joining.set()
        assert may_join.wait(60)
        return joined(self, *arguments)

    monkeypatch.setattr(type(store), "_with_segment", slowly)
    writer = threading.Thread(target=index.add, args=(rows[1:],))
    writer.start()
    assert is_joining.wait(60)
    assert int(index.search(rows[0], 1).ids[0]) == 60
    assert len(index) == 61
    may_join.set()
    writer.join()
    assert len(index) == 120


def test_waiting_rows_need_no_lock_of_writers():
    index = an_index(metric="l2", vectors="float32")
    row = some_vectors(1, seed=1)[0]
    index.add(row)
    found = []
    with index._lock, index._state.rows.lock:
        reader = threading.Thread(target=lambda: found.append(int(index.search(row, 1).ids[0])))
        reader.start()
        reader.join(60)
        assert found == [60]


def test_an_index_with_waiting_rows_is_freed_at_once():
    """Rows that wait know how they are encoded, but not who holds them."""
    index = an_index()
    for row in some_vectors(2, seed=1):
        index.add(row)
    state = weakref.ref(index._state.rows)
    gc.disable()
    try:
        del index
        assert state() is None
    finally:
        gc.enable()
