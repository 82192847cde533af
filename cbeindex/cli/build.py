"""Index files from files of vectors of any size: a block of rows at a time, and to the disk from time to time."""

from __future__ import annotations

import argparse
import errno
import mmap
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .. import CBEIndex
from .._core.progress import progress_bar
from .._core.typing import Ids, Rows
from ..data.codes import n_words
from ..data.ids import as_ids
from ..data.source import RowError, is_sparse
from ..data.vectorfiles import open_vectors
from ..errors import NotAnIndexFileError
from ..storage import container as storage
from ..storage.layout import MAGIC

# Bytes of vectors that are read and encoded at a time.
BLOCK_BYTES = 2**26
# Bytes of codes and kept vectors that gather in memory before they are appended to the file. It is half of what the
# store joins to one segment: so most segments that are in the file are not joined, and written, again.
_SAVE_BYTES = 2**29
# Rows that the encoder is fitted to: so many, or as many as have so many bytes, but some in any case.
SAMPLE_ROWS = 2**13
SAMPLE_BYTES = 2**26
_LEAST_SAMPLE_ROWS = 32
# Rows of a sample that are read at a time: each touches pages of its own, and more than it needs.
_SAMPLE_STEP = 2**8
# Files of vectors that are held open.
_MOST_OPEN = 32
# Of a file of which more than this is not in use, it is worth to write a new one.
MOST_UNUSED = 1 / 3
# Seconds between lines of progress, where there is no bar.
_SECONDS = 5.0


def build(arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    out = Path(os.path.realpath(arguments.out))
    _check_target(out, arguments.force)
    with ending_in_order(), scratch(out, arguments.out) as folder:
        inputs = Inputs(arguments.files, arguments.key)
        _make(arguments, inputs, folder / "index", out)
    if not arguments.quiet:
        file = storage.describe(out)
        made = f"{inputs.n_rows:,} vectors of {inputs.dim:,} values, {file['content']['n_bits']:,} bits"
        seconds = time.monotonic() - began
        print(f"{arguments.out}: {made}, {size_text(file['bytes'])}, {seconds:.1f} s", file=sys.stderr)


def _make(arguments: argparse.Namespace, inputs: Inputs, path: Path, out: Path) -> None:
    """Make the index file `out`; until it is complete, what memory should not hold is in a file at `path`."""
    names = None if arguments.ids is None else _read_ids(arguments.ids, inputs.n_rows)
    index = CBEIndex(
        inputs.dim,
        arguments.bits,
        metric=arguments.metric,
        encoder=arguments.encoder,
        vectors=arguments.kept,
        buckets=arguments.buckets,
        seed=arguments.seed,
    )
    _fit(index, inputs, arguments.sample, arguments.seed)
    n_new = 0
    row_bytes = 8 * n_words(index.n_bits) + 32  # with id and scalars, without the vector
    with _progress(inputs.n_rows, arguments.quiet) as advance:
        for rows, block in inputs.blocks(row_bytes):
            with inputs.naming(rows):
                index.add(block, None if names is None else names[rows.start : rows.stop], n_threads=arguments.threads)
            n_new += len(rows) * row_bytes + _vector_bytes(block, index.vectors)
            advance(len(rows))
            if n_new >= _SAVE_BYTES:
                index, n_new = _spilled(index, path), 0
    if index.path is not None and n_new:
        index = _spilled(index, path)
    _check_target(out, arguments.force)
    _put_in_place(index, out)


def _check_target(out: Path, force: bool) -> None:
    """Refuse to replace a file without being told to, and what is no index in any case: arguments may be swapped."""
    if not out.exists():
        return
    if not force:
        raise FileExistsError(errno.EEXIST, "the file exists; --force replaces it", str(out))
    if out.is_file():
        with open(out, "rb") as file:
            if file.read(len(MAGIC)) in (b"", MAGIC):
                return
    raise NotAnIndexFileError(f"{out}: not an index file, so it is not replaced; remove it first")


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let a request to end, of a batch system or a closed terminal, leave nothing half done behind."""

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
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
def scratch(out: Path, name: str) -> Iterator[Path]:
    """Make a folder beside `out`, on the same disk, that vanishes with all that is in it."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=".cbeindex-", dir=out.parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from None
    with folder as path:
        yield Path(path)


def _read_ids(path: str, n: int) -> Ids:
    """Read one id for each of `n` rows."""
    values = open_vectors(path)
    if is_sparse(values) or min(values.shape) != 1:
        raise ValueError(f"{path} must have shape ({n},), got {values.shape}")
    return as_ids(np.asarray(values).reshape(-1), path, n=n)


def _fit(index: CBEIndex, inputs: Inputs, n_sample: int | None, seed: int) -> None:
    """Fit an index to a random sample of the rows: the first ones of a sorted file would not do."""
    if inputs.n_rows < 2:
        return
    if n_sample is None:
        n_sample = max(_LEAST_SAMPLE_ROWS, min(SAMPLE_ROWS, int(SAMPLE_BYTES / max(1, inputs.row_bytes))))
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(inputs.n_rows, min(n_sample, inputs.n_rows), replace=False, shuffle=False))
    sample = inputs.take(rows)
    with inputs.naming(rows):
        index.fit(sample)


def _vector_bytes(block: Any, kept: str | None) -> int:
    """Bytes of vectors where they are kept."""
    if kept is None:
        return 0
    n_bytes = np.dtype(kept).itemsize
    return int(block.nnz * (n_bytes + 4) if is_sparse(block) else block.size * n_bytes)


