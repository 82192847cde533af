"""The estimators inside scikit-learn: its own checks, pipelines, searches over parameters, precomputed graphs."""

import importlib
import sys

import numpy as np
import pytest
from scipy import sparse

from cbeindex import CBEIndex, CirculantEncoder

pytest.importorskip("sklearn", reason="scikit-learn has no wheel for this platform")

from sklearn.base import clone
from sklearn.cluster import DBSCAN
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import TSNE, Isomap
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsTransformer
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from cbeindex.sklearn import CBENeighborsTransformer, CirculantTransformer

X, LABELS = load_digits(return_X_y=True)
X = X[:500].astype(np.float32)
LABELS = LABELS[:500]


@pytest.mark.parametrize(
    "estimator",
    [
        CirculantTransformer(),
        CirculantTransformer(n_bits=33, output="signs", kind="random"),
        CirculantTransformer(output="codes", kind="learned"),
        CBENeighborsTransformer(),
        CBENeighborsTransformer(mode="connectivity", metric="cosine", vectors="float16", n_bits=64),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_checks_of_scikit_learn(estimator):
    """No check fails, and none but that of array API input, which needs a setting of scipy, is skipped."""
    done = check_estimator(estimator, on_fail=None, on_skip=None)
    assert len(done) > 40
    assert {(check["check_name"], check["status"]) for check in done if check["status"] != "passed"} <= {
        ("check_array_api_input", "skipped")
    }


@pytest.mark.parametrize("rows", [X, X.astype(np.float64), sparse.csr_array(X), sparse.csc_matrix(X)])
@pytest.mark.parametrize("n_bits", [None, 20, 100])
def test_transform_is_that_of_the_encoder(rows, n_bits):
    encoder = CirculantEncoder(64, n_bits, seed=3).fit(X)
    options = {"n_bits": n_bits, "random_state": 3}
    projections = CirculantTransformer(**options).fit_transform(rows)
    assert projections.dtype == np.float32
    np.testing.assert_allclose(projections, encoder.project(X), atol=1e-3)
    codes = CirculantTransformer(**options, output="codes").fit_transform(rows)
    signs = CirculantTransformer(**options, output="signs").fit_transform(rows)
    np.testing.assert_array_equal(np.packbits(signs > 0, axis=1, bitorder="little"), codes)
    assert (signs.dtype, set(np.unique(signs))) == (np.int8, {-1, 1})
    assert np.mean(codes != encoder.encode(X)) < 1e-3  # dense and sparse rows are summed in different orders


def test_random_states():
    def codes(state):
        return CirculantTransformer(output="codes", random_state=state).fit_transform(X).tobytes()

    assert codes(5) == codes(5) != codes(6)
    assert codes(np.random.RandomState(1)) == codes(np.random.RandomState(1))
    assert codes(None) != codes(None)


def test_names_of_features_and_frames():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=[f"pixel{i}" for i in range(64)], index=np.arange(500) + 7)
    transformer = CirculantTransformer(n_bits=20, output="codes").set_output(transform="pandas").fit(frame)
    result = transformer.transform(frame)
    names = ["circulanttransformer0", "circulanttransformer1", "circulanttransformer2"]
    assert (list(result.columns), list(transformer.get_feature_names_out())) == (names, names)
    assert result.index.equals(frame.index)
    assert list(transformer.feature_names_in_) == list(frame.columns)
    assert len(CirculantTransformer(n_bits=20).fit(X).get_feature_names_out()) == 20


def test_grid_search_over_bits():
    """More bits classify better: signs of 8 projections are too few for ten digits."""
    pipeline = make_pipeline(CirculantTransformer(output="signs"), LogisticRegression(max_iter=500))
    search = GridSearchCV(pipeline, {"circulanttransformer__n_bits": [8, 256]}, cv=3).fit(X, LABELS)
    assert search.best_params_ == {"circulanttransformer__n_bits": 256}
    few, many = search.cv_results_["mean_test_score"]
    assert many > 0.85 > 0.75 > few
    copy = clone(search.best_estimator_)
    assert copy.get_params()["circulanttransformer__n_bits"] == 256
    with pytest.raises(NotFittedError):
        copy.predict(X)


@pytest.mark.parametrize("mode", ["distance", "connectivity"])
@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "cosine"])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_graph_is_that_of_exact_search(mode, metric, form):
    """With every vector as a candidate the graph is exact, so it equals that of scikit-learn."""
    options = {"n_neighbors": 6, "mode": mode, "metric": metric}
    ours = CBENeighborsTransformer(**options, search_options={"n_candidates": 400}).fit(form(X[:400]))
    theirs = KNeighborsTransformer(**options, algorithm="brute").fit(X[:400])
    for rows in (X[:400], X[400:]):
        graph, wanted = ours.transform(form(rows)), theirs.transform(rows)
        assert graph.shape == wanted.shape
        assert graph.nnz == wanted.nnz == len(rows) * (7 if mode == "distance" else 6)
        tolerance = 1e-5 if metric == "cosine" else 1e-3
        if mode == "distance":  # equal distances may belong to other rows
            np.testing.assert_allclose(graph.data, np.sort(wanted.data.reshape(-1, 7)).ravel(), atol=tolerance)
            assert (np.diff(graph.data.reshape(-1, 7)) >= 0).all()
        ids, wanted_ids = (np.sort(some.indices.reshape(len(rows), -1)) for some in (graph, wanted))
        assert np.mean(ids == wanted_ids) > 0.99


