"""Kernels of tables over substrings of codes, each against plain Python."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.data.codes import to_words
from cbeindex.kernels import tables
from tests import oracles
from tests.strategies import code_batches, masks, rankings, some_codes

pytestmark = pytest.mark.kernels

NONE = np.uint64(2**64 - 1)
# Around a byte and a word, and such that substrings cross the border between two words.
WIDTHS = (1, 7, 8, 20, 63, 64, 65, 100, 130, 200)


class Case:
    """Codes with tables, made by sorting, and what kernels need of them."""

    def __init__(self, batch, n_tables, table_bits):
        self.batch, self.n_bits, self.n_rows = batch, batch.n_bits, len(batch.codes)
        self.n_tables, self.table_bits = n_tables, table_bits
        self.queries, self.codes = to_words(batch.queries, batch.n_bits), to_words(batch.codes, batch.n_bits)
        self.first_bits = np.arange(n_tables, dtype=np.int64) * (batch.n_bits // n_tables)
        values = [oracles.substrings(batch.codes, first, table_bits) for first in self.first_bits.tolist()]
        self.rows = np.argsort(values, axis=1, kind="stable").astype(np.int32)
        ordered = np.take_along_axis(np.array(values), self.rows.astype(np.int64), axis=1)
        self.starts = np.array([np.searchsorted(o, np.arange(2**table_bits + 1)) for o in ordered]).astype(np.int32)
        self.distances = oracles.hamming(batch.queries, batch.codes)
        self.of_tables = (self.first_bits, table_bits, self.starts, self.rows)

    def apart(self):
        """Differing bits of each substring, (n_tables, n_queries, n_rows)."""
        every = []
        for first in self.first_bits.tolist():
            queries, codes = (
                np.array(oracles.substrings(some, first, self.table_bits))
                for some in (self.batch.queries, self.batch.codes)
            )
            every.append(np.bitwise_count(queries[:, np.newaxis] ^ codes))
        return np.array(every)

    def scratch(self):
        return (
            np.zeros(self.n_rows, dtype=np.bool_), np.empty(self.n_rows, dtype=np.int32),
            np.empty(self.n_rows, dtype=np.uint64),
        )  # fmt: skip


@st.composite
def cases(draw, max_queries=4, max_table_bits=8):
    batch = draw(code_batches(WIDTHS, sizes=(1, 2, 17, 40, 120), max_queries=max_queries))
    n_tables = draw(st.integers(1, min(6, batch.n_bits)))
    table_bits = draw(st.integers(1, min(max_table_bits, batch.n_bits // n_tables)))
    return Case(batch, n_tables, table_bits)


@given(st.sampled_from([24, 64, 65, 88, 130, 200]), st.data())
def test_substring(n_bits, data):
    """Also across the border between two words."""
    table_bits = data.draw(st.integers(1, 24))
    first_bit = data.draw(st.integers(0, n_bits - table_bits) | st.sampled_from([n_bits - table_bits]))
    codes = some_codes(np.random.default_rng(data.draw(st.integers(0, 99))), 5, n_bits)
    values = [int(tables.substring(word, first_bit, table_bits)) for word in to_words(codes, n_bits)]
    assert values == oracles.substrings(codes, first_bit, table_bits)


@pytest.mark.parametrize("first_bit", [41, 52, 63, 64, 116, 127])
def test_substrings_of_single_bits(first_bit):
    """Each bit of a code is in its place, on either side of a border."""
    for bit in range(24):
        code = np.zeros((1, 19), dtype=np.uint8)
        code[0, (first_bit + bit) // 8] = 1 << (first_bit + bit) % 8
        assert tables.substring(to_words(code, 152)[0], first_bit, 24) == 1 << bit


@given(cases(max_queries=1))
def test_a_table_is_filled(case):
    for table in range(case.n_tables):
        starts = np.zeros(2**case.table_bits + 1, dtype=np.int32)
        rows = np.full(case.n_rows, -1, dtype=np.int32)
        tables.fill(case.codes, case.first_bits[table], case.table_bits, starts, rows)
        np.testing.assert_array_equal(starts, case.starts[table])
        np.testing.assert_array_equal(rows, case.rows[table])


@given(st.lists(st.integers(0, 19), max_size=15), st.sets(st.integers(0, 19)))
def test_rows_are_collected_once(bucket, before):
    seen, found = np.zeros(20, dtype=np.bool_), np.full(20, -1, dtype=np.int32)
    seen[list(before)], found[: len(before)] = True, sorted(before)
    n_found = tables.collect(np.array(bucket, dtype=np.int32), seen, found, len(before))
    new = list(dict.fromkeys(row for row in bucket if row not in before))
    assert found[:n_found].tolist() == [*sorted(before), *new]
    assert np.flatnonzero(seen).tolist() == sorted({*before, *bucket})


@given(cases(max_queries=1), st.data())
def test_found_rows_are_measured(case, data):
    hidden, ranks = data.draw(masks(case.n_rows)), data.draw(rankings(case.n_rows))
    found = np.array(data.draw(st.permutations(range(case.n_rows))), dtype=np.int32)
    first = data.draw(st.integers(0, case.n_rows))
    last = data.draw(st.integers(first, case.n_rows))
    keys, counts = np.full(2 + case.n_rows, NONE), np.zeros(case.n_bits + 1, dtype=np.int64)
    n = tables.measure(case.queries[0], case.codes, found, first, last, hidden, ranks, keys, 2, counts)
    rows = [row for row in found[first:last] if not (hidden.size and hidden[row])]
    np.testing.assert_array_equal(np.sort(keys[2:n]), oracles.keys_of(case.distances[0][rows], rows, ranks))
    assert (keys[:2] == NONE).all()
    np.testing.assert_array_equal(counts, np.bincount(case.distances[0][rows], minlength=case.n_bits + 1))


def all_masks(table_bits, n_ones):
    """Masks with `n_ones` ones, ascending."""
    return sorted(sum(1 << bit for bit in bits) for bits in itertools.combinations(range(table_bits), n_ones))


@pytest.mark.parametrize("table_bits", [1, 2, 5, 9])
def test_masks_one_after_the_other(table_bits):
    for n_ones in range(table_bits + 1):
        expected = all_masks(table_bits, n_ones)
        assert tables.n_masks(table_bits, n_ones) == len(expected) == math.comb(table_bits, n_ones)
        mask = np.uint64(2**n_ones - 1)
        for wanted in expected:
            assert mask == wanted
            mask = np.uint64(tables.next_mask(mask))


def test_masks_of_the_longest_substrings():
    for n_ones in range(25):
        assert tables.n_masks(24, n_ones) == math.comb(24, n_ones)
    assert tables.next_mask(np.uint64(1 << 22)) == 1 << 23
    assert tables.next_mask(np.uint64(0)) == 0
    assert tables.next_mask(np.uint64(0b1011 << 20)) == (0b11 << 22) + 1


@given(st.integers(1, 9), st.data())
def test_masks_by_distance(table_bits, data):
    every = [mask for n_ones in range(table_bits + 1) for mask in all_masks(table_bits, n_ones)]
    found = np.full(data.draw(st.integers(1, 2**table_bits)), NONE)
    tables.masks_by_distance(table_bits, found)
    assert found.tolist() == every[: len(found)]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.data())
def test_likeliest_masks(eighths, data):
    """Of all subsets of bits, those whose margins have the least sums: eighths, so that sums are exact; many equal."""
    margins = np.array(eighths, dtype=np.float32) / 8
    found = np.full(data.draw(st.integers(1, 2 ** len(eighths))), NONE)
    tables.likeliest_masks(margins, found)
    sums = [sum(eighths[bit] for bit in range(len(eighths)) if mask >> bit & 1) for mask in range(2 ** len(eighths))]
    assert found[0] == 0
    assert len(set(found.tolist())) == len(found)
    assert [sums[mask] for mask in found.tolist()] == sorted(sums)[: len(found)]


def test_masks_of_bits_that_are_certain():
    """Bits of which a query is sure are not flipped before those of which it is not."""
    margins = np.array([9.0, 0.5, 9.0, 0.25, 9.0, 1.0], dtype=np.float32)
    found = np.empty(9, dtype=np.uint64)
    tables.likeliest_masks(margins, found)
    assert found[:8].tolist() == [0, 0b1000, 0b10, 0b1010, 0b100000, 0b101000, 0b100010, 0b101010]
    assert found[8] in (1, 0b100, 0b10000)


def expected_visits(case, query, k, hidden):
    """Rows and buckets that an exact search visits: naive rounds, until the pigeonhole bound proves the k-th answer."""
    apart, near = case.apart()[:, query], case.distances[query]
    seen, n_probes = np.zeros(case.n_rows, dtype=np.bool_), 0
    visible = ~hidden if hidden.size else np.ones(case.n_rows, dtype=np.bool_)
    for radius in range(case.table_bits + 1):
        for table in range(case.n_tables):
            seen |= apart[table] == radius
            n_probes += math.comb(case.table_bits, radius)
            is_sure = near <= case.n_tables * radius + table
            assert (seen | ~is_sure).all()  # what is within the bound has been seen
            if seen.all() or (is_sure & visible).sum() >= k:
                return int(seen.sum()), n_probes
    raise AssertionError("all substrings have been looked up, so all rows have been seen")


@settings(max_examples=80)
@given(cases(), st.sampled_from([1, 2, 10, 200]), st.data())
def test_nearest_rows(case, k, data):
    """Exactly, ties included; and no bucket is visited after the answer is proven."""
    k = min(k, case.n_rows)
    hidden, ranks = data.draw(masks(case.n_rows)), data.draw(rankings(case.n_rows))
    keys, done = np.zeros((len(case.queries), k), dtype=np.uint64), np.zeros(len(case.queries), dtype=np.bool_)
    visits, (seen, found, found_keys) = np.zeros(2, dtype=np.int64), case.scratch()
    tables.nearest(
        case.queries, case.codes, *case.of_tables, hidden, ranks, case.n_bits, 2**40, seen, found, found_keys, keys,
        done, visits,
    )  # fmt: skip
    assert done.all()
    assert not seen.any()
    for query, near in enumerate(case.distances):
        np.testing.assert_array_equal(keys[query], oracles.best_keys(near, range(case.n_rows), k, hidden, ranks))
    each = [expected_visits(case, query, k, hidden) for query in range(len(case.queries))]
    assert visits.tolist() == np.sum(each, axis=0).tolist()


@given(cases(), st.sampled_from([1, 3, 50]), st.sampled_from([0, 7, 8, 60, 300, 2_000]), st.data())
def test_a_search_that_costs_too_much_is_given_up(case, k, budget, data):
    """Buckets cost 8 each and rows 8 more than their words; what is answered at all is right."""
    k = min(k, case.n_rows)
    hidden = data.draw(masks(case.n_rows))
    for query in range(len(case.queries)):
        keys, done = np.zeros((1, k), dtype=np.uint64), np.ones(1, dtype=np.bool_)
        visits, (seen, found, found_keys) = np.zeros(2, dtype=np.int64), case.scratch()
        tables.nearest(
            case.queries[query : query + 1], case.codes, *case.of_tables, hidden, np.zeros(0, dtype=np.int32),
            case.n_bits, budget, seen, found, found_keys, keys, done, visits,
        )  # fmt: skip
        assert not seen.any()
        assert 8 * visits[1] <= budget
        n_rows, n_probes = expected_visits(case, query, k, hidden)
        if done[0]:
            assert visits.tolist() == [n_rows, n_probes]
            expected = oracles.best_keys(case.distances[query], range(case.n_rows), k, hidden)
            np.testing.assert_array_equal(keys[0], expected)
        else:
            assert visits[0] <= n_rows
            assert visits[1] < n_probes
            assert 8 * n_probes + (8 + case.codes.shape[1]) * n_rows > budget


def in_buckets(case, query, chosen):
    """Rows of which a substring differs from the query's in just the bits of one of the masks for its table."""
    rows = set()
    for table, first in enumerate(case.first_bits.tolist()):
        (value,) = oracles.substrings(case.batch.queries[query : query + 1], first, case.table_bits)
        wanted = {value ^ int(mask) for mask in chosen[table]}
        values = oracles.substrings(case.batch.codes, first, case.table_bits)
        rows |= {row for row, value in enumerate(values) if value in wanted}
    return sorted(rows)


