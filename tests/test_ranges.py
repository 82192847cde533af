"""Range search in cells and tables: what is promised comes, nothing else does, and calibrations hold in files."""

import math
import pickle

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import CBEIndex
from cbeindex.kernels import cellrange
from cbeindex.search.buckets.cellrange import RangeCall
from cbeindex.search.rangecalibration import SHARES, RangeCalibration
from cbeindex.search.tablerange import most_bits
from tests import vector_oracles
from tests.small import buckets_of, check_equal, examples, small_buckets
from tests.vector_oracles import clustered

DIM = 24


@pytest.fixture(autouse=True)
def _small():
    changes = {
        "least_centre_rows": 4, "centre_sample_rows": 10**4, "least_calibration_queries": 300, "kmeans_iterations": 4,
        "most_calibration_queries": 300, "kmeans_rows": 32, "graph_building_beam": 32, "graph_step_rows": 4,
        "first_rows": 500, "first_range_room": 64,
    }  # fmt: skip
    with small_buckets(changes):
        yield


def some_vectors(n, seed=0):
    return clustered(n, DIM, seed=seed, n_centres=40)


ROWS, QUERIES = some_vectors(1_700)[:1_500], some_vectors(1_700)[1_500:]


def an_index(kind="cells", rows=ROWS, **options):
    index = CBEIndex(DIM, buckets=kind, **{"vectors": "float32", "metric": "l2", **options})
    index.add(rows)
    return index


def results(found):
    """The results of each query, {id: distance}."""
    parts = zip(found.lims[:-1], found.lims[1:], strict=True)
    return [dict(zip(found.ids[a:b].tolist(), found.distances[a:b].tolist(), strict=True)) for a, b in parts]


def radius_of(index, n, queries=QUERIES):
    """A radius with `n` rows a query on average."""
    distances = vector_oracles.distances(index.metric, queries, ROWS)
    return float(np.sort(distances.ravel())[int(n * len(queries))])


def check_promise(index, n, recall):
    radius = radius_of(index, n)
    every = results(index.range_search(QUERIES, radius, recall=1.0))
    found = index.range_search(QUERIES, radius, recall=recall)
    some = results(found)
    assert all(mine.items() <= theirs.items() for mine, theirs in zip(some, every, strict=True))
    shares = np.array([len(mine) / len(theirs) for mine, theirs in zip(some, every, strict=True) if theirs])
    error = shares.std() / math.sqrt(len(shares))
    assert shares.mean() >= recall - 0.01 - 3 * error, (n, recall, shares.mean())
    return found, every


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("vectors", ["float32", "float16", "int8"])
def test_cells_find_the_share_that_was_asked_for(metric, vectors):
    index = an_index(metric=metric, vectors=vectors)
    visited = []
    for n in (0.1, 1, 5, 20):
        for recall in (0.8, 0.95):
            found, _ = check_promise(index, n, recall)
            assert found.stats["mode"] == "buckets"
            visited.append(found.stats["visited"] / len(QUERIES))
    assert max(visited[:2]) < 0.3 * len(ROWS)


