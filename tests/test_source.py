"""Coercion of what callers give, and the errors about single rows."""

import pickle

import numpy as np
import pytest

from cbeindex.data.rowerror import RowError
from cbeindex.data.source import VectorSource


def test_row_errors_carry_their_parts():
    rows = np.zeros((5, 3), dtype=np.float32)
    rows[2, 1] = np.nan
    with pytest.raises(ValueError, match=r"^X must be finite in float32, row 2 is not$") as raised:
        VectorSource(rows, 3).refuse(2)
    error = raised.value
    assert isinstance(error, RowError)
    assert (error.name, error.rule, error.row, error.problem) == ("X", "must be finite in float32", 2, "is not")
    assert str(error.relocated("a.npy", 70)) == "a.npy must be finite in float32, row 70 is not"


def test_parts_of_a_source_number_rows_as_the_whole_does():
    rows = np.full((4, 3), np.inf, dtype=np.float32)
    part = VectorSource(np.zeros((9, 3)), 3, "queries").part(5, rows)
    with pytest.raises(RowError, match="queries must be finite in float32, row 6 is not"):
        part.refuse(1)


def test_row_errors_can_be_pickled():
    """Process pools send exceptions to their caller as pickles."""
    error = RowError("X", "must be finite", 3, "is not")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.row) == (RowError, str(error), 3)
