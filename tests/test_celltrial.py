"""What a number of probes finds, told by one search of all cells, next to searches with that number of probes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import CBEIndex, kernels
from cbeindex._core.tuning import tuned
from cbeindex.search.buckets.celltrial import CellTrial
from cbeindex.search.buckets.residualcells import without_copies
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


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_rows_with_copies_are_told_from_their_nearer_cell(metric):
    with tuned(least_cell_segment_rows=64, most_calibrated_depth=60, least_centre_gain=-1.0):
        index = CBEIndex(24, metric=metric, vectors="float32", buckets="cells", spill=True)
        X = clustered(500)
        index.fit(X)
        index.add(X)
        index.compact()
        (segment,) = segments_of(index)
        trial = CellTrial(segment, Sample.of_rows(index._state.codec, segment, np.arange(0, 500, 20)))
        trial.reach = lambda effort: 0.0  # the row that decides what is in reach may be a copy
        everywhere = trial.candidates(trial.most_effort, 60, trial.n_queries).rows
        n_told, n_searched = 0, 0
        for effort in (1, 2, 3, 5, 8):
            told = trial.candidates(effort, 60, trial.n_queries).rows
            searched = BucketTrial.candidates(trial, effort, 60, trial.n_queries).rows
            for some, found, near in zip(told, searched, everywhere, strict=True):
                rows, expected = set(some[some >= 0].tolist()), set(found.tolist()) & set(near.tolist()) - {-1}
                assert rows >= expected  # estimates of copies differ, so that other rows may be the nearest
                n_told, n_searched = n_told + len(rows), n_searched + len(expected)
        assert 0.97 * n_told < n_searched <= n_told


def an_index_with_copies():
    index = CBEIndex(24, metric="l2", vectors="float32", buckets="cells", spill=True)
    X = clustered(500)
    index.fit(X)
    index.add(X)
    index.compact()
    return index


def test_copies_made_during_calibration_are_those_of_a_trial_with_copies():
    """A trial that gets copies tells what a new trial of the same cells with copies tells."""
    with tuned(least_cell_segment_rows=64, most_calibrated_depth=60, least_centre_gain=-1.0):
        index = an_index_with_copies()
        (segment,) = segments_of(index)
        sample = Sample.of_rows(index._state.codec, segment, np.arange(0, 500, 20))
        plain = CellTrial(without_copies(segment), sample)
        before = plain.candidates(2, 60, plain.n_queries)
        with_copies, whole = plain.with_copies(segment.buckets), CellTrial(segment, sample)
        for effort in (1, 2, 5, whole.most_effort):
            told, expected = (trial.candidates(effort, 60, trial.n_queries) for trial in (with_copies, whole))
            np.testing.assert_array_equal(told.rows, expected.rows)
            np.testing.assert_array_equal(told.estimates, expected.estimates)
        after = plain.candidates(2, 60, plain.n_queries)
        np.testing.assert_array_equal(after.rows, before.rows)
        assert (with_copies.candidates(2, 60, plain.n_queries).rows >= 0).sum() > (before.rows >= 0).sum()


def test_needed_cells_are_those_of_a_search_with_copies():
    with tuned(least_cell_segment_rows=64, most_calibrated_depth=60, least_centre_gain=-1.0):
        index = an_index_with_copies()
        (segment,) = segments_of(index)
        sample = Sample(index._state.codec, clustered(25, seed=1), None)  # no rows, which would move the centroids
        with_copies, plain = CellTrial(segment, sample), CellTrial(without_copies(segment), sample)
        for trial, needed in zip((plain, with_copies), plain.needed(10), strict=True):
            near = trial._in_all_cells(10, trial.n_queries)
            np.testing.assert_array_equal(needed, near.places[near.rows >= 0] + 1)
        assert (plain.needed(10)[1] < plain.needed(10)[0]).any()


def test_a_small_part_of_an_index_does_not_make_searches_exact():
    """Its few queries can show that 0.99 of the first results are found."""
    rng = np.random.default_rng(0)
    means = 4 * rng.standard_normal((300, 16))
    rows = (means[rng.integers(0, 300, 84_200)] + rng.standard_normal((84_200, 16))).astype(np.float32)
    index = CBEIndex(16, metric="l2", vectors="float32")
    index.add(rows[:80_000])
    index.add(rows[80_000:])
    large, small = segments_of(index)
    assert small.n_rows == 4_200
    assert max(small.buckets.calibration.n_queries) < max(large.buckets.calibration.n_queries)
    assert index.explain(rows[:5], 1, recall=0.99).mode == "buckets"
