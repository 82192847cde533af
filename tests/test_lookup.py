"""Look-up sums, tables of queries and estimates of blocks against plain numpy, on each instruction set."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.kernels import cellscan, estimates, lookup, querytables
from cbeindex.kernels.jit import njit
from tests.conftest import COMPILED
from tests.lookup_digest import digest
from tests.lookup_oracles import (
    coded_rows,
    entries_of,
    ordered_keys,
    pack_levels,
    sums_of_block,
    values_of_levels,
)

pytestmark = pytest.mark.kernels

BITS = (1, 2, 4)
# Around a nibble, a byte, the chunks of 16 nibbles that tables are made in, and above.
DIMS = (1, 3, 4, 5, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 384)
NONE = np.zeros(0, dtype=np.bool_)
LARGEST = np.finfo(np.float32).max


@njit(nogil=True)
def plain(codes, base, n_bytes, tables, numbers, out):
    lookup.sum_block(codes, base, n_bytes, tables, numbers, out)


@njit(nogil=True)
def precise(codes, base, n_bytes, tables, numbers, out):
    lookup.sum_block_precisely(codes, base, n_bytes, tables, numbers, out)


def frozen(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("n_queries", [1, 2, 4])
@settings(max_examples=30)
@given(
    st.sampled_from([0, 1, 2, 3, 4, 5, 8, 31, 98, 255, 256, 257, 258, 259, 513]),
    st.integers(0, 40),
    st.integers(0, 999),
)
def test_sums_of_a_block(n_queries, n_bytes, base, seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, base + 32 * n_bytes + 5, dtype=np.uint8)
    block = codes[base : base + 32 * n_bytes].reshape(n_bytes, 32)
    n_nibbles = 2 * n_bytes + 2
    tables = rng.integers(0, 128, (5, 2, n_nibbles, 16), dtype=np.uint8)
    numbers = tuple(int(i) for i in rng.permutation(5)[:n_queries])
    sums = np.array([[sums_of_block(block, part) for part in parts] for parts in tables])[list(numbers)]
    out = np.full((n_queries + 1, 32), -7, dtype=np.int32)
    plain(frozen(codes), base, n_bytes, frozen(tables[:, 0].reshape(5, -1).copy()), numbers, out)
    np.testing.assert_array_equal(out[:-1], sums[:, 0])
    precise(codes, base, n_bytes, frozen(tables.reshape(5, -1)), numbers, out)
    np.testing.assert_array_equal(out[:-1], 128 * sums[:, 0] + sums[:, 1])
    assert (out[-1] == -7).all()


@pytest.mark.parametrize("n_bytes", [255, 256, 257, 258, 259, 265, 511, 512, 1_030])
def test_the_largest_sums(n_bytes):
    """Sums widen before they run over."""
    codes, tables = np.zeros(32 * n_bytes, dtype=np.uint8), np.full((1, 64 * n_bytes), 127, dtype=np.uint8)
    out = np.zeros((1, 32), dtype=np.int32)
    plain(codes, 0, n_bytes, tables, (0,), out)
    assert (out == 2 * 127 * n_bytes).all()
    precise(codes, 0, n_bytes, tables, (0,), out)
    assert (out == 2 * 16_383 * n_bytes).all()


def filled(projections, bits, is_precise):
    room = querytables.room_for_tables(projections.size, bits)
    tables = np.full(room * (1 + is_precise), 255, dtype=np.uint8)
    step, offset = querytables.fill_tables(frozen(projections), bits, is_precise, tables)
    return tables, np.float32(step), np.float32(offset)


@given(
    st.sampled_from(DIMS), st.sampled_from(BITS), st.booleans(), st.sampled_from([1e-12, 1.0, 1e12]), st.integers(0, 99)
)
def test_tables_give_products(n_dims, bits, is_precise, size, seed):
    """Each entry is within half a step of its part of the product, up to the rounding of float32."""
    rng = np.random.default_rng(seed)
    projections = (size * rng.standard_normal(n_dims)).astype(np.float32)
    tables, step, offset = filled(projections, bits, is_precise)
    entries, per_nibble = entries_of(tables, is_precise), 4 // bits
    most = 16_383 if is_precise else 127
    assert entries.max() == most
    padded = np.zeros((len(entries), per_nibble))
    padded.ravel()[:n_dims] = projections
    levels = np.arange(16)[:, np.newaxis] >> (bits * np.arange(per_nibble)) & (2**bits - 1)
    exact = padded @ values_of_levels(levels, bits).T
    lowest = -np.abs(padded).sum(axis=1, keepdims=True) * (1 if bits == 1 else (2**bits - 1) / 2)
    # A handful of float32 roundings of numbers up to `most` steps.
    assert np.abs(entries * float(step) - (exact - lowest)).max() <= float(step) * (0.5 + 8 * most * 2.0**-24)
    np.testing.assert_allclose(offset, lowest.sum(), rtol=1e-5)
    assert not entries[-(-n_dims // per_nibble) :].any()


def test_tables_of_zeros():
    tables, step, offset = filled(np.zeros(70, dtype=np.float32), 1, False)
    assert not tables.any()
    assert 0 < step < 1e-30
    assert offset == 0


@pytest.mark.parametrize("bits", BITS)
def test_precise_tables_err_a_hundredth(bits):
    """Of plain tables the errors of products are some hundredths of their spread, of precise ones a hundredth of that.

    In tight clusters, where rows differ by a tenth of the query's length, the former would rival those of the codes.
    """
    rng = np.random.default_rng(0)
    projections = rng.standard_normal(256).astype(np.float32)
    levels = rng.integers(0, 2**bits, (500, 256))
    codes = pack_levels(levels, bits)
    nibbles = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)
    exact = values_of_levels(levels, bits) @ projections.astype(np.float64)
    errors = []
    for is_precise in (False, True):
        tables, step, offset = filled(projections, bits, is_precise)
        sums = entries_of(tables, is_precise)[np.arange(nibbles.shape[1]), nibbles].sum(axis=1)
        errors.append(np.std(float(step) * sums + float(offset) - exact))
    # The steps differ by 129 times; the spread of 500 errors is known to 4 %.
    assert errors[1] < errors[0] / 110
    assert 0.005 * np.std(exact) < errors[0] < 0.03 * np.std(exact)


@njit(nogil=True)
def estimated(sums, place, records, at, spreads_at, numbers, bound, out):
    step, product_offset, shift, margin = numbers
    return estimates.estimate_block(
        sums, place, records, at, spreads_at, step, product_offset, shift, margin, bound, out
    )


@given(st.integers(0, 2), st.integers(0, 9), st.booleans(), st.integers(0, 999))
def test_estimates_of_a_block(place, n_bytes, has_spreads, seed):
    """The formula at the head of the module, rounded to float32 after each operation."""
    rng = np.random.default_rng(seed)
    factors, offsets, spreads = rng.random((3, 32)).astype(np.float32)
    offsets[rng.random(32) < 0.1] = np.inf
    record = np.concatenate([np.zeros(n_bytes, np.uint8), *(x.view(np.uint8) for x in (factors, offsets, spreads))])
    sums = rng.integers(0, 10_000, (3, 32), dtype=np.int32)
    step, product_offset, shift, margin = numbers = tuple(np.float32(x) for x in rng.standard_normal(4))
    products = step * sums[place].astype(np.float32) + product_offset
    expected = (offsets + shift) - factors * products - margin * (spreads if has_spreads else factors)
    bound, out = np.sort(expected)[rng.integers(0, 20)], np.empty(32, dtype=np.float32)
    spreads_at = n_bytes + (256 if has_spreads else 0)
    near = estimated(sums, place, frozen(record), n_bytes, spreads_at, numbers, bound, out)
    np.testing.assert_array_equal(out, expected)
    assert [bool(int(near) >> i & 1) for i in range(64)] == [*(expected <= bound), *[False] * 32]


class Scan:
    """Coded rows in cells, queries that visit some of them, and all their keys."""

    def __init__(self, seed, n_rows, n_dims, bits, is_precise, n_equal, n_queries):
        self.rng = rng = np.random.default_rng(seed)
        # A file may hold any numbers of rows.
        rows = np.where(rng.random(n_rows) < 0.05, rng.choice([-1, n_rows, 2**31 - 1]), rng.permutation(n_rows))
        self.coded = coded_rows(rng, rows, n_dims, bits, n_equal)
        self.ranks = rng.permutation(n_rows).astype(np.int32)
        self.starts = np.append(0, np.sort(rng.integers(0, len(self.coded.records), 3, endpoint=True)))
        self.starts[-1] = len(self.coded.records)
        # Cells that have all rows: row numbers of a file may be any.
        self.spans = np.stack([self.starts[:-1], self.starts[1:], np.zeros(3), np.full(3, n_rows)], axis=1).astype(
            np.int64
        )
        self.is_precise, self.n_queries = is_precise, n_queries
        room = querytables.room_for_tables(n_dims, bits) * (1 + is_precise)
        self.tables = np.zeros((n_queries, room), dtype=np.uint8)
        projections = rng.standard_normal((n_queries, n_dims)).astype(np.float32)
        made = [querytables.fill_tables(z, bits, is_precise, t) for z, t in zip(projections, self.tables, strict=True)]
        self.steps, self.offsets = np.array(made, dtype=np.float32).T.copy()
        self.shifts = rng.standard_normal((n_queries, 3)).astype(np.float32)
        self.visits = rng.random((n_queries, 3)) < 0.7

    def keys(self, query, hidden, limit):
        """Keys of what a query visits, within its limit, in plain numpy."""
        coded, n_rows = self.coded, len(self.coded.codes)
        cells = np.repeat(np.arange(3), np.diff(32 * self.starts))[:n_rows]
        entries = entries_of(self.tables[query], self.is_precise)
        nibbles = np.stack([coded.codes & 15, coded.codes >> 4], axis=2).reshape(n_rows, -1)
        sums = entries[np.arange(nibbles.shape[1]), nibbles].sum(axis=1).astype(np.float32)
        products = self.steps[query] * sums + self.offsets[query]
        distances = (coded.offsets + self.shifts[query, cells]) - coded.factors * products
        exists = (coded.rows >= 0) & (coded.rows < n_rows)
        rows = np.where(exists, coded.rows, 0)
        shown = ~hidden[rows] if hidden.size else True
        kept = self.visits[query, cells] & exists & (distances <= limit) & shown
        return np.sort(ordered_keys(distances, self.ranks[rows])[kept])

    def run(self, queries, hidden, k, slack, limits):
        """What the kernel leaves of queries that share a call, cells in any order."""
        found = np.zeros((self.n_queries, k + slack), dtype=np.uint64)
        counts, bounds = np.zeros(self.n_queries, dtype=np.int64), np.array(limits, dtype=np.float32)
        cells = self.rng.permutation(3)
        visits = [(query, cell) for cell in cells for query in queries if self.visits[query, cell]]
        visiting, visited = np.array(visits, dtype=np.int64).reshape(-1, 2).T
        begins = np.append(0, np.cumsum([np.sum(visited == cell) for cell in cells]))
        cellscan.scan_visits(
            cells, begins, visiting.copy(), self.shifts[visiting, visited], self.tables, self.is_precise, self.steps,
            self.offsets, frozen(self.coded.records), self.spans, self.coded.n_bytes, hidden, self.ranks, k, found,
            counts, bounds,
        )  # fmt: skip
        return [np.sort(found[query, : counts[query]])[:k] for query in queries]


scans = st.builds(
    Scan, st.integers(0, 999), st.sampled_from([1, 31, 32, 33, 200]), st.sampled_from([1, 9, 64, 130]),
    st.sampled_from(BITS), st.booleans(), st.sampled_from([1, 7, 200]), st.sampled_from([1, 2, 4, 7]),
)  # fmt: skip


@settings(max_examples=40)
@given(scans, st.sampled_from([1, 5, 40]), st.sampled_from([None, 0.1, 0.9, 1.0]), st.integers(0, 99))
def test_nearest_of_visited_cells(scan, k, hidden_share, seed):
    """The k nearest by (estimate, rank), whichever queries share a call and in whatever order cells come."""
    rng = np.random.default_rng(seed)
    hidden = NONE if hidden_share is None else rng.random(len(scan.ranks)) < hidden_share
    limits = np.where(rng.random(scan.n_queries) < 0.5, LARGEST, rng.standard_normal(scan.n_queries))
    expected = [scan.keys(query, hidden, np.float32(limits[query]))[:k] for query in range(scan.n_queries)]
    alone = [scan.run([query], hidden, k, 200, limits)[0] for query in range(scan.n_queries)]
    together = alone if scan.is_precise else scan.run(range(scan.n_queries), hidden, k, 32, limits)
    for query in range(scan.n_queries):
        np.testing.assert_array_equal(alone[query], expected[query])
        np.testing.assert_array_equal(together[query], expected[query])


compiled = pytest.mark.skipif(not COMPILED, reason="concerns compiled code")


@compiled
def test_look_ups_are_single_instructions():
    plain(np.zeros(64, np.uint8), 0, 2, np.zeros((1, 64), np.uint8), (0,), np.zeros((1, 32), np.int32))
    triple, _, features = numba.core.registry.cpu_target.target_context.codegen().magic_tuple()
    if triple.startswith("x86_64") and "+ssse3" not in features:
        pytest.skip("no instruction for look-ups")
    instruction = "pshufb" if triple.startswith("x86_64") else "tbl"
    assert all(instruction in text for text in plain.inspect_asm().values())


AVX2 = "+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+bmi,+bmi2,+lzcnt,+movbe,+f16c"
LEVELS = {"avx2": ("haswell", AVX2), "ssse3": ("core2", "+sse2,+sse3,+ssse3"), "none": ("generic", "")}


@compiled
@pytest.mark.parametrize("level", LEVELS)
def test_processors_agree(level):
    """Tables, estimates and float products are equal bit for bit for fewer instructions."""
    triple = numba.core.registry.cpu_target.target_context.codegen().magic_tuple()[0]
    if not triple.startswith("x86_64"):
        pytest.skip("levels of x86")
    name, features = LEVELS[level]
    environment = os.environ | {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    command = [sys.executable, "-m", "tests.lookup_digest"]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == digest()


def test_answers_are_the_known_ones():
    """The digest on x86, Arm, compiled and uncompiled."""
    assert digest() == DIGEST


DIGEST = "773f79b78521a0a07c6ec7510b6eddc0af42dae0a399208dc856d8ea9d3282a1"