def test_the_promise_holds_after_changes_and_in_files(tmp_path):
    index = an_index()
    index.remove(np.arange(300))
    check_promise(index, 10, 0.9)
    index.add(ROWS[:300], ids=np.arange(300))
    check_promise(index, 10, 0.9)
    path = tmp_path / "index.cbe"
    index.save(path)
    loaded, radius = CBEIndex.load(path), radius_of(index, 5)
    check_equal(loaded.range_search(QUERIES, radius), index.range_search(QUERIES, radius))
    assert [b.ranges.radii for b in buckets_of(loaded)] == [b.ranges.radii for b in buckets_of(index)]
    tuned = loaded.tune(QUERIES)
    check_promise(tuned, 10, 0.9)


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
@pytest.mark.parametrize("kind", ["cells", "substrings", None])
def test_all_rows_within_a_radius(kind, metric):
    """Recall 1 finds what brute force finds, of the rows that are allowed, whatever the number of threads."""
    index = an_index(kind, metric=metric)
    distances = vector_oracles.distances(metric, QUERIES[:20], ROWS)
    radius = float(np.quantile(distances, 0.02))
    radius = float(distances.ravel()[np.argsort(np.abs(distances.ravel() - radius))[:2]].mean())
    for options in ({}, {"allow": np.arange(0, 1_500, 3)}, {"allow": np.arange(9)}, {"deny": np.arange(700)}):
        one = index.range_search(QUERIES[:20], radius, recall=1.0, n_threads=1, **options)
        allowed = set(options.get("allow", range(1_500))) - set(options.get("deny", ()))
        for i, found in enumerate(results(one)):
            assert set(found) == set(np.flatnonzero(distances[i] <= radius).tolist()) & allowed
        check_equal(index.range_search(QUERIES[:20], radius, recall=1.0, n_threads=3, **options), one)
        some = results(index.range_search(QUERIES[:20], radius, recall=0.9, **options))
        assert all(mine.items() <= theirs.items() for mine, theirs in zip(some, results(one), strict=True))


def test_rows_themselves_are_within_a_radius_of_nothing():
    index = an_index()
    found = index.range_search(ROWS, 0.0)
    assert found.stats["visited"] < 0.3 * len(ROWS) ** 2
    assert np.mean([row in own for row, own in enumerate(results(found))]) >= 0.94
    assert index.range_search(ROWS, 0.0, recall=1.0).lims[-1] >= len(ROWS)
    assert index.range_search(QUERIES, -1.0).lims[-1] == 0
    assert index.range_search(QUERIES[:0], 1.0).lims.tolist() == [0]
    assert len(index.range_search(QUERIES[0], math.inf).ids) == len(ROWS)


def test_codes_only_are_scanned_unless_a_recall_is_given():
    index = an_index(vectors=None)
    radius = radius_of(index, 10)
    by_default, every = (index.range_search(QUERIES, radius, **o) for o in ({}, {"recall": 1.0}))
    check_equal(by_default, every)
    assert by_default.stats["mode"] == "scan"
    estimates = index.search(QUERIES, len(ROWS), mode="scan")
    for i, found in enumerate(results(by_default)):
        assert set(found) == set(estimates.ids[i, estimates.distances[i] <= np.float32(radius)].tolist())


@pytest.mark.parametrize("kind", ["cells", "graph", None])
@pytest.mark.parametrize("vectors", [None, "int8", "float32"])
def test_errors_are_those_of_search(kind, vectors):
    index = an_index(kind, vectors=vectors)
    near = index.search(QUERIES[:5], 20, mode="scan")
    queries = QUERIES[:5].copy()
    found = index.range_search(queries, float(np.median(near.distances)), recall=1.0)
    queries[:] = 100  # the caller's array may change before the errors are read
    if vectors == "float32":
        assert found.errors is None
        return
    assert found.errors.shape == found.ids.shape
    assert found.errors.dtype == np.float32
    for i in range(5):
        own = {int(id_): error for id_, error in zip(near.ids[i], near.errors[i], strict=True)}
        part = slice(found.lims[i], found.lims[i + 1])
        for id_, error in zip(found.ids[part].tolist(), found.errors[part].tolist(), strict=True):
            assert id_ not in own or error == pytest.approx(own[id_], rel=1e-3)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.errors, found.errors)
    assert again.stats == found.stats
    one = index.range_search(QUERIES[0], -math.inf)
    assert one.errors.shape == (0,)


def test_few_queries_leave_what_stored_rows_told_of_ranges():
    index = an_index()
    assert index.range_search(QUERIES, radius_of(index, 5)).stats["mode"] == "buckets"
    index.tune(QUERIES[:20])
    assert index.range_search(QUERIES, radius_of(index, 5)).stats["mode"] == "buckets"


