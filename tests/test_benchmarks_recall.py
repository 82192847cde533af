"""The main benchmark: recall that is known, contenders that fail, loaders of every format, and the report."""

import argparse
import importlib.util
import json
import os
import re
import struct
import sys
import types
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from benchmarks import __main__ as command
from benchmarks import adapter, contenders, curves, datasets, page, recall, sources, truth
from benchmarks.adapter import Setting, Task
from tests.known_contenders import KNOWN, naive_nearest, random_ids

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    """Nothing comes from, or goes to, the folders of the user."""
    monkeypatch.setattr(truth, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets, "SHARED", tmp_path / "shared")


@pytest.fixture(autouse=True)
def _same_cores():
    """Adapters that are made here pin this process: it gets its cores back."""
    if not hasattr(os, "sched_getaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    yield
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


def vectors(n=60, dim=16, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


# ---- Truth and recall


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_true_neighbours_in_blocks(metric, form, monkeypatch):
    monkeypatch.setattr(truth, "_BLOCK_FLOATS", 7 * 16)
    base, queries = vectors(), vectors(7, seed=1)
    base[50] = base[3]  # a tie: the first comes first
    if metric == "cosine":
        base, queries = unit(base), unit(queries)
    found = truth.nearest(form(base), form(queries), metric, 12)
    np.testing.assert_array_equal(found, naive_nearest(base, queries, 12))
    assert truth.nearest(form(base), form(queries), metric).shape == (7, 60)


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_rows_far_from_the_origin(metric):
    """Squares of 1e8, distances of 200: float32 products lose them, and 2e-6 of the squares is as much as they are."""
    base, queries = 1_000 + vectors(2_000, 100), 1_000 + vectors(20, 100, seed=1)
    if metric == "cosine":
        base, queries = unit(base), unit(queries)
    right = naive_nearest(base, queries, 20)
    np.testing.assert_array_equal(truth.nearest(base, queries, metric, 20), right)
    data = truth.with_truth(datasets.Dataset("far", base, queries, metric=metric))
    assert truth.recall_curve(data, right)[-1] == 1
    # One in 200 is expected to be among the ten of 2,000 by chance; of 200 answers, about one.
    assert truth.recall_curve(data, random_ids(20, 2_000, 10))[-1] < 0.03
    if metric == "l2":
        with pytest.raises(ValueError, match="true neighbours of far"):
            truth.with_truth(datasets.Dataset("far", base, queries, random_ids(20, 2_000, 20), metric))


def test_recall_of_perfect_and_random_answers():
    data = truth.with_truth(datasets.Dataset("tiny", unit(vectors()), unit(vectors(7, seed=1))))
    perfect = truth.recall_curve(data, naive_nearest(data.base, data.queries, 20))
    np.testing.assert_allclose(perfect, np.minimum(np.arange(1, 21), 10) / 10)
    ids = random_ids(7, 60, 30)
    shares = [len(set(ids[i]) & set(data.truth[i, :10])) / 10 for i in range(7)]
    assert 0.3 < np.mean(shares) < 0.7
    assert truth.recall_curve(data, ids)[-1] == pytest.approx(np.mean(shares))
    assert truth.recall_curve(data, np.full((7, 5), -1)).tolist() == [0] * 5


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_ties_count_and_repetitions_do_not(form):
    base = np.eye(16, dtype=np.float32)[[0] * 9 + [1] * 5 + [2]]
    query = unit(np.array([[1, 0.5, 0.2] + [0] * 13], dtype=np.float32))
    data = truth.with_truth(datasets.Dataset("tiny", form(base), form(query)))
    nine = list(range(9))
    # The tenth is any of five equal rows; more than one of them does not count for the nine.
    assert truth.recall_curve(data, np.array([[*nine, 12]]))[-1] == 1
    assert truth.recall_curve(data, np.array([[9, 10, 11, 12, 13, 14, -1]]))[-1] == 0.5
    assert truth.recall_curve(data, np.array([[*nine, 14]]))[-1] == 0.9
    assert truth.recall_curve(data, np.array([[0] * 10])).tolist() == [0.1] * 10


def test_truth_is_cached_and_a_broken_cache_mended():
    data = datasets.Dataset("tiny", unit(vectors()), unit(vectors(7, seed=1)))
    first = truth.with_truth(data).truth
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truth, "nearest", lambda *_, **__: pytest.fail("computed again"))
        np.testing.assert_array_equal(truth.with_truth(data).truth, first)
    (file,) = truth.CACHE.iterdir()
    file.write_bytes(b"no")
    np.testing.assert_array_equal(truth.with_truth(data).truth, first)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(truth, "CACHE", tmp_path / "file" / "cache")
    data = datasets.Dataset("tiny", unit(vectors()), unit(vectors(7, seed=1)))
    assert truth.with_truth(data).truth.shape == (7, 60)


def test_wrong_truth_is_noticed():
    base, queries = vectors(), vectors(7, seed=1)
    right = naive_nearest(base, queries, 20)
    data = truth.with_truth(datasets.Dataset("given", base, queries, right, "l2"))
    np.testing.assert_array_equal(data.truth, right)
    for wrong in (right[:, ::-1], right + 100):
        with pytest.raises(ValueError, match="true neighbours of given"):
            truth.with_truth(datasets.Dataset("given", base, queries, wrong, "l2"))


# ---- Files


def write_vecs(path, rows, dtype):
    with path.open("wb") as file:
        for row in rows:
            file.write(struct.pack("<i", len(row)) + np.asarray(row, dtype=dtype).tobytes())


def write_bin(path, rows):
    path.write_bytes(struct.pack("<II", *rows.shape) + rows.astype("<f4").tobytes())


def write_hdf5(path, **arrays):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file.attrs["distance"] = "euclidean"
        for name, array in arrays.items():
            file[name] = array


def test_files_with_queries(tmp_path):
    base, queries = np.abs(vectors() * 50).round().astype(np.uint8), np.abs(vectors(7, seed=1) * 50).astype(np.uint8)
    floats, asked = base.astype(np.float32), queries.astype(np.float32)
    right = naive_nearest(floats, asked, 30)
    np.savez(tmp_path / "plain.npz", base=base, queries=queries)
    np.savez_compressed(tmp_path / "given.npz", base=floats, queries=asked, truth=right.astype(np.int32))
    write_vecs(tmp_path / "x_base.bvecs", base, np.uint8)
    write_vecs(tmp_path / "x_query.bvecs", queries, np.uint8)
    write_vecs(tmp_path / "x_groundtruth.ivecs", right, "<i4")
    write_vecs(tmp_path / "y_base.fvecs", base, "<f4")
    write_vecs(tmp_path / "y_query.fvecs", queries, "<f4")
    write_vecs(tmp_path / "z.base.ivecs", base, "<i4")
    np.save(tmp_path / "z.queries.npy", queries)
    write_bin(tmp_path / "base.fbin", base)
    write_bin(tmp_path / "query.fbin", queries)
    sparse.save_npz(tmp_path / "s.base.npz", sparse.csr_array(floats))
    sparse.save_npz(tmp_path / "s.queries.npz", sparse.csr_array(asked))
    names = ["plain.npz", "given.npz", "x_base.bvecs", "y_base.fvecs", "z.base.ivecs", "base.fbin", "s.base.npz"]
    if importlib.util.find_spec("h5py"):
        write_hdf5(tmp_path / "ann.hdf5", train=floats, test=asked, neighbors=right)
        names.append("ann.hdf5")
    for name in names:
        data = sources.open_set(str(tmp_path / name), metric="l2")
        opened = data.base.toarray() if name.startswith("s.") else data.base
        np.testing.assert_array_equal(opened, floats)
        assert data.metric == "l2"
        assert data.queries.shape == (7, 16)
        assert data.truth.shape == (7, 30 if name in ("given.npz", "x_base.bvecs", "ann.hdf5") else 60)
        np.testing.assert_array_equal(truth.distances_to(data, data.truth[:, :30]), truth.distances_to(data, right))


def test_files_without_queries(tmp_path):
    base = vectors(100)
    np.save(tmp_path / "rows.npy", base.astype(np.float16))
    sparse.save_npz(tmp_path / "rows.npz", sparse.csr_array(base))
    for name in ("rows.npy", "rows.npz"):
        data = sources.open_set(str(tmp_path / name))
        assert (data.metric, data.base.shape, data.queries.shape) == ("cosine", (90, 16), (10, 16))
        np.testing.assert_allclose(truth.squared_norms(data.base), 1, rtol=1e-5)
    cut = sources.open_set(str(tmp_path / "rows.npy"), n_rows=50, n_queries=3)
    assert (cut.base.shape, cut.queries.shape, cut.truth.shape) == ((50, 16), (3, 16), (3, 50))


@pytest.mark.parametrize("has_queries", [False, True])
def test_only_rows_that_are_wanted_are_converted(has_queries, tmp_path, monkeypatch):
    base, queries = vectors(3_000, 4), vectors(7, 4, seed=1)
    given = naive_nearest(base, queries, 30)
    np.save(tmp_path / "x_base.npy", base.astype(np.float64))
    names = ["x_base.npy"]
    if has_queries:
        np.save(tmp_path / "x_query.npy", queries)
        write_vecs(tmp_path / "x_groundtruth.ivecs", given, "<i4")
        if importlib.util.find_spec("h5py"):
            write_hdf5(tmp_path / "ann.hdf5", train=base, test=queries, neighbors=given)
            names.append("ann.hdf5")
    converted = []
    as_floats = sources._as_floats
    monkeypatch.setattr(sources, "_as_floats", lambda rows, name: converted.append(len(rows)) or as_floats(rows, name))
    for name in names:
        converted.clear()
        data = sources.open_set(str(tmp_path / name), metric="l2", n_rows=500)
        assert converted[0] == (500 if has_queries else 1_500)
        assert data.base.shape == (500, 4)
        np.testing.assert_array_equal(data.truth[:, :20], naive_nearest(data.base, data.queries, 20))


def test_hdf5_says_its_metric(tmp_path):
    write_hdf5(tmp_path / "ann.hdf5", train=vectors(), test=vectors(3, seed=1))
    assert sources.open_set(str(tmp_path / "ann.hdf5")).metric == "l2"
    assert sources.open_set(str(tmp_path / "ann.hdf5"), metric="cosine").metric == "cosine"


def test_rows_of_zeros_have_no_cosine(tmp_path):
    base = vectors()
    base[5] = 0
    np.savez(tmp_path / "zeros.npz", base=base, queries=vectors(4, seed=1), truth=np.zeros((4, 20), dtype=np.int32))
    assert sources.open_set(str(tmp_path / "zeros.npz")).base.shape == (59, 16)


def test_synthetic_has_the_angles_it_was_asked_for():
    data = sources.synthetic(3_000, 64, 50, angles=(60, 30))
    nearest = truth.nearest(data.base, data.queries, "cosine", 10)
    angles = np.degrees(np.arccos(1 - truth.distances_to(data, nearest) / 2))
    # Two rows at angles a and b from their centre are at about acos(cos a cos b): 21 degrees for 15, 59 for 45.
    assert np.percentile(angles, 10) > 21
    assert np.percentile(angles, 90) < 59


def test_docstrings(monkeypatch):
    from examples import docstrings as example

    texts = [(f"f{i}", f"word{i} word{i % 7} word{i % 11} and others") for i in range(80)] * 2
    monkeypatch.setattr(example, "read_docstrings", lambda roots: iter(texts))
    data = sources.open_set("docstrings", n_rows=50)
    assert data.base.shape == (50, example.DIM)  # what is there twice is read once
    assert data.queries.shape[0] == 8
    monkeypatch.setattr(example, "read_docstrings", lambda roots: pytest.fail("read again"))
    np.testing.assert_array_equal(sources.open_set("docstrings", n_rows=50).truth, data.truth)


def damaged(tmp_path):
    """Files that are not what their name says, and what is said of them."""
    np.save(tmp_path / "cut.npy", vectors())
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-3])
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "short.fvecs").write_bytes(b"\x10\0\0\0abc")
    (tmp_path / "empty.fbin").write_bytes(b"")
    (tmp_path / "none.txt").write_text("1 2 3")
    (tmp_path / "no.hdf5").write_text("not HDF5")
    np.savez(tmp_path / "dims.npz", base=vectors(), queries=vectors(3, 8))
    np.savez(tmp_path / "truth.npz", base=vectors(), queries=vectors(3), truth=np.zeros((2, 10), dtype=int))
    np.savez(tmp_path / "keys.npz", one=vectors(), two=vectors())
    np.save(tmp_path / "nan.npy", np.full((20, 4), np.nan))
    np.save(tmp_path / "few.npy", vectors(6))
    hdf5 = importlib.util.find_spec("h5py") is not None
    return {
        "cut.npy": "bytes",
        "text.npz": "archive",
        "short.fvecs": "multiple",
        "empty.fbin": "empty",
        "none.txt": "must end in",
        "no.hdf5": "must be HDF5" if hdf5 else "needs h5py",
        "dims.npz": "16 dimensions",
        "truth.npz": "true neighbours",
        "keys.npz": "key",
        "nan.npy": "finite",
        "few.npy": "10 rows",
        "missing.npy": "no file",
    }


