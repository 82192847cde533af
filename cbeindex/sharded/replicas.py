"""What a client knows of the replicas of shards: which of them are silent, and how long calls take."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Hashable
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError

from .workers import Workers

PROBE_SECONDS = 0.02
"""How long a worker that is asked for a sign of life may take before the call also goes to the next replica."""

# Ray reports the death of a worker after 1.3 to 1.8 s, so silence has to do. A worker may be silent for four times the
# usual time of such a call before it is asked for a sign of life, within these bounds.
_QUIET_FACTOR, _LEAST_QUIET, _MOST_QUIET = 4, 0.01, 0.1
# A worker that is alive may take this many times the usual time, but at least 0.2 s, before the next replica is asked
# too: the first search of a kind loads kernels. Without earlier calls to compare with it may take 2 s.
_SLOW_FACTOR, _LEAST_SLOW, _UNKNOWN_SLOW = 8, 0.2, 2.0
# Calls of a kind that the usual time is taken from.
_N_RECENT, _FEWEST_RECENT = 16, 4


class Pace:
    """The usual time of calls, by kind: the median of recent ones. Any number of threads may use it."""

    def __init__(self) -> None:
        self._recent: dict[Hashable, deque[float]] = {}

    def note(self, kind: Hashable, seconds: float) -> None:
        """Note what a call has taken."""
        self._recent.setdefault(kind, deque(maxlen=_N_RECENT)).append(seconds)

    def quiet_seconds(self, kind: Hashable) -> float:
        """Return how long a worker may be silent before it is asked for a sign of life."""
        usual = self._usual(kind)
        return _MOST_QUIET if usual is None else min(max(_QUIET_FACTOR * usual, _LEAST_QUIET), _MOST_QUIET)

    def slow_seconds(self, kind: Hashable) -> float:
        """Return how long a worker that is alive may take before the next replica is asked too."""
        usual = self._usual(kind)
        return _UNKNOWN_SLOW if usual is None else max(_SLOW_FACTOR * usual, _LEAST_SLOW)

    def _usual(self, kind: Hashable) -> float | None:
        recent = tuple(self._recent.get(kind, ()))
        return statistics.median(recent) if len(recent) >= _FEWEST_RECENT else None


class Suspects:
    """Replicas that were silent or have died. They are asked last until they give a sign of life.

    Parameters
    ----------
    workers : Workers
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._probes: dict[tuple[int, int], Any] = {}

    def add(self, number: int, replica: int) -> None:
        """Suspect a replica, and ask it for a sign of life, which Ray delivers when it has started the worker again."""
        self._probes[number, replica] = self._workers.handle(number, replica).ready.remote()

    def order(self, number: int, n_replicas: int, turn: int) -> list[int]:
        """Return the replicas of a shard in the order in which they are asked: in turn, suspects last."""
        in_turn = [(turn + i) % n_replicas for i in range(n_replicas)]
        return sorted(in_turn, key=lambda replica: self._has(number, replica)) if self._probes else in_turn

    def _has(self, number: int, replica: int) -> bool:
        probe = self._probes.get((number, replica))
        if probe is None:
            return False
        try:
            if not is_answered(probe):
                return True
        except ActorDiedError:  # for good, so that the next call to it fails at once, and starts it anew
            pass
        except RayActorError:
            self.add(number, replica)
            return True
        self._probes.pop((number, replica), None)
        return False


def is_answered(probe: Any) -> bool:
    """Whether a worker has given the sign of life that it was asked for. Raises RayActorError if it has died."""
    ready, _ = ray.wait([probe], timeout=0)
    if ready:
        ray.get(probe)
    return bool(ready)
