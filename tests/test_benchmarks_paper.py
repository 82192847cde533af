"""The paper's experiments: their parts against what is known, kept results, and a tiny run of each."""

import json
import os
import re
import signal

import numpy as np
import pytest
from scipy import sparse

from benchmarks import datasets, paper, truth
from benchmarks.harness import ContenderError
from benchmarks.paper import data, retrieval, supervised, timing, variance
from benchmarks.paper.results import OURS, NotKept, Results, Section, digest_of, forget, number
from tests.vector_oracles import sparse_rows


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """Small made-up sets in the place of the real ones, and few samples."""
    rng = np.random.default_rng(0)

    def opened(name, n_rows, n_queries):
        labels = rng.integers(3, size=140)
        rows = rng.standard_normal((3, 64))[labels] + rng.standard_normal((140, 64))
        rows = np.abs(rows) if name == "pixels" else rows
        rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        return datasets.Dataset(name, rows[:120], rows[120:]), labels[:120], labels[120:]

    monkeypatch.setattr(data, "_opened", opened)
    monkeypatch.setattr(data, "long_sets", lambda: ["long"])
    monkeypatch.setattr(data, "short_sets", lambda: ["long", "pixels"])
    monkeypatch.setattr(data, "labelled_sets", lambda: ["long"])
    monkeypatch.setattr(data, "QUICK_LOW_DIM", 32)
    monkeypatch.setattr(data, "QUICK_TRAIN", 80)
    monkeypatch.setattr(retrieval, "bits_in_time", lambda dim: {"LSH": 8, "Bilinear-rand": dim})
    monkeypatch.setattr(truth, "CACHE", tmp_path / "cache")
    for cached in (data.material, retrieval._codes):
        cached.cache_clear()
    yield tmp_path / "report"
    for cached in (data.material, retrieval._codes):
        cached.cache_clear()


def test_results_are_kept(tmp_path):
    path, asked = tmp_path / "results.jsonl", []

    def compute(value):
        asked.append(value)
        return [value, None]

    for _ in range(2):
        results = Results(path, "part")
        assert results.get("one", compute, 1) == [1, None]
        assert results.get("two", compute, 2) == [2, None]
    assert asked == [1, 2]
    path.write_text(path.read_text()[:-5])  # killed within the last line
    assert Results(path, "part").get("one", compute, 3) == [1, None]
    for value in (4, 5):
        assert Results(path, "part").get("two", compute, value) == [4, None]


def test_results_of_other_code_are_measured_again(tmp_path):
    path, source = tmp_path / "results.jsonl", tmp_path / "encoder.py"
    digests = []
    for text in ("a = 1", "a = 2"):
        source.write_text(text)
        digests.append(digest_of([source]))
    for value, sources in enumerate([*digests, *digests]):
        assert Results(path, "part", sources=sources).get("one", int, value) == value % 2
    with pytest.raises(NotKept):
        Results(path, "other part", sources=digests[0], may_compute=False).get("one", int, 5)


def test_results_say_when_they_were_measured(tmp_path):
    path = tmp_path / "results.jsonl"
    results = Results(path, "part", commit="abc123")
    results.get("one", int, 1)
    results.get("one", int, 1)
    assert results.when() == ""
    results = Results(path, "part", commit="def456")
    results.get("one", int, 1)
    results.get("two", int, 2)
    assert re.fullmatch(r"Measured in an earlier run, [-0-9]{10} [:0-9]{5} UTC, commit abc123\.", results.when())
    results.get("two", int, 2)
    assert results.when() == ""


def test_results_of_some_parts_are_forgotten(tmp_path):
    path = tmp_path / "results.jsonl"
    forget(path, ["one"])  # there are none yet
    for part in ("one", "one, quick", "two"):
        Results(path, part).get("name", int, 1)
    forget(path, ["one"])
    assert [json.loads(line)["part"] for line in path.read_text().splitlines()] == ["one, quick", "two"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0, "0"), (0.938, "0.938"), (2.567, "2.57"), (99.96, "100"), (543.6, "544"), (999.6, "1,000"),
     (12_345.0, "12,300"), (2.68e5, "268,000")],
)  # fmt: skip
def test_numbers_have_three_digits(value, text):
    assert number(value) == text


def test_a_section_tells_what_the_paper_says(tmp_path):
    made = Section("Title", "is <so>", ["came out & so"])
    made.add("Numbers", [["a", "b"], ["x", "1"]], "of < 5 rows;", "", "measured")
    page = made.html(tmp_path, "part", with_plots=False)
    assert "is &lt;so&gt;" in page
    assert "came out &amp; so" in page
    assert "of &lt; 5 rows; measured" in page
    assert "is <so>" in made.text()
    assert "of < 5 rows; measured" in made.text()


