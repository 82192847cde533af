"""Parquet and Arrow files on the command line: columns of vectors and of ids, in blocks."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cbeindex import CBEIndex
from cbeindex._core.tuning import tuned
from cbeindex.cli import main
from cbeindex.data.arrowfiles import ArrowVectors, read_id_column
from cbeindex.data.vectorfiles import open_vectors

pa = pytest.importorskip("pyarrow", reason="no wheel of pyarrow for this platform")
pq = pytest.importorskip("pyarrow.parquet", reason="no wheel of pyarrow for this platform")

N, DIM = 50, 6
X = np.random.default_rng(0).standard_normal((N, DIM)).astype(np.float32)
NAMES = [f"name {i}" for i in range(N)]


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def table(rows=X, start=0, kind=None):
    kind = kind or pa.list_(pa.float32(), rows.shape[1])
    columns = {"id": pa.array(range(100 + start, 100 + start + len(rows))), "embedding": pa.array(rows.tolist(), kind)}
    return pa.table(columns | {"name": pa.array(NAMES[start : start + len(rows)])})


def write(path, content, **options):
    if path.endswith(".parquet"):
        pq.write_table(content, path, row_group_size=options.pop("group", 20), **options)
        return
    make = pa.ipc.new_stream if options.pop("is_stream", False) else pa.ipc.new_file
    with pa.OSFile(path, "wb") as file, make(file, content.schema, **options) as writer:
        writer.write_table(content, max_chunksize=15)


FILES = {
    "x.parquet": {},
    "one group.parquet": {"group": 1000},
    "lz4.parquet": {"compression": "lz4", "use_dictionary": False},
    "x.arrow": {},
    "x.feather": {"options": pa.ipc.IpcWriteOptions(compression="zstd")},
    "stream.arrow": {"is_stream": True},
    "x.ipc": {},
}


@pytest.mark.parametrize("name", list(FILES))
@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32(), DIM), pa.list_(pa.float64()), pa.large_list(pa.float32())], ids=str
)
def test_rows_come_back_in_any_order(name, kind):
    write(name, table(kind=kind), **FILES[name])
    with tuned(parquet_batch_rows=7):
        rows = open_vectors(name, "embedding")
        assert isinstance(rows, ArrowVectors)
        assert rows.shape == (N, DIM)
        assert rows.dtype == (np.float64 if kind == pa.list_(pa.float64()) else np.float32)
        expected = X.astype(rows.dtype)
        for some in (slice(0, 5), slice(5, 30), slice(3, 50), slice(49, 50), slice(20, 20), slice(0, 200)):
            np.testing.assert_array_equal(rows[some], expected[some])
        for some in (np.array([0, 6, 7, 49]), np.array([2, 3]), np.array([], dtype=np.int64)):
            np.testing.assert_array_equal(rows[some], expected[some])
        np.testing.assert_array_equal(open_vectors(name)[:], expected)  # the only column of lists


@pytest.mark.parametrize("name", list(FILES))
@pytest.mark.parametrize("ids", ["id", "name"])
def test_build_and_search(name, ids, capsys):
    write(name, table(), **FILES[name])
    with tuned(parquet_batch_rows=7, cli_block_bytes=1000):
        command = ["build", "out.cbe", name, "--key", "embedding", "--id-column", ids, "--vectors", "float32"]
        assert main(command) == 0
        assert main(["search", "out.cbe", name, "--key", "embedding", "-k", "1", "--json"]) == 0
    expected = NAMES if ids == "name" else list(range(100, 150))
    assert [json.loads(line)["ids"] for line in capsys.readouterr().out.splitlines()] == [[id_] for id_ in expected]
    index = CBEIndex.load("out.cbe")
    np.testing.assert_array_equal(index.get(expected), X)


def test_several_files():
    write("a.parquet", table(X[:20]))
    write("b.arrow", table(X[20:], start=20))
    assert main(["build", "out.cbe", "a.parquet", "b.arrow", "--id-column", "name", "--vectors", "float32"]) == 0
    index = CBEIndex.load("out.cbe")
    assert index.ids.tolist() == NAMES
    np.testing.assert_array_equal(index.get(NAMES), X)
    np.save("rest.npy", X)
    assert main(["build", "plain.cbe", "a.parquet", "b.arrow"]) == 0
    assert main(["build", "same.cbe", "rest.npy"]) == 0
    assert Path("plain.cbe").read_bytes() == Path("same.cbe").read_bytes()


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()], ids=str
)
def test_columns_of_strings(kind):
    column = pa.array(NAMES[:4]).cast(kind)
    with pa.OSFile("x.arrow", "wb") as file, pa.ipc.new_file(file, pa.schema([("name", kind)])) as writer:
        writer.write_table(pa.table({"name": column}))
    assert read_id_column("x.arrow", "name").tolist() == NAMES[:4]


def with_row(row):
    return pa.table({"embedding": pa.array([*X[:9].tolist(), row, *X[:9].tolist()])})


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (with_row(None), [], "x.parquet must not have missing values; .*, row 9 has one"),
        (with_row([1.0] * 5 + [None]), [], "x.parquet must not have missing values; .*, row 9 has one"),
        (with_row([1.0] * 5), [], "x.parquet must be vectors of length 6, .*row 9 has"),
        (with_row([np.nan] * 6), [], "x.parquet must be finite in float32, row 9 is not"),
        (table(), ["--key", "other"], "x.parquet must have one column 'other', got id, embedding, name"),
        (table(), ["--key", "name"], "x.parquet must be Arrow lists of numbers, got string"),
        (table(), ["--key", "id"], "x.parquet must hold vectors in the column 'id', got int64"),
        (table(), ["--id-column", "other"], "x.parquet must have one column 'other'"),
        (table(), ["--id-column", "embedding"], "'embedding' of x.parquet must be integers or strings"),
        (table().drop_columns("embedding"), [], r"must have one column of vectors, .* got id \(int64\), name"),
        (table(X[:0]), [], "x.parquet must hold 1 or more vectors"),
        (table(), ["--id-column", "id", "--ids", "ids.npy"], "give only one of them"),
        (pa.table({"v": X[:3].tolist(), "id": ["a", "b", "a"]}), ["--id-column", "id"], "must not repeat, 'a' does"),
        (pa.table({"v": X[:3].tolist(), "id": ["a", "b", None]}), ["--id-column", "id"], "in 'id', row 2 has one"),
        (pa.table({"v": X[:3].tolist(), "id": [1, -1, 2]}), ["--id-column", "id"], "must be 0 or more, got -1"),
    ],
)  # fmt: skip
def test_bad_columns(content, arguments, message, capsys):
    write("x.parquet", content)
    with tuned(parquet_batch_rows=4):
        assert main(["build", "out.cbe", "x.parquet", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error), error
    assert not Path("out.cbe").exists()


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_damaged_files(name, capsys):
    """Cut off anywhere, or of another kind: one line, and no index."""
    write(name, table())
    data = Path(name).read_bytes()
    for broken in (b"", b"x", data[: len(data) // 2], data[:-1], b"ARROW1" + data[6:20], bytes(len(data))):
        Path(name).write_bytes(broken)
        assert main(["build", "out.cbe", name, "--key", "embedding"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["build", "out.cbe", f"missing-{name}"]) == 2
    assert "No such file" in capsys.readouterr().err


def test_ids_from_a_file_without_columns(capsys):
    np.save("x.npy", X)
    assert main(["build", "out.cbe", "x.npy", "--id-column", "id"]) == 2
    assert "x.npy must be a Parquet or Arrow file to have a column of ids, got '.npy'" in capsys.readouterr().err


def test_pyarrow_that_is_not_there():
    write("x.parquet", table())
    run = "from cbeindex.cli import main; sys.exit(main(['build', 'out.cbe', 'x.parquet']))"
    script = f"import sys; sys.modules['pyarrow'] = None; {run}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'x.parquet needs pyarrow to be read: pip install "cbeindex[arrow]"' in done.stderr
