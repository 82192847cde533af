"""Small tuning constants, with which few rows make several segments and buckets; and helpers for such indexes."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from hypothesis import settings

from cbeindex import BinaryIndex
from cbeindex._core import tuning as module
from cbeindex._core.tuning import tuned, tuning
from tests.conftest import COMPILED

KINDS = ("clusters", "substrings")
ALL = 10**6
"""More probes than there are buckets."""


class NeverSpent(int):
    """A `table_budget_share` with which no search by tables is left to a scan."""

    def __rfloordiv__(self, other):
        return 2**40


# A buffer of 32 rows, buckets for 24, little training, and no search by tables that is left to a scan.
_SMALL = {
    "buffer_rows": 32,
    "bucket_buffer_rows": 32,
    "least_buffer_rows": 4,
    "least_table_segment_rows": 24,
    "table_budget_share": NeverSpent(),
    "least_cell_segment_rows": 24,
    "least_cell_rows": 8,
    "kmeans_rows": 4,
    "kmeans_iterations": 1,
    "probe_sample_rows": 8,
    "first_rows": 40,
    "least_graph_segment_rows": 24,
    "graph_step_rows": 1,
    "graph_leaf_rows": 12,
    "graph_building_beam": 8,
    "least_calibration_queries": 8,
    "most_calibration_queries": 8,
    "fewest_calibration_queries": 8,
    "least_whole_rows": 24,
    "least_first_rows": 4,
}

VERY_SMALL = {
    "buffer_rows": 8,
    "bucket_buffer_rows": 8,
    "least_buffer_rows": 2,
    "least_table_segment_rows": 4,
    "least_cell_segment_rows": 4,
    "least_cell_rows": 2,
    "first_rows": 12,
}
"""Changes that make a buffer of 8 rows, and buckets for 4."""


def examples(n):
    """Settings for `n` examples; a fifth of them where kernels are not compiled."""
    return settings(max_examples=n if COMPILED else n // 5)


@contextmanager
def small_buckets(changes=None):
    """Work with small constants, and with `changes` of them."""
    with tuned(**_SMALL | (changes or {})):
        yield


def tune(monkeypatch, **changes):
    """Work with other constants until `monkeypatch` is undone."""
    monkeypatch.setattr(module, "_current", replace(tuning(), **changes))


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
