"""Answers of shards with string ids and for a given recall, next to those of a single index."""

import sys

import numpy as np
import pytest

from cbeindex import CBEIndex

ray = pytest.importorskip("ray")

from cbeindex.sharded import ShardedIndex  # noqa: E402

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(sys.platform == "win32", reason="Windows replaces no files that are open"),
]

DIM, N, K = 32, 4_000, 10
RNG = np.random.default_rng(3)
CENTRES = RNG.standard_normal((40, DIM))
X = (3 * CENTRES[RNG.integers(40, size=N)] + RNG.standard_normal((N, DIM))).astype(np.float32)
QUERIES = (3 * CENTRES[RNG.integers(40, size=100)] + RNG.standard_normal((100, DIM))).astype(np.float32)
NAMES = np.array([f"item {i * 7919 % N}{'é' * (i % 2)}" for i in range(N)], dtype=object)
EXACT = {"mode": "exact"}


@pytest.fixture(scope="module")
def pair(cluster, tmp_path_factory):
    """An index in two shards, with strings as ids and cells, and a single index with the same encoder and rows."""
    folder = tmp_path_factory.mktemp("named") / "index"
    with ShardedIndex.create(folder, DIM, n_shards=2, sync=False, vectors="float32") as index:
        index.fit(X)
        single = CBEIndex.load(folder / "template.cbe")
        np.testing.assert_array_equal(index.add(X, NAMES), single.add(X, NAMES))
        yield index, single


def assert_equal(ours, theirs):
    np.testing.assert_array_equal(ours.ids, theirs.ids)
    np.testing.assert_array_equal(ours.distances, theirs.distances)


def test_exact_results_have_the_strings_of_a_single_index(pair):
    index, single = pair
    for more in ({}, {"allow": NAMES[::3]}, {"deny": NAMES[:2_000]}, {"allow": NAMES[:4]}):  # the last: fewer than k
        assert_equal(index.search(QUERIES, K, **EXACT, **more), single.search(QUERIES, K, **EXACT, **more))
    assert_equal(index.search(QUERIES[0], K, **EXACT), single.search(QUERIES[0], K, **EXACT))
    ours, theirs = (some.range_search(QUERIES, 0.1, recall=1.0) for some in (index, single))
    assert ours.lims[-1] > 1_000
    for some, others in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(some, others)


def test_equal_distances_are_in_the_order_of_strings(pair):
    """Shards do not know in which order other shards got their rows, so ties are not in the order of insertion."""
    index, single = pair
    options = {"rerank": None, "mode": "scan"}
    ours, theirs = index.search(QUERIES, K, **options), single.search(QUERIES, K, **options)
    np.testing.assert_array_equal(ours.distances, theirs.distances)
    is_tie = np.diff(ours.distances) == 0
    assert is_tie.any()
    assert (ours.ids[:, 1:] > ours.ids[:, :-1])[is_tie].all()
    for a, b, distances in zip(ours.ids, theirs.ids, ours.distances, strict=True):
        inside = distances < distances[-1]  # of those at the last distance, some are left out
        assert set(a[inside]) == set(b[inside])


def test_other_methods_take_strings(pair):
    index, single = pair
    assert len(index) == N
    assert set(index.ids) == set(NAMES)
    some = NAMES[[3_999, 0, 77, 3]]
    np.testing.assert_array_equal(index.get(some), single.get(some))
    np.testing.assert_array_equal(index.get(NAMES[5]), X[5])
    np.testing.assert_array_equal(index.codes(some), single.codes(some))
    assert NAMES[9] in index
    assert "item" not in index
    assert 9 not in index
    for call in (
        lambda i: i.add(X[:1], ids=[5]),
        lambda i: i.add(X[:1]),
        lambda i: i.add(X[:2], ids=["new", "new"]),
        lambda i: i.add(X[:2], ids=["new", ""]),
        lambda i: i.add(X[:1], ids=NAMES[:1]),
        lambda i: i.remove(["new", NAMES[0]]),
        lambda i: i.search(QUERIES, allow=[1, 2]),
    ):
        with pytest.raises((ValueError, TypeError)) as theirs:
            call(single)
        with pytest.raises(theirs.type) as ours:
            call(index)
        assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("recall", [0.8, 0.95, 0.99])
def test_shards_find_the_share_that_is_asked_for(pair, recall):
    """Each shard finds that share of its own nearest rows, and so of the nearest of all."""
    index, single = pair
    true = single.search(QUERIES, K, **EXACT).ids

    def share(found):
        return np.mean([len(set(a) & set(b)) / K for a, b in zip(found.ids, true, strict=True)])

    ours, theirs = (share(i.search(QUERIES, K, recall=recall)) for i in pair)
    # 1,000 neighbours: three standard errors, were they found independently of each other.
    error = 3 * np.sqrt(recall * (1 - recall) / 1_000)
    assert ours >= recall - error
    assert ours >= theirs - error
    explanation = index.explain(QUERIES, K, recall=recall)
    assert len(explanation.shards) == 2


def test_a_recall_of_one_is_exact(pair):
    index, single = pair
    assert_equal(index.search(QUERIES, K, recall=1.0), single.search(QUERIES, K, **EXACT))


def test_strings_survive_removal_a_new_layout_and_reopening(cluster, tmp_path):
    folder = tmp_path / "index"
    with ShardedIndex.create(folder, DIM, n_shards=2, sync=False, vectors="float32", buckets=None) as index:
        index.fit(X)
        single = CBEIndex.load(folder / "template.cbe")
        for i in (index, single):
            i.add(X[:500], NAMES[:500])
            i.remove(NAMES[:500:7])
            i.remove([NAMES[0], "never"], missing="ignore")
            i.add(-X[:20], NAMES[1:21], replace=True)
        index.save()
        index.reshard(1)
        assert_equal(index.search(QUERIES, K, **EXACT), single.search(QUERIES, K, **EXACT))
    with ShardedIndex.open(folder) as index:
        assert_equal(index.search(QUERIES, K, **EXACT), single.search(QUERIES, K, **EXACT))
        assert NAMES[0] not in index
