"""Ctrl-C takes effect between two calls of kernels or of numpy, so that none of them may be given much work."""

import numpy as np
import pytest

from cbeindex import CBEIndex, CirculantEncoder
from cbeindex._core.tuning import tuned, tuning
from cbeindex.distances import kmeans, rotations
from cbeindex.distances.kept import Candidates, kept_vectors
from cbeindex.distances.metrics import METRICS
from cbeindex.kernels import cellgroups, cellsearch, graphsearch
from cbeindex.search import batches, exact
from cbeindex.store import state
from tests.small import small_buckets
from tests.vector_oracles import clustered

DIM = 24


@pytest.fixture
def spied(monkeypatch):
    """Return a function that puts a spy in the place of a function of a module: lengths of one of its arguments."""

    def spy(module, name, argument=0):
        lengths, call = [], getattr(module, name)

        def spying(*arguments):
            lengths.append(len(arguments[argument]))
            return call(*arguments)

        monkeypatch.setattr(module, name, spying)
        return lengths

    return spy


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_kernel_call_finds_a_bounded_number_of_rows_in_cells(n_threads, spied):
    """Half a million rows take 0.14 s at the measured cost of each; the number of rows scanned hardly matters here."""
    rows = clustered(9_000, DIM, seed=0, n_centres=6)
    index = CBEIndex(DIM, vectors=None, buckets="cells")
    index.add(rows)
    lengths = spied(cellgroups, "search_group")
    found = index.search(rows[:700], k=2_000, mode="scan", n_threads=n_threads)
    assert sum(lengths) == 700
    assert max(lengths) * 2_000 <= 2**19
    assert max(lengths) >= 32  # queries that share cells save time
    with tuned(cell_task_ns=1.0, least_group_queries=1, least_cell_visits=0):
        alone = index.search(rows[:40], k=2_000, mode="scan", n_threads=n_threads)
    assert set(lengths[-40:]) == {1}
    np.testing.assert_array_equal(found.ids[:40], alone.ids)


def test_a_kernel_call_visits_a_bounded_number_of_rows_in_cells(spied):
    """A query that visits more rows takes longer, and fewer of them are searched together."""
    with small_buckets({"least_centre_rows": 4, "centre_sample_rows": 10**4}):
        rows = clustered(400, DIM, seed=0, n_centres=6)
        index = CBEIndex(DIM, vectors=None, buckets="cells")
        index.add(rows)
        together, alone = spied(cellgroups, "search_group"), spied(cellsearch, "search_vectors")
        largest = []
        for options in ({"n_probes": 1}, {"mode": "scan"}):
            with tuned(cell_task_ns=20_000.0, found_row_ns=0.0):
                index.search(rows, k=5, **options)
            largest.append(max(together + alone))
            together.clear()
            alone.clear()
    # 400 rows take 2 ns each, and a part of one for each byte, so that the bound is at most 25 queries.
    assert largest[1] <= 25
    assert largest[1] < largest[0]


def test_a_kernel_call_scans_a_bounded_number_of_vertices(spied):
    with small_buckets():
        rows = clustered(400, DIM, seed=0, n_centres=6)
        index = CBEIndex(DIM, vectors=None, buckets="graph")
        index.add(rows)
        lengths = spied(graphsearch, "search_vectors")
        n_levels = index._state.codec.vertices.shape.n_levels
        with tuned(graph_task_bytes=7 * 400 * n_levels):
            found = index.search(rows[:30], k=5, mode="scan", n_threads=1)
            assert max(lengths) == 7 * DIM
            lengths.clear()
            index.search(rows[:30], k=5, n_probes=8, n_threads=1)
            assert max(lengths) == 15 * DIM
        np.testing.assert_array_equal(found.ids, index.search(rows[:30], k=5, mode="scan").ids)


@pytest.mark.parametrize("buckets", [None, "cells", "graph"])
def test_a_batch_holds_a_bounded_number_of_rows(buckets, monkeypatch):
    """Keys, rows and distances of all candidates of a batch are arrays of numpy."""
    sizes, search_in_batches = [], batches.search_in_batches

    def spy(search, source, n_bits, plan, n_threads):
        def counted(first, vectors, n_threads):
            sizes.append(len(vectors))
            return search(first, vectors, n_threads)

        return search_in_batches(counted, source, n_bits, plan, n_threads)

    for module in ("cellsearch", "graphsearch", "pipeline"):
        monkeypatch.setattr(f"cbeindex.search.{module}.search_in_batches", spy)
    with small_buckets():
        rows = clustered(400, DIM, seed=0, n_centres=6)
        index = CBEIndex(DIM, vectors="float32", buckets=buckets)
        index.add(rows)
        expected = index.search(rows.tolist(), k=300)
        assert max(sizes) > 32
        sizes.clear()
        with tuned(query_values=32 * 300 * tuning().found_row_values):
            found = index.search(rows.tolist(), k=300)
    assert sum(sizes) == 400
    assert max(sizes) <= 32
    np.testing.assert_array_equal(found.ids, expected.ids)


