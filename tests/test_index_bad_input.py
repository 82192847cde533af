"""What CBEIndex refuses: a clear error each, and the index is as it was."""

import itertools
import uuid

import numpy as np
import pytest
import scipy.sparse

from cbeindex import BinaryIndex, CBEIndex, CirculantEncoder
from cbeindex.encoders import AQBCEncoder, BilinearEncoder, ITQEncoder, SpectralEncoder
from tests.vector_oracles import clustered

X = clustered(40, 10)
ONE = X[:1]
BAD = {value: np.where(np.arange(40)[:, np.newaxis] == 33, value, X.astype(np.float64)) for value in (np.nan, np.inf)}
BAD[1e300] = np.where(np.arange(40)[:, np.newaxis] == 33, 1e300, X.astype(np.float64))


def other(dim=10, ids=range(100, 105), **options):
    index = CBEIndex(dim, 64, **{"vectors": None, "buckets": None, **options})
    index.add(np.ones((len(ids), dim)), ids)
    return index


MAKING = [
    (lambda: CBEIndex(0, vectors=None, buckets=None), ValueError, "dim must be at least 1, got 0"),
    (lambda: CBEIndex(2.0, vectors=None, buckets=None), TypeError, "dim must be an integer, got float"),
    (lambda: CBEIndex("10", vectors=None, buckets=None), TypeError, "dim must be an integer, got str"),
    (lambda: CBEIndex(True, vectors=None, buckets=None), TypeError, "dim must be an integer, got bool"),
    (lambda: CBEIndex(10, 0, vectors=None, buckets=None), ValueError, "n_bits must be at least 1, got 0"),
    (lambda: CBEIndex(10, 64.0, vectors=None, buckets=None), TypeError, "n_bits must be an integer, got float"),
    (
        lambda: CBEIndex(10, metric="L2", vectors=None, buckets=None),
        ValueError,
        "metric must be one of 'cosine', 'l2', 'ip' .*, got 'L2'",
    ),
    (lambda: CBEIndex(10, metric=None, vectors=None, buckets=None), ValueError, "metric must be one of"),
    (
        lambda: CBEIndex(10, encoder="itq", vectors=None, buckets=None),
        ValueError,
        "encoder must be one of 'orthogonal', 'random', 'learned'",
    ),
    (
        lambda: CBEIndex(10, encoder=None, vectors=None, buckets=None),
        TypeError,
        "an object with dim, n_bits, fit, project and encode",
    ),
    (lambda: CBEIndex(10, encoder=CirculantEncoder, vectors=None, buckets=None), TypeError, "an object with dim"),
    (
        lambda: CBEIndex(10, encoder=CirculantEncoder(11), vectors=None, buckets=None),
        ValueError,
        "must be for dim=10, got one for dim=11",
    ),
    (
        lambda: CBEIndex(10, 65, encoder=CirculantEncoder(10), vectors=None, buckets=None),
        ValueError,
        "n_bits must be omitted or 10, the bits of the encoder, got 65",
    ),
    (
        lambda: CBEIndex(10, vectors="float64", buckets=None),
        ValueError,
        "vectors must be one of 'int4', 'int8', 'float16', 'float32', 'auto', got 'float64'",
    ),
    (lambda: CBEIndex(10, vectors=1, buckets=None), ValueError, "vectors must be one of"),
    (
        lambda: CBEIndex(10, buckets="trees", vectors=None),
        ValueError,
        "buckets must be one of 'substrings', 'clusters', 'cells', 'graph', 'auto', got 'trees'",
    ),
    (lambda: CBEIndex(10, seed=-1, vectors=None, buckets=None), ValueError, "seed must be at least 0"),
    (lambda: CBEIndex(10, seed=1.5, vectors=None, buckets=None), TypeError, "seed must be an integer"),
]


@pytest.mark.parametrize(("call", "error", "message"), MAKING)
def test_making(call, error, message):
    with pytest.raises(error, match=message):
        call()


