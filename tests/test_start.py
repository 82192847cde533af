"""What the first calls of a process compile: counted, not timed."""

import pytest

from benchmarks import start
from tests.conftest import COMPILED

pytestmark = pytest.mark.skipif(not COMPILED, reason="nothing is compiled")


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """The quickstart in a process without any compiled kernel."""
    return start.run("benchmarks.uses:quickstart", str(tmp_path_factory.mktemp("cache")))["kernels"]


def test_the_quickstart_calls_few_kernels(cold):
    """Each kernel that Python calls takes a tenth of a second to five seconds. See `python -m benchmarks start`."""
    called = sorted(f"{one['kernel']} {one['signature']}" for one in cold if one["caller"] is None)
    assert 0 < len(called) <= 11, called


def test_what_several_kernels_call_is_compiled_once(cold):
    """They take most of the time: a second each, again in every kernel that they would be compiled into."""
    compiled = [one["kernel"] for one in cold]
    for kernel in ("transform.transform_rows", "cellsearch.search_one", "cellscan.scan_visits"):
        assert compiled.count(kernel) == 1


def test_the_quickstart_compiles_no_kernel_for_two_kinds_of_arrays(cold):
    signatures = {}
    for one in cold:
        signatures.setdefault((one["kernel"], one["caller"] is None), set()).add(one["signature"])
    assert len(cold) <= 88, sorted(one["kernel"] for one in cold)
    # Small ones that others call, such as a product, may be compiled for arrays that are read-only, or are not, too.
    most = {True: 1, False: 3}
    assert {kernel: found for kernel, found in signatures.items() if len(found) > most[kernel[1]]} == {}
