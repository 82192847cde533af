"""Buckets through BinaryIndex, by logic and against brute force; what both indexes refuse; joins beside readers."""

import copy
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import BinaryIndex, CBEIndex
from cbeindex._core.tuning import tuned
from cbeindex.search.buckets import CellMaker, Cells, Clusters, Substrings, Tables, bucket_maker
from tests import oracles
from tests.conftest import COMPILED, ROOT
from tests.small import ALL, KINDS, NeverSpent, buckets_of, check_equal, examples, segments_of, small_buckets
from tests.strategies import some_codes
from tests.vector_oracles import clustered

MISSING = np.iinfo(np.int32).max


@pytest.fixture(autouse=True)
def few_rows():
    """Few rows make segments with buckets and without."""
    with small_buckets():
        yield


class Stored:
    """A BinaryIndex, and the codes that it should have."""

    def __init__(self, index, codes, ids, queries):
        self.index, self.codes, self.ids, self.queries = index, codes, ids, queries

    @property
    def kind(self):
        return self.index.buckets

    def exact(self, k, **filters):
        return oracles.nearest(self.queries, self.codes, self.ids, k, **filters)

    def check(self, k, *, allow=None, deny=None, **options):
        result = self.index.search(self.queries, k, **options, allow=allow, deny=deny)
        for got, want in zip(result, self.exact(k, allow=allow, deny=deny), strict=True):
            np.testing.assert_array_equal(got, want)
        return result


WIDTHS = (1, 20, 63, 64, 65, 511, 512, 513, 1_023, 1_024, 1_030, 2_100)


