"""The command line does what the library does, on files of any size, and says in one line what is wrong."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from cbeindex import BinaryIndex, CBEIndex, __version__
from cbeindex._core.tuning import tuned
from cbeindex.cli import build as building
from cbeindex.cli import main
from cbeindex.storage import container as storage
from tests.strategies import some_codes
from tests.vector_file_bytes import binary, npz, vecs

ROOT = Path(__file__).parent.parent

# Small whole numbers: all formats hold them.
X = np.random.default_rng(0).integers(0, 100, (300, 40)).astype(np.float32)
S = np.where(X > 80, X, 0)
QUERIES = X[:6] + np.random.default_rng(1).normal(0, 5, (6, 40)).astype(np.float32)

# An index of codes alone, by the options of the command line and by those of the library.
CODES = ["--vectors", "none", "--buckets", "none"]
CODES_OPTIONS = {"vectors": None, "buckets": None}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, with vectors, queries and an index."""
    monkeypatch.chdir(tmp_path)
    np.save("vectors.npy", X)
    np.save("queries.npy", QUERIES)
    fitted(X, **CODES_OPTIONS).save("index.cbe")
    return tmp_path


def fitted(rows, sample=None, ids=None, **options):
    """An index made by the library."""
    index = CBEIndex(rows.shape[1], **options).fit(rows if sample is None else rows[sample])
    index.add(rows, ids)
    return index


def run(*arguments):
    return main([str(argument) for argument in arguments])


def assert_same(path, expected, queries=QUERIES):
    """The index in a file has the ids and codes, and so the answers, of another one."""
    index = CBEIndex.load(path, verify=True)
    np.testing.assert_array_equal(index.ids, expected.ids)
    assert (index.n_bits, index.metric, index.vectors) == (expected.n_bits, expected.metric, expected.vectors)
    for rerank in (None, "auto"):
        got = index.search(queries, k=20, mode="scan", rerank=rerank)
        wanted = expected.search(queries, k=20, mode="scan", rerank=rerank)
        np.testing.assert_array_equal(got.ids, wanted.ids)
        np.testing.assert_array_equal(got.distances, wanted.distances)


def failed(capsys, *arguments):
    """The one line that a command fails with."""
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("cbeindex: error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err


def program(*arguments, **options):
    """A process of the command line."""
    command = [sys.executable, "-m", "cbeindex", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True, **options
    )


# build


def write_npz(path, **arrays):
    path.write_bytes(npz(**arrays))


FORMATS = {
    "float32.npy": lambda path: np.save(path, X),
    "float64.npy": lambda path: np.save(path, X.astype(np.float64)),
    "big_endian.npy": lambda path: np.save(path, X.astype(">f2")),
    "by_column.npy": lambda path: np.save(path, np.asfortranarray(X)),
    "one.npz": lambda path: write_npz(path, a=X),
    "compressed.npz": lambda path: write_npz(path, compressed=True, a=X),
    "x.fvecs": lambda path: path.write_bytes(vecs(X)),
    "x.ivecs": lambda path: path.write_bytes(vecs(X.astype(np.int32))),
    "x.bvecs": lambda path: path.write_bytes(vecs(X.astype(np.uint8))),
    "x.fbin": lambda path: path.write_bytes(binary(X)),
    "x.ibin": lambda path: path.write_bytes(binary(X.astype(np.int32))),
    "x.u8bin": lambda path: path.write_bytes(binary(X.astype(np.uint8))),
    "X.I8BIN": lambda path: path.write_bytes(binary(X.astype(np.int8))),
}


@pytest.mark.parametrize("name", FORMATS)
def test_build_from_every_format(name, folder):
    FORMATS[name](folder / name)
    assert run("build", "out.cbe", name, "--vectors", "float32") == 0
    assert_same("out.cbe", fitted(X, vectors="float32"))


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("kept", ["none", "float16"])
def test_build_from_sparse(form, kept, folder):
    scipy.sparse.save_npz("sparse.npz", scipy.sparse.csr_array(S).asformat(form))
    assert run("build", "out.cbe", "sparse.npz", "--vectors", kept) == 0
    assert_same("out.cbe", fitted(scipy.sparse.csr_array(S), vectors=None if kept == "none" else kept))
    assert storage.describe("out.cbe")["content"]["sparse"]


@pytest.mark.parametrize(
    ("rows", "kept"), [(X, "int8"), (scipy.sparse.csr_array(S), "float32")], ids=["dense", "sparse"]
)
def test_build_without_options_makes_the_index_of_the_library(rows, kept, folder):
    if rows is X:
        np.save("rows.npy", rows)
    else:
        scipy.sparse.save_npz("rows.npz", rows)
    assert run("build", "out.cbe", "rows.npy" if rows is X else "rows.npz") == 0
    index = CBEIndex.load("out.cbe")
    assert (index.vectors, index.buckets) == (kept, "auto")
    assert_same("out.cbe", fitted(rows))


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["--bits", "100"], {"n_bits": 100}),
        (CODES, CODES_OPTIONS),
        (["--metric", "l2", "--vectors", "float16"], {"metric": "l2", "vectors": "float16"}),
        (["--metric", "ip", "--encoder", "random", "--seed", "3"], {"metric": "ip", "encoder": "random", "seed": 3}),
        (["--encoder", "learned", "--threads", "1"], {"encoder": "learned"}),
        (["--buckets", "clusters"], {"buckets": "clusters"}),
        (["--buckets", "substrings"], {"buckets": "substrings"}),
    ],
)
def test_build_options(arguments, options, folder):
    assert run("build", "out.cbe", "vectors.npy", *arguments) == 0
    assert_same("out.cbe", fitted(X, **options))
    assert CBEIndex.load("out.cbe").buckets == options.get("buckets", "auto")


