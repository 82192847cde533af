"""Damage in a mapped file is found before a copy of what is damaged gets a checksum of its own."""

import copy

import numpy as np
import pytest

from cbeindex import BinaryIndex, CBEIndex, CorruptIndexFileError, verify
from cbeindex.storage import container as storage
from tests.small import small_buckets

DIM = 20


@pytest.fixture(autouse=True)
def _small():
    with small_buckets():
        yield


def vectors(n, seed=0):
    return np.random.default_rng(seed).standard_normal((n, DIM)).astype(np.float32)


def codes(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 8), dtype=np.uint8)


def flip(path, name):
    """Change a bit of the first section whose name ends so."""
    stored = storage.read(path)
    section = next(section for section in stored._sections.values() if section.name.endswith(name))
    with open(path, "r+b") as file:
        file.seek(section.offset)
        value = file.read(1)
        file.seek(section.offset)
        file.write(bytes([value[0] ^ 1]))


@pytest.fixture(params=["codes", "vectors", "clusters"])
def damaged(request, tmp_path):
    """A mapped index whose codes are damaged, and rows that it can take."""
    path = tmp_path / "index.cbe"
    if request.param == "codes":
        index, rows = BinaryIndex(64), codes(60, 1)
        index.add(codes(50))
    else:
        buckets = "clusters" if request.param == "clusters" else None
        index, rows = CBEIndex(DIM, 64, vectors="float32", buckets=buckets), vectors(60, 1)
        index.add(vectors(50))
    index.remove([3])
    index.save(path)
    flip(path, "/blocks")
    return type(index).load(path), rows


MESSAGE = "index.cbe: the checksum of section 'blocks' does not match"


def test_joining_segments(damaged):
    index, rows = damaged
    with pytest.raises(CorruptIndexFileError, match=MESSAGE):
        index.add(rows)
    assert len(index) == 49
    with pytest.raises(CorruptIndexFileError, match=MESSAGE):
        index.compact()


def test_rows_that_join_no_segment_can_be_added(damaged):
    index, rows = damaged
    index.add(rows[:2])
    assert len(index) == 51


def test_merging(damaged):
    index, rows = damaged
    other = copy.copy(index)
    other.remove(other.ids)
    other.add(rows, np.arange(1000, 1060))
    with pytest.raises(CorruptIndexFileError, match=MESSAGE):
        other.merge(index)
    assert len(other) == 60


@pytest.mark.parametrize("copied", [lambda index: index, copy.copy, copy.deepcopy])
def test_saving_to_another_file(damaged, copied, tmp_path):
    other = tmp_path / "other.cbe"
    with pytest.raises(CorruptIndexFileError, match=r"'segment 1\.0/blocks' is damaged in the file that it was mapped"):
        copied(damaged[0]).save(other)
    assert not other.exists()


def test_fitting(tmp_path):
    path = tmp_path / "index.cbe"
    index = CBEIndex(DIM, vectors=None, buckets=None)
    index.add(vectors(20))
    index.save(path)
    flip(path, "/vectors")
    index = CBEIndex.load(path)
    with pytest.raises(CorruptIndexFileError, match="the checksum of section 'vectors' does not match"):
        index.fit(vectors(30))
    assert not index.is_fitted


@pytest.mark.parametrize("name", ["/removed 1", "encoder/spectrum", "encoder/centre"])
def test_what_is_read_at_once(tmp_path, name):
    path = tmp_path / "index.cbe"
    index = CBEIndex(DIM, vectors=None, buckets=None)
    index.add(vectors(50))
    index.remove([3])
    index.save(path)
    flip(path, name)
    with pytest.raises(CorruptIndexFileError, match=r"index.cbe: the checksum of section"):
        CBEIndex.load(path)


def test_sound_files_are_copied(tmp_path):
    index = CBEIndex(DIM, buckets="clusters", vectors=None)
    index.add(vectors(50))
    index.remove([3])
    index.save(tmp_path / "index.cbe")
    index = CBEIndex.load(tmp_path / "index.cbe")
    index.remove([4])
    index.save(tmp_path / "other.cbe")
    index.add(vectors(60, 1))
    index.save()
    for path in tmp_path.iterdir():
        verify(path)


@pytest.mark.parametrize("vectors_kept", [None, "float32"])
@pytest.mark.parametrize("n", [20, 50], ids=["not fitted", "fitted"])
def test_ids_out_of_order(tmp_path, n, vectors_kept):
    """Rows that bisection does not find are an error of the file, not of whoever works with it."""
    index = CBEIndex(DIM, vectors=vectors_kept, buckets=None)
    index.add(vectors(n))
    index.save(tmp_path / "sound.cbe")
    stored = storage.read(tmp_path / "sound.cbe")
    ids = next(name for name in stored.arrays if name.endswith("/ids"))
    swapped = stored.arrays[ids].copy()
    swapped[[3, 12]] = swapped[[12, 3]]
    storage.write(tmp_path / "index.cbe", stored.content, {**stored.arrays, ids: swapped})
    damaged = CBEIndex.load(tmp_path / "index.cbe")
    other = copy.copy(index)
    other.remove(other.ids)
    with pytest.raises(CorruptIndexFileError, match="ids must be unique and in order"):
        other.merge(damaged)
    if not damaged.is_fitted:
        with pytest.raises(CorruptIndexFileError, match="ids must be unique and in order"):
            damaged.fit(vectors(30))
