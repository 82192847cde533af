"""The rows of a segment that may be answers, and the nearest of them by each way that a plan can name."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.data.codes import CodeRows, to_words
from cbeindex.data.keys import NO_KEY
from cbeindex.search import candidates
from cbeindex.search.buckets import Clusters, Substrings, centroids, clusters, substrings
from cbeindex.search.candidates import View, cells_to_visit
from cbeindex.search.planner import FEW, plan
from cbeindex.search.scan import distances_of
from cbeindex.store.segment import NOT_HIDDEN, Part, Segment
from tests import oracles
from tests.strategies import code_batches, some_codes

KINDS = (None, "clusters", "substrings")
MODES = ("scan", "cascade", "buckets")


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    """Buckets of few rows, with little training."""
    monkeypatch.setattr(substrings, "LEAST_ROWS", 10)
    monkeypatch.setattr(clusters, "LEAST_ROWS", 10)
    monkeypatch.setattr(centroids, "_TRAINING_ROWS", 4)
    monkeypatch.setattr(centroids, "_N_ROUNDS", 1)
    monkeypatch.setattr(clusters, "_N_ASKED", 16)
    monkeypatch.setattr(clusters, "_LEAST_CELL_ROWS", 2)


def segment_of(codes, n_bits, kind, removed=()):
    """A segment of codes with ids 0, 3, 6, ..., some of them removed, and a column that has the ids."""
    ids = 3 * np.arange(len(codes))
    stored = CodeRows.of(to_words(codes, n_bits), n_bits)
    segment = Segment(ids, stored, {"name": ids, "other": -ids}, NOT_HIDDEN)
    if kind is not None:
        segment = (Clusters(n_bits, 5) if kind == "clusters" else Substrings(n_bits)).arrange(segment)
    gone = segment.find(np.unique(np.array(removed, dtype=np.int64)))
    return segment.without(gone[gone >= 0]) if (gone >= 0).any() else segment


def way_of(segment, n_bits, k, mode, kind, n_probes=None):
    parts = [Part(segment.n_rows, segment.buckets)]
    mode = "scan" if mode == "buckets" and kind is None else mode
    return plan(
        n_bits=n_bits, parts=parts, k=k, mode=mode, buckets=kind, n_probes=n_probes if mode == "buckets" else None
    )


@pytest.fixture(params=KINDS)
def segment(request):
    """80 rows of 100 bits."""
    return segment_of(some_codes(np.random.default_rng(0), 80, 100, 9, 0.1), 100, request.param, removed=[0, 33])


def test_without_filters_all_rows_are_viewed(segment):
    view = View.of(segment, None, None)
    assert view.part is segment
    assert view.rows is None
    assert view.n_visible == 78
    np.testing.assert_array_equal(np.sort(segment.ids[view.hidden]), [0, 33])
    keys = np.array([[5, NO_KEY]], dtype=np.uint64)
    assert view.of_segment(keys) is keys


@pytest.mark.parametrize("n_allowed", [8, 40])
def test_many_allowed_rows_are_marked(segment, n_allowed):
    allow = np.arange(3, 3 + 3 * n_allowed, 3)
    view = View.of(segment, allow, np.array([6, 9]))
    assert view.part is segment
    assert set(segment.ids[~view.hidden].tolist()) == set(allow.tolist()) - {0, 6, 9, 33}
    assert view.n_visible == np.count_nonzero(~view.hidden)


@pytest.mark.parametrize("allow", [[6], [6, 9, 30, 60], [1, 2, 6, 9, 60, 9_999], [0, 6, 33]])
def test_few_allowed_rows_are_taken_out(segment, allow):
    """Rows that are removed or denied do not count, nor do ids that there are not."""
    left = [id_ for id_ in allow if id_ % 3 == 0 and id_ < 240 and id_ not in (0, 33, 9)]
    assert len(left) * FEW <= segment.n_rows
    view = View.of(segment, np.array(allow), np.array([9]), ("name",))
    part = view.part
    assert part.ids.tolist() == part.columns["name"].tolist() == left
    assert list(part.columns) == ["name"]
    assert (part.buckets, part.ranks.size, view.hidden.size, view.n_visible) == (None, 0, 0, len(left))
    np.testing.assert_array_equal(segment.ids[view.rows], left)
    np.testing.assert_array_equal(part.codes.take(np.arange(len(left))), segment.codes.take(view.rows))
    # Keys of the part become keys of the same ids in the segment.
    keys = np.array([[7 << 32 | place for place in range(len(left))] + [NO_KEY]], dtype=np.uint64)
    same = view.of_segment(keys)
    np.testing.assert_array_equal(segment.ids_of(same), [[*left, -1]])
    np.testing.assert_array_equal(distances_of(same), distances_of(keys))


@pytest.mark.parametrize(("allow", "deny"), [([], None), ([0], None), ([1, 2, 5_000], None), ([6, 9], [3, 6, 9])])
def test_no_row_is_allowed(segment, allow, deny):
    view = View.of(segment, np.array(allow, dtype=np.int64), None if deny is None else np.array(deny))
    assert view.n_visible == 0
    assert view.part.n_rows == 0
    assert view.of_segment(np.empty((3, 0), dtype=np.uint64)).shape == (3, 0)


IDS = st.none() | st.lists(st.integers(-1, 460), max_size=12) | st.just([*range(0, 300, 3)])


@settings(max_examples=80)
@given(
    code_batches(widths=(1, 64, 130, 1_024, 1_100), sizes=(1, 9, 40, 150)), st.sampled_from(KINDS),
    st.sampled_from(MODES), st.sampled_from([1, 3, 200]), IDS, IDS, st.lists(st.integers(0, 450), max_size=9),
)  # fmt: skip
def test_nearest_rows_by_every_way(batch, kind, mode, k, allow, deny, removed):
    """With as many probes as there are buckets all ways lead to the same rows, whatever is allowed."""
    segment = segment_of(batch.codes, batch.n_bits, kind, removed)
    filters = [None if some is None else np.unique(np.array(some, dtype=np.int64)) for some in (allow, deny)]
    view = View.of(segment, *filters)
    if not view.part.n_rows:
        return
    stats, queries = {}, to_words(batch.queries, batch.n_bits)
    for n_probes in (10**6, None) if kind == "substrings" else (10**6,):
        way = way_of(segment, batch.n_bits, k, mode, kind, n_probes)
        keys = candidates.nearest(view, way, batch.n_bits, queries, k, 1, stats, miss=1e-300)
        assert keys.shape == (len(queries), min(k, view.part.n_rows))
        gone = [*removed, *(deny or [])]
        expected = oracles.nearest(batch.queries, batch.codes, 3 * np.arange(len(batch.codes)), k, allow, gone)
        n = keys.shape[1]
        np.testing.assert_array_equal(segment.ids_of(keys), expected[1][:, :n])
        np.testing.assert_array_equal(distances_of(keys), expected[0][:, :n])
    # Two searches, each of which may look at some rows before it leaves them to a scan.
    assert stats.get("visited", 0) <= 4 * len(queries) * view.part.n_rows


def test_cells_to_visit():
    segment = segment_of(some_codes(np.random.default_rng(0), 80, 100, 9, 0.1), 100, "clusters")
    cells, view = segment.buckets, View.of(segment, None, None)
    assert cells.n_cells == 5

    def visited(view, k, n_probes=None, mode="buckets"):
        return cells_to_visit(view, way_of(segment, 100, k, mode, "clusters", n_probes))

    # So many cells, until they have as many rows as are wanted.
    assert [visited(view, 3, n) for n in (1, 4)] == [(1, 3), (4, 3)]
    assert visited(view, 200, 1) == (1, 80)
    # All cells are all rows, and so they are scanned.
    assert [visited(view, 3, n) for n in (5, 99)] == [None, None]
    assert visited(view, 10_000) is None
    assert visited(view, 3, mode="scan") is None
    by_default = cells.probes_for(3)
    assert visited(view, 3) == ((by_default, max(3, cells.expected_rows(by_default))) if by_default < 5 else None)
    # Where rows are hidden, as many others are looked at as without; where few are left, these alone.
    few = View.of(segment, 3 * np.arange(8), None)
    assert visited(few, 3, 2) == (2, 3)
    assert visited(few, 20, 2) == (2, 8)
    assert visited(View.of(segment, 3 * np.arange(4), None), 3, 2) is None
    tables = segment_of(some_codes(np.random.default_rng(0), 80, 100, 9, 0.1), 100, "substrings")
    assert cells_to_visit(View.of(tables, None, None), way_of(tables, 100, 1, "buckets", "substrings", 2)) is None


@pytest.mark.parametrize("kind", ["clusters", "substrings"])
def test_more_buckets_are_visited_until_there_are_as_many_answers_as_wanted(kind):
    """One bucket has fewer rows than are wanted, and most of these are hidden."""
    codes = some_codes(np.random.default_rng(0), 80, 100, 5, 0.02)
    segment = segment_of(codes, 100, kind)
    queries = to_words(codes[:6], 100)
    for k in (3, 20, 40, 70):
        way = way_of(segment, 100, k, "buckets", kind, 1)
        for allow in (None, 3 * np.arange(0, 80, 2)):
            view, stats = View.of(segment, allow, None), {}
            keys = candidates.nearest(view, way, 100, queries, k, 1, stats)
            n_wanted = min(k, 80 if allow is None else 40)
            assert (keys[:, n_wanted - 1] != NO_KEY).all()
            if k == 70:
                expected = oracles.nearest(codes[:6], codes, 3 * np.arange(80), 70, allow)
                if allow is not None:  # there are no others
                    np.testing.assert_array_equal(segment.ids_of(keys), expected[1])
            assert stats["visited"] > 0


def test_counting():
    stats = {"mode": "scan", "visited": 3}
    candidates.count(stats, visited=np.int64(4), buckets=np.int64(1))
    assert stats == {"mode": "scan", "visited": 7, "buckets": 1}
    assert type(stats["buckets"]) is int
