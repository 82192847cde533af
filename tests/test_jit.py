"""The cache of compiled kernels, and what it uses of numba's internals."""

import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core import caching
from numba.core.dispatcher import Dispatcher

import cbeindex
from cbeindex._core.threads import run_aside
from cbeindex.kernels import jit
from tests.conftest import COMPILED

HELPER = """
from .jit import njit

@njit(cache=True, nogil=True)
def addend():
    return {addend}
"""

KERNEL = """
from .helper_of_test import addend
from .jit import njit

@njit(cache=True, nogil=True)
def add(x):
    return x + addend()
"""

RUN = """
from cbeindex.kernels.kernel_of_test import add

print(add(40), sum(add.stats.cache_hits.values()))
"""

compiled = pytest.mark.skipif(not COMPILED, reason="nothing is compiled")


@pytest.fixture
def package(tmp_path):
    """A copy of the package with a kernel that calls a helper in another file."""
    copy = tmp_path / "cbeindex"
    shutil.copytree(Path(cbeindex.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "kernels" / "kernel_of_test.py").write_text(KERNEL)
    write_helper(copy, 2)
    return copy


def write_helper(package, addend):
    (package / "kernels" / "helper_of_test.py").write_text(HELPER.format(addend=addend))


def run(package, code=RUN, **environment):
    """Run code with that package in a process of its own, and return what it prints."""
    variables = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | environment
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=package.parent, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@compiled
def test_an_edit_of_a_helper_in_another_file_invalidates_the_cache(package):
    assert run(package) == "42 0"
    assert run(package) == "42 1"
    write_helper(package, 3)
    assert run(package) == "43 0"
    kept = sorted(path.name for path in (package / "kernels" / "__pycache__").glob("kernel_of_test.*.nb?"))
    assert len(kept) == 2, "an index and one file of code: that of the first version has been overwritten"


@compiled
def test_the_cache_is_where_the_environment_says(package, tmp_path):
    assert run(package, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == "42 0"
    assert run(package, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == "42 1"
    assert run(package, NUMBA_CACHE_DIR=str(tmp_path / "cache"), NUMBA_BOUNDSCHECK="1") == "42 0"
    assert not list((package / "kernels").glob("__pycache__/*.nbc"))
    assert list((tmp_path / "cache").glob("kernels_*/kernel_of_test.add.*.nbc"))


@compiled
def test_kernels_compile_where_no_directory_can_be_written(monkeypatch):
    monkeypatch.setattr(caching._CacheLocator, "ensure_cache_path", refuse)
    monkeypatch.setattr(jit, "_warned", False)
    with pytest.warns(RuntimeWarning, match=r"set NUMBA_CACHE_DIR to a writable directory \(cannot cache") as warned:
        kernels = [jit.njit(cache=True, nogil=True)(double), jit.njit(cache=True, nogil=True)(triple)]
    assert [kernel(21) for kernel in kernels] == [42, 63]
    assert [warning.filename for warning in warned] == [__file__]


@compiled
def test_no_folder_is_made_where_there_is_no_home(package):
    """Numba takes "~" for a directory if nothing says where the home of the user is."""
    (package / "kernels" / "__pycache__").write_text("a file, so that no directory can be made here")
    import_only = "import warnings; warnings.simplefilter('ignore'); import cbeindex.kernels.kernel_of_test"
    before = sorted(path.name for path in package.parent.iterdir())
    run(package, import_only, HOME="~", XDG_CACHE_HOME="~/.cache")
    assert sorted(path.name for path in package.parent.iterdir()) == before


def refuse(self):
    raise PermissionError


def double(x):
    return 2 * x


def triple(x):
    return 3 * x


INTERRUPTED = """
import signal, threading, time
from cbeindex import kernels

is_ready = threading.Event()

def interrupt():
    for number in range(40):
        is_ready.wait()
        is_ready.clear()
        time.sleep(0.003 * (number % 20))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
n_interrupts = 0
while n_interrupts < 40:
    try:
        is_ready.set()
        kernels.kernel_of_test.add(40)
        time.sleep(10)
    except KeyboardInterrupt:
        n_interrupts += 1

found = []
thread = threading.Thread(target=lambda: found.append(kernels.kernel_of_test.add(40.5)), daemon=True)
thread.start()
thread.join(60)
print(found)
"""


@compiled
@pytest.mark.skipif(sys.platform == "win32", reason="no signal can be sent to a thread")
def test_interrupts_while_kernels_are_imported_and_compiled_leave_no_lock_behind(package):
    assert run(package, INTERRUPTED) == "[42.5]"


@compiled
def test_numba_has_the_internals_that_the_cache_extends():
    """Numba may change these in any release. A failure here means that `kernels/jit.py` has to follow numba.

    The package sets no upper bound on numba: a bound cannot be lifted after a release, and numba bounds Python and
    numpy itself. The intrinsics (popcount, prefetch, lanes) are compared with numpy by tests of their own.
    """
    kernel = jit.njit(cache=True, nogil=True)(double)
    assert any("UserWide" in kind.__name__ for kind in caching.CacheImpl._locator_classes)
    assert isinstance(kernel._cache, caching.FunctionCache)
    assert isinstance(kernel._cache._cache_file, caching.IndexDataCacheFile)
    assert kernel._cache._cache_file._source_stamp[1] == jit.sources_hash()
    assert kernel._compile_for_args.func is run_aside
    for owner, name, parameters in (
        (Dispatcher, "_compile_for_args", ["self", "args", "kws"]),
        (caching.Cache, "_index_key", ["self", "sig", "codegen"]),
        (caching.CacheImpl, "get_filename_base", ["self", "fullname", "abiflags"]),
    ):
        assert list(inspect.signature(getattr(owner, name)).parameters) == parameters, f"numba changed {name}"
