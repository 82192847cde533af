"""Filters: prepared ones, masks and filters for each query find what the ids that they stand for find."""

import gc
import pickle
import weakref

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import BinaryIndex, CBEIndex, IdFilter
from cbeindex.search import planner, searches
from cbeindex.search.filters import entries_of
from tests import oracles, vector_oracles
from tests.conftest import COMPILED
from tests.small import VERY_SMALL, check_equal, small_buckets

DIM, N = 8, 60
X = vector_oracles.clustered(3 * N, DIM, seed=3)
Q = vector_oracles.clustered(7, DIM, seed=4)
CODES = np.random.default_rng(5).integers(0, 256, (3 * N, 4), dtype=np.uint8)
KINDS = (None, "cells", "graph")


@pytest.fixture(autouse=True)
def _small():
    with small_buckets(VERY_SMALL):
        yield


def names_of(ids):
    return [f"row {i}" for i in ids]


def an_index(kind="cells", ids=None, **options):
    index = CBEIndex(DIM, buckets=kind, **{"vectors": "float32", **options})
    index.add(X[:N], ids)
    return index


def codes_index(ids=None):
    index = BinaryIndex(32)
    index.add(CODES[:N], ids)
    return index


def nearest(index, queries, k, **filters):
    """Search so that all of the nearest are found."""
    if isinstance(index, BinaryIndex):
        return index.search(queries, k, **filters)
    return index.search(queries, k, recall=1.0, **filters)


def both():
    return [(an_index(), Q, X), (codes_index(), CODES[-7:], CODES)]


IDS = st.lists(st.integers(0, 100), max_size=40)


@given(
    kind=st.sampled_from([*KINDS, "codes"]), named=st.booleans(), allow=st.none() | IDS, deny=st.none() | IDS,
    changes=st.lists(st.sampled_from(["add", "remove", "replace", "compact"]), max_size=5), as_mask=st.booleans(),
)  # fmt: skip
def test_a_prepared_filter_stays_right_when_the_index_changes(kind, named, allow, deny, changes, as_mask):
    """A filter of some ids finds what these ids find, whatever has happened since; a mask stands for ids."""
    spell = names_of if named else list
    rows = CODES if kind == "codes" else X
    queries = CODES[-3:] if kind == "codes" else Q[:3]
    with small_buckets(VERY_SMALL):
        index = codes_index(spell(range(N))) if kind == "codes" else an_index(kind, spell(range(N)))
        stored = {i: rows[i] for i in range(N)}
        prepared = index.filter(
            None if allow is None else np.isin(range(N), allow) if as_mask else spell(allow),
            None if deny is None else spell(deny),
        )
        allowed = None if allow is None else [i for i in allow if i < N] if as_mask else allow
        for step, change in enumerate(["none", *changes]):
            if change == "add":
                new = np.arange(N + 10 * step, N + 10 * step + 9)
                index.add(rows[new], spell(new.tolist()))
                stored |= {int(i): rows[i] for i in new}
            elif change == "remove":
                gone = sorted(stored)[step::4]
                index.remove(spell(gone))
                stored = {i: row for i, row in stored.items() if i not in gone}
            elif change == "replace":
                some = sorted(stored)[::3]
                index.add(rows[N : N + len(some)], spell(some), replace=True)
                stored |= dict(zip(some, rows[N : N + len(some)], strict=True))
            elif change == "compact":
                index.compact()
            found = nearest(index, queries, 6, allow=prepared).ids
            ids, vectors = np.array(sorted(stored)), np.array([stored[i] for i in sorted(stored)])
            if not named:
                oracle = (
                    oracles.nearest
                    if kind == "codes"
                    else lambda *args, **kw: vector_oracles.nearest("cosine", *args, **kw)
                )
                expected = oracle(queries, vectors, ids, 6, allow=allowed, deny=deny)[1]
                np.testing.assert_array_equal(found, expected)
            spelled = {
                name: None if side is None else spell(side) for name, side in (("allow", allowed), ("deny", deny))
            }
            np.testing.assert_array_equal(found, nearest(index, queries, 6, **spelled).ids)


