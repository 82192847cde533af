"""All compiled code and nothing else; its modules, and numba with them, are imported when they are first used."""

import importlib
from types import ModuleType

_MODULES = ("asymmetric", "cells", "centroids", "exact", "hamming", "merging", "shifts", "tables")


def __getattr__(name: str) -> ModuleType:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f".{name}", __name__)
