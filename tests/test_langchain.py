"""The vector store inside LangChain: its standard tests, filters, files, and calls that do not block."""

import asyncio
import importlib
import json
import math
import sys
import threading
import zlib

import numpy as np
import pytest

pytest.importorskip("langchain_tests", reason="langchain-core has no wheel for this platform")

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from cbeindex import CorruptIndexFileError, IndexFileError, NotAnIndexFileError, UnsupportedVersionError
from cbeindex.langchain import CBEVectorStore, files


class TestStandard(VectorStoreIntegrationTests):
    """All tests of the standard suite, with and without async."""

    @pytest.fixture
    def vectorstore(self):
        return CBEVectorStore(self.get_embeddings())


class TestStandardWithCodesOnly(VectorStoreIntegrationTests):
    """The same for an index of other options."""

    @pytest.fixture
    def vectorstore(self):
        return CBEVectorStore(self.get_embeddings(), vectors=None, metric="euclidean", buckets="cells")


def test_the_standard_suite_is_complete():
    """Every test of the suite is run: 11 with and 11 without async, and those about the class itself."""
    names = [name for name in dir(TestStandard) if name.startswith("test_")]
    assert len([name for name in names if name.endswith("_async")]) >= 11
    assert len(names) >= 23


class Words(Embeddings):
    """Counts of letters: texts of the same letters are near."""

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text):
        return [1.0 + text.count(letter) for letter in "abcdefghij"]


TEXTS = ["aaa", "aab", "abb", "bbb", "ccc", "ccd", "jjj"]
METADATA = [{"place": place, "kind": "even" if place % 2 == 0 else "odd"} for place in range(7)]


def filled(**options):
    return CBEVectorStore.from_texts(TEXTS, Words(), METADATA, ids=[f"id{i}" for i in range(7)], **options)


def ids_of(documents):
    return [document.id for document in documents]


def cosine_distance(a, b):
    a, b = Words().embed_query(a), Words().embed_query(b)
    return 1 - np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b))


def test_scores_are_distances():
    found = filled().similarity_search_with_score("aaa", k=7)
    assert [document.page_content for document, _ in found][:3] == ["aaa", "aab", "abb"]
    assert filled().similarity_search_by_vector(Words().embed_query("aaa"), k=7) == [document for document, _ in found]
    for document, score in found:
        assert score == pytest.approx(cosine_distance("aaa", document.page_content), abs=1e-6)


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_relevance_is_highest_for_the_nearest(metric):
    scored = filled(metric=metric).similarity_search_with_relevance_scores("aaa", k=7) if metric != "ip" else []
    scores = [score for _, score in scored]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    relevance = CBEVectorStore(Words(), metric=metric)._select_relevance_score_fn()
    assert relevance(0.0) == 1 > relevance(0.5) > relevance(1.5) > 0


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        ({"place": 3}, {3}),
        ({"kind": "even"}, {0, 2, 4, 6}),
        ({"kind": "even", "place": {"$gt": 2}}, {4, 6}),
        ({"place": {"$gte": 2, "$lt": 4}}, {2, 3}),
        ({"place": {"$lte": 1}}, {0, 1}),
        ({"place": {"$in": [1, 5, 9]}}, {1, 5}),
        ({"place": {"$nin": [1, 5, 9]}}, {0, 2, 3, 4, 6}),
        ({"place": {"$ne": 0}}, {1, 2, 3, 4, 5, 6}),
        ({"place": {"$eq": 0}}, {0}),
        ({"$or": [{"place": 0}, {"kind": "odd"}]}, {0, 1, 3, 5}),
        ({"$and": [{"kind": "odd"}, {"place": {"$lt": 4}}]}, {1, 3}),
        ({"$not": {"kind": "odd"}}, {0, 2, 4, 6}),
        ({"place": {"$gt": "a"}}, set()),
        ({"colour": "red"}, set()),
        ({"colour": {"$ne": "red"}}, set(range(7))),
        ({}, set(range(7))),
        (lambda document: "c" in document.page_content, {4, 5}),
    ],
)
def test_filters(wanted, places):
    """A filter rules out documents before the search, so all that match are found, however far they are."""
    store = filled()
    found = store.similarity_search("aaa", k=7, filter=wanted)
    assert {document.metadata["place"] for document in found} == places
    assert len(found) == len(places)
    if places:
        (nearest,) = store.similarity_search("jjj", k=1, filter=wanted)
        best = min(places, key=lambda place: (cosine_distance("jjj", TEXTS[place]), place))
        assert nearest.metadata["place"] == best


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        ("place", TypeError, "filter must be a function or a mapping of names, got str"),
        ({"place": {"$near": 3}}, ValueError, r"place must be compared by one of \$eq, .*, got '\$near'"),
        ({"$xor": []}, ValueError, r"must have names, '\$and', '\$or' or '\$not', got '\$xor'"),
        ({"$or": []}, ValueError, r"\$or must have a list of filters, got \[\]"),
        ({"place": {"$in": 3}}, ValueError, r"\$in must have a list of values, got 3"),
    ],
)
def test_bad_filters(wanted, error, message):
    with pytest.raises(error, match=message):
        filled().similarity_search("aaa", filter=wanted)