def probed(case, query, chosen, n_probes, n_wanted, budget, hidden):
    """Rows in the first of the chosen buckets, how many of each table are visited, and whether that is the answer."""
    for n in range(1, chosen.shape[1] + 1):
        rows = in_buckets(case, query, chosen[:, :n])
        n_visible = len(rows) - (np.count_nonzero(hidden[rows]) if hidden.size else 0)
        if 8 * case.n_tables * n + (8 + case.codes.shape[1]) * len(rows) > budget:
            return rows, n, False
        if n >= n_probes and n_visible >= n_wanted:
            return rows, n, True
    return rows, n, False


@settings(max_examples=100)
@given(cases(), st.sampled_from([1, 2, 10, 200]), st.booleans(), st.sampled_from([2**40, 900, 200]), st.data())
def test_rows_in_some_buckets(case, k, is_shared, budget, data):
    """The nearest of those in the buckets that masks name, the same for all or each query's own; more if too few."""
    k, n_queries = min(k, case.n_rows), len(case.queries)
    hidden, ranks = data.draw(masks(case.n_rows)), data.draw(rankings(case.n_rows))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    n_masks = data.draw(st.integers(1, min(20, 2**case.table_bits)))
    n_probes, n_wanted = data.draw(st.integers(1, n_masks)), data.draw(st.integers(0, k))
    shape = (1, 1) if is_shared else (n_queries, case.n_tables)
    chosen = np.array(
        [[rng.permutation(2**case.table_bits)[:n_masks] for _ in range(shape[1])] for _ in range(shape[0])]
    )
    keys, visits = np.zeros((n_queries, k), dtype=np.uint64), np.zeros(2, dtype=np.int64)
    done, (seen, found, found_keys) = np.zeros(n_queries, dtype=np.bool_), case.scratch()
    tables.probe(
        case.queries, case.codes, *case.of_tables, hidden, ranks, budget, chosen.astype(np.uint64),
        n_probes, n_wanted, seen, found, found_keys, keys, done, visits,
    )  # fmt: skip
    assert not seen.any()
    n_seen, n_visited = 0, 0
    for query, near in enumerate(case.distances):
        own = np.broadcast_to(chosen, (n_queries, case.n_tables, n_masks))[query]
        rows, n, is_done = probed(case, query, own, n_probes, n_wanted, budget, hidden)
        assert done[query] == is_done
        if is_done:
            np.testing.assert_array_equal(keys[query], oracles.best_keys(near, rows, k, hidden, ranks))
        n_seen, n_visited = n_seen + len(rows), n_visited + case.n_tables * n
    assert visits.tolist() == [n_seen, n_visited]


@settings(max_examples=80)
@given(cases(max_queries=1), st.data())
def test_rows_within_a_radius(case, data):
    """All of them, and none twice; others that come with them are as far as they say."""
    hidden = data.draw(masks(case.n_rows))
    near = case.distances[0]
    seen, found, keys = case.scratch()
    counts = np.zeros(case.n_bits + 1, dtype=np.int64)
    levels = [0, 1, int(near.min()), int(np.median(near)), case.n_bits - 1, case.n_bits]
    for radius in sorted({*levels, data.draw(st.integers(0, case.n_bits))}):
        n = tables.within(case.queries[0], case.codes, *case.of_tables, hidden, radius, seen, found, keys, counts)
        assert not seen.any()
        rows = (keys[:n] & np.uint64(0xFFFFFFFF)).astype(np.int64)
        assert len(set(rows.tolist())) == n
        np.testing.assert_array_equal(keys[:n] >> np.uint64(32), near[rows])
        expected = [row for row in range(case.n_rows) if near[row] <= radius and not (hidden.size and hidden[row])]
        np.testing.assert_array_equal(np.sort(rows[near[rows] <= radius]), expected)
