"""BinaryIndex: every public method against plain numpy, a dictionary and faiss; bad input; readers beside a writer."""

import copy
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cbeindex import BinaryIndex, RangeResult, SearchResult
from cbeindex._core.tuning import tuned
from tests import oracles
from tests.small import ALL, KINDS, VERY_SMALL, small_buckets, tune
from tests.strategies import code_batches, some_codes

MISSING = np.iinfo(np.int32).max
EXACT = ({"mode": "auto"}, {"mode": "scan"}, {"mode": "cascade", "miss": 1e-300})
# With buckets; those of clusters are chosen by "auto" too, and then it is not exact.
EXACT_WITH = {
    None: EXACT,
    "clusters": (*EXACT[1:], {"mode": "buckets", "n_probes": ALL}),
    "substrings": (*EXACT, {"mode": "buckets"}, {"mode": "buckets", "n_probes": ALL}),
}


def index_of(codes, n_bits, ids=None):
    index = BinaryIndex(n_bits)
    index.add(codes, ids)
    return index


@pytest.fixture
def codes():
    """100 codes of 1_100 bits, some of them equal."""
    return some_codes(np.random.default_rng(3), 100, 1_100, 30, 0.002)


@pytest.fixture
def index(codes):
    return index_of(codes, 1_100)


@pytest.fixture
def small_buffer(monkeypatch):
    """A buffer of 8 rows that begins with room for 2, so that few rows make many segments."""
    tune(monkeypatch, buffer_rows=8, least_buffer_rows=2)


def check_search(index, queries, codes, ids, k, **filters):
    for options in EXACT_WITH[index.buckets]:
        result = index.search(queries, k, **options, **filters)
        for got, want in zip(result, oracles.nearest(queries, codes, ids, k, **filters), strict=True):
            np.testing.assert_array_equal(got, want)
            assert got.dtype == want.dtype


def check_range(index, queries, codes, ids, radius, **filters):
    result = index.range_search(queries, radius, **filters)
    for got, want in zip(result, oracles.within(queries, codes, ids, radius, **filters), strict=True):
        np.testing.assert_array_equal(got, want)
    assert [field.dtype for field in result] == [np.int64, np.int32, np.int64]


FILTERS = st.none() | st.lists(st.integers(-5, 60), max_size=30)


@given(code_batches(sizes=(1, 2, 17, 40)), st.integers(1, 50), FILTERS, FILTERS, st.data())
def test_search_and_range_search(batch, k, allow, deny, data):
    """With ids out of order and several segments; filters may name unknown ids, or none."""
    ids = np.array(data.draw(st.permutations(range(0, 2 * len(batch.codes), 2))), dtype=np.int64)
    with tuned(buffer_rows=8, least_buffer_rows=2):
        index = BinaryIndex(batch.n_bits)
        cut = data.draw(st.integers(1, 9))
        for start in range(0, len(ids), cut):
            index.add(batch.codes[start : start + cut], ids[start : start + cut])
    check_search(index, batch.queries, batch.codes, ids, k, allow=allow, deny=deny)
    exact = oracles.hamming(batch.queries, batch.codes)
    radius = data.draw(st.sampled_from([0, int(exact.min()), int(np.median(exact)), 10**12]))
    check_range(index, batch.queries, batch.codes, ids, radius, allow=allow, deny=deny)


