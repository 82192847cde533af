"""A vector store for LangChain.

Needs langchain-core: `pip install "cbeindex[langchain]"`.
"""

from .._core.extras import needs_extra

with needs_extra("langchain"):
    from .store import CBEVectorStore

__all__ = ["CBEVectorStore"]
