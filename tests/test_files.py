"""Index files: whatever an index is and has been through comes back equal, and a save does no more than it must."""

import copy
import itertools
import math
import os
import pickle
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import cbeindex
from cbeindex import BinaryIndex, CBEIndex
from cbeindex.encoders import (
    CirculantEncoder,
)
from cbeindex.errors import CorruptIndexFileError, NotAnIndexFileError, WriterConflictError
from cbeindex.storage import container as storage
from cbeindex.storage.layout import VERSION
from fuzz import container
from tests.sample_indexes import (
    DIM,
    ENCODERS,
    a_binary_index,
    an_index,
    answers,
    check_same,
    queries_for,
    requests,
    small_sizes,
    some_rows,
)
from tests.strategies import some_codes

DATA = Path(__file__).parent / "data"
METRICS = ("cosine", "l2", "ip")
# One word, two words of which the second has bits to spare, and more than the 1,024 bits of short codes.
N_BITS = (16, 70, 1100)
BUCKETS = (
    {},
    {"buckets": "clusters"},
    {"buckets": "clusters", "n_cells": 3},
    {"buckets": "substrings"},
    {"buckets": "substrings", "n_tables": 3, "table_bits": 4},
)


@pytest.fixture(scope="module", autouse=True)
def _small_sizes():
    with small_sizes():
        yield


@pytest.fixture
def path(tmp_path):
    return tmp_path / "items.cbe"


def same_arrays(index, other):
    """Whether two indexes have the same encoder, to the bit."""
    ours, theirs = index.encoder.to_arrays(), other.encoder.to_arrays()
    return ours.keys() == theirs.keys() and all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)


@st.composite
def histories(draw):
    """Batches of rows to be added, with or without ids of their own, and a share of them to be removed."""
    sizes = draw(st.lists(st.sampled_from([1, 3, 17, 40]), max_size=3))
    own_ids = draw(st.booleans())
    share = draw(st.sampled_from([0, 0, 0.2, 1]))
    return sizes, own_ids, share


def live(index, history, batch_of):
    """Let an index go through a history."""
    sizes, own_ids, share = history
    rng = np.random.default_rng(sum(sizes))
    names = rng.permutation(10 * sum(sizes) + 10)
    for number, n in enumerate(sizes):
        ids = names[sum(sizes[:number]) :][:n] if own_ids else None
        index.add(batch_of(n, number), ids)
    index.remove(index.ids[rng.random(len(index)) < share])
    return index


@st.composite
def vector_indexes(draw):
    """A CBEIndex of any kind, in any state."""
    n_bits = draw(st.sampled_from(N_BITS))
    index = CBEIndex(
        DIM,
        encoder=ENCODERS[draw(st.sampled_from(list(ENCODERS)))](n_bits),
        metric=draw(st.sampled_from(METRICS)),
        vectors=draw(st.sampled_from([None, "float32", "float16"])),
        **(
            {
                "buckets": None,
                **(draw(st.sampled_from(BUCKETS)) if n_bits != 16 else draw(st.sampled_from(BUCKETS[:4]))),
            }
        ),
    )
    is_sparse = draw(st.booleans())
    return live(index, draw(histories()), lambda n, seed: some_rows(n, seed, is_sparse))


@st.composite
def binary_indexes(draw):
    """A BinaryIndex of any kind, in any state."""
    n_bits = draw(st.sampled_from(N_BITS))
    index = BinaryIndex(n_bits, **draw(st.sampled_from(BUCKETS)))
    rng = np.random.default_rng(n_bits)
    return live(index, draw(histories()), lambda n, _: some_codes(rng, n, n_bits, 5, 0.1))


def check_round_trip(index):
    """Save it, load it in all ways, save what was loaded: all the same."""
    before = answers(index, every_way=False)
    with tempfile.TemporaryDirectory() as directory:
        path, again = Path(directory, "first.cbe"), Path(directory, "again.cbe")
        index.save(path)
        told = answers(index)
        check_same({name: told[name] for name in before}, before)
        cbeindex.verify(path)
        for options in ({}, {"mmap": False}, {"verify": True}):
            loaded = type(index).load(path, **options)
            assert loaded.path == str(path.resolve())
            check_same(answers(loaded), told)
            loaded.save(again)
            assert again.read_bytes() == path.read_bytes()
            if isinstance(index, CBEIndex):
                assert loaded.is_fitted == index.is_fitted
                assert same_arrays(loaded, index)


