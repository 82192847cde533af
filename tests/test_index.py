"""CBEIndex: vectors in, neighbours out, against brute force; and everything else that an index can do."""

import copy
import pickle
import sys

import numpy as np
import pytest
import scipy.sparse

from cbeindex import CBEIndex, CirculantEncoder
from cbeindex._core.tuning import tuned
from cbeindex.distances.estimator import Geometry
from cbeindex.distances.metrics import Metric
from cbeindex.kernels import asymmetric
from cbeindex.store.segment import Segment
from tests import oracles, vector_oracles
from tests.small import small_buckets, tune
from tests.vector_oracles import clustered, sparse_rows

METRIC_NAMES = ("cosine", "l2", "ip")
# Below and above the dimension, 512 bits (where codes are no longer short) and 1,024 bits (where codes are long and
# the cascade begins).
SHAPES = [(24, 16), (24, 64), (24, 600), (24, 1_100)]
N = 60
X = clustered(N, 24)
X[7] = X[3]
X[11] = 0
QUERIES = np.concatenate([clustered(3, 24, seed=1), X[[3]], np.zeros((1, 24), np.float32)])
IDS = list(range(N))


def index_of(n_bits=64, rows=X, **options):
    index = CBEIndex(rows.shape[1], n_bits, **{"vectors": None, "buckets": None, **options}).fit(rows)
    index.add(rows)
    return index


def dense(rows):
    return rows.toarray() if scipy.sparse.issparse(rows) else rows


def modes_of(n_bits):
    return ("auto", "scan", "cascade") if n_bits > 1_024 else ("auto", "scan")


def check(result, expected):
    """Equal ids, and distances to a rounding of float32 (of products of up to 1,000, for those near 0)."""
    np.testing.assert_array_equal(result.ids, expected[1])
    np.testing.assert_allclose(result.distances, expected[0], rtol=1e-6, atol=1e-12)
    assert (result.distances.dtype, result.ids.dtype) == (np.float32, np.int64)


@pytest.fixture
def early(monkeypatch):
    """Indexes that fit themselves on 20 rows."""
    tune(monkeypatch, first_rows=20, least_first_rows=4)


@pytest.fixture
def always_cascade(monkeypatch):
    """A cascade that no query leaves for a scan, however many blocks survive the prefix."""
    tune(monkeypatch, cascade_left_words=0.0)


