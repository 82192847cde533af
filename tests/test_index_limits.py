"""Arguments beyond all bounds: a clear error, or the result of a smaller number; never a flood."""

import numpy as np
import pytest

from cbeindex import BinaryIndex, CBEIndex, CirculantEncoder
from cbeindex._core import checks
from cbeindex.encoders import AQBCEncoder, BilinearEncoder, ITQEncoder, LSHEncoder, SKLSHEncoder
from tests.strategies import some_codes
from tests.vector_oracles import clustered

X = clustered(40, 10)
CODES = some_codes(np.random.default_rng(0), 40, 64)
HUGE = (2**62, 2**63, 10**30, 10**5000)


def len_of(number):
    return f"{number.bit_length()} bits"


@pytest.fixture(scope="module")
def vectors():
    index = CBEIndex(10, 64, vectors="float32", buckets=None).fit(X)
    index.add(X)
    return index


@pytest.fixture(scope="module")
def codes():
    index = BinaryIndex(64)
    index.add(CODES)
    return index


MAKING = [
    (lambda: CBEIndex(2**31, vectors=None, buckets=None), "dim must be at most 2147483584, got 2147483648"),
    (
        lambda: CBEIndex(10**5000, vectors=None, buckets=None),
        "dim must be at most 2147483584, got a number of about 5001 digits",
    ),
    (
        lambda: CBEIndex(-(10**5000), vectors=None, buckets=None),
        "dim must be at least 1, got a number of about 5001 digits",
    ),
    (lambda: CBEIndex(8, 2**40, vectors=None, buckets=None), "n_bits must be at most 2147483647, got 1099511627776"),
    (
        lambda: CBEIndex(8, 2**30, vectors=None, buckets=None),
        "n_bits must be at most 524288 for vectors of 8 values, got 1073741824",
    ),
    (
        lambda: CBEIndex(8, seed=2**128, vectors=None, buckets=None),
        "seed must be at most 340282366920938463463374607431768211455, got 340",
    ),
    (
        lambda: CBEIndex(8, buckets="clusters", n_cells=2**63, vectors=None),
        "n_cells must be at most 2147483647, got 9223372036",
    ),
    (lambda: BinaryIndex(2**31), "n_bits must be at most 2147483647, got 2147483648"),
    (lambda: BinaryIndex(64, "substrings", table_bits=10**9), "table_bits must be at most 24 for codes of 64 bits"),
    (lambda: BinaryIndex(64, "substrings", n_tables=10**9), "n_tables must be at most 16 for codes of 64 bits"),
    (lambda: CirculantEncoder(8, kind="learned", n_iter=10**9), "n_iter must be at most 10000, got 1000000000"),
    (lambda: CirculantEncoder(8, kind="learned", lam=10**400), "lam must fit a float, got a number of about 401 dig"),
    (lambda: ITQEncoder(8, n_iter=10**9), "n_iter must be at most 10000"),
    (lambda: AQBCEncoder(8, n_iter=10**9), "n_iter must be at most 10000"),
    (lambda: BilinearEncoder(8, n_iter=10**9), "n_iter must be at most 10000"),
    (lambda: LSHEncoder(8, seed=10**40), "seed must be at most"),
]


