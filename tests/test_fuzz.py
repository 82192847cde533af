"""The fuzzers: a short run of each finds nothing, and each finds a defect that is put there."""

import io
import os
import random
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

pytest.importorskip("resource")
if not hasattr(os, "fork"):
    pytest.skip("no fork here", allow_module_level=True)

from cbeindex import BinaryIndex, CBEIndex, CorruptIndexFileError, verify
from cbeindex.storage import container as storage
from fuzz import container, corpus, faults, files, mutations, pool, processes, properties
from fuzz.__main__ import main
from fuzz.report import random_of
from tests.conftest import COMPILED
from tests.small import VERY_SMALL, small_buckets

pytestmark = [
    pytest.mark.no_cover,  # an interrupt in the lock of coverage would never end
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.skipif(not COMPILED, reason="the time of a case is limited"),
]


def what(report):
    return "\n".join(f"case {case}: {finding}" for case, finding in report.findings)


class TestShortRuns:
    """Fixed seeds; `make fuzz` takes fresh ones."""

    def test_files(self):
        report = files.run(1, 60, range(80), out=io.StringIO())
        assert not report.findings, what(report)
        assert report.n_cases == 80
        # Damage reaches what comes after loading, and there are files that `verify` accepts.
        assert min(report.counts["mapped"], report.counts["saved again"], report.counts["verified"]) > 5

    def test_faults(self):
        report = faults.run(1, 60, range(40), out=io.StringIO())
        assert not report.findings, what(report)
        assert report.counts["faults"] > 60

    def test_processes(self):
        report = processes.run(1, 60, range(3), out=io.StringIO())
        assert not report.findings, what(report)
        assert report.counts["kills"] > 0
        assert report.counts["commits"] + report.counts["reads"] > 0


class TestContainer:
    @pytest.fixture(autouse=True)
    def _small(self):
        with small_buckets(VERY_SMALL):
            yield

    @pytest.mark.parametrize("number", range(0, len(corpus.RECIPES), 7))
    def test_writes_what_it_reads(self, tmp_path, number):
        data, path = corpus.file_of(number), tmp_path / "items.cbe"
        container.write(container.parse(data), path)
        if corpus.RECIPES[number].history == "appended":  # what is not in use is left out
            assert container.parse(path.read_bytes()) == container.parse(data)
        else:
            assert path.read_bytes() == data
        verify(path)

    def test_reads_what_cbeindex_reads(self, tmp_path):
        path = tmp_path / "items.cbe"
        for number in range(3, len(corpus.RECIPES), 11):
            path.write_bytes(corpus.file_of(number))
            ours, theirs = container.parse(path.read_bytes()), storage.read(path)
            assert ours.content == theirs.content
            assert [section.name for section in ours.sections] == list(theirs.arrays)
            for section in ours.sections:
                np.testing.assert_array_equal(section.array, theirs.arrays[section.name])

    def test_holes_and_old_bytes(self, tmp_path):
        """Files that differ from those that cbeindex writes, and are valid."""
        path, file = tmp_path / "items.cbe", container.parse(corpus.file_of(0))
        file.sections.append(container.Section("more", "|u1", [2**20 + 1], b"\1", hole=2**20))
        file.before = b"old"
        container.write(file, path)
        verify(path)
        assert storage.read(path).arrays["more"].sum() == 1

    def test_cases_do_not_depend_on_others(self, tmp_path):
        made = []
        for _ in range(2):
            what, _ = files.make_file(random_of(3, "files", 5), 8, tmp_path / "items.cbe")
            made.append((what, (tmp_path / "items.cbe").read_bytes()))
        assert made[0] == made[1]
        other, _ = files.make_file(random_of(3, "files", 6), 8, tmp_path / "items.cbe")
        assert other != made[0][0]

    def test_mutations_of_mutations_can_be_written(self):
        """However many follow each other, no value comes to contain itself, and none of them changes other files."""
        ways = (
            mutations.change_value, mutations.change_segments, mutations.rename_or_repeat_key, mutations.swap_values,
            mutations.drop_value,
        )  # fmt: skip
        values = repr(mutations.VALUES)  # NaN does not equal itself
        for seed in range(200):
            rng, segment = random.Random(seed), {"name": "0", "buckets": {"kind": "cells", "options": [1, [2]]}}
            file = container.IndexFile({"rows": {"segments": [segment]}}, [container.Section("0/ids", "<i8", [0], b"")])
            for _ in range(rng.randint(2, 6)):
                rng.choice(ways)(rng, file)
            assert container.to_json(file.content)
            assert repr(mutations.VALUES) == values, seed


