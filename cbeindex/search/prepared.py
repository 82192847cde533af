"""Searches that are prepared once, and then answer any queries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._core.threads import as_n_threads
from ..data.columns import Column
from ..data.source import VectorSource
from ..data.sparserows import VectorRows
from ..distances.codec import Codec
from .cellsearch import CellSearch
from .estimatesearch import EstimateSearch, estimates_all
from .graphsearch import GraphSearch
from .plan import Plan, Selection
from .planner import cautious
from .request import IndexTraits, SearchRequest
from .results import SearchResult

_FLOAT32 = np.dtype(np.float32)
# Larger batches are divided, for which the time of planning does not count.
_MOST_QUERIES = 512


def prepared(traits: IndexTraits, codec: Codec | None, request: SearchRequest, chosen: Plan) -> PreparedSearch | None:
    """Return the search of cells, graphs or all estimates that carries out a plan; None for other plans."""
    if codec is None or not (chosen.by_cells or chosen.by_graph or estimates_all(chosen)):
        return None
    return PreparedSearch(traits, codec, request, chosen)


class PreparedSearch:
    """A search of cells, of graphs or by the estimates of all rows, for any queries.

    Queries that turn out to be far from all rows of a graph are unlike those that the index was calibrated by, and are
    searched again with more effort. Cells grade effort by query themselves.

    Parameters
    ----------
    traits : IndexTraits
    codec : Codec
    request : SearchRequest
    chosen : Plan
    """

    def __init__(self, traits: IndexTraits, codec: Codec, request: SearchRequest, chosen: Plan) -> None:
        self._traits, self._codec, self._request, self._plan = traits, codec, request, chosen
        self._search, self._far = _search(traits, codec, chosen), chosen.far
        self._single, self._shape, self._shape_of_batch = self._search.single(), (traits.dim,), (1, traits.dim)
        self._deeper: CellSearch | GraphSearch | EstimateSearch | None = None

    @property
    def selections(self) -> tuple[Selection, ...]:
        """The rows that are searched."""
        return self._plan.selections

    def nearest(self, source: VectorSource, n_threads: int) -> SearchResult:
        """Find the `plan.k` nearest rows of each query."""
        found = self._search.nearest(source, n_threads)
        if self._far == math.inf or not (found.distances[:, 0] > self._far).any():
            return found
        column = Column(np.float32, (source.dim,), source.is_sparse)
        is_far = found.distances[:, 0] > self._far
        blocks = [rows[np.flatnonzero(is_far[i : i + len(rows)])] for i, rows in source.own_blocks(1024)]
        return self._again(found, is_far, column.joined([column.of(rows) for rows in blocks]), n_threads)

    def nearest_of_one(self, query: Any) -> SearchResult | None:
        """Find the nearest rows of one query that needs no conversion, alone or as a batch of one.

        Returns None if it is not a float32 array in C order of the right shape, and if more than one call of a kernel
        is needed.
        """
        if self._single is None or type(query) is not np.ndarray:
            return None
        if query.dtype is not _FLOAT32 and query.dtype != _FLOAT32:  # which takes longer
            return None
        shape = query.shape
        is_batch = shape == self._shape_of_batch
        if not is_batch and shape != self._shape:
            return None
        flags = query.flags
        if not flags.carray:
            if not flags.c_contiguous:
                return None
            query = query.copy()
        found = self._single.nearest(query.reshape(-1) if is_batch else query, is_batch)
        if found is not None and self._far != math.inf and found[0].item(0) > self._far:
            batch = found if is_batch else found.as_batch()
            batch = self._again(batch, np.ones(1, dtype=np.bool_), query.reshape(self._shape_of_batch), None)
            return batch if is_batch else batch.first()
        return found

    def nearest_of_array(self, queries: Any, n_threads: int | None) -> SearchResult | None:
        """Find the nearest rows of queries that need no conversion and are not divided into batches.

        Returns None if queries are not a float32 array in C order of the right shape, and where the search has no
        kernel for them.
        """
        if type(queries) is not np.ndarray or queries.dtype != _FLOAT32 or not queries.flags.c_contiguous:
            return None
        n_axes, dim = queries.ndim, self._traits.dim
        if n_axes not in (1, 2) or queries.shape[-1] != dim or queries.size > _MOST_QUERIES * dim:
            return None
        batch = queries.reshape(1, dim) if n_axes == 1 else queries
        found = self._search.nearest_of(batch, 1 if n_threads is None and n_axes == 1 else as_n_threads(n_threads))
        if found is None:
            return None
        if self._far != math.inf:
            is_far = found.distances[:, 0] > self._far
            if is_far.any():
                found = self._again(found, is_far, batch[is_far], n_threads)
        return found.first() if n_axes == 1 else found

    def _again(self, found: SearchResult, is_far: Any, queries: VectorRows, n_threads: int | None) -> SearchResult:
        """Search again for queries that are far from all rows, and put what is found in place of the former results."""
        if self._deeper is None:
            self._deeper = _search(self._traits, self._codec, cautious(self._traits, self._request, self._plan))
        source = VectorSource(queries, self._traits.dim, "queries")
        more = self._deeper.nearest(source, n_threads or self._request.n_threads)
        counts = {name: more.stats.get(name, 0) for name in ("visited", "buckets", "steps", "vectors_read")}
        stats = {name: value + counts.get(name, 0) if name in counts else value for name, value in found.stats.items()}
        return found.with_others(is_far, more, stats | {"far_queries": int(is_far.sum())})


def _search(traits: IndexTraits, codec: Codec, chosen: Plan) -> CellSearch | GraphSearch | EstimateSearch:
    if chosen.by_graph:
        return GraphSearch(traits, codec, chosen)
    return CellSearch(traits, codec, chosen) if chosen.by_cells else EstimateSearch(traits, codec, chosen)
