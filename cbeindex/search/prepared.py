"""Searches that are prepared once, and then answer any queries."""

from __future__ import annotations

from typing import TypeAlias

from ..distances.codec import Codec
from .cellsearch import CellSearch
from .graphsearch import GraphSearch
from .plan import Plan
from .request import IndexTraits

PreparedSearch: TypeAlias = CellSearch | GraphSearch
"""A search of an index with cells or graphs."""


def prepared(traits: IndexTraits, codec: Codec | None, chosen: Plan) -> PreparedSearch | None:
    """Return the search of an index with cells or graphs that carries out a plan; None for Hamming codes."""
    if codec is None or not (chosen.by_cells or chosen.by_graph):
        return None
    return GraphSearch(traits, codec, chosen) if chosen.by_graph else CellSearch(traits, codec, chosen)
