"""The exact scan, the range search and the cascade over the rows of one segment."""

import itertools
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex.data.codes import CodeRows, to_words
from cbeindex.data.keys import NO_KEY, HammingKeys
from cbeindex.search import cascade, scan
from cbeindex.search.queries import CodeQueries
from cbeindex.search.view import View
from cbeindex.store.segment import Segment
from tests import oracles
from tests.conftest import COMPILED
from tests.small import tune
from tests.strategies import code_batches, masks, rankings, some_codes

pytestmark = pytest.mark.kernels

# More seeds for the statistical tests: CBEINDEX_TEST_SEEDS=100 make tests
N_SEEDS = int(os.environ.get("CBEINDEX_TEST_SEEDS", "1"))
NOT_HIDDEN = np.zeros(0, dtype=np.bool_)
NO_RANKS = np.zeros(0, dtype=np.int32)
LONG = (1_025, 1_089, 1_600, 2_100)
# So small that no row is overlooked: 38 standard deviations.
NO_MISS = 1e-300


@pytest.fixture
def small_tasks(monkeypatch):
    """Tasks of one block, so that few rows are split over threads."""
    tune(monkeypatch, least_scan_task_bytes=1, scan_call_words=1, range_task_rows=512, cascade_values=3_000)


def view_of(codes, n, hidden=NOT_HIDDEN, ranks=NO_RANKS):
    """View all rows of a segment that has nothing but codes."""
    return View.whole(Segment(np.arange(n), codes, {}, NOT_HIDDEN, ranks=ranks), hidden)


def scan_nearest(codes, n, queries, k, hidden, ranks, n_threads):
    n_bits = 64 * queries.shape[1]
    return scan.nearest(view_of(codes, n, hidden, ranks), CodeQueries(queries, n_bits, k, n_threads)).packed


def scan_within(codes, n, queries, radius, hidden, n_threads):
    n_bits = 64 * queries.shape[1]
    return scan.within(view_of(codes, n, hidden), CodeQueries(queries, n_bits, 0, n_threads), radius)


def cascade_nearest(codes, n, n_bits, queries, k, hidden, ranks, miss, n_threads):
    view = view_of(codes, n, hidden, ranks)
    code_queries = CodeQueries(queries, n_bits, k, n_threads)
    found = cascade.nearest(view, code_queries, miss)
    if found is None:
        return scan.nearest(view, code_queries).packed, np.full(len(queries), view.n_visible)
    keys, n_survivors = found
    return keys.packed, n_survivors


def check_one_call(codes, n, n_bits, queries, k, hidden, miss):
    """Compare the results of one call of a kernel, if it has any, with those of the other way."""
    view, code_queries = view_of(codes, n, hidden), CodeQueries(queries, n_bits, k)
    found = cascade.results(view, code_queries, miss)
    if found is not None:
        keys, n_survivors = cascade_nearest(codes, n, n_bits, queries, k, hidden, NO_RANKS, miss, 1)
        for got, want in zip(found[0], unpack(keys, k), strict=True):
            np.testing.assert_array_equal(got, want)
        assert found[1] == n_survivors.sum()
    return found is not None


def distances_of(keys):
    return HammingKeys(keys).distances()


def stored(batch, by_row=False):
    queries, words = to_words(batch.queries, batch.n_bits), to_words(batch.codes, batch.n_bits)
    return queries, CodeRows.of(words, batch.n_bits, by_row)


def denied(hidden, ranks):
    """Hidden rows, by their ranks."""
    rows = np.flatnonzero(hidden)
    return (ranks[rows] if ranks.size else rows).tolist()


def rows_of(keys):
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def unpack(keys, k):
    """Distances and rows of keys, padded to k as oracles are."""
    rows = np.where(keys == NO_KEY, -1, rows_of(keys))
    short = ((0, 0), (0, k - keys.shape[1]))
    distances = np.pad(distances_of(keys), short, constant_values=scan.NO_LIMIT)
    return distances, np.pad(rows, short, constant_values=-1)


@given(code_batches(), st.booleans(), st.sampled_from([1, 2, 10, 100, 1_100]), st.integers(1, 3), st.data())
def test_nearest_rows(batch, by_row, k, n_threads, data):
    """By (distance, rank), whether codes are stored in blocks or row by row."""
    queries, rows = stored(batch, by_row)
    n = len(batch.codes)
    hidden, ranks = data.draw(masks(n)), data.draw(rankings(n))
    keys = scan_nearest(rows, n, queries, k, hidden, ranks, n_threads)
    assert keys.shape == (len(queries), min(k, n))
    ids = ranks.astype(np.int64) if ranks.size else np.arange(n)
    expected = oracles.nearest(batch.queries, batch.codes, ids, k, deny=denied(hidden, ranks))
    for got, want in zip(unpack(keys, k), expected, strict=True):
        np.testing.assert_array_equal(got, want)