@pytest.mark.usefixtures("always_cascade")
class TestAgainstBruteForce:
    """With all rows as candidates, what is exact is exact, and what is estimated is as explicit matrices have it."""

    @pytest.mark.parametrize("metric", METRIC_NAMES)
    @pytest.mark.parametrize(("dim", "n_bits"), SHAPES)
    @pytest.mark.parametrize("kept", ["float32", "float16"])
    def test_exact(self, metric, dim, n_bits, kept):
        index = index_of(n_bits, metric=metric, vectors=kept)
        rows = X.astype(kept)
        for k in (1, 7, N + 5):
            expected = vector_oracles.nearest(metric, QUERIES, rows, IDS, k)
            for mode in modes_of(n_bits):
                for rerank in ("exact", "auto"):
                    result = index.search(QUERIES, k, mode, rerank, n_candidates=N + 5)
                    check(result, expected)
                    assert result.errors is None
                    assert result.stats["rerank"] == "exact"
                    assert ("survivors" in result.stats) == (mode == "cascade")
            check(index.search(QUERIES, k), expected)

    @pytest.mark.parametrize("metric", METRIC_NAMES)
    @pytest.mark.parametrize(("dim", "n_bits"), SHAPES)
    @pytest.mark.parametrize("encoder", ["orthogonal", "random"])
    def test_asymmetric(self, metric, dim, n_bits, encoder):
        index = index_of(n_bits, metric=metric, encoder=encoder)
        expected, slack = vector_oracles.estimates(index.encoder, metric, QUERIES, X)
        # A magnitude may be rounded the other way by float32, here and there; and float32 sums of these sizes.
        tolerance = 2 * slack + 1e-4 * (1 + np.abs(expected))
        for mode in modes_of(n_bits):
            for n_candidates in (None, N):
                result = index.search(QUERIES, N, mode, "asymmetric", n_candidates)
                assert (np.sort(result.ids, axis=1) == IDS).all()
                wanted = np.take_along_axis(expected, result.ids, axis=1)
                assert (np.abs(result.distances - wanted) <= np.take_along_axis(tolerance, result.ids, axis=1)).all()
                order = [sorted(range(N), key=lambda i: (d[i], j[i])) for d, j in zip(*result, strict=True)]
                assert (np.array(order) == np.arange(N)).all()
                assert result.errors.shape == result.distances.shape
                assert (result.errors >= 0).all()
                assert result.stats["rerank"] == "asymmetric"
        np.testing.assert_array_equal(index.search(QUERIES, 5).ids, result.ids[:, :5])

    @pytest.mark.parametrize("metric", METRIC_NAMES)
    @pytest.mark.parametrize(("dim", "n_bits"), SHAPES)
    def test_hamming(self, metric, dim, n_bits):
        index = index_of(n_bits, metric=metric)
        rows, queries = (vector_oracles.prepared(metric, a).astype(np.float32) for a in (X, QUERIES))
        codes = index.encoder.encode(rows)
        for k in (1, 7, N + 5):
            expected = oracles.nearest(index.encoder.encode(queries), codes, np.arange(N), k)
            for mode in modes_of(n_bits):
                result = index.search(QUERIES, k, mode, None)
                np.testing.assert_array_equal(result.distances, expected[0])
                np.testing.assert_array_equal(result.ids, expected[1])
                assert result.distances.dtype == np.int32
                assert result.errors is None

    @pytest.mark.parametrize("metric", METRIC_NAMES)
    @pytest.mark.parametrize("rerank", [None, "asymmetric", "exact"])
    @pytest.mark.parametrize("n_bits", [64, 600, 1_100])
    def test_filters(self, metric, rerank, n_bits):
        """What the whole order leaves when other ids are struck out; there are still k results."""
        index = index_of(n_bits, metric=metric, vectors="float32")
        index.remove([0, 20])
        options = {"rerank": rerank} | ({} if rerank is None else {"n_candidates": N})
        whole = index.search(QUERIES, N, **options).ids
        for allow, deny in [
            ([1, 5, 9, 20, 77, -4], None),
            (None, range(3, 50)),
            (range(0, 60, 2), [4, 8]),
            ([], None),
            (None, []),
        ]:
            permitted = set(IDS) - {0, 20}
            permitted = (permitted if allow is None else permitted & set(allow)) - set(deny or [])
            for mode in modes_of(n_bits):
                result = index.search(QUERIES, 4, mode, **options, allow=allow, deny=deny)
                for ids, row in zip(result.ids, whole, strict=True):
                    left = [id_ for id_ in row.tolist() if id_ in permitted][:4]
                    assert ids.tolist() == left + [-1] * (4 - len(left))

    @pytest.mark.parametrize("metric", METRIC_NAMES)
    @pytest.mark.parametrize("kept", ["float32", "float16"])
    def test_the_cascade_and_exact_distances(self, metric, kept):
        """Tight clusters of twenty rows: prefixes rule out other clusters, and the candidates are a whole cluster."""
        rng = np.random.default_rng(4)
        centres = rng.standard_normal((150, 32))
        centres *= 4 / np.linalg.norm(centres, axis=1, keepdims=True)  # so that the nearest by "ip" are in the cluster
        rows = (np.tile(centres, (20, 1)) + 0.1 * rng.standard_normal((3_000, 32))).astype(np.float32)
        queries = (centres[:10] + 0.1 * rng.standard_normal((10, 32))).astype(np.float32)
        index = index_of(1_100, rows, metric=metric, vectors=kept)
        expected = vector_oracles.nearest(metric, queries, rows.astype(kept), list(range(3_000)), 5)
        result = index.search(queries, 5, "cascade", "exact", n_candidates=20)
        check(result, expected)
        assert 10 * 20 <= result.stats["survivors"] < 10 * 3_000 / 4
        estimated = index.search(queries, 5, "cascade", "asymmetric", n_candidates=20)
        scanned = index.search(queries, 5, "scan", "asymmetric", n_candidates=3_000)
        np.testing.assert_array_equal(estimated.ids, scanned.ids)

    @pytest.mark.parametrize("metric", METRIC_NAMES)
    @pytest.mark.parametrize("fitted", [True, False])
    def test_range_search(self, metric, fitted):
        index = CBEIndex(24, 64, metric=metric, vectors="float32", buckets=None)
        if fitted:
            index.fit(X)
        index.add(X)
        index.remove(5)
        distances = vector_oracles.distances(metric, QUERIES, X)
        for radius in (-np.inf, np.quantile(distances, 0.1), np.quantile(distances, 0.6), np.inf):
            for allow, deny in ((None, [5]), ([1, 2, 3], [3])):
                lims, near, ids = vector_oracles.within_by(distances, IDS, radius, allow, deny)
                result = index.range_search(QUERIES, radius, allow=allow, deny=deny)
                np.testing.assert_array_equal(result.lims, lims)
                np.testing.assert_array_equal(result.ids, ids)
                np.testing.assert_allclose(result.distances, near, rtol=1e-6, atol=1e-12)

    @pytest.mark.parametrize("metric", METRIC_NAMES)
    def test_range_search_by_estimates(self, metric):
        """The same estimates that `search` gives."""
        index = index_of(64, metric=metric)
        every = index.search(QUERIES, N)
        for radius in (every.distances[0, 10], np.median(every.distances), np.inf):
            result = index.range_search(QUERIES, radius)
            for i in range(len(QUERIES)):
                inside = every.distances[i] <= radius
                here = slice(result.lims[i], result.lims[i + 1])
                np.testing.assert_array_equal(result.ids[here], every.ids[i][inside])
                np.testing.assert_array_equal(result.distances[here], every.distances[i][inside])
        assert index.range_search(QUERIES[0], every.distances[0, 10], "asymmetric").lims.tolist() == [0, 11]

    @pytest.mark.parametrize("metric", METRIC_NAMES)
    def test_before_it_is_fitted(self, metric):
        index = CBEIndex(24, 64, metric=metric, vectors=None, buckets=None)
        index.add(X)
        assert not index.is_fitted
        for k in (1, 7, N + 5):
            result = index.search(QUERIES, k)
            check(result, vector_oracles.nearest(metric, QUERIES, X, IDS, k))
            assert result.errors is None
        check(index.search(QUERIES, 3, deny=[3]), vector_oracles.nearest(metric, QUERIES, X, IDS, 3, deny=[3]))
        assert "not fitted yet" in index.explain(QUERIES)

    @pytest.mark.parametrize("metric", METRIC_NAMES)
    def test_far_from_the_origin(self, metric):
        """Centring: neighbours are found although all vectors point the same way."""
        rows = clustered(200, 32, spread=0.2) / 50 + 10
        index = index_of(512, rows, metric=metric, vectors="float32")
        check(index.search(rows[:5], 3), vector_oracles.nearest(metric, rows[:5], rows, list(range(200)), 3))


def test_shapes():
    index = index_of(vectors="float32")
    for options in ({}, {"rerank": "asymmetric"}, {"rerank": None}):
        one, many = index.search(QUERIES[0], 3, **options), index.search(QUERIES[:1], 3, **options)
        assert one.ids.shape == one.distances.shape == (3,)
        assert many.ids.shape == many.distances.shape == (1, 3)
        np.testing.assert_array_equal(one.ids, many.ids[0])
        np.testing.assert_array_equal(one.distances, many.distances[0])
        if one.errors is not None:
            np.testing.assert_array_equal(one.errors, many.errors[0])
        assert index.search(np.empty((0, 24)), 3, **options).ids.shape == (0, 3)
    assert index.range_search(QUERIES[0], 0.1).lims.shape == (2,)
    assert index.range_search(np.empty((0, 24)), 0.1).lims.tolist() == [0]
    distances, ids = index.search(QUERIES[0], 3)
    assert (len(distances), len(ids)) == (3, 3)


@pytest.mark.parametrize("fitted", [True, False])
@pytest.mark.parametrize("emptied", [True, False])
def test_an_empty_index(fitted, emptied):
    index = CBEIndex(24, vectors="float32", buckets=None)
    if fitted:
        index.fit(X)
    if emptied:
        index.remove(index.add(X))
    for options in ({}, {"rerank": "asymmetric"}, {"rerank": "exact"}):
        result = index.search(QUERIES, 2, **options)
        assert (result.ids == -1).all()
        assert np.isinf(result.distances).all()
        assert result.distances.dtype == np.float32
    assert index.range_search(QUERIES, 10).lims.tolist() == [0] * (len(QUERIES) + 1)
    assert (len(index), 0 in index, index.ids.tolist()) == (0, False, [])
    assert index.add(np.empty((0, 24))).tolist() == []
    index.compact()
    assert index.stats()["rows"] == 0