def test_rows_themselves_are_first():
    graph = CBENeighborsTransformer(4, metric="cosine").fit_transform(X)
    np.testing.assert_array_equal(graph.indices.reshape(-1, 5)[:, 0], np.arange(500))
    np.testing.assert_array_equal(graph.data.reshape(-1, 5)[:, 0], 0)


def test_classifier_on_a_precomputed_graph():
    exact = KNeighborsClassifier(5).fit(X[:400], LABELS[:400]).score(X[400:], LABELS[400:])
    pipeline = make_pipeline(CBENeighborsTransformer(8), KNeighborsClassifier(5, metric="precomputed"))
    assert abs(pipeline.fit(X[:400], LABELS[:400]).score(X[400:], LABELS[400:]) - exact) < 0.03
    search = GridSearchCV(pipeline, {"cbeneighborstransformer__n_bits": [16, 64]}, cv=3).fit(X, LABELS)
    assert search.best_score_ > 0.9


def test_clusters_and_embeddings_of_a_precomputed_graph():
    rng = np.random.default_rng(0)
    blobs = np.repeat(10 * np.eye(3, 32), 40, axis=0) + rng.standard_normal((120, 32))
    kinds = np.repeat(np.arange(3), 40)
    labels = make_pipeline(CBENeighborsTransformer(30), DBSCAN(eps=9, min_samples=5, metric="precomputed")).fit_predict(
        blobs
    )
    np.testing.assert_array_equal(labels, kinds)
    tsne = TSNE(perplexity=8, metric="precomputed", init="random", random_state=0, max_iter=300)
    flat = make_pipeline(CBENeighborsTransformer(32), tsne).fit_transform(blobs)
    assert KNeighborsClassifier(3).fit(flat[::2], kinds[::2]).score(flat[1::2], kinds[1::2]) > 0.95
    isomap = Isomap(n_neighbors=60, n_components=2, metric="precomputed")
    flat = make_pipeline(CBENeighborsTransformer(60), isomap).fit_transform(blobs)
    assert KNeighborsClassifier(3).fit(flat[::2], kinds[::2]).score(flat[1::2], kinds[1::2]) > 0.95


def test_options_reach_the_index():
    transformer = CBENeighborsTransformer(n_bits=32, vectors="float16", buckets="clusters", random_state=9, n_jobs=2)
    index = transformer.fit(X).index_
    assert list(transformer.get_feature_names_out()[:2]) == ["cbeneighborstransformer0", "cbeneighborstransformer1"]
    assert isinstance(index, CBEIndex)
    assert (index.n_bits, index.vectors, index.buckets) == (32, "float16", "clusters")
    assert index.encoder.config()["seed"] == 9


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (CirculantTransformer(output="bits"), "output must be one of 'projections', 'signs', 'codes', got 'bits'"),
        (CirculantTransformer(n_bits=0), "n_bits must be at least 1"),
        (CirculantTransformer(kind="flat"), "kind must be one of"),
        (CBENeighborsTransformer(metric="ip"), "metric must be one of 'cosine', 'euclidean', 'sqeuclidean', got 'ip'"),
        (CBENeighborsTransformer(mode="graph"), "mode must be one of 'distance', 'connectivity', got 'graph'"),
        (CBENeighborsTransformer(n_neighbors=0), "n_neighbors must be at least 1, got 0"),
        (CBENeighborsTransformer(n_neighbors=500), "n_neighbors must be below n_samples_fit = 500, got 500"),
        (CBENeighborsTransformer(vectors=None), "vectors must be .* because distances come from vectors, got None"),
    ],
)
def test_bad_parameters(estimator, message):
    with pytest.raises(ValueError, match=message):
        estimator.fit_transform(X)


def test_without_scikit_learn(monkeypatch):
    monkeypatch.delitem(sys.modules, "cbeindex.sklearn")
    monkeypatch.setitem(sys.modules, "joblib", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs joblib, .*pip install "cbeindex\[sklearn\]"'):
        importlib.import_module("cbeindex.sklearn")