# Refused by every index, fitted or not.
ANY_INDEX = [
    (lambda i: i.add(BAD[np.nan]), ValueError, "X must be finite in float32, row 33 is not"),
    (lambda i: i.add(BAD[np.inf]), ValueError, "X must be finite in float32, row 33 is not"),
    (lambda i: i.add(BAD[1e300]), ValueError, "X must be finite in float32, row 33 is not"),
    (lambda i: i.add(scipy.sparse.csr_array(BAD[np.nan])), ValueError, "X must be finite in float32, row 33 is not"),
    (lambda i: i.search(BAD[np.nan]), ValueError, "queries must be finite in float32, row 33 is not"),
    (lambda i: i.search(BAD[np.inf][33]), ValueError, "queries must be finite in float32, row 0 is not"),
    (lambda i: i.search(scipy.sparse.csr_array(BAD[np.inf])), ValueError, "queries .* row 33 is not"),
    (lambda i: i.range_search(BAD[np.nan], 1), ValueError, "queries must be finite in float32, row 33 is not"),
    (lambda i: i.add(np.zeros((3, 9))), ValueError, r"X must have shape \(n, 10\) or \(10,\), got \(3, 9\)"),
    (lambda i: i.add(np.zeros(9)), ValueError, r"or \(10,\), got \(9,\)"),
    (lambda i: i.add(np.zeros((1, 1, 10))), ValueError, r"got \(1, 1, 10\)"),
    (lambda i: i.add(3.0), ValueError, r"got \(\)"),
    (lambda i: i.add(None), TypeError, "X must hold real numbers"),
    (lambda i: i.add([["a"] * 10]), TypeError, "real numbers, .* a model for embeddings makes vectors of texts"),
    (lambda i: i.add(ONE * 1j), TypeError, "X must hold real numbers, got an array of dtype complex"),
    (lambda i: i.add([[1.0] * 10, [1.0]]), ValueError, r"X must have shape \(n, 10\)"),
    (lambda i: i.add(scipy.sparse.csr_array((2, 11))), ValueError, r"got \(2, 11\)"),
    (lambda i: i.add(np.ma.masked_less(ONE, 100)), TypeError, "masked"),
    (lambda i: i.add(ONE, [-1]), ValueError, "ids must be 0 or more, got -1"),
    (lambda i: i.add(ONE, [7]), ValueError, "id 7 is taken; remove it first, or add with replace=True"),
    (lambda i: i.add(ONE, [1, 2]), ValueError, r"ids must have shape \(1,\), got \(2,\)"),
    (lambda i: i.add(ONE, [[200]]), ValueError, r"ids must have shape \(1,\), got \(1, 1\)"),
    (lambda i: i.add(ONE, [200.0]), TypeError, "ids must be integers or strings, got dtype float64"),
    (lambda i: i.add(ONE, ["a"]), TypeError, "ids must be integers"),
    (lambda i: i.add(ONE, [True]), TypeError, "ids must be integers or strings, got dtype bool"),
    (lambda i: i.add(ONE, [uuid.UUID(int=1)]), TypeError, "ids must be integers or strings, .* that begins with UUID"),
    (lambda i: i.add(ONE, [2**63]), ValueError, "ids must fit int64"),
    (lambda i: i.add(X[:3], [200, 300, 200]), ValueError, "ids must not repeat, 200 does"),
    (lambda i: i.add(X[:2], [7, 7], replace=True), ValueError, "ids must not repeat, 7 does"),
    (lambda i: i.add(X[:3], [200, 7, 300]), ValueError, "id 7 is taken"),
    (lambda i: i.add(ONE, [7], replace=1), TypeError, "replace must be True or False, got 1"),
    (lambda i: i.add(ONE, progress="yes"), TypeError, "progress must be True or False, got 'yes'"),
    (lambda i: i.add(ONE, n_threads=0), ValueError, "n_threads must be at least 1"),
    (lambda i: i.fit(X[:1]), ValueError, "fit(ted| needs at least 2 rows of 10 values, got 1)"),
    (lambda i: i.fit(X[:0]), ValueError, "fit(ted| needs at least 2 rows of 10 values, got 0)"),
    (lambda i: i.fit(BAD[np.nan]), ValueError, "fitted already|X must be finite in float32, row 33 is not"),
    (lambda i: i.fit(X[:, :9]), ValueError, r"X must have shape \(n, 10\)"),
    (lambda i: i.search(X[:, :9]), ValueError, r"queries must have shape \(n, 10\) or \(10,\), got \(40, 9\)"),
    (lambda i: i.search(None), TypeError, "queries must hold real numbers"),
    (lambda i: i.search(ONE, 0), ValueError, "k must be at least 1, got 0"),
    (lambda i: i.search(ONE, -1), ValueError, "k must be at least 1, got -1"),
    (lambda i: i.search(ONE, 2.0), TypeError, "k must be an integer, got float"),
    (lambda i: i.search(ONE, True), TypeError, "k must be an integer, got bool"),
    (lambda i: i.search(ONE, None), TypeError, "k must be an integer, got NoneType"),
    (lambda i: i.search(ONE, 3, "fast"), ValueError, "'auto', 'scan', 'cascade', 'buckets', 'exact', got 'fast'"),
    (lambda i: i.search(ONE, 3, "buckets"), ValueError, "needs buckets, but this index has none"),
    (lambda i: i.search(ONE, 3, None), ValueError, "mode must be one of"),
    (lambda i: i.search(ONE, 3, rerank="best"), ValueError, "rerank must be one of 'asymmetric', 'exact', 'auto'"),
    (lambda i: i.search(ONE, 3, rerank=True), ValueError, "rerank must be one of"),
    (lambda i: i.search(ONE, 3, n_candidates=2), ValueError, "n_candidates must be at least k = 3, got 2"),
    (lambda i: i.search(ONE, 3, n_candidates=0), ValueError, "n_candidates must be at least 1, got 0"),
    (lambda i: i.search(ONE, 3, n_candidates=9.0), TypeError, "n_candidates must be an integer, got float"),
    (lambda i: i.search(ONE, 3, rerank=None, n_candidates=9), ValueError, "but rerank is None"),
    (lambda i: i.search(ONE, 3, n_threads=1.5), TypeError, "n_threads must be an integer"),
    (lambda i: i.search(ONE, 3, allow=3), ValueError, r"allow must have shape \(n,\), got \(\)"),
    (lambda i: i.search(ONE, 3, deny=[0.5]), TypeError, "deny must be integers"),
    (
        lambda i: i.search(ONE, 3, allow=np.ones(17, bool)),
        ValueError,
        r"allow is a mask, so it must have .* entries, one for each of index\.ids in that order, got 17",
    ),
    (lambda i: i.range_search(ONE, np.nan), ValueError, "radius must not be NaN"),
    (lambda i: i.range_search(ONE, "far"), TypeError, "radius must be a number, got 'far'"),
    (lambda i: i.range_search(ONE, None), TypeError, "radius must be a number"),
    (lambda i: i.range_search(ONE, 1, None), ValueError, "rerank must not be None"),
    (lambda i: i.range_search(ONE, 1, "hamming"), ValueError, "rerank must be one of"),
    (lambda i: i.range_search(X[:, :9], 1), ValueError, r"queries must have shape \(n, 10\)"),
    (lambda i: i.range_search(ONE, 1, deny="no"), TypeError, "deny must be integers"),
    (lambda i: i.explain(ONE, 0), ValueError, "k must be at least 1, got 0"),
    (lambda i: i.explain(X[:, :9]), ValueError, r"queries must have shape \(n, 10\)"),
    (lambda i: i.remove([1, 100]), ValueError, "id 100 is not in the index"),
    (lambda i: i.remove([1, -1]), ValueError, "ids must be 0 or more, got -1"),
    (lambda i: i.remove([1.0]), TypeError, "ids must be integers"),
    (lambda i: i.remove([[1]]), ValueError, r"ids must have shape \(n,\), got \(1, 1\)"),
    (lambda i: i.remove(None), TypeError, "ids must be integers"),
    (lambda i: i.get("1"), TypeError, "ids must be integers"),
    (lambda i: i.get(-1), ValueError, "ids must be 0 or more"),
    (lambda i: i.get([[1]]), ValueError, r"got \(1, 1\)"),
    (lambda i: i.merge([ONE]), TypeError, "other must be a CBEIndex, got list"),
    (lambda i: i.merge(BinaryIndex(64)), TypeError, "other must be a CBEIndex, got BinaryIndex"),
    (lambda i: i.merge(i), ValueError, "id 0 is taken|keeps codes only"),
    (lambda i: i.merge(other(ids=[100, 7])), ValueError, "id 7 is taken"),
    (lambda i: i.merge(other(dim=11)), ValueError, "other must have dim=10, metric='cosine', got dim=11"),
    (lambda i: i.merge(other(metric="ip")), ValueError, "got dim=10, metric='ip'"),
]
CODES_ONLY = [
    (lambda i: i.search(ONE, 3, rerank="exact"), ValueError, 'needs vectors, .* make it with vectors="float32"'),
    (lambda i: i.range_search(ONE, 3, "exact"), ValueError, 'rerank="exact" needs vectors'),
    (lambda i: i.explain(ONE, 3, rerank="exact"), ValueError, 'rerank="exact" needs vectors'),
]
FITTED_CODES_ONLY = [
    (lambda i: i.get(7), ValueError, "this index keeps codes only"),
    (lambda i: i.fit(X), ValueError, "the index is fitted already"),
]
WITH_VECTORS = [(lambda i: i.get([1, 100]), ValueError, "id 100 is not in the index")]


