"""CBEIndex whose rows are also in second cells, against the same index without copies."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import CBEIndex, verify
from cbeindex._core.tuning import tuned
from cbeindex.distances.recoding import recode
from cbeindex.kernels.cellscan import drop_copies
from tests import vector_oracles
from tests.lookup_oracles import values_of_levels
from tests.small import ALL, buckets_of, check_equal, examples, segments_of, small_buckets
from tests.vector_oracles import clustered

DIM = 24
METRICS = ("cosine", "l2", "ip")


@pytest.fixture(autouse=True)
def _small():
    with small_buckets({"least_centre_rows": 4, "least_cell_rows": 4, "least_centre_gain": -1.0}):
        yield


def some_vectors(n, seed=0):
    return clustered(n, DIM, seed=seed, n_centres=6)


def an_index(n=300, *, spill=True, **options):
    index = CBEIndex(DIM, vectors="float32", buckets="cells", spill=spill, **options)
    index.add(some_vectors(n))
    return index


def unpacked(codes):
    """Levels of codes of 4 bits a dimension, (n_rows, DIM)."""
    return np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)[:, :DIM].astype(np.float64)


def copies_of(cells):
    """The cell that holds the copy of each row."""
    return cells.copies.cells_of(cells.n_rows, cells.codec.n_bytes)


def test_every_row_has_a_copy_in_another_cell():
    for cells in buckets_of(an_index()):
        own = np.repeat(np.arange(cells.n_cells), np.diff(cells.offsets))
        second = copies_of(cells)
        assert (second >= 0).all()
        assert (second != own).all()
        rows, _, is_there = cells.copies.rows(cells.codec.n_bytes)
        assert sorted(rows[is_there]) == list(range(cells.n_rows))


def test_second_cells_are_those_of_the_formula():
    index = an_index(200, metric="l2")
    (segment,), weight = segments_of(index), 1.5
    cells = segment.buckets
    points = cells.codec.decode(segment.columns["residuals"][:], np.arange(200)).astype(np.float64)
    own, C = np.repeat(np.arange(cells.n_cells), np.diff(cells.offsets)), cells.centroids.astype(np.float64)
    first = points - C[own]
    first /= np.maximum(np.linalg.norm(first, axis=1, keepdims=True), 1e-30)
    apart = points[:, np.newaxis] - C
    loss = (apart**2).sum(axis=2) + weight * (apart * first[:, np.newaxis]).sum(axis=2) ** 2
    loss[np.arange(200), own] = np.inf
    chosen = loss[np.arange(200), copies_of(cells)]
    np.testing.assert_allclose(chosen, loss.min(axis=1), rtol=1e-4)  # of nearly equal cells either one


@pytest.mark.parametrize("metric", METRICS)
def test_copies_add_rows_and_never_count_one_twice(metric):
    plain, spilled = an_index(spill=False, metric=metric), an_index(metric=metric)
    n_compared = 0
    for query in some_vectors(20, seed=5):
        for n_probes, k in ((1, 1), (2, 5), (4, 5), (4, 30)):
            options = {"n_probes": n_probes, "n_candidates": 300}
            without, found = plain.search(query, k, **options), spilled.search(query, k, **options)
            assert len(set(found.ids.tolist())) == k
            if without.stats["buckets"] == n_probes:  # otherwise more cells were visited, to find enough rows
                assert (found.distances <= without.distances).all()
                assert found.stats["visited"] >= without.stats["visited"]
                n_compared += found.stats["visited"] > without.stats["visited"]
    assert n_compared > 20


@pytest.mark.parametrize("n_candidates", [5, 6, 11])
def test_copies_do_not_take_the_places_of_candidates(n_candidates):
    """Each of the nearest rows by estimate is a candidate once, also if its copy is as near."""
    index = an_index(metric="l2")
    queries = some_vectors(20, seed=5)
    n_cells = buckets_of(index)[0].n_cells
    found = index.search(queries, 5, n_probes=n_cells - 1, n_candidates=n_candidates)
    assert found.stats["vectors_read"] == n_candidates * 20
    assert all(len(set(ids)) == 5 for ids in found.ids.tolist())


@pytest.mark.parametrize("vectors", ["float32", "float16"])
@pytest.mark.parametrize("metric", METRICS)
def test_all_else_is_as_without_copies(metric, vectors):
    options = {"metric": metric, "vectors": vectors, "buckets": "cells"}
    plain, spilled = (
        CBEIndex(DIM, spill=spill, **{"vectors": None, "buckets": None, **options}) for spill in (False, True)
    )
    queries = some_vectors(9, seed=5)
    for index in (plain, spilled):
        index.add(some_vectors(200))
        index.add(some_vectors(150, seed=1), np.arange(1000, 1150))
        index.remove([3, 1004])
        index.add(some_vectors(4, seed=2), [7, 8, 1009, 2000], replace=True)
    assert len(plain) == len(spilled) == 349
    np.testing.assert_array_equal(plain.ids, spilled.ids)
    for request in (
        {"mode": "scan"}, {"n_probes": ALL}, {"n_probes": ALL, "rerank": "asymmetric"}, {"rerank": None},
        {"n_probes": 2, "rerank": "asymmetric"}, {"allow": [5, 7, 1009, 1100]}, {"mode": "scan", "deny": np.arange(99)},
    ):  # fmt: skip
        check_equal(spilled.search(queries, 8, **request), plain.search(queries, 8, **request))
    radius = float(np.median(plain.search(queries, 20).distances))
    for ours, theirs in zip(spilled.range_search(queries, radius), plain.range_search(queries, radius), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for index in (plain, spilled):
        index.compact()
    assert len(spilled) == 349
    check_equal(spilled.search(queries, 8, mode="scan"), plain.search(queries, 8, mode="scan"))


@examples(25)
@given(
    st.integers(0, 9), st.sampled_from([1, 2, 3]), st.sampled_from([1, 4, 30]), st.sampled_from(METRICS),
    st.lists(st.integers(0, 259), max_size=40), st.sampled_from([None, "allow", "deny"]),
)  # fmt: skip
def test_removed_and_filtered_rows_are_never_results(seed, n_probes, k, metric, some, how):
    with small_buckets({"least_centre_rows": 4, "least_cell_rows": 4, "least_centre_gain": -1.0}):
        index = CBEIndex(DIM, vectors="float32", buckets="cells", spill=True, metric=metric)
        rows = some_vectors(260, seed)
        index.add(rows)
        index.remove(np.arange(seed, 260, 7))
        present = np.setdiff1d(np.arange(260), np.arange(seed, 260, 7))
        allowed = {None: present, "allow": np.intersect1d(present, some), "deny": np.setdiff1d(present, some)}[how]
        queries = some_vectors(4, seed=99)
        found = index.search(queries, k, n_probes=n_probes, n_candidates=260, **({how: some} if how else {}))
        for ids, near, query in zip(found.ids, found.distances, queries, strict=True):
            there = ids[ids >= 0]
            assert len(there) == len(set(there)) == min(k, len(allowed))
            assert np.isin(there, allowed).all()
            expected = vector_oracles.distances(metric, query[np.newaxis], rows[there])[0]
            np.testing.assert_allclose(near[ids >= 0], expected, rtol=1e-4, atol=1e-5)


def test_answers_do_not_depend_on_threads_or_batches():
    index = an_index(400, metric="l2")
    queries = some_vectors(30, seed=9)
    whole = index.search(queries, 5, n_probes=2)
    for n_threads in (1, 3):
        check_equal(index.search(queries, 5, n_probes=2, n_threads=n_threads), whole)
    for i in range(0, 30, 7):
        np.testing.assert_array_equal(index.search(queries[i], 5, n_probes=2).ids, whole.ids[i])


def test_files_hold_copies(tmp_path):
    path, queries = tmp_path / "spilled.cbe", some_vectors(6, seed=6)
    index = an_index(200)
    index.save(path)
    index.add(some_vectors(100, seed=2))
    index.remove([4, 250])
    index.save()
    verify(path)
    for loaded in (CBEIndex.load(path), CBEIndex.load(path, mmap=False), pickle.loads(pickle.dumps(index))):
        assert loaded.stats()["bytes"]["copies"] == index.stats()["bytes"]["copies"] > 0
        for request in ({}, {"mode": "scan"}, {"n_probes": 1}):
            check_equal(loaded.search(queries, 5, **request), index.search(queries, 5, **request))
        more = copy.copy(loaded)
        more.add(some_vectors(90, seed=3))
        more.compact()
        assert len(more) == 388
        assert all((copies_of(cells) >= 0).all() for cells in buckets_of(more))


def test_data_decides_unless_the_caller_does():
    def has_copies(gain=0.1, **options):
        with tuned(least_spill_rows=100, least_spill_gain=gain):
            index = CBEIndex(DIM, buckets="cells", **{"vectors": None, **({"vectors": "float32"} | options)})
            index.add(some_vectors(300))
        return "copies" in index.stats()["bytes"]

    assert has_copies(gain=-99.0)
    assert not has_copies(gain=1.0)
    assert has_copies(gain=1.0, spill=True)
    for never in ({"spill": False}, {"vectors": None}, {"cell_bits": 1}, {"cell_bits": 2}):
        assert not has_copies(gain=-99.0, **never)


BAD = [
    ({"vectors": None}, ValueError, "spill=True needs vectors that are read beside codes, got vectors=None"),
    ({"vectors": "int4", "n_bits": DIM}, ValueError, "spill=True needs vectors that are read beside codes"),
    ({"cell_bits": 1}, ValueError, "spill=True needs cell_bits=4, got 1"),
    ({"n_bits": 300}, ValueError, "spill=True needs cell_bits=4, got 1"),
    ({"buckets": "clusters"}, ValueError, "spill is not an option of buckets='clusters'"),
    ({"spill": 2}, TypeError, "spill must be True or False, got 2"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_what_cannot_be_made(options, error, message):
    with pytest.raises(error, match=message):
        CBEIndex(
            DIM,
            **{
                "vectors": None,
                "buckets": None,
                **({"vectors": "float32", "buckets": "cells", "spill": True} | options),
            },
        )


@pytest.mark.parametrize("metric", METRICS)
def test_recoded_rows_estimate_nearly_as_well_as_their_own_codes(metric):
    index = an_index(300, metric=metric, n_bits=DIM)
    codec, (segment,) = index._state.codec, segments_of(index)
    residuals, rows = codec.residuals, np.arange(300)
    column = segment.columns["residuals"][:]
    centres = np.random.default_rng(0).integers(0, len(residuals.centres), 300).astype(np.uint16)
    queries = some_vectors(10, seed=4)
    true = vector_oracles.distances(metric, queries, some_vectors(300)[segment.ids])

    def errors(coded):
        numbers = residuals.numbers_of(coded)
        values = values_of_levels(unpacked(coded[:, : residuals.n_bytes]), 4)
        unit = queries / (np.linalg.norm(queries, axis=1, keepdims=True) if metric == "cosine" else 1)
        Z, c = codec.encoder.project(unit.astype(np.float32)), residuals.centres[numbers.centres]
        apart, mean = ((Z[:, np.newaxis] - c) ** 2).sum(axis=2), codec.geometry.centre
        shifts = {"l2": apart, "cosine": apart / 2, "ip": 1 - ((unit - mean) @ mean)[:, np.newaxis] - Z @ c.T}[metric]
        return numbers.offsets + shifts - numbers.factors * (Z @ values.T) - true

    recoded = recode(residuals, column, rows, centres)
    np.testing.assert_array_equal(residuals.numbers_of(recoded).centres, centres)
    own, other = np.sqrt((errors(column) ** 2).mean()), np.sqrt((errors(recoded) ** 2).mean())
    # Random centres are up to three times as far as the nearest ones, and errors grow with that distance.
    assert other < 6 * own
    assert other < 0.15 * true.std()


@pytest.mark.kernels
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), max_size=60), st.integers(1, 40))
def test_of_equal_ranks_the_first_key_is_left(pairs, n_most):
    keys = np.array(sorted((near << 32) | rank for near, rank in pairs), dtype=np.uint64)
    seen, expected, taken = np.empty(128, dtype=np.int64), [], set()
    for key in keys.tolist():
        if key & 0xFFFFFFFF not in taken and len(expected) < n_most:
            expected.append(key)
            taken.add(key & 0xFFFFFFFF)
    n = drop_copies(keys, len(keys), n_most, seen)
    assert keys[:n].tolist() == expected


@pytest.mark.parametrize("vectors", ["int4", None])
def test_an_index_that_is_shrunk_to_its_codes_has_no_copies(vectors, tmp_path):
    """Copies serve searches that read vectors beside codes; the file must load without the option that made them."""
    index = an_index()
    index.save(tmp_path / "items.cbe")
    assert index.stats()["bytes"]["copies"] > 0
    index.shrink(vectors).save()
    assert "copies" not in index.stats()["bytes"]
    verify(tmp_path / "items.cbe")
    loaded = CBEIndex.load(tmp_path / "items.cbe")
    queries = some_vectors(9)
    check_equal(loaded.search(queries, 5), index.search(queries, 5))
    loaded.compact()
