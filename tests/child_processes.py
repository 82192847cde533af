"""Child processes of tests: forked tasks, and a program that holds the writer's lock of a file."""

import os
import sys

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
may_fork = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def in_child(task):
    """Run `task` in a forked process and return its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            task()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


WRITER = """
import sys
from pathlib import Path
from cbeindex.storage import files as _files
from contextlib import nullcontext
path = Path(sys.argv[2])
with _files.locked_part(path) if sys.argv[1] == "replacing" else nullcontext(), _files.locked(path):
    print("at work", flush=True)
    sys.stdin.read()
"""
