"""The argument recall: what is promised comes, whatever happened to the index, and bad arguments say what to do."""

import copy
import functools
import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse

import cbeindex
from cbeindex import BinaryIndex, CBEIndex
from cbeindex._core.threads import n_cores
from cbeindex._core.tuning import tuned, tuning
from tests import vector_oracles
from tests.small import buckets_of, check_equal, small_buckets
from tests.vector_oracles import clustered

DIM = 24
KINDS = ("cells", "graph", "auto")


@pytest.fixture(autouse=True)
def _small():
    changes = {
        "least_centre_rows": 4, "centre_sample_rows": 10**4, "least_calibration_queries": 300, "kmeans_iterations": 4,
        "most_calibration_queries": 300, "kmeans_rows": 32, "graph_building_beam": 32, "graph_step_rows": 4,
        "least_scan_candidates": 16, "first_rows": 500,
    }  # fmt: skip
    with small_buckets(changes):
        yield


def some_vectors(n, seed=0):
    return clustered(n, DIM, seed=seed, n_centres=40)


def a_new_index(kind="cells", n=1_500, **options):
    index = CBEIndex(DIM, buckets=kind, **{"vectors": "float32", **options})
    index.add(some_vectors(n))
    return index


_once = functools.cache(a_new_index)


def an_index(kind="cells", n=1_500, **options):
    """Return an index of its own, made from one that is built once: building takes longer than most tests."""
    return copy.copy(_once(kind, n, **options))


def shares_of(found, truth):
    return np.array([np.isin(*ids).mean() for ids in zip(found, truth, strict=True)])


def check_promise(index, vectors, ids, queries, k=10):
    """The true nearest are found as often as asked for, and not all of them where few are asked for."""
    metric = index.metric
    truth = vector_oracles.nearest(metric, queries, vectors, ids, k)[1]
    for recall in (0.8, 0.95):
        found = index.search(queries, k, recall=recall)
        shares = shares_of(found.ids, truth)
        # Two standard errors of this measurement, and two of that of 300 rows, which is deducted once already.
        error = shares.std() / np.sqrt(len(shares))
        assert shares.mean() >= recall - 0.01 - 3 * error, (
            recall,
            shares.mean(),
            index.explain(queries, k, recall=recall),
        )
        assert found.stats["expected_recall"] >= recall - 0.01


@pytest.mark.parametrize("kind", ["cells", "graph"])
def test_the_promise_holds_whatever_happened_to_the_index(kind, tmp_path):
    every, queries = some_vectors(2_600), some_vectors(2_700)[2_600:]
    ids = np.arange(2_600)
    index = CBEIndex(DIM, metric="l2", vectors="float32", buckets=kind)
    index.add(every[:1_500])
    check_promise(index, every[:1_500], ids[:1_500], queries)
    for start in range(1_500, 2_000, 100):
        index.add(every[start : start + 100])
    check_promise(index, every[:2_000], ids[:2_000], queries)
    index.remove(ids[:600])
    check_promise(index, every[600:2_000], ids[600:2_000], queries)
    index.add(every[2_000:2_200], ids=ids[600:800], replace=True)
    now = np.concatenate([every[2_000:2_200], every[800:2_000]])
    check_promise(index, now, ids[600:2_000], queries)
    other = CBEIndex(DIM, metric="l2", vectors="float32", buckets=kind)
    other.add(every[2_200:], ids=ids[2_200:])
    index.merge(other)
    now, now_ids = np.concatenate([now, every[2_200:]]), np.concatenate([ids[600:2_000], ids[2_200:]])
    check_promise(index, now, now_ids, queries)
    index.save(tmp_path / "index.cbe")
    loaded = CBEIndex.load(tmp_path / "index.cbe")
    check_equal(loaded.search(queries, 10, recall=0.9), index.search(queries, 10, recall=0.9))
    loaded.compact()
    check_promise(loaded, now, now_ids, queries)


