"""LangChain: documents with metadata, filters, and a store that is saved to a folder."""

import tempfile
import zlib

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from cbeindex.langchain import CBEVectorStore


class HashedWords(Embeddings):
    """Counts of hashed words; a real application takes a model here."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed documents one by one."""
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Count each word at the place of its hash."""
        counts = [0.0] * 512
        for word in text.lower().split():
            counts[zlib.crc32(word.encode()) % 512] += 1
        return counts


store = CBEVectorStore(HashedWords())
store.add_documents(
    [
        Document(
            "binary codes are compared by hamming distance", metadata={"topic": "codes", "year": 2014}, id="hamming"
        ),
        Document(
            "a circulant matrix is multiplied by a fast transform", metadata={"topic": "maths", "year": 2014}, id="fft"
        ),
        Document(
            "codes of residuals are compared by table look-ups", metadata={"topic": "codes", "year": 2024}, id="tables"
        ),
        Document("the cat sleeps by the fire", metadata={"topic": "cats", "year": 2024}, id="cat"),
    ]
)
for document, distance in store.similarity_search_with_score("how are codes compared", k=2):
    print(f"{document.id} at {distance:.3f}: {document.page_content}")

recent = store.similarity_search("how are codes compared", k=1, filter={"topic": "codes", "year": {"$gte": 2020}})
print("recent:", recent[0].id)

with tempfile.TemporaryDirectory() as folder:
    store.save(folder)
    loaded = CBEVectorStore.load(folder, HashedWords())
    retriever = loaded.as_retriever(search_kwargs={"k": 1})
    print("loaded:", retriever.invoke("which matrix has a fast transform")[0].id)
