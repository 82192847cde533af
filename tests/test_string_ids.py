"""Indexes whose ids are strings: what is added, found, removed, merged and saved under names."""

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import cbeindex
from cbeindex import BinaryIndex, CBEIndex
from cbeindex._core.tuning import tuned
from cbeindex.errors import CorruptIndexFileError
from fuzz import container
from tests import vector_oracles
from tests.conftest import ROOT
from tests.small import ALL, VERY_SMALL, small_buckets, tune
from tests.strategies import some_codes

# Estimates rule no row out, and walks and probes reach all rows.
_ALL_ROWS = {"knn_sigmas": 9.0, "range_sigmas": 9.0, "least_cell_candidates": 1000, "least_centre_rows": 2}
_ALL_ROWS |= {"least_graph_candidates": 1000, "least_graph_segment_rows": 6, "graph_step_rows": 0}
_ALL_ROWS |= {"first_range_beam": 10**5, "graph_leaf_rows": 8, "graph_building_beam": 8}
N_POOL, DIM, N_BITS = 12, 16, 70
POOL = [f"{'long ' * (i % 3)}name é {i}" for i in range(60)]
NAMES = st.lists(st.sampled_from(POOL), max_size=9, unique=True)


class NamesAgainstDict(RuleBasedStateMachine):
    """Writes in random order, and exact results in between, against a dictionary in the order of insertion."""

    @initialize(
        kind=st.sampled_from(["binary", "cbe"]),
        buckets=st.sampled_from([None, "clusters", "substrings", "cells", "graph"]),
        seed=st.integers(0, 9),
        scans=st.sampled_from([0, 5, 1000]),
    )
    def start(self, kind, buckets, seed, scans):
        self.patches: list = [small_buckets(VERY_SMALL | _ALL_ROWS | {"name_scans": scans})]
        for patch in self.patches:
            patch.__enter__()
        if kind == "binary":
            self.pool = some_codes(np.random.default_rng(seed), N_POOL, N_BITS, 3, 0.1)
            self.pool[4:6] = self.pool[3]
            bits = np.unpackbits(self.pool, axis=1)
            self.distances = np.count_nonzero(bits[:, np.newaxis] != bits[np.newaxis], axis=2).astype(np.float64)
            self.make = lambda: BinaryIndex(N_BITS, buckets if buckets in ("clusters", "substrings") else None)
        else:
            self.pool = vector_oracles.clustered(N_POOL, DIM, seed, n_centres=3)
            self.pool[4:6] = self.pool[3]
            self.distances = vector_oracles.distances("l2", self.pool, self.pool)
            self.make = lambda: CBEIndex(DIM, N_BITS, metric="l2", vectors="float32", buckets=buckets)
        self.index, self.picks = self.make(), {}
        self.has_rows = False

    def teardown(self):
        for patch in getattr(self, "patches", []):
            patch.__exit__(None, None, None)

    def of(self, queries):
        """Distances from some of the pool to all that is stored, and their places in the order of insertion."""
        return self.distances[np.ix_(queries, list(self.picks.values()))], list(range(len(self.picks)))

    def places(self, names):
        return None if names is None else [list(self.picks).index(name) for name in names if name in self.picks]

    @rule(names=NAMES, first=st.integers(0, N_POOL - 1), replace=st.booleans())
    def add(self, names, first, replace):
        picks = [(first + i) % N_POOL for i in range(len(names))]
        if not replace and self.picks.keys() & set(names):
            with pytest.raises(ValueError, match=r"id '.*' is taken"):
                self.index.add(self.pool[picks], names)
            return
        added = self.index.add(self.pool[picks], names, replace=replace)
        assert added.tolist() == names
        for name in names:
            self.picks.pop(name, None)
        self.picks.update(zip(names, picks, strict=True))
        self.has_rows |= len(names) > 0

    @rule(n=st.integers(1, 20))
    def add_many(self, n):
        start = max([int(name.split()[-1]) for name in self.picks], default=0) + 1
        picks = [i % N_POOL for i in range(n)]
        names = [f"many {start + i}" for i in range(n)]
        self.index.add(self.pool[picks], names)
        self.picks.update(zip(names, picks, strict=True))
        self.has_rows = True

    @rule()
    def add_without_names(self):
        if self.has_rows:
            for ids in (None, [3]):
                with pytest.raises(TypeError, match="ids must be strings, as those of this"):
                    self.index.add(self.pool[:1], ids)

    @rule(data=st.data(), also_unknown=st.booleans())
    def remove(self, data, also_unknown):
        names = data.draw(st.lists(st.sampled_from(list(self.picks)), max_size=5)) if self.picks else []
        if also_unknown:
            with pytest.raises(ValueError, match="id 'unknown' is not in the index"):
                self.index.remove([*names, "unknown"])
            return
        self.index.remove(names)
        for name in set(names):
            del self.picks[name]

    @rule()
    def compact(self):
        self.index.compact()

    @rule(names=NAMES, pick=st.integers(0, N_POOL - 1))
    def merge(self, names, pick):
        other = self.make()
        other.add(self.pool[[pick] * len(names)], names)
        if self.picks.keys() & set(names):
            with pytest.raises(ValueError, match=r"id '.*' is taken"):
                self.index.merge(other)
            return
        self.index.merge(other)
        self.picks.update(dict.fromkeys(names, pick))
        self.has_rows |= len(names) > 0

    @rule(again=st.sampled_from([copy.copy, lambda index: pickle.loads(pickle.dumps(index))]))
    def go_on_with_a_copy(self, again):
        old, self.index = self.index, again(self.index)
        old.add(self.pool, [f"other {i}" for i in range(N_POOL)])
        old.remove(old.ids[: len(old) // 2])

    @rule()
    def refit(self):
        if isinstance(self.index, CBEIndex) and len(self.picks) > 1:
            self.index.refit()

    @rule(
        queries=st.lists(st.integers(0, N_POOL - 1), min_size=1, max_size=2),
        k=st.sampled_from([1, 2, 5, 40]),
        allow=st.none() | NAMES,
        deny=st.none() | NAMES,
        by_scan=st.booleans(),
    )
    def search(self, queries, k, allow, deny, by_scan):
        known = [*self.picks, None]
        near, found = vector_oracles.nearest_by(
            *self.of(queries), k=k, allow=self.places(allow), deny=self.places(deny)
        )
        options = {"mode": "scan"} if by_scan else {"n_probes": ALL} if self.index.buckets else {}
        for _ in range(2):  # the second search may find a plan
            result = self.index.search(self.pool[queries], k, **options, allow=allow, deny=deny)
            assert result.ids.tolist() == [[known[place] for place in row] for row in found] or not self.has_rows
            near = np.where(np.isinf(near), result.distances, near)
            np.testing.assert_allclose(result.distances, near, rtol=1e-5, atol=1e-6)
        single = self.index.search(self.pool[queries[0]], k, **options, allow=allow, deny=deny)
        np.testing.assert_array_equal(single.ids, result.ids[0])

    @rule(query=st.integers(0, N_POOL - 1), place=st.floats(0, 1), deny=st.none() | NAMES)
    def range_search(self, query, place, deny):
        # Between two distances that occur: a radius that equals one would hang on the last bit of it.
        levels = np.unique(self.distances[query].astype(np.float32))
        at = int(place * (len(levels) - 1))
        if at + 1 < len(levels) and levels[at + 1] - levels[at] < 1e-4:
            return
        radius = (levels[at] + levels[at + 1]) / 2 if at + 1 < len(levels) else levels[at] + 1
        radius = int(radius) if isinstance(self.index, BinaryIndex) else radius
        lims, _, found = vector_oracles.within_by(*self.of([query]), radius=radius, deny=self.places(deny))
        result = self.index.range_search(self.pool[query], radius, deny=deny)
        np.testing.assert_array_equal(result.lims, lims)
        assert result.ids.tolist() == [list(self.picks)[place] for place in found]

    @invariant()
    def has_the_same_rows(self):
        if not hasattr(self, "index"):
            return
        names = list(self.picks)
        assert len(self.index) == len(names)
        assert self.index.ids.tolist() == names
        assert not self.has_rows or self.index.ids.dtype == object
        np.testing.assert_array_equal(self.index.get(names[::-1]), self.pool[[self.picks[n] for n in names[::-1]]])
        for name in POOL[::7]:
            assert (name in self.index) == (name in self.picks)


TestNamesAgainstDict = NamesAgainstDict.TestCase
TestNamesAgainstDict.settings = settings(max_examples=60, stateful_step_count=25)

KINDS: dict[str, Callable[[], tuple[Any, np.ndarray]]] = {
    "binary": lambda: (BinaryIndex(N_BITS), some_codes(np.random.default_rng(0), 30, N_BITS)),
    "cbe": lambda: (CBEIndex(DIM, vectors="float32", buckets=None), vector_oracles.clustered(30, DIM)),
}


@pytest.fixture(params=list(KINDS))
def case(request):
    """An index without rows, and rows for it."""
    return KINDS[request.param]()


def test_results_of_an_index_without_rows(case):
    index, rows = case
    assert index.search(rows[:2], 3).ids.tolist() == [[-1] * 3] * 2  # no row has decided
    assert index.search(rows[0], 3, allow=["a"], deny=[1]).ids.tolist() == [-1] * 3
    assert index.ids.dtype == np.int64
    with pytest.raises(ValueError, match="id 'a' is not in the index"):
        index.remove(["a"])
    with pytest.raises(ValueError, match="id 'a' is not in the index"):
        index.get("a")
    index.add(rows[:0], [])
    index.add(rows[:2], ["a", "b"])
    index.remove(["b", "a"])
    found = index.search(rows[:2], 3)
    assert found.ids.dtype == object
    assert found.ids.tolist() == [[None] * 3] * 2
    assert index.range_search(rows[:2], 3).ids.tolist() == []
    assert index.ids.dtype == object
    with pytest.raises(TypeError, match="ids must be strings"):
        index.add(rows[:2])
    assert len(index) == 0


def test_a_failed_first_add_decides_nothing(case):
    index, rows = case
    with pytest.raises(ValueError, match="must not repeat"):
        index.add(rows[:2], ["a", "a"])
    with pytest.raises(ValueError, match="must have shape"):
        index.add(rows[:2], ["a"])
    bad = np.array(rows[:2], dtype=np.float64 if isinstance(index, CBEIndex) else np.uint8)
    bad[1, -1] = np.nan if isinstance(index, CBEIndex) else 255
    with pytest.raises(ValueError, match="row 1"):
        index.add(bad, ["a", "b"])
    assert index.add(rows[:2]).tolist() == [0, 1]


def test_kinds_do_not_mix(case):
    index, rows = case
    named = copy.copy(index)
    index.add(rows[:3])
    named.add(rows[:3], ["a", "b", "c"])
    message = "ids must be integers, as those of this index are, got strings"
    calls = {
        message: [
            lambda: index.add(rows[:1], ["a"]),
            lambda: index.remove(["a"]),
            lambda: index.get("a"),
            lambda: index.search(rows[0], allow=["a"]),
            lambda: index.search(rows[0], deny=["a"], allow=[1]),
            lambda: index.range_search(rows[0], 1, deny=["a"]),
            lambda: index.merge(named),
        ],
        "ids must be strings, as those of this index are, got integers": [
            lambda: named.add(rows[:1], [5]),
            lambda: named.remove([0]),
            lambda: named.get(0),
            lambda: named.search(rows[0], allow=[0]),
            lambda: named.search(rows[0], allow=["a"], deny=[0]),
            lambda: named.explain(rows[0], deny=[0]),
            lambda: named.merge(index),
        ],
    }
    for expected, wrong in calls.items():
        for call in wrong:
            with pytest.raises(TypeError, match=expected):
                call()
    assert (index.ids.tolist(), named.ids.tolist()) == ([0, 1, 2], ["a", "b", "c"])
    assert "a" not in index
    assert 0 not in named
    assert "" not in named
    assert named.search(rows[0], 1, allow=[]).ids.tolist() == [None]
    assert index.search(rows[0], 1, deny=[]).ids.tolist() == [0]


@pytest.mark.parametrize("n", [5, 30])
def test_merging_into_an_index_without_rows(case, n):
    index, rows = case
    other = copy.copy(index)
    other.add(rows[:n], [f"n{i}" for i in range(n)])
    index.merge(other)
    index.merge(copy.copy(KINDS["binary" if isinstance(index, BinaryIndex) else "cbe"]()[0]))
    assert index.ids.tolist() == [f"n{i}" for i in range(n)]
    assert index.search(rows[3], 1).ids.tolist() == ["n3"]


def test_names_come_back_in_the_order_of_insertion_among_ties(case):
    index, rows = case
    index.add(np.repeat(rows[:1], 5, axis=0), ["z", "b", "y", "a", "x"])
    assert index.search(rows[0], 6).ids.tolist() == ["z", "b", "y", "a", "x", None]
    index.add(rows[:1], ["b"], replace=True)
    assert index.search(rows[0], 5).ids.tolist() == ["z", "y", "a", "x", "b"]
    assert index.ids.tolist() == ["z", "y", "a", "x", "b"]


def test_one_id_gives_one_row(case):
    index, rows = case
    index.add(rows[:2], ["ab", "c"])
    np.testing.assert_array_equal(index.get("ab"), rows[0])
    np.testing.assert_array_equal(index.get(["c", "ab", "c"]), rows[[1, 0, 1]])
    index.remove("ab")
    assert index.ids.tolist() == ["c"]


def test_bytes_of_names_are_reported(case):
    index, rows = case
    index.add(rows[:3], ["a", "bc", "é"])
    assert index.stats()["bytes"]["names"] == 4 * 8 + 5


class TestFiles:
    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / "items.cbe"

    @pytest.mark.parametrize("mmap", [True, False])
    def test_names_are_kept(self, case, path, mmap):
        index, rows = case
        names = [f"item {i}" for i in range(20)]
        index.add(rows[:10], names[:10])
        index.remove(names[3:5])
        index.save(path)
        index.add(rows[10:20], names[10:])
        index.save()
        cbeindex.verify(path)
        loaded = type(index).load(path, mmap=mmap)
        assert loaded.ids.tolist() == index.ids.tolist()
        assert loaded.search(rows[7], 3).ids.tolist() == index.search(rows[7], 3).ids.tolist()
        assert loaded.search(rows[7], 1, deny=[names[7]]).ids[0] != names[7]
        np.testing.assert_array_equal(loaded.get(names[12]), rows[12])
        with pytest.raises(ValueError, match="is taken"):
            loaded.add(rows[:1], [names[19]])
        loaded.add(rows[:1], [names[19]], replace=True)
        loaded.remove(names[:2])
        loaded.compact()
        cbeindex.verify(path)
        assert type(index).load(path).ids.tolist() == [names[2], *names[5:19], names[19]]
        before = path.read_bytes()
        type(index).load(path).save(path)
        assert path.read_bytes() == before

    def test_an_index_without_rows_stays_decided(self, case, path):
        index, rows = case
        index.add(rows[:1], ["a"])
        index.remove("a")
        index.save(path)
        loaded = type(index).load(path)
        with pytest.raises(TypeError, match="ids must be strings"):
            loaded.add(rows[:1])
        loaded.add(rows[:1], ["a"])
        loaded.save()
        assert type(index).load(path).ids.tolist() == ["a"]

    def test_integer_ids_leave_no_trace(self, case, path):
        index, rows = case
        index.add(rows)
        index.save(path)
        file = container.parse(path.read_bytes())
        assert "ids" not in file.content
        assert not any("names" in section.name for section in file.sections)

    @pytest.mark.parametrize(
        ("part", "values", "at_load"),
        [
            ("offsets", lambda old: old + 1, True),
            ("offsets", lambda old: np.append(old[:-1], old[-1] + 1), True),
            ("offsets", lambda old: old[:-1], True),
            ("offsets", lambda old: old.astype(np.int32), True),
            ("offsets", lambda old: np.concatenate([old[:1], old[:1], old[2:]]), False),
            ("offsets", lambda old: np.concatenate([old[:1], old[-1:] + 5, old[2:]]), False),
            ("bytes", lambda old: old[:-1], True),
            ("bytes", lambda old: old.view(np.int8), True),
            ("bytes", lambda old: np.where(old == ord("e"), 0xC3, old).astype(np.uint8), False),
            ("bytes", lambda old: np.where(old == ord("1"), ord("0"), old), False),
        ],
    )
    def test_damaged_names(self, case, path, part, values, at_load):
        """Also with checksums that are right."""
        index, rows = case
        index.add(rows[:10], [f"e{i}" for i in range(10)])
        index.save(path)
        file = container.parse(path.read_bytes())
        (section,) = (section for section in file.sections if section.name.endswith(f"names/{part}"))
        section.array = values(section.array)
        container.write(file, path)
        with pytest.raises(CorruptIndexFileError):
            cbeindex.verify(path)
        if at_load:
            with pytest.raises(CorruptIndexFileError):
                type(index).load(path)

    @pytest.mark.parametrize("value", ["integers", "words", 3, None])
    def test_damaged_kind(self, case, path, value):
        """Files that call their names something else load as integers, or not at all."""
        index, rows = case
        index.add(rows[:10], [f"e{i}" for i in range(10)])
        index.save(path)
        file = container.parse(path.read_bytes())
        file.content["ids"] = value
        container.write(file, path)
        if value == "integers":
            assert type(index).load(path).ids.tolist() == list(range(10))
            return
        with pytest.raises(CorruptIndexFileError, match="ids must be one of"):
            type(index).load(path)


GOLDEN = ROOT / "tests/data/golden-2-names.cbe"
GOLDEN_NAMES = [f"{'é' * (i % 3)}{i}" for i in range(40)]


def make_golden(path):
    """Make the golden file of an index with string ids, of two commits and with removed rows, some in clusters.

    From the directory above: python -m tests.test_string_ids
    """
    rows = vector_oracles.clustered(40, DIM)
    with small_buckets():
        index = CBEIndex(DIM, metric="l2", vectors="float32", buckets="clusters", seed=7)
        index.add(rows[:35], GOLDEN_NAMES[:35])
        index.remove(GOLDEN_NAMES[3:5])
        index.save(path)
        index.add(rows[35:], GOLDEN_NAMES[35:])
        index.add(rows[3:4], [GOLDEN_NAMES[9]], replace=True)
        index.save()


class TestGolden:
    """A file that an earlier version wrote stays readable, and means the same."""

    @pytest.mark.parametrize("mmap", [True, False])
    def test_answers(self, mmap):
        cbeindex.verify(GOLDEN)
        index = CBEIndex.load(GOLDEN, mmap=mmap)
        rows = vector_oracles.clustered(40, DIM)
        names = [*GOLDEN_NAMES[:3], *GOLDEN_NAMES[5:9], *GOLDEN_NAMES[10:], GOLDEN_NAMES[9]]
        stored = rows[[0, 1, 2, *range(5, 9), *range(10, 40), 3]]
        assert index.ids.tolist() == names
        np.testing.assert_array_equal(index.get(names), stored)
        expected = vector_oracles.nearest("l2", rows[:6], stored, range(len(names)), 5)
        found = index.search(rows[:6], 5, mode="scan")
        np.testing.assert_allclose(found.distances, expected[0], rtol=1e-4, atol=1e-4)
        assert found.ids.tolist() == [[names[place] for place in row] for row in expected[1]]

    def test_this_release_writes_such_files(self, tmp_path):
        make_golden(tmp_path / "items.cbe")
        golden, new = (container.parse(path.read_bytes()) for path in (GOLDEN, tmp_path / "items.cbe"))
        assert golden.content.keys() == new.content.keys()
        assert golden.content["ids"] == new.content["ids"] == "strings"
        assert [section.name for section in golden.sections] == [section.name for section in new.sections]
        for ours, theirs in zip(golden.sections, new.sections, strict=True):
            if "names" in str(ours.name):
                assert ours.data == theirs.data


@pytest.mark.parametrize("kind", list(KINDS))
def test_readers_see_names_with_their_rows(kind, monkeypatch):
    """While a writer replaces rows, every reader finds each name once, at a row that it had at one time."""
    tune(monkeypatch, buffer_rows=16, least_buffer_rows=2, first_rows=24, name_scans=3)
    index, rows = KINDS[kind]()
    names = [f"n{i}" for i in range(8)]
    index.add(rows[:8], names)
    stop, failures = threading.Event(), []

    def read():
        try:
            while not stop.is_set():
                found = index.search(rows[:3], 12).ids
                for row in found.tolist():
                    assert sorted(name for name in row if name is not None) == names
                assert sorted(index.ids) == names
                assert index.search(rows[0], 3, allow=names[:2]).ids[2] is None
                assert None not in index.search(rows[0], 2, allow=names[:2]).ids
                assert index.get(names[3]).shape == rows[3].shape
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for i in range(60):
        chosen = [names[(i + j) % 8] for j in range(1 + i % 5)]
        index.add(rows[[(i + j) % 30 for j in range(len(chosen))]], chosen, replace=True)
        if i % 20 == 7:
            index.compact()
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures, failures[0]


def test_two_first_adds_at_once():
    """Of integers and of strings, one is first, and the other is refused."""
    for _ in range(20):
        index = BinaryIndex(8)
        barrier, errors = threading.Barrier(2), []

        def add(ids, index=index, barrier=barrier, errors=errors):
            barrier.wait()
            try:
                index.add(np.zeros((1, 1), dtype=np.uint8), ids)
            except TypeError as error:
                errors.append(error)

        threads = [threading.Thread(target=add, args=(ids,)) for ids in (["a"], [4])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(errors) == 1
        assert index.ids.tolist() in (["a"], [4])


if __name__ == "__main__":
    make_golden(GOLDEN)


@pytest.mark.parametrize("n", [3, 700])
@pytest.mark.parametrize("kind", [BinaryIndex, CBEIndex])
def test_no_rows_with_no_ids_can_be_added(kind, n):
    """An empty list of ids is neither of integers nor of strings, whether the index is fitted or not."""
    with tuned(first_rows=100):
        index = kind(64)
        rows = np.random.default_rng(0).integers(0, 256, (n, 8), dtype=np.uint8)
        rows = rows if kind is BinaryIndex else np.unpackbits(rows, axis=1).astype(np.float32)
        index.add(rows, [str(i) for i in range(n)])
        index.add(rows[:0], [])
        assert len(index) == n
        assert index.search(rows[1], 1).ids.tolist() == ["1"]
