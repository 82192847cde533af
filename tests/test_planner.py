"""The planner: every way a search can go, the reason it gives, what it costs, and what it refuses."""

import copy
import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex.search.buckets import Cells, Tables
from cbeindex.search.buckets.centroids import Centroids
from cbeindex.search.planner import Explanation, n_allowed, plan, ways
from cbeindex.store.segment import Part


@pytest.fixture(autouse=True)
def constants(monkeypatch):
    """The logic is tested here; where the ways cross is measured, and may move."""
    monkeypatch.setattr("cbeindex.search.planner._LEAST_CANDIDATES", 640)
    monkeypatch.setattr("cbeindex.search.planner._CASCADE_BITS", 2048)
    monkeypatch.setattr("cbeindex.search.planner._CASCADE_SHARE", 64)
    monkeypatch.setattr("cbeindex.search.planner._BUCKETS_BYTE", 2)
    monkeypatch.setattr("cbeindex.search.planner._BATCH", 4)
    monkeypatch.setattr("cbeindex.search.planner._FEW_ANSWERS", 64)


def cells(n_rows, n_cells=1_000, n_probes=20, n_words=16):
    """Cells of equal size, of which so many hold the nearest 10, and more the nearest 100 and 1,000."""
    offsets = np.linspace(0, n_rows, n_cells + 1).astype(np.int64)
    needed = tuple(min(n_cells, n_probes * factor) for factor in (1, 3, 10))
    codes = np.zeros((n_cells, 3, n_words), dtype=np.uint64)
    centroids = Centroids(codes[:, 0], codes[:, 1:])
    return Part(n_rows, Cells(centroids, offsets, needed))


def tables(n_rows, n_tables=16, table_bits=16):
    """Tables without entries: the planner looks at sizes only."""
    entries = np.broadcast_to(np.int32(0), (n_tables, 2**table_bits + 1))
    rows = np.broadcast_to(np.int32(0), (n_tables, n_rows))
    return Part(n_rows, Tables(table_bits, np.arange(n_tables), entries, rows))


def asked(n_rows=100_000, **changes):
    """A plan of CBEIndex, for an index of one segment without buckets unless there are `parts`."""
    defaults = {
        "n_bits": 1024, "parts": [Part(n_rows, None)], "metric": "cosine", "has_vectors": False, "k": 10,
        "mode": "auto", "buckets": None, "rerank": "auto", "n_candidates": None,
    }  # fmt: skip
    return plan(**(defaults | changes))


def asked_in_hamming_space(n_rows=100_000, **changes):
    """A plan of BinaryIndex."""
    defaults = {"n_bits": 1024, "parts": [Part(n_rows, None)], "k": 10, "mode": "auto", "buckets": None}
    return plan(**(defaults | changes))


