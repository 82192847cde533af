"""Lock files, by which processes agree on who compiles a kernel."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: every process compiles for itself
    fcntl = None  # type: ignore[assignment,unused-ignore]

_POLL_SECONDS = 0.05
# Longer than any kernel takes to compile, on a busy machine too.
_MOST_SECONDS = 300.0


class LockFile:
    """A lock that the system releases when its process ends. Where there are no locks, everybody gets it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Any = None
        self._deadline = time.monotonic() + _MOST_SECONDS

    def acquire(self) -> bool:
        """Try to get the lock; False, after a moment, if another process holds it. Gives up waiting after minutes."""
        if fcntl is None:
            return True
        try:
            file = open(self._path, "ab")  # noqa: SIM115
        except OSError:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            time.sleep(_POLL_SECONDS)
            return time.monotonic() > self._deadline
        except OSError:  # this file system has no locks
            file.close()
            return True
        self._file = file
        return True

    def release(self) -> None:
        """Release the lock and remove its file."""
        if self._file is not None:
            with suppress(OSError):
                self._path.unlink()
            self._file.close()
            self._file = None
