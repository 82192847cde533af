"""The `njit` of all kernels: compiled out of reach of Ctrl-C, and cached until any kernel file changes."""

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import numba
from numba.core.compiler_lock import global_compiler_lock

from .._core.threads import run_aside
from .caching import KernelCache, candidates, writable_folder
from .linking import compile_whole, is_supported

_warned = False
_links_parts = functools.cache(is_supported)

# A fork waits until no other thread compiles or loads a kernel: in the child, numba would never get its lock.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )


def njit(*, cache: bool = False, shared: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile like `numba.njit`, each kernel together with those that it calls; `cache` stores machine code on disk.

    A `shared` kernel is compiled once, apart from the kernels that call it. Large ones that several others call are.
    If no folder for it is writable, a warning says so once and every process compiles the kernels again.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]
            return numba.njit(**options)(function)
        kernel = compile_whole(function, options, shared) if _links_parts() else numba.njit(**options)(function)
        if cache:
            kernel._cache = KernelCache(kernel)
        kernel._compile_for_args = functools.partial(_compile, kernel, kernel._compile_for_args)
        return kernel

    return decorate


def _compile(kernel: Any, compile_for: Callable[..., Any], *arguments: Any) -> Any:
    """Call a kernel for the first time with arguments of these types."""

    def compile_here() -> Any:
        try:
            return compile_for(*arguments)
        finally:
            if isinstance(kernel._cache, KernelCache):
                kernel._cache.release()  # if it was not compiled

    # An interrupt inside numba can leave a lock held for good. Then every thread that needs a kernel waits forever.
    result = run_aside(compile_here)
    if kernel.stats.cache_misses and isinstance(kernel._cache, KernelCache) and writable_folder() is None:
        _warn_once()
    return result


def _warn_once() -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            "cbeindex cannot keep compiled kernels, so every process compiles what it uses, which takes 3 to 10 s. "
            "To avoid it, set NUMBA_CACHE_DIR to a writable folder, or run `cbeindex warm` once as a user that may "
            f"write to {candidates()[0]}",
            RuntimeWarning,
            stacklevel=4,
        )