@pytest.mark.parametrize(
    ("changes", "mode", "rerank", "n_candidates", "reason"),
    [
        ({}, "scan", "asymmetric", 640, "codes only; scan, because codes of 1024 bits are not .*; the nearest 640"),
        ({"has_vectors": True}, "scan", "exact", 640, "rerank='exact', because the index keeps vectors"),
        ({"has_vectors": True, "rerank": "asymmetric"}, "scan", "asymmetric", 640, "640 by Hamming distance"),
        ({"k": 100}, "scan", "asymmetric", 800, "the nearest 800 by Hamming distance are re-ranked"),
        ({"n_bits": 512}, "scan", "asymmetric", None, "is estimated, because codes of 512 bits are short"),
        ({"metric": "l2"}, "scan", "asymmetric", None, "norms count under 'l2'"),
        ({"metric": "ip"}, "scan", "asymmetric", None, "norms count under 'ip'"),
        ({"n_rows": 5_120}, "scan", "asymmetric", None, "every row is looked at; .* there are only 5,120"),
        ({"n_rows": 5_121}, "scan", "asymmetric", 640, "640"),
        ({"n_rows": 0}, "scan", "asymmetric", None, "there are only 0"),
        ({"parts": []}, "scan", "asymmetric", None, "there are only 0"),
        ({"n_bits": 2048}, "cascade", "asymmetric", 640, "cascade, because 512 of 2048 bits rule most rows out"),
        ({"n_bits": 2048, "n_rows": 640 * 64 - 1}, "scan", "asymmetric", 640, "too large a share of the rows"),
        ({"n_bits": 2048, "n_rows": 640 * 64}, "cascade", "asymmetric", 640, "rule most rows out"),
        ({"n_bits": 2048, "rerank": None}, "cascade", None, None, "cascade, because"),
        ({"n_bits": 2048, "rerank": None, "n_queries": 3}, "cascade", None, None, "cascade, because"),
        ({"n_bits": 2048, "rerank": None, "n_queries": 4}, "scan", None, None, "2048 bits are not long enough for the"),
        ({"n_bits": 4096, "rerank": None, "n_queries": 4}, "cascade", None, None, "512 of 4096 bits rule"),
        ({"n_bits": 2048, "rerank": None, "n_rows": 639}, "scan", None, None, "too large a share"),
        ({"n_bits": 2048, "metric": "l2"}, "scan", "asymmetric", None, "every row is looked at"),
        ({"mode": "cascade", "metric": "l2"}, "cascade", "asymmetric", 640, "640"),
        ({"mode": "cascade", "n_rows": 10}, "cascade", "asymmetric", 640, "640"),
        ({"mode": "cascade", "n_bits": 513, "rerank": None}, "cascade", None, None, "as asked"),
        ({"mode": "scan", "rerank": None}, "scan", None, None, "as asked"),
        ({"n_candidates": 10}, "scan", "asymmetric", 10, "scan, because"),
        ({"n_candidates": 70, "n_bits": 64, "metric": "ip"}, "scan", "asymmetric", 70, "not long enough"),
        ({"can_estimate": False}, "scan", None, None, "its encoder is not linear"),
        ({"can_estimate": False, "has_vectors": True, "n_bits": 64}, "scan", "exact", 640, "640 by Hamming distance"),
        ({"n_allowed": 6_250}, "scan", "asymmetric", 640, "only the 6,250 rows that are allowed are looked at"),
        ({"n_allowed": 6_250, "n_bits": 2048}, "scan", "asymmetric", 640, "only the 6,250 rows"),
        ({"n_allowed": 6_251, "n_bits": 2048}, "cascade", "asymmetric", 640, "cascade, because"),
        ({"n_allowed": 0, "mode": "cascade", "rerank": None}, "cascade", None, None, "only the 0 rows"),
    ],
)  # fmt: skip
def test_ways_without_buckets(changes, mode, rerank, n_candidates, reason):
    way = asked(**changes)
    assert (way.mode, way.rerank, way.n_candidates) == (mode, rerank, n_candidates)
    assert re.search(reason, way.reason)
    assert way.n_exact >= changes.get("k", 10)
    assert way.n_probes is None


@pytest.mark.parametrize(
    ("n_candidates", "n_values", "estimates"),
    [(160, 2048, False), (161, 2048, True), (160, 2049, True), (160, 0, False)],
)
def test_few_short_vectors_are_read_without_estimates(n_candidates, n_values, estimates):
    way = asked(has_vectors=True, rerank="exact", n_candidates=n_candidates, n_values=n_values)
    assert way.estimates == estimates


CLUSTERS = {"buckets": "clusters", "parts": [cells(100_000)]}
CROWDED = {"buckets": "clusters", "parts": [cells(100_000, n_probes=600)]}
SUBSTRINGS = {"buckets": "substrings", "parts": [tables(100_000)]}
NOT_YET = [{"buckets": kind, "parts": [Part(1_000, None)]} for kind in ("clusters", "substrings")]


