"""pgvector: copy vectors and codes to a table of PostgreSQL, query them there, and read them back.

Run it with the address of a database that you may write to: python pgvector_table.py "dbname=test user=me".
"""

import sys

import numpy as np
import psycopg

from cbeindex import CBEIndex, interop

X = np.random.default_rng(0).standard_normal((10_000, 256), dtype=np.float32)
index = CBEIndex(256, vectors="float32")
index.add(X)

with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    connection.execute("DROP TABLE IF EXISTS cbeindex_example")
    n_rows = interop.to_pgvector(index, connection, "cbeindex_example")
    print(f"{n_rows:,} rows")

    # The nearest codes of row 5, in the database and in the index.
    code = "(SELECT code FROM cbeindex_example WHERE id = 5)"
    query = f"SELECT id, code <~> {code} FROM cbeindex_example ORDER BY 2, 1 LIMIT 5"
    rows = connection.execute(query).fetchall()
    distances, ids = index.search(X[5], k=5, rerank=None)
    print("same distances:", rows == list(zip(ids.tolist(), distances.tolist(), strict=True)))

    back = interop.from_pgvector(connection, "cbeindex_example", metric="cosine")
    print(back, "same vectors:", np.array_equal(back.get(back.ids), X))
    connection.execute("DROP TABLE cbeindex_example")
