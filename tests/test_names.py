"""Names: columns of strings, hashes of names, and finding names in segments and names of ids."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import kernels
from cbeindex._core.tuning import tuned
from cbeindex.data.ids import as_any_ids, as_filter, is_id
from cbeindex.data.names import NameColumn, Names, shown
from cbeindex.errors import CorruptIndexFileError
from cbeindex.search.naming import names_of
from cbeindex.store.namefinder import NameFinder, hashes_of, repeated
from cbeindex.store.segment import NO_RANKS, NOT_HIDDEN, Segment
from tests.small import examples

pytestmark = pytest.mark.kernels

# Few letters, so that names share beginnings and lengths; one takes four bytes.
NAMES = st.text("ab\0é\U0001f600", min_size=1, max_size=7)
LISTS = st.lists(NAMES, max_size=12, unique=True)


@given(LISTS, st.data())
@examples(100)
def test_columns_of_names_are_like_lists(strings, data):
    names = Names.of(strings)
    assert names.tolist() == strings == list(names)
    assert len(names) == len(strings)
    rows = data.draw(st.lists(st.integers(0, max(0, len(strings) - 1)), max_size=20 if strings else 0))
    with tuned(name_step_rows=3):
        assert names[np.array(rows, dtype=np.int64)].tolist() == [strings[row] for row in rows]
    first, last = sorted(data.draw(st.tuples(st.integers(0, 12), st.integers(0, 12))))
    part = names[first:last]
    assert part.tolist() == strings[first:last]
    assert part[np.arange(len(part))[::-1]].tolist() == strings[first:last][::-1]
    assert Names.joined([part, names, part]).tolist() == [*part, *names, *part]
    assert Names.joined([]).tolist() == []
    arrays = part.to_arrays()
    assert Names(arrays["offsets"], arrays["bytes"]).tolist() == part.tolist()
    assert sum(array.nbytes for array in arrays.values()) == part.nbytes
    assert pickle.loads(pickle.dumps(part)).tolist() == part.tolist()
    part.check()


def test_a_buffer_of_names_keeps_views():
    buffer = NameColumn().buffer(8)
    strings = ["a" * n for n in range(1, 90, 12)]
    views = []
    for start, string in enumerate(strings):
        buffer.write(start, Names.of([string]))
        views.append(buffer.first(start + 1))
    assert [view.tolist() for view in views] == [strings[:n] for n in range(1, 9)]
    buffer.write(2, Names.of(["x", "y"])[1:])  # a failed write leaves nothing behind
    assert buffer.first(3).tolist() == [*strings[:2], "y"]


@given(LISTS, LISTS, st.sets(st.integers(0, 11)), st.sampled_from([0, 1000]))
@examples(100)
def test_finding_names(strings, wanted, removed, scans):
    """By a table of hashes and by comparing all names; removed rows may have the name of later rows."""
    mask = np.array([row in removed for row in range(len(strings))], dtype=np.bool_)
    rows = [strings.index(name) if name in strings and not mask[strings.index(name)] else -1 for name in wanted]
    with tuned(name_scans=scans):
        names = Names.of(strings)
        finder = NameFinder.of(names)
        assert finder is NameFinder.of(names)
        assert finder.find(Names.of(wanted), mask).tolist() == rows
        live = [strings.index(name) if name in strings else -1 for name in wanted]
        assert finder.find(Names.of(wanted), NOT_HIDDEN).tolist() == live
        twice = Names.of(strings + strings)
        both = np.concatenate([np.ones(len(strings), np.bool_), mask])
        found = NameFinder(twice).find(Names.of(wanted), both)
        assert found.tolist() == [row + len(strings) if row >= 0 else -1 for row in rows]


def test_scans_are_few_before_there_is_a_table():
    with tuned(name_scans=3):
        finder = NameFinder(Names.of(["a", "b"]))
        for _ in range(3):
            assert finder.find(Names.of(["b"]), NOT_HIDDEN).tolist() == [1]
            assert finder._table is None
        assert finder.find(Names.of(["b"]), NOT_HIDDEN).tolist() == [1]
        assert finder._table is not None


@given(st.lists(NAMES, unique=True, min_size=1, max_size=40), st.tuples(*[st.integers(1, 2**31 - 2)] * 2))
@examples(50)
def test_hashes_are_polynomials_modulo_a_prime(strings, points):
    names = Names.of(strings)
    found = np.empty(len(names), dtype=np.int64)
    kernels.names.hash_names(names.offsets, names.data, *points, found)
    prime = 2**31 - 1

    def naive(data, point):
        value = len(data)
        for start in range(0, len(data), 3):
            value = (value * point + int.from_bytes(data[start : start + 3])) % prime
        return value

    assert found.tolist() == [naive(s.encode(), points[0]) * 2**31 + naive(s.encode(), points[1]) for s in strings]


def test_hashes_of_many_names_differ():
    strings = [f"{i}" for i in range(2000)] + ["\0" * n for n in range(1, 300)] + ["a" * n for n in range(1, 300)]
    assert len(np.unique(hashes_of(Names.of(strings)))) == len(strings)


@given(LISTS, LISTS)
@examples(50)
def test_repeated_names_are_found(one, other):
    twice = repeated([Names.of(one), Names.of(other)])
    assert (twice in set(one) & set(other)) if set(one) & set(other) else twice is None


@given(st.data(), st.booleans())
@examples(60)
def test_names_of_ids(data, is_ordered):
    """Of several segments, whose rows may be in the order of buckets."""
    n = data.draw(st.integers(1, 15))
    strings = [f"name {i}" * (i % 3 + 1) for i in range(n)]
    ids = np.array(sorted(data.draw(st.sets(st.integers(0, 50), min_size=n, max_size=n))))
    cut = data.draw(st.integers(0, n))
    segments = []
    for rows in (np.arange(cut), np.arange(cut, n)):
        order = ranks = NO_RANKS
        if is_ordered and len(rows):
            shuffled = np.random.default_rng(n).permutation(len(rows))
            order = np.argsort(shuffled).astype(np.int32)
            ranks, rows = shuffled.astype(np.int32), rows[shuffled]
        names = Names.of([strings[row] for row in rows])
        segments.append(Segment(ids[rows], None, {"names": names}, NOT_HIDDEN, order, ranks))
    wanted = data.draw(st.lists(st.sampled_from([-1, *ids.tolist()]), max_size=8))
    expected = [None if id_ < 0 else strings[np.searchsorted(ids, id_)] for id_ in wanted]
    found = names_of(np.array(wanted, dtype=np.int64).reshape(1, -1), segments)
    assert found.dtype == object
    assert found.tolist() == [expected]


class TestDamage:
    """Values of a mapped file are not trusted."""

    def segment(self, offsets=(0, 1, 3), order=(), data=b"abc", ids=(4, 7)):
        names = Names(np.array(offsets), np.frombuffer(data, np.uint8))
        ranks = np.array(order, dtype=np.int32)
        return Segment(np.array(ids), None, {"names": names}, NOT_HIDDEN, ranks, ranks)

    def test_intact(self):
        assert names_of(np.array([7, 4, -1]), [self.segment()]).tolist() == ["bc", "a", None]
        assert names_of(np.array([7, 4]), [self.segment(order=[1, 0], ids=[7, 4])]).tolist() == ["a", "bc"]

    @pytest.mark.parametrize(
        "damage",
        [
            {"offsets": (0, 1, 4)},
            {"offsets": (0, 1, 1)},
            {"offsets": (0, -2, 3)},
            {"offsets": (5, 1, 3)},
            {"offsets": (-1, 1, 3)},
            {"order": (0, 2)},
            {"order": (-1, -1)},
            {"data": b"a\xc3b"},
        ],
    )
    def test_names_of_ids(self, damage):
        with pytest.raises(CorruptIndexFileError):
            names_of(np.array([4, 7]), [self.segment(**damage)])
        segment = self.segment(**damage)
        if "order" not in damage:
            with pytest.raises(CorruptIndexFileError):
                segment.columns["names"].check()
        if "offsets" in damage:
            with pytest.raises(CorruptIndexFileError):
                segment.find_any(Names.of(["a"]))

    @pytest.mark.parametrize("offsets", [(0, 1, 4), (2, 1, 3), (-1, 1, 3)])
    def test_copies(self, offsets):
        with pytest.raises(CorruptIndexFileError, match="offsets"):
            Names(np.array(offsets), np.frombuffer(b"abc", np.uint8))[np.array([0, 1])]


class TestArguments:
    @pytest.mark.parametrize(
        "ids",
        [
            ["a", "b"],
            ("a", "b"),
            np.array(["a", "b"]),
            np.array(["a", "b"], dtype=object),
            np.array(["a", "b"], dtype=np.dtypes.StringDType()),
            dict.fromkeys(["a", "b"]),
            dict.fromkeys(["a", "b"]).keys(),
            [np.str_("a"), "b"],
        ],
        ids=repr,
    )
    def test_kinds_of_strings(self, ids):
        assert as_any_ids(ids, "ids", n=2).tolist() == as_filter(ids, "allow").tolist() == ["a", "b"]

    def test_one_string(self):
        assert as_any_ids("abc", "ids").tolist() == ["abc"]
        with pytest.raises(TypeError, match="allow must be integers, or a list of strings alone"):
            as_filter("abc", "allow")

    @pytest.mark.parametrize("ids", [[], (), np.array([]), np.array([], dtype=object), np.array([], dtype="U3")])
    def test_none_at_all(self, ids):
        assert as_any_ids(ids, "ids").dtype == as_filter(ids, "deny").dtype == np.int64

    @pytest.mark.parametrize(
        ("ids", "error", "message"),
        [
            (["a", 1], TypeError, "ids must be all strings or all integers, got int beside strings, at 1"),
            (["a", b"b"], TypeError, "got bytes beside strings, at 1"),
            (["a", None], TypeError, "got a missing value beside strings, at 1"),
            (np.array(["a", np.nan], dtype=object), TypeError, "got a missing value beside strings, at 1"),
            ([1, "a"], TypeError, "ids must be integers, or a list of strings alone"),
            ([None, "a"], TypeError, "ids must be integers or strings, got dtype object"),
            ([b"a", b"b"], TypeError, "ids must be integers or strings, got dtype .S1"),
            (["a", ""], ValueError, "ids must not be empty strings, got one at 1"),
            (["a", "a"], ValueError, "ids must not repeat, 'a' does"),
            (["a"], ValueError, r"ids must have shape \(2,\), got \(1,\)"),
            (np.array([["a"], ["b"]]), ValueError, r"ids must have shape \(n,\), got \(2, 1\)"),
            ([["a"], ["b"]], TypeError, "ids must be integers, or a list of strings alone"),
            (["a", "\ud800b"], ValueError, r"ids must be Unicode without surrogates, got '\\ud800b'"),
            (["x" * 10_000] * 2, ValueError, r"ids must not repeat, 'x{80}\.\.\.' does"),
        ],
    )
    def test_bad_strings(self, ids, error, message):
        with pytest.raises(error, match=message):
            as_any_ids(ids, "ids", n=2)

    def test_single_ids(self):
        assert [is_id(value) for value in ("a", "é", np.str_("a"), "", "\udc00", b"a", None)] == [True] * 3 + [
            False
        ] * 4

    def test_quotes(self):
        assert (shown(5), shown("a'"), len(shown("a" * 999))) == ("5", '"a\'"', 85)
