"""CBEIndex in random order of work, against a dictionary of vectors."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cbeindex import CBEIndex
from tests import vector_oracles
from tests.small import ALL, KINDS, VERY_SMALL, small_buckets

# Estimates rule no row out.
_ALL_ROWS = {"knn_sigmas": 9.0, "range_sigmas": 9.0, "least_cell_candidates": 1000, "least_centre_rows": 2}
# Walks with beams as wide as the rows, in graphs of few of them.
_ALL_ROWS |= {"least_graph_candidates": 1000, "least_graph_segment_rows": 6, "graph_step_rows": 0}
_ALL_ROWS |= {"first_range_beam": 10**5, "graph_leaf_rows": 8, "graph_building_beam": 8}
N_POOL, N_IDS, N_FIRST = 12, 60, VERY_SMALL["first_rows"]


class IndexAgainstDict(RuleBasedStateMachine):
    """Writes in random order, and exact results in between, before and after the index fits itself.

    Equal vectors make ties. All rows are candidates and bounds are 9 standard errors wide: nothing is left to chance.
    """

    @initialize(
        metric=st.sampled_from(["cosine", "l2", "ip"]),
        n_bits=st.sampled_from([20, 600]),
        buckets=st.sampled_from([None, *KINDS, "cells", "graph"]),
        seed=st.integers(0, 9),
        spill=st.booleans(),
    )
    def start(self, metric, n_bits, buckets, seed, spill):
        self.patches: list = [small_buckets(VERY_SMALL | _ALL_ROWS)]
        for patch in self.patches:
            patch.__enter__()
        self.pool = vector_oracles.clustered(N_POOL, 16, seed, n_centres=3)
        self.pool[4:6] = self.pool[3]
        self.pool[7] = 0
        self.distances = vector_oracles.distances(metric, self.pool, self.pool)
        self.options = {"n_bits": n_bits, "metric": metric, "vectors": "float32", "buckets": buckets}
        if buckets == "cells" and spill:
            self.options |= {"spill": True, "cell_bits": 4}
        self.index = CBEIndex(16, **{"vectors": None, "buckets": None, **self.options})
        self.picks = {}
        self.next_id = 0
        self.was_fitted = False

    def teardown(self):
        for patch in getattr(self, "patches", []):
            patch.__exit__(None, None, None)

    def of(self, queries):
        """Distances from some of the pool to all that is stored, and the ids of it."""
        ids = sorted(self.picks)
        return self.distances[np.ix_(queries, [self.picks[id_] for id_ in ids])], ids

    @rule(picks=st.lists(st.integers(0, N_POOL - 1), max_size=9))
    def add(self, picks):
        ids = self.index.add(self.pool[picks])
        assert ids.tolist() == list(range(self.next_id, self.next_id + len(picks)))
        self.picks.update(zip(ids.tolist(), picks, strict=True))
        self.next_id += len(picks)

    @rule(
        ids=st.lists(st.integers(0, N_IDS), max_size=6, unique=True),
        pick=st.integers(0, N_POOL - 1),
        replace=st.booleans(),
    )
    def add_with_ids(self, ids, pick, replace):
        batch = self.pool[[pick] * len(ids)]
        if not replace and self.picks.keys() & set(ids):
            with pytest.raises(ValueError, match="is taken"):
                self.index.add(batch, ids)
            return
        self.index.add(batch, ids, replace=replace)
        self.picks.update(dict.fromkeys(ids, pick))
        self.next_id = max([self.next_id, *(id_ + 1 for id_ in ids)])

    @rule(n=st.integers(1, 20))
    def add_with_a_bad_row(self, n):
        batch = self.pool[[0] * n]
        batch[-1, 3] = np.nan
        with pytest.raises(ValueError, match=f"row {n - 1} is not"):
            self.index.add(batch)

    @rule(data=st.data(), also_unknown=st.booleans())
    def remove(self, data, also_unknown):
        ids = data.draw(st.lists(st.sampled_from(sorted(self.picks)), max_size=5)) if self.picks else []
        if also_unknown:
            with pytest.raises(ValueError, match="is not in the index"):
                self.index.remove([*ids, self.next_id])
            return
        self.index.remove(ids)
        for id_ in set(ids):
            del self.picks[id_]

    @rule()
    def compact(self):
        self.index.compact()
        assert self.index.stats()["removed"] == 0

    @rule(first=st.integers(0, N_IDS), n=st.integers(0, 15), pick=st.integers(0, N_POOL - 1))
    def merge(self, first, n, pick):
        other = CBEIndex(16, **{"vectors": None, "buckets": None, **self.options})
        ids = list(range(first, first + n))
        other.add(self.pool[[pick] * n], ids)
        if self.picks.keys() & set(ids):
            with pytest.raises(ValueError, match="is taken"):
                self.index.merge(other)
            return
        self.index.merge(other)
        self.picks.update(dict.fromkeys(ids, pick))
        self.next_id = max(self.next_id, first + n if n else 0)

    @rule(again=st.sampled_from([copy.copy, lambda index: pickle.loads(pickle.dumps(index))]))
    def go_on_with_a_copy(self, again):
        old, self.index = self.index, again(self.index)
        old.add(self.pool, range(10_000, 10_000 + N_POOL))
        old.remove(old.ids[: len(old) // 2])

    @rule(
        queries=st.lists(st.integers(0, N_POOL - 1), min_size=1, max_size=2),
        k=st.sampled_from([1, 2, 5, 40]),
        allow=st.none() | st.lists(st.integers(0, N_IDS), max_size=20),
        deny=st.none() | st.lists(st.integers(0, N_IDS), max_size=20),
        n_candidates=st.sampled_from([None, 500]),
        by_scan=st.booleans(),
    )
    def search(self, queries, k, allow, deny, n_candidates, by_scan):
        expected = vector_oracles.nearest_by(*self.of(queries), k=k, allow=allow, deny=deny)
        options = {"mode": "scan"} if by_scan else {"n_probes": ALL} if self.index.buckets else {}
        result = self.index.search(self.pool[queries], k, **options, n_candidates=n_candidates, allow=allow, deny=deny)
        np.testing.assert_allclose(result.distances, expected[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(result.ids, expected[1])

    @rule(query=st.integers(0, N_POOL - 1), k=st.sampled_from([1, 3, 40]), n_probes=st.integers(1, 3))
    def search_few_cells(self, query, k, n_probes):
        """No row is found twice, and as many as there are, at their distances."""
        if self.index.buckets != "cells":
            return
        distances, ids = self.of([query])
        result = self.index.search(self.pool[query], k, n_probes=n_probes)
        found = result.ids[result.ids >= 0].tolist()
        assert len(found) == len(set(found)) == min(k, len(ids))
        expected = [distances[0][ids.index(id_)] for id_ in found]
        np.testing.assert_allclose(result.distances[: len(found)], expected, rtol=1e-5, atol=1e-6)

    @rule(query=st.integers(0, N_POOL - 1), place=st.floats(0, 1))
    def range_search(self, query, place):
        # Between two distances that occur: a radius that equals one would hang on the last bit of it.
        levels = np.unique(self.distances[query].astype(np.float32))
        at = int(place * (len(levels) - 1))
        if at + 1 < len(levels) and levels[at + 1] - levels[at] < 1e-4:
            return
        radius = (levels[at] + levels[at + 1]) / 2 if at + 1 < len(levels) else levels[at] + 1
        lims, distances, ids = vector_oracles.within_by(*self.of([query]), radius=radius)
        result = self.index.range_search(self.pool[query], radius)
        np.testing.assert_array_equal(result.lims, lims)
        np.testing.assert_array_equal(result.ids, ids)
        np.testing.assert_allclose(result.distances, distances, rtol=1e-5, atol=1e-6)

    @invariant()
    def has_the_same_vectors(self):
        if not hasattr(self, "index"):
            return
        ids = sorted(self.picks)
        assert len(self.index) == len(ids)
        assert self.index.ids.tolist() == ids
        np.testing.assert_array_equal(self.index.get(ids), self.pool[[self.picks[id_] for id_ in ids]])
        # Once fitted, always fitted; and never left unfitted with enough rows.
        assert self.index.is_fitted or not self.was_fitted
        assert self.index.is_fitted or len(ids) < N_FIRST
        self.was_fitted = self.index.is_fitted


TestIndexAgainstDict = IndexAgainstDict.TestCase
TestIndexAgainstDict.settings = settings(max_examples=40, stateful_step_count=30)
