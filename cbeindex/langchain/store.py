"""CBEVectorStore: documents of LangChain in a CBEIndex."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, Self, TypeAlias
from uuid import uuid4

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import run_in_executor
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from ..distances.metrics import as_metric
from ..index import CBEIndex
from . import files
from .documents import Documents, Record
from .filters import compiled

Filter: TypeAlias = Callable[[Document], bool] | Mapping[str, Any]


class CBEVectorStore(VectorStore):
    """Vector store of LangChain on a `CBEIndex`.

    Any number of threads may search while one adds or deletes documents.

    Parameters
    ----------
    embedding : Embeddings
        Embeds documents and queries.
    **options
        Arguments of the `CBEIndex` that the first documents make, for example `metric="l2"`, `n_bits=2048` or
        `buckets="cells"`. By default it keeps float32 vectors.

    Examples
    --------
    >>> from langchain_core.embeddings import DeterministicFakeEmbedding
    >>> store = CBEVectorStore(DeterministicFakeEmbedding(size=64))
    >>> store.add_texts(["a cat", "a dog"], [{"legs": 4}, {"legs": 4}], ids=["cat", "dog"])
    ['cat', 'dog']
    >>> [document.id for document in store.similarity_search("a dog", k=1, filter={"legs": 4})]
    ['dog']

    Notes
    -----
    Scores of `similarity_search_with_score` are distances of the index: lower is better. Relevance scores are from 0 to
    1, and higher is better. A `filter` is a function of a `Document`, or a mapping of names of metadata to values:
    `{"lang": "de", "year": {"$gte": 2000}}`, with the operators $eq, $ne, $gt, $gte, $lt, $lte, $in, $nin, $and, $or
    and $not. Documents that do not match are ruled out before the search, so `k` of those that match are found. Other
    keyword arguments of searches go to `CBEIndex.search`.
    """

    def __init__(self, embedding: Embeddings, **options: Any) -> None:
        self._embedding = embedding
        self._options = {"vectors": "float32"} | options
        as_metric(self._options.get("metric", "cosine"))
        self._lock = Lock()
        self._documents = Documents()
        self._index: CBEIndex | None = None

    def __len__(self) -> int:
        return len(self._documents)

    @property
    def embeddings(self) -> Embeddings:
        """What embeds documents and queries."""
        return self._embedding

    @property
    def index(self) -> CBEIndex | None:
        """The index, None until there are documents. Its ids are numbers that the store gives to documents."""
        return self._index

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **options: Any,
    ) -> Self:
        """Make a store of texts; `options` are those of the constructor."""
        store = cls(embedding, **options)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **options: Any,
    ) -> Self:
        """Make a store of texts; `options` are those of the constructor."""
        store = cls(embedding, **options)
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, and replace documents that have one of `ids`.

        Parameters
        ----------
        texts : iterable of str
        metadatas : list of dict, optional
        ids : list of str, optional
            By default new ones, also in place of None. Of documents with the same id the last one counts.
        **kwargs
            `n_threads`, as in `CBEIndex.add`.

        Returns
        -------
        list of str
            The ids.
        """
        records = _records(list(texts), metadatas, ids)
        vectors = self._embedding.embed_documents([record.text for record in records]) if records else []
        return self._put(records, vectors, kwargs)

    async def aadd_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Do as `add_texts`, without blocking the event loop."""
        records = _records(list(texts), metadatas, ids)
        vectors = await self._embedding.aembed_documents([record.text for record in records]) if records else []
        return await run_in_executor(None, self._put, records, vectors, kwargs)

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents, all of them without `ids`. Ids that are not in the store are ignored."""
        with self._lock:
            if ids is None:
                numbers = [number for number, _ in self._documents.items()]
            else:
                numbers = self._documents.numbers_of(dict.fromkeys(ids))
            if numbers and self._index is not None:
                self._index.remove(numbers)
                self._documents.discard(numbers)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents of `ids` in their order, without those that are not in the store."""
        return [document for number in self._documents.numbers_of(ids) if (document := self._document(number))]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Return the `k` documents nearest to a text; `filter=` restricts them."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]

    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> list[tuple[Document, float]]:
        """Return the `k` documents nearest to a text and their distances; `filter=` restricts them."""
        return self._nearest(self._embedding.embed_query(query), k, **kwargs)

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> list[Document]:
        """Return the `k` documents nearest to a vector; `filter=` restricts them."""
        return [document for document, _ in self._nearest(embedding, k, **kwargs)]

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Do as `similarity_search`, without blocking the event loop."""
        return [document for document, _ in await self.asimilarity_search_with_score(query, k, **kwargs)]

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Do as `similarity_search_with_score`, without blocking the event loop."""
        vector = await self._embedding.aembed_query(query)
        return await run_in_executor(None, self._nearest, vector, k, **kwargs)

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Return `k` of the `fetch_k` documents nearest to a text, chosen to differ from each other."""
        vector = self._embedding.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(vector, k, fetch_k, lambda_mult, **kwargs)

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Return `k` of the `fetch_k` documents nearest to a vector, chosen to differ from each other."""
        found = self._nearest_numbers(embedding, fetch_k, **kwargs)
        index = self._index
        if index is None or not found:
            return []
        vectors = list(index.get([number for number, _ in found]))
        chosen = maximal_marginal_relevance(np.asarray(embedding, dtype=np.float32), vectors, lambda_mult, k)
        return [document for place in chosen if (document := self._document(found[place][0]))]

    async def amax_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Do as `max_marginal_relevance_search`, without blocking the event loop."""
        vector = await self._embedding.aembed_query(query)
        search = self.max_marginal_relevance_search_by_vector
        return await run_in_executor(None, search, vector, k, fetch_k, lambda_mult, **kwargs)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save documents and index to a folder. A save that is killed leaves the folder as it was before.

        Metadata must be what JSON can hold.
        """
        with self._lock:
            files.write(folder, files.Stored(self._index, self._documents, self._options))

    @classmethod
    def load(cls, folder: str | os.PathLike[str], embedding: Embeddings) -> Self:
        """Load a store from a folder. The index is mapped, and documents are read."""
        stored = files.read(folder)
        store = cls(embedding)
        store._options |= stored.options
        store._index, store._documents = stored.index, stored.documents
        return store

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        """Return the function of a distance that gives its relevance, from 0 to 1."""
        index = self._index
        metric = as_metric(self._options.get("metric", "cosine")) if index is None else index.metric
        return (lambda distance: 1 / (1 + distance)) if metric == "l2" else (lambda distance: 1 - distance / 2)

    def _put(self, records: list[Record], vectors: Sequence[Sequence[float]], options: dict[str, Any]) -> list[str]:
        """Add or replace documents with their vectors."""
        rows = {record.id: row for row, record in enumerate(records)}  # the last one of each id
        if rows:
            array = np.asarray(vectors, dtype=np.float32)
            with self._lock:
                index = self._index or CBEIndex(array.shape[-1], **self._options)
                with self._documents.putting([records[row] for row in rows.values()]) as numbers:
                    index.add(array[list(rows.values())], numbers, replace=True, **options)
                self._index = index
        return [record.id for record in records]

    def _nearest(self, vector: Sequence[float], k: int = 4, **kwargs: Any) -> list[tuple[Document, float]]:
        """Return the nearest documents and their distances."""
        found = self._nearest_numbers(vector, k, **kwargs)
        return [(document, distance) for number, distance in found if (document := self._document(number))]

    def _nearest_numbers(
        self, vector: Sequence[float], k: int, *, filter: Filter | None = None, **options: Any
    ) -> list[tuple[int, float]]:
        """Return the numbers of the nearest documents that pass a filter, and their distances."""
        index = self._index
        allow = None if filter is None else self._documents.numbers_where(_test_of(filter))
        if index is None or not len(index) or (allow is not None and not len(allow)):
            return []
        distances, ids = index.search(np.asarray(vector, dtype=np.float32), k, allow=allow, **options)
        return [(int(id_), float(distance)) for id_, distance in zip(ids, distances, strict=True) if id_ >= 0]

    def _document(self, number: int) -> Document | None:
        """Return the document of a number, None if it was deleted meanwhile."""
        record = self._documents.get(number)
        return None if record is None else _as_document(record)


def _records(
    texts: list[str], metadatas: list[dict[str, Any]] | None, ids: Sequence[str | None] | None
) -> list[Record]:
    """Return texts as documents; copies of metadata, so that callers cannot change them."""
    for name, values in (("metadatas", metadatas), ("ids", ids)):
        if values is not None and len(values) != len(texts):
            raise ValueError(f"{name} must be as many as texts, {len(texts)}, got {len(values)}")
    given = [None] * len(texts) if ids is None else list(ids)
    for id_ in given:
        if id_ is not None and not isinstance(id_, str):
            raise TypeError(f"ids must be strings, got {id_!r}")
    all_metadata = metadatas or [{}] * len(texts)
    return [
        Record(str(uuid4()) if id_ is None else id_, text, dict(metadata or {}))
        for text, metadata, id_ in zip(texts, all_metadata, given, strict=True)
    ]


def _as_document(record: Record) -> Document:
    return Document(id=record.id, page_content=record.text, metadata=dict(record.metadata))


def _test_of(wanted: Filter) -> Callable[[Record], bool]:
    """Turn a filter into a function of stored documents."""
    if callable(wanted):
        return lambda record: bool(wanted(_as_document(record)))
    test = compiled(wanted)
    return lambda record: test(record.metadata)