def test_diverse_results():
    """Of equal documents and a different one, marginal relevance chooses the different one second."""
    store = CBEVectorStore.from_texts(["aab", "aab", "aab", "abc"], Words(), ids=list("wxyz"))
    assert ids_of(store.max_marginal_relevance_search("aab", k=2, lambda_mult=0.1)) == ["w", "z"]
    assert ids_of(store.similarity_search("aab", k=2)) == ["w", "x"]
    assert ids_of(store.max_marginal_relevance_search("aab", k=2, filter=lambda d: d.id in "xy")) == ["x", "y"]
    assert CBEVectorStore(Words()).max_marginal_relevance_search("a") == []


def test_ids():
    store = filled()
    new = store.add_texts(["new", "newer", "newest"], ids=["id3", None, "id3"])
    assert (new[0], new[2], len(new[1]), len(store)) == ("id3", "id3", 36, 8)
    assert [document.page_content for document in store.get_by_ids(["id3", "none", new[1]])] == ["newest", "newer"]
    store.add_documents([Document("x", id="id3"), Document("y")])
    assert store.get_by_ids(["id3"])[0].page_content == "x"
    store.delete(["id3", "id3", "none"])
    assert store.get_by_ids(["id3"]) == []
    assert "id3" not in ids_of(store.similarity_search("bbb", k=20))
    store.delete()
    assert (len(store), store.similarity_search("bbb")) == (0, [])
    assert store.add_texts([]) == []


def test_callers_cannot_change_stored_metadata():
    store = filled()
    store.get_by_ids(["id0"])[0].metadata["place"] = 9
    assert store.similarity_search("aaa", k=1)[0].metadata == {"place": 0, "kind": "even"}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"metadatas": [{}]}, ValueError, "metadatas must be as many as texts, 2, got 1"),
        ({"ids": ["a"]}, ValueError, "ids must be as many as texts, 2, got 1"),
        ({"ids": [1, 2]}, TypeError, "ids must be strings, got 1"),
    ],
)
def test_bad_documents(arguments, error, message):
    with pytest.raises(error, match=message):
        filled().add_texts(["a", "b"], **arguments)
    with pytest.raises(ValueError, match="metric must be one of"):
        CBEVectorStore(Words(), metric="manhattan")


def test_a_failed_add_changes_nothing():
    store = filled()
    store._embedding = DeterministicFakeEmbedding(size=3)
    with pytest.raises(ValueError, match=r"must have shape \(n, 10\)"):
        store.add_texts(["new", "other"], ids=["id0", "other"])
    assert store.get_by_ids(["id0", "other"]) == [Document("aaa", id="id0", metadata=METADATA[0])]
    assert len(store) == 7
    empty = CBEVectorStore(Words(), n_bits=0)
    with pytest.raises(ValueError, match="n_bits must be at least 1"):
        empty.add_texts(["a"])
    assert len(empty) == 0


def test_retriever():
    retriever = filled().as_retriever(search_kwargs={"k": 2, "filter": {"kind": "odd"}})
    assert ids_of(retriever.invoke("aaa")) == ["id1", "id5"]
    near = filled().as_retriever(search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.97})
    assert ids_of(near.invoke("aaa")) == ["id0", "id1"]


