"""Calls to replicas that are silent, slow or alive: which of them is asked, and whose answer counts."""

import sys
from types import SimpleNamespace

import pytest

ray = pytest.importorskip("ray")

from cbeindex.sharded.calls import Call, Calls  # noqa: E402
from cbeindex.sharded.replicas import Pace, Suspects  # noqa: E402

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(sys.platform == "win32", reason="the cluster is that of tests that do not run on Windows"),
]


class TestPace:
    def test_without_earlier_calls_there_is_much_time(self):
        pace = Pace()
        for _ in range(3):
            pace.note("search", 0.001)
        assert (pace.quiet_seconds("search"), pace.slow_seconds("search")) == (0.1, 2.0)

    def test_times_follow_the_median_of_recent_calls(self):
        pace = Pace()
        for seconds in [0.005, 60.0, 0.005, 0.005]:
            pace.note("search", seconds)
        assert pace.quiet_seconds("search") == pytest.approx(0.02)
        for _ in range(16):
            pace.note("search", 1.0)
        assert (pace.quiet_seconds("search"), pace.slow_seconds("search")) == (0.1, 8.0)
        assert pace.slow_seconds("get") == 2.0

    def test_quick_calls_have_a_floor(self):
        pace = Pace()
        for _ in range(4):
            pace.note("search", 1e-5)
        assert (pace.quiet_seconds("search"), pace.slow_seconds("search")) == (0.01, 0.2)


class Workers:
    """Two replicas of one shard. Each answers calls, and signs of life, only if it is told to."""

    manifest = SimpleNamespace(n_shards=1, replicas=2)

    def __init__(self, ready, answers):
        @ray.remote(num_cpus=0, max_concurrency=4, concurrency_groups={"read": 4, "write": 1})
        class Replica:
            def __init__(self, number, ready, answers):
                from threading import Event

                self.number, self.ready_event, self.answer_event = number, Event(), Event()
                self.let(ready, answers)

            def let(self, ready, answers):
                for event, is_set in ((self.ready_event, ready), (self.answer_event, answers)):
                    event.set() if is_set else event.clear()

            def ready(self):
                self.ready_event.wait()

            def call(self):
                self.answer_event.wait()
                return self.number

        self.replicas = [Replica.remote(i, ready[i], answers[i]) for i in range(2)]  # type: ignore[attr-defined]

    def handle(self, number, replica, dead=None):
        return self.replicas[replica]

    def let(self, replica, *, ready, answers):
        ray.get(self.replicas[replica].let.remote(ready, answers))

    def end(self):
        for replica in self.replicas:
            ray.kill(replica)


@pytest.mark.parametrize("is_ready", [False, True], ids=["silent", "slow"])
def test_another_replica_answers_for_one_that_does_not(cluster, is_ready):
    workers = Workers(ready=[is_ready, True], answers=[False, True])
    calls = Calls(workers, lambda: None)
    try:
        for _ in range(4):  # replicas are asked in turn, and the first never answers
            assert calls.all(Call("call", kind="x"), timeout=60).answers == {0: 1}
    finally:
        workers.end()


def test_a_replica_is_asked_last_until_it_gives_a_sign_of_life(cluster):
    workers = Workers(ready=[False, True], answers=[True, True])
    suspects = Suspects(workers)
    try:
        assert suspects.order(0, 2, turn=0) == [0, 1]
        assert suspects.order(0, 2, turn=1) == [1, 0]
        suspects.add(0, 0)
        assert [suspects.order(0, 2, turn) for turn in (0, 1)] == [[1, 0], [1, 0]]
        assert suspects.order(0, 1, turn=0) == [0]
        workers.let(0, ready=True, answers=True)
        ray.wait([suspects._probes[0, 0]])
        assert suspects.order(0, 2, turn=0) == [0, 1]
    finally:
        workers.end()


def test_a_replica_that_has_died_is_no_suspect(cluster):
    """The call to it fails at once, and starts it anew."""
    workers = Workers(ready=[False, True], answers=[True, True])
    suspects = Suspects(workers)
    try:
        suspects.add(0, 0)
        ray.kill(workers.replicas[0])
        ray.wait([suspects._probes[0, 0]])
        assert suspects.order(0, 2, turn=0) == [0, 1]
    finally:
        workers.end()
