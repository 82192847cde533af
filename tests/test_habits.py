"""Names and forms of arguments that users of other libraries are used to."""

import numpy as np
import pytest

from cbeindex import BinaryIndex, CBEIndex

X = np.random.default_rng(0).standard_normal((60, 16), dtype=np.float32)
CODES = np.random.default_rng(1).integers(0, 256, (60, 8), dtype=np.uint8)


@pytest.mark.parametrize(
    ("alias", "metric"),
    [("angular", "cosine"), ("euclidean", "l2"), ("sqeuclidean", "l2"), ("dot", "ip"), ("inner_product", "ip")],
)
def test_metric_aliases(alias, metric):
    index, same = (
        CBEIndex(16, metric=alias, vectors=None, buckets=None),
        CBEIndex(16, metric=metric, vectors=None, buckets=None),
    )
    assert index.metric == metric
    index.add(X)
    same.add(X)
    np.testing.assert_array_equal(index.search(X, k=5).distances, same.search(X, k=5).distances)
    same.merge(CBEIndex(16, metric=alias, vectors=None, buckets=None))


@pytest.mark.parametrize("metric", ["manhattan", None, ["l2"]])
def test_other_metrics_are_refused(metric):
    with pytest.raises(ValueError, match=r"metric must be one of 'cosine', 'l2', 'ip' \(or 'angular', .*\), got"):
        CBEIndex(16, metric=metric, vectors=None, buckets=None)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.float32, "float32"),
        (np.float16, "float16"),
        (np.dtype(np.float16), "float16"),
        (True, "float32"),
        (False, None),
        (None, None),
    ],
)
def test_types_of_kept_vectors(given, kept):
    assert CBEIndex(16, vectors=given, buckets=None).vectors == kept


@pytest.mark.parametrize("given", [np.int64, float, "double", 32])
def test_other_types_of_kept_vectors_are_refused(given):
    with pytest.raises(ValueError, match="vectors must be one of"):
        CBEIndex(16, vectors=given, buckets=None)


def indexes():
    vectors = CBEIndex(16, vectors="float32", buckets=None)
    vectors.add(X)
    codes = BinaryIndex(64)
    codes.add(CODES)
    return vectors, codes


@pytest.mark.parametrize("index", indexes(), ids=["vectors", "codes"])
def test_remove_names_all_that_are_missing(index):
    with pytest.raises(ValueError, match="ids 70, 99 are not in the index"):
        index.remove([3, 99, 5, 70])
    with pytest.raises(ValueError, match=r"^id 70 is not in the index"):
        index.get([3, 70])
    with pytest.raises(ValueError, match=r"ids 1000, 1001, .*, 1099 and 900 more are not in the index"):
        index.remove(np.arange(1000, 2000))
    with pytest.raises(ValueError, match="missing must be one of 'raise', 'ignore', got 'skip'"):
        index.remove([3], missing="skip")
    assert len(index) == 60
    index.remove([3, 99, 5, 70], missing="ignore")
    assert sorted(set(range(60)) - set(index.ids.tolist())) == [3, 5]


@pytest.mark.parametrize("index", indexes(), ids=["vectors", "codes"])
def test_sets_and_views_of_dictionaries(index):
    rows = X if isinstance(index, CBEIndex) else CODES
    names = {100: "a", 7: "b", 200: "c"}
    index.remove({7, 8})
    index.add(rows[:3], names.keys())
    np.testing.assert_array_equal(index.get(names.keys()), rows[:3])
    np.testing.assert_array_equal(index.get({"x": 200}.values()), rows[2:3])
    found = index.search(rows[1], k=4, allow=names.keys(), deny={100}).ids
    assert found.tolist() == [7, 200, -1, -1]
    for call in (lambda: index.add(rows[:2], {900, 901}), lambda: index.get(frozenset({7}))):
        with pytest.raises(TypeError, match=r"ids must be in the order of the rows, got a (frozen)?set"):
            call()


@pytest.mark.parametrize("index", indexes(), ids=["vectors", "codes"])
def test_messages_name_the_path_of_the_caller(index, tmp_path):
    path = tmp_path / "nofolder" / "x.cbe"
    with pytest.raises(FileNotFoundError) as caught:
        index.save(path)
    assert caught.value.filename == str(path)
    assert "part" not in str(caught.value)


def test_codes_of_stored_vectors():
    index = CBEIndex(16, n_bits=100, vectors=None, buckets=None)
    index.add(X, ids=np.arange(60) + 10)
    with pytest.raises(ValueError, match="have no codes until the index is fitted"):
        index.codes([10])
    index.fit(X)
    encoded = index.encoder.encode(X / np.linalg.norm(X, axis=1, keepdims=True))
    np.testing.assert_array_equal(index.codes(np.arange(60) + 10), encoded)
    np.testing.assert_array_equal(index.codes(12), encoded[2])
    with pytest.raises(ValueError, match="ids 3, 4 are not in the index"):
        index.codes([3, 10, 4])
    without = CBEIndex(16, buckets="graph", hamming=False, vectors=None)
    without.add(X)
    with pytest.raises(ValueError, match="keeps no Hamming codes: make it with hamming=True"):
        without.fit(X).codes([0])
