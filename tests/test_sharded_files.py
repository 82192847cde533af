"""Manifests, logs and shards by themselves, without Ray: what a crash leaves, and what damage is found."""

import json
import shutil
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from cbeindex import CBEIndex
from cbeindex.errors import (
    CorruptIndexFileError,
    IndexFileError,
    NotAnIndexFileError,
    UnsupportedVersionError,
    WriterConflictError,
)
from cbeindex.storage.checksum import crc32

pytest.importorskip("ray")

from cbeindex.sharded import shard as shard_module
from cbeindex.sharded.errors import FrozenError, LostWritesError, NotFittedError, StaleLayoutError
from cbeindex.sharded.folder import prepare_folder
from cbeindex.sharded.log import END, HEADER_BYTES, Log, LogReader
from cbeindex.sharded.manifest import NAME, Manifest, log_file
from cbeindex.sharded.moving import copy_shard, remove_layouts
from cbeindex.sharded.records import pack, pack_vectors, unpack, unpack_vectors
from cbeindex.sharded.routing import rows_by_shard, shard_of
from cbeindex.sharded.shard import Shard

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows replaces no files that are open")

DIM = 16
X = np.random.default_rng(3).standard_normal((60, DIM)).astype(np.float32)
MANIFEST = Manifest("0" * 32, "layout-1-00000000", 3, DIM)


@pytest.fixture
def folder(tmp_path):
    """An index of one shard, fitted, with kept vectors."""
    index = CBEIndex(DIM, vectors="float32", buckets=None).fit(X)
    return Path(prepare_folder(tmp_path / "index", n_shards=1, replicas=2, sync=False, index=index))


_SHARDS = []


@pytest.fixture(autouse=True)
def _closing():
    """Close all shards: a file that is left to the garbage collector is a warning."""
    yield
    while _SHARDS:
        _SHARDS.pop().close()


def opened(folder, replica=0, **options):
    _SHARDS.append(Shard(str(folder), 0, replica, Manifest.read(folder).layout, **options))
    return _SHARDS[-1]


def content(shard):
    """All ids and vectors of a shard."""
    ids = shard.ids(0).value
    return ids.tolist(), shard.call("get", 0, ((ids,), {})).value.tolist()


def add(shard, rows, token=None, **options):
    rows = np.asarray(rows)
    return shard.add(token or f"{rows.tolist()}", X[rows], rows, {"replace": False} | options).sequence


# Routing.


def test_routing_is_that_of_every_release():
    """Files on disk depend on these numbers."""
    assert shard_of(np.array([0, 1, 2, 10**18, 2**63 - 1]), 7).tolist() == [2, 2, 4, 1, 2]
    assert shard_of(["", "a", "Grüße", "\ud800"], 7).tolist() == [5, 4, 1, 4]


def test_routing_is_even_and_complete():
    ids = np.arange(0, 70_000, 7)
    rows = rows_by_shard(ids, 10)
    assert np.array_equal(np.sort(np.concatenate(list(rows.values()))), np.arange(len(ids)))
    # Binomial: 1,000 rows a shard with a standard deviation of 30.
    assert all(abs(len(some) - 1_000) < 5 * 30 for some in rows.values())
    assert all((np.diff(some) > 0).all() for some in rows.values())


# Manifests.


def test_a_manifest_is_read_as_it_was_written(tmp_path):
    changed = MANIFEST.changed(fitted=True, ids="str", replicas=2, sync=False, moving=True)
    assert changed.write(tmp_path) == Manifest.read(tmp_path) == changed


