"""What index files need from the operating system: complete writes, writer locks, atomic replacement and mapping."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from io import FileIO
from pathlib import Path

from ..errors import NotAnIndexFileError, WriterConflictError
from .layout import MAGIC

# Opening a named pipe must not block until a process opens its other end.
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)

# Attempts to lock a file. An attempt fails if another writer has replaced or removed the file meanwhile.
_MAX_TRIES = 100

if sys.platform == "win32":
    import msvcrt

    # Windows keeps other processes from reading locked bytes, so the locked byte lies far behind the end of any file.
    _LOCKED_BYTE = 2**43

    def _lock(file: FileIO) -> None:
        file.seek(_LOCKED_BYTE)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:
            raise WriterConflictError("another process is writing this file; try again later") from None

    def _unlock(file: FileIO) -> None:
        file.seek(_LOCKED_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: FileIO) -> None:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WriterConflictError("another process is writing this file; try again later") from None

    def _unlock(file: FileIO) -> None:
        # Closing the file would not release the lock if a child forked meanwhile still has the descriptor.
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        try:  # on macOS, fsync leaves the data in the cache of the disk
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
        except OSError:
            pass
    os.fsync(descriptor)


# All changes to a disk go through these names, so that tests can make each of them fail.
_write = os.write
_truncate = os.ftruncate
_replace = os.replace
_unlink = os.unlink


def resolve(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path without symbolic links, which stays valid if the process changes its directory."""
    return Path(os.path.realpath(os.fspath(path)))


def open_file(path: Path, mode: str = "r", flags: int = 0, permissions: int = 0o666) -> FileIO:
    """Open a regular file. Raises NotAnIndexFileError for directories, pipes and devices."""
    file = FileIO(path, mode, opener=lambda name, default: os.open(name, default | flags | _NO_WAITING, permissions))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotAnIndexFileError("not a regular file")
    return file


def size(file: FileIO) -> int:
    """Return the size of a file in bytes."""
    return os.fstat(file.fileno()).st_size


def read_at(file: FileIO, offset: int, n_bytes: int) -> bytes:
    """Read `n_bytes` at `offset`, or fewer at the end of the file.

    The memory is allocated first, so the caller must have compared `n_bytes` with the size of the file.
    """
    data = bytearray(n_bytes)
    return bytes(data[: read_into(file, offset, memoryview(data))])


def read_into(file: FileIO, offset: int, view: memoryview) -> int:
    """Fill `view` with the bytes at `offset`, and return the number of bytes read.

    Where the system has `os.preadv`, any number of threads may read a file at once. Elsewhere reading moves the
    position of the file.
    """
    n_read = 0
    while n_read < len(view) and (n_more := _read(file, offset + n_read, view[n_read:])):
        n_read += n_more
    return n_read


def _read(file: FileIO, offset: int, view: memoryview) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(file.fileno(), [view], offset)
    file.seek(offset)
    return file.readinto(view)


def write_all(file: FileIO, data: bytes | memoryview) -> None:
    """Write all of `data`, in several calls if the system accepts only a part at a time."""
    view = memoryview(data)
    while view:
        n_written = _write(file.fileno(), view)
        if n_written == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        view = view[n_written:]


def truncate(file: FileIO, n_bytes: int) -> None:
    """Truncate a file to `n_bytes`."""
    _truncate(file.fileno(), n_bytes)


def sync(file: FileIO) -> None:
    """Wait until written data would survive a power cut."""
    _sync(file.fileno())


# The context managers of files are the files themselves: an interrupt on the way out of one that is written in Python
# would leave the file open, and so locked, for as long as somebody keeps the traceback.


def locked(path: Path) -> FileIO:
    """Open a file for writing, and lock out other writers until it is closed, here and in forked children."""
    return _open_locked(path)


def locked_part(path: Path) -> FileIO:
    """Create and lock a file that is to replace `path`.

    The file has a fixed name beside `path`. Two writers therefore conflict even if `path` does not exist yet, and a
    killed writer leaves at most one file, which the next writer removes. The magic must be written first, by which the
    next writer recognises the file.
    """
    return _open_part(_part_of(path), path)


def locked_if_any(path: Path, part: FileIO) -> AbstractContextManager[FileIO | None]:
    """Open and lock the file at `path`, if there is one, for a part that is locked; remove the part if that fails.

    A file appears at `path` only under the lock of the part, so none can appear unnoticed.
    """
    try:
        return _open_locked(path)
    except FileNotFoundError:
        return nullcontext()
    except BaseException:
        with suppress(OSError):
            _remove(part, _part_of(path))
        raise


@contextmanager
def unlocking(file: FileIO) -> Iterator[None]:
    """Unlock a file when the block ends, though a forked child may have it open still."""
    try:
        yield
    finally:
        _unlock_open(file)


