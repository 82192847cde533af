"""Sections of index files: checksums of pieces, threads, files larger than memory; and footers made to do harm."""

import errno
import json
import os
import sys
import threading
import tracemalloc
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex._core.memory import memory_bytes
from cbeindex._core.tuning import tuned
from cbeindex.errors import CorruptIndexFileError
from cbeindex.storage import checksum as _checksum
from cbeindex.storage import container as storage
from cbeindex.storage import files as _files
from cbeindex.storage import sections as _sections
from cbeindex.storage.layout import FOOTER_LIMIT
from tests.child_processes import in_child, may_fork, needs_fork
from tests.crafted_files import build, content_of, footer_of, section, slot


@pytest.fixture
def path(tmp_path):
    return tmp_path / "items.cbe"


class TestChecksums:
    @given(data=st.binary(max_size=300), piece=st.integers(1, 310))
    def test_of_pieces_make_that_of_the_whole(self, data, piece):
        crcs = [_checksum.crc32(data[start : start + piece]) for start in range(0, len(data), piece)]
        assert _checksum.combine(crcs, piece, len(data)) == zlib.crc32(data)

    def test_are_those_of_zlib_whatever_computes_them(self, monkeypatch):
        data = np.random.default_rng(0).bytes(3 * 2**20 + 5)
        crcs = [_checksum.crc32(data[start : start + 2**20]) for start in range(0, len(data), 2**20)]
        assert _checksum.combine(crcs, 2**20, len(data)) == zlib.crc32(data)
        assert _checksum.crc32(data[5:], _checksum.crc32(data[:5])) == zlib.crc32(data)

    def test_without_the_fast_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "isal", None)
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
        spec = _checksum.__spec__
        there = type(_checksum)("cbeindex.storage.checksum_without_isal")
        exec(spec.loader.get_code(spec.name), there.__dict__)
        assert there.crc32 is zlib.crc32


class TestThreads:
    """Arrays of many pieces, on two threads whatever the machine has."""

    @pytest.fixture(autouse=True)
    def _two_cores(self, monkeypatch):
        monkeypatch.setattr(_sections, "n_cores", lambda: 2)
        with tuned(piece_bytes=64):
            yield

    def arrays(self):
        rng = np.random.default_rng(0)
        flags = rng.random(5000) < 0.5
        return {"a": rng.random(999), "flags": flags, "turned": rng.random((40, 50)).T, "one": np.zeros(1)}

    def check(self, path):
        footer = storage.write(path, {}, self.arrays())
        assert {name: s.crc32 for name, s in footer._sections.items()} == {
            name: zlib.crc32(array.tobytes()) for name, array in self.arrays().items()
        }
        storage.verify(path)
        for options in ({}, {"mmap": False}, {"verify": True}):
            stored = storage.read(path, **options)
            for name, array in self.arrays().items():
                np.testing.assert_array_equal(stored.arrays[name], array)

    def test_agree_with_one(self, path, monkeypatch):
        self.check(path)
        before = path.read_bytes()
        monkeypatch.setattr(_sections, "n_cores", lambda: 1)
        self.check(path)
        assert path.read_bytes() == before

    @pytest.mark.parametrize("helper", ["never comes", "takes all calls"])
    def test_of_which_one_does_all(self, path, monkeypatch, helper):
        def on_one(task, n, chunk, n_threads):
            def work():
                for start in range(0, n, chunk):
                    task(start, min(start + chunk, n))

            if helper == "never comes":
                work()
            else:
                thread = threading.Thread(target=work)
                thread.start()
                thread.join()

        monkeypatch.setattr(_sections, "for_each_chunk", on_one)
        self.check(path)

    def test_only_the_caller_writes(self, path, monkeypatch):
        threads, write = set(), os.write
        monkeypatch.setattr(_files, "_write", lambda *args: (threads.add(threading.get_ident()), write(*args))[1])
        self.check(path)
        assert threads == {threading.get_ident()}

    def test_errors_of_either_are_raised(self, path, monkeypatch):
        """Also that of a sync beside the writes, which the system reports once and then forgets."""
        caller, failed = threading.get_ident(), threading.Event()

        def wait_for_failure(descriptor, data):
            failed.wait(0.001)
            return os.write(descriptor, data)

        def fail(descriptor):
            if threading.get_ident() != caller:
                failed.set()
                raise OSError(errno.EIO, "it broke")

        monkeypatch.setattr(_files, "_write", wait_for_failure)
        monkeypatch.setattr(_files, "_sync", fail)
        with pytest.raises(OSError, match="it broke"):
            storage.write(path, {}, {"a": np.zeros(9999)})
        assert not list(path.parent.iterdir())

    @pytest.mark.parametrize("place", [0, 64, 39_000, 39_999])
    def test_damage_in_any_piece_is_found(self, path, place):
        storage.write(path, {}, {"a": np.arange(5000)})
        data = bytearray(path.read_bytes())
        data[192 + place] ^= 1
        path.write_bytes(data)
        for function in (storage.verify, lambda path: storage.read(path, mmap=False)):
            with pytest.raises(CorruptIndexFileError, match="checksum of section 'a' does not match"):
                function(path)

    def test_where_files_have_one_place_to_read_at(self, path, monkeypatch):
        monkeypatch.delattr(os, "preadv", raising=False)
        self.check(path)