def test_build_takes_one_array_of_several(folder):
    np.savez("both.npz", train=X, test=QUERIES)
    assert run("build", "out.cbe", "both.npz", "--key", "train") == 0
    assert_same("out.cbe", fitted(X))


def test_build_with_ids(folder):
    ids = np.random.default_rng(2).permutation(1_000)[: len(X)]
    np.save("ids.npy", ids)
    assert run("build", "out.cbe", "vectors.npy", "--ids", "ids.npy") == 0
    assert_same("out.cbe", fitted(X, ids=ids))


@pytest.mark.parametrize("form", ["npy", "lines", "windows lines"])
def test_build_with_string_ids(form, folder, capsys):
    ids = [f"id {i}\t{'é' * (i % 3)}" for i in range(len(X))]
    if form == "npy":
        np.save("ids.npy", np.array(ids)[:, np.newaxis])
    else:
        end = "\r\n" if form == "windows lines" else "\n"
        Path("ids.txt").write_bytes((end.join(ids) + end * (form == "lines")).encode())
    assert run("build", "out.cbe", "vectors.npy", "--ids", "ids.npy" if form == "npy" else "ids.txt") == 0
    assert_same("out.cbe", fitted(X, ids=ids))
    capsys.readouterr()
    np.save("one.npy", X[7])
    assert run("search", "out.cbe", "one.npy", "-k", "2") == 0
    number, first, _ = capsys.readouterr().out.rstrip("\n").split("\t")
    assert (number, json.loads(first.rpartition(":")[0])) == ("0", ids[7])
    assert run("search", "out.cbe", "one.npy", "-k", "302", "--json") == 0
    found = json.loads(capsys.readouterr().out)["ids"]
    assert found[0] == ids[7]
    assert sorted(found) == sorted(ids)
    assert run("search", "out.cbe", "one.npy", "-k", "302", "--output", "found.npz") == 0
    with np.load("found.npz") as arrays:
        assert arrays["ids"].tolist() == [[*found, "", ""]]
    assert run("info", "out.cbe") == 0
    assert re.search(r"ids +strings", capsys.readouterr().out)


def test_names_that_numpy_would_cut_are_not_written(folder, capsys):
    CBEIndex(8, vectors=None, buckets=None).save("none.cbe")
    index = CBEIndex(8, vectors=None, buckets=None)
    index.add(np.ones((1, 8)), ["a\0"])
    index.save("out.cbe")
    np.save("one.npy", np.ones(8))
    assert run("search", "out.cbe", "one.npy", "--output", "found.npz") == 2
    assert "cut off the end of the id 'a\\x00'; use --json" in capsys.readouterr().err


def test_build_of_a_single_vector(folder):
    np.save("one.npy", X[0])
    assert run("build", "out.cbe", "one.npy") == 0
    assert CBEIndex.load("out.cbe").search(X[0], k=1).ids == [0]


def test_build_of_several_files(folder):
    """Also of more than are held open, which then are opened again."""
    for number in range(40):
        np.save(f"part{number:02}.npy", X[5 * number : 5 * number + 5])
    np.savez("part40.npz", X[200:220])
    np.savez("part41.npz", X[220:])
    paths = sorted(folder.glob("part*"))
    assert run("build", "out.cbe", *paths) == 0
    assert_same("out.cbe", fitted(X))


@pytest.fixture
def small_steps(monkeypatch):
    """Blocks, samples and saves so small that some hundred rows take many of each; counts the saves."""
    spills = []
    spilled = building._spilled
    monkeypatch.setattr(building, "_spilled", lambda *args: spills.append(1) or spilled(*args))
    with tuned(cli_block_bytes=17 * 4 * 40, cli_spill_bytes=2_000, cli_sample_step_rows=7):
        yield spills


@pytest.mark.parametrize("kept", ["none", "auto", "float32", "float16"])
@pytest.mark.parametrize("rows", [X, scipy.sparse.csr_array(S)], ids=["dense", "sparse"])
def test_build_in_blocks(rows, kept, small_steps, folder):
    """Adding block by block, and appending to a file, gives what adding all at once gives."""
    ids = np.random.default_rng(2).permutation(1_000)[:300]
    np.save("ids.npy", ids)
    if rows is X:
        np.save("a.npy", X[:130])
        (folder / "b.fvecs").write_bytes(vecs(X[130:]))
        paths = ["a.npy", "b.fvecs"]
    else:
        scipy.sparse.save_npz("s.npz", rows)
        paths = ["s.npz"]
    assert run("build", "out.cbe", *paths, "--ids", "ids.npy", "--vectors", kept) == 0
    assert len(small_steps) > 2
    assert_same("out.cbe", fitted(rows, ids=ids, vectors=None if kept == "none" else kept))
    assert sorted(path.name for path in folder.glob(".*")) == []