def test_missing_answers():
    index = index_of()
    result = index.search(QUERIES, N + 3)
    assert (result.ids[:, N:] == -1).all()
    assert np.isinf(result.distances[:, N:]).all()
    assert np.isnan(result.errors[:, N:]).all()
    assert np.isfinite(result.errors[:, :N]).all()


class TestFeeding:
    """Rows make the same index however they come."""

    def state(self, index):
        snapshot = index._state.rows.snapshot()
        ids = snapshot.ids()
        columns = index._state.rows.columns
        return {
            "ids": ids,
            "codes": snapshot.codes_of(ids, index.n_bits),
            **{name: snapshot.column_of(name, ids, column) for name, column in columns.items() if name != "vectors"},
            "vectors": dense(index.get(ids)),
            **index.encoder.to_arrays(),
        }

    def check_equal(self, index, other):
        assert index.is_fitted
        assert other.is_fitted
        ours, theirs = self.state(index), self.state(other)
        assert ours.keys() == theirs.keys()
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
        for options in ({}, {"rerank": None}, {"rerank": "asymmetric"}):
            first, second = index.search(QUERIES, 9, **options), other.search(QUERIES, 9, **options)
            np.testing.assert_array_equal(first.ids, second.ids)
            np.testing.assert_array_equal(first.distances, second.distances)
        assert copy.copy(index).add(X[:1]).tolist() == copy.copy(other).add(X[:1]).tolist()

    @pytest.fixture
    def whole(self, early):
        index = CBEIndex(24, 70, metric="cosine", vectors="float32", buckets=None)
        index.add(X)
        return index

    @pytest.mark.parametrize("convert", [np.asarray, scipy.sparse.csr_array])
    @pytest.mark.parametrize("sizes", [[1] * 60, [1, 2, 3, 5, 8, 13, 28], [19, 1, 40], [20, 40], [59, 1], [21, 39]])
    def test_in_batches(self, early, convert, sizes):
        index, whole = (
            CBEIndex(24, 70, vectors="float32", buckets=None),
            CBEIndex(24, 70, vectors="float32", buckets=None),
        )
        whole.add(convert(X))
        start = 0
        for size in sizes:
            assert index.is_fitted == (start >= 20)
            ids = index.add(convert(X[start : start + size]))
            assert ids.tolist() == list(range(start, start + size))
            start += size
        self.check_equal(index, whole)

    def test_sparse_or_dense(self, whole):
        """Projections are summed in another order; r is rounded to 6e-8, and some projections may be as near to 0."""
        index = CBEIndex(24, 70, vectors="float32", buckets=None)
        index.add(scipy.sparse.csr_array(X))
        sparse, dense = self.state(index), self.state(whole)
        for name in ("ids", "vectors", "centre", "signs", "spectrum"):
            np.testing.assert_array_equal(sparse[name], dense[name])
        for name in ("offsets", "factors", "spreads"):
            np.testing.assert_allclose(sparse[name], dense[name], rtol=1e-5, err_msg=name)
        assert np.bitwise_count(sparse["codes"] ^ dense["codes"]).sum() <= 1

    def test_one_vector_at_a_time(self, whole):
        index = CBEIndex(24, 70, vectors="float32", buckets=None)
        for row in X:
            index.add(row)
        self.check_equal(index, whole)

    def test_in_another_order(self, whole):
        """Ids say which row is which; the first twenty to come are what the encoder sees."""
        index = CBEIndex(24, 70, vectors="float32", buckets=None)
        index.add(X[:20][::-1], range(19, -1, -1))
        index.add(X[20:][::-1], range(59, 19, -1))
        self.check_equal(index, whole)

    def test_fit_before_and_after_the_first_rows(self, early):
        before, between, after = (CBEIndex(24, 70, vectors="float32", buckets=None) for _ in range(3))
        before.fit(X)
        before.add(X)
        between.add(X[:10])
        between.fit(X)
        between.add(X[10:])
        after.add(X[:19])
        assert not after.is_fitted
        after.fit(scipy.sparse.csr_array(X))
        after.add(X[19:])
        self.check_equal(between, before)
        self.check_equal(after, before)

    def test_removed_first_rows_are_not_fitted_on(self, early):
        index, other = (
            CBEIndex(24, 70, vectors="float32", buckets=None),
            CBEIndex(24, 70, vectors="float32", buckets=None),
        )
        index.add(1_000 * X[:10])
        index.remove(range(10))
        index.add(X)
        other.add(X, range(10, 70))
        self.check_equal(index, other)

    def test_bytes_bound_the_first_rows(self, monkeypatch):
        tune(monkeypatch, first_bytes=40 * 24 * 4)
        index = CBEIndex(24, vectors=None, buckets=None)
        index.add(X[:39])
        assert not index.is_fitted
        index.add(X[39])
        assert index.is_fitted

    def test_replaced_while_it_fits(self, early):
        """One add that replaces rows from before, some of them on either side of the moment of fitting."""
        index = CBEIndex(24, 70, vectors="float32", buckets=None)
        index.add(X[:10])
        rows = clustered(40, 24, seed=5)
        index.add(rows, [3, *range(100, 135), 4, 5, 6, 7], replace=True)
        assert index.is_fitted
        np.testing.assert_array_equal(index.ids, [*range(10), *range(100, 135)])
        np.testing.assert_array_equal(index.get([3, 4, 7, 100]), rows[[0, 36, 39, 1]])
        np.testing.assert_array_equal(index.get([0, 9]), X[[0, 9]])
        assert index.search(rows, 1).ids[:, 0].tolist() == [3, *range(100, 135), 4, 5, 6, 7]


def test_recall_of_codes():
    """Estimates beat Hamming distances, and candidates by Hamming distance hold most of the true neighbours."""
    both = clustered(940, 64, n_centres=20, spread=1.0)
    rows, queries = both[:900], both[900:]
    index = index_of(256, rows, vectors="float32")
    truth = vector_oracles.nearest("cosine", queries, rows, list(range(900)), 10)[1]

    def recall(**options):
        found = index.search(queries, 10, **options).ids
        return np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), truth.tolist(), strict=True)])

    hamming, estimated = recall(rerank=None), recall(rerank="asymmetric")
    # Three data sets gave 0.60 to 0.62, 0.73 to 0.76, and a difference of 0.11 to 0.14; a recall from 400 results has a
    # standard error of 0.025 at most, and so has the difference. Chance would find 0.011.
    assert hamming > 0.5
    assert estimated > hamming + 0.05
    # What the candidates hold, exact distances find: those of as many as are wanted, of ten times as many, of all.
    assert recall(rerank="exact", n_candidates=10) == hamming
    assert recall(rerank="exact", n_candidates=100) > 0.95
    assert recall(rerank="exact", n_candidates=900) == recall() == 1


