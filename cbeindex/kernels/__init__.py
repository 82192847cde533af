"""All compiled code and nothing else.

Modules, and numba with them, are imported on first use: `import cbeindex` stays fast.
"""

import importlib
from types import ModuleType

from .._core.threads import run_aside

_MODULES = ("asymmetric", "cascade", "cells", "centroids", "exact", "hamming", "merging", "shifts", "tables", "topk")


def __getattr__(name: str) -> ModuleType:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Not on the main thread: an interrupted import of numba or of a kernel would not be undone.
    return run_aside(importlib.import_module, f".{name}", __name__)
