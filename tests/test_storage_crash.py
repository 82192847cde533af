"""Index files when something goes wrong while they are written: failing disks, kills, power cuts, a second writer."""

import errno
import importlib.util
import itertools
import os
import random
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import types
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from cbeindex.errors import CorruptIndexFileError, WriterConflictError
from cbeindex.storage import container as storage
from cbeindex.storage import files as _files
from tests.child_processes import WRITER, in_child, may_fork, needs_fork
from tests.failing_disk import fail_at, let


@pytest.fixture
def path(tmp_path):
    return tmp_path / "items.cbe"


def arrays_of(n):
    return {f"a{n}": np.full(5 + n, n), "all": np.full(100, n, np.int32)}


def check(stored, *allowed):
    """A commit holds what `save` wrote for one of the numbers, and nothing of another one; returns which."""
    n = stored.content["n"]
    assert n in allowed
    for name, array in arrays_of(n).items():
        np.testing.assert_array_equal(stored.arrays[name], array)
    for name in stored.arrays.keys() - arrays_of(n).keys():  # kept ones
        np.testing.assert_array_equal(stored.arrays[name], arrays_of(int(name[1:]))[name])
    return n


def start(path):
    """A file of two commits, so that both slots are in use."""
    return append(storage.write(path, {"n": 0}, arrays_of(0)), path, 1)


def append(stored, path, n):
    return storage.append(stored, {"n": n}, arrays_of(n), keep=stored.arrays.keys() - arrays_of(n).keys())


def replace(stored, path, n):
    return storage.write(path, {"n": n}, arrays_of(n))


def count_calls(tmp_path, save):
    with pytest.MonkeyPatch.context() as patch:
        stored = start(tmp_path / "counted")
        numbers = let(patch, lambda *_: None)
        save(stored, tmp_path / "counted", 2)
        (tmp_path / "counted").unlink()
        return next(numbers)


