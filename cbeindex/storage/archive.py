"""What an index file says of an index: rows and encoders as named arrays and plain values, and back.

The values that come back from a file are not to be trusted: whatever is used as a place in memory is checked here, or,
where that would mean to read all of a mapped array, when it is first used. `Archive.check` reads all of it.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from .._core.checks import as_choice, as_count, as_flag
from .._core.typing import Arrays
from ..data.codes import BLOCK_ROWS, CodeRows
from ..data.columns import Column
from ..data.sparserows import SparseRows
from ..encoders import ENCODERS, Encoder
from ..errors import CorruptIndexFileError
from ..search.buckets import MAKERS, BucketMaker, Buckets
from ..store.rowstore import RowStore
from ..store.segment import NO_RANKS, NOT_HIDDEN, Segment
from ..store.snapshot import Snapshot
from . import container as storage
from .container import Stored
from .sections import MappedArrays

# Values of columns: vectors of length 1e18, the longest that are taken, make squares of 1e36, and factors that are
# multiplied by the length of a query.
_LARGEST_VALUES = {"offsets": 1e37, "factors": 1e19, "spreads": 1e19, "vectors": 1e18}
# Rows of a column that are checked at a time.
_CHECK_ROWS = 2**14

_BUCKETS: dict[str, type[Buckets]] = {maker.buckets.kind: maker.buckets for _, maker in sorted(MAKERS.items())}


class Saved(NamedTuple):
    """A segment that is in the file: what its sections are called, and the one that marks removed rows."""

    name: str
    removed_name: str | None
    segment: Segment


@dataclass
class Archive:
    """The file of an index, and which segments are in it.

    Attributes
    ----------
    stored : Stored
    saved : list of Saved
    """

    stored: Stored
    saved: list[Saved] = field(default_factory=list)
    _next: Archive | None = None  # what the file may hold since a save that was interrupted

    @classmethod
    def read(cls, path: str | os.PathLike[str], kind: str, mmap: bool, verify: bool) -> Archive:
        """Open a file that holds an index of this kind."""
        stored = storage.read(path, mmap=mmap, verify=verify)
        with naming(stored):
            found = stored.content.get("kind")
            if found != kind and found in ("BinaryIndex", "CBEIndex"):
                raise CorruptIndexFileError(f"this is the file of a {found}: open it with {found}.load")
            as_choice(found, "kind", (kind,))
        return cls(stored)

    @classmethod
    def write(
        cls,
        path: str | os.PathLike[str],
        content: dict[str, Any],
        arrays: Arrays,
        rows: RowStore,
        before: Archive | None,
        only_unchanged: bool,
    ) -> Archive:
        """Write an index to a new file; `before` is what it was last saved to, maybe the file that is replaced."""
        described, new, _, saved = _describe(rows, [], 1)

        def remember(stored: Stored) -> None:
            if before is not None and before.stored.path == stored.path:
                before._next = cls(stored, saved)

        before = before and before._latest()
        replaces = before.stored if before and only_unchanged else None
        content = {**content, "rows": described}
        crcs = {
            f"{name}/{part}": segment.origin.crcs[part]
            for name, _, segment in saved
            if isinstance(segment.origin, MappedArrays)
            for part in _arrays_of(segment)
        }
        stored = storage.write(path, content, {**arrays, **new}, replaces=replaces, crcs=crcs, before_commit=remember)
        return cls(stored, saved)

    def append(self, content: dict[str, Any], arrays: Arrays, rows: RowStore) -> Archive:
        """Write what is new to the file; arrays that are not of rows are written if they were not there."""
        before = self._latest()
        described, new, kept, saved = _describe(rows, before.saved, before.stored.sequence + 1)
        same = {name for name, array in arrays.items() if _is_same(before.stored.arrays.get(name), array)}
        new |= {name: array for name, array in arrays.items() if name not in same}

        def remember(stored: Stored) -> None:
            before._next = Archive(stored, saved)

        content = {**content, "rows": described}
        stored = storage.append(before.stored, content, new, kept | same, before_commit=remember)
        return Archive(stored, saved)

    def _latest(self) -> Archive:
        """Return what this index has put into the file last, where a save was interrupted before it could tell so."""
        archive = self
        while archive._next is not None and not storage.is_current(archive.stored):
            archive = archive._next
        return archive

    def load_rows(self, rows: RowStore) -> None:
        """Fill an empty store with the rows of the file."""
        with naming(self.stored):
            described = value_of(self.stored.content, "rows", dict)
            entries = value_of(described, "segments", list)
            next_id = as_count(value_of(described, "next_id"), "next_id", least=0, most=2**63)
            _check_entries(entries, self.stored.sequence, rows)
            self.saved = [
                Saved(entry["name"], entry["removed"], _load_segment(entry, self.stored, rows, next_id))
                for entry in entries
            ]
            rows.restore(tuple(saved.segment for saved in self.saved), next_id)
        for saved in self.saved:
            if saved.removed_name is not None:
                _check_mapped(self.stored, saved.removed_name)

    def check(self, rows: RowStore) -> None:
        """Raise an IndexFileError if rows that were loaded make no sense, at the cost of reading all of them."""
        with naming(self.stored):
            segments = tuple(saved.segment for saved in self.saved)
            for segment in segments:
                segment.check(rows.columns)
                for name, column in segment.columns.items():
                    _check_values(name, column, self._largest(name))
                if _has_spare_bits(segment.codes, rows.n_bits):
                    raise CorruptIndexFileError(f"codes must have zeros past bit {rows.n_bits - 1}")
            Snapshot(segments).ids()  # refuses repetitions

    def _largest(self, name: str) -> float:
        """Return what the values of a column are below, if sums of them are to be far from the largest float32."""
        if name == "vectors" and self.stored.content.get("metric") == "cosine":  # they are divided by their norms
            return float("inf")
        return _LARGEST_VALUES.get(name, float("inf"))


class Saveable(ABC):
    """An index that can be saved to a file, and loaded from it."""

    _archive: Archive | None = None

    @property
    def path(self) -> str | None:
        """The file that the index was saved to or loaded from last."""
        return None if self._archive is None else str(self._archive.stored.path)

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Save the index to a file.

        Killed at any moment, the file holds what it held before or all of the index; so it does after an error, and
        then the index can be saved again. Readers that have it open keep what they see.

        Parameters
        ----------
        path : str or path-like, optional
            A file that is made or replaced. Without it, what is new since the last `save` or `load`, if anything, is
            appended to that file; if someone else has written to it since, that is a WriterConflictError.
        """
        with self._writing() as rows:
            content, arrays = self._content()
            if path is not None:
                self._archive = Archive.write(path, content, arrays, rows, self._archive, only_unchanged=False)
            elif self._archive is None:
                raise ValueError("save needs a path: the index has not been saved or loaded yet")
            else:
                self._archive = self._archive.append(content, arrays, rows)

    @classmethod
    def load(cls, path: str | os.PathLike[str], mmap: bool = True, verify: bool = False) -> Self:
        """Open the index in a file.

        Parameters
        ----------
        path : str or path-like
        mmap : bool
            Map the file: opening takes the same short time whatever its size, and memory is taken by what searches
            touch. Vectors can be added and removed; the file changes with `save` alone. Otherwise all of it is read,
            and checked.
        verify : bool
            Check all of a mapped file too.
        """
        archive = Archive.read(path, cls.__name__, as_flag(mmap, "mmap"), as_flag(verify, "verify"))
        _check_mapped(archive.stored, "encoder/")
        with naming(archive.stored):
            index, rows = cls._from_content(archive.stored.content, archive.stored.arrays)
        archive.load_rows(rows)
        index._archive = archive
        return index

    def compact(self) -> None:
        """Give back the room of what was removed; of an index that has a file, write the file anew."""
        with self._writing() as rows:
            rows.compact()
            if self._archive is not None:
                path, (content, arrays) = self._archive.stored.path, self._content()
                self._archive = Archive.write(path, content, arrays, rows, self._archive, only_unchanged=True)

    def _check(self) -> None:
        """Look at all that a mapped file says."""
        with self._writing() as rows:
            if self._archive is not None:
                self._archive.check(rows)

    @abstractmethod
    def _writing(self) -> AbstractContextManager[RowStore]:
        """Keep other writers out, and give the rows."""

    @abstractmethod
    def _content(self) -> tuple[dict[str, Any], Arrays]:
        """Describe the index apart from its rows."""

    @classmethod
    @abstractmethod
    def _from_content(cls, content: dict[str, Any], arrays: Arrays) -> tuple[Self, RowStore]:
        """Make an index without rows, and give the store that they go to."""


