"""The `njit` of all kernels: compiled out of reach of Ctrl-C, and cached until any kernel file changes."""

import functools
import hashlib
import os
import sys
import warnings
from collections.abc import Callable
from importlib import resources
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.misc.appdirs import user_cache_dir

from .._core.threads import run_aside

_warned = False

# A fork waits until no other thread compiles or loads a kernel: in the child, numba would never get its lock.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )


def njit(*, cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile like `numba.njit`; `cache` stores machine code where numba would, keyed by the sources of all kernels.

    If no cache directory is writable, a warning says so once and every process compiles the kernels again.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        kernel = numba.njit(**options)(function)
        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]
            return kernel
        # An interrupt inside numba can leave a lock held for good. Then every thread that needs a kernel waits forever.
        kernel._compile_for_args = functools.partial(run_aside, kernel._compile_for_args)
        if cache:
            try:
                kernel._cache = _KernelCache(function)
            except RuntimeError as error:  # numba found no directory for the cache
                _warn_once(error)
        return kernel

    return decorate


@functools.cache
def sources_hash() -> str:
    """Hash the names and contents of all kernel files."""
    digest = hashlib.sha256()
    for file in sorted(resources.files(__package__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".py"):
            content = file.read_bytes()
            digest.update(f"{file.name} {len(content)} ".encode())
            digest.update(content)
    return digest.hexdigest()


def _locators() -> list[Any]:
    """Return where numba looks for a directory, without that of the user if there is no home.

    numba would make a folder named "~" in the working directory then.
    """
    has_home = os.path.isabs(user_cache_dir("numba"))  # type: ignore[no-untyped-call,unused-ignore]
    return [kind for kind in CompileResultCacheImpl._locator_classes if has_home or "UserWide" not in kind.__name__]


class _Files(CompileResultCacheImpl):  # type: ignore[misc,unused-ignore]
    """Names the files of a cached kernel."""

    _locator_classes = _locators()

    def get_filename_base(self, fullname: str, abiflags: str) -> str:
        """Name files by module and function. With numba's line numbers, every edit would leave files behind."""
        return f"{fullname}.py{sys.version_info.major}{sys.version_info.minor}{abiflags}"


class _KernelCache(FunctionCache):  # type: ignore[misc,unused-ignore]
    """Machine code of one kernel on disk.

    numba discards cached code when the file of the kernel changes, but code of helpers from other files is compiled
    into it as well. So code is discarded when any kernel file changes.
    """

    _impl_class = _Files

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call,unused-ignore]
        self._cache_file._source_stamp = self._cache_file._source_stamp, sources_hash()

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        """Cache code with bounds checks and code without them separately."""
        key = super()._index_key(signature, codegen)  # type: ignore[no-untyped-call,unused-ignore]
        return key, bool(numba.config.BOUNDSCHECK)  # type: ignore[attr-defined,unused-ignore]


def _warn_once(error: RuntimeError) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            "cbeindex cannot write compiled kernels to disk, so every process compiles them again, 10 to 30 seconds of "
            f"computing until the first results; to avoid this, set NUMBA_CACHE_DIR to a writable directory ({error})",
            RuntimeWarning,
            stacklevel=3,
        )