def test_pairs_have_their_angles():
    angles = np.array([np.pi / 12, np.pi / 3, np.pi / 2])
    left, right = variance.pairs(np.random.default_rng(0), angles)
    np.testing.assert_allclose((left * right).sum(axis=1), np.cos(angles), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(right, axis=1), 1, atol=1e-6)


def test_the_variance_of_independent_bits_is_that_of_the_formula():
    """Each value is a mean of 400 squares; of nearly normal numbers those have a relative error of sqrt(2 / 400)."""
    lengths = [2**i for i in range(1, variance.DIM.bit_length())]
    ratios = np.array(variance.spread("LSH", 100)) / variance.formula(lengths)
    assert np.abs(ratios - 1).max() < 6 * np.sqrt(2 / 400)
    assert np.abs(ratios - 1).mean() < 0.1


@pytest.mark.parametrize("dim", [64, 1_000])
def test_all_methods_are_timed_alike(dim):
    for method in timing.METHODS:
        encoder = timing.make(method, dim)
        assert encoder.n_bits == dim
        timing.Timed(method, dim).encode()


def test_what_the_memory_has_no_room_for_is_left_out(monkeypatch):
    monkeypatch.setattr(timing, "memory", lambda: 10**6)
    assert timing.allowed(2**10) == "bilinear and circulant"
    measured = timing.measure(2**10, quick=True)
    assert measured["milliseconds"]["full"] is None
    assert measured["milliseconds"]["circulant"] > 0
    assert "memory" in measured["missing"]["full"]


class Killed:
    """Times an encoder, but for one that the system kills: bilinear when it is made, full when it encodes."""

    def __init__(self, method, dim):
        self.method = method
        if method == "bilinear":
            os.kill(os.getpid(), signal.SIGKILL)

    def encode(self):
        if self.method == "full":
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_leaves_an_empty_cell(monkeypatch, tmp_path):
    monkeypatch.setattr(timing, "_FACTORY", "tests.test_benchmarks_paper:Killed")
    monkeypatch.setattr(timing, "QUICK_DIMS", (2**8,))
    section = timing.section(Results(tmp_path / "results.jsonl", "timing"), quick=True)
    (_, full, bilinear, circulant, *_) = next(iter(section.tables.values()))[1]
    assert full == bilinear == ""
    assert float(circulant) >= 0
    note = next(iter(section.notes.values()))
    assert "2^8, full: killed (exit code -9)" in note
    assert "2^8, bilinear: killed (exit code -9)" in note


def test_the_reason_of_a_failure_is_its_last_line():
    failed = ContenderError("Traceback:\n  File x\nMemoryError: Unable to allocate 9 GB\n")
    assert timing.reason(failed) == "MemoryError: Unable to allocate 9 GB"


def test_sparse_rows_are_folded_and_dense_ones_cut():
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((5, 100)).astype(np.float32)
    cut = data._shortener(100, 20, is_sparse=False)(dense)
    assert cut.shape == (5, 20)
    assert np.isin(cut, dense).all()
    rows = sparse.csr_array(dense)
    folded = data._shortener(100, 20, is_sparse=True)(rows)
    assert folded.shape == (5, 20)
    single = sparse.csr_array(np.eye(100, dtype=np.float32))
    assert (np.abs(data._shortener(100, 20, is_sparse=True)(single)).sum(axis=1) == 1).all()


def test_notes_say_how_vectors_were_made_shorter():
    facts = {"rows": 5_000, "train": 50, "queries": 5, "dim": 100, "full_dim": 100, "is_sparse": 0}
    assert data.note(facts) == "5,000 rows, 50 of them for training, 5 queries."
    assert "at random" in data.note(facts | {"dim": 20})
    assert "folded" in data.note(facts | {"dim": 20, "is_sparse": 1})


def test_recall_is_that_of_the_distances(tiny):
    material = data.material("long", True)
    ids = np.random.default_rng(0).permuted(np.tile(np.arange(120), (20, 1)), axis=1)[:, :50]
    ids[0, 40:] = -1
    expected = truth.recall_curve(material.data, ids)
    np.testing.assert_allclose(retrieval.recall_curve(material, ids), expected)
    assert 0.2 < expected[-1] < 0.8


