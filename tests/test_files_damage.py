"""Index files that are damaged, or made to do harm: an error of ours or an answer, never a crash, a hang or a flood."""

import copy
import faulthandler
import functools
import mmap
import os
import pickle
import re
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest

import cbeindex
from cbeindex import BinaryIndex, CBEIndex
from cbeindex.encoders import ENCODERS
from cbeindex.errors import CorruptIndexFileError, IndexFileError, UnsupportedVersionError
from cbeindex.storage import container as storage
from cbeindex.storage import files as _files
from tests import sample_indexes
from tests.conftest import CHECKS_BOUNDS, COMPILED
from tests.crafted_files import build, footer_of
from tests.sample_indexes import small_sizes, some_rows
from tests.small import tune
from tests.strategies import some_codes

resource = pytest.importorskip("resource")
pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]

# What a task may take beyond what there is already: threads and their stacks do, a claim of a file must not.
ROOM = 2**29
# Of the processor, and of the clock: much more than any test takes, on a busy machine too.
SECONDS, WAITING_SECONDS = 120, 600


class NeverSpent(int):
    """A share of the cost of a scan that is enough for any search by tables."""

    def __rfloordiv__(self, other):
        return 2**40


@pytest.fixture(scope="module", autouse=True)
def _small_sizes():
    with small_sizes(), pytest.MonkeyPatch.context() as patch:
        tune(patch, table_budget_share=NeverSpent())  # or a scan would be cheaper
        patch.setattr(_files, "_sync", lambda descriptor: None)  # thousands of files that need not last
        yield


@pytest.fixture
def path(tmp_path):
    return tmp_path / "items.cbe"


def in_child(task):
    """Return what `task(mark)` returns in a process of its own, which it must survive.

    There it has little memory and little time. What it marks last is told if it dies.
    """
    marked = mmap.mmap(-1, 1000)
    mine, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(mine)
            faulthandler.enable()
            warnings.simplefilter("ignore")  # of NaN among damaged numbers
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(WAITING_SECONDS)
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            limit = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") + ROOM
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

            def mark(text):
                marked[: len(marked)] = str(text).encode()[: len(marked)].ljust(len(marked), b"\0")

            told = pickle.dumps(task(mark))
            with open(theirs, "wb") as file:
                file.write(told)
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    os.close(theirs)
    with open(mine, "rb") as file:
        told = file.read()
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended == 0, f"ended with {ended} at {marked[:].rstrip(bytes(1)).decode()}"
    return pickle.loads(told)


def outcome(task):
    """What comes of a task: "answer", "refused" (an error of ours), or what went wrong."""
    try:
        task()
    except IndexFileError as error:
        return "out of memory" if _is_of_memory(error) else "refused"
    except Exception as error:
        if str(error).startswith("X must be small enough for sums"):  # numbers of an encoder can be too large for any
            return "answer"
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "cbeindex" in frame.filename]
        at = ", ".join(f"{frame.name} in {Path(frame.filename).name}" for frame in frames[-2:])
        return f"{type(error).__name__}: {error} ({at})"
    return "answer"


