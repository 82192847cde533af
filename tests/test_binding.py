"""Bound arguments in kernels: the same arrays and numbers that were bound."""

import numpy as np
import pytest

from cbeindex.kernels.binding import array_at, bind, float_at, int_at
from cbeindex.kernels.jit import njit

pytestmark = pytest.mark.kernels

KINDS = (int, (np.float32, 1), float, (np.uint8, 2), (np.bool_, 1), (np.int64, 2))


@njit(nogil=True)
def numbers_of(bound):
    return int_at(bound, 0), float_at(bound, 2)


@njit(nogil=True)
def copied(bound, floats, byte_rows, flags, rows):
    floats[:] = array_at(bound, 1, np.float32, 1)
    byte_rows[:] = array_at(bound, 3, np.uint8, 2)
    flags[:] = array_at(bound, 4, np.bool_, 1)
    rows[:] = array_at(bound, 5, np.int64, 2)


@njit(nogil=True)
def first_of_row(bound, row):
    return array_at(bound, 5, np.int64, 2)[row, 0]


def some_arrays(n):
    rng = np.random.default_rng(n)
    return (
        rng.standard_normal(n).astype(np.float32), rng.integers(0, 256, (n, 5), dtype=np.uint8),
        rng.random(n) < 0.5, rng.integers(-(2**62), 2**62, (2, n)),
    )  # fmt: skip


@pytest.mark.parametrize("n", [0, 1, 7, 40])
def test_kernels_read_what_was_bound(n):
    arrays = some_arrays(n)
    for array in arrays:
        array.flags.writeable = False
    floats, byte_rows, flags, rows = arrays
    bound = bind(KINDS, (-(2**40), floats, 0.1, byte_rows, flags, rows))
    assert numbers_of(bound) == (-(2**40), 0.1)
    seen = [np.zeros_like(array) for array in arrays]
    copied(bound, *seen)
    for array, copy in zip(arrays, seen, strict=True):
        np.testing.assert_array_equal(copy, array)


def test_arrays_are_read_when_the_kernel_runs():
    arrays = some_arrays(3)
    bound = bind(KINDS, (1, arrays[0], 0.0, *arrays[1:]))
    arrays[3][1, 0] = 77
    assert first_of_row(bound, 1) == 77


@pytest.mark.parametrize("change", [lambda a: a.astype(np.int32), lambda a: a[0], lambda a: a[:, ::2], lambda a: a.T])
def test_other_arrays_are_refused(change):
    """A kernel would read other memory than theirs."""
    arrays = some_arrays(6)
    with pytest.raises(TypeError, match="argument 5 must be"):
        bind(KINDS, (1, arrays[0], 0.0, *arrays[1:3], change(arrays[3])))