@pytest.mark.parametrize("early_rows", [True, False])
def test_replace(early_rows):
    index = CBEIndex(24, vectors="float32", buckets=None)
    if not early_rows:
        index.fit(X)
    index.add(X)
    with pytest.raises(ValueError, match="id 3 is taken"):
        index.add(X[:2], [3, 100])
    index.add(5 * QUERIES[:2], [3, 100], replace=True)
    assert len(index) == N + 1
    assert index.search(QUERIES[0], 1).ids.tolist() == [3]
    np.testing.assert_array_equal(index.get(3), 5 * QUERIES[0])


@pytest.mark.parametrize("fitted", [True, False])
def test_ids(fitted):
    index = CBEIndex(24, vectors="float32", buckets=None)
    if fitted:
        index.fit(X)
    assert index.add(X[:3]).tolist() == [0, 1, 2]
    assert index.add(X[3], 50).tolist() == [50]
    assert index.add(X[4:6], np.array([7, 9], dtype=np.uint8)).dtype == np.int64
    index.remove([50, 2])
    assert index.add(X[6:8]).tolist() == [51, 52]
    index.compact()
    assert index.add(X[8]).tolist() == [53]
    assert index.ids.tolist() == [0, 1, 7, 9, 51, 52, 53]
    assert [id_ in index for id_ in (0, 2, 50, np.int64(53), -1, 2**70, "0", 0.0, True, None)] == [
        True, False, False, True, False, False, False, False, False, False,
    ]  # fmt: skip
    np.testing.assert_array_equal(index.get([53, 0, 7]), X[[8, 0, 4]])
    assert index.search(X[8], 1).ids.tolist() == [53]


@pytest.mark.parametrize("by_fit", [True, False])
def test_ids_are_not_given_again_after_fitting(early, by_fit):
    index = CBEIndex(24, vectors=None, buckets=None)
    index.add(X[:10])
    index.remove([8, 9])
    if by_fit:
        index.fit(X)
    assert index.add(X[10:30]).tolist() == list(range(10, 30))
    assert index.is_fitted
    other = CBEIndex(24, vectors=None, buckets=None)
    other.remove(other.add(X[:10]))
    assert other.fit(X).add(X[0]).tolist() == [10]


def test_the_last_id(early):
    """No new ids after the largest there can be: also at the moment of fitting."""
    for n in (1, 5, 30):
        index = CBEIndex(24, vectors=None, buckets=None)
        index.add(X[:17], [*range(16), 2**63 - 1])
        with pytest.raises(ValueError, match="no new ids after 9223372036854775807; pass ids"):
            index.add(X[:n])
        assert index.ids.tolist() == [*range(16), 2**63 - 1]


def with_last(rows, value):
    return np.concatenate([rows[:-1], np.full((1, rows.shape[1]), value)])


REFUSED = {
    "not finite": (lambda X: (with_last(X, np.nan), None), "must be finite in float32, row {last} is not"),
    "too large": (lambda X: (with_last(X, 1e5), None), "row {last} has values above 65504"),
    "a taken id": (lambda X: (X, [*range(100, 99 + len(X)), 2]), "id 2 is taken"),
    "an id twice": (lambda X: (X, [*range(100, 99 + len(X)), 100]), "must not repeat, 100 does"),
}


class TestRefused:
    """A refused add changes nothing, whether the index is fitted, or not, or would be by it."""

    @pytest.mark.parametrize("bad", REFUSED)
    @pytest.mark.parametrize("state", ["fitted", "unfitted", "at the moment of fitting", "far beyond it"])
    def test(self, early, bad, state):
        index = CBEIndex(24, 70, vectors="float16", buckets=None)
        if state == "fitted":
            index.fit(X)
        index.add(X[:10])
        n = {"fitted": 9, "unfitted": 9, "at the moment of fitting": 10, "far beyond it": 50}[state]
        make, message = REFUSED[bad]
        before = index.search(QUERIES, 12)
        with pytest.raises(ValueError, match=message.format(last=n - 1)):
            index.add(*make(clustered(n, 24, seed=3)))
        assert index.is_fitted == (state == "fitted")
        assert index.ids.tolist() == list(range(10))
        after = index.search(QUERIES, 12)
        np.testing.assert_array_equal(before.ids, after.ids)
        np.testing.assert_array_equal(before.distances, after.distances)
        assert index.add(X[0]).tolist() == [10]

    def test_norms_whose_squares_overflow(self):
        for metric in ("l2", "ip"):
            index = CBEIndex(24, metric=metric, vectors=None, buckets=None)
            with pytest.raises(ValueError, match="row 2 has values up to 1e\\+30; scale the vectors down"):
                index.add(np.diag([1, 1, 1e30, 1] + 20 * [1])[:4])
            assert len(index) == 0
        index = CBEIndex(24, vectors=None, buckets=None)
        index.add(np.diag([1, 1, 1e30, 1] + 20 * [1])[:4])
        assert index.search(np.eye(24)[2], 1).ids.tolist() == [2]