def _is_of_memory(error):
    """Whether an error came of memory that was asked for and not given."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__cause__ or error.__context__
    return False


def vectors_in_cells():
    index = CBEIndex(6, 16, metric="l2", vectors="float32", buckets="clusters", n_cells=2).fit(some_rows(9)[:, :6])
    return index, some_rows(19)[:, :6]


def sparse_vectors_in_tables():
    index = CBEIndex(6, 12, vectors="float16", buckets="substrings", n_tables=2, table_bits=3)
    return index.fit(some_rows(9)[:, :6]), some_rows(16, is_sparse=True)[:, :6]


def first_vectors():
    return CBEIndex(6, 16, metric="ip", vectors=None, buckets=None), some_rows(5)[:, :6]


def sparse_first_vectors():
    return CBEIndex(6, 16, metric="l2", vectors=None, buckets=None), some_rows(6, is_sparse=True)[:, :6]


def codes_in_tables():
    return BinaryIndex(70, "substrings", n_tables=2, table_bits=3), _codes(16, 70)


def codes_in_cells():
    return BinaryIndex(16, "clusters", n_cells=2), _codes(16, 16)


def _codes(n, n_bits):
    return some_codes(np.random.default_rng(0), n, n_bits, 5, 0.1)


KINDS = (
    vectors_in_cells,
    sparse_vectors_in_tables,
    first_vectors,
    sparse_first_vectors,
    codes_in_tables,
    codes_in_cells,
)


def save(make, path):
    """Save a small index with removed rows, and return its ids; rows from the 17th on are a segment of their own."""
    _, data, ids = _saved(make)
    path.write_bytes(data)
    return ids


def kind_of(make):
    return _saved(make)[0]


@functools.cache
def _saved(make):
    """The kind of an index, the bytes of its file, and its ids."""
    index, rows = make()
    index.add(rows[:16], range(10, 10 + rows[:16].shape[0]))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "items.cbe")
        index.save(path)
        index.remove([11, 14])
        if rows.shape[0] > 16:
            index.add(rows[16:])
        index.save(path)  # anew: all of the file is in use
        return type(index), path.read_bytes(), index.ids


def ways_to_use(index, ids):
    """What a reader does, one by one, so that all parts of a file are looked at."""
    ways = [lambda: (repr(index), len(index), index.ids, index.stats(), 10 in index)]
    ways += [lambda: _get(index, ids), lambda: _get(index, ids[1:2])]
    if isinstance(index, BinaryIndex):
        queries = some_codes(np.random.default_rng(1), 2, index.n_bits)
        requests = [{"mode": "scan"}, {"mode": "scan", "allow": ids[:1]}, {"deny": ids[:3]}]
        ways.append(lambda: index.range_search(queries, 2, n_threads=1))
    else:
        queries = some_rows(2, seed=1)[:, : index.dim]
        requests = [{}, {"rerank": None}, {"mode": "scan", "allow": ids[:1]}]
        requests += [{"rerank": "asymmetric"}] * index.encoder.is_linear
        ways.append(lambda: index.range_search(queries, 0.5, n_threads=1))
    if index.buckets is not None:
        requests += [{"mode": "buckets"}, {"mode": "buckets", "n_probes": 1}]
    return ways + [lambda request=request: index.search(queries, 3, **request, n_threads=1) for request in requests]


def use(path, kind, ids, turn=None):
    """Load an index and use it in all ways, or in the one whose turn it is; return the worst that came of it."""
    loaded = []
    found = [outcome(lambda: loaded.append(kind.load(path)))]
    if loaded:
        ways = ways_to_use(loaded[0], ids)
        found += [outcome(way) for way in (ways if turn is None else [ways[turn % len(ways)]])]
    wrong = [what for what in found if what not in ("answer", "refused")]
    return wrong[0] if wrong else "refused" if "refused" in found else "answer"


def _get(index, ids):
    try:
        if isinstance(index, BinaryIndex) or index.vectors is not None or not index.is_fitted:
            index.get(ids)
    except ValueError as error:
        if not re.search("(is|are) not in the index", str(error)):  # an answer too, where ids are damaged
            raise


def places_in(path):
    """Every byte of the header and of sections, with the names of these, and few of the others.

    Few of the zeros too where a block has room for 16 rows. What can be wrong with a footer is for the tests of
    `storage` to find.
    """
    stored = storage.read(path)
    every = set(range(192))
    names = [""] * path.stat().st_size
    for name, section in stored._sections.items():
        used = range(section.offset, section.offset + section.nbytes)
        names[section.offset : used.stop] = [name] * section.nbytes
        if name.endswith("/blocks"):
            n_rows, n_block_bytes = len(stored.arrays[name.replace("blocks", "ids")]), 128 * section.shape[1]
            rows = ((place - section.offset, place) for place in used)
            used = [p for at, p in rows if at // n_block_bytes * 16 + at // 8 % 16 < n_rows]
        every.update(used)
    places = [(place, name) for place, name in enumerate(names) if place in every or place % 29 == 0]
    return places[:: 1 if COMPILED else 13]


class TestDamage:
    @pytest.mark.parametrize("make", KINDS)
    def test_every_flipped_byte(self, path, make):
        """Found where all of the file is read; where it is mapped, found when it is met, or an answer comes."""
        ids, places = save(make, path), places_in(path)
        kind = kind_of(make)
        assert use(path, kind, ids) == "answer"

        def flip_all(mark):
            wrong, n_answers = [], 0
            whole = path.read_bytes()
            with path.open("r+b", buffering=0) as file:
                for turn, (place, name) in enumerate(places):
                    mark(f"{place}, {name}")
                    flipped = whole[place] ^ (0xFF, 0x01, 0x40, 0x80)[place // 2 % 4]
                    os.pwrite(file.fileno(), bytes([flipped]), place)
                    if turn % 2 or not name:
                        found = {"verify": outcome(lambda: cbeindex.verify(path))}
                    else:
                        found = {"read": outcome(lambda: kind.load(path, mmap=False))}
                    found["use"] = use(path, kind, ids, turn)
                    n_answers += found["use"] == "answer"
                    wrong += [
                        (place, name, flipped, way, what)
                        for way, what in found.items()
                        if what != "refused" and not (way == "use" and what == "answer")
                    ]
                    os.pwrite(file.fileno(), whole[place : place + 1], place)
            return wrong, n_answers

        wrong, n_answers = in_child(flip_all)
        assert not wrong, f"{len(wrong)}, of which the first: {wrong[:3]}"
        assert 0 < n_answers < len(places)

    @pytest.mark.parametrize("make", KINDS)
    def test_every_truncation(self, path, make):
        save(make, path)
        kind, whole = kind_of(make), path.read_bytes()
        with path.open("r+b", buffering=0) as file:
            step = max(1, len(whole) // 2000) if COMPILED else 23
            for turn, n in enumerate(range(len(whole) - 1, -1, -step)):
                file.truncate(n)
                with pytest.raises(IndexFileError):
                    kind.load(path, mmap=turn % 2 == 0)
                if turn % 16 == 0:
                    with pytest.raises(IndexFileError):
                        cbeindex.verify(path)


def write_changed(make, path, change):
    """Write a file whose checksums are right and whose content or arrays have been changed; return its ids.

    `change(content, arrays)` changes them in place.
    """
    ids = save(make, path)
    stored = storage.read(path, mmap=False)
    content, arrays = copy.deepcopy(stored.content), dict(stored.arrays)
    change(content, arrays)
    storage.write(path, content, arrays)
    return ids


def outcomes(path, kind, ids, turn=None):
    """What comes of a file, when it is used and when it is verified."""
    return {
        "used": use(path, kind, ids, turn),
        "verified": outcome(lambda: cbeindex.verify(path)),
    }


def check_all(path, make, changes, *, is_nonsense=False, in_turn=False):
    """Try files that are changed in all the ways of a dict by name; what makes no sense must not pass `verify`.

    Each is used in all ways, or `in_turn` in one.
    """
    ids = save(make, path)
    stored = storage.read(path, mmap=False)
    kind = kind_of(make)

    def task(mark):
        wrong = []
        for turn, (name, change) in enumerate(changes.items()):
            mark(name)
            content, arrays = copy.deepcopy(stored.content), dict(stored.arrays)
            change(content, arrays)
            storage.write(path, content, arrays)
            for way, what in outcomes(path, kind, ids, turn if in_turn else None).items():
                allowed = {"refused"} if is_nonsense and way == "verified" else {"refused", "answer"}
                if what not in allowed:
                    wrong.append((name, way, what))
        return wrong

    wrong = in_child(task)
    assert not wrong, f"{len(wrong)} of {len(changes)}, of which the first: {wrong[:5]}"


def paths_in(value, path=()):
    """The places of all values in nested dicts and lists."""
    if path:
        yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from paths_in(value[key], (*path, key))


def set_in(value, path, new):
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


def drop_in(value, path):
    for key in path[:-1]:
        value = value[key]
    del value[path[-1]]


def content_of(make, path):
    save(make, path)
    return storage.read(path).content


OTHER_VALUES = (None, True, 0, -1, 1.5, "x", [], {}, [[]], {"a": 1}, 63, 10**9, 10**15, 2**63, 10**40, -(10**40))


class TestOtherContent:
    @pytest.mark.parametrize("make", KINDS)
    def test_missing_values(self, path, make):
        paths = [p for p in paths_in(content_of(make, path)) if p[0] != "options" or len(p) == 1]
        paths = [p for p in paths if p[-1] != "weights"]  # the first files had none
        changes = {
            f"without {place}": lambda content, arrays, place=place: drop_in(content, place)
            for place in paths
            if not isinstance(place[-1], int)
        }
        check_all(path, make, changes, is_nonsense=True)

    @pytest.mark.parametrize("make", KINDS)
    def test_other_values(self, path, make):
        changes = {
            f"{place} = {value!r}": lambda content, arrays, place=place, value=value: set_in(
                content, place, copy.deepcopy(value)
            )
            for number, place in enumerate(paths_in(content_of(make, path)))
            for value in OTHER_VALUES[number % 3 :: 3 if COMPILED else 6]
        }
        check_all(path, make, changes, in_turn=True)

    @pytest.mark.parametrize("value", [0, -1, True, 2.0, "16", None, 15, 17, 2**31, 2**31 - 1, 2**63, 10**30])
    @pytest.mark.parametrize("make", [vectors_in_cells, codes_in_tables])
    def test_n_rows(self, path, make, value):
        write_changed(make, path, lambda content, arrays: content["rows"]["segments"][0].update(n_rows=value))
        for load in (kind_of(make).load, cbeindex.verify):
            with pytest.raises(CorruptIndexFileError, match=r"items\.cbe: "):
                load(path)

    @pytest.mark.parametrize("value", [1, 63, 64, 129, 10**15, 0, -1, True, "70"])
    @pytest.mark.parametrize("make", [vectors_in_cells, sparse_vectors_in_tables, codes_in_tables, first_vectors])
    @pytest.mark.parametrize("name", ["n_bits", "dim"])
    def test_sizes(self, path, make, name, value):
        """Sizes that arrays contradict; where there is an encoder, also if it says the same."""
        if name == "dim" and make is codes_in_tables:
            pytest.skip("codes have none")

        def change(content, arrays):
            content[name] = value
            if "encoder" in content:
                content["encoder"][name] = value

        if make is first_vectors and name == "n_bits" and value in (1, 63):
            pytest.skip("as many blocks of the encoder, and no codes yet that would tell")
        write_changed(make, path, change)
        for load in (kind_of(make).load, cbeindex.verify):
            with pytest.raises(CorruptIndexFileError, match=r"items\.cbe: "):
                load(path)

    @pytest.mark.parametrize("kind", ["", "cbeindex", "Binaryindex", None, 5, [], {}, ["BinaryIndex"], "Encoder"])
    def test_kinds(self, path, kind):
        write_changed(codes_in_tables, path, lambda content, arrays: content.update(kind=kind))
        for load in (BinaryIndex.load, CBEIndex.load, cbeindex.verify):
            with pytest.raises(CorruptIndexFileError, match=r"items\.cbe: kind must be one of"):
                load(path)

    def test_content_without_a_kind(self, path):
        storage.write(path, {}, {})
        for load in (BinaryIndex.load, CBEIndex.load, cbeindex.verify):
            with pytest.raises(CorruptIndexFileError, match=r"items\.cbe: kind must be one of"):
                load(path)

    def test_deep_content(self, path):
        """Also where it is no deeper than a footer may be."""
        deep = b"[" * 90 + b"]" * 90
        very_deep = b"[" * 100_000 + b"]" * 100_000
        for text in (deep, very_deep):
            for key in (b"rows", b"options", b"n_bits", b"kind", b"buckets"):
                content = {b"kind": b'"BinaryIndex"', b"n_bits": b"16", b"buckets": b"null", b"options": b"{}"}
                content |= {b"rows": b'{"next_id":0,"segments":[]}', key: text}
                body = b",".join(b'"%s":%s' % item for item in content.items())
                path.write_bytes(build(b'{"content":{%s},"sections":[]}' % body))
                for load in (BinaryIndex.load, cbeindex.verify):
                    with pytest.raises(CorruptIndexFileError):
                        load(path)

    def test_a_newer_version(self, path):
        path.write_bytes(build(footer_of(), version=3))
        for load in (BinaryIndex.load, CBEIndex.load, cbeindex.verify):
            with pytest.raises(UnsupportedVersionError, match=r"version 3, .* a newer release of cbeindex may read it"):
                load(path)

    @pytest.mark.parametrize("make", [vectors_in_cells, codes_in_tables])
    def test_the_same_segment_again_and_again(self, path, make):
        """No memory is taken for claims that cost a file nothing."""

        def change(content, arrays):
            content["rows"]["segments"] = content["rows"]["segments"][:1] * 3000

        check_all(path, make, {"the same": change}, is_nonsense=True)

    def test_a_segment_whose_rows_are_all_removed(self, path):
        """No save leaves one behind; what comes beside it is not lost."""

        def change(content, arrays):
            arrays[content["rows"]["segments"][0]["removed"]] = np.ones(16, np.bool_)

        for make in (codes_in_tables, codes_in_cells):
            write_changed(make, path, change)
            index = BinaryIndex.load(path)
            assert len(index) == 0
            codes = _codes(5, index.n_bits)
            ids = index.add(codes)
            index.compact()
            np.testing.assert_array_equal(index.get(ids), codes)
            np.testing.assert_array_equal(BinaryIndex.load(path, verify=True).get(ids), codes)

    def test_thousands_of_segments(self, path):
        """A segment costs time at each load and each search: there are no more than saves can leave."""
        index, codes = BinaryIndex(16, "substrings", n_tables=1, table_bits=1), _codes(16, 16)
        index.add(codes)
        index.save(path)
        stored = storage.read(path, mmap=False)
        for n in (64, 1000):
            content, arrays = copy.deepcopy(stored.content), {}
            (entry,) = content["rows"]["segments"]
            content["rows"] = {"next_id": 16 * n, "segments": [{**entry, "name": f"segment 1.{i}"} for i in range(n)]}
            for i in range(n):
                for name, array in stored.arrays.items():
                    part = name.removeprefix(entry["name"])
                    arrays[f"segment 1.{i}{part}"] = array + 16 * i if part == "/ids" else array
            storage.write(path, content, arrays)
            if n == 64:
                cbeindex.verify(path)
                loaded = BinaryIndex.load(path)
                assert loaded.ids.tolist() == list(range(16 * n))
                assert loaded.search(codes[:1], 1).distances.tolist() == [[0]]
        for load in (BinaryIndex.load, cbeindex.verify):
            with pytest.raises(CorruptIndexFileError, match=r"16000 rows must be in at most \d+ segments, got 1000"):
                load(path)

    @pytest.mark.parametrize("make", [vectors_in_cells, codes_in_tables])
    def test_names_that_later_saves_would_use(self, path, make):
        """What is refused here would be a clash at some save."""
        for name in (
            "segment 2.0",
            "segment 3.1",
            "segment",
            "encoder",
            "segment 1",
            "segment 1.0/blocks",
            "",
            5,
            None,
        ):

            def change(content, arrays, name=name):
                entry = content["rows"]["segments"][0]
                for part in [part for part in arrays if part.startswith(entry["name"] + "/")]:
                    arrays[part.replace(entry["name"], str(name))] = arrays.pop(part)
                entry["removed"] = entry["removed"].replace(entry["name"], str(name))
                entry["name"] = name

            write_changed(make, path, change)
            for load in (kind_of(make).load, cbeindex.verify):
                with pytest.raises(CorruptIndexFileError, match=r"name of a segment must carry|must be of type str"):
                    load(path)
        for removed in ("segment 1.0/removed 2", "removed", "segment 1.1/removed 1", 5, ["segment 1.0/removed 1"]):

            def change_removed(content, arrays, removed=removed):
                entry = content["rows"]["segments"][0]
                arrays[str(removed)] = arrays[entry["removed"]]
                entry["removed"] = removed

            write_changed(make, path, change_removed)
            for load in (kind_of(make).load, cbeindex.verify):
                with pytest.raises(CorruptIndexFileError, match="removed rows of segment"):
                    load(path)

    @pytest.mark.parametrize("error", [MemoryError("no room"), KeyboardInterrupt(), AttributeError("a bug")])
    @pytest.mark.parametrize(
        "where", ["store.rowstore.RowStore.restore", "distances.codec.Geometry.of", "storage.segments.CodeRows.empty"]
    )
    def test_only_the_file_makes_a_file_corrupt(self, path, monkeypatch, where, error):
        save(vectors_in_cells, path)

        def fail(*args, **kwargs):
            raise error

        monkeypatch.setattr(f"cbeindex.{where}", fail)
        with pytest.raises(type(error)) as caught:
            CBEIndex.load(path)
        assert caught.value is error

    @pytest.mark.parametrize("name", ["seed", "metric", "encoder", "n_bits"])
    def test_other_options(self, path, name):
        write_changed(vectors_in_cells, path, lambda content, arrays: content["options"].update({name: None}))
        with pytest.raises(CorruptIndexFileError, match="the name of an option must be one of"):
            CBEIndex.load(path)

    def test_options_choose_no_memory(self, path):
        """Tables are made for the rows there are, whatever the options ask for."""

        def change(content, arrays):
            content["options"].update(n_tables=3, table_bits=23)

        write_changed(codes_in_tables, path, change)

        def task(mark):
            index = BinaryIndex.load(path)
            index.add(_codes(9, 70))
            index.compact()
            return index.stats()["bytes"]["buckets"]

        assert in_child(task) < 2**18


def other_arrays(array, rng):
    """Arrays in place of one, by what was done to it: of other types and shapes, and of other values."""
    flat = np.ascontiguousarray(array).reshape(-1)
    shapes = {
        "flat": flat if array.ndim > 1 else array[np.newaxis],
        "none, of many dimensions": np.zeros((3, 0, 2**40), array.dtype),
        "shorter": array[:-1],
        "longer": np.concatenate([array, array[:1]]) if len(array) else np.zeros((1, *array.shape[1:]), array.dtype),
        "another type": np.zeros(array.shape, "f8" if array.dtype != np.float64 else "f4"),
    }
    values = {
        "zeros": np.zeros_like(array),
        "ones": np.full(array.nbytes, 0xFF, np.uint8).view(array.dtype).reshape(array.shape),
        "reversed": flat[::-1].reshape(array.shape),
        "random": rng.integers(0, 256, array.nbytes, np.uint8).view(array.dtype).reshape(array.shape),
        "small": rng.integers(0, 40, array.shape).astype(array.dtype),
        "swapped": array.byteswap(),
    }
    if array.dtype.kind in "uf" and array.dtype != np.float64:  # codes and numbers, which are no places
        values = {name: new for name, new in values.items() if name in ("zeros", "ones", "random")}
    if array.dtype.kind == "i":
        values |= {f"{n}": np.full_like(array, n) for n in (np.iinfo(array.dtype).max, np.iinfo(array.dtype).min)}
        values |= {f"{n} at {at}": _put(array, at, n) for n in (-1, 2**30) for at in (0, -1)}
    elif array.dtype.kind in "fc":
        values |= {f"{n} at {at}": _put(array, at, n) for n in (np.nan, -np.inf, 3e38) for at in (0, -1)}
    return {name: new for name, new in shapes.items() if new.shape != array.shape or new.dtype != array.dtype}, values


def _put(array, at, value):
    changed = array.copy()
    if array.size > abs(at):
        with np.errstate(over="ignore"):
            changed.reshape(-1)[at] = np.array(value).astype(array.dtype)
    return changed


def with_array(name, new):
    return lambda content, arrays: arrays.update({name: new})


class TestOtherArrays:
    @pytest.mark.parametrize("make", KINDS)
    def test_of_other_types_and_shapes(self, path, make):
        save(make, path)
        changes = {}
        for name, array in storage.read(path, mmap=False).arrays.items():
            changes[f"without {name}"] = lambda content, arrays, name=name: arrays.pop(name)
            if name == "encoder/objective":  # tells how training went, and nothing else
                continue
            for what, new in other_arrays(array, np.random.default_rng(0))[0].items():
                changes[f"{name}: {what}"] = with_array(name, new)
        check_all(path, make, changes, is_nonsense=True)

    @pytest.mark.parametrize("make", KINDS)
    def test_of_other_values(self, path, make):
        save(make, path)
        changes = {}
        for number, (name, array) in enumerate(storage.read(path, mmap=False).arrays.items()):
            for what, new in list(other_arrays(array, np.random.default_rng(number))[1].items()):
                changes[f"{name}: {what}"] = with_array(name, new)
        if not COMPILED:
            changes = dict(list(changes.items())[::3])
        check_all(path, make, changes)


class TestWriters:
    @pytest.mark.parametrize("make", [vectors_in_cells, sparse_vectors_in_tables, sparse_first_vectors, codes_in_cells])
    def test_who_joins_segments_meets_errors_of_ours(self, path, make):
        """Adding and compacting read rows that nobody has looked at yet."""
        save(make, path)
        stored, kind, rows = storage.read(path, mmap=False), kind_of(make), make()[1]
        changed = {
            f"{name}: {what}": {**stored.arrays, name: new}
            for number, (name, array) in enumerate(stored.arrays.items())
            for what, new in other_arrays(array, np.random.default_rng(number))[1].items()
            if array.dtype.kind == "i" and what in ("random", "small", "2147483647", "-1 at 0")
        }

        def task(mark):
            wrong = []
            for name, arrays in changed.items():
                for way in (lambda index: (index.add(rows[:9]), index.save()), lambda index: index.compact()):
                    mark(name)
                    storage.write(path, stored.content, arrays)
                    what = outcome(lambda way=way: way(kind.load(path)))
                    wrong += [(name, what)] if what not in ("refused", "answer") else []
            return wrong

        assert not in_child(task)


def first(name):
    """The name of an array of the first segment."""
    return f"segment 1.0/{name}"


def set_at(name, at, value):
    """Change one number of an array of the first segment."""

    def change(content, arrays):
        arrays[first(name)] = arrays[first(name)].copy()
        arrays[first(name)][at] = value

    return change


def of_rows(**values):
    return lambda content, arrays: content["rows"].update(values)


def of_buckets(**values):
    return lambda content, arrays: content["rows"]["segments"][0]["buckets"].update(values)


def of_segment(**values):
    return lambda content, arrays: content["rows"]["segments"][0].update(values)


def strange_bools(content, arrays):
    """Write what is neither True nor False."""
    name = content["rows"]["segments"][0]["removed"]
    arrays[name] = np.full(len(arrays[name]), 2, np.uint8).view(np.bool_)


def the_ids_of_another(content, arrays):
    arrays["segment 1.1/ids"] = arrays[first("ids")][arrays[first("order")]][-3:].copy()


NONSENSE = {
    vectors_in_cells: {
        "a row twice in the order": set_at("order", 3, 5),
        "a row that is not there in the order": set_at("order", 3, 16),
        "a negative row in the order": set_at("order", 3, -1),
        "ranks that are not the order": set_at("ranks", 3, 5),
        "a rank that is too large": set_at("ranks", 3, 2**31 - 1),
        "ids that are not in order": lambda content, arrays: arrays.update({first("ids"): np.arange(16)[::-1].copy()}),
        "the same id twice": set_at("ids", slice(0, 2), 12),
        "a negative id": set_at("ids", slice(None), -5),
        "ids of two segments": the_ids_of_another,
        "no new ids": of_rows(next_id=5),
        "new ids that were given": of_rows(next_id=0),
        "cells that are not in order": set_at("cells/offsets", 1, 17),
        "cells that begin late": set_at("cells/offsets", 0, 1),
        "cells that end early": set_at("cells/offsets", 2, 15),
        "a negative cell": set_at("cells/offsets", 1, -1),
        "no probes": of_buckets(n_probes=[0, 1, 1]),
        "no numbers of probes": of_buckets(n_probes=[]),
        "one number of probes": of_buckets(n_probes=1),
        "more probes than cells": of_buckets(n_probes=[1, 1, 3]),
        "far more probes than cells": of_buckets(n_probes=[10**40] * 3),
        "no cells": of_buckets(n_cells=0),
        "many cells": of_buckets(n_cells=2**40),
        "cells that are tables": of_buckets(kind="tables"),
        "no buckets, and so no order": of_segment(buckets=None),
        "other flags": strange_bools,
        "flags of another segment": of_segment(removed="segment 1.1/ids"),
        "bits past the last": set_at("blocks", (0, 0, 3), 2**63),
        "offsets that are no numbers": set_at("offsets", 3, np.nan),
        "infinite offsets": set_at("offsets", 3, np.inf),
        "factors that are no numbers": set_at("factors", 3, np.nan),
        "negative factors": set_at("factors", 3, -1),
        "spreads that are no numbers": set_at("spreads", 3, np.nan),
        "negative spreads": set_at("spreads", 3, -1),
        "vectors that are no numbers": set_at("vectors", (3, 2), np.nan),
        "infinite vectors": set_at("vectors", (3, 2), -np.inf),
    },
    sparse_vectors_in_tables: {
        "entries that are not in order": set_at("vectors/offsets", 3, 2**40),
        "entries that begin before the first": set_at("vectors/offsets", 3, -(2**40)),
        "entries whose number is too large for a number": set_at("vectors/offsets", [2, 3], [2**63 - 1, -(2**63)]),
        "entries that begin late": set_at("vectors/offsets", 0, 1),
        "entries that end early": set_at("vectors/offsets", -1, 1),
        "a column that is too large": set_at("vectors/indices", 2, 6),
        "a negative column": set_at("vectors/indices", 2, -1),
        "values that are no numbers": set_at("vectors/values", 2, np.nan),
        "a column twice": set_at("vectors/indices", slice(0, 2), 1),
        "columns that are not in order": set_at("vectors/indices", slice(0, 2), [3, 1]),
    },
    sparse_first_vectors: {
        "entries that are not in order": set_at("vectors/offsets", 2, 2**40),
        "a column that is too large": set_at("vectors/indices", 2, 2**31 - 1),
        "a negative column": set_at("vectors/indices", 2, -1),
        "the same id twice": set_at("ids", 1, 10),
    },
    codes_in_tables: {
        "a row that is not there in a table": set_at("tables/rows", (0, 3), 16),
        "a negative row in a table": set_at("tables/rows", (1, 3), -1),
        "a row at the value of another code": lambda content, arrays: arrays.update(
            {first("tables/rows"): arrays[first("tables/rows")][:, ::-1].copy()}
        ),
        "tables of the same bits": set_at("tables/first_bits", 1, 0),
        "tables that overlap": set_at("tables/first_bits", 1, 2),
        "a row twice in a table": set_at("tables/rows", (0, slice(0, 2)), 3),
        "starts that are not in order": set_at("tables/starts", (0, 3), 2**31 - 1),
        "a negative start": set_at("tables/starts", (1, 3), -1),
        "starts that begin late": set_at("tables/starts", (0, 0), 1),
        "starts that end early": set_at("tables/starts", (0, -1), 15),
        "starts past the last row": set_at("tables/starts", (0, -1), 17),
        "a table before the first bit": set_at("tables/first_bits", 0, -1),
        "a table past the last bit": set_at("tables/first_bits", 1, 68),
        "a table far past the last bit": set_at("tables/first_bits", 1, 2**63 - 1),
        "a table before all numbers": set_at("tables/first_bits", 0, -(2**63)),
        "long tables": of_buckets(table_bits=40),
        "very long tables": of_buckets(table_bits=10**9),
        "tables of nothing": of_buckets(table_bits=0),
        "no tables": of_buckets(n_tables=0),
        "tables that are cells": of_buckets(kind="cells"),
        "an index of cells": lambda content, arrays: content.update(
            buckets="clusters", options={"n_tables": None, "table_bits": None, "n_cells": None}
        ),
        "an index without buckets": lambda content, arrays: content.update(
            buckets=None, options={"n_tables": None, "table_bits": None, "n_cells": None}
        ),
        "bits past the last": set_at("rows", (slice(None), 1), 2**64 - 1),
        "fewer bits than codes have": lambda content, arrays: content.update(n_bits=65),
        "the same id twice": set_at("ids", 1, 10),
        "new ids that were given": of_rows(next_id=25),
        "more new ids than there are": of_rows(next_id=2**63 + 1),
    },
}


class TestNonsense:
    """What the types and shapes of a file do not show: `verify` finds it, and who does not ask it takes no harm."""

    @pytest.mark.parametrize("make", NONSENSE)
    def test_is_found(self, path, make):
        check_all(path, make, NONSENSE[make], is_nonsense=True)

    @pytest.mark.parametrize("number", [np.nan, np.inf])
    @pytest.mark.parametrize("name", ["spectrum", "centre"])
    def test_of_an_encoder(self, path, name, number):
        def change(content, arrays):
            arrays[f"encoder/{name}"] = arrays[f"encoder/{name}"].copy()
            arrays[f"encoder/{name}"].reshape(-1)[1] = number

        check_all(path, vectors_in_cells, {name: change}, is_nonsense=True)

    @pytest.mark.parametrize(
        ("name", "number"), [("spectrum", 0), ("spectrum", 1e38), ("spectrum", 1e-30), ("centre", 1e38), ("signs", 0)]
    )
    def test_an_encoder_that_loses_all(self, path, name, number):
        """Refused at once: later it would be the vectors that are blamed."""

        def change(content, arrays):
            arrays[f"encoder/{name}"] = np.full_like(arrays[f"encoder/{name}"], number)

        write_changed(vectors_in_cells, path, change)
        for load in (CBEIndex.load, cbeindex.verify):
            with pytest.raises(CorruptIndexFileError, match=f"{name}"):
                load(path)

    def test_vectors_that_no_index_takes(self, path):
        """Finite, but longer than the largest number of float32; shorter ones are right under "cosine" alone."""

        def cosine_vectors():
            return CBEIndex(6, 16, vectors="float32", buckets=None), some_rows(6, is_sparse=True)[:, :6]

        def set_all(number):
            return lambda content, arrays: arrays.update(
                {first("vectors/values"): np.full_like(arrays[first("vectors/values")], number)}
            )

        write_changed(cosine_vectors, path, set_all(1e38))
        cbeindex.verify(path)
        write_changed(cosine_vectors, path, set_all(3.4e38))
        with pytest.raises(CorruptIndexFileError, match=r"vectors must have norms up to 3\.4\d*e\+38"):
            cbeindex.verify(path)
        write_changed(sparse_first_vectors, path, set_all(1e38))
        with pytest.raises(CorruptIndexFileError, match=r"vectors must have norms up to 1e\+18"):
            cbeindex.verify(path)

    def test_ids_of_two_segments_are_met_by_who_reads_all(self, path):
        write_changed(vectors_in_cells, path, the_ids_of_another)
        index = CBEIndex.load(path)
        other = CBEIndex(6, 16, metric="l2", vectors="float32", encoder=index.encoder, buckets=None)
        for way in (lambda: index.ids, lambda: other.merge(index)):
            with pytest.raises(CorruptIndexFileError, match=r"id \d+ must not occur twice"):
                way()
        assert len(other) == 0

    @pytest.mark.parametrize("next_id", [0, 5, 25])
    def test_new_ids_that_are_taken(self, path, next_id):
        """The largest id is cheap to see."""
        write_changed(vectors_in_cells, path, of_rows(next_id=next_id))
        with pytest.raises(CorruptIndexFileError, match=f"to below next_id = {next_id}, got 10 to 25"):
            CBEIndex.load(path)

    def test_more_rows_than_ids_between_the_first_and_the_last(self, path):
        """As in a hole of a sparse file, where all ids are 0."""
        index = BinaryIndex(16)
        index.add(np.zeros((3, 2), dtype=np.uint8), [4, 5, 6])
        index.save(path)
        stored = storage.read(path, mmap=False)
        for ids in ([0, 0, 0], [4, 5, 5]):
            storage.write(path, stored.content, stored.arrays | {"segment 1.0/ids": np.array(ids)})
            with pytest.raises(CorruptIndexFileError, match=f"3 ids must ascend .* got {ids[0]} to {ids[2]}"):
                BinaryIndex.load(path)

    def test_messages_are_short(self, path):
        """Whatever the length of the value that they quote."""
        BinaryIndex(16).save(path)
        stored = storage.read(path, mmap=False)
        for name in ("kind", "buckets"):
            storage.write(path, stored.content | {name: "x" * 10**6}, stored.arrays)
            with pytest.raises(CorruptIndexFileError, match=f"{name} must be .*xxx[.]{{3}}$") as caught:
                BinaryIndex.load(path)
            assert len(str(caught.value)) < 1000

    def test_entries_that_overlap(self, path):
        """A few bytes of a row must not lead to all entries of the file, again and again."""
        n_rows, n_entries = 4000, 60_000
        index = CBEIndex(6, 16, metric="l2", vectors=None, buckets=None)
        index.add(some_rows(6, is_sparse=True)[:, :6])
        index.save(path)
        stored = storage.read(path, mmap=False)
        content, arrays = stored.content, dict(stored.arrays)
        content["rows"]["segments"][0]["n_rows"] = n_rows
        offsets = np.zeros(n_rows + 1, np.int64)
        offsets[1::2] = offsets[-1] = n_entries
        arrays |= {
            first("ids"): np.arange(n_rows),
            first("blocks"): np.zeros((-(-n_rows // 16), 0, 16), np.uint64),
            first("vectors/offsets"): offsets,
            first("vectors/indices"): np.zeros(n_entries, np.int32),
            first("vectors/values"): np.zeros(n_entries, np.float32),
        }
        content["rows"]["next_id"] = n_rows
        storage.write(path, content, arrays)
        ids = np.arange(0, n_rows, 2)
        found = in_child(lambda mark: (outcomes(path, CBEIndex, ids), outcome(lambda: CBEIndex.load(path).get(ids))))
        assert set(found[0].values()) | {found[1]} == {"refused"}

    @pytest.mark.skipif(not CHECKS_BOUNDS, reason="kernels do not check bounds")
    @pytest.mark.parametrize("make", [codes_in_tables, vectors_in_cells, codes_in_cells])
    def test_random_numbers_stay_inside_of_arrays(self, path, make):
        """Where kernels check bounds, an index outside of an array is an IndexError, which `outcome` reports."""
        rng = np.random.default_rng(0)
        save(make, path)
        changes = {}
        for name, array in storage.read(path, mmap=False).arrays.items():
            for turn in range(3):
                new = rng.integers(0, 256, array.nbytes, np.uint8).view(array.dtype).reshape(array.shape)
                changes[f"{name}, {turn}"] = with_array(name, new)
        check_all(path, make, changes)


class TestClaims:
    """Memory is not taken for what a file says, only for what it has."""

    @pytest.mark.parametrize("n_bits", [10**9, 10**12, 10**15, 2**62])
    def test_long_codes_of_no_rows(self, path, n_bits):
        content = {"kind": "BinaryIndex", "n_bits": n_bits, "buckets": None, "options": {}}
        storage.write(path, {**content, "rows": {"next_id": 0, "segments": []}}, {})
        assert in_child(lambda mark: outcome(lambda: BinaryIndex.load(path).stats())) in ("refused", "answer")

    @pytest.mark.parametrize("encoder", ENCODERS)
    @pytest.mark.parametrize("name", ["dim", "n_bits"])
    def test_encoders(self, path, encoder, name):
        index = CBEIndex(24, encoder=_encoder(encoder), vectors=None, buckets=None)
        index.add(some_rows(30))
        index.save(path)
        stored = storage.read(path, mmap=False)

        def task(mark):
            found = []
            for value in (10**9, 10**15, 2**62, 10**30):
                content = copy.deepcopy(stored.content)
                content[name] = content["encoder"][name] = value
                storage.write(path, content, stored.arrays)
                found.append(outcome(lambda: CBEIndex.load(path)))
            return found

        assert set(in_child(task)) == {"refused"}


def _encoder(name):
    return sample_indexes.ENCODERS[{"circulant": "orthogonal"}.get(name, name)](16)


class TestOtherEncoders:
    """Each value and each array of each encoder."""

    @pytest.mark.parametrize("encoder", ENCODERS)
    def test_values(self, path, encoder):
        make = _maker(encoder)
        changes = {}
        for name in content_of(make, path)["encoder"]:
            changes[f"without {name}"] = lambda content, arrays, name=name: content["encoder"].pop(name)
        check_all(path, make, changes, is_nonsense=True)
        changes = {
            f"{name} = {value!r}": lambda content, arrays, name=name, value=value: content["encoder"].update(
                {name: copy.deepcopy(value)}
            )
            for number, name in enumerate(content_of(make, path)["encoder"])
            for value in OTHER_VALUES[number % 3 :: 3]
        }
        check_all(path, make, changes, in_turn=True)

    @pytest.mark.parametrize("encoder", ENCODERS)
    def test_arrays(self, path, encoder):
        make = _maker(encoder)
        save(make, path)
        nonsense, changes = {}, {}
        for name, array in storage.read(path, mmap=False).arrays.items():
            if not name.startswith("encoder/"):
                continue
            nonsense[f"without {name}"] = lambda content, arrays, name=name: arrays.pop(name)
            shapes, values = other_arrays(array, np.random.default_rng(0))
            for what, new in {**({} if name == "encoder/objective" else shapes)}.items():
                nonsense[f"{name}: {what}"] = with_array(name, new)
            for what, new in values.items():
                is_finite = array.dtype.kind not in "fc" or np.isfinite(new).all()
                (changes if is_finite else nonsense)[f"{name}: {what}"] = with_array(name, new)
        check_all(path, make, nonsense, is_nonsense=True)
        check_all(path, make, changes, in_turn=True)


@functools.cache
def _maker(encoder):
    def make():
        index = CBEIndex(24, encoder=_encoder(encoder), vectors="float32", buckets=None).fit(some_rows(20))
        return index, some_rows(8)

    return make


def test_messages_name_the_file_and_the_value(path):
    for change, message in [
        (of_segment(n_rows=0), "n_rows must be at least 1, got 0"),
        (of_segment(n_rows="16"), "n_rows must be an integer, got str"),
        (lambda content, arrays: content.pop("n_bits"), "'n_bits' is missing"),
        (lambda content, arrays: arrays.pop(first("ids")), "'segment 1.0/ids' is missing"),
        (
            lambda content, arrays: arrays.update({first("ids"): np.zeros(16, np.int32)}),
            r"section segment 1\.0/ids must be int64 of shape \(16,\), got int32 of shape \(16,\)",
        ),
        (of_buckets(kind="heaps"), "buckets must be one of 'residual cells', 'cells', 'graph', 'tables', got 'heaps'"),
        (set_at("tables/rows", (0, 3), 16), "tables must have rows below 16"),
    ]:
        write_changed(codes_in_tables, path, change)
        with pytest.raises(CorruptIndexFileError, match=rf"^{path}: {message}$"):
            cbeindex.verify(path)
