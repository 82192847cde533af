"""Segments as the sections and JSON entries of an index file, and back.

Loading checks every size, dtype and shape, and the values that cost little to read. Values of mapped arrays are checked
when they are first used, because a check at load would read the whole file. `checking.py` reads all of them.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from .._core.checks import as_choice, as_count
from .._core.typing import Arrays, Ids, Mask, Ranks
from ..data.codes import BLOCK_ROWS, CodeRows, n_words
from ..data.columns import Column
from ..data.names import NameColumn, Names
from ..data.sparserows import SparseRows
from ..search.buckets import MAKERS, BucketMaker, Buckets
from ..store.rowstore import RowStore
from ..store.segment import NO_RANKS, NOT_HIDDEN, Segment
from . import version1
from .checking import FileOrigin, RowRules
from .container import Stored
from .values import value_of

# All kinds of buckets, by their names in files.
_BUCKETS: dict[str, type[Buckets]] = {maker.buckets.kind: maker.buckets for _, maker in sorted(MAKERS.items())}


class SavedSegment(NamedTuple):
    """A segment that the file holds, the prefix of its section names, and the section that marks removed rows."""

    name: str
    removed_name: str | None
    segment: Segment


class DescribedRows(NamedTuple):
    """Rows as a commit stores them.

    Attributes
    ----------
    content : dict
        The JSON entry "rows".
    new : dict of str to array
        Sections to write.
    kept : set of str
        Names of sections that the file already has and that stay in use.
    saved : list of SavedSegment
        The segments that the file holds after the commit.
    """

    content: dict[str, Any]
    new: Arrays
    kept: set[str]
    saved: list[SavedSegment]


def describe_rows(rows: RowStore, before: list[SavedSegment], sequence: int) -> DescribedRows:
    """Describe all rows for commit `sequence` of a file that already holds the segments `before`."""
    new: Arrays = {}
    kept: set[str] = set()
    entries, saved = [], []
    for number, segment in enumerate(rows.seal()):
        old = next((candidate for candidate in before if candidate.segment.ids is segment.ids), None)
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
        buckets = _describe_buckets(segment.buckets)
        entries.append({"name": name, "n_rows": segment.n_rows, "removed": removed_name, "buckets": buckets})
        saved.append(SavedSegment(name, removed_name, segment))
    return DescribedRows({"next_id": rows.next_id, "segments": entries}, new, kept, saved)


def mapped_crcs(saved: list[SavedSegment]) -> dict[str, int]:
    """Return the checksums that arrays mapped from another file must have, by section name."""
    return {
        f"{name}/{part}": origin.mapped.crcs[part]
        for name, _, segment in saved
        if isinstance(origin := segment.origin, FileOrigin) and origin.mapped is not None
        for part in _arrays_of(segment)
        if part in origin.mapped.crcs  # codes of version 1 were compared when they were converted
    }


def load_segments(described: Any, stored: Stored, rows: RowStore) -> tuple[list[SavedSegment], int]:
    """Rebuild the segments that the entry "rows" of a file describes, and return them with the next free id."""
    entries = value_of(described, "segments", list)
    next_id = as_count(value_of(described, "next_id"), "next_id", least=0, most=2**63)
    _check_entries(entries, stored.sequence, rows)
    rules, saved = RowRules.of(stored, rows), []
    for entry in entries:
        name = entry["name"]
        origin = FileOrigin(stored.path, rules, stored.mapped(f"{name}/"))
        saved.append(SavedSegment(name, entry["removed"], _load_segment(entry, stored, rows, next_id, origin)))
    return saved, next_id


def _arrays_of(segment: Segment) -> Arrays:
    """Return the arrays of a segment that never change, by the last part of their section names."""
    codes = segment.codes
    arrays: Arrays = {"ids": segment.ids, **({"rows": codes.rows} if codes.is_by_row else {"blocks": codes.blocks})}
    if segment.order.size:
        arrays |= {"order": segment.order, "ranks": segment.ranks}
    stored = () if segment.buckets is None else segment.buckets.stored_columns
    for name, values in segment.columns.items():
        if name in stored:
            continue
        if isinstance(values, (SparseRows, Names)):
            arrays |= {f"{name}/{part}": array for part, array in values.to_arrays().items()}
        else:
            arrays[name] = values
    if segment.buckets is not None:
        arrays |= {f"{segment.buckets.kind}/{name}": array for name, array in segment.buckets.to_arrays().items()}
    return arrays


def _describe_buckets(buckets: Buckets | None) -> dict[str, Any] | None:
    """Return the JSON entry of buckets."""
    return None if buckets is None else {"kind": buckets.kind, **buckets.describe()}


class _SegmentArrays:
    """Checked access to the arrays of one segment of a file."""

    def __init__(self, name: str, n_rows: int, arrays: Arrays) -> None:
        self.name, self.n_rows = name, n_rows
        self._arrays = arrays

    def get(self, part: str, dtype: Any, *shape: int | None) -> Any:
        """Return the section `part`, which must have this dtype and shape. None stands for any size."""
        section = f"{self.name}/{part}"
        found = self._arrays[section]
        fits = len(found.shape) == len(shape) and all(
            expected in (None, size) for size, expected in zip(found.shape, shape, strict=True)
        )
        if found.dtype != dtype or not fits:
            expected = f"{np.dtype(dtype)} of shape {shape}"
            raise ValueError(f"section {section} must be {expected}, got {found.dtype} of shape {found.shape}")
        return found

    def removed(self, section: str | None) -> Mask:
        """Return the mask of removed rows that `section` holds."""
        if section is None:
            return NOT_HIDDEN
        found = self._arrays[section]
        if found.dtype != np.bool_ or found.shape != (self.n_rows,):
            raise ValueError(f"section {section} must be bool of shape {(self.n_rows,)}")
        is_removed: Mask = found.view(np.uint8) != 0  # bytes of a mapped bool array may be neither 0 nor 1
        return is_removed


def _check_entries(entries: list[Any], sequence: int, rows: RowStore) -> None:
    """Raise ValueError unless the segment entries are such as commits up to `sequence` write."""
    n_rows = sum(as_count(value_of(entry, "n_rows"), "n_rows", most=2**31 - 1) for entry in entries)
    if len(entries) > rows.most_segments(n_rows):  # every segment costs time, however small
        raise ValueError(f"{n_rows} rows must be in at most {rows.most_segments(n_rows)} segments, got {len(entries)}")
    names = set()
    for entry in entries:
        name, removed = value_of(entry, "name", str), value_of(entry, "removed")
        # Later commits use larger numbers, so the names that they choose are free.
        if not _is_up_to(re.fullmatch(r"segment ([0-9]{1,19})\.[0-9]{1,19}", name), sequence):
            raise ValueError(f"the name of a segment must carry a commit number up to {sequence}, got {name!r}")
        if name in names:  # entries that share sections would claim any number of rows at no cost
            raise ValueError(f"names of segments must be unique, {name!r} is repeated")
        names.add(name)
        pattern = re.escape(name) + r"/removed ([0-9]{1,19})"
        if removed is not None and not _is_up_to(re.fullmatch(pattern, str(removed)), sequence):
            raise ValueError(f"removed rows of {name} must be in a section of that segment, of commit 1 to {sequence}")


def _is_up_to(name: re.Match[str] | None, sequence: int) -> bool:
    """Tell whether a name matched and the commit number in it is at most `sequence`."""
    return name is not None and int(name[1]) <= sequence


def _load_segment(entry: Any, stored: Stored, rows: RowStore, next_id: int, origin: FileOrigin) -> Segment:
    """Rebuild one segment from its checked entry."""
    name, n_rows = entry["name"], entry["n_rows"]
    arrays = _SegmentArrays(name, n_rows, stored.arrays)
    kind = _kind_of_buckets(entry, rows)
    codes = _load_codes(arrays, stored, rows.n_bits, by_row=kind is not None and kind.stores_codes_by_row)
    order = ranks = NO_RANKS
    if kind is not None and kind.reorders_rows:
        order, ranks = arrays.get("order", np.int32, n_rows), arrays.get("ranks", np.int32, n_rows)
    ids = arrays.get("ids", np.int64, n_rows)
    _check_id_range(ids, order, next_id)
    buckets = None if kind is None else _load_buckets(kind, entry["buckets"], arrays, rows.buckets)
    own = {} if buckets is None else buckets.columns()
    return Segment(
        ids,
        codes,
        {key: own[key] if key in own else _load_column(key, column, arrays) for key, column in rows.columns.items()},
        arrays.removed(entry["removed"]),
        order,
        ranks,
        buckets,
        origin,
    )


def _load_codes(arrays: _SegmentArrays, stored: Stored, n_bits: int, by_row: bool) -> CodeRows:
    """Return the codes of a segment, which are views of its section unless the file has version 1."""
    n_rows = arrays.n_rows
    if stored.version == 1:
        return version1.load_codes(arrays.get, n_rows, n_bits, by_row)
    if by_row:
        return CodeRows(arrays.get("rows", np.uint64, n_rows, n_words(n_bits))[:, :, np.newaxis])
    return CodeRows(arrays.get("blocks", np.uint64, -(-n_rows // BLOCK_ROWS), n_words(n_bits), BLOCK_ROWS))


def _kind_of_buckets(entry: Any, rows: RowStore) -> type[Buckets] | None:
    """Return the kind of buckets that a segment has, which must be that of the index."""
    described = value_of(entry, "buckets")
    if described is None:
        if rows.buckets is not None and rows.buckets.uses_residuals:
            raise ValueError(f"{entry['name']} must have buckets, as all rows of an index with cells do")
        return None
    kind = _BUCKETS[as_choice(value_of(described, "kind"), "buckets", tuple(_BUCKETS))]
    if not isinstance(rows.buckets, BucketMaker) or rows.buckets.buckets is not kind:
        raise ValueError(f"{entry['name']} must not have {kind.kind}: the index is not of that kind")
    return kind


def _check_id_range(ids: Ids, order: Ranks, next_id: int) -> None:
    """Raise ValueError unless the first and the last id are in range, and far enough apart for unique ids."""
    ends = [0, -1]
    if order.size:
        ends = [int(row) for row in order[ends]]
        if min(ends) < 0 or max(ends) >= len(ids):
            raise ValueError(f"order must contain rows below {len(ids)}")
    first, last = (int(ids[row]) for row in ends)
    if first < 0 or last >= next_id or last - first < len(ids) - 1:
        raise ValueError(
            f"{len(ids)} ids must ascend from 0 or more to below next_id = {next_id}, got {first} to {last}"
        )


def _load_column(name: str, column: Column, arrays: _SegmentArrays) -> Any:
    """Return a column as an array, or as SparseRows."""
    if isinstance(column, NameColumn):
        data = arrays.get(f"{name}/bytes", np.uint8, None)
        offsets = arrays.get(f"{name}/offsets", np.int64, arrays.n_rows + 1)
        if offsets[0] != 0 or offsets[-1] != len(data) or len(data) < arrays.n_rows:
            raise ValueError(f"{name} must have {offsets[-1]} bytes and at least {arrays.n_rows}, got {len(data)}")
        return Names(offsets, data)
    if not column.is_sparse:
        return arrays.get(name, column.dtype, arrays.n_rows, *column.shape)
    values = arrays.get(f"{name}/values", column.dtype, None)
    indices = arrays.get(f"{name}/indices", np.int32, len(values))
    offsets = arrays.get(f"{name}/offsets", np.int64, arrays.n_rows + 1)
    if offsets[0] != 0 or offsets[-1] != len(values):
        raise ValueError(f"sparse {name} must have {offsets[-1]} entries, got {len(values)}")
    return SparseRows(offsets, indices, values)


def _load_buckets(kind: type[Buckets], described: dict[str, Any], arrays: _SegmentArrays, maker: Any) -> Buckets:
    """Rebuild the buckets of a segment from their JSON entry and sections."""

    def read(part: str, dtype: Any, *shape: int | None) -> Any:
        return arrays.get(f"{kind.kind}/{part}", dtype, *shape)

    return kind.from_arrays(described, read, maker, arrays.n_rows)
