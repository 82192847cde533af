"""A small Ray cluster for tests: several nodes on the loopback interface, without dashboard."""

from contextlib import contextmanager

import ray
from ray.cluster_utils import Cluster

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False, "include_log_monitor": False}
# Processes are started when they are needed, and stay for later tasks: starts take most of the time of tests.
SETTINGS = {
    "enable_worker_prestart": False,
    "prestart_worker_first_driver": False,
    "idle_worker_killing_time_threshold_ms": 600_000,
}


@contextmanager
def cluster_of(n_nodes):
    """Yield a cluster that this process is connected to."""
    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"_system_config": SETTINGS})
    try:
        for _ in range(n_nodes - 1):
            cluster.add_node(**NODE)
        ray.init(cluster.address, log_to_driver=False, logging_level="error")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