def test_a_graph_does_not_state_the_recall_of_another_search():
    index = an_index("graph")
    radius = radius_of(index, 5)
    assert "expected_recall" not in index.range_search(QUERIES, radius).stats
    assert index.range_search(QUERIES, radius, recall=1.0).stats["expected_recall"] == 1
    assert "walked" in index.explain(QUERIES, radius=radius)
    assert "every row is compared" in index.explain(QUERIES, radius=radius, recall=1.0)


def test_sparse_queries_and_rows():
    rows = np.where(np.random.default_rng(0).random(ROWS.shape) < 0.5, 0, ROWS)
    index = CBEIndex(DIM, metric="l2", vectors="float32", buckets="cells")
    index.add(scipy.sparse.csr_array(rows))
    distances = vector_oracles.distances("l2", rows[:9], rows)
    radius = float(np.quantile(distances, 0.01))
    for i, found in enumerate(results(index.range_search(scipy.sparse.csr_array(rows[:9]), radius, recall=1.0))):
        assert set(found) == set(np.flatnonzero(distances[i] <= radius).tolist())


def test_tables_find_near_duplicates():
    rng = np.random.default_rng(1)
    copies = ROWS[:200] + 0.02 * rng.standard_normal((200, DIM)).astype(np.float32)
    index = CBEIndex(DIM, n_bits=256, metric="l2", vectors="float32", buckets="substrings")
    index.add(np.concatenate([ROWS, copies.astype(np.float32)]))
    radius = 1.5 * 0.02**2 * DIM
    every = results(index.range_search(ROWS[:200], radius, recall=1.0))
    found = index.range_search(ROWS[:200], radius)
    assert found.stats["mode"] == "buckets"
    some = results(found)
    assert all(mine.items() <= theirs.items() for mine, theirs in zip(some, every, strict=True))
    n_all = sum(map(len, every))
    assert n_all > 350
    assert sum(map(len, some)) >= 0.93 * n_all


def test_explain_says_which_cells_are_visited():
    index = an_index()
    near, far = index.explain(QUERIES, radius=radius_of(index, 1)), index.explain(QUERIES, radius=1e9)
    assert (near.mode, far.mode) == ("buckets", "scan")
    assert "cells are visited" in near
    assert "every row is compared" in far
    assert near.expected_recall == 0.95
    assert near.ways["buckets"].rows < 0.5 * near.ways["scan"].rows
    assert index.explain(QUERIES, radius=1.0, recall=1.0).expected_recall == 1.0