class TestRoundTrip:
    @given(index=vector_indexes())
    def test_of_vectors(self, index):
        check_round_trip(index)

    @given(index=binary_indexes())
    @settings(max_examples=25)
    def test_of_codes(self, index):
        check_round_trip(index)

    @pytest.mark.parametrize("is_sparse", [False, True])
    @pytest.mark.parametrize("encoder", ENCODERS)
    def test_of_every_encoder(self, encoder, is_sparse):
        index = an_index(encoder=encoder, is_sparse=is_sparse, vectors="float16" if is_sparse else None)
        assert index.is_fitted
        check_round_trip(index)

    @pytest.mark.parametrize("is_sparse", [False, True])
    @pytest.mark.parametrize("encoder", ENCODERS)
    def test_an_index_that_is_not_fitted_goes_on(self, path, encoder, is_sparse):
        """The rows that come after make the same encoder, and the same index, as without a file in between."""
        plain = an_index(encoder=encoder, n=0, vectors="float32", metric="l2")
        for n, is_mapped in [(0, True), (8, True), (8, False), (30, True)]:
            assert not plain.is_fitted
            plain.save(path)
            loaded = CBEIndex.load(path, mmap=is_mapped)
            check_same(answers(loaded), answers(plain))
            rows = some_rows(n, seed=n, is_sparse=is_sparse)
            np.testing.assert_array_equal(loaded.add(rows), plain.add(rows))
        assert loaded.is_fitted
        assert same_arrays(loaded, plain)
        check_same(answers(loaded, every_way=False), answers(plain, every_way=False))
        loaded.save()
        check_same(answers(CBEIndex.load(path)), answers(loaded))

    def test_an_index_that_is_not_fitted_can_be_fitted(self, path):
        plain = an_index(n=9, encoder="learned")
        plain.save(path)
        loaded = CBEIndex.load(path).fit(some_rows(30, 5))
        plain.fit(some_rows(30, 5))
        assert same_arrays(loaded, plain)
        check_same(answers(loaded), answers(plain))

    def test_ids_of_removed_rows_are_not_given_again(self, path):
        for index in (a_binary_index(n=5), an_index(n=5)):
            index.remove(index.ids)
            index.save(path)
            loaded = type(index).load(path)
            assert len(loaded) == 0
            assert loaded.add(queries_for(index)[:2]).tolist() == [5, 6]

    def test_the_largest_id(self, path):
        index = a_binary_index(n=0)
        index.add(queries_for(index)[:2], ids=[2**63 - 1, 0])
        index.save(path)
        loaded = BinaryIndex.load(path)
        assert loaded.ids.tolist() == [0, 2**63 - 1]
        with pytest.raises(ValueError, match="there are no new ids"):
            loaded.add(queries_for(index)[:1])

    def test_an_appended_file_saved_elsewhere(self, path, tmp_path):
        """Names in a file tell when something was saved; a new file begins anew."""
        index = an_index(buckets="clusters")
        for _ in range(3):
            index.add(some_rows(17))
            index.remove(index.ids[:2])
            index.save(path if index.path is None else None)
        first, second = tmp_path / "first.cbe", tmp_path / "second.cbe"
        CBEIndex.load(path).save(first)
        CBEIndex.load(first).save(second)
        assert first.read_bytes() == second.read_bytes()
        assert first.stat().st_size < path.stat().st_size
        check_same(answers(CBEIndex.load(second)), answers(index))

    def test_versions_of_scalars_and_flags(self, path):
        index = a_binary_index()
        index.save(path)
        loaded = BinaryIndex.load(os.fspath(path), np.bool_(True), verify=np.bool_(True))
        check_same(answers(loaded), answers(index))
        for options in ({"mmap": 1}, {"verify": "yes"}, {"mmap": None}):
            with pytest.raises(TypeError, match="must be True or False"):
                BinaryIndex.load(path, **options)