@pytest.mark.parametrize("large_rows", [32, 2**22])
def test_a_file_built_in_steps_is_mostly_in_use(large_rows, small_steps, folder, monkeypatch):
    """Segments that are joined after they were saved leave gaps, which are closed if they are large."""
    rows = np.random.default_rng(0).standard_normal((320, 500), dtype=np.float32)
    np.save("long.npy", rows)
    moved = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: moved.append(paths) or replace(*paths))
    with tuned(cli_block_bytes=32 * 2_000, large_segment_rows=large_rows, buffer_rows=64):
        assert run("build", "out.cbe", "long.npy", "--vectors", "float32", "--buckets", "none") == 0
    assert len(small_steps) == 10
    file = storage.describe("out.cbe")
    assert file["unused"] < file["bytes"] / 3
    assert bool(moved) == (large_rows == 32)  # as it was built, or written anew
    assert_same("out.cbe", fitted(rows, vectors="float32", buckets=None), rows[:1])


def test_sample_is_drawn_over_all_rows(folder):
    """The encoder of a sorted file is near to that of all rows, and far from that of the first ones."""
    rows = np.sort(X, axis=0)
    np.save("sorted.npy", rows)
    assert run("build", "out.cbe", "sorted.npy", "--sample", 100, "--metric", "l2") == 0
    centre = CBEIndex.load("out.cbe").encoder.to_arrays()["centre"]
    # The mean of 100 values of 0 to 99 has a standard error of about 2.9, that of the first hundred is about 17.
    assert abs(centre.mean() - rows.mean()) < 4 * 2.9 < abs(rows[:100].mean() - rows.mean())
    assert run("build", "again.cbe", "sorted.npy", "--sample", 100, "--metric", "l2") == 0
    assert (folder / "again.cbe").read_bytes() == (folder / "out.cbe").read_bytes()
    drawn = np.sort(np.random.default_rng(0).choice(300, 50, replace=False, shuffle=False))
    with tuned(cli_sample_bytes=50 * 4 * 40):
        assert run("build", "small.cbe", "vectors.npy") == 0
    assert_same("small.cbe", fitted(X, drawn))


MEMORY = """
import resource, sys
from cbeindex._core.tuning import tuned
from cbeindex.cli import main

kept = ["--vectors", sys.argv[3], "--buckets", "none"]
peaks = []
for name in sys.argv[1:3]:
    with tuned(cli_block_bytes=2**21, cli_spill_bytes=2**22, buffer_bytes=2**21, large_segment_bytes=2**23):
        assert main(["build", f"{name}.cbe", name, "--sample", "200", "--bits", "256", *kept]) == 0
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
print(peaks[1] - peaks[0])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no resource module")
@pytest.mark.parametrize("kept", ["none", "float32"])
def test_build_has_bounded_memory(kept, folder):
    """A file of 128 MB takes little more memory than one of 8 MB."""
    for name, n_rows in [("small.npy", 2_000), ("large.npy", 32_000)]:
        np.lib.format.open_memmap(name, "w+", np.float32, (n_rows, 1_000))[::100, 5] = 1
    command = [sys.executable, "-c", MEMORY, "small.npy", "large.npy", kept]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 32e6
    assert len(CBEIndex.load("large.npy.cbe")) == 32_000


def test_force_replaces_an_index(folder, small_steps):
    before = (folder / "index.cbe").stat()
    os.chmod("index.cbe", 0o600)
    os.symlink("index.cbe", "link.cbe")
    assert run("build", "link.cbe", "vectors.npy", "--bits", "128", "--force") == 0
    assert os.readlink("link.cbe") == "index.cbe"
    assert_same("index.cbe", fitted(X, n_bits=128))
    after = (folder / "index.cbe").stat()
    assert after.st_ino != before.st_ino
    assert sys.platform == "win32" or after.st_mode & 0o777 == 0o600


class _Terminal:
    """A stderr that somebody looks at."""

    def __init__(self, stream):
        self.stream = stream

    def isatty(self):
        return True

    def __getattr__(self, name):
        return getattr(self.stream, name)


def test_progress(folder, capsys, monkeypatch, small_steps):
    last = r"out.cbe: 300 vectors of 40 values, 40 bits, [\d.]+ kB, [\d.]+ s\n"
    arguments = ["build", "out.cbe", "vectors.npy", "--force"]
    assert run(*arguments) == 0
    assert re.fullmatch(last, capsys.readouterr().err)
    assert run(*arguments, "--quiet") == 0
    assert capsys.readouterr() == ("", "")

    monkeypatch.setattr(sys, "stderr", _Terminal(sys.stderr))
    assert run(*arguments) == 0
    err = capsys.readouterr().err
    assert "300/300" in err
    assert re.search(last, err)
    assert run(*arguments, "--quiet") == 0
    assert capsys.readouterr() == ("", "")

    monkeypatch.setattr(building, "find_spec", lambda name: None)
    with tuned(cli_progress_seconds=0):
        assert run(*arguments) == 0
    err = capsys.readouterr().err
    assert "17 of 300 vectors\n34 of 300 vectors\n" in err
    assert re.search(last, err)


def listing(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("out", ["new.cbe", "index.cbe"])
@pytest.mark.parametrize("when", [1, 5, "saved"])
@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (OSError(errno.ENOSPC, "No space left on device"), 2)]
)
def test_what_ends_a_build_leaves_all_as_it_was(out, when, error, code, small_steps, folder, capsys, monkeypatch):
    calls = []

    def add(self, *args, **options):
        calls.append(1)
        if len(calls) == when:
            raise error
        return CBEIndex.add(self, *args, **options)

    class Ending(CBEIndex):
        pass

    Ending.add = add
    Ending.__name__ = "CBEIndex"
    monkeypatch.setattr(building, "CBEIndex", Ending)
    if when == "saved":

        def put(*args):
            raise error

        monkeypatch.setattr(building, "_move_into_place", put)
    before = listing(folder)
    assert run("build", out, "vectors.npy", "--bits", "128", "--force") == code
    assert listing(folder) == before
    said = "cbeindex: interrupted\n" if code == 130 else "cbeindex: error: No space left on device\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", [2, 15], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_a_build_in_order(number, folder):
    np.lib.format.open_memmap("large.npy", "w+", np.float32, (1_000_000, 1_000))  # takes no room, but time
    before = set(os.listdir())
    # A job in the background of a shell ignores SIGINT, and so would a process that it starts.
    listening = {"preexec_fn": lambda: signal.signal(number, signal.SIG_DFL)}
    with program("build", "out.cbe", "large.npy", **listening) as process:
        while set(os.listdir()) == before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(0.3)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    # Shells report both as 128 + number. Python ends itself by SIGINT if that came while a text was run as code, as in
    # the imports of numba, whoever caught it.
    assert process.returncode in (128 + number, -number)
    assert out == ""
    assert err == ("cbeindex: interrupted\n" if number == signal.SIGINT else "")
    assert set(os.listdir()) == before


DISCARDED = """
import os, signal, sys
from cbeindex import CBEIndex
from cbeindex.cli import main

