"""UMAP on neighbours that CBENeighborsTransformer has found. It takes long to compile: `make test-umap` installs it."""

import numpy as np
import pytest

umap = pytest.importorskip("umap", reason="umap-learn is not installed: make test-umap")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.neighbors import KNeighborsClassifier  # noqa: E402

from cbeindex.sklearn import CBENeighborsTransformer  # noqa: E402

N_NEIGHBORS, N_KINDS, N_ROWS = 15, 4, 60


@pytest.mark.filterwarnings("ignore:n_jobs value 1 overridden", "ignore:.*transforming new data")
def test_umap_takes_the_graph_as_precomputed_neighbours():
    """Neighbours within a kind put its rows together, whatever vectors UMAP is given; others do not."""
    rng = np.random.default_rng(0)
    kinds = np.repeat(np.arange(N_KINDS), N_ROWS)
    X = 8 * rng.standard_normal((N_KINDS, 40))[kinds] + rng.standard_normal((len(kinds), 40))
    noise = rng.standard_normal(X.shape)

    def score(rows):
        graph = CBENeighborsTransformer(N_NEIGHBORS).fit_transform(rows)
        ids, distances = (some.reshape(len(rows), -1) for some in (graph.indices, graph.data))
        reducer = umap.UMAP(n_neighbors=N_NEIGHBORS, precomputed_knn=(ids, distances), random_state=0, n_epochs=100)
        flat = reducer.fit_transform(noise)
        return KNeighborsClassifier(5).fit(flat[::2], kinds[::2]).score(flat[1::2], kinds[1::2])

    assert score(X) > 0.95
    assert score(noise) < 0.6
