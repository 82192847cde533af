"""Buckets: which rows can be near to a query, without looking at all of them."""

from __future__ import annotations

from typing import Any

from ..._core.checks import as_choice, as_count
from ...store.segment import BucketMaker
from .clusters import Cells, Clusters
from .substrings import MOST_TABLE_BITS, Substrings, Tables, most_tables

KINDS = ("substrings", "clusters")

__all__ = ["KINDS", "Cells", "Clusters", "Substrings", "Tables", "bucket_maker"]


def bucket_maker(kind: Any, n_bits: int, n_tables: Any, table_bits: Any, n_cells: Any) -> BucketMaker | None:
    """Return what makes the buckets that a user asked for."""
    options = {"n_tables": n_tables, "table_bits": table_bits, "n_cells": n_cells}
    given = {name: as_count(value, name, most=2**31 - 1) for name, value in options.items() if value is not None}
    of_kind = {None: (), "substrings": ("n_tables", "table_bits"), "clusters": ("n_cells",)}
    if kind is not None:
        as_choice(kind, "buckets", KINDS)
    for name in given:
        if name not in of_kind[kind]:
            raise ValueError(f"{name} is not an option of buckets={kind!r}")
    if kind is None:
        return None
    if kind == "clusters":
        return Clusters(n_bits, **given)
    if given.get("n_tables", 1) > most_tables(n_bits):
        raise ValueError(f"n_tables must be at most {most_tables(n_bits)} for codes of {n_bits} bits, got {n_tables}")
    most = min(MOST_TABLE_BITS, n_bits // given.get("n_tables", 1))
    if given.get("table_bits", 1) > most:
        tables = f" in {n_tables} tables" if n_tables else ""
        raise ValueError(f"table_bits must be at most {most} for codes of {n_bits} bits{tables}, got {table_bits}")
    if n_tables is None and table_bits is not None:
        given["n_tables"] = max(1, min(16, n_bits // given["table_bits"]))
    return Substrings(n_bits, **given)