BAD = [
    (lambda i: i.range_search(QUERIES, 1, recall=0), ValueError, "recall must be above 0 and at most 1, got 0"),
    (lambda i: i.range_search(QUERIES, 1, recall=1.5), ValueError, "recall must be above 0 and at most 1"),
    (lambda i: i.range_search(QUERIES, 1, recall=math.nan), ValueError, "recall must not be NaN"),
    (lambda i: i.range_search(QUERIES, 1, recall="high"), TypeError, "recall must be a number"),
    (lambda i: i.explain(QUERIES, 5, radius=1.0), ValueError, "a range search has no k, mode"),
    (lambda i: i.explain(QUERIES, rerank=None, radius=1.0), ValueError, "rerank must not be None"),
    (lambda i: i.explain(QUERIES, radius="far"), TypeError, "radius must be a number"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(an_index(rows=ROWS[:20]))


# --- calibrations ---


def a_calibration():
    gaps = np.array([[0.0, 0, 0, 1, 1, 1, 2], [2, 3, 4, 5, 6, 8, math.inf], [4, 5, 6, 7, 8, math.inf, math.inf]])
    return RangeCalibration((0.0, 4.0, 9.0), gaps, np.minimum(1, gaps / 10))


@given(st.floats(0, 12), st.floats(0, 12), st.floats(0.01, 1), st.floats(0.01, 1))
@examples(100)
def test_gaps_rise_with_radius_and_share(a, b, c, d):
    ranges = a_calibration()
    (near, far), (few, most) = sorted((a, b)), sorted((c, d))
    assert ranges.gap(near, few) <= ranges.gap(far, most) * (1 + 1e-12) + 1e-12
    assert 0 <= ranges.visited(near, few) <= 1


def test_gaps_between_and_beyond_what_was_measured():
    ranges = a_calibration()
    assert ranges.gap(4.0, 0.95) == pytest.approx(5)
    assert ranges.gap(6.25, 0.95) == pytest.approx(6)  # half-way between the roots 2 and 3
    assert ranges.gap(1.0, 0.95) == pytest.approx(3)
    assert ranges.gap(0.0, 0.95) == ranges.gap(-1.0, 0.95) == 1
    assert ranges.gap(4.0, 0.1) == pytest.approx(2)
    assert ranges.gap(9.1, 0.5) == ranges.gap(1.0, 0.999) == ranges.gap(5.0, 0.99) == math.inf
    assert ranges.visited(9.1, 0.5) == 1


def test_files_hold_calibrations():
    ranges = a_calibration()
    again = RangeCalibration.checked(ranges.describe())
    assert again.radii == ranges.radii
    np.testing.assert_array_equal(again.gaps, ranges.gaps)
    np.testing.assert_allclose(again.visits, ranges.visits, atol=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"radii": []},
        {"radii": [1.0, 2.0, 3.0]},
        {"radii": [0.0, 1.0, 1.0]},
        {"radii": [0.0, 2.0, math.inf]},
        {"radii": [0.0, 2.0, math.nan]},
        {"radii": [0.0, 2.0, "3"]},
        {"radii": 3},
        {"radii": list(range(99))},
        {"gaps": [[1.0] * len(SHARES)] * 2},
        {"gaps": [[1.0] * 3] * 3},
        {"gaps": [[-1.0] * len(SHARES)] * 3},
        {"gaps": [[math.nan] * len(SHARES)] * 3},
        {"visits": [[2.0] * len(SHARES)] * 3},
        {"visits": [[None] * len(SHARES)] * 3},
        {"visits": None},
    ],
)
def test_files_with_anything_else_are_refused(change):
    with pytest.raises((ValueError, TypeError)):
        RangeCalibration.checked(a_calibration().describe() | change)
    with pytest.raises(ValueError, match="must be an object"):
        RangeCalibration.checked([])


@given(st.integers(0, 999), st.floats(0, 3), st.floats(0, 3), st.floats(0.01, 0.999))
@examples(50)
def test_bits_that_differ(seed, a, b, share):
    """More with the distance and the share; none from a query to itself; a share of simulated rows has no more."""
    rng = np.random.default_rng(seed)
    query = rng.standard_normal(256).astype(np.float32)
    query /= np.linalg.norm(query)
    margins, (near, far) = np.abs(query), sorted((a, b))
    assert most_bits(margins, near, share) <= most_bits(margins, far, share)
    assert most_bits(margins, near, share) <= most_bits(margins, near, 0.9995)
    assert most_bits(margins, 0.0, share) == 0
    steps = rng.standard_normal((400, 256))
    steps *= near / np.linalg.norm(steps, axis=1, keepdims=True)
    differing = np.count_nonzero((query + steps > 0) != (query > 0), axis=1)
    # Five standard errors of the share of 400 rows.
    assert np.mean(differing <= most_bits(margins, near, share)) >= share - 5 * math.sqrt(share * (1 - share) / 400)