def test_errors_have_one_line_and_exit_code_2(tmp_path, capsys):
    cases = [(["--data", str(tmp_path / name)], said) for name, said in damaged(tmp_path).items()]
    cases += [
        (["--data", "nothing"], "the sets are docstrings"),
        (["--contenders", "cbeindex", "nobody"], "no contender 'nobody'"),
        (["--redraw", "--output", str(tmp_path / "none")], "recall.jsonl"),
    ]
    for arguments, said in cases:
        with pytest.raises(SystemExit) as raised:
            command.main(["recall", "--encode-dims", "--output", str(tmp_path / "report"), *arguments])
        assert raised.value.code == 2
        error = capsys.readouterr().err.splitlines()
        line = [line for line in error if line.startswith("error: ")]
        assert len(line) == 1, error
        assert said in line[0]
    with pytest.raises(SystemExit) as raised:
        recall.main(["--threads", "0"])
    assert raised.value.code == 2


def test_an_earlier_run_stays_until_data_is_read(tmp_path):
    damaged(tmp_path)
    (tmp_path / "recall.jsonl").write_text("earlier")
    with pytest.raises(SystemExit):
        recall.main(["--data", str(tmp_path / "nan.npy"), "--output", str(tmp_path)])
    assert (tmp_path / "recall.jsonl").read_text() == "earlier"