def verify(path: str | os.PathLike[str]) -> None:
    """Check every byte of an index file; raises an IndexFileError that says what is wrong.

    Examples
    --------
    >>> import cbeindex, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cbeindex.BinaryIndex(64).save(f"{folder}/codes.cbe")
    ...     cbeindex.verify(f"{folder}/codes.cbe")
    """
    storage.verify(path)
    kinds = {kind.__name__: kind for kind in Saveable.__subclasses__()}
    stored = storage.read(path)
    with naming(stored):
        kind = kinds[as_choice(stored.content.get("kind"), "kind", tuple(kinds))]
    kind.load(path)._check()


@contextmanager
def naming(stored: Stored) -> Iterator[None]:
    """Turn what checks say of the values of a file into an error that names the file.

    Only these: a lack of memory, for one, is no fault of the file.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise CorruptIndexFileError(f"{stored.path}: {what}") from error
    except CorruptIndexFileError as error:
        raise CorruptIndexFileError(f"{stored.path}: {error}") from None


def value_of(values: Any, name: str, kind: type = object) -> Any:
    """Return a value of the content of a file, which must be there and of this type."""
    if not isinstance(values, dict):
        raise ValueError(f"{name!r} must be in an object, got {type(values).__name__}")
    if name not in values:
        raise ValueError(f"{name!r} is missing")
    if not isinstance(values[name], kind):
        raise ValueError(f"{name!r} must be of type {kind.__name__}, got {type(values[name]).__name__}")
    return values[name]


def options_of(content: dict[str, Any]) -> dict[str, Any]:
    """Return the options of buckets, for the constructor to check like those of a user."""
    options: dict[str, Any] = value_of(content, "options", dict)
    for name in options:
        as_choice(name, "the name of an option", ("n_tables", "table_bits", "n_cells"))
    return options


def encoder_content(encoder: Encoder) -> tuple[dict[str, Any], Arrays]:
    """Describe an encoder for the file: values and arrays."""
    if not isinstance(encoder, Encoder) or ENCODERS.get(encoder.name) is not type(encoder):
        raise TypeError(f"an index with an encoder of type {type(encoder).__name__} cannot be saved, only ours can")
    return encoder.config(), {f"encoder/{name}": array for name, array in encoder.to_arrays().items()}


def load_encoder(config: Any, arrays: Arrays, dim: int, n_bits: int) -> Encoder:
    """Rebuild an encoder."""
    kind = ENCODERS[as_choice(value_of(config, "encoder"), "encoder", tuple(ENCODERS))]
    prefix = "encoder/"
    own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    for name, array in own.items():
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            raise ValueError(f"{name} of the encoder must be finite")
    encoder = kind.from_arrays(config, own)
    if (encoder.dim, encoder.n_bits) != (dim, n_bits):
        raise ValueError(f"the encoder makes {encoder.n_bits} bits of {encoder.dim} values, not {n_bits} of {dim}")
    return encoder


def _has_spare_bits(codes: CodeRows, n_bits: int) -> bool:
    """Tell whether codes have ones past `n_bits`."""
    last = codes.tail[:, -1] if codes.tail.shape[1] else codes.head[:, -1] if codes.n_head else np.uint64(0)
    return n_bits % 64 > 0 and bool((last >> np.uint64(n_bits % 64)).any())


def _check_values(name: str, column: Any, largest: float) -> None:
    """Raise CorruptIndexFileError if a column has values that distances cannot be computed from."""
    values = column.values if isinstance(column, SparseRows) else column
    for start in range(0, len(values), _CHECK_ROWS):
        some = values[start : start + _CHECK_ROWS]
        if not np.isfinite(some).all():
            raise CorruptIndexFileError(f"{name} must be finite")
        if float(np.abs(some).max(initial=0)) > largest:
            raise CorruptIndexFileError(f"{name} must be up to {largest:g}, got {np.abs(some).max():g}")
        if name in ("factors", "spreads") and (some < 0).any():
            raise CorruptIndexFileError(f"{name} must be 0 or more")


def _is_same(old: Any, new: Any) -> bool:
    return old is not None and (old is new or (old.dtype == new.dtype and np.array_equal(old, new)))


def _describe(
    rows: RowStore, saved: list[Saved], sequence: int
) -> tuple[dict[str, Any], Arrays, set[str], list[Saved]]:
    """Describe rows for the file: values, new arrays, names of arrays that are there already, what is saved then."""
    new: Arrays = {}
    kept: set[str] = set()
    entries, then = [], []
    for number, segment in enumerate(rows.seal()):
        old = next((before for before in saved if before.segment.ids is segment.ids), None)
        name = old.name if old else f"segment {sequence}.{number}"
        arrays = {f"{name}/{part}": array for part, array in _arrays_of(segment).items()}
        if old:
            kept |= arrays.keys()
        else:
            new |= arrays
        removed_name = None
        if segment.removed.size and old and old.segment.removed is segment.removed:
            removed_name = old.removed_name
            kept.add(str(removed_name))
        elif segment.removed.size:
            removed_name = f"{name}/removed {sequence}"
            new[removed_name] = segment.removed
        buckets = None
        if segment.buckets is not None:
            buckets = {"kind": segment.buckets.kind, **segment.buckets.describe()}
        entries.append({"name": name, "n_rows": segment.n_rows, "removed": removed_name, "buckets": buckets})
        then.append(Saved(name, removed_name, segment))
    return {"next_id": rows.next_id, "segments": entries}, new, kept, then


def _arrays_of(segment: Segment) -> Arrays:
    """Name the arrays of a segment that never change."""
    arrays: Arrays = {"ids": segment.ids, "head": segment.codes.head, "tail": segment.codes.tail}
    if segment.order.size:
        arrays |= {"order": segment.order, "ranks": segment.ranks}
    for name, values in segment.columns.items():
        if isinstance(values, SparseRows):
            span = slice(values.offsets[0], values.offsets[-1])
            arrays[f"{name}/offsets"] = values.offsets - values.offsets[0]
            arrays[f"{name}/indices"], arrays[f"{name}/values"] = values.indices[span], values.values[span]
        else:
            arrays[name] = values
    if segment.buckets is not None:
        arrays |= {f"{segment.buckets.kind}/{name}": array for name, array in segment.buckets.to_arrays().items()}
    return arrays


def _check_entries(entries: list[Any], sequence: int, rows: RowStore) -> None:
    """Raise ValueError if segments are not such as saves up to this one have left."""
    n_rows = sum(as_count(value_of(entry, "n_rows"), "n_rows", most=2**31 - 1) for entry in entries)
    if len(entries) > rows.most_segments(n_rows):  # each of them costs time, whatever its size
        raise ValueError(f"{n_rows} rows must be in at most {rows.most_segments(n_rows)} segments, got {len(entries)}")
    names = set()
    for entry in entries:
        name, removed = value_of(entry, "name", str), value_of(entry, "removed")
        # Names of later saves have larger numbers, so that none of them is taken.
        if not _is_earlier(re.fullmatch(r"segment ([0-9]{1,19})\.[0-9]{1,19}", name), sequence):
            raise ValueError(f"a segment must have a name of save {sequence} or before, got {name!r}")
        if name in names:  # it would cost a file nothing to claim any number of rows
            raise ValueError(f"each segment must have a name of its own, {name!r} comes twice")
        names.add(name)
        pattern = re.escape(name) + r"/removed ([0-9]{1,19})"
        if removed is not None and not _is_earlier(re.fullmatch(pattern, str(removed)), sequence):
            raise ValueError(f"removed rows of {name} must be marked by itself, in save {sequence} or before")


def _is_earlier(name: re.Match[str] | None, sequence: int) -> bool:
    """Tell whether a name fits, and the number in it is that of a save up to this one."""
    return name is not None and int(name[1]) <= sequence


def _load_segment(entry: Any, stored: Stored, rows: RowStore, next_id: int) -> Segment:
    """Rebuild a segment."""
    name, n_rows, arrays = entry["name"], entry["n_rows"], stored.arrays

    def array(part: str, dtype: Any, *shape: int | None) -> Any:
        found = arrays[f"{name}/{part}"]
        fits = found.ndim == len(shape) and all(
            want in (None, got) for got, want in zip(found.shape, shape, strict=True)
        )
        if found.dtype != dtype or not fits:
            wanted = f"{np.dtype(dtype)} of shape {shape}"
            raise ValueError(f"section {name}/{part} must be {wanted}, got {found.dtype} of shape {found.shape}")
        return found

    described = value_of(entry, "buckets")
    kind = None
    if described is not None:
        kind = _BUCKETS[as_choice(value_of(described, "kind"), "buckets", tuple(_BUCKETS))]
        if not isinstance(rows.buckets, BucketMaker) or rows.buckets.buckets is not kind:
            raise ValueError(f"an index with these buckets has no {kind.kind}")
    layout = CodeRows.empty(0, rows.n_bits, by_row=kind is not None and kind.stores_codes_by_row)
    codes = CodeRows(
        array("head", np.uint64, -(-n_rows // BLOCK_ROWS), layout.n_head, BLOCK_ROWS),
        array("tail", np.uint64, n_rows, layout.tail.shape[1]),
    )
    columns = {key: _load_column(key, column, array, n_rows) for key, column in rows.columns.items()}
    removed = NOT_HIDDEN
    if entry["removed"] is not None:
        removed = arrays[entry["removed"]]
        if removed.dtype != np.bool_ or removed.shape != (n_rows,):
            raise ValueError(f"section {entry['removed']} must be bool of shape {(n_rows,)}")
        removed = removed.view(np.uint8) != 0  # a mapped section may hold anything
    ids = array("ids", np.int64, n_rows)
    order = ranks = NO_RANKS
    ends = [0, -1]
    if kind is not None and kind.reorders_rows:
        order, ranks = array("order", np.int32, n_rows), array("ranks", np.int32, n_rows)
        ends = [int(row) for row in order[ends]]
        if min(ends) < 0 or max(ends) >= n_rows:
            raise ValueError(f"the order of rows must be of numbers below {n_rows}")
    buckets = None
    if kind is not None:
        prefix = kind.kind
        buckets = kind.from_arrays(described, lambda part, *rest: array(f"{prefix}/{part}", *rest), rows.n_bits, n_rows)
    first, last = (int(ids[row]) for row in ends)
    if not 0 <= first <= last < next_id:
        raise ValueError(f"ids must ascend from 0 or more to below next_id = {next_id}, got {first} to {last}")
    return Segment(
        ids,
        codes,
        columns,
        removed,
        order,
        ranks,
        buckets,
        stored.mapped(f"{name}/"),
    )


def _check_mapped(stored: Stored, prefix: str) -> None:
    """Raise CorruptIndexFileError if mapped arrays that are read when the file is opened are damaged."""
    mapped = stored.mapped(prefix)
    if mapped is not None:
        mapped.check()


def _load_column(name: str, column: Column, array: Callable[..., Any], n_rows: int) -> Any:
    if not column.is_sparse:
        return array(name, column.dtype, n_rows, *column.shape)
    values = array(f"{name}/values", column.dtype, None)
    indices = array(f"{name}/indices", np.int32, len(values))
    offsets = array(f"{name}/offsets", np.int64, n_rows + 1)
    if offsets[0] != 0 or offsets[-1] != len(values):
        raise ValueError(f"sparse {name} must have {offsets[-1]} entries, got {len(values)}")
    return SparseRows(offsets, indices, values)
