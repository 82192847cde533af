"""Substrings: tables of a segment, exact search by them, probing, and all rows within a radius."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex._core.tuning import tuned
from cbeindex.data.codes import CodeRows, to_words
from cbeindex.search import scan
from cbeindex.search.buckets import Substrings, Tables, lookup
from cbeindex.search.queries import CodeQueries
from cbeindex.search.view import View
from cbeindex.store.segment import NOT_HIDDEN, Segment
from tests import oracles
from tests.small import NeverSpent, tune
from tests.strategies import CodeBatch, code_batches, masks, some_codes

pytestmark = pytest.mark.kernels

WIDTHS = (1, 7, 63, 64, 65, 200, 512, 1_024, 1_030, 2_100)


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    """Tables of few rows, and no limit to what a search by them may cost."""
    tune(monkeypatch, least_table_segment_rows=10, table_budget_share=NeverSpent())


def segment_of(batch):
    codes = CodeRows.of(to_words(batch.codes, batch.n_bits), batch.n_bits)
    return Segment(np.arange(len(batch.codes)), codes, {}, NOT_HIDDEN)


def table_nearest(segment, n_bits, queries, k, hidden, n_threads):
    """Keys, whether they are final, and visits of an exact search by tables."""
    task = CodeQueries(queries, n_bits, k, n_threads)
    keys, done, visits = lookup.nearest(segment.buckets, View.whole(segment, hidden), task)
    return keys.packed, done, visits


def table_probe(segment, n_bits, queries, margins, k, probes, hidden, n_threads):
    """The same of a search that probes some buckets: `probes` is their number, and that of the rows wanted."""
    task = CodeQueries(queries, n_bits, k, n_threads, margins)
    keys, done, visits = lookup.probe(segment.buckets, View.whole(segment, hidden), task, *probes)
    return keys.packed, done, visits


def table_within(segment, n_bits, queries, radius, hidden, n_threads):
    task = CodeQueries(queries, n_bits, 0, n_threads)
    return lookup.within(segment.buckets, View.whole(segment, hidden), task, radius)


def scan_nearest(segment, n_bits, queries, k, hidden):
    return scan.nearest(View.whole(segment, hidden), CodeQueries(queries, n_bits, k)).packed


@st.composite
def cases(draw, sizes=(10, 17, 40, 150), max_queries=4):
    """A batch, its segment with tables, and the words of its queries."""
    batch = draw(code_batches(WIDTHS, sizes, max_queries))
    n_tables = draw(st.integers(1, min(6, batch.n_bits)))
    table_bits = draw(st.integers(1, min(7, batch.n_bits // n_tables)))
    arranged = Substrings(batch.n_bits, n_tables, table_bits).arrange(segment_of(batch))
    return batch, arranged, to_words(batch.queries, batch.n_bits)


def random_batch(n, n_bits, seed=0, n_centres=None, flipped=0.0):
    return CodeBatch(n_bits, some_codes(np.random.default_rng(seed), n, n_bits, n_centres, flipped), None)


@settings(max_examples=30)
@given(cases())
def test_tables_have_every_row_once(case):
    batch, arranged, _ = case
    tables = arranged.buckets
    for table, first in enumerate(tables.first_bits.tolist()):
        values = oracles.substrings(batch.codes, first, tables.table_bits)
        for value in range(2**tables.table_bits):
            bucket = tables.rows[table, tables.starts[table, value] : tables.starts[table, value + 1]]
            assert bucket.tolist() == [row for row, v in enumerate(values) if v == value]
    # Substrings do not overlap and lie within the code.
    ends = [*tables.first_bits.tolist(), batch.n_bits]
    assert all(end - first >= tables.table_bits for first, end in itertools.pairwise(ends))
    # Codes are read row by row.
    np.testing.assert_array_equal(arranged.codes.rows, to_words(batch.codes, batch.n_bits))
    assert tables.nbytes == tables.first_bits.nbytes + tables.starts.nbytes + tables.rows.nbytes


@pytest.mark.parametrize(
    ("n_bits", "n_rows", "options", "n_tables", "table_bits"),
    [
        (256, 10, {}, 16, 3),  # about log2 of the rows
        (256, 1_000, {}, 16, 10),
        (100, 1_000, {}, 10, 10),  # as many as there is room for
        (5, 1_000, {}, 1, 5),
        (1, 10, {}, 1, 1),
        (256, 1_000, {"n_tables": 4}, 4, 10),
        (256, 1_000, {"n_tables": 64}, 64, 4),
        (256, 1_000, {"n_tables": 256}, 256, 1),
        (256, 1_000, {"n_tables": 2, "table_bits": 12}, 2, 12),
        (256, 1_000, {"n_tables": 2, "table_bits": 24}, 2, 12),  # small in any case
        (256, 5_000, {"n_tables": 2, "table_bits": 24}, 2, 13),  # two entries for a row at most
        (2_100, 30, {"table_bits": 2}, 16, 2),
    ],
)
def test_how_many_tables_of_how_many_bits(n_bits, n_rows, options, n_tables, table_bits):
    tables = Substrings(n_bits, **options).arrange(segment_of(random_batch(n_rows, n_bits))).buckets
    assert (tables.n_tables, tables.table_bits) == (n_tables, table_bits)
    assert tables.starts.shape == (n_tables, 2**table_bits + 1)
    assert tables.rows.shape == (n_tables, n_rows)
    np.testing.assert_array_equal(tables.first_bits, np.arange(n_tables) * (n_bits // n_tables))


def test_few_rows_have_no_tables():
    few, enough = (segment_of(random_batch(n, 100)) for n in (9, 10))
    assert Substrings(100).arrange(few) is few
    assert isinstance(Substrings(100).arrange(enough).buckets, Tables)


@settings(max_examples=60)
@given(cases(), st.sampled_from([1, 2, 10, 100, 200]), st.integers(1, 3), st.data())
def test_the_nearest_rows_are_those_of_a_scan(case, k, n_threads, data):
    batch, arranged, queries = case
    n = len(batch.codes)
    hidden = data.draw(masks(n))
    keys, done, visits = table_nearest(arranged, batch.n_bits, queries, k, hidden, n_threads)
    assert done.all()
    np.testing.assert_array_equal(keys, scan_nearest(arranged, batch.n_bits, queries, k, hidden))
    for query, near in enumerate(oracles.hamming(batch.queries, batch.codes)):
        np.testing.assert_array_equal(keys[query], oracles.best_keys(near, range(n), min(k, n), hidden))
    assert min(k, n - np.count_nonzero(hidden)) * len(queries) <= visits.rows <= n * len(queries)


def test_near_duplicates_are_found_by_looking_at_few_rows():
    """Each of 2,000 random codes is found from a copy with 4 of 256 bits flipped, in the buckets that it is in."""
    batch = random_batch(2_000, 256)
    arranged = Substrings(256).arrange(segment_of(batch))
    bits = np.unpackbits(batch.codes[:50], axis=1, bitorder="little")
    for row in bits:
        row[np.random.default_rng(int(row.sum())).permutation(256)[:4]] ^= 1
    queries = to_words(np.packbits(bits, axis=1, bitorder="little"), 256)
    keys, done, visits = table_nearest(arranged, 256, queries, 1, NOT_HIDDEN, 1)
    assert done.all()
    np.testing.assert_array_equal(keys[:, 0], oracles.keys_of(np.full(50, 4), np.arange(50)))
    # Of 16 tables, 12 or more have it at distance 0, and the bound of 4 is proven after 5 tables of 2,048 entries.
    assert visits.buckets == 50 * 5
    assert visits.rows < 50 * 20


def test_a_search_that_would_cost_more_than_a_scan_is_left_to_it(monkeypatch):
    tune(monkeypatch, table_budget_share=32)
    batch = random_batch(1_000, 256)
    arranged = Substrings(256).arrange(segment_of(batch))
    near, far = to_words(batch.codes[:5], 256), to_words(random_batch(5, 256, seed=1).codes, 256)
    # An eighth of a word for each row is what may be spent: 1,000 * 4 / 32, and buckets cost 8 each.
    for queries, k, is_done in ((near, 1, True), (near, 2, False), (far, 1, False)):
        _, done, visits = table_nearest(arranged, 256, queries, k, NOT_HIDDEN, 1)
        assert (done == is_done).all()
        assert 8 * visits.buckets <= 5 * 125
    np.testing.assert_array_equal(table_nearest(arranged, 256, near, 1, NOT_HIDDEN, 1)[0][:, 0], np.arange(5))


@settings(max_examples=60)
@given(cases(), st.sampled_from([1, 2, 10, 200]), st.booleans(), st.integers(1, 3), st.data())
def test_rows_in_the_likeliest_buckets(case, k, has_margins, n_threads, data):
    """A subset of the scan without duplicates, never worse with more probes, and equal to it with all of them."""
    batch, arranged, queries = case
    tables, n = arranged.buckets, len(batch.codes)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    margins = rng.uniform(0, 1, (len(queries), batch.n_bits)).astype(np.float32) if has_margins else None
    hidden = data.draw(masks(n))
    scanned = scan_nearest(arranged, batch.n_bits, queries, k, hidden)
    near, before = oracles.hamming(batch.queries, batch.codes), None
    numbers = sorted({1, 2, data.draw(st.integers(1, 2**tables.table_bits)), 2**tables.table_bits, 10**6})
    for n_probes in numbers:
        keys, done, visits = table_probe(arranged, batch.n_bits, queries, margins, k, (n_probes, 0), hidden, n_threads)
        assert done.all()
        assert keys.shape == scanned.shape
        found = keys[keys != 2**64 - 1]
        rows = (found & np.uint64(0xFFFFFFFF)).astype(np.int64)
        query = np.nonzero(keys != 2**64 - 1)[0]
        np.testing.assert_array_equal(found >> np.uint64(32), near[query, rows])
        assert len(set(zip(query.tolist(), rows.tolist(), strict=True))) == len(found)
        assert (scanned <= keys).all()
        if before is not None:
            assert (keys <= before).all()
        before = keys
        assert visits.buckets == len(queries) * tables.n_tables * min(n_probes, 2**tables.table_bits)
    np.testing.assert_array_equal(before, scanned)
    assert visits.rows == n * len(queries)


@settings(max_examples=60)
@given(cases(), st.sampled_from([1, 2, 10, 200]), st.booleans(), st.sampled_from([8, 1, NeverSpent()]), st.data())
def test_more_buckets_until_there_are_enough_rows(case, k, has_margins, share, data):
    """Or all rows, where that is cheaper: never fewer than wanted, and never worse with more probes either."""
    batch, arranged, queries = case
    tables, n = arranged.buckets, len(batch.codes)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    margins = rng.uniform(0, 1, (len(queries), batch.n_bits)).astype(np.float32) if has_margins else None
    hidden = data.draw(masks(n))
    n_wanted = min(k, n - int(np.count_nonzero(hidden)))
    scanned = scan_nearest(arranged, batch.n_bits, queries, k, hidden)
    before = None
    for n_probes in range(1, min(2**tables.table_bits, 12) + 1):
        with tuned(table_budget_share=share):
            keys, done, _ = table_probe(
                arranged, batch.n_bits, queries, margins, k, (n_probes, n_wanted), hidden, data.draw(st.integers(1, 2))
            )
        assert done.all() or share in (8, 1)
        keys[~done] = scanned[~done]
        assert n_wanted == 0 or (keys[:, n_wanted - 1] != 2**64 - 1).all()
        assert before is None or (keys <= before).all()
        before = keys


def test_probes_that_would_cost_more_than_a_scan_are_left_to_it(monkeypatch):
    tune(monkeypatch, table_budget_share=32)
    batch = random_batch(1_000, 256)
    arranged = Substrings(256, 4, 10).arrange(segment_of(batch))
    queries = to_words(batch.codes[:50], 256)
    # 1,000 * 4 / 32 = 125 may be spent. Four buckets of each table cost 8 each, and that is too much already.
    _, done, visits = table_probe(arranged, 256, queries, None, 1, (4, 1), NOT_HIDDEN, 1)
    assert (done.any(), visits) == (False, (0, 0, None))
    # One of each leaves 93, for seven rows at 12 each; there are five on average.
    values = np.array([oracles.substrings(batch.codes, first, 10) for first in (0, 64, 128, 192)])
    n_rows = [np.count_nonzero((values == values[:, [i]]).any(axis=0)) for i in range(50)]
    keys, done, visits = table_probe(arranged, 256, queries, None, 1, (1, 1), NOT_HIDDEN, 1)
    np.testing.assert_array_equal(done, np.array(n_rows) <= 7)
    assert 0 < np.count_nonzero(done) < 50
    np.testing.assert_array_equal(keys[done, 0], np.flatnonzero(done))
    assert visits.rows >= sum(n_rows)


def test_buckets_are_probed_in_the_order_of_margins():
    """A row that differs in the bits of which the query is least certain is found before one that is nearer."""
    query = np.zeros((1, 16), dtype=np.uint8)
    rows = np.zeros((12, 16), dtype=np.uint8)
    rows[:, 8:] = 255
    rows[0, 0], rows[1:, 0] = 0b00110000, 0b00000001
    arranged = Substrings(128, 1, 8).arrange(segment_of(CodeBatch(128, rows, query)))
    margins = np.full((1, 128), 5.0, dtype=np.float32)
    margins[0, 4:6] = 0.25, 0.5
    words = to_words(query, 128)

    def found(n_probes, margins):
        keys, _, _ = table_probe(arranged, 128, words, margins, 12, (n_probes, 0), NOT_HIDDEN, 1)
        return (keys[keys != 2**64 - 1] & np.uint64(0xFFFFFFFF)).tolist()

    # With margins: nothing, bit 4, bit 5, both, and then one of the others.
    assert [found(n, margins) for n in (1, 2, 3, 4)] == [[], [], [], [0]]
    # Without: nothing, then each single bit, the first of which is 0.
    assert [found(n, None) for n in (1, 2)] == [[], list(range(1, 12))]


@settings(max_examples=60)
@given(cases(), st.integers(1, 3), st.data())
def test_all_rows_within_a_radius(case, n_threads, data):
    """As a scan finds them, for every radius."""
    batch, arranged, queries = case
    n = len(batch.codes)
    hidden = data.draw(masks(n))
    near = oracles.hamming(batch.queries, batch.codes)
    drawn = data.draw(st.integers(0, batch.n_bits))
    for radius in sorted({0, int(near.min()), int(np.median(near)), drawn, batch.n_bits}):
        query, distances, rows = table_within(arranged, batch.n_bits, queries, radius, hidden, n_threads)
        expected = (near <= radius) & ~(hidden if hidden.size else np.zeros(n, dtype=np.bool_))
        order = np.lexsort((rows, query))
        np.testing.assert_array_equal(np.stack([query, rows])[:, order], np.nonzero(expected))
        np.testing.assert_array_equal(distances, near[query, rows])
        assert distances.dtype == np.int32


def test_a_radius_that_would_cost_more_than_a_scan_is_left_to_it(monkeypatch):
    tune(monkeypatch, table_budget_share=32)
    batch = random_batch(1_000, 256)
    arranged = Substrings(256).arrange(segment_of(batch))
    queries = to_words(batch.codes[:3], 256)
    # Fifteen buckets at 8 each are within 1,000 * 4 / 32; a radius of 16 looks up 10 more in the first table.
    assert table_within(arranged, 256, queries, 14, NOT_HIDDEN, 1) is not None
    for radius in (16, 100, 256):
        assert table_within(arranged, 256, queries, radius, NOT_HIDDEN, 1) is None
    query, distances, rows = table_within(arranged, 256, queries, 0, NOT_HIDDEN, 1)
    assert (query.tolist(), distances.tolist(), rows.tolist()) == ([0, 1, 2], [0, 0, 0], [0, 1, 2])


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 40))
def test_buckets_that_hold_all_rows_within_a_radius(n_tables, table_bits, radius):
    """Counted one by one: in the tables before the rest of the division one bit more may differ than in the others."""
    tables = Tables(
        table_bits, np.arange(n_tables), np.zeros((n_tables, 1), np.int32), np.zeros((n_tables, 9), np.int32)
    )
    n_lookups = 0
    for table in range(n_tables):
        most = -1
        for n_differing in range(table_bits + 1):
            # All tables before it differ in one bit more than this one, all after it in as many, and yet it is within.
            if table * (n_differing + 1) + (n_tables - table) * n_differing <= radius:
                most = n_differing
        n_lookups += sum(math.comb(table_bits, ones) for ones in range(most + 1))
    assert lookup.n_lookups(tables, radius) == n_lookups


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_threads_do_not_change_the_answer(monkeypatch, n_threads):
    tune(monkeypatch, table_task_queries=4)
    batch = random_batch(300, 130, n_centres=20, flipped=0.03)
    arranged = Substrings(130, 4, 7).arrange(segment_of(batch))
    queries = to_words(batch.codes[:33], 130)
    for search in (
        lambda n: table_nearest(arranged, 130, queries, 7, NOT_HIDDEN, n),
        lambda n: table_probe(arranged, 130, queries, None, 7, (5, 20), NOT_HIDDEN, n),
        lambda n: table_within(arranged, 130, queries, 9, NOT_HIDDEN, n),
    ):
        for one, more in zip(search(1), search(n_threads), strict=True):
            np.testing.assert_array_equal(one, more)


def test_no_queries():
    batch = random_batch(30, 100)
    arranged = Substrings(100).arrange(segment_of(batch))
    none = np.empty((0, 2), dtype=np.uint64)
    keys, done, visits = table_nearest(arranged, 100, none, 3, NOT_HIDDEN, 2)
    assert (keys.shape, done.shape, visits) == ((0, 3), (0,), (0, 0, None))
    margins = np.empty((0, 100), np.float32)
    keys, done, visits = table_probe(arranged, 100, none, margins, 3, (2, 3), NOT_HIDDEN, 2)
    assert (keys.shape, done.shape, visits) == ((0, 3), (0,), (0, 0, None))
    assert [part.shape for part in table_within(arranged, 100, none, 3, NOT_HIDDEN, 2)] == [(0,), (0,), (0,)]


def test_expected_rows():
    tables = Substrings(64, 4, 8).arrange(segment_of(random_batch(512, 64))).buckets
    assert [tables.expected_rows(n) for n in (1, 32, 64, 256, 10**9)] == [8, 256, 512, 512, 512]