def test_every_changed_byte_of_a_manifest_is_noticed(tmp_path):
    MANIFEST.write(tmp_path)
    path = tmp_path / NAME
    data = path.read_bytes()
    blanks = 0
    for i in range(len(data)):
        path.write_bytes(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
        try:
            assert Manifest.read(tmp_path) == MANIFEST  # white space between values
            blanks += 1
        except IndexFileError:
            continue
    assert blanks < 5
    for n_bytes in range(len(data) - 2):
        path.write_bytes(data[:n_bytes])
        with pytest.raises(IndexFileError):
            Manifest.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": 2}, UnsupportedVersionError),
        ({"format": "other"}, NotAnIndexFileError),
        ({"layout": "../../etc"}, CorruptIndexFileError),
        ({"n_shards": 0}, CorruptIndexFileError),
        ({"n_shards": 10**9}, CorruptIndexFileError),
        ({"key": "x"}, CorruptIndexFileError),
        ({"ids": "bytes"}, CorruptIndexFileError),
        ({"routing": "crc"}, CorruptIndexFileError),
        ({"fitted": 1}, CorruptIndexFileError),
        ({"dim": "16"}, CorruptIndexFileError),
    ],
)
def test_values_of_a_manifest_are_checked_though_its_checksum_is_right(tmp_path, change, error):
    MANIFEST.write(tmp_path)
    values = json.loads((tmp_path / NAME).read_text()) | change
    values.pop("crc32")
    values["crc32"] = crc32(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())
    (tmp_path / NAME).write_text(json.dumps(values))
    with pytest.raises(error):
        Manifest.read(tmp_path)


# Records and logs.


def test_records_hold_dense_and_sparse_vectors():
    rows = sparse.csr_array(X * (X > 0))
    values, arrays = unpack(b"".join(pack({"a": [1, "ü"]}, pack_vectors(rows) | {"ids": np.arange(60)})))
    assert values == {"a": [1, "ü"]}
    assert (unpack_vectors(arrays, DIM) != rows).nnz == 0
    _, arrays = unpack(b"".join(pack({}, pack_vectors(X[::2].astype(">f8")))))
    np.testing.assert_array_equal(unpack_vectors(arrays, DIM), X[::2])


def test_malformed_records_are_refused():
    whole = b"".join(pack({"k": 1}, {"ids": np.arange(3), "x": np.ones((2, 2), np.float32)}))
    for n_bytes in range(len(whole)):
        with pytest.raises(ValueError):
            unpack(whole[:n_bytes])
    with pytest.raises(ValueError, match="must have"):
        unpack(whole + b"x")
    for head in (
        {"values": {}, "arrays": [["x", "|O", [1]]]},
        {"values": {}, "arrays": [["x", "<i8", [-1]]]},
        {"values": 3},
        [],
    ):
        text = json.dumps(head).encode()
        with pytest.raises(ValueError):
            unpack(len(text).to_bytes(8, "little") + text + bytes(8))


def written_log(path, n=3):
    log = Log.create(path, 7, sync=True)
    ends = [log.n_bytes]
    for i in range(n):
        assert log.append({"kind": "add", "n": i}, {"x": np.full(4, i)}) == 8 + i
        ends.append(log.n_bytes)
    log.close()
    return ends


def read_log(path):
    with closing(LogReader(path)) as reader:
        return [record.values["n"] for record in reader.records()]


def test_a_log_that_is_cut_anywhere_holds_all_complete_records(tmp_path):
    path = tmp_path / "shard.log"
    ends = written_log(path)
    data = path.read_bytes()
    assert read_log(path) == [0, 1, 2]
    for n_bytes in range(HEADER_BYTES, len(data)):
        complete = list(range(sum(end <= n_bytes for end in ends) - 1))
        for rest in (b"", bytes(len(data) - n_bytes)):  # not there, or never written, as after a power cut
            path.write_bytes(data[:n_bytes] + rest)
            assert read_log(path) == complete, (n_bytes, len(rest))


def test_a_changed_byte_of_a_log_is_damage(tmp_path):
    """But for the last end mark, whose absence means that the record is not complete."""
    path = tmp_path / "shard.log"
    written_log(path)
    data = path.read_bytes()
    for i in range(len(data) - len(END)):
        path.write_bytes(data[:i] + bytes([data[i] ^ 4]) + data[i + 1 :])
        with pytest.raises(IndexFileError, match=r"shard\.log"):
            read_log(path)


