"""One query by one call of a kernel, in an index of codes without buckets."""

import numpy as np
import pytest

from cbeindex import CBEIndex

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_a_query_alone_is_answered_as_in_a_batch(metric):
    """Equal to the last bit, with errors, also when the search is kept from an earlier call."""
    rng = np.random.default_rng(3)
    rows, queries = (rng.standard_normal((n, 70)).astype(np.float32) for n in (3_000, 7))
    index = CBEIndex(70, metric=metric, vectors=None, buckets=None)
    index.fit(rows)
    index.add(rows)
    batch = index.search(queries, 5)
    for _ in range(2):
        for i, query in enumerate(queries):
            alone = index.search(query, 5)
            np.testing.assert_array_equal(alone.ids, batch.ids[i])
            np.testing.assert_array_equal(alone.distances, batch.distances[i])
            np.testing.assert_array_equal(alone.errors, batch.errors[i])
    with pytest.raises(ValueError, match="finite"):
        index.search(np.full(70, np.nan, dtype=np.float32), 5)
