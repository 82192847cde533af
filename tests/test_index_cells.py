"""CBEIndex with cells, against brute force and against the estimates that its codes stand for."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import CBEIndex, CirculantEncoder, verify
from cbeindex._core.tuning import tuned
from cbeindex.distances.residuals import default_bits
from tests import vector_oracles
from tests.lookup_oracles import values_of_levels
from tests.small import ALL, buckets_of, check_equal, examples, segments_of, small_buckets, tune
from tests.vector_oracles import clustered

DIM = 24
METRICS = ("cosine", "l2", "ip")


@pytest.fixture(autouse=True)
def _small():
    with small_buckets({"least_centre_rows": 4, "centre_sample_rows": 10**4}):
        yield


def some_vectors(n, seed=0):
    rows = clustered(n, DIM, seed=seed, n_centres=6)
    if n > 8:
        rows[7], rows[8] = rows[3], 0
    return rows


def an_index(n=200, dim=DIM, **options):
    index = CBEIndex(dim, buckets="cells", **{"vectors": None, **options})
    index.add(some_vectors(n))
    return index


def unpacked(codes, bits, n):
    """Levels of codes, (n_rows, n)."""
    shifts = bits * np.arange(8 // bits, dtype=np.uint8)
    levels = (codes[:, :, np.newaxis] >> shifts) & (2**bits - 1)
    return levels.reshape(len(codes), -1)[:, :n].astype(np.float64)


def estimates(index, queries):
    """Distances that the stored codes stand for, float64 (n_queries, n_rows), and the ids of the rows."""
    codec = index._state.codec
    residuals, metric = codec.residuals, index.metric
    snapshot = index._state.rows.snapshot()
    ids = snapshot.ids()
    column = snapshot.column_of("residuals", ids, residuals.column)
    levels = unpacked(column[:, : residuals.n_bytes], residuals.bits, index.n_bits)
    values, numbers = values_of_levels(levels, residuals.bits), residuals.numbers_of(column)
    factors, offsets = numbers.factors.astype(np.float64), numbers.offsets.astype(np.float64)
    Q = np.atleast_2d(queries).astype(np.float64)
    if metric == "cosine":
        norms = np.linalg.norm(Q, axis=1, keepdims=True)
        Q = Q / np.where(norms == 0, 1, norms)
    Z = index.encoder.project(Q.astype(np.float32)).astype(np.float64)
    centres = residuals.centres[numbers.centres].astype(np.float64)
    scale, mean = codec.geometry.scale, codec.geometry.centre.astype(np.float64)
    apart = ((Z[:, np.newaxis] - centres) ** 2).sum(axis=2)
    shifts = {
        "l2": scale * apart,
        "cosine": (scale * apart + 1 - (Q**2).sum(axis=1)[:, np.newaxis]) / 2,
        "ip": 1 - ((Q - mean) @ mean)[:, np.newaxis] - scale * Z @ centres.T,
    }[metric]
    return offsets + shifts - factors * (Z @ values.T), ids


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("vectors", ["float32", "float16"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_with_all_cells_and_candidates_results_are_those_of_brute_force(metric, vectors, is_sparse):
    rows, queries = some_vectors(300), some_vectors(10, seed=5)
    if is_sparse:
        rows = rows * (np.abs(rows) > 0.5)
    index = CBEIndex(DIM, 40, metric=metric, vectors=vectors, buckets="cells")
    index.add(scipy.sparse.csr_array(rows) if is_sparse else rows)
    stored = rows.astype(np.float16).astype(np.float32) if vectors == "float16" else rows
    near, ids = vector_oracles.nearest(metric, queries, stored, np.arange(300), 7)
    for options in ({"mode": "scan"}, {"n_probes": ALL}):
        found = index.search(queries, 7, n_candidates=300, **options)
        np.testing.assert_array_equal(found.ids, ids)
        np.testing.assert_allclose(found.distances, near, rtol=1e-5, atol=1e-6)
        assert found.errors is None


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("n_bits", [20, 24, 61])
def test_estimates_are_those_of_the_stored_codes(metric, bits, n_bits):
    index = an_index(metric=metric, n_bits=n_bits, cell_bits=bits)
    queries = some_vectors(12, seed=3)
    expected, ids = estimates(index, queries)
    found = index.search(queries, len(ids), mode="scan")
    order = np.argsort(found.ids, axis=1)
    assert (np.take_along_axis(found.ids, order, axis=1) == ids).all()
    got = np.take_along_axis(found.distances, order, axis=1)
    # An entry of a table is within half of a step, 1 / 127 of the largest sum of a nibble, itself at most 15 |z| for
    # 4 bits (or twice the four magnitudes of 1 bit): 0.06 of |z| a nibble, and roundings do not add up in one
    # direction. Precise tables, which are used for 4 bits, are 128 times finer.
    widest = np.abs(expected).max() if metric == "ip" else 4 * np.abs(expected).max()
    np.testing.assert_allclose(got, expected, rtol=0.02, atol=0.02 * widest)


@pytest.mark.parametrize("vectors", [None, "float32"])
def test_answers_do_not_depend_on_threads_or_batches(vectors):
    index = an_index(400, vectors=vectors, metric="l2")
    index.remove([5, 17, 300])
    queries = some_vectors(50, seed=9)
    for options in ({}, {"n_probes": 2}, {"mode": "scan"}, {"n_probes": 3, "deny": np.arange(0, 400, 2)}):
        whole = index.search(queries, 5, **options)
        for n_threads in (1, 3):
            check_equal(index.search(queries, 5, n_threads=n_threads, **options), whole)
        for i in range(0, 50, 7):
            one = index.search(queries[i], 5, **options)
            np.testing.assert_array_equal(one.ids, whole.ids[i])
            np.testing.assert_array_equal(one.distances, whole.distances[i])


@pytest.mark.parametrize("vectors", [None, "float32"])
def test_filters_and_removed_rows_are_never_results(vectors):
    index = an_index(300, vectors=vectors)
    index.remove(np.arange(100, 140))
    queries = some_vectors(6, seed=4)
    for allow in ([3, 9, 120, 250], np.arange(0, 300, 3)):
        found = index.search(queries, 8, allow=allow, n_probes=1)
        expected = np.setdiff1d(allow, np.arange(100, 140))
        assert np.isin(found.ids[found.ids >= 0], expected).all()
        assert ((found.ids >= 0).sum(axis=1) == min(8, len(expected))).all()
    found = index.search(queries, 8, deny=np.arange(200))
    assert (found.ids >= 200).all()


def test_more_probes_never_find_fewer_of_the_nearest():
    index = an_index(500, vectors="float32", n_cells=30)
    queries = some_vectors(30, seed=2)
    truth = index.search(queries, 10, mode="scan", n_candidates=500)
    shares, visited = [], []
    for n_probes in (1, 2, 4, 8, ALL):
        found = index.search(queries, 10, n_probes=n_probes, n_candidates=500)
        assert (np.diff(np.sort(found.ids, axis=1), axis=1) > 0).all()
        shares.append(np.mean([np.isin(*ids).mean() for ids in zip(found.ids, truth.ids, strict=True)]))
        visited.append(found.stats["buckets"])
    assert shares == sorted(shares)
    assert shares[0] < shares[-1] == 1
    assert visited[-1] == 30 * buckets_of(index)[0].n_cells


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_errors_tell_how_far_estimates_are_off(metric, bits):
    """Over 30 encoders, estimates less true distances have mean 0 and the standard deviation that `errors` state."""
    dim, found_scores = 64, []
    rows = clustered(120, dim, seed=1, n_centres=6)
    queries = rows[:8] + 0.3 * np.random.default_rng(2).standard_normal((8, dim)).astype(np.float32)
    true = vector_oracles.distances(metric, queries, rows)
    for seed in range(30):
        encoder = CirculantEncoder(dim, dim, seed=seed).fit(rows)
        index = CBEIndex(dim, metric=metric, encoder=encoder, buckets="cells", cell_bits=bits, vectors=None)
        index.add(rows)
        found = index.search(queries, len(rows), mode="scan")  # all rows: the nearest by estimate are biased
        truth = np.take_along_axis(true, found.ids, axis=1)
        found_scores.append((found.distances - truth) / found.errors)
    scores = np.array(found_scores)
    # Errors of 120 rows and 8 queries of an encoder depend on each other, those of 30 encoders do not: the mean is
    # within five standard errors of 0 by encoders. 30 * 8 * 120 scores have a root mean square that is right to about
    # 0.02; 0.1 allows for the little that errors are known by the estimates themselves.
    means = scores.mean(axis=(1, 2))
    assert abs(means.mean()) < 5 * means.std() / np.sqrt(30)
    assert 0.9 < np.sqrt((scores**2).mean()) < 1.1


def test_tight_clusters_are_told_apart():
    """Rows a hundredth of their length apart: tables of 7 bits would round their differences away."""
    rng = np.random.default_rng(0)
    dim = 64
    middles = 10 * rng.standard_normal((4, dim))
    rows = (middles[np.arange(400) % 4] + 0.1 * rng.standard_normal((400, dim))).astype(np.float32)
    index = CBEIndex(dim, metric="l2", buckets="cells", cell_bits=4, vectors=None)
    index.add(rows)
    queries = rows[:40] + 0.02 * rng.standard_normal((40, dim)).astype(np.float32)
    found = index.search(queries, 1)
    # Four bits tell a row from its neighbours, which are 14 times as far from the query as the row itself.
    assert (found.ids[:, 0] == np.arange(40)).mean() > 0.9


def test_data_without_clusters_gets_one_centre():
    index = CBEIndex(96, buckets="cells", vectors=None)
    index.add(np.random.default_rng(0).standard_normal((600, 96)))
    assert len(index._state.codec.residuals.centres) == 1
    assert "no clusters" in index.explain(np.ones((1, 96)))
    assert index.search(np.ones(96), 3).stats["mode"] == "scan"
    with_clusters = an_index()
    assert len(with_clusters._state.codec.residuals.centres) > 1
    assert "cells in" in with_clusters.explain(np.ones((1, DIM)))


@pytest.mark.parametrize("n_bits", [100, 199, 200, 784])
def test_bits_follow_the_dimension(n_bits):
    assert default_bits(n_bits) == (4 if n_bits < 200 else 1)


def test_indexes_without_hamming_codes():
    index, plain = an_index(hamming=False, vectors="float32"), an_index(vectors="float32")
    queries = some_vectors(5, seed=8)
    assert index.stats()["bytes"]["codes"] == 0
    assert "factors" not in index.stats()["bytes"]
    check_equal(index.search(queries, 6), plain.search(queries, 6))
    radius = float(np.median(plain.search(queries, 20).distances))
    for ours, theirs in zip(index.range_search(queries, radius), plain.range_search(queries, radius), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for options in ({"rerank": None}, {"mode": "cascade"}):
        with pytest.raises(ValueError, match="needs Hamming codes"):
            index.search(queries, 3, **options)
        plain.search(queries, 3, **options)


BAD = [
    ({"hamming": False}, 'hamming=False needs buckets="cells"'),
    ({"buckets": "clusters", "cell_bits": 2}, "cell_bits is not an option of buckets='clusters'"),
    ({"buckets": "cells", "cell_bits": 3}, r"cell_bits must be one of \(1, 2, 4\), got 3"),
    ({"buckets": "cells", "n_tables": 3}, "n_tables is not an option"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_what_cannot_be_made(options, message):
    with pytest.raises(ValueError, match=message):
        CBEIndex(DIM, **{"vectors": None, "buckets": None, **options})


def test_what_a_search_cannot_honour():
    index, codes_only = an_index(vectors="float32"), an_index()
    for options in ({"rerank": None, "mode": "buckets"}, {"rerank": None, "n_probes": 3}):
        with pytest.raises(ValueError, match="cells"):
            index.search(np.ones(DIM), 3, **options)
    with pytest.raises(ValueError, match="all distances are estimates"):
        codes_only.search(np.ones(DIM), 3, n_candidates=9)
    with pytest.raises(ValueError, match="needs vectors"):
        codes_only.search(np.ones(DIM), 3, rerank="exact")


@pytest.mark.parametrize("options", [{}, {"hamming": False}, {"vectors": "float32"}, {"vectors": "float16"}])
def test_files_answer_like_the_index_that_wrote_them(tmp_path, options):
    path = tmp_path / "cells.cbe"
    index = an_index(150, **options)
    index.remove([1, 70])
    queries = some_vectors(6, seed=6)
    index.save(path)
    index.add(some_vectors(60, seed=2))
    index.save()
    verify(path)
    for loaded in (CBEIndex.load(path), CBEIndex.load(path, mmap=False), pickle.loads(pickle.dumps(index))):
        for request in ({}, {"mode": "scan"}, {"n_probes": 1}):
            check_equal(loaded.search(queries, 5, **request), index.search(queries, 5, **request))
        more = copy.copy(loaded)
        more.add(some_vectors(40, seed=3))
        more.compact()
        assert len(more) == 248
        assert (np.diff(more.ids) > 0).all()


def test_an_index_that_is_not_fitted_is_saved_too(tmp_path):
    encoder = CirculantEncoder(DIM, 30).fit(some_vectors(50))
    for index in (
        CBEIndex(DIM, buckets="cells", vectors=None),
        CBEIndex(DIM, buckets="cells", encoder=encoder, vectors=None),
    ):
        index.add(some_vectors(20))
        index.save(tmp_path / "few.cbe")
        loaded = CBEIndex.load(tmp_path / "few.cbe")
        assert not loaded.is_fitted
        loaded.add(some_vectors(60, seed=1))
        assert loaded.is_fitted
        assert loaded.search(some_vectors(20)[0], 1).ids.tolist() == [0]


def test_merged_rows_keep_their_codes():
    encoder = CirculantEncoder(DIM, DIM).fit(some_vectors(100))
    one = CBEIndex(DIM, buckets="cells", encoder=encoder, vectors=None)
    one.fit(some_vectors(100))
    two = copy.copy(one)
    one.add(some_vectors(100))
    two.add(some_vectors(100, seed=1), np.arange(1000, 1100))
    both = copy.copy(one)
    both.add(some_vectors(100, seed=1), np.arange(1000, 1100))
    one.merge(two)
    queries = some_vectors(9, seed=4)
    check_equal(one.search(queries, 12, mode="scan"), both.search(queries, 12, mode="scan"))
    other = CBEIndex(DIM, buckets="cells", encoder=encoder, vectors=None).fit(some_vectors(100, seed=3))
    with pytest.raises(ValueError, match="codes only"):
        other.merge(two)


@examples(20)
@given(st.integers(0, 5), st.sampled_from([1, 7, 50]), st.booleans())
def test_rows_have_the_same_codes_whether_added_at_once_or_in_parts(seed, step, hamming):
    rows, queries = some_vectors(120, seed), some_vectors(5, seed + 10)
    index = CBEIndex(DIM, buckets="cells", hamming=hamming, vectors=None).fit(rows)
    in_parts = copy.copy(index)
    index.add(rows)
    for start in range(0, 120, step):
        in_parts.add(rows[start : start + step])
    check_equal(in_parts.search(queries, 9, mode="scan"), index.search(queries, 9, mode="scan"))


def test_sparse_and_foreign_queries():
    index = an_index(200, vectors="float32")
    queries = some_vectors(4, seed=7)
    found = index.search(queries, 5, mode="scan", n_candidates=200)
    check_equal(index.search(scipy.sparse.csr_array(queries), 5, mode="scan", n_candidates=200), found)


def test_many_results_and_none():
    index = an_index(400, vectors="float32")
    with tuned(most_inserted_results=20):
        many = index.search(some_vectors(3, seed=1), 50, mode="scan", n_candidates=400)
    check_equal(many, index.search(some_vectors(3, seed=1), 50, mode="scan", n_candidates=400))
    assert index.search(np.empty((0, DIM)), 3).ids.shape == (0, 3)
    index.remove(index.ids)
    assert (index.search(np.ones(DIM), 3).ids == -1).all()


@pytest.mark.parametrize("buckets", ["cells", "clusters", None])
def test_refit_follows_data_that_has_changed(buckets, tmp_path):
    old, new = some_vectors(60), some_vectors(300, seed=1) + 9
    index = CBEIndex(DIM, metric="l2", vectors="float32", buckets=buckets)
    index.add(old)
    index.add(new)
    index.remove(np.arange(5))
    ids, stored = index.ids, index.get(index.ids)
    index.save(tmp_path / "refitted.cbe")
    assert np.linalg.norm(index.encoder.centre - stored.mean(axis=0)) > 1
    assert index.refit() is index
    np.testing.assert_allclose(index.encoder.centre, stored.mean(axis=0), atol=0.5)
    assert index.ids.tolist() == ids.tolist()
    np.testing.assert_array_equal(index.get(ids), stored)
    near = index.search(new[:20], 1, mode="scan")
    assert (near.ids[:, 0] >= 60).all()
    assert (near.distances[:, 0] == 0).all()
    assert index.add(new[:1]).tolist() == [360]
    index.save()
    check_equal(CBEIndex.load(tmp_path / "refitted.cbe").search(new[:20], 3), index.search(new[:20], 3))


def test_refit_needs_vectors():
    with pytest.raises(ValueError, match="refit needs vectors"):
        an_index().refit()
    with pytest.raises(ValueError, match="at least 2 vectors"):
        CBEIndex(DIM, vectors=None, buckets=None).refit()


def test_an_index_that_grew_answers_as_well_as_one_built_at_once(monkeypatch):
    """Cells of segments differ, and the first rows decide on centres: of the true ten, as many are found."""
    every = clustered(3_060, DIM, n_centres=40)
    rows, queries = every[60:], every[:60]
    truth = vector_oracles.nearest("l2", queries, rows, np.arange(3_000), 10)[1]
    tune(monkeypatch, most_calibration_queries=200, least_calibration_queries=200, kmeans_rows=32, kmeans_iterations=4)
    shares = []
    for step in (3_000, 250, 40):
        index = CBEIndex(DIM, metric="l2", vectors="float32", buckets="cells")
        for start in range(0, 3_000, step):
            index.add(rows[start : start + step])
        found = index.search(queries, 10)
        assert found.stats["visited"] < 0.9 * 60 * 3_000
        shares.append(np.mean([np.isin(*ids).mean() for ids in zip(found.ids, truth, strict=True)]))
    # 600 rows are to be found: a share of 0.95 has a standard error of 0.009.
    assert min(shares) > 0.9, shares


def test_more_centres_than_a_byte_can_name(tmp_path):
    with tuned(centres_of_root=20.0, least_centre_rows=2, least_centre_gain=-1.0):
        index = an_index(800, vectors="float32", metric="l2")
    assert len(index._state.codec.residuals.centres) > 256
    centres = np.concatenate([cells.cell_centres for cells in buckets_of(index)])
    assert centres.max() > 255
    queries = some_vectors(6, seed=6)
    near, ids = vector_oracles.nearest("l2", queries, some_vectors(800), np.arange(800), 7)
    index.save(tmp_path / "many.cbe")
    verify(tmp_path / "many.cbe")
    for one in (index, CBEIndex.load(tmp_path / "many.cbe")):
        found = one.search(queries, 7, n_probes=ALL, n_candidates=800)
        np.testing.assert_array_equal(found.ids, ids)
        np.testing.assert_allclose(found.distances, near, rtol=1e-5, atol=1e-6)
    index.add(some_vectors(60, seed=2))
    index.compact()  # rows keep their centres where segments are joined
    scanned = index.search(queries, 7, mode="scan", n_candidates=900)
    check_equal(index.search(queries, 7, n_probes=ALL, n_candidates=900), scanned)


@pytest.mark.parametrize("vectors", ["int8", "int4"])
@pytest.mark.parametrize("metric", METRICS)
def test_kept_levels_name_any_of_many_centres(tmp_path, metric, vectors):
    with tuned(centres_of_root=20.0, least_centre_rows=2, least_centre_gain=-1.0):
        index = CBEIndex(DIM, 20, metric=metric, vectors=vectors, buckets="cells")  # a rotation of their own
        index.add(some_vectors(800))
    assert len(index._state.codec.kept.residuals.centres) > 256
    queries = some_vectors(6, seed=6)
    index.save(tmp_path / "many.cbe")
    verify(tmp_path / "many.cbe")
    true = vector_oracles.distances(metric, queries, some_vectors(800))
    for one in (index, CBEIndex.load(tmp_path / "many.cbe")):
        found = one.search(queries, 7, n_probes=ALL, n_candidates=800)
        # Residuals are a tenth of the distances to queries or less, and levels of 4 bits lose a tenth of them.
        np.testing.assert_allclose(found.distances, np.take_along_axis(true, found.ids, axis=1), rtol=0.1, atol=0.1)
        assert np.abs(one.get(np.arange(800)) - (some_vectors(800))).mean() < 0.2 or metric == "cosine"


def test_centres_come_from_all_rows_of_a_call():
    """Rows are sorted by cluster, and the first rows, which would be enough to fit the index, are of one cluster."""
    rng = np.random.default_rng(0)
    means = 5 * rng.standard_normal((6, DIM))
    rows = np.repeat(means, 100, axis=0) + 0.1 * rng.standard_normal((600, DIM))
    index = CBEIndex(DIM, buckets="cells", metric="l2", vectors=None)
    index.add(rows.astype(np.float32))
    codec = index._state.codec
    apart = codec.encoder.project(means.astype(np.float32))[:, np.newaxis] - codec.residuals.centres
    # A centre is the mean of rows of one cluster, each 0.1 * sqrt(24) = 0.5 from its mean; means are some 35 apart.
    assert np.sqrt((apart**2).sum(axis=2)).min(axis=1).max() < 1


def test_a_query_of_a_calibration_may_be_the_only_row_that_is_not_removed():
    """Such a query has no nearest row, and says nothing of how far rows are."""
    for row in range(28):
        index = CBEIndex(DIM, 40, metric="l2", vectors="float32", buckets="cells")
        index.add(some_vectors(60))
        ids = np.concatenate([index.add(some_vectors(14, seed)) for seed in (1, 2)])  # these wait in the buffer
        index.remove(np.delete(ids, row))
        rows = index._state.rows
        calibration = rows.buckets.arrange(rows.snapshot().segments[-1]).buckets.calibration
        assert calibration.far > 0


def test_rows_of_the_buffer_are_not_calibrated_by_searches():
    """A search after each `add` would calibrate them again; all of them are searched."""
    index = CBEIndex(DIM, 40, metric="l2", vectors="float32", buckets="cells")
    index.add(some_vectors(120))
    assert segments_of(index)[0].buckets.calibration is not None
    ids = np.concatenate([index.add(some_vectors(14, seed)) for seed in (1, 2)])
    found = index.search(some_vectors(28, 3)[:5], 3)
    last = index._state.rows.search_snapshot().segments[-1]
    assert sorted(last.ids) == ids.tolist()
    assert last.buckets.calibration is None
    assert found.stats["buckets"] >= 5 * last.buckets.n_cells


def test_a_buffer_that_is_most_of_an_index_is_calibrated():
    """Nothing else tells how well estimates do."""
    index = CBEIndex(DIM, 40, metric="l2", vectors="float32", buckets="cells").fit(some_vectors(60))
    for seed in (1, 2):
        index.add(some_vectors(14, seed))
    (last,) = index._state.rows.search_snapshot().segments
    assert last.n_rows == 28
    assert last.buckets.calibration is not None


def test_a_small_part_of_an_index_is_calibrated_by_few_queries():
    with small_buckets({"least_centre_rows": 4, "centre_sample_rows": 10**4, "most_calibration_queries": 200,
                        "least_calibration_queries": 100, "fewest_calibration_queries": 10, "least_whole_rows": 1000,
                        "rows_of_calibration_query": 5}):  # fmt: skip
        index = CBEIndex(DIM, 40, metric="l2", vectors="float32", buckets="cells")
        index.add(some_vectors(900))
        index.add(some_vectors(100, 1))
        index.add(some_vectors(40, 2))
        large, small, smallest = (segment.buckets for segment in segments_of(index))
    assert large.calibration.n_queries[0] == 200
    assert large.ranges is not None
    assert small.calibration.n_queries[0] == 20  # one for each 5 rows, and a tenth of 200
    assert smallest.calibration.n_queries[0] == 10
    assert small.ranges is None
    assert smallest.ranges is None