class TestFailingDisk:
    @pytest.mark.parametrize("half", [False, True])
    @pytest.mark.parametrize("save", [append, replace])
    def test_an_error_leaves_whole_content(self, path, tmp_path, save, half):
        """The old one, as it was; or, where the slot of a commit is written and synced, one of the two."""
        n_calls = count_calls(tmp_path, save)
        assert n_calls >= 9
        n_errors = 0
        for n in range(n_calls):
            stored = start(path)
            before = path.read_bytes()
            with pytest.MonkeyPatch.context() as patch:
                fail_at(patch, n, half=half)
                try:
                    stored = save(stored, path, 2)
                except OSError:
                    n_errors += 1
                    if save is replace or n < n_calls - 2:
                        assert path.read_bytes() == before
                    check(storage.read(path, mmap=False), 2 if n == n_calls - 1 else 1)
                else:  # the replacement took place, whether it lasts is not known
                    assert save is replace
                    assert n == n_calls - 1
                    check(storage.read(path), 2)
            assert list(tmp_path.iterdir()) == [path]
            append(storage.read(path), path, 3)
            check(storage.read(path, verify=True), 3)
            storage.verify(path)
        assert n_errors >= n_calls - 1

    @pytest.mark.parametrize("half", [False, True])
    @pytest.mark.parametrize("save", [append, replace])
    def test_a_disk_that_fails_for_good_leaves_whole_content(self, path, tmp_path, save, half):
        """Nothing can be undone or cleared away then, and still the file holds one commit or the other."""
        for n in range(count_calls(tmp_path, save)):
            stored = start(path)
            with pytest.MonkeyPatch.context() as patch:
                fail_at(patch, n, half=half, forever=True)
                with suppress(OSError):
                    save(stored, path, 2)
            check(storage.read(path, mmap=False), 1, 2)
            append(storage.read(path), path, 3)
            check(storage.read(path, verify=True), 3)
            replace(None, path, 4)
            check(storage.read(path, verify=True), 4)
            assert list(tmp_path.iterdir()) == [path]

    def test_a_first_save_leaves_nothing(self, path, tmp_path):
        for n in itertools.count():
            with pytest.MonkeyPatch.context() as patch:
                fail_at(patch, n)
                try:
                    storage.write(path, {"n": 2}, arrays_of(2))
                except OSError:
                    assert not list(tmp_path.iterdir())
                else:
                    break
        assert n >= 8
        check(storage.read(path), 2)

    def test_writes_may_be_short(self, path, monkeypatch):
        monkeypatch.setattr(_files, "_write", lambda descriptor, data: os.write(descriptor, data[:7]))
        append(start(path), path, 2)
        check(storage.read(path, verify=True), 2)

    def test_writes_of_nothing_do_not_go_on_for_ever(self, path, monkeypatch):
        stored = start(path)
        before = path.read_bytes()
        monkeypatch.setattr(_files, "_write", lambda descriptor, data: 0)
        for save in (append, replace):
            with pytest.raises(OSError) as caught:
                save(stored, path, 2)
            assert caught.value.errno == errno.EIO
            assert path.read_bytes() == before

    @pytest.mark.parametrize("save", [append, replace])
    def test_an_interrupted_save(self, path, tmp_path, save):
        """Control-C comes anywhere, also where no disk is at fault."""
        n_calls = count_calls(tmp_path, save)
        for n in range(n_calls):
            stored = start(path)
            before = path.read_bytes()

            def interrupt(number, name, *args, n=n):
                if number == n:
                    raise KeyboardInterrupt

            with pytest.MonkeyPatch.context() as patch:
                let(patch, interrupt)
                with pytest.raises(KeyboardInterrupt):
                    save(stored, path, 2)
            if n < n_calls - (1 if save is replace else 2):
                assert path.read_bytes() == before
            check(storage.read(path, verify=True), 2 if n == n_calls - 1 else 1)
            assert list(tmp_path.iterdir()) == [path]

    @needs_fork
    @may_fork
    def test_a_real_limit(self, path):
        """No stand-in: the system takes a part of what is written, and then no more."""
        resource = pytest.importorskip("resource")
        stored = start(path)
        before = path.read_bytes()

        def save():
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5000, len(before) + 5000))
            for way in (
                lambda: storage.append(stored, {}, {"large": np.zeros(10_000)}, keep=[]),
                lambda: storage.write(path, {}, {"large": np.zeros(10_000)}),
            ):
                with pytest.raises(OSError) as caught:
                    way()
                assert caught.value.errno == errno.EFBIG
                assert path.read_bytes() == before

        assert in_child(save) == 0
        assert path.read_bytes() == before
        assert list(path.parent.iterdir()) == [path]

    def test_a_directory_that_may_not_be_written_to(self):
        """Also for root, who may do everything and so becomes somebody else for a while."""
        if not hasattr(os, "geteuid"):
            pytest.skip("no such directories here")
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "items.cbe")
            start(path)
            path.chmod(0o444)
            is_root = os.geteuid() == 0
            Path(directory).chmod(0o555)
            if is_root:
                os.seteuid(65534)
            try:
                stored = storage.read(path)
                check(stored, 1)
                for save in (append, replace):
                    with pytest.raises(PermissionError):
                        save(stored, path, 2)
                with pytest.raises(PermissionError):
                    storage.write(Path(directory, "other.cbe"), {}, {})
            finally:
                if is_root:
                    os.seteuid(0)
                Path(directory).chmod(0o755)
            check(storage.read(path, verify=True), 1)
            assert list(Path(directory).iterdir()) == [path]


