"""The planner: every plan it can make, the reason it gives, what it costs, and what it refuses."""

import copy
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex.search.buckets import Cells, Tables
from cbeindex.search.buckets.centroids import Centroids
from cbeindex.search.filters import IdFilter
from cbeindex.search.plan import Explanation
from cbeindex.search.planner import costs, plan
from cbeindex.search.request import IndexTraits, SearchRequest
from cbeindex.store.segment import NOT_HIDDEN, Segment
from tests.small import tune


@pytest.fixture(autouse=True)
def constants(monkeypatch):
    """The logic is tested here; where one mode overtakes another is measured, and may move."""
    tune(monkeypatch, least_candidates=640, cascade_bits=2048, cascade_share=64, cell_byte_cost=2, batch_queries=4)
    tune(monkeypatch, most_substring_results=64, estimate_all_bits=512)


def rows(n_rows, buckets=None):
    """A segment without codes, and ids that are all 0: without a filter the planner reads sizes only."""
    return Segment(np.broadcast_to(np.int64(0), n_rows), None, {}, NOT_HIDDEN, buckets=buckets)


def rows_from(first, n_rows):
    """A segment with consecutive ids."""
    return Segment(np.arange(first, first + n_rows), None, {}, NOT_HIDDEN)


def cells(n_rows, n_cells=1_000, n_probes=20, n_words=16):
    """Cells of equal size, of which `n_probes` hold the nearest 10, and more the nearest 100 and 1,000."""
    offsets = np.linspace(0, n_rows, n_cells + 1).astype(np.int64)
    needed = tuple(min(n_cells, n_probes * factor) for factor in (1, 3, 10))
    codes = np.zeros((n_cells, 3, n_words), dtype=np.uint64)
    centroids = Centroids(codes[:, 0], codes[:, 1:])
    return rows(n_rows, Cells(centroids, offsets, needed))


def tables(n_rows, n_tables=16, table_bits=16):
    """Tables without entries."""
    entries = np.broadcast_to(np.int32(0), (n_tables, 2**table_bits + 1))
    places = np.broadcast_to(np.int32(0), (n_tables, n_rows))
    return rows(n_rows, Tables(table_bits, np.arange(n_tables), entries, places))


TRAITS = ("n_bits", "metric", "buckets", "keeps_vectors", "can_estimate", "n_values", "is_fitted")


def planned(n_rows=100_000, *, parts=None, n_allowed=None, **changes):
    """A plan of CBEIndex, for an index of one segment without buckets unless there are `parts`.

    `n_allowed` is the number of allowed rows, evenly spread over the one segment.
    """
    options = {"n_bits": 1024, "metric": "cosine", "rerank": "auto", "k": 10, "n_queries": 1} | changes
    traits = IndexTraits(**{name: options.pop(name) for name in TRAITS if name in options})
    parts = [rows(n_rows)] if parts is None else parts
    ids = None
    if n_allowed is not None:
        parts = [replace(part, ids=np.arange(part.n_rows)) for part in parts]
        ids = np.linspace(0, parts[0].n_rows - 1, n_allowed).astype(np.int64)
    return traits, plan(traits, SearchRequest(**options, ids=IdFilter(ids)), parts)


def plan_for(*args, **changes):
    return planned(*args, **changes)[1]


def hamming_plan(*args, **changes):
    """A plan of BinaryIndex."""
    return plan_for(*args, **{"metric": "hamming", "rerank": None} | changes)


def costs_of(n_bits, parts, k, buckets, n_probes, n_allowed=None):
    mode = "auto" if buckets is not None else "scan"
    options = {"metric": "hamming", "rerank": None, "mode": mode, "n_probes": n_probes}
    return costs(*planned(parts=parts, n_bits=n_bits, k=k, buckets=buckets, n_allowed=n_allowed, **options))


