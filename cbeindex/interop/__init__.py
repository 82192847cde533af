"""Bridges to other libraries: binary codes that they packed, faiss indexes, and pgvector tables.

The other libraries are imported when a function needs them.
"""

from .codes import codes_from
from .faiss import from_faiss, to_faiss
from .pgvector import from_pgvector, to_pgvector

__all__ = ["codes_from", "from_faiss", "from_pgvector", "to_faiss", "to_pgvector"]