def check_refused(index, call, error, message):
    before = index.search(X[:3], 5)
    stats = index.stats()
    with pytest.raises(error, match=message):
        call(index)
    assert index.stats() == stats
    after = index.search(X[:3], 5)
    np.testing.assert_array_equal(after.ids, before.ids)
    np.testing.assert_array_equal(after.distances, before.distances)
    assert index.ids.tolist() == list(range(40))
    assert index.add(ONE).tolist() == [40]


@pytest.mark.parametrize(("call", "error", "message"), ANY_INDEX + CODES_ONLY + FITTED_CODES_ONLY)
def test_fitted(call, error, message):
    index = CBEIndex(10, 64, vectors=None, buckets=None).fit(X)
    index.add(X)
    check_refused(index, call, error, message)


@pytest.mark.parametrize(("call", "error", "message"), ANY_INDEX + CODES_ONLY)
def test_unfitted(call, error, message):
    index = CBEIndex(10, 64, vectors=None, buckets=None)
    index.add(X)
    check_refused(index, call, error, message)


@pytest.mark.parametrize(("call", "error", "message"), ANY_INDEX + WITH_VECTORS)
def test_with_vectors(call, error, message):
    index = CBEIndex(10, 64, vectors="float32", buckets=None).fit(X)
    index.add(X)
    check_refused(index, call, error, message)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_rows_are_those_of_the_input_whatever_the_encoder(n_threads):
    """Rows are encoded in blocks, and a block has numbers of its own."""
    rows = np.abs(clustered(5000, 40))
    index = CBEIndex(40, encoder=AQBCEncoder(40, 32).fit(rows), metric="l2", vectors=None, buckets=None)
    index.add(rows[:50])
    for value, message in [(-1, "must not be negative .* row 4321 has"), (np.nan, "must be finite in .* row 4321 is")]:
        bad = rows.copy()
        bad[4321, 7] = value
        with pytest.raises(ValueError, match=f"X {message}"):
            index.add(bad, n_threads=n_threads)
        with pytest.raises(ValueError, match=f"queries {message}"):
            index.search(bad, n_threads=n_threads)


