import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import BinaryIndex
from cbeindex.data.ids import as_filter
from cbeindex.data.sorted import is_in, without
from tests.small import KINDS, check_equal, examples, small_buckets
from tests.strategies import some_codes

ids = st.sets(st.integers(0, 60)).map(lambda values: np.array(sorted(values), dtype=np.int64))


@given(some=ids, others=ids)
def test_agrees_with_numpy(some, others):
    np.testing.assert_array_equal(is_in(some, others), np.isin(some, others))
    np.testing.assert_array_equal(without(some, others), np.setdiff1d(some, others))


@given(st.lists(st.integers(-5, 20)))
def test_filters_ascend(values):
    assert as_filter(values, "allow").tolist() == sorted(set(values))


@pytest.mark.parametrize("kind", [None, *KINDS])
@examples(30)
@given(allow=ids, deny=ids, long=st.booleans())
def test_filters_of_any_length(kind, allow, deny, long):
    """A filter that is much longer than the index, by ids that are not there, gives the same answers."""
    with small_buckets():
        index = BinaryIndex(64, kind)
        codes = some_codes(np.random.default_rng(0), 50, 64)
        index.add(codes, np.random.default_rng(1).permutation(60)[:50])
        index.remove(index.ids[::7])
        elsewhere = np.arange(-500, 5000) if long else np.arange(-3, 0)
        elsewhere = elsewhere[(elsewhere < 0) | (elsewhere > 60)]
        for given_filters in ({"allow": allow}, {"deny": deny}, {"allow": allow, "deny": deny}):
            longer = {name: np.append(values, elsewhere) for name, values in given_filters.items()}
            check_equal(index.search(codes[:3], 50, **longer), index.search(codes[:3], 50, **given_filters))
            live = set(index.ids.tolist()) & set(given_filters.get("allow", index.ids).tolist())
            live -= set(given_filters.get("deny", np.empty(0)).tolist())
            found = index.search(codes[0], 50, mode="scan", **longer).ids
            assert set(found[found >= 0].tolist()) == live
            assert set(index.range_search(codes[0], 64, **longer).ids.tolist()) == live
