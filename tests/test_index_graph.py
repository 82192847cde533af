"""CBEIndex with graphs, against brute force."""

import copy
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import CBEIndex, CirculantEncoder, CorruptIndexFileError, verify
from cbeindex._core.tuning import tuned
from fuzz import container
from tests import vector_oracles
from tests.small import ALL, buckets_of, check_equal, examples, segments_of, small_buckets
from tests.vector_oracles import clustered

DIM = 24
METRICS = ("cosine", "l2", "ip")
# Walks, whatever they cost: a beam of all rows goes everywhere.
WALK = {"graph_step_rows": 0}


@pytest.fixture(autouse=True)
def _small():
    with small_buckets():
        yield


def some_vectors(n, seed=0):
    rows = clustered(n, DIM, seed=seed, n_centres=6)
    if n > 8:
        rows[7], rows[8] = rows[3], 0
    return rows


def an_index(n=200, **options):
    index = CBEIndex(DIM, buckets="graph", **{"vectors": None, **options})
    index.add(some_vectors(n))
    return index


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("vectors", ["float32", "float16"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_with_all_candidates_results_are_those_of_brute_force(metric, vectors, is_sparse):
    rows, queries = some_vectors(200), some_vectors(10, seed=5)
    if is_sparse:
        rows = rows * (np.abs(rows) > 0.5)
    index = CBEIndex(DIM, metric=metric, vectors=vectors, buckets="graph")
    index.add(scipy.sparse.csr_array(rows) if is_sparse else rows)
    assert buckets_of(index)[0] is not None
    stored = rows.astype(np.float16).astype(np.float32) if vectors == "float16" else rows
    near, ids = vector_oracles.nearest(metric, queries, stored, np.arange(200), 7)
    for options, changes in (({"mode": "scan"}, {}), ({"n_probes": ALL}, {}), ({"n_probes": ALL}, WALK)):
        with tuned(**changes):
            found = index.search(queries, 7, n_candidates=200, **options)
        assert (found.stats["steps"] == 10 * 200) == bool(changes)
        np.testing.assert_array_equal(found.ids, ids)
        np.testing.assert_allclose(found.distances, near, rtol=1e-5, atol=1e-6)
        assert found.errors is None


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("n_bits", [DIM, 12])
def test_errors_tell_how_far_distances_of_levels_are_off(metric, n_bits):
    """Over 30 rotations, distances of levels have the error that is stated."""
    scores, rows = [], clustered(60, DIM, seed=1, n_centres=6)
    queries = rows[:8] + 0.3 * some_vectors(8, seed=2)
    true = vector_oracles.distances(metric, queries, rows)
    for seed in range(30):
        index = CBEIndex(DIM, n_bits, metric=metric, buckets="graph", seed=seed, vectors=None)
        index.add(rows)
        found = index.search(queries, 60, mode="scan")
        scores.append((found.distances - np.take_along_axis(true, found.ids, axis=1)) / found.errors)
    # The median of the magnitude of a normal distribution is 0.6745. 30 * 8 * 60 scores, of which those of a rotation
    # depend on each other, are right to a tenth; with half of the projections one rotation moves all distances, so that
    # 30 of them are right to a quarter.
    size = np.median(np.abs(scores)) / 0.6745
    assert 0.8 < size < 1.2 if n_bits == DIM else 0.5 < size < 1.5


@pytest.mark.parametrize("vectors", [None, "float32"])
@pytest.mark.parametrize("metric", METRICS)
def test_answers_do_not_depend_on_threads_or_batches(vectors, metric):
    index = an_index(300, vectors=vectors, metric=metric)
    index.remove([5, 17, 250])
    queries = some_vectors(50, seed=9)
    for options in ({}, {"n_probes": 12}, {"mode": "scan"}, {"n_probes": 3, "deny": np.arange(0, 300, 2)}):
        whole = index.search(queries, 5, **options)
        for n_threads in (1, 3):
            check_equal(index.search(queries, 5, n_threads=n_threads, **options), whole)
        for i in range(0, 50, 7):
            one = index.search(queries[i], 5, **options)
            np.testing.assert_array_equal(one.ids, whole.ids[i])
            np.testing.assert_array_equal(one.distances, whole.distances[i])


@pytest.mark.parametrize("vectors", [None, "float32"])
def test_filters_and_removed_rows_are_never_results_but_conduct(vectors):
    index = an_index(300, vectors=vectors)
    index.remove(np.arange(100, 140))
    queries = some_vectors(6, seed=4)
    for allow in ([3, 9, 120, 250], np.arange(0, 300, 3)):
        found = index.search(queries, 8, allow=allow, n_probes=1)
        expected = np.setdiff1d(allow, np.arange(100, 140))
        assert np.isin(found.ids[found.ids >= 0], expected).all()
        assert ((found.ids >= 0).sum(axis=1) == min(8, len(expected))).all()
    assert (index.search(queries, 8, deny=np.arange(200)).ids >= 200).all()


def test_rows_are_removed_until_none_is_left():
    rows = some_vectors(60)
    index = CBEIndex(DIM, buckets="graph", vectors="float32")
    index.add(rows)
    left = list(range(60))
    for id_ in np.random.default_rng(0).permutation(60):
        index.remove([id_])
        left.remove(id_)
        with tuned(**WALK):
            found = index.search(rows[id_], 3, n_probes=ALL, n_candidates=60)
        _, ids = vector_oracles.nearest("cosine", rows[id_ : id_ + 1], rows[left], left, 3)
        np.testing.assert_array_equal(found.ids, ids[0])
    assert len(index) == 0


@pytest.mark.parametrize("rows", [np.ones((80, DIM)), np.zeros((80, DIM)), np.repeat(some_vectors(2), 40, axis=0)])
@pytest.mark.parametrize("metric", METRICS)
def test_equal_rows_are_found_in_order_of_their_ids(rows, metric):
    index = CBEIndex(DIM, buckets="graph", vectors="float32", metric=metric)
    index.add(rows)
    _, ids = vector_oracles.nearest(metric, rows[:1].astype(np.float32), rows.astype(np.float32), np.arange(80), 5)
    with tuned(**WALK):
        found = index.search(rows[:1], 5, n_probes=ALL, n_candidates=80)
    np.testing.assert_array_equal(found.ids, ids)


def test_indexes_of_two_rows():
    with tuned(first_rows=2, least_graph_segment_rows=2, least_first_rows=2):
        index = CBEIndex(DIM, buckets="graph", metric="l2", vectors=None)
        index.add(some_vectors(2))
        found = index.search(some_vectors(2), 2)
        assert found.ids.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("vectors", [None, "float32"])
def test_range_search_finds_the_rows_of_a_scan(metric, vectors):
    index = an_index(300, metric=metric, vectors=vectors)
    queries = some_vectors(5, seed=6)
    radius = float(np.median(index.search(queries, 20, mode="scan").distances))
    with tuned(graph_step_rows=10**6):
        scanned = index.range_search(queries, radius)
    assert scanned.lims[-1] > 20
    with tuned(**WALK, first_range_beam=2000):  # all rows at once
        for ours, theirs in zip(index.range_search(queries, radius), scanned, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    with tuned(**WALK, first_range_beam=20):
        walked = index.range_search(queries, radius)
    assert np.isin(walked.ids, scanned.ids).all()
    # Walks that widen find 0.94 at least of these rows; without widening, queries have 20 rows at most.
    assert walked.lims[-1] > 0.85 * scanned.lims[-1]


def test_graphs_are_equal_whatever_the_threads(tmp_path, monkeypatch):
    files = []
    for n in (1, 3):
        monkeypatch.setattr("cbeindex.search.buckets.graphmaker.n_cores", lambda n=n: n)
        index = an_index(150, vectors="float32")
        index.save(tmp_path / f"{n}.cbe")
        files.append((tmp_path / f"{n}.cbe").read_bytes())
    assert buckets_of(index)[0] is not None
    assert files[0] == files[1]


def test_segments_are_joined_four_at_a_time():
    index = CBEIndex(DIM, buckets="graph", vectors="float32").fit(some_vectors(60))
    sizes = []
    for seed in range(8):
        index.add(some_vectors(40, seed))
        sizes.append([segment.n_rows for segment in segments_of(index)])
    assert sizes[2] == [40, 40, 40]
    assert sizes[3] == [160]
    assert sizes[7] == [160, 160]
    assert all(graph is not None for graph in buckets_of(index))
    index.compact()
    assert [graph.n_rows for graph in buckets_of(index)] == [320]


@pytest.mark.parametrize("options", [{}, {"hamming": False}, {"vectors": "float32"}, {"vectors": "float16"}])
def test_files_answer_like_the_index_that_wrote_them(tmp_path, options):
    path = tmp_path / "graph.cbe"
    index = an_index(150, **options)
    index.remove([1, 70])
    queries = some_vectors(6, seed=6)
    index.save(path)
    index.add(some_vectors(60, seed=2))
    index.save()
    verify(path)
    for loaded in (CBEIndex.load(path), CBEIndex.load(path, mmap=False), pickle.loads(pickle.dumps(index))):
        for request in ({}, {"mode": "scan"}, {"n_probes": 12}):
            check_equal(loaded.search(queries, 5, **request), index.search(queries, 5, **request))
        more = copy.copy(loaded)
        more.add(some_vectors(40, seed=3))
        more.compact()
        assert len(more) == 248


def test_merge_and_refit():
    encoder = CirculantEncoder(DIM).fit(some_vectors(100))
    one, two, both = (CBEIndex(DIM, buckets="graph", vectors="float32", encoder=encoder) for _ in range(3))
    one.add(some_vectors(100))
    two.add(some_vectors(100, seed=1), np.arange(1000, 1100))
    both.add(np.concatenate([some_vectors(100), some_vectors(100, seed=1)]), [*range(100), *range(1000, 1100)])
    one.merge(two)
    queries = some_vectors(8, seed=4)
    check_equal(one.search(queries, 12, mode="scan"), both.search(queries, 12, mode="scan"))
    near = one.search(queries, 5, mode="scan", n_candidates=200)
    check_equal(one.refit().search(queries, 5, mode="scan", n_candidates=200), near)


def test_what_graphs_cannot_honour():
    index, bare = an_index(vectors="float32"), an_index(hamming=False)
    for options in ({"rerank": None, "mode": "buckets"}, {"rerank": None, "n_probes": 3}):
        with pytest.raises(ValueError, match="graphs"):
            index.search(np.ones(DIM), 3, **options)
    with pytest.raises(ValueError, match="all distances are those of levels"):
        bare.search(np.ones(DIM), 3, n_candidates=9)
    for options in ({"rerank": None}, {"mode": "cascade"}):
        with pytest.raises(ValueError, match="needs Hamming codes"):
            bare.search(np.ones(DIM), 3, **options)
        assert index.search(some_vectors(1), 3, **options).stats["mode"] in ("scan", "cascade")
    with pytest.raises(ValueError, match="is not an option"):
        CBEIndex(DIM, buckets="graph", n_cells=3, vectors=None)


def test_plans_say_where_a_scan_is_faster():
    index = an_index(300, vectors="float32")
    with tuned(graph_step_rows=16):
        assert "take longer" in index.explain(some_vectors(1), 200)
        assert index.search(some_vectors(1), 200).stats["mode"] == "scan"
    told = index.explain(some_vectors(1), 3, n_probes=9)
    assert f"records of {index.stats()['record_bytes']:,} bytes a row" in told
    assert "beam of 9" in told
    assert index.stats()["bytes"]["buckets"] == 301 * index.stats()["record_bytes"]


@examples(20)
@given(st.integers(0, 5), st.sampled_from([1, 7, 50]), st.booleans())
def test_rows_are_the_same_whether_added_at_once_or_in_parts(seed, step, hamming):
    rows, queries = some_vectors(120, seed), some_vectors(5, seed + 10)
    index = CBEIndex(DIM, buckets="graph", hamming=hamming, vectors=None).fit(rows)
    in_parts = copy.copy(index)
    index.add(rows)
    for start in range(0, 120, step):
        in_parts.add(rows[start : start + step])
    check_equal(in_parts.search(queries, 9, mode="scan"), index.search(queries, 9, mode="scan"))


# --- damaged files ---


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """A file that is built once, because that takes a second where kernels are not compiled."""
    path = tmp_path_factory.mktemp("graph") / "graph.cbe"
    with small_buckets():
        an_index(90, vectors="float32").save(path)
    return path


@pytest.fixture
def saved(graph, tmp_path):
    return Path(shutil.copy(graph, tmp_path))


def change(path, section, edit):
    file = container.parse(path.read_bytes())
    array = file.section(f"segment 1.0/graph/{section}").array.copy()
    edit(array)
    file.section(f"segment 1.0/graph/{section}").array = array
    container.write(file, path)


@pytest.mark.kernels
@pytest.mark.parametrize("section", ["records", "entries"])
@pytest.mark.parametrize("value", [-2, 90, 2**31 - 1, -(2**31)])
def test_neighbours_that_do_not_exist_are_never_followed(saved, section, value):
    at = buckets_of(CBEIndex.load(saved))[0].codec.shape.vertex_at

    def edit(array):
        array[:, at - 128 : at - 124].view("<i4")[:] = value

    change(saved, section, edit)
    with pytest.raises(CorruptIndexFileError, match="neighbours in a graph"):
        verify(saved)
    with tuned(**WALK), pytest.raises(CorruptIndexFileError, match="neighbours in a graph"):
        CBEIndex.load(saved).search(some_vectors(4, seed=1), 5, n_probes=ALL)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_vertices_of_any_value_are_not_made_to_graphs_again(tmp_path, value):
    an_index(90, metric="l2").save(tmp_path / "graph.cbe")
    start = buckets_of(CBEIndex.load(tmp_path / "graph.cbe"))[0].codec.shape.vertex_at

    def edit(array):
        array[5, start : start + 4].view("<f4")[:] = value

    change(tmp_path / "graph.cbe", "records", edit)
    index = CBEIndex.load(tmp_path / "graph.cbe")
    index.remove([0])
    wrong = "vertices must have norms up to|scales and norms of vertices must be from 0"
    with pytest.raises(CorruptIndexFileError, match=wrong):
        index.compact()
    assert len(index) == 89
    with pytest.raises(CorruptIndexFileError, match=wrong):
        verify(tmp_path / "graph.cbe")


def test_vertices_of_segments_without_a_graph_are_verified(tmp_path):
    with tuned(first_rows=10, least_graph_segment_rows=1000):
        index = CBEIndex(8, buckets="graph", vectors=None, metric="l2")
        index.add(some_vectors(20)[:, :8])
        index.save(tmp_path / "rows.cbe")
    file = container.parse((tmp_path / "rows.cbe").read_bytes())
    array = file.section("segment 1.0/vertices").array.copy()
    array[3, :4].view("<f4")[:] = 1e30
    file.section("segment 1.0/vertices").array = array
    container.write(file, tmp_path / "rows.cbe")
    with pytest.raises(CorruptIndexFileError, match="vertices must have norms up to"):
        verify(tmp_path / "rows.cbe")


@pytest.mark.kernels
@pytest.mark.parametrize("place", [0, 128, 384, 388, 392])
def test_numbers_are_verified_and_searched_without_harm(saved, place):
    start = buckets_of(CBEIndex.load(saved))[0].codec.shape.vertex_at - 384 + place

    def edit(array):
        array[:, start : start + 4].view("<f4")[:] = np.nan

    change(saved, "records", edit)
    with pytest.raises(CorruptIndexFileError, match=r"numbers of a graph|scales and norms of vertices"):
        verify(saved)
    with tuned(**WALK):
        CBEIndex.load(saved).search(some_vectors(4, seed=1), 5, n_probes=50)


@pytest.mark.parametrize(
    "edit", [{"longest": -1.0}, {"longest": 1}, {"calibration": []}, {"calibration": {"efforts": [1]}}]
)
def test_descriptions_are_checked_at_load(saved, edit):
    file = container.parse(saved.read_bytes())
    file.content["rows"]["segments"][0]["buckets"] |= edit
    container.write(file, saved)
    with pytest.raises(CorruptIndexFileError):
        CBEIndex.load(saved)
