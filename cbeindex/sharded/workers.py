"""The workers: Ray actors that hold shards, found by name, so that every client of a cluster shares them."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .manifest import Manifest
from .shard import Reply, Shard

NAMESPACE = "cbeindex"

# Threads of a worker for searches, for writes, and for everything else. Writes wait for each other; searches do not
# wait for writes.
_GROUPS = {"read": 8, "write": 2}
_N_OTHER_THREADS = 2


class Worker(Shard):
    """A shard that says where it runs, and tells the coordinator when it starts."""

    def __init__(self, folder: str, number: int, replica: int, key: str, layout: str, **options: Any) -> None:
        super().__init__(folder, number, replica, layout, **options)
        with suppress(ValueError):  # there is no coordinator
            coordinator = ray.get_actor(f"{key}/coordinator", NAMESPACE)
            coordinator.started.remote(f"{layout}/{number}/{replica}")

    def stats(self, least: int) -> Reply:
        """Describe the shard, its files, and its node."""
        described, sequence = super().stats(least)
        context = ray.get_runtime_context()
        return Reply(described | {"node": context.get_node_id()}, sequence)


def start_ray(address: str | None = None) -> bool:
    """Connect to Ray unless the process is connected; return whether this has started a cluster of its own.

    Without an address, the cluster that Ray finds by itself is used (RAY_ADDRESS, or one that `ray start` has started
    on this machine). If there is none, one is started for this process: on the loopback interface, without dashboard.
    """
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    wanted = address or os.environ.get("RAY_ADDRESS") or "auto"
    if wanted != "local":
        try:
            ray.init(wanted, **quiet)
            return False
        except ConnectionError:
            if wanted != "auto":
                raise
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init("local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
    return True


class Workers:
    """The workers of one layout, started where they are not running.

    Parameters
    ----------
    folder : str
    manifest : Manifest
    options : dict
        Options of Ray for the actors, such as `num_cpus` or `resources`.
    """

    def __init__(self, folder: str, manifest: Manifest, options: dict[str, Any]) -> None:
        self.folder, self.manifest, self._options = folder, manifest, options
        self._lock = threading.Lock()
        self._handles: dict[tuple[int, int], Any] = {}

    def start(self) -> None:
        """Start all workers, without waiting for them."""
        for number in range(self.manifest.n_shards):
            for replica in range(self.manifest.replicas):
                self.handle(number, replica)

    def handle(self, number: int, replica: int, dead: Any = None) -> Any:
        """Return a worker. A worker that is `dead` for good is started anew."""
        with self._lock:
            found = self._handles.get((number, replica))
            if found is None or found is dead:
                found = self._handles[number, replica] = self._started(number, replica)
            return found

    def _started(self, number: int, replica: int) -> Any:
        checkpoint = {name: self._options[name] for name in ("checkpoint_bytes",) if name in self._options}
        options = {name: value for name, value in self._options.items() if name not in checkpoint}
        actor = ray.remote(concurrency_groups=_GROUPS)(Worker).options(  # type: ignore[call-overload]
            **{
                "name": f"{self.manifest.key}/{self.manifest.layout}/{number}/{replica}",
                "namespace": NAMESPACE,
                "get_if_exists": True,
                "max_restarts": -1,
                "max_concurrency": _N_OTHER_THREADS,
                "scheduling_strategy": self._strategy(number, replica),
                **options,
            }
        )
        return actor.remote(
            str(Path(self.folder)), number, replica, self.manifest.key, self.manifest.layout, **checkpoint
        )

    def _strategy(self, number: int, replica: int) -> Any:
        """Prefer different nodes for the replicas of a shard; Ray takes another node if that one is gone."""
        nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])  # type: ignore[no-untyped-call]
        if self.manifest.replicas == 1 or len(nodes) < 2:
            return "SPREAD"
        return NodeAffinitySchedulingStrategy(nodes[(number + replica) % len(nodes)], soft=True)

    def stop(self) -> None:
        """End all workers. They hold nothing that is not in their files and logs."""
        with self._lock:
            handles, self._handles = list(self._handles.values()), {}
        for handle in handles:
            ray.kill(handle)
