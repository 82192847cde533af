"""Machine code of kernels on disk: which files, in which folders, and who compiles what is missing.

A file holds one kernel for the types of its arguments, and its name says for which versions, sources and processor. So
files are only added, each in one step, and any number of processes may do so at the same time. Files are read from
these folders in order, and written to the first one of the last three that can be written to:

1. `compiled` in this package: code that was made ahead of time (`cbeindex warm --into`) and is part of an installation.
   It may be for a processor with fewer features than this one, if they make no difference to the kernels.
2. A folder in `NUMBA_CACHE_DIR`. If that variable is set, the next two are not used.
3. `__pycache__` in this package.
4. A folder in the cache of the user.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import serialize
from numba.core.caching import NullCache

from .linking import rebuilt
from .locking import LockFile
from .target import Target, compiled_target

PACKAGE = Path(__file__).parent
AHEAD = PACKAGE / "compiled"
SUFFIX = ".nbc"
_HASH_BYTES = 32
_dumps: Any = serialize.dumps

# The folder that takes the place of all others for new files.
_chosen: Path | None = None


@functools.cache
def sources_hash() -> str:
    """Hash the names and contents of all kernel files."""
    digest = hashlib.sha256()
    for file in sorted(resources.files(__package__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".py"):
            content = file.read_bytes()
            digest.update(f"{file.name} {len(content)} ".encode())
            digest.update(content)
    return digest.hexdigest()


def candidates() -> list[Path]:
    """Return the folders for new files, whether they exist or not."""
    if _chosen is not None:
        return [_chosen]
    own = f"kernels_{_short(str(PACKAGE))}"
    chosen = numba.config.CACHE_DIR  # type: ignore[attr-defined,unused-ignore]
    if chosen:
        return [Path(chosen) / own]
    user = _user_folder()
    # Without a home, "~" stays as it is, and would be made in the working directory.
    users = [user / "cbeindex" / own] if user is not None and user.is_absolute() else []
    return [PACKAGE / "__pycache__", *users]


def use_folder(folder: Path) -> None:
    """Write new files of this process to a folder, and read no others but those made ahead of time."""
    global _chosen
    _chosen = folder.absolute()
    writable_folder.cache_clear()


def _user_folder() -> Path | None:
    """Return the folder of the user for caches, None if the system does not say."""
    if sys.platform == "win32":
        folder = os.environ.get("LOCALAPPDATA")
    elif sys.platform == "darwin":
        folder = os.path.expanduser("~/Library/Caches")
    else:
        folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder) if folder else None


@functools.cache
def writable_folder() -> Path | None:
    """Return the folder that new files go to, None if there is none."""
    for folder in candidates():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            return folder
    return None


def places() -> list[tuple[Path, Target]]:
    """Return the folders that files are read from, and the target of their code."""
    here = compiled_target()
    ahead = [(AHEAD, target) for target in ahead_targets(AHEAD) if here.runs(target)]
    return [*ahead, *((folder, here) for folder in candidates())]


@functools.cache
def ahead_targets(folder: Path) -> list[Target]:
    """Return the targets that a folder has code for, those with the most features first."""
    found = []
    for path in folder.glob("target-*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            about = json.loads(path.read_text())
            found.append(Target.named(about["triple"], about["cpu"], frozenset(about["features"])))
    return sorted(found, key=lambda target: (-len(target.features), target.name))


def stored(folder: Path) -> dict[str, int]:
    """Return the kernels in a folder, each with the types of its arguments, and their bytes."""
    return {path.name.removesuffix(SUFFIX): path.stat().st_size for path in sorted(folder.glob(f"*{SUFFIX}"))}


def describe_target(folder: Path) -> None:
    """Note in a folder that its code is for the target of this process."""
    here = compiled_target()
    about = {"triple": here.triple, "cpu": here.cpu, "features": sorted(here.features)}
    with _replaced(folder / f"target-{_short(here.name)}.json") as file:
        file.write(json.dumps(about).encode())


def versions() -> str:
    """Return what code depends on, apart from sources, types and processor."""
    python = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor} {sys.platform}"
    checks = bool(numba.config.BOUNDSCHECK)  # type: ignore[attr-defined,unused-ignore]
    array = ".".join(np.__version__.split(".")[:2])
    return f"{python}, numba {numba.__version__}, llvmlite {llvmlite.__version__}, numpy {array}, bounds {checks}"


@functools.cache
def _file_hash(path: str) -> str:
    """Hash a file of kernels that may be outside of this package."""
    with suppress(OSError):
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return ""


class KernelCache(NullCache):  # type: ignore[misc,unused-ignore]
    """The files of one kernel.

    numba discards cached code when the file of the kernel changes, but code of helpers from other files is compiled
    into it as well. So code is discarded when any kernel file changes.

    Parameters
    ----------
    kernel : dispatcher of numba
    """

    def __init__(self, kernel: Any) -> None:
        function: Callable[..., Any] = kernel.py_func
        self._kernel, self._function = kernel, function
        module = function.__module__.removeprefix(f"{__package__}.")
        self.name = f"{module}.{function.__qualname__}".replace("<", "").replace(">", "")
        self._locks: dict[str, LockFile] = {}

    @property
    def cache_path(self) -> str | None:
        """The folder that new files go to."""
        folder = writable_folder()
        return None if folder is None else str(folder)

    @functools.cached_property
    def _stamp(self) -> str:
        """What the code of all signatures depends on."""
        return _short(f"{sources_hash()} {_file_hash(inspect.getfile(self._function))}")

    def file_name(self, signature: Any, target: Target) -> str:
        """Return the name of a file, for arguments of these types and a target."""
        return f"{self.name}.{self._stamp}.{_short(f'{versions()} {target.name} {signature}')}{SUFFIX}"

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Load code that is there; otherwise return None, and hold a lock until it is compiled and saved.

        Where another process compiles the same code, wait for it instead.
        """
        context.refresh()
        found, folder = self._load(signature, context), writable_folder()
        if found is not None or folder is None:
            return found
        name = self.file_name(signature, compiled_target())
        lock = LockFile(folder / f"{name}.lock")
        while found is None:
            has_lock = lock.acquire()
            found = self._load(signature, context)
            if has_lock:
                self._locks[name] = lock
                break
        if found is not None:
            self.release()
        return found

    def _load(self, signature: Any, context: Any) -> Any:
        """Load code from the first folder that has it."""
        for folder, target in places():
            with suppress(OSError):
                content = (folder / self.file_name(signature, target)).read_bytes()
                if hashlib.sha256(content[_HASH_BYTES:]).digest() == content[:_HASH_BYTES]:
                    needs, reduced = pickle.loads(content[_HASH_BYTES:])
                    for shared in needs:
                        shared.load()
                    return rebuilt(self._kernel, context, signature, reduced)
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Save code, if there is a folder for it."""
        folder = writable_folder()
        if folder is not None and not compiled.library.has_dynamic_globals:
            content = _dumps((getattr(compiled.library, "needs", ()), compiled._reduce()))
            # A disk that is full or read-only costs the file, not the call.
            with suppress(OSError), _replaced(folder / self.file_name(signature, compiled_target())) as file:
                file.write(hashlib.sha256(content).digest() + content)
            self._remove_outdated(folder)
        self.release()

    def release(self) -> None:
        """Release the locks of code that was to be compiled."""
        while self._locks:
            self._locks.popitem()[1].release()

    def _remove_outdated(self, folder: Path) -> None:
        """Remove the files of other versions of this kernel."""
        for path in folder.glob(f"{self.name}.*{SUFFIX}"):
            if path.name.removeprefix(f"{self.name}.").split(".")[0] != self._stamp:
                with suppress(OSError):
                    path.unlink()


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@contextmanager
def _replaced(path: Path) -> Iterator[Any]:
    """Write a file aside, and put it in its place when it is complete."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(part, "xb") as file:
            yield file
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
