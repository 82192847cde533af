"""Rows: snapshots that do not change, ids in order, a buffer that grows and is sealed, segments that are joined."""

import copy
import itertools
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex._core.tuning import tuned
from cbeindex.data.codes import CodeRows, to_words
from cbeindex.data.columns import Column
from cbeindex.data.keys import NO_KEY, HammingKeys
from cbeindex.data.names import NAMES, Names
from cbeindex.search.filters import IdFilter
from cbeindex.store.rowstore import RowStore
from cbeindex.store.segment import NOT_HIDDEN, Segment
from tests.small import tune
from tests.strategies import some_codes

N_BITS = 600
COLUMNS = {"norm": Column(np.float32), "pair": Column(np.int64, (2,))}


@pytest.fixture
def small_buffer(monkeypatch):
    """A buffer of 8 rows that begins with room for 2: batches of 4 and more are segments at once."""
    tune(monkeypatch, buffer_rows=8, bucket_buffer_rows=8, least_buffer_rows=2)


@dataclass(frozen=True)
class Shuffled:
    """Buckets of a sort: the rows of segments of 6 rows and more are in another order."""

    nbytes: int = 7

    uses_residuals = False
    join_width = 2

    def arrange(self, segment, share=1.0):
        if segment.n_rows < 6:
            return segment
        rows = np.random.default_rng(segment.n_rows).permutation(segment.n_rows)
        order = np.argsort(rows).astype(np.int32)
        arranged = segment.take(rows)
        return replace(arranged, order=order, ranks=rows.astype(np.int32), buckets=self)


@given(
    ids=st.one_of(
        st.builds(lambda first, n: np.arange(first, first + n), st.integers(0, 50), st.integers(1, 20)),
        st.sets(st.integers(0, 80), min_size=1, max_size=20).map(lambda some: np.array(sorted(some))),
    ),
    is_shuffled=st.booleans(),
    data=st.data(),
)
def test_rows_are_found_by_their_ids(ids, is_shuffled, data):
    """In segments of consecutive ids, which are not searched, and of others; -1 for removed and unknown ones."""
    n = len(ids)
    order = np.array(data.draw(st.permutations(range(n))), dtype=np.int32) if is_shuffled else np.zeros(0, np.int32)
    stored = np.empty_like(ids)
    stored[order if is_shuffled else slice(None)] = ids
    removed = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    segment = Segment(stored, None, {}, removed if removed.any() else NOT_HIDDEN, order=order)
    expected = {int(id_): row for row, id_ in enumerate(stored) if not removed[row]}
    wanted = np.arange(-1, 90)
    np.testing.assert_array_equal(segment.find(wanted), [expected.get(int(id_), -1) for id_ in wanted])


MAKERS = pytest.mark.parametrize("buckets", [None, Shuffled()], ids=["without buckets", "with buckets"])


def words_of(ids, version=0):
    """A code for each id, all of them different."""
    codes = [some_codes(np.random.default_rng([id_, version]), 1, N_BITS)[0] for id_ in ids]
    return to_words(np.array(codes, dtype=np.uint8).reshape(len(ids), 75), N_BITS)


def columns_of(ids):
    ids = np.asarray(ids, dtype=np.int64)
    return {"norm": ids.astype(np.float32) / 2, "pair": np.stack([ids, -ids], axis=1)}


def add(store, ids, version=0, **options):
    ids = np.array(ids, dtype=np.int64)
    return store.add(ids, words_of(ids.tolist(), version), columns_of(ids), **options)


def remove(store, ids):
    store.remove(np.array(ids, dtype=np.int64))


def check(snapshot, ids, versions=None):
    """A snapshot has just these ids, in order in each segment, with their codes and columns."""
    ids = np.array(sorted(ids), dtype=np.int64)
    np.testing.assert_array_equal(snapshot.ids(), ids)
    assert snapshot.n_rows == len(ids)
    assert snapshot.contains(ids).all()
    assert not snapshot.contains(np.array([999_999, -1])).any()
    for segment in snapshot.segments:
        assert segment.n_rows > 0
        order = segment.order if segment.order.size else np.arange(segment.n_rows)
        assert (segment.ids[order][1:] > segment.ids[order][:-1]).all()
        np.testing.assert_array_equal(segment.ranks, np.argsort(order) if segment.order.size else [])
        assert len(segment.removed) in (0, segment.n_rows)
    expected = [words_of([id_], (versions or {}).get(id_, 0))[0] for id_ in ids.tolist()]
    np.testing.assert_array_equal(snapshot.codes_of(ids, N_BITS), np.array(expected).reshape(len(ids), 10))
    for name, values in columns_of(ids).items():
        np.testing.assert_array_equal(snapshot.column_of(name, ids, COLUMNS[name]), values)


