"""Filters: the ids that may be results. A filter finds the rows of a segment once, and keeps them while both exist."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from .._core.tuning import Tuning, tuning
from .._core.typing import Ids, Mask, Rows
from ..data.ids import Numbers, as_filter
from ..data.sorted import without
from ..store.segment import NOT_HIDDEN, Segment
from ..store.snapshot import Snapshot

_numbers = count()


class _Found(NamedTuple):
    """The rows of a segment that a filter leaves: few allowed ones, or a mask of those that must not be results."""

    constants: Tuning
    rows: Rows | None
    hidden: Mask


class IdFilter:
    """Ids that alone may be results, and ids that must not be.

    `CBEIndex.filter` and `BinaryIndex.filter` prepare one for many searches. A filter holds ids, not rows, so it stays
    right when rows are added, replaced or removed. It does not change.

    Attributes
    ----------
    allow : int64 array, Names, Numbers, bool array, or None
        Ids that alone may be results, integers ascending and without denied ids. They need not exist. A mask has an
        entry for each id of the index.
    deny : likewise
        Ids that must not be results. None if both are integers.
    number : int or None
        The number of a prepared filter, by which searches are kept.
    """

    __slots__ = ("__weakref__", "_found", "allow", "deny", "number")

    def __init__(self, allow: Any = None, deny: Any = None) -> None:
        self.allow, self.deny = allow, deny
        self.number: int | None = None
        self._found: WeakKeyDictionary[Segment, _Found] = WeakKeyDictionary()

    @classmethod
    def checked(cls, allow: Any, deny: Any) -> IdFilter:
        """Check the arguments of a search."""
        allowed, denied = as_filter(allow, "allow"), as_filter(deny, "deny")
        if _is_integers(allowed) and _is_integers(denied):
            return cls(without(allowed, denied))  # type: ignore[arg-type]
        return cls(allowed, denied)

    @classmethod
    def prepared(cls, allow: Any, deny: Any, snapshot: Snapshot) -> IdFilter:
        """Make a filter for many searches. Masks become the ids that the rows of a snapshot have."""
        for name, given in (("allow", allow), ("deny", deny)):
            if isinstance(given, IdFilter):
                raise TypeError(f"{name} must be ids or a mask, got a filter that is prepared already")
            if entries_of(given) is not None:
                raise ValueError(
                    f"{name} must be the ids of one filter, got a sequence of filters: prepare each of them"
                )
        checked = cls.checked(allow, deny)._on(snapshot)
        sides = [snapshot.names(side.ids) if isinstance(side, Numbers) else side for side in checked._sides.values()]
        for side in sides:
            if side is not None:
                snapshot.find(side[:1])  # raises TypeError for ids of another kind
        return _restored(sides[0], sides[1], is_prepared=True)

    def __repr__(self) -> str:
        sides = [f"{name}: {len(side):,} ids" for name, side in self._sides.items() if side is not None]
        return f"<IdFilter {', '.join(sides) or 'of all ids'}>"

    def __reduce__(self) -> Any:
        return _restored, (self.allow, self.deny, self.number is not None)

    def on(self, segments: Sequence[Segment]) -> IdFilter:
        """Return the filter with ids in place of masks, of all rows of an index."""
        return self._on(Snapshot(tuple(segments), any(segment.has_names for segment in segments)))

    def _on(self, snapshot: Snapshot) -> IdFilter:
        if not any(map(_is_mask, self._sides.values())):
            return self
        ids = snapshot.ids()
        return IdFilter(*(_chosen(side, ids, name, snapshot) for name, side in self._sides.items()))

    @property
    def _sides(self) -> dict[str, Any]:
        return {"allow": self.allow, "deny": self.deny}

    def selected(self, segment: Segment) -> tuple[Rows | None, Mask]:
        """Return the rows of a segment that alone may be results, if they are few, and the mask of those that must not.

        Rows are in the order of ids; None stands for all. The mask is empty if all of the rows may be results.
        """
        found = self._found.get(segment)
        if found is None or found.constants is not tuning():
            rows = self.rows_of(segment)
            if rows is not None and len(rows) * tuning().few_allowed_share <= segment.n_rows:
                found = _Found(tuning(), rows, NOT_HIDDEN)
            else:
                found = _Found(tuning(), None, self.hidden(segment, rows))
            self._found[segment] = found
        return found.rows, found.hidden

    def rows_of(self, segment: Segment) -> Rows | None:
        """Return the rows of a segment whose ids are in `allow`, in the order of ids; None without `allow`."""
        if self.allow is None:
            return None
        rows = segment.rows_among(self.allow)
        if self.deny is not None:
            rows = rows[~np.isin(rows, segment.rows_among(self.deny))]
        return rows

    def hidden(self, segment: Segment, rows: Rows | None) -> Mask:
        """Mark the rows of a segment that must not be results; empty if all rows may. `rows` comes from `rows_of`."""
        if rows is not None:
            hidden = np.ones(segment.n_rows, dtype=np.bool_)
            hidden[rows] = False
            return hidden
        if self.deny is None:
            return segment.removed
        hidden = segment.removed.copy() if segment.removed.size else np.zeros(segment.n_rows, dtype=np.bool_)
        hidden[segment.rows_among(self.deny)] = True
        return hidden


NO_FILTER = IdFilter()
"""A filter that all ids pass."""


class FilterPerQuery(NamedTuple):
    """A filter for each query.

    Attributes
    ----------
    allow, deny : list
        One of the two is a list of what is allowed or denied for each query, and the other one too, or the same for
        all queries.
    """

    allow: Any
    deny: Any

    def groups(self, n_queries: int, is_single: bool) -> list[tuple[IdFilter, Rows]]:
        """Return each different filter, and the queries that it is for."""
        columns = []
        for name, given in zip(self._fields, self, strict=True):
            entries = entries_of(given)
            if entries is None:
                columns.append([given] * n_queries)
                continue
            if is_single:
                raise ValueError(f"{name} of a single query must be one filter, got a sequence of {len(entries)}")
            if len(entries) != n_queries:
                raise ValueError(f"{name} must have a filter for each of {n_queries} queries, got {len(entries)}")
            columns.append(entries)
        of_queries: dict[tuple[int, int], list[int]] = {}
        for i, (allow, deny) in enumerate(zip(*columns, strict=True)):
            of_queries.setdefault((id(allow), id(deny)), []).append(i)
        return [
            (_one(columns[0][places[0]], columns[1][places[0]]), np.array(places)) for places in of_queries.values()
        ]


def filter_of(allow: Any, deny: Any) -> IdFilter | FilterPerQuery:
    """Check what a search is told to allow and to deny."""
    if allow is None and deny is None:
        return NO_FILTER
    if type(allow) is IdFilter and deny is None:  # quick, for many searches of one query
        return allow
    if entries_of(allow) is not None or entries_of(deny) is not None:
        return FilterPerQuery(allow, deny)
    return _one(allow, deny)


def one_filter(allow: Any, deny: Any) -> IdFilter:
    """Check what a call that takes no filter for each query is told to allow and to deny."""
    ids = filter_of(allow, deny)
    if isinstance(ids, FilterPerQuery):
        raise ValueError("explain describes one filter, got a sequence of filters: pass one of them")
    return ids


def entries_of(given: Any) -> list[Any] | None:
    """Return the filters of each query if these are given, None if there is one filter.

    A list is a list of filters if the first entry that is not None is no id, and an array is one if it has two axes.
    """
    if isinstance(given, np.ndarray):
        return list(given) if given.ndim == 2 else None
    if not isinstance(given, list | tuple) or not len(given):
        return None
    first = next((entry for entry in given if entry is not None), None)
    is_one = hasattr(first, "__iter__") and not isinstance(first, str) and getattr(first, "ndim", 1) > 0
    return list(given) if is_one or first is None or isinstance(first, IdFilter) else None


def _one(allow: Any, deny: Any) -> IdFilter:
    """Return the filter of some queries."""
    if isinstance(deny, IdFilter):
        raise TypeError("deny must be ids or a mask, got a prepared filter: pass it as allow")
    if not isinstance(allow, IdFilter):
        return NO_FILTER if allow is None and deny is None else IdFilter.checked(allow, deny)
    if deny is not None:
        raise ValueError("a prepared filter allows and denies: pass deny to filter(), not to the search")
    return allow


def _is_mask(side: Any) -> bool:
    return isinstance(side, np.ndarray) and side.dtype == np.bool_


def _is_integers(side: Any) -> bool:
    return isinstance(side, np.ndarray) and side.dtype != np.bool_


def _chosen(side: Any, ids: Ids, name: str, snapshot: Snapshot) -> Any:
    """Return the ids that a mask over `ids`, those of all rows, chooses; other sides of a filter as they are."""
    if not _is_mask(side):
        return side
    if len(side) != len(ids):
        raise ValueError(
            f"{name} is a mask, so it must have {len(ids):,} entries, one for each of index.ids in that order, got "
            f"{len(side):,}"
        )
    chosen: NDArray[np.int64] = ids[side]
    return Numbers(chosen) if snapshot.has_names else chosen


def _restored(allow: Any, deny: Any, is_prepared: bool) -> IdFilter:
    """Make a filter, also from one that was pickled."""
    ids = IdFilter(allow, deny)
    ids.number = next(_numbers) if is_prepared else None
    return ids
