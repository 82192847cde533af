"""Files with cells whose values no save writes: refused at load or by `verify`, and searched without harm."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from cbeindex import CBEIndex, CorruptIndexFileError, IndexFileError, verify
from fuzz import container
from tests.sample_indexes import DIM, small_sizes, some_rows

pytestmark = pytest.mark.kernels

CELLS = "segment 1.0/residual cells/"


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """A file that is built once, because that takes two seconds where kernels are not compiled."""
    path = tmp_path_factory.mktemp("cells") / "cells.cbe"
    with small_sizes():
        index = CBEIndex(DIM, vectors="float32", buckets="cells", cell_bits=4)
        index.add(some_rows(90))
        index.save(path)
    return path


@pytest.fixture
def saved(cells, tmp_path):
    with small_sizes():
        yield Path(shutil.copy(cells, tmp_path))


def change(path, section, edit):
    """Change the values of a section, with correct checksums."""
    file = container.parse(path.read_bytes())
    file.section(section).array = edit(file.section(section).array)
    container.write(file, path)


def set_at(place, value):
    def edit(array):
        array.reshape(-1)[place] = value
        return array

    return edit


AT_LOAD = {
    "places that descend": ("places", set_at(1, 0)),
    "places that begin early": ("places", set_at(0, -1)),
    "places behind the records": ("places", set_at(-1, 10**6)),
    "offsets that descend": ("offsets", set_at(1, -5)),
    "offsets that end early": ("offsets", set_at(-1, 3)),
    "a centre that does not exist": ("centres", set_at(0, 255)),
    "scales that are not finite": ("scales", set_at(0, np.nan)),
    "scales below 0": ("scales", set_at(0, -1)),
    "centroids that are far too long": ("scales", set_at(0, 1e30)),
    "fewer centroids": ("centroids", lambda array: array[:-1]),
    "shorter records": ("records", lambda array: np.ascontiguousarray(array[:, :-1])),
    "fewer records": ("records", lambda array: array[:-1]),
}


@pytest.mark.parametrize("name", AT_LOAD)
def test_values_that_would_lead_astray_are_refused_at_load(saved, name):
    section, edit = AT_LOAD[name]
    change(saved, CELLS + section, edit)
    with pytest.raises(CorruptIndexFileError):
        CBEIndex.load(saved)


def test_centres_are_checked_at_load(saved):
    change(saved, "residuals/scales", set_at(3, np.inf))
    with pytest.raises(CorruptIndexFileError, match="centres must be"):
        CBEIndex.load(saved)


def rows_at(array):
    """View the row numbers of records."""
    return array[:, -128:].view("<i4")


@pytest.mark.parametrize("value", [-1, 90, 2**31 - 1, -(2**31)])
def test_row_numbers_that_do_not_exist_are_never_followed(saved, value):
    def edit(array):
        rows_at(array)[:, ::2] = value
        return array

    change(saved, CELLS + "records", edit)
    with pytest.raises(CorruptIndexFileError, match="cells must hold their own rows"):
        verify(saved)
    found = CBEIndex.load(saved).search(some_rows(4, seed=1), 60, mode="scan")
    assert ((found.ids >= -1) & (found.ids < 90)).all()


@pytest.mark.parametrize("part", ["ranks"])
@pytest.mark.parametrize("value", [-1, 90, 2**31 - 1])
def test_orders_of_rows_that_do_not_exist_are_never_followed(saved, part, value):
    def edit(array):
        array[5:-5] = value
        return array

    change(saved, f"segment 1.0/{part}", edit)
    with pytest.raises(IndexFileError):
        verify(saved)
    try:
        found = CBEIndex.load(saved).search(some_rows(4, seed=1), 60, mode="scan")
    except CorruptIndexFileError:
        return
    assert ((found.ids >= -1) & (found.ids < 90)).all()


def test_numbers_of_codes_are_verified(saved):
    def edit(array):
        array[0, -640:-512].view("<f4")[0] = np.nan  # the first factor
        return array

    change(saved, CELLS + "records", edit)
    with pytest.raises(CorruptIndexFileError, match="numbers of residual codes"):
        verify(saved)
    CBEIndex.load(saved).search(some_rows(4, seed=1), 5, mode="scan")


def test_segments_of_an_index_with_cells_must_have_cells(saved):
    file = container.parse(saved.read_bytes())
    file.content["rows"]["segments"][0]["buckets"] = None
    container.write(file, saved)
    with pytest.raises(CorruptIndexFileError, match="must have buckets"):
        CBEIndex.load(saved)


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """A file whose cells have copies, built once."""
    path = tmp_path_factory.mktemp("copies") / "copies.cbe"
    with small_sizes():
        index = CBEIndex(DIM, vectors="float32", buckets="cells", cell_bits=4, spill=True, n_cells=8)
        index.add(some_rows(90))
        assert index.stats()["bytes"]["copies"] > 0
        index.save(path)
        verify(path)
    return path


@pytest.fixture
def spilled(copies, tmp_path):
    with small_sizes():
        yield Path(shutil.copy(copies, tmp_path))


COPIES_AT_LOAD = {
    "starts that descend": ("copy_starts", set_at(1, 10**6)),
    "starts that begin late": ("copy_starts", set_at(0, 1)),
    "starts that end early": ("copy_starts", set_at(-1, 0)),
    "shorter records": ("copies", lambda array: np.ascontiguousarray(array[:, :-1])),
    "fewer records": ("copies", lambda array: array[:-1]),
}


@pytest.mark.parametrize("name", COPIES_AT_LOAD)
def test_copies_that_would_lead_astray_are_refused_at_load(spilled, name):
    section, edit = COPIES_AT_LOAD[name]
    change(spilled, CELLS + section, edit)
    with pytest.raises(CorruptIndexFileError):
        CBEIndex.load(spilled)


@pytest.mark.parametrize("value", [-1, 90, 2**31 - 1, -(2**31), 7])
def test_copies_of_no_row_or_of_one_row_are_verified_and_do_no_harm(spilled, value):
    def edit(array):
        rows_at(array)[:, ::2] = value
        return array

    change(spilled, CELLS + "copies", edit)
    with pytest.raises(CorruptIndexFileError, match=r"copies must be of rows|one copy at most"):
        verify(spilled)
    with small_sizes():
        found = CBEIndex.load(spilled).search(some_rows(4, seed=1), 10, n_probes=2, n_candidates=60)
    assert all(len(set(ids)) == 10 for ids in found.ids.tolist())
    assert ((found.ids >= 0) & (found.ids < 90)).all()


def test_numbers_of_copies_are_verified(spilled):
    def edit(array):
        array[0, -640:-512].view("<f4")[0] = np.nan  # the first factor
        return array

    change(spilled, CELLS + "copies", edit)
    with pytest.raises(CorruptIndexFileError, match="numbers of residual codes"):
        verify(spilled)


def test_copies_in_their_own_cells_are_verified(spilled):
    file = container.parse(spilled.read_bytes())
    n_rows = int(file.section(CELLS + "offsets").array[1])
    change(spilled, CELLS + "copies", set_at(slice(None), 0))
    change(spilled, CELLS + "copies", lambda array: _of_rows(array, n_rows))
    with pytest.raises(CorruptIndexFileError, match="in another cell"):
        verify(spilled)


def _of_rows(array, n):
    """Records of zeros whose first places hold rows of the first cell, the others none."""
    array[:, -512:-384].view("<f4")[:] = np.inf
    array[0, -512:-384].view("<f4")[:n] = 0
    rows_at(array)[0, :n] = np.arange(n)[:32]
    return array
