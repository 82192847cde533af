"""Kernels of cells, each against plain numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.data.codes import is_long, to_words
from cbeindex.kernels import cells
from cbeindex.search.cascade import Checks
from cbeindex.store.segment import NO_RANKS
from tests import oracles
from tests.kernel_cases import in_blocks
from tests.strategies import CodeBatch, code_batches, masks, rankings

pytestmark = pytest.mark.kernels

SIZES = (1, 2, 15, 16, 17, 40, 513, 700)
LONG = (1_025, 1_089, 1_600, 2_100)
# So small that no row is overlooked: 38 standard deviations.
NO_MISS = 1e-300


class Case:
    """Codes in cells, some of them empty, and the cells that each query visits."""

    def __init__(self, batch, n_cells, n_probes, seed):
        rng = np.random.default_rng(seed)
        self.n_bits, self.n_rows, self.n_cells = batch.n_bits, len(batch.codes), n_cells
        self.queries, self.words = to_words(batch.queries, batch.n_bits), to_words(batch.codes, batch.n_bits)
        self.blocks = in_blocks(self.words)
        ends = np.sort(rng.integers(0, self.n_rows + 1, n_cells - 1))
        self.offsets = np.array([0, *ends, self.n_rows], dtype=np.int64)
        self.chosen = np.array([rng.permutation(n_cells)[:n_probes] for _ in self.queries], dtype=np.int64)
        self.distances = oracles.hamming(batch.queries, batch.codes)

    def visited(self, query):
        """Rows in the cells of a query, in the order in which it visits them."""
        return [row for c in self.chosen[query] for row in range(self.offsets[c], self.offsets[c + 1])]


@st.composite
def cases(draw, max_queries=5, **options):
    batch = draw(code_batches(sizes=SIZES, max_queries=max_queries, **options))
    n_cells = draw(st.integers(1, 9))
    return Case(batch, n_cells, draw(st.integers(1, n_cells)), draw(st.integers(0, 2**16)))


@given(cases(), st.sampled_from([0, 1, 20, 10_000]))
def test_visits_in_the_order_of_cells(case, n_first):
    """First those to the nearest cells that have enough rows, then the others; each time cell by cell."""
    order = cells.order_by_cell(case.chosen, case.offsets, n_first)
    sizes = np.diff(case.offsets)[case.chosen]
    is_late = (np.cumsum(sizes, axis=1) - sizes >= n_first).ravel()
    np.testing.assert_array_equal(order, np.lexsort((case.chosen.ravel(), is_late)))


def nearest(case, k, hidden, ranks, miss=NO_MISS):
    """Call the kernel on a case; return keys and the number of rows that passed the first check."""
    keys = np.zeros((len(case.queries), k), dtype=np.uint64)
    checks = Checks.of(case.n_bits, miss)
    n_passed = cells.nearest(
        case.queries, case.blocks, case.chosen, case.offsets, hidden, ranks, case.n_bits, *checks, keys
    )
    return keys, n_passed


@settings(max_examples=3)
@given(cases(widths=(102_400,), max_queries=5), st.sampled_from([1, 10, 600]), st.data())
def test_nearest_of_very_long_codes(case, k, data):
    """The distances of nearly all rows are in two or three places of a tally."""
    k = min(k, case.n_rows)
    hidden, ranks = data.draw(masks(case.n_rows)), data.draw(rankings(case.n_rows))
    keys, _ = nearest(case, k, hidden, ranks)
    for query in range(len(case.queries)):
        expected = oracles.best_keys(case.distances[query], case.visited(query), k, hidden, ranks)
        np.testing.assert_array_equal(keys[query], expected)


@settings(max_examples=100)
@given(cases(max_queries=40) | cases(widths=LONG, max_queries=40), st.sampled_from([1, 2, 10, 600]), st.data())
def test_nearest_rows_in_cells(case, k, data):
    """By (distance, rank), ties included; also of long codes, if the cascade overlooks nothing."""
    k = min(k, case.n_rows)
    hidden, ranks = data.draw(masks(case.n_rows)), data.draw(rankings(case.n_rows))
    keys, n_passed = nearest(case, k, hidden, ranks)
    n_visited = 0
    for query, near in enumerate(case.distances):
        rows = case.visited(query)
        np.testing.assert_array_equal(keys[query], oracles.best_keys(near, rows, k, hidden, ranks))
        n_visited += len(rows)
    # Short codes are compared whole; of long ones, at least the answers have passed the first check.
    assert np.count_nonzero(keys != 2**64 - 1) <= n_passed if is_long(case.n_bits) else n_passed == 0
    assert n_passed <= n_visited


@pytest.mark.parametrize("n_bits", [64, 1_024, 1_088, 9_000])
def test_opposite_rows_are_found(n_bits):
    """Rows that differ in every bit are as far as can be, and still not hidden."""
    n_bytes = -(-n_bits // 8)
    batch = CodeBatch(n_bits, np.full((20, n_bytes), 255, np.uint8), np.zeros((2, n_bytes), np.uint8))
    hidden = np.arange(20) % 2 == 0
    keys, _ = nearest(Case(batch, 3, 3, 0), 15, hidden, NO_RANKS)
    np.testing.assert_array_equal(keys, [oracles.best_keys([n_bits] * 20, range(20), 15, hidden)] * 2)


def test_far_rows_are_compared_over_512_bits_only():
    """Of two groups of rows the far one stays unread, if the near one is visited first."""
    n_bits = 2_100
    rng = np.random.default_rng(0)
    query = rng.random((1, n_bits)) < 0.5
    near = query ^ (rng.random((200, n_bits)) < 0.05)
    far = query ^ (rng.random((300, n_bits)) < 0.5)
    codes = np.packbits(np.concatenate([far, near]), axis=1, bitorder="little")
    case = Case(CodeBatch(n_bits, codes, np.packbits(query, axis=1, bitorder="little")), 2, 2, 0)
    case.offsets, case.chosen = np.array([0, 300, 500]), np.array([[1, 0]])
    keys, n_passed = nearest(case, 10, np.zeros(0, dtype=np.bool_), NO_RANKS, 1e-5)
    np.testing.assert_array_equal(keys[0], oracles.best_keys(case.distances[0], range(500), 10))
    # Over 512 bits near rows are 26 bits away, give or take 5, and those of far rows 256, give or take 11.
    assert 10 <= n_passed <= 200