def test_what_is_said_counts_and_the_rest_is_filled_in():
    said = ["--depth", "7", "9", "--seconds", "0", "--rounds", "4"]
    for how in (["--data", "synthetic"], ["--quick"], []):
        options = recall.parse([*how, *said])
        assert (options.depth, options.seconds, options.rounds) == ([7, 9], 0, 4)
    options = recall.parse(["--data", "synthetic"])
    assert (options.depth, options.seconds, options.rounds) == ([100, 400], 0.5, 7)
    options = recall.parse([])
    assert (options.depth, options.seconds, options.rounds) == ([100], 0.25, 7)
    options = recall.parse(["--quick"])
    assert (options.depth, options.seconds, options.rounds) == ([100], 0, 1)


# ---- Contenders


def make_task(folder, base, queries, n_bits=64, batch=4):
    from cbeindex import CirculantEncoder

    is_sparse = hasattr(base, "toarray")
    encoder = CirculantEncoder(base.shape[1], n_bits).fit(base)
    task = Task(str(folder), base.shape[0], base.shape[1], n_bits, "cosine", is_sparse, 1, batch)
    task.write(base, queries, encoder.encode(base), encoder)
    return task


# Some compare bytes in place of vectors. Values are within 0.6 of 0, so that a byte is off by 0.6 / 255 at most, a row
# of 64 by e = 0.019, and its squared distance of at most 2.5 by 2 sqrt(2.5) e + e^2 = 0.06; two distances by 0.12.
ROUNDING = {"HNSW32_SQ8": 0.12, "zvec": 0.12}


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("name", contenders.REGISTRY)
def test_adapters_find_neighbours(name, form, tmp_path):
    kind = contenders.class_of(name)
    if kind.package is not None:
        pytest.importorskip(kind.package)
    n = 200 if kind.group == "ours" else 600  # ours runs uncompiled too
    # One by lists takes more queries in a call than the 64 lists that it has.
    n_queries, batch = (70, 66) if name == "BinaryIVF-by-list" else (9, 4)
    base = unit(vectors(n, 64))
    queries = unit(base[:n_queries] + 0.02 * vectors(n_queries, 64, seed=1))
    task = make_task(tmp_path, form(base), form(queries), batch=batch)
    assert contenders.why_not(name, task) is None
    made = kind(task)
    built = made.built()
    assert built["build_seconds"] > 0
    assert built["build_bytes"] is None or built["build_bytes"] >= 0
    sweeps = kind.sweeps(task, [20], 30, 10)
    assert {sweep[0].kind for sweep in sweeps} == set(kind.kinds)
    for sweep in sweeps:
        way = sweep[-1]
        result = made.run(way)
        assert result["ids"].shape == (n_queries, way.k)
        assert result["total"] > 0
        assert min(result["encode"], result["rerank"]) >= 0
        assert (result["ids"] < n).all()
        # Its own row is nearest, at an angle of some degrees: whoever looks at enough finds it.
        assert np.mean(result["ids"][:, 0] == np.arange(n_queries)) > 0.6
        if way.kind == "exact":
            order = truth.distances_to(datasets.Dataset("", base, queries), result["ids"])
            rounding = ROUNDING.get(name, 1e-6)
            assert (np.diff(order[np.isfinite(order).all(axis=1)], axis=1) >= -rounding).all()


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("form", ["dense", "cosine", "l2"])
def test_rerankers_agree_with_numpy(form, n_threads):
    base, queries = vectors(50), vectors(26, seed=1)
    base[base < 0.3] = 0
    if form == "cosine":
        base, queries = unit(base), unit(queries)
    ids = random_ids(26, 50, 20)
    ids[2, 15:] = -1
    if form == "dense":
        pytest.importorskip("faiss")
        found = adapter.rerank_dense(base)(queries, ids, 5, n_threads)
    else:
        ids[3, 4:8] = ids[4] = ids[5, :17] = -1
        reranker = adapter.SparseReranker(sparse.csr_array(base), form)
        found = reranker(sparse.csr_array(queries), ids, 5, n_threads)
    distances = ((queries[:, np.newaxis] - base[ids]) ** 2).sum(axis=2)
    distances[ids < 0] = np.inf
    np.testing.assert_array_equal(found, np.take_along_axis(ids, np.argsort(distances, axis=1)[:, :5], axis=1))


