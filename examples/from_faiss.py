"""faiss: take over the codes of a binary index, with their ids, and give them back."""

import faiss
import numpy as np

from cbeindex import interop

rng = np.random.default_rng(0)
codes = rng.integers(0, 256, (20_000, 128), dtype=np.uint8)
theirs = faiss.IndexBinaryIDMap2(faiss.IndexBinaryFlat(1_024))
theirs.add_with_ids(codes, np.arange(20_000) + 7)

ours = interop.from_faiss(theirs)
distances, ids = ours.search(codes[:100], k=10)
print(ours)
print("same distances:", np.array_equal(distances, theirs.search(codes[:100], 10)[0]), "ids:", ids[:3, 0])

ours.save("codes.cbe")  # crash-safe and checksummed; load() maps it
back = interop.to_faiss(ours)
print("back:", type(back).__name__, "of", f"{back.ntotal:,}")