class TestSparse:
    """Sparse rows are the rows that they stand for."""

    @pytest.mark.parametrize("metric", METRIC_NAMES)
    @pytest.mark.parametrize("make", [scipy.sparse.csr_array, scipy.sparse.csc_matrix, scipy.sparse.coo_array])
    def test_equal_to_dense(self, metric, make):
        rows = np.where(np.random.default_rng(0).random(X.shape) < 0.7, 0, X)
        sparse, plain = (CBEIndex(24, 100, metric=metric, vectors="float32", buckets=None) for _ in range(2))
        sparse.fit(make(rows)).add(make(rows))
        plain.fit(rows).add(rows)
        for options in ({}, {"rerank": "asymmetric"}, {"rerank": None}):
            ours, theirs = sparse.search(make(QUERIES), 9, **options), plain.search(QUERIES, 9, **options)
            np.testing.assert_array_equal(ours.ids, theirs.ids)
            np.testing.assert_allclose(ours.distances, theirs.distances, rtol=1e-5, atol=1e-5)
        one = sparse.search(scipy.sparse.coo_array(QUERIES[0]), 9)
        np.testing.assert_array_equal(one.ids, plain.search(QUERIES[0], 9).ids)
        np.testing.assert_array_equal(dense(sparse.get(IDS)), rows)

    @pytest.mark.parametrize("metric", METRIC_NAMES)
    @pytest.mark.parametrize("kept", ["float32", "float16"])
    @pytest.mark.parametrize("first", [scipy.sparse.csr_array, np.asarray])
    def test_mixed_with_dense(self, early, metric, kept, first):
        """The first rows decide how vectors are kept; which does not show in results, whatever happens to them."""
        rows = np.where(np.random.default_rng(0).random(X.shape) < 0.7, 0, X).astype(kept).astype(np.float32)
        rows[17] = 0
        second = np.asarray if first is scipy.sparse.csr_array else scipy.sparse.csr_array
        index = CBEIndex(24, 70, metric=metric, vectors=kept, buckets=None)
        index.add(first(rows[:25]))
        for start in range(25, 60, 5):
            index.add(second(rows[start : start + 5]))
        index.add(second(rows[[40, 41]]), [3, 50], replace=True)
        rows[[3, 50]] = rows[[40, 41]]
        index.remove([8, 30])
        left = [id_ for id_ in IDS if id_ not in (8, 30)]
        expected = vector_oracles.nearest(metric, QUERIES, rows[left], left, 9)
        radius = float(np.median(expected[0]))
        within = vector_oracles.within(metric, QUERIES, rows[left], left, radius + 1e-4 * abs(radius))
        for again in (copy.copy, lambda i: pickle.loads(pickle.dumps(i)), lambda i: i.compact() or i):
            index = again(index)
            check(index.search(QUERIES, 9), expected)
            check(index.search(first(QUERIES), 9, n_candidates=N), expected)
            result = index.range_search(QUERIES, radius + 1e-4 * abs(radius))
            np.testing.assert_array_equal(result.lims, within[0])
            np.testing.assert_array_equal(result.ids, within[2])
            for ids in (left, left[::-1], [50, 3, 17], [17], []):
                found = index.get(ids)
                assert scipy.sparse.issparse(found) == (first is scipy.sparse.csr_array)
                np.testing.assert_array_equal(dense(found), rows[ids].reshape(-1, 24))
            np.testing.assert_array_equal(np.ravel(dense(index.get(50))), rows[50])
        other = CBEIndex(24, 70, metric=metric, vectors=kept, buckets=None)
        other.add(second(X[:25]), range(100, 125))
        other.merge(index)
        np.testing.assert_array_equal(dense(other.get(left)), rows[left])

    def test_sparse_vectors_take_little_room(self):
        rows = sparse_rows(200, 5_000, density=1e-3)
        index = CBEIndex(5_000, 128, vectors="float32", buckets=None).fit(rows)
        index.add(rows)
        # Five values a row, each with its place, and where the row begins; dense ones would take 4 MB.
        assert index.stats()["bytes"]["vectors"] < 200 * 5_000 * 4 / 50
        assert index.search(rows[:9], 1).ids[:, 0].tolist() == list(range(9))

    def test_long_vectors(self, monkeypatch):
        """Fits on its first rows, of which there are as few as allowed."""
        tune(monkeypatch, first_bytes=2**12)
        dim = 2**17
        rows = sparse_rows(50, dim, density=1e-3)
        index = CBEIndex(dim, 256, vectors=None, buckets=None)
        index.add(rows[:31])
        assert not index.is_fitted
        assert index.stats()["bytes"]["vectors"] < 31 * dim / 50  # sparse from the start
        assert (index.get([3, 5]) != rows[[3, 5]]).nnz == 0
        index.add(rows[31:])
        assert index.is_fitted
        result = index.search(rows[:5], 2)
        assert result.ids[:, 0].tolist() == [0, 1, 2, 3, 4]
        # A vector and itself: within five of the stated standard errors of 0.
        assert (np.abs(result.distances[:, 0]) < 5 * result.errors[:, 0]).all()


def test_inputs():
    """Types, layouts and lists; nothing is written to."""
    rows = np.round(X * 10)
    index = index_of(70, rows, vectors="float32")
    expected = index.search(rows[:4], 5)
    for convert in (
        lambda a: a.astype(np.float64), lambda a: a.astype(np.int16), lambda a: a.astype(np.float16), np.asfortranarray,
        lambda a: np.repeat(np.repeat(a, 2, axis=0), 2, axis=1)[::2, ::2], lambda a: a.tolist(),
    ):  # fmt: skip
        again = CBEIndex(24, 70, vectors="float32", buckets=None).fit(convert(rows))
        again.add(convert(rows))
        result = again.search(convert(rows[:4]), 5)
        np.testing.assert_array_equal(result.ids, expected.ids)
        np.testing.assert_array_equal(result.distances, expected.distances)
    read_only = rows.copy()
    read_only.setflags(write=False)
    CBEIndex(24, 70, vectors=None, buckets=None).fit(read_only).add(read_only)
    np.testing.assert_array_equal(index.search(read_only[:4], 5).ids, expected.ids)


def test_the_index_keeps_its_own_copy():
    for fitted in (True, False):
        rows = X.copy()
        index = CBEIndex(24, vectors="float32", buckets=None)
        if fitted:
            index.fit(rows)
        index.add(rows)
        rows[:] = 0
        np.testing.assert_array_equal(index.get(IDS), X)


def test_get():
    index = index_of(vectors="float16")
    np.testing.assert_array_equal(index.get([5, 2]), X[[5, 2]].astype(np.float16))
    assert index.get(5).shape == (24,)
    assert index.get([5]).shape == (1, 24)
    assert index.get([]).shape == (0, 24)
    assert index.get(5).dtype == np.float32
    codes_only = CBEIndex(24, vectors=None, buckets=None)
    codes_only.add(X)
    np.testing.assert_array_equal(codes_only.get(5), X[5])
    codes_only.fit(X)
    with pytest.raises(ValueError, match='keeps codes only; make it with vectors="float32"'):
        codes_only.get(5)


@pytest.mark.parametrize("fitted", [True, False])
def test_remove_and_compact(fitted):
    index = CBEIndex(24, vectors="float32", buckets=None)
    if fitted:
        index.fit(X)
    index.add(X)
    index.remove([3, 3, 8])
    index.remove(20)
    index.remove([])
    left = [id_ for id_ in IDS if id_ not in (3, 8, 20)]
    expected = vector_oracles.nearest("cosine", QUERIES, X[left], left, 7)
    for _ in range(2):
        assert index.ids.tolist() == left
        check(index.search(QUERIES, 7), expected)
        index.compact()
        assert index.stats()["removed"] == 0
    with pytest.raises(ValueError, match="id 3 is not in the index"):
        index.remove([1, 3])
    assert 1 in index