def test_sparse_rows_are_projected_from_their_entries():
    rows = sparse_rows(40, 60, density=0.1)
    encoder = retrieval.fitted("LSH", 64, rows)
    np.testing.assert_allclose(retrieval.project(encoder, rows), encoder.project(rows), atol=1e-5)
    np.testing.assert_array_equal(retrieval._encode(encoder, rows), encoder.encode(rows))


def test_bilinear_training_is_bounded(monkeypatch):
    monkeypatch.setattr(retrieval, "_BILINEAR_VALUES", 10 * 16)
    rows = np.random.default_rng(0).standard_normal((40, 16)).astype(np.float32)
    some = rows[np.linspace(0, 39, 10).astype(np.int64)]
    np.testing.assert_allclose(retrieval.fitted("Bilinear-opt", 16, rows).centre, some.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(retrieval.fitted("Bilinear-rand", 16, rows).centre, rows.mean(axis=0), atol=1e-6)


def test_auc_counts_pairs():
    positive, negative = np.array([1, 3, 3]), np.array([2, 3, 5, 9])
    pairs = [(p < n) + (p == n) / 2 for p in positive for n in negative]
    assert supervised.auc(positive, negative) == pytest.approx(np.mean(pairs))


def test_pairs_are_of_the_same_class_or_not():
    labels = np.random.default_rng(0).integers(4, size=50)
    similar, dissimilar = supervised.draw_pairs(labels, 30)
    assert similar.shape == dissimilar.shape == (30, 2)
    assert (labels[similar[:, 0]] == labels[similar[:, 1]]).all()
    assert (labels[dissimilar[:, 0]] != labels[dissimilar[:, 1]]).all()
    assert (similar[:, 0] != similar[:, 1]).all()


def test_the_svm_minimises_its_loss():
    """Against the slope of the loss by differences: it is 0 at the minimum."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((60, 5)).astype(np.float32)
    labels = (rows[:, 0] + 0.5 * rng.standard_normal(60) > 0).astype(np.int64)
    weights = supervised.fit_svm(rows, labels, 1.0).astype(np.float64)

    def loss(weights):
        wanted = np.where(labels[:, np.newaxis] == np.arange(2), 1, -1)
        hinge = np.maximum(1 - wanted * (rows @ weights[:, :-1].T + weights[:, -1]), 0)
        return (weights[:, :-1] ** 2).sum() / 2 + 100 / 60 * (hinge**2).sum()

    least = loss(weights)
    for _ in range(50):
        away = 1e-2 * rng.standard_normal(weights.shape)
        assert loss(weights + away) > least - 1e-4 * least  # float32 sums of the training
    assert least < loss(np.zeros_like(weights))


def test_classes_that_are_apart_are_told_apart():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=200)
    rows = (4 * np.eye(8)[labels] + rng.standard_normal((200, 8))).astype(np.float32)
    assert supervised.classify(rows[:150], labels[:150], rows[150:], labels[150:]) > 0.9


def test_the_span_of_the_rows_is_enough():
    """Products of rows stay, and so does what a classifier learns; rows that repeat add nothing."""
    rng = np.random.default_rng(0)
    train, test = rng.standard_normal((2, 20, 50)).astype(np.float32)
    train[-1] = train[0]
    short, short_test = supervised.in_span(train, test)
    assert short.shape == (20, 19)
    np.testing.assert_allclose(short @ short.T, train @ train.T, atol=1e-3)
    np.testing.assert_allclose(short_test @ short.T, test @ train.T, atol=1e-3)
    labels = rng.integers(3, size=20)
    scores, short_scores = (
        supervised._scores(supervised.fit_svm(rows, labels, 0.1), other)
        for rows, other in ((train, test), (short, short_test))
    )
    # Each is the minimum to the tolerance at which the optimiser ends.
    np.testing.assert_allclose(short_scores, scores, atol=0.02)


def test_accuracy_does_not_depend_on_the_length_of_projections(tiny, monkeypatch):
    fitted = retrieval.fitted

    class Longer:
        def __init__(self, *arguments):
            self.encoder = fitted(*arguments)

        def project(self, rows):
            return 1000 * self.encoder.project(rows)

    expected = supervised.accuracy("long", "CBE-opt", True)
    monkeypatch.setattr(supervised, "fitted", Longer)
    assert supervised.accuracy("long", "CBE-opt", True) == expected


def test_shorter_codes_are_prefixes(tiny):
    results = Results(tiny.parent / "results.jsonl", "retrieval")
    material = data.material("long", True)
    for method in retrieval.PREFIXES:
        whole = retrieval.METHODS[method](64, 64).fit(material.train).encode(material.data.base)
        short = retrieval.METHODS[method](64, 16).fit(material.train).encode(material.data.base)
        np.testing.assert_array_equal(whole[:, :2], short)
    assert retrieval.curve(results, "long", "LSH", 64, True)[-1] > retrieval.curve(results, "long", "LSH", 8, True)[-1]


def test_bits_in_time_follow_the_times(monkeypatch):
    asked = []

    class Fake:
        def __init__(self, factory, arguments):
            self.method, self.n_bits = arguments["method"], 0

        def call(self, name, n_bits):
            assert name == "prepare"
            self.n_bits = n_bits

        def timed(self, name):
            assert name == "encode"
            asked.append(self.method)
            return {"CBE-rand": 1.0, "LSH": self.n_bits / 200, "Bilinear-rand": self.n_bits / 5_000}[self.method], None

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(retrieval, "Contender", Fake)
    assert retrieval.bits_in_time(1_024) == {"LSH": 200, "Bilinear-rand": 1_024}
    assert set(asked[::2]) == {"CBE-rand"}  # in turn with each of the others
    assert set(asked[1::2]) == {"LSH", "Bilinear-rand"}


@pytest.mark.parametrize("method", ["CBE-rand", "LSH", "Bilinear-rand"])
def test_what_is_timed_encodes(method):
    timed = retrieval.Timed(method, 64)
    for n_bits in (16, 64):
        timed.prepare(n_bits)
        timed.encode()


@pytest.fixture
def few(tiny, monkeypatch):
    """`tiny`, with few methods and dimensions."""
    monkeypatch.setattr(variance, "METHODS", ("CBE-rand", OURS))
    monkeypatch.setattr(timing, "QUICK_DIMS", (2**8, 2**9))
    return tiny


def numbers_of(part, kept):
    """Numbers that a part has measured, and the range in which they make sense."""
    results = {row["name"]: row["result"] for row in kept if not row["name"].startswith(("facts", "bits"))}
    assert results
    if part == "timing":
        return [of["milliseconds"][method] for of in results.values() for method in timing.METHODS], (0, np.inf)
    if part == "classification":  # three classes
        return [of["accuracy"] for of in results.values()], (1 / 3, 1)
    if part == "pairs":
        return list(results.values()), (0.5, 1)
    if part == "variance":  # of a share of bits
        return np.ravel(list(results.values())), (0, 0.25)
    # Of 120 rows 100 are answers: even at random they have more than half of the neighbours.
    return [curve[-1] for curve in results.values() if curve is not None], (0.5, 1)


@pytest.mark.parametrize("part", paper.PARTS)
def test_each_part_runs_alone(part, few, capsys):
    paper.main(["--quick", "--parts", part, "--output", str(few)])
    shown = capsys.readouterr().out
    assert "The paper:" in shown
    assert "Here:" in shown
    assert f"seconds: {part} " in shown
    page = (few / "index.html").read_text()
    assert page.count("<h2>") == 1
    assert "<table>" in page
    assert "earlier run" not in page
    before = (few / "results.jsonl").read_text()
    numbers, (least, most) = numbers_of(part, [json.loads(line) for line in before.splitlines()])
    assert len(numbers) > 0
    assert all(least < number <= most for number in numbers)
    paper.main(["--quick", "--parts", part, "--output", str(few)])
    assert (few / "results.jsonl").read_text() == before
    assert "earlier run" in (few / "index.html").read_text()


def test_fresh_forgets_only_the_parts_that_run(few):
    output = ["--quick", "--output", str(few)]
    paper.main([*output, "--parts", "variance", "pairs"])
    before = [json.loads(line) for line in (few / "results.jsonl").read_text().splitlines()]
    marked = [row | {"commit": "before"} for row in before]
    (few / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in marked))
    paper.main([*output, "--parts", "variance", "--fresh"])
    after = [json.loads(line) for line in (few / "results.jsonl").read_text().splitlines()]
    assert sorted(row["name"] for row in after) == sorted(row["name"] for row in before)
    assert {row["part"] for row in after if row["commit"] == "before"} == {"pairs, quick"}
    page = (few / "index.html").read_text()  # has both, in the order of the paper
    assert page.index("1. Variance") < page.index("7. Semi-supervised")
    assert page.count("commit before") == 1


def test_quick_runs_have_a_folder_of_their_own(few, monkeypatch):
    monkeypatch.chdir(few.parent)
    paper.main(["--quick", "--parts", "variance"])
    assert (few.parent / "bench-report" / "paper-quick" / "index.html").exists()
    assert not (few.parent / "bench-report" / "paper").exists()
