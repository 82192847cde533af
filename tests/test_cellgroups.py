"""Queries of a batch that share the reading of cells, against the same queries one by one."""

import numpy as np
import pytest

from cbeindex import CBEIndex
from cbeindex._core.tuning import tuned
from cbeindex.kernels import cellgroups
from tests.conftest import COMPILED
from tests.small import ALL, small_buckets
from tests.vector_oracles import clustered

pytestmark = pytest.mark.kernels

DIM = 24
N_ROWS, N_QUERIES = (400, 23) if COMPILED else (80, 9)
METRICS = ("cosine", "l2", "ip") if COMPILED else ("cosine",)


def some_vectors(n, seed=0):
    rows = clustered(n, DIM, seed=seed, n_centres=6)
    rows[7], rows[8] = rows[3], 0
    return rows


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "options",
    [
        {"vectors": None},
        {"vectors": None, "cell_bits": 1},
        {"vectors": "float32"},
        {"vectors": "float32", "cell_bits": 2},
        {"vectors": "int8", "cell_bits": 1},
        {"vectors": "float32", "spill": True},
    ],
)
def test_queries_that_share_cells_find_what_they_find_alone(metric, options, monkeypatch):
    """Results, errors and counts are those of single queries."""
    shared, group = [], cellgroups.search_group
    monkeypatch.setattr(cellgroups, "search_group", lambda *arguments: shared.append(1) or group(*arguments))
    sizes = {"least_spill_rows": 2, "least_group_queries": 2, "least_cell_visits": 0, "group_task_queries": 7}
    with small_buckets({"least_centre_rows": 4, "centre_sample_rows": 10**4}), tuned(**sizes):
        index = CBEIndex(DIM, buckets="cells", metric=metric, **options)
        index.add(some_vectors(N_ROWS))
        index.remove(np.arange(0, N_ROWS, 3))
        queries = some_vectors(N_QUERIES, seed=9)
        queries[5] = some_vectors(N_ROWS)[20] * 1.0001  # so near to a row that tables must be precise
        few = np.flatnonzero(np.arange(N_ROWS) % 3 != 0)[::9]
        depth = {"n_candidates": 30} if options["vectors"] else {}
        searches = [{"n_probes": n, **depth} for n in (1, 2, 5, ALL)]
        searches += [{"n_probes": 1, "deny": np.setdiff1d(np.arange(N_ROWS), few), **depth}, {}]
        for search in searches:
            alone = [index.search(query, k=7, **search) for query in queries]
            shared.clear()
            for n_threads in (1, 2):
                found = index.search(queries, k=7, n_threads=n_threads, **search)
                np.testing.assert_array_equal(found.ids, [one.ids for one in alone])
                np.testing.assert_array_equal(found.distances, [one.distances for one in alone])
                if found.errors is not None:
                    np.testing.assert_array_equal(found.errors, [one.errors for one in alone])
                for name in ("visited", "buckets"):
                    assert found.stats[name] == sum(one.stats[name] for one in alone)
            assert shared
