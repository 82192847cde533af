"""CBEIndex with vectors of 4 and 8 bits: searches, filters, files, merging, shrinking."""

import pickle
import signal
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse

from cbeindex import CBEIndex, CirculantEncoder, CorruptIndexFileError, verify
from cbeindex.encoders import AQBCEncoder, SKLSHEncoder
from fuzz import container
from tests import vector_oracles
from tests.small import small_buckets, tune
from tests.vector_oracles import clustered

DIM = 24
METRICS = ("cosine", "l2", "ip")
KINDS = ("int8", "int4")
BUCKETS = (
    {},
    {"buckets": "clusters"},
    {"buckets": "substrings"},
    {"buckets": "cells", "cell_bits": 1},
    {"buckets": "cells", "cell_bits": 4},
    {"buckets": "cells", "cell_bits": 1, "n_bits": 16},
    {"buckets": "graph"},
    {"buckets": "graph", "n_bits": 16},
)


@pytest.fixture(autouse=True)
def _small():
    with small_buckets({"least_centre_rows": 4, "centre_sample_rows": 10**4}):
        yield


def some_vectors(n, seed=0, dim=DIM):
    rows = clustered(n, dim, seed=seed, n_centres=6)
    if n > 8:
        rows[7], rows[8] = rows[3], 0
    return rows


def an_index(n=200, dim=DIM, **options):
    index = CBEIndex(dim, **{"vectors": None, "buckets": None, **options})
    index.add(some_vectors(n, dim=dim))
    return index


def exhaustive(index):
    """Options of a search that reads every kept vector."""
    beside = index._state.ingest.kept_column == "vectors"
    return {"mode": "scan"} | ({"n_candidates": len(index)} if beside else {})