def interrupted(method):
    def call(*arguments, **options):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except SystemExit:
            pass
        return method(*arguments, **options)
    return call

CBEIndex.add, CBEIndex.search = interrupted(CBEIndex.add), interrupted(CBEIndex.search)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(
    "arguments",
    [["build", "out.cbe", "vectors.npy"], ["search", "index.cbe", "queries.npy", "--output", "found.npz"]],
)
def test_a_signal_counts_where_its_exception_is_discarded(arguments, folder):
    """Imports of extension modules discard exceptions that signals raise in them."""
    before = listing(folder)
    command = [sys.executable, "-c", DISCARDED, *arguments]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (128 + 15, "", "")
    assert listing(folder) == before


# search


@pytest.fixture
def four_queries_at_a_time():
    with tuned(cli_query_rows=4):
        yield


def table(index, queries, k, **options):
    """Lines that a search should print."""
    found = index.search(queries, k=k, **options)
    shown = "{}:{}" if found.distances.dtype == np.int32 else "{}:{:.6g}"
    for number, (ids, distances) in enumerate(zip(found.ids, found.distances, strict=True)):
        yield "\t".join([str(number), *map(shown.format, ids, distances)])


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ([], {}),
        (["--rerank", "none", "--mode", "scan"], {"rerank": None, "mode": "scan"}),
        (["--rerank", "exact", "--n-candidates", "30"], {"rerank": "exact", "n_candidates": 30}),
        (["--rerank", "asymmetric", "--threads", "1"], {"rerank": "asymmetric"}),
        (["--mode", "cascade"], {"mode": "cascade"}),
    ],
)
def test_search_prints_what_the_library_finds(arguments, options, folder, capsys):
    index = fitted(X, vectors="float32")
    index.save("kept.cbe")
    expected = list(table(index, QUERIES, 7, **options))
    assert len(expected) == len(QUERIES)
    for query_rows in (1024, 4):
        with tuned(cli_query_rows=query_rows):
            assert run("search", "kept.cbe", "queries.npy", "-k", "7", *arguments) == 0
        assert capsys.readouterr() == ("\n".join(expected) + "\n", "")


def test_search_of_buckets(folder, capsys):
    """Visiting a single bucket finds other answers than visiting all."""
    with tuned(least_cell_segment_rows=64):
        index = fitted(X, buckets="clusters")
        index.save("buckets.cbe")
    found = []
    for n_probes in (1, 10**6):
        assert run("search", "buckets.cbe", "queries.npy", "-k", 3, "--mode", "buckets", "--n-probes", n_probes) == 0
        found.append(capsys.readouterr().out.splitlines())
        assert found[-1] == list(table(index, QUERIES, 3, mode="buckets", n_probes=n_probes))
    assert found[0] != found[1]


@pytest.mark.parametrize("k", [3, 400])
@pytest.mark.usefixtures("four_queries_at_a_time")
def test_search_as_json_and_into_a_file(k, folder, capsys):
    expected = CBEIndex.load("index.cbe").search(QUERIES, k=k)
    n_found = min(k, len(X))
    assert run("search", "index.cbe", "queries.npy", "-k", k, "--json") == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["query"] for answer in answers] == list(range(len(QUERIES)))
    np.testing.assert_array_equal([answer["ids"] for answer in answers], expected.ids[:, :n_found])
    np.testing.assert_array_equal([answer["distances"] for answer in answers], expected.distances[:, :n_found])

    (folder / "found.npz").write_bytes(b"old")
    assert run("search", "index.cbe", "queries.npy", "-k", k, "--output", "found.npz") == 0
    assert capsys.readouterr() == ("", "")
    with np.load("found.npz") as found:
        assert set(found) == {"ids", "distances"}
        np.testing.assert_array_equal(found["ids"], expected.ids)
        np.testing.assert_array_equal(found["distances"], expected.distances)
    assert sorted(path.name for path in folder.glob(".*")) == []