class TestPaths:
    def test_save_needs_a_path_once(self, path, tmp_path):
        index = a_binary_index()
        assert index.path is None
        with pytest.raises(ValueError, match="save needs a path: the index has not been saved or loaded yet"):
            index.save()
        index.save(path)
        assert index.path == str(path.resolve())
        index.save()
        assert list(tmp_path.iterdir()) == [path]

    def test_the_last_path_counts(self, path, tmp_path):
        index = a_binary_index()
        index.save(path)
        before, other = path.read_bytes(), tmp_path / "other.cbe"
        index.add(queries_for(index))
        index.save(other)
        assert index.path == str(other.resolve())
        index.remove([0])
        index.save()
        assert path.read_bytes() == before
        check_same(answers(BinaryIndex.load(other)), answers(index))

    def test_a_relative_path_stays_where_it_was(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        index = a_binary_index()
        index.save("items.cbe")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir("elsewhere")
        index.add(queries_for(index))
        index.save()
        assert len(BinaryIndex.load(tmp_path / "items.cbe")) == len(index)
        assert not list(Path.cwd().iterdir())

    def test_a_link_stays_a_link(self, path, tmp_path):
        link = tmp_path / "link.cbe"
        link.symlink_to(path.name)
        index = a_binary_index()
        index.save(link)
        assert link.is_symlink()
        assert index.path == str(path.resolve())
        loaded = BinaryIndex.load(link)
        loaded.remove([0])
        loaded.compact()
        assert link.is_symlink()
        check_same(answers(BinaryIndex.load(path)), answers(loaded))

    def test_an_index_file_is_replaced_whatever_it_holds(self, path):
        an_index().save(path)
        index = a_binary_index()
        index.save(path)
        check_same(answers(BinaryIndex.load(path)), answers(index))

    def test_a_mapped_index_replaces_its_own_file(self, path):
        a_binary_index(buckets="clusters").save(path)
        index = BinaryIndex.load(path)
        index.remove([3])
        for _ in range(2):
            index.save(path)
            check_same(answers(BinaryIndex.load(path, verify=True)), answers(index))

    def test_another_file_is_not_replaced(self, path):
        path.write_text("precious")
        index = a_binary_index()
        with pytest.raises(NotAnIndexFileError, match=r"items\.cbe: not an index file, so it is not overwritten"):
            index.save(path)
        assert path.read_text() == "precious"
        assert index.path is None

    def test_what_cannot_be_loaded(self, path, tmp_path):
        for load in (BinaryIndex.load, CBEIndex.load, cbeindex.verify):
            with pytest.raises(FileNotFoundError):
                load(tmp_path / "missing.cbe")
            with pytest.raises((IsADirectoryError, PermissionError, NotAnIndexFileError)):
                load(tmp_path)
            for text in ("", "precious"):
                path.write_text(text)
                with pytest.raises(NotAnIndexFileError, match=r"items\.cbe: not an index file"):
                    load(path)

    def test_a_missing_directory(self, tmp_path):
        index = a_binary_index()
        with pytest.raises(FileNotFoundError):
            index.save(tmp_path / "missing" / "items.cbe")
        assert index.path is None

    def test_a_file_that_is_gone(self, path):
        index = a_binary_index()
        index.save(path)
        loaded = BinaryIndex.load(path)
        path.unlink()
        for each in (index, loaded):
            told = answers(each)
            with pytest.raises(FileNotFoundError):
                each.save()
            check_same(answers(each), told)
        loaded.compact()  # makes it again
        check_same(answers(BinaryIndex.load(path)), answers(loaded))

    @pytest.mark.parametrize(("make", "other"), [(a_binary_index, CBEIndex), (an_index, BinaryIndex)])
    def test_the_other_kind_of_index(self, path, make, other):
        index = make()
        index.save(path)
        name = type(index).__name__
        with pytest.raises(
            CorruptIndexFileError, match=rf"items\.cbe: the file holds a {name}: open it with {name}\.load"
        ):
            other.load(path)
        cbeindex.verify(path)


class OwnEncoder:
    """An encoder that a user brings."""

    dim, n_bits = DIM, 16

    def fit(self, X):
        return self

    def project(self, X):
        return np.asarray(X, np.float32)[:, :16]

    def encode(self, X):
        return np.packbits(self.project(X) >= 0, axis=1, bitorder="little")


class OwnCirculantEncoder(CirculantEncoder):
    """One of ours, changed."""

    def __repr__(self):
        return "OwnCirculantEncoder()"


class TestForeignEncoders:
    @pytest.mark.parametrize("encoder", [OwnEncoder(), OwnCirculantEncoder(DIM, 16)])
    def test_are_refused(self, path, tmp_path, encoder):
        index = CBEIndex(DIM, encoder=encoder, vectors=None, buckets=None)
        index.add(some_rows(30))
        told = answers(index, every_way=False) if isinstance(encoder, CirculantEncoder) else None
        with pytest.raises(TypeError, match=f"an encoder of type {type(encoder).__name__}: only encoders"):
            index.save(path)
        assert not list(tmp_path.iterdir())
        assert index.path is None
        if told is not None:
            check_same(answers(index, every_way=False), told)

    def test_leave_the_old_file(self, path):
        an_index().save(path)
        before = path.read_bytes()
        with pytest.raises(TypeError, match="cannot save an index with an encoder"):
            CBEIndex(DIM, encoder=OwnEncoder(), vectors=None, buckets=None).save(path)
        assert path.read_bytes() == before


def sections_of(path):
    """Where the arrays of the last commit are."""
    return {name: (section.offset, section.nbytes) for name, section in storage.read(path)._sections.items()}


LARGE = 20_000


@pytest.fixture(params=["in memory", "mapped", "read"])
def large(request, path):
    """An index of many rows that has a file."""
    index = BinaryIndex(64)
    index.add(some_codes(np.random.default_rng(0), LARGE, 64))
    index.save(path)
    return index if request.param == "in memory" else BinaryIndex.load(path, mmap=request.param == "mapped")


# A block of a segment has room for 16 rows, 8 bytes of each; a footer of few sections has some hundred bytes.
BLOCK_BYTES, FOOTER_BYTES = 16 * 8, 1500


class TestAppending:
    def test_adds(self, path, large):
        before, places = path.read_bytes(), sections_of(path)
        large.add(queries_for(large))
        large.save()
        after = path.read_bytes()
        assert after[192 : len(before)] == before[192:]
        assert len(after) - len(before) < BLOCK_BYTES + FOOTER_BYTES
        assert places.items() < sections_of(path).items()
        assert BinaryIndex.load(path, verify=True).ids.tolist() == list(range(LARGE + 3))

    def test_removals(self, path, large):
        """One byte for each row of a segment, whatever the rows have."""
        before, places = path.read_bytes(), sections_of(path)
        large.remove(range(0, LARGE, 3))
        large.save()
        after = path.read_bytes()
        assert after[192 : len(before)] == before[192:]
        assert LARGE < len(after) - len(before) < LARGE + FOOTER_BYTES
        assert places.items() < sections_of(path).items()
        large.remove([1])
        large.save()
        assert len(path.read_bytes()) - len(after) < LARGE + FOOTER_BYTES
        assert len(sections_of(path)) == len(places) + 1
        assert BinaryIndex.load(path, verify=True).ids.tolist() == [n for n in range(2, LARGE) if n % 3]

    def test_nothing(self, path, large):
        before, places = path.read_bytes(), sections_of(path)
        for n in range(1, 4):
            large.save()
            assert len(path.read_bytes()) - len(before) < n * FOOTER_BYTES
        assert sections_of(path) == places
        assert len(BinaryIndex.load(path, verify=True)) == LARGE

    def test_removals_are_not_written_again(self, path, large):
        large.remove([5])
        large.save()
        before, places = path.read_bytes(), sections_of(path)
        large.add(queries_for(large))
        large.save()
        assert len(path.read_bytes()) - len(before) < BLOCK_BYTES + FOOTER_BYTES
        assert places.items() < sections_of(path).items()

    def test_a_segment_whose_rows_are_all_removed(self, path, large):
        large.add(queries_for(large))
        large.save()
        large.remove(range(LARGE))
        before = path.stat().st_size
        large.save()
        assert path.stat().st_size - before < FOOTER_BYTES
        assert storage.describe(path)["unused"] > 16 * LARGE
        assert BinaryIndex.load(path).ids.tolist() == [LARGE, LARGE + 1, LARGE + 2]

    @pytest.mark.parametrize("mmap", [True, False, None])
    def test_an_encoder_is_written_once(self, path, mmap):
        index = an_index(encoder="lsh", n_bits=1100)
        index.save(path)
        places, before = sections_of(path), path.stat().st_size
        if mmap is not None:
            index = CBEIndex.load(path, mmap=mmap)
        index.remove([0])
        index.save()
        encoder = {name: place for name, place in places.items() if name.startswith("encoder/")}
        assert sum(n_bytes for _, n_bytes in encoder.values()) == 4 * (1100 * DIM + DIM)
        assert encoder.items() < sections_of(path).items()
        assert path.stat().st_size - before < 2 * FOOTER_BYTES

    def test_a_fit_replaces_the_encoder(self, path):
        index = an_index(encoder="learned", n=5)
        index.save(path)
        index.add(some_rows(30))
        assert index.is_fitted
        index.save()
        loaded = CBEIndex.load(path, verify=True)
        assert same_arrays(loaded, index)
        check_same(answers(loaded), answers(index))

    @pytest.mark.parametrize("buckets", [None, "clusters", "substrings"])
    def test_many_small_saves_leave_few_segments(self, path, buckets):
        """Segments that are not much larger than those after them are joined with them, also across saves."""
        codes = some_codes(np.random.default_rng(0), 5 * 40, 64)
        BinaryIndex(64, buckets).save(path)
        for n in range(0, len(codes), 5):
            index = BinaryIndex.load(path, mmap=n % 2 == 0)
            index.add(codes[n : n + 5])
            index.save()
            n_segments = BinaryIndex.load(path).stats()["segments"]
            assert n_segments <= math.log2((n + 5) / 5) + 1
        index = BinaryIndex.load(path, verify=True)
        np.testing.assert_array_equal(index.get(range(len(codes))), codes)
        assert storage.describe(path)["sequence"] == 41

    def test_the_cost_does_not_grow_with_the_file(self, tmp_path):
        appended = []
        for n in (500, 50_000):
            path = tmp_path / f"{n}.cbe"
            index = BinaryIndex(64)
            index.add(some_codes(np.random.default_rng(0), n, 64))
            index.save(path)
            before = path.stat().st_size
            index.add(queries_for(index))
            index.save()
            appended.append(path.stat().st_size - before)
        assert abs(appended[0] - appended[1]) < 100  # digits of numbers, and zeros up to the next multiple of 64


class TestCompacting:
    @pytest.mark.parametrize("mmap", [True, False, None])
    @pytest.mark.parametrize("buckets", [None, "clusters", "substrings"])
    @pytest.mark.parametrize("make", [an_index, a_binary_index])
    def test_drops_what_is_not_in_use(self, path, make, buckets, mmap):
        index = make(buckets=buckets)
        index.save(path)
        for n in range(3):
            index.add(queries_for(index))
            index.remove([n])
            index.save()
        expected = answers(index, every_way=False)
        if mmap is not None:
            index = type(index).load(path, mmap=mmap)
        before = storage.describe(path)
        assert before["unused"] > 0
        index.compact()
        after = storage.describe(path)
        assert (after["unused"], after["sequence"]) == (0, 1)
        assert after["bytes"] < before["bytes"]
        assert index.stats()["removed"] == 0
        assert index.stats()["segments"] == 1
        check_same(answers(index, every_way=False), expected)
        cbeindex.verify(path)
        check_same(answers(type(index).load(path)), answers(index))
        index.add(queries_for(index))  # and it goes on from there
        index.save()
        check_same(answers(type(index).load(path, verify=True)), answers(index))

    def test_of_an_index_without_rows(self, path):
        for index in (a_binary_index(), an_index(), an_index(n=9)):
            index.save(path)
            index.remove(index.ids)
            index.compact()
            check_same(answers(type(index).load(path, verify=True)), answers(index))

    def test_without_a_file_makes_none(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        index = a_binary_index()
        index.remove([1])
        index.compact()
        assert index.path is None
        assert not list(tmp_path.iterdir())


class TestCopies:
    @pytest.mark.parametrize("mmap", [True, False, None])
    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))])
    @pytest.mark.parametrize("make", [an_index, a_binary_index, lambda: an_index(n=9)])
    def test_have_no_file(self, path, make, copied, mmap):
        index = make()
        index.remove([2])
        index.save(path)
        before = path.read_bytes()
        if mmap is not None:
            index = type(index).load(path, mmap=mmap)
        told = answers(index)
        other = copied(index)
        assert other.path is None
        check_same(answers(other), told)
        with pytest.raises(ValueError, match="save needs a path"):
            other.save()
        other.add(queries_for(other))
        other.remove([0])
        other.compact()
        assert path.read_bytes() == before
        check_same(answers(index), told)
        other_path = path.with_name("other.cbe")
        other.save(other_path)
        check_same(answers(type(index).load(other_path)), answers(other))
        index.save()
        check_same(answers(type(index).load(path)), told)