@contextmanager
def replacing(path: Path, new: FileIO, old: FileIO | None) -> Iterator[None]:
    """Let a part atomically replace the old file at `path`, if any, when the block ends without an error."""
    part = _part_of(path)
    try:
        yield
        if old is not None:
            _copy_permissions(old, new)
        sync(new)
        if sys.platform == "win32":  # Windows does not rename open files
            _release(new)
            _release(old)
        _replace(part, path)
    except GeneratorExit:  # the block was left long ago, and another writer may have a part of that name
        raise
    except BaseException:
        with suppress(OSError):
            _remove(new, part)
        raise
    finally:
        _unlock_open(new)
        if old is not None:
            _unlock_open(old)
            _close_aside(old)
    sync_directory(path.parent)


def map_privately(file: FileIO, n_bytes: int) -> mmap.mmap:
    """Map the first `n_bytes` of a file. Pages are read when they are touched, and changes stay in memory."""
    if sys.platform == "win32":
        return mmap.mmap(file.fileno(), n_bytes, access=mmap.ACCESS_COPY)
    # Linux reserves memory for private writable mappings, and refuses those that are larger than the memory, unless
    # MAP_NORESERVE is set. Python has the name from 3.13 on. The number is the same on the architectures listed.
    common = sys.platform == "linux" and os.uname().machine in ("x86_64", "aarch64", "riscv64")
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000 if common else 0)
    return mmap.mmap(file.fileno(), n_bytes, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _part_of(path: Path) -> Path:
    return path.parent / f".{path.name}.cbeindex-part"


def _open_locked(path: Path, flags: int = 0) -> FileIO:
    """Open and lock the file at `path`, and try again if another writer replaces it meanwhile."""
    for _ in range(_MAX_TRIES):
        file = open_file(path, "r+", flags)
        try:
            _lock(file)
            if _is_at(file, path):
                return file
        except BaseException:
            file.close()
            raise
        _release(file)
    raise WriterConflictError("other processes keep replacing this file; try again later")


def _open_part(part: Path, path: Path) -> FileIO:
    """Create and lock the file that will replace `path`. Only users who may read `path` may read it."""
    try:
        permissions = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        permissions = 0o666
    for _ in range(_MAX_TRIES):
        try:
            file = open_file(part, "x+", permissions=permissions | stat.S_IRUSR | stat.S_IWUSR)
        except FileExistsError:
            _remove_stale(part)
            continue
        except OSError as error:  # the caller knows nothing of the part
            error.filename = str(path)
            raise
        try:
            _lock(file)
            if _is_at(file, part):
                return file
        except BaseException:
            file.close()
            raise
        _release(file)
    raise WriterConflictError("other processes keep replacing this file; try again later")


def _remove_stale(part: Path) -> None:
    """Remove the part that a killed writer has left. Raises an error if it is in use or is some other file."""
    taken = FileExistsError(
        errno.EEXIST, f"a save needs the name {part.name} in the same folder, which another file has; move that file"
    )
    try:
        if not stat.S_ISREG(os.lstat(part).st_mode):
            raise taken
        left = _open_locked(part, _NO_LINKS)
    except FileNotFoundError:
        return
    except PermissionError:
        raise taken from None
    try:
        if not MAGIC.startswith(read_at(left, 0, len(MAGIC))):
            raise taken
        _remove(left, part)
    finally:
        _release(left)


def _is_at(file: FileIO, path: Path) -> bool:
    """Tell whether `path` is still the name of this open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _copy_permissions(old: FileIO, new: FileIO) -> None:
    """Give the new file the owner and the permissions of the old one, as far as the system allows."""
    if sys.platform == "win32":
        return
    status = os.fstat(old.fileno())
    with suppress(OSError):
        os.fchown(new.fileno(), status.st_uid, status.st_gid)
    with suppress(OSError):
        os.fchmod(new.fileno(), stat.S_IMODE(status.st_mode))


def _remove(file: FileIO, path: Path) -> None:
    """Remove an open and locked file, unless another file has taken its place."""
    if file.closed or _is_at(file, path):
        if sys.platform == "win32":
            _release(file)
        _unlink(path)


def _release(file: FileIO | None) -> None:
    """Unlock and close a file. Does nothing for None and for closed files."""
    if file is not None and not file.closed:
        try:
            _unlock(file)
        finally:
            file.close()


def _unlock_open(file: FileIO) -> None:
    """Unlock a file unless it is closed, and so unlocked, already."""
    if not file.closed:
        _unlock(file)


def _close_aside(file: FileIO) -> None:
    """Close a file that was replaced, the last descriptor on another thread: freeing the cache of 2 GB takes 0.4 s."""
    if file.closed:
        return
    descriptor = os.dup(file.fileno())
    file.close()
    try:
        threading.Thread(target=os.close, args=(descriptor,), name="cbeindex-close", daemon=True).start()
    except RuntimeError:  # the interpreter is shutting down, or the system cannot start another thread
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Sync a directory, so that a rename survives a power cut.

    Errors are ignored: the new file is complete and in place, and after a power cut either file is intact.
    """
    if sys.platform != "win32":
        with suppress(OSError):
            directory = os.open(path, os.O_RDONLY)
            try:
                _sync(directory)
            finally:
                os.close(directory)