@pytest.mark.parametrize("sparse", [np.asarray, scipy.sparse.csr_array])
def test_norms_beyond_float32(sparse):
    """Where only directions count too: they would be lost."""
    long = X.copy()
    long[33] = 3e38
    index = CBEIndex(10, 64, vectors=None, buckets=None).fit(X)
    with pytest.raises(ValueError, match=r"X must be small enough for sums .* row 33 has values up to 3e\+38"):
        index.add(sparse(long))
    with pytest.raises(ValueError, match=r"queries must be small enough for sums .* row 33 has values up to 3e\+38"):
        index.search(sparse(long))


@pytest.mark.parametrize("sparse", [np.asarray, scipy.sparse.csr_array])
def test_fitting_to_the_shortest_vectors(sparse):
    """Their inverse norms are beyond float32; all of them count for little, and none of them for NaN."""
    short = X.copy()
    short[33] = 1e-45
    index = CBEIndex(10, 64, vectors=None, buckets=None).fit(sparse(short))
    index.add(X)
    assert index.search(X, 1).ids[:, 0].tolist() == list(range(40))


@pytest.mark.parametrize("value", [2e38, 3e38])
@pytest.mark.parametrize(
    "make",
    [
        lambda: CirculantEncoder(10, kind="learned"),
        lambda: BilinearEncoder(10, kind="learned"),
        lambda: BilinearEncoder(10),
        lambda: SpectralEncoder(10),
        lambda: ITQEncoder(10),
    ],
)
def test_training_on_the_longest_vectors(make, value):
    """An error that says so, without warnings on the way; not an encoder that blames what it gets later."""
    with pytest.raises(ValueError, match=r"overflowed|small enough"):
        make().fit(value * np.sign(X))


