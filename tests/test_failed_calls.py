"""A call that fails, at whatever line, leaves the index as it was or as the call would have left it."""

import copy
import itertools
import os

import numpy as np
import pytest
from scipy import sparse

from cbeindex import BinaryIndex, CBEIndex
from tests.failing import fails_at, n_lines
from tests.small import small_buckets

DIM, N_BITS = 12, 70
# Normally some fifty lines of each call are tried, other ones for each kind of index; all of them take a minute.
N_LINES = 50
EVERY_LINE = "CBEINDEX_EVERY_LINE" in os.environ


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Few rows make segments with buckets, and all work is done on the thread that is interrupted."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    with small_buckets():
        yield


def vectors(n, seed=0):
    return np.random.default_rng(seed).standard_normal((n, DIM)).astype(np.float32)


def codes(n, seed=0):
    bits = np.random.default_rng(seed).random((n, N_BITS)) < 0.5
    return np.packbits(bits, axis=1, bitorder="little")


def filled(index, rows, n, n_more, n_removed):
    """Fill an index by one large batch and one small one, and remove some rows of both."""
    index.add(rows[:n])
    index.add(rows[n : n + n_more])
    index.remove(np.arange(n - n_removed, n + n_removed))
    return index


def cbe(n=50, **options):
    rows = vectors(70)
    sparse_rows = options.pop("sparse", False)
    index = CBEIndex(DIM, N_BITS, vectors="float32", **{"buckets": None, **options})
    return filled(index, sparse.csr_array(rows) if sparse_rows else rows, n, 10, 2)


def binary(**options):
    return filled(BinaryIndex(N_BITS, **options), codes(70), 50, 10, 2)


INDEXES = {
    "binary": binary,
    "binary with tables": lambda: binary(buckets="substrings"),
    "binary with clusters": lambda: binary(buckets="clusters"),
    "vectors": cbe,
    "vectors with clusters": lambda: cbe(buckets="clusters"),
    "vectors with cells": lambda: cbe(buckets="cells"),
    "vectors with a graph": lambda: cbe(buckets="graph"),
    "sparse vectors": lambda: cbe(sparse=True),
    "not fitted": lambda: cbe(n=20),
}


def rows_for(index, n, seed):
    return codes(n, seed) if isinstance(index, BinaryIndex) else vectors(n, seed)


def other_index(index, n=30):
    """An index with other ids and as many bits."""
    other = copy.copy(index)
    other.remove(other.ids)
    other.compact()
    other.add(rows_for(index, n, 5), np.arange(1000, 1000 + n))
    return other


CALLS = {
    "add one row": lambda index, _: index.add(rows_for(index, 1, 1)),
    "add rows that fill the buffer": lambda index, _: index.add(rows_for(index, 15, 1)),
    "add a segment": lambda index, _: index.add(rows_for(index, 40, 1)),
    "replace few rows": lambda index, _: index.add(rows_for(index, 4, 1), [0, 1, 25, 2000], replace=True),
    "replace many rows": lambda index, _: index.add(rows_for(index, 22, 1), index.ids[-22:], replace=True),
    "remove": lambda index, _: index.remove(index.ids[[0, 3, -2, -1]]),
    "remove all": lambda index, _: index.remove(index.ids),
    "compact": lambda index, _: index.compact(),
    "merge": lambda index, other: index.merge(other),
}


def contents(index):
    """All that an index holds, in values that can be compared."""
    ids = index.ids
    return ids.tolist(), [tuple(row) for row in dense(index.get(ids))] if len(ids) else []


def dense(rows):
    return rows.toarray() if sparse.issparse(rows) else rows


def check_failures(make, call, contents=contents):
    """Fail `call` at lines spread over all that it executes, in turn by an interrupt and for want of memory."""
    before, after = make(), make()
    n = n_lines(lambda: call(after))
    states, errors = [contents(before), contents(after)], itertools.cycle([KeyboardInterrupt, MemoryError])
    step = 1 if EVERY_LINE else max(1, n // N_LINES)
    for number in range(1 + n % step, n + 1, step):
        index = make()
        assert fails_at(number, lambda index=index: call(index), next(errors))
        found = contents(index)
        assert found in states, f"failed at line {number} of {n}"
        # The next change publishes what was left half done, if anything was.
        added = index.add(rows_for(index, 1, 9), [5000])
        index.remove(added)
        assert contents(index) == found, f"failed at line {number} of {n}"


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", INDEXES)
def test_a_call_that_fails_changes_nothing(name, call):
    model = INDEXES[name]()
    other = other_index(model)
    CALLS[call](copy.deepcopy(model), other)  # fills caches: from now on all calls execute the same lines
    check_failures(lambda: copy.deepcopy(model), lambda index: CALLS[call](index, other))


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_first_add_that_fails_changes_nothing(is_sparse):
    rows = sparse.csr_array(vectors(60)) if is_sparse else vectors(60)
    check_failures(lambda: CBEIndex(DIM, N_BITS, vectors="float32", buckets=None), lambda index: index.add(rows))


def test_a_fit_that_fails_changes_nothing():
    check_failures(lambda: cbe(n=20), lambda index: index.fit(vectors(50, 3)))


def found_by(index):
    """What an index holds, and the nearest of some vectors by codes and by all that it has."""
    results = [index.search(vectors(5, 7), 60, rerank=rerank, mode="scan") for rerank in (None, "auto")]
    return *contents(index), *(values.tolist() for result in results for values in (result.ids, result.distances))


MAKE_ANEW = {
    "refit": lambda index: index.refit(),
    "shrink": lambda index: index.shrink("float16"),
    "tune": lambda index: index.tune(vectors(8, 7), 2),
}


@pytest.mark.parametrize("call", MAKE_ANEW)
@pytest.mark.parametrize("name", ["vectors", "vectors with cells", "vectors with a graph", "sparse vectors"])
def test_a_call_that_makes_an_index_anew_and_fails_changes_nothing(name, call):
    model = INDEXES[name]()
    if call == "tune" and model.buckets is None:
        pytest.skip("there is nothing to be tuned")
    for change in (MAKE_ANEW[call], found_by):  # fills caches
        change(copy.deepcopy(model))
    check_failures(lambda: copy.deepcopy(model), MAKE_ANEW[call], found_by)


def test_rows_survive_an_interrupted_replace():
    index = binary(buckets="clusters")
    ids = index.ids
    assert fails_at(
        n_lines(lambda: copy.deepcopy(index).add(codes(len(ids), 1), ids, replace=True)) // 2,
        lambda: index.add(codes(len(ids), 1), ids, replace=True),
        KeyboardInterrupt,
    )
    index.add(codes(1, 2), [9000])
    assert index.ids.tolist() == [*ids.tolist(), 9000]