def frozen(snapshot):
    """A deep copy of all that a search reads of a snapshot."""
    return [
        (s.ids.copy(), s.removed.copy(), s.codes.take(np.arange(s.n_rows)), {n: v.copy() for n, v in s.columns.items()})
        for s in snapshot.segments
    ]


@pytest.mark.usefixtures("small_buffer")
@MAKERS
def test_snapshots_are_not_affected_by_later_writes(buckets):
    store = RowStore(N_BITS, COLUMNS, buckets)
    taken = [(store.snapshot(), [])]
    writes = [
        lambda: add(store, [0]),
        lambda: add(store, [1]),
        lambda: add(store, [2]),  # the buffer grows
        lambda: add(store, [9, 7, 8]),  # out of order
        lambda: remove(store, [1, 8]),
        lambda: add(store, [8]),  # an id that a removed row had
        lambda: add(store, [20, 21, 22]),  # the buffer is sealed
        lambda: remove(store, [0, 20]),
        lambda: add(store, [35, 34, 33, 32, 31, 30]),  # a segment at once
        lambda: add(store, [9, 21, 31, 50], version=1, replace=True),
        store.compact,
        lambda: remove(store, [50]),
        lambda: add(store, [51]),
    ]
    for write in writes:
        write()
        taken.append((store.snapshot(), frozen(store.snapshot())))
    for snapshot, before in taken:
        for segment_now, segment_then in zip(frozen(snapshot), before, strict=True):
            for now, then in zip(segment_now[:3], segment_then[:3], strict=True):
                np.testing.assert_array_equal(now, then)
            for name, values in segment_then[3].items():
                np.testing.assert_array_equal(segment_now[3][name], values)
    versions = dict.fromkeys([9, 21, 31], 1)
    check(store.snapshot(), [2, 7, 8, 9, 21, 22, 30, 31, 32, 33, 34, 35, 51], versions)


def test_the_same_rows_give_the_same_snapshot():
    """Rows out of order are put in order once, not at every search."""
    store = RowStore(N_BITS, COLUMNS)
    add(store, [5, 3])
    assert store.snapshot().segments[0] is store.snapshot().segments[0]


@pytest.mark.usefixtures("small_buffer")
@pytest.mark.parametrize("ids", [range(30), range(29, -1, -1), [7 * i % 30 for i in range(30)]])
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 7, 30])
@MAKERS
def test_batches_of_any_size_and_order(ids, batch, buckets):
    store, ids = RowStore(N_BITS, COLUMNS, buckets), list(ids)
    for start in range(0, 30, batch):
        add(store, ids[start : start + batch])
        check(store.snapshot(), ids[: start + batch])
    # No segment holds less than half of a full buffer, but for the newest, and each has its buckets.
    assert all(segment.n_rows >= 4 for segment in store.snapshot().segments[:-1])
    assert all(segment.buckets is buckets for segment in store.snapshot().segments[:-1] if segment.n_rows >= 6)


@pytest.mark.usefixtures("small_buffer")
@MAKERS
@pytest.mark.parametrize("batch", [1, 3, 5, 8])
def test_segments_are_few(batch, buckets):
    """Each is at least twice the size of the next, up to the one that is written to."""
    store, ids = RowStore(N_BITS, COLUMNS, buckets), [37 * i % 256 for i in range(256)]
    for start in range(0, 256, batch):
        add(store, ids[start : start + batch])
        sizes = [segment.n_rows for segment in store._contents.sealed]
        assert all(size >= 2 * after for size, after in itertools.pairwise(sizes))
    assert len(sizes) <= 1 + np.log2(256 / 4)
    check(store.snapshot(), ids)


@pytest.mark.usefixtures("small_buffer")
@MAKERS
def test_joining_drops_removed_rows(buckets):
    store = RowStore(N_BITS, COLUMNS, buckets)
    add(store, range(20, 28))
    remove(store, [21, 25])
    before = store.snapshot()
    was = frozen(before)
    assert store.snapshot().stats()["removed"] == 2
    add(store, range(9, 1, -1))
    (segment,) = store.snapshot().segments
    assert segment.removed is NOT_HIDDEN
    check(store.snapshot(), [*range(2, 10), 20, 22, 23, 24, 26, 27])
    # A reader that began before sees what it saw.
    check(before, [20, 22, 23, 24, 26, 27])
    np.testing.assert_array_equal(frozen(before)[0][0], was[0][0])
    np.testing.assert_array_equal(frozen(before)[0][1], was[0][1])


