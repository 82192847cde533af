"""Temporary files for outputs that appear only when they are complete, and sizes as text."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn


@contextmanager
def exiting_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that temporary files are removed."""

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        signals = []
    changed = [number for number in signals if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in changed:
            signal.signal(number, end)
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def temporary_folder(out: Path, given: str) -> Iterator[Path]:
    """Create a temporary folder beside `out`, on the same disk. Errors name the path as the user has `given` it."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=".cbeindex-", dir=out.parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, given) from None
    with folder as path:
        yield Path(path)


def size_text(n_bytes: float) -> str:
    """Return a number of bytes with a suitable unit."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "bytes" else f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.3g} TB"