class Slow(Words):
    """Embeds asynchronously only: a call that would block the event loop fails."""

    def embed_query(self, text):
        raise AssertionError("this blocks the event loop")

    async def aembed_query(self, text):
        await asyncio.sleep(0)
        return Words.embed_query(self, text)

    async def aembed_documents(self, texts):
        return [await self.aembed_query(text) for text in texts]


def test_asynchronous_methods_do_not_block():
    async def use():
        store = await CBEVectorStore.afrom_texts(TEXTS, Slow(), METADATA, ids=[f"id{i}" for i in range(7)])
        found = await asyncio.gather(*(store.asimilarity_search(text, k=1, filter={"kind": "odd"}) for text in TEXTS))
        scored = await store.asimilarity_search_with_score("aaa", k=2)
        diverse = await store.amax_marginal_relevance_search("aaa", k=2)
        await store.adelete(["id0"])
        return [ids_of(some)[0] for some in found], scored, ids_of(diverse), ids_of(await store.aget_by_ids(["id0"]))

    nearest, scored, diverse, deleted = asyncio.run(use())
    assert nearest == ["id1", "id1", "id3", "id3", "id5", "id5", "id1"]
    assert [document.id for document, _ in scored] == ["id0", "id1"]
    assert (diverse[0], len(diverse), deleted) == ("id0", 2, [])


def test_searches_beside_a_writer():
    """Searches of other threads see whole documents while documents are added, replaced and deleted."""
    store, failures = filled(), []
    done = threading.Event()

    def search():
        while not done.is_set():
            try:
                for document in store.similarity_search("aab", k=5, filter={"kind": {"$in": ["even", "odd", "new"]}}):
                    assert document.page_content
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(60):
        store.add_texts(["aab", "abc"], [{"kind": "new"}] * 2, ids=["new", f"turn{turn}"])
        store.delete([f"turn{turn - 1}"])
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(store) == 9


def test_files(tmp_path):
    store = filled(n_bits=64)
    store.delete(["id6"])
    store.save(tmp_path / "store")
    loaded = CBEVectorStore.load(tmp_path / "store", Words())
    assert loaded.index.n_bits == 64
    for query in TEXTS:
        assert loaded.similarity_search_with_score(query, k=7) == store.similarity_search_with_score(query, k=7)
    loaded.add_texts(["jjj\ud800 ß"], [{"nested": {"list": [1, 2.5, None, True]}}], ids=["new"])
    assert loaded.index.ids.tolist() == [0, 1, 2, 3, 4, 5, 7]  # the number of a deleted document is not used again
    loaded.save(tmp_path / "store")
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["index-2.cbe", "store.json"]
    again = CBEVectorStore.load(tmp_path / "store", Words())
    assert again.get_by_ids(["new"]) == loaded.get_by_ids(["new"])
    loaded.add_texts(["c"])  # the index that was saved can be used on


def test_files_of_an_empty_store(tmp_path):
    CBEVectorStore(Words(), metric="dot", n_bits=32).save(tmp_path)
    store = CBEVectorStore.load(tmp_path, Words())
    store.add_texts(["a"])
    assert (store.index.metric, store.index.n_bits) == ("ip", 32)


def test_a_killed_save_leaves_the_old_store(tmp_path, monkeypatch):
    store = filled()
    store.save(tmp_path)
    store.add_texts(["new"], ids=["new"])

    def killed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("cbeindex.langchain.files._replace", killed)
    with pytest.raises(KeyboardInterrupt):
        store.save(tmp_path)
    monkeypatch.undo()
    assert len(CBEVectorStore.load(tmp_path, Words())) == 7
    store.save(tmp_path)
    assert len(CBEVectorStore.load(tmp_path, Words())) == 8


@pytest.mark.parametrize("value", [math.nan, (1, 2), {1: 2}, {1, 2}, b"x", np.float32(1)])
def test_metadata_that_cannot_be_saved(tmp_path, value):
    store = filled()
    store.add_texts(["a"], [{"value": value}], ids=["odd one"])
    with pytest.raises(TypeError, match=r"metadata must hold strings, finite numbers.*'odd one' does not"):
        store.save(tmp_path / "store")
    assert not (tmp_path / "store").exists()