class TestMapped:
    @pytest.mark.parametrize("buckets", [None, "clusters", "substrings"])
    def test_the_file_changes_with_save_alone(self, path, buckets):
        an_index(buckets=buckets, vectors="float32").save(path)
        before = path.read_bytes()
        index = CBEIndex.load(path)
        index.add(some_rows(40, 1))
        index.remove([1, 62])
        index.add(some_rows(2, 2), [5, 1], replace=True)
        index.merge(_of_other_ids(index))
        told = answers(index, every_way=False)
        assert path.read_bytes() == before
        check_same(answers(CBEIndex.load(path)), answers(an_index(buckets=buckets, vectors="float32")))
        index.save()
        assert path.read_bytes()[192 : len(before)] == before[192:]
        check_same(answers(CBEIndex.load(path, verify=True), every_way=False), told)

    def test_what_others_have_open_stays(self, path):
        """Readers keep what they see, whether the file is appended to or replaced."""
        index = a_binary_index(buckets="clusters")
        index.save(path)
        readers = [(BinaryIndex.load(path), answers(index))]
        for change in ("append", "compact", "replace", "remove"):
            index.add(queries_for(index))
            index.remove(index.ids[:1])
            if change == "append":
                index.save()
            elif change == "compact":
                index.compact()
            elif change == "replace":
                a_binary_index(n=7).save(path)
            else:
                path.unlink()
            for reader, told in readers:
                check_same(answers(reader), told)
            if change != "remove":
                reader = BinaryIndex.load(path)
                readers.append((reader, answers(reader)))


