"""ShardedIndex on a cluster of three nodes: equal to a single index, and complete when workers die."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from scipy import sparse

from cbeindex import CBEIndex
from cbeindex.errors import CorruptIndexFileError

ray = pytest.importorskip("ray")

from cbeindex.sharded import ShardedIndex, ShardError, ShardTimeoutError  # noqa: E402
from cbeindex.sharded.coordinator import Coordinator, end_workers  # noqa: E402
from cbeindex.sharded.folder import prepare_folder  # noqa: E402
from cbeindex.sharded.manifest import Manifest  # noqa: E402
from cbeindex.sharded.routing import shard_of  # noqa: E402
from tests.ray_cluster import NODE  # noqa: E402

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(sys.platform == "win32", reason="Windows replaces no files that are open"),
]

DIM, N = 48, 3_000
X = np.random.default_rng(5).standard_normal((N, DIM)).astype(np.float32)
X[N // 2 :: 50] = X[:N:100]  # equal rows: ties go by id
QUERIES = X[:40] + np.float32(0.1)

# Options under which a search considers every row, so that shards make no difference.
HAMMING = {"rerank": None, "mode": "scan"}
ESTIMATED = {"rerank": "asymmetric", "mode": "scan", "n_candidates": N}
EXACT = {"rerank": "exact", "mode": "scan", "n_candidates": N}


def assert_equal(ours, theirs):
    np.testing.assert_array_equal(ours.ids, theirs.ids)
    np.testing.assert_array_equal(ours.distances, theirs.distances)


def single_like(index, **options):
    """An empty single index with the encoder of a sharded one."""
    return CBEIndex(DIM, encoder=index._connection.template.encoder, **{"vectors": None, "buckets": None, **options})


def pids(index):
    return [shard["pid"] for shard in index.stats()["shards"]]


def kill(index, number=0):
    os.kill(pids(index)[number], signal.SIGKILL)


@contextmanager
def in_background(work):
    """Call `work` again and again on another thread; raise its error at the end."""
    is_over, errors, n_calls = threading.Event(), [], [0]

    def run():
        try:
            while not is_over.is_set():
                work()
                n_calls[0] += 1
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield n_calls
    finally:
        is_over.set()
        thread.join()
    if errors:
        raise errors[0]


@pytest.fixture(scope="module")
def shared(cluster, tmp_path_factory):
    """An index that its first rows have fitted, and a single index with the same history; tests do not change them."""
    folder = tmp_path_factory.mktemp("shared") / "index"
    index = ShardedIndex.create(folder, DIM, n_shards=3, vectors="float32", metric="l2", buckets=None)
    single = CBEIndex(DIM, vectors="float32", metric="l2", buckets=None)
    many = np.concatenate([X, X[:2_000] * 2, X * 3, X[:1_000] * 4])  # 9,000 rows: the encoder is fitted to 8,192
    for start, stop in ((0, 100), (100, 8_500), (8_500, 9_000)):
        np.testing.assert_array_equal(index.add(many[start:stop]), single.add(many[start:stop]))
    assert index.stats()["fitted"]
    assert single.is_fitted
    yield index, single
    index.close()


@pytest.mark.parametrize(
    "options", [HAMMING, ESTIMATED | {"n_candidates": 9_000}, EXACT | {"n_candidates": 9_000}], ids=str
)
def test_results_are_those_of_a_single_index(shared, options):
    index, single = shared
    for more in ({}, {"allow": np.arange(0, 9_000, 3)}, {"deny": np.arange(500)}, {"n_threads": 1}):
        assert_equal(index.search(QUERIES, 12, **options, **more), single.search(QUERIES, 12, **options, **more))
    ours, theirs = index.search(QUERIES[0], 5, **options), single.search(QUERIES[0], 5, **options)
    assert ours.ids.shape == (5,)
    assert_equal(ours, theirs)
    if options["rerank"] == "asymmetric":
        np.testing.assert_array_equal(ours.errors, theirs.errors)
    few = {"allow": [3, 5]}
    assert_equal(index.search(QUERIES, 4, **options, **few), single.search(QUERIES, 4, **options, **few))


def test_other_methods_are_those_of_a_single_index(shared):
    index, single = shared
    assert len(index) == len(single) == 9_000
    np.testing.assert_array_equal(index.ids, single.ids)
    wanted = [8_999, 3, 77, 4_000, 3]
    np.testing.assert_array_equal(index.get(wanted), single.get(wanted))
    np.testing.assert_array_equal(index.get(5), single.get(5))
    assert index.get([]).shape == (0, DIM)
    np.testing.assert_array_equal(index.codes(wanted), single.codes(wanted))
    np.testing.assert_array_equal(index.codes(7), single.codes(7))
    assert index.codes([]).shape == single.codes([]).shape
    assert 5 in index
    assert 9_000 not in index
    assert -1 not in index
    assert None not in index
    for ours, theirs in zip(index.range_search(QUERIES, 30.0), single.range_search(QUERIES, 30.0), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert_equal(asyncio.run(index.search_async(QUERIES, 3, **EXACT)), index.search(QUERIES, 3, **EXACT))


def test_the_index_describes_itself(shared):
    index, _ = shared
    stats = index.stats()
    assert (stats["rows"], stats["n_shards"], stats["dim"]) == (9_000, 3, DIM)
    assert sum(shard["rows"] for shard in stats["shards"]) == 9_000
    assert {shard["restarts"] for shard in stats["shards"]} == {0}
    assert len({shard["node"] for shard in stats["shards"]}) > 1
    explanation = index.explain(QUERIES, 5, **HAMMING)
    assert [e.mode for e in explanation.shards] == ["scan"] * 3
    assert "shard 2: 40 queries" in explanation
    assert repr(index).endswith("dim=48, n_shards=3, replicas=1)")
    found = index.search(QUERIES, 5, **HAMMING)
    assert found.stats["rows"] == 9_000
    assert found.stats["missing_shards"] == []


def test_wrong_arguments_raise_as_in_a_single_index(shared):
    index, single = shared
    for call in (
        lambda i: i.search(QUERIES, 0),
        lambda i: i.search(QUERIES, 5, mode="quick"),
        lambda i: i.search(QUERIES[:, 1:], 5),
        lambda i: i.search(QUERIES, 5, unknown=1),
        lambda i: i.get([9_000]),
        lambda i: i.add(X[:2], ids=[1, 1]),
        lambda i: i.add(X[:2], ids=[9_500, 5]),
        lambda i: i.add(np.full((2, DIM), np.nan)),
        lambda i: i.remove([1, 9_999]),
        lambda i: i.fit(X),
    ):
        with pytest.raises((ValueError, TypeError)) as theirs:
            call(single)
        with pytest.raises(theirs.type) as ours:
            call(index)
        assert str(ours.value) == str(theirs.value)
    assert len(index) == 9_000


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        ({"metric": "ip", "vectors": "float16", "n_bits": 40}, X),
        ({"vectors": "int8"}, X),
        ({"vectors": "float32"}, sparse.csr_array(X * (X > 1))),
        ({"buckets": "cells", "vectors": "float32"}, X),
    ],
    ids=["ip", "int8", "sparse", "cells"],
)
def test_other_kinds_of_index(cluster, tmp_path, arguments, rows):
    with ShardedIndex.create(
        tmp_path / "index", DIM, n_shards=2, sync=False, **{"vectors": None, "buckets": None, **arguments}
    ) as index:
        index.fit(rows)
        index.add(rows, np.arange(N) * 7)
        single = CBEIndex.load(tmp_path / "index" / "template.cbe")
        single.add(rows, np.arange(N) * 7)
        options: list = [HAMMING]
        if "buckets" not in arguments:
            options += [ESTIMATED, EXACT | {"rerank": "auto"}]
        for some in options:
            assert_equal(index.search(rows[:30], 9, **some), single.search(rows[:30], 9, **some))
        if arguments.get("vectors") == "float32":
            ours, theirs = index.get([7, 21, 14]), single.get([7, 21, 14])
            assert (ours != theirs).sum() == 0


def test_add_remove_save_and_reopen(cluster, tmp_path):
    folder = tmp_path / "index"
    with ShardedIndex.create(folder, DIM, n_shards=2, vectors="float32", buckets=None) as index:
        index.fit(X)
        single = single_like(index, vectors="float32")
        for i in (index, single):
            i.add(X[:1_000])
            i.remove(np.arange(0, 1_000, 7))
            i.remove({1, 7, 5_000}, missing="ignore")
        index.save()
        for i in (index, single):
            i.add(X[:50] * 2, ids=np.arange(50) + 1, replace=True)
            assert i.add(X[1_000:1_010]).tolist() == list(range(1_000, 1_010))
    with ShardedIndex.open(folder, replicas=2) as index:  # what was not saved is in the logs
        assert_equal(index.search(QUERIES, 10, **EXACT), single.search(QUERIES, 10, **EXACT))
        index.reshard(1)
        assert index.n_shards == 1
        assert_equal(index.search(QUERIES, 10, **EXACT), single.search(QUERIES, 10, **EXACT))
        assert index.add(X[:1]).tolist() == single.add(X[:1]).tolist() == [1_010]
        index.compact()
        assert sum(shard["removed"] for shard in index.stats()["shards"]) == 0
        index.verify()
    assert len(list((folder / Manifest.read(folder).layout).glob("*.cbe"))) == 1
    assert len(list(folder.glob("layout-*"))) == 1
    with ShardedIndex.open(folder, replicas=1) as index:
        assert_equal(index.search(QUERIES, 10, **HAMMING), single.search(QUERIES, 10, **HAMMING))
        assert len(index) == len(single)
    with pytest.raises(ValueError, match="closed"):
        index.search(QUERIES)


def test_searches_are_complete_while_workers_are_killed(cluster, tmp_path):
    with ShardedIndex.create(tmp_path / "index", DIM, n_shards=2, vectors="float32", buckets=None) as index:
        index.add(X)  # not saved
        expected = index.search(QUERIES, 10)
        with in_background(lambda: assert_equal(index.search(QUERIES, 10), expected)) as n_calls:
            for number in (0, 1, 0):
                kill(index, number)
                time.sleep(0.5)
                n_before = n_calls[0]
                while n_calls[0] < n_before + 3:
                    time.sleep(0.05)
        assert sorted(shard["restarts"] for shard in index.stats()["shards"]) == [1, 2]


def test_adds_and_saves_are_complete_while_workers_are_killed(cluster, tmp_path):
    with ShardedIndex.create(tmp_path / "index", DIM, n_shards=2, vectors="float32", buckets=None) as index:
        index.fit(X)
        first = 0

        def add():
            nonlocal first
            index.add(X[first % N : first % N + 20], ids=np.arange(first, first + 20))
            first += 20
            if first % 100 == 0:
                index.save()

        with in_background(add) as n_calls:
            for number in (0, 1, 0, 1):
                n_before = n_calls[0]
                while n_calls[0] < n_before + 7:
                    time.sleep(0.01)
                kill(index, number)
        np.testing.assert_array_equal(index.ids, np.arange(first))
        np.testing.assert_array_equal(index.get(np.arange(first)), X[np.arange(first) % N])
        index.verify()


def test_a_node_that_disappears_costs_no_error(cluster, tmp_path):
    node = cluster.add_node(**NODE)
    with ShardedIndex.create(tmp_path / "index", DIM, n_shards=2, replicas=2, vectors="float32", buckets=None) as index:
        index.add(X)
        expected = index.search(QUERIES, 10)
        with in_background(lambda: assert_equal(index.search(QUERIES, 10, timeout=60), expected)) as n_calls:
            cluster.remove_node(node, allow_graceful=False)
            n_before = n_calls[0]
            while n_calls[0] < n_before + 20:
                time.sleep(0.05)
        assert index.add(X[:10]).tolist() == list(range(N, N + 10))
        assert len(index) == N + 10


def test_a_silent_worker_is_passed_over(cluster, tmp_path):
    """It neither answers nor dies, as a machine that has vanished; the other replica answers in its place."""
    with ShardedIndex.create(tmp_path / "index", DIM, n_shards=1, replicas=2, vectors="float32", buckets=None) as index:
        index.add(X)
        expected = index.search(QUERIES, 10)
        (pid,) = pids(index)
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(4):
                assert_equal(index.search(QUERIES, 10, timeout=60), expected)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_damaged_shard_is_an_error_unless_part_of_the_answer_is_wanted(cluster, tmp_path):
    folder = tmp_path / "index"
    with ShardedIndex.create(folder, DIM, n_shards=2, vectors="float32", buckets=None) as index:
        index.fit(X)
        index.add(X)
        index.save()
        complete = index.search(QUERIES, 10, **EXACT)
    path = folder / Manifest.read(folder).shard_file(1)
    data = path.read_bytes()
    path.write_bytes(data[:100] + b"damage" + data[106:200] + b"damage" + data[206 : len(data) // 2])
    with ShardedIndex.open(folder) as index:
        with pytest.raises(ShardError, match=r"1 of 2 shards are damaged: shard 1: .*shard-0001\.cbe"):
            index.verify()
        with pytest.raises(ShardError, match=r"1 of 2 shards did not answer: shard 1: .*shard-0001\.cbe") as caught:
            index.search(QUERIES, 10)
        assert isinstance(caught.value.causes[1], CorruptIndexFileError)
        found = index.search(QUERIES, 10, partial=True, **EXACT)
        assert found.stats["missing_shards"] == [1]
        for ids, kept, everything in zip(found.ids, shard_of(found.ids, 2), complete.ids, strict=True):
            assert 1 not in kept
            assert set(everything[shard_of(everything, 2) != 1]) <= set(ids)
        with pytest.raises(ShardError):
            index.add(X, ids=np.arange(N) + N)
        path.write_bytes(data)  # as from a backup: nothing has to be started again
        assert_equal(index.search(QUERIES, 10, **EXACT), complete)


def test_a_slow_shard_meets_the_timeout(shared):
    index, single = shared
    pid = pids(index)[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ShardTimeoutError, match=r"1 of 3 shards did not answer: shard 1: no answer in 2 s"):
            index.search(QUERIES, 5, timeout=2)
        assert index.search(QUERIES, 5, timeout=2, partial=True).stats["missing_shards"] == [1]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert_equal(index.search(QUERIES, 5, **HAMMING), single.search(QUERIES, 5, **HAMMING))


def test_rows_move_while_others_read_and_write(cluster, tmp_path):
    with ShardedIndex.create(tmp_path / "index", DIM, n_shards=1, vectors="float32", buckets=None) as index:
        index.fit(X)
        index.add(X)
        expected = index.search(QUERIES, 10, **EXACT)
        other = ShardedIndex.open(tmp_path / "index")
        first = N

        def add():
            nonlocal first
            other.add(X[:5] + 1_000, ids=np.arange(first, first + 5))
            first += 5

        def search():
            assert_equal(index.search(QUERIES, 10, **EXACT), expected)

        with in_background(search) as n_reads, in_background(add) as n_writes:
            for n_shards in (2, 1):
                other.reshard(n_shards)
                reads, writes = n_reads[0], n_writes[0]
                while n_reads[0] < reads + 2 or n_writes[0] < writes + 2:
                    time.sleep(0.05)
        np.testing.assert_array_equal(index.ids, np.arange(first))
        assert (index.n_shards, other.n_shards) == (1, 1)
        other.close()


CLIENT = """
import sys, numpy as np, ray
from cbeindex.sharded import ShardedIndex
ray.init(sys.argv[1], log_to_driver=False, logging_level="error")
index = ShardedIndex.open(sys.argv[2])
print("rows", len(index), index.add(np.ones((30, 48), dtype=np.float32)).tolist()[0], flush=True)
sys.stdin.readline()
"""


def test_two_clients_share_an_index(cluster, tmp_path):
    """Each sees the writes of the other; when the one that has started the workers ends, the other goes on."""
    folder = tmp_path / "index"
    with ShardedIndex.create(folder, DIM, n_shards=2, vectors="float32", buckets=None) as index:
        index.add(X[:100])
    command = [sys.executable, "-c", CLIENT, cluster.address, str(folder)]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    # Ray tells every client of the nodes that other tests have killed.
    assert next(line for line in client.stdout if line.startswith("rows")).split() == ["rows", "100", "100"]
    with ShardedIndex.open(folder) as index:
        assert len(index) == 130
        assert index.add(X[:2]).tolist() == [130, 131]
        client.kill()
        client.wait()
        for stream in (client.stdin, client.stdout):
            stream.close()
        assert len(index) == 132
        assert index.search(X[:2], 2).ids[:, 1].tolist() == [130, 131]
        with pytest.raises(ValueError, match="taken"):
            index.add(X[:1], ids=[131])


def test_clients_that_add_at_once_fit_one_encoder(cluster, tmp_path):
    with ShardedIndex.create(tmp_path / "index", DIM, n_shards=2, sync=False, vectors=None, buckets=None) as index:
        clients = [index, ShardedIndex.open(tmp_path / "index")]
        many = np.tile(X, (2, 1))
        threads = [threading.Thread(target=client.add, args=(many,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.testing.assert_array_equal(index.ids, np.arange(12_000))
        index.add(X[:1])  # neither client had enough rows by itself
        assert index.stats()["fitted"]
        assert_equal(index.search(X[:9], 3, **ESTIMATED), clients[1].search(X[:9], 3, **ESTIMATED))
        clients[1].close()


def test_detached_workers_outlive_their_client(cluster, tmp_path):
    options = {"lifetime": "detached", "num_cpus": 0.1}
    with ShardedIndex.create(
        tmp_path / "index", DIM, n_shards=1, ray_options=options, vectors=None, buckets=None
    ) as index:
        index.add(X[:10])
        (pid,) = pids(index)
    with ShardedIndex.open(tmp_path / "index", ray_options=options) as index:
        assert pids(index) == [pid]
        index.stop()
    with ShardedIndex.open(tmp_path / "index") as index:
        assert pids(index) != [pid]
        assert len(index) == 10


def test_a_coordinator_that_dies_in_a_move_leaves_the_old_layout(cluster, tmp_path):
    folder = tmp_path / "index"
    with ShardedIndex.create(folder, DIM, n_shards=2, vectors="float32", buckets=None) as index:
        index.fit(X)
        index.add(X[:500])
        before = Manifest.read(folder)
        ray.kill(index._connection._coordinator, no_restart=False)
        before.changed(moving=True).write(folder)  # as it left it
        (folder / "layout-9-00000000").mkdir()
        assert index.add(X[:1]).tolist() == [500]
        assert Manifest.read(folder) == before.changed(ids="int")
        assert not (folder / "layout-9-00000000").exists()
        index.add(X[:1], ids=[9_000])


def test_the_coordinator_by_itself(cluster, tmp_path, monkeypatch):
    """In this process, where a failure can be staged."""
    folder = prepare_folder(
        tmp_path / "index", n_shards=1, replicas=1, sync=False, index=CBEIndex(DIM, vectors=None, buckets=None)
    )
    key = Manifest.read(folder).key
    coordinator = Coordinator(folder, {})
    coordinator.use_ids("int")
    with pytest.raises(TypeError, match="ids must be integers, as those of this index are, got strings"):
        coordinator.use_ids("str")
    assert coordinator.take_ids(3).tolist() == [0, 1, 2]
    coordinator.fit(X)
    with pytest.raises(ValueError, match="fitted already"):
        coordinator.fit(X)
    coordinator.started("w")
    coordinator.started("w")
    assert coordinator.restarts() == {"w": 1}
    before = Manifest.read(folder)
    with monkeypatch.context() as patch:
        patch.setattr("cbeindex.sharded.coordinator.ray.get", lambda refs: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            coordinator.move(2)
    assert Manifest.read(folder) == before
    assert [path.name for path in (tmp_path / "index").glob("layout-*")] == [before.layout]
    coordinator.move(2)
    after = Manifest.read(folder)
    assert (after.n_shards, after.moving, after.layout != before.layout) == (2, False, True)
    assert [path.name for path in (tmp_path / "index").glob("layout-*")] == [after.layout]
    assert coordinator.take_ids(2).tolist() == [3, 4]
    end_workers(key, keep=None)
    assert not [named for named in ray.util.list_named_actors(all_namespaces=True) if named["name"].startswith(key)]


def test_without_ray_the_message_names_the_extra():
    program = "import sys; sys.modules['ray'] = None\nimport cbeindex\nimport cbeindex.sharded"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == 'ImportError: cbeindex.sharded needs Ray: pip install "cbeindex[ray]"'
    program = "import sys, cbeindex; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
