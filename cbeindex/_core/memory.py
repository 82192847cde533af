"""Memory that this process may use: that of the machine, or the limit of its control group, as containers have one."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path, PurePosixPath

_GROUPS, _MOUNTS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@functools.cache
def memory_bytes() -> int:
    """Return the bytes that this process may use, or the size of the address space if that is unknown."""
    try:
        of_machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        of_machine = sys.maxsize
    return min(of_machine, group_limit(_GROUPS, _MOUNTS))


def group_limit(groups: Path, mounts: Path) -> int:
    """Return the least limit of the control groups of a process, sys.maxsize if there is none.

    Parameters
    ----------
    groups : Path
        The file that names them (Linux: /proc/self/cgroup).
    mounts : Path
        The folder that control groups are mounted in, of version 2 or 1.
    """
    limits = [sys.maxsize]
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return sys.maxsize
    for line in lines:
        number, kinds, name = line.split(":", 2)
        if number == "0" and not kinds:
            mount, file = mounts, "memory.max"
        elif "memory" in kinds.split(","):
            mount, file = mounts / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container, the name may be that outside of it: its own group is then the mount itself.
        inner = PurePosixPath(name.lstrip("/"))
        limits += [_limit(mount / part / file) for part in (inner, *inner.parents)]
    return min(limits)


def _limit(path: Path) -> int:
    """Return the limit in a file, sys.maxsize if it says that there is none or does not exist."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return sys.maxsize
