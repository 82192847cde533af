"""Building of graphs: partitions, pruning, edges in both directions, records.

Every stage reads what the stage before has left and writes rows of its own, so that the graph depends on the rows and
the seed only, not on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ... import kernels
from ..._core.progress import part_bar
from ..._core.threads import for_each_chunk
from ..._core.tuning import tuning
from ..._core.typing import Floats, Keys, Rows
from ...data.columns import pieces
from ...distances.vertices import VertexCodec

DEGREE = 32
_NO_KEY = np.uint64(0xFFFFFFFFFFFFFFFF)
# Norms that differ by less are equal but for rounding.
_NORM_ROUNDING = 1e-5
# Rows that a thread takes at a time.
_CHUNK = 512


@dataclass(frozen=True)
class Graph:
    """A graph of residual codes, as `kernels.records` lays it out.

    Attributes
    ----------
    records : uint8 array of shape (n, size)
        One for each row, aligned to 64 bytes.
    entries : uint8 array of shape (1, size)
        The record of the row nearest to the centre, with the rows that walks start from for its neighbours.
    n_columns : int
        Projections of a row, rounded up to a multiple of 16.
    """

    records: NDArray[np.uint8]
    entries: NDArray[np.uint8]
    n_columns: int

    @property
    def neighbours(self) -> NDArray[np.int32]:
        """Numbers of the neighbours of each row, (n, 32), -1 where there is none."""
        return neighbours_of(self.records, self.n_columns)


def neighbours_of(records: NDArray[np.uint8], n_columns: int) -> NDArray[np.int32]:
    """Return the numbers of the neighbours that records hold, (n, 32)."""
    start = 4 * n_columns + 8 * DEGREE
    return np.ascontiguousarray(records[:, start : start + 4 * DEGREE]).view(np.int32)


class GraphBuilder:
    """Builds a graph of rows.

    Parameters
    ----------
    codec : VertexCodec
    column : uint8 array of shape (n, bytes of a vertex)
    seed : int
        Seed of the leaders of partitions, of random edges and of the entries.
    n_threads : int
    """

    def __init__(self, codec: VertexCodec, column: NDArray[np.uint8], seed: int, n_threads: int) -> None:
        self._n, self._shape, self._n_threads, self._column = len(column), codec.shape, n_threads, column
        self._norms = codec.heads_of(column).norms
        self._has_lifts = bool(self._norms.min() < (1 - _NORM_ROUNDING) * self._norms.max())
        n_values = codec.shape.n_levels + self._has_lifts
        self._points = codec.decode(column, n_threads, -(-n_values // 16) * 16)
        codec.check(column, self._points)  # a file may say anything of vertices
        self._projections = codec.code_projections(self._points, n_threads)
        if self._has_lifts:  # the coordinate that makes products distances, behind the last projection
            if self._projections is self._points:
                self._projections = self._points.copy()
            self._points[:, n_values - 1] = np.sqrt(self._norms.max() - self._norms)
        self._rows = self._points, n_values
        self._random = np.random.default_rng(seed)

    def build(self) -> Graph:
        """Return the graph. Every row can be reached from the entries."""
        options = tuning()
        entries = self._draw_entries()
        far = self._random.integers(0, self._n, (self._n, DEGREE), dtype=np.int32)
        with part_bar(self._n * (options.graph_partitions + 3 * (1 + options.graph_rounds)), "rows") as advance:
            candidates = self._candidates(far[:, : options.graph_far_candidates], advance)
            neighbours = self._link(lambda start, stop: candidates[start:stop], entries, far, advance)
            for _ in range(options.graph_rounds):
                # Walks towards rows look for near ones, whatever products they have.
                graph = self._write(neighbours, entries, np.zeros_like(self._norms), advance)
                neighbours = self._link(self._walks(graph, candidates), entries, far, advance)
            return self._write(neighbours, entries, self._norms, advance)

    def _link(
        self, find: Callable[[int, int], NDArray[np.int32]], entries: Rows, far: NDArray[np.int32],
        advance: Callable[[int], object],
    ) -> NDArray[np.int32]:  # fmt: skip
        """Choose neighbours among candidates: `find(start, stop)` returns those of some rows."""
        kept = np.empty((self._n, DEGREE), dtype=np.int32)
        near = np.empty((self._n, tuning().graph_near_rows), dtype=np.int32)

        def prune(start: int, stop: int) -> None:
            kernels.pruning.prune_candidates(*self._rows, start, find(start, stop), kept, near)

        self._for_rows(prune, advance)
        neighbours = self._both_ways(kept, near, far, advance)
        kernels.reaching.connect(entries, neighbours)
        return neighbours

    def _walks(self, graph: Graph, candidates: NDArray[np.int32]) -> Callable[[int, int], NDArray[np.int32]]:
        """Return a function that adds the vertices at which walks towards rows have been to their candidates."""
        beam = tuning().graph_building_beam
        n_bits, n_levels = self._shape.n_code_bits, self._shape.n_levels

        def find(start: int, stop: int) -> NDArray[np.int32]:
            found = np.empty((stop - start, kernels.graphsearch.most_steps(beam, self._n)), dtype=np.int32)
            kernels.graphsearch.walk_towards_rows(
                self._projections, n_bits, n_levels, start, stop, graph.records, graph.entries, beam, found
            )
            n_most = int((found >= 0).sum(axis=1).max())
            return np.concatenate([candidates[start:stop], found[:, :n_most]], axis=1)

        return find

    def _for_rows(self, task: Callable[[int, int], object], advance: Callable[[int], object]) -> None:
        """Call `task(start, stop)` for all rows, on several threads."""

        def report(start: int, stop: int) -> None:
            task(start, stop)
            advance(stop - start)

        for_each_chunk(report, self._n, _CHUNK, self._n_threads)

    def _nearest_to_centre(self) -> int:
        """Return the row of the smallest projections."""
        norms = np.empty(self._n, dtype=np.float32)
        for piece in pieces(self._projections):
            norms[piece] = np.einsum("ij,ij->i", self._projections[piece], self._projections[piece])
        return int(norms.argmin())

    def _draw_entries(self) -> Rows:
        """Draw the rows that walks start from, 32 if there are as many."""
        entries: Rows = self._random.choice(self._n, min(self._n, DEGREE), replace=False)
        return entries

    def _candidates(self, far: NDArray[np.int32], advance: Callable[[int], object]) -> NDArray[np.int32]:
        """Return candidates for the neighbours of each row from partitions, and some random ones."""
        options = tuning()
        nearest: Keys = np.full((self._n, options.graph_near_rows), _NO_KEY)
        width = options.graph_leaf_neighbours
        n_found = width * options.graph_partitions
        candidates = np.empty((self._n, n_found + far.shape[1] + nearest.shape[1]), dtype=np.int32)
        for i in range(options.graph_partitions):
            rows, offsets = self._partition()
            found = np.empty((self._n, width), dtype=np.int32)

            def task(start: int, stop: int) -> None:
                kernels.leaves.join_leaves(*self._rows, rows, offsets, start, stop, nearest, found)  # noqa: B023
                advance(int(offsets[stop] - offsets[start]))  # noqa: B023

            for_each_chunk(task, len(offsets) - 1, 1, self._n_threads)
            candidates[:, i * width : (i + 1) * width] = found
        near = (nearest & np.uint64(0xFFFFFFFF)).astype(np.int32)
        near[nearest == _NO_KEY] = -1
        candidates[:, n_found : n_found + far.shape[1]] = far
        candidates[:, n_found + far.shape[1] :] = near
        return candidates

    def _partition(self) -> tuple[Rows, Rows]:
        """Divide the rows into leaves by random leaders, again and again; return all rows, and where leaves begin."""
        most = tuning().graph_leaf_rows
        leaves: list[Rows] = []
        groups: list[Rows] = [np.arange(self._n)]
        while groups:
            rows = groups.pop()
            if len(rows) <= most:
                leaves.append(rows)
            else:
                groups.extend(self._divide(rows, most))
        offsets = np.cumsum([0] + [len(leaf) for leaf in leaves])
        return np.concatenate(leaves), offsets

    def _divide(self, rows: Rows, most: int) -> list[Rows]:
        """Divide rows by their nearest leader; where all have the same one, into parts of equal size."""
        n_leaders = min(tuning().graph_leaders, -(-2 * len(rows) // most))
        leaders = rows[self._random.choice(len(rows), n_leaders, replace=False)]
        nearest: Rows = np.empty(len(rows), dtype=np.int64)

        def task(start: int, stop: int) -> None:
            kernels.leaves.assign_to_leaders(*self._rows, rows, leaders, start, stop, nearest)

        for_each_chunk(task, len(rows), _CHUNK, self._n_threads)
        order = np.argsort(nearest, kind="stable")
        parts = np.split(rows[order], np.searchsorted(nearest[order], np.arange(1, n_leaders)))
        parts = [part for part in parts if len(part)]
        return parts if len(parts) > 1 else np.array_split(rows, -(-len(rows) // most))

    def _both_ways(
        self, kept: NDArray[np.int32], near: NDArray[np.int32], far: NDArray[np.int32],
        advance: Callable[[int], object],
    ) -> NDArray[np.int32]:  # fmt: skip
        """Give edges their reverse, and fill up to 32 neighbours."""
        offsets: Rows = np.empty(self._n + 1, dtype=np.int64)
        kernels.pruning.count_sources(kept, offsets)
        sources: Rows = np.empty(offsets[-1], dtype=np.int64)
        kernels.pruning.list_sources(kept, offsets, sources)
        neighbours = np.empty((self._n, DEGREE), dtype=np.int32)
        n_near = tuning().graph_near_neighbours

        def task(start: int, stop: int) -> None:
            kernels.pruning.link_both_ways(
                *self._rows, start, stop, kept, offsets, sources, near, n_near, far, neighbours
            )

        self._for_rows(task, advance)
        return neighbours

    def _write(
        self, neighbours: NDArray[np.int32], entries: Rows, norms: Floats, advance: Callable[[int], object]
    ) -> Graph:
        """Write the records of vertices with these norms."""
        n_blocks, layout = self._shape.n_blocks, (self._shape.n_columns, self._shape.n_levels)
        records = kernels.records.make_records(self._n, *layout)

        def task(start: int, stop: int) -> None:
            kernels.records.write_records(
                self._projections, n_blocks, self._column, norms, neighbours, start, stop, records
            )

        self._for_rows(task, advance)
        middle = self._nearest_to_centre()
        entry = kernels.records.make_records(1, *layout)
        entry[0] = records[middle]
        numbers = np.full(DEGREE, -1, dtype=np.int32)
        numbers[: len(entries)] = entries
        kernels.records.write_neighbours(self._projections, norms, middle, numbers, n_blocks, entry, 0)
        return Graph(records, entry, self._shape.n_columns)