@pytest.mark.parametrize("kind", [*KINDS, "codes"])
@pytest.mark.parametrize("named", [False, True])
def test_masks_are_over_the_ids_in_their_order(kind, named):
    """Also when ids are out of order, rows are removed and there are several segments."""
    order = np.random.default_rng(0).permutation(N)
    ids = names_of(order) if named else (3 * order).tolist()
    index = codes_index(ids) if kind == "codes" else an_index(kind, ids)
    queries, radius = (CODES[-3:], 14) if kind == "codes" else (Q[:3], 0.6)
    index.remove(ids[5:17])
    mask = np.random.default_rng(1).random(len(index)) < 0.5
    for given_mask in (mask, mask.tolist()):
        check_equal(nearest(index, queries, 9, allow=given_mask), nearest(index, queries, 9, allow=index.ids[mask]))
        check_equal(nearest(index, queries, 9, deny=given_mask), nearest(index, queries, 9, allow=index.ids[~mask]))
    ids_then = index.ids[mask].tolist()
    both_sides = nearest(index, queries, 9, allow=mask, deny=ids_then[:4])
    check_equal(both_sides, nearest(index, queries, 9, allow=ids_then[4:]))
    found = index.range_search(queries, radius, allow=mask)
    assert len(found.ids)
    for got, want in zip(found, index.range_search(queries, radius, allow=ids_then), strict=True):
        np.testing.assert_array_equal(got, want)
    none = nearest(index, queries, 2, allow=np.zeros(len(index), bool))
    assert set(none.ids.ravel().tolist()) == {None if named else -1}
    for wrong in (np.ones(N, bool), np.ones(0, bool), [True, False]):
        with pytest.raises(ValueError, match=rf"mask, so it must have {len(index)} entries, one for each of index.ids"):
            nearest(index, queries, 2, deny=wrong)
        with pytest.raises(ValueError, match=r"one for each of index\.ids"):
            index.filter(allow=wrong)


@pytest.mark.parametrize("kind", [*KINDS, "codes"])
@pytest.mark.parametrize("named", [False, True])
def test_a_filter_for_each_query(kind, named):
    """Each query finds what it finds alone with its filter; entries may be of any kind, and None."""
    spell = names_of if named else list
    index = codes_index(spell(range(N))) if kind == "codes" else an_index(kind, spell(range(N)))
    queries, radius = (CODES[-7:], 14) if kind == "codes" else (Q, 0.6)
    prepared = index.filter(deny=spell(range(0, N, 2)))
    mask = np.arange(N) % 3 == 0
    filters = [prepared, None, spell([1, 2, 3]), prepared, set(spell([7, 40])), mask, spell([])]
    denied = [None, spell([5]), None, None, spell([7]), spell([0, 3]), None]
    options = {} if kind == "codes" else {"recall": 1.0}
    found = index.search(queries, 5, allow=filters, deny=denied, **options)
    ranges = index.range_search(queries, radius, allow=filters, deny=denied)
    for i, (allow, deny) in enumerate(zip(filters, denied, strict=True)):
        alone = index.search(queries[i], 5, allow=allow, deny=deny, **options)
        check_equal(alone, type(found)(found.distances[i], found.ids[i]))
        near = index.range_search(queries[i : i + 1], radius, allow=allow, deny=deny)
        part = slice(ranges.lims[i], ranges.lims[i + 1])
        np.testing.assert_array_equal(ranges.ids[part], near.ids)
        np.testing.assert_array_equal(ranges.distances[part], near.distances)
    same = index.search(queries[:2], 5, allow=(mask, None), deny=spell([9]), **options)
    assert spell([9])[0] not in same.ids
    assert None not in same.ids
    masks = np.random.default_rng(0).random((7, N)) < 0.4
    by_masks = index.search(queries, 5, allow=masks, **options)
    for i in range(7):
        np.testing.assert_array_equal(by_masks.ids[i], index.search(queries[i], 5, allow=masks[i], **options).ids)
    empty = index.search(queries[:0], 5, allow=masks[:0])
    assert empty.ids.shape == (0, 5)


