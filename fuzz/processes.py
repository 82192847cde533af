"""Processes around one file: writers that are killed or interrupted, writers that meet, full disks, and readers.

What a commit holds follows from its number, which the row of id 0 tells: so any process can say whether what it reads
is one commit and nothing else. When signals come is up to the clock; all else follows from the seed.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

import cbeindex
from cbeindex import BinaryIndex, CBEIndex, CorruptIndexFileError, IndexFileError, WriterConflictError
from tests.small import VERY_SMALL, small_buckets

from .report import Report, random_of

_DIM, _N_BITS, _MOST_ROWS = 8, 128, 60
_N_KILLS, _N_INTERRUPTS, _N_READERS = 20, 40, 2
# The longest that a process may take to do one thing.
_PATIENCE = 60.0
_RECORD = struct.Struct("<cq")

Rows = dict[int, int]
"""The generation of each row by id; id 0 has the number of the commit."""


class Api(NamedTuple):
    """What is attacked: tests put something broken in its place."""

    save: Callable[[Any, Path], None] = lambda index, path: index.save()


def run(
    seed: int,
    seconds: float,
    cases: range | None = None,
    *,
    keep: Path | None = None,
    api: Api | None = None,
    out: TextIO | None = None,
) -> Report:
    """Attack until the time is over, or with some cases."""
    report = Report("processes", seed, keep, out)
    deadline = time.monotonic() + seconds
    with small_buckets(VERY_SMALL), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks: threads do not matter to these children
        _warm_up()
        for case in itertools.count() if cases is None else cases:
            if time.monotonic() > deadline and cases is None:
                break
            with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
                episode = _Episode(Path(folder), random_of(seed, "processes", case), report, api or Api())
                episode.run(case)
                report.n_cases += 1
                report.add(case, episode.findings, episode.path)
    return report


def _warm_up() -> None:
    """Load the kernels before processes are forked, so that the time of an episode is spent on files."""
    for kind in ("BinaryIndex", "CBEIndex"):
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            model, path = Model(kind, 0), Path(folder, "items.cbe")
            index = model.new_index()
            index.save(path)
            for version in range(1, 12):
                for name, changed in model.changes(version):
                    model.do(index, name, changed)
                index.save() if version % 4 else index.compact()
            for loaded in (index, model.load(path), model.load(path, mmap=False)):
                assert model.problem(loaded, model.state(11)) is None


class Model:
    """What each commit of a file holds."""

    def __init__(self, kind: str, seed: int) -> None:
        self.is_binary = kind == "BinaryIndex"
        self._seed = seed
        self._states: list[Rows] = [{0: 0}]

    def state(self, version: int) -> Rows:
        """Return the rows of a commit."""
        while len(self._states) <= version:
            rows = dict(self._states[-1])
            for name, changed in self.changes(len(self._states)):
                rows = self.after(rows, name, changed)
            self._states.append(rows)
        return self._states[version]

    def changes(self, version: int) -> list[tuple[str, Rows]]:
        """Return what leads from the commit before to this one: names of operations and rows."""
        rng, before = random.Random(f"{self._seed}/{version}"), self.state(version - 1)
        others = sorted(before.keys() - {0})
        replaced = {0: version} | dict.fromkeys(rng.sample(others, len(others) // 8), version)
        new = dict.fromkeys(range(20 * version, 20 * version + rng.randrange(1, 12)), version)
        n_removed = max(len(others) // 10, len(others) + len(new) - _MOST_ROWS)
        removed = dict.fromkeys(rng.sample(others, min(n_removed, len(others))), version)
        return [("replace", replaced), ("add", new), ("remove", removed)]

    @staticmethod
    def after(rows: Rows, name: str, changed: Rows) -> Rows:
        """Return rows after an operation."""
        return {id_: g for id_, g in rows.items() if id_ not in changed} if name == "remove" else rows | changed

    def do(self, index: Any, name: str, changed: Rows) -> None:
        """Do an operation on an index."""
        if name == "remove":
            index.remove(list(changed))
        else:
            index.add(self.values(changed), list(changed), replace=name == "replace")

    def new_index(self) -> Any:
        """Return an index that holds commit 0."""
        if self.is_binary:
            index: Any = BinaryIndex(_N_BITS, "clusters")
        else:
            index = CBEIndex(_DIM, _N_BITS, metric="l2", vectors="float32", buckets="substrings")
        index.add(self.values({0: 0}), [0])
        return index

    def load(self, path: Path, mmap: bool = True) -> Any:
        """Open the index in a file."""
        return (BinaryIndex if self.is_binary else CBEIndex).load(path, mmap=mmap)

    def values(self, rows: Rows) -> np.ndarray:
        """Return the codes or vectors of rows: id 0 holds its generation, others a hash of id and generation."""
        data = [
            struct.pack("<qq", generation, 0)
            if id_ == 0
            else hashlib.sha256(b"%d/%d" % (id_, generation)).digest()[:16]
            for id_, generation in rows.items()
        ]
        codes = np.frombuffer(b"".join(data), np.uint8).reshape(len(rows), 16)
        return codes if self.is_binary else codes[:, :_DIM].astype(np.float32)

    def version_of(self, index: Any) -> int:
        """Return the number of the commit that an index holds."""
        return int.from_bytes(index.get([0])[0].astype(np.uint8).tobytes()[:8], "little")

    def problem(self, index: Any, rows: Rows) -> str | None:
        """Tell what is wrong with an index that should hold these rows."""
        ids = sorted(rows)
        if index.ids.tolist() != ids or len(index) != len(ids):
            return f"ids {index.ids.tolist()[:5]}... of {len(index)} rows instead of {ids[:5]}... of {len(ids)}"
        expected = self.values({id_: rows[id_] for id_ in ids})
        if not np.array_equal(index.get(ids), expected):
            return "rows of another commit"
        picked = ids[1 :: max(1, len(ids) // 3)]
        if picked:
            found = index.search(expected[[ids.index(id_) for id_ in picked]], 1, mode="scan", n_threads=1)
            if found.distances.any():
                return f"a search finds {found.ids.ravel().tolist()} for {picked} at {found.distances.ravel().tolist()}"
        return None


class _Child:
    """A forked process; what it raises is told when it is reaped."""

    def __init__(self, folder: Path, work: Callable[..., None], *arguments: Any) -> None:
        self._errors = folder / f"errors-{time.monotonic_ns()}"
        self.mine, theirs = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            status = 1
            try:
                os.close(self.mine)
                _stop_tracing()
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                work(functools.partial(_send, theirs), *arguments)
                status = 0
            except BaseException as error:
                self._errors.write_text(f"{type(error).__name__}: {error}")
                text = "".join(traceback.format_exception(error)[-3:])
                self._errors.write_text(f"{type(error).__name__}: {error}\n{text}")
            finally:
                os._exit(status)
        os.close(theirs)
        self._sent = b""

    def signal(self, number: int) -> None:
        os.kill(self.process, number)

    def wait_for(self, n_records: int, seconds: float) -> None:
        """Wait until the process has sent `n_records` records, or is gone."""
        deadline = time.monotonic() + seconds
        while len(self._sent) < n_records * _RECORD.size and time.monotonic() < deadline:
            data = os.read(self.mine, 2**12)
            if not data:
                return
            self._sent += data

    def reap(self, allowed: tuple[int, ...] = (0,)) -> tuple[list[tuple[str, int]], str | None]:
        """Wait for the end; return what was sent, and what is wrong about how it ended."""
        deadline = time.monotonic() + _PATIENCE
        while os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > deadline:
                os.kill(self.process, signal.SIGKILL)
                allowed = ()
            time.sleep(0.001)
        status = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        while data := os.read(self.mine, 2**16):
            self._sent += data
        os.close(self.mine)
        whole = len(self._sent) // _RECORD.size * _RECORD.size
        records = [(name.decode(), value) for name, value in _RECORD.iter_unpack(self._sent[:whole])]
        if status in allowed:
            return records, None
        ended = f"died by {signal.Signals(-status).name}" if status < 0 else "failed"
        return records, f"{ended}: {self._errors.read_text() if self._errors.exists() else 'no message'}"


def _stop_tracing() -> None:
    """Leave coverage: its tracer has a lock in Python code, which an interrupt can leave held for good."""
    sys.settrace(None)
    threading.settrace(None)


def _send(pipe: int, name: str, value: int) -> None:
    os.write(pipe, _RECORD.pack(name.encode(), value))


class _Episode:
    """One file, and the processes around it."""

    def __init__(self, folder: Path, rng: random.Random, report: Report, api: Api) -> None:
        self._folder, self._rng, self._report, self._api = folder, rng, report, api
        self.path = folder / "items.cbe"
        self._model = Model(rng.choice(("BinaryIndex", "CBEIndex")), rng.randrange(2**32))
        self._shared = np.frombuffer(mmap(-1, 64), np.int64)  # commits acknowledged, intended; whether readers stop
        self._shared[:] = (-1, -1, 0, *[0] * 5)
        self.findings: list[str] = []

    def run(self, case: int) -> None:
        """Run the episode whose turn it is."""
        episodes = (self._kills, self._interrupts, self._two_writers, self._full_disk)
        episode = episodes[case % len(episodes)]
        episode()

    def _find(self, text: str) -> None:
        self.findings.append(f"{text}\n        {'BinaryIndex' if self._model.is_binary else 'CBEIndex'}")

    def _check_file(self, path: Path, versions: set[int], what: str) -> int | None:
        """Check that a file holds one of some commits, and return which."""
        try:
            index = self._model.load(path, mmap=self._rng.random() < 0.5)
            version = self._model.version_of(index)
            problem = self._model.problem(index, self._model.state(version))
        except Exception as error:
            self._find(f"{what}: {type(error).__name__}: {error}")
            return None
        if version not in versions:
            problem = f"the file holds commit {version}, not one of {sorted(versions)}"
        if problem:
            self._find(f"{what}: {problem}")
        try:
            cbeindex.verify(path)
        except CorruptIndexFileError as error:
            # Documented: `verify` tells of a slot that was half written, though the commit before it counts.
            if "commit slot" not in str(error):
                self._find(f"{what}: verify: {error}")
            self._report.counts["half slots"] += 1
        except Exception as error:
            self._find(f"{what}: verify: {type(error).__name__}: {error}")
        return version

    @contextmanager
    def _readers(self) -> Iterator[None]:
        """Let processes read all the time."""
        readers = [_Child(self._folder, self._read, number) for number in range(_N_READERS)]
        try:
            yield
        finally:
            self._shared[2] = 1
            for reader in readers:
                sent, problem = reader.reap()
                self._report.counts["reads"] += sum(value for name, value in sent if name == "r")
                if problem:
                    self._find(f"a reader {problem}")

    def _read(self, send: Callable[[str, int], None], number: int) -> None:
        """Load and check repeatedly, old commits too."""
        rng, opened, n_reads = random.Random(number), list[tuple[int, Any]](), 0
        while not self._shared[2]:
            acknowledged = int(self._shared[0])
            try:
                index = self._model.load(self.path)
            except FileNotFoundError:
                if acknowledged >= 0:
                    raise
                continue
            version = self._model.version_of(index)
            if not acknowledged <= version <= self._shared[1]:
                raise AssertionError(f"commit {version} after commit {acknowledged} was acknowledged")
            opened = [*opened[-5:], (version, index)]
            for version, index in (opened[-1], rng.choice(opened)):
                problem = self._model.problem(index, self._model.state(version))
                if problem:
                    raise AssertionError(f"commit {version}: {problem}")
                n_reads += 1
        for version, index in opened:
            assert self._model.problem(index, self._model.state(version)) is None
        send("r", n_reads)

    def _kills(self) -> None:
        """Kill writers at any moment; what was acknowledged is there, or what was about to be."""
        versions = {-1}
        with self._readers():
            for _ in range(_N_KILLS):
                writer = _Child(self._folder, self._write, self._rng.randrange(2**32))
                if self._rng.random() < 0.6:  # in a save
                    writer.wait_for(self._rng.randrange(1, 8), _PATIENCE)
                    time.sleep(self._rng.random() * 0.004)
                else:
                    time.sleep(self._rng.random() * 0.05)
                writer.signal(signal.SIGKILL)
                sent, problem = writer.reap((-signal.SIGKILL,))
                self._report.counts["kills"] += 1
                self._report.counts["commits"] += sum(name == "a" for name, _ in sent)
                if problem:
                    self._find(f"a writer {problem}")
                    return
                for name, version in sent:
                    versions = {version} if name == "a" else {*versions, version}
                if self.path.exists() or -1 not in versions:
                    held = self._check_file(self.path, versions, "after a kill")
                    if held is None:
                        return
                    versions = {held}

    def _write(self, send: Callable[[str, int], None], seed: int) -> None:
        """Commit without end, telling before and after each commit."""
        rng = random.Random(seed)
        index = self._model.load(self.path) if self.path.exists() else None
        version = -1 if index is None else self._model.version_of(index)
        while True:
            version += 1
            self._shared[1] = version
            send("i", version)
            if index is None:
                index = self._model.new_index()
                index.save(self.path)
            else:
                for name, changed in self._model.changes(version):
                    self._model.do(index, name, changed)
                self._commit(index, rng)
            self._shared[0] = version
            send("a", version)

    def _commit(self, index: Any, rng: random.Random) -> None:
        way = rng.random()
        if way < 0.7:
            self._api.save(index, self.path)
        elif way < 0.9:
            index.compact()
        else:
            index.save(self.path)

    def _interrupts(self) -> None:
        """Interrupt a writer that goes on with the same index."""
        with self._readers():
            writer = _Child(self._folder, self._write_on, self._rng.randrange(2**32))
            writer.wait_for(1, _PATIENCE)
            for _ in range(_N_INTERRUPTS):
                time.sleep(self._rng.random() * 0.02)
                with suppress(ProcessLookupError):
                    writer.signal(signal.SIGINT)
            self._shared[3] = 1
            sent, problem = writer.reap()
        if problem:
            self._find(f"a writer that was interrupted {problem}")
            return
        self._report.counts["interrupts"] += sum(name == "k" for name, _ in sent)
        self._check_file(self.path, {max(version for name, version in sent if name == "a")}, "after interrupts")

    def _write_on(self, send: Callable[[str, int], None], seed: int) -> None:
        """Commit until told to stop. An interrupted commit is checked, and repeated if it was not done."""
        rng, model, index = random.Random(seed), self._model, self._model.new_index()
        armed = False

        def interrupt(number: int, frame: Any) -> None:
            nonlocal armed
            if armed:
                armed = False
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt)

        def insist(call: Callable[[], None], before: Rows, after: Rows, what: str) -> None:
            """Call until it works, or until it has worked though it was interrupted."""
            nonlocal armed
            while True:
                try:
                    armed = True
                    call()
                    armed = False
                    is_interrupted = False
                except KeyboardInterrupt:
                    is_interrupted = True
                armed = False
                problem = model.problem(index, after)
                if problem and is_interrupted and before != after:
                    problem = model.problem(index, before)
                if problem:
                    raise AssertionError(f"after {what}{' that was interrupted' * is_interrupted}: {problem}")
                if is_interrupted:
                    send("k", 0)
                if not is_interrupted or (before != after and model.problem(index, after) is None):
                    return

        rows = model.state(0)
        self._shared[1] = 0
        insist(lambda: index.save(self.path), rows, rows, "the first save")
        self._shared[0] = 0
        send("a", 0)
        for version in itertools.count(1):
            for name, changed in model.changes(version):
                after = model.after(rows, name, changed)
                if changed:
                    insist(functools.partial(model.do, index, name, changed), rows, after, name)
                rows = after
            self._shared[1] = version
            insist(lambda: self._commit(index, rng), rows, rows, "a save")
            self._shared[0] = version
            send("a", version)
            if self._shared[3]:
                return

    def _two_writers(self) -> None:
        """Let writers meet: each is told of the other, and nothing is lost that was acknowledged."""
        self._model.new_index().save(self.path)
        seconds = self._rng.uniform(0.2, 0.8)
        numbers = (1, 2, 3)
        writers = [_Child(self._folder, self._add_own, number, time.monotonic() + seconds) for number in numbers]
        time.sleep(seconds * self._rng.random())
        writers[0].signal(signal.SIGKILL)
        allowed, required = {0: 0}, {0: 0}
        for number, writer in zip(numbers, writers, strict=True):
            sent, problem = writer.reap((0, -signal.SIGKILL) if number == 1 else (0,))
            if problem:
                self._find(f"a writer among others {problem}")
            allowed |= {id_: 1 for name, id_ in sent if name == "i"}
            required |= {id_: 1 for name, id_ in sent if name == "a"}
            self._report.counts["commits"] += sum(name == "a" for name, _ in sent)
            self._report.counts["conflicts"] += sum(name == "c" for name, _ in sent)
        try:
            index = self._model.load(self.path)
            ids = set(index.ids.tolist())
            problem = self._model.problem(index, {id_: allowed.get(id_, 0) for id_ in ids})
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        else:
            if required.keys() - ids or ids - allowed.keys():
                problem = f"lost {sorted(required.keys() - ids)}, never added {sorted(ids - allowed.keys())}"
        if problem:
            self._find(f"after writers that met: {problem}")

    def _add_own(self, send: Callable[[str, int], None], number: int, deadline: float) -> None:
        """Add one id after the other, as often as the others let it."""
        rng = random.Random(number)
        id_ = 10_000 * number
        while time.monotonic() < deadline:
            try:
                index = self._model.load(self.path)
                if id_ not in index:
                    index.add(self._model.values({id_: 1}), [id_])
                    send("i", id_)
                    self._commit_own(index, rng)
                send("a", id_)
                id_ += 1
            except WriterConflictError:
                send("c", id_)

    def _commit_own(self, index: Any, rng: random.Random) -> None:
        if rng.random() < 0.8:
            self._api.save(index, self.path)
        else:
            index.compact()

    def _full_disk(self) -> None:
        """Fill the disk: an error that names the file, the old commit whole, and work goes on when there is room."""
        disk = self._folder / "disk"
        disk.mkdir()
        size = self._rng.choice((200, 400, 800))
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "fuzz", str(disk)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            self._report.counts["full disks left out: cannot mount a tmpfs"] += 1
            return
        try:
            child = _Child(self._folder, self._fill, disk, size * 1024, self._rng.randrange(2**32))
            sent, problem = child.reap()
            self._report.counts["full disks"] += sum(name == "f" for name, _ in sent)
            if problem:
                self._find(f"a writer on a full disk {problem}")
        finally:
            subprocess.run(["umount", str(disk)], check=True, capture_output=True)

    def _fill(self, send: Callable[[str, int], None], disk: Path, size: int, seed: int) -> None:
        rng, model, index = random.Random(seed), self._model, self._model.new_index()
        path, ballast = disk / "items.cbe", disk / "ballast"
        index.save(path)
        saved = version = 0
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            version += 1
            for name, changed in model.changes(version):
                model.do(index, name, changed)
            with suppress(OSError):
                ballast.write_bytes(bytes(rng.randrange(size)))
            try:
                self._commit_to(index, path, rng)
                saved = version
            except OSError as error:
                send("f", version)
                if error.errno != errno.ENOSPC:
                    raise
                if path.name not in str(error):
                    raise AssertionError(f"the error does not name the file: {error}") from error
                self._check_on_disk(path, saved)
                problem = model.problem(index, model.state(version))
                if problem:
                    raise AssertionError(f"the index after a save that failed: {problem}") from error
                ballast.unlink(missing_ok=True)
                try:
                    index.compact()  # which takes the least room
                    saved = version
                except OSError:  # no room for two files: start again
                    path.unlink()
                    index.save(path)
                    saved = version
            self._check_on_disk(path, saved)

    def _commit_to(self, index: Any, path: Path, rng: random.Random) -> None:
        way = rng.random()
        if way < 0.7:
            index.save()
        elif way < 0.85:
            index.compact()
        else:
            index.save(path)

    def _check_on_disk(self, path: Path, version: int) -> None:
        index = self._model.load(path, mmap=False)
        problem = self._model.problem(index, self._model.state(version))
        if problem:
            raise AssertionError(f"the file on a full disk: {problem}")
        with suppress(IndexFileError):
            cbeindex.verify(path)