def test_a_torn_record_is_overwritten(tmp_path):
    path = tmp_path / "shard.log"
    ends = written_log(path)
    path.write_bytes(path.read_bytes()[: ends[-1] - 3])
    with closing(LogReader(path)) as reader:
        assert len(list(reader.records())) == 2
    with closing(Log(path, reader.offset, reader.sequence, sync=False)) as log:
        assert log.append({"n": 9}, {}) == 10
    assert read_log(path) == [0, 1, 9]


def test_a_log_whose_disk_is_full_is_as_before(tmp_path, monkeypatch):
    path = tmp_path / "shard.log"
    written_log(path)
    with closing(LogReader(path)) as reader:
        list(reader.records())

    def fail(descriptor):
        raise OSError(28, "full")

    with closing(Log(path, reader.offset, reader.sequence, sync=True)) as log:
        with monkeypatch.context() as patch:
            patch.setattr("cbeindex.storage.files._sync", fail)
            with pytest.raises(OSError, match="full"):
                log.append({"n": 3}, {})
        assert read_log(path) == [0, 1, 2]
        assert log.append({"n": 4}, {}) == 11
    assert read_log(path) == [0, 1, 2, 4]


# Shards.


def test_a_shard_that_dies_loses_no_acknowledged_write(folder):
    shard = opened(folder)
    add(shard, range(10))
    shard.remove("r", np.array([3, 4]))
    add(shard, [3], replace=True)
    before = content(shard)
    shard.close()  # without a save: the files are those of a worker that was killed
    again = opened(folder)
    assert content(again) == before
    assert before[0] == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_a_shard_that_dies_at_any_byte_of_an_add_has_all_rows_before_it(folder, tmp_path):
    shard = opened(folder)
    add(shard, range(4))
    log = log_file(shard.path)
    n_before = log.stat().st_size
    add(shard, range(4, 8))
    shard.close()
    data = log.read_bytes()
    for n_bytes in range(n_before, len(data), 5):
        log.write_bytes(data[:n_bytes])
        again = opened(folder)
        assert again.ids(0).value.tolist() == [0, 1, 2, 3]
        add(again, range(4, 8))  # the client repeats what was not acknowledged
        assert content(again)[0] == list(range(8))
        again.close()