@pytest.mark.parametrize(
    ("changes", "mode", "rerank", "n_candidates", "reason"),
    [
        ({}, "scan", "asymmetric", 640, "codes only; scan, because codes of 1024 bits are not .*; the nearest 640"),
        ({"keeps_vectors": True}, "scan", "exact", 640, "rerank='exact', because the index keeps vectors"),
        ({"keeps_vectors": True, "rerank": "asymmetric"}, "scan", "asymmetric", 640, "640 by Hamming distance"),
        ({"k": 100}, "scan", "asymmetric", 800, "the nearest 800 by Hamming distance are re-ranked"),
        ({"n_bits": 512}, "scan", "asymmetric", None, "is estimated, because codes of 512 bits are short"),
        ({"metric": "l2"}, "scan", "asymmetric", None, "norms count under 'l2'"),
        ({"metric": "ip"}, "scan", "asymmetric", None, "norms count under 'ip'"),
        ({"n_rows": 5_120}, "scan", "asymmetric", None, "every row is scanned; .* there are only 5,120"),
        ({"n_rows": 5_121}, "scan", "asymmetric", 640, "640"),
        ({"n_rows": 0}, "scan", "asymmetric", None, "there are only 0"),
        ({"parts": []}, "scan", "asymmetric", None, "there are only 0"),
        ({"n_bits": 2048}, "cascade", "asymmetric", 640, "cascade, because 512 of 2048 bits rule most rows out"),
        ({"n_bits": 2048, "n_rows": 640 * 64 - 1}, "scan", "asymmetric", 640, "too large a share of the rows"),
        ({"n_bits": 2048, "n_rows": 640 * 64}, "cascade", "asymmetric", 640, "rule most rows out"),
        ({"n_bits": 2048, "rerank": None}, "cascade", None, None, "cascade, because"),
        ({"n_bits": 2048, "rerank": None, "n_queries": 3}, "cascade", None, None, "cascade, because"),
        ({"n_bits": 2048, "rerank": None, "n_queries": 4}, "scan", None, None, "2048 bits are not long enough for the"),
        ({"n_bits": 8192, "rerank": None, "n_queries": 4}, "cascade", None, None, "512 of 8192 bits rule"),
        ({"n_bits": 2048, "rerank": None, "n_rows": 639}, "scan", None, None, "too large a share"),
        ({"n_bits": 2048, "metric": "l2"}, "scan", "asymmetric", None, "every row is scanned"),
        ({"mode": "cascade", "metric": "l2"}, "cascade", "asymmetric", 640, "640"),
        ({"mode": "cascade", "n_rows": 10}, "cascade", "asymmetric", 640, "640"),
        ({"mode": "cascade", "n_bits": 513, "rerank": None}, "cascade", None, None, "as requested"),
        ({"mode": "scan", "rerank": None}, "scan", None, None, "as requested"),
        ({"n_candidates": 10}, "scan", "asymmetric", 10, "scan, because"),
        ({"n_candidates": 70, "n_bits": 64, "metric": "ip"}, "scan", "asymmetric", 70, "not long enough"),
        ({"can_estimate": False}, "scan", None, None, "its encoder is not linear"),
        ({"can_estimate": False, "keeps_vectors": True, "n_bits": 64}, "scan", "exact", 640, "640 by Hamming distance"),
        ({"n_allowed": 6_250}, "scan", "asymmetric", 640, "only the 6,250 allowed rows are scanned"),
        ({"n_allowed": 6_250, "n_bits": 2048}, "scan", "asymmetric", 640, "only the 6,250 allowed rows"),
        ({"n_allowed": 6_251, "n_bits": 2048}, "cascade", "asymmetric", 640, "cascade, because"),
        ({"n_allowed": 0, "mode": "cascade", "rerank": None}, "cascade", None, None, "only the 0 allowed rows"),
    ],
)  # fmt: skip
def test_plans_without_buckets(changes, mode, rerank, n_candidates, reason):
    chosen = plan_for(**changes)
    assert (chosen.mode, chosen.rerank, chosen.n_candidates) == (mode, rerank, n_candidates)
    assert re.search(reason, chosen.reason)
    assert chosen.n_exact >= changes.get("k", 10)
    assert chosen.n_probes is None