def changed(content, **changes):
    return {**content, **changes}


def first_document(content, **changes):
    return changed(content, documents=[{**content["documents"][0], **changes}, *content["documents"][1:]])


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda c: [], CorruptIndexFileError, "must be a JSON object, got list"),
        (lambda c: changed(c, index="../index-1.cbe"), CorruptIndexFileError, "a name such as index-1.cbe, got '../"),
        (lambda c: changed(c, index=None), CorruptIndexFileError, "documents must have an index"),
        (lambda c: changed(c, index=3), CorruptIndexFileError, "index a name"),
        (lambda c: changed(c, options=[]), CorruptIndexFileError, "options must be those of an index"),
        (lambda c: changed(c, options={"embedding": 1}), CorruptIndexFileError, "options must be those of an index"),
        (lambda c: changed(c, options={"n_bits": []}), CorruptIndexFileError, "options must be those of an index"),
        (lambda c: changed(c, documents={}), CorruptIndexFileError, "documents must be a list"),
        (lambda c: changed(c, next_number=-1), CorruptIndexFileError, "next_number a number"),
        (lambda c: changed(c, next_number=3), CorruptIndexFileError, "document 3 must have a number below 3"),
        (lambda c: changed(c, documents=c["documents"][1:]), CorruptIndexFileError, "must be the ids in index-1.cbe"),
        (
            lambda c: first_document(c, id=3),
            CorruptIndexFileError,
            "document 0 must have number, id, text and metadata",
        ),
        (lambda c: first_document(c, metadata=None), CorruptIndexFileError, "document 0 must have number, id, text"),
        (lambda c: first_document(c, number=True), CorruptIndexFileError, "document 0 must have a number below"),
        (
            lambda c: first_document(c, number=1),
            CorruptIndexFileError,
            "document 1 must have a number and an id of its",
        ),
        (
            lambda c: first_document(c, id="id1"),
            CorruptIndexFileError,
            "document 1 must have a number and an id of its",
        ),
    ],
)
def test_damaged_files(tmp_path, damage, error, message):
    filled().save(tmp_path)
    path = tmp_path / "store.json"
    content = json.loads(path.read_bytes().partition(b"\n")[2])
    path.write_bytes(files.encoded(damage(content)))
    with pytest.raises(error, match=message):
        CBEVectorStore.load(tmp_path, Words())


HEAD = '{{"kind": "cbeindex.langchain", "version": {}, "crc32": {}}}\n{}'


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", NotAnIndexFileError, "must be JSON"),
        ("\udcff", NotAnIndexFileError, "must be JSON"),
        ("[" * 100_000, NotAnIndexFileError, "must be JSON"),
        ("3", NotAnIndexFileError, "must be a JSON object, got int"),
        ('{"kind": "other"}', NotAnIndexFileError, "not a vector store of cbeindex"),
        (HEAD.format(2, 0, ""), UnsupportedVersionError, "version 2, but this release of cbeindex reads version 1"),
        (HEAD.format(1, 5, ""), CorruptIndexFileError, "checksum of the documents must be 5, and it is not"),
        (HEAD.format(1, 0, ""), CorruptIndexFileError, "must be JSON"),
        (HEAD.format(1, zlib.crc32(b"[" * 99_999), "[" * 99_999), CorruptIndexFileError, "must be JSON"),
    ],
)
def test_files_that_are_something_else(tmp_path, text, error, message):
    filled().save(tmp_path)
    (tmp_path / "store.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(error, match=message):
        CBEVectorStore.load(tmp_path, Words())
    (tmp_path / "store.json").unlink()
    with pytest.raises(FileNotFoundError):
        CBEVectorStore.load(tmp_path, Words())


def test_every_truncation_and_flipped_bit_is_noticed(tmp_path):
    filled().save(tmp_path)
    path = tmp_path / "store.json"
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    damaged = [data[:length] for length in range(0, len(data), 3)]
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.integers(8)
        damaged.append(bytes(flipped))
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(IndexFileError):
            CBEVectorStore.load(tmp_path, Words())


def test_without_langchain(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("cbeindex.langchain")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langchain_core.documents", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs langchain_core.documents, .*"cbeindex\[langchain\]"'):
        importlib.import_module("cbeindex.langchain")
