"""Saves that end early, by an error or Control-C at any step: readers live on, and the index can be saved again."""

import contextlib
import errno
import itertools
import os
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

import cbeindex
from cbeindex import BinaryIndex
from cbeindex.errors import WriterConflictError
from cbeindex.storage import container as storage
from cbeindex.storage import files as _files
from tests.child_processes import may_fork, needs_fork
from tests.failing_disk import CALLS
from tests.sample_indexes import a_binary_index, check_same, queries_for, small_sizes
from tests.saves import SAVES, append, compact, first_save, some_vectors, told

ERRORS = (KeyboardInterrupt(), OSError(errno.EIO, "it broke"), MemoryError())
PAGE = 4096


@pytest.fixture(scope="module", autouse=True)
def _small_sizes():
    with small_sizes():
        yield


@pytest.fixture
def path(tmp_path):
    return tmp_path / "items.cbe"


def interrupt_at(patch, n, error, is_after, meanwhile=lambda: None):
    """Raise `error` in place of the n-th call that changes the disk, or after it."""
    numbers = itertools.count()
    for name in CALLS:
        real = getattr(_files, name)

        def call(*args, real=real):
            is_it = next(numbers) == n
            result = None if is_it and not is_after else real(*args)
            if is_it:
                meanwhile()
                raise error
            return result

        patch.setattr(_files, name, call)


def saves_that_end_early(save, error, meanwhile=lambda: None):
    """Call `save` again and again, interrupted at each of its steps; yields after each of them."""
    for n in itertools.count():
        for is_after in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                interrupt_at(patch, n, error, is_after, meanwhile)
                try:
                    save()
                except type(error):
                    is_done = False
                else:
                    is_done = True
            yield is_done
            if is_done and not is_after:
                return


def interrupt_second_sync(patch, error):
    """Raise `error` in place of the last call of a save, when the file holds the new commit already."""
    sync, n_syncs = _files._sync, itertools.count(1)

    def interrupted(descriptor):
        if next(n_syncs) == 2:
            raise error
        sync(descriptor)

    patch.setattr(_files, "_sync", interrupted)


class Reader:
    """A process that maps a file as it is now, and touches all of it when it is told to."""

    def __init__(self, path):
        (ready, is_ready), (self._go, go) = os.pipe(), os.pipe()[::-1]
        self._child = os.fork()
        if self._child == 0:
            try:
                os.close(self._go)
                arrays = storage.read(path).arrays
                os.write(is_ready, b"1")
                os.read(go, 1)
                for array in arrays.values():
                    array.tobytes()
                os._exit(0)
            finally:
                os._exit(1)
        os.close(is_ready)
        os.close(go)
        assert os.read(ready, 1) == b"1"
        os.close(ready)

    def touch(self):
        """Return how that ended: 0, or minus a signal."""
        os.close(self._go)
        return os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])


@needs_fork
@may_fork
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_readers_live_on(path, error):
    """Each has mapped the file while a save ended early, and touches its pages after that and after further saves."""
    content, arrays = {"n": 0}, {"a": np.arange(2 * PAGE)}
    storage.write(path, content, arrays)
    readers, n_steps = [], 0

    def save():
        nonlocal n_steps
        n_steps += 1
        stored = storage.read(path)
        new = {f"{n_steps}.{n}": np.full((n + 1) * PAGE, n, np.uint8) for n in range(3)}
        storage.append(stored, {"n": n_steps}, new, keep=["a"])

    for is_done in saves_that_end_early(save, error, lambda: readers.append(Reader(path))):
        if is_done:
            break
        # A next save that is small, so that it does not cover what the last one has left.
        stored = storage.read(path)
        storage.append(stored, {"n": -n_steps}, {}, keep=["a"])
        assert readers[-1].touch() == 0, n_steps
        storage.verify(path)
    assert n_steps == 2 * 8 + 1  # three arrays and zeros before them, a footer, a slot, two syncs