@pytest.mark.parametrize(
    ("n_candidates", "n_values", "estimates"),
    [(160, 2048, False), (161, 2048, True), (160, 2049, True), (160, 0, False)],
)
def test_few_short_vectors_are_read_without_estimates(n_candidates, n_values, estimates):
    chosen = plan_for(keeps_vectors=True, rerank="exact", n_candidates=n_candidates, n_values=n_values)
    assert chosen.estimates == estimates


CLUSTERS = {"buckets": "clusters", "parts": [cells(100_000)]}
CROWDED = {"buckets": "clusters", "parts": [cells(100_000, n_probes=600)]}
SUBSTRINGS = {"buckets": "substrings", "parts": [tables(100_000)]}
NOT_YET = [{"buckets": kind, "parts": [rows(1_000)]} for kind in ("clusters", "substrings")]


@pytest.mark.parametrize(
    ("changes", "mode", "n_candidates", "reason"),
    [
        (CLUSTERS, "buckets", None, "buckets, because the cells that hold the nearest rows have 2 in 100 of all rows"),
        (CLUSTERS | {"k": 1_000}, "buckets", None, "have 20 in 100 of all rows; .* are stored contiguously"),
        (CLUSTERS | {"k": 10_000}, "scan", None, "have 100 in 100 of all rows, and every row is scanned"),
        (CLUSTERS | {"n_bits": 512}, "buckets", None, "2 in 100 .* estimated, because rows of a cell are stored"),
        (CLUSTERS | {"n_bits": 1536}, "buckets", 640, "2 in 100"),
        (CLUSTERS | {"n_bits": 4096}, "buckets", 640, "2 in 100 .*; the nearest 640 by Hamming distance"),
        (CLUSTERS | {"n_bits": 4096, "metric": "l2"}, "buckets", None, "2 in 100 .* norms count under 'l2'"),
        (CLUSTERS | {"rerank": None}, "buckets", None, "2 in 100"),
        (CLUSTERS | {"n_candidates": 50}, "buckets", 50, "2 in 100"),
        (CLUSTERS | {"n_probes": 900}, "buckets", None, "n_probes = 900"),
        (CLUSTERS | {"mode": "scan"}, "scan", 640, "640"),
        (CLUSTERS | {"mode": "cascade", "n_bits": 4096, "rerank": None}, "cascade", None, "as requested"),
        (CLUSTERS | {"mode": "buckets", "rerank": None}, "buckets", None, "as requested"),
        (CLUSTERS | {"n_allowed": 100}, "scan", 640, "only the 100 allowed rows"),
        (CLUSTERS | {"n_allowed": 100, "n_probes": 3}, "scan", 640, "only the 100 allowed rows"),
        (CLUSTERS | {"n_allowed": 100, "mode": "buckets"}, "buckets", None, "only the 100 allowed rows"),
        (CLUSTERS | {"metric": "ip"}, "scan", None, "cells ignore the norms .* every row is scanned"),
        (CLUSTERS | {"metric": "ip", "n_probes": 5}, "buckets", None, "n_probes = 5"),
        (CLUSTERS | {"n_allowed": 49_999}, "scan", 640, "the 49,999 allowed rows may be in any cell"),
        (CLUSTERS | {"n_allowed": 50_000}, "buckets", None, "2 in 100 of all rows"),
        (CLUSTERS | {"n_queries": 1_000}, "buckets", None, "2 in 100 of all rows"),
        (CROWDED | {"n_queries": 3}, "buckets", None, "60 in 100 of all rows"),
        (CROWDED | {"n_queries": 4}, "scan", 640, "have 60 in 100 of all rows, and codes of 1024 bits are not long"),
        (CROWDED | {"n_bits": 4096}, "cascade", 640, "60 in 100 of all rows, and 512 of 4096 bits rule most rows out"),
        (CROWDED | {"n_probes": 1}, "buckets", None, "n_probes = 1"),
        (SUBSTRINGS, "scan", 640, "substrings do not pay for this many candidates"),
        (SUBSTRINGS | {"n_bits": 4096}, "scan", 640, "codes with tables are read whole"),
        (SUBSTRINGS | {"n_candidates": 64}, "buckets", 64, "find the nearest rows exactly, or leave them to a scan"),
        (SUBSTRINGS | {"n_candidates": 65}, "scan", 65, "do not pay"),
        (SUBSTRINGS | {"rerank": None}, "buckets", None, "find the nearest rows exactly"),
        (SUBSTRINGS | {"rerank": None, "n_probes": 5}, "buckets", None, "n_probes = 5"),
        (SUBSTRINGS | {"mode": "buckets"}, "buckets", 640, "the nearest 640 by Hamming distance are re-ranked"),
        (SUBSTRINGS | {"mode": "buckets", "metric": "l2"}, "buckets", 640, "the nearest 640 by Hamming distance"),
        (SUBSTRINGS | {"mode": "scan", "metric": "l2"}, "scan", None, "norms count under 'l2'"),
        (NOT_YET[0], "scan", None, "there are too few rows for buckets, and every row is scanned"),
        (NOT_YET[1], "scan", None, "there are too few rows for buckets, and every row is scanned"),
        (NOT_YET[0] | {"mode": "buckets", "rerank": None}, "buckets", None, "as requested"),
        (NOT_YET[1] | {"rerank": None, "n_bits": 2048}, "cascade", None, "too few rows for buckets, and 512 of 2048"),
    ],
)  # fmt: skip
def test_plans_with_buckets(changes, mode, n_candidates, reason):
    chosen = plan_for(**changes)
    assert (chosen.mode, chosen.n_candidates) == (mode, n_candidates)
    assert re.search(reason, chosen.reason)
    assert chosen.n_probes == changes.get("n_probes")