class TestMerge:
    def halves(self, options, other_options):
        index, other = (
            CBEIndex(24, 70, **{"vectors": None, "buckets": None, **options}),
            CBEIndex(24, 70, **{"vectors": None, "buckets": None, **other_options}),
        )
        for part in (index, other):
            part.fit(X)
        index.add(X[:30])
        other.add(X[30:], range(30, 60))
        return index, other

    def test_same_encoder(self):
        for kept, their_kept in ((None, None), (None, "float32"), ("float32", "float32"), ("float16", "float16")):
            index, other = self.halves({"vectors": kept}, {"vectors": their_kept})
            index.merge(other)
            whole = index_of(70, vectors=kept)
            for options in ({}, {"rerank": None}, {"rerank": "asymmetric"}):
                ours, expected = index.search(QUERIES, 9, **options), whole.search(QUERIES, 9, **options)
                np.testing.assert_array_equal(ours.ids, expected.ids)
                np.testing.assert_array_equal(ours.distances, expected.distances)
            assert len(other) == 30
            assert index.add(X[0]).tolist() == [60]

    @pytest.mark.parametrize("theirs", [{"seed": 1}, {"encoder": "random"}, {"vectors": "float16"}])
    def test_vectors_are_encoded_anew(self, theirs):
        index, other = self.halves({"vectors": "float32"}, {"vectors": "float32"} | theirs)
        index.merge(other)
        rows = np.concatenate([X[:30], other.get(range(30, 60))])
        check(index.search(QUERIES, 9), vector_oracles.nearest("cosine", QUERIES, rows, IDS, 9))
        whole = CBEIndex(24, 70, vectors=None, buckets=None).fit(X)
        whole.add(rows)
        np.testing.assert_array_equal(
            index.search(QUERIES, 9, rerank=None).ids, whole.search(QUERIES, 9, rerank=None).ids
        )

    def test_before_fitting(self, early):
        for n, their_n in ((5, 5), (5, 50), (50, 5), (0, 15), (15, 0), (15, 15)):
            index, other = CBEIndex(24, vectors="float32", buckets=None), CBEIndex(24, vectors="float32", buckets=None)
            index.add(X[:n])
            other.add(X[n : n + their_n], range(n, n + their_n))
            index.merge(other)
            assert index.is_fitted == (n + their_n >= 20)
            ids = list(range(n + their_n))
            check(index.search(QUERIES, 4), vector_oracles.nearest("cosine", QUERIES, X[: len(ids)], ids, 4))

    @pytest.mark.parametrize(
        ("options", "their_options", "message"),
        [
            ({}, {"seed": 1}, "keeps codes only"),
            ({"vectors": "float32"}, {}, "keeps codes only"),
            ({"metric": "l2"}, {}, "other must have dim=24, metric='l2', got dim=24, metric='cosine'"),
        ],
    )
    def test_what_cannot_be_merged(self, options, their_options, message):
        index, other = self.halves(options, their_options)
        with pytest.raises(ValueError, match=message):
            index.merge(other)
        assert index.ids.tolist() == list(range(30))

    def test_taken_ids_and_large_values(self):
        index, other = self.halves({"vectors": "float16"}, {"vectors": "float32"})
        other.add(np.full(24, 1e5), 99)
        with pytest.raises(ValueError, match="has values above 65504"):
            index.merge(other)
        other.remove(99)
        other.add(X[0], 3)
        with pytest.raises(ValueError, match="id 3 is taken"):
            index.merge(other)
        assert index.ids.tolist() == list(range(30))


def test_stats():
    index = CBEIndex(24, 70, metric="l2", vectors="float16", buckets=None)
    index.add(X)
    stats = index.stats()
    assert (stats["dim"], stats["n_bits"], stats["metric"], stats["vectors"]) == (24, 70, "l2", "float16")
    assert (stats["fitted"], stats["rows"], stats["removed"]) == (False, 60, 0)
    assert stats["bytes"]["vectors"] == 60 * 24 * 4
    index.fit(X)
    index.remove([1, 2])
    stats = index.stats()
    assert stats["encoder"] == "CirculantEncoder(dim=24, n_bits=70, kind='orthogonal', seed=0)"
    assert (stats["fitted"], stats["rows"], stats["removed"], stats["segments"]) == (True, 58, 2, 1)
    # Four blocks of 16 codes of two words; three float32 and 24 float16 values a row.
    assert stats["bytes"]["codes"] == 4 * 16 * 16
    assert (stats["bytes"]["vectors"], stats["bytes"]["offsets"]) == (60 * 48, 240)
    assert (stats["kind_of_buckets"], stats["bytes"]["buckets"]) == (None, 0)


def test_repr():
    assert (
        repr(CBEIndex(100, vectors=None, buckets=None)) == "CBEIndex(dim=100, n_bits=100, metric='cosine'): 0 vectors"
    )
    index = CBEIndex(2, 8, metric="ip", vectors="float16", buckets=None)
    index.add(np.ones((1_500, 2)))
    assert repr(index) == "CBEIndex(dim=2, n_bits=8, metric='ip', vectors='float16'): 1,500 vectors"


def test_explain():
    index = index_of(600, vectors="float32")
    explanation = index.explain(QUERIES, 3)
    assert explanation.startswith("5 queries, 3 of 60 vectors each: rerank='exact', because")
    assert explanation.mode == "scan"
    assert explanation.ways["scan"] == (60, 60 * 80)
    assert explanation.splitlines()[1] == "-> scan: about 60 rows and 4,800 bytes a query"
    as_asked = index.explain(QUERIES[0], 3, mode="cascade", rerank=None)
    assert as_asked.splitlines()[0] == "1 queries, 3 of 60 vectors each: as requested"
    assert as_asked.mode == "cascade"
    # Codes of 600 bits are compared whole.
    assert as_asked.splitlines()[2] == "-> cascade: about 60 rows and 4,800 bytes a query"
    with pytest.raises(ValueError, match="n_candidates must be at least k"):
        index.explain(QUERIES, 3, n_candidates=2)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))])
@pytest.mark.parametrize("fitted", [True, False])
def test_copies_are_independent(again, fitted, early):
    index = CBEIndex(24, 70, vectors="float32", buckets=None)
    index.add(X if fitted else X[:18])
    n = len(index)
    index.remove(n - 1)
    other = again(index)
    check(other.search(QUERIES, 5), vector_oracles.nearest("cosine", QUERIES, X[: n - 1], list(range(n - 1)), 5))
    assert other.add(X[:5]).tolist() == list(range(n, n + 5))
    other.remove([0, 1])
    assert index.ids.tolist() == list(range(n - 1))
    assert index.is_fitted == fitted
    assert other.is_fitted
    index.add(X[20:40])
    assert other.ids.tolist() == [*range(2, n - 1), *range(n, n + 5)]
    # Both have an encoder of their own now, and stay as good as they were.
    for each in (index, other):
        rows = each.get(each.ids)
        check(each.search(QUERIES, 5), vector_oracles.nearest("cosine", QUERIES, rows, each.ids.tolist(), 5))


