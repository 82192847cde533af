"""Tables of PostgreSQL with the extension pgvector: codes as `bit(n)`, vectors as `vector` or `halfvec`."""

from __future__ import annotations

import inspect
import re
from typing import Any

from .._core.checks import as_flag
from ..binary import BinaryIndex
from ..data.source import is_sparse
from ..index import CBEIndex
from . import pgcopy
from .ids import integer_ids
from .pgcopy import BitColumn, Column, VectorColumn

# The longest vector of pgvector.
_MOST_DIM = 16_000


def to_pgvector(
    index: BinaryIndex | CBEIndex,
    connection: Any,
    table: str,
    *,
    id_column: str = "id",
    code_column: str | None = "code",
    vector_column: str | None = "embedding",
    append: bool = False,
) -> int:
    """Copy the rows of an index to a table, in one transaction.

    The order of bits in the table is that of the code, so `code <~> query` is the Hamming distance of the index.
    `embedding <=> query` is its distance under "cosine", `<->` the root of its distance under "l2", and `<#>` its
    distance under "ip" less 1.

    Parameters
    ----------
    index : BinaryIndex or CBEIndex
    connection : connection of psycopg 3
        To a database that has the extension: `CREATE EXTENSION vector`.
    table : str
        Name of the table, also with its schema: "schema.table". It is made, unless `append`.
    id_column, code_column, vector_column : str
        Names of columns: `bigint PRIMARY KEY`, `bit(n_bits)`, and `vector(dim)` or `halfvec(dim)` for an index that
        keeps float16. None leaves out codes or vectors. Codes are also left out where a `CBEIndex` is not fitted yet
        or keeps none, and vectors where the index has none.
    append : bool
        Add the rows to a table that exists. Otherwise the table must not exist.

    Returns
    -------
    int
        Number of rows.
    """
    _check_connection(connection)
    names, columns = _columns_of(index, code_column, vector_column)
    target, quoted = _quoted_table(table), [_quoted(id_column), *map(_quoted, names)]
    ids, step = integer_ids(index, "the table"), pgcopy.rows_per_block(columns)
    with connection.transaction(), connection.cursor() as cursor:
        if not as_flag(append, "append"):
            types = ["bigint PRIMARY KEY", *(column.sql_type for column in columns)]
            declared = ", ".join(f"{name} {kind}" for name, kind in zip(quoted, types, strict=True))
            cursor.execute(f"CREATE TABLE {target} ({declared})")
        with cursor.copy(f"COPY {target} ({', '.join(quoted)}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(pgcopy.HEADER)
            for start in range(0, len(ids), step):
                some = ids[start : start + step]
                values = [_values_of(index, column, some) for column in columns]
                copy.write(pgcopy.pack(columns, some, values))
            copy.write(pgcopy.TRAILER)
    return len(ids)


def from_pgvector(
    connection: Any, table: str, column: str = "embedding", *, id_column: str = "id", **options: Any
) -> BinaryIndex | CBEIndex:
    """Make an index of the rows of a table.

    Parameters
    ----------
    connection : connection of psycopg 3
    table : str
        Name of the table, also with its schema: "schema.table".
    column : str
        A column of type `bit(n)` makes a `BinaryIndex`, one of type `vector` or `halfvec` a `CBEIndex` that keeps
        float32 or float16. All rows must have a value, of the same length.
    id_column : str
        A column of unique non-negative integers.
    **options
        Arguments of the index that is made, for example `metric="l2"`.

    Returns
    -------
    BinaryIndex or CBEIndex
    """
    _check_connection(connection)
    source = _quoted_table(table)
    with connection.cursor() as cursor:
        described = _described(cursor, source, column)
        index: BinaryIndex | CBEIndex
        if isinstance(described, BitColumn):
            index = BinaryIndex(described.n_bits, **options)
        else:
            kept = "float32" if described.kind == "vector" else "float16"
            index = CBEIndex(described.dim, **{"vectors": kept, "buckets": None} | options)
        query = f"SELECT {_quoted(id_column)}::bigint, {_quoted(column)} FROM {source} ORDER BY 1"
        with cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT BINARY)") as copy:
            for ids, values in pgcopy.unpack(copy, described):
                index.add(values, ids)
    return index


