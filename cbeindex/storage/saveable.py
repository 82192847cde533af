"""Saving, loading, compacting and verifying: what all kinds of index do with files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from threading import RLock
from typing import Any, Self

from .._core.checks import as_choice, as_flag
from .._core.typing import Arrays
from ..store.rowstore import RowStore
from . import container
from .archive import Archive
from .settings import ENCODER_PREFIX, LEVELS_PREFIX, RESIDUALS_PREFIX
from .values import reporting_damage


class Saveable(ABC):
    """Base class of indexes that can be saved to a file and loaded from it."""

    _archive: Archive | None = None
    # Whether the next save writes the file anew, because most of what it holds is obsolete.
    _rewrites: bool = False

    @property
    def path(self) -> str | None:
        """The file that the index was last saved to or loaded from."""
        return None if self._archive is None else str(self._archive.stored.path)

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Save the index to a file.

        A save is atomic. If the process is killed or the save fails, the file holds either its previous content or the
        complete index, and a failed save can be repeated. Readers that have the file open keep the state that they
        opened.

        Parameters
        ----------
        path : str or path-like, optional
            The file to create or replace. Without `path`, changes since the last `save` or `load` are appended to that
            file. If another writer has changed the file since, a WriterConflictError is raised.
        """
        with self._write_lock(), self._stored_rows().lock:
            rows, (content, arrays) = self._stored_rows(), self._content()
            if path is not None:
                self._archive = Archive.write(path, content, arrays, rows, self._archive, only_unchanged=False)
            elif self._archive is None:
                raise ValueError("save needs a path: the index has not been saved or loaded yet")
            elif self._rewrites:
                path = self._archive.stored.path
                self._archive = Archive.write(path, content, arrays, rows, self._archive, only_unchanged=True)
            else:
                self._archive = self._archive.append(content, arrays, rows)
            self._rewrites = False

    @classmethod
    def load(cls, path: str | os.PathLike[str], mmap: bool = True, verify: bool = False) -> Self:
        """Load an index from a file.

        Parameters
        ----------
        path : str or path-like
        mmap : bool
            Map the file instead of reading it. Opening then takes the same short time for any size, and memory is used
            only for pages that searches touch. Vectors can be added and removed. The file changes only when `save` or
            `compact` is called. With False, the whole file is read and its checksums are compared. Codes of files of
            format version 1, which releases before 0.2 wrote, are read and converted in either case.
        verify : bool
            Compare all checksums of a mapped file too.
        """
        archive = Archive.read(path, cls.__name__, as_flag(mmap, "mmap"), as_flag(verify, "verify"))
        stored = archive.stored
        stored.check_mapped(ENCODER_PREFIX)
        stored.check_mapped(RESIDUALS_PREFIX)
        stored.check_mapped(LEVELS_PREFIX)
        with reporting_damage(stored.path):
            index, rows = cls._from_content(stored.content, stored.arrays)
        archive.load_rows(rows)
        index._archive = archive
        return index

    def compact(self) -> None:
        """Free the space of removed rows. If the index has a file, the file is rewritten."""
        with self._write_lock(), self._stored_rows().lock:
            rows = self._stored_rows()
            rows.compact()
            if self._archive is not None:
                path, (content, arrays) = self._archive.stored.path, self._content()
                self._archive = Archive.write(path, content, arrays, rows, self._archive, only_unchanged=True)

    def _check(self) -> None:
        """Check all rows of the file that the index was loaded from."""
        with self._write_lock(), self._stored_rows().lock:
            if self._archive is not None:
                self._archive.check(self._stored_rows())

    @abstractmethod
    def _write_lock(self) -> RLock:
        """Return the lock of writers, which is taken before that of the rows.

        Locks are taken by `with` itself: an interrupt on the way out of a context manager written in Python would leave
        them held for as long as somebody keeps the traceback.
        """

    @abstractmethod
    def _stored_rows(self) -> RowStore:
        """Return the rows, which another writer may replace unless the lock is held."""

    @abstractmethod
    def _content(self) -> tuple[dict[str, Any], Arrays]:
        """Describe the index apart from its rows."""

    @classmethod
    @abstractmethod
    def _from_content(cls, content: dict[str, Any], arrays: Arrays) -> tuple[Self, RowStore]:
        """Make an index without rows, and return it with the store to fill."""


def verify(path: str | os.PathLike[str]) -> None:
    """Check every byte of an index file. Raises an IndexFileError that says what is wrong.

    Examples
    --------
    >>> import cbeindex, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cbeindex.BinaryIndex(64).save(f"{folder}/codes.cbe")
    ...     cbeindex.verify(f"{folder}/codes.cbe")
    """
    container.verify(path)
    kinds = {kind.__name__: kind for kind in Saveable.__subclasses__()}
    stored = container.read(path)
    with reporting_damage(stored.path):
        kind = kinds[as_choice(stored.content.get("kind"), "kind", tuple(kinds))]
    kind.load(path)._check()