class TestTheSameIndex:
    """Whatever came in between, what an index has put into its file itself is no conflict."""

    @pytest.mark.parametrize("error", ERRORS, ids=repr)
    @pytest.mark.parametrize("save", SAVES)
    def test_is_saved_again(self, path, tmp_path, save, error):
        for again in (append, compact):
            index = a_binary_index()
            index.save(path)
            for is_done in saves_that_end_early(lambda index=index: save(index, path), error):
                expected = told(index)
                if not is_done:
                    again(index, path)
                loaded = BinaryIndex.load(path, verify=True)
                check_same(told(loaded), expected)
                assert list(tmp_path.iterdir()) == [path]
                index.remove(index.ids[:1])
                index.add(queries_for(index))
            cbeindex.verify(path)

    @pytest.mark.parametrize("save", [append, compact])
    def test_with_an_encoder_and_tables(self, path, save):
        index = some_vectors()
        index.save(path)
        index.add(queries_for(index))
        for _ in saves_that_end_early(lambda: save(index, path), KeyboardInterrupt()):
            index.remove(index.ids[:1])
        index.save()
        check_same(told(type(index).load(path, verify=True)), told(index))

    def test_is_interrupted_many_times(self, path):
        """One commit follows the other in the file, and the index is told of none."""
        index = a_binary_index()
        index.save(path)
        for turn, save in enumerate([append, append, compact, append, first_save, append, compact, compact, append]):
            index.remove([turn])
            with pytest.MonkeyPatch.context() as patch:
                interrupt_second_sync(patch, KeyboardInterrupt)
                with pytest.raises(KeyboardInterrupt):
                    save(index, path)
            check_same(told(BinaryIndex.load(path, verify=True)), told(index))
        index.save()
        assert BinaryIndex.load(path, verify=True).ids.tolist() == list(range(9, 60))

    def test_others_are_still_in_conflict(self, path):
        index = a_binary_index()
        index.save(path)
        index.remove([0])
        with pytest.MonkeyPatch.context() as patch:
            interrupt_second_sync(patch, KeyboardInterrupt)
            with pytest.raises(KeyboardInterrupt):
                index.save()
        other = BinaryIndex.load(path)
        assert 0 not in other
        other.remove([1])
        other.save()
        for save in (index.save, index.compact):
            with pytest.raises(WriterConflictError, match="the file was changed since it was loaded"):
                save()
        assert BinaryIndex.load(path).ids.tolist() == list(range(2, 60))

    def test_a_commit_of_which_nobody_was_told_is_synced_by_the_next_save(self, path):
        """Without anything new a save writes nothing, unless it cannot be sure of what is in the file."""
        index = a_binary_index()
        index.save(path)
        index.remove([0])
        with pytest.MonkeyPatch.context() as patch:
            interrupt_second_sync(patch, OSError(errno.EIO, "it broke"))
            with pytest.raises(OSError, match="it broke"):
                index.save()
        calls = []
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                real = getattr(_files, name)
                patch.setattr(_files, name, lambda *args, r=real, n=name: (calls.append(n), r(*args))[1])
            index.save()
            assert calls.count("_sync") == 3  # the footer, the slot, and the folder, since the file may be a new one
            calls.clear()
            index.save()
            assert not calls
        assert storage.describe(path)["sequence"] == 3


def test_a_save_without_anything_new_writes_nothing(path):
    for make in (a_binary_index, some_vectors):
        index = make()
        index.save(path)
        index.remove([3])
        index.add(queries_for(index))
        index.save()
        before = path.read_bytes(), path.stat().st_mtime_ns
        for same in (index, type(index).load(path), type(index).load(path, mmap=False)):
            same.save()
            same.save()
            assert (path.read_bytes(), path.stat().st_mtime_ns) == before
        assert storage.describe(path)["sequence"] == 2


class TestErrorsNameTheFile:
    def test_of_a_disk_that_fails(self, path):
        index = a_binary_index()
        index.save(path)
        for save, n in itertools.product(SAVES, range(6)):
            index.remove(index.ids[:1])
            with pytest.MonkeyPatch.context() as patch:
                interrupt_at(patch, n, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), False)
                with pytest.raises(OSError, match="No space left") as caught:
                    save(index, path)
            assert caught.value.filename == os.fspath(path)
            assert str(caught.value) == f"[Errno 28] No space left on device: {os.fspath(path)!r}"

    def test_of_folders_and_files_that_are_missing(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        index = a_binary_index()
        for path in ("nofolder/x.cbe", Path("nofolder", "x.cbe")):
            for function in (index.save, BinaryIndex.load, cbeindex.verify, storage.describe):
                with pytest.raises(FileNotFoundError) as caught:
                    function(path)
                assert str(caught.value) == f"[Errno 2] No such file or directory: {os.fspath(path)!r}"
        with pytest.raises(IsADirectoryError) as caught:
            BinaryIndex.load(tmp_path)
        assert caught.value.filename == os.fspath(tmp_path)
        index.save("x.cbe")
        os.unlink("x.cbe")
        index.remove([0])
        with pytest.raises(FileNotFoundError, match=r"x\.cbe"):
            index.save()

    def test_of_a_replacement_that_fails(self, path):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            there = Path(folder, "x.cbe")
            patch.setattr(_files, "_replace", lambda part, path: os.rename(part, Path(folder, "missing", "x")))
            with pytest.raises(FileNotFoundError) as caught:
                a_binary_index().save(there)
            assert str(caught.value) == f"[Errno 2] No such file or directory: {os.fspath(there)!r}"


class TestLocks:
    """Signals also come while Python leaves a context manager, and a notebook keeps the traceback."""

    @pytest.mark.no_cover  # which would take the tracer away
    @pytest.mark.parametrize("method", ["save", "compact"])
    def test_an_interrupt_in_any_exit_leaves_no_lock_held(self, tmp_path, method):
        codes = np.zeros((2, 8), dtype=np.uint8)
        index = BinaryIndex(64)
        index.add(codes)
        index.save(tmp_path / "items.cbe")
        for number in range(20):
            index.add(codes)
            kept, is_over = _interrupted_at_exit(number, getattr(index, method)), []
            if kept is None:
                break
            other = threading.Thread(target=lambda is_over=is_over: is_over.append(index.add(codes)), daemon=True)
            other.start()
            other.join(10)
            assert is_over, f"the lock is held after exit {number}"
        assert number > 0


def _interrupted_at_exit(number, call):
    """Interrupt a call when it enters the `number`-th exit of contextlib; return the error, None if there are fewer."""
    left = [number]

    def trace(frame, event, argument):
        if frame.f_code.co_name == "__exit__" and frame.f_code.co_filename == contextlib.__file__:
            left[0] -= 1
            if left[0] < 0:
                sys.settrace(None)
                raise KeyboardInterrupt

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(None)
    return None