@pytest.mark.parametrize("step", ["before the save", "after the save", "after the log"])
def test_a_shard_that_dies_while_it_saves_loses_nothing(folder, monkeypatch, step):
    shard = opened(folder)
    add(shard, range(6))
    shard.save()
    add(shard, range(6, 9))
    shard.remove("r", np.array([0]))
    before = content(shard)

    def die(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if step == "before the save":
            patch.setattr(CBEIndex, "save", die)
        elif step == "after the save":
            patch.setattr(Log, "create", die)
        else:
            close = Log.close
            patch.setattr(Log, "close", lambda log: die(close(log)))
        with pytest.raises(KeyboardInterrupt):
            shard.save()
    shard._lock_file.close()
    again = opened(folder)
    assert content(again) == before
    again.save()
    assert len(CBEIndex.load(again.path)) == 8
    assert content(opened(folder, 1)) == before


def test_a_write_is_made_once_though_it_comes_twice(folder):
    shard = opened(folder)
    first = add(shard, [1, 2], "t")
    assert add(shard, [1, 2], "t") == first
    shard.close()
    again = opened(folder)
    add(again, [1, 2], "t")
    again.save()
    again.close()
    saved = opened(folder)  # tokens outlive the log that they were written to
    add(saved, [1, 2], "t")
    assert saved.knows(0, "t").value
    assert not saved.knows(0, "u").value
    assert content(saved)[0] == [1, 2]


def test_a_write_that_is_refused_changes_nothing_now_or_later(folder):
    shard = opened(folder)
    add(shard, [1, 2])
    with pytest.raises(ValueError, match="id 2 is taken"):
        add(shard, [2, 3], "x")
    add(shard, [4])
    before = content(shard)
    shard.close()
    assert content(opened(folder)) == before
    assert before[0] == [1, 2, 4]


def test_a_refused_write_that_could_not_be_cancelled_is_cancelled_later(folder, monkeypatch):
    shard = opened(folder)
    add(shard, [1, 2])
    append = Log.append

    def failing(log, values, arrays):
        if values["kind"] == "cancel":
            raise OSError(28, "full")
        return append(log, values, arrays)

    with monkeypatch.context() as patch:
        patch.setattr(Log, "append", failing)
        with pytest.raises(OSError, match="full"):
            add(shard, [2, 3], "x")
    add(shard, [4])  # opens the files again
    shard.close()
    assert opened(folder).ids(0).value.tolist() == [1, 2, 4]


def test_a_log_that_cannot_be_carried_out_is_damage(folder):
    shard = opened(folder)
    add(shard, [1, 2])
    shard._log.append({"kind": "remove", "ids": None, "token": "x"}, {})
    add(shard, [3])
    shard.close()
    with pytest.raises(CorruptIndexFileError, match="record 2 cannot be carried out"):
        opened(folder).ids(0)


def test_replicas_follow_the_log(folder):
    primary, follower = opened(folder), opened(folder, 1)
    assert follower.count(0).value[0] == 0
    add(primary, range(5))
    assert content(follower) == content(primary)
    primary.save()
    add(primary, range(5, 9))
    primary.remove("r", np.array([2]))
    assert content(follower) == content(primary)
    primary.compact()
    sequence = add(primary, [2])
    assert follower.call("search", sequence, ((X[2], 1), {})).value.ids.tolist() == [2]
    assert content(follower) == content(primary)


def test_a_lost_log_is_noticed(folder):
    shard = opened(folder)
    add(shard, [1])
    before = log_file(shard.path).read_bytes()
    sequence = add(shard, [2])
    shard.close()
    log_file(shard.path).write_bytes(before)  # a machine that did not sync
    for replica in (0, 1):
        with pytest.raises(LostWritesError, match=f"up to number {sequence}, .* up to number {sequence - 1}"):
            opened(folder, replica).call("search", sequence, ((X[0], 1), {}))


def test_two_workers_never_write_one_shard(folder, monkeypatch):
    shard = opened(folder)
    add(shard, [1])
    monkeypatch.setattr(shard_module, "_LOCK_SECONDS", 0.1)
    with pytest.raises(WriterConflictError, match="another process holds the shard open"):
        add(opened(folder), [2])
    shard.close()
    add(opened(folder), [2])


def test_a_long_log_is_saved(folder):
    shard = opened(folder, checkpoint_bytes=5_000)
    for i in range(0, 60, 10):
        add(shard, range(i, i + 10))
    assert log_file(shard.path).stat().st_size < 5_000
    assert len(CBEIndex.load(shard.path)) >= 40
    before = content(shard)
    shard.close()
    assert content(opened(folder)) == before
    assert before[0] == list(range(60))


def test_frozen_shards_take_no_writes(folder):
    shard = opened(folder)
    shard.freeze(True)
    with pytest.raises(FrozenError):
        add(shard, [1])
    shard.freeze(False)
    add(shard, [1])
    shard.close()
    Manifest.read(folder).changed(moving=True).write(folder)
    again = opened(folder)
    with pytest.raises(FrozenError):  # also after a restart
        add(again, [2])
    assert add(again, [1], "[1]") > 0  # a write that was made before is still acknowledged


def test_workers_of_an_old_layout_do_not_answer(folder):
    shard = opened(folder)
    Manifest.read(folder).changed(layout="layout-2-00000000").write(folder)
    with pytest.raises(StaleLayoutError):
        shard.ids(0)


def test_a_shard_does_not_fit_itself(tmp_path):
    folder = prepare_folder(
        tmp_path / "i", n_shards=1, replicas=1, sync=False, index=CBEIndex(DIM, vectors=None, buckets=None)
    )
    shard = opened(folder)
    many = np.resize(X, (9_000, DIM))
    with pytest.raises(NotFittedError):
        shard.add("t", many, np.arange(9_000), {})
    shard.add("u", many[:100], np.arange(100), {})
    template = CBEIndex.load(tmp_path / "i" / "template.cbe").fit(X)
    template.save()
    Manifest.read(folder).changed(fitted=True).write(folder)
    shard.adopt()
    shard.add("v", many[100:], np.arange(100, 9_000), {})
    single = CBEIndex(DIM, encoder=template.encoder, vectors=None, buckets=None)
    single.add(many)
    for options in ({"rerank": None}, {"rerank": "asymmetric"}):
        ours, theirs = shard.call("search", 0, ((X, 5), options)).value, single.search(X, 5, **options)
        np.testing.assert_array_equal(ours.ids, theirs.ids)
        np.testing.assert_array_equal(ours.distances, theirs.distances)
    shard.close()
    assert opened(folder).count(0).value == (9_000, 9_000)


def test_a_shard_whose_index_was_fitted_while_it_was_away_adopts_the_encoder(tmp_path):
    folder = prepare_folder(
        tmp_path / "i", n_shards=1, replicas=1, sync=False, index=CBEIndex(DIM, vectors=None, buckets=None)
    )
    shard = opened(folder)
    add(shard, range(20))
    shard.close()
    CBEIndex.load(tmp_path / "i" / "template.cbe").fit(X).save(tmp_path / "i" / "template.cbe")
    Manifest.read(folder).changed(fitted=True).write(folder)
    again = opened(folder)
    assert again.stats(0).value["fitted"]
    assert again.ids(0).value.tolist() == list(range(20))


@pytest.mark.parametrize("options", [{}, {"vectors": "int8", "buckets": "cells"}], ids=["codes", "cells"])
def test_rows_are_moved_without_being_encoded_again(tmp_path, options):
    many = np.concatenate([X, X * 2, X - 1])
    index = CBEIndex(DIM, **{"vectors": None, "buckets": None, **options}).fit(many)
    folder = prepare_folder(tmp_path / "i", n_shards=2, replicas=1, sync=False, index=index)
    old = Manifest.read(folder)
    for number, rows in rows_by_shard(np.arange(180), 2).items():
        with closing(Shard(folder, number, 0, old.layout)) as shard:
            shard.add(f"token {number}", many[rows], rows, {})
            shard.remove("r", rows[-1:])
            shard.save()
    new = old.changed(layout="layout-2-00000000", n_shards=3)
    (tmp_path / "i" / new.layout).mkdir()
    for number in range(3):
        copy_shard(folder, old, new, number)
    new.write(folder)
    remove_layouts(tmp_path / "i", new.layout)
    assert not (tmp_path / "i" / old.layout).exists()
    single = CBEIndex.load(tmp_path / "i" / "template.cbe")
    single.add(many)
    gone = [rows[-1] for rows in rows_by_shard(np.arange(180), 2).values()]
    single.remove(gone)
    for number in range(3):
        with closing(Shard(folder, number, 0, new.layout)) as shard:
            ids = shard.ids(0).value
            np.testing.assert_array_equal(ids, [i for i in single.ids if shard_of([i], 3)[0] == number])
            np.testing.assert_array_equal(shard.call("codes", 0, ((ids,), {})).value, single.codes(ids))
            assert shard.count(0).value[1] == 180  # ids that were in use are not assigned again
            assert shard.knows(0, "token 0").value
            assert shard.knows(0, "token 1").value
            shard.verify(0)


def test_damage_is_named(folder):
    shard = opened(folder)
    add(shard, range(30))
    shard.save()
    add(shard, range(30, 40))
    shard.verify(0)
    shard.close()
    for path in (shard.path, log_file(shard.path)):
        data = path.read_bytes()
        path.write_bytes(data[:-200] + bytes([data[-200] ^ 1]) + data[-199:])
        with pytest.raises(CorruptIndexFileError, match=path.name):
            opened(folder).verify(0)
        path.write_bytes(data)
    log = log_file(shard.path)
    log.unlink()
    with pytest.raises(FileNotFoundError):
        opened(folder).ids(0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
ARRAYS = st.dictionaries(
    st.sampled_from(["ids", "vectors", "data", "indices", "indptr"]),
    st.sampled_from([np.arange(2), np.ones((2, DIM)), np.array([0, 1, 9]), np.full(2, np.nan), np.zeros((0, 3))]),
)
RECORDS = st.tuples(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["add", "remove", "save", "cancel", "tokens"]) | JSON},
        optional={
            "token": st.just("t") | JSON,
            "tokens": st.just(["u"]) | JSON,
            "ids": JSON,
            "options": st.just({"replace": True}) | JSON,
            "slots": JSON,
            "sequence": st.just(1) | JSON,
        },
    ),
    ARRAYS,
)