@pytest.mark.parametrize(
    ("changes", "mode", "n_candidates", "reason"),
    [
        (CLUSTERS, "buckets", None, "buckets, because the cells that hold the nearest rows have 2 in 100 of all rows"),
        (CLUSTERS | {"k": 1_000}, "buckets", None, "have 20 in 100 of all rows; .* rows of a cell stand together"),
        (CLUSTERS | {"k": 10_000}, "scan", None, "have 100 in 100 of all rows, and every row is looked at"),
        (CLUSTERS | {"n_bits": 512}, "buckets", None, "2 in 100 .* estimated, because rows of a cell stand together"),
        (CLUSTERS | {"n_bits": 1536}, "buckets", 640, "2 in 100"),
        (CLUSTERS | {"n_bits": 4096}, "buckets", 640, "2 in 100 .*; the nearest 640 by Hamming distance"),
        (CLUSTERS | {"n_bits": 4096, "metric": "l2"}, "buckets", None, "2 in 100 .* norms count under 'l2'"),
        (CLUSTERS | {"rerank": None}, "buckets", None, "2 in 100"),
        (CLUSTERS | {"n_candidates": 50}, "buckets", 50, "2 in 100"),
        (CLUSTERS | {"n_probes": 900}, "buckets", None, "900 of them are to be visited"),
        (CLUSTERS | {"mode": "scan"}, "scan", 640, "640"),
        (CLUSTERS | {"mode": "cascade", "n_bits": 4096, "rerank": None}, "cascade", None, "as asked"),
        (CLUSTERS | {"mode": "buckets", "rerank": None}, "buckets", None, "as asked"),
        (CLUSTERS | {"n_allowed": 100}, "scan", 640, "only the 100 rows that are allowed"),
        (CLUSTERS | {"n_allowed": 100, "n_probes": 3}, "scan", 640, "only the 100 rows that are allowed"),
        (CLUSTERS | {"n_allowed": 100, "mode": "buckets"}, "buckets", None, "only the 100 rows that are allowed"),
        (CLUSTERS | {"metric": "ip"}, "scan", None, "cells do not see the lengths .* every row is looked at"),
        (CLUSTERS | {"metric": "ip", "n_probes": 5}, "buckets", None, "5 of them are to be visited"),
        (CLUSTERS | {"n_allowed": 49_999}, "scan", 640, "the 49,999 rows that are allowed may be in any cell"),
        (CLUSTERS | {"n_allowed": 50_000}, "buckets", None, "2 in 100 of all rows"),
        (CLUSTERS | {"n_queries": 1_000}, "buckets", None, "2 in 100 of all rows"),
        (CROWDED | {"n_queries": 3}, "buckets", None, "60 in 100 of all rows"),
        (CROWDED | {"n_queries": 4}, "scan", 640, "have 60 in 100 of all rows, and codes of 1024 bits are not long"),
        (CROWDED | {"n_bits": 4096}, "cascade", 640, "60 in 100 of all rows, and 512 of 4096 bits rule most rows out"),
        (CROWDED | {"n_probes": 1}, "buckets", None, "1 of them are to be visited"),
        (SUBSTRINGS, "scan", 640, "substrings do not pay for so many candidates"),
        (SUBSTRINGS | {"n_bits": 4096}, "scan", 640, "codes with tables are read whole"),
        (SUBSTRINGS | {"n_candidates": 64}, "buckets", 64, "find the nearest rows exactly, or leave them to a scan"),
        (SUBSTRINGS | {"n_candidates": 65}, "scan", 65, "do not pay"),
        (SUBSTRINGS | {"rerank": None}, "buckets", None, "find the nearest rows exactly"),
        (SUBSTRINGS | {"rerank": None, "n_probes": 5}, "buckets", None, "5 of them are to be visited"),
        (SUBSTRINGS | {"mode": "buckets"}, "buckets", 640, "the nearest 640 by Hamming distance are re-ranked"),
        (SUBSTRINGS | {"mode": "buckets", "metric": "l2"}, "buckets", 640, "the nearest 640 by Hamming distance"),
        (SUBSTRINGS | {"mode": "scan", "metric": "l2"}, "scan", None, "norms count under 'l2'"),
        (NOT_YET[0], "scan", None, "there are too few rows for buckets, and every row is looked at"),
        (NOT_YET[1], "scan", None, "there are too few rows for buckets, and every row is looked at"),
        (NOT_YET[0] | {"mode": "buckets", "rerank": None}, "buckets", None, "as asked"),
        (NOT_YET[1] | {"rerank": None, "n_bits": 2048}, "cascade", None, "too few rows for buckets, and 512 of 2048"),
    ],
)  # fmt: skip
def test_ways_with_buckets(changes, mode, n_candidates, reason):
    way = asked(**changes)
    assert (way.mode, way.n_candidates) == (mode, n_candidates)
    assert re.search(reason, way.reason)
    assert way.n_probes == changes.get("n_probes")