@pytest.mark.parametrize(
    ("changes", "mode", "reason"),
    [
        ({}, "scan", "scan, because it is exact"),
        ({"n_bits": 4096}, "scan", "scan, because it is exact"),
        ({"n_bits": 4096, "mode": "cascade"}, "cascade", "as requested"),
        ({"n_allowed": 10}, "scan", "only the 10 allowed rows are scanned"),
        (CLUSTERS, "buckets", "2 in 100 of all rows"),
        (CROWDED | {"n_queries": 4}, "scan", "60 in 100 of all rows, and it is exact"),
        (CROWDED | {"n_bits": 4096, "n_queries": 4}, "scan", "60 in 100 of all rows, and it is exact"),
        (CROWDED, "buckets", "60 in 100 of all rows"),
        (SUBSTRINGS, "buckets", "find the nearest rows exactly"),
        (SUBSTRINGS | {"k": 64}, "buckets", "find the nearest rows exactly"),
        (SUBSTRINGS | {"k": 65}, "scan", "scan, because it is exact"),
        (SUBSTRINGS | {"k": 65, "n_probes": 2}, "buckets", "n_probes = 2"),
        (NOT_YET[0], "scan", "there are too few rows for buckets, and it is exact"),
        (NOT_YET[1], "scan", "there are too few rows for buckets, and it is exact"),
    ],
)
def test_plans_in_hamming_space(changes, mode, reason):
    """Exact, unless there are clusters."""
    chosen = hamming_plan(**changes)
    assert (chosen.mode, chosen.rerank, chosen.n_candidates) == (mode, None, None)
    assert re.search(reason, chosen.reason)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rerank": "exact"}, 'rerank="exact" needs vectors, .* make it with vectors="float32"'),
        ({"rerank": "asymmetric", "can_estimate": False}, 'rerank="asymmetric" needs a linear encoder'),
        ({"rerank": None, "n_candidates": 100}, "n_candidates is the number of re-ranked rows, but rerank is None"),
        ({"n_candidates": 9}, "n_candidates must be at least k = 10, got 9"),
        ({"mode": "buckets"}, 'this index has none: make it with buckets="clusters"'),
        ({"n_probes": 3}, "n_probes is the number of buckets visited, but this index has none, got 3"),
        (CLUSTERS | {"n_probes": 3, "mode": "scan"}, "n_probes is the number of buckets visited, but mode is 'scan'"),
        (SUBSTRINGS | {"n_probes": 3, "mode": "cascade"}, "but mode is 'cascade'"),
    ],
)
def test_what_an_index_cannot_do(changes, message):
    with pytest.raises(ValueError, match=message):
        plan_for(**changes)