def sparse_file(path, *n_bytes, crc32=0):
    """A file of arrays of zeros that takes no room on the disk."""
    rows, offset = [], 192
    for number, n in enumerate(n_bytes):
        rows.append(section(name=f"{number}", dtype="|u1", shape=[n], offset=offset, crc32=crc32))
        offset += -(-n // 64) * 64
    footer = footer_of(*rows)
    try:
        with path.open("wb") as file:
            file.write(build(footer, body=b"", slots=(slot(1, offset, footer), b""))[:192])
            file.seek(offset)
            file.write(footer)
    except OSError as error:
        pytest.skip(f"no such files here: {error}")


class TestLargeFiles:
    @pytest.mark.parametrize("n_arrays", [1, 64])
    def test_that_do_not_fit_the_memory(self, path, n_arrays):
        """Whether one array is too large, or all of them together."""
        n_bytes = 16 * memory_bytes() // 1024 * 1024
        if not n_bytes < 2**43:
            pytest.skip("no such files here")
        sparse_file(path, *[n_bytes // n_arrays] * n_arrays)
        with pytest.raises(MemoryError, match=rf"items\.cbe: the arrays take {n_bytes:,} bytes, .* use mmap=True"):
            storage.read(path, mmap=False)
        assert len(storage.read(path).arrays) == n_arrays

    def test_that_the_system_has_no_memory_for(self, path, monkeypatch):
        sparse_file(path, 2**60 // 2**20)
        monkeypatch.setattr(_sections, "memory_bytes", lambda: sys.maxsize)

        def no_room(*_):
            raise np._core._exceptions._ArrayMemoryError((2**40,), np.dtype("u1"))  # type: ignore[attr-defined]

        monkeypatch.setattr(_sections, "_read_section", no_room)
        with pytest.raises(MemoryError, match="the arrays take 1,099,511,627,776 bytes"):
            storage.read(path, mmap=False)

    def test_are_checked_with_little_memory(self, path):
        """256 MiB of zeros, with a right checksum and with a wrong one."""
        n_bytes = 2**28
        right = _checksum.combine([zlib.crc32(bytes(2**20))] * 2**8, 2**20, n_bytes)
        sparse_file(path, n_bytes, crc32=right)
        tracemalloc.start()
        try:
            storage.verify(path)
            storage.read(path, verify=True)
            sparse_file(path, n_bytes, crc32=right ^ 1)
            with pytest.raises(CorruptIndexFileError, match="checksum of section '0' does not match"):
                storage.verify(path)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 2**25


def up_to_the_limit(start, item, end, n_marks):
    """A footer of as many items as fit both limits."""
    n_items = (FOOTER_LIMIT - len(start) - len(end)) // len(item)
    return start + item * min(n_items, (2**19 - 50) // n_marks if n_marks else n_items) + end


HOSTILE = {
    "lists": up_to_the_limit(b'{"content":{"a":[', b"[],", b"0]}}", 2),
    "objects": up_to_the_limit(b'{"content":{"a":[', b"{},", b"0]}}", 2),
    "full objects": up_to_the_limit(b'{"content":{"a":[', b'{"":0},', b"0]}}", 3),
    "numbers": up_to_the_limit(b'{"content":{"a":[', b"1e5,", b"0]}}", 1),
    "keys": b'{"content":{' + b",".join(b'"%d":1' % n for n in range(2**18 - 50)) + b"}}",
    "texts": up_to_the_limit(b'{"content":{"a":[', b'"abcdefghijkl",', b"0]}}", 1),
    "a long text": up_to_the_limit(b'{"content":{"a":"', b"x", '\U0001f600"}}'.encode(), 0),
    "escapes": up_to_the_limit(b'{"content":{"a":"', b"\\ud83d\\ude00", b'"}}', 0),
    "zeros": up_to_the_limit(b'{"content":{"a":', b"0", b"}}", 0),
    "spaces": up_to_the_limit(b'{"content":{"a":', b" ", b"0}}", 0),
    "depth": b"[" * (2**19 - 10),
    "sections": json.dumps(
        {"content": {}, "sections": [section(name=f"{n}", shape=[0], crc32=0) for n in range(37_000)]}
    ).encode(),
}


@needs_fork
@may_fork
@pytest.mark.parametrize("name", HOSTILE)
def test_the_worst_footers_cost_little(path, name):
    """Of the footers that are within all limits, some are read and some refused; none takes much memory."""
    footer = HOSTILE[name]
    assert len(footer) <= FOOTER_LIMIT
    path.write_bytes(build(footer))
    resource = pytest.importorskip("resource")

    def measure():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with suppress(CorruptIndexFileError):
            storage.read(path)
        assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < 10**8

    assert in_child(measure) == 0


def test_footers_out_of_bounds_are_not_parsed(path, monkeypatch):
    path.write_bytes(build(content_of(b'{"a":[' + b"[]," * 1_000_000 + b"[]]}")))
    monkeypatch.setattr("cbeindex.storage.footer.parse_json", lambda text: pytest.fail("it was parsed"))
    with pytest.raises(CorruptIndexFileError, match="the footer is not valid: content and sections must have at most"):
        storage.read(path)
