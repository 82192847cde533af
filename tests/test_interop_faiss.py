"""faiss indexes to cbeindex and back, against the real package."""

import numpy as np
import pytest

from cbeindex import BinaryIndex, CBEIndex, interop

faiss = pytest.importorskip("faiss", reason="faiss-cpu has no wheel for this platform")

RNG = np.random.default_rng(0)
CODES = RNG.integers(0, 256, (300, 16), dtype=np.uint8)
X = RNG.standard_normal((300, 24), dtype=np.float32)
IDS = RNG.permutation(1_000)[:300]


def binary_flat():
    index = faiss.IndexBinaryFlat(128)
    index.add(CODES)
    return index, np.arange(300)


def binary_map():
    index = faiss.IndexBinaryIDMap(faiss.IndexBinaryFlat(128))
    index.add_with_ids(CODES, IDS)
    return index, IDS


def binary_map2():
    index = faiss.IndexBinaryIDMap2(faiss.IndexBinaryFlat(128))
    index.add_with_ids(CODES, IDS)
    return index, IDS


def binary_lists():
    index = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(128), 128, 4)
    index.train(CODES)
    index.add_with_ids(CODES, IDS)
    index.nprobe = 4
    return index, IDS


def mapped_binary_lists():
    inner = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(128), 128, 4)
    inner.train(CODES)
    inner.nprobe = 4
    index = faiss.IndexBinaryIDMap(inner)
    index.add_with_ids(CODES, IDS)
    return index, IDS


@pytest.mark.parametrize("make", [binary_flat, binary_map, binary_map2, binary_lists, mapped_binary_lists])
def test_binary_indexes(make):
    """Ids are kept, and distances are identical: row by row, and for the nearest of each query."""
    theirs, ids = make()
    ours = interop.from_faiss(theirs)
    assert isinstance(ours, BinaryIndex)
    np.testing.assert_array_equal(ours.ids, np.sort(ids))
    np.testing.assert_array_equal(ours.get(ids), CODES)
    wanted, _ = theirs.search(CODES[:20], 50)
    distances, found = ours.search(CODES[:20], 50)
    np.testing.assert_array_equal(distances, wanted)
    np.testing.assert_array_equal(found[:, 0], ids[:20])


def flat(metric):
    index = faiss.IndexFlat(24, metric)
    index.add(X)
    return index, np.arange(300)


def mapped_flat(metric):
    index = faiss.IndexIDMap2(faiss.IndexFlat(24, metric))
    index.add_with_ids(X, IDS)
    return index, IDS


def lists(metric):
    index = faiss.IndexIVFFlat(faiss.IndexFlat(24, metric), 24, 4, metric)
    index.train(X)
    index.add_with_ids(X, IDS)
    index.nprobe = 4
    return index, IDS


@pytest.mark.parametrize("make", [flat, mapped_flat, lists])
@pytest.mark.parametrize("metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT])
def test_indexes_of_vectors(make, metric):
    theirs, ids = make(metric)
    ours = interop.from_faiss(theirs)
    assert (ours.metric, ours.vectors) == ("l2" if metric == faiss.METRIC_L2 else "ip", "float32")
    np.testing.assert_array_equal(ours.get(ids), X)
    wanted, wanted_ids = theirs.search(X[:20] + 0.1, 10)
    distances, found = ours.search(X[:20] + 0.1, 10)
    np.testing.assert_array_equal(found, wanted_ids)
    expected = wanted if metric == faiss.METRIC_L2 else 1 - wanted
    np.testing.assert_allclose(distances, expected, rtol=1e-5, atol=1e-5)


def test_options_go_to_the_new_index():
    assert interop.from_faiss(flat(faiss.METRIC_L2)[0], vectors=None, n_bits=48).n_bits == 48
    assert interop.from_faiss(binary_flat()[0], buckets="clusters").buckets == "clusters"


def test_an_index_read_from_a_file_of_faiss(tmp_path):
    faiss.write_index_binary(binary_map2()[0], str(tmp_path / "codes.faiss"))
    ours = interop.from_faiss(faiss.read_index_binary(str(tmp_path / "codes.faiss")))
    np.testing.assert_array_equal(ours.get(IDS), CODES)


def test_empty_indexes():
    assert len(interop.from_faiss(faiss.IndexBinaryFlat(64))) == 0
    assert len(interop.from_faiss(faiss.IndexFlatL2(8))) == 0
    assert interop.to_faiss(BinaryIndex(64)).ntotal == 0


def our_codes():
    index = BinaryIndex(128)
    index.add(CODES, IDS)
    return index


def our_vectors(metric="l2", **options):
    index = CBEIndex(24, metric=metric, **{"vectors": None, "buckets": None, **({"vectors": "float32"} | options)})
    index.add(X, IDS)
    return index.fit(X)


def test_codes_to_faiss():
    theirs = interop.to_faiss(our_codes())
    assert isinstance(theirs, faiss.IndexBinaryIDMap2)
    distances, found = theirs.search(CODES[:20], 30)
    np.testing.assert_array_equal(distances, our_codes().search(CODES[:20], 30).distances)
    np.testing.assert_array_equal(found[:, 0], IDS[:20])
    np.testing.assert_array_equal(interop.from_faiss(theirs).get(IDS), CODES)


def test_codes_into_inverted_lists():
    into = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(128), 128, 4)
    theirs = interop.to_faiss(our_codes(), into)
    assert theirs is into
    into.nprobe = 4
    distances, found = into.search(CODES[:20], 30)
    np.testing.assert_array_equal(distances, our_codes().search(CODES[:20], 30).distances)
    np.testing.assert_array_equal(found[:, 0], IDS[:20])


