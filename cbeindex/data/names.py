"""Names: ids that are strings, as a column of UTF-8 bytes.

A row of an index with string ids has an integer id inside of the index, the number of its insertion, and its name
beside it. Names are translated where they come in and where results go out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.tuning import tuning
from .._core.typing import Rows
from ..errors import CorruptIndexFileError
from .columns import Column, GrowingRaggedRows

# Characters of a name that messages quote.
_MOST_SHOWN = 80


class Names:
    """Strings in UTF-8, one after the other.

    Parameters
    ----------
    offsets : int64 array of shape (n + 1,)
        Name i has the bytes [offsets[i], offsets[i + 1]).
    data : uint8 array

    Attributes
    ----------
    finder : store.namefinder.NameFinder, or None
        Finds names. It is made on first use, and shared by all segments that have these names.
    """

    __slots__ = ("data", "finder", "offsets")

    def __init__(self, offsets: Rows, data: NDArray[np.uint8]) -> None:
        self.offsets, self.data = offsets, data
        self.finder: Any = None

    @classmethod
    def of(cls, strings: Sequence[str]) -> Names:
        """Encode strings. Raises UnicodeEncodeError for surrogates, which UTF-8 cannot hold."""
        encoded = [string.encode() for string in strings]
        offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)), out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(encoded), dtype=np.uint8))

    @classmethod
    def joined(cls, parts: Sequence[Names]) -> Names:
        """Concatenate the names of several parts."""
        counts = [np.diff(part.offsets) for part in parts]
        offsets = np.concatenate([[0], np.cumsum(np.concatenate([np.empty(0, np.int64), *counts]))]).astype(np.int64)
        spans = [part.data[part.offsets[0] : part.offsets[-1]] for part in parts]
        return cls(offsets, np.concatenate([np.empty(0, np.uint8), *spans]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice | Rows) -> Names:
        """Return some names: a view for a slice, otherwise a copy."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            return Names(self.offsets[start : stop + 1], self.data)
        starts, stops = self.offsets[rows], self.offsets[rows + 1]
        if len(rows) and ((stops < starts).any() or starts.min() < 0 or stops.max() > len(self.data)):
            raise CorruptIndexFileError("names must have offsets within their bytes")
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(stops - starts, out=offsets[1:])
        data = np.empty(offsets[-1], dtype=np.uint8)
        for begin in range(0, len(rows), tuning().name_step_rows):  # the place of each byte takes 8 bytes
            some = slice(begin, min(begin + tuning().name_step_rows, len(rows)))
            first, last = offsets[some.start], offsets[some.stop]
            shifts = np.repeat(starts[some] - offsets[some], stops[some] - starts[some])
            data[first:last] = self.data[np.arange(first, last) + shifts]
        return Names(offsets, data)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def tolist(self) -> list[str]:
        """Decode all names."""
        ends = self.offsets.tolist()
        return self.between(ends[:-1], ends[1:])

    def between(self, begins: Sequence[int], ends: Sequence[int]) -> list[str]:
        """Decode the names with the bytes [begins[i], ends[i])."""
        view: Any = memoryview(self.data)  # type: ignore[arg-type]
        try:
            strings = [str(view[begin:end], "utf-8") for begin, end in zip(begins, ends, strict=True)]
        except UnicodeDecodeError as error:
            raise CorruptIndexFileError(f"names must be UTF-8: {error.reason}") from None
        if "" in strings:  # nobody can add such a name
            raise CorruptIndexFileError("names must not be empty")
        return strings

    @property
    def entries(self) -> tuple[Rows, NDArray[np.uint8]]:
        """Offsets and bytes."""
        return self.offsets, self.data

    @property
    def nbytes(self) -> int:
        """Memory of the names in bytes. A table that finds them takes 12 bytes more for each, and is in no file."""
        return self.offsets.nbytes + int(self.offsets[-1] - self.offsets[0])

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that a file stores."""
        first, last = self.offsets[0], self.offsets[-1]
        offsets = self.offsets - first if first else self.offsets
        return {"offsets": offsets, "bytes": self.data[first:last]}

    def check_offsets(self) -> None:
        """Raise CorruptIndexFileError unless every name has at least one byte of `data`."""
        if self.offsets[0] < 0 or self.offsets[-1] > len(self.data) or (self.offsets[1:] <= self.offsets[:-1]).any():
            raise CorruptIndexFileError("names must not be empty, and their offsets must be within their bytes")

    def check(self) -> None:
        """Raise CorruptIndexFileError unless these are non-empty names in UTF-8."""
        self.check_offsets()
        for start in range(0, len(self), tuning().name_step_rows):
            self[start : start + tuning().name_step_rows].tolist()

    def __reduce__(self) -> tuple[Any, ...]:
        return Names, self.entries


def shown(name: object) -> str:
    """Return an id as messages quote it, shortened if it is long."""
    if not isinstance(name, str):
        return str(name)
    return repr(name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}...")


def as_objects(strings: Sequence[str | None]) -> NDArray[np.object_]:
    """Return strings as an array of objects, as results hold them."""
    array = np.empty(len(strings), dtype=np.object_)
    array[:] = strings
    return array


@dataclass(frozen=True)
class NameColumn(Column):
    """The type of a column of names."""

    dtype: Any = np.uint8

    @property
    def row_bytes(self) -> int:
        """Bytes of the offset of a name. The length of names is not known in advance."""
        return 8

    def buffer(self, capacity: int) -> GrowingRaggedRows:
        """Allocate a buffer for `capacity` names."""
        return GrowingRaggedRows(Names, capacity, (np.uint8,))

    def joined(self, parts: Sequence[Any]) -> Names:
        """Concatenate the names of several parts."""
        return Names.joined(parts)


NAMES = "names"
"""The column of names, in segments and in files."""
