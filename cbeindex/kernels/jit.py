"""numba's njit, for installations whose kernels cannot be cached on disk too."""

import warnings
from collections.abc import Callable
from typing import Any

import numba

_warned = False


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
