"""Sets are written in the form of ann-benchmarks, and read back as what they were."""

import numpy as np
import pytest

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

from benchmarks import hdf5, sources, truth  # noqa: E402

N, N_QUERIES, DIM = 400, 20, 24
X = np.random.default_rng(0).standard_normal((N + N_QUERIES, DIM)).astype(np.float32)


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.setattr(truth, "CACHE", tmp_path / "cache")
    np.savez(tmp_path / "rows.npz", base=X[:N], queries=X[N:])
    return str(tmp_path / "rows.npz")


@pytest.mark.parametrize(("metric", "distance"), [("cosine", "angular"), ("l2", "euclidean")])
def test_vectors_with_their_neighbours(rows, tmp_path, metric, distance, capsys):
    out = str(tmp_path / "set.hdf5")
    hdf5.main([out, "--data", rows, "--metric", metric])
    assert capsys.readouterr().out == f"{out}: 400 rows and 20 queries of 24 values, {distance}\n"
    with h5py.File(out) as file:
        assert dict(file.attrs) == {"type": "dense", "distance": distance, "dimension": DIM, "point_type": "float"}
        base, queries, ids, distances = (file[key][()] for key in ("train", "test", "neighbors", "distances"))
    if metric == "cosine":
        norms = np.linalg.norm(base, axis=1) * np.linalg.norm(queries, axis=1)[:, np.newaxis]
        naive = 1 - queries @ base.T / norms
    else:
        naive = np.linalg.norm(base - queries[:, np.newaxis], axis=2)
    np.testing.assert_allclose(distances, np.sort(naive)[:, :100], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(naive, ids, axis=1), distances, atol=1e-5)
    again = sources.open_set(out)
    assert again.metric == metric
    np.testing.assert_array_equal(again.truth, ids)


def test_codes_as_a_hamming_set(rows, tmp_path):
    out = str(tmp_path / "set.hdf5")
    hdf5.main([out, "--data", rows, "--bits", "40", "--queries", "5", "--rows", "300"])
    with h5py.File(out) as file:
        assert (file.attrs["distance"], file.attrs["point_type"], file.attrs["dimension"]) == ("hamming", "bit", 40)
        base, queries, ids, distances = (file[key][()] for key in ("train", "test", "neighbors", "distances"))
    assert (base.shape, queries.shape, base.dtype) == ((300, 40), (5, 40), np.bool_)
    naive = (base != queries[:, np.newaxis]).mean(axis=2)
    np.testing.assert_allclose(distances, np.sort(naive)[:, :100])
    np.testing.assert_allclose(np.take_along_axis(naive, ids, axis=1), distances)


def test_what_cannot_be_written_is_said_in_a_line(rows, tmp_path):
    from scipy import sparse

    sparse.save_npz(tmp_path / "sparse.npz", sparse.csr_array(X))
    for data, message in (("nothing", "there is no set 'nothing'"), (str(tmp_path / "sparse.npz"), "is sparse")):
        with pytest.raises(SystemExit, match=message):
            hdf5.main([str(tmp_path / "set.hdf5"), "--data", data])
