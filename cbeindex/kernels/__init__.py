"""All compiled code and nothing else.

Modules, and numba with them, are imported on first use: `import cbeindex` stays fast.
"""

import importlib
from types import ModuleType

_MODULES = (
    "asymmetric", "cascade", "cells", "cellsearch", "centroids", "exact", "hamming", "merging", "querytables",
    "residuals", "shifts", "tables", "topk",
)  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f".{name}", __name__)
