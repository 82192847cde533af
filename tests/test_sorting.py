"""The sort of kernels."""

import numpy as np
import pytest

from cbeindex.kernels.sorting import sort_keys

pytestmark = pytest.mark.kernels

ORDERS = {
    "random": lambda keys: keys,
    "ascending": np.sort,
    "descending": lambda keys: np.sort(keys)[::-1].copy(),
    "few values": lambda keys: keys % 5,
    "organ pipe": lambda keys: np.concatenate([np.sort(keys[::2]), np.sort(keys[1::2])[::-1]]),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [np.uint64, np.int64])
@pytest.mark.parametrize("n", [0, 1, 2, 24, 25, 26, 300, 1_000])
def test_keys_are_sorted_in_their_range_alone(n, dtype, order):
    least = 0 if dtype is np.uint64 else -(2**62)
    keys = np.random.default_rng(n).integers(least, 2**63 - 1, n + 7, dtype=dtype)
    keys[3 : 3 + n] = ORDERS[order](keys[3 : 3 + n])
    expected = keys.copy()
    expected[3 : 3 + n].sort()
    sort_keys(keys, 3, 3 + n)
    np.testing.assert_array_equal(keys, expected)
