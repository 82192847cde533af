"""The documents of a vector store, and the numbers by which the index knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from .._core.typing import Ids


class Record(NamedTuple):
    """A document: its id, text and metadata."""

    id: str
    text: str
    metadata: dict[str, Any]


class Documents:
    """Documents with string ids, which the index knows by number.

    A number belongs to one id for good: it is not used again when the document is deleted. A writer holds a lock of the
    store. Readers take none, and see a document as it is at the time.
    """

    def __init__(self, numbered: Iterable[tuple[int, Record]] = ()) -> None:
        self._records: dict[int, Record] = dict(numbered)
        self._numbers = {record.id: number for number, record in self._records.items()}
        self.next_number = 1 + max(self._records, default=-1)

    def __len__(self) -> int:
        return len(self._records)

    def items(self) -> list[tuple[int, Record]]:
        """Return all numbers and documents in the order of numbers."""
        return sorted(self._records.items())

    def get(self, number: int) -> Record | None:
        """Return the document of a number, None if it is deleted."""
        return self._records.get(number)

    def numbers_of(self, ids: Iterable[str]) -> list[int]:
        """Return the numbers of ids in their order, without those that are not present."""
        return [number for id_ in ids if (number := self._numbers.get(id_)) is not None]

    def numbers_where(self, holds: Callable[[Record], bool]) -> Ids:
        """Return the numbers of all documents for which `holds`."""
        return np.array([number for number, record in self.items() if holds(record)], dtype=np.int64)

    @contextmanager
    def putting(self, records: Sequence[Record]) -> Iterator[Ids]:
        """Add or replace documents of distinct ids, and give their numbers; undo that if the block fails."""
        numbers, next_number = [], self.next_number
        for record in records:
            number = self._numbers.get(record.id)
            if number is None:
                number, next_number = next_number, next_number + 1
            numbers.append(number)
        before = {number: self._records.get(number) for number in numbers}
        self._records.update(zip(numbers, records, strict=True))
        try:
            yield np.array(numbers, dtype=np.int64)
        except BaseException:
            for number, record_before in before.items():
                if record_before is None:
                    del self._records[number]
                else:
                    self._records[number] = record_before
            raise
        self._numbers.update({record.id: number for record, number in zip(records, numbers, strict=True)})
        self.next_number = next_number

    def discard(self, numbers: Iterable[int]) -> None:
        """Delete documents that are present."""
        for number in numbers:
            del self._numbers[self._records.pop(number).id]