def test_results_can_be_pickled():
    result = index_of().search(QUERIES, 3)
    again = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(again.ids, result.ids)
    np.testing.assert_array_equal(again.errors, result.errors)
    assert again.stats == result.stats


class Halves:
    """A minimal encoder: random rows, a fit that returns nothing, and no words on threads, centres or files."""

    dim, n_bits = 24, 64

    def __init__(self):
        self.rows = np.random.default_rng(0).standard_normal((24, 64))

    def fit(self, rows):
        self.seen = rows.shape[0]

    def project(self, rows):
        return np.asarray(rows) @ self.rows

    def encode(self, rows):
        return np.packbits(self.project(rows) >= 0, axis=-1, bitorder="little")


class TestEncoders:
    """Encoders that users bring."""

    def test_a_fitted_one_stays_as_it_is(self):
        encoder = CirculantEncoder(24, 70, seed=3).fit(vector_oracles.prepared("cosine", X))
        index = CBEIndex(24, encoder=encoder, vectors="float32", buckets=None)
        assert index.is_fitted
        assert index.n_bits == 70
        index.add(X)
        rows, queries = (vector_oracles.prepared("cosine", a).astype(np.float32) for a in (X, QUERIES))
        expected = oracles.nearest(encoder.encode(queries), encoder.encode(rows), np.arange(N), 7)
        np.testing.assert_array_equal(index.search(QUERIES, 7, rerank=None).ids, expected[1])
        check(index.search(QUERIES, 7), vector_oracles.nearest("cosine", QUERIES, X, IDS, 7))
        with pytest.raises(ValueError, match="fitted already"):
            index.fit(X)

    def test_an_unfitted_one_is_fitted_as_a_copy(self, early):
        encoder = CirculantEncoder(24, 70, seed=3)
        index, other = (
            CBEIndex(24, encoder=encoder, vectors=None, buckets=None),
            CBEIndex(24, 70, seed=3, vectors=None, buckets=None),
        )
        assert not index.is_fitted
        for each in (index, other):
            each.add(X)
        assert index.is_fitted
        assert not encoder.is_fitted
        np.testing.assert_array_equal(index.search(QUERIES, 7).ids, other.search(QUERIES, 7).ids)

    @pytest.mark.parametrize("metric", METRIC_NAMES)
    def test_one_that_is_not_ours(self, metric):
        index = CBEIndex(24, metric=metric, encoder=Halves(), vectors="float32", buckets=None)
        index.add(X)
        check(index.search(QUERIES, 7), vector_oracles.nearest(metric, QUERIES, X, IDS, 7))
        encoder = Halves()
        rows, queries = (vector_oracles.prepared(metric, a).astype(np.float32) for a in (X, QUERIES))
        expected = oracles.nearest(encoder.encode(queries), encoder.encode(rows), np.arange(N), 7)
        np.testing.assert_array_equal(index.search(QUERIES, 7, rerank=None).ids, expected[1])
        again = pickle.loads(pickle.dumps(index))
        check(again.search(QUERIES, 7), vector_oracles.nearest(metric, QUERIES, X, IDS, 7))
        other = CBEIndex(24, metric=metric, encoder=Halves(), vectors="float32", buckets=None)
        other.add(QUERIES, range(100, 105))
        index.merge(other)
        assert len(index) == N + 5

    def test_one_that_is_not_ours_gets_dense_rows_to_project(self):
        with tuned(foreign_block_floats=24 * 7):
            sparse, dense = (CBEIndex(24, encoder=Halves(), vectors="float32", buckets=None) for _ in range(2))
            sparse.add(scipy.sparse.csr_array(X))
            dense.add(X)
            for rerank in (None, "asymmetric", "exact"):
                first = sparse.search(scipy.sparse.csr_array(QUERIES), 5, rerank=rerank)
                second = dense.search(QUERIES, 5, rerank=rerank)
                np.testing.assert_array_equal(first.ids, second.ids)
                np.testing.assert_allclose(first.distances, second.distances, rtol=1e-5, atol=1e-6)
            assert sparse.search(scipy.sparse.csr_array((0, 24)), 5).ids.shape == (0, 5)

    def test_one_that_is_not_ours_is_fitted_if_it_says_so(self):
        encoder = Halves()
        vars(encoder)["is_fitted"] = False
        index = CBEIndex(24, encoder=encoder, vectors=None, buckets=None).fit(X)
        assert index.is_fitted
        assert vars(index.encoder)["seen"] == N
        assert not hasattr(encoder, "seen")
        index.add(X)
        assert index.search(X[0], 1).ids.tolist() == [0]

    def test_learned(self):
        index = index_of(64, encoder="learned", vectors="float32")
        check(index.search(QUERIES, 7), vector_oracles.nearest("cosine", QUERIES, X, IDS, 7))


class TestProgress:
    def test_with_tqdm(self, early, capsys):
        pytest.importorskip("tqdm")
        for start in (0, 10, 40):
            index = CBEIndex(24, vectors=None, buckets=None)
            index.add(X[:start])
            index.add(X[start:], progress=True)
            assert len(index) == N
            shown = capsys.readouterr().err
            assert f"{N - start}.0/{N - start}.0" in shown
            assert "100%" in shown
        index.add(X)
        assert capsys.readouterr().err == ""

    def test_of_k_means(self, capsys):
        pytest.importorskip("tqdm")
        with small_buckets():
            CBEIndex(24, buckets="clusters", vectors=None).add(X, progress=True)
            assert "rounds of k-means" in capsys.readouterr().err
            CBEIndex(24, buckets="clusters", vectors=None).add(X)
        assert capsys.readouterr().err == ""

    def test_without_tqdm(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "tqdm", None)
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
        index = CBEIndex(24, vectors=None, buckets=None)
        with pytest.raises(ImportError, match="progress=True needs tqdm: pip install tqdm"):
            index.add(X, progress=True)
        assert len(index) == 0
        index.add(X)
        assert len(index) == N