def test_what_does_not_fit_is_left_out_with_a_reason():
    pytest.importorskip("faiss")
    large = Task("", 57_000, 25_600, 4_096, "cosine", False, 1, 1_000)
    assert contenders.class_of("LSH").refuses(large) == "needs a rotation of 2.6 GB"
    assert contenders.class_of("RaBitQ").refuses(large) == "needs a rotation of 2.6 GB"
    assert contenders.class_of("BinaryFlat").refuses(large) is None
    scattered = Task("", 57_000, 25_600, 4_096, "cosine", True, 1, 1_000)
    assert "dense vectors only, 5.8 GB" in contenders.class_of("hnswlib").refuses(scattered)
    short = Task("", 1_000, 100, 1_024, "cosine", False, 1, 1_000)
    assert contenders.class_of("ITQ,LSH").refuses(short) == "has 100 bits at most"
    assert contenders.class_of("HR,LSH").refuses(short) == "has 128 bits at most"


def test_lists_go_by_list_only_under_more_queries():
    pytest.importorskip("faiss")
    kind = contenders.class_of("BinaryIVF-by-list")
    assert kind.refuses(Task("", 1_000, 100, 64, "cosine", False, 1, 65)) is None
    said = kind.refuses(Task("", 1_000, 100, 64, "cosine", False, 1, 64))
    assert said == "needs more queries in a call than its 64 lists, got 64"