@pytest.mark.parametrize("kind", ["cells", "graph"])
@pytest.mark.parametrize("kept", [0.5, 0.1])
def test_the_promise_holds_for_filtered_searches(kind, kept):
    index, queries = an_index(kind, 2_000), some_vectors(2_100)[2_000:]
    vectors = some_vectors(2_000)
    allowed = np.flatnonzero(np.random.default_rng(0).random(2_000) < kept)
    truth = vector_oracles.nearest("cosine", queries, vectors[allowed], allowed, 10)[1]
    found = index.search(queries, 10, recall=0.9, allow=allowed)
    shares = shares_of(found.ids, truth)
    assert shares.mean() >= 0.9 - 0.01 - 3 * shares.std() / 10, index.explain(queries, 10, recall=0.9, allow=allowed)


@pytest.mark.parametrize("kind", ["cells", "graph"])
@pytest.mark.parametrize("kept", [0.9, 0.5, 0.1])
@pytest.mark.parametrize("is_near", [True, False])
def test_the_promise_holds_for_filters_of_rows_that_are_near_each_other(kind, kept, is_near):
    """Also for queries around which nothing is allowed, and where most rows are."""
    index, queries, vectors = an_index(kind, 2_000), some_vectors(2_200)[2_000:], some_vectors(2_000)
    by_distance = vector_oracles.nearest("cosine", vectors[5], vectors, np.arange(2_000), 2_000)[1][0]
    n = round(kept * 2_000)
    allowed = np.sort(by_distance[:n] if is_near else by_distance[-n:])
    truth = vector_oracles.nearest("cosine", queries, vectors[allowed], allowed, 10)[1]
    for allow in (allowed, index.filter(allowed)):
        found = index.search(queries, 10, recall=0.9, allow=allow)
        shares = shares_of(found.ids, truth)
        error = shares.std() / np.sqrt(len(shares))
        assert shares.mean() >= 0.9 - 0.01 - 3 * error, index.explain(queries, 10, recall=0.9, allow=allow)
        assert found.stats["expected_recall"] >= 0.89


def test_removed_rows_that_are_near_each_other_do_not_make_a_search_visit_everything():
    """Queries are like the rows that are left."""
    index, vectors = an_index("cells", 2_000), some_vectors(2_000)
    by_distance = vector_oracles.nearest("cosine", vectors[5], vectors, np.arange(2_000), 2_000)[1][0]
    index.remove(by_distance[:600])
    assert index.explain(vectors[:5], 10, recall=0.8).mode == "buckets"


@pytest.mark.parametrize("kind", KINDS)
def test_less_recall_takes_less_effort(kind):
    index, queries = an_index(kind), some_vectors(1_600)[1_500:]
    plans = [index.explain(queries, 10, recall=recall) for recall in (0.5, 0.8, 0.95, 0.99)]
    assert [plan.microseconds for plan in plans] == sorted(plan.microseconds for plan in plans)
    assert plans[0].n_probes < (plans[-1].n_probes or 10**6)
    assert [plan.expected_recall for plan in plans] == sorted(plan.expected_recall for plan in plans)
    assert "expected recall" in plans[0]


def test_the_default_recall_is_asked_for():
    index, queries = an_index(), some_vectors(20, seed=1)
    check_equal(index.search(queries, 10), index.search(queries, 10, recall=0.95))
    assert index.explain(queries, 10) == index.explain(queries, 10, recall=0.95)


@pytest.mark.parametrize("kind", [None, "clusters", "substrings", *KINDS])
@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_a_recall_of_1_is_exhaustive_and_exact(kind, metric):
    index, queries, vectors = an_index(kind, 700, metric=metric), some_vectors(5, seed=1), some_vectors(700)
    index.remove([3, 4])
    left = np.setdiff1d(np.arange(700), [3, 4])
    near, ids = vector_oracles.nearest(metric, queries, vectors[left], left, 7)
    for found in (index.search(queries, 7, recall=1), index.search(queries, 7, mode="exact")):
        np.testing.assert_array_equal(found.ids, ids)
        np.testing.assert_allclose(found.distances, near, rtol=1e-5, atol=1e-6)
        assert found.stats["expected_recall"] == 1
    assert index.explain(queries, 7, recall=1.0).mode == "exact"
    deny = ids[:, 0]
    expected = vector_oracles.nearest(metric, queries, vectors[left], left, 7, deny=deny)[1]
    np.testing.assert_array_equal(index.search(queries, 7, recall=1.0, deny=deny).ids, expected)