def test_costs():
    """Rows and bytes of each mode, summed over segments; those without buckets are scanned."""
    parts = [cells(50_000), cells(10_000, n_cells=100, n_probes=8), rows(300)]
    # Codes of 2,048 bits: 256 bytes, of which 64 are the prefix; one row in twenty survives, and twice the k wanted.
    by_mode = costs_of(2048, parts, 10, "clusters", None)
    n = 60_300
    assert by_mode["scan"] == (n, 256 * n)
    assert by_mode["cascade"] == (n, 64 * n + 192 * (n // 20 + 20))
    # 20 of 1,000 cells of 50 rows and 8 of 100 cells of 100 rows, and all centroids of 3 x 128 bytes.
    n_scanned = 20 * 50 + 8 * 100 + 300
    assert by_mode["buckets"] == (n_scanned, 256 * n_scanned + 384 * 1_100)
    twice = costs_of(2048, parts, 10, "clusters", 40)["buckets"]
    assert twice == (40 * 50 + 40 * 100 + 300, 256 * 6_300 + 384 * 1_100)
    assert costs_of(2048, parts, 10, "clusters", 10**6)["buckets"].rows == n
    # Codes that are short or stored row by row: the cascade is a scan.
    for n_bits, some, kind in ((1024, parts, "clusters"), (2048, [tables(n)], "substrings")):
        by_mode = costs_of(n_bits, some, 10, kind, None)
        assert by_mode["cascade"] == by_mode["scan"] == (n, n * n_bits // 8)
    assert "buckets" not in costs_of(2048, [rows(n)], 10, None, None)
    # Few allowed rows are scanned without them; more do not change the estimate.
    one = parts[:1]
    assert costs_of(2048, one, 10, "clusters", None, 3_125) == {"scan": (3_125, 256 * 3_125)}
    assert costs_of(2048, one, 10, "clusters", None, 3_126) == costs_of(2048, one, 10, "clusters", None)
    assert costs_of(2048, [], 10, "clusters", None)["buckets"] == (0, 0)


def test_costs_of_substrings():
    """Rows spread evenly over the entries of each table."""
    n_rows, n_bytes = costs_of(1024, [tables(2**16, n_tables=4)], 10, "substrings", 64)["buckets"]
    assert n_rows == 4 * 64
    assert n_bytes > 128 * n_rows
    more = costs_of(1024, [tables(2**16, n_tables=4)], 10, "substrings", 128)["buckets"]
    assert (more.rows, more.bytes) == (2 * n_rows, 2 * n_bytes)
    assert costs_of(1024, [tables(2**16)], 10, "substrings", 2**16)["buckets"].rows == 2**16


@given(
    n_rows=st.sampled_from([2_048, 50_000, 10**6, 10**7]),
    n_cells=st.sampled_from([1, 64, 1_000, 4_000]),
    n_probes=st.sampled_from([1, 8, 60, 4_000]),
    n_bits=st.sampled_from([64, 512, 1024, 2048, 25_600]),
    k=st.sampled_from([1, 10, 1_000]),
    metric=st.sampled_from(["hamming", "cosine", "l2"]),
    more=st.sampled_from([0, 1_000, 10**6]),
    n_queries=st.sampled_from([1, 3, 4, 1_000]),
)
def test_the_cheapest_mode_is_chosen(n_rows, n_cells, n_probes, n_bits, k, metric, more, n_queries):
    """By its own estimates, where a byte in cells counts twice for a batch; or the mode of an index without buckets."""
    parts = [cells(n_rows, n_cells, min(n_probes, n_cells), min(16, -(-n_bits // 64))), rows(more)]
    options = {"n_bits": n_bits, "parts": parts, "k": k, "buckets": "clusters", "n_queries": n_queries}
    chosen = hamming_plan(**options) if metric == "hamming" else plan_for(metric=metric, **options)
    without = plan_for(**options | {"buckets": None, "metric": metric, "rerank": chosen.rerank})
    by_mode = costs_of(n_bits, parts, k, "clusters", None)
    if (2 if n_queries >= 4 else 1) * by_mode["buckets"].bytes < by_mode[without.mode].bytes:
        assert chosen.mode == "buckets"
    else:
        assert chosen.mode == without.mode
    assert by_mode[chosen.mode].bytes <= by_mode["scan"].bytes


@pytest.mark.parametrize("mode", ["auto", "scan", "cascade"])
def test_an_index_that_is_not_fitted(mode):
    """Its vectors are compared exactly, whatever mode is requested."""
    traits, chosen = planned(is_fitted=False, mode=mode, rerank=None, n_allowed=50_000)
    assert (chosen.mode, chosen.rerank, chosen.n_candidates, chosen.estimates) == ("scan", "exact", None, False)
    assert "not fitted yet" in chosen.reason
    assert costs(traits, chosen) == {}


def test_few_allowed_rows_of_each_segment_are_copied():
    """The decision falls segment by segment, on the rows that are there: unknown ids do not count."""
    segments = [rows_from(0, 1_600), rows_from(5_000, 100), rows_from(9_000, 200)]
    allow = np.array([*range(0, 1_600, 16), *range(5_000, 5_007), *range(100_000, 200_000)])
    chosen = plan(IndexTraits(1024), SearchRequest(1, 10, ids=IdFilter(allow)), segments)
    few, many, none = chosen.selections
    assert (few.n_scanned, few.n_visible, few.hidden.size) == (100, 100, 0)
    np.testing.assert_array_equal(few.rows, np.arange(0, 1_600, 16))
    assert (many.n_scanned, many.n_visible, many.rows) == (100, 7, None)
    assert (none.n_scanned, none.n_visible) == (0, 0)
    assert costs(IndexTraits(1024), chosen)["scan"].rows == 200
    # All segments with few allowed rows: nothing else is scanned, and the plan says so.
    chosen = plan(IndexTraits(1024), SearchRequest(1, 10, ids=IdFilter(allow[:100])), segments)
    assert chosen.reason == "only the 100 allowed rows are scanned"
    assert costs(IndexTraits(1024), chosen) == {"scan": (100, 100 * 128)}


def test_explanation():
    parts = [cells(100_000)]
    chosen = hamming_plan(parts=parts, buckets="clusters", n_bits=2048)
    by_mode = costs_of(2048, parts, 10, "clusters", None)
    text = Explanation("3 queries", chosen, by_mode)
    assert isinstance(text, str)
    assert (text.mode, text.ways) == ("buckets", by_mode)
    assert text.splitlines() == [
        "3 queries: " + chosen.reason,
        "   scan: about 100,000 rows and 25,600,000 bytes a query",
        f"   cascade: about 100,000 rows and {by_mode['cascade'].bytes:,} bytes a query",
        f"-> buckets: about 2,000 rows and {by_mode['buckets'].bytes:,} bytes a query",
    ]
    for again in (copy.copy(text), copy.deepcopy(text), pickle.loads(pickle.dumps(text))):
        assert (again, again.mode, again.ways) == (text, text.mode, text.ways)