@pytest.mark.usefixtures("small_buffer")
def test_large_segments_are_not_joined(monkeypatch):
    tune(monkeypatch, large_segment_rows=20)
    store = RowStore(N_BITS, COLUMNS)
    for start in range(0, 80, 8):
        add(store, range(start, start + 8))
    assert [segment.n_rows for segment in store.snapshot().segments] == [16, 16, 16, 16, 16]
    check(store.snapshot(), range(80))


@pytest.mark.usefixtures("small_buffer")
@MAKERS
def test_a_segment_without_rows_left_is_dropped(buckets):
    store = RowStore(N_BITS, COLUMNS, buckets)
    add(store, range(100, 120))
    add(store, range(8))
    assert len(store.snapshot().segments) == 2
    before = store.snapshot()
    remove(store, range(4))
    assert len(store.snapshot().segments) == 2
    remove(store, range(4, 8))
    assert len(store.snapshot().segments) == 1
    check(store.snapshot(), range(100, 120))
    check(before, [*range(8), *range(100, 120)])
    # By adding others in their place, too.
    add(store, range(100, 120), version=1, replace=True)
    assert len(store.snapshot().segments) == 1
    check(store.snapshot(), range(100, 120), dict.fromkeys(range(100, 120), 1))


@pytest.mark.usefixtures("small_buffer")
@pytest.mark.parametrize("ids", [range(6), range(5, -1, -1)])
def test_a_buffer_without_rows_left_makes_no_segment(ids):
    store = RowStore(N_BITS, COLUMNS)
    for id_ in ids:
        add(store, [id_])
    remove(store, ids)
    add(store, [10, 11, 12])
    assert store.snapshot().stats()["removed"] == 0
    check(store.snapshot(), [10, 11, 12])


@pytest.mark.usefixtures("small_buffer")
def test_new_ids_are_never_used_twice():
    store = RowStore(N_BITS)
    np.testing.assert_array_equal(store.add(None, words_of([0, 1])), [0, 1])
    remove(store, [1])
    np.testing.assert_array_equal(store.add(None, words_of([2])), [2])
    np.testing.assert_array_equal(store.add(np.array([10]), words_of([10])), [10])
    store.compact()
    for same in (store, pickle.loads(pickle.dumps(store))):
        np.testing.assert_array_equal(same.add(None, words_of([11])), [11])
    assert store.add(None, words_of([])).shape == (0,)


def test_after_the_last_id():
    store, last = RowStore(N_BITS, COLUMNS), 2**63 - 1
    add(store, [last - 2])
    np.testing.assert_array_equal(store.add(None, words_of([0]), columns_of([0])), [last - 1])
    for _ in range(2):
        with pytest.raises(ValueError, match="no new ids after"):
            store.add(None, words_of([0]), columns_of([0]))
    np.testing.assert_array_equal(store.snapshot().ids(), [last - 2, last - 1])
    add(store, [last, 5])
    np.testing.assert_array_equal(store.snapshot().ids(), [5, last - 2, last - 1, last])


@pytest.mark.usefixtures("small_buffer")
@MAKERS
def test_a_taken_id(buckets):
    store = RowStore(N_BITS, COLUMNS, buckets)
    add(store, [0, 1, 2, 3, 4])  # a segment
    add(store, [5, 6])  # the buffer
    for id_ in (3, 6):
        with pytest.raises(ValueError, match=f"id {id_} is taken"):
            add(store, [10, id_, 11], version=1)
        check(store.snapshot(), range(7))
    add(store, [3, 6, 12], version=1, replace=True)
    check(store.snapshot(), [*range(7), 12], dict.fromkeys([3, 6, 12], 1))
    add(store, [3, 6], version=2, replace=True)
    check(store.snapshot(), [*range(7), 12], {3: 2, 6: 2, 12: 1})


@pytest.mark.usefixtures("small_buffer")
def test_an_unknown_id_is_not_removed():
    store = RowStore(N_BITS, COLUMNS)
    add(store, range(5))
    add(store, [5, 6])
    for ids in ([7], [0, 5, 7], [-1]):
        with pytest.raises(ValueError, match=f"id {ids[-1]} is not in the index"):
            remove(store, ids)
        check(store.snapshot(), range(7))
    remove(store, [0, 5])
    with pytest.raises(ValueError, match="id 0 is not in the index"):
        remove(store, [1, 0])
    check(store.snapshot(), [1, 2, 3, 4, 6])


