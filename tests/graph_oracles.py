"""What graphs, records and walks are, in plain numpy."""

from typing import NamedTuple

import numpy as np

from tests.lookup_oracles import sums_of_block


class Record(NamedTuple):
    """The parts of a record."""

    codes: np.ndarray
    factors: np.ndarray
    offsets: np.ndarray
    neighbours: np.ndarray
    scale: np.float32
    square: np.float32
    norm: np.float32
    levels: np.ndarray


def parts_of(record, n_columns, dim):
    """Take a record apart; codes as (n_bytes, 32)."""
    n_bytes = n_columns // 8
    at = 32 * n_bytes
    floats = record[at : at + 256].copy().view(np.float32)
    neighbours = record[at + 256 : at + 384].copy().view(np.int32)
    scale, square, norm = record[at + 384 : at + 396].copy().view(np.float32)
    levels = record[at + 396 : at + 396 + dim].view(np.int8)
    return Record(record[:at].reshape(n_bytes, 32), floats[:32], floats[32:], neighbours, scale, square, norm, levels)


def squared_distances(projections, dim, row, others):
    """Squared distances of a row to others, in float64."""
    apart = projections[others, :dim].astype(np.float64) - projections[row, :dim]
    return (apart * apart).sum(axis=-1)


def pruned(distances, between, most):
    """Places of ordered candidates that are nearer to the vertex than to any that is kept before."""
    kept = []
    for i in range(len(distances)):
        if len(kept) < most and all(between[i, j] > distances[i] for j in kept):
            kept.append(i)
    return kept


def reachable(starts, neighbours):
    """Vertices that can be reached along edges."""
    seen, todo = {int(start) for start in starts}, [int(start) for start in starts]
    while todo:
        for other in neighbours[todo.pop()]:
            if other >= 0 and int(other) not in seen:
                seen.add(int(other))
                todo.append(int(other))
    return seen


class PlainWalk:
    """A walk with a sorted list for its pool, which meets every neighbour whatever its distance."""

    def __init__(self, records, entries, n_columns, query):
        """`query` has tables, (1, room), numbers and terms as `walk.prepare_query` makes them."""
        self._records = [parts_of(record, n_columns, query[1].size) for record in records]
        self._entries = [parts_of(record, n_columns, query[1].size) for record in entries]
        self._tables = query[0][0].reshape(-1, 16)
        self._numbers, self._terms = query[1].astype(np.int64), query[2]

    def visit(self, beam, most_steps):
        """Return (distance, vertex) of all vertices at which it has been, in order."""
        first = self._distance(self._entries[0])
        pool = sorted(key for entry in self._entries for key in self._neighbours(entry, first))[:beam]
        visited = []
        while len(visited) < most_steps:
            seen = {vertex for _, vertex in visited}
            ahead = [key for key in pool if key[1] not in seen]
            if not ahead:
                break
            record = self._records[ahead[0][1]]
            distance = self._distance(record)
            visited.append((distance, ahead[0][1]))
            seen.add(ahead[0][1])
            fresh = [key for key in self._neighbours(record, distance) if key[1] not in seen]
            pool = sorted(pool + fresh)[:beam]
        return visited

    def _distance(self, record):
        product = np.float32(self._numbers @ record.levels.astype(np.int64))
        two_scales = np.float32(2) * (self._terms[2] * record.scale)
        return max((self._terms[3] + (record.square - record.norm)) - two_scales * product, np.float32(0))

    def _neighbours(self, record, distance):
        sums = sums_of_block(record.codes, self._tables).astype(np.float32)
        products = self._terms[0] * sums + self._terms[1]
        estimates = (record.offsets + distance) - record.factors * products
        there = record.neighbours >= 0
        return list(zip(np.maximum(estimates, 0)[there].tolist(), record.neighbours[there].tolist(), strict=True))