def test_search_with_other_queries(folder, capsys):
    """One vector, an array of an archive, sparse ones, and an empty index."""
    np.save("one.npy", QUERIES[0])
    np.savez("both.npz", a=X, b=QUERIES)
    scipy.sparse.save_npz("sparse.npz", scipy.sparse.csr_array(S[:5]))
    index = CBEIndex.load("index.cbe")
    for arguments, queries in [
        (["one.npy"], QUERIES[:1]),
        (["both.npz", "--key", "b"], QUERIES),
        (["sparse.npz"], S[:5]),
    ]:
        assert run("search", "index.cbe", *arguments, "-k", "2") == 0
        assert capsys.readouterr().out.splitlines() == list(table(index, queries, 2))
    CBEIndex(40, vectors=None, buckets=None).save("empty.cbe")
    assert run("search", "empty.cbe", "one.npy") == 0
    assert capsys.readouterr().out == "0\n"


def test_search_of_binary_codes(folder, capsys):
    codes = some_codes(np.random.default_rng(0), 100, 100)
    index = BinaryIndex(100)
    index.add(codes)
    index.save("codes.cbe")
    np.save("codes.npy", codes[:7])
    expected = list(table(index, codes[:7], 5, mode="scan"))
    assert expected[0].startswith("0\t0:0\t")
    for arguments in ([], ["--mode", "scan"], ["--rerank", "none"]):
        assert run("search", "codes.cbe", "codes.npy", "-k", "5", *arguments) == 0
        assert capsys.readouterr().out.splitlines() == expected
    assert "codes.cbe is an index of binary codes" in failed(
        capsys, "search", "codes.cbe", "codes.npy", "--rerank", "exact"
    )
    assert "queries.npy must be packed bits of dtype uint8, got float32" in failed(
        capsys, "search", "codes.cbe", "queries.npy"
    )
    np.save("bits.npy", np.full((5, 13), 255, dtype=np.uint8))
    assert "bits.npy must have zeros past bit 99, row 0 has not" in failed(capsys, "search", "codes.cbe", "bits.npy")


# info and verify


def test_info(folder, capsys):
    options = ["--vectors", "float16", "--buckets", "none", "--metric", "l2"]
    assert run("build", "out.cbe", "vectors.npy", *options, "--quiet") == 0
    assert run("info", "out.cbe") == 0
    out, err = capsys.readouterr()
    assert err == ""
    title, *lines = out.splitlines()
    assert title == "out.cbe: CBEIndex"
    values = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in lines)
    size = os.path.getsize("out.cbe")
    expected = {
        "dimensions": "40",
        "bits": "40",
        "metric": "l2",
        "encoder": "CirculantEncoder(dim=40, n_bits=40, kind='orthogonal', seed=0)",
        "vectors kept": "float16",
        "buckets": "no",
        "rows": "300",
        "removed rows": "0",
        "segments": "1",
        "bytes of codes": "2,432",
        "bytes of ids": "2,400",
        "bytes of vectors": "24,000",
        "bytes of the file": f"{size:,}",
        "unused bytes": "0 (0%)",
        "format version": "2",
        "commit": "1",
    }
    assert values.items() >= expected.items()

    assert run("info", "--json", "out.cbe") == 0
    about = json.loads(capsys.readouterr().out)
    assert about["kind"] == "CBEIndex"
    assert about["bytes"]["vectors"] == 24_000
    assert (about["file_bytes"], about["unused_bytes"], about["format_version"], about["commit"]) == (size, 0, 2, 1)
    assert about["sparse"] is False


def test_info_of_a_file_with_gaps(folder, capsys):
    """After removals and joined segments, it says what `compact` would free; and then it is free."""
    index = CBEIndex.load("index.cbe")
    for _ in range(3):
        index.add(np.tile(X, (2, 1)))
        index.save()
    index.remove(np.arange(70))
    index.save()
    assert run("info", "index.cbe") == 0
    out = capsys.readouterr().out
    assert re.search(r"unused bytes +[\d,]+ \(\d\d%; CBEIndex.load\(FILE\).compact\(\) frees them\)", out)
    assert re.search(r"rows +2,030\n", out)
    assert re.search(r"removed rows +70\n", out)
    assert re.search(r"commit +5\n", out)
    index.compact()
    assert run("info", "index.cbe") == 0
    out = capsys.readouterr().out
    assert "compact" not in out
    assert re.search(r"removed rows +0\n", out)


