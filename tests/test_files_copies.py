"""Damage in a mapped file is found before a copy of what is damaged gets a checksum of its own."""

import copy

import numpy as np
import pytest
from scipy import sparse

from cbeindex import BinaryIndex, CBEIndex, CorruptIndexFileError, verify
from cbeindex.storage import container as storage
from fuzz.container import parse, write
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
    with pytest.raises(CorruptIndexFileError, match="ids must be ascending"):
        other.merge(damaged)
    if not damaged.is_fitted:
        with pytest.raises(CorruptIndexFileError, match="ids must be ascending"):
            damaged.fit(vectors(30))


# --- values that no save writes, with valid checksums ---


def put(at, value):
    """Change one value of an array."""

    def edit(array):
        array[at] = value
        return array

    return edit


def grow(array):
    return array * array.dtype.type(1e30)


DAMAGE = {
    "a column beyond the last": ("float32", True, "vectors/indices", put(5, 2**30)),
    "a negative column": ("float32", True, "vectors/indices", put(5, -(2**31))),
    "columns of random bits": ("float16", True, "vectors/indices", lambda array: (array + 7) * 123456789),
    "an offset beyond the entries": ("float32", True, "vectors/offsets", put(7, 2**40)),
    "a negative offset": ("float16", True, "vectors/offsets", put(7, -(2**40))),
    "a sparse value that is not finite": ("float32", True, "vectors/values", put(5, np.nan)),
    "a value that is not finite": ("float16", False, "vectors", put((5, 1), np.inf)),
    "values too long to be multiplied": ("float32", False, "vectors", grow),
}


def damaged_file(path, buckets, kind, is_sparse, name, edit):
    """Save an index to a file, and return its parts, with values of a section changed."""
    rows = vectors(50)
    index = CBEIndex(DIM, 40, metric="l2", vectors=kind, buckets=buckets).fit(rows)
    index.add(sparse.csr_array(rows) if is_sparse else rows)
    index.remove([3])
    index.save(path)
    file = parse(path.read_bytes())
    section = next(section for section in file.sections if section.name.endswith(f"/{name}"))
    with np.errstate(over="ignore"):
        section.array = edit(section.array)
    return file


def merged(index):
    other = copy.copy(index)
    other.remove(other.ids)
    other.merge(index)


WRITERS = {
    "compact": lambda index: index.compact(),
    "merge": merged,
    "merge to another encoder": lambda index: CBEIndex(DIM, 40, metric=index.metric).merge(index),
    "refit": lambda index: index.refit(),
    "shrink": lambda index: index.shrink("int4"),
    "add": lambda index: index.add(vectors(60, 1)),
}


@pytest.mark.kernels
@pytest.mark.parametrize("buckets", [None, "clusters", "cells", "graph"])
@pytest.mark.parametrize("name", DAMAGE)
def test_values_that_no_save_writes_reach_no_copy(tmp_path, buckets, name):
    """Encoders and makers of buckets rely on sound rows, so rows of a file are checked before they are copied."""
    path = tmp_path / "index.cbe"
    file = damaged_file(path, buckets, *DAMAGE[name])
    for mmap in (True, False):
        for way, change in WRITERS.items():
            if way == "add" and buckets == "graph":  # joins more segments at a time
                continue
            write(file, path)
            damaged = CBEIndex.load(path, mmap=mmap)
            with pytest.raises(CorruptIndexFileError, match=r"index\.cbe: (sparse rows|vectors) must"):
                change(damaged)
            assert len(damaged) == 49


@pytest.mark.kernels
@pytest.mark.parametrize("name", DAMAGE)
def test_stored_vectors_that_cannot_be_queries(tmp_path, name):
    """Who searches for stored vectors gave ids alone, so wrong values are blamed on the file."""
    path = tmp_path / "index.cbe"
    write(damaged_file(path, None, *DAMAGE[name]), path)
    damaged = CBEIndex.load(path)
    with pytest.raises(CorruptIndexFileError, match=r"sparse rows must|kept vectors must"):
        damaged.search_ids(damaged.ids)


@pytest.mark.parametrize("buckets", ["cells", "graph"])
@pytest.mark.parametrize("name", DAMAGE)
def test_stored_vectors_that_cannot_calibrate(tmp_path, buckets, name):
    """`tune` also takes stored rows for queries, which the caller must not be blamed for."""
    path = tmp_path / "index.cbe"
    write(damaged_file(path, buckets, *DAMAGE[name]), path)
    for mmap in (True, False):
        with pytest.raises(CorruptIndexFileError):
            CBEIndex.load(path, mmap=mmap).tune(vectors(20, 1), k=2)
