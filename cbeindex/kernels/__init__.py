"""All compiled code and nothing else.

Modules, and numba with them, are imported on first use: `import cbeindex` stays fast.
"""

import importlib
from types import ModuleType

from .._core.threads import run_aside


def __getattr__(name: str) -> ModuleType:
    if not name.startswith("_"):
        try:
            # Not on the main thread: an interrupted import of numba or of a kernel would not be undone.
            return run_aside(importlib.import_module, f".{name}", __name__)
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