# --- kernel ---


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
@pytest.mark.parametrize("n_bits", [DIM, 2 * DIM])
def test_doubts_are_standard_errors(metric, n_bits):
    rows, queries = ROWS[:600].copy(), QUERIES[:3].copy()
    rows[8], queries[2] = 0, 0
    index = an_index(metric=metric, vectors=None, rows=rows, n_bits=n_bits)
    codec, (segment, *_) = index._state.codec, index._state.rows.snapshot().segments
    residuals, column = codec.residuals, segment.columns["residuals"][np.arange(segment.n_rows)]
    prepared = codec.metric.prepare(queries)
    projections = np.asarray(codec.encoder.project(prepared), dtype=np.float32)
    numbers, terms = residuals.numbers_of(column), residuals.doubt_terms(4.0)
    found, near = index.search(queries, 600, mode="scan"), np.empty(segment.n_rows, dtype=np.float32)
    for i, (query, shift) in enumerate(zip(projections, residuals.query_shifts(prepared), strict=True)):
        near[segment.find(found.ids[i])] = found.distances[i]
        errors = residuals.errors(query[np.newaxis], near[np.newaxis], column)[0]
        rounding = 16 * np.finfo(np.float32).eps * (np.abs(numbers.offsets) + near)
        for row in [*range(0, segment.n_rows, 7), *segment.find(np.array([8]))]:
            centre = residuals.centres[numbers.centres[row]].astype(np.float64)
            doubt = cellrange.doubt_of(
                float(near[row]), float(shift), float(numbers.offsets[row]), float(numbers.spreads[row]),
                float(numbers.lengths[row]), float(np.sum((query - centre) ** 2)), float(centre @ centre),
                float(query.astype(np.float64) @ query), terms,
            )  # fmt: skip
            expected = 4 * errors[row] + rounding[row]
            if metric == "cosine" and segment.ids[row] == 8:
                # The part of the query along a zero row is taken for an error, too.
                whole = 4 * terms[2] * numbers.spreads[row] * np.sqrt(np.sum((query - centre) ** 2))
                assert expected <= doubt <= expected + 1.001 * whole
            else:
                assert doubt == pytest.approx(expected, rel=0.02)  # estimates are those of tables of 7 bits
        assert not residuals.doubt_terms(0.0)[:2].any()


@pytest.mark.parametrize("vectors", ["float32", "int8"])
def test_all_rows_are_at_distance_1_from_a_query_of_zeros(vectors):
    """Codes of 1 bit estimate distances around 1, and their errors tell that they may be 1 all the same."""
    index = an_index(metric="cosine", vectors=vectors, rows=ROWS[:600], cell_bits=1)
    radius = 1.0 if vectors == "float32" else 1.01  # levels of 8 bits have errors of some 0.0005
    found = index.range_search(np.zeros(DIM, dtype=np.float32), radius=radius)
    # One in 16,000 rows is missed if errors are right.
    assert len(found.ids) >= 599


@pytest.mark.parametrize("gap", [0.0, 0.5, 3.0, 1e9])
def test_cells_within_a_gap(gap):
    """A search with a gap finds the rows of the cells within it, and no others."""
    index = an_index(metric="l2", vectors=None)
    (segment,) = (s for s in index._state.rows.snapshot().segments if s.buckets.n_cells > 8)
    cells, codec = segment.buckets, index._state.codec
    call = RangeCall(segment, np.empty(0, dtype=np.bool_), gap, reads_vectors=False)
    for query in np.asarray(codec.encoder.project(QUERIES[:20]), dtype=np.float32):
        near, rows, visits = call.of_projections(query, 0.0, math.inf)
        distances = np.sum((query[: cells.centroids.shape[1]] - cells.centroids.astype(np.float64)) ** 2, axis=1)
        inner = distances <= distances.min() + gap * (1 - 1e-5) - 1e-5
        outer = distances <= distances.min() + gap * (1 + 1e-5) + 1e-5
        visited = np.unique(cells.cells_of(rows))
        assert set(visited) <= set(np.flatnonzero(outer))
        assert set(np.flatnonzero(inner & (np.diff(cells.offsets) > 0))) <= set(visited)
        assert len(rows) == len(near) == np.diff(cells.offsets)[visited].sum()
        assert visits[1] >= len(visited)