@pytest.mark.parametrize("n_bits", [8, 64, 200, 512, 1_024, 1_032])
def test_distances_are_those_of_faiss(n_bits):
    faiss = pytest.importorskip("faiss")
    codes = some_codes(np.random.default_rng(n_bits), 700, n_bits, 50, 0.1)
    flat = faiss.IndexBinaryFlat(n_bits)
    flat.add(codes)
    index = index_of(codes, n_bits)
    for k in (1, 10, 600):
        expected, _ = flat.search(codes[:5], k)
        for options in EXACT:
            np.testing.assert_array_equal(index.search(codes[:5], k, **options).distances, expected)
    lims, distances, ids = index.range_search(codes[:5], n_bits // 3)
    faiss_lims, faiss_distances, faiss_ids = flat.range_search(codes[:5], n_bits // 3 + 1)  # there it is exclusive
    np.testing.assert_array_equal(lims, faiss_lims)
    for query in range(5):
        part = slice(lims[query], lims[query + 1])
        order = np.lexsort((faiss_ids[part], faiss_distances[part]))
        np.testing.assert_array_equal(ids[part], faiss_ids[part][order])
        np.testing.assert_array_equal(distances[part], faiss_distances[part][order])


@pytest.mark.parametrize("options", EXACT)
def test_a_single_query_gives_flat_results(index, codes, options):
    distances, ids = index.search(codes[4], 3, **options)
    many = index.search(codes[4:5], 3, **options)
    assert distances.shape == ids.shape == (3,)
    assert many.distances.shape == many.ids.shape == (1, 3)
    np.testing.assert_array_equal(many.distances[0], distances)
    np.testing.assert_array_equal(many.ids[0], ids)
    lims, _, ids = index.range_search(codes[4], 5)
    assert lims.tolist() == [0, len(ids)]


@pytest.mark.parametrize("options", EXACT)
@pytest.mark.parametrize("n_queries", [0, 1, 3])
def test_an_empty_index(options, n_queries):
    index = BinaryIndex(1_100)
    queries = np.zeros((n_queries, 138), dtype=np.uint8)
    for _ in range(2):
        distances, ids = index.search(queries, 4, **options)
        assert distances.shape == ids.shape == (n_queries, 4)
        assert (distances == MISSING).all()
        assert (ids == -1).all()
        assert [field.tolist() for field in index.range_search(queries, 1_100)] == [[0] * (n_queries + 1), [], []]
        assert (len(index), index.ids.tolist(), 0 in index) == (0, [], False)
        assert index.get([]).shape == (0, 138)
        index.remove([])
        index.compact()
        assert index.add(queries[:0]).shape == (0,)
        # Once more with rows that have come and gone, out of order.
        index.add(np.zeros((2, 138), dtype=np.uint8), [1, 0])
        index.remove([0, 1])


@pytest.mark.parametrize("options", EXACT)
def test_no_queries(index, options):
    result = index.search(np.empty((0, 138), dtype=np.uint8), 4, **options)
    assert result.distances.shape == result.ids.shape == (0, 4)
    assert index.range_search(np.empty((0, 138), dtype=np.uint8), 4).lims.tolist() == [0]


@pytest.mark.parametrize("n_bits", [1, 1_100])
def test_more_answers_than_codes(n_bits):
    codes = some_codes(np.random.default_rng(0), 5, n_bits)
    for options in EXACT:
        distances, ids = index_of(codes, n_bits).search(codes[:2], 8, **options)
        assert (ids[:, 5:] == -1).all()
        assert (distances[:, 5:] == MISSING).all()
        np.testing.assert_array_equal(np.sort(ids[:, :5]), [range(5)] * 2)


def test_codes_of_100_000_bits():
    codes = some_codes(np.random.default_rng(0), 30, 100_000, 3, 0.1)
    check_search(index_of(codes, 100_000), codes[:2], codes, np.arange(30), 7, deny=[0])


def test_filters(index, codes):
    ids = np.arange(100)
    for filters in (
        {"allow": [3, 99, 4]},
        {"allow": [3, 3, 1_000, -7]},
        {"allow": []},
        {"deny": []},
        {"deny": [0, 1, 5_000, -1]},
        {"deny": range(100)},
        {"allow": range(50), "deny": range(40, 60)},
        {"allow": np.arange(20, dtype=np.uint8)},
    ):
        check_search(index, codes[:3], codes, ids, 10, **filters)
        check_range(index, codes[:3], codes, ids, 300, **filters)
    index.remove(range(10))
    check_search(index, codes[:3], codes[10:], ids[10:], 10, allow=range(15))
    check_search(index, codes[:3], codes[10:], ids[10:], 10, deny=range(15))


@pytest.mark.usefixtures("small_buffer")
def test_threads_do_not_change_the_answer(codes):
    index = BinaryIndex(1_100)
    for start in range(0, 100, 3):
        index.add(codes[start : start + 3])
    for mode in ("scan", "cascade"):
        one = index.search(codes[:20], 7, mode, n_threads=1)
        for n_threads in (2, 5, None):
            more = index.search(codes[:20], 7, mode, n_threads=n_threads)
            np.testing.assert_array_equal(more.distances, one.distances)
            np.testing.assert_array_equal(more.ids, one.ids)
            assert more.stats == one.stats
    for n_threads in (2, 5, None):
        more, one = (index.range_search(codes[:20], 250, n_threads=n) for n in (n_threads, 1))
        for got, want in zip(more, one, strict=True):
            np.testing.assert_array_equal(got, want)


def test_stats_of_a_search(index, codes):
    assert index.search(codes[:3], 2).stats == {"mode": "scan", "rows": 100}
    stats = index.search(codes[:3], 2, "cascade").stats
    assert (stats["mode"], stats["rows"]) == ("cascade", 100)
    assert 3 * 2 <= stats["survivors"] <= 3 * 100
    assert index.search(codes[:3], 100, "cascade").stats["survivors"] == 300


def test_a_repeated_search_sees_changes(codes):
    """The plan of a search is kept until the index changes."""
    index = index_of(codes[:50], 1_100)
    for change in (
        lambda: index.add(codes[50:], np.arange(50, 100)),
        lambda: index.remove(np.arange(40)),
        lambda: index.add(codes[:1], [60], replace=True),
        lambda: index.compact(),
    ):
        index.search(codes[0], 5)
        index.search(codes[0], 5)
        change()
        ids = index.ids
        expected = oracles.nearest(codes[:1], index.get(ids), ids, 5)
        for _ in range(2):
            result = index.search(codes[0], 5)
            np.testing.assert_array_equal(result.distances, expected[0][0])
            np.testing.assert_array_equal(result.ids, expected[1][0])
            assert result.stats["mode"] == "scan"


def test_a_repeated_search_checks_its_options(index, codes):
    index.search(codes[0], 1)
    for k in (True, 1.0):
        with pytest.raises(TypeError, match="k must be an integer"):
            index.search(codes[0], k)
    with pytest.raises(ValueError, match="n_threads must be at least 1, got 0"):
        index.search(codes[0], 1, n_threads=0)
    assert index.search(codes[0], 1, deny=[0]).ids[0] != index.search(codes[0], 1).ids[0]
    index.search(codes[0], 1).stats["mode"] = "changed"
    assert index.search(codes[0], 1).stats["mode"] == "scan"


def test_a_search_keeps_no_old_rows_alive(codes):
    index = index_of(codes, 1_100)
    index.compact()
    index.search(codes[0], 5)
    old = weakref.ref(index._rows.snapshot().segments[0])
    index.remove([3])
    gc.collect()
    assert old() is None


def test_results_are_named_tuples(index, codes):
    result = index.search(codes[:2], 3)
    assert isinstance(result, SearchResult)
    distances, ids = result
    assert distances is result.distances
    assert ids is result.ids
    again = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(again.ids, ids)
    assert again.stats == result.stats
    assert isinstance(index.range_search(codes[:2], 3), RangeResult)


def test_codes_in_any_layout(codes):
    read_only = codes.copy()
    read_only.setflags(write=False)
    shifted = np.empty(codes.size + 1, dtype=np.uint8)[1:].reshape(codes.shape)
    shifted[:] = codes
    expected = index_of(codes, 1_100).search(codes[:5], 7)
    for same in (read_only, shifted, np.asfortranarray(codes), np.repeat(codes, 2, axis=0)[::2], list(codes)):
        index = index_of(same, 1_100)
        np.testing.assert_array_equal(index.get(index.ids), codes)
        np.testing.assert_array_equal(index.search(same[:5], 7).ids, expected.ids)


def test_codes_and_ids_are_copied(codes):
    given_codes, given_ids = codes.copy(), np.arange(100)
    index = index_of(given_codes, 1_100, given_ids)
    given_codes[:], given_ids[:] = 0, -1
    index.ids[:] = 0
    index.get(5)[:] = 0
    index.search(codes[:1], 100).ids[:] = 0
    np.testing.assert_array_equal(index.ids, range(100))
    np.testing.assert_array_equal(index.get(index.ids), codes)


def test_ids(codes):
    index = BinaryIndex(1_100)
    ids = index.add(codes[0])
    assert (ids.tolist(), ids.dtype) == ([0], np.int64)
    assert index.add(codes[1:3], [10, 5]).tolist() == [10, 5]
    assert index.add(codes[3:5]).tolist() == [11, 12]
    index.remove([12, 12])
    assert index.add(codes[5:6]).tolist() == [13]
    assert index.add(codes[6:7], np.array([2**63 - 1], dtype=np.uint64)).tolist() == [2**63 - 1]
    assert index.ids.tolist() == [0, 5, 10, 11, 13, 2**63 - 1]
    np.testing.assert_array_equal(index.get(index.ids), codes[[0, 2, 1, 3, 5, 6]])
    assert len(index) == 6


def test_contains(index):
    index.remove(7)
    assert 99 in index
    assert np.int8(3) in index
    for other in (7, 100, -1, 2**63, 2**70, 3.0, "3", None, True, [3], np.array([1, 2]), []):
        assert other not in index


def test_get(index, codes):
    np.testing.assert_array_equal(index.get(3), codes[3])
    np.testing.assert_array_equal(index.get([3]), codes[3:4])
    np.testing.assert_array_equal(index.get([9, 3, 9]), codes[[9, 3, 9]])
    assert index.get(3).dtype == np.uint8


def test_replace(index, codes):
    new = some_codes(np.random.default_rng(9), 3, 1_100)
    assert index.add(new, [50, 3, 200], replace=True).tolist() == [50, 3, 200]
    assert len(index) == 101
    np.testing.assert_array_equal(index.get([3, 50, 200]), new[[1, 0, 2]])
    codes[50], codes[3] = new[0], new[1]
    check_search(index, new, np.vstack([codes, new[2:]]), np.array([*range(100), 200]), 110)


@pytest.mark.usefixtures("small_buffer")
def test_remove_and_compact(codes):
    index = BinaryIndex(1_100)
    for start in range(0, 100, 3):
        index.add(codes[start : start + 3])
    index.remove(4)
    index.remove(np.arange(10, 60))
    left = np.array([i for i in range(100) if i != 4 and not 10 <= i < 60])
    for _ in range(2):
        assert len(index) == 49
        np.testing.assert_array_equal(index.ids, left)
        check_search(index, codes[:3], codes[left], left, 60)
        check_range(index, codes[:3], codes[left], left, 280)
        index.compact()
    index.remove(left)
    index.compact()
    assert (len(index), index.stats()["segments"]) == (0, 0)


def test_merge(index, codes):
    other = index_of(codes[:10], 1_100, range(500, 510))
    other.remove(505)
    index.merge(other)
    ids = np.array([*range(100), *range(500, 505), *range(506, 510)])
    np.testing.assert_array_equal(index.ids, ids)
    np.testing.assert_array_equal(index.get(ids[100:]), np.delete(codes[:10], 5, axis=0))
    assert len(other) == 9
    index.merge(BinaryIndex(1_100))
    assert len(index) == 109
    assert index.add(codes[:1]).tolist() == [510]


def test_stats(index):
    index.remove([1, 2])
    stats = index.stats()
    assert (stats["n_bits"], stats["rows"], stats["removed"], stats["segments"]) == (1_100, 98, 2, 1)
    # Seven blocks of 16 codes of 18 words.
    assert stats["bytes"] == {"codes": 8 * 7 * 16 * 18, "ids": 800, "removed": 100, "buckets": 0}
    assert stats["kind_of_buckets"] is None
    index.compact()
    stats = index.stats()
    assert (stats["rows"], stats["removed"]) == (98, 0)
    assert stats["bytes"] == {"codes": 8 * 7 * 16 * 18, "ids": 784, "removed": 0, "buckets": 0}


def test_repr(index):
    assert repr(index) == "BinaryIndex(n_bits=1100): 100 codes"
    assert repr(index_of(np.zeros((1_234, 1), dtype=np.uint8), 3)) == "BinaryIndex(n_bits=3): 1,234 codes"


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))])
def test_copies_are_independent(index, codes, again):
    index.remove(99)
    other = again(index)
    assert (other.n_bits, len(other)) == (1_100, 99)
    check_search(other, codes[:3], codes[:99], np.arange(99), 10)
    assert other.add(codes[:1]).tolist() == [100]
    other.remove([0, 1])
    index.remove([5])
    np.testing.assert_array_equal(index.ids, np.setdiff1d(np.arange(99), [5]))
    np.testing.assert_array_equal(other.ids, [*range(2, 99), 100])
    assert index.add(codes[:1]).tolist() == [100]


