"""Numbers of float16 in kernels."""

import numpy as np
import pytest

from cbeindex.kernels.halves import as_float
from cbeindex.kernels.jit import njit

pytestmark = pytest.mark.kernels


@njit(nogil=True)
def convert(values, out):
    for i in range(values.size):
        out[i] = as_float(values[i])


def test_every_float16_is_read_right():
    """As numpy reads it, subnormal numbers and infinity among them; a nan stays one."""
    every = np.arange(2**16, dtype=np.uint16)
    out = np.empty(2**16, dtype=np.float32)
    with np.errstate(invalid="ignore"):  # some are signalling nans
        convert(every, out)
        np.testing.assert_array_equal(out, every.view(np.float16).astype(np.float32))


def test_float32_is_read_as_it_is():
    values = np.array([1.5, -0.1, np.inf, 1e-45], dtype=np.float32)
    out = np.zeros_like(values)
    convert(values, out)
    np.testing.assert_array_equal(out, values)