@st.composite
def stores(draw, kinds=KINDS, widths=WIDTHS):
    """Rows under their own ids in any order, added in batches that make several segments; some replaced or removed.

    Few centres and few flipped bits make ties and equal rows.
    """
    n_bits, kind = draw(st.sampled_from(widths)), draw(st.sampled_from(kinds))
    n = draw(st.sampled_from([5, 30, 90, 160]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    n_centres, flipped = draw(st.sampled_from([1, 3, 1_000])), draw(st.sampled_from([0.0, 0.02, 0.2]))
    both = some_codes(rng, n + 3, n_bits, n_centres, flipped)
    codes, queries = both[3:], both[:3]
    options = {"n_cells": draw(st.sampled_from([None, 2, 7]))}
    if kind == "substrings":
        n_tables = draw(st.sampled_from([None, 1, 3]))
        options = {"n_tables": n_tables if n_bits >= 3 else None, "table_bits": draw(st.sampled_from([None, 1, 6]))}
        if options["table_bits"] == 6 and n_bits < 18:
            options["table_bits"] = None
    index = BinaryIndex(n_bits, kind, **options)
    ids, size = rng.permutation(3 * n)[:n], draw(st.sampled_from([9, 30, 200]))
    for start in range(0, n, size):
        index.add(codes[start : start + size], ids[start : start + size])
    if draw(st.booleans()):  # some rows move to the newest segment
        some = rng.permutation(n)[: n // 5]
        codes[some] = codes[some[::-1]]
        index.add(codes[some], ids[some], replace=True)
    gone = rng.permutation(n)[: draw(st.sampled_from([0, 1, n // 3]))]
    index.remove(ids[gone])
    return Stored(index, np.delete(codes, gone, axis=0), np.delete(ids, gone), queries)


FILTERS = st.none() | st.lists(st.integers(-1, 500), max_size=10) | st.just([*range(0, 480, 2)])


@examples(100)
@given(stores(), st.sampled_from([1, 3, 20, 200]), FILTERS, FILTERS, st.integers(1, 3))
def test_all_buckets_are_all_rows(stored, k, allow, deny, n_threads):
    """Equal to the scan, distances and ids, ties included; and tables are so without a number of probes, too."""
    options = {"allow": allow, "deny": deny, "n_threads": n_threads}
    stored.check(k, mode="scan", **options)
    stored.check(k, mode="buckets", n_probes=ALL, **options)
    stored.check(k, mode="cascade", **options)  # at a miss of 1e-3, in these cases
    if stored.kind == "substrings":
        for share in (32, NeverSpent()):  # most searches are left to a scan, or none
            with tuned(table_budget_share=share):
                result = stored.check(k, mode="buckets", **options)
                stored.check(k, **options)
            assert result.stats["mode"] == "buckets"


@examples(100)
@given(stores(), st.sampled_from([1, 3, 20, 200]), FILTERS, FILTERS, st.sampled_from([32, 2, NeverSpent()]))
def test_some_buckets_have_some_rows(stored, k, allow, deny, share):
    """No duplicates, nothing but what a scan could find, as many as are wanted, and never worse with more of them."""
    places = {id_: place for place, id_ in enumerate(stored.ids.tolist())}
    near = oracles.hamming(stored.queries, stored.codes)
    exact = stored.exact(k, allow=allow, deny=deny)
    before = None
    for n_probes in (1, 2, 5, 40, ALL):
        with tuned(table_budget_share=share):
            result = stored.index.search(stored.queries, k, n_probes=n_probes, allow=allow, deny=deny)
        for query, (distances, ids) in enumerate(zip(*result, strict=True)):
            found = ids[ids >= 0].tolist()
            assert len(set(found)) == len(found)
            assert all((allow is None or i in allow) and (deny is None or i not in deny) for i in found)
            np.testing.assert_array_equal(distances[: len(found)], near[query][[places[i] for i in found]])
            assert (distances[len(found) :] == MISSING).all()
            assert found == sorted(found, key=lambda i: (near[query, places[i]], i))
        assert (result.distances >= exact[0]).all()
        np.testing.assert_array_equal(result.ids >= 0, exact[1] >= 0)
        if before is not None:
            assert (result.distances <= before.distances).all()
        before = result
    np.testing.assert_array_equal(before.ids, exact[1])


@examples(60)
@given(stores(), FILTERS, FILTERS, st.sampled_from([32, NeverSpent()]), st.data())
def test_range_search(stored, allow, deny, share, data):
    near = oracles.hamming(stored.queries, stored.codes)
    levels = [0, 1, int(near.min()), int(np.median(near)), stored.index.n_bits - 1, stored.index.n_bits]
    for radius in {*levels, data.draw(st.integers(0, stored.index.n_bits))}:
        with tuned(table_budget_share=share):
            result = stored.index.range_search(stored.queries, radius, allow=allow, deny=deny)
        expected = oracles.within(stored.queries, stored.codes, stored.ids, radius, allow=allow, deny=deny)
        for got, want in zip(result, expected, strict=True):
            np.testing.assert_array_equal(got, want)


def some_index(kind, n=200, n_bits=130, size=30, **options):
    """A BinaryIndex of several segments, its codes, and the same without buckets."""
    codes = some_codes(np.random.default_rng(7), n, n_bits, 12, 0.08)
    few = {"n_cells": 8} if kind == "clusters" else {"n_tables": 4}
    index, plain = BinaryIndex(n_bits, kind, **few | options), BinaryIndex(n_bits)
    for start in range(0, n, size):
        index.add(codes[start : start + size])
    plain.add(codes)
    return index, codes, plain


def test_every_radius():
    index, codes, plain = some_index("substrings", n_bits=70, n_tables=4)
    for radius in range(71):
        for got, want in zip(index.range_search(codes[:5], radius), plain.range_search(codes[:5], radius), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_bits", [8, 64, 1_024, 1_088])
def test_opposite_codes_are_found(kind, n_bits):
    """Codes that differ in every bit are as far as can be, and yet results; of equal ones the first ids come first."""
    ones, zeros = np.full((700, n_bits // 8), 255, np.uint8), np.zeros((2, n_bits // 8), np.uint8)
    index = BinaryIndex(n_bits, kind)
    ids = np.random.default_rng(0).permutation(700)
    index.add(ones, ids)
    for options in ({}, {"mode": "scan"}, {"n_probes": 1}, {"n_probes": ALL}, {"mode": "buckets"}):
        result = index.search(zeros, 30, **options)
        np.testing.assert_array_equal(result.ids, [np.arange(30)] * 2)
        assert (result.distances == n_bits).all()
    assert index.range_search(zeros, n_bits - 1).lims.tolist() == [0, 0, 0]
    assert index.range_search(zeros, n_bits).lims.tolist() == [0, 700, 1_400]


@pytest.mark.parametrize("kind", KINDS)
def test_segments_with_and_without_buckets(kind):
    """Rows wait in the buffer, get buckets in a segment of their own, and better ones when segments are joined."""
    index = BinaryIndex(130, kind, n_cells=6) if kind == "clusters" else BinaryIndex(130, kind, n_tables=4)
    codes = some_codes(np.random.default_rng(0), 200, 130, 12, 0.05)
    is_of_kind = {"clusters": Cells, "substrings": Tables}[kind]
    for start in range(0, 200, 10):
        index.add(codes[start : start + 10])
        sizes = [segment.n_rows for segment in segments_of(index)]
        for segment in segments_of(index)[:-1]:
            assert isinstance(segment.buckets, is_of_kind)
        assert sum(sizes) == start + 10
        result = index.search(codes[[0, start, start + 9]], 1, mode="buckets")
        assert (result.distances == 0).all()
    assert max(sizes) > 2 * 32
    assert buckets_of(index)[-1] is None


def test_new_cells_follow_the_data():
    """Rows unlike all that cells were trained on go into a segment of their own, and are found there by few probes."""
    rng = np.random.default_rng(0)
    first, then = (some_codes(rng, 200, 256, 4, 0.02) for _ in range(2))
    index = BinaryIndex(256, "clusters", n_cells=4)
    index.add(first)
    index.add(then)
    result = index.search(then, 1, n_probes=1)
    assert (result.distances == 0).all()
    assert result.stats["visited"] < 0.6 * 200 * len(index)


@pytest.mark.parametrize("kind", KINDS)
def test_stats_of_a_search(kind):
    index, codes, _ = some_index(kind)
    result = index.search(codes[:4], 3, n_probes=2)
    assert (result.stats["mode"], result.stats["rows"]) == ("buckets", 200)
    n_with = sum(bucket is not None for bucket in buckets_of(index))
    n_tables = 1 if kind == "clusters" else buckets_of(index)[0].n_tables
    assert result.stats["buckets"] == 4 * 2 * n_tables * n_with
    assert 0 < result.stats["visited"] < 4 * 200
    more = index.search(codes[:4], 3, n_probes=3)
    assert more.stats["visited"] > result.stats["visited"]
    assert index.search(codes[:4], 3, mode="buckets", n_probes=ALL).stats["visited"] == 4 * sum(
        segment.n_rows for segment in segments_of(index) if segment.buckets is not None
    )


@pytest.mark.parametrize("kind", KINDS)
def test_stats_of_an_index(kind):
    index, _, plain = some_index(kind)
    stats = index.stats()
    assert stats["kind_of_buckets"] == kind
    assert (stats["rows"], stats["removed"]) == (200, 0)
    expected = sum(b.nbytes for b in buckets_of(index) if b is not None)
    expected += sum(s.order.nbytes + s.ranks.nbytes for s in segments_of(index))
    assert stats["bytes"]["buckets"] == expected > 0
    assert (plain.stats()["kind_of_buckets"], plain.stats()["bytes"]["buckets"]) == (None, 0)
    assert repr(index) == f"BinaryIndex(n_bits=130, buckets={kind!r}): 200 codes"
    vectors = CBEIndex(100, buckets=kind, vectors=None)
    assert vectors.stats()["kind_of_buckets"] == kind
    assert f"buckets={kind!r}" in repr(vectors)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["auto", "scan", "cascade", "buckets"])
def test_a_filter_that_allows_few_is_answered_from_these(kind, mode):
    """Rows that are removed or denied are not scanned either."""
    index, codes, _ = some_index(kind, n_bits=1_030)
    index.remove([7])
    for allow, deny, left in (
        ([3], None, [3]),
        ([150, 3, 7, 9_999, 80], None, [3, 80, 150]),
        ([3, 80, 150], [80], [3, 150]),
        ([7], None, []),
        ([], None, []),
    ):
        result = index.search(codes[:5], 4, mode, allow=allow, deny=deny)
        expected = oracles.nearest(codes[:5], codes[left], np.array(left, dtype=np.int64), 4)
        np.testing.assert_array_equal(result.ids, expected[1])
        np.testing.assert_array_equal(result.distances, expected[0])
        assert result.stats["rows"] == len(left)
    assert index.search(codes[:5], 4, mode, allow=range(0, 200, 2)).stats["rows"] == 200


@pytest.mark.parametrize("kind", KINDS)
def test_more_answers_than_a_bucket_has(kind):
    """As many come as are wanted."""
    index, codes, plain = some_index(kind)
    index.remove(range(150, 170))
    plain.remove(range(150, 170))
    for k in (5, 50, 180, 250):
        result = index.search(codes[:5], k, n_probes=1)
        assert ((result.ids >= 0).sum(axis=1) == min(k, 180)).all()
        few = index.search(codes[:5], k, n_probes=1, deny=range(20, 200))
        assert ((few.ids >= 0).sum(axis=1) == min(k, 20)).all()
    check_equal(index.search(codes[:5], 180, n_probes=1), plain.search(codes[:5], 180))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_answered_like_its_queries(kind):
    """Also where some queries visit more buckets than others to find enough rows."""
    index, codes, _ = some_index(kind)
    index.remove(range(100, 160))
    for options in ({"n_probes": 1}, {"n_probes": 2, "deny": range(40)}, {"mode": "buckets"}):
        for k in (3, 25):
            together = index.search(codes[:12], k, **options)
            for i in range(12):
                alone = index.search(codes[i], k, **options)
                np.testing.assert_array_equal(alone.ids, together.ids[i])
                np.testing.assert_array_equal(alone.distances, together.distances[i])


@pytest.mark.parametrize("kind", KINDS)
def test_threads_do_not_change_the_answer(kind):
    index, codes, _ = some_index(kind)
    for options in ({}, {"n_probes": 1}, {"n_probes": 3, "deny": range(50)}, {"mode": "buckets"}):
        for queries in (codes[:1], codes[:40]):
            one = index.search(queries, 9, **options, n_threads=1)
            for n_threads in (2, 3):
                more = index.search(queries, 9, **options, n_threads=n_threads)
                check_equal(more, one)
                assert more.stats == one.stats
    one = index.range_search(codes[:40], 20, n_threads=1)
    for got, want in zip(index.range_search(codes[:40], 20, n_threads=3), one, strict=True):
        np.testing.assert_array_equal(got, want)


def check_everything(index, codes, ids):
    """All rows are found by buckets, by a scan and by id."""
    expected = oracles.nearest(codes[:6], codes, ids, 8)
    for options in ({"mode": "scan"}, {"mode": "buckets", "n_probes": ALL}):
        result = index.search(codes[:6], 8, **options)
        np.testing.assert_array_equal(result.ids, expected[1])
        np.testing.assert_array_equal(result.distances, expected[0])
    assert index.ids.tolist() == sorted(ids.tolist())
    np.testing.assert_array_equal(index.get(ids), codes)


@pytest.mark.parametrize("kind", KINDS)
def test_get_remove_replace_compact_and_merge(kind):
    index, codes, _ = some_index(kind)
    ids = np.arange(200)
    check_everything(index, codes, ids)
    new = some_codes(np.random.default_rng(1), 30, 130)
    codes[40:70] = new
    index.add(new, range(40, 70), replace=True)
    check_everything(index, codes, ids)
    index.remove(range(10, 110))
    codes, ids = np.delete(codes, slice(10, 110), axis=0), np.delete(ids, slice(10, 110))
    check_everything(index, codes, ids)
    index.compact()
    check_everything(index, codes, ids)
    (segment,) = segments_of(index)
    assert segment.buckets is not None
    for other_kind in (*KINDS, None):
        other = BinaryIndex(130, other_kind)
        other.add(new, np.arange(len(new)) + index.ids.max() + 1)
        index.merge(other)
        codes, ids = np.concatenate([codes, new]), np.concatenate([ids, other.ids])
        check_everything(index, codes, ids)
    index.remove(ids)
    index.compact()
    assert len(index) == 0
    assert (index.search(codes[:3], 4, mode="buckets").ids == -1).all()
    index.add(codes)
    assert buckets_of(index)[0] is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))])
def test_copies_keep_their_buckets(kind, again):
    index, codes, _ = some_index(kind)
    other = again(index)
    assert (other.buckets, other.stats()) == (kind, index.stats())
    for options in ({}, {"n_probes": 1}, {"mode": "buckets"}):
        check_equal(other.search(codes[:9], 5, **options), index.search(codes[:9], 5, **options))
    other.add(codes)  # which makes buckets anew
    assert sum(bucket is not None for bucket in buckets_of(other)) > 0
    other.remove(range(150))
    assert len(index) == 200
    check_everything(index, codes, np.arange(200))
    check_everything(
        other, np.concatenate([codes[150:], codes]), np.concatenate([np.arange(150, 200), 200 + np.arange(200)])
    )


@pytest.mark.parametrize("kind", KINDS)
def test_explain(kind):
    index, codes, plain = some_index(kind)
    for options in ({}, {"mode": "scan"}, {"mode": "cascade"}, {"mode": "buckets"}, {"n_probes": 2}):
        text = index.explain(codes[:5], 3, **options)
        assert text.startswith("5 queries, 3 of 200 codes each: ")
        assert text.mode == index.search(codes[:5], 3, **options).stats["mode"]
        assert list(text.ways) == ["scan", "cascade", "buckets"]
        assert text.ways["scan"] == (200, 200 * 24)
        assert all(cost.rows > 0 and cost.bytes >= 24 * cost.rows for cost in text.ways.values())
        marked = [line for line in text.splitlines()[1:] if line.startswith("-> ")]
        assert len(marked) == 1
        assert marked[0].startswith(f"-> {text.mode}: about {text.ways[text.mode].rows:,} rows and")
    fewer, more = (index.explain(codes[:5], 3, n_probes=n).ways["buckets"] for n in (1, 3))
    assert fewer.rows < more.rows <= 200
    assert fewer.bytes < more.bytes
    assert "buckets" not in plain.explain(codes[:5], 3).ways


@pytest.mark.parametrize("kind", KINDS)
def test_too_few_rows_for_buckets(kind):
    """All of them are scanned, whatever mode is requested."""
    codes = some_codes(np.random.default_rng(0), 20, 130, 5, 0.1)
    index, plain = BinaryIndex(130, kind), BinaryIndex(130)
    for each in (index, plain):
        each.add(codes)
    assert buckets_of(index) == [None]
    assert index.stats()["bytes"]["buckets"] == 0
    for options in ({}, {"mode": "buckets"}, {"mode": "buckets", "n_probes": 1}, {"n_probes": 3}):
        check_equal(index.search(codes, 5, **options), plain.search(codes, 5))
    text = index.explain(codes, 5)
    assert text.mode == "scan"
    assert "there are too few rows for buckets" in text
    assert text.ways["buckets"] == text.ways["scan"] == (20, 20 * 24)
    empty = BinaryIndex(130, kind)
    assert (empty.search(codes[:2], 3, n_probes=2).ids == -1).all()
    assert empty.explain(codes[:2]).ways["buckets"] == (0, 0)


def test_no_queries():
    for kind in KINDS:
        index, codes, _ = some_index(kind)
        for options in ({"mode": "buckets"}, {"n_probes": 2}):
            assert index.search(codes[:0], 3, **options).ids.shape == (0, 3)
        assert index.range_search(codes[:0], 3).lims.tolist() == [0]
        one = index.search(codes[3], 3, n_probes=2)
        assert one.ids.shape == (3,)


def test_bucket_makers():
    assert bucket_maker(None, 64, {"n_cells": None}) is None
    assert bucket_maker("clusters", 64, {"n_tables": None, "n_cells": 9}) == Clusters(64, 9)
    assert bucket_maker("substrings", 64, {}) == Substrings(64)
    assert bucket_maker("substrings", 64, {"n_tables": 4, "table_bits": 16}) == Substrings(64, 4, 16)
    assert bucket_maker("substrings", 64, {"n_tables": 4}) == Substrings(64, 4)
    assert bucket_maker("substrings", 64, {"table_bits": 24}) == Substrings(64, 2, 24)
    assert bucket_maker("substrings", 2_048, {"table_bits": 10}) == Substrings(2_048, 16, 10)
    assert bucket_maker("cells", 64, {"n_cells": 9, "cell_bits": 2}) == CellMaker(64, 9, 2)


MAKING = [
    ({"buckets": "trees"}, ValueError, "buckets must be one of 'substrings', 'clusters'.* got 'trees'"),
    ({"buckets": "Clusters"}, ValueError, "buckets must be one of"),
    ({"buckets": 3}, ValueError, "buckets must be one of 'substrings', 'clusters'.* got 3"),
    ({"buckets": True}, ValueError, "buckets must be one of"),
    ({"buckets": "substrings", "table_bits": 0}, ValueError, "table_bits must be at least 1, got 0"),
    ({"buckets": "substrings", "table_bits": 25}, ValueError, "must be at most 24 for codes of 64 bits, got 25"),
    ({"buckets": "substrings", "table_bits": 65}, ValueError, "must be at most 24 for codes of 64 bits, got 65"),
    ({"buckets": "substrings", "table_bits": 1.5}, TypeError, "table_bits must be an integer, got float"),
    ({"buckets": "substrings", "table_bits": True}, TypeError, "table_bits must be an integer, got bool"),
    ({"buckets": "substrings", "n_tables": 0}, ValueError, "n_tables must be at least 1, got 0"),
    ({"buckets": "substrings", "n_tables": 65}, ValueError, "n_tables must be at most 16 for codes of 64 bits, got 65"),
    ({"buckets": "substrings", "n_tables": "4"}, TypeError, "n_tables must be an integer, got str"),
    (
        {"buckets": "substrings", "n_tables": 4, "table_bits": 17},
        ValueError,
        "table_bits must be at most 16 for codes of 64 bits in 4 tables, got 17",
    ),
    ({"buckets": "substrings", "n_cells": 8}, ValueError, "n_cells is not an option of buckets='substrings'"),
    ({"buckets": "clusters", "table_bits": 8}, ValueError, "table_bits is not an option of buckets='clusters'"),
    ({"buckets": "clusters", "n_tables": 8}, ValueError, "n_tables is not an option of buckets='clusters'"),
    ({"buckets": "clusters", "n_cells": 0}, ValueError, "n_cells must be at least 1, got 0"),
    ({"buckets": "clusters", "n_cells": 2.0}, TypeError, "n_cells must be an integer, got float"),
    ({"n_cells": 8}, ValueError, "n_cells is not an option of buckets=None"),
    ({"n_tables": 8}, ValueError, "n_tables is not an option of buckets=None"),
    ({"table_bits": 8}, ValueError, "table_bits is not an option of buckets=None"),
]


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: BinaryIndex(64, **options),
        lambda **o: CBEIndex(10, 64, **{"vectors": None, "buckets": None, **o}),
    ],
)
@pytest.mark.parametrize(("options", "error", "message"), MAKING)
def test_what_cannot_be_made(make, options, error, message):
    with pytest.raises(error, match=message):
        make(**options)


def test_short_codes_have_short_substrings():
    with pytest.raises(ValueError, match="table_bits must be at most 5 for codes of 5 bits, got 6"):
        BinaryIndex(5, "substrings", table_bits=6)
    index = BinaryIndex(5, "substrings", table_bits=5)
    codes = some_codes(np.random.default_rng(0), 100, 5)
    index.add(codes)
    assert (index.search(codes, 1, "buckets").distances == 0).all()


SEARCHING = [
    ({"n_probes": 0}, ValueError, "n_probes must be at least 1, got 0"),
    ({"n_probes": -1}, ValueError, "n_probes must be at least 1, got -1"),
    ({"n_probes": 1.5}, TypeError, "n_probes must be an integer, got float"),
    ({"n_probes": True}, TypeError, "n_probes must be an integer, got bool"),
    ({"n_probes": "2"}, TypeError, "n_probes must be an integer, got str"),
    ({"n_probes": [2]}, TypeError, "n_probes must be an integer, got list"),
    ({"n_probes": 2, "mode": "scan"}, ValueError, "n_probes is the number of buckets visited, but mode is 'scan'"),
    ({"n_probes": 2, "mode": "cascade"}, ValueError, "but mode is 'cascade'"),
    ({"mode": "bucket"}, ValueError, "one of 'auto', 'scan', 'cascade', 'buckets'(, 'exact')?, got 'bucket'"),
]
WITHOUT = [
    ({"n_probes": 2}, ValueError, "n_probes is the number of buckets visited, but this index has none, got 2"),
    ({"n_probes": 2, "mode": "buckets"}, ValueError, "needs buckets, but this index has none"),
    ({"mode": "buckets"}, ValueError, 'needs buckets, but this index has none: make it with buckets="clusters"'),
]


@pytest.mark.parametrize("kind", [*KINDS, None])
@pytest.mark.parametrize("n", [0, 5, 60])
def test_what_cannot_be_searched_for(kind, n):
    """Whether there are buckets yet or not, and whether the index is fitted or not."""
    codes = some_codes(np.random.default_rng(0), n + 1, 64)
    binary, vectors, X = BinaryIndex(64, kind), CBEIndex(10, 64, buckets=kind, vectors=None), clustered(n + 1, 10)
    binary.add(codes[:n])
    vectors.add(X[:n])
    for options, error, message in SEARCHING + ([] if kind else WITHOUT):
        if kind is None and message.startswith("n_probes is") and "but mode" in message:
            message = "but this index has none"
        for index, queries in ((binary, codes), (vectors, X)):
            for ask in (index.search, index.explain):
                with pytest.raises(error, match=message if kind else f"{message}|this index has none"):
                    ask(queries, 3, **options)
    assert (len(binary), len(vectors)) == (n, n)


def run_together(works, seconds):
    """Run works, each in a thread of its own, until the time is over or one of them fails or ends; return errors."""
    stop, errors = threading.Event(), []

    def run(work):
        try:
            work(stop)
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return errors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("of_vectors", [False, True])
def test_searches_while_segments_are_joined(kind, of_vectors):
    """Row i is at distance i % 50 + 1 of the query; every result is that of the rows up to some batch, none older."""
    size, most = 10, 400
    if of_vectors:
        index = CBEIndex(16, 64, metric="l2", vectors="float32", buckets=kind)
        index.fit(np.random.default_rng(0).standard_normal((20, 16)))
        query, missing = np.zeros(16, dtype=np.float32), np.inf
    else:
        index, query, missing = BinaryIndex(64, kind), np.zeros(8, dtype=np.uint8), MISSING

    def rows_of(ids):
        distances = ids % 50 + 1
        if of_vectors:  # along one axis, so that squares are exact
            return np.sqrt(distances)[:, np.newaxis] * np.eye(16)[ids % 16]
        return np.packbits(np.arange(64) < distances[:, np.newaxis], axis=1, bitorder="little")

    def distance_of(ids):
        return np.sum(rows_of(ids).astype(np.float32) ** 2, axis=1, dtype=np.float32) if of_vectors else ids % 50 + 1

    first = copy.copy(index)  # kernels are loaded before the clock runs
    first.add(rows_of(np.arange(50)))
    for options in ({"n_probes": ALL}, {"n_probes": 1}, {"mode": "scan"}):
        first.search(query, 3, **options)
    counts, seen = [], []

    def write(stop):
        for start in range(0, most, size):
            index.add(rows_of(np.arange(start, start + size)), np.arange(start + size - 1, start - 1, -1)[::-1])
            if stop.wait(0.001):
                break
        counts.append(start + size)
        stop.wait(0.2)
        stop.set()

    def read(stop):
        newest, n_reads = 0, 0
        while not stop.is_set():
            if n_reads % 3 < 2:  # everything
                mode = ({"n_probes": ALL}, {"mode": "scan"})[n_reads % 3]
                distances, ids = index.search(query, most, **mode, n_threads=1 + n_reads % 2)
                n = int((ids >= 0).sum())
                assert n % size == 0
                assert n >= newest
                assert sorted(ids[:n].tolist()) == list(range(n))
                assert (distances[n:] == missing).all()
                newest = n
            else:  # some of it
                distances, ids = index.search(query, 5, n_probes=1, n_threads=1)
                n = int((ids >= 0).sum())
                assert n == 5 or newest < 5
            np.testing.assert_allclose(distances[:n], distance_of(ids[:n]), rtol=1e-6)
            assert len(set(ids[:n].tolist())) == n
            n_reads += 1
        seen.append(n_reads)

    assert run_together([write, read, read], 5) == []
    assert len(index) == counts[0]
    assert max(segment.n_rows for segment in segments_of(index)) > 2 * 32
    assert min(seen) >= 3
    assert len(segments_of(index)) <= 8


USE_EVERYTHING = """
import pickle
import numpy as np
from numba.core.types import Array
from cbeindex import BinaryIndex, CBEIndex
from cbeindex.kernels import asymmetric, cells, centroids, hamming, tables
from tests.small import ALL, small_buckets

modes = ({}, {"mode": "scan"}, {"mode": "buckets"}, {"n_probes": 1}, {"n_probes": ALL}, {"n_probes": 2, "deny": [1]})

def use(index, rows, **options):
    for start in range(0, 100, 30):
        index.add(rows[start : start + 30], ids=np.arange(start, min(100, start + 30))[::-1])
    frozen = rows[:3].copy()
    frozen.setflags(write=False)
    for again in range(2):
        for i, queries in enumerate((rows[0], rows[:9:2], np.asfortranarray(rows[:5]), frozen)):
            for mode in modes[i % 2 :: 2]:
                index.search(queries, 3, **mode, **options, n_threads=1 + i % 2)
                index.search(queries, 3, **mode, **options, n_threads=1 + again, allow=[5, 6])
            index.range_search(queries, 5, n_threads=1 + i % 2)
        index.remove([10 + again])
        index = pickle.loads(pickle.dumps(index))
    index.compact()
    index.search(rows[:3], 3, n_probes=1, **options)

with small_buckets():
    for kind in ("clusters", "substrings"):
        for n_bits in (8, 1_024, 2_000):
            codes = np.random.default_rng(0).integers(0, 256, (100, n_bits // 8), dtype=np.uint8)
            use(BinaryIndex(n_bits, kind), codes)
        rows = np.random.default_rng(0).standard_normal((100, 20), dtype=np.float32)
        for rerank in (None, "asymmetric", "exact"):
            for n_bits in (64, 1_100):
                use(CBEIndex(20, n_bits, buckets=kind, vectors="float32").fit(rows), rows, rerank=rerank)
kernels = (
    hamming.scan, centroids.add_bits, centroids.assign, centroids.choose, cells.nearest, tables.fill, tables.nearest,
    tables.probe, tables.within, asymmetric.scan, asymmetric.visit, asymmetric.estimate_rows,
)
for kernel in kernels:
    arrays = {tuple(t for t in signature if isinstance(t, Array)) for signature in kernel.signatures}
    ours = all(t.layout == "C" and t.mutable and t.aligned for t in sum(arrays, ()))
    print(kernel.__module__.split(".")[-1], kernel.__name__, len(arrays), ours)
"""


@pytest.mark.skipif(not COMPILED, reason="nothing is compiled")
def test_kernels_are_compiled_for_one_layout():
    """In a process of its own, since other tests call kernels too: no use compiles a kernel a second time."""
    run = subprocess.run([sys.executable, "-c", USE_EVERYTHING], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stderr == ""
    lines = run.stdout.splitlines()
    assert len(lines) == 12
    assert [line for line in lines if not line.endswith(" 1 True")] == []
