"""Calls to all shards at once: retried when a worker dies, passed to another replica, and bounded in time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayTaskError

from ..errors import IndexFileError
from .errors import LostWritesError, ShardError, ShardTimeoutError, StaleLayoutError
from .shard import Reply
from .workers import Workers

PATIENCE_SECONDS = 120.0
"""How long a worker may be out of reach before a call without a timeout gives up."""
HEDGE_SECONDS = 2.0
"""With replicas: how long a worker may take before the same question also goes to the next replica."""

# Pauses between attempts to reach a worker that is being started.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
# How long all answers of a call are waited for together.
_SOON_SECONDS = 0.05
# A replica that was out of reach is asked last for as long.
_AVOIDED_SECONDS = 5.0
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
    """

    name: str
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    writes: bool = False


class Outcomes(NamedTuple):
    """Answers and failures by number of the shard."""

    answers: dict[int, Reply]
    failures: dict[int, BaseException]


@dataclass
class _Pending:
    """A call to one shard, and the workers that are working on it.

    Attributes
    ----------
    replicas : list of int
        In the order in which they are asked next.
    running : dict of ObjectRef to (int, handle)
        Calls that have been sent: the replica, and its worker.
    deadline : float
        When the call is given up, unless there is no timeout and a worker is working on it.
    next_send : float
        When the call may be sent again.
    trouble : exception, or None
        Why a worker was lost last.
    patient : bool
        Whether there is no timeout: then the deadline counts from the first trouble.
    """

    number: int
    call: Call
    replicas: list[int]
    deadline: float
    running: dict[Any, tuple[int, Any]] = field(default_factory=dict)
    next_send: float = 0.0
    pause: float = _FIRST_PAUSE
    trouble: BaseException | None = None
    patient: bool = False

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
        self._avoided: dict[tuple[int, int], float] = {}

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
        waiting = {
            n: _Pending(n, call, self._order(n, call, turn), began + patience, patient=timeout is None)
            for n, call in calls.items()
        }
        found = Outcomes({}, {})
        while waiting:
            for pending in waiting.values():
                if time.monotonic() >= pending.next_send and pending.can_send:
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

    def _order(self, number: int, call: Call, turn: int) -> list[int]:
        """Return the replicas to ask, one after the other: in turn, and those that were out of reach last."""
        n = 1 if call.writes else self._workers.manifest.replicas
        now = time.monotonic()
        return sorted(((turn + i) % n for i in range(n)), key=lambda r: self._avoided.get((number, r), 0.0) > now)

    def _send(self, pending: _Pending) -> None:
        """Send a call that no worker is working on, or one that a worker is slow to answer to another replica."""
        busy = {replica for replica, _ in pending.running.values()}
        replica = next(replica for replica in pending.replicas if replica not in busy)
        pending.replicas.remove(replica)
        pending.replicas.append(replica)
        worker = self._workers.handle(pending.number, replica)
        group = "write" if pending.call.writes else "read"
        method = getattr(worker, pending.call.name).options(concurrency_group=group, max_task_retries=0)
        pending.running[method.remote(*pending.call.args, **pending.call.options)] = (replica, worker)
        pending.next_send = time.monotonic() + HEDGE_SECONDS

    def _collect(self, waiting: Mapping[int, _Pending], found: Outcomes) -> None:
        """Wait until an answer comes or something has to be done, and note the answers."""
        owners = {ref: pending for pending in waiting.values() for ref in pending.running}
        until = min(min(p.deadline, p.next_send) if p.can_send else p.deadline for p in waiting.values())
        pause = max(0.0, min(until - time.monotonic(), _LONGEST_PAUSE))
        if not owners:
            time.sleep(pause)
            return
        # Usually all answers come soon. Otherwise a worker that has died must be noticed before the others answer.
        ready, _ = ray.wait(list(owners), num_returns=len(owners), timeout=min(pause, _SOON_SECONDS))
        if not ready:
            ready, _ = ray.wait(list(owners), num_returns=1, timeout=pause)
        for ref in ready:
            pending = owners[ref]
            replica, worker = pending.running.pop(ref)
            try:
                found.answers[pending.number] = ray.get(ref)
            except RayTaskError as error:
                found.failures.setdefault(pending.number, _cause(error))
            except RayActorError as error:
                try:
                    self._lost(pending, replica, worker, error)
                except StaleLayoutError as stale:
                    found.failures[pending.number] = stale
            if pending.number in found.answers:
                found.failures.pop(pending.number, None)

    def _lost(self, pending: _Pending, replica: int, worker: Any, error: RayActorError) -> None:
        """Note that a worker has died: ask another one at once, or the same one after a pause."""
        now = time.monotonic()
        if pending.trouble is None and pending.patient:
            pending.deadline = now + PATIENCE_SECONDS
        pending.trouble = error
        self._avoided[pending.number, replica] = now + _AVOIDED_SECONDS
        if isinstance(error, ActorDiedError):
            self._check_layout()
            self._workers.handle(pending.number, replica, dead=worker)
        if not pending.running:
            pending.next_send = now + (pending.pause if len(pending.replicas) == 1 else 0.0)
            pending.pause = min(2 * pending.pause, _LONGEST_PAUSE)


def _cause(error: RayTaskError) -> BaseException:
    """Return the exception that a worker has raised, without the one that Ray puts around it."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error
