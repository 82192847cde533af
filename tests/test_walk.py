"""Records of graphs, and walks through them, against plain numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.kernels import graphsearch, records, vertices, walk
from tests.graph_oracles import PlainWalk, parts_of, squared_distances

pytestmark = pytest.mark.kernels

# Around a vector of 16, of 32 levels, and two blocks.
SHAPES = ((1, 1), (7, 1), (16, 1), (17, 1), (33, 1), (48, 1), (10, 2), (24, 2))


def some_projections(rng, n, dim, n_blocks, n_distinct=None):
    """Projections of random rows by orthogonal matrices, padded; some rows are equal."""
    rows = rng.standard_normal((n_distinct or n, dim))[rng.permutation(n) % (n_distinct or n)]
    turns = [np.linalg.qr(rng.standard_normal((dim, dim)))[0] for _ in range(n_blocks)]
    padded = np.zeros((n, -(-n_blocks * dim // 16) * 16), dtype=np.float32)
    padded[:, : n_blocks * dim] = np.concatenate([rows @ turn for turn in turns], axis=1)
    return padded


def some_neighbours(rng, n, n_missing=0):
    """Random neighbours, without the vertex itself; the last are missing."""
    numbers = (rng.integers(1, n, (n, 32)) + np.arange(n)[:, np.newaxis]) % n
    numbers[:, 32 - n_missing :] = -1
    return numbers.astype(np.int32)


def norms_of(n):
    """Norms that differ from row to row."""
    return np.linspace(0, 2, n).astype(np.float32)


def written(projections, dim, n_blocks, neighbours):
    n, norms = len(projections), norms_of(len(projections))
    made = records.make_records(n, projections.shape[1], dim)
    column = np.full((n, vertices.vertex_bytes(dim)), 255, dtype=np.uint8)
    vertices.write_vertices(projections, dim, norms, column)
    records.write_records(projections, n_blocks, column, norms, neighbours, 0, n, made)
    return made


def prepared(projections, dim, n_blocks):
    n_bits = dim * n_blocks
    tables = np.full((1, graphsearch.room_for_tables(n_bits)), 255, dtype=np.uint8)
    numbers, terms = np.empty(dim, dtype=np.int16), np.empty(4, dtype=np.float32)
    walk.prepare_query(projections, n_bits, 2.0, tables, numbers, terms)
    return tables, numbers, terms


@settings(max_examples=20)
@given(st.sampled_from(SHAPES), st.integers(0, 31), st.integers(0, 99))
def test_records_hold_residuals_and_the_vertex(shape, n_missing, seed):
    rng = np.random.default_rng(seed)
    dim, n_blocks = shape
    projections = some_projections(rng, 5, dim, n_blocks, n_distinct=4)
    neighbours = some_neighbours(rng, 5, n_missing)
    made = written(projections, dim, n_blocks, neighbours)
    assert made.shape[1] % 64 == 0
    assert made.ctypes.data % 64 == 0
    for vertex, record in enumerate(made):
        parts = parts_of(record, projections.shape[1], dim)
        np.testing.assert_array_equal(parts.neighbours, neighbours[vertex])
        here = neighbours[vertex] >= 0
        residuals = projections[neighbours[vertex][here]] - projections[vertex]
        signs = np.where(residuals >= 0, 1.0, -1.0)
        bits = np.unpackbits(parts.codes.T[here], axis=1, bitorder="little")
        np.testing.assert_array_equal(bits, residuals >= 0)
        squares, sizes = (residuals.astype(np.float64) ** 2).sum(axis=1), np.abs(residuals).sum(axis=1, dtype=float)
        twice = np.divide(2 * squares, sizes, out=np.zeros_like(squares), where=sizes > 0) / n_blocks
        # Sums of up to 48 float32 of size 10 or less.
        np.testing.assert_allclose(parts.factors[here], twice, rtol=1e-5)
        offsets = squares / n_blocks + twice * (signs @ projections[vertex].astype(float))
        offsets += norms_of(5)[vertex] - norms_of(5)[neighbours[vertex][here]]
        assert parts.norm == norms_of(5)[vertex]
        np.testing.assert_allclose(parts.offsets[here], offsets, rtol=1e-5, atol=1e-4)
        assert np.isinf(parts.offsets[~here]).all()
        row = projections[vertex, :dim].astype(float)
        np.testing.assert_allclose(parts.square, row @ row, rtol=1e-5)
        # Half a level, and what the best scale gains in exchange for more at single places.
        assert np.abs(parts.scale * parts.levels - row).max() <= 0.51 * np.abs(row).max() / 127 * 1.5
        assert np.abs(parts.levels).max() > 127 / 1.5


def test_a_row_of_zeros_has_levels_of_zero():
    projections = np.zeros((2, 16), dtype=np.float32)
    made = written(projections, 9, 1, np.array([[1] + [-1] * 31, [0] + [-1] * 31], dtype=np.int32))
    parts = parts_of(made[0], 16, 9)
    assert parts.scale == parts.square == parts.factors[0] == 0
    assert parts.offsets[0] == -2
    assert not parts.levels.any()


def test_estimates_are_right_on_average():
    """An estimate errs by 2 |y| |w| 0.76 / sqrt(dim), w the part of q - v that is orthogonal to y, and 0 on average.

    A residual y and its signs have a cosine of sqrt(2 / pi); 0.76 is the tangent of that angle (RaBitQ).
    """
    rng = np.random.default_rng(0)
    n, dim = 400, 48
    projections = some_projections(rng, n, dim, 1)
    neighbours = some_neighbours(rng, n)
    made = written(projections, dim, 1, neighbours)
    query = 0
    tables, _, terms = prepared(projections[query], dim, 1)
    errors, norms = [], norms_of(n).astype(np.float64)
    sums, estimates = np.empty((1, 32), dtype=np.int32), np.empty(32, dtype=np.float32)
    for vertex in range(1, n):
        apart = squared_distances(projections, dim, query, vertex)
        walk.near_neighbours(
            made, vertex, dim // 8, tables, terms, np.float32(apart), np.float32(np.inf), sums, estimates
        )
        exact = squared_distances(projections, dim, query, neighbours[vertex])
        exact += norms[vertex] - norms[neighbours[vertex]]
        squares = squared_distances(projections, dim, vertex, neighbours[vertex])
        product = (squares + apart - squared_distances(projections, dim, query, neighbours[vertex])) / 2
        is_other = neighbours[vertex] != query
        spreads = 2 * np.sqrt(squares * apart - product * product, where=is_other, out=np.ones(32))
        errors.append(((estimates - exact) / spreads)[is_other])
    errors = np.concatenate(errors)
    # 399 independent vertices at least: the spread is known to 4 %, the mean to a twentieth of it. Three times that.
    assert abs(np.std(errors) * np.sqrt(dim) / 0.76 - 1) < 0.12
    assert abs(np.mean(errors)) < 0.15 * np.std(errors)


@given(st.integers(0, 40), st.integers(0, 32), st.integers(0, 99))
def test_fresh_keys_are_merged(n, n_fresh, seed):
    rng = np.random.default_rng(seed)
    pool = np.full(72, -7, dtype=np.int64)
    pool[:n] = np.sort(rng.integers(0, 50, n))
    fresh = rng.integers(0, 50, 32)
    both = np.sort(np.concatenate([pool[:n], fresh[:n_fresh]]))
    least = fresh[:n_fresh].min(initial=99)
    place = walk.merge_fresh(pool, n, fresh, n_fresh)
    np.testing.assert_array_equal(pool[: n + n_fresh], both)
    assert (pool[n + n_fresh :] == -7).all()
    if n_fresh:
        assert pool[place] == least
        assert (
            place
            == np.searchsorted(both, least, side="left")
            + (both[: n + n_fresh] == least).sum()
            - (fresh[:n_fresh] == least).sum()
        )


@given(st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 5).map(lambda i: i << 25), max_size=32))
def test_marks_are_a_set(vertices):
    marks, seen = np.full(64, -1, dtype=np.int32), set()
    for vertex in vertices:
        assert walk.is_marked(marks, vertex) == (vertex in seen)
        assert walk.mark(marks, vertex) == (vertex not in seen)
        seen.add(vertex)
    assert all(walk.is_marked(marks, vertex) for vertex in seen)


@given(st.sampled_from(SHAPES), st.sampled_from([1e-10, 1.0, 1e10]), st.integers(0, 99))
def test_queries_become_whole_numbers(shape, size, seed):
    dim, n_blocks = shape
    projections = size * some_projections(np.random.default_rng(seed), 1, dim, n_blocks)[0].astype(np.float32)
    _, numbers, terms = prepared(projections.astype(np.float32), dim, n_blocks)
    row = projections[:dim].astype(float)
    assert np.abs(numbers).max() == 32767
    # Half a unit, and the rounding of float32 to 24 bits of numbers of 15.
    assert np.abs(numbers * float(terms[2]) - row).max() <= 0.51 * float(terms[2])
    np.testing.assert_allclose(terms[3], row @ row + 2, rtol=1e-5)


@settings(max_examples=30)
@given(
    st.sampled_from(SHAPES[1:]), st.sampled_from([2, 5, 40, 90]), st.integers(1, 50), st.integers(0, 30),
    st.integers(0, 99),
)  # fmt: skip
def test_walks_go_where_plain_ones_go(shape, n, beam, n_missing, seed):
    rng = np.random.default_rng(seed)
    dim, n_blocks = shape
    projections = some_projections(rng, n, dim, n_blocks, n_distinct=max(2, n // 2))
    made = written(projections, dim, n_blocks, some_neighbours(rng, n, n_missing))
    entries = written(projections, dim, n_blocks, some_neighbours(rng, n, n_missing))[:1]
    query = prepared(rng.standard_normal(projections.shape[1]).astype(np.float32), dim, n_blocks)
    visited, pool = np.zeros(60, dtype=np.uint64), np.empty(beam + 32, dtype=np.int64)
    marks = np.zeros(graphsearch.room_for_marks(60), dtype=np.int32)
    vectors, size = rng.standard_normal((n, 5)).astype(np.float32), projections.shape[1] // 8
    n_visited = walk.walk(*query, made, entries, size, beam, pool, marks, visited, vectors, n // 2)
    plain = PlainWalk(made, entries, projections.shape[1], query).visit(beam, 60)
    assert [vertex for _, vertex in plain] == (visited[:n_visited] & np.uint64(0xFFFFFFFF)).tolist()
    distances = (visited[:n_visited] >> np.uint64(32)).astype(np.uint32).view(np.float32)
    np.testing.assert_array_equal(distances, np.array([distance for distance, _ in plain], dtype=np.float32))
    assert n_visited > 0
