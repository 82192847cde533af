"""Replacements of the calls that change the disk, which fail or do something else first."""

import errno
import itertools
import os

from cbeindex.storage import files as _files

CALLS = ("_write", "_sync", "_truncate", "_replace", "_unlink")


def let(patch, before):
    """Call `before(number, name, *args)` before every call that changes the disk; return the counter of calls."""
    numbers = itertools.count()
    for name in CALLS:
        real = getattr(_files, name)

        def call(*args, name=name, real=real):
            before(next(numbers), name, *args)
            return real(*args)

        patch.setattr(_files, name, call)
    return numbers


def fail_at(patch, n, *, forever=False, half=False):
    """Make the n-th call that changes the disk fail, or all from the n-th on; `half` writes half the data first."""

    def before(number, name, *args):
        if number == n or (forever and number > n):
            if half and name == "_write":
                os.write(args[0], args[1][: len(args[1]) // 2])
            raise OSError(errno.ENOSPC, "no room left")

    return let(patch, before)
