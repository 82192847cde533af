"""What index files ask of the operating system: whole writes, one writer at a time, replacement in one step, maps."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from ..errors import NotAnIndexFileError, WriterConflictError
from .layout import MAGIC

# Opening a pipe must not wait for somebody at its other end.
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)

# Each try that fails is a file that another writer put in place, or took away, since the last one.
_MAX_TRIES = 100

if sys.platform == "win32":
    import msvcrt

    # Windows keeps others from reading the bytes that are locked, so it is one far behind the end of any file.
    _LOCKED_BYTE = 2**43

    def _lock(file: FileIO) -> None:
        file.seek(_LOCKED_BYTE)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:
            raise WriterConflictError("another writer is at work on this file; try again when it is done") from None

    def _unlock(file: FileIO) -> None:
        file.seek(_LOCKED_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: FileIO) -> None:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WriterConflictError("another writer is at work on this file; try again when it is done") from None

    def _unlock(file: FileIO) -> None:
        # Closing would not do where a child, forked meanwhile, has the descriptor too.
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        try:  # fsync leaves the data in the cache of the disk there
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
        except OSError:
            pass
    os.fsync(descriptor)


# Every change that is made to a disk goes through these names, so that tests can let each of them fail.
_write = os.write
_truncate = os.ftruncate
_replace = os.replace
_unlink = os.unlink


def resolve(path: str | os.PathLike[str]) -> Path:
    """Return the place of a file, whatever links lead to it and wherever the process goes from here."""
    return Path(os.path.realpath(os.fspath(path)))


def open_file(path: Path, mode: str = "r", flags: int = 0, permissions: int = 0o666) -> FileIO:
    """Open a regular file."""
    file = FileIO(path, mode, opener=lambda name, default: os.open(name, default | flags | _NO_WAITING, permissions))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotAnIndexFileError("not a regular file")
    return file


def size(file: FileIO) -> int:
    """Return the bytes of a file."""
    return os.fstat(file.fileno()).st_size


def read_at(file: FileIO, offset: int, n_bytes: int) -> bytes:
    """Read `n_bytes` at `offset`, fewer only at the end of the file; they must be known to be there."""
    data = bytearray(n_bytes)
    return bytes(data[: read_into(file, offset, memoryview(data))])


def read_into(file: FileIO, offset: int, view: memoryview) -> int:
    """Fill `view` with the bytes from `offset` on, and return how many there were.

    Any number of threads may read a file at once where there is `os.preadv`; elsewhere it moves where the file stands.
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
    """Write all of `data`, where the system may take a part at a time."""
    view = memoryview(data)
    while view:
        n_written = _write(file.fileno(), view)
        if n_written == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        view = view[n_written:]


def truncate(file: FileIO, n_bytes: int) -> None:
    """Cut a file off behind its first `n_bytes`."""
    _truncate(file.fileno(), n_bytes)


def sync(file: FileIO) -> None:
    """Wait until what was written would survive a power cut."""
    _sync(file.fileno())


def memory_bytes() -> int:
    """Return the bytes of memory that this machine has, or a number that no machine has if it does not tell."""
    if not hasattr(os, "sysconf"):
        return sys.maxsize
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def locked(path: Path) -> Iterator[FileIO]:
    """Open a file for changes; nobody else can until the block ends."""
    file = _open_locked(path)
    try:
        yield file
    finally:
        _release(file)


@contextmanager
def replacing(path: Path) -> Iterator[tuple[FileIO, FileIO | None]]:
    """Make a file that takes the place of `path` in one step when the block ends without an error.

    Yields the new file, and the old one if there is one, for the block to look at. The new one has a fixed name
    beside the old one: so two writers meet even where there is no file yet, and one that was killed leaves at most
    one file, which the next one clears away. The block writes the magic first, so that it is known for ours.
    """
    part = path.parent / f".{path.name}.cbeindex-part"
    new, old = _open_part(part, path), None
    try:
        # In this order: files come to be at `path` only under the lock of the part, so none can come unseen.
        with suppress(FileNotFoundError):
            old = _open_locked(path)
        yield new, old
        if old is not None:
            _copy_permissions(old, new)
        sync(new)
        if sys.platform == "win32":  # open files stay where they are
            _release(new)
            _release(old)
        _replace(part, path)
    except BaseException:
        with suppress(OSError):
            _remove(new, part)
        raise
    finally:
        _release(new)
        _release(old)
    sync_directory(path.parent)