def test_sparse_vectors_are_searched_exactly():
    rows = scipy.sparse.random_array(
        (600, DIM), density=0.3, rng=np.random.default_rng(0), format="csr", dtype=np.float32
    )
    index = CBEIndex(DIM, vectors="float32", buckets="cells", metric="l2")
    index.add(rows)
    expected = vector_oracles.nearest("l2", rows.toarray()[:5], rows.toarray(), np.arange(600), 6)[1]
    np.testing.assert_array_equal(index.search(rows[:5], 6, recall=1.0).ids, expected)


@pytest.mark.parametrize(
    ("recall", "error", "message"),
    [
        (0, ValueError, "above 0 and at most 1, got 0"), (1.5, ValueError, "got 1.5"), (-1, ValueError, "got -1"),
        ("high", TypeError, "recall must be a number, got 'high'"), (float("nan"), ValueError, "NaN"),
        (True, TypeError, "must be a number"), ([0.9], TypeError, "must be a number"),
    ],
)  # fmt: skip
def test_bad_recalls_are_refused(recall, error, message):
    index, query = an_index(n=600), some_vectors(1)
    for call in (index.search, index.explain):
        with pytest.raises(error, match=message):
            call(query, 3, recall=recall)


@pytest.mark.parametrize("options", [{"n_probes": 3}, {"n_candidates": 30}, {"mode": "scan"}, {"mode": "exact"}])
def test_recall_and_settings_exclude_each_other(options):
    with pytest.raises(ValueError, match="recall chooses mode, n_probes and n_candidates"):
        an_index(n=600).search(some_vectors(1), 3, recall=0.9, **options)


def test_recall_needs_distances_of_the_metric():
    with pytest.raises(ValueError, match="rerank=None orders by Hamming distance"):
        an_index(n=600).search(some_vectors(1), 3, recall=0.9, rerank=None)


def test_exact_searches_need_vectors():
    index, query = an_index(n=600, vectors=None), some_vectors(1)
    for options in ({"recall": 1.0}, {"mode": "exact"}):
        with pytest.raises(ValueError, match="needs float or sparse vectors, but this index keeps codes only"):
            index.search(query, 3, **options)
    kept = an_index(n=600)
    with pytest.raises(ValueError, match="no n_probes, got 3"):
        kept.search(query, 3, mode="exact", n_probes=3)
    with pytest.raises(ValueError, match="rerank must be"):
        kept.search(query, 3, mode="exact", rerank="asymmetric")
    binary = BinaryIndex(64)
    binary.add(np.zeros((3, 8), dtype=np.uint8))
    with pytest.raises(ValueError, match="'cascade', 'buckets', got 'exact'"):
        binary.search(np.zeros(8, dtype=np.uint8), 1, mode="exact")


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_codes_alone_report_what_they_find(metric, bits):
    """Not what they find of what they take for the nearest, which is more."""
    index = an_index(n=2_000, vectors=None, metric=metric, cell_bits=bits)
    vectors, queries = some_vectors(2_000), some_vectors(2_200)[2_000:]
    truth = vector_oracles.nearest(metric, queries, vectors, np.arange(2_000), 10)[1]
    found = index.search(queries, 10, recall=0.95)
    assert found.stats["rerank"] == "asymmetric"
    shares = shares_of(found.ids, truth)
    # Two standard errors of this measurement and of that of 300 rows, and what drawing the truth costs: estimates are
    # spread out by their errors, and drawn ones twice; and rows decoded from 24 bits are poor queries.
    doubt = 0.05 + 2 * shares.std() * np.sqrt(1 / len(shares) + 1 / 300)
    expected = found.stats["expected_recall"]
    assert shares.mean() - doubt - (0.05 if bits == 1 else 0) <= expected <= shares.mean() + doubt, shares.mean()


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_vectors_that_are_read_after_the_kernel_are_the_same(metric):
    """As for many results, sparse vectors and vectors beyond memory: effort is graded by query there too."""
    index, queries = an_index(n=2_000, metric=metric), some_vectors(2_100)[2_000:]
    queries = queries + 0.5 * np.random.default_rng(1).standard_normal(queries.shape).astype(np.float32)
    for recall in (0.8, 0.95):
        found = index.search(queries, 10, recall=recall)
        with tuned(most_inserted_results=0, precise_shares_of_estimates=tuning().precise_shares):
            after = index.search(queries, 10, recall=recall)
        np.testing.assert_array_equal(after.ids, found.ids)