CODE = np.zeros((1, 138), dtype=np.uint8)
SPARE = np.array([[255, 7], [0, 8]], dtype=np.uint8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda i: i.add(CODE.astype(np.int8)), TypeError, "dtype uint8, got int8; cbeindex.interop.codes_from"),
        (lambda i: i.add(CODE.astype(bool)), TypeError, "dtype uint8, got bool"),
        (lambda i: i.add(CODE.astype(float)), TypeError, "dtype uint8, got float64"),
        (lambda i: i.add(np.zeros((1, 10), np.uint64)), TypeError, r"got uint64; .* words.view\(np.uint8\)"),
        (lambda i: i.add(None), TypeError, "dtype uint8, got object"),
        (lambda i: i.add(np.zeros((2, 137), np.uint8)), ValueError, r"\(n, 138\) or \(138,\), got \(2, 137\)"),
        (lambda i: i.add(np.zeros(139, np.uint8)), ValueError, r"\(n, 138\) or \(138,\), got \(139,\)"),
        (lambda i: i.add(np.zeros((1, 1, 138), np.uint8)), ValueError, r"got \(1, 1, 138\)"),
        (lambda i: i.add(np.uint8(3)), ValueError, r"got \(\)"),
        (lambda i: i.add(CODE, [-1]), ValueError, "ids must be 0 or more, got -1"),
        (lambda i: i.add(CODE, [7]), ValueError, "id 7 is taken; remove it first, or add with replace=True"),
        (lambda i: i.add(CODE, [1, 2]), ValueError, r"ids must have shape \(1,\), got \(2,\)"),
        (lambda i: i.add(CODE, [[200]]), ValueError, r"ids must have shape \(1,\), got \(1, 1\)"),
        (lambda i: i.add(CODE, [200.0]), TypeError, "ids must be integers or strings, got dtype float64"),
        (lambda i: i.add(CODE, [True]), TypeError, "ids must be integers or strings, got dtype bool"),
        (lambda i: i.add(CODE, ["a"]), TypeError, "ids must be integers"),
        (lambda i: i.add(CODE, [2**63]), ValueError, "ids must fit int64, got 9223372036854775808"),
        (lambda i: i.add(CODE, [2**64]), TypeError, "ids must be integers or strings, got dtype object"),
        (lambda i: i.add(np.repeat(CODE, 3, 0), [200, 300, 200]), ValueError, "ids must not repeat, 200 does"),
        (lambda i: i.add(np.repeat(CODE, 3, 0), [200, 7, 300]), ValueError, "id 7 is taken"),
        (lambda i: i.add(np.repeat(CODE, 2, 0), [7, 7], replace=True), ValueError, "ids must not repeat, 7 does"),
        (lambda i: i.add(CODE, [7], replace="yes"), TypeError, "replace must be True or False, got 'yes'"),
        (lambda i: i.remove([1, 100]), ValueError, "id 100 is not in the index"),
        (lambda i: i.remove([1, -1]), ValueError, "ids must be 0 or more, got -1"),
        (lambda i: i.remove([1.0]), TypeError, "ids must be integers"),
        (lambda i: i.remove([[1]]), ValueError, r"ids must have shape \(n,\), got \(1, 1\)"),
        (lambda i: i.remove(None), TypeError, "ids must be integers or strings, got dtype object"),
        (lambda i: i.get([1, 100]), ValueError, "id 100 is not in the index"),
        (lambda i: i.get(-1), ValueError, "ids must be 0 or more"),
        (lambda i: i.get("1"), TypeError, "ids must be integers"),
        (lambda i: i.get([[1]]), ValueError, r"\(1, 1\)"),
        (lambda i: i.search(CODE, 0), ValueError, "k must be at least 1, got 0"),
        (lambda i: i.search(CODE, -3), ValueError, "k must be at least 1, got -3"),
        (lambda i: i.search(CODE, 2.0), TypeError, "k must be an integer, got float"),
        (lambda i: i.search(CODE, True), TypeError, "k must be an integer, got bool"),
        (lambda i: i.search(CODE, None), TypeError, "k must be an integer, got NoneType"),
        (lambda i: i.search(CODE, 3, "fast"), ValueError, "'auto', 'scan', 'cascade', 'buckets', got 'fast'"),
        (lambda i: i.search(CODE, 3, None), ValueError, "mode must be one of"),
        (lambda i: i.search(CODE.astype(np.int64), 3), TypeError, "queries must be packed bits"),
        (lambda i: i.search(CODE[:, :5], 3), ValueError, r"queries must have shape \(n, 138\)"),
        (lambda i: i.search(CODE, 3, n_threads=0), ValueError, "n_threads must be at least 1"),
        (lambda i: i.search(CODE, 3, "scan", miss=0.1), ValueError, "miss is for mode='cascade', got mode='scan'"),
        (lambda i: i.search(CODE, 3, "cascade", miss=0), ValueError, "miss must be finite and above 0"),
        (lambda i: i.search(CODE, 3, "cascade", miss=1), ValueError, "miss must be below 1"),
        (lambda i: i.search(CODE, 3, "cascade", miss=np.nan), ValueError, "miss must be finite"),
        (lambda i: i.search(CODE, 3, "cascade", miss="x"), TypeError, "miss must be a number"),
        (lambda i: i.search(CODE, 3, allow=3), ValueError, r"allow must have shape \(n,\), got \(\)"),
        (lambda i: i.search(CODE, 3, deny=[0.5]), TypeError, "deny must be integers"),
        (
            lambda i: i.search(CODE, 3, allow=np.ones(17, bool)),
            ValueError,
            r"allow is a mask, so it must have .* entries, one for each of index\.ids in that order, got 17",
        ),
        (lambda i: i.range_search(CODE, -1), ValueError, "radius must be at least 0, got -1"),
        (lambda i: i.range_search(CODE, 1.5), TypeError, "radius must be an integer"),
        (lambda i: i.range_search(CODE[:, :5], 3), ValueError, r"queries must have shape \(n, 138\)"),
        (lambda i: i.range_search(CODE, 3, deny="no"), TypeError, "deny must be integers"),
        (lambda i: i.merge(i), ValueError, "id 0 is taken"),
        (lambda i: i.merge(BinaryIndex(1_099)), ValueError, "codes of 1100 bits, got 1099"),
        (lambda i: i.merge([CODE]), TypeError, "other must be a BinaryIndex, got list"),
        (lambda i: i.merge(index_of(np.repeat(CODE, 2, 0), 1_100, [7, 300])), ValueError, "id 7 is taken"),
        (lambda i: BinaryIndex(0), ValueError, "n_bits must be at least 1, got 0"),
        (lambda i: BinaryIndex(64.0), TypeError, "n_bits must be an integer, got float"),
        (lambda i: BinaryIndex("64"), TypeError, "n_bits must be an integer, got str"),
        (lambda i: BinaryIndex(11).add(SPARE), ValueError, "codes must have zeros past bit 10, row 1 has not"),
        (lambda i: BinaryIndex(11).search(SPARE), ValueError, "queries must have zeros past bit 10, row 1 has not"),
    ],
)
def test_bad_input(index, codes, call, error, message):
    """A clear error, and the index is as it was."""
    with pytest.raises(error, match=message):
        call(index)
    assert index.stats()["removed"] == 0
    np.testing.assert_array_equal(index.ids, range(100))
    np.testing.assert_array_equal(index.get(range(100)), codes)
    check_search(index, codes[:2], codes, np.arange(100), 3)
    assert index.add(codes[:1]).tolist() == [100]