@pytest.mark.parametrize(
    ("changes", "mode", "reason"),
    [
        ({}, "scan", "scan, because it is exact"),
        ({"n_bits": 4096}, "scan", "scan, because it is exact"),
        ({"n_bits": 4096, "mode": "cascade"}, "cascade", "as asked"),
        ({"n_allowed": 10}, "scan", "only the 10 rows that are allowed are looked at"),
        (CLUSTERS, "buckets", "2 in 100 of all rows"),
        (CROWDED | {"n_queries": 4}, "scan", "60 in 100 of all rows, and it is exact"),
        (CROWDED | {"n_bits": 4096, "n_queries": 4}, "scan", "60 in 100 of all rows, and it is exact"),
        (CROWDED, "buckets", "60 in 100 of all rows"),
        (SUBSTRINGS, "buckets", "find the nearest rows exactly"),
        (SUBSTRINGS | {"k": 64}, "buckets", "find the nearest rows exactly"),
        (SUBSTRINGS | {"k": 65}, "scan", "scan, because it is exact"),
        (SUBSTRINGS | {"k": 65, "n_probes": 2}, "buckets", "2 of them are to be visited"),
        (NOT_YET[0], "scan", "there are too few rows for buckets, and it is exact"),
        (NOT_YET[1], "scan", "there are too few rows for buckets, and it is exact"),
    ],
)
def test_ways_in_hamming_space(changes, mode, reason):
    """Exact, unless there are clusters."""
    way = asked_in_hamming_space(**changes)
    assert (way.mode, way.rerank, way.n_candidates) == (mode, None, None)
    assert re.search(reason, way.reason)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rerank": "exact"}, 'rerank="exact" needs vectors, .* make it with vectors="float32"'),
        ({"rerank": "asymmetric", "can_estimate": False}, 'rerank="asymmetric" needs a linear encoder'),
        ({"rerank": None, "n_candidates": 100}, "n_candidates is how many rows are re-ranked, but rerank is None"),
        ({"n_candidates": 9}, "n_candidates must be at least k = 10, got 9"),
        ({"mode": "buckets"}, 'this index has none: make it with buckets="clusters"'),
        ({"n_probes": 3}, "n_probes is the number of buckets visited, and this index has none, got 3"),
        (CLUSTERS | {"n_probes": 3, "mode": "scan"}, "n_probes is the number of buckets visited, but mode is 'scan'"),
        (SUBSTRINGS | {"n_probes": 3, "mode": "cascade"}, "but mode is 'cascade'"),
    ],
)
def test_what_an_index_cannot_do(changes, message):
    with pytest.raises(ValueError, match=message):
        asked(**changes)