def test_a_brief_run_thins_long_sweeps_alone():
    for n in range(1, 5):
        assert recall.thinned(list(range(n)), 2) == list(range(n))
    assert recall.thinned(list(range(5)), 2) == [0, 2, 4]
    assert recall.thinned(list(range(6)), 2) == [1, 3, 5]
    assert recall.thinned(list(range(6)), 1) == list(range(6))


def test_groups_of_contenders():
    assert contenders.chosen(["ours", "BinaryFlat", "cbeindex"]) == [
        *(name for name in contenders.REGISTRY if name.startswith("cbeindex")),
        "BinaryFlat",
    ]
    assert contenders.chosen(None) == list(contenders.REGISTRY)


# ---- A whole run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Known contenders, some of them failing, next to ours and to one of faiss; rows and folder of the report."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truth, "CACHE", folder / "cache")
        patch.setattr(contenders, "REGISTRY", {**contenders.REGISTRY, **KNOWN})
        patch.setattr(curves, "REGISTRY", contenders.REGISTRY)
        patch.setenv("NUMBA_DISABLE_JIT", "0")
        np.savez(folder / "tiny & small.npz", base=vectors(300, 32), queries=vectors(8, 32, seed=1))
        arguments = ["--data", str(folder / "tiny & small.npz"), "--bits", "256", "--depth", "50"]
        known = [name for name in KNOWN if name != "Hanging"]
        names = ["cbeindex", *(["BinaryFlat"] if importlib.util.find_spec("faiss") else []), *known]
        arguments += ["--contenders", *names, "--rounds", "2", "--seconds", "0", "--encode-dims"]
        assert command.main(["recall", *arguments, "--output", str(folder / "report")]) == 0
    rows = [json.loads(line) for line in (folder / "report" / "recall.jsonl").read_text().splitlines()]
    return types.SimpleNamespace(rows=rows, folder=folder / "report", data=folder / "tiny & small.npz")


