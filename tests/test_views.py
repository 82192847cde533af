"""Views of arrays in kernels, compared with those of numpy."""

import numpy as np
import pytest

from cbeindex.kernels.jit import njit
from cbeindex.kernels.views import read_only, view_as

pytestmark = pytest.mark.kernels


@njit(nogil=True)
def as_int32(array):
    return view_as(array, np.int32)


@njit(nogil=True)
def as_int8(array):
    return view_as(array, np.int8)


@njit(nogil=True)
def write_first(array, value):
    view_as(array, np.float32)[0] = value


@njit(nogil=True)
def total(array):
    shown = read_only(array)
    result = 0.0
    for i in range(shown.size):
        result += shown[i]
    return result


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (3, 5), (0, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float64])
def test_views_are_those_of_numpy(shape, dtype):
    array = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    for view, kind in ((as_int32, np.int32), (as_int8, np.int8)):
        seen = view(array)
        assert seen.dtype == kind
        np.testing.assert_array_equal(seen, array.view(kind))


def test_bytes_become_floats():
    array = np.arange(24, dtype=np.uint8)
    np.testing.assert_array_equal(as_int32(array[4:20]), array[4:20].view(np.int32))
    write_first(array, 1.5)
    np.testing.assert_array_equal(array[:4], np.array([1.5], dtype=np.float32).view(np.uint8))


def test_views_share_and_keep_the_memory_of_the_array():
    seen = as_int32(np.full(1_000, 3.0, dtype=np.float32))
    others = [np.empty(1_000, dtype=np.float32) for _ in range(8)]  # would get memory that was freed
    for other in others:
        other[:] = 0
    assert (seen == np.float32(3).view(np.int32)).all()


def test_arrays_that_are_only_read_stay_usable():
    array = np.arange(10.0)
    assert total(array) == total(array) == 45
    array[0] = 1
    assert total(array) == 46