@pytest.mark.parametrize("vectors", [None, "int8"])
def test_estimates_alone_are_searched_for_the_share_that_is_asked_for(vectors):
    """As a share of what they can find, however large that is."""
    index = an_index("cells" if vectors is None else "graph", 2_000, vectors=vectors)
    most = index.explain(some_vectors(5), 10, mode="scan").expected_recall
    for recall in (0.9, 0.96, 0.99):
        assert index.explain(some_vectors(5), 10, recall=recall).expected_recall >= recall * most


@pytest.mark.parametrize("kind", ["cells", "graph"])
def test_fewer_queries_are_calibrated_with_where_many_vectors_are_read_for_each(kind):
    def n_queries(**changes):
        with tuned(products_of_read=0, **changes):  # nothing but reading chooses the true nearest rows
            (buckets,) = buckets_of(a_new_index(kind))
        return buckets.describe()["calibration"]["n_queries"][0]

    assert n_queries(pilot_queries=8) == 300
    assert 8 < n_queries(pilot_queries=8, calibration_reads=20_000) < 300
    assert n_queries(pilot_queries=8, calibration_reads=1) == 8


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
@pytest.mark.parametrize("vectors", ["int8", "float32"])
def test_products_find_the_rows_that_reading_all_of_them_finds(metric, vectors):
    def calibration(**changes):
        few = {"true_rows_of_k": 1, "least_true_rows": 1, "deep_share": -1.0, "most_calibrated_depth": 1}
        with tuned(calibration_reads=2**40, calibration_products=2**40, **few, **changes):
            index = CBEIndex(DIM, metric=metric, vectors=vectors, buckets="cells")
            index.add(some_vectors(1_000))
            index.remove(np.arange(0, 1_000, 7))
            index.compact()
        (buckets,) = buckets_of(index)
        return buckets.describe()["calibration"]

    assert calibration(products_of_read=2**40) == calibration(products_of_read=0)


