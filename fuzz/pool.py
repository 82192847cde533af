"""Worker processes that are limited in memory and time, do many cases each, and may die of any of them."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from mmap import mmap
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

# Of the processor for one case: far more than any takes.
CPU_SECONDS = 20
# A case that has less of the processor in so many seconds waits for something: on a busy machine, too, it gets more.
WALL_SECONDS = 60
_LEAST_CPU_SECONDS = 0.5
# A worker is replaced after this many cases, so that memory leaked by cases does not accumulate.
_CASES_PER_WORKER = 300
MARK_BYTES = 500


@dataclass
class Outcome:
    """What came of a case: findings, and counts of what was done."""

    findings: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, name: str) -> None:
        """Count one more of something."""
        self.counts[name] = self.counts.get(name, 0) + 1


class Limits:
    """What a case may take, and where it stands; given to the task."""

    def __init__(self, marked: mmap) -> None:
        self._marked = marked

    def mark(self, text: str) -> None:
        """Note what is done next: told if the process dies of it."""
        self._marked[:] = text.encode(errors="replace")[:MARK_BYTES].ljust(MARK_BYTES, b"\0")

    def memory(self, n_bytes: int | None) -> None:
        """Let the process take `n_bytes` more than it has, or any number again."""
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        if n_bytes is None:
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
            return
        status = Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]
        resource.setrlimit(resource.RLIMIT_DATA, (1024 * int(status) + n_bytes, hard))


Task = Callable[[int, Path, Limits, Outcome], None]
"""Runs a case in a folder of its worker."""


class _Worker:
    """A forked process, and this end of the pipe to it."""

    def __init__(self, task: Task, folder: Path, number: int, cpu_seconds: float) -> None:
        self.folder = folder / f"worker-{number}"
        self.folder.mkdir(exist_ok=True)
        self.log = self.folder / "log"
        self.marked = mmap(-1, MARK_BYTES)
        self.pipe, theirs = Pipe()
        self.case: int | None = None
        self._since = self._had = 0.0
        self.n_done = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of the parent do not matter to the child
            self.process = os.fork()
        if self.process == 0:
            try:
                self.pipe.close()
                _work(task, theirs, self.folder, self.log, self.marked, cpu_seconds)
            finally:
                os._exit(0)
        theirs.close()

    def start(self, case: int) -> None:
        self.case, self._since, self._had = case, time.monotonic(), self._cpu_seconds()
        self.marked[:] = bytes(MARK_BYTES)
        self.pipe.send(case)

    def is_waiting(self) -> bool:
        """Return whether the case has hardly got any time of the processor for long."""
        now = time.monotonic()
        if now - self._since <= WALL_SECONDS:
            return False
        had, self._since, self._had = self._had, now, self._cpu_seconds()
        return self._had - had < _LEAST_CPU_SECONDS

    def _cpu_seconds(self) -> float:
        """Return the time of the processor that the process has had."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def result(self) -> Outcome:
        """Return what came of the case; a worker that died is reaped."""
        try:
            outcome: Outcome = self.pipe.recv()
            self.n_done += 1
            return outcome
        except (EOFError, ConnectionError):
            return Outcome([f"{self._reaped()} at: {self._mark()}{self._stack()}"], {"deaths": 1})

    def end(self) -> None:
        """Let the worker go."""
        self.pipe.close()
        if self.process:
            os.kill(self.process, signal.SIGKILL)
            self._reaped()

    def kill(self) -> Outcome:
        """End a worker that does not come back."""
        os.kill(self.process, signal.SIGPROF)  # tells where it is, and dies
        self._reaped()
        return Outcome([f"no answer for {WALL_SECONDS} s at: {self._mark()}{self._stack()}"], {"deaths": 1})

    def _reaped(self) -> str:
        status = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        self.process = 0
        if status == -signal.SIGPROF:
            return "hang: over its time of the processor"
        return f"death by {signal.Signals(-status).name}" if status < 0 else f"exit with status {status}"

    def _mark(self) -> str:
        return self.marked[:].rstrip(b"\0").decode(errors="replace")

    def _stack(self) -> str:
        """Return the lines of cbeindex in what the dying process told of its current thread, innermost first."""
        told = self.log.read_text(errors="replace").rsplit("Current thread", 1)[-1].split("\n\n")[0]
        lines = [line.strip() for line in told.splitlines() if "cbeindex/" in line]
        return "".join(f"\n        {line.split('cbeindex/', 1)[1]}" for line in lines[:5])


def run(
    task: Task, cases: Iterator[int], seconds: float, n_workers: int, cpu_seconds: float = CPU_SECONDS
) -> Iterator[tuple[int, Outcome, Path]]:
    """Run cases until the time is over or there are none left; yield each with its outcome and the worker's folder."""
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="fuzz-") as root:
        workers = [_Worker(task, Path(root), number, cpu_seconds) for number in range(n_workers)]
        try:
            idle = set(range(n_workers))
            while True:
                for number in sorted(idle):
                    case = next(cases, None) if time.monotonic() < deadline else None
                    if case is None:
                        break
                    idle.discard(number)
                    workers[number].start(case)
                busy = {workers[number].pipe: number for number in range(n_workers) if number not in idle}
                if not busy:
                    return
                ready: list[Any] = wait(list(busy), timeout=1.0)
                late = [pipe for pipe, n in busy.items() if pipe not in ready and workers[n].is_waiting()]
                for pipe in {*ready, *late}:
                    number = busy[pipe]
                    worker = workers[number]
                    outcome = worker.result() if pipe in ready else worker.kill()
                    assert worker.case is not None
                    yield worker.case, outcome, worker.folder
                    idle.add(number)
                    if not worker.process or worker.n_done >= _CASES_PER_WORKER:
                        worker.end()
                        workers[number] = _Worker(task, Path(root), number, cpu_seconds)
        finally:
            for worker in workers:
                worker.end()


def _work(task: Task, pipe: Connection, folder: Path, log: Path, marked: mmap, cpu_seconds: float) -> None:
    """Do cases as they come; what a task raises is a finding."""
    limits = Limits(marked)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with log.open("w") as file:
        faulthandler.enable(file)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        faulthandler.register(signal.SIGPROF, file, chain=True)  # tells where it hangs, and dies then
        while True:
            try:
                case = pipe.recv()
            except (EOFError, ConnectionError):
                return
            outcome = Outcome()
            signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
            try:
                task(case, folder, limits, outcome)
            except BaseException:  # an interrupt that leaked out of a call is a finding too
                limits.memory(None)
                outcome.findings.append(f"the harness failed: {traceback.format_exc()}")
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                limits.memory(None)
            pipe.send(outcome)