def test_failures_are_reported_and_the_rest_goes_on(run):
    states = {row["contender"]: (row["status"], row["reason"]) for row in run.rows if row["table"] == "contender"}
    assert states["Perfect"] == states["Random"] == states["cbeindex"] == ("ok", "")
    assert states["Crashing"][0] == "failed at depth 50"
    assert "exit code 7" in states["Crashing"][1]
    assert states["Raising"] == ("failed", "RuntimeError: no room for an index")
    assert states["Foolish"][0] == states["Wordless"][0] == "failed at codes alone"
    assert "ids must be below 300" in states["Foolish"][1]
    assert states["Wordless"][1] == "KeyError: 'ids'"
    points = [row for row in run.rows if row["table"] == "point"]
    # What was measured before a failure stays: one answers once in each process.
    assert [(p["kind"], p["rounds"]) for p in points if p["contender"] == "Crashing"] == [("codes", 1)]
    measured = {point["contender"] for point in points}
    assert measured == {"Crashing", *(name for name, (state, _) in states.items() if state == "ok")}


def test_a_hanging_contender_is_given_up(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(contenders, "REGISTRY", {"Hanging": KNOWN["Hanging"], "Perfect": KNOWN["Perfect"]})
    np.save(tmp_path / "rows.npy", vectors(100))
    options = ["--timeout", "6", "--rounds", "1", "--bits", "64", "--encode-dims", "--output", str(tmp_path / "report")]
    recall.main(["--data", str(tmp_path / "rows.npy"), *options])
    rows = [json.loads(line) for line in (tmp_path / "report" / "recall.jsonl").read_text().splitlines()]
    states = {row["contender"]: row["reason"] for row in rows if row["table"] == "contender"}
    assert "gave no answer in 6 s" in states["Hanging"]
    assert states["Perfect"] == ""
    assert "gave no answer in 6 s" in capsys.readouterr().out


def test_points_have_known_recall(run):
    points = [row for row in run.rows if row["table"] == "point"]
    data = sources.open_set(str(run.data))
    for point in points:
        if point["contender"] == "Perfect":
            np.testing.assert_allclose(point["recall"], np.minimum(np.arange(1, point["k"] + 1), 10) / 10)
        assert point["us_total"] == pytest.approx(1e6 / point["qps"])
        assert point["us_encode"] + point["us_search"] + point["us_rerank"] == pytest.approx(point["us_total"])
        assert point["us_min"] <= point["us_total"] <= point["us_max"]
    (random,) = (p for p in points if p["contender"] == "Random" and p["kind"] == "codes")
    expected = truth.recall_curve(data, random_ids(8, 300, 100))
    np.testing.assert_allclose(random["recall"], expected, atol=1e-5)
    # The same hundred rows, re-ranked to a depth of 50: what is there is found.
    (ranked,) = (p for p in points if p["contender"] == "Random" and p["kind"] == "exact")
    assert (ranked["k"], ranked["depth"]) == (10, 50)
    assert ranked["recall"][-1] == pytest.approx(truth.recall_curve(data, random_ids(8, 300, 50))[-1], abs=1e-5)


def test_report_files_open(run):
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    pictures = sorted(run.folder.glob("*.png"))
    assert len(pictures) == 3
    for picture in pictures:
        assert imread(picture).shape[0] > 300
        assert picture.with_suffix(".svg").read_text().rstrip().endswith("</svg>")
    text = (run.folder / "index.html").read_text()
    assert text.count("<img") == 3
    for said in ("cbeindex", "Perfect", "exit code 7", "no room for an index", "numba", "tiny &amp; small"):
        assert said in text
    assert "tiny & small" not in text


def test_page_needs_nothing_from_elsewhere(run):
    text = (run.folder / "index.html").read_text()
    assert not re.findall(r"https?://|//cdn|@import|<script|<link|url\(", text)
    assert all(source.startswith("data:image/svg+xml;base64,") for source in re.findall(r'src="([^"]*)"', text))


def test_redraw(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(contenders, "REGISTRY", {**contenders.REGISTRY, **KNOWN})
    monkeypatch.setattr(curves, "REGISTRY", contenders.REGISTRY)
    (tmp_path / "recall.jsonl").write_text((run.folder / "recall.jsonl").read_text())
    recall.main(["--redraw", "--output", str(tmp_path)])
    assert (tmp_path / "index.html").read_text() == (run.folder / "index.html").read_text()
    assert "index.html" in capsys.readouterr().out


def test_page_without_plots(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    recall.write_report(tmp_path, run.rows, [0.9])
    assert "need matplotlib" in capsys.readouterr().err
    assert "<img" not in (tmp_path / "index.html").read_text()


# ---- What is said of points


def point(name, group, recall_, qps, kind="codes"):
    times = dict.fromkeys(("us_encode", "us_search", "us_rerank", "us_total", "us_min", "us_max"), 1.0)
    about = {"parameter": None, "parameter_name": "", "depth": None}
    return {"contender": name, "group": group, "recall": [0.0, recall_], "qps": qps, "kind": kind, **times, **about}


def test_who_is_ahead():
    points = [
        point("ours", "ours", 0.99, 100.0),
        point("ours", "ours", 0.92, 400.0),
        point("ours", "ours", 0.91, 300.0),
        point("flat", "binary", 0.96, 50.0),
        point("graph", "outside", 0.995, 200.0),
        point("graph", "outside", 0.93, 300.0),
    ]
    assert [p["qps"] for p in curves.frontier(points[:3])] == [400.0, 100.0]
    compared = curves.compare(points, [0.9, 0.95, 0.993])
    assert [cell.factor for cell in compared["flat"]] == [8.0, 2.0, None]
    assert [cell.text for cell in compared["graph"]] == ["1.33", "0.50", "we never"]
    assert compared["flat"][2].text == "never"
    ahead = [(line[0], line[-1]) for line in curves.verdict_table(points, [0.9, 0.95, 0.993])[1:]]
    assert ahead == [
        ("0.9", "cbeindex 8.00x"),
        ("0.9", "cbeindex 1.33x"),
        ("0.95", "cbeindex 2.00x"),
        ("0.95", "graph 2.00x"),
        ("0.993", "nobody"),
        ("0.993", "graph"),
    ]
    text = curves.as_text(curves.comparison_table(points, [0.9]))
    assert len({len(line.rstrip()) for line in text.splitlines()}) == 1
    assert page.html([], {}, [0.9]).startswith("<!DOCTYPE html>")


def test_a_sweep_ends_when_more_finds_no_more():
    class Process:
        def call(self, method, setting):
            return {
                "ids": naive_nearest(data.base, data.queries, 10)[:, : setting.parameter] if setting.parameter else None
            }

    data = truth.with_truth(datasets.Dataset("tiny", unit(vectors()), unit(vectors(7, seed=1))))
    settings = [Setting("codes", min(n, 10), None, n) for n in (2, 5, 8, 10, 11, 12, 13, 14)]
    assert [p.setting.parameter for p in recall.swept(Process(), "x", settings, data)] == [2, 5, 8, 10, 11, 12]


def test_a_sweep_that_finds_nothing_yet_goes_on():
    class Process:
        def call(self, method, setting):
            nearest = naive_nearest(data.base, data.queries, 10)
            return {"ids": nearest if setting.parameter > 3 else np.full_like(nearest, -1)}

    data = truth.with_truth(datasets.Dataset("tiny", unit(vectors()), unit(vectors(7, seed=1))))
    settings = [Setting("codes", 10, None, n) for n in range(9)]
    assert [p.setting.parameter for p in recall.swept(Process(), "x", settings, data)] == [0, 1, 2, 3, 4, 5, 6]


def test_median_of_rounds():
    totals = [10.0, 1.0, 4.0, 2.0]
    times = [{"total": total, "encode": total / 2, "rerank": total / 4} for total in totals]
    for n in range(1, 5):
        found = recall.middle(times[:n])
        assert found["total"] == np.median(totals[:n])
        assert (found["encode"], found["rerank"]) == (found["total"] / 2, found["total"] / 4)


def test_every_setting_has_three_rounds(tmp_path):
    class Process:
        def __init__(self, total):
            self.total = total

        def call(self, method, *arguments):
            return {"total": self.total, "encode": 0.0, "rerank": 0.0} if method == "times" else None

    data = datasets.Dataset("tiny", vectors(), vectors(7, seed=1))
    task = Task("", 60, 16, 64, "cosine", False, 1, 7)
    seconds = {"cbeindex": 0.5, "cbeindex-scan": 9.0, "cbeindex-substrings": 2.0}
    match = recall.Match(task, data, argparse.Namespace(rounds=7, seconds=7.0))
    match._running = {name: Process(total) for name, total in seconds.items()}
    match.points = [recall.Point(name, Setting("codes", 1, None, None), 0, [1.0]) for name in seconds]
    log = recall.Log(tmp_path / "log.jsonl")
    match.time(1, log)
    assert {row["contender"]: row["rounds"] for row in log.rows} == {
        "cbeindex": 7,
        "cbeindex-scan": 3,
        "cbeindex-substrings": 4,
    }


ADAPTER = ROOT / "benchmarks" / "ann_benchmarks"


@pytest.fixture
def ann_module(monkeypatch):
    """The adapter in the place that the project gives it: beside a package with the base class."""
    package = "ann_benchmarks.algorithms"
    base = types.ModuleType(f"{package}.base.module")
    vars(base)["BaseANN"] = type("BaseANN", (), {})
    for name in ("ann_benchmarks", package, f"{package}.base", f"{package}.cbeindex"):
        made = types.ModuleType(name)
        made.__path__ = []
        monkeypatch.setitem(sys.modules, name, made)
    monkeypatch.setitem(sys.modules, base.__name__, base)
    spec = importlib.util.spec_from_file_location(f"{package}.cbeindex.module", ADAPTER / "module.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_adapter(algorithm, X, *query_arguments):
    assert algorithm.get_memory_usage() == 0  # the runner asks before and after
    algorithm.fit(X)
    algorithm.set_query_arguments(*query_arguments)
    assert algorithm.query(X[5], 3)[0] == 5
    algorithm.batch_query(X[:4], 3)
    assert [ids[0] for ids in algorithm.get_batch_results()] == [0, 1, 2, 3]
    assert algorithm.get_memory_usage() > 0


def test_ann_benchmarks_module(ann_module):
    X = unit(vectors(300, 32))
    param = {"n_bits": 64, "vectors": "float32", "buckets": "clusters"}
    check_adapter(ann_module.CBE("angular", param), X)
    check_adapter(ann_module.CBE("euclidean", param), X, None, 2)
    algorithm = ann_module.CBE("angular", param)
    algorithm.set_query_arguments(0.9)
    assert str(algorithm) == f"cbeindex({param}, {{'recall': 0.9}})"


def test_ann_benchmarks_module_for_bits(ann_module):
    X = np.random.default_rng(0).random((300, 100)) < 0.5
    for buckets in (None, "clusters"):
        check_adapter(ann_module.CBEBinary({"buckets": buckets}), X)
    algorithm = ann_module.CBEBinary({"buckets": "clusters"})
    algorithm.set_query_arguments(4)
    assert "'n_probes': 4" in str(algorithm)


def test_ann_benchmarks_image_has_a_python_that_we_support():
    (version,) = re.findall(r"^FROM python:3\.(\d+)", (ADAPTER / "Dockerfile").read_text(), flags=re.MULTILINE)
    assert int(version) >= 11
