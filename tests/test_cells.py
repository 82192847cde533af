"""Kernels of cells, each against plain numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex import scan
from cbeindex.codes import CodeRows, to_words
from cbeindex.kernels import cells
from tests import oracles
from tests.strategies import CodeBatch, code_batches, masks, rankings

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
        self.codes = CodeRows.of(self.words, batch.n_bits)
        ends = np.sort(rng.integers(0, self.n_rows + 1, n_cells - 1))
        self.offsets = np.array([0, *ends, self.n_rows], dtype=np.int64)
        self.chosen = np.array([rng.permutation(n_cells)[:n_probes] for _ in self.queries], dtype=np.int64)
        sizes = np.diff(self.offsets)[self.chosen]
        stops = np.cumsum(sizes).reshape(sizes.shape)
        self.starts = np.concatenate([stops - sizes, stops[:, -1:]], axis=1)
        self.distances = oracles.hamming(batch.queries, batch.codes)

    def visited(self, query):
        """Rows in the cells of a query, in the order in which it visits them."""
        return [row for c in self.chosen[query] for row in range(self.offsets[c], self.offsets[c + 1])]

    def heads(self, hidden):
        """Head distances of the rows that are visited, query after query; the largest uint16 for hidden ones."""
        n_head = self.codes.n_head
        every = oracles.hamming(self.queries[:, :n_head], self.words[:, :n_head])
        if hidden.size:
            every[:, hidden] = 65_535
        return np.concatenate([near[self.visited(query)] for query, near in enumerate(every)]).astype(np.uint16)


@st.composite
def cases(draw, max_queries=5, **options):
    batch = draw(code_batches(sizes=SIZES, max_queries=max_queries, **options))
    n_cells = draw(st.integers(1, 9))
    return Case(batch, n_cells, draw(st.integers(1, n_cells)), draw(st.integers(0, 2**16)))


@given(code_batches(sizes=SIZES, max_queries=1), st.data())
def test_distances_between_two_rows(batch, data):
    queries, words = to_words(batch.queries, batch.n_bits), to_words(batch.codes, batch.n_bits)
    codes, n = CodeRows.of(words, batch.n_bits), min(512, len(words))
    first = data.draw(st.integers(0, n))
    last = data.draw(st.integers(first, n))
    out = np.full(512, 7, dtype=np.int32)
    cells.distances_between(queries[0], codes.head[0], first, last, out)
    n_head = codes.n_head
    expected = oracles.hamming(queries[:, :n_head], words[first:last, :n_head])[0]
    np.testing.assert_array_equal(out[: last - first], expected)
    assert (out[last - first :] == 7).all()


@given(code_batches(widths=(1, 64, 65, 200), sizes=(1, 17, 40)), st.data())
def test_bits_are_counted(batch, data):
    words = to_words(batch.codes, batch.n_bits)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    n_cells = 4
    cell = rng.integers(0, n_cells, len(words))
    counts = np.full((n_cells, 64 * words.shape[1]), 3, dtype=np.int32)
    cells.add_bits(words, cell, counts)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").astype(np.int32)
    np.testing.assert_array_equal(counts - 3, [bits[cell == c].sum(axis=0) for c in range(n_cells)])


@given(cases())
def test_visits_in_the_order_of_cells(case):
    """Queries that visit the same cell do so one after the other."""
    order = cells.in_order_of_cells(case.chosen, case.n_cells)
    np.testing.assert_array_equal(order, np.argsort(case.chosen.ravel(), kind="stable"))


@given(cases(), st.data())
def test_rows_of_cells_are_measured(case, data):
    hidden = data.draw(masks(case.n_rows))
    expected = case.heads(hidden)
    heads = np.zeros(len(expected), dtype=np.uint16)
    cells.measure(case.queries, case.codes.head, case.chosen, case.offsets, hidden, case.starts, heads)
    np.testing.assert_array_equal(heads, expected)


@given(cases(max_queries=2), st.data())
def test_rows_between_two_distances_are_gathered(case, data):
    hidden = data.draw(masks(case.n_rows))
    heads = case.heads(hidden)
    query = len(case.queries) - 1
    rows, distances = np.empty(case.n_rows + 1, dtype=np.int64), np.empty(case.n_rows + 1, dtype=np.int64)
    levels = [-1, 0, 64 * case.codes.n_head, *heads[:50].tolist()]
    above, limit = sorted(min(data.draw(st.sampled_from(levels)), 1_024) for _ in range(2))
    n = cells.gather(
        heads, case.chosen[query], case.offsets, case.starts[query], above, limit, rows, distances
    )  # fmt: skip
    mine = heads[case.starts[query, 0] : case.starts[query, -1]].astype(np.int64)
    inside = (mine > above) & (mine <= limit)
    np.testing.assert_array_equal(rows[:n], np.array(case.visited(query), dtype=np.int64)[inside])
    np.testing.assert_array_equal(distances[:n], mine[inside])


@given(st.lists(st.integers(0, 9) | st.just(65_535), max_size=40), st.integers(1, 50))
def test_reach(heads, n_wanted):
    """The n-th least of the distances; where there are fewer, all that a row can have that is not hidden."""
    visible = sorted(value for value in heads if value < 65_535)
    reach = cells.reach_of(np.array(heads, dtype=np.uint16), n_wanted, 11)
    assert reach == (visible[n_wanted - 1] if n_wanted <= len(visible) else 10)


@settings(max_examples=100)
@given(cases() | cases(widths=LONG), st.sampled_from([1, 2, 10, 600]), st.data())
def test_nearest_rows_in_cells(case, k, data):
    """By (distance, rank), ties included; also of long codes, if the cascade overlooks nothing."""
    k = min(k, case.n_rows)
    hidden, ranks = data.draw(masks(case.n_rows)), data.draw(rankings(case.n_rows))
    stage_ends, prefix_bits, z = scan.checks_of(case.codes, case.n_bits, NO_MISS)
    n_head, keys = case.codes.n_head, np.zeros((len(case.queries), k), dtype=np.uint64)
    n_measured = cells.nearest(
        np.ascontiguousarray(case.queries[:, n_head:]), case.codes.tail, case.heads(hidden), case.chosen, case.offsets,
        case.starts, ranks, 64 * n_head, case.n_bits, stage_ends, prefix_bits, z, keys,
    )  # fmt: skip
    n_visible = 0
    for query, near in enumerate(case.distances):
        rows = case.visited(query)
        np.testing.assert_array_equal(keys[query], oracles.best_keys(near, rows, k, hidden, ranks))
        n_visible += len(rows) - (np.count_nonzero(hidden[rows]) if hidden.size else 0)
    # The whole of a code is all head, or else at least the answers have been measured.
    assert n_measured == 0 if n_head == case.words.shape[1] else np.count_nonzero(keys != 2**64 - 1) <= n_measured
    assert n_measured <= n_visible


@pytest.mark.parametrize("n_bits", [64, 1_024, 1_088])
def test_opposite_rows_are_found(n_bits):
    """Rows that differ in every bit are as far as can be, and still not hidden."""
    batch = CodeBatch(n_bits, np.full((20, n_bits // 8), 255, np.uint8), np.zeros((2, n_bits // 8), np.uint8))
    case = Case(batch, 3, 3, 0)
    hidden = np.arange(20) % 2 == 0
    stage_ends, prefix_bits, z = scan.checks_of(case.codes, n_bits, NO_MISS)
    n_head, keys = case.codes.n_head, np.zeros((2, 15), dtype=np.uint64)
    cells.nearest(
        np.ascontiguousarray(case.queries[:, n_head:]), case.codes.tail, case.heads(hidden), case.chosen, case.offsets,
        case.starts, np.zeros(0, dtype=np.int32), 64 * n_head, n_bits, stage_ends, prefix_bits, z, keys,
    )  # fmt: skip
    np.testing.assert_array_equal(keys, [oracles.best_keys([n_bits] * 20, range(20), 15, hidden)] * 2)


def test_far_rows_are_not_measured():
    """Of two groups of rows the far one stays unread, whatever order the cells are visited in."""
    n_bits = 2_100
    rng = np.random.default_rng(0)
    query = rng.random((1, n_bits)) < 0.5
    near = query ^ (rng.random((200, n_bits)) < 0.05)
    far = query ^ (rng.random((300, n_bits)) < 0.5)
    words = to_words(np.packbits(np.concatenate([far, near]), axis=1, bitorder="little"), n_bits)
    queries = to_words(np.packbits(query, axis=1, bitorder="little"), n_bits)
    codes = CodeRows.of(words, n_bits)
    stage_ends, prefix_bits, z = scan.checks_of(codes, n_bits, 1e-5)
    heads = oracles.hamming(queries[:, :8], words[:, :8])[0].astype(np.uint16)
    keys = np.zeros((1, 10), dtype=np.uint64)
    n_measured = cells.nearest(
        np.ascontiguousarray(queries[:, 8:]), codes.tail, heads, np.array([[0, 1]]), np.array([0, 300, 500]),
        np.array([[0, 300, 500]]), np.zeros(0, dtype=np.int32), 512, n_bits, stage_ends, prefix_bits, z, keys,
    )  # fmt: skip
    exact = oracles.hamming(queries, words)[0]
    np.testing.assert_array_equal(keys[0], oracles.best_keys(exact, range(500), 10))
    # Heads of near rows are 26 bits away, give or take 5, and those of far rows 256, give or take 11.
    assert 10 <= n_measured <= 200
