"""The measurement of kernels: a smoke run of every part, and what its kernels compute."""

import json

import numpy as np
import pytest

from benchmarks import isa, kernels
from benchmarks.kernels import hamming, lookups, timing
from cbeindex.kernels.blocks import planes_of
from tests.conftest import COMPILED

pytestmark = pytest.mark.skipif(not COMPILED, reason="measures compiled code")

LEVELS = {"avx512": ["avx2", "portable"], "avx2": ["portable"]}
SMALL = {"cache": 2**12, "memory": 2**16}


@pytest.fixture
def _small(monkeypatch):
    monkeypatch.setattr(kernels, "SIZES", SMALL)
    monkeypatch.setattr(kernels, "SCAN_SIZES", SMALL)
    monkeypatch.setattr(kernels, "BATCH_BYTES", 2**14)


@pytest.mark.usefixtures("_small")
def test_every_part(tmp_path, capsys):
    pytest.importorskip("faiss")
    path, own = tmp_path / "kernels.jsonl", isa.in_use()
    arguments = ["--rounds", "1", "--seconds", "0", "--bits", "64", "384", "--queries", "5", "--k", "3"]
    kernels.main([*arguments, "--levels", own, "--output", str(path)])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    n_rows = {
        "Hamming blocks": 4, "one query, k = 10": 4, "batches": 2, "look-ups": 12, "tables": 6, "weights": 4,
        "products": 4,
    }  # fmt: skip
    for name, n in n_rows.items():
        found = [row for row in rows if row["table"] == name]
        assert len(found) == n
        for row in found:
            assert row["level"] == own
            assert all(value > 0 for key, value in row.items() if isinstance(value, int | float) and key != "path")
            if "read GB/s" in row and row.get("where") == "memory":
                assert row["of limit"] == pytest.approx(row["GB/s"] / row["read GB/s"])
    in_cache = next(row for row in rows if row["table"] == "look-ups" and (row["dims"], row["bits"]) == (384, 1))
    assert (in_cache["where"], in_cache["trial"]) == ("cache", 42)
    assert capsys.readouterr().out.count("an earlier measurement") == 3


@pytest.mark.usefixtures("_small")
@pytest.mark.skipif(isa.in_use() not in LEVELS, reason="there is no level below")
def test_levels_stand_side_by_side(tmp_path):
    path, own = tmp_path / "kernels.jsonl", isa.in_use()
    kernels.main(["--rounds", "1", "--bits", "64", "--parts", "tables", "--output", str(path)])
    found = [row["level"] for row in map(json.loads, path.read_text().splitlines()) if row["table"] == "tables"]
    assert found == 3 * [own, *LEVELS[own]]


def test_levels_of_a_run():
    own = isa.in_use()
    assert list(kernels.levels(None)) == [own, *LEVELS.get(own, [])]
    assert kernels.levels([own]) == {own: {}}
    with pytest.raises(SystemExit, match=r"--levels must be among .*, got sse9"):
        kernels.levels(["sse9"])


def test_a_run_that_is_held_to_a_level_has_no_other(monkeypatch):
    monkeypatch.setenv("CBEINDEX_BENCH_ISA", "avx2")
    assert list(kernels.levels(None)) == [isa.in_use()]


def test_plain_loops_compute_what_they_stand_for():
    """A loop that does less than the kernel beside it would make the kernel look slow."""
    rng = np.random.default_rng(0)
    rows, query = rng.integers(0, 2**64, (16, 3), dtype=np.uint64), rng.integers(0, 2**64, 3, dtype=np.uint64)
    codes, out, order = np.ascontiguousarray(rows.T[np.newaxis]), np.zeros((4, 16), dtype=np.int32), np.array([0])
    expected = np.bitwise_count(rows ^ query).sum(axis=1)
    hamming.plain_distances(query, codes, order, out)
    np.testing.assert_array_equal(out[0], expected)
    limits = np.full((1, 1), 2**31, dtype=np.int64)
    out[:] = 0
    hamming.distances(planes_of(query[np.newaxis]), (0,), codes, order, 0, limits, out)
    np.testing.assert_array_equal(out[0], expected)
    block = rng.integers(0, 256, (1, 32 * 5), dtype=np.uint8)
    tables, sums = rng.integers(0, 128, (1, 320), dtype=np.uint8), np.zeros((2, 1, 32), dtype=np.int32)
    lookups.plain_sums(block, 5, tables, order, sums[0])
    lookups.sums(block, 5, tables, (0,), order, True, sums[1])
    assert sums[0].any()
    np.testing.assert_array_equal(sums[0], sums[1])


def test_all_that_is_asked_for_is_read():
    words = np.arange(1, 8, dtype=np.uint64)
    assert timing.read(words, 3) == 6
    assert timing.read(words, 10) == 28 * 3 + 6, "in turns, of which the last is short"
    items = timing.Memory(64).as_items(100)
    assert items.shape == (2, 100), "two items at least, so that there is an order"
    assert items.any()


def test_codes_are_padded_to_words():
    codes = hamming.Codes.random(72, 9 * 32, np.random.default_rng(0))
    assert (codes.rows.shape, codes.blocks.shape) == ((32, 9), (2, 2, 16))
    np.testing.assert_array_equal(codes.blocks[1, 0, 3], codes.rows[19, :8].view(np.uint64)[0])
    assert codes.blocks[1, 1, 3] == codes.rows[19, 8]
