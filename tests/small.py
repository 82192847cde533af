"""Small buckets: few rows make several segments, with buckets and without; and what tests ask of such indexes."""

from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
from hypothesis import settings

from cbeindex import BinaryIndex
from tests.conftest import COMPILED

KINDS = ("clusters", "substrings")
ALL = 10**6
"""More probes than there are buckets."""


class NeverSpent(int):
    """A share of a scan that is as large as one likes."""

    def __rfloordiv__(self, other):
        return 2**40


# A buffer of 32 rows, buckets for 24, little training, and no search by tables that is left to a scan.
_CONSTANTS = {
    "store.rowstore._BUFFER_ROWS": 32,
    "store.rowstore._BUCKETS_BUFFER_ROWS": 32,
    "store.rowstore._LEAST_ROWS": 4,
    "search.buckets.substrings.LEAST_ROWS": 24,
    "search.buckets.substrings._BUDGET_SHARE": NeverSpent(),
    "search.buckets.clusters.LEAST_ROWS": 24,
    "search.buckets.clusters._LEAST_CELL_ROWS": 8,
    "search.buckets.centroids._TRAINING_ROWS": 4,
    "search.buckets.centroids._N_ROUNDS": 1,
    "search.buckets.clusters._N_ASKED": 8,
    "store.ingest._FIRST_ROWS": 40,
    "store.ingest._LEAST_FIRST_ROWS": 4,
}


VERY_SMALL = {
    "store.rowstore._BUFFER_ROWS": 8,
    "store.rowstore._BUCKETS_BUFFER_ROWS": 8,
    "store.rowstore._LEAST_ROWS": 2,
    "search.buckets.substrings.LEAST_ROWS": 4,
    "search.buckets.clusters.LEAST_ROWS": 4,
    "search.buckets.clusters._LEAST_CELL_ROWS": 2,
    "store.ingest._FIRST_ROWS": 12,
}
"""Changes that make a buffer of 8 rows, and buckets for 4."""


def examples(n):
    """Settings for so many examples; a fifth of them where kernels are not compiled."""
    return settings(max_examples=n if COMPILED else n // 5)


@contextmanager
def small_buckets(changes=None):
    """Work with small constants, and with `changes` of them."""
    with ExitStack() as patches:
        for name, value in (_CONSTANTS | (changes or {})).items():
            patches.enter_context(mock.patch(f"cbeindex.{name}", value))
        yield


def segments_of(index):
    rows = index._rows if isinstance(index, BinaryIndex) else index._state.rows
    return rows.snapshot().segments


def buckets_of(index):
    return [segment.buckets for segment in segments_of(index)]


def check_equal(result, expected):
    """The same ids at the same distances, ties included."""
    np.testing.assert_array_equal(result.ids, expected.ids)
    np.testing.assert_array_equal(result.distances, expected.distances)
    assert result.distances.dtype == expected.distances.dtype