class IndexAgainstDict(RuleBasedStateMachine):
    """Writes in random order, and after each of them the results of a dictionary of codes."""

    @initialize(
        n_bits=st.sampled_from([3, 64, 70, 1_100]), buckets=st.sampled_from([None, *KINDS]), seed=st.integers(0, 99)
    )
    def start(self, n_bits, buckets, seed):
        self.constants = small_buckets(VERY_SMALL)
        self.constants.__enter__()
        self.pool = some_codes(np.random.default_rng(seed), 12, n_bits, 4, 0.05)
        self.index = BinaryIndex(n_bits, buckets)
        self.codes = {}
        self.next_id = 0

    def teardown(self):
        if hasattr(self, "constants"):
            self.constants.__exit__(None, None, None)

    def stored(self):
        ids = np.array(sorted(self.codes), dtype=np.int64)
        return self.pool[[self.codes[id_] for id_ in ids.tolist()]], ids

    @rule(picks=st.lists(st.integers(0, 11), max_size=9))
    def add(self, picks):
        ids = self.index.add(self.pool[picks])
        assert ids.tolist() == list(range(self.next_id, self.next_id + len(picks)))
        self.codes.update(zip(ids.tolist(), picks, strict=True))
        self.next_id += len(picks)

    @rule(ids=st.lists(st.integers(0, 60), max_size=6, unique=True), pick=st.integers(0, 11), replace=st.booleans())
    def add_with_ids(self, ids, pick, replace):
        batch = self.pool[[pick] * len(ids)]
        if not replace and self.codes.keys() & set(ids):
            with pytest.raises(ValueError, match="is taken"):
                self.index.add(batch, ids)
            return
        self.index.add(batch, ids, replace=replace)
        self.codes.update(dict.fromkeys(ids, pick))
        self.next_id = max([self.next_id, *(id_ + 1 for id_ in ids)])

    @rule(data=st.data(), also_unknown=st.booleans())
    def remove(self, data, also_unknown):
        ids = data.draw(st.lists(st.sampled_from(sorted(self.codes)), max_size=8)) if self.codes else []
        if also_unknown:
            with pytest.raises(ValueError, match="is not in the index"):
                self.index.remove([*ids, self.next_id])
            return
        self.index.remove(ids)
        for id_ in set(ids):
            del self.codes[id_]

    @rule()
    def compact(self):
        self.index.compact()
        assert self.index.stats()["removed"] == 0
        assert self.index.stats()["segments"] == min(len(self.codes), 1)

    @rule(first=st.integers(0, 60), n=st.integers(0, 5), pick=st.integers(0, 11))
    def merge(self, first, n, pick):
        other = BinaryIndex(self.index.n_bits, KINDS[n % 2])
        ids = list(range(first, first + n))
        other.add(self.pool[[pick] * n], ids)
        if self.codes.keys() & set(ids):
            with pytest.raises(ValueError, match="is taken"):
                self.index.merge(other)
            return
        self.index.merge(other)
        self.codes.update(dict.fromkeys(ids, pick))
        self.next_id = max(self.next_id, first + n if n else 0)

    @rule(again=st.sampled_from([copy.copy, lambda index: pickle.loads(pickle.dumps(index))]))
    def go_on_with_a_copy(self, again):
        old, self.index = self.index, again(self.index)
        old.add(self.pool, range(10_000, 10_012))
        old.remove(old.ids[: len(old) // 2])

    @rule(
        pick=st.integers(0, 11),
        k=st.integers(1, 40),
        allow=st.none() | st.lists(st.integers(0, 60), max_size=20),
        deny=st.none() | st.lists(st.integers(0, 60), max_size=20),
    )
    def search(self, pick, k, allow, deny):
        check_search(self.index, self.pool[pick : pick + 2], *self.stored(), k=k, allow=allow, deny=deny)

    @rule(pick=st.integers(0, 11), radius=st.integers(0, 400))
    def range_search(self, pick, radius):
        check_range(self.index, self.pool[pick : pick + 2], *self.stored(), radius=radius)

    @invariant()
    def has_the_same_codes(self):
        if hasattr(self, "index"):
            codes, ids = self.stored()
            assert len(self.index) == len(ids)
            np.testing.assert_array_equal(self.index.ids, ids)
            np.testing.assert_array_equal(self.index.get(ids), codes)


TestIndexAgainstDict = IndexAgainstDict.TestCase


class TestReadersBesideAWriter:
    """Every result belongs to one published state: whole batches, and never an older state than before.

    Batch number b has 8 ids, from 8 b on, and b % 500 + 1 ones in each of its codes. The writer adds batch after batch,
    and removes each when the third after it has come, so that a state is 3 or 4 consecutive batches. Every batch
    is first added with no ones at all and then replaced at once.
    """

    N_BITS, ROWS, ALIVE, SECONDS = 1_100, 8, 3, 2.0
    ZERO = np.zeros(138, dtype=np.uint8)

    def code(self, batch):
        return np.packbits(np.arange(self.N_BITS) <= batch % 500, bitorder="little")

    def write(self, index, stop):
        for batch in range(10**9):
            if stop.is_set():
                return
            ids = np.arange(self.ROWS * (batch + 1) - 1, self.ROWS * batch - 1, -1)
            index.add(np.zeros((self.ROWS, 138), dtype=np.uint8), ids)
            index.add(np.tile(self.code(batch), (self.ROWS, 1)), ids, replace=True)
            if batch >= self.ALIVE:
                index.remove(ids - self.ROWS * self.ALIVE)
            if batch % 7 == 0:
                index.compact()

    def check_state(self, distances, ids):
        """Return the newest batch in a result that has all ids."""
        order = np.argsort(ids)
        distances, ids = distances[order], ids[order]
        if len(ids) == 0:
            return -1
        first, newest = ids[0] // self.ROWS, ids[-1] // self.ROWS
        assert ids.tolist() == list(range(self.ROWS * first, self.ROWS * (newest + 1)))
        n_alive = newest + 1 - first
        assert n_alive in (self.ALIVE, self.ALIVE + 1) or (first == 0 and n_alive <= self.ALIVE)
        for batch, of_batch in zip(range(first, newest + 1), distances.reshape(-1, self.ROWS), strict=True):
            expected = {(batch % 500 + 1,)} | ({(0,)} if batch == newest else set())
            assert (*set(of_batch.tolist()),) in expected
        return newest

    def read(self, index, stop, seen):
        newest, n_reads = -1, 0
        while not stop.is_set():
            turn = n_reads % 5
            if turn < 2:
                mode = ("scan", "cascade")[turn]
                miss = 1e-9 if mode == "cascade" else None
                distances, ids = index.search(self.ZERO, 50, mode, miss=miss, n_threads=1 + n_reads % 2)
                assert ((distances == MISSING) == (ids == -1)).all()
                assert (np.diff(distances) >= 0).all()
                state = self.check_state(distances[ids >= 0], ids[ids >= 0])
            elif turn == 2:
                state = self.check_state(*index.range_search(self.ZERO, self.N_BITS)[1:])
            elif turn == 3:
                assert len(index) % self.ROWS == 0
                ids = index.ids
                assert len(ids) % self.ROWS == 0
                state = ids[-1] // self.ROWS if len(ids) else -1
            else:
                again = pickle.loads(pickle.dumps(index))
                state = self.check_state(*again.range_search(self.ZERO, self.N_BITS)[1:])
            assert state >= newest
            newest, n_reads = state, n_reads + 1
        seen.append(newest)

    def test(self, monkeypatch):
        tune(monkeypatch, buffer_rows=32, least_buffer_rows=2)
        index, stop, seen, errors = BinaryIndex(self.N_BITS), threading.Event(), [], []

        def run(work, *arguments):
            try:
                work(index, stop, *arguments)
            except BaseException as error:
                errors.append(error)
                stop.set()

        threads = [threading.Thread(target=run, args=(self.write,))]
        threads += [threading.Thread(target=run, args=(self.read, seen)) for _ in range(3)]
        for thread in threads:
            thread.start()
        stop.wait(self.SECONDS)
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []
        assert min(seen) > 0  # each reader has seen states come and go
