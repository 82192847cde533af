"""numba's njit, for installations whose kernels cannot be cached on disk too."""

import os
import warnings
from collections.abc import Callable
from typing import Any

import numba
from numba.core.compiler_lock import global_compiler_lock

_warned = False

# A fork waits until no other thread compiles or loads a kernel: in the child, numba would never get its lock.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile like `numba.njit`; where no directory for the cache can be written, compile anew in each process."""

    def decorate(function: Callable[..., Any]) -> Any:
        global _warned
        try:
            return numba.njit(**options)(function)
        except RuntimeError as error:
            if not options.get("cache") or "cannot cache" not in str(error):
                raise
        if not _warned:
            _warned = True
            warnings.warn(
                "cbeindex cannot write compiled kernels to disk, so every process compiles them again (some seconds); "
                "set NUMBA_CACHE_DIR to a directory that can be written",
                RuntimeWarning,
                stacklevel=2,
            )
        return numba.njit(**options | {"cache": False})(function)

    return decorate
