"""Index files among processes and threads: kills, failing disks, writers that meet, readers, and memory."""

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
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import cbeindex
from cbeindex import BinaryIndex, CBEIndex
from cbeindex.errors import UnsupportedVersionError, WriterConflictError
from tests.child_processes import WRITER, in_child, may_fork, needs_fork
from tests.conftest import COMPILED
from tests.crafted_files import with_crc
from tests.failing_disk import fail_at, let
from tests.sample_indexes import a_binary_index, an_index, answers, check_same, queries_for, small_sizes
from tests.saves import SAVES, append, first_save, some_vectors, told
from tests.strategies import some_codes


@pytest.fixture(scope="module", autouse=True)
def _small_sizes():
    with small_sizes():
        yield


@pytest.fixture
def path(tmp_path):
    return tmp_path / "items.cbe"


KINDS = (some_vectors, a_binary_index)


def two_states(make, path, save):
    """An index whose file holds an older state; what both answer."""
    index = make()
    if save is first_save:
        a_older = make()
        a_older.remove([1])
        a_older.save(path)
        return index, {"old": told(a_older), "new": told(index)}
    index.save(path)
    old = told(index)
    index.add(queries_for(index))
    index.remove([0, 7])
    return index, {"old": old, "new": told(index)}


def which(path, kind, states):
    """Tell which state a file holds, all of it."""
    loaded = kind.load(path, mmap=False)
    found = told(loaded)
    name = "new" if np.array_equal(found["ids"], states["new"]["ids"]) else "old"
    check_same(found, states[name])
    return name


def n_calls_of(make, save, directory):
    """Count the calls that change the disk in a save."""
    path = Path(directory, "counted.cbe")
    index, _ = two_states(make, path, save)
    with pytest.MonkeyPatch.context() as patch:
        numbers = let(patch, lambda *_: None)
        save(index, path)
        n = next(numbers)
    path.unlink()
    return n


class TestFailingDisk:
    @pytest.mark.parametrize("save", SAVES)
    @pytest.mark.parametrize(("make", "half"), [(some_vectors, True), (a_binary_index, False), (a_binary_index, True)])
    def test_at_the_nth_write(self, path, tmp_path, make, save, half):
        """An error, the old content, or the new where a commit is synced, no litter; the next save works."""
        n_calls = n_calls_of(make, save, tmp_path)
        assert n_calls >= 9
        for n in range(0, n_calls, 1 if COMPILED else 3):
            index, states = two_states(make, path, save)
            before = path.read_bytes()
            with pytest.MonkeyPatch.context() as patch:
                fail_at(patch, n, half=half)
                try:
                    save(index, path)
                except OSError:
                    if save is append and n >= n_calls - 2:
                        assert which(path, type(index), states) == ("new" if n == n_calls - 1 else "old")
                    else:
                        assert path.read_bytes() == before
                else:  # of the last call, which makes a replacement last, nobody learns
                    assert n == n_calls - 1
                    assert save is not append
            assert list(tmp_path.iterdir()) == [path]
            check_same(told(index), states["new"])
            index.save(path) if save is first_save else index.save()
            assert which(path, type(index), states) == "new"
            if n % 8 == 0:
                cbeindex.verify(path)

    def test_a_first_save_leaves_nothing(self, path, tmp_path):
        index = a_binary_index()
        for n in itertools.count():
            with pytest.MonkeyPatch.context() as patch:
                fail_at(patch, n)
                try:
                    index.save(path)
                    break
                except OSError:
                    assert not list(tmp_path.iterdir())
                    assert index.path is None
        assert n >= 8
        check_same(answers(BinaryIndex.load(path)), answers(index))

    def test_failures_between_changes(self, path):
        """Saves that fail again and again, with changes in between: the one that works saves all of them."""
        index, rng = a_binary_index(buckets="substrings"), random.Random(0)
        index.save(path)
        for turn in range(20):
            index.add(queries_for(index))
            index.remove(index.ids[turn % 3 :: 20])
            expected = told(index)
            with pytest.MonkeyPatch.context() as patch:
                fail_at(patch, rng.randrange(14))
                with suppress(OSError):
                    index.compact() if turn % 5 == 4 else index.save()
            check_same(told(index), expected)
            if turn % 7 == 6:
                index.save()
                check_same(told(BinaryIndex.load(path, verify=True)), expected)


