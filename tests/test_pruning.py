"""Candidates, pruning, edges in both directions and reachability against plain numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.kernels import leaves, pruning, reaching
from tests.graph_oracles import pruned, reachable

pytestmark = pytest.mark.kernels

NO_KEY = np.uint64(2**64 - 1)


def some_rows(seed, n, n_columns=16):
    """Rows of small whole numbers, with ties and equal rows: distances are exact in float32."""
    return np.random.default_rng(seed).integers(-2, 3, (n, n_columns)).astype(np.float32)


def distances_of(rows, dim):
    return ((rows[:, np.newaxis, :dim] - rows[np.newaxis, :, :dim]) ** 2).sum(axis=2)


def ordered_candidates(rows, dim, vertex, candidates):
    """Distinct candidates in order of (distance, row)."""
    distinct = np.unique([c for c in candidates if c >= 0 and c != vertex]).astype(np.int64)
    return distinct[np.lexsort((distinct, distances_of(rows, dim)[vertex, distinct]))]


def kept_of(rows, dim, vertex, candidates):
    """Neighbours that the pruning rule chooses."""
    ordered, distances = ordered_candidates(rows, dim, vertex, candidates), distances_of(rows, dim)
    return ordered[pruned(distances[vertex, ordered], distances[np.ix_(ordered, ordered)], 32)]


@given(st.integers(1, 60), st.integers(0, 80), st.sampled_from([1, 3, 16]), st.integers(0, 99))
def test_candidates_are_put_in_order(n, n_candidates, dim, seed):
    rows = some_rows(seed, n)
    candidates = np.random.default_rng(seed).integers(-1, n, n_candidates)
    expected = ordered_candidates(rows, dim, 0, candidates)
    distances = np.empty(n_candidates, dtype=np.float32)
    n_left = pruning.order_candidates(rows, dim, 0, candidates, n_candidates, distances)
    np.testing.assert_array_equal(candidates[:n_left], expected)
    np.testing.assert_array_equal(distances[:n_left], distances_of(rows, dim)[0, expected])


@settings(max_examples=30)
@given(st.integers(2, 90), st.sampled_from([2, 5, 16]), st.integers(0, 99))
def test_candidates_are_pruned(n, dim, seed):
    rows = some_rows(seed, n)
    found = np.random.default_rng(seed).integers(-1, n, (3, 50)).astype(np.int32)
    kept, near = np.full((n, 32), -7, dtype=np.int32), np.full((n, 20), -7, dtype=np.int32)
    first = n - 2
    pruning.prune_candidates(rows, dim, first, found[:2], kept, near)
    for i in range(2):
        expected = kept_of(rows, dim, first + i, found[i])
        np.testing.assert_array_equal(kept[first + i], np.pad(expected, (0, 32 - len(expected)), constant_values=-1))
        ordered = ordered_candidates(rows, dim, first + i, found[i])[:20]
        np.testing.assert_array_equal(near[first + i], np.pad(ordered, (0, 20 - len(ordered)), constant_values=-1))
    assert (kept[:first] == -7).all()


def lists_of_sources(kept):
    offsets = np.empty(len(kept) + 1, dtype=np.int64)
    pruning.count_sources(kept, offsets)
    sources = np.empty(offsets[-1], dtype=np.int64)
    pruning.list_sources(kept, offsets, sources)
    return offsets, sources


@given(st.integers(1, 30), st.integers(0, 99))
def test_sources_are_the_reverse(n, seed):
    kept = np.random.default_rng(seed).integers(-1, n, (n, 4)).astype(np.int32)
    offsets, sources = lists_of_sources(kept)
    for vertex in range(n):
        expected = [source for source in range(n) for other in kept[source] if other == vertex]
        assert sources[offsets[vertex] : offsets[vertex + 1]].tolist() == expected


def linked(rows, dim, kept, near, n_near, far):
    neighbours = np.full((len(rows), 32), -7, dtype=np.int32)
    offsets, sources = lists_of_sources(kept)
    pruning.link_both_ways(rows, dim, 0, len(rows), kept, offsets, sources, near, n_near, far, neighbours)
    return neighbours


def some_graph(seed, n, n_kept):
    rng = np.random.default_rng(seed)
    kept = np.full((n, 32), -1, dtype=np.int32)
    kept[:, :n_kept] = (rng.integers(1, n, (n, n_kept)) + np.arange(n)[:, np.newaxis]) % n
    near, far = (rng.integers(-1, n, (n, 24)).astype(np.int32), rng.integers(0, n, (n, 40)).astype(np.int32))
    return kept, near, far


@settings(max_examples=30)
@given(st.integers(2, 80), st.integers(1, 6), st.sampled_from([0, 10, 32]), st.integers(0, 99))
def test_edges_go_both_ways(n, n_kept, n_near, seed):
    """Neighbours are those kept and those that kept them, then near ones, then random ones, none of them twice."""
    rows, (kept, near, far) = some_rows(seed, n), some_graph(seed, n, n_kept)
    neighbours = linked(rows, 16, kept, near, n_near, far)
    for vertex in range(n):
        numbers = neighbours[vertex][neighbours[vertex] >= 0]
        assert (neighbours[vertex][len(numbers) :] == -1).all()
        assert len(set(numbers.tolist())) == len(numbers)
        assert vertex not in numbers
        both = set(kept[vertex].tolist()) | {u for u in range(n) if vertex in kept[u]}
        both -= {-1, vertex}
        spare, others = set(near[vertex].tolist()) - {-1, vertex}, set(far[vertex].tolist()) - {vertex}
        assert set(numbers.tolist()) <= both | spare | others
        if len(both) <= 32:
            assert both <= set(numbers.tolist())
        else:
            assert set(numbers.tolist()) <= both
        assert len(numbers) == min(32, len(both | others | set(numbers.tolist())))
        if len(both) <= n_near:
            assert len(set(numbers.tolist()) & (both | spare)) >= min(n_near, len(both | spare))


def test_a_vertex_that_all_others_keep_is_pruned_again():
    """Of 100 sources, those remain that pruning keeps, and 32 in all."""
    rows = some_rows(5, 101)
    kept = np.full((101, 32), -1, dtype=np.int32)
    kept[1:, 0] = 0
    neighbours = linked(rows, 16, kept, np.full((101, 1), -1, dtype=np.int32), 0, np.zeros((101, 0), dtype=np.int32))
    assert set(kept_of(rows, 16, 0, range(1, 101)).tolist()) <= set(neighbours[0].tolist())
    assert len(set(neighbours[0].tolist())) == 32


def test_filling_up_prefers_other_directions():
    """Of a row of points behind each other and one aside, the one aside is taken although all of those are nearer."""
    rows = np.zeros((40, 16), dtype=np.float32)
    rows[1:39, 0] = 10 + np.arange(38) / 100
    rows[39, :2] = 10, 8  # at 39 degrees, and pruned: nearer to the others than to the vertex
    candidates, distances = np.arange(1, 40), np.empty(39, dtype=np.float32)
    n = pruning.order_candidates(rows, 2, 0, candidates, 39, distances)
    known, chosen = np.full((n, n), -1, dtype=np.float32), np.empty(32, dtype=np.int64)
    n_chosen = pruning.prune(rows, 2, candidates, distances, n, known, chosen)
    assert candidates[chosen[:n_chosen]].tolist() == [1]
    for n_wanted in (2, 5, 32):
        n_all = pruning.fill_up(rows, 2, candidates, distances, n, known, chosen.copy(), n_chosen, n_wanted)
        assert n_all == n_wanted
        filled = chosen.copy()
        pruning.fill_up(rows, 2, candidates, distances, n, known, filled, n_chosen, n_wanted)
        numbers = candidates[filled[:n_all]].tolist()
        assert numbers == sorted(numbers, key=lambda row: (distances[candidates.tolist().index(row)], row))
        assert (39 in numbers) == (n_wanted == 2)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(0, 9))
def test_keys_are_inserted_once(values, key):
    keys = np.sort(np.unique(np.array(values, dtype=np.uint64)))
    expected = np.unique(np.append(keys, np.uint64(key)))[: keys.size]
    leaves.insert(keys, np.uint64(key))
    np.testing.assert_array_equal(keys, expected)


@settings(max_examples=20)
@given(st.integers(1, 60), st.sampled_from([2, 16]), st.integers(1, 4), st.integers(0, 99))
def test_leaves_find_neighbours(n, dim, n_leaves, seed):
    rng = np.random.default_rng(seed)
    rows, leaf_of = some_rows(seed, n), rng.integers(0, n_leaves, n)
    members = [np.flatnonzero(leaf_of == leaf) for leaf in range(n_leaves)]
    offsets = np.cumsum([0] + [len(some) for some in members])
    nearest, found = np.full((n, 5), NO_KEY), np.full((n, 6), -7, dtype=np.int32)
    leaves.join_leaves(rows, dim, np.concatenate(members), offsets, 0, n_leaves, nearest, found)
    for row in range(n):
        others = members[leaf_of[row]]
        expected = kept_of(rows, dim, row, others)[:6]
        np.testing.assert_array_equal(found[row], np.pad(expected, (0, 6 - len(expected)), constant_values=-1))
        ordered = ordered_candidates(rows, dim, row, others)[:5]
        bits = distances_of(rows, dim)[row, ordered].astype(np.float32).view(np.int32).astype(np.uint64)
        keys = bits << np.uint64(32) | ordered.astype(np.uint64)
        np.testing.assert_array_equal(nearest[row], np.append(keys, np.full(5 - len(keys), NO_KEY)))


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 99))
def test_rows_go_to_their_nearest_leader(n, n_leaders, seed):
    rng = np.random.default_rng(seed)
    rows, leaders, some = some_rows(seed, n), rng.integers(0, n, n_leaders), rng.integers(0, n, 20)
    nearest = np.full(20, -7, dtype=np.int64)
    leaves.assign_to_leaders(rows, 16, some, leaders, 3, 18, nearest)
    np.testing.assert_array_equal(nearest[3:18], distances_of(rows, 16)[np.ix_(some[3:18], leaders)].argmin(axis=1))
    assert (nearest[:3] == -7).all()
    assert (nearest[18:] == -7).all()


@given(st.integers(1, 150), st.integers(0, 3), st.integers(1, 4), st.integers(0, 99))
def test_all_vertices_are_connected(n, degree, n_entries, seed):
    """From graphs of few edges, or none, everything is reached, and as few edges as possible are given."""
    rng = np.random.default_rng(seed)
    neighbours = np.full((n, 32), -1, dtype=np.int32)
    neighbours[:, :degree] = rng.integers(0, n, (n, degree))
    entries, before = rng.integers(0, n, n_entries), neighbours.copy()
    missing = n - len(reachable(entries, before))
    n_given = reaching.connect(entries, neighbours)
    assert reachable(entries, neighbours) == set(range(n))
    assert n_given == (neighbours != before).sum()
    assert (n_given > 0) == (missing > 0)
    assert n_given <= missing


def test_full_vertices_keep_the_edges_that_others_depend_on():
    """A star: every edge of the first 32 vertices is needed, and 500 more have to be reached."""
    neighbours = np.full((1_500, 32), 0, dtype=np.int32)
    neighbours[0] = np.arange(1, 33)
    neighbours[1:33] = np.arange(33, 33 + 32 * 32).reshape(32, 32)
    entries = np.array([0])
    assert reaching.connect(entries, neighbours) == 1_500 - 33 - 32 * 32
    assert reachable(entries, neighbours) == set(range(1_500))