def _of_other_ids(index):
    """An index with the same encoder, and ids that the other one does not have."""
    other = copy.copy(index)
    other.remove(other.ids)
    other.add(some_rows(5, 3), range(1000, 1005))
    return other


class FilesAreNotNoticed(RuleBasedStateMachine):
    """An index that is saved, loaded, copied and compacted all the time, beside one that never sees a file."""

    KINDS = (
        lambda: an_index(n=0, buckets="clusters", metric="l2", vectors="float32"),
        lambda: an_index(n=0, buckets="substrings", metric="cosine", vectors="float16"),
        lambda: an_index(n=0, n_bits=1100, metric="ip"),
        lambda: a_binary_index(n=0, buckets="substrings"),
        lambda: a_binary_index(n=0, buckets="clusters"),
    )

    @initialize(kind=st.sampled_from(range(len(KINDS))), is_sparse=st.booleans())
    def start(self, kind, is_sparse):
        self.directory = tempfile.TemporaryDirectory()
        self.plain, self.index = self.KINDS[kind](), self.KINDS[kind]()
        self.is_sparse = is_sparse
        self.numbers = itertools.count()

    def teardown(self):
        if hasattr(self, "directory"):
            self.directory.cleanup()

    def rows(self, n, seed):
        if isinstance(self.plain, BinaryIndex):
            return some_codes(np.random.default_rng(seed), n, self.plain.n_bits, 3, 0.1)
        return some_rows(n, seed, self.is_sparse)

    def path(self):
        return Path(self.directory.name, f"{next(self.numbers)}.cbe")

    @rule(n=st.sampled_from([1, 2, 9, 40]), seed=st.integers(0, 9))
    def add(self, n, seed):
        ours, theirs = (index.add(self.rows(n, seed)) for index in (self.index, self.plain))
        np.testing.assert_array_equal(ours, theirs)

    @rule(first=st.integers(0, 100), n=st.sampled_from([1, 5, 20]))
    def add_or_replace(self, first, n):
        for index in (self.index, self.plain):
            index.add(self.rows(n, first), range(first, first + n), replace=True)

    @rule(share=st.sampled_from([0.1, 0.5, 1]), seed=st.integers(0, 9))
    def remove(self, share, seed):
        ids = self.plain.ids
        for index in (self.index, self.plain):
            index.remove(ids[np.random.default_rng(seed).random(len(ids)) < share])

    @rule()
    def save_elsewhere(self):
        self.index.save(self.path())

    @precondition(lambda self: self.index.path)
    @rule()
    def save(self):
        self.index.save()

    @precondition(lambda self: self.index.path)
    @rule(mmap=st.booleans())
    def save_and_load(self, mmap):
        self.index.save()
        self.index = type(self.index).load(self.index.path, mmap=mmap)

    @rule()
    def compact(self):
        self.index.compact()

    @rule()
    def take_a_copy(self):
        self.index = pickle.loads(pickle.dumps(self.index))

    @invariant()
    def agree(self):
        if hasattr(self, "plain"):
            check_same(answers(self.index, every_way=False), answers(self.plain, every_way=False))


