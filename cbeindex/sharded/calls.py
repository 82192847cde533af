"""Calls to all shards at once: retried when a worker dies, passed to another replica, and bounded in time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayTaskError

from ..errors import IndexFileError
from .errors import LostWritesError, ShardError, ShardTimeoutError, StaleLayoutError
from .replicas import PROBE_SECONDS, Pace, Suspects, is_answered
from .shard import Reply
from .workers import Workers

PATIENCE_SECONDS = 120.0
"""How long a worker may be out of reach before a call without a timeout gives up."""

# Pauses between attempts to reach a worker that is being started.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
# How long all answers of a call are waited for together.
_SOON_SECONDS = 0.05
# What `partial` may leave out: damaged files, a folder that cannot be read, workers that are slow or out of reach.
_TROUBLES = (IndexFileError, LostWritesError, OSError, RayActorError)


@dataclass(frozen=True)
class Call:
    """A method of a worker, with its arguments.

    Attributes
    ----------
    name : str
    args : tuple
    options : dict
    writes : bool
        Whether it changes the shard, which replica 0 alone may do.
    kind : hashable
        Calls of the same kind take about the same time.
    """

    name: str
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    writes: bool = False
    kind: Hashable = None


class Outcomes(NamedTuple):
    """Answers and failures by number of the shard."""

    answers: dict[int, Reply]
    failures: dict[int, BaseException]


class _Sent(NamedTuple):
    """Where a call was sent to, and when."""

    replica: int
    worker: Any
    at: float


@dataclass
class _Pending:
    """A call to one shard, and the workers that are working on it.

    Attributes
    ----------
    replicas : list of int
        In the order in which they are asked next.
    running : dict of ObjectRef to _Sent
        Calls that have been sent.
    deadline : float
        When the call is given up, unless there is no timeout and a worker is working on it.
    next_send : float
        When the call may be sent again.
    trouble : exception, or None
        Why a worker was lost last.
    probe : ObjectRef, or None
        A sign of life that the worker asked last was asked for.
    patient : bool
        Whether there is no timeout: then the deadline counts from the first trouble.
    """

    number: int
    call: Call
    replicas: list[int]
    deadline: float
    running: dict[Any, _Sent] = field(default_factory=dict)
    next_send: float = 0.0
    pause: float = _FIRST_PAUSE
    trouble: BaseException | None = None
    patient: bool = False
    probe: Any = None

    @property
    def can_send(self) -> bool:
        """Whether there is a replica that is not working on the call."""
        return len(self.running) < len(self.replicas)

    def forget(self) -> None:
        """Cancel what replicas have not begun yet."""
        for ref in self.running:
            ray.cancel(ref)
        self.running.clear()


class Calls:
    """Sends calls to shards, and collects the answers. Any number of threads may use it.

    Parameters
    ----------
    workers : Workers
    check_layout : callable
        Called when a worker has ended for good; raises StaleLayoutError if the manifest names other workers now.
    """

    def __init__(self, workers: Workers, check_layout: Callable[[], None]) -> None:
        self._workers, self._check_layout = workers, check_layout
        self._turn = itertools.count()
        self._suspects, self._pace = Suspects(workers), Pace()

    def all(self, call: Call, timeout: float | None = None, partial: bool = False) -> Outcomes:
        """Make the same call to all shards."""
        return self.each(dict.fromkeys(range(self._workers.manifest.n_shards), call), timeout, partial)

    def each(self, calls: Mapping[int, Call], timeout: float | None = None, partial: bool = False) -> Outcomes:
        """Make calls to shards. Raises what a shard raises.

        Shards that are damaged, out of reach or too slow are failures with `partial`, and otherwise a ShardError.
        """

        def is_final(failure: BaseException) -> bool:
            return not partial or not isinstance(failure, _TROUBLES)

        outcomes = self.outcomes(calls, timeout, is_final)
        for failure in outcomes.failures.values():
            if not isinstance(failure, _TROUBLES):
                raise failure
        if outcomes.failures and not partial:
            is_late = any(isinstance(failure, TimeoutError) for failure in outcomes.failures.values())
            raise (ShardTimeoutError if is_late else ShardError)(outcomes.failures, self._workers.manifest.n_shards)
        return outcomes

    def outcomes(
        self,
        calls: Mapping[int, Call],
        timeout: float | None = None,
        is_final: Callable[[BaseException], bool] = lambda failure: False,
    ) -> Outcomes:
        """Make calls to shards, and wait for all of them, or until a failure `is_final`."""
        turn, began = next(self._turn), time.monotonic()
        patience = PATIENCE_SECONDS if timeout is None else timeout
        waiting = {}
        for number, call in calls.items():
            replicas = self._suspects.order(number, 1 if call.writes else self._workers.manifest.replicas, turn)
            waiting[number] = _Pending(number, call, replicas, began + patience, patient=timeout is None)
        found = Outcomes({}, {})
        while waiting:
            for pending in waiting.values():
                if self._needs_worker(pending):
                    self._send(pending)
            self._collect(waiting, found)
            for number, pending in waiting.items():
                is_stuck = not pending.patient or not pending.running
                if number not in found.answers and is_stuck and time.monotonic() >= pending.deadline:
                    lost = f", last error: {pending.trouble}" if pending.trouble is not None else ""
                    found.failures.setdefault(number, TimeoutError(f"no answer in {patience:g} s{lost}"))
            is_over = any(is_final(failure) for failure in found.failures.values())
            for number in [n for n in waiting if is_over or n in found.answers or n in found.failures]:
                waiting.pop(number).forget()
        return Outcomes(dict(sorted(found.answers.items())), dict(sorted(found.failures.items())))

    def _send(self, pending: _Pending) -> None:
        """Send a call that no worker is working on, or one that a worker is slow to answer to another replica."""
        busy = {sent.replica for sent in pending.running.values()}
        replica = next(replica for replica in pending.replicas if replica not in busy)
        pending.replicas.remove(replica)
        pending.replicas.append(replica)
        worker = self._workers.handle(pending.number, replica)
        group = "write" if pending.call.writes else "read"
        method = getattr(worker, pending.call.name).options(concurrency_group=group, max_task_retries=0)
        ref, now = method.remote(*pending.call.args, **pending.call.options), time.monotonic()
        pending.running[ref] = _Sent(replica, worker, now)
        pending.probe, pending.next_send = None, now + self._pace.quiet_seconds(pending.call.kind)

    def _needs_worker(self, pending: _Pending) -> bool:
        """Whether no worker is working on a call, or the one that was asked last is silent or slow.

        Ray holds back calls to an actor that it is starting again, and so they do not fail.
        """
        now = time.monotonic()
        if now < pending.next_send or not pending.can_send:
            return False
        if not pending.running:
            return True
        asked = list(pending.running.values())[-1]
        late = asked.at + self._pace.slow_seconds(pending.call.kind)
        if now >= late:
            return True
        if pending.probe is None:
            pending.probe, pending.next_send = asked.worker.ready.remote(), now + PROBE_SECONDS
            return False
        with suppress(RayActorError):
            if is_answered(pending.probe):
                pending.next_send = late
                return False
        self._suspects.add(pending.number, asked.replica)
        return True

    def _collect(self, waiting: Mapping[int, _Pending], found: Outcomes) -> None:
        """Wait until an answer comes or something has to be done, and note the answers."""
        owners = {ref: pending for pending in waiting.values() for ref in pending.running}
        until = min(min(p.deadline, p.next_send) if p.can_send else p.deadline for p in waiting.values())
        pause = max(0.0, min(until - time.monotonic(), _LONGEST_PAUSE))
        if not owners:
            time.sleep(pause)
            return
        # Usually all answers come soon: one for each shard, whichever replica gives it. Otherwise a worker that has
        # died must be noticed before the others answer.
        soon, n_working = min(pause, _SOON_SECONDS), sum(bool(pending.running) for pending in waiting.values())
        ready, _ = ray.wait(list(owners), num_returns=n_working, timeout=soon)
        if not ready and pause > soon:
            ready, _ = ray.wait(list(owners), num_returns=1, timeout=pause - soon)
        for ref in ready:
            pending = owners[ref]
            sent = pending.running.pop(ref)
            try:
                found.answers[pending.number] = ray.get(ref)
                self._pace.note(pending.call.kind, time.monotonic() - sent.at)
            except RayTaskError as error:
                found.failures.setdefault(pending.number, _cause(error))
            except RayActorError as error:
                try:
                    self._lost(pending, sent, error)
                except StaleLayoutError as stale:
                    found.failures[pending.number] = stale
            if pending.number in found.answers:
                found.failures.pop(pending.number, None)

    def _lost(self, pending: _Pending, sent: _Sent, error: RayActorError) -> None:
        """Note that a worker has died: ask another one at once, or the same one after a pause."""
        now = time.monotonic()
        if pending.trouble is None and pending.patient:
            pending.deadline = now + PATIENCE_SECONDS
        pending.trouble = error
        if isinstance(error, ActorDiedError):
            self._check_layout()
            self._workers.handle(pending.number, sent.replica, dead=sent.worker)
        if len(pending.replicas) > 1:
            self._suspects.add(pending.number, sent.replica)
        if not pending.running:
            pending.next_send = now + (pending.pause if len(pending.replicas) == 1 else 0.0)
            pending.pause = min(2 * pending.pause, _LONGEST_PAUSE)


def _cause(error: RayTaskError) -> BaseException:
    """Return the exception that a worker has raised, without the one that Ray puts around it."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error