@given(code_batches(widths=LONG), st.sampled_from([1, 2, 10, 100, 1_100]), st.integers(1, 3), st.data())
def test_a_cascade_that_overlooks_nothing(batch, k, n_threads, data):
    """Ties included: it is the scan."""
    queries, rows = stored(batch)
    n = len(batch.codes)
    hidden, ranks = data.draw(masks(n)), data.draw(rankings(n))
    keys, n_survivors = cascade_nearest(rows, n, batch.n_bits, queries, k, hidden, ranks, NO_MISS, n_threads)
    np.testing.assert_array_equal(keys, scan_nearest(rows, n, queries, k, hidden, ranks, 1))
    n_visible = n - np.count_nonzero(hidden)
    assert ((min(k, n_visible) <= n_survivors) & (n_survivors <= n_visible)).all()


@given(code_batches(widths=LONG, max_queries=6), st.sampled_from([1, 10, 100]), st.sampled_from([0.5, 1e-3]), st.data())
def test_a_cascade_in_one_call(batch, k, miss, data):
    """One query is always answered by one call."""
    queries, rows = stored(batch)
    n = len(batch.codes)
    hidden = data.draw(masks(n))
    check_one_call(rows, n, batch.n_bits, queries, k, hidden, miss)
    assert check_one_call(rows, n, batch.n_bits, queries[:1], k, hidden, miss)


@pytest.mark.parametrize("n_bits", [1_031, 1_100, 2_060])
def test_the_cascade_keeps_rows_at_the_kth_distance(n_bits):
    """Rows measured late, at the very distance of the bound, precede measured ones of higher rows."""
    rng = np.random.default_rng(n_bits)
    query = rng.random(n_bits) < 0.5
    for distance in range(1, n_bits, 37):
        # Rows that differ from the query only past 512 bits are measured first; those before them differ in the prefix.
        codes = np.tile(query, (900, 1))
        n_tail = min(distance, n_bits - 512)
        codes[:450, :distance] ^= True
        codes[450:, n_bits - n_tail :] ^= True
        codes[450:, : distance - n_tail] ^= True
        words = to_words(np.packbits(codes, axis=1, bitorder="little"), n_bits)
        queries = to_words(np.packbits(query[np.newaxis], axis=1, bitorder="little"), n_bits)
        keys, _ = cascade_nearest(CodeRows.of(words, n_bits), 900, n_bits, queries, 3, NOT_HIDDEN, NO_RANKS, NO_MISS, 1)
        # Beyond the limit of 38 standard deviations the early rows may be overlooked.
        if oracles.prefix_limit(distance, n_bits, 512, 37) >= min(distance, 512):
            np.testing.assert_array_equal(rows_of(keys), [[0, 1, 2]])
        np.testing.assert_array_equal(distances_of(keys), [[distance] * 3])


@given(code_batches(), st.booleans(), st.integers(1, 3), st.data())
def test_rows_within_a_radius(batch, by_row, n_threads, data):
    queries, rows = stored(batch, by_row)
    n = len(batch.codes)
    hidden = data.draw(masks(n))
    exact = oracles.hamming(batch.queries, batch.codes)
    radius = data.draw(st.sampled_from([0, int(exact.min()), int(np.median(exact)), batch.n_bits]))
    query, distances, found = scan_within(rows, n, queries, radius, hidden, n_threads)
    expected = (exact <= radius) & ~(hidden if hidden.size else np.zeros(n, dtype=np.bool_))
    order = np.lexsort((found, query))
    np.testing.assert_array_equal(np.stack([query, found])[:, order], np.nonzero(expected))
    np.testing.assert_array_equal(distances, exact[query, found])
    assert distances.dtype == np.int32


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("n_bits", [100, 512, 1_100])
@pytest.mark.parametrize(
    ("n_queries", "n_rows", "ranked"), [(1, 1_300, True), (5, 1_300, False), (17, 600, True), (33, 520, False)]
)
def test_threads_do_not_change_the_answer(n_bits, n_queries, n_rows, ranked):
    """Whether threads split the rows of few queries or the queries; ties are many."""
    rng = np.random.default_rng(n_bits)
    both = to_words(some_codes(rng, n_rows + n_queries, n_bits, 4, 0.02), n_bits)
    queries, rows = both[:n_queries].copy(), CodeRows.of(both[n_queries:], n_bits)
    hidden = rng.random(n_rows) < 0.2
    ranks = rng.permutation(n_rows).astype(np.int32) if ranked else NO_RANKS
    one = scan_nearest(rows, n_rows, queries, 20, hidden, ranks, 1)
    radius = int(np.median(distances_of(one)))
    one_within = scan_within(rows, n_rows, queries, radius, hidden, 1)
    for n_threads in (2, 7):
        np.testing.assert_array_equal(scan_nearest(rows, n_rows, queries, 20, hidden, ranks, n_threads), one)
        for got, want in zip(scan_within(rows, n_rows, queries, radius, hidden, n_threads), one_within, strict=True):
            np.testing.assert_array_equal(got, want)
    if n_bits > 1_024:
        one_cascade = cascade_nearest(rows, n_rows, n_bits, queries, 20, hidden, ranks, 0.3, 1)
        for n_threads in (2, 7):
            more = cascade_nearest(rows, n_rows, n_bits, queries, 20, hidden, ranks, 0.3, n_threads)
            for got, want in zip(more, one_cascade, strict=True):
                np.testing.assert_array_equal(got, want)


