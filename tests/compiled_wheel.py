"""Run the README's lines with an empty cache where a wheel with compiled kernels is installed: nothing is compiled.

`make test-wheel` runs this file with the Python of that installation.
"""

import os
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    os.environ["NUMBA_CACHE_DIR"] = folder  # read when numba is imported, which is later
    import numpy as np

    from cbeindex import CBEIndex
    from cbeindex.kernels import caching

    X = np.random.default_rng(0).standard_normal((20_000, 768), dtype=np.float32)
    index = CBEIndex(768)
    index.add(X)
    index.search(X[:5], k=10, recall=0.95)
    index.save(f"{folder}/items.cbe")
    index = CBEIndex.load(f"{folder}/items.cbe")
    distances, ids = index.search(X[:5], k=10, recall=0.95)
    assert ids[:, 0].tolist() == [0, 1, 2, 3, 4], ids
    assert caching.stored(caching.AHEAD), f"the installation has no compiled kernels in {caching.AHEAD}"
    compiled = sorted(path.name for path in Path(folder).rglob("*.nbc"))
    assert not compiled, f"compiled although the wheel should have them: {compiled}"
print("compiled nothing")
