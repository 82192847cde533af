"""Buckets of CBEIndex: against brute force, and against the same index without them."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse

from cbeindex import CBEIndex
from tests import vector_oracles
from tests.small import ALL, KINDS, buckets_of, check_equal, small_buckets, tune
from tests.vector_oracles import clustered

METRIC_NAMES = ("cosine", "l2", "ip")
N = 110
X = clustered(N, 24)
X[7] = X[3]
X[11] = 0
X[60:66] = X[60]
QUERIES = np.concatenate([clustered(2, 24, seed=1), X[[60]], np.zeros((1, 24), np.float32)])
RERANKS = (None, "asymmetric", "exact")


@pytest.fixture(autouse=True)
def few_rows():
    """Few rows make segments with buckets and without."""
    with small_buckets():
        yield


def pair(kind, n_bits=64, rows=X, size=25, ids=None, **options):
    """Indexes with and without buckets, of the same encoder."""
    ids = np.arange(len(rows) if not scipy.sparse.issparse(rows) else rows.shape[0]) if ids is None else ids
    with_buckets = {"n_cells": 6} if kind == "clusters" else {"n_tables": 4, "table_bits": 5}
    both = (
        CBEIndex(24, n_bits, buckets=kind, **{"vectors": None, **with_buckets, **options}),
        CBEIndex(24, n_bits, **{"vectors": None, "buckets": None, **options}),
    )
    for index in both:
        index.fit(rows)
        for start in range(0, len(ids), size):
            index.add(rows[start : start + size], ids[start : start + size])
    return both


def nearly_equal(result, expected):
    """The same ids; distances of ties may be rounded another way where rows are read in another order."""
    np.testing.assert_array_equal(result.ids, expected.ids)
    np.testing.assert_allclose(result.distances, expected.distances, rtol=1e-6, atol=1e-12)
    assert result.distances.dtype == expected.distances.dtype


# Codes of one word, of several words, and long ones.
SHAPES = [("cosine", 20), ("cosine", 1_030), ("l2", 64), ("l2", 600), ("ip", 64), ("ip", 1_030)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("metric", "n_bits"), SHAPES)
class TestAllBucketsAreAllRows:
    """With all probes: what an index without buckets finds, in every order."""

    def test_hamming(self, kind, metric, n_bits):
        index, plain = pair(kind, n_bits, metric=metric)
        assert sum(bucket is not None for bucket in buckets_of(index)) >= 1
        for k in (1, 9, N + 5):
            expected = plain.search(QUERIES, k, mode="scan", rerank=None)
            check_equal(index.search(QUERIES, k, n_probes=ALL, rerank=None), expected)
            check_equal(index.search(QUERIES, k, mode="scan", rerank=None), expected)
            if kind == "substrings":
                check_equal(index.search(QUERIES, k, mode="buckets", rerank=None), expected)
                check_equal(index.search(QUERIES, k, rerank=None), expected)

    def test_asymmetric(self, kind, metric, n_bits):
        index, plain = pair(kind, n_bits, metric=metric)
        for k in (9, N + 5):
            expected = plain.search(QUERIES, k, mode="scan", rerank="asymmetric")
            for options in ({}, {"n_candidates": N + 5}):
                for mode in ({"mode": "scan"}, {"n_probes": ALL}):
                    result = index.search(QUERIES, k, rerank="asymmetric", **options, **mode)
                    nearly_equal(result, expected)
                    np.testing.assert_allclose(result.errors, expected.errors, rtol=1e-5)

    def test_exact(self, kind, metric, n_bits):
        index, _ = pair(kind, n_bits, metric=metric, vectors="float32")
        for k in (1, 9, N + 5):
            distances, ids = vector_oracles.nearest(metric, QUERIES, X, list(range(N)), k)
            for options in ({}, {"n_candidates": N + 5}):
                result = index.search(QUERIES, k, n_probes=ALL, **options)
                np.testing.assert_array_equal(result.ids, ids)
                np.testing.assert_allclose(result.distances, distances, rtol=1e-6, atol=1e-12)
                assert result.stats["rerank"] == "exact"

    def test_range_search(self, kind, metric, n_bits):
        index, plain = pair(kind, n_bits, metric=metric, vectors="float32")
        near = vector_oracles.distances(metric, QUERIES, X)
        for radius in (-np.inf, np.quantile(near, 0.3), np.inf):
            for rerank in ("asymmetric", "exact"):
                for filters in ({}, {"allow": range(20), "deny": [3, 60]}):
                    result = index.range_search(QUERIES, radius, rerank, **filters)
                    expected = plain.range_search(QUERIES, radius, rerank, **filters)
                    np.testing.assert_array_equal(result.lims, expected.lims)
                    np.testing.assert_array_equal(result.ids, expected.ids)
                    np.testing.assert_allclose(result.distances, expected.distances, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", METRIC_NAMES)
@pytest.mark.parametrize("rerank", RERANKS)
def test_some_buckets_of_vectors(kind, metric, rerank):
    """No duplicates, each result at the distance that it has, k of them, and never worse with more probes."""
    index, plain = pair(kind, 64, metric=metric, vectors="float32")
    every = plain.search(QUERIES, N, mode="scan", rerank=rerank)
    known = [dict(zip(ids.tolist(), near.tolist(), strict=True)) for near, ids in zip(*every, strict=True)]
    all_rows = {} if rerank is None else {"n_candidates": N}
    for k in (6, 100):
        before = None
        for n_probes in (1, 2, 5, ALL):
            result = index.search(QUERIES, k, rerank=rerank, n_probes=n_probes, **all_rows)
            assert result.stats["mode"] == "buckets"
            for query, (distances, ids) in enumerate(zip(*result, strict=True)):
                assert len(set(ids.tolist())) == k
                expected = [known[query][id_] for id_ in ids.tolist()]
                np.testing.assert_allclose(distances, expected, rtol=1e-6, atol=1e-6)
                assert sorted(range(k), key=lambda i: (distances[i], ids[i])) == list(range(k))
            assert (result.distances >= every.distances[:, :k] - 1e-6).all()
            assert before is None or (result.distances <= before.distances + 1e-6).all()
            before = result
        nearly_equal(before, plain.search(QUERIES, k, "scan", rerank))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rerank", RERANKS)
@pytest.mark.parametrize("n_bits", [64, 1_100])
def test_filters_of_vectors(kind, rerank, n_bits):
    """What the whole order leaves when other ids are struck out; few allowed ids are scanned alone, in every mode."""
    ids = np.random.default_rng(0).permutation(3 * N)[:N]
    index, plain = pair(kind, n_bits, ids=ids, vectors="float32")
    gone = ids[[0, 100]]
    for each in (index, plain):
        each.remove(gone)
    whole = plain.search(QUERIES, N, "scan", rerank)
    few, many = ids[[5, 9, 100]], ids[::2]
    for allow, deny in (
        (few, None),
        (few, few[:1]),
        (many, None),
        (None, many),
        (many, ids[:40]),
        ([], None),
        (few[2:3], None),
    ):
        permitted = set(ids if allow is None else allow) - set(deny if deny is not None else ()) - set(gone)
        for mode in ("auto", "scan", "buckets"):
            options = {"n_probes": ALL} if mode == "buckets" else {}
            if mode == "auto" and kind == "clusters" and len(permitted) > 3:
                continue
            result = index.search(QUERIES, 4, mode, rerank, **options, allow=allow, deny=deny)
            for found, order in zip(result.ids, whole.ids, strict=True):
                left = [id_ for id_ in order.tolist() if id_ in permitted][:4]
                assert found.tolist() == left + [-1] * (4 - len(left))
            if allow is not None and len(allow) <= 3:
                assert result.stats["rows"] == len(permitted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", METRIC_NAMES)
@pytest.mark.parametrize("kept", ["float32", "float16"])
def test_sparse_vectors(kind, metric, kept):
    rows = np.where(np.random.default_rng(0).random(X.shape) < 0.7, 0, X).astype(kept).astype(np.float32)
    index, _ = pair(kind, 100, scipy.sparse.csr_array(rows), metric=metric, vectors=kept)
    index.remove([8, 30])
    left = [id_ for id_ in range(N) if id_ not in (8, 30)]
    distances, ids = vector_oracles.nearest(metric, QUERIES, rows[left], left, 9)
    for _ in range(2):
        result = index.search(scipy.sparse.csr_array(QUERIES), 9, n_probes=ALL)
        np.testing.assert_array_equal(result.ids, ids)
        np.testing.assert_allclose(result.distances, distances, rtol=1e-6, atol=1e-12)
        np.testing.assert_array_equal(index.get(left).toarray(), rows[left])
        index.compact()
        assert buckets_of(index)[0] is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fit", [True, False])
def test_work_on_an_index_of_vectors(kind, fit):
    """Added one by one and in batches, replaced, removed, compacted, merged, pickled and copied: results stay exact."""
    few = {"n_cells": 6} if kind == "clusters" else {"n_tables": 4, "table_bits": 5}
    index = CBEIndex(24, 64, vectors="float32", buckets=kind, **few)
    rows = X.copy()
    if fit:
        index.fit(X)
    for row in rows[:50]:
        index.add(row)
    index.add(rows[50:90][::-1], range(89, 49, -1))
    index.add(rows[90:])
    ids = list(range(N))

    def check(index):
        expected = vector_oracles.nearest("cosine", QUERIES, rows[ids], ids, 7)
        for options in ({"mode": "scan"}, {"n_probes": ALL}, {"n_probes": ALL, "n_candidates": N}):
            result = index.search(QUERIES, 7, **options)
            np.testing.assert_array_equal(result.ids, expected[1])
            np.testing.assert_allclose(result.distances, expected[0], rtol=1e-6, atol=1e-12)
        assert index.ids.tolist() == ids
        np.testing.assert_array_equal(index.get(ids), rows[ids])
        assert index.stats()["bytes"]["buckets"] > 0

    check(index)
    rows[30:60] = clustered(30, 24, seed=5)
    index.add(rows[30:60], range(30, 60), replace=True)
    check(index)
    index.remove(range(70, 90))
    ids = [*range(70), *range(90, N)]
    check(index)
    for again in (copy.copy, copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))):
        check(again(index))
    index.compact()
    check(index)
    other = CBEIndex(24, 64, vectors="float32", buckets=KINDS[kind == KINDS[0]])
    other.merge(index)
    check(other)
    other = CBEIndex(24, 64, vectors="float32", buckets=kind)
    other.add(rows[70:90], range(70, 90))
    index.merge(other)
    ids = list(range(N))
    check(index)


@pytest.mark.parametrize("n_of_a_thread", [1, 32])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", METRIC_NAMES)
def test_threads_do_not_matter_to_vectors(kind, metric, n_of_a_thread, monkeypatch):
    tune(monkeypatch, least_thread_queries=n_of_a_thread)
    index, _ = pair(kind, 64, np.tile(X, (2, 1)), size=100, metric=metric, vectors="float32")
    for rerank in RERANKS:
        for options in ({}, {"n_probes": 2}, {"mode": "buckets", "deny": range(100)}):
            for queries in (QUERIES[:1], X[:8]):
                one, more = (index.search(queries, 9, rerank=rerank, **options, n_threads=n) for n in (1, 3))
                check_equal(more, one)
                assert more.stats == one.stats


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rerank", RERANKS)
def test_a_batch_is_answered_like_its_queries(kind, rerank):
    index, _ = pair(kind, 64, vectors="float32")
    for options in ({"n_probes": 1}, {"n_probes": 2, "deny": range(40)}):
        together = index.search(X[:5], 15, rerank=rerank, **options)
        for i in range(5):
            alone = index.search(X[i], 15, rerank=rerank, **options)
            np.testing.assert_array_equal(alone.ids, together.ids[i])
            np.testing.assert_array_equal(alone.distances, together.distances[i])


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_of_vectors_with_few_rows(kind):
    """Not fitted yet, or too few for buckets: all are scanned, and `explain` says so."""
    for n, is_fitted in ((30, False), (23, True)):
        index, plain = CBEIndex(24, 64, buckets=kind, vectors=None), CBEIndex(24, 64, vectors=None, buckets=None)
        for each in (index, plain):
            if is_fitted:
                each.fit(X)
            each.add(X[:n])
        assert index.is_fitted == is_fitted
        for options in ({}, {"mode": "buckets"}, {"n_probes": 1}):
            check_equal(index.search(QUERIES, 5, **options), plain.search(QUERIES, 5))
        text = index.explain(QUERIES, 5)
        assert text.mode == "scan"
        assert ("there are too few rows for buckets" if is_fitted else "not fitted yet") in text
        assert index.stats()["bytes"]["buckets"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_explain_for_vectors(kind):
    index, _ = pair(kind)
    for options in ({}, {"mode": "scan"}, {"mode": "cascade"}, {"mode": "buckets"}, {"n_probes": 2}):
        text = index.explain(QUERIES, 3, **options)
        assert text.startswith("4 queries, 3 of 110 vectors each: ")
        assert text.mode == index.search(QUERIES, 3, **options).stats["mode"]
        assert text.ways["scan"] == (110, 110 * 8)
        assert text.ways["buckets"].rows <= 110
        assert [line[:2] for line in text.splitlines()[1:]].count("->") == 1
    few = index.explain(QUERIES, 3, allow=[1, 2])
    assert "only the 2 allowed rows" in few
    assert (few.mode, few.ways) == ("scan", {"scan": (2, 16)})
    with pytest.raises(ValueError, match="n_probes must be at least 1"):
        index.explain(QUERIES, 3, n_probes=0)