@pytest.mark.usefixtures("small_buffer")
@pytest.mark.parametrize("ids", [[1], [3, 1], [4, 3, 2, 1, 0], [5, 4, 3], [6, 5, 4, 3, 2, 1, 0]])
@MAKERS
def test_all_rows_removed(ids, buckets):
    """Whether they were in order or not, sealed or not, no segment without rows is left to search."""
    store = RowStore(N_BITS, COLUMNS, buckets)
    add(store, ids)
    remove(store, ids)
    check(store.snapshot(), [])
    for start in range(20, 44, 3):
        add(store, range(start, start + 3))
    check(store.snapshot(), range(20, 44))
    store.compact()
    check(store.snapshot(), range(20, 44))
    remove(store, range(20, 44))
    store.compact()
    assert store.snapshot().segments == ()


@pytest.mark.usefixtures("small_buffer")
@MAKERS
def test_compact(buckets):
    store = RowStore(N_BITS, COLUMNS, buckets)
    for start in range(0, 30, 3):
        add(store, [start + 100, start + 1, start])
    remove(store, [0, 4, 100])
    ids = store.snapshot().ids()
    store.compact()
    check(store.snapshot(), [i for s in range(0, 30, 3) for i in (s + 100, s + 1, s) if i not in (0, 4, 100)])
    (segment,) = store.snapshot().segments
    assert segment.removed is NOT_HIDDEN
    assert segment.buckets is buckets
    np.testing.assert_array_equal(np.sort(segment.ids), ids)
    store.compact()  # nothing to do
    assert store.snapshot().segments[0] is segment
    remove(store, [1])
    store.compact()
    assert store.snapshot().segments[0].removed is NOT_HIDDEN
    assert store.snapshot().segments[0].buckets is buckets


@pytest.mark.usefixtures("small_buffer")
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda store: pickle.loads(pickle.dumps(store))])
@MAKERS
def test_copies_are_independent(again, buckets):
    store = RowStore(N_BITS, COLUMNS, buckets)
    add(store, range(5))
    add(store, [6, 5])
    remove(store, [1])
    other = again(store)
    check(other.snapshot(), [0, 2, 3, 4, 5, 6])
    add(store, [7])
    remove(store, [2, 5])
    add(other, [8, 9])
    remove(other, [3, 6])
    add(other, [4], version=1, replace=True)
    check(store.snapshot(), [0, 3, 4, 6, 7])
    check(other.snapshot(), [0, 2, 4, 5, 8, 9], {4: 1})


def test_ids_and_codes_are_copied():
    store = RowStore(N_BITS, COLUMNS)
    for ids in ([1, 2], range(10, 50_000)):
        ids = np.array(ids)
        words, columns = np.zeros((len(ids), 10), dtype=np.uint64), columns_of(ids)
        store.add(ids, words, columns)
        names = ids.copy()
        ids[:], words[:] = 0, 1
        assert store.snapshot().contains(names).all()
        assert not store.snapshot().codes_of(names, N_BITS).any()
        assert (store.snapshot().column_of("norm", names, COLUMNS["norm"]) == names.astype(np.float32) / 2).all()


def test_wide_rows_make_a_smaller_buffer(monkeypatch):
    tune(monkeypatch, buffer_bytes=100 * 8 * 11)
    store = RowStore(N_BITS, {"weight": Column(np.float64)})
    for i in range(120):
        store.add(None, words_of([i]), {"weight": np.array([1.0])})
    assert [segment.n_rows for segment in store.snapshot().segments] == [100, 20]


IDS = st.lists(st.integers(-3, 30), max_size=15)


def segment_of(ids):
    ids = np.array(sorted(ids), dtype=np.int64)
    return Segment(ids, CodeRows.of(words_of(ids.tolist()), N_BITS), columns_of(ids), NOT_HIDDEN)


@given(ids=st.sets(st.integers(0, 25), min_size=1), shuffled=st.booleans())
def test_rows_in_the_order_of_ids(ids, shuffled):
    """Keys have the places of rows in that order, whatever order the rows are in."""
    segment = segment_of(ids)
    if shuffled:
        segment = Shuffled().arrange(segment)
    ordered = np.array(sorted(ids))
    keys = HammingKeys(np.concatenate([np.arange(len(ids), dtype=np.uint64) + np.uint64(5 << 32), [NO_KEY]]))
    np.testing.assert_array_equal(segment.ids_of(keys), [*ordered, -1])
    np.testing.assert_array_equal(segment.ids[segment.rows_of(keys)[:-1]], ordered)
    assert segment.rows_of(keys)[-1] in range(len(ids))
    in_order = segment.without_removed()
    np.testing.assert_array_equal(in_order.ids, ordered)
    assert (in_order.order.size, in_order.ranks.size, in_order.buckets) == (0, 0, None)
    np.testing.assert_array_equal(in_order.codes.take(np.arange(len(ids))), words_of(ordered.tolist()))