@pytest.mark.parametrize("n_cells", [1, 3, 50, 400])
def test_means_of_k_means_are_taken_of_some_points_at_a_time(n_cells, spied):
    """Blocks have whole cells, so that sums do not depend on them."""
    rng = np.random.default_rng(n_cells)
    points, cell = rng.standard_normal((500, DIM)).astype(np.float32), rng.integers(0, n_cells, 500)
    cell[cell == 1] = 0  # an empty cell, and a larger one
    taken = spied(kmeans, "take_rows", 1)
    means, sizes = kmeans.means(points, cell, n_cells)
    assert taken == [500]
    np.testing.assert_array_equal(sizes, np.bincount(cell, minlength=n_cells))
    for i in range(n_cells):
        own = points[cell == i].astype(np.float64)
        # Sums of 500 float32 values of about 1 are rounded by less than 500 eps.
        np.testing.assert_allclose(means[i], own.mean(axis=0) if len(own) else 0, atol=500 * 2**-23)
    taken.clear()
    with tuned(kmeans_block_rows=40):
        np.testing.assert_array_equal(kmeans.means(points, cell, n_cells)[0], means)
    assert sum(taken) == 500
    assert max(taken) <= max(40, sizes.max())


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_a_sample_is_scaled_in_pieces(metric, spied):
    rng = np.random.default_rng(0)
    sample = rng.standard_normal((100, DIM)).astype(np.float32)
    sample[::7] *= 50
    sample[3] = 0
    lengths = spied(state, "squares")
    with tuned(copy_bytes=9 * sample[:1].nbytes):
        if metric == "l2":
            scaled = state.shortened(sample, METRICS[metric])
            norms = np.linalg.norm(sample, axis=1)
            expected = sample * np.minimum(1, 2 * np.median(norms) / np.where(norms > 0, norms, 1))[:, np.newaxis]
            np.testing.assert_allclose(scaled, expected, rtol=1e-6)
        else:
            fitted = state.fit_encoder(CirculantEncoder(DIM, seed=1), sample, METRICS[metric])
            norms = np.linalg.norm(sample, axis=1, keepdims=True)
            unit = sample / np.where(norms > 0, norms, 1)
            mean = CirculantEncoder(DIM, seed=1).fit(unit).centre
            np.testing.assert_allclose(fitted.centre, mean, atol=2 * 2**-23)  # a quotient, or a product: two roundings
    assert lengths == 11 * [9] + [1]


def test_a_call_reads_a_bounded_number_of_vectors(monkeypatch):
    rng = np.random.default_rng(0)
    vectors, queries = (rng.standard_normal((n, DIM)).astype(np.float32) for n in (90, 60))
    kept = kept_vectors(vectors, np.arange(90), METRICS["l2"], DIM, None)
    rows = np.tile(np.arange(80), (60, 1))
    candidates = Candidates(rows, np.full(60, 80), np.full(rows.shape, -np.inf, dtype=np.float32))
    expected, n_read = exact.nearest(kept, queries, candidates, 5, 1)
    lengths, nearest = [], type(kept).nearest

    def spy(self, queries, candidates, k):
        lengths.append(len(queries))
        return nearest(self, queries, candidates, k)

    monkeypatch.setattr(type(kept), "nearest", spy)
    with tuned(exact_task_reads=4 * 80 * DIM):
        found, n_read_again = exact.nearest(kept, queries, candidates, 5, 1)
    assert lengths == 15 * [4]
    assert n_read_again == n_read
    np.testing.assert_array_equal(found.ids, expected.ids)


@pytest.mark.parametrize("buckets", ["cells", "graph"])
@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_kept_vectors_are_decoded_in_pieces(buckets, metric, spied):
    with small_buckets():
        rows = clustered(200, DIM, seed=0, n_centres=6)
        index = CBEIndex(DIM, metric=metric, vectors="int8", buckets=buckets)
        ids = index.add(rows)
        whole = index.get(ids)
        lengths = spied(rotations, "turned_back", 1)
        with tuned(decode_step_values=30 * DIM, copy_bytes=7 * rows[:1].nbytes):
            np.testing.assert_array_equal(index.get(ids), whole)
    assert lengths == 6 * [30] + [20]
