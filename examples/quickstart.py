"""Index vectors, find neighbours, and print the standard errors of estimated distances."""

import numpy as np

from cbeindex import CBEIndex

rng = np.random.default_rng(0)
centres = rng.standard_normal((200, 768))
X = (centres[rng.integers(0, 200, 20_000)] + rng.standard_normal((20_000, 768))).astype(np.float32)
queries = X[:5] + 0.3 * rng.standard_normal((5, 768)).astype(np.float32)

# Codes only: 768 bits, 96 bytes per vector instead of 3,072. Distances are estimates with a standard error.
index = CBEIndex(768, vectors=None)
index.add(X)
result = index.search(queries, k=3)
print(index)
assert result.errors is not None  # as with rerank=None
for query, (distances, ids, errors) in enumerate(zip(result.distances, result.ids, result.errors, strict=True)):
    print(f"query {query}:", *(f"{i} at {d:.3f} +- {e:.3f}" for i, d, e in zip(ids, distances, errors, strict=True)))

# Codes and vectors: codes select the candidates, vectors give exact distances.
index = CBEIndex(768, vectors="float32")
ids = index.add(X)
distances, ids = index.search(queries, k=3)
print(index)
print(ids[:, 0], distances[:, 0].round(3))

# Rows can be added and removed under your own ids. A filter is applied inside the search.
index.add(queries[:1], ids=[1_000_000])
index.remove([0])
distances, ids = index.search(queries[0], k=2, deny=[1])
print(ids, distances.round(3))
