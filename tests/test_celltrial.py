"""What a number of probes finds, told by one search of all cells, next to searches with that number of probes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import CBEIndex, kernels
from cbeindex._core.tuning import tuned
from cbeindex.search.buckets.celltrial import CellTrial
from cbeindex.search.buckets.trials import BucketTrial, Sample
from tests.small import examples, segments_of


@pytest.mark.kernels
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 12), st.integers(0, 5), st.floats(0, 3),
    st.integers(1, 4),
)  # fmt: skip
@examples(60)
def test_rows_in_visited_cells_are_kept(seed, least, n, n_more, reach, rank):
    rng = np.random.default_rng(seed)
    n_cells, n_queries, n_rows = 10, 3, rng.integers(0, n + 1, 3)
    distances = np.sort(rng.random((n_queries, n_cells)), axis=1)
    cells = rng.integers(0, n_cells, (n_queries, n))
    gaps = np.take_along_axis(distances - distances[:, :1], cells, axis=1)
    rows = np.where(np.arange(n) < n_rows[:, np.newaxis], rng.permutation(n), -1)
    estimates = np.sort(rng.standard_normal((n_queries, n)).astype(np.float32), axis=1)
    estimates[rows < 0] = np.inf
    kept, kept_estimates = np.empty_like(rows), np.empty_like(estimates)
    kernels.counting.keep_visited(
        rows, estimates, cells.astype(np.int32), gaps, least, least + n_more, reach, rank, kept, kept_estimates
    )
    for q in range(n_queries):
        there = range(n_rows[q])
        visited = [i for i in there if cells[q, i] < least]
        last = visited[rank - 1] if len(visited) >= rank else n_rows[q] - 1
        limit = reach * np.sqrt(max(0, estimates[q, last])) if n_rows[q] else 0
        near = [i for i in there if cells[q, i] < least or (cells[q, i] < least + n_more and gaps[q, i] <= limit)]
        assert kept[q].tolist() == rows[q, near].tolist() + [-1] * (n - len(near))
        assert kept_estimates[q].tolist() == estimates[q, near].tolist() + [np.inf] * (n - len(near))


def clustered(n, dim=24, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((12, dim))
    return (centres[rng.integers(0, 12, n)] + 0.4 * rng.standard_normal((n, dim))).astype(np.float32)


@pytest.mark.parametrize("vectors", ["float32", "int8", None])
@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_one_search_of_all_cells_tells_what_fewer_probes_find(metric, vectors):
    """But for rows that are not among the nearest of all cells."""
    with tuned(least_cell_segment_rows=64, most_calibrated_depth=60):
        index = CBEIndex(24, metric=metric, vectors=vectors, buckets="cells", spill=False)
        X = clustered(500)
        index.fit(X)
        index.add(X)
        index.compact()
        (segment,) = segments_of(index)
        trial = CellTrial(segment, Sample.of_rows(index._state.codec, segment, np.arange(0, 500, 20)))
        # The measured reach is where one of these queries reaches one more cell, up to rounding.
        trial.reach = lambda effort: 1.001 * CellTrial.reach(trial, effort)
        assert trial.most_effort > 8
        n_told, n_searched, everywhere = 0, 0, trial.candidates(trial.most_effort, 60, trial.n_queries)
        for effort in (1, 2, 3, 5, 8):
            told = trial.candidates(effort, 60, trial.n_queries)
            searched = BucketTrial.candidates(trial, effort, 60, trial.n_queries)
            for some, found, near in zip(told.rows, searched.rows, everywhere.rows, strict=True):
                rows, expected = some[some >= 0].tolist(), [row for row in found.tolist() if row in near and row >= 0]
                if trial.reach(effort) == 0:
                    assert rows == expected
                # Fewer cells are in reach if the row that decides that is not among the nearest.
                assert rows == [row for row in expected if row in rows]
                n_told, n_searched = n_told + len(rows), n_searched + len(expected)
        assert 0.9 * n_searched < n_told <= n_searched
