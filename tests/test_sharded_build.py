"""Building an index in shards from files and datasets, and the command line."""

import json
import sys

import numpy as np
import pytest
from scipy import sparse

from cbeindex import CBEIndex
from cbeindex._core.tuning import tuned
from cbeindex.cli import main

ray = pytest.importorskip("ray")

from cbeindex.sharded import ShardedIndex, build  # noqa: E402

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(sys.platform == "win32", reason="Windows replaces no files that are open"),
]

DIM = 24
X = np.random.default_rng(1).standard_normal((700, DIM)).astype(np.float32)
EXACT = {"rerank": "exact", "mode": "scan", "n_candidates": 700}


@pytest.fixture(autouse=True)
def _small_blocks():
    with tuned(cli_block_bytes=100 * 4 * DIM):
        yield


def test_an_index_of_files_is_that_of_their_rows(cluster, tmp_path):
    np.save(tmp_path / "a.npy", X[:300])
    np.save(tmp_path / "b.npy", X[300:].astype(np.float64))
    blocks = []
    paths = [tmp_path / "a.npy", tmp_path / "b.npy"]
    ids = np.arange(700)[::-1] * 3
    with build(tmp_path / "index", paths, n_shards=2, ids=ids, vectors="float32", on_block=blocks.append) as index:
        assert sum(blocks) == 700
        assert max(blocks) <= 100
        assert [shard["log_bytes"] < 1_000 for shard in index.stats()["shards"]] == [True, True]  # saved
        single = CBEIndex(DIM, vectors="float32", encoder=index._connection.template.encoder, buckets=None)
        single.add(X, ids)
        ours, theirs = index.search(X[:40], 7, **EXACT), single.search(X[:40], 7, **EXACT)
        np.testing.assert_array_equal(ours.ids, theirs.ids)
        np.testing.assert_array_equal(ours.distances, theirs.distances)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.npy", "index"]


@pytest.mark.filterwarnings("ignore")  # of Ray Data about its own settings
def test_an_index_of_a_dataset(cluster, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = np.random.default_rng(0).permutation(700)
    table = pa.table({"id": numbers, "vector": list(X)})
    pq.write_table(table, tmp_path / "rows.parquet")
    dataset = ray.data.read_parquet(str(tmp_path / "rows.parquet"))
    with ShardedIndex.build(
        tmp_path / "a", dataset, n_shards=1, id_column="id", n_sample=100, vectors="float32", buckets=None
    ) as index:
        np.testing.assert_array_equal(index.get(numbers), X)
    with pytest.raises(ValueError, match="belong to files"):
        build(tmp_path / "c", dataset, n_shards=1, key="x")
    with pytest.raises(ValueError, match="belong to a dataset"):
        build(tmp_path / "c", "rows.npy", n_shards=1, column="x")
    with pytest.raises(ValueError, match="column must be one of"):
        build(tmp_path / "c", dataset, n_shards=1)


def test_a_build_that_fails_leaves_nothing(cluster, tmp_path):
    bad = X.copy()
    bad[650, 3] = np.nan
    np.save(tmp_path / "bad.npy", bad)
    with pytest.raises(ValueError, match=r"bad\.npy must be finite in float32, row 650 is not"):
        build(tmp_path / "index", str(tmp_path / "bad.npy"), n_shards=1, n_sample=2)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.npy"]
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "mine").touch()
    with pytest.raises(FileExistsError, match="found other files"):
        build(tmp_path / "index", str(tmp_path / "bad.npy"), n_shards=1, n_sample=2)


def test_the_command_line(cluster, tmp_path, capsys):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "q.npy", X[:3])
    np.save(tmp_path / "ids.npy", np.arange(700) + 1_000)
    folder = str(tmp_path / "index")
    command = ["shard", "build", folder, str(tmp_path / "x.npy"), "--shards", "2", "--vectors", "float32"]
    assert main([*command, "--ids", str(tmp_path / "ids.npy")]) == 0
    assert "700 vectors of 24 values in 2 shards" in capsys.readouterr().err
    assert main(["shard", "search", folder, str(tmp_path / "q.npy"), "-k", "2", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["query"], line["ids"][0], len(line["ids"])) for line in found] == [
        (0, 1_000, 2), (1, 1_001, 2), (2, 1_002, 2),
    ]  # fmt: skip
    assert main(["shard", "info", folder, "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["rows"], about["n_shards"], about["dim"], len(about["shards"])) == (700, 2, DIM, 2)
    assert main(["shard", "info", folder]) == 0
    assert "rows         700" in capsys.readouterr().out
    assert main(command) == 2
    assert "must be an empty folder or not exist" in capsys.readouterr().err
    path = tmp_path / "index" / about["shards"][1]["file"]
    path.write_bytes(path.read_bytes()[:100])
    assert main(["shard", "search", folder, str(tmp_path / "q.npy")]) == 2
    assert "1 of 2 shards did not answer: shard 1:" in capsys.readouterr().err
    output = str(tmp_path / "found.npz")
    assert main(["shard", "search", folder, str(tmp_path / "q.npy"), "--partial", "--output", output]) == 0
    assert np.load(output)["ids"].shape == (3, 10)
    assert main(["shard", "info", str(tmp_path)]) == 2


def test_sparse_files(cluster, tmp_path):
    rows = sparse.csr_array(X * (X > 1))
    sparse.save_npz(tmp_path / "rows.npz", rows)
    with build(tmp_path / "index", str(tmp_path / "rows.npz"), n_shards=1, vectors="float32") as index:
        assert (index.get(np.arange(700)) != rows).nnz == 0


def test_a_cluster_is_started_where_there_is_none(tmp_path):
    """And ended by `close`."""
    import subprocess
    import sys

    program = f"""
import numpy as np, ray
from cbeindex.sharded import ShardedIndex
X = np.eye({DIM}, dtype=np.float32)
with ShardedIndex.create({str(tmp_path / "index")!r}, {DIM}, n_shards=1) as index:
    index.add(X)
    print(index.search(X[3], 1).ids, {{node["NodeManagerAddress"] for node in ray.nodes()}})
print(ray.is_initialized())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[3] {'127.0.0.1'}", "False"], done.stderr
