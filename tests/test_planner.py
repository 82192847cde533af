"""The planner: every way a search can go, the reason it gives, and what it refuses."""

import re

import pytest

from cbeindex.planner import plan


@pytest.fixture(autouse=True)
def constants(monkeypatch):
    """The logic is tested here; where the ways cross is measured, and may move."""
    monkeypatch.setattr("cbeindex.planner._LEAST_CANDIDATES", 640)
    monkeypatch.setattr("cbeindex.planner._CASCADE_BITS", 2048)
    monkeypatch.setattr("cbeindex.planner._CASCADE_SHARE", 64)


def asked(**changes):
    defaults = {
        "n_bits": 1024, "metric": "cosine", "has_vectors": False, "n_rows": 100_000, "k": 10, "mode": "auto",
        "rerank": "auto", "n_candidates": None,
    }  # fmt: skip
    return plan(**(defaults | changes))


@pytest.mark.parametrize(
    ("changes", "mode", "rerank", "n_candidates", "reason"),
    [
        ({}, "scan", "asymmetric", 640, "codes only; the nearest 640 .* scan, because codes of 1024 bits are not"),
        ({"has_vectors": True}, "scan", "exact", 640, "rerank='exact', because the index keeps vectors"),
        ({"has_vectors": True, "rerank": "asymmetric"}, "scan", "asymmetric", 640, "640 by Hamming distance"),
        ({"k": 100}, "scan", "asymmetric", 800, "the nearest 800 by Hamming distance are re-ranked"),
        ({"n_bits": 512}, "scan", "asymmetric", None, "every row is estimated, because codes of 512 bits are short"),
        ({"metric": "l2"}, "scan", "asymmetric", None, "norms count under 'l2'"),
        ({"metric": "ip"}, "scan", "asymmetric", None, "norms count under 'ip'"),
        ({"n_rows": 5_120}, "scan", "asymmetric", None, "there are only 5,120; scan, because every row is looked at"),
        ({"n_rows": 5_121}, "scan", "asymmetric", 640, "640"),
        ({"n_rows": 0}, "scan", "asymmetric", None, "there are only 0"),
        ({"n_bits": 2048}, "cascade", "asymmetric", 640, "cascade, because 512 of 2048 bits rule most rows out"),
        ({"n_bits": 2048, "n_rows": 640 * 64 - 1}, "scan", "asymmetric", 640, "too large a share of the rows"),
        ({"n_bits": 2048, "n_rows": 640 * 64}, "cascade", "asymmetric", 640, "rule most rows out"),
        ({"n_bits": 2048, "rerank": None}, "cascade", None, None, "cascade, because"),
        ({"n_bits": 2048, "rerank": None, "n_rows": 639}, "scan", None, None, "too large a share"),
        ({"n_bits": 2048, "metric": "l2"}, "scan", "asymmetric", None, "every row is looked at"),
        ({"mode": "cascade", "metric": "l2"}, "cascade", "asymmetric", 640, "640"),
        ({"mode": "cascade", "n_rows": 10}, "cascade", "asymmetric", 640, "640"),
        ({"mode": "cascade", "n_bits": 513, "rerank": None}, "cascade", None, None, "as asked"),
        ({"mode": "scan", "rerank": None}, "scan", None, None, "as asked"),
        ({"n_candidates": 10}, "scan", "asymmetric", 10, "scan, because"),
        ({"n_candidates": 70, "n_bits": 64, "metric": "ip"}, "scan", "asymmetric", 70, "not long enough"),
    ],
)  # fmt: skip
def test_ways(changes, mode, rerank, n_candidates, reason):
    way = asked(**changes)
    assert (way.mode, way.rerank, way.n_candidates) == (mode, rerank, n_candidates)
    assert re.search(reason, way.reason)
    assert way.n_exact >= changes.get("k", 10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rerank": "exact"}, 'rerank="exact" needs vectors, .* make it with vectors="float32"'),
        ({"rerank": None, "n_candidates": 100}, "n_candidates is how many rows are re-ranked, but rerank is None"),
        ({"n_candidates": 9}, "n_candidates must be at least k = 10, got 9"),
    ],
)
def test_what_an_index_cannot_do(changes, message):
    with pytest.raises(ValueError, match=message):
        asked(**changes)
