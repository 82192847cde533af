"""Index files: exact bytes, round trips, appends, and files that are damaged or crafted."""

import json
import os
import sys
import tempfile
import tracemalloc
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cbeindex._core.tuning import tuned
from cbeindex.errors import (
    CorruptIndexFileError,
    IndexFileError,
    NotAnIndexFileError,
    UnsupportedVersionError,
    WriterConflictError,
)
from cbeindex.storage import container as storage
from cbeindex.storage import files as _files
from tests.crafted_files import build, content_of, footer_of, section, slot

DTYPES = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "items.cbe"


def check(stored, content, arrays):
    """A commit has this content and these arrays, in this order and to the bit."""
    assert stored.content == content
    assert list(stored.arrays) == list(arrays)
    for name, array in arrays.items():
        assert stored.arrays[name].dtype == array.dtype.newbyteorder("<")
        assert stored.arrays[name].shape == array.shape
        assert stored.arrays[name].tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()


class TestBytes:
    def test_of_a_tiny_file(self, path):
        storage.write(path, {"kind": "tiny"}, {"a": np.array([1, 2], "u2"), "b": np.array(True)})
        footer = (
            b'{"content":{"kind":"tiny"},"sections":['
            b'{"name":"a","dtype":"<u2","shape":[2],"offset":192,"crc32":2882460411},'
            b'{"name":"b","dtype":"|b1","shape":[],"offset":256,"crc32":2768625435}]}'
        )
        assert path.read_bytes() == (
            bytes.fromhex("894342450d0a1a0a 02000000 6dc6daba").ljust(64, b"\0")
            + bytes.fromhex("0100000000000000 4001000000000000 b500000000000000 85f03331 9dd46445").ljust(64, b"\0")
            + bytes(64)
            + bytes.fromhex("01000200").ljust(64, b"\0")
            + bytes.fromhex("01").ljust(64, b"\0")
            + footer
        )

    def test_of_an_appended_file(self, path):
        first = storage.write(path, {}, {"a": np.array([1], "u1"), "b": np.array([2], "u1")})
        before = path.read_bytes()
        storage.append(first, {"n": 2}, {"c": np.array([3], "u1")}, keep=["b"])
        old = {"name": "b", "dtype": "|u1", "shape": [1], "offset": 256, "crc32": zlib.crc32(b"\2")}
        new = {"name": "c", "dtype": "|u1", "shape": [1], "offset": 512, "crc32": zlib.crc32(b"\3")}
        footer = json.dumps({"content": {"n": 2}, "sections": [old, new]}, separators=(",", ":")).encode()
        assert path.read_bytes() == (
            before[:128]
            + slot(2, 576, footer).ljust(64, b"\0")
            + before[192:].ljust(512 - 192, b"\0")
            + b"\3".ljust(64, b"\0")
            + footer
        )

    def test_third_commit_takes_the_first_slot(self, path):
        stored = storage.write(path, {}, {})
        second = storage.append(stored, {"n": 2}, {}, keep=[])
        before = path.read_bytes()
        third = storage.append(second, {"n": 3}, {}, keep=[])
        after = path.read_bytes()
        assert [stored.sequence, second.sequence, third.sequence] == [1, 2, 3]
        assert before[64:128] != after[64:128]
        assert before[128:] == after[128 : len(before)]

    def test_built_files_are_read(self, path):
        """The parts that crafted files are made of are right as long as nothing is changed."""
        path.write_bytes(build(footer_of(section())))
        storage.verify(path)
        check(storage.read(path), {}, {"a": np.zeros(8, "u8")})


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def some_arrays(draw, max_arrays=4):
    """Named arrays of all types and sizes, in memory in all ways."""
    arrays = {}
    for name in draw(st.lists(st.text(max_size=5), max_size=max_arrays, unique=True)):
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        array = draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9)))
        layout = draw(st.sampled_from(["C", "F", "strided", "reversed", "swapped", "broadcast", "unaligned"]))
        if layout == "F":
            array = np.asfortranarray(array)
        elif layout == "strided":
            array = np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array
        elif layout == "reversed":
            array = array[::-1] if array.ndim else array
        elif layout == "swapped":
            array = array.astype(dtype.newbyteorder(">"))
        elif layout == "broadcast":
            array = np.broadcast_to(array, (3, *array.shape))
        elif layout == "unaligned":
            array = (
                np.frombuffer(b"\0" + array.tobytes(), dtype, array.size, 1).reshape(array.shape)
                if array.size
                else array
            )
        arrays[name] = array
    return arrays


