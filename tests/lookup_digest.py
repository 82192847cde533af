"""Prints a digest of what look-up kernels answer: `python -m tests.lookup_digest`, equal for all processors."""

import hashlib

import numpy as np

from cbeindex.kernels import cellscan, dots, querytables
from tests.lookup_oracles import coded_rows


def digest():
    """Digest of tables, keys and float products of fixed inputs."""
    rng = np.random.RandomState(5)  # its numbers never change
    results = []
    for n_dims, bits, is_precise in ((100, 4, False), (257, 1, True), (65, 2, False)):
        projections = (rng.random((3, n_dims)) - 0.5).astype(np.float32)
        coded = coded_rows(rng, np.arange(90), n_dims, bits)
        tables = np.zeros((3, querytables.room_for_tables(n_dims, bits) * (1 + is_precise)), dtype=np.uint8)
        made = [querytables.fill_tables(z, bits, is_precise, t) for z, t in zip(projections, tables, strict=True)]
        steps, offsets = np.array(made, dtype=np.float32).T.copy()
        found = np.full((3, 200), 2**64 - 1, dtype=np.uint64)
        counts, bounds = np.zeros(3, np.int64), np.full(3, np.finfo(np.float32).max, dtype=np.float32)
        # Precise tables serve one query at a time.
        for queries in ([0], [2], [1]) if is_precise else ([0, 2, 1],):
            cellscan.scan_visits(
                np.array([0]), np.array([0, len(queries)]), np.array(queries), offsets[queries], tables, is_precise,
                steps, offsets, coded.records, np.array([[0, 3, 0, 90]]), coded.n_bytes, np.zeros(0, bool),
                np.arange(90, dtype=np.int32), 90, found, counts, bounds,
            )  # fmt: skip
        results += [tables, steps, offsets, np.sort(found, axis=1)]
    vectors = (rng.random((40, 110)) - 0.5).astype(np.float32)
    rows, products = np.arange(40), np.empty(40, dtype=np.float32)
    for matrix in (vectors, vectors.astype(np.float16).view(np.uint16)):
        for kernel in (dots.dots_of_floats, dots.squares_of_floats):
            kernel(vectors[0], matrix, rows, products)
            results.append(products.copy())
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in results)).hexdigest()


if __name__ == "__main__":
    print(digest())
