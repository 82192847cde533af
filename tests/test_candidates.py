"""The rows of a segment that may be results, and the nearest of them in each mode of a plan."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.data.codes import CodeRows, to_words
from cbeindex.data.keys import NO_KEY, HammingKeys
from cbeindex.search import candidates
from cbeindex.search.buckets import Clusters, Substrings
from cbeindex.search.buckets.base import Visits
from cbeindex.search.filters import IdFilter
from cbeindex.search.planner import plan, select
from cbeindex.search.queries import CodeQueries
from cbeindex.search.request import IndexTraits, SearchRequest
from cbeindex.search.view import View
from cbeindex.store.segment import NOT_HIDDEN, Segment
from tests import oracles
from tests.small import tune
from tests.strategies import code_batches, some_codes

KINDS = (None, "clusters", "substrings")
MODES = ("scan", "cascade", "buckets")


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    """Buckets of few rows, with little training."""
    tune(monkeypatch, least_table_segment_rows=10, least_cell_segment_rows=10, kmeans_rows=4, kmeans_iterations=1)
    tune(monkeypatch, probe_sample_rows=16, least_cell_rows=2)


def segment_of(codes, n_bits, kind, removed=()):
    """A segment of codes with ids 0, 3, 6, ..., some of them removed, and a column that has the ids."""
    ids = 3 * np.arange(len(codes))
    stored = CodeRows.of(to_words(codes, n_bits), n_bits)
    segment = Segment(ids, stored, {"name": ids, "other": -ids}, NOT_HIDDEN)
    if kind is not None:
        segment = (Clusters(n_bits, 5) if kind == "clusters" else Substrings(n_bits)).arrange(segment)
    gone = segment.find(np.unique(np.array(removed, dtype=np.int64)))
    return segment.without(gone[gone >= 0]) if (gone >= 0).any() else segment


def view_of(segment, allow=None, deny=None, columns=()):
    """The segment as a search with these filters sees it."""
    (selection,) = select([segment], IdFilter.checked(allow, deny))
    return View.of(selection, columns)


def plan_of(segment, n_bits, k, mode, kind, n_probes=None, miss=1e-3):
    mode = "scan" if mode == "buckets" and kind is None else mode
    request = SearchRequest(1, k, mode, n_probes=n_probes if mode == "buckets" else None, miss=miss)
    return plan(IndexTraits(n_bits, buckets=kind), request, [segment])


@pytest.fixture(params=KINDS)
def segment(request):
    """80 rows of 100 bits."""
    return segment_of(some_codes(np.random.default_rng(0), 80, 100, 9, 0.1), 100, request.param, removed=[0, 33])


def test_without_filters_all_rows_are_viewed(segment):
    view = view_of(segment)
    assert view.part is segment
    assert view.rows is None
    assert view.n_visible == 78
    np.testing.assert_array_equal(np.sort(segment.ids[view.hidden]), [0, 33])
    keys = HammingKeys(np.array([[5, NO_KEY]], dtype=np.uint64))
    assert view.segment_keys(keys) is keys


@pytest.mark.parametrize("n_allowed", [8, 40])
def test_many_allowed_rows_are_marked(segment, n_allowed):
    allow = np.arange(3, 3 + 3 * n_allowed, 3)
    view = view_of(segment, allow, np.array([6, 9]))
    assert view.part is segment
    assert set(segment.ids[~view.hidden].tolist()) == set(allow.tolist()) - {0, 6, 9, 33}
    assert view.n_visible == np.count_nonzero(~view.hidden)


@pytest.mark.parametrize("allow", [[6], [6, 9, 30, 60], [1, 2, 6, 9, 60, 9_999], [0, 6, 33]])
def test_few_allowed_rows_are_taken_out(segment, allow):
    """Rows that are removed or denied do not count, nor do ids that there are not."""
    left = [id_ for id_ in allow if id_ % 3 == 0 and id_ < 240 and id_ not in (0, 33, 9)]
    assert len(left) * 16 <= segment.n_rows
    view = view_of(segment, np.array(allow), np.array([9]), ("name",))
    part = view.part
    assert part.ids.tolist() == part.columns["name"].tolist() == left
    assert list(part.columns) == ["name"]
    assert (part.buckets, part.ranks.size, view.hidden.size, view.n_visible) == (None, 0, 0, len(left))
    np.testing.assert_array_equal(segment.ids[view.rows], left)
    np.testing.assert_array_equal(part.codes.take(np.arange(len(left))), segment.codes.take(view.rows))
    # Keys of the part become keys of the same ids in the segment.
    keys = HammingKeys(np.array([[7 << 32 | place for place in range(len(left))] + [NO_KEY]], dtype=np.uint64))
    same = view.segment_keys(keys)
    np.testing.assert_array_equal(segment.ids_of(same), [[*left, -1]])
    np.testing.assert_array_equal(same.distances(), keys.distances())


@pytest.mark.parametrize(("allow", "deny"), [([], None), ([0], None), ([1, 2, 5_000], None), ([6, 9], [3, 6, 9])])
def test_no_row_is_allowed(segment, allow, deny):
    view = view_of(segment, np.array(allow, dtype=np.int64), None if deny is None else np.array(deny))
    assert view.n_visible == 0
    assert view.part.n_rows == 0
    assert view.segment_keys(HammingKeys(np.empty((3, 0), dtype=np.uint64))).shape == (3, 0)


IDS = st.none() | st.lists(st.integers(-1, 460), max_size=12) | st.just([*range(0, 300, 3)])


@settings(max_examples=80)
@given(
    code_batches(widths=(1, 64, 130, 1_024, 1_100), sizes=(1, 9, 40, 150)), st.sampled_from(KINDS),
    st.sampled_from(MODES), st.sampled_from([1, 3, 200]), IDS, IDS, st.lists(st.integers(0, 450), max_size=9),
)  # fmt: skip
def test_nearest_rows_in_every_mode(batch, kind, mode, k, allow, deny, removed):
    """With as many probes as there are buckets all modes find the same rows, whatever is allowed."""
    segment = segment_of(batch.codes, batch.n_bits, kind, removed)
    view = view_of(segment, allow, deny)
    if not view.part.n_rows:
        return
    stats, queries = {}, CodeQueries(to_words(batch.queries, batch.n_bits), batch.n_bits, k)
    for n_probes in (10**6, None) if kind == "substrings" else (10**6,):
        chosen = plan_of(segment, batch.n_bits, k, mode, kind, n_probes, miss=1e-300)
        keys = candidates.nearest(view, queries, chosen, stats)
        assert keys.shape == (len(queries), min(k, view.part.n_rows))
        gone = [*removed, *(deny or [])]
        expected = oracles.nearest(batch.queries, batch.codes, 3 * np.arange(len(batch.codes)), k, allow, gone)
        n = keys.shape[1]
        np.testing.assert_array_equal(segment.ids_of(keys), expected[1][:, :n])
        np.testing.assert_array_equal(keys.distances(), expected[0][:, :n])
    # Two searches, each of which may visit some rows before it leaves them to a scan.
    assert stats.get("visited", 0) <= 4 * len(queries) * view.part.n_rows


def test_cells_to_visit():
    segment = segment_of(some_codes(np.random.default_rng(0), 80, 100, 9, 0.1), 100, "clusters")
    cells, view = segment.buckets, view_of(segment)
    assert cells.n_cells == 5

    def visited(view, k, n_probes=None):
        return cells.probes(view, plan_of(segment, 100, k, "buckets", "clusters", n_probes))

    # As many cells as asked for, and more until they hold the wanted number of rows.
    assert [visited(view, 3, n) for n in (1, 4)] == [(1, 3), (4, 3)]
    assert visited(view, 200, 1) == (1, 80)
    # All cells are all rows, and so they are scanned.
    assert [visited(view, 3, n) for n in (5, 99)] == [None, None]
    assert visited(view, 10_000) is None
    by_default = cells.default_probes(3)
    assert visited(view, 3) == ((by_default, max(3, cells.expected_rows(by_default))) if by_default < 5 else None)
    # Hidden rows do not count.
    few = view_of(segment, 3 * np.arange(8), None)
    assert visited(few, 3, 2) == (2, 3)
    assert visited(few, 20, 2) == (2, 8)
    # A copy of few allowed rows has no cells.
    assert view_of(segment, 3 * np.arange(4), None).part.buckets is None


@pytest.mark.parametrize("kind", ["clusters", "substrings"])
def test_more_buckets_are_visited_until_there_are_enough_results(kind):
    """One bucket has fewer rows than are wanted, and most of these are hidden."""
    codes = some_codes(np.random.default_rng(0), 80, 100, 5, 0.02)
    segment = segment_of(codes, 100, kind)
    for k in (3, 20, 40, 70):
        queries = CodeQueries(to_words(codes[:6], 100), 100, k)
        chosen = plan_of(segment, 100, k, "buckets", kind, 1)
        for allow in (None, 3 * np.arange(0, 80, 2)):
            view, stats = view_of(segment, allow, None), {}
            keys = candidates.nearest(view, queries, chosen, stats)
            n_wanted = min(k, 80 if allow is None else 40)
            assert not keys.is_missing()[:, n_wanted - 1].any()
            if k == 70:
                expected = oracles.nearest(codes[:6], codes, 3 * np.arange(80), 70, allow)
                if allow is not None:  # there are no others
                    np.testing.assert_array_equal(segment.ids_of(keys), expected[1])
            assert stats["visited"] > 0


def test_counting():
    stats = {"mode": "scan", "visited": 3}
    candidates.count_visits(stats, Visits(rows=4, buckets=1))
    assert stats == {"mode": "scan", "visited": 7, "buckets": 1}
    candidates.count_visits(stats, Visits(rows=1, buckets=1, survivors=2))
    assert stats == {"mode": "scan", "visited": 8, "buckets": 2, "survivors": 2}
