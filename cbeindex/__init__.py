"""Approximate nearest neighbour search for long vectors, by circulant binary embedding."""

from .binary import BinaryIndex
from .encoders import CirculantEncoder
from .index import CBEIndex
from .results import RangeResult, SearchResult

__version__ = "0.1.0"

__all__ = ["BinaryIndex", "CBEIndex", "CirculantEncoder", "RangeResult", "SearchResult"]
