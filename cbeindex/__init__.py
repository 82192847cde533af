"""Approximate nearest neighbour search for long vectors, by circulant binary embedding."""

from ._core.threads import set_num_threads
from .binary import BinaryIndex
from .encoders import CirculantEncoder
from .errors import (
    CorruptIndexFileError,
    IndexFileError,
    NotAnIndexFileError,
    UnsupportedVersionError,
    WriterConflictError,
)
from .index import CBEIndex
from .search.filters import IdFilter
from .search.results import RangeResult, SearchResult
from .storage.saveable import verify

__version__ = "0.2.0"

__all__ = [
    "BinaryIndex",
    "CBEIndex",
    "CirculantEncoder",
    "CorruptIndexFileError",
    "IdFilter",
    "IndexFileError",
    "NotAnIndexFileError",
    "RangeResult",
    "SearchResult",
    "UnsupportedVersionError",
    "WriterConflictError",
    "set_num_threads",
    "verify",
]