def _spilled(index: CBEIndex, path: Path) -> CBEIndex:
    """Save what is new, and return the index mapped: what is in the file need not be in memory."""
    index.save(path if index.path is None else None)
    return CBEIndex.load(path)


def _put_in_place(index: CBEIndex, out: Path) -> None:
    """Let an index, or the file that it is in, be the file `out`."""
    if index.path is not None and not out.exists() and sys.platform != "win32":  # which does not move mapped files
        file = storage.describe(index.path)
        if file["unused"] <= MOST_UNUSED * file["bytes"]:
            os.replace(index.path, out)
            return
    # Writes what is in use and no more, a piece at a time. (`compact` would join all segments in memory.)
    index.save(out)


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Callable[[int], object]]:
    """Give a function that is told how many more vectors are done; it shows that to whoever looks on."""
    if quiet or not sys.stderr.isatty():
        yield lambda n: None
        return
    if find_spec("tqdm") is not None:
        with progress_bar(True, total, "vectors") as advance:
            yield advance
        return
    done, last = 0, time.monotonic()

    def advance_line(n: int) -> None:
        nonlocal done, last
        done += n
        if time.monotonic() - last >= _SECONDS:
            last = time.monotonic()
            print(f"{done:,} of {total:,} vectors", file=sys.stderr)

    yield advance_line


class Inputs:
    """Files of vectors, one after the other like one array.

    Attributes
    ----------
    n_rows, dim : int
    row_bytes : float
        Bytes of a row in float32, on average.
    """

    def __init__(self, paths: Sequence[str], key: str | None) -> None:
        self._paths, self._key = paths, key
        self._held: dict[int, Any] = {}
        self._firsts = [0]
        n_bytes = 0
        for number, path in enumerate(paths):
            rows = self._open(number)
            n_rows, dim = rows.shape
            if number == 0:
                self.dim = int(dim)
                self._is_sparse = is_sparse(rows)
            if dim != self.dim:
                raise ValueError(f"{path} must have vectors of length {self.dim}, as {paths[0]} has, got {dim}")
            if is_sparse(rows) != self._is_sparse:
                form = "sparse" if self._is_sparse else "dense"
                raise ValueError(f"{path} must be {form}, as {paths[0]} is")
            self._firsts.append(self._firsts[-1] + int(n_rows))
            n_bytes += 8 * int(rows.nnz) if self._is_sparse else 4 * int(n_rows) * self.dim
        self.n_rows = self._firsts[-1]
        self.row_bytes = n_bytes / self.n_rows

    def blocks(self, least_bytes: int) -> Iterator[tuple[range, Any]]:
        """Read all rows in blocks: their numbers, and the rows as they are in the file.

        A row counts `least_bytes` at least.
        """
        for number, first in enumerate(self._firsts[:-1]):
            rows = self._open(number)
            n_rows = rows.shape[0]
            row_bytes = 8 * rows.nnz / n_rows if self._is_sparse else rows.dtype.itemsize * self.dim
            step = max(1, int(BLOCK_BYTES / max(least_bytes, row_bytes)))
            for start in range(0, n_rows, step):
                block = rows[start : start + step]
                if not self._is_sparse and block.strides[0] < block.strides[1]:
                    block = np.ascontiguousarray(block)  # stored by column: rows are not picked out one by one
                yield range(first + start, first + start + block.shape[0]), block
                _forget_pages(rows)

    def take(self, rows: Rows) -> Any:
        """Read some rows, numbers in ascending order, into memory: float32 or, if they are sparse, a CSR array."""
        parts = []
        for number, (first, stop) in enumerate(pairwise(self._firsts)):
            here = rows[np.searchsorted(rows, first) : np.searchsorted(rows, stop)] - first
            for start in range(0, len(here), _SAMPLE_STEP):
                source = self._open(number)
                part = source[here[start : start + _SAMPLE_STEP]]
                with np.errstate(over="ignore"):  # what is infinite then is refused, with the number of its row
                    parts.append(part if self._is_sparse else part.astype(np.float32))
                _forget_pages(source)
        if not self._is_sparse:
            return np.concatenate(parts)
        from scipy import sparse

        return sparse.vstack(parts, format="csr")

    @contextmanager
    def naming(self, rows: range | Rows) -> Iterator[None]:
        """Let errors about vectors, the rows of these numbers, name the file, and the row in the file."""
        try:
            yield
        except RowError as error:
            row = int(rows[error.row])
            number = int(np.searchsorted(self._firsts, row, side="right")) - 1
            raise error.relocated(self._paths[number], row - self._firsts[number]) from error
        except (TypeError, ValueError) as error:
            argument, _, text = str(error).partition(" ")
            if argument not in ("X", "queries"):
                raise
            number = int(np.searchsorted(self._firsts, rows[0], side="right")) - 1
            raise type(error)(f"{self._paths[number]} {text}") from error

    def _open(self, number: int) -> Any:
        """Return the rows of a file: as an open map, and if it takes memory, that of no other is held."""
        if number not in self._held:
            path = self._paths[number]
            if len(self._held) >= _MOST_OPEN or path.lower().endswith(".npz"):
                self._held.clear()
            self._held[number] = open_vectors(path, self._key)
        return self._held[number]


def _forget_pages(rows: Any) -> None:
    """Let go of the pages of a mapped file that were read, or all of them count as memory in use in the end."""
    while isinstance(rows, np.ndarray):
        rows = rows.base
    if isinstance(rows, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        rows.madvise(mmap.MADV_DONTNEED)


def size_text(n_bytes: float) -> str:
    """Return a number of bytes as people read it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "bytes" else f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.3g} TB"
