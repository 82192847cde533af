"""Vertices of graphs against plain numpy: levels, scans, and the projections that they stand for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex._core.tuning import tuned
from cbeindex.data.source import VectorSource
from cbeindex.distances.metrics import METRICS
from cbeindex.distances.vertices import RecordVertices, VertexCodec, VertexShape
from cbeindex.kernels import records, vertices, walk

pytestmark = pytest.mark.kernels


def some_codec(dim=12, n_bits=12, metric="l2", centre=0.5):
    return VertexCodec.of(np.full(dim, centre, dtype=np.float32), n_bits, 1, METRICS[metric])


def some_rows(n, dim=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)


@pytest.mark.parametrize("shape", [(1, 1), (24, 24), (100, 100), (160, 160), (784, 784), (784, 200), (23, 60)])
def test_sizes_are_those_of_the_kernels(shape):
    sizes = VertexShape.of(*shape)
    assert sizes.column.row_bytes == vertices.vertex_bytes(sizes.n_levels)
    assert sizes.record_bytes == records.record_bytes(sizes.n_columns, sizes.n_levels)
    assert sizes.vertex_at == records.vertex_at(sizes.n_columns)
    assert sizes.n_code_bits >= min(shape)


@pytest.mark.parametrize("n_blocks", [1, 3])
def test_decoded_rows_are_near_their_projections_in_all_blocks(n_blocks):
    rows = some_rows(20)
    with tuned(least_graph_bits=12 * n_blocks):
        codec = some_codec()
    column = codec.encode(VectorSource(rows, 12), rows)
    found = codec.code_projections(codec.decode(column, 2), 2)[:, : codec.shape.n_code_bits]
    expected = codec.rotation.project(rows)
    assert found.shape == expected.shape == (20, 12 * n_blocks)
    # Levels are right to half of 1 / 127 of the largest value; another block adds up 12 such errors at random.
    assert np.abs(found - expected).max() < 4 * np.abs(expected).max() / 254
    heads = codec.heads_of(column)
    np.testing.assert_allclose(heads.squares, ((rows - 0.5) ** 2).sum(axis=1), rtol=1e-5)


@pytest.mark.parametrize(("metric", "expected"), [("l2", [0, 0]), ("cosine", [1, 0]), ("ip", [4 * 12, 0])])
def test_norms_count_where_products_do(metric, expected):
    rows = np.stack([np.full(12, 2.0), np.zeros(12)]).astype(np.float32)
    codec = some_codec(metric=metric)
    prepared = METRICS[metric].prepare(rows)
    column = codec.encode(VectorSource(prepared, 12), prepared)
    np.testing.assert_allclose(codec.heads_of(column).norms, expected)


@given(st.integers(1, 300), st.integers(1, 40), st.booleans(), st.integers(0, 99))
def test_scans_find_what_plain_ones_find(n, n_found, hides, seed):
    rng = np.random.default_rng(seed)
    projections = rng.standard_normal((n, 10)).astype(np.float32)[rng.integers(0, n, n)]
    norms, n_found = rng.random(n).astype(np.float32), min(n, n_found)
    column = np.empty((n, vertices.vertex_bytes(10)), dtype=np.uint8)
    vertices.write_vertices(projections, 10, norms, column)
    numbers, terms = np.empty(10, dtype=np.int16), np.empty(4, dtype=np.float32)
    query = rng.standard_normal(10).astype(np.float32)
    walk.prepare_query(query, 10, 1.0, np.empty((1, 0), dtype=np.uint8), numbers, terms)
    hidden = rng.random(n) < 0.5 if hides else np.zeros(0, dtype=np.bool_)
    found = np.empty(n_found + 64, dtype=np.uint64)
    count = vertices.scan_vertices(column, 0, numbers, terms, hidden, n_found, found)
    levels = column[:, 12:22].view(np.int8).astype(np.float64)
    scales, squares = column[:, :8].copy().view(np.float32).astype(np.float64).T
    near = query @ query + 1.0 + squares - norms - 2 * (scales[:, np.newaxis] * levels) @ query.astype(np.float64)
    shown = np.flatnonzero(~hidden) if hides else np.arange(n)
    assert count == min(n_found, len(shown))
    got = (found[:count] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    assert np.isin(got, shown).all()
    assert len(set(got.tolist())) == count
    # Queries are rounded to 1 / 65,534 of their largest value, and sums to float32.
    np.testing.assert_allclose(np.sort(near[got]), np.sort(near[shown])[:count], atol=1e-3)


def test_records_give_their_vertices_back():
    rows = some_rows(9)
    codec = some_codec()
    column = codec.encode(VectorSource(rows, 12), rows)
    made = records.make_records(9, codec.shape.n_columns, codec.shape.n_levels)
    neighbours = np.full((9, 32), -1, dtype=np.int32)
    points = codec.code_projections(codec.decode(column, 1), 1)
    records.write_records(points, codec.shape.n_blocks, column, codec.heads_of(column).norms, neighbours, 0, 9, made)
    stored = RecordVertices(made, codec.shape)
    assert stored.shape == column.shape
    np.testing.assert_array_equal(np.asarray(stored), column)
    np.testing.assert_array_equal(stored[[4, 2]], column[[4, 2]])