TestFilesAreNotNoticed = FilesAreNotNoticed.TestCase
TestFilesAreNotNoticed.settings = settings(max_examples=15, stateful_step_count=12)


GOLDEN = {
    1: ("golden-1.cbe", "golden-1-weights.cbe", "golden-1-sparse.cbe", "golden-1-binary.cbe", "golden-1-long.cbe"),
    2: (
        "golden-2-clusters.cbe",
        "golden-2-sparse.cbe",
        "golden-2-binary.cbe",
        "golden-2-long.cbe",
        "golden-2-rounded-cells.cbe",
        "golden-2-rounded-copies.cbe",
        "golden-2-graph.cbe",
        "golden-2-rounded-int8.cbe",
        "golden-2-rounded-int4.cbe",
    ),
}
# Of version 2 before centres were rounded and cells shared records.
OLDER_GOLDEN = ("golden-2-cells.cbe", "golden-2-copies.cbe", "golden-2-int8.cbe", "golden-2-int4.cbe")
EVERY_GOLDEN = [*(name for names in GOLDEN.values() for name in names), *OLDER_GOLDEN]


def kind_of_golden(name):
    return BinaryIndex if "binary" in name or "long" in name else CBEIndex


class TestGolden:
    """Files that earlier releases wrote stay readable, and mean the same."""

    @pytest.mark.parametrize("mmap", [True, False])
    @pytest.mark.parametrize("name", EVERY_GOLDEN)
    def test_answers(self, name, mmap):
        kind = kind_of_golden(name)
        cbeindex.verify(DATA / name)
        index = kind.load(DATA / name, mmap=mmap)
        check_golden(golden_answers(index), name)

    @pytest.mark.parametrize("name", EVERY_GOLDEN)
    def test_can_be_written_to(self, name, path):
        kind = kind_of_golden(name)
        shutil.copyfile(DATA / name, path)
        index = kind.load(path)
        before = golden_answers(index)
        (new,) = index.add(queries_for(index)[:1])
        assert new == index.ids.max() > 0
        index.save()
        assert storage.read(path).version == VERSION  # an older file is written anew
        index = kind.load(path, verify=True)
        assert new in index
        index.remove([new])
        check_same(golden_answers(index), before)
        index.compact()
        check_golden(golden_answers(kind.load(path, verify=True)), name)

    @pytest.mark.parametrize("name", [*GOLDEN[1][:2], GOLDEN[2][0]])
    def test_rows_are_in_their_nearest_cells(self, name):
        """Whichever way centroids are stored, they choose the cells that they chose when the file was made."""
        segments = CBEIndex.load(DATA / name)._state.rows.snapshot().segments
        arranged = [segment for segment in segments if segment.buckets is not None]
        assert arranged
        for segment in arranged:
            cells, words = segment.buckets, segment.codes.take(np.arange(segment.n_rows))
            cell = np.repeat(np.arange(cells.n_cells), np.diff(cells.offsets))
            np.testing.assert_array_equal(cells.centroids.assign(words), cell)
            assert bool(cells.centroids.weights.size) == (name != "golden-1.cbe")

    def test_this_release_writes_such_files(self, tmp_path):
        """To the names, types and shapes; numbers may differ to a rounding between processors."""
        make_golden(tmp_path)
        make_golden_cells(tmp_path)
        make_golden_copies(tmp_path)
        make_golden_graph(tmp_path)
        make_golden_levels(tmp_path)
        for name in GOLDEN[VERSION]:
            golden, new = storage.read(DATA / name), storage.read(tmp_path / name)
            assert _without_probes(golden.content) == _without_probes(new.content)
            assert list(golden.arrays) == list(new.arrays)
            for part, array in golden.arrays.items():
                assert (array.dtype, array.shape) == (new.arrays[part].dtype, new.arrays[part].shape)
            check_golden(golden_answers(kind_of_golden(name).load(tmp_path / name)), name)

    def test_are_small(self):
        for path in DATA.iterdir():
            assert path.stat().st_size < 80_000


