"""The memo of searches: what it keeps, and for how long."""

import numpy as np

from cbeindex._core.memo import Memo
from cbeindex._core.tuning import tuned


def test_values_are_kept_by_options():
    memo = Memo()
    memo.put((1, "scan", None), "a")
    memo.put((2, "scan", None), "b")
    assert memo.get((1, "scan", None)) == "a"
    assert memo.get((2, "scan", None)) == "b"
    assert memo.get((3, "scan", None)) is None


def test_options_of_other_types_are_not_found():
    """These are equal to 1, and some of them are wrong where 1 is right."""
    memo = Memo()
    memo.put((1,), "a")
    for option in (True, 1.0, np.int64(1), np.array(1), np.array([1, 1])):
        assert memo.get((option,)) is None


def test_options_that_may_change_are_not_kept():
    memo, option = Memo(), np.array(1)
    memo.put((option,), "a")
    assert memo.get((option,)) is None
    assert memo.get((1,)) is None


def test_other_constants_begin_an_empty_memo():
    memo = Memo()
    memo.put((1,), "a")
    with tuned(query_rows=7):
        assert memo.get((1,)) is None
        memo.put((2,), "b")
        assert memo.get((2,)) == "b"
    assert memo.get((1,)) is None
    assert memo.get((2,)) is None


def test_a_memo_stays_small():
    memo = Memo()
    for i in range(100):
        memo.put((i,), i)
        assert memo.get((i,)) == i
    assert sum(memo.get((i,)) is not None for i in range(100)) < 10
