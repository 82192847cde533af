"""The cache of compiled kernels, and what it uses of numba's internals."""

import inspect
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher

import cbeindex
from benchmarks import isa
from cbeindex.kernels import caching, jit, linking
from cbeindex.kernels.locking import LockFile
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


def run(package, code=RUN, *arguments, **environment):
    """Run code with that package in a process of its own, and return what it prints."""
    variables = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | environment
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=package.parent, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@compiled
def test_an_edit_of_a_helper_in_another_file_invalidates_the_cache(package):
    assert run(package) == "42 0"
    assert run(package) == "42 1"
    write_helper(package, 3)
    assert run(package) == "43 0"
    kept = list((package / "kernels" / "__pycache__").glob("kernel_of_test.*"))
    kept = [path.name for path in kept if path.suffix != ".pyc"]
    assert len(kept) == 1, "that of the first version has been removed, and so have locks"


@compiled
def test_the_cache_is_where_the_environment_says(package, tmp_path):
    assert run(package, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == "42 0"
    assert run(package, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == "42 1"
    assert run(package, NUMBA_CACHE_DIR=str(tmp_path / "cache"), NUMBA_BOUNDSCHECK="1") == "42 0"
    assert not list((package / "kernels").glob("__pycache__/*.nbc"))
    assert list((tmp_path / "cache").glob("kernels_*/kernel_of_test.add.*.nbc"))


@compiled
def test_code_is_loaded_together_with_the_shared_code_that_it_calls(package, tmp_path):
    shared = HELPER.replace("nogil=True", "nogil=True, shared=True")
    (package / "kernels" / "helper_of_test.py").write_text(shared.format(addend=2))
    variables = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert run(package, **variables) == "42 0"
    (helper,) = (tmp_path / "cache").glob("kernels_*/helper_of_test.addend.*.nbc")
    assert run(package, **variables) == "42 1"
    helper.unlink()
    assert run(package, **variables) == "42 1"
    assert helper.exists(), "it was compiled again"


@compiled
def test_kernels_compile_where_no_folder_can_be_written(monkeypatch):
    monkeypatch.setattr(caching, "writable_folder", lambda: None)
    monkeypatch.setattr(jit, "writable_folder", lambda: None)
    monkeypatch.setattr(jit, "_warned", False)
    kernels = [jit.njit(cache=True, nogil=True)(double), jit.njit(cache=True, nogil=True)(triple)]
    with pytest.warns(RuntimeWarning, match=r"takes 3 to 10 s. To avoid it, set NUMBA_CACHE_DIR") as warned:
        assert [kernel(21) for kernel in kernels] == [42, 63]
    assert [warning.filename for warning in warned] == [__file__]


NO_HOME = """
import os, sys, warnings

def no_user(number):
    raise KeyError(number)

try:
    import pwd
    pwd.getpwuid = no_user
except ImportError:
    pass
warnings.simplefilter("ignore")
from cbeindex.kernels.caching import writable_folder
from cbeindex.kernels.kernel_of_test import add

print(add(40), writable_folder(), sorted(os.listdir()))
"""


@compiled
@pytest.mark.skipif(sys.platform == "win32", reason="the home of a user has other variables")
def test_without_a_home_no_folder_appears_where_the_process_works(package, tmp_path, monkeypatch):
    """A folder named "~" would, if it were taken for a path."""
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    cache = package / "kernels" / "__pycache__"
    shutil.rmtree(cache, ignore_errors=True)
    cache.write_text("no folder can be made here")
    assert run(package, NO_HOME) == "42 None ['cbeindex']"


AGAIN = """
import sys
from pathlib import Path
from cbeindex.kernels import jit
from cbeindex.kernels.kernel_of_test import add

def again():
    '''Call the kernel as a new process would: compiled if it cannot be loaded.'''
    kernel = jit.njit(cache=True, nogil=True)(add.py_func)
    return kernel(40), sum(kernel.stats.cache_hits.values())

found = [again()]
(path,) = Path(sys.argv[1]).glob("kernels_*/*.nbc")
content = path.read_bytes()
for damaged in (content[:-1], b"", content[:40] + bytes([content[40] ^ 1]) + content[41:]):
    path.write_bytes(damaged)
    found += [again(), again()]
print(found)
"""


@compiled
def test_damaged_files_are_compiled_again(package, tmp_path):
    cache = str(tmp_path / "cache")
    assert run(package, AGAIN, cache, NUMBA_CACHE_DIR=cache) == str([(42, 0), *[(42, 0), (42, 1)] * 3])


TOGETHER = """
import sys, time
from pathlib import Path
from cbeindex.kernels.kernel_of_test import add
from cbeindex.kernels.jit import njit

print("ready", flush=True)
sys.stdin.readline()
print(add(40), sum(add.stats.cache_misses.values()))
"""


@compiled
@pytest.mark.skipif(sys.platform == "win32", reason="processes compile for themselves there")
def test_of_processes_that_start_together_one_compiles(package, tmp_path):
    variables = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER], cwd=package.parent, env=variables, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(4)
    ]  # fmt: skip
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    answers = sorted(process.communicate()[0].split() for process in started)
    assert answers == [["42", "0"]] * 3 + [["42", "1"]]
    assert [path.suffix for path in (tmp_path / "cache").glob("kernels_*/*")] == [".nbc"]