def test_info_of_other_kinds(folder, capsys):
    binary_index = BinaryIndex(100, buckets="substrings")
    binary_index.add(some_codes(np.random.default_rng(0), 9, 100))
    binary_index.save("codes.cbe")
    assert run("info", "codes.cbe") == 0
    out = capsys.readouterr().out
    assert re.match(r"codes.cbe: BinaryIndex\n +bits +100\n +buckets +substrings\n +ids +integers\n +rows +9\n", out)
    assert "metric" not in out
    assert run("info", "codes.cbe", "--json") == 0
    assert json.loads(capsys.readouterr().out)["buckets"] == "substrings"

    sparse = CBEIndex(40, vectors="float32", buckets=None)
    sparse.add(scipy.sparse.csr_array(S))
    sparse.save("sparse.cbe")
    assert run("info", "sparse.cbe") == 0
    out = capsys.readouterr().out
    assert re.search(r"vectors kept +sparse float32\n", out)
    assert re.search(r"encoder .*, not fitted yet\n", out)


def test_verify(folder, capsys):
    BinaryIndex(100).save("codes.cbe")
    assert run("verify", "index.cbe") == 0
    size = os.path.getsize("index.cbe") / 1000
    assert capsys.readouterr() == (f"index.cbe: ok, CBEIndex of 300 vectors, {size:.3g} kB, commit 1\n", "")
    assert run("verify", "codes.cbe") == 0
    assert re.fullmatch(r"codes.cbe: ok, BinaryIndex of 0 codes, \d+ bytes, commit 1\n", capsys.readouterr().out)


# what can be wrong


def damaged(path, change):
    content = bytearray(Path("index.cbe").read_bytes())
    change(content)
    Path(path).write_bytes(content)
    return path


def make_newer(content):
    content[8:12] = (3).to_bytes(4, "little")
    content[12:16] = zlib.crc32(content[:12]).to_bytes(4, "little")


def flip(content):
    content[-2_000] ^= 1


DAMAGES = {
    "missing.cbe": (lambda: None, r"missing.cbe: No such file or directory"),
    "text.cbe": (lambda: Path("text.cbe").write_text("some text\n" * 99), r"text.cbe: not an index file"),
    "empty.cbe": (lambda: Path("empty.cbe").touch(), r"empty.cbe: not an index file"),
    "folder.cbe": (lambda: os.mkdir("folder.cbe"), r"folder.cbe: "),
    "cut.cbe": (lambda: damaged("cut.cbe", lambda content: content.__delitem__(slice(-100, None))), r"truncated"),
    "newer.cbe": (lambda: damaged("newer.cbe", make_newer), r"version 3, this release reads versions 1 and 2; a newer"),
    "other.cbe": (lambda: storage.write("other.cbe", {"kind": "Other"}, {}), r"other.cbe: kind must be one of"),
}


@pytest.mark.parametrize("command", ["info", "verify", "search"])
@pytest.mark.parametrize("name", DAMAGES)
def test_bad_index_files(name, command, folder, capsys):
    make, message = DAMAGES[name]
    make()
    assert re.search(message, failed(capsys, command, name, *(["queries.npy"] if command == "search" else [])))


def test_verify_finds_a_flipped_bit(folder, capsys):
    damaged("flipped.cbe", flip)
    assert run("info", "flipped.cbe") == 0
    capsys.readouterr()
    assert re.search(r"flipped.cbe: the checksum of .* does not match", failed(capsys, "verify", "flipped.cbe"))


def with_nan(row):
    rows = X.copy()
    rows[row, 3] = np.nan
    return rows


def save_sparse_nan():
    scipy.sparse.save_npz("nan.npz", scipy.sparse.csr_array(with_nan(222)))


