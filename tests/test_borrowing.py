"""References to arrays that kernels count, and the memory of arrays that kernels make and return."""

import re
import weakref
from typing import Any

import numba
import numpy as np
import pytest
from numba.core.runtime import nrt

from cbeindex.kernels import jit, linking
from tests.conftest import COMPILED

_statistics: Any = nrt

pytestmark = [
    pytest.mark.skipif(not COMPILED, reason="nothing is compiled"),
    pytest.mark.skipif(not linking.is_supported(), reason="kernels are compiled as by numba"),
]


def counts_in(kernel) -> int:
    """Return how many places of the code of a kernel count references."""
    (code,) = kernel.inspect_llvm().values()
    body = code[code.index("define") :]
    return len(re.findall(r"call void @NRT_incref", body))


def summing(njit):
    """Make kernels that take views of their arguments in a loop, and pass them on."""

    @njit(nogil=True)
    def total_of(row, scale):
        total = 0.0
        for i in range(row.size):
            total += row[i] * scale[0]
        return total

    @njit(nogil=True)
    def largest(rows, chosen, scale):
        best = -np.inf
        for i in chosen:
            if i >= rows.shape[0]:
                return np.nan
            row = rows[i]
            if row.size and row[0] < 0:
                row = row[1:]
            best = max(best, total_of(row, scale), total_of(rows[i, 1:], scale))
        return best

    return largest


def test_arguments_are_not_counted():
    rows, chosen, scale = np.arange(12.0).reshape(4, 3), np.array([0, 2]), np.ones(1)
    ours, theirs = summing(jit.njit), summing(numba.njit)
    assert ours(rows, chosen, scale) == theirs(rows, chosen, scale) == 21
    assert np.isnan(ours(rows, np.array([4]), scale))
    assert counts_in(theirs) > 0, "numba has learned not to count, and so this need not be done here"
    assert counts_in(ours) == 0


def test_returned_views_hold_their_memory():
    @jit.njit(nogil=True)
    def tail(values):
        return values[1:]

    @jit.njit(nogil=True)
    def tail_of_new(n):
        values = np.arange(n)
        part = tail(values)
        if part.size > 2:
            part = part[1:]
        return part

    values = np.arange(1000)
    lives = weakref.ref(values)
    part = tail(values)
    del values
    assert lives() is not None
    np.testing.assert_array_equal(part, np.arange(1, 1000))
    del part
    assert lives() is None
    np.testing.assert_array_equal(tail_of_new(100_000), np.arange(2, 100_000))


def test_arguments_are_released():
    values = np.arange(10.0)
    lives = weakref.ref(values)
    assert summing(jit.njit)(values.reshape(5, 2), np.array([0]), values[1:]) == 1
    del values
    assert lives() is None


@pytest.fixture
def counted():
    """Let numba count allocations."""
    was_enabled = _statistics._nrt.memsys_stats_enabled()
    _statistics._nrt.memsys_enable_stats()
    yield
    if not was_enabled:
        _statistics._nrt.memsys_disable_stats()


def test_new_arrays_are_freed_however_a_kernel_ends(counted):
    @jit.njit(nogil=True)
    def total_of(row):
        if row.size and row[0] < 0:
            raise ValueError("negative")
        return row.sum()

    @jit.njit(nogil=True)
    def kernel(n, first):
        made = np.full((n, 3), first)
        total = 0.0
        for i in range(n):
            total += total_of(made[i])
            if total > 100:
                return total
        return total

    assert kernel(4, 1.0) == 12
    before = _statistics.rtsys.get_allocation_stats()
    assert kernel(100, 1.0) == 102
    assert kernel(3, 2.0) == 18
    with pytest.raises(ValueError, match="negative"):
        kernel(3, -1.0)
    after = _statistics.rtsys.get_allocation_stats()
    assert after.alloc - before.alloc == 3
    # numba leaves arrays to the operating system where an exception passes.
    assert after.alloc - before.alloc - (after.free - before.free) <= 1


def test_arrays_of_both_kinds_are_freed_once(counted):
    @jit.njit(nogil=True)
    def larger(left, right):
        return left if left[0] > right[0] else right

    @jit.njit(nogil=True)
    def kernel(given, n):
        total, kept = 0.0, given
        for i in range(n):
            made = np.full(3, float(i))
            if i % 2:
                kept = made
            total += larger(kept, given)[1:].sum() + larger(given[1:], made[1:]).sum()
        return total

    given = np.full(3, 2.5)
    expected = kernel.py_func(given, 7)
    before = _statistics.rtsys.get_allocation_stats()
    for _ in range(100):
        assert kernel(given, 7) == expected
    after = _statistics.rtsys.get_allocation_stats()
    assert after.alloc - before.alloc == after.free - before.free >= 700
    np.testing.assert_array_equal(given, np.full(3, 2.5))