@given(
    ids=st.sets(st.integers(0, 25), min_size=1), shuffled=st.booleans(), removed=IDS, allow=st.none() | IDS,
    deny=st.none() | IDS,
)  # fmt: skip
def test_hidden_rows_of_a_segment(ids, shuffled, removed, allow, deny):
    segment = segment_of(ids)
    if shuffled:
        segment = Shuffled().arrange(segment)
    ids = segment.ids
    gone = [row for row, id_ in enumerate(ids) if id_ in removed]
    if gone:
        segment = segment.without(np.array(gone))
    assert segment.n_removed == len(gone)
    wanted = np.arange(-3, 31)
    rows = {int(id_): row for row, id_ in enumerate(ids) if row not in gone}
    np.testing.assert_array_equal(segment.find(wanted), [rows.get(int(id_), -1) for id_ in wanted])
    ids_wanted = IdFilter.checked(allow, deny)
    allowed = ids_wanted.rows_of(segment)
    hidden = ids_wanted.hidden(segment, allowed)
    expected = [
        id_ in removed or (allow is not None and id_ not in allow) or (deny is not None and id_ in deny) for id_ in ids
    ]
    np.testing.assert_array_equal(hidden if hidden.size else np.zeros(len(ids), bool), expected)
    if allow is not None:
        permitted = sorted(id_ for id_, is_hidden in zip(ids.tolist(), expected, strict=True) if not is_hidden)
        np.testing.assert_array_equal(segment.ids[allowed], permitted)
    else:
        assert allowed is None
    left = segment.without_removed()
    np.testing.assert_array_equal(left.ids, sorted(id_ for id_ in ids if id_ not in removed))
    np.testing.assert_array_equal(left.codes.take(np.arange(left.n_rows)), words_of(left.ids.tolist()))
    np.testing.assert_array_equal(left.columns["pair"], columns_of(left.ids)["pair"])


@pytest.mark.parametrize("large", [1, 7, 64, 512, 2**22])
@pytest.mark.parametrize("seed", range(3))
def test_there_are_never_more_segments_than_a_load_takes(large, seed):
    rng = np.random.default_rng(seed)
    with tuned(buffer_rows=4, least_buffer_rows=1):
        rows = RowStore(64)
        rows._large_rows = large
        for size in [2**n for n in range(9, -1, -1)] * 3 + rng.integers(1, 40, 60).tolist():
            rows.add(None, rng.integers(0, 2**63, (size, 1), dtype=np.uint64))
            segments = rows.seal()
            assert len(segments) <= rows.most_segments(sum(segment.n_rows for segment in segments))
    assert RowStore(64).most_segments(20_000) < 20_000


@pytest.mark.parametrize("named", [False, True])
def test_rows_that_are_all_removed_leave_no_segment(named):
    """Neither in sealed segments nor in the buffer, and readers of an older snapshot see the rows that they saw."""
    with tuned(buffer_rows=8, least_buffer_rows=2):
        store = RowStore(N_BITS, COLUMNS)
        store = store.keeping_names() if named else store

        def add(first, n, replace=False):
            ids = np.arange(first, first + n)
            columns = dict(columns_of(ids))
            if named:
                store.add(None, words_of(ids.tolist()), columns | {NAMES: Names.of(names(ids))}, replace=replace)
            else:
                store.add(ids, words_of(ids.tolist()), columns, replace=replace)

        def names(ids):
            return [f"row {i}" for i in ids]

        def of(ids):
            return Names.of(names(ids)) if named else np.array(ids)

        add(0, 6)
        add(6, 3)
        before = store.snapshot()
        assert [segment.n_rows for segment in before.segments] == [6, 3]
        store.remove(of([6, 7]))
        assert len(store.snapshot().segments) == 2
        store.remove(of([8]))
        assert [segment.n_rows for segment in store.snapshot().segments] == [6]
        add(20, 2)
        np.testing.assert_array_equal(before.segments[1].codes.take(np.arange(3)), words_of([6, 7, 8]))
        np.testing.assert_array_equal(before.segments[1].columns["pair"], columns_of(np.arange(6, 9))["pair"])
        add(20, 2, replace=True)
        assert store.snapshot().segments[1].n_removed == 0
        store.remove(of(range(6)))
        assert [segment.n_rows for segment in store.snapshot().segments] == [2]
        store.remove(of([20, 21]))
        assert store.snapshot().segments == ()
        assert store.n_rows == 0
        add(30, 1)
        assert store.n_rows == 1
