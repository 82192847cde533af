"""Searches with a filter for each query: queries with the same filter are searched together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .._core.typing import Rows
from ..data.columns import Column
from ..data.source import VectorSource
from ..data.sparserows import VectorRows
from ..distances.metrics import METRICS
from .filters import NO_FILTER, FilterPerQuery, IdFilter
from .results import RangeResult, SearchResult

Queries = TypeVar("Queries")
Found = TypeVar("Found", SearchResult, RangeResult)


def search_each(
    filters: list[tuple[IdFilter, Rows]],
    queries_at: Callable[[Rows], Queries],
    search: Callable[[Queries, IdFilter], Found],
) -> Found:
    """Search for the queries of each filter, and return the results in the order of the queries."""
    groups = filters or [(NO_FILTER, np.empty(0, dtype=np.int64))]
    parts: list[Any] = [search(queries_at(places), ids) for ids, places in groups]
    places = np.concatenate([places for _, places in groups])
    joined: Found = type(parts[0]).joined(parts)
    return joined.at(np.argsort(places))


def vectors_by_filter(
    source: VectorSource, metric: str, filters: FilterPerQuery
) -> tuple[list[tuple[IdFilter, Rows]], Callable[[Rows], VectorRows]]:
    """Return the filters of queries that are vectors, and what reads some of the queries.

    All queries are checked first, so that errors name their places.
    """
    groups = filters.groups(source.n_rows, source.is_single)
    column = Column(np.float32, (source.dim,), source.is_sparse)
    blocks = []
    for first, block in source.own_blocks(1024):
        METRICS[metric].check(source, first, block)
        blocks.append(column.of(block))
    every: VectorRows = column.joined(blocks)
    return groups, lambda places: every[places]
