"""Clusters: cells of a segment, how they are made, and what is found in the nearest of them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.data.codes import CodeRows, to_words
from cbeindex.search import scan
from cbeindex.search.buckets import Cells, Clusters
from cbeindex.search.buckets.centroids import Centroids
from cbeindex.search.buckets.clusters import Probes
from cbeindex.search.queries import CodeQueries
from cbeindex.search.view import View
from cbeindex.store.segment import NOT_HIDDEN, Segment
from tests import oracles
from tests.small import tune
from tests.strategies import CodeBatch, code_batches, masks, some_codes

pytestmark = pytest.mark.kernels

WIDTHS = (1, 63, 64, 65, 511, 513, 1_023, 1_024, 1_030, 2_100)


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    """Cells of few rows, with less training; and a cascade inside of them that overlooks nothing."""
    tune(monkeypatch, least_cell_segment_rows=20, kmeans_rows=4, kmeans_iterations=2, probe_sample_rows=16)
    tune(monkeypatch, cell_miss=1e-300)


def segment_of(batch, ids=None, removed=NOT_HIDDEN):
    """A segment with a column, in the order of ids."""
    ids = np.arange(len(batch.codes)) if ids is None else ids
    codes = CodeRows.of(to_words(batch.codes, batch.n_bits), batch.n_bits)
    return Segment(ids, codes, {"half": ids.astype(np.float32) / 2}, removed)


def nearest_in_cells(segment, n_bits, queries, k, probes, hidden, n_threads):
    """Keys and visits of a search in some cells."""
    task = CodeQueries(queries, n_bits, k, n_threads)
    keys, visits = segment.buckets.search(View.whole(segment, hidden), task, Probes(*probes))
    return keys.packed, visits


def words_of(segment):
    return segment.codes.take(np.arange(segment.n_rows))


def batches(**options):
    return code_batches(**({"widths": WIDTHS, "sizes": (20, 21, 40, 150, 530)} | options))


def check_order(segment):
    """The rows are those in the order of ids, in another order, and it knows both."""
    ordered = segment.ids[segment.order]
    assert (ordered[1:] > ordered[:-1]).all()
    np.testing.assert_array_equal(segment.ranks[segment.order], np.arange(segment.n_rows))
    assert (segment.order.dtype, segment.ranks.dtype) == (np.int32, np.int32)


@settings(max_examples=30)
@given(batches(sizes=(20, 21, 40, 150), max_queries=1), st.none() | st.integers(1, 12), st.data())
def test_rows_of_a_cell_stand_together(batch, n_cells, data):
    n = len(batch.codes)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    ids = np.sort(rng.permutation(10 * n)[:n])
    segment = segment_of(batch, ids, data.draw(masks(n)))
    arranged = Clusters(batch.n_bits, n_cells).arrange(segment)
    cells = arranged.buckets
    # All rows are there, each with what belongs to it.
    check_order(arranged)
    np.testing.assert_array_equal(arranged.ids[arranged.order], ids)
    np.testing.assert_array_equal(words_of(arranged)[arranged.order], to_words(batch.codes, batch.n_bits))
    np.testing.assert_array_equal(arranged.columns["half"], arranged.ids / np.float32(2))
    np.testing.assert_array_equal(
        arranged.removed[arranged.order] if segment.removed.size else arranged.removed, segment.removed
    )
    # Each is in the first of its nearest cells, and in the order of ids there.
    assert cells.n_cells == min(n_cells or round(4 * math.sqrt(n)), n // 8)
    assert cells.offsets[0] == 0
    assert cells.offsets[-1] == n
    n_words = min(16, words_of(arranged).shape[1])
    assert cells.centroids.signs.shape == (cells.n_cells, n_words)
    cell = np.repeat(np.arange(cells.n_cells), np.diff(cells.offsets))
    np.testing.assert_array_equal(
        oracles.cosines(words_of(arranged)[:, :n_words], cells.centroids).argmax(axis=1), cell
    )
    for start, stop in itertools.pairwise(cells.offsets):
        assert (np.diff(arranged.ranks[start:stop]) > 0).all()
    assert all(1 <= n <= cells.n_cells for n in cells.n_probes)
    assert cells.nbytes == cells.centroids.nbytes + cells.offsets.nbytes


def test_the_same_rows_make_the_same_cells():
    batch = CodeBatch(200, some_codes(np.random.default_rng(0), 300, 200, 10, 0.1), None)
    one, other = (Clusters(200).arrange(segment_of(batch)) for _ in range(2))
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.buckets.centroids.signs, other.buckets.centroids.signs)
    np.testing.assert_array_equal(one.buckets.centroids.weights, other.buckets.centroids.weights)
    assert one.buckets.n_probes == other.buckets.n_probes


def test_few_rows_have_no_cells():
    codes = some_codes(np.random.default_rng(0), 20, 100)
    few, enough = (segment_of(CodeBatch(100, codes[:n], None)) for n in (19, 20))
    assert Clusters(100).arrange(few) is few
    assert isinstance(Clusters(100).arrange(enough).buckets, Cells)


def test_only_the_first_words_count():
    """Codes that differ behind 1,024 bits alone share a cell."""
    rng = np.random.default_rng(0)
    codes = some_codes(rng, 200, 1_600, 3, 0.0)
    alike = codes.copy()
    alike[:, 128:] = some_codes(rng, 200, 576)
    arranged, others = (Clusters(1_600, 8).arrange(segment_of(CodeBatch(1_600, c, None))) for c in (codes, alike))
    np.testing.assert_array_equal(arranged.ids, others.ids)
    np.testing.assert_array_equal(arranged.buckets.offsets, others.buckets.offsets)


def test_equal_rows_share_a_cell():
    """Fewer distinct rows than cells: most cells are empty, and searches do not mind."""
    batch = CodeBatch(70, some_codes(np.random.default_rng(0), 160, 70, 3, 0.0), None)
    arranged = Clusters(70, 20).arrange(segment_of(batch))
    cells = arranged.buckets
    assert cells.n_cells == 20
    assert np.count_nonzero(np.diff(cells.offsets)) <= 3
    queries = to_words(batch.codes[:4], 70)
    for n_probes in (1, 5, 19, 20):
        keys, visits = nearest_in_cells(arranged, 70, queries, 5, (n_probes, 0), NOT_HIDDEN, 1)
        chosen = cells.choose(queries, Probes(n_probes, 0), NOT_HIDDEN)
        assert visits.rows == np.diff(cells.offsets)[chosen].sum()
        check_nearest(arranged, queries, keys, chosen, NOT_HIDDEN)


def check_nearest(segment, queries, keys, chosen, hidden):
    """Keys are those of the nearest rows in the chosen cells, by distance and rank."""
    distances = oracles.hamming(queries, words_of(segment))
    offsets = segment.buckets.cell_ends()
    for query, near in enumerate(distances):
        rows = [row for c in chosen[query] for row in range(offsets[c], offsets[c + 1])]
        expected = oracles.best_keys(near, rows, keys.shape[1], hidden, segment.ranks)
        np.testing.assert_array_equal(keys[query], expected)


@settings(max_examples=60)
@given(batches(), st.integers(2, 12), st.sampled_from([1, 2, 10, 200, 600]), st.integers(1, 3), st.data())
def test_nearest_rows_of_the_nearest_cells(batch, n_cells, k, n_threads, data):
    """Found without duplicates, a subset of what a scan finds, and all of it with all cells."""
    n = len(batch.codes)
    arranged = Clusters(batch.n_bits, n_cells).arrange(segment_of(batch))
    cells, queries = arranged.buckets, to_words(batch.queries, batch.n_bits)
    hidden = data.draw(masks(n))
    by_distance = oracles.nearest_cells(queries[:, : cells.centroids.signs.shape[1]], cells.centroids)
    visible = np.ones(n, dtype=np.bool_) if not hidden.size else ~hidden
    n_wanted = data.draw(st.integers(0, int(visible.sum())))
    before, sizes = None, np.diff(cells.cell_ends())
    for n_probes in sorted({1, data.draw(st.integers(1, cells.n_cells)), cells.n_cells}):
        chosen = cells.choose(queries, Probes(n_probes, n_wanted), hidden)
        for query, those in enumerate(chosen):
            those = those[those < cells.n_cells]
            np.testing.assert_array_equal(those, by_distance[query, : len(those)])
            rows = [row for c in those for row in range(cells.offsets[c], cells.offsets[c + 1])]
            assert len(those) >= n_probes
            assert visible[rows].sum() >= n_wanted
            if len(those) > n_probes:  # the last one was needed
                assert visible[rows[: len(rows) - sizes[those[-1]]]].sum() < n_wanted
        keys, visits = nearest_in_cells(arranged, batch.n_bits, queries, k, (n_probes, n_wanted), hidden, n_threads)
        assert keys.shape == (len(queries), min(k, n))
        check_nearest(arranged, queries, keys, chosen, hidden)
        assert visits.rows == sizes[chosen].sum()
        assert visits.survivors <= visits.rows
        assert visits.buckets == np.count_nonzero(chosen < cells.n_cells)
        if before is not None:
            assert (keys <= before).all()  # never worse with more cells
        before = keys
    every = scan.nearest(View.whole(arranged, hidden), CodeQueries(queries, batch.n_bits, k))
    np.testing.assert_array_equal(before, every.packed)


@pytest.mark.parametrize("n_bits", [100, 1_100])
def test_groups_of_queries_do_not_change_the_answer(monkeypatch, n_bits):
    batch = CodeBatch(n_bits, some_codes(np.random.default_rng(0), 600, n_bits, 20, 0.1), None)
    arranged = Clusters(n_bits).arrange(segment_of(batch))
    queries = to_words(batch.codes[:33], n_bits)
    expected, counts = nearest_in_cells(arranged, n_bits, queries, 7, (9, 60), NOT_HIDDEN, 1)
    for n_queries, n_threads in ((1, 1), (1, 3), (6, 1), (6, 2), (100, 5)):
        tune(monkeypatch, cell_task_queries=n_queries)
        keys, same = nearest_in_cells(arranged, n_bits, queries, 7, (9, 60), NOT_HIDDEN, n_threads)
        np.testing.assert_array_equal(keys, expected)
        assert same == counts
    keys, visits = nearest_in_cells(arranged, n_bits, queries[:0], 7, (9, 60), NOT_HIDDEN, 2)
    assert (keys.shape, visits) == ((0, 7), (0, 0, 0))


def test_the_numbers_of_cells_that_hold_the_nearest(monkeypatch):
    """Counted here for all rows; larger segments are counted on a sample."""
    n_bits, n = 128, 100
    tune(monkeypatch, probe_sample_rows=n)
    batch = CodeBatch(n_bits, some_codes(np.random.default_rng(2), n, n_bits, 9, 0.2), None)
    arranged = Clusters(n_bits, 12).arrange(segment_of(batch))
    cells, words = arranged.buckets, words_of(arranged)
    distances = oracles.hamming(words, words)
    nearest_rows = np.argsort(distances, axis=1, kind="stable")[:, 1:]
    cell = np.searchsorted(cells.offsets, nearest_rows, side="right") - 1
    order = oracles.nearest_cells(words, cells.centroids)
    needed = np.array([[list(order[row]).index(c) + 1 for c in cell[row]] for row in range(n)])
    expected = [np.quantile(needed[:, :k], 0.99, method="higher") for k in (10, 100, 1_000)]
    assert list(cells.n_probes) == expected
    assert 1 < cells.n_probes[0] < 12


def cells_of(n_rows, n_cells, n_probes):
    none = Centroids.of_codes(np.zeros((n_cells, 1), np.uint64))
    return Cells(none, np.linspace(0, n_rows, n_cells + 1).astype(np.int64), n_probes)


@given(st.integers(1, 500), st.integers(1, 500))
def test_how_many_cells_to_visit(n_cells, n_probes):
    """More for more results, as measured at 10, 100 and 1,000; never more than there are."""
    measured = tuple(min(n_probes * factor, n_cells) for factor in (1, 2, 8))
    cells = cells_of(10 * n_cells, n_cells, measured)
    assert cells.default_probes(10) == cells.default_probes(1) == measured[0]
    # A number that is not measured is rounded up, and so may be what rounding leaves of one that is.
    assert measured[1] <= cells.default_probes(100) <= measured[1] + 1
    assert measured[2] <= cells.default_probes(1_000) <= measured[2] + 1
    assert cells.default_probes(3_000) == min(n_cells, 3 * measured[2])
    wanted = [cells.default_probes(k) for k in (1, 10, 11, 40, 1_000, 10**9)]
    assert wanted == sorted(wanted)
    assert all(isinstance(n, int) and measured[0] <= n <= n_cells for n in wanted)
    assert wanted[-1] == n_cells


def test_expected_rows():
    cells = cells_of(1_000, 50, (3, 3, 3))
    assert [cells.expected_rows(n) for n in (1, 3, 50, 51, 10**9)] == [20, 60, 1_000, 1_000, 1_000]


def test_cells_cost_no_more_than_the_rows_justify():
    """Training takes time in proportion to the cells, and a file may ask for any number of them."""
    assert Clusters(64, n_cells=10**9).n_cells_of(2**14) == 2**11  # 8 rows each
    assert Clusters(64, n_cells=10**9).n_cells_of(2**20) == 2**14  # 16 times the root
    assert Clusters(64, n_cells=100).n_cells_of(2**20) == 100
    assert Clusters(64).n_cells_of(2**20) == 2**11
