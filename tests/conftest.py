"""Settings of all tests: hypothesis profiles, and what a run of the kernels checks."""

import asyncio
import functools
import inspect
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent.parent

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
"""Whether kernels are compiled, or run as plain Python."""
CHECKS_BOUNDS = os.environ.get("NUMBA_BOUNDSCHECK", "0") != "0" or not COMPILED
"""Whether a kernel that reads or writes outside of an array raises IndexError."""

# Tests that start Ray start a cluster of their own, whatever runs on this machine, on the loopback interface alone.
os.environ.update(RAY_ADDRESS="local", RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
# Each pass through a Parquet file would start 32 processes that read its footer.
os.environ["RAY_DATA_PARQUET_FOOTER_NUM_ACTORS"] = "1"

# Threads of BLAS and OpenMP keep cores busy while they wait for each other, and tests run on all cores already.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")

# A job in the background of a shell ignores SIGINT, which tests send to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Forked children of tests end without a report of coverage: tracing them would only take half of their time.
if hasattr(os, "fork"):
    for settrace in (sys.settrace, threading.settrace):
        os.register_at_fork(after_in_child=functools.partial(settrace, None))

# Test runs draw the same examples every time. Fuzzing draws new ones, which --hypothesis-seed repeats: no database
# of earlier failures may add to them.
settings.register_profile(
    "cbeindex", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "fuzz", settings.get_profile("cbeindex"), derandomize=False, database=None, max_examples=500, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "cbeindex"))


# Files and groups whose tests take long are started first, so that both processes of a run end at about the same time.
LONG = (
    "ray", "test_benchmarks", "test_fuzz", "test_recall", "test_readme", "test_examples", "test_start", "test_jit",
    "test_benchmarks_recall", "test_index_levels", "test_files_damage", "test_benchmarks_start", "test_sklearn",
    "test_benchmarks_paper", "test_benchmarks_buckets", "test_failed_calls", "test_cli",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Let one process run all tests of a file, which use the same kernels and fixtures; groups go across files."""
    groups = {}
    for item in items:
        group = item.get_closest_marker("xdist_group")
        if group is None:
            group = pytest.mark.xdist_group(item.path.stem)
            item.add_marker(group)
        groups[item] = group.args[0]
    items.sort(key=lambda item: LONG.index(groups[item]) if groups[item] in LONG else len(LONG))


@pytest.fixture(scope="session")
def cluster():
    """A Ray cluster of three nodes, which this process is connected to."""
    from tests.ray_cluster import cluster_of

    with cluster_of(3) as started:
        yield started


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run tests that are coroutines, as those of langchain-tests, each in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
