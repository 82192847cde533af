"""Columns of fixed width and sparse ones give the same rows back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex._core.tuning import tuned
from cbeindex.data.columns import Column, take_rows
from cbeindex.data.joinedrows import JoinedRows
from cbeindex.data.sparserows import SparseRows

DIM = 6


@st.composite
def dense_rows(draw, most=8):
    values = st.sampled_from([0.0, 0.0, 0.0, 1.0, -2.5, 0.25])
    n = draw(st.integers(0, most))
    return np.array(
        draw(st.lists(st.lists(values, min_size=DIM, max_size=DIM), min_size=n, max_size=n)), np.float32
    ).reshape(n, DIM)


def dense(rows):
    return rows.to_csr(DIM).toarray() if isinstance(rows, SparseRows) else rows


columns = pytest.mark.parametrize("column", [Column(np.float32, (DIM,)), Column(np.float16, (DIM,), is_sparse=True)])


@columns
@given(rows=dense_rows(), data=st.data())
def test_rows_come_back(column, rows, data):
    stored = column.of(rows)
    assert len(stored) == len(rows)
    np.testing.assert_array_equal(dense(stored), rows)
    stop = data.draw(st.integers(0, len(rows)))
    np.testing.assert_array_equal(dense(stored[:stop]), rows[:stop])
    if len(rows):
        chosen = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5)), dtype=np.int64)
        np.testing.assert_array_equal(dense(stored[chosen]), rows[chosen])
        np.testing.assert_array_equal(
            dense(stored[stop:][chosen[chosen < len(rows) - stop]]), rows[stop:][chosen[chosen < len(rows) - stop]]
        )


@columns
@given(parts=st.lists(dense_rows(4), max_size=4))
def test_parts_are_joined(column, parts):
    joined = column.joined([column.of(part)[:3] for part in parts])
    expected = np.concatenate([np.empty((0, DIM), np.float32), *(part[:3] for part in parts)])
    np.testing.assert_array_equal(dense(joined), expected)


@columns
@given(parts=st.lists(dense_rows(30), max_size=4))
def test_growth_leaves_views_alone(column, parts):
    """What was seen of growing rows stays as it was, also when more of them need new memory."""
    buffer = column.buffer(200)
    seen, expected = [], np.empty((0, DIM), np.float32)
    for part in parts:
        buffer.write(len(expected), column.of(part))
        expected = np.concatenate([expected, part])
        seen.append((buffer.first(len(expected)), expected))
    for rows, wanted in seen:
        np.testing.assert_array_equal(dense(rows), wanted)


def test_sparse_rows_with_many_entries_grow():
    column = Column(np.float32, (100,), is_sparse=True)
    buffer = column.buffer(2)
    full = np.arange(1, 201, dtype=np.float32).reshape(2, 100)
    buffer.write(0, column.of(full[:1]))
    before = buffer.first(1)
    buffer.write(1, column.of(full[1:]))
    np.testing.assert_array_equal(buffer.first(2).to_csr(100).toarray(), full)
    np.testing.assert_array_equal(before.to_csr(100).toarray(), full[:1])


@given(rows=dense_rows(), start=st.integers(0, 8))
def test_products_and_squares(rows, start):
    query = np.arange(DIM, dtype=np.float32) - 2
    some = SparseRows.from_dense(rows, np.float32)[start:]
    # Sums of a few multiples of 1/16: exact in float64.
    np.testing.assert_array_equal(some.products(query), rows[start:] @ query)
    np.testing.assert_array_equal(some.squares(), (rows[start:] ** 2).sum(axis=1))


def test_bytes():
    rows = np.eye(4, DIM, dtype=np.float32)
    assert Column(np.float16, (DIM,)).of(rows).nbytes == 4 * DIM * 2
    stored = Column(np.float16, (DIM,), is_sparse=True).of(rows)
    assert stored.nbytes == 5 * 8 + 4 * (4 + 2)
    assert stored[:2].nbytes == 3 * 8 + 2 * (4 + 2)
    assert Column(np.float32, (DIM,)).row_bytes == 4 * DIM


@given(rows=dense_rows(), start=st.integers(0, 3))
def test_sparse_rows_in_other_forms(rows, start):
    some = SparseRows.from_dense(rows, np.float32)[start:]
    expected = rows[start:]
    np.testing.assert_array_equal(some.to_dense(DIM), expected)
    np.testing.assert_array_equal(some.astype(np.float16).to_dense(DIM), expected)
    np.testing.assert_array_equal(some.scaled(np.full(len(some), 2.0)).to_dense(DIM), 2 * expected)
    np.testing.assert_array_equal(some.counts(), np.count_nonzero(expected, axis=1))
    np.testing.assert_array_equal(some.largest(), np.abs(expected).max(axis=1, initial=0))
    np.testing.assert_array_equal(some.column_sums(DIM), expected.sum(axis=0, dtype=np.float64))


@given(rows=dense_rows(), start=st.integers(0, 3))
def test_zeros_are_left_out(rows, start):
    whole = SparseRows(
        np.arange(len(rows) + 1) * DIM, np.tile(np.arange(DIM, dtype=np.int32), len(rows)), rows.ravel()
    )[start:]
    kept = whole.without_zeros()
    np.testing.assert_array_equal(kept.to_dense(DIM), rows[start:])
    assert kept.counts().sum() == np.count_nonzero(rows[start:])


@pytest.mark.parametrize("is_sparse", [False, True])
def test_pieces_of_copies_make_a_whole(is_sparse):
    rng = np.random.default_rng(0)
    rows, chosen = rng.standard_normal((50, DIM)).astype(np.float32), rng.integers(0, 50, 70)
    column = Column(np.float32, (DIM,), is_sparse=is_sparse)
    stored = column.of(rows)
    with tuned(copy_bytes=7 * 4 * DIM):
        taken, joined = take_rows(stored, chosen), column.joined([stored, stored[:3]])
    expected = rows[chosen], np.concatenate([rows, rows[:3]])
    for found, whole in zip((taken, joined), expected, strict=True):
        np.testing.assert_array_equal(found.to_dense(DIM) if is_sparse else found, whole)


@given(
    st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=4),
    st.integers(1, 64),
    st.data(),
)
def test_joined_rows_are_those_of_the_parts_behind_each_other(taken, copy_bytes, data):
    parts = [np.arange(10).reshape(5, 2) + 100 * i for i in range(len(taken))]
    rows = [np.array(some, dtype=np.int64) for some in taken]
    joined = JoinedRows(Column(np.int64, (2,)), parts, rows)
    expected = np.concatenate([part[some] for part, some in zip(parts, rows, strict=True)])
    assert len(joined) == len(expected)
    with tuned(copy_bytes=copy_bytes):
        np.testing.assert_array_equal(np.asarray(joined), expected)
        if len(expected):
            some = np.array(data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=9)), dtype=np.int64)
            np.testing.assert_array_equal(take_rows(joined, some), expected[some])