def test_a_filter_for_each_sparse_or_estimated_query():
    rows = scipy.sparse.csr_array(np.where(X > 1, X, 0).astype(np.float32))
    index = CBEIndex(DIM, vectors="float32")
    index.add(rows[:N])
    filters = [[1, 2, 3], None, range(20, 40)]
    found = index.search(rows[N : N + 3], 3, allow=filters)
    for i, allow in enumerate(filters):
        np.testing.assert_array_equal(found.ids[i], index.search(rows[[N + i]], 3, allow=allow).ids[0])
    estimated = an_index(vectors="int8").search(Q[:3], 3, allow=filters)
    assert estimated.errors.shape == (3, 3)
    assert np.isfinite(estimated.errors).all()
    assert 0 < estimated.stats["expected_recall"] <= 1


def test_queries_with_filters_are_named_by_their_places():
    queries = Q.copy()
    queries[5, 1] = np.nan
    with pytest.raises(ValueError, match="queries must be finite in float32, row 5 is not"):
        an_index().search(queries, 3, allow=[None, [1], [2], None, [1], [2], [3]])


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda i, q: i.search(q[0], 3, allow=[[1], [2]]), ValueError, "single query must be one filter"),
        (lambda i, q: i.range_search(q[0], 3, deny=[None]), ValueError, "deny of a single query must be one filter"),
        (lambda i, q: i.search(q, 3, allow=[[1], [2]]), ValueError, "a filter for each of 7 queries, got 2"),
        (lambda i, q: i.search(q, 3, deny=[None]), ValueError, "deny must have a filter for each of 7 queries, got 1"),
        (lambda i, q: i.search(q, 3, allow=[[1], 2, 3, 4, 5, 6, 7]), ValueError, r"allow must have shape \(n,\)"),
        (lambda i, q: i.search(q, 3, allow=(j for j in (1, 2))), TypeError, r"got a generator, .* use list\(...\)"),
        (lambda i, q: i.search(q, 3, allow=iter([1, 2])), TypeError, "got a list_iterator, which can be read once"),
        (lambda i, q: i.search(q, 3, allow=i.filter([1]), deny=[2]), ValueError, "pass deny to filter"),
        (lambda i, q: i.search(q, 3, deny=i.filter([1])), TypeError, "must be ids or a mask, got a prepared filter"),
        (lambda i, q: i.search(q, 3, allow=np.ones((2, 3, 4), bool)), TypeError, "allow must be integers or strings"),
        (lambda i, q: i.explain(q, 3, allow=[[1], None]), ValueError, "explain describes one filter"),
        (lambda i, q: i.filter(i.filter([1])), TypeError, "got a filter that is prepared already"),
        (lambda i, q: i.filter([[1], [2]]), ValueError, "got a sequence of filters: prepare each of them"),
        (lambda i, q: i.filter(["a"]), TypeError, "ids must be integers, as those of this index are, got strings"),
        (lambda i, q: i.filter(deny=[0.5]), TypeError, "deny must be integers"),
        (lambda i, q: i.filter(3), ValueError, r"allow must have shape \(n,\)"),
    ],
)  # fmt: skip
def test_bad_filters(which, call, error, message):
    index, queries, _ = both()[which]
    with pytest.raises(error, match=message):
        call(index, queries)


def test_lists_of_ids_are_no_lists_of_filters():
    for one in (
        [],
        [1, 2],
        [np.int64(3)],
        ["a"],
        [None, 3],
        [np.array(3)],
        [True, False],
        np.arange(3),
        range(3),
        {1},
        "a",
    ):
        assert entries_of(one) is None
    for several in (
        [None],
        [[1]],
        [None, {1}],
        [IdFilter()],
        ([1], None),
        [range(2)],
        np.ones((2, 3), bool),
        [{}.keys()],
    ):
        assert len(entries_of(several)) == len(several)


@pytest.mark.parametrize("which", [0, 1])
def test_collections_of_ids(which):
    index, queries, _ = both()[which]
    expected = nearest(index, queries, 4, allow=[2, 30, 31])
    for ids in (
        {2, 30, 31},
        frozenset([2, 30, 31]),
        dict.fromkeys([2, 30, 31]).keys(),
        {"a": 2, "b": 30, "c": 31}.values(),
    ):
        check_equal(nearest(index, queries, 4, allow=ids), expected)
        check_equal(nearest(index, queries, 4, allow=index.filter(ids)), expected)
    check_equal(
        nearest(index, queries, 4, allow=range(40, 4, -3)), nearest(index, queries, 4, allow=[*range(40, 4, -3)])
    )


