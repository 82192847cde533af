"""Small indexes of every kind, queries for them, and a comparison of everything that two indexes report."""

import copy
from contextlib import contextmanager

import numpy as np
import scipy.sparse

from cbeindex import BinaryIndex, CBEIndex
from cbeindex._core.tuning import tuned
from cbeindex.encoders import (
    AQBCEncoder,
    BilinearEncoder,
    CirculantEncoder,
    ITQEncoder,
    LSHEncoder,
    SKLSHEncoder,
    SpectralEncoder,
)
from tests.strategies import some_codes
from tests.vector_oracles import clustered

DIM = 24
FIRST_ROWS = 20
ENCODERS = {
    "orthogonal": lambda n_bits: CirculantEncoder(DIM, n_bits, seed=1),
    "random": lambda n_bits: CirculantEncoder(DIM, n_bits, "random", seed=2, pad=False),
    "learned": lambda n_bits: CirculantEncoder(DIM, n_bits, "learned", n_iter=2, lam=0.5, mu=0.125),
    "lsh": lambda n_bits: LSHEncoder(DIM, n_bits, seed=3),
    "bilinear": lambda n_bits: BilinearEncoder(DIM, min(n_bits, DIM)),
    "learned bilinear": lambda n_bits: BilinearEncoder(DIM, min(n_bits, DIM), "learned", n_iter=2),
    "itq": lambda n_bits: ITQEncoder(DIM, min(n_bits, DIM), n_iter=2),
    "spectral": lambda n_bits: SpectralEncoder(DIM, n_bits),
    "sklsh": lambda n_bits: SKLSHEncoder(DIM, n_bits, seed=4),
    "sklsh of a gamma": lambda n_bits: SKLSHEncoder(DIM, n_bits, gamma=0.1),
    "aqbc": lambda n_bits: AQBCEncoder(DIM, min(n_bits, DIM), n_iter=2),
}


@contextmanager
def small_sizes():
    """Lower the limits on rows, so that a few rows fill buffers, fit an encoder and get buckets."""
    buckets = {"least_cell_segment_rows": 16, "least_table_segment_rows": 16, "bucket_buffer_rows": 32}
    buckets |= {"least_graph_segment_rows": 16, "graph_step_rows": 1, "graph_leaf_rows": 12, "graph_building_beam": 8}
    with tuned(**buckets, buffer_rows=32, least_buffer_rows=2, first_rows=FIRST_ROWS, least_first_rows=4):
        yield


def some_rows(n, seed=0, is_sparse=False):
    """Return n non-negative vectors, which every encoder accepts. From 5 rows on, one is zero and two are equal."""
    rows = np.abs(clustered(n, DIM, seed=seed))
    if n > 4:
        rows[3], rows[4] = 0, rows[1]
    if not is_sparse:
        return rows
    return scipy.sparse.csr_array(np.where(np.random.default_rng(seed).random(rows.shape) < 0.3, rows, 0))


def an_index(n_bits=70, n=60, encoder="orthogonal", is_sparse=False, **options):
    """Return a CBEIndex with n rows."""
    index = CBEIndex(DIM, encoder=ENCODERS[encoder](n_bits), **{"vectors": None, "buckets": None, **options})
    if n:
        index.add(some_rows(n, is_sparse=is_sparse))
    return index


def a_binary_index(n_bits=70, n=60, **options):
    """Return a BinaryIndex with n codes in 5 clusters."""
    index = BinaryIndex(n_bits, **options)
    if n:
        index.add(some_codes(np.random.default_rng(0), n, n_bits, 5, 0.1))
    return index


def queries_for(index):
    if isinstance(index, BinaryIndex):
        return some_codes(np.random.default_rng(1), 3, index.n_bits)
    return some_rows(3, seed=1)


def reranks_of(index):
    """Return the values of `rerank` that an index accepts."""
    return (
        [None] * getattr(index, "hamming", True)
        + ["asymmetric"] * index.encoder.is_linear
        + ["exact"] * (index.vectors in ("float16", "float32"))
        + ["auto"] * (index.vectors in ("int4", "int8"))
    )


def requests(index):
    """Return options of `search` by name, for every mode and filter that an index supports."""
    modes = ["auto", "scan"] + ["cascade"] * (index.n_bits > 1024) + ["buckets"] * (index.buckets is not None)
    if isinstance(index, BinaryIndex):
        every = {mode: {"mode": mode} for mode in modes}
    else:
        every = {
            f"{mode}, {rerank}": {"mode": mode, "rerank": rerank}
            for mode in modes
            for rerank in reranks_of(index)
            if not (index.buckets in ("cells", "graph") and (mode, rerank) == ("buckets", None))  # no Hamming order
        }
    every["few"] = {"mode": "scan", "allow": index.ids[::20]}
    every["not all"] = {"mode": "scan", "deny": index.ids[::2]}
    if index.buckets is not None:
        every["probes"] = {"mode": "buckets", "n_probes": 1}
    return every


def answers(index, queries=None, *, every_way=True):
    """Return everything an index reports; without `every_way` only what does not depend on its segments."""
    queries = queries_for(index) if queries is None else queries
    told = {"repr": repr(index), "ids": index.ids, "n": len(index), "next": copy.copy(index).add(queries[:1])}
    if every_way:
        told["stats"] = index.stats()
    for name, request in requests(index).items():
        if every_way or request["mode"] == "scan":
            result = index.search(queries, 4, **request)
            told[name] = result.distances, result.ids, result.errors
            if every_way:
                told[f"stats of {name}"] = result.stats
    if isinstance(index, BinaryIndex):
        told["range"] = index.range_search(queries, index.n_bits // 3)
        told["get"] = index.get(index.ids)
    else:
        if index.encoder.is_linear or index.vectors is not None:
            told["range"] = index.range_search(queries, float(np.median(told["scan, None"][0])) / index.n_bits)
        if index.vectors is not None or not index.is_fitted:
            found = index.get(index.ids)
            told["get"] = found.toarray() if scipy.sparse.issparse(found) else found
    return told


def check_same(told, expected):
    """Check that two reports are equal, including dtypes and shapes."""
    assert told.keys() == expected.keys()
    for name in told:
        np.testing.assert_equal(told[name], expected[name], err_msg=name)
        for ours, theirs in zip(_arrays(told[name]), _arrays(expected[name]), strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name


def _arrays(value):
    return [part for part in (value if isinstance(value, tuple) else (value,)) if isinstance(part, np.ndarray)]