@pytest.mark.parametrize(("call", "message"), MAKING)
def test_making(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_encoders_that_no_machine_holds(monkeypatch):
    monkeypatch.setattr(checks, "memory_bytes", lambda: 10**6)
    for make in (CBEIndex, LSHEncoder, lambda dim: SKLSHEncoder(dim, gamma=1.0)):
        with pytest.raises(MemoryError, match=r"needs .* GB, this process may use 0\.001 GB"):
            make(100_000)


@pytest.mark.parametrize("k", [*HUGE, 10**15], ids=len_of)
def test_more_results_than_memory_holds(vectors, codes, k):
    for search in (lambda: vectors.search(X[:3], k), lambda: codes.search(CODES[:3], k)):
        with pytest.raises(ValueError, match=r"k must be at most \d+"):
            search()


def test_room_for_results_is_shared_by_queries(vectors, codes, monkeypatch):
    monkeypatch.setattr("cbeindex.search.results.memory_bytes", lambda: 32 * 3000)
    assert vectors.search(X[:3], 1000).ids.shape == codes.search(CODES[:3], 1000).ids.shape == (3, 1000)
    for search in (lambda: vectors.search(X[:3], 1001), lambda: codes.search(CODES[:3], 1001)):
        with pytest.raises(ValueError, match=r"k must be at most 1000 for 3 queries, .* got 1001"):
            search()


@pytest.mark.parametrize("rerank", [None, "asymmetric", "exact"])
@pytest.mark.parametrize("queries", [X[:3], X[0], X[:0]])
def test_more_results_than_rows(vectors, rerank, queries):
    """The first ones are those of all rows, and the others are missing."""
    expected, found = vectors.search(queries, 40, rerank=rerank), vectors.search(queries, 10_000, rerank=rerank)
    assert found.ids.shape == found.distances.shape == (*queries.shape[:-1], 10_000)
    assert (found.ids.dtype, found.distances.dtype) == (expected.ids.dtype, expected.distances.dtype)
    np.testing.assert_array_equal(found.ids[..., :40], expected.ids)
    np.testing.assert_array_equal(found.distances[..., :40], expected.distances)
    assert (found.ids[..., 40:] == -1).all()
    assert (found.distances[..., 40:] == (2**31 - 1 if rerank is None else np.inf)).all()
    assert (found.errors is None) == (rerank != "asymmetric")
    if found.errors is not None:
        np.testing.assert_array_equal(found.errors[..., :40], expected.errors)
        assert np.isnan(found.errors[..., 40:]).all()


def test_integers_of_other_types(vectors, codes):
    class Three:
        def __index__(self):
            return 3

    for k in (Three(), np.int8(3), np.uint64(3)):
        assert vectors.search(X[:2], k).ids.shape == codes.search(CODES[:2], k).ids.shape == (2, 3)


def test_work_is_planned_for_the_rows_there_are(vectors, codes):
    assert "40 of 40 vectors" in vectors.explain(X[:3], 10**15)
    assert "40 of 40 codes" in codes.explain(CODES[:3], 10**15)
    assert vectors.explain(X[:3], 10**15, n_candidates=10**16).ways == vectors.explain(X[:3], 40).ways


@pytest.mark.parametrize("value", HUGE[1:], ids=len_of)
def test_other_numbers(vectors, codes, value):
    cells = BinaryIndex(64, "clusters")
    cells.add(CODES)
    for call, name in [
        (lambda: vectors.search(X, 3, n_candidates=value), "n_candidates"),
        (lambda: cells.search(CODES, 3, n_probes=value), "n_probes"),
        (lambda: codes.range_search(CODES, value), "radius"),
        (lambda: vectors.search(X, 3, n_threads=value), "n_threads"),
        (lambda: vectors.add(X, n_threads=value), "n_threads"),
    ]:
        with pytest.raises(ValueError, match=f"{name} must be at most"):
            call()
    assert vectors.search(X, 3, n_candidates=2**62).ids.tolist() == vectors.search(X, 3).ids.tolist()
    assert cells.search(CODES, 3, n_probes=2**62).ids.tolist() == codes.search(CODES, 3).ids.tolist()
    assert len(codes.range_search(CODES, 2**62).ids) == 40 * 40


def test_radius_that_float32_does_not_hold(vectors):
    for radius in (1e300, np.inf):
        assert len(vectors.range_search(X, radius).ids) == 40 * 40
    assert not len(vectors.range_search(X, -1e300).ids)
    with pytest.raises(ValueError, match="radius must fit a float, got a number of about 401 digits"):
        vectors.range_search(X, 10**400)
    for radius in (True, "1"):
        with pytest.raises(TypeError, match="radius must be a number"):
            vectors.range_search(X, radius)