def map_privately(file: FileIO, n_bytes: int) -> mmap.mmap:
    """Map the first bytes of a file: pages are read when they are touched, and changes stay in memory."""
    if sys.platform == "win32":
        return mmap.mmap(file.fileno(), n_bytes, access=mmap.ACCESS_COPY)
    # Pages that may change count as memory, so Linux refuses to map a file that is larger than the memory unless it is
    # told that they hardly will. Python has the name from 3.13 on; the number is that of the common processors.
    common = sys.platform == "linux" and os.uname().machine in ("x86_64", "aarch64", "riscv64")
    flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000 if common else 0)
    return mmap.mmap(file.fileno(), n_bytes, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _open_locked(path: Path, flags: int = 0) -> FileIO:
    """Open and lock the file at `path`, where another may come in between."""
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
    raise WriterConflictError("other writers replace this file again and again")


def _open_part(part: Path, path: Path) -> FileIO:
    """Make and lock the file that will replace `path`; nobody may read it who cannot read the old one."""
    try:
        permissions = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        permissions = 0o666
    for _ in range(_MAX_TRIES):
        try:
            file = open_file(part, "x+", permissions=permissions | stat.S_IRUSR | stat.S_IWUSR)
        except FileExistsError:
            _clear_away(part)
            continue
        try:
            _lock(file)
            if _is_at(file, part):
                return file
        except BaseException:
            file.close()
            raise
        _release(file)
    raise WriterConflictError("other writers replace this file again and again")


def _clear_away(part: Path) -> None:
    """Remove what a writer that was killed has left; an error if the writer is at work, or the file is not ours."""
    in_the_way = FileExistsError(
        errno.EEXIST, f"a save needs the name {part.name} in the same folder, and what is there is not ours: move it"
    )
    try:
        if not stat.S_ISREG(os.lstat(part).st_mode):
            raise in_the_way
        left = _open_locked(part, _NO_LINKS)
    except FileNotFoundError:
        return
    except PermissionError:
        raise in_the_way from None
    try:
        if not MAGIC.startswith(read_at(left, 0, len(MAGIC))):
            raise in_the_way
        _remove(left, part)
    finally:
        _release(left)


def _is_at(file: FileIO, path: Path) -> bool:
    """Tell whether `path` still is this file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _copy_permissions(old: FileIO, new: FileIO) -> None:
    """Give a file the owner and the permissions of another one, as far as the system lets us."""
    if sys.platform == "win32":
        return
    status = os.fstat(old.fileno())
    with suppress(OSError):
        os.fchown(new.fileno(), status.st_uid, status.st_gid)
    with suppress(OSError):
        os.fchmod(new.fileno(), stat.S_IMODE(status.st_mode))


def _remove(file: FileIO, path: Path) -> None:
    """Remove an open and locked file, unless another one has come to its place."""
    if file.closed or _is_at(file, path):
        if sys.platform == "win32":
            _release(file)
        _unlink(path)


def _release(file: FileIO | None) -> None:
    """Unlock and close a file, if that is not done yet."""
    if file is not None and not file.closed:
        try:
            _unlock(file)
        finally:
            file.close()


def sync_directory(path: Path) -> None:
    """Make a replacement last, if the system can.

    An error here is none of the save: the new file is whole and in its place, and after a power cut there is either
    file.
    """
    if sys.platform != "win32":
        with suppress(OSError):
            directory = os.open(path, os.O_RDONLY)
            try:
                _sync(directory)
            finally:
                os.close(directory)