LOCKED = """
import sys
from pathlib import Path
from cbeindex.kernels.locking import LockFile

lock = LockFile(Path(sys.argv[1]))
print(lock.acquire() and not LockFile(Path(sys.argv[1])).acquire(), flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no lock files there")
def test_a_process_that_ends_leaves_no_lock(tmp_path):
    path = tmp_path / "lock"
    process = subprocess.Popen(
        [sys.executable, "-c", LOCKED, str(path)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == "True\n"
    lock = LockFile(path)
    assert not lock.acquire()
    process.kill()
    process.communicate()
    assert lock.acquire()
    other = LockFile(path)
    assert not other.acquire()
    lock.release()
    assert other.acquire()
    other.release()
    assert not path.exists()
    assert LockFile(tmp_path / "no folder" / "lock").acquire(), "without locks, everybody compiles"


AHEAD = """
from cbeindex.kernels import caching
from cbeindex.kernels.kernel_of_test import add

add(40)
caching.describe_target(caching.writable_folder())
"""


@compiled
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="features are those of x86-64")
def test_code_that_was_made_ahead_of_time_serves_processors_with_more_features(package, tmp_path):
    features = isa.LEVELS["avx2"]["NUMBA_CPU_FEATURES"]
    level = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": features}
    run(package, AHEAD, NUMBA_CACHE_DIR=str(tmp_path / "made"), **level)
    (made,) = (tmp_path / "made").glob("kernels_*")
    made.rename(package / "kernels" / "compiled")
    empty = {"NUMBA_CACHE_DIR": str(tmp_path / "empty")}
    assert run(package, **empty, **level) == "42 1"
    more = {"NUMBA_CPU_NAME": "znver2", "NUMBA_CPU_FEATURES": f"{features},+adx,+aes"}
    assert run(package, **empty, **more) == "42 1"
    deciding = {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": isa.LEVELS["portable"]["NUMBA_CPU_FEATURES"]}
    assert run(package, **empty, **deciding) == "42 0", "it lacks what the code needs"
    write_helper(package, 3)
    assert run(package, **empty, **level) == "43 0", "the sources are others"


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
def test_numba_has_the_internals_that_are_extended():
    """Numba may change these in any release. A failure here means that `kernels/jit.py` has to follow numba.

    The package sets no upper bound on numba: a bound cannot be lifted after a release, and numba bounds Python and
    numpy itself. The intrinsics (popcount, prefetch, lanes) are compared with numpy by tests of their own.
    """
    kernel = jit.njit(cache=True, nogil=True)(double)
    assert isinstance(kernel._cache, caching.KernelCache)
    assert linking.is_supported()
    for owner, name, parameters in (
        (Dispatcher, "_compile_for_args", ["self", "args", "kws"]),
        (NullCache, "load_overload", ["self", "sig", "target_context"]),
        (NullCache, "save_overload", ["self", "sig", "cres"]),
        (CompileResult, "_reduce", ["self"]),
    ):
        assert list(inspect.signature(getattr(owner, name)).parameters) == parameters, f"numba changed {name}"