@pytest.mark.parametrize("n_of_a_thread", [1, 32])
@pytest.mark.parametrize("metric", METRIC_NAMES)
def test_threads_do_not_matter(metric, n_of_a_thread, monkeypatch):
    """More rows than one task has, so that several threads share them, or their queries; and many equal rows."""
    tune(monkeypatch, least_scan_task_bytes=1, least_thread_queries=n_of_a_thread)
    rows = np.tile(X, (10, 1))
    index = CBEIndex(24, 64, metric=metric, vectors="float32", buckets=None).fit(rows)
    index.add(rows, n_threads=3)
    one = CBEIndex(24, 64, metric=metric, vectors="float32", buckets=None).fit(rows)
    one.add(rows, n_threads=1)
    for options in ({}, {"rerank": None}, {"rerank": "asymmetric"}, {"n_candidates": 100}):
        for queries in (QUERIES[:1], QUERIES[:0], scipy.sparse.csr_array(QUERIES), QUERIES):
            expected = one.search(queries, 30, **options, n_threads=1)
            for n_threads in (1, 2, 3, 5, 9):
                result = index.search(queries, 30, **options, n_threads=n_threads)
                np.testing.assert_array_equal(result.ids, expected.ids)
                np.testing.assert_array_equal(result.distances, expected.distances)
                assert result.stats == expected.stats
    radius = float(np.median(expected.distances))
    for rerank in ("exact", "asymmetric"):
        expected = one.range_search(QUERIES, radius, rerank, n_threads=1)
        result = index.range_search(QUERIES, radius, rerank, n_threads=4)
        for ours, theirs in zip(result, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_threads_do_not_matter_to_the_cascade(monkeypatch):
    """Its first queries say that it does not pay: those that come after them are scanned, on any number of threads."""
    tune(monkeypatch, cascade_left_words=25.6)  # at most a fifth of the blocks may survive
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((5_000, 64)).astype(np.float32)
    rows[:5] = rows[0] + 0.01 * rng.standard_normal((5, 64))
    queries = np.concatenate([rng.standard_normal((32, 64)), np.tile(rows[0], (64, 1))]).astype(np.float32)
    index = CBEIndex(64, 2_048, vectors=None, buckets=None).fit(rows)
    index.add(rows)
    one = index.search(queries, 3, "cascade", None, n_threads=1)
    assert one.stats["survivors"] > 64 * len(rows)
    assert index.search(queries[32:], 3, "cascade", None).stats["survivors"] < 64 * len(rows)
    for n_threads in (2, 3, 7):
        more = index.search(queries, 3, "cascade", None, n_threads=n_threads)
        np.testing.assert_array_equal(more.ids, one.ids)
        assert more.stats == one.stats


def test_the_first_bad_query_is_named_on_any_number_of_threads():
    index = CBEIndex(24, 64, vectors=None, buckets=None).fit(X)
    index.add(X)
    queries = np.tile(X[:1], (200, 1))
    queries[[70, 90, 130, 190], 3] = np.nan
    for n_threads in (1, 2, 3, 5):
        with pytest.raises(ValueError, match="queries must be finite in float32, row 70 is not"):
            index.search(queries, 3, n_threads=n_threads)


def test_removed_rows_do_not_make_the_others_longer():
    """Candidates with few entries are read without estimates; those of removed rows do not count for others."""
    rows = sparse_rows(400, 3_000, density=0.03)
    index = CBEIndex(3_000, 64, vectors="float32", buckets=None).fit(rows)
    index.add(rows)
    assert index.search(rows[-1:], 1, "scan", "exact", n_candidates=16).stats["vectors_read"] == 16
    index.remove(range(380))
    assert index.search(rows[-1:], 1, "scan", "exact", n_candidates=16).stats["vectors_read"] == 16


def test_kernels_are_compiled_for_one_layout():
    """Whatever rows have been through: another layout or type would be compiled anew, in seconds."""
    kernels = asymmetric.scan, asymmetric.estimate_rows
    before = [set(getattr(kernel, "signatures", ())) for kernel in kernels]  # tests call them with other arrays, too
    index = CBEIndex(24, 600, vectors="float32", buckets=None).fit(X)
    index.add(np.asfortranarray(X))
    index.search(QUERIES, 3)
    index.remove(3)
    index.search(QUERIES[::2], 3, rerank="asymmetric", allow=[1, 2, 3])
    index.compact()
    index.search(QUERIES, 3, n_candidates=10)
    pickle.loads(pickle.dumps(index)).search(QUERIES[0], 3, n_candidates=10)
    index.range_search(QUERIES, 0.5)
    for kernel, others in zip(kernels, before, strict=True):
        assert len(set(getattr(kernel, "signatures", ())) - others) <= 1


@pytest.mark.parametrize("buckets", [None, "clusters", "substrings"])
def test_explain_counts_the_rows_that_search_scans(buckets):
    """Ids that are not in the index do not make a filter allow more rows."""
    with small_buckets():
        index = index_of(vectors="float32", buckets=buckets)
        for allow in ([1, 2, *range(1_000, 3_000)], [*range(40), *range(1_000, 3_000)], [*range(1_000, 3_000)]):
            text = index.explain(QUERIES, 3, "scan", allow=allow)
            result = index.search(QUERIES, 3, "scan", allow=allow)
            assert text.ways["scan"].rows == result.stats["rows"]
        assert "only the 2 allowed rows are scanned" in index.explain(QUERIES, 3, allow=[1, 2, *range(1_000, 3_000)])


def counting(monkeypatch, owner, name, size=lambda *args: 1):
    """Add up `size` of the arguments of each call of a method."""
    counts, method = [], getattr(owner, name)

    def counted(*args):
        counts.append(size(*args))
        return method(*args)

    monkeypatch.setattr(owner, name, counted)
    return counts


@pytest.mark.parametrize("metric", METRIC_NAMES)
def test_nothing_is_done_twice_when_an_index_fits_itself(metric, early, monkeypatch):
    checked = counting(monkeypatch, Metric, "check", lambda metric, source, first, rows: len(rows))
    geometries = counting(monkeypatch, Geometry, "of")
    index = CBEIndex(24, 64, metric=metric, vectors="float16", buckets=None)
    for start in range(0, N, 15):
        index.add(X[start : start + 15])
    assert index.is_fitted
    assert sum(checked) == N
    assert len(geometries) == 1


def test_batches_of_a_search_share_its_filters(monkeypatch):
    tune(monkeypatch, least_thread_queries=1, query_rows=2)
    index = index_of(vectors="float32")
    looked_up = counting(monkeypatch, Segment, "rows_among")
    index.search(QUERIES, 3, allow=range(40), n_threads=2)
    index.range_search(QUERIES, 0.5, deny=range(40), n_threads=2)
    assert len(looked_up) == 2