@pytest.mark.skipif(not COMPILED, reason="thousands of rows for each of 200 queries")
def test_threads_do_not_change_what_the_cascade_misses(monkeypatch):
    """Queries for which the cascade pays are mixed with others, and threads divide them into different groups."""
    rng, n_bits, n_rows = np.random.default_rng(1), 2_048, 8_192
    both = rng.permutation(to_words(some_codes(rng, n_rows + 200, n_bits, 64, 0.12), n_bits))
    queries, rows = both[:200].copy(), CodeRows.of(both[200:], n_bits)
    is_far = rng.random(200) < 0.5
    is_far[:40] = False  # the first queries decide whether the cascade is tried for the others
    queries[is_far] = rng.integers(0, 2**64, size=(np.count_nonzero(is_far), 32), dtype=np.uint64)
    tune(monkeypatch, cascade_left_words=22.4)  # at most 0.3 of the blocks may survive
    one, n_survivors = cascade_nearest(rows, n_rows, n_bits, queries, 20, NOT_HIDDEN, NO_RANKS, 0.4, 1)
    assert (one != scan_nearest(rows, n_rows, queries, 20, NOT_HIDDEN, NO_RANKS, 1)).any()  # rows are missed
    assert np.unique(n_survivors[is_far]).tolist() == [n_rows]
    for n_threads in (2, 4, 8):
        more = cascade_nearest(rows, n_rows, n_bits, queries, 20, NOT_HIDDEN, NO_RANKS, 0.4, n_threads)
        np.testing.assert_array_equal(more[0], one)
        np.testing.assert_array_equal(more[1], n_survivors)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_no_queries(n_threads):
    rows = CodeRows.of(to_words(some_codes(np.random.default_rng(0), 50, 1_100), 1_100), 1_100)
    queries = np.empty((0, 18), dtype=np.uint64)
    assert scan_nearest(rows, 50, queries, 3, NOT_HIDDEN, NO_RANKS, n_threads).shape == (0, 3)
    keys, n_survivors = cascade_nearest(rows, 50, 1_100, queries, 3, NOT_HIDDEN, NO_RANKS, 0.1, n_threads)
    assert keys.shape == (0, 3)
    assert n_survivors.shape == (0,)


def test_hidden_rows_of_very_long_codes():
    """Above 65,535 bits a whole distance may exceed the mark of hidden rows, which must not bring them back."""
    n_bits = 66_000
    codes = some_codes(np.random.default_rng(0), 20, n_bits, 2, 0.001)
    words = to_words(codes, n_bits)
    hidden = np.arange(20) % 2 == 0
    expected = oracles.nearest(codes[:2], codes, np.arange(20), 15, deny=denied(hidden, NO_RANKS))
    rows = CodeRows.of(words, n_bits)
    for miss in (1e-3, NO_MISS):
        keys, n_survivors = cascade_nearest(rows, 20, n_bits, words[:2].copy(), 15, hidden, NO_RANKS, miss, 1)
        for got, want in zip(unpack(keys, 15), expected, strict=True):
            np.testing.assert_array_equal(got, want)
        assert n_survivors.tolist() == [10, 10]