def _check_connection(connection: Any) -> None:
    is_known = callable(getattr(connection, "transaction", None)) and callable(getattr(connection, "cursor", None))
    if not is_known or inspect.iscoroutinefunction(connection.commit):
        kind = f"{type(connection).__module__}.{type(connection).__name__}"
        raise TypeError(f"connection must be a psycopg.Connection of psycopg 3, got {kind}")


def _columns_of(
    index: BinaryIndex | CBEIndex, code_column: str | None, vector_column: str | None
) -> tuple[list[str], list[Column]]:
    """Return names and types of the columns of a table for an index."""
    if not isinstance(index, BinaryIndex | CBEIndex):
        raise TypeError(f"index must be a BinaryIndex or a CBEIndex, got {type(index).__name__}")
    has_codes = isinstance(index, BinaryIndex) or (index.is_fitted and index.hamming)
    has_vectors = isinstance(index, CBEIndex) and (index.vectors is not None or not index.is_fitted)
    found: list[tuple[str, Column]] = []
    if has_codes and code_column is not None:
        found.append((code_column, BitColumn(index.n_bits)))
    if has_vectors and vector_column is not None and isinstance(index, CBEIndex):
        if index.dim > _MOST_DIM:
            raise ValueError(
                f"pgvector holds vectors of up to {_MOST_DIM:,} values, got {index.dim:,}: pass vector_column=None"
            )
        found.append((vector_column, VectorColumn(index.dim, "halfvec" if index.vectors == "float16" else "vector")))
    if not found:
        raise ValueError("the table must have codes or vectors, but both are left out or not in the index")
    return [name for name, _ in found], [column for _, column in found]


def _values_of(index: BinaryIndex | CBEIndex, column: Column, ids: Any) -> Any:
    """Return the codes or vectors of `ids`."""
    if isinstance(column, BitColumn):
        return index.get(ids) if isinstance(index, BinaryIndex) else index.codes(ids)
    rows: Any = index.get(ids)
    return rows.toarray() if is_sparse(rows) else rows


def _described(cursor: Any, source: str, column: str) -> Column:
    """Return the type of a column of a table."""
    cursor.execute(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attname = %s AND attnum > 0 AND NOT attisdropped",
        (source, column),
    )
    row = cursor.fetchone()
    if row is None:
        raise ValueError(f"table {source} must have a column {column!r}, and it has none")
    found = re.fullmatch(r'(?:[^.]+\.)?"?(bit|vector|halfvec)"?(?:\((\d+)\))?', row[0])
    if found is None:
        raise TypeError(f"column {column!r} must have type bit(n), vector or halfvec, got {row[0]}")
    kind, length = found.groups()
    if kind == "bit":
        return BitColumn(int(length))
    if length is None:  # a column of vectors of any length: that of the first one
        cursor.execute(
            f"SELECT vector_dims({_quoted(column)}) FROM {source} WHERE {_quoted(column)} IS NOT NULL LIMIT 1"
        )
        first = cursor.fetchone()
        if first is None:
            raise ValueError(f"column {column!r} must say how long vectors are, or hold one; it is {row[0]} and empty")
        length = first[0]
    return VectorColumn(int(length), kind)


def _quoted(name: str) -> str:
    """Quote the name of a column."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise ValueError(f"names of columns and tables must be strings, got {name!r}")
    return '"' + name.replace('"', '""') + '"'


def _quoted_table(table: str) -> str:
    """Quote the name of a table, or of a schema and a table with a point between them."""
    parts = table.split(".") if isinstance(table, str) else [table]
    return ".".join(map(_quoted, parts))