@pytest.mark.parametrize("options", BUCKETS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("vectors", KINDS)
def test_estimates_are_near_the_truth_by_their_errors(options, metric, vectors):
    """Of all rows; the smallest of many estimates would tend to be too small."""
    index, rows, queries = an_index(vectors=vectors, metric=metric, **options), some_vectors(200), some_vectors(8, 5)
    found = index.search(queries, 200, **exhaustive(index))
    truth = np.take_along_axis(vector_oracles.distances(metric, queries, rows), found.ids, axis=1)
    assert found.errors.shape == found.ids.shape
    ratios = (found.distances - truth) / found.errors
    assert np.isfinite(ratios).all()
    # Errors of a row with all queries depend on each other, so this is the mean square of some hundred of them.
    assert 0.3 < np.sqrt((ratios**2).mean()) < 1.5
    bound = 0.05 if vectors == "int8" else 0.5
    assert np.abs(found.distances - truth).mean() < bound * truth.std()
    assert found.stats["rerank"] == ("levels" if index._state.ingest.kept_column == "vectors" else "asymmetric")


@pytest.mark.parametrize("options", BUCKETS)
@pytest.mark.parametrize("vectors", [*KINDS, None])
def test_zero_vectors_are_at_distance_1_by_their_errors(options, vectors):
    """Under "cosine" every vector is at distance 1 from a query of zeros, and every query from a row of zeros."""
    scores = {"query": [], "row": []}
    for seed in range(12):
        rows, queries = some_vectors(200, seed), some_vectors(30, 100 + seed)
        queries[8] = 0
        index = CBEIndex(DIM, metric="cosine", vectors=vectors, seed=seed, **{"buckets": None, **options})
        index.add(rows)
        found = index.search(queries, 200, **exhaustive(index), **({} if vectors else {"rerank": "asymmetric"}))
        assert (found.ids[8] == 8).sum() == 1
        is_zero = found.ids == 8
        is_zero[8] = False
        if index.buckets == "graph":  # which knows that the query is 0
            np.testing.assert_array_equal(found.distances[8], 1)
            np.testing.assert_array_equal(found.errors[8], 0)
        else:
            scores["query"].append((found.distances[8] - 1) / found.errors[8])
        scores["row"].append((found.distances[is_zero] - 1) / found.errors[is_zero])
    # 2,400 scores of queries have a root mean square that is right to 0.05 or so, since those of an encoder depend on
    # each other. A zero row has one error in each of 12 encoders and 30 queries: 12 numbers are right to a half.
    if scores["query"]:
        # Codes with fewer bits than dimensions have an error in proportion to the distance, half of it certain.
        least = 0.375 if vectors is None and "n_bits" in options else 0.75
        assert least < np.sqrt(np.mean(np.square(scores["query"]))) < 1.25
    assert 0.4 < np.sqrt(np.mean(np.square(scores["row"]))) < 1.6


@pytest.mark.parametrize("options", BUCKETS)
@pytest.mark.parametrize("vectors", KINDS)
def test_the_answer_does_not_depend_on_threads_batches_or_the_way_there(options, vectors):
    index, queries = an_index(vectors=vectors, **options), some_vectors(40, 5)
    mode = "scan" if index.buckets == "clusters" else "auto"  # which plans batches in another way
    whole = index.search(queries, 5, mode)
    for i in (0, 7, 8, 39):
        one = index.search(queries[i], 5, mode)
        np.testing.assert_array_equal(one.ids, whole.ids[i])
        np.testing.assert_array_equal(one.distances, whole.distances[i])
        np.testing.assert_allclose(one.errors, whole.errors[i], rtol=1e-5)
    many = index.search(queries, 5, mode, n_threads=3)
    np.testing.assert_array_equal(many.ids, whole.ids)
    np.testing.assert_array_equal(many.errors, whole.errors)
    sparse = index.search(scipy.sparse.csr_array(queries), 5, mode)
    np.testing.assert_allclose(sparse.distances, whole.distances, rtol=1e-3, atol=1e-3)
    again = pickle.loads(pickle.dumps(whole))
    np.testing.assert_array_equal(again.errors, whole.errors)
    assert again.stats == whole.stats


@pytest.mark.parametrize("options", BUCKETS)
@pytest.mark.parametrize("metric", METRICS)
def test_filters_and_radii(options, metric):
    index, queries = an_index(vectors="int8", metric=metric, **options), some_vectors(3, 5)
    every = index.search(queries, 200, **exhaustive(index))
    allow = np.arange(0, 200, 3)
    for few in (allow, allow[:4]):
        found = index.search(queries, 10, **exhaustive(index), allow=few)
        for i in range(3):
            expected = every.ids[i][np.isin(every.ids[i], few)][:10]
            np.testing.assert_array_equal(found.ids[i, : len(expected)], expected)
    denied = index.search(queries, 5, deny=every.ids[0, :3])
    assert not np.isin(denied.ids, every.ids[0, :3]).any()
    radius = float(np.median(every.distances))
    within = index.range_search(queries, radius)
    for i in range(3):
        ids = within.ids[within.lims[i] : within.lims[i + 1]]
        expected = every.ids[i][every.distances[i] <= radius]
        # Codes rule out rows that are far beyond the radius by their own errors.
        assert np.isin(ids, expected).all()
        assert len(ids) >= 0.97 * len(expected)


def test_more_results_than_a_kernel_inserts():
    index = an_index(400, vectors="int4", metric="l2")
    few, many = (index.search(some_vectors(2, 5), k, mode="scan", n_candidates=400) for k in (100, 300))
    np.testing.assert_array_equal(many.ids[:, :100], few.ids)
    np.testing.assert_allclose(many.distances[:, :100], few.distances)
    assert (np.diff(many.distances) >= 0).all()


def test_exact_distances_are_refused():
    for n, options in ((200, {}), (200, {"buckets": "graph"}), (5, {})):
        index = an_index(n, vectors="int8", **options)
        with pytest.raises(ValueError, match="estimates with errors"):
            index.search(some_vectors(1), 3, rerank="exact")
        assert index.search(some_vectors(1), 3, rerank="asymmetric").ids.shape == (1, 3)


def test_explain_says_what_is_kept():
    assert "rerank='levels', because the index keeps vectors=\"int8\"" in an_index(vectors="int8").explain(
        some_vectors(1), 3
    )


@pytest.mark.parametrize("options", BUCKETS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("vectors", KINDS)
def test_get_returns_vectors_as_far_from_the_originals_as_stats_say(options, metric, vectors):
    rows = some_vectors(200)
    rows[:100] *= 10
    index = CBEIndex(DIM, vectors=vectors, metric=metric, **{"buckets": None, **options})
    index.add(rows)
    back = index.get(np.arange(200)).astype(np.float64)
    errors = np.sqrt(((back - rows) ** 2).sum() / (rows.astype(np.float64) ** 2).sum())
    np.testing.assert_allclose(index.stats()["relative_error"], errors, rtol=0.1)  # over lengths of decoded vectors
    assert errors < (0.02 if vectors == "int8" or index.buckets == "graph" else 0.3)
    np.testing.assert_array_equal(index.get(5), index.get([5])[0])
    if metric == "cosine":
        np.testing.assert_array_equal(back[8], 0)


def test_encoders_that_are_not_linear_keep_vectors_too():
    rows = some_vectors(200)
    index = CBEIndex(DIM, vectors="int8", metric="l2", encoder=SKLSHEncoder(DIM, 64), buckets=None)
    index.add(rows)
    found = index.search(rows[:50], 3, n_candidates=200)
    expected = vector_oracles.distances("l2", rows[:50], rows).min(axis=1)
    assert (found.distances[:, 0] < expected + 0.1).all()
    assert len(index.range_search(rows[:1], 1e9).ids) == 200


def test_bytes_of_a_row():
    """B bits a dimension, the bits of the codes, and up to 48 bytes for everything else."""
    dim, n = 96, 2_000
    rows = some_vectors(n, dim=dim)
    for vectors, options in (("int4", {}), ("int8", {}), ("int4", {"buckets": "cells", "hamming": False})):
        index = CBEIndex(dim, vectors=vectors, **{"buckets": None, **options})
        index.add(rows)
        bits = int(vectors[3:])
        parts = index.stats()["bytes"]
        n_cells = sum(s.buckets.n_cells for s in index._state.rows.search_snapshot().segments if s.buckets)
        per_cell = 4 * dim + 2 * 8 + 1 + 31 * (dim // 2 + 20)  # centroid, starts, and records that are not full
        n_bytes = (sum(parts.values()) - n_cells * per_cell) / n
        assert n_bytes <= dim * bits / 8 + index.n_bits / 8 + 48 + 1, (vectors, options, parts)


@pytest.mark.parametrize("options", BUCKETS)
@pytest.mark.parametrize("vectors", KINDS)
@pytest.mark.parametrize("mmap", [True, False])
def test_files(options, vectors, mmap, tmp_path):
    path, queries = tmp_path / "items.cbe", some_vectors(5, 5)
    index = an_index(150, vectors=vectors, **options)
    index.save(path)
    index.add(some_vectors(60, 9))
    index.remove([3, 160])
    index.save()
    verify(path)
    loaded = CBEIndex.load(path, mmap=mmap)
    assert loaded.vectors == vectors
    ours, theirs = index.search(queries, 5), loaded.search(queries, 5)
    np.testing.assert_array_equal(ours.ids, theirs.ids)
    np.testing.assert_array_equal(ours.distances, theirs.distances)
    np.testing.assert_array_equal(ours.errors, theirs.errors)
    np.testing.assert_array_equal(index.get(index.ids), loaded.get(index.ids))
    loaded.compact()
    verify(path)
    np.testing.assert_array_equal(index.get(index.ids), CBEIndex.load(path).get(index.ids))


@pytest.mark.parametrize("vectors", ["auto", *KINDS])
def test_an_index_without_rows_or_with_few_can_be_saved(vectors, tmp_path):
    for n in (0, 5):
        index = CBEIndex(DIM, vectors=vectors, buckets=None)
        if n:
            index.add(some_vectors(n))
        index.save(tmp_path / "few.cbe")
        index = CBEIndex.load(tmp_path / "few.cbe")
        index.add(some_vectors(200, 3))
        assert index.vectors == ("int8" if vectors == "auto" else vectors)
        assert index.search(some_vectors(2), 3).errors is not None


def change(path, section, edit):
    """Change the values of a section, with correct checksums."""
    file = container.parse(path.read_bytes())
    array = file.section(section).array.copy()
    edit(array)
    file.section(section).array = array
    container.write(file, path)


def a_number(row, number, value):
    def edit(array):
        array[row, 4 * number : 4 * number + 4] = np.array([value], dtype="<f4").view(np.uint8)

    return edit


def a_centre(array):
    array[3, 8] = 255


@pytest.mark.parametrize("options", [{}, {"buckets": "cells", "cell_bits": 1}])
@pytest.mark.parametrize(
    "edit", [a_number(2, 0, np.nan), a_number(2, 1, np.inf), a_number(2, 0, -1), a_number(2, 2, -3), a_centre]
)
def test_verify_refuses_values_that_no_save_writes(options, edit, tmp_path):
    path = tmp_path / "items.cbe"
    index = an_index(vectors="int8", **options)
    index.save(path)
    change(path, "segment 1.0/vectors", edit)
    with pytest.raises(CorruptIndexFileError):
        verify(path)
    loaded = CBEIndex.load(path)
    try:  # searched without harm
        loaded.search(some_vectors(5, 5), 5, **exhaustive(loaded))
    except CorruptIndexFileError as error:
        assert "kept vectors" in str(error)  # noqa: PT017


@pytest.mark.parametrize("value", [np.nan, -1.0])
def test_verify_refuses_norms_that_no_save_writes(value, tmp_path):
    path = tmp_path / "items.cbe"
    an_index(vectors="int8").save(path)
    change(path, "segment 1.0/norms", lambda array: array.__setitem__(0, value))
    with pytest.raises(CorruptIndexFileError, match="norms"):
        verify(path)


def test_centres_of_a_file_are_checked(tmp_path):
    path = tmp_path / "items.cbe"
    an_index(vectors="int8").save(path)
    change(path, "levels/scales", lambda array: array.__setitem__(0, np.nan))
    with pytest.raises(CorruptIndexFileError, match="centres"):
        CBEIndex.load(path)


# --- sparse vectors ---


def sparse_vectors(n, share, seed=0):
    rows = some_vectors(n, seed)
    return scipy.sparse.csr_array(np.where(np.random.default_rng(seed).random(rows.shape) < share, rows, 0))


def test_auto_keeps_dense_rows_in_8_bits_and_sparse_rows_as_they_are():
    index = CBEIndex(DIM, vectors="auto", buckets=None)
    assert index.vectors == "auto"
    index.add(some_vectors(100))
    assert index.vectors == "int8"
    rows = sparse_vectors(100, 0.1)
    index = CBEIndex(DIM, vectors="auto", buckets=None)
    index.add(rows)
    assert index.vectors == "float32"
    np.testing.assert_array_equal(index.get(range(100)).toarray(), rows.toarray())
    assert index.search(rows[:2], 3, rerank="exact").errors is None
    assert CBEIndex(DIM, vectors="auto", buckets=None).fit(some_vectors(50)).vectors == "int8"


def test_sparse_vectors_must_be_longer_than_their_levels():
    index = CBEIndex(DIM, vectors="int8", metric="l2", buckets=None)
    with pytest.raises(ValueError, match='use vectors="float32" or "float16", which keep sparse rows'):
        index.add(sparse_vectors(100, 0.03))
    assert len(index) == 0
    rows = sparse_vectors(100, 0.5)
    index.add(rows)
    np.testing.assert_allclose(index.get(range(100)), rows.toarray(), atol=0.1)
    index.add(sparse_vectors(5, 0.5, 3))
    assert len(index) == 105


# --- merging, refitting ---


@pytest.mark.parametrize("options", BUCKETS)
def test_merge_copies_equal_rows_and_quantises_others_anew(options):
    rows, others = some_vectors(200), some_vectors(60, 9)
    encoder = CirculantEncoder(DIM, options.get("n_bits")).fit(rows)
    plain = {name: value for name, value in options.items() if name != "n_bits"}
    one, two = (
        CBEIndex(DIM, encoder=encoder, vectors="int8", metric="l2", **{"buckets": None, **plain}) for _ in range(2)
    )
    one.add(rows)
    two.add(rows, ids=np.arange(1000, 1200))
    one.merge(two)
    np.testing.assert_allclose(one.get(np.arange(1000, 1200)), two.get(np.arange(1000, 1200)), atol=1e-6)
    exact = CBEIndex(DIM, vectors="float32", metric="l2", buckets=None)
    exact.add(others, ids=np.arange(5000, 5060))
    one.merge(exact)
    np.testing.assert_allclose(one.get(np.arange(5000, 5060)), others, atol=0.1)
    exact.merge(two)
    np.testing.assert_allclose(exact.get(np.arange(1000, 1200)), two.get(np.arange(1000, 1200)), atol=1e-6)


@pytest.mark.parametrize("options", BUCKETS)
def test_refit_keeps_vectors(options):
    index = an_index(vectors="int8", metric="l2", **options)
    before = index.get(np.arange(200))
    index.refit()
    np.testing.assert_allclose(index.get(np.arange(200)), before, atol=0.15)
    assert index.search(some_vectors(3), 3).errors is not None


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("buckets", [None, "clusters", "graph"])
@pytest.mark.parametrize(("vectors", "shrunk"), [("float32", "int4"), ("int8", "int8"), ("int4", "int4")])
def test_decoded_vectors_can_be_encoded_again_by_an_encoder_of_counts(metric, buckets, vectors, shrunk):
    """Levels of small values may stand for negative ones, which such an encoder refuses."""
    counts = np.random.default_rng(0).poisson(0.5, (200, DIM)).astype(np.float32) + np.eye(200, DIM, dtype=np.float32)
    counts[8] = 0
    index = CBEIndex(DIM, encoder=AQBCEncoder(DIM), metric=metric, vectors=vectors, buckets=buckets)
    index.add(counts)
    index.shrink(shrunk)
    state = index._state
    snapshot = state.rows.snapshot()
    column = state._kept_rows(snapshot.ids(), snapshot)
    assert state.codec.kept.vectors_of(column).min() < 0
    kept = index.get(np.arange(200))
    assert kept.min() == 0
    np.testing.assert_array_equal(index.search_ids(np.arange(5), 3).ids.shape, (5, 3))
    other = CBEIndex(DIM, encoder=AQBCEncoder(DIM, seed=1).fit(counts), metric=metric, vectors="float32", buckets=None)
    other.merge(index)
    np.testing.assert_array_equal(other.get(np.arange(200)), kept)
    index.refit()
    # Steps of 4 bits are a third of the root mean square of a row, and rows were quantised twice.
    np.testing.assert_allclose(index.get(np.arange(200)), kept, atol=0.34 * np.sqrt((kept**2).mean(axis=1).max()))


# --- shrinking ---


def bytes_of(index):
    return sum(index.stats()["bytes"].values())


@pytest.mark.parametrize("options", [options for options in BUCKETS if options.get("n_bits") is None])
@pytest.mark.parametrize("metric", METRICS)
def test_shrink_step_by_step(options, metric, tmp_path):
    path, rows = tmp_path / "items.cbe", some_vectors(220)
    index = CBEIndex(DIM, vectors="float32", metric=metric, **{"buckets": None, **options})
    index.add(rows[:200])
    index.add(rows[200:])
    index.remove([11, 205])
    index.save(path)
    ids = index.ids
    for vectors, bound in (("float16", 0.01), ("int8", 0.1), ("int4", 1.2), (None, None)):
        before, n_bytes = CBEIndex.load(path), bytes_of(index)
        assert index.shrink(vectors) is index
        assert index.vectors == vectors
        np.testing.assert_array_equal(CBEIndex.load(path).get(ids), before.get(ids))  # the file is as it was
        found = index.search(rows[:5], 3)
        index.save()
        verify(path)
        assert bytes_of(index) < n_bytes or index._state.ingest.kept_column != "vectors"
        loaded = CBEIndex.load(path)
        assert loaded.vectors == vectors
        np.testing.assert_array_equal(loaded.ids, ids)
        again = loaded.search(rows[:5], 3)
        np.testing.assert_array_equal(found.ids, again.ids)
        np.testing.assert_array_equal(found.distances, again.distances)
        if vectors is not None:
            assert np.abs(loaded.get(ids) - rows[ids]).max() < bound
        loaded.add(some_vectors(40, 3), np.arange(1000, 1040))
        assert len(loaded) == len(ids) + 40
        index = CBEIndex.load(path)
    with pytest.raises(ValueError, match="cannot be restored"):
        index.shrink("int4")


def test_what_shrinking_cannot_do_is_refused():
    with pytest.raises(ValueError, match="keeps codes only"):
        an_index().shrink("int8")
    with pytest.raises(ValueError, match='keeps vectors="int4"'):
        an_index(vectors="int4").shrink("float16")
    with pytest.raises(ValueError, match="not decided"):
        CBEIndex(DIM, vectors="auto", buckets=None).shrink(None)
    with pytest.raises(ValueError, match="one of"):
        an_index(vectors="int8").shrink("auto")
    with pytest.raises(ValueError, match="16 projections"):
        an_index(vectors="float32", buckets="graph", n_bits=16).shrink("int8")
    index = CBEIndex(DIM, vectors="float32", buckets=None)
    index.add(sparse_vectors(100, 0.03))
    with pytest.raises(ValueError, match="keep sparse rows"):
        index.shrink("int8")
    assert index.vectors == "float32"
    index = CBEIndex(DIM, vectors="float32", metric="l2", buckets=None)
    index.add(1e6 * some_vectors(100))
    with pytest.raises(ValueError, match="float16"):
        index.shrink("float16")
    assert index.shrink("float32") is index
    assert index.shrink("int8").vectors == "int8"


def test_an_index_that_is_not_fitted_shrinks_what_it_will_keep():
    index = an_index(10, vectors="float32")
    index.shrink("int8")
    np.testing.assert_array_equal(index.get(range(10)), some_vectors(10))
    index.add(some_vectors(200, 3))
    assert index.stats()["relative_error"] > 0


def test_searches_see_the_old_index_while_it_shrinks(monkeypatch):
    index, queries = an_index(vectors="float32"), some_vectors(3)
    expected, seen = index.search(queries, 3), []
    from cbeindex.store import shrinking

    original = shrinking._Shrinking._segment

    def watched(self, *arguments):
        seen.append(index.search(queries, 3))
        return original(self, *arguments)

    monkeypatch.setattr(shrinking._Shrinking, "_segment", watched)
    index.shrink("int4")
    assert seen
    for found in seen:
        np.testing.assert_array_equal(found.distances, expected.distances)


SHRINKER = """
import sys
from cbeindex import CBEIndex
index = CBEIndex.load(sys.argv[1])
print("shrinking", flush=True)
index.shrink("int4")
print("saving", flush=True)
index.save()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_shrinker_that_is_killed_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    tune(monkeypatch, first_rows=2_000)
    path, rows, seen = tmp_path / "items.cbe", clustered(3_000, DIM), set()
    index = CBEIndex(DIM, vectors="float32", metric="l2", buckets=None)
    index.add(rows)
    for stage, delay in ((1, 0), (1, 0.1), (2, 0), (2, 0.002), (2, 0.005), (2, 0.01), (2, 60)):
        index.save(path)
        with subprocess.Popen([sys.executable, "-c", SHRINKER, str(path)], stdout=subprocess.PIPE) as child:
            for _ in range(stage):
                child.stdout.readline()
            try:
                child.wait(delay)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
        verify(path)
        loaded = CBEIndex.load(path)
        seen.add(loaded.vectors)
        assert loaded.vectors in ("float32", "int4")
        assert len(loaded) == 3_000
        error = np.abs(loaded.get(np.arange(3_000)) - rows).max()
        assert error == 0 if loaded.vectors == "float32" else error < 2
    assert seen == {"float32", "int4"}


@pytest.mark.parametrize("buckets", [None, "cells"])
def test_decoded_vectors_longer_than_float32_norms(buckets):
    """Rounding makes decoded vectors longer than those that were added, which may be as long as float32 allows."""
    rows = np.random.default_rng(0).standard_normal((60, 24))
    rows *= 3.4e38 / np.linalg.norm(rows, axis=1, keepdims=True)
    index = CBEIndex(24, vectors="int8", buckets=buckets)
    index.add(rows.astype(np.float32))
    index.refit().shrink("int4").refit()
    assert len(index) == 60


@pytest.mark.parametrize("vectors", ["int8", "int4"])
def test_stored_rows_of_the_largest_length_are_queries(vectors):
    """What is decoded may be longer than what was added."""
    rows = np.random.default_rng(0).standard_normal((200, 12))
    rows *= 3.4e38 / np.linalg.norm(rows, axis=1, keepdims=True)
    index = CBEIndex(12, vectors=vectors)
    index.add(rows.astype(np.float32))
    found = index.search_ids(np.arange(200), 3)
    assert np.isfinite(found.distances).all()