@pytest.mark.parametrize("miss", [5e-324, 1e-300, 1e-17, 0.5, 1 - 1e-16])
def test_any_probability_is_a_limit(miss):
    codes = some_codes(np.random.default_rng(0), 60, 1_100, 3, 0.1)
    words = to_words(codes, 1_100)
    keys, _ = cascade_nearest(CodeRows.of(words, 1_100), 60, 1_100, words[:5].copy(), 1, NOT_HIDDEN, NO_RANKS, miss, 1)
    np.testing.assert_array_equal(rows_of(keys)[:, 0], range(5))


@pytest.fixture(scope="module", params=range(N_SEEDS))
def clusters(request):
    """3,000 codes of 2,100 bits in 20 clusters, 60 queries, and their distances."""
    n_bits, n, n_queries = 2_100, 3_000, 60
    rng = np.random.default_rng([7, request.param])
    centres = np.sort(rng.integers(0, 20, n))  # rows of a cluster are stored together, as blocks survive or not
    centres = np.concatenate([rng.integers(0, 20, n_queries), centres])
    bits = (rng.random((20, n_bits)) < 0.5)[centres] ^ (rng.random((n + n_queries, n_bits)) < 0.2)
    both = np.packbits(bits, axis=1, bitorder="little")
    queries, codes = both[:n_queries], both[n_queries:]
    rows = CodeRows.of(to_words(codes, n_bits), n_bits)
    return n_bits, rows, to_words(queries, n_bits), oracles.hamming(queries, codes)


@pytest.mark.parametrize("k", [1, 20])
def test_the_cascade_finds_nearly_all(clusters, k):
    """At most a thousandth of the exact results is missed; differing bits lie evenly, as the rule assumes."""
    n_bits, rows, queries, exact = clusters
    keys, n_survivors = cascade_nearest(rows, exact.shape[1], n_bits, queries, k, NOT_HIDDEN, NO_RANKS, 1e-3, 1)
    found = np.take_along_axis(exact, rows_of(keys), axis=1)
    np.testing.assert_array_equal(found, distances_of(keys))
    kth = np.partition(exact, k - 1, axis=1)[:, k - 1 : k]
    n_missed = np.count_nonzero(found > kth)  # a tie with the k-th counts as found
    # Answers are overlooked about independently, each with probability 1e-3 at most: a count of mean m at most,
    # and m + 5 sqrt(m) + 1 is passed about once in a million runs.
    mean = 1e-3 * keys.size
    assert n_missed <= mean + 5 * np.sqrt(mean) + 1
    # Rows of other clusters are 0.5 * 512 = 256 bits away over the prefix and 0.32 * 512 = 164 within the cluster, with
    # standard deviations of 11: no others survive, and a cluster has 150 of the 3,000 rows.
    assert (n_survivors >= k).all()
    assert n_survivors.mean() < 0.15 * exact.shape[1]


@pytest.mark.parametrize("k", [1, 20])
@pytest.mark.parametrize("is_hidden", [False, True])
def test_one_call_finds_what_the_cascade_finds(clusters, k, is_hidden):
    n_bits, rows, queries, exact = clusters
    n = exact.shape[1]
    hidden = np.arange(n) % 3 == 0 if is_hidden else NOT_HIDDEN
    for some in (queries[:1], queries[1:4], queries[4:32]):
        assert check_one_call(rows, n, n_bits, some, k, hidden, 1e-3)


def test_a_smaller_miss_looks_at_more_rows(clusters):
    n_bits, rows, queries, exact = clusters
    queries = queries[:6]
    runs = [
        cascade_nearest(rows, exact.shape[1], n_bits, queries, 10, NOT_HIDDEN, NO_RANKS, miss, 1)
        for miss in (0.9, 0.1, 1e-3, 1e-6, NO_MISS)
    ]
    scanned = scan_nearest(rows, exact.shape[1], queries, 10, NOT_HIDDEN, NO_RANKS, 1)
    for (keys, n_survivors), (more_keys, n_more) in itertools.pairwise(runs):
        assert (n_more >= n_survivors).all()
        assert (more_keys <= keys).all()  # and never finds anything worse
        assert (scanned <= more_keys).all()
    assert runs[-1][1].sum() > runs[0][1].sum()
    np.testing.assert_array_equal(runs[-1][0], scanned)


def test_every_row_survives_where_all_are_asked_for(clusters):
    n_bits, rows, queries, exact = clusters
    n = exact.shape[1]
    keys, n_survivors = cascade_nearest(rows, n, n_bits, queries[:2], n, NOT_HIDDEN, NO_RANKS, 1e-3, 1)
    assert n_survivors.tolist() == [n, n]
    np.testing.assert_array_equal(np.sort(rows_of(keys), axis=1), [np.arange(n)] * 2)