class TestVersion1:
    """Files of version 1 are converted when they are loaded."""

    @pytest.mark.parametrize("n_bits", [70, 1_024, 1_100, 2_500])
    @pytest.mark.parametrize("options", BUCKETS[1:4:2])
    @pytest.mark.parametrize("mmap", [True, False])
    def test_codes_come_back(self, n_bits, options, mmap, path):
        """Of several blocks of 512 rows and a part of one, and of several segments."""
        index = a_binary_index(n_bits, n=1_300, **options)
        index.add(queries_for(index), [2**40, 2**62, 2**61])
        index.save(path)
        expected = index.get(index.ids), answers(index)
        container.write(container.as_version_1(container.parse(path.read_bytes())), path)
        cbeindex.verify(path)
        before = path.read_bytes()
        loaded = BinaryIndex.load(path, mmap=mmap)
        np.testing.assert_array_equal(loaded.get(index.ids), expected[0])
        check_same(answers(loaded), expected[1])
        assert path.read_bytes() == before
        loaded.save()
        assert storage.describe(path)["version"] == VERSION
        check_same(answers(BinaryIndex.load(path, verify=True)), expected[1])
        assert path.read_bytes() != before

    def test_vectors_of_an_index_that_is_not_fitted(self, path):
        """Its codes have no words at all."""
        vectors = np.arange(15, dtype=np.float32).reshape(5, 3)
        index = CBEIndex(3, metric="ip", vectors=None, buckets=None)
        index.add(vectors)
        index.save(path)
        container.write(container.as_version_1(container.parse(path.read_bytes())), path)
        cbeindex.verify(path)
        np.testing.assert_array_equal(CBEIndex.load(path).get(range(5)), vectors)

    def test_another_writer_is_noticed(self, path):
        a_binary_index(70).save(path)
        container.write(container.as_version_1(container.parse(path.read_bytes())), path)
        index, other = (BinaryIndex.load(path) for _ in range(2))
        other.add(queries_for(other))
        other.save()
        whole = path.read_bytes()
        with pytest.raises(WriterConflictError):
            index.save()
        assert path.read_bytes() == whole

    @pytest.mark.parametrize("part", ["head", "tail"])
    def test_damage_is_found_before_codes_are_converted(self, part, path):
        """Converted codes get new checksums, so the old ones are compared, also in a mapped file."""
        a_binary_index(1_100).save(path)
        container.write(container.as_version_1(container.parse(path.read_bytes())), path)
        name = f"segment 1.0/{part}"
        place = storage.read(path)._sections[name].offset
        with path.open("r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))
        with pytest.raises(CorruptIndexFileError, match=f"the checksum of section '{name}' does not match"):
            BinaryIndex.load(path)

    def test_more_codes_than_memory(self, path, monkeypatch):
        a_binary_index(1_100).save(path)
        container.write(container.as_version_1(container.parse(path.read_bytes())), path)
        monkeypatch.setattr("cbeindex._core.checks.memory_bytes", lambda: 1_000)
        with pytest.raises(MemoryError, match="the conversion of codes of format version 1 needs"):
            BinaryIndex.load(path)


def _without_probes(content):
    """The content of a file without what searches of buckets find, which is measured."""
    content = copy.deepcopy(content)
    for entry in content["rows"]["segments"]:
        for name in ("n_probes", "calibration", "ranges"):
            (entry["buckets"] or {}).pop(name, None)
    return content


def golden_answers(index):
    """What stays the same whatever is added to an index and removed again."""
    told = {"ids": index.ids}
    queries = queries_for(index)
    for name, request in requests(index).items():
        if request["mode"] == "scan":
            result = index.search(queries, 5, **request)
            told[f"distances, {name}"], told[f"ids, {name}"] = result.distances, result.ids
    got = index.get(index.ids[::7])
    told["get"] = got.toarray() if scipy.sparse.issparse(got) else got
    return told


def check_golden(told, name):
    own = DATA / name.replace(".cbe", ".npz")
    with np.load(own if own.exists() else DATA / f"golden-{name.removeprefix('golden-')[0]}.npz") as stored:
        prefix = f"{name.replace('-weights', '')}: "
        expected = {key.removeprefix(prefix): stored[key] for key in stored if key.startswith(prefix)}
    assert told.keys() == expected.keys()
    for key, values in told.items():
        assert values.dtype == expected[key].dtype
        if key.startswith("ids"):
            np.testing.assert_array_equal(values, expected[key], err_msg=key)
        else:  # projections of queries may differ to a rounding, and so may estimates
            np.testing.assert_allclose(values, expected[key], rtol=1e-4, atol=1e-4, err_msg=key)


def make_golden(directory):
    """Make the golden files of this version, and what they answer: to be run when the version changes, and kept.

    An index with dense vectors, clusters, removed rows and ids of its own, in two commits (golden-1.cbe is the same
    from before centroids had weights); one with sparse vectors in half precision and substrings; and two of codes, of
    which one has long codes. From the directory above: python -m tests.test_files
    """
    told, version = {}, VERSION
    with small_sizes():
        index = CBEIndex(DIM, 70, metric="l2", encoder="random", vectors="float32", buckets="clusters", seed=7)
        index.add(some_rows(60), range(1000, 1120, 2))
        index.save(Path(directory, f"golden-{version}-clusters.cbe"))
        index.add(some_rows(5, seed=9), range(5))
        index.remove([1004, 1010, 2])
        index.save()
        sparse = CBEIndex(DIM, 70, vectors="float16", buckets="substrings", n_tables=4, table_bits=5)
        sparse.add(some_rows(50, is_sparse=True))
        sparse.remove([7])
        sparse.save(Path(directory, f"golden-{version}-sparse.cbe"))
        binary, long = a_binary_index(300, n=30), a_binary_index(1_100, n=30)
        for each, name in ((binary, "binary"), (long, "long")):
            each.add(queries_for(each), [2**40, 2**62, 77])
            each.remove([0, 77])
            each.save(Path(directory, f"golden-{version}-{name}.cbe"))
        for each in (index, sparse, binary, long):
            name = Path(each.path).name
            told |= {f"{name}: {key}": value for key, value in golden_answers(each).items()}
    np.savez_compressed(Path(directory, f"golden-{version}.npz"), **told)


def make_golden_cells(directory):
    """Make the golden file of an index with cells, and what it answers: removed rows, and two commits."""
    name = f"golden-{VERSION}-rounded-cells"
    with small_sizes():
        index = CBEIndex(DIM, DIM, vectors="float32", buckets="cells", cell_bits=2, seed=3)
        index.add(some_rows(60), range(1000, 1120, 2))
        index.save(Path(directory, f"{name}.cbe"))
        index.add(some_rows(5, seed=9), range(5))
        index.remove([1004, 1010, 2])
        index.save()
        told = {f"{name}.cbe: {key}": value for key, value in golden_answers(index).items()}
    np.savez_compressed(Path(directory, f"{name}.npz"), **told)


def make_golden_copies(directory):
    """Make the golden file of an index whose rows are also in second cells, and what it answers."""
    name = f"golden-{VERSION}-rounded-copies"
    with small_sizes():
        index = CBEIndex(DIM, DIM, vectors="float32", buckets="cells", cell_bits=4, spill=True, metric="l2", seed=3)
        index.add(some_rows(60), range(1000, 1120, 2))
        index.save(Path(directory, f"{name}.cbe"))
        index.add(some_rows(5, seed=9), range(5))
        index.remove([1004, 1010, 2])
        index.save()
        assert index.stats()["bytes"]["copies"] > 0
        told = {f"{name}.cbe: {key}": value for key, value in golden_answers(index).items()}
    np.savez_compressed(Path(directory, f"{name}.npz"), **told)


def make_golden_graph(directory):
    """Make the golden file of an index with a graph, and what it answers: removed rows, and two commits."""
    name = f"golden-{VERSION}-graph"
    with small_sizes():
        index = CBEIndex(DIM, vectors="float32", buckets="graph", metric="ip", seed=3)
        index.add(some_rows(60), range(1000, 1120, 2))
        index.save(Path(directory, f"{name}.cbe"))
        index.add(some_rows(5, seed=9), range(5))
        index.remove([1004, 1010, 2])
        index.save()
        told = {f"{name}.cbe: {key}": value for key, value in golden_answers(index).items()}
    np.savez_compressed(Path(directory, f"{name}.npz"), **told)


def make_golden_levels(directory):
    """Make golden files of kept vectors of 8 bits beside codes and of 4 bits beside cells, and what they answer."""
    for vectors, options in (("int8", {}), ("int4", {"buckets": "cells", "cell_bits": 1, "metric": "l2"})):
        name = f"golden-{VERSION}-rounded-{vectors}"
        with small_sizes():
            index = CBEIndex(DIM, vectors=vectors, seed=4, **{"buckets": None, **options})
            index.add(some_rows(60), range(1000, 1120, 2))
            index.save(Path(directory, f"{name}.cbe"))
            index.add(some_rows(5, seed=9), range(5))
            index.remove([1004, 1010, 2])
            index.save()
            told = {f"{name}.cbe: {key}": value for key, value in golden_answers(index).items()}
        np.savez_compressed(Path(directory, f"{name}.npz"), **told)


if __name__ == "__main__":
    make_golden(DATA)
    make_golden_cells(DATA)
    make_golden_copies(DATA)
    make_golden_graph(DATA)
    make_golden_levels(DATA)