@needs_fork
@may_fork
class TestKilled:
    @pytest.mark.parametrize("save", SAVES)
    @pytest.mark.parametrize("make", KINDS)
    def test_at_many_calls(self, path, tmp_path, make, save):
        """A process that is gone leaves the old content or the new, whole; the next one goes on from there."""
        n_calls, seen = n_calls_of(make, save, tmp_path), []
        # Every call of the last ones, which sync and commit; of the writes before them, every third.
        points = [n for n in range(n_calls + 1) if n >= n_calls - 5 or n % 3 == 0]
        for n in points:
            path.unlink(missing_ok=True)
            index, states = two_states(make, path, save)

            def killed(index=index, n=n):
                def before(number, name, *args):
                    if number == n:
                        if name == "_write" and n % 2:
                            os.write(args[0], args[1][: len(args[1]) // 2])
                        os.kill(os.getpid(), signal.SIGKILL)

                let(pytest.MonkeyPatch(), before)
                save(index, path)

            assert in_child(killed) == (-signal.SIGKILL if n < n_calls else 0)
            seen.append(which(path, type(index), states))
            loaded = type(index).load(path)
            (new,) = loaded.add(queries_for(loaded)[:1])
            loaded.save()
            assert new in type(index).load(path, verify=True)
            loaded.compact()
            assert list(tmp_path.iterdir()) == [path]
            cbeindex.verify(path)
        assert seen == sorted(seen, reverse=True)  # first the old one, then the new one
        assert set(seen) == {"old", "new"}

    def test_a_first_save(self, path, tmp_path):
        index = a_binary_index()
        for n in itertools.count():

            def killed(n=n):
                let(pytest.MonkeyPatch(), lambda number, *_: number == n and os.kill(os.getpid(), signal.SIGKILL))
                index.save(path)

            ended = in_child(killed)
            if path.exists():
                check_same(told(BinaryIndex.load(path, verify=True)), told(index))
                path.unlink()
            else:
                with pytest.raises(FileNotFoundError):
                    BinaryIndex.load(path)
            if ended == 0:
                break
        assert n >= 8
        index.save(path)
        assert list(tmp_path.iterdir()) == [path]

    def test_at_any_time(self, path):
        """A process that adds and saves without end is killed after some milliseconds, again and again."""
        rng = random.Random(0)
        BinaryIndex(64, "clusters").save(path)
        n_before = 0
        for _ in range(12):

            def work():
                index = BinaryIndex.load(path)
                for turn in itertools.count(1):
                    start = len(index)
                    index.add(codes_of(range(start, start + 10)))
                    index.compact() if turn % 7 == 0 else index.save()

            child = os.fork()
            if child == 0:
                with suppress(BaseException):
                    work()
                os._exit(1)
            time.sleep(rng.uniform(0.005, 0.06))
            os.kill(child, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
            cbeindex.verify(path)
            index = BinaryIndex.load(path)
            check_whole(index)
            assert len(index) >= n_before
            n_before = len(index)
        assert n_before > 0


def codes_of(ids):
    """The code that an id stands for, so that anybody can tell whether rows are right."""
    return (np.asarray(ids, dtype="<u8")[:, np.newaxis] * np.uint64(0x9E3779B97F4A7C15)).view(np.uint8)


def check_whole(index):
    """An index holds whole batches of ten, with the codes that belong to them."""
    n = len(index)
    assert n % 10 == 0
    np.testing.assert_array_equal(index.ids, np.arange(n))
    np.testing.assert_array_equal(index.get(np.arange(n)), codes_of(range(n)))
    if n:
        asked = codes_of([0, n // 2, n - 1])
        result = index.search(asked, 1, mode="scan")
        assert result.ids[:, 0].tolist() == [0, n // 2, n - 1]
        assert not result.distances.any()


class TestTwoWriters:
    def test_in_one_process(self, path):
        index = a_binary_index()
        index.save(path)
        other = BinaryIndex.load(path)
        other.remove([0])
        other.save()
        index.remove([1])
        before = path.read_bytes()
        for save in (index.save, index.compact):
            with pytest.raises(
                WriterConflictError,
                match=r"items\.cbe: the file was changed .* \(it is at commit 2, this index at 1\); load it again",
            ):
                save()
        assert path.read_bytes() == before
        assert 0 in index
        assert 1 not in index
        index = BinaryIndex.load(path)  # as the message says
        index.remove([1])
        index.save()
        assert BinaryIndex.load(path).ids.tolist() == list(range(2, 60))
        index.save(path)  # and whoever names a path means it

    def test_a_file_that_was_compacted(self, path):
        index = a_binary_index()
        index.save(path)
        other = BinaryIndex.load(path)
        other.remove([3])
        other.compact()
        index.add(queries_for(index))
        with pytest.raises(WriterConflictError, match="the file was changed since it was loaded"):
            index.save()
        check_same(told(BinaryIndex.load(path)), told(other))

    @needs_fork
    @may_fork
    def test_a_copy_of_a_process(self, path):
        """An index that a child inherits has the same file; whoever saves first wins."""
        index = a_binary_index()
        index.save(path)

        def work():
            index.remove([0])
            index.save()

        assert in_child(work) == 0
        index.remove([1])
        with pytest.raises(WriterConflictError):
            index.save()
        assert BinaryIndex.load(path).ids.tolist() == list(range(1, 60))

    @pytest.mark.parametrize("way", ["locked", "replacing"])
    def test_at_the_same_time(self, path, way):
        index = a_binary_index()
        index.save(path)
        before = path.read_bytes()
        index.remove([1])
        command = [sys.executable, "-c", WRITER, way, os.fspath(path.resolve())]
        root = Path(__file__).parent.parent
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as other:
            assert other.stdout.readline() == b"at work\n"
            for save in (index.save, index.compact, lambda: index.save(path), lambda: a_binary_index().save(path)):
                with pytest.raises(WriterConflictError, match="another process is writing this file; try again"):
                    save()
            check_same(told(BinaryIndex.load(path)), told(a_binary_index()))  # who reads does not wait
            other.kill()
        assert path.read_bytes() == before
        index.save()
        assert 1 not in BinaryIndex.load(path)

    @needs_fork
    @may_fork
    def test_nothing_is_lost(self, path):
        """Processes that load, add and save as often as they are let: what one was told is saved is there."""
        BinaryIndex(64).save(path)
        deadline = time.monotonic() + 30
        children = []
        for number in range(3):
            child = os.fork()
            if child == 0:
                with suppress(BaseException):
                    saved = 0
                    while saved < 6 and time.monotonic() < deadline:
                        with suppress(WriterConflictError):
                            index = BinaryIndex.load(path)
                            index.add(codes_of([1000 * number + saved]), [1000 * number + saved])
                            index.compact() if saved == 3 else index.save()
                            saved += 1
                    os._exit(0 if saved == 6 else 1)
                os._exit(1)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
        index = BinaryIndex.load(path, verify=True)
        expected = [1000 * number + n for number in range(3) for n in range(6)]
        assert index.ids.tolist() == expected
        np.testing.assert_array_equal(index.get(expected), codes_of(expected))


class TestReaders:
    @needs_fork
    @may_fork
    def test_while_another_process_saves(self, path):
        """A reader sees one commit, whatever becomes of the file; whoever opens it again sees the newest."""
        BinaryIndex(64, "substrings").save(path)
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                index = BinaryIndex.load(path)
                for turn in range(10_000):
                    start = len(index)
                    index.add(codes_of(range(start, start + 10)))
                    index.compact() if turn % 10 == 9 else index.save()
            os._exit(1)
        try:
            n_seen, opened, sizes = 0, [], set()
            deadline = time.monotonic() + 30
            while len(sizes) < 12 and time.monotonic() < deadline:
                index = BinaryIndex.load(path, mmap=len(opened) % 3 != 0)
                check_whole(index)
                assert len(index) >= n_seen
                n_seen = len(index)
                sizes.add(n_seen)
                opened.append((index, n_seen))
                for earlier, n in opened[-5:]:
                    assert len(earlier) == n
                    check_whole(earlier)
                assert os.waitpid(child, os.WNOHANG) == (0, 0), "the other process has ended"
            assert len(sizes) >= 12
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def test_a_directory_that_may_not_be_written_to(self):
        """Also for root, who may do everything and so becomes somebody else for a while."""
        if not hasattr(os, "geteuid"):
            pytest.skip("no such directories here")
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "items.cbe")
            index = a_binary_index()
            index.save(path)
            expected = answers(index)  # and kernels are compiled: somebody else may not write to their cache
            path.chmod(0o444)
            Path(directory).chmod(0o555)
            is_root = os.geteuid() == 0
            if is_root:
                os.seteuid(65534)
            try:
                for options in ({}, {"mmap": False}, {"verify": True}):
                    loaded = BinaryIndex.load(path, **options)
                    check_same(answers(loaded), expected)
                cbeindex.verify(path)
                loaded.remove([0])
                expected = told(loaded)
                for save in (loaded.save, loaded.compact, lambda: loaded.save(Path(directory, "other.cbe"))):
                    with pytest.raises(PermissionError):
                        save()
                    check_same(told(loaded), expected)
            finally:
                if is_root:
                    os.seteuid(0)
                Path(directory).chmod(0o755)
            assert stat.S_IMODE(path.stat().st_mode) == 0o444
            check_same(told(BinaryIndex.load(path)), told(index))

    def test_a_newer_version(self, path):
        """What a later release writes is not taken for a damaged file, nor written over by `save`."""
        index = a_binary_index()
        index.save(path)
        data = bytearray(path.read_bytes())
        data[:16] = with_crc(bytes(data[:8]) + (3).to_bytes(4, "little"))
        path.write_bytes(data)
        for load in (
            BinaryIndex.load,
            CBEIndex.load,
            cbeindex.verify,
            lambda _: index.save(),
            lambda _: index.compact(),
        ):
            with pytest.raises(
                UnsupportedVersionError,
                match=r"items\.cbe: the file has format version 3, this release reads versions 1 and 2; a newer release"
                " of cbeindex may read it",
            ):
                load(path)
        assert path.read_bytes() == data


class TestThreads:
    N_BATCHES = 30 if COMPILED else 8

    def test_search_while_another_saves(self, path):
        """Answers are those of whole batches, before and after a save alike."""
        index = BinaryIndex(64, "clusters")
        index.add(codes_of(range(10)))
        index.save(path)
        done, errors = threading.Event(), []

        def search():
            try:
                while not done.is_set():
                    n = len(index) - 1
                    result = index.search(codes_of([0, n]), 1, mode="scan", n_threads=1)
                    assert result.ids[:, 0].tolist() == [0, n]
                    assert not result.distances.any()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=search) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for turn in range(self.N_BATCHES):
                index.add(codes_of(range(len(index), len(index) + 10)))
                index.compact() if turn % 10 == 9 else index.save()
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert not errors
        check_whole(BinaryIndex.load(path, verify=True))

    @pytest.mark.parametrize("make", [lambda: BinaryIndex(64), lambda: BinaryIndex(64, "substrings")])
    def test_add_while_another_saves(self, path, make):
        """A save has all of a batch or nothing of it, and the last one has all."""
        index, errors, done = make(), [], threading.Event()
        index.save(path)

        def add():
            try:
                for _ in range(self.N_BATCHES):
                    start = len(index)
                    index.add(codes_of(range(start, start + 10)))
                    time.sleep(0.001)
            except BaseException as error:
                errors.append(error)
            finally:
                done.set()

        thread = threading.Thread(target=add)
        thread.start()
        while not done.is_set():
            index.save()
            check_whole(BinaryIndex.load(path))
        thread.join()
        assert not errors
        index.save()
        check_whole(BinaryIndex.load(path, verify=True))
        assert len(BinaryIndex.load(path)) == 10 * self.N_BATCHES

    def test_several_save(self, path):
        """Threads that save the same index wait for each other: nobody else has written to the file."""
        index, errors = BinaryIndex(64), []
        index.save(path)

        def work(number):
            try:
                for n in range(5):
                    index.add(codes_of([10 * number + n]), [10 * number + n])
                    index.save()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        expected = [10 * number + n for number in range(4) for n in range(5)]
        assert BinaryIndex.load(path, verify=True).ids.tolist() == expected

    def test_vectors_that_are_added_while_another_saves(self, path):
        """An index that fits itself meanwhile is saved before it or after it."""
        index, errors, done = an_index(n=0, vectors="float32"), [], threading.Event()
        rows = np.random.default_rng(0).standard_normal((60, 24), dtype=np.float32)
        index.save(path)

        def add():
            try:
                for start in range(0, len(rows), 5):
                    index.add(rows[start : start + 5])
                    time.sleep(0.001)
            except BaseException as error:
                errors.append(error)
            finally:
                done.set()

        thread = threading.Thread(target=add)
        thread.start()
        while not done.is_set():
            index.save()
            loaded = CBEIndex.load(path)
            assert len(loaded) % 5 == 0
            assert loaded.is_fitted == (len(loaded) >= 20)
            np.testing.assert_array_equal(loaded.get(loaded.ids), rows[: len(loaded)])
        thread.join()
        assert not errors


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="nobody tells what is in memory here")
@needs_fork
@may_fork
class TestMemory:
    N, DIM = (90_000, 256) if COMPILED else (20_000, 1024)

    def test_a_mapped_index_takes_what_is_touched(self, path, tmp_path):
        """A search that reads the codes and few vectors, of a file that is nearly all vectors."""
        index = CBEIndex(self.DIM, 64, vectors="float32", buckets=None)
        rng = np.random.default_rng(0)
        index.fit(rng.standard_normal((100, self.DIM), dtype=np.float32))
        index.add(rng.standard_normal((self.N, self.DIM), dtype=np.float32))
        index.save(path)
        n_bytes = path.stat().st_size
        assert n_bytes > 80_000_000
        query = index.get([5])
        del index

        def measure():
            loaded = CBEIndex.load(path)
            opened = resident(path)
            loaded.get([5, self.N - 1])
            found = resident(path)
            if COMPILED:
                result = loaded.search(query, 5, n_candidates=20, n_threads=1)
                assert result.ids[0, 0] == 5
            searched = resident(path)
            Path(tmp_path, "told").write_text(f"{opened} {found} {searched}")

        assert in_child(measure) == 0
        opened, found, searched = map(int, Path(tmp_path, "told").read_text().split())
        # A page that is touched brings neighbours with it, 64 KiB and more. Opening looks at an encoder and few places;
        # finding two ids takes a bisection, and reads two vectors; a search reads 28 bytes of each row (its code, three
        # numbers and at most its id), and of 20 candidates the vectors.
        around = 2**19
        assert opened < 2 * around
        assert found < 6 * around
        assert searched < 28 * self.N + 24 * around < n_bytes / 4

    def test_reading_takes_the_file_once(self, path):
        """Without a map there is one copy of the arrays, and no more."""
        index = BinaryIndex(1024)
        index.add(some_codes(np.random.default_rng(0), 100_000, 64).repeat(16, axis=1))
        index.save(path)
        del index
        resource = pytest.importorskip("resource")
        n_bytes = path.stat().st_size

        def measure():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            loaded = BinaryIndex.load(path, mmap=False)
            grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
            assert len(loaded) == 100_000
            # Half as much again is for what else a process does meanwhile.
            assert grown < 1.5 * n_bytes, (grown, n_bytes)

        assert in_child(measure) == 0


def resident(path):
    """Bytes of a mapped file that are in the memory of this process."""
    total, is_file = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            is_file = line.endswith(str(path.resolve()))
        elif is_file and first == "Rss:":
            total += 1024 * int(line.split()[1])
    return total
