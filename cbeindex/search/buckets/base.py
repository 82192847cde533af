"""Buckets: what every kind offers to the planner, the search and the index file.

Buckets belong to one segment and find rows near a query without scanning all of them. A kind of buckets is a class of
buckets and a maker, in one module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from ..._core.typing import Arrays, Mask
from ...data.codes import CodeRows
from ...data.keys import EstimateKeys, HammingKeys
from ...distances.estimator import EncodedQueries
from ...store.segment import Segment
from ..plan import Cost, Plan
from ..queries import CodeQueries
from ..scan import Matches
from ..view import View

ArrayReader: TypeAlias = Callable[..., Any]
"""Returns an array of an index file: `read(name, dtype, *shape)`, where None in the shape stands for any size.

Raises ValueError if the array has another dtype or shape.
"""


class Visits(NamedTuple):
    """What a search by buckets visited, over all queries.

    Attributes
    ----------
    rows, buckets : int
    survivors : int or None
        Rows compared beyond their first words, where buckets are searched by the cascade.
    """

    rows: int
    buckets: int
    survivors: int | None = None

    @classmethod
    def total(cls, parts: list[Visits]) -> Visits:
        """Add up the visits of several tasks, at least one."""
        survivors = [part.survivors for part in parts if part.survivors is not None]
        return cls(
            sum(part.rows for part in parts),
            sum(part.buckets for part in parts),
            sum(survivors) if survivors else None,
        )


class BucketResult(NamedTuple):
    """The nearest rows that a search by buckets found.

    Attributes
    ----------
    keys : HammingKeys of shape (n_queries, min(k, n_rows))
        Ascending.
    is_done : bool array of shape (n_queries,)
        Queries whose results are complete. For the other queries a scan is cheaper, and their keys are undefined.
    visits : Visits
    """

    keys: HammingKeys
    is_done: Mask
    visits: Visits


class Buckets(ABC):
    """The buckets of a segment."""

    kind: ClassVar[str]
    """Name of the kind in index files."""

    stores_codes_by_row: ClassVar[bool]
    """Whether segments with these buckets store codes row by row."""

    reorders_rows: ClassVar[bool]
    """Whether segments with these buckets have their rows in another order than that of ids."""

    stored_columns: ClassVar[tuple[str, ...]] = ()
    """Names of the columns of a segment that the buckets store."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the buckets."""

    # --- planner ---

    @abstractmethod
    def expected_cost(self, k: int, n_probes: int | None, code_bytes: int) -> Cost:
        """Return the rows that one query visits, and the bytes that it reads."""

    # --- search ---

    @abstractmethod
    def nearest(self, view: View, queries: CodeQueries, plan: Plan) -> BucketResult | None:
        """Find the rows nearest in Hamming distance among those in the buckets that the plan visits.

        Returns None if the plan visits all buckets, so that the rows are to be scanned.
        """

    def nearest_by_estimate(
        self, view: View, queries: EncodedQueries, k: int, n_sigmas: float, plan: Plan, n_threads: int
    ) -> tuple[EstimateKeys, Visits] | None:
        """Find the `k` nearest rows by estimated distance, as `estimates.nearest` does among all rows.

        Returns None if all rows are to be scanned.
        """
        return None

    def within(self, view: View, queries: CodeQueries, radius: int) -> Matches | None:
        """Find all rows within a Hamming distance of each query. Returns None if a scan is cheaper."""
        return None

    # --- index file ---

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Describe the buckets apart from their arrays, in values that JSON can hold."""

    @abstractmethod
    def to_arrays(self) -> Arrays:
        """Return the arrays of the buckets."""

    @classmethod
    @abstractmethod
    def from_arrays(cls, described: dict[str, Any], read: ArrayReader, maker: Any, n_rows: int) -> Self:
        """Rebuild the buckets that gave `described` and the arrays; raises ValueError or KeyError if they cannot be.

        `maker` is the maker of the index.
        """

    def columns(self) -> dict[str, Any]:
        """Return the columns of a segment that the buckets store."""
        return {}

    @abstractmethod
    def check(self, codes: CodeRows) -> None:
        """Raise CorruptIndexFileError if buckets from a file do not match the codes, at the cost of reading both."""


class BucketMaker(ABC):
    """Makes buckets of one kind."""

    buckets: ClassVar[type[Buckets]]
    """The class of the buckets."""

    options: ClassVar[tuple[str, ...]]
    """Names of the options that a user may set."""

    is_exact: ClassVar[bool]
    """Whether a search without a number of probes finds the same rows as a scan."""

    can_estimate: ClassVar[bool]
    """Whether distances can be estimated for the rows of a bucket, without choosing candidates first."""

    uses_margins: ClassVar[bool]
    """Whether a search probes buckets in the order of the margins of queries."""

    uses_residuals: ClassVar[bool] = False
    """Whether buckets are made of residual codes. Then rows in the buffer and small segments have buckets too."""

    needs_vectors: ClassVar[bool] = False
    """Whether buckets need more of a row than its Hamming code."""

    has_hamming_order: ClassVar[bool] = True
    """Whether buckets find rows that are near in Hamming distance."""

    join_width: ClassVar[int] = 2
    """Segments of similar size that are joined at a time."""

    def with_codec(self, codec: Any) -> Self:
        """Return the maker of an index whose residual codec is fitted."""
        return self

    @classmethod
    @abstractmethod
    def from_options(cls, n_bits: int, options: dict[str, int]) -> Self:
        """Make a maker for codes of `n_bits` bits from the options that are set, each of them at least 1."""

    @abstractmethod
    def arrange(self, segment: Segment, share: float = 1.0) -> Segment:
        """Return a segment, whose rows are in the order of ids, with buckets. Small segments are returned unchanged.

        `share` is that of the rows of the index that the segment has.
        """
