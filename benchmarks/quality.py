"""How many true neighbours the codes alone find: our kinds of encoder next to faiss RaBitQ, LSH, HR,LSH and ITQ,LSH."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets
from benchmarks.report import Report
from cbeindex import CBEIndex, CirculantEncoder

N_TRUE = 10
DEPTHS = (10, 50, 100)
# Methods with a dense matrix are left out where it would have more values than this (1 GiB of float32).
LARGEST_MATRIX = 2**28
# Bits of all rows together, so that codes stay below 512 MiB.
MOST_BITS = 2**32

Search = Callable[[int], NDArray[np.int64]]


def main(arguments: list[str]) -> None:
    """Print a table for each set."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks quality", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: small data, fewer bits")
    parser.add_argument("--data", nargs="+", help="names of sets; by default all real ones, or made-up data")
    parser.add_argument("--bits-per-dim", type=float, nargs="+", default=None)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--train", type=int, default=10_000, help="rows that encoders are fitted on")
    parser.add_argument("--output", default=os.path.join("bench-report", "quality.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    report = Report("Quality of codes", options.output)
    for name in options.data or datasets.available() or ["planted"]:
        data = datasets.planted(20_000, 256, 200) if name == "planted" else datasets.load(name)
        if options.quick:
            data = datasets.Dataset(data.name, data.base[:2_000], data.queries[:50])
        data = datasets.with_truth(data, options.queries)
        shares = options.bits_per_dim or ((1.0,) if options.quick else (0.5, 1.0, 2.0, 4.0))
        measure(report, data, shares, options.train)


def measure(report: Report, data: datasets.Dataset, shares: tuple[float, ...], n_train: int) -> None:
    """One row for each number of bits and method."""
    table = report.table(
        f"quality {data.name}",
        ["bits", "bits/dim", "method", *(f"10@{depth}" for depth in DEPTHS)],
        f"share of the {N_TRUE} true neighbours among the first 10, 50, 100 results; a tie with the last counts",
    )
    rows = np.random.default_rng(0).permutation(data.base.shape[0])[:n_train]
    sample = data.base[np.sort(rows)]
    for share in shares:
        n_bits = round(share * data.dim)
        if n_bits * data.base.shape[0] > MOST_BITS:
            continue
        for method, search in chain(ours(data, sample, n_bits), theirs(data, sample, n_bits)):
            ids = search(max(DEPTHS))
            table.row(n_bits, share, method, *(datasets.recall(data, ids[:, :depth], N_TRUE) for depth in DEPTHS))


def ours(data: datasets.Dataset, sample: Any, n_bits: int) -> Iterator[tuple[str, Search]]:
    """Each kind of encoder, by Hamming distance and by the asymmetric estimate."""
    for kind in ("random", "orthogonal", "learned"):
        index = CBEIndex(data.dim, encoder=CirculantEncoder(data.dim, n_bits, kind), vectors=None, buckets=None).fit(
            sample
        )
        index.add(data.base)
        for name, rerank in (("Hamming", None), ("asymmetric", "asymmetric")):
            yield f"cbeindex {kind}, {name}", functools.partial(_search_ours, index, data.queries, rerank)


def theirs(data: datasets.Dataset, sample: Any, n_bits: int) -> Iterator[tuple[str, Search]]:
    """Yield the methods of faiss that can make codes of `n_bits` bits."""
    import faiss

    if hasattr(data.base, "toarray") or data.dim * n_bits > LARGEST_MATRIX:
        return
    indexes = {
        "faiss RaBitQ": faiss.IndexPreTransform(
            faiss.RandomRotationMatrix(data.dim, n_bits), faiss.IndexRaBitQ(n_bits, faiss.METRIC_L2)
        ),
        "faiss LSH": faiss.IndexLSH(data.dim, n_bits),
    }
    hadamard = faiss.HadamardRotation(data.dim)
    if n_bits <= hadamard.d_out:
        indexes["faiss HR,LSH"] = faiss.IndexPreTransform(hadamard, faiss.IndexLSH(hadamard.d_out, n_bits, False))
    if n_bits <= data.dim:
        indexes["faiss ITQ,LSH"] = faiss.index_factory(data.dim, f"ITQ{n_bits},LSH")
    for name, index in indexes.items():
        index.train(sample)
        index.add(data.base)
        yield name, functools.partial(_search_theirs, index, data.queries)


def _search_ours(index: CBEIndex, queries: Any, rerank: str | None, k: int) -> NDArray[np.int64]:
    return index.search(queries, k, "scan", rerank).ids


def _search_theirs(index: Any, queries: Any, k: int) -> NDArray[np.int64]:
    return np.asarray(index.search(queries, k)[1])