def test_costs():
    """Rows and bytes of each way, summed over segments; those without buckets are looked at whole."""
    parts = [cells(50_000), cells(10_000, n_cells=100, n_probes=8), Part(300, None)]
    # Codes of 2,048 bits: 256 bytes, of which 64 are the head; one row in twenty survives, and twice the k wanted.
    costs = ways(2048, parts, 10, "clusters", None)
    n = 60_300
    assert costs["scan"] == (n, 256 * n)
    assert costs["cascade"] == (n, 64 * n + 192 * (n // 20 + 20))
    # 20 of 1,000 cells of 50 rows and 8 of 100 cells of 100 rows, and all centroids of 3 x 128 bytes.
    looked_at = 20 * 50 + 8 * 100 + 300
    assert costs["buckets"] == (looked_at, 256 * looked_at + 384 * 1_100)
    twice = ways(2048, parts, 10, "clusters", 40)["buckets"]
    assert twice == (40 * 50 + 40 * 100 + 300, 256 * 6_300 + 384 * 1_100)
    assert ways(2048, parts, 10, "clusters", 10**6)["buckets"].rows == n
    # Short codes have no more than a head, and those with tables none: the cascade is a scan.
    for n_bits, some, kind in ((1024, parts, "clusters"), (2048, [tables(n)], "substrings")):
        costs = ways(n_bits, some, 10, kind, None)
        assert costs["cascade"] == costs["scan"] == (n, n * n_bits // 8)
    assert "buckets" not in ways(2048, [Part(n, None)], 10, None, None)
    # Few rows that are allowed are looked at without them; more do not change the estimate.
    assert ways(2048, parts, 10, "clusters", None, n // 16) == {"scan": (n // 16, 256 * (n // 16))}
    assert ways(2048, parts, 10, "clusters", None, n // 16 + 1) == ways(2048, parts, 10, "clusters", None)
    assert ways(2048, [], 10, "clusters", None)["buckets"] == (0, 0)


def test_costs_of_substrings():
    """Rows spread evenly over the entries of each table."""
    (rows, n_bytes) = ways(1024, [tables(2**16, n_tables=4)], 10, "substrings", 64)["buckets"]
    assert rows == 4 * 64
    assert n_bytes > 128 * rows
    more = ways(1024, [tables(2**16, n_tables=4)], 10, "substrings", 128)["buckets"]
    assert (more.rows, more.bytes) == (2 * rows, 2 * n_bytes)
    assert ways(1024, [tables(2**16)], 10, "substrings", 2**16)["buckets"].rows == 2**16


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
def test_the_cheapest_way_is_taken(n_rows, n_cells, n_probes, n_bits, k, metric, more, n_queries):
    """By its own estimates, where a byte in cells counts twice for a batch; or the way of an index without buckets."""
    parts = [cells(n_rows, n_cells, min(n_probes, n_cells), min(16, -(-n_bits // 64))), Part(more, None)]
    options = {"n_bits": n_bits, "parts": parts, "k": k, "buckets": "clusters", "n_queries": n_queries}
    way = asked_in_hamming_space(**options) if metric == "hamming" else asked(metric=metric, **options)
    without = plan(**options | {"buckets": None}, mode="auto", metric=metric, rerank=way.rerank)
    costs = ways(n_bits, parts, k, "clusters", None)
    if (2 if n_queries >= 4 else 1) * costs["buckets"].bytes < costs[without.mode].bytes:
        assert way.mode == "buckets"
    else:
        assert way.mode == without.mode
    assert costs[way.mode].bytes <= costs["scan"].bytes


@pytest.mark.parametrize(
    ("allow", "deny", "n"),
    [(None, None, None), (None, [1], None), ([1, 5], None, 2), ([1, 5, 7], [5, 9], 2), ([], [1], 0)],
)
def test_how_many_ids_are_allowed(allow, deny, n):
    assert n_allowed(*(None if ids is None else np.array(ids, dtype=np.int64) for ids in (allow, deny))) == n


def test_explanation():
    parts = [cells(100_000)]
    way = asked_in_hamming_space(parts=parts, buckets="clusters", n_bits=2048)
    costs = ways(2048, parts, 10, "clusters", None)
    text = Explanation("3 queries", way, costs)
    assert isinstance(text, str)
    assert (text.mode, text.ways) == ("buckets", costs)
    assert text.splitlines() == [
        "3 queries: " + way.reason,
        "   scan: about 100,000 rows and 25,600,000 bytes a query",
        f"   cascade: about 100,000 rows and {costs['cascade'].bytes:,} bytes a query",
        f"-> buckets: about 2,000 rows and {costs['buckets'].bytes:,} bytes a query",
    ]
    for again in (copy.copy(text), copy.deepcopy(text), pickle.loads(pickle.dumps(text))):
        assert (again, again.mode, again.ways) == (text, text.mode, text.ways)
