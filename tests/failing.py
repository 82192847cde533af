"""Errors raised at a chosen line of the library, to test that a call which fails changes nothing."""

import sys
from pathlib import Path

import cbeindex
from cbeindex._core import threads as _threads

_PACKAGE = str(Path(cbeindex.__file__).parent)
# A line event comes just before a `with` block releases its lock, where Python never delivers a signal. An error raised
# there would leave the lock of the thread pool locked for good.
_POOL = str(Path(_threads.__file__))


class Lines:
    """Counts the lines of the library that this thread executes, and raises `error` at the one numbered `at`."""

    def __init__(self, at=None, error=KeyboardInterrupt):
        self.count, self._at, self._error = 0, at, error

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *error):
        sys.settrace(self._before)

    def _on_call(self, frame, event, argument):
        path = frame.f_code.co_filename
        return self._on_line if path.startswith(_PACKAGE) and path != _POOL else None

    def _on_line(self, frame, event, argument):
        if event == "line":
            self.count += 1
            if self.count == self._at:
                sys.settrace(None)
                raise self._error
        return self._on_line


def n_lines(call):
    """Count the lines of the library that a call executes."""
    with Lines() as lines:
        call()
    return lines.count


def fails_at(number, call, error):
    """Make a call that fails at a line; tell whether it did, or got around it."""
    try:
        with Lines(number, error):
            call()
    except error:
        return True
    return False