@given(st.lists(RECORDS, min_size=1, max_size=3))
def test_a_log_of_a_stranger_is_carried_out_or_refused(tmp_path_factory, records):
    """Its checksums are right, and its values are anything."""
    index = CBEIndex(DIM, vectors="float32", buckets=None).fit(X)
    folder = prepare_folder(tmp_path_factory.mktemp("i") / "i", n_shards=1, replicas=1, sync=False, index=index)
    shard = Shard(folder, 0, 0, Manifest.read(folder).layout)
    with closing(Log.create(log_file(shard.path), 0, sync=False)) as log:
        for values, arrays in records:
            log.append(values, arrays)
    with closing(shard):
        try:
            shard.ids(0)
        except IndexFileError:
            return
        shard.save()
        shard.verify(0)


@given(st.data())
def test_bytes_changed_in_a_log_are_damage_or_the_end(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("log") / "shard.log"
    written_log(path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        assert read_log(path) == [0, 1, 2][: len(read_log(path))]
    except IndexFileError:
        return


def test_only_reading_methods_are_passed_on(folder):
    with pytest.raises(ValueError, match="name must be one of"):
        opened(folder).call("save", 0, ((), {}))


def test_a_folder_in_use_is_not_overwritten(folder, tmp_path):
    with pytest.raises(FileExistsError, match="found an index in shards"):
        prepare_folder(folder, n_shards=1, replicas=1, sync=True, index=CBEIndex(DIM, vectors=None, buckets=None))
    shutil.copy(folder / NAME, tmp_path / "other")
    with pytest.raises(FileExistsError, match="found other files"):
        prepare_folder(tmp_path, n_shards=1, replicas=1, sync=True, index=CBEIndex(DIM, vectors=None, buckets=None))


def test_files_of_the_first_version_stay_readable(tmp_path):
    """A saved file, a log of adds, a removal and a replacement, as the first release wrote them."""
    shutil.copytree(Path(__file__).parent / "data" / "golden-shards-1", tmp_path / "index")
    shard = opened(tmp_path / "index")
    rows = (np.arange(12 * DIM).reshape(12, DIM) * 37 % 101 - 50).astype(np.float32)
    rows[5] = rows[0] + 1
    ids, vectors = content(shard)
    assert ids == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11]
    np.testing.assert_array_equal(vectors, rows[ids])
    assert shard.knows(0, "one").value
    assert shard.knows(0, "three").value
    shard.verify(0)
    shard.save()
    assert len(CBEIndex.load(shard.path)) == 11