class TestRoundTrip:
    @given(
        content=st.dictionaries(st.text(), JSON, max_size=3), arrays=some_arrays(), piece=st.sampled_from([16, 2**20])
    )
    def test_everything_comes_back(self, content, arrays, piece):
        with tempfile.TemporaryDirectory() as directory, tuned(piece_bytes=piece):
            path = Path(directory, "a")
            written = storage.write(path, content, arrays)
            assert written.content == content
            assert all(written.arrays[name] is array for name, array in arrays.items())
            storage.verify(path)
            for options in ({}, {"mmap": False}, {"verify": True}):
                stored = storage.read(path, **options)
                check(stored, content, arrays)
                # The file is the same when what it holds is written again.
                storage.write(Path(directory, "b"), stored.content, stored.arrays)
                assert Path(directory, "b").read_bytes() == path.read_bytes()
                assert stored.n_unused == 0
                assert stored.n_bytes == path.stat().st_size

    @given(data=st.data())
    @settings(max_examples=25)
    def test_appends_agree_with_a_dict(self, data):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "a")
            model = data.draw(some_arrays())
            stored = storage.write(path, {}, model)
            for sequence in range(2, data.draw(st.integers(2, 5))):
                keep = data.draw(st.sets(st.sampled_from(sorted(model)))) if model else set()
                new = {name: array for name, array in data.draw(some_arrays()).items() if name not in keep}
                before, places = path.read_bytes(), stored._sections
                if data.draw(st.booleans()):
                    stored = storage.read(path, mmap=data.draw(st.booleans()))
                stored = storage.append(stored, {"n": sequence}, new, keep)
                model = {name: array for name, array in model.items() if name in keep} | new
                assert list(stored.arrays) == list(model)
                for opened in (storage.read(path), storage.read(path, mmap=False, verify=True)):
                    check(opened, {"n": sequence}, model)
                    assert opened.sequence == stored.sequence == sequence
                    assert {name: opened._sections[name] for name in keep} == {name: places[name] for name in keep}
                # Nothing that a commit needs is overwritten.
                assert path.read_bytes()[192 : len(before)] == before[192:]

    def test_mapped_arrays_take_changes_and_the_file_does_not(self, path):
        storage.write(path, {}, {"a": np.arange(5), "none": np.empty((0, 3))})
        before = path.read_bytes()
        stored = storage.read(path)
        stored.arrays["a"][2] = 99
        assert stored.arrays["a"].tolist() == [0, 1, 99, 3, 4]
        assert all(array.flags.writeable and array.flags.c_contiguous for array in stored.arrays.values())
        assert path.read_bytes() == before
        assert storage.read(path).arrays["a"].tolist() == [0, 1, 2, 3, 4]

    def test_mapped_arrays_are_aligned(self, path):
        storage.write(path, {}, {name: np.zeros(n) for n, name in enumerate("abcdef", start=1)})
        for array in storage.read(path).arrays.values():
            assert array.ctypes.data % 64 == 0

    def test_mapped_arrays_outlive_the_rest(self, path):
        storage.write(path, {}, {"a": np.arange(1000)})
        array = storage.read(path).arrays["a"]
        path.unlink()
        assert array.sum() == 499500

    def test_a_file_replaces_itself(self, path):
        storage.write(path, {}, {"a": np.arange(1000)})
        before, stored = path.read_bytes(), storage.read(path)
        storage.write(path, stored.content, stored.arrays)
        assert path.read_bytes() == before
        np.testing.assert_array_equal(stored.arrays["a"], np.arange(1000))

    def test_files_are_not_left_open(self, path):
        if not os.path.isdir("/proc/self/fd"):
            pytest.skip("descriptors cannot be counted here")
        before = len(os.listdir("/proc/self/fd"))
        stored = storage.write(path, {}, {"a": np.arange(5)})
        stored = storage.append(stored, {}, {"b": np.arange(5)}, keep=["a"])
        for _ in range(5):
            storage.read(path, mmap=False)
            storage.read(path)
        storage.verify(path)
        storage.describe(path)
        assert len(os.listdir("/proc/self/fd")) == before

    def test_arrays_are_not_copied_whole(self, path):
        """32 MiB in the wrong order are written with a few pieces of memory."""
        array = np.zeros((2**11, 2**11)).T
        tracemalloc.start()
        try:
            stored = storage.write(path, {}, {"a": array})
            storage.append(stored, {}, {"b": array}, keep=[])
            storage.verify(path)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 2**23

    def test_files_larger_than_memory_are_opened_at_once(self, path):
        """A file of 1 TiB, nearly all of it a hole: to touch its pages would take minutes, to read it more."""
        strict = Path("/proc/sys/vm/overcommit_memory")
        if strict.exists() and strict.read_text().strip() == "2":
            pytest.skip("this system promises no more memory than there is")
        n_bytes = 2**40
        footer = footer_of(section(shape=[n_bytes // 8], crc32=0))
        try:
            with path.open("wb") as file:
                file.write(build(footer, body=b"", slots=(slot(1, 192 + n_bytes, footer), b""))[:192])
                file.seek(192 + n_bytes)
                file.write(footer)
        except OSError as error:
            pytest.skip(f"no such files here: {error}")
        stored = storage.read(path)
        array = stored.arrays["a"]
        assert array.shape == (2**37,)
        array[2**36] = 7
        assert array[2**36] == 7
        stored = storage.append(stored, {}, {"b": np.arange(5)}, keep=["a"])
        assert storage.read(path).arrays["b"].tolist() == [0, 1, 2, 3, 4]

    def test_links_stay(self, tmp_path):
        target, link = tmp_path / "target", tmp_path / "link"
        link.symlink_to("target")
        for n in range(2):  # the first time there is nothing behind the link
            stored = storage.write(link, {"n": n}, {})
            assert link.is_symlink()
            assert stored.path == target.resolve()
            assert storage.read(target).content == {"n": n}
        storage.append(storage.read(link), {"n": 2}, {}, keep=[])
        assert storage.read(target).content == {"n": 2}
        assert sorted(tmp_path.iterdir()) == [link, target]

    def test_relative_paths_are_kept_whole(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        stored = storage.write("items.cbe", {}, {})
        monkeypatch.chdir("/")
        storage.append(stored, {"n": 2}, {}, keep=[])
        assert storage.read(os.fspath(tmp_path / "items.cbe")).content == {"n": 2}

    def test_content_that_json_would_change_or_refuse(self, path):
        loop = {}
        loop["loop"] = loop
        deep = []
        for _ in range(100_000):
            deep = [deep]
        cases = {
            "Out of range": float("nan"),
            "digits": 10**200,
            "nested": deep,
            "Circular": loop,
            "is repeated": {1: 1, "1": 1},
        }
        for match, value in cases.items():
            with pytest.raises(ValueError, match=match):
                storage.write(path, {"a": value}, {})
        with pytest.raises(TypeError, match="int64"):
            storage.write(path, {"a": np.int64(1)}, {})
        with pytest.raises(TypeError, match="content must be a dict, got list"):
            storage.write(path, [], {})
        assert not list(path.parent.iterdir())

    def test_content_that_is_written_is_read(self, path):
        """The limits are the same on both sides."""
        refused = []
        for depth in range(90, 110):
            content = {"n": depth}
            for _ in range(depth):
                content = {"a": content}
            try:
                storage.write(path, content, {"a": np.zeros([1] * 32)})
            except ValueError:
                refused.append(depth)
            else:
                assert storage.read(path, verify=True).content == content
        assert refused
        assert refused == list(range(refused[0], 110))
        for number in (10**99, -(10**98), 1e308, 5e-324):
            storage.write(path, {"a": number}, {})
            assert storage.read(path).content == {"a": number}

    def test_arrays_that_a_file_cannot_hold(self, path):
        for array in (
            np.array(["a"]),
            np.array([object()]),
            np.zeros(2, "c16"),
            np.zeros(2, "i4,i4"),
            np.zeros(1, "M8[s]"),
        ):
            with pytest.raises(TypeError, match="a must have one of the dtypes"):
                storage.write(path, {}, {"a": array})
        with pytest.raises(ValueError, match="a must have at most 32 dimensions, got 33"):
            storage.write(path, {}, {"a": np.zeros([1] * 33)})
        with pytest.raises(TypeError, match="names of arrays must be strings, got 1"):
            storage.write(path, {}, {1: np.zeros(1)})
        assert not list(path.parent.iterdir())

    def test_footers_have_a_limit(self, path, monkeypatch):
        monkeypatch.setattr("cbeindex.storage.footer.FOOTER_LIMIT", 1000)
        stored = storage.write(path, {"a": "b"}, {})
        before = path.read_bytes()
        with pytest.raises(ValueError, match="at most 1000 bytes of JSON, got 10"):
            storage.append(stored, {"a": "b" * 1000}, {}, keep=[])
        assert path.read_bytes() == before

    def test_what_a_reader_would_refuse_is_not_written(self, path, monkeypatch):
        monkeypatch.setattr("cbeindex.storage.footer._MARKS_LIMIT", 100)
        stored = storage.write(path, {"a": [0] * 90}, {})
        before = path.read_bytes()
        for content, arrays in (({"a": [0] * 100}, {}), ({}, {f"{n}": np.zeros(1) for n in range(10)})):
            with pytest.raises(ValueError, match=r"at most 100 of the characters \[ { , : in JSON, got 1"):
                storage.append(stored, content, arrays, keep=[])
        assert path.read_bytes() == before

    def test_what_can_be_kept(self, path):
        stored = storage.write(path, {}, {"a": np.arange(5), "b": np.arange(3)})
        with pytest.raises(ValueError, match="keep must name arrays of the file, got 'x'"):
            storage.append(stored, {}, {}, keep=["a", "x"])
        with pytest.raises(ValueError, match="'a' must not be both kept and new"):
            storage.append(stored, {}, {"a": np.arange(2)}, keep=["a", "b"])
        stored = storage.append(stored, {}, {"a": np.arange(2)}, keep=["b"])
        check(storage.read(path), {}, {"b": np.arange(3), "a": np.arange(2)})

    def test_describe(self, path):
        stored = storage.write(path, {"kind": "x"}, {"a": np.zeros((3, 2), "f4"), "b": np.zeros(0, "?")})
        described = storage.describe(path)
        assert described == {
            "version": 2,
            "sequence": 1,
            "content": {"kind": "x"},
            "sections": [
                {"name": "a", "dtype": "float32", "shape": (3, 2), "bytes": 24},
                {"name": "b", "dtype": "bool", "shape": (0,), "bytes": 0},
            ],
            "bytes": path.stat().st_size,
            "unused": 0,
        }
        stored = storage.append(stored, {"kind": "x"}, {}, keep=["b"])
        with path.open("ab") as file:
            file.write(b"left by a save that was cut off")
        again = storage.describe(path)
        assert again["sequence"] == 2
        assert again["bytes"] == path.stat().st_size == stored.n_bytes + 31
        # The first footer with the zeros behind it, the 24 bytes with theirs.
        assert stored.n_unused == -(-(described["bytes"] - 256) // 64) * 64 + 64
        assert again["unused"] == stored.n_unused + 31

    def test_a_save_that_changes_nothing_writes_nothing(self, path):
        content, arrays = {"a": 1, "b": [True, None]}, {"a": np.arange(5), "b": np.arange(3)}
        stored = storage.append(storage.write(path, {}, {"a": arrays["a"]}), content, {"b": arrays["b"]}, keep=["a"])
        before = path.read_bytes(), path.stat().st_mtime_ns
        for opened in (stored, storage.read(path), storage.read(path, mmap=False)):
            assert storage.append(opened, content, {}, keep=["a", "b"]).sequence == 2
        assert (path.read_bytes(), path.stat().st_mtime_ns) == before
        for changed, keep in (({"a": True, "b": [True, None]}, "ab"), (content, "a"), ({}, "ab")):
            stored = storage.append(storage.read(path), changed, {}, keep=keep)
            check(storage.read(path, verify=True), changed, {name: arrays[name] for name in keep})
            storage.append(stored, content, arrays, keep=[])
        # Others may have written to the file, and then this is an error as ever.
        with pytest.raises(WriterConflictError):
            storage.append(stored, changed, {}, keep=keep)

    def test_the_last_sequence_number(self, path):
        """What no reader would take is not written."""
        footer = footer_of(section())
        path.write_bytes(build(footer, slots=(slot(2**62 - 2, 256, footer), b"")))
        stored = storage.append(storage.read(path), {"n": 1}, {}, keep=["a"])
        before = path.read_bytes()
        storage.verify(path)
        assert stored.sequence == 2**62 - 1
        with pytest.raises(IndexFileError, match=r"items\.cbe: commit 4611686018427387903 is the last .*; compact"):
            storage.append(stored, {"n": 2}, {}, keep=["a"])
        assert path.read_bytes() == before
        assert storage.write(path, {"n": 2}, {}, replaces=stored).sequence == 1


class TestOtherFiles:
    @pytest.mark.parametrize(
        "data", [b"", b"\x89CBE", b"text\n" * 100, b"\x93NUMPY\x01\x00v\x00" + bytes(200), bytes(500)]
    )
    def test_are_told_from_index_files(self, path, data):
        path.write_bytes(data)
        for function in (storage.read, storage.verify, storage.describe):
            with pytest.raises(NotAnIndexFileError, match=r"items\.cbe: not an index file"):
                function(path)

    def test_are_not_overwritten(self, path):
        path.write_bytes(b"my thesis")
        with pytest.raises(NotAnIndexFileError, match="not overwritten"):
            storage.write(path, {}, {})
        assert path.read_bytes() == b"my thesis"
        assert list(path.parent.iterdir()) == [path]

    @pytest.mark.parametrize("data", [b"", b"\x89CBE\r\n\x1a\n", build(footer_of(), version=7)])
    def test_are_overwritten_if_empty_or_ours(self, path, data):
        path.write_bytes(data)
        storage.write(path, {"a": 1}, {})
        assert storage.read(path).content == {"a": 1}

    def test_missing_files_and_directories_are_errors_of_the_system(self, path, tmp_path):
        stored = storage.write(path, {}, {})
        path.unlink()
        for function in (storage.read, storage.verify, storage.describe):
            with pytest.raises(FileNotFoundError):
                function(path)
            with pytest.raises(OSError):
                function(tmp_path)
        with pytest.raises(FileNotFoundError):
            storage.append(stored, {}, {}, keep=[])
        with pytest.raises(OSError):
            storage.write(tmp_path, {}, {})
        with pytest.raises(FileNotFoundError):
            storage.write(tmp_path / "missing" / "items.cbe", {}, {})
        assert not list(tmp_path.iterdir())

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
    def test_nobody_waits_for_a_pipe(self, path):
        os.mkfifo(path)
        for function in (storage.read, storage.verify, lambda path: storage.write(path, {}, {})):
            with pytest.raises(NotAnIndexFileError, match="not a regular file"):
                function(path)
        assert list(path.parent.iterdir()) == [path]

    def test_other_versions(self, path):
        path.write_bytes(build(footer_of(), version=3))
        for function in (storage.read, storage.verify, storage.describe):
            with pytest.raises(
                UnsupportedVersionError, match=r"version 3, this release reads versions 1 and 2; a newer release"
            ):
                function(path)
        path.write_bytes(build(footer_of(), version=0))
        with pytest.raises(UnsupportedVersionError, match=r"version 0, this release reads versions 1 and 2$"):
            storage.read(path)

    def test_a_version_that_a_flipped_bit_made_is_not_believed(self, path):
        data = bytearray(build(footer_of()))
        data[8] ^= 2
        path.write_bytes(data)
        with pytest.raises(CorruptIndexFileError, match="checksum of the header"):
            storage.read(path)


def small_file(path):
    """A file of one commit, and what it holds."""
    arrays = {"codes": np.arange(5, dtype="u8"), "flags": np.array([True, False, True]), "none": np.empty((0, 4), "f4")}
    storage.write(path, {"kind": "small"}, arrays)
    return {"kind": "small"}, arrays


def touch(stored):
    """Read all values, as a search would."""
    return [array.tobytes() for array in stored.arrays.values()]


class TestDamage:
    def test_every_flipped_bit_is_found(self, path):
        small_file(path)
        whole = path.read_bytes()
        for place in range(len(whole)):
            for bit in range(8):
                data = bytearray(whole)
                data[place] ^= 1 << bit
                path.write_bytes(data)
                with pytest.raises(IndexFileError):
                    storage.verify(path)
                with pytest.raises(IndexFileError):
                    storage.read(path, verify=True)

    def test_every_flipped_byte_raises_or_gives_arrays(self, path):
        content, arrays = small_file(path)
        whole = path.read_bytes()
        for place in range(len(whole)):
            data = bytearray(whole)
            data[place] ^= 0xFF
            path.write_bytes(data)
            with suppress(IndexFileError):
                touch(storage.read(path))
            try:
                check(storage.read(path, mmap=False), content, arrays)
            except IndexFileError:
                pass
            else:  # nothing that is needed was hit
                assert 16 <= place < 192

    def test_every_flipped_byte_of_an_appended_file(self, path):
        """What belongs to the last commit is found; the rest does not matter."""
        small_file(path)
        stored = storage.read(path)
        storage.append(stored, {"n": 2}, {"more": np.arange(9, dtype="i4")}, keep=["flags"])
        model = {"flags": np.array([True, False, True]), "more": np.arange(9, dtype="i4")}
        whole = path.read_bytes()
        n_harmless = 0
        for place in range(len(whole)):
            data = bytearray(whole)
            data[place] ^= 0x10
            path.write_bytes(data)
            try:
                storage.verify(path)
            except IndexFileError:
                continue
            n_harmless += 1
            check(storage.read(path, mmap=False), {"n": 2}, model)
        path.write_bytes(whole)
        # All of what is not in use, and the zeros between the first footer and the first new section.
        assert n_harmless == storage.describe(path)["unused"]

    def test_every_truncation_is_found(self, path):
        content, arrays = small_file(path)
        stored = storage.append(storage.read(path), content, {"more": np.arange(9)}, keep=arrays)
        assert stored.n_bytes == path.stat().st_size
        whole = path.read_bytes()
        for n in range(len(whole)):
            path.write_bytes(whole[:n])
            for function in (storage.verify, storage.read, storage.describe):
                with pytest.raises(IndexFileError):
                    function(path)
            if n >= 192:
                with pytest.raises(IndexFileError):
                    storage.append(stored, {}, {}, keep=[])
                assert path.read_bytes() == whole[:n]

    def test_the_section_is_named(self, path):
        small_file(path)
        data = bytearray(path.read_bytes())
        data[256] = 3
        path.write_bytes(data)
        with pytest.raises(CorruptIndexFileError, match=r"items\.cbe: section 'flags' must hold bytes of 0 and 1 only"):
            storage.verify(path)
        data[256] = 0
        path.write_bytes(data)
        for options in ({"verify": True}, {"mmap": False}):
            with pytest.raises(CorruptIndexFileError, match="the checksum of section 'flags' does not match"):
                storage.read(path, **options)
        storage.read(path)

    @pytest.mark.parametrize("half", [slice(64, 80), slice(80, 96), slice(64, 96)])
    def test_a_damaged_slot_leads_to_the_commit_before(self, path, half):
        _, arrays = small_file(path)
        storage.append(storage.append(storage.read(path), {"n": 2}, {}, keep=arrays), {"n": 3}, {}, keep=["codes"])
        data = bytearray(path.read_bytes())
        data[half] = b"\x55" * len(data[half])
        path.write_bytes(data)
        stored = storage.read(path)
        check(stored, {"n": 2}, arrays)
        with pytest.raises(CorruptIndexFileError, match="commit slot 1 is damaged"):
            storage.verify(path)
        # The next save mends it.
        storage.append(stored, {"n": 4}, {"new": np.arange(3)}, keep=["flags"])
        storage.verify(path)
        check(storage.read(path), {"n": 4}, {"flags": arrays["flags"], "new": np.arange(3)})

    def test_what_a_save_that_was_cut_off_left_is_ignored_and_overwritten(self, path):
        content, arrays = small_file(path)
        whole = path.read_bytes()
        path.write_bytes(whole + b"\x77" * 1000)
        storage.verify(path)
        check(storage.read(path), content, arrays)
        stored = storage.append(storage.read(path), {"n": 2}, {}, keep=[])
        storage.verify(path)
        after = path.read_bytes()
        assert len(after) == len(whole) + 1000  # it does not get shorter, somebody may have mapped it
        assert b"\x77" not in after[: stored.n_bytes]
        storage.append(stored, {"n": 3}, {"a": np.zeros(500)}, keep=[])
        assert b"\x77" not in path.read_bytes()

    def test_a_commit_that_comes_while_a_file_is_opened(self, path, monkeypatch):
        """A header read while slots were written, with both of them torn, is read again."""
        content, arrays = small_file(path)
        read_at, looks = _files.read_at, []

        def torn(file, offset, n_bytes):
            data = bytearray(read_at(file, offset, n_bytes))
            if offset == 0:
                looks.append(n_bytes)
                if len(looks) < 4:
                    data[70] ^= len(looks)
            return bytes(data)

        monkeypatch.setattr(_files, "read_at", torn)
        check(storage.read(path, verify=True), content, arrays)
        assert len(looks) == 4

    def test_a_file_that_never_stops_changing(self, path, monkeypatch):
        small_file(path)
        looks = iter(range(10**6))
        monkeypatch.setattr(_files, "read_at", lambda *_: build(b"{}", slots=(bytes([next(looks) + 1]), b""))[:192])
        with pytest.raises(CorruptIndexFileError, match="both commit slots"):
            storage.read(path)
        assert next(looks) < 100

    @pytest.mark.parametrize("part", ["header", "section", "footer"])
    def test_a_file_that_is_cut_off_while_it_is_read(self, path, monkeypatch, part):
        small_file(path)
        monkeypatch.setattr(_files, "size", lambda file: 10**6)
        whole = path.read_bytes()
        length = {"header": 100, "section": 192 + 20, "footer": len(whole) - 1}[part]
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptIndexFileError, match="truncated"):
            storage.read(path, mmap=False)


LONG = "9" * 5000

CRAFTED_SECTIONS = [
    (section(dtype="|O"), r"section 'a' has the unknown dtype '\|O'"),
    (section(dtype="<U8"), "unknown dtype"),
    (section(dtype=">u8"), "unknown dtype"),
    (section(dtype="u8,O"), "unknown dtype"),
    (section(dtype="<M8[s]"), "unknown dtype"),
    (section(dtype=["<u8"]), "unknown dtype"),
    (section(dtype={"a": 1}), "unknown dtype"),
    (section(shape=[-8]), r"section 'a' has the impossible shape \[-8\]"),
    (section(shape=[-2, -4]), "impossible shape"),
    (section(shape=[True]), "impossible shape"),
    (section(shape=[8.0]), "impossible shape"),
    (section(shape=["8"]), "impossible shape"),
    (section(shape=8), "impossible shape"),
    (section(shape="8"), "impossible shape"),
    (section(shape=[2**63]), "impossible shape"),
    (section(shape=[2**64 + 8]), "impossible shape"),
    (section(shape=[2**62]), "impossible shape"),
    (section(shape=[2**32, 2**32]), "impossible shape"),
    (section(shape=[2**62, 4, 8]), "impossible shape"),
    (section(shape=[0, 2**62], crc32=0), "impossible shape"),
    (section(shape=[2**40, 0, 2**40], crc32=0), "impossible shape"),
    (section(shape=[1] * 33), "impossible shape"),
    (section(shape=[9]), "section 'a' of 72 bytes at 192 reaches past the footer at 256"),
    (section(shape=[2**50]), "reaches past the footer"),
    (section(offset=256), "reaches past the footer"),
    (section(offset=2**62), "reaches past the footer"),
    (section(offset=-192), "section 'a' cannot start at -192"),
    (section(offset=0), "cannot start at 0"),
    (section(offset=128), "cannot start at 128"),
    (section(offset=200), "cannot start at 200"),
    (section(offset=192.0), "cannot start at 192.0"),
    (section(offset=True), "cannot start at True"),
    (section(offset="192"), "cannot start at '192'"),
    (section(offset=[192]), "cannot start at"),
    (section(offset=2**64 + 192), "cannot start at"),
    (section(offset=320, shape=[0], crc32=0), "reaches past the footer"),
    (section(crc32=-1), "section 'a' has the impossible checksum -1"),
    (section(crc32=2**32), "impossible checksum"),
    (section(crc32=1.5), "impossible checksum"),
    (section(crc32=False), "impossible checksum"),
    (section(name=5), "name of a section must be a string, got 5"),
    (section(name="x" * 1000, dtype="|O"), r"section 'x{50,80}\.\.\. has"),
    (section(name=None), "a section must have name, dtype, shape, offset, crc32"),
    (section(crc32=None), "a section must have"),
    (section(extra=1), "a section must have"),
    ("section", "a section must have"),
    (None, "a section must have"),
]

CRAFTED_FOOTERS = [
    (footer_of(section(), section()), "two sections have the name 'a'"),
    (footer_of(section(), section(name="b")), "sections 'a' and 'b' overlap"),
    (footer_of(section(name="b", shape=[1]), section(shape=[1])), "overlap"),
    (footer_of(extra=1), "its keys must be content and sections"),
    (b'{"content":{}}', "its keys must be"),
    (b'{"sections":[]}', "its keys must be"),
    (b"[]", "its keys must be"),
    (b"null", "its keys must be"),
    (footer_of(content=[]), "content must be an object and sections a list"),
    (footer_of(content=None), "content must be an object"),
    (footer_of(sections={}), "sections a list"),
    (footer_of(sections=None), "sections a list"),
    (b"{", "footer is not valid"),
    (b" ", "footer is not valid"),
    (b"\0" * 50, "footer is not valid"),
    (footer_of() + b"{}", "footer is not valid"),
    (footer_of()[:-1] + b"\0}", "footer is not valid"),
    (b"\xef\xbb\xbf" + footer_of(), "footer is not valid"),
    (footer_of().decode().encode("utf-16"), "can't decode byte"),
    (content_of(b'{"a":"\xff"}'), "can't decode byte"),
    (content_of(b'{"a":"\xed\xa0\x80"}'), "can't decode byte"),
    (content_of(b'{"a":1,"a":1}'), "the key 'a' is repeated"),
    (content_of(b'{"a":1}')[:-1] + b',"content":{}}', "the key 'content' is repeated"),
    (content_of(b'{"a":NaN}'), "NaN is not a finite number"),
    (content_of(b'{"a":-Infinity}'), "-Infinity is not a finite number"),
    (content_of(b'{"a":1e999}'), "'1e999' is not a finite number"),
    (content_of(b'{"a":-1e999}'), "not a finite number"),
    (content_of(f'{{"a":{LONG}}}'.encode()), "a number has 5000 digits"),
    (content_of(f'{{"a":-{LONG}}}'.encode()), "a number has 5001 digits"),
    (content_of(f'{{"a":0.{LONG}}}'.encode()), "not a finite number"),
    (content_of(b'{"a":' + b"[" * 200 + b"]" * 200 + b"}"), "nested more than 100 deep"),
    (content_of(b'{"a":' * 200 + b"1" + b"}" * 200), "nested more than 100 deep"),
    (b"[" * 500_000 + b"]" * 500_000, "nested more than 100 deep"),
    (b'{"a":' * 250_000 + b"1" + b"}" * 250_000, "nested more than 100 deep"),
    (b"[" * 500_000, "footer is not valid"),
    (content_of(b'{"a":[' + b"[]," * 1_000_000 + b"[]]}"), "at most 524288 of the characters .* got 20000"),
    (content_of(b'{"a":[' + b"0," * 1_000_000 + b"0]}"), "at most 524288 of the characters .* got 10000"),
    (b"[" * 1_000_000, "at most 524288 of the characters .* got 1000000"),
    (b":" * 1_000_000, "at most 524288 of the characters .* got 1000000"),
    (b"{" * 1_000_000, "at most 524288 of the characters .* got 1000000"),
]

FOOTER = footer_of(section())
OTHER = footer_of(section(name="other"))
CRAFTED_SLOTS = [
    ((b"", b""), "both commit slots are damaged"),
    ((b"\1" * 32, b"\2" * 32), "both commit slots are damaged"),
    ((slot(1, 256, FOOTER, length=0), b""), "a footer cannot have 0 bytes"),
    ((slot(1, 256, FOOTER, length=2**23 + 1), b""), "a footer cannot have 8388609 bytes"),
    ((slot(1, 256, FOOTER, length=2**64 - 1), b""), "a footer cannot have"),
    ((slot(1, 256, FOOTER, length=2**23), b""), "truncated: expected 8388864 bytes, found"),
    ((slot(1, 256, FOOTER, length=len(FOOTER) + 1), b""), "truncated"),
    ((slot(1, 256, FOOTER, length=len(FOOTER) - 1), b""), "checksum of the footer"),
    ((slot(1, 256, OTHER, length=len(FOOTER)), b""), "checksum of the footer"),
    ((slot(1, 192, FOOTER), b""), "checksum of the footer"),
    ((slot(1, 257, FOOTER), b""), "at offset 257"),
    ((slot(1, 0, FOOTER), b""), "at offset 0"),
    ((slot(1, 128, FOOTER), b""), "at offset 128"),
    ((slot(1, 2**63, FOOTER), b""), "truncated"),
    ((slot(1, 2**64 - 64, FOOTER), b""), "truncated"),
    ((slot(0, 256, FOOTER), b""), "a commit cannot have the sequence number 0"),
    ((slot(2**64 - 1, 256, FOOTER), b""), "a commit cannot have the sequence number 18446744073709551615"),
    ((slot(2**63 - 1, 256, FOOTER), b""), "a commit cannot have the sequence number 9223372036854775807"),
    ((slot(1, 256, FOOTER), slot(2**62, 256, FOOTER)), "a commit cannot have the sequence number 4611686018427387904"),
    ((slot(3, 256, FOOTER), slot(3, 256, FOOTER)), "both commit slots have the sequence number 3"),
    ((slot(3, 256, FOOTER), slot(4, 256, OTHER)), "truncated|checksum of the footer"),
]


class TestCrafted:
    """Files in which every checksum is right and something else is wrong."""

    def refused(self, path, match):
        for function in (storage.read, storage.verify, storage.describe, lambda path: storage.read(path, mmap=False)):
            with pytest.raises(CorruptIndexFileError, match=match) as caught:
                function(path)
            assert len(str(caught.value)) < 1000

    @pytest.mark.parametrize(("row", "match"), CRAFTED_SECTIONS)
    def test_sections(self, path, row, match):
        path.write_bytes(build(footer_of(row)))
        self.refused(path, match)

    @pytest.mark.parametrize(("footer", "match"), CRAFTED_FOOTERS, ids=range(len(CRAFTED_FOOTERS)))
    def test_footers(self, path, footer, match):
        path.write_bytes(build(footer))
        self.refused(path, match)

    @pytest.mark.parametrize(("slots", "match"), CRAFTED_SLOTS, ids=range(len(CRAFTED_SLOTS)))
    def test_slots(self, path, slots, match):
        path.write_bytes(build(FOOTER, slots=slots))
        self.refused(path, match)

    def test_numbers_of_any_length_where_python_sets_no_limit(self, path):
        """The time that Python takes for a million digits grows with their square."""
        limit = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(0)
        try:
            path.write_bytes(build(content_of(b'{"a":' + b"9" * 3_000_000 + b"}")))
            self.refused(path, "a number has 3000000 digits")
        finally:
            sys.set_int_max_str_digits(limit)

    def test_values_of_bool_that_are_none(self, path):
        body = b"\1\0\2".ljust(64, b"\0")
        path.write_bytes(build(footer_of(section(dtype="|b1", shape=[3], crc32=zlib.crc32(b"\1\0\2"))), body=body))
        for function in (storage.verify, lambda path: storage.read(path, mmap=False)):
            with pytest.raises(CorruptIndexFileError, match="must hold bytes of 0 and 1 only"):
                function(path)

    def test_bytes_where_there_should_be_zeros(self, path):
        body = b"\1".ljust(63, b"\0") + b"\7"
        path.write_bytes(build(footer_of(section(dtype="|u1", shape=[1], crc32=zlib.crc32(b"\1"))), body=body))
        with pytest.raises(CorruptIndexFileError, match="the padding after section 'a' must be 0"):
            storage.verify(path)

    def test_sections_of_size_zero_may_be_anywhere(self, path):
        rows = [section(), *(section(name=f"{n}", shape=[0, n], offset=64 * n, crc32=0) for n in (3, 4))]
        path.write_bytes(build(footer_of(*rows)))
        storage.verify(path)
        assert [array.shape for array in storage.read(path).arrays.values()] == [(8,), (0, 3), (0, 4)]

    @given(data=st.data())
    def test_footers_with_any_json(self, data):
        """Right down to the values, a footer is read or refused; no other error comes out."""
        value = JSON | st.integers(-300, 300) | st.lists(st.integers(0, 9), max_size=3)
        row = st.fixed_dictionaries(
            {},
            optional={
                "name": st.sampled_from(["a", "b"]) | value,
                "dtype": st.sampled_from(["<u8", "|b1"]) | value,
                "shape": st.lists(st.integers(0, 9), max_size=2) | value,
                "offset": st.sampled_from([192, 256]) | value,
                "crc32": st.integers(0, 2**32) | value,
            },
        )
        footer = json.dumps({"content": data.draw(value), "sections": data.draw(st.lists(row | value, max_size=3))})
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "a")
            path.write_bytes(build(footer.encode(), body=bytes(192)))
            with suppress(CorruptIndexFileError):
                touch(storage.read(path))


class TestConflict:
    def test_a_file_that_was_appended_to(self, path):
        here = storage.write(path, {}, {"a": np.arange(5)})
        there = storage.append(storage.read(path), {"n": 2}, {}, keep=["a"])
        before = path.read_bytes()
        with pytest.raises(
            WriterConflictError, match=r"changed since it was loaded \(it is at commit 2, this index at 1\); load it"
        ):
            storage.append(here, {}, {}, keep=[])
        with pytest.raises(WriterConflictError, match="at commit 2, this index at 1"):
            storage.write(path, {}, {}, replaces=here)
        assert path.read_bytes() == before
        storage.write(path, {"n": 3}, {}, replaces=there)
        assert storage.read(path).content == {"n": 3}

    def test_a_file_that_was_replaced(self, path):
        here = storage.write(path, {}, {"a": np.arange(5)})
        storage.write(path, {}, {"a": np.arange(6)})
        with pytest.raises(WriterConflictError, match="at commit 1, this index at 1"):
            storage.append(here, {}, {}, keep=["a"])

    def test_a_copy_of_the_file_will_do(self, path):
        here = storage.write(path, {}, {"a": np.arange(5)})
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
        storage.append(here, {"n": 2}, {}, keep=["a"])
        check(storage.read(path), {"n": 2}, {"a": np.arange(5)})

    def test_a_file_that_is_gone_is_made_again(self, path):
        here = storage.write(path, {}, {"a": np.arange(5)})
        path.unlink()
        storage.write(path, {"n": 2}, here.arrays, replaces=here)
        check(storage.read(path), {"n": 2}, {"a": np.arange(5)})