@pytest.mark.parametrize("which", [0, 1])
def test_a_filter_is_a_copy(which):
    """The caller may change the array that a filter was made of."""
    index, queries, _ = both()[which]
    ids, mask = np.array([1, 5, 9]), np.arange(N) < 10
    filters = index.filter(ids), index.filter(mask)
    before = [nearest(index, queries, 3, allow=one) for one in filters]
    ids[:] = 20
    mask[:] = ~mask
    for one, expected in zip(filters, before, strict=True):
        index.add(X[-1:] if which == 0 else CODES[-1:], [N + 50], replace=True)  # so that rows are found anew
        check_equal(nearest(index, queries, 3, allow=one), expected)
        restored = pickle.loads(pickle.dumps(one))
        check_equal(nearest(index, queries, 3, allow=restored), expected)
    assert repr(filters[0]) == "<IdFilter allow: 3 ids>"
    assert repr(index.filter()) == "<IdFilter of all ids>"


@pytest.mark.parametrize("kind", ["cells", "graph"])
def test_searches_with_a_prepared_filter_are_planned_once(kind, monkeypatch):
    plans, made = [], planner.plan
    monkeypatch.setattr(searches, "plan", lambda *args: plans.append(made(*args)) or plans[-1])
    index = an_index(kind)
    one, other = index.filter(range(30)), index.filter(range(30, 60))
    first = index.search(Q[0], 3, allow=one)
    check_equal(index.search(Q[0], 3, allow=one), first)
    assert len(plans) == 1
    assert (index.search(Q[0], 3, allow=other).ids >= 30).all()
    index.search(Q[0], 4, allow=one)
    assert len(plans) == 3
    index.search(Q[0], 3, allow=range(30))
    index.search(Q[0], 3, allow=range(30))
    assert len(plans) == 5
    index.add(Q[:1], [29], replace=True)
    assert index.search(Q[0], 3, allow=one).ids[0] == 29
    assert len(plans) == 6


def test_a_filter_finds_the_rows_of_a_segment_once(monkeypatch):
    index = an_index()
    one, found = index.filter(range(30)), []
    rows_of = IdFilter.rows_of
    monkeypatch.setattr(IdFilter, "rows_of", lambda self, segment: found.append(segment) or rows_of(self, segment))
    for k in (1, 2, 3):
        index.search(Q, k, allow=one)
    n_segments = index.stats()["segments"]
    assert len(found) == n_segments
    index.add(X[N : N + 2])
    index.search(Q, 3, allow=one)
    assert n_segments < len(found) <= n_segments + 2


@pytest.mark.skipif(not COMPILED, reason="needs no kernels")
def test_a_filter_keeps_no_old_rows_alive():
    index = an_index()
    one = index.filter(range(30))
    index.search(Q[0], 3, allow=one)
    old = [weakref.ref(segment) for segment in index._state.rows.search_snapshot().segments]
    index.remove(range(0, 60, 2))
    index.compact()
    gc.collect()
    assert all(segment() is None for segment in old)
    assert set(index.search(Q[0], 3, allow=one).ids) <= set(range(1, 30, 2))


@pytest.mark.parametrize("which", [0, 1])
def test_all_queries_of_a_call_see_the_same_rows(which, monkeypatch):
    """Rows that are added while the first of several filters is searched are not found with the next one."""
    index, queries, _ = both()[which]
    selected, added = IdFilter.selected, []

    def selected_slowly(self, segment):
        if not added:
            added.append(index.add(queries[1:2], [N + 7]))
        return selected(self, segment)

    monkeypatch.setattr(IdFilter, "selected", selected_slowly)
    found = index.search(queries[:2], 3, allow=[range(10), [4, 5, N + 7]])
    assert added
    assert sorted(found.ids[1]) == [-1, 4, 5]
    assert index.search(queries[1], 1, allow=[N + 7]).ids == [N + 7]
