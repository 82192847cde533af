"""Buckets find rows near a query without scanning all rows of a segment."""

from __future__ import annotations

from typing import Any

from ..._core.checks import as_choice, as_count, as_flag
from .base import BucketMaker, Buckets
from .cellmaker import CellMaker
from .clusters import Cells, Clusters
from .graphmaker import GraphMaker
from .graphs import VertexGraph
from .residualcells import ResidualCells
from .substrings import Substrings, Tables

MAKERS: dict[str, type[BucketMaker]] = {
    "substrings": Substrings, "clusters": Clusters, "cells": CellMaker, "graph": GraphMaker,
}  # fmt: skip
"""All kinds of buckets, by the names that users give."""

KINDS = tuple(MAKERS)

# Options that are True or False.
_FLAGS = ("spill",)

CODE_KINDS = tuple(kind for kind, maker in MAKERS.items() if not maker.needs_vectors)
"""Kinds of buckets that need nothing but Hamming codes."""

__all__ = [
    "CODE_KINDS", "KINDS", "MAKERS", "BucketMaker", "Buckets", "CellMaker", "Cells", "Clusters", "GraphMaker",
    "ResidualCells", "Substrings", "Tables", "VertexGraph", "bucket_maker",
]  # fmt: skip


def bucket_maker(kind: Any, n_bits: int, options: dict[str, Any], kinds: tuple[str, ...] = KINDS) -> BucketMaker | None:
    """Check the arguments for buckets, and return what makes them; None for no buckets."""
    given = {
        name: as_flag(value, name) if name in _FLAGS else as_count(value, name, most=2**31 - 1)
        for name, value in options.items()
        if value is not None
    }
    maker = None if kind is None else MAKERS[as_choice(kind, "buckets", kinds)]
    for name in given:
        if maker is None or name not in maker.options:
            raise ValueError(f"{name} is not an option of buckets={kind!r}")
    return None if maker is None else maker.from_options(n_bits, given)