def test_keys():
    keys = np.array([5 << 32 | 7, NO_KEY], dtype=np.uint64)
    np.testing.assert_array_equal(distances_of(keys), [5, 2**31 - 1])
    assert distances_of(keys).dtype == np.int32


@pytest.mark.parametrize("n_queries", [1, 100])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_cascade_whose_prefixes_tell_nothing_is_a_scan(n_queries, n_threads):
    """Among random codes most prefixes are as near as those of the nearest rows: nothing is overlooked then."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**64, (3_000, 32), dtype=np.uint64)
    rows, queries = CodeRows.of(words, 2_048), rng.integers(0, 2**64, (n_queries, 32), dtype=np.uint64)
    keys, n_survivors = cascade_nearest(rows, 3_000, 2_048, queries, 40, NOT_HIDDEN, NO_RANKS, 1e-3, n_threads)
    assert (n_survivors == 3_000).all()
    np.testing.assert_array_equal(keys, scan_nearest(rows, 3_000, queries, 40, NOT_HIDDEN, NO_RANKS, 1))


@pytest.mark.parametrize("n_random", [3, 5])
def test_the_first_queries_judge_the_cascade_on_any_number_of_threads(n_random, monkeypatch):
    tune(monkeypatch, cascade_values=3_000)  # one query at a time
    rng = np.random.default_rng(2)
    words = rng.integers(0, 2**64, (3_000, 32), dtype=np.uint64)
    words[:5] = words[0]
    queries = np.repeat(words[:1], 9, axis=0)
    queries[:n_random] = rng.integers(0, 2**64, (n_random, 32), dtype=np.uint64)
    for n_threads in (1, 2, 7):
        _, n_survivors = cascade_nearest(
            CodeRows.of(words, 2_048), 3_000, 2_048, queries, 5, NOT_HIDDEN, NO_RANKS, 1e-3, n_threads
        )
        assert (n_survivors[:n_random] == 3_000).all()
        assert (n_survivors[n_random:8] < 1_000).all()
        assert (n_survivors[8] == 3_000) == (n_random > 4)


def test_some_queries_of_a_cascade_are_scanned():
    """Queries near to a few rows among random ones go through the cascade, beside others that do not."""
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**64, (3_000, 32), dtype=np.uint64)
    words[:5] = words[0]
    rows = CodeRows.of(words, 2_048)
    queries = np.repeat(words[:1], 40, axis=0)
    queries[::8] = rng.integers(0, 2**64, (5, 32), dtype=np.uint64)
    keys, n_survivors = cascade_nearest(rows, 3_000, 2_048, queries, 5, NOT_HIDDEN, NO_RANKS, 1e-3, 1)
    assert (n_survivors[::8] == 3_000).all()
    assert (np.delete(n_survivors, np.s_[::8]) < 1_000).all()
    np.testing.assert_array_equal(keys, scan_nearest(rows, 3_000, queries, 5, NOT_HIDDEN, NO_RANKS, 1))


def test_one_call_for_queries_that_are_to_be_scanned_or_not():
    """One call answers if all are to be scanned, or most are not."""
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**64, (3_000, 32), dtype=np.uint64)
    words[:5] = words[0]
    rows = CodeRows.of(words, 2_048)
    queries = rng.integers(0, 2**64, (8, 32), dtype=np.uint64)
    for n_near, answers in ((0, True), (4, False), (5, True), (8, True)):
        queries[:n_near] = words[0]
        assert check_one_call(rows, 3_000, 2_048, queries, 5, NOT_HIDDEN, 1e-3) == answers


def test_a_query_is_given_up_in_one_call(monkeypatch):
    """Where too many halves are left after the prefix, which the sample does not show, the scan continues there."""
    tune(monkeypatch, cascade_sample_blocks=1, cascade_left_words=16.0)
    rng = np.random.default_rng(3)
    words = rng.integers(0, 2**64, (3_000, 32), dtype=np.uint64)
    words[:16], words[:5] = 2**64 - 1, 0  # the block of the sample
    view = view_of(CodeRows.of(words, 2_048), 3_000)
    queries = CodeQueries(np.zeros((1, 32), dtype=np.uint64), 2_048, 40)
    found, n_survivors = cascade.results(view, queries, 1e-3)
    assert n_survivors == 3_000
    for got, want in zip(found, scan.results(view, queries), strict=True):
        np.testing.assert_array_equal(got, want)
