"""Buckets find rows near a query without scanning all rows of a segment."""

from __future__ import annotations

from typing import Any

from ..._core.checks import as_choice, as_count
from .base import BucketMaker, Buckets
from .clusters import Cells, Clusters
from .substrings import Substrings, Tables

MAKERS: dict[str, type[BucketMaker]] = {"substrings": Substrings, "clusters": Clusters}
"""All kinds of buckets, by the names that users give."""

KINDS = tuple(MAKERS)

__all__ = ["KINDS", "MAKERS", "BucketMaker", "Buckets", "Cells", "Clusters", "Substrings", "Tables", "bucket_maker"]


def bucket_maker(kind: Any, n_bits: int, n_tables: Any, table_bits: Any, n_cells: Any) -> BucketMaker | None:
    """Check the arguments for buckets, and return what makes them; None for no buckets."""
    options = {"n_tables": n_tables, "table_bits": table_bits, "n_cells": n_cells}
    given = {name: as_count(value, name, most=2**31 - 1) for name, value in options.items() if value is not None}
    maker = None if kind is None else MAKERS[as_choice(kind, "buckets", KINDS)]
    for name in given:
        if maker is None or name not in maker.options:
            raise ValueError(f"{name} is not an option of buckets={kind!r}")
    return None if maker is None else maker.from_options(n_bits, given)
