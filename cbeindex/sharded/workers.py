"""The workers: Ray actors that hold shards, found by name, so that every client of a cluster shares them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
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
        self._warming = threading.Thread(target=self._warm_up, daemon=True)
        self._warming.start()

    def _warm_up(self) -> None:
        """Open the files, and search once: loading kernels takes a second, which no caller should wait for."""
        with suppress(Exception):  # calls raise the same error
            index, _ = self._ready(0)
            index.search(np.zeros(index.dim, dtype=np.float32), 1, n_threads=1)

    def ready(self) -> Reply:
        """Answer once the files are open and kernels are loaded: the sign of life that clients ask for."""
        self._warming.join()
        return self.ping()

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
    with _on_loopback():
        ray.init("local", include_dashboard=False, **quiet)
    return True


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray listen on the loopback interface alone, as it does by default on macOS and Windows, not on Linux.

    Ray reads the setting from the environment when it is imported, in this process and in those that it starts.
    """
    from ray._private import ray_constants

    name, setting = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "ENABLE_RAY_CLUSTER"
    before, is_enabled = os.environ.get(name), getattr(ray_constants, setting, None)
    os.environ[name] = "0"
    setattr(ray_constants, setting, False)
    try:
        yield
    finally:
        setattr(ray_constants, setting, is_enabled)
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


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
        self._own: list[Any] = []

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
        name = f"{self.manifest.key}/{self.manifest.layout}/{number}/{replica}"
        with suppress(ValueError):
            return ray.get_actor(name, NAMESPACE)
        actor = ray.remote(concurrency_groups=_GROUPS)(Worker).options(  # type: ignore[call-overload]
            **{
                "name": name,
                "namespace": NAMESPACE,
                "get_if_exists": True,
                "max_restarts": -1,
                "max_concurrency": _N_OTHER_THREADS,
                "scheduling_strategy": self._strategy(number, replica),
                **options,
            }
        )
        started = actor.remote(
            str(Path(self.folder)), number, replica, self.manifest.key, self.manifest.layout, **checkpoint
        )
        self._own.append(started)
        return started

    def _strategy(self, number: int, replica: int) -> Any:
        """Prefer one node after the other, and so different nodes for the replicas of a shard.

        Ray takes another node if that one is gone. Workers that demand resources are spread by their demands.
        """
        nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])  # type: ignore[no-untyped-call]
        if len(nodes) < 2 or self._options.keys() & {"num_cpus", "num_gpus", "memory", "resources"}:
            return "SPREAD"
        return NodeAffinitySchedulingStrategy(nodes[(number + replica) % len(nodes)], soft=True)

    def stop(self) -> None:
        """End the workers that were started here. They hold nothing that is not in their files and logs."""
        with self._lock:
            own, self._own, self._handles = self._own, [], {}
        for worker in own:
            ray.kill(worker)