@pytest.mark.parametrize(("lam", "mu"), [(1e-300, 0), (1e300, 0), (1e20, 1), (1, 1e300), (1, 1e20)])
def test_weights_of_training(lam, mu):
    with pytest.raises(ValueError, match=r"lam must be from 1 / 1e\+06 to 1e\+06, mu from 0 to 1e\+06, got"):
        CirculantEncoder(10, kind="learned", lam=lam, mu=mu)
    for lam, mu in itertools.product((1e-6, 1e6), (0, 1e6)):
        encoder = CirculantEncoder(10, kind="learned", lam=lam, mu=mu).fit(X, similar=[[0, 1]])
        assert np.isfinite(encoder.project(X)).all()


def test_range_search_without_distances():
    """Codes of some encoders do not estimate distances, and an index without vectors has nothing else."""
    index = CBEIndex(10, encoder=SpectralEncoder(10).fit(X), vectors=None, buckets=None)
    index.add(X)
    with pytest.raises(ValueError, match='make the index with vectors="float32"'):
        index.range_search(ONE, 0.5)


def test_sparse_input_that_scipy_lets_through():
    index = CBEIndex(10, vectors=None, buckets=None)
    with pytest.raises(TypeError, match="X must hold real numbers, got a sparse array of dtype complex128"):
        index.add(scipy.sparse.csr_array(X.astype(np.complex128)))
    falling = scipy.sparse.csr_array((3, 10), dtype=np.float32)
    falling.indptr[:] = [0, 5, 2, 0]
    with pytest.raises(ValueError, match="X must have index pointers that do not"):
        index.add(falling)
    assert len(index) == 0


def test_no_pairs():
    """An empty list of pairs is no pairs, whatever dtype numpy gives it."""
    plain, paired = (CirculantEncoder(10, kind="learned").fit(X, similar=pairs) for pairs in (None, []))
    np.testing.assert_array_equal(plain.encode(X), paired.encode(X))