@needs_fork
@may_fork
class TestKilled:
    @pytest.mark.parametrize("half", [False, True])
    @pytest.mark.parametrize("save", [append, replace])
    def test_at_every_call(self, path, tmp_path, save, half):
        for n in itertools.count():
            stored = start(path)

            def killed(stored=stored, n=n):
                def before(number, name, *args):
                    if number == n:
                        if half and name == "_write":
                            os.write(args[0], args[1][: len(args[1]) // 2])
                        os.kill(os.getpid(), signal.SIGKILL)

                let(pytest.MonkeyPatch(), before)
                save(stored, path, 2)

            ended = in_child(killed)
            found = check(storage.read(path, mmap=False), 1, 2)
            again = storage.read(path)
            assert check(again, 1, 2) == found
            append(again, path, 3)
            check(storage.read(path, verify=True), 3)
            replace(None, path, 4)
            check(storage.read(path, verify=True), 4)
            assert list(tmp_path.iterdir()) == [path]
            if ended == 0:
                break
            assert ended == -signal.SIGKILL
        assert n >= 9

    def test_at_any_time(self, path):
        """A process that saves without end is killed after some milliseconds, and the next one goes on."""
        rng = random.Random(0)
        replace(None, path, 0)
        n_first = n_last = 0
        for _ in range(25):

            def save_for_ever():
                stored = storage.read(path)
                for n in itertools.count(stored.content["n"] + 1):
                    save = replace if n % 10 == 0 else append
                    stored = save(stored, path, n)

            child = os.fork()
            if child == 0:
                with suppress(BaseException):
                    save_for_ever()
                os._exit(1)
            time.sleep(rng.uniform(0, 0.04))
            os.kill(child, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
            storage.verify(path)
            n_first, n_last = n_last, check(storage.read(path), *range(n_last, n_last + 10_000))
            assert n_last >= n_first
        assert n_last > 0
        append(storage.read(path), path, n_last + 1)
        storage.verify(path)


class TestPowerCut:
    def test_what_was_not_synced_may_be_lost_in_part(self, path, tmp_path):
        """Every state that a disk can be in when the power goes while a file is appended to.

        What was written before the last sync is there; of what came after it, any part may be, in any order.
        """
        stored = start(path)
        with path.open("ab") as file:
            file.write(b"left by a save that was cut off" * 100)
        disk, log = path.read_bytes(), []

        def record(number, name, *args):
            if name == "_write":
                log.append((name, os.lseek(args[0], 0, os.SEEK_CUR), bytes(args[1])))
            else:
                log.append((name, *args[1:]))

        with pytest.MonkeyPatch.context() as patch:
            let(patch, record)
            append(stored, path, 2)
        assert [entry[0] for entry in log if entry[0] != "_write"] == ["_sync", "_sync"]
        assert log[-1][0] == "_sync"
        assert len(log) < 15

        copy, seen = tmp_path / "copy", set()
        pending = []
        for entry in log:
            if entry[0] == "_sync":
                disk, pending = apply(disk, pending), []
                continue
            pending.append(entry)
            for kept in itertools.product([0, 1], repeat=len(pending) - 1):
                chosen = [e for e, keep in zip(pending, [*kept, 1], strict=True) if keep]
                for share in (0.25, 0.5, 1):
                    copy.write_bytes(apply(disk, [*chosen[:-1], torn(chosen[-1], share)]))
                    seen.add(check(storage.read(copy, mmap=False), 1, 2))
        assert seen == {1, 2}
        copy.write_bytes(disk)
        check(storage.read(copy, verify=True), 2)

    def test_a_new_file_is_synced_before_it_is_in_place(self, path):
        start(path)
        log = []
        with pytest.MonkeyPatch.context() as patch:
            let(patch, lambda number, name, *args: log.append(name))
            replace(None, path, 2)
        assert log[-3:] == ["_sync", "_replace", "_sync"]
        assert set(log[:-3]) == {"_write"}


def apply(disk, entries):
    """The bytes of a disk after some writes and truncations."""
    data = bytearray(disk)
    for entry in entries:
        if entry[0] == "_truncate":
            del data[entry[1] :]
        else:
            _, offset, new = entry
            data.extend(bytes(max(0, offset + len(new) - len(data))))
            data[offset : offset + len(new)] = new
    return bytes(data)


def torn(entry, share):
    """The first part of a write."""
    return (*entry[:2], entry[2][: int(share * len(entry[2]))]) if entry[0] == "_write" else entry


class TestTwoWriters:
    def refused(self, stored, path):
        before = path.read_bytes()
        for save in (append, replace):
            with pytest.raises(WriterConflictError, match=r"items\.cbe: another process is writing this file"):
                save(stored, path, 2)
        assert path.read_bytes() == before
        check(storage.read(path, verify=True), 1)

    def test_in_one_process(self, path):
        stored = start(path)
        with _files.locked(path.resolve()):
            self.refused(stored, path)
        append(stored, path, 2)

    def test_of_which_the_first_replaces_the_file(self, path):
        stored = start(path)
        with _files.locked_part(path.resolve()), _files.locked(path.resolve()):
            self.refused(stored, path)
        append(stored, path, 2)

    def test_of_which_the_first_makes_the_file(self, path, tmp_path):
        whole = path.resolve()
        with suppress(ZeroDivisionError), _files.locked_part(whole) as part, _files.replacing(whole, part, None):
            with pytest.raises(WriterConflictError, match="another process is writing"):
                storage.write(path, {}, {})
            raise ZeroDivisionError
        assert not list(tmp_path.iterdir())

    def test_in_threads(self, path):
        """Of many threads that append to the same commit one succeeds."""
        stored, outcomes = start(path), []
        barrier = threading.Barrier(8, timeout=10)

        def work():
            barrier.wait()
            try:
                append(stored, path, 2)
                outcomes.append("saved")
            except WriterConflictError:
                outcomes.append("refused")

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["refused"] * 7 + ["saved"]
        check(storage.read(path, verify=True), 2)

    @pytest.mark.parametrize("way", ["locked", "replacing"])
    def test_in_two_processes(self, path, way):
        stored = start(path)
        command = [sys.executable, "-c", WRITER, way, os.fspath(path.resolve())]
        root = Path(__file__).parent.parent
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as other:
            assert other.stdout.readline() == b"at work\n"
            self.refused(stored, path)
            other.kill()
        # The lock goes with the process, however it ended; what it has left is cleared away by the next.
        append(stored, path, 2)
        replace(None, path, 3)
        assert list(path.parent.iterdir()) == [path]

    @needs_fork
    @may_fork
    def test_a_child_does_not_inherit_the_lock(self, path):
        stored = start(path)
        ready, done = os.pipe(), os.pipe()
        with _files.locked(path.resolve()) as file, _files.unlocking(file):
            child = os.fork()
            if child == 0:
                os.write(ready[1], b"1")
                os.read(done[0], 1)
                os._exit(0)
            os.read(ready[0], 1)
        append(stored, path, 2)
        os.write(done[1], b"1")
        os.waitpid(child, 0)
        for descriptor in (*ready, *done):
            os.close(descriptor)

    def test_a_file_that_is_replaced_while_the_lock_is_taken(self, path, monkeypatch):
        stored, lock = start(path), _files._lock
        copy = path.read_bytes()

        def slow(file):
            monkeypatch.setattr(_files, "_lock", lock)
            path.unlink()
            path.write_bytes(copy)
            lock(file)

        monkeypatch.setattr(_files, "_lock", slow)
        append(stored, path, 2)
        check(storage.read(path, verify=True), 2)

    def test_a_neighbour_that_goes_while_the_lock_is_taken(self, path, monkeypatch, tmp_path):
        """What was left by a writer that was killed is cleared away by two others at once."""
        lock = _files._lock
        part = tmp_path / ".items.cbe.cbeindex-part"
        part.write_bytes(b"\x89CBE\r\n\x1a\n left")

        def slow(file):
            monkeypatch.setattr(_files, "_lock", lock)
            part.unlink()
            lock(file)

        monkeypatch.setattr(_files, "_lock", slow)
        replace(None, path, 2)
        check(storage.read(path, verify=True), 2)
        monkeypatch.setattr(_files, "_lock", slow)  # now it is the new one that goes
        replace(None, path, 3)
        check(storage.read(path, verify=True), 3)
        assert list(tmp_path.iterdir()) == [path]

    def test_a_file_that_is_replaced_again_and_again(self, path, monkeypatch, tmp_path):
        stored = start(path)
        monkeypatch.setattr(_files, "_is_at", lambda file, path: False)
        for save in (append, replace):
            with pytest.raises(WriterConflictError, match="keep replacing this file"):
                save(stored, path, 2)

    @pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="links are followed here")
    def test_a_neighbour_that_is_a_link_is_not_followed(self, path, tmp_path):
        other, part = tmp_path / "other", tmp_path / ".items.cbe.cbeindex-part"
        other.write_bytes(b"")
        part.symlink_to("other")
        with pytest.raises(FileExistsError, match="move that file"):
            replace(None, path, 2)
        assert part.is_symlink()
        assert other.exists()

    @pytest.mark.parametrize("data", [b"precious", bytes(300), b"\x89CBE\r\n\x1a", b"\x89PNG\r\n\x1a\n", b"", "folder"])
    def test_a_neighbour_that_is_not_ours(self, path, tmp_path, data):
        """What begins as our files do was left by a save that was killed; nothing else is removed."""
        part = tmp_path / ".items.cbe.cbeindex-part"
        part.mkdir() if data == "folder" else part.write_bytes(data)
        if data in (b"", b"\x89CBE\r\n\x1a"):
            replace(None, path, 2)
            assert list(tmp_path.iterdir()) == [path]
            return
        with pytest.raises(
            FileExistsError, match=r"the name \.items\.cbe\.cbeindex-part in the same folder.* move that file"
        ) as e:
            replace(None, path, 2)
        assert e.value.filename == os.fspath(path)
        assert part.is_dir() if data == "folder" else part.read_bytes() == data
        assert list(tmp_path.iterdir()) == [part]

    def test_other_neighbours_are_left_alone(self, path, tmp_path):
        others = {tmp_path / name for name in (".items.cbe.part", "items.cbe.part", ".items.cbe.tmp")}
        for other in others:
            other.write_bytes(b"precious")
        start(path)
        replace(None, path, 2)
        assert {other.read_bytes() for other in others} == {b"precious"}
        assert set(tmp_path.iterdir()) == {path} | others


class TestReaders:
    @needs_fork
    @may_fork
    def test_while_another_process_saves(self, path):
        """Readers see whole commits, and never an older one than before."""
        replace(None, path, 0)

        def save_for_ever():
            stored = storage.read(path)
            for n in itertools.count(1):
                stored = (replace if n % 25 == 0 else append)(stored, path, n)

        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                save_for_ever()
            os._exit(1)
        try:
            seen, first = [0], storage.read(path)
            while len(set(seen)) < 60:
                stored = storage.read(path, mmap=len(seen) % 2 == 0)
                seen.append(check(stored, *range(seen[-1], 100_000)))
                if len(seen) % 10 == 0:
                    storage.verify(path)
                assert os.waitpid(child, os.WNOHANG) == (0, 0), "the other process has ended"
            check(first, *range(100_000))
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def test_keep_what_they_have_mapped(self, path):
        stored = start(path)
        mapped = storage.read(path)
        stored = storage.append(stored, {"n": 2}, arrays_of(2), keep=[])
        check(mapped, 1)
        replace(None, path, 3)
        check(mapped, 1)
        check(storage.read(path), 3)
        with pytest.raises(WriterConflictError):
            append(mapped, path, 4)


@pytest.mark.skipif(sys.platform == "win32", reason="no such permissions here")
class TestPermissions:
    def test_are_those_of_any_new_file(self, path, tmp_path):
        (tmp_path / "other").touch()
        replace(None, path, 0)
        assert path.stat().st_mode == (tmp_path / "other").stat().st_mode

    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o777])
    def test_are_kept(self, path, mode):
        replace(None, path, 0)
        path.chmod(mode)
        replace(None, path, 1)
        assert stat.S_IMODE(path.stat().st_mode) == mode
        append(storage.read(path), path, 2)
        assert stat.S_IMODE(path.stat().st_mode) == mode

    def test_nobody_reads_the_new_file_who_cannot_read_the_old(self, path, tmp_path):
        replace(None, path, 0)
        path.chmod(0o600)
        modes = []

        def look(number, name, *args):
            modes.extend(stat.S_IMODE(part.stat().st_mode) for part in tmp_path.glob(".*"))

        with pytest.MonkeyPatch.context() as patch:
            let(patch, look)
            replace(None, path, 1)
        assert set(modes) == {0o600}

    def test_owners_are_kept(self, path):
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        replace(None, path, 0)
        os.chown(path, 12345, 54321)
        replace(None, path, 1)
        assert (path.stat().st_uid, path.stat().st_gid) == (12345, 54321)