@pytest.mark.parametrize("number", range(3, len(corpus.RECIPES), 7))
def test_a_valid_file_gives_no_findings(number):
    with small_buckets(VERY_SMALL):
        outcome = files.examine_valid(number)
    assert not outcome.findings
    assert outcome.counts == {"verified": 1, "read": 1, "mapped": 1, "saved again": 1}


def find(load, n_cases=4, **options):
    """What the file fuzzer says of a function that loads files."""
    report = files.run(0, 60, range(n_cases), api=files.Api(load=load), n_workers=1, out=io.StringIO(), **options)
    return what(report)


class TestPlantedDefects:
    def test_errors_that_are_not_ours(self):
        def load(kind, path, mmap):
            raise KeyError("segments")

        assert "load(mmap=False): KeyError: 'segments'" in find(load)

    def test_crashes(self):
        def load(kind, path, mmap):
            os.kill(os.getpid(), signal.SIGSEGV)

        found = find(load)
        assert "death by SIGSEGV at: load(mmap=False)" in found
        assert found.count("SIGSEGV") == 4  # another worker goes on

    def test_hangs(self):
        def load(kind, path, mmap):
            while True:
                pass

        assert "hang: over its time of the processor at: load(mmap=False)" in find(load, 1, cpu_seconds=0.5)

    def test_waits_without_end(self, monkeypatch):
        def load(kind, path, mmap):
            time.sleep(1000)

        monkeypatch.setattr(pool, "WALL_SECONDS", 1)
        assert "no answer for 1 s at: load(mmap=False)" in find(load, 1)

    def test_cases_that_get_little_of_the_processor_are_no_findings(self, monkeypatch):
        def load(kind, path, mmap):
            until = time.process_time() + 1
            while time.process_time() < until:
                pass
            raise CorruptIndexFileError("at last")

        monkeypatch.setattr(pool, "WALL_SECONDS", 0.5)
        monkeypatch.setattr(pool, "_LEAST_CPU_SECONDS", 0.01)
        assert not find(load, 1)

    def test_floods(self):
        def load(kind, path, mmap):
            return np.ones(2**27)

        assert "load(mmap=False): out of memory as " in find(load)

    def test_memory_reported_as_damage(self):
        def load(kind, path, mmap):
            try:
                raise MemoryError
            except MemoryError as error:
                raise CorruptIndexFileError("out of memory") from error

        assert "load(mmap=False): out of memory as CorruptIndexFileError" in find(load)

    def test_checks_that_verify_lacks(self):
        """A `verify` that accepts all files: what is refused later is found."""
        report = files.run(0, 60, range(20), api=files.Api(verify=lambda path: None), out=io.StringIO())
        assert "verify passed, but CorruptIndexFileError" in what(report)

    def test_ids_that_are_not_there(self):
        class Wrong(BinaryIndex):
            def search(self, *args, **options):
                result = super().search(*args, **options)
                result.ids[:] = 777
                return result

        def load(kind, path, mmap):
            return (Wrong if kind is BinaryIndex else kind).load(path, mmap=mmap)

        Wrong.__name__ = "BinaryIndex"
        assert "found ids that are not in the index: [777]" in find(load, 90)

    def test_changes_that_are_not_atomic(self):
        class Loses(BinaryIndex):
            def add(self, codes, ids=None, *, replace=False):
                for id_ in ids if replace else []:
                    if id_ in self:
                        super().remove([id_])
                return super().add(codes, ids)

        Loses.__name__ = "BinaryIndex"
        # One case in some twenty replaces rows, and fails there.
        report = faults.run(0, 60, range(60, 100), api=faults.Api(Loses, CBEIndex), out=io.StringIO())
        assert "replace that failed" in what(report)
        assert "neither the old nor the new ids" in what(report)

    def test_saves_that_are_not_atomic(self):
        def save(index, path):
            """Write in place, half by half."""
            other = path.with_name("other.cbe")
            index.save(other)
            data = other.read_bytes()
            with path.open("r+b") as file:
                file.write(data[: len(data) // 2])
                file.flush()
                time.sleep(0.002)
                file.write(data[len(data) // 2 :])
                file.truncate()

        report = processes.run(0, 60, range(1), api=processes.Api(save), out=io.StringIO())
        assert report.findings


class TestProperties:
    @pytest.fixture
    def find(self, tmp_path, monkeypatch):
        """Run a case of a folder of tests; return the findings, and the examples that were drawn."""
        # Plugins of other packages, which start slowly, are left out of the ten processes that this takes.
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        monkeypatch.setenv("PYTEST_ADDOPTS", "-p xdist.plugin -p _hypothesis_pytestplugin")
        (tmp_path / "conftest.py").write_text(PROFILE)
        (tmp_path / "test_planted.py").write_text(PLANTED)

        def find(case):
            drawn = tmp_path / "drawn"
            drawn.unlink(missing_ok=True)
            report = properties.run(3, 60, range(case, case + 1), root=tmp_path, out=io.StringIO())
            return report.findings, drawn.read_text()

        return find

    def test_a_false_property_is_found_and_repeats(self, find):
        ((case, finding),), drawn = find(0)
        assert case == 0
        assert finding.startswith("FAILED test_planted.py::test_small - ")
        assert "x=0," in finding
        assert "@reproduce_failure(" in finding
        assert re.search(r"HYPOTHESIS_PROFILE=fuzz python -m pytest --hypothesis-seed=\d+ \S+::test_small$", finding)
        assert find(0)[1] == drawn
        assert find(1)[1] != drawn

    def test_profile(self):
        """Fresh examples, and none of them from a database, or a case could not be repeated."""
        profile = settings.get_profile("fuzz")
        assert not profile.derandomize
        assert profile.database is None
        assert profile.max_examples > settings.get_profile("cbeindex").max_examples


PROFILE = """
from hypothesis import settings
settings.register_profile("fuzz", derandomize=False, database=None, print_blob=True)
settings.load_profile("fuzz")
"""
PLANTED = """
from hypothesis import given, strategies as st

@given(x=st.integers(0, 2**32))
def test_small(x):
    with open("drawn", "a") as file:
        print(x, file=file)
    assert x % 4

def test_without_examples():
    raise AssertionError
"""


class TestCommand:
    def test_repeats_a_case_and_keeps_its_file(self, tmp_path, capsys, monkeypatch):
        """The exit status tells of findings."""

        def run(seed, seconds, cases, *, keep):
            assert list(cases) == [4]
            return files.run(
                seed, seconds, cases, keep=keep, n_workers=1, api=files.Api(lambda kind, path, mmap: 1 // 0)
            )

        monkeypatch.setitem(main.__globals__["KINDS"], "files", run)
        assert main(["files", "--seed", "5", "--case", "4", "--keep", str(tmp_path / "kept")]) == 1
        out = capsys.readouterr().out
        assert "seed 5\nFOUND files case 4 of seed 5: load(mmap=False): ZeroDivisionError" in out
        assert "python -m fuzz files --seed 5 --case 4" in out
        assert [path.name for path in Path(tmp_path, "kept").iterdir()] == ["files-5-4.cbe"]

    def test_unknown_kinds(self, capsys):
        with pytest.raises(SystemExit):
            main(["fils"])
        assert "KIND must be one of files, faults, processes, properties, got fils" in capsys.readouterr().err