BAD_BUILDS = [
    (None, ["missing.npy"], r"missing.npy: No such file or directory"),
    (lambda: Path("x.txt").touch(), ["x.txt"], r"x.txt must end in one of .*, got '.txt'"),
    (lambda: Path("x.npy").write_text("text" * 99), ["x.npy"], r"x.npy must be in the format of numpy.save"),
    (lambda: Path("x.fvecs").write_bytes(vecs(X)[:-1]), ["x.fvecs"], r"x.fvecs must be a multiple of 164 bytes"),
    (None, ["vectors.npy", "--key", "a"], r"vectors.npy holds one array"),
    (lambda: np.savez("x.npz", a=X, b=X), ["x.npz"], r"x.npz must be opened with a key out of 'a', 'b', got None"),
    (lambda: np.save("x.npy", X[:, :30]), ["vectors.npy", "x.npy"], r"x.npy must have vectors of length 40, .* got 30"),
    (save_sparse_nan, ["vectors.npy", "nan.npz"], r"nan.npz must be dense, as vectors.npy is"),
    (lambda: np.save("x.npy", with_nan(222)), ["x.npy"], r"x.npy must be finite in float32, row 222 is not"),
    (lambda: np.save("x.npy", with_nan(222)), ["vectors.npy", "x.npy"], r"x.npy must be finite .* row 222 is not"),
    (lambda: np.save("x.npy", with_nan(222)), ["x.npy", "--sample", "2"], r"x.npy must be finite .* row 222 is not"),
    (save_sparse_nan, ["nan.npz"], r"nan.npz must be finite in float32, row 222 is not"),
    (
        lambda: np.save("x.npy", np.full((9, 40), 1e300)),
        ["x.npy"],
        r"x.npy must be finite in float32, row 0 is not",
    ),
    (
        lambda: np.save("x.npy", np.vstack([X, 1e30 * X[:1]])),
        ["x.npy", "--metric", "l2"],
        r"x.npy must be small enough .* row 300 has",
    ),
    (
        lambda: np.save("x.npy", np.vstack([X, 1e3 * X[:1]])),
        ["x.npy", "--vectors", "float16"],
        r"x.npy must fit vectors=\"float16\", row 300 has values above 65504",
    ),
    (
        lambda: np.save("ids.npy", np.arange(9)),
        ["vectors.npy", "--ids", "ids.npy"],
        r"ids.npy must have shape \(300,\)",
    ),
    (lambda: np.save("ids.npy", X), ["vectors.npy", "--ids", "ids.npy"], r"ids.npy must have shape \(300,\)"),
    (
        lambda: np.save("ids.npy", X[:, 0]),
        ["vectors.npy", "--ids", "ids.npy"],
        r"ids.npy must be integers or strings",
    ),
    (
        lambda: np.save("ids.npy", np.arange(300) % 299),
        ["vectors.npy", "--ids", "ids.npy"],
        r"ids.npy must not repeat, 0 does",
    ),
    (
        lambda: np.save("ids.npy", np.arange(300) - 1),
        ["vectors.npy", "--ids", "ids.npy"],
        r"ids.npy must be 0 or more, got -1",
    ),
    (
        lambda: np.save("ids.npy", np.arange(600).reshape(2, 300)),
        ["vectors.npy", "--ids", "ids.npy"],
        r"\(300,\), got \(2,",
    ),
    (
        lambda: np.save("ids.npy", ["a", ""] * 150),
        ["vectors.npy", "--ids", "ids.npy"],
        r"ids.npy must not be empty .* at 1",
    ),
    (
        lambda: np.save("ids.npy", ["a"] * 300),
        ["vectors.npy", "--ids", "ids.npy"],
        r"ids.npy must not repeat, 'a' does",
    ),
    (lambda: np.save("ids.npy", 7), ["vectors.npy", "--ids", "ids.npy"], r"ids.npy must have shape \(300,\), got \(\)"),
    (
        lambda: np.save("i.npy", np.array([b"a"])),
        ["vectors.npy", "--ids", "i.npy"],
        r"i.npy must be integers or strings",
    ),
    (
        lambda: np.save("i.npy", np.array([{}], object), allow_pickle=True),
        ["vectors.npy", "--ids", "i.npy"],
        r"i.npy must hold numbers, got pickled objects",
    ),
    (
        lambda: Path("i.txt").write_bytes(b"a\xff"),
        ["vectors.npy", "--ids", "i.txt"],
        r"i.txt must be text in UTF-8: .* 1",
    ),
    (lambda: Path("i.txt").write_text("a\n\nb"), ["vectors.npy", "--ids", "i.txt"], r"i.txt must not be empty .* at 1"),
    (
        lambda: Path("i.txt").write_text(""),
        ["vectors.npy", "--ids", "i.txt"],
        r"i.txt must have shape \(300,\), got \(0,\)",
    ),
    (None, ["vectors.npy", "--ids", "ids.csv"], r"ids.csv must end in .npy or .txt, got '.csv'"),
    (None, ["vectors.npy", "--metric", "l1"], r"argument --metric: invalid choice: 'l1' .*see cbeindex build --help"),
    (None, ["vectors.npy", "--encoder", "none"], r"argument --encoder: invalid choice"),
    (None, ["vectors.npy", "--bits", "0"], r"argument --bits: must be at least 1, got 0"),
    (None, ["vectors.npy", "--bits", "many"], r"argument --bits: must be an integer, got 'many'"),
    (None, ["vectors.npy", "--sample", "1"], r"argument --sample: must be at least 2, got 1"),
    (None, ["vectors.npy", "--colour", "red"], r"unrecognized arguments: --colour red"),
    (None, [], r"the following arguments are required: VECTORS"),
]


@pytest.mark.parametrize(("make", "arguments", "message"), BAD_BUILDS)
def test_bad_builds(make, arguments, message, folder, capsys):
    if make:
        make()
    for block_bytes in (2**26, 17 * 4 * 40):  # the bad row is in the first block, or in a later one
        before = listing(folder)
        with tuned(cli_block_bytes=block_bytes):
            assert re.search(message, failed(capsys, "build", "out.cbe", *arguments))
        assert listing(folder) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["index.cbe"], r"index.cbe: the file exists; --force replaces it"),
        (["queries.npy", "--force"], r"queries.npy: not an index file, so it is not replaced"),
        (["folder", "--force"], r"folder: not an index file, so it is not replaced"),
        (["nowhere/out.cbe"], r"nowhere/out.cbe: No such file or directory"),
        (["queries.npy/out.cbe"], r"queries.npy/out.cbe: Not a directory"),
    ],
)
def test_places_where_no_index_can_be_built(arguments, message, tmp_path, folder, capsys):
    out, *options = arguments
    (tmp_path / "folder").mkdir()
    before = (folder / "queries.npy").read_bytes()
    assert re.search(message, failed(capsys, "build", out, "vectors.npy", *options))
    assert (folder / "queries.npy").read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_folder(folder, capsys):
    (folder / "closed").mkdir(0o500)
    assert "closed/out.cbe: Permission denied" in failed(capsys, "build", "closed/out.cbe", "vectors.npy")
    arguments = ["search", "index.cbe", "queries.npy", "--output", "closed/found.npz"]
    assert "closed/found.npz: Permission denied" in failed(capsys, *arguments)