def near_duplicates(n_points, n_copies, seed=0):
    """Points far from each other, each of them many times with a hundredth of noise, in random order."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((n_points, DIM))
    copies = np.repeat(points, n_copies, axis=0) + 0.01 * rng.standard_normal((n_points * n_copies, DIM))
    return rng.permutation(copies).astype(np.float32)


@pytest.mark.parametrize("kind", ["cells", "graph"])
def test_levels_that_do_not_tell_near_duplicates_apart_promise_what_they_deliver(kind):
    vectors, n = near_duplicates(200, 10), 1_800
    index = CBEIndex(DIM, metric="l2", vectors="int8", buckets=kind)
    index.add(vectors[:n])
    truth = vector_oracles.nearest("l2", vectors[n:], vectors[:n], np.arange(n), 1)[1]
    for recall in (0.8, 0.99):
        found = index.search(vectors[n:], 1, recall=recall)
        shares, expected = shares_of(found.ids, truth), found.stats["expected_recall"]
        assert expected < 0.97
        # Three standard errors of 200 queries.
        assert abs(shares.mean() - expected) < 0.02 + 3 * shares.std() / np.sqrt(len(shares))
    exact = CBEIndex(DIM, metric="l2", vectors="float32", buckets=kind)
    exact.add(vectors[:n])
    check_promise(exact, vectors[:n], np.arange(n), vectors[n:], k=1)


def test_walks_where_rows_are_hidden_go_on_until_they_meet_visible_ones():
    vectors = near_duplicates(250, 10)
    index = CBEIndex(DIM, metric="l2", vectors="float32", buckets="graph")
    index.add(vectors[:2_400])
    side = np.argsort(vectors[:2_400, 0], kind="stable")
    allowed, queries = np.sort(side[:1_200]), vectors[2_400:]
    truth = vector_oracles.nearest("l2", queries, vectors[allowed], allowed, 1)[1]

    def shares(**changes):
        with tuned(clumped_share=0.0, **changes):  # as if the filter did not look like one of near rows
            return shares_of(index.search(queries, 1, recall=0.95, allow=allowed).ids, truth)

    assert shares().mean() >= 0.94 - 3 * shares().std() / 10
    assert shares(met_part=0.0).mean() < 0.9


@pytest.mark.parametrize("kind", ["cells", "graph"])
def test_few_allowed_rows_and_small_segments_have_many_candidates(kind):
    index, queries = an_index(kind, 2_000), some_vectors(2_100)[2_000:]
    allowed = np.arange(0, 2_000, 40)
    for k, least in ((1, 16), (4, 32)):
        assert index.explain(queries, k, allow=allowed).n_candidates >= least
    small = CBEIndex(DIM, vectors="float32", buckets=kind)
    small.fit(some_vectors(1_000))
    small.add(some_vectors(20))
    assert small.explain(queries, 2).n_candidates >= 16


@pytest.mark.parametrize("kind", ["cells", "graph"])
def test_calibrations_do_not_depend_on_threads(kind):
    described = []
    for n_threads in (1, 3):
        cbeindex.set_num_threads(n_threads)
        try:
            described.append([buckets.describe() for buckets in buckets_of(a_new_index(kind)) if buckets is not None])
        finally:
            cbeindex.set_num_threads(None)
    assert described[0] == described[1]
    assert "calibration" in described[0][0]


@pytest.mark.parametrize("kind", ["cells", "graph"])
def test_tuned_indexes_keep_their_promise_for_other_queries(kind, tmp_path):
    """Queries between the clusters need more effort than stored rows; an index that is tuned knows."""
    index, rng = an_index(kind, 2_000), np.random.default_rng(5)
    vectors = some_vectors(2_000)
    outside = vectors[rng.permutation(2_000)[:400]] + 0.8 * vectors[rng.permutation(2_000)[:400]]
    train, queries = outside[:300], outside[300:]
    truth = vector_oracles.nearest("cosine", queries, vectors, np.arange(2_000), 10)[1]
    before = index.explain(queries, 10, recall=0.95).microseconds
    assert index.tune(train, 10) is index
    assert index.explain(queries, 10, recall=0.95).microseconds > before
    found = index.search(queries, 10, recall=0.95)
    shares = shares_of(found.ids, truth)
    assert shares.mean() >= 0.95 - 0.01 - 3 * shares.std() / 10
    index.save(tmp_path / "tuned.cbe")
    check_equal(CBEIndex.load(tmp_path / "tuned.cbe").search(queries, 10, recall=0.95), found)


@pytest.mark.parametrize("vectors", ["int8", "int4"])
@pytest.mark.parametrize("options", [{"kind": "cells", "cell_bits": 4}, {"kind": "graph"}])
def test_vectors_that_are_the_codes_of_buckets_tell_the_true_nearest_of_tuning_queries(vectors, options):
    """No vectors are read beside the codes then, so there is no number of candidates."""
    index = an_index(n=600, vectors=vectors, **options)
    before = [buckets.describe() for buckets in buckets_of(index)]
    index.tune(2 * some_vectors(100, seed=3) + 1)
    assert [buckets.describe() for buckets in buckets_of(index)] != before


def noisy_queries(n, share):
    """Return queries like stored rows, with noise of a share of their length."""
    queries, noise = some_vectors(2_000 + n)[2_000:], np.random.default_rng(3).standard_normal((n, DIM))
    lengths = np.linalg.norm(queries, axis=1, keepdims=True) / np.sqrt(DIM)
    return (queries + share * lengths * noise).astype(np.float32)


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("vectors", ["float32", "int8"])
def test_the_promise_holds_for_noisy_queries(metric, vectors):
    """Cells grade effort by query, so that queries which are unlike stored rows need no tuning."""
    index, queries = an_index("cells", 2_000, metric=metric, vectors=vectors), noisy_queries(400, 0.5)
    truth = vector_oracles.nearest(metric, queries, some_vectors(2_000), np.arange(2_000), 10)[1]
    for recall in (0.8, 0.9, 0.95):
        found = index.search(queries, 10, recall=recall)
        shares = shares_of(found.ids, truth)
        assert shares.mean() >= recall - 0.01 - 2 * shares.std() / np.sqrt(len(shares)), (recall, shares.mean())


@pytest.mark.parametrize("options", [{}, {"vectors": "int8"}, {"vectors": None}, {"cell_bits": 4, "spill": True}])
def test_graded_searches_find_the_same_one_by_one_and_together(options):
    index = an_index("cells", 2_000, metric="l2", **options)
    queries = np.concatenate([some_vectors(2_200)[2_000:], noisy_queries(200, 1.0)])
    found = index.search(queries, 10, recall=0.9, n_threads=1)
    check_equal(index.search(queries, 10, recall=0.9, n_threads=3), found)
    parts = [index.search(queries[i : i + 7], 10, recall=0.9) for i in range(0, len(queries), 7)]
    np.testing.assert_array_equal(np.concatenate([part.ids for part in parts]), found.ids)
    np.testing.assert_array_equal(np.concatenate([part.distances for part in parts]), found.distances)
    assert sum(part.stats["visited"] for part in parts) == found.stats["visited"]
    for i in (0, 1, 250, 251):
        one = index.search(queries[i], 10, recall=0.9)
        np.testing.assert_array_equal(one.ids, found.ids[i])
        np.testing.assert_array_equal(one.distances, found.distances[i])


def test_noisy_queries_visit_more_cells_and_read_more_candidates():
    """But not if the caller says how many."""
    index = an_index("cells", 2_000, metric="l2", cell_bits=1)
    plain, noisy = some_vectors(2_200)[2_000:], noisy_queries(200, 1.0)
    stats = [index.search(queries, 10, recall=0.9).stats for queries in (plain, noisy)]
    assert stats[1]["buckets"] > 1.1 * stats[0]["buckets"]
    assert stats[1]["vectors_read"] > 1.1 * stats[0]["vectors_read"]
    for queries in (plain, noisy):
        given = index.search(queries, 10, n_probes=5, n_candidates=20).stats
        assert given["buckets"] == 5 * len(queries)
        assert given["vectors_read"] == 20 * len(queries)


def test_queries_that_are_far_from_all_rows_of_a_graph_are_searched_again():
    """With more effort, one by one as together, and from arrays as from lists."""
    index = an_index("graph", 2_000, metric="l2")
    near, far = some_vectors(2_005)[2_000:], 4 * some_vectors(5, seed=9) + 3
    queries = np.concatenate([near, far])
    found = index.search(queries, 10, recall=0.8)
    assert found.stats["far_queries"] >= 5
    check_equal(index.search(queries, 10, recall=0.8), found)
    check_equal(index.search(queries.tolist(), 10, recall=0.8), found)
    for i in (0, 7):
        np.testing.assert_array_equal(index.search(queries[i], 10, recall=0.8).ids, found.ids[i])
    assert found.stats["vectors_read"] > index.search(near, 10, recall=0.8).stats["vectors_read"]


def test_queries_that_are_far_are_searched_with_the_fewest_misses_that_were_measured():
    """None of 300 queries tells a share of all but one in a million."""

    def steps(*shares):
        with tuned(far_shares_of_misses=shares):
            stats = an_index("graph", 2_000, metric="l2").search(4 * some_vectors(5, seed=9) + 3, 1, recall=0.5).stats
        assert stats["far_queries"] == 5
        return stats["steps"]

    assert steps(1e-6, 0.5) == steps(0.5) < steps(0.1, 0.5)
    assert steps(1e-6) == steps(1.0)


def test_allowed_rows_that_are_near_each_other_are_all_searched():
    """A search that begins where no row is allowed would end before it meets the nearest that are."""
    index, vectors = an_index("cells", 2_000, metric="l2"), some_vectors(2_000)
    allowed = np.argsort(((vectors - vectors[0]) ** 2).sum(axis=1))[:500]
    queries = some_vectors(2_050)[2_000:]
    truth = vector_oracles.nearest("l2", queries, vectors[allowed], allowed, 10)[1]
    found = index.search(queries, 10, recall=0.8, allow=allowed)
    assert shares_of(found.ids, truth).mean() > 0.99
    assert index.explain(queries, 10, recall=0.8, allow=allowed).mode == "scan"


def test_tune_says_what_it_needs():
    for index in (an_index(vectors=None), an_index(None)):
        with pytest.raises(ValueError, match="tune needs cells or a graph, and vectors"):
            index.tune(some_vectors(10))
    unfitted = CBEIndex(DIM, vectors="float32", buckets="cells")
    unfitted.add(some_vectors(10))
    with pytest.raises(ValueError, match="tune needs a fitted index: call fit, or add more than the 10 vectors now"):
        unfitted.tune(some_vectors(10))
    with pytest.raises(ValueError, match="at least 1 query"):
        an_index().tune(np.empty((0, DIM)))


def test_auto_buckets_are_cells_and_survive_a_file(tmp_path):
    index, queries = an_index("auto"), some_vectors(20, seed=1)
    check_equal(index.search(queries, 5), an_index("cells").search(queries, 5))
    index.save(tmp_path / "auto.cbe")
    loaded = CBEIndex.load(tmp_path / "auto.cbe")
    assert loaded.buckets == "auto"
    check_equal(loaded.search(queries, 5), index.search(queries, 5))
    cbeindex.verify(tmp_path / "auto.cbe")


def test_auto_buckets_without_cells_are_scanned():
    index = CBEIndex(DIM, vectors="float32", buckets="auto")
    index.add(some_vectors(600)[:, ::-1] * 0 + np.random.default_rng(0).standard_normal((600, DIM)))
    found = index.search(some_vectors(3), 5, mode="buckets")
    assert (found.ids >= 0).all()


def test_stored_vectors_are_searched_by_id():
    index, vectors = an_index(n=600), some_vectors(600)
    found = index.search_ids([5, 9], 4, recall=1.0)
    for i, id_ in enumerate((5, 9)):
        expected = vector_oracles.nearest("cosine", vectors[id_], vectors, np.arange(600), 4, deny=[id_])[1]
        np.testing.assert_array_equal(found.ids[i], expected[0])
    np.testing.assert_array_equal(index.search_ids(9, 4, recall=1.0).ids, found.ids[1])
    with pytest.raises(ValueError, match="id 700 is not in the index"):
        index.search_ids([700])


def test_codes_are_those_of_the_encoder():
    index, vectors = an_index(n=600), some_vectors(600)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_array_equal(index.codes([7, 3]), index.encoder.encode(unit[[7, 3]]))
    np.testing.assert_array_equal(index.codes(3), index.codes([3])[0])
    with pytest.raises(ValueError, match="hamming=True"):
        an_index(n=600, hamming=False).codes([3])
    with pytest.raises(ValueError, match="no codes until the index is fitted"):
        CBEIndex(DIM).codes([3])


def test_threads_are_limited():
    for n in (1, 3):
        cbeindex.set_num_threads(n)
        assert n_cores() == n
    cbeindex.set_num_threads(None)
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        cbeindex.set_num_threads(0)


@pytest.mark.parametrize(("given", "shown"), [("3", "3"), ("many", "must be a number from 1 to 1024, got 'many'")])
def test_the_environment_limits_threads(given, shown):
    lines = ["from cbeindex._core.threads import n_cores", "try: print(n_cores())", "except ValueError as e: print(e)"]
    program = "\n".join(lines)
    environment = os.environ | {"CBEINDEX_NUM_THREADS": given}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert shown in done.stdout