class TestOtherSystems:
    def test_locks_of_windows(self, path, monkeypatch):
        """The parts that differ there, over a stand-in for its locks: bytes of files, held by descriptors."""
        held = {}

        def locking(descriptor, how, n_bytes):
            place = os.fstat(descriptor).st_ino, os.lseek(descriptor, 0, os.SEEK_CUR)
            assert place[1] >= 2**40
            if how == windows.LK_UNLCK:
                del held[place]
            elif place in held:
                raise PermissionError(errno.EACCES, "Permission denied")
            else:
                held[place] = descriptor

        windows = types.SimpleNamespace(LK_NBLCK=2, LK_UNLCK=0, locking=locking)
        monkeypatch.setitem(sys.modules, "msvcrt", windows)
        monkeypatch.setattr(sys, "platform", "win32")
        spec = importlib.util.spec_from_file_location("cbeindex.storage.files_of_windows", _files.__file__)
        there = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(there)
        monkeypatch.setattr(storage, "_files", there)

        stored = append(start(path), path, 2)
        with there.locked(path.resolve()) as file, there.unlocking(file):
            for save in (append, replace):
                with pytest.raises(WriterConflictError, match="another process is writing"):
                    save(stored, path, 3)
        replace(None, path, 4)
        check(storage.read(path, verify=True), 4)
        with pytest.raises(TypeError):
            storage.write(path, {"n": object()}, {})
        monkeypatch.setattr(there, "_replace", lambda *_: os.rename("missing", "missing"))
        with pytest.raises(FileNotFoundError):
            replace(None, path, 5)
        check(storage.read(path, verify=True), 4)
        assert list(path.parent.iterdir()) == [path]
        assert not held

    def test_sync_of_macos(self, monkeypatch, path):
        """There only a call of its own reaches the disk; where a disk does not know it, the common one must do."""
        fcntl = pytest.importorskip("fcntl")
        calls = []
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
        monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append("fsync"))
        monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, command: calls.append(command))
        start(path)
        assert set(calls) == {51}

        def unknown(descriptor, command):
            raise OSError(errno.ENOTSUP, "not supported")

        calls.clear()
        monkeypatch.setattr(fcntl, "fcntl", unknown)
        append(storage.read(path), path, 2)
        assert set(calls) == {"fsync"}


def test_damage_is_found_before_anything_is_appended(path):
    stored = start(path)
    data = bytearray(path.read_bytes())
    data[64:192] = bytes(128)
    path.write_bytes(data)
    with pytest.raises(CorruptIndexFileError, match="both commit slots are damaged"):
        append(stored, path, 2)
    assert path.read_bytes() == data