def test_a_folder_that_takes_no_files_is_found_out_at_once(folder, capsys, monkeypatch):
    def refuse(suffix, prefix, dir):
        raise PermissionError(errno.EACCES, "Permission denied", f"{dir}/{prefix}0")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    assert failed(capsys, "build", "out.cbe", "missing.npy") == "cbeindex: error: out.cbe: Permission denied\n"


BAD_SEARCHES = [
    (["missing.npy"], r"missing.npy: No such file or directory"),
    (["index.cbe"], r"index.cbe must end in one of"),
    (["short.npy"], r"short.npy must have shape \(n, 40\) or \(40,\), got \(300, 30\)"),
    (["nan.npy"], r"nan.npy must be finite in float32, row 222 is not"),
    (["queries.npy", "-k", "0"], r"argument -k: must be at least 1, got 0"),
    (["queries.npy", "--mode", "guess"], r"argument --mode: invalid choice"),
    (["queries.npy", "--mode", "buckets"], r"^cbeindex: error: mode=\"buckets\" needs buckets"),
    (["queries.npy", "--rerank", "exact"], r"rerank=\"exact\" needs vectors"),
    (["queries.npy", "--output", "found.npy"], r"argument --output: must end in .npz, got found.npy"),
    (["queries.npy", "--output", "nowhere/found.npz"], r"nowhere/found.npz: No such file or directory"),
    (["queries.npz", "--output", "queries.npz"], r"argument --output: queries.npz must not be an input file"),
    (["queries.npy", "--output", "found.npz", "--json"], r"give only one of them"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_SEARCHES)
def test_bad_searches(arguments, message, folder, capsys):
    np.save("short.npy", X[:, :30])
    np.save("nan.npy", with_nan(222))
    np.savez("queries.npz", QUERIES)
    before = listing(folder)
    assert re.search(message, failed(capsys, "search", "index.cbe", *arguments))
    assert listing(folder) == before


def test_a_bad_query_is_reported_after_the_results_before_it(folder, capsys):
    np.save("nan.npy", with_nan(222))
    with tuned(cli_query_rows=100):
        assert run("search", "index.cbe", "nan.npy", "-k", "1") == 2
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 200
    assert err == "cbeindex: error: nan.npy must be finite in float32, row 222 is not\n"


@pytest.mark.parametrize(
    "arguments", [[], ["guess"], ["info"], ["verify"], ["search", "index.cbe"], ["info", "a", "b"]]
)
def test_bad_commands(arguments, folder, capsys):
    assert "--help" in failed(capsys, *arguments)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "not enough memory"),
        (MemoryError("Unable to allocate 9 TiB"), "not enough memory: Unable to allocate 9 TiB"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (ValueError("two\nlines"), "two lines"),
        (TypeError(), "TypeError"),
    ],
)
def test_errors_are_one_line(error, message, capsys, monkeypatch):
    def fail(*args):
        raise error

    monkeypatch.setattr(storage, "describe", fail)
    assert failed(capsys, "info", "index.cbe") == f"cbeindex: error: {message}\n"


# the program


def test_program(folder):
    for arguments, expected in [
        (["--version"], f"cbeindex {__version__}\n"),
        (["verify", "index.cbe"], "index.cbe: ok, CBEIndex of 300 vectors, .* commit 1\n"),
    ]:
        with program(*arguments) as process:
            out, err = process.communicate()
        assert re.fullmatch(expected, out)
        assert (process.returncode, err) == (0, "")
    with program("info", "missing.cbe") as process:
        out, err = process.communicate()
    assert out == ""
    assert re.fullmatch(r"cbeindex: error: .*missing.cbe: No such file or directory\n", err)
    assert process.returncode == 2


@pytest.mark.parametrize("command", [[], ["info"], ["verify"], ["build"], ["search"]])
def test_help(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(*command, "--help") == 0
    out, err = capsys.readouterr()
    assert out.startswith(" ".join(["usage: cbeindex", *command]))
    assert err == ""
    assert max(map(len, out.splitlines())) <= 80


def test_closed_pipe_ends_quietly(folder):
    """As of `| head -1`: more is printed than a pipe holds."""
    np.save("many.npy", X[:100])
    with program("search", "index.cbe", "many.npy", "-k", "300") as process:
        assert process.stdout.readline().startswith("0\t0:")
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_full_disk_behind_stdout(folder):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "cbeindex", "info", "index.cbe"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, text=True)
    assert (done.returncode, done.stderr) == (2, "cbeindex: error: No space left on device\n")


def test_odd_names_of_files(folder, capsys):
    name = os.fsdecode(b"caf\xe9 \xf0.cbe")
    try:
        os.rename("index.cbe", name)
    except OSError:
        pytest.skip("the disk takes names in Unicode only")
    assert run("verify", name) == 0
    assert ": ok, CBEIndex of 300 vectors" in capsys.readouterr().out


def test_importing_the_package_does_not_import_the_command_line():
    done = subprocess.run(
        [sys.executable, "-c", "import sys, cbeindex; print({'argparse', 'cbeindex.cli'} & set(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "set()\n"


def test_installed_command():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"cbeindex": "cbeindex.cli:main"}