def test_codes_that_do_not_fill_bytes():
    bits = RNG.random((50, 60)) < 0.5
    codes = interop.codes_from(bits, packed=False)
    index = BinaryIndex(60)
    index.add(codes)
    theirs = interop.to_faiss(index)
    assert theirs.d == 64
    np.testing.assert_array_equal(theirs.search(codes, 20)[0], index.search(codes, 20).distances)


@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_vectors_to_faiss(metric):
    ours = our_vectors(metric)
    theirs = interop.to_faiss(ours)
    distances, found = theirs.search(X[:20] + 0.1, 10)
    wanted, wanted_ids = ours.search(X[:20] + 0.1, 10)
    np.testing.assert_array_equal(found, wanted_ids)
    np.testing.assert_allclose(distances if metric == "l2" else 1 - distances, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(interop.from_faiss(theirs).get(IDS), X)


def test_decoded_vectors_to_faiss():
    ours = our_vectors(vectors="int8")
    np.testing.assert_array_equal(interop.from_faiss(interop.to_faiss(ours)).get(IDS), ours.get(IDS))


def test_hamming_codes_of_vectors_to_faiss():
    ours = our_vectors("cosine", vectors=None)
    theirs = interop.to_faiss(ours, faiss.IndexBinaryIDMap(faiss.IndexBinaryFlat(24)))
    queries = ours.encoder.encode(X[:20] / np.linalg.norm(X[:20], axis=1, keepdims=True))
    wanted = ours.search(X[:20], 30, rerank=None).distances
    np.testing.assert_array_equal(theirs.search(queries, 30)[0], wanted)


def test_blocks_and_indexes_without_ids(monkeypatch):
    monkeypatch.setattr("cbeindex.interop.faiss._BLOCK_BYTES", 7 * 16)
    index = BinaryIndex(128)
    index.add(CODES)
    theirs = interop.to_faiss(index, faiss.IndexBinaryFlat(128))
    np.testing.assert_array_equal(faiss.vector_to_array(theirs.xb).reshape(-1, 16), CODES)


def repeated_ids():
    index = faiss.IndexBinaryIDMap(faiss.IndexBinaryFlat(128))
    index.add_with_ids(CODES[:3], np.array([5, 5, 6]))
    return index


def negative_ids():
    index = faiss.IndexBinaryIDMap(faiss.IndexBinaryFlat(128))
    index.add_with_ids(CODES[:2], np.array([-3, 6]))
    return index


def sparse_vectors():
    from scipy import sparse

    index = CBEIndex(24, metric="l2", vectors="float32", buckets=None)
    index.add(sparse.csr_array(X))
    return index


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: interop.from_faiss(CODES), TypeError, "must be a faiss index, got ndarray"),
        (lambda: interop.from_faiss(faiss.IndexBinaryHNSW(64)), TypeError, "IndexBinaryIVF, .* got IndexBinaryHNSW"),
        (lambda: interop.from_faiss(faiss.IndexPQ(8, 2, 4)), TypeError, "IndexFlat or IndexIVFFlat.* got IndexPQ"),
        (lambda: interop.from_faiss(faiss.IndexFlat(8, faiss.METRIC_L1)), ValueError, "METRIC_L2 or .*, got number 2"),
        (lambda: interop.from_faiss(repeated_ids()), ValueError, "must not repeat, 5 and 0 others do"),
        (lambda: interop.from_faiss(negative_ids()), ValueError, "must be 0 or more, got -3"),
        (lambda: interop.to_faiss(CODES), TypeError, "must be a BinaryIndex or a CBEIndex, got ndarray"),
        (lambda: interop.to_faiss(our_codes(), CODES), TypeError, "into must be a faiss index, got ndarray"),
        (lambda: interop.to_faiss(our_codes(), faiss.IndexFlatL2(128)), TypeError, "into must be a binary faiss index"),
        (
            lambda: interop.to_faiss(our_codes(), binary_flat()[0]),
            ValueError,
            "must be empty, got an index of 300 rows",
        ),
        (lambda: interop.to_faiss(our_codes(), faiss.IndexBinaryFlat(64)), ValueError, "must have d = 128, got 64"),
        (lambda: interop.to_faiss(our_codes(), faiss.IndexBinaryFlat(128)), ValueError, "numbers its rows from 0 on"),
        (lambda: interop.to_faiss(our_vectors("cosine")), ValueError, "faiss has no cosine distance"),
        (lambda: interop.to_faiss(our_vectors(vectors=None)), ValueError, "keeps codes only"),
        (
            lambda: interop.to_faiss(our_vectors(), faiss.IndexIDMap(faiss.IndexFlatIP(24))),
            ValueError,
            "metric 'l2', got",
        ),
        (lambda: interop.to_faiss(sparse_vectors()), ValueError, "takes dense vectors"),
    ],
)
def test_what_cannot_be_carried_over(call, error, message):
    with pytest.raises(error, match=message):
        call()


class Named(BinaryIndex):
    """An index whose ids are strings."""

    ids = np.array(["a", "b"], dtype=object)


def test_ids_that_are_strings_are_refused():
    with pytest.raises(TypeError, match="a faiss index must have integers as ids, and those of this index are strings"):
        interop.to_faiss(Named(64))


def test_without_faiss(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs faiss, .*pip install "cbeindex\[faiss\]"'):
        interop.to_faiss(our_codes())
