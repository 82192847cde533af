"""Recall against bytes a row, all rows estimated: ours next to faiss RaBitQ, IVF RaBitQ, SQ, PQ and OPQ."""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets, plots
from benchmarks.report import Report
from cbeindex import CBEIndex

N_TRUE = 10
DEPTHS = (10, 100)
SETS = ("sift5k-128", "glove6b-100", "fashion-mnist-784", "fashion-vlad-25600")
# Queries that are searched together: every one of them has a candidate for each row.
_TOGETHER = 20
# faiss trains and searches vectors longer than this for hours.
_LONGEST_PQ, _LONGEST_FAISS = 1_000, 30_000
# Rows that ours are fitted to, as an index does by itself.
_FIT_ROWS = 2**16
_RABITQ_BITS = (1, 2, 4, 5, 8)


class Contender(NamedTuple):
    """A way to store vectors: bytes a row, everything included, and a search of all rows."""

    name: str
    is_ours: bool
    n_bytes: float
    search: Callable[[Any, int], NDArray[np.int64]]


def main(arguments: list[str]) -> None:
    """Print a table and draw a plot for each set."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks bytes", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: small data, a few contenders")
    parser.add_argument("--data", nargs="+", help="names of sets; by default those of the report, or made-up data")
    parser.add_argument("--only", nargs="+", default=[""], help="contenders whose names have one of these words")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--rows", type=int, help="use the first rows of each set only")
    parser.add_argument("--output", default=os.path.join("bench-report", "bytes.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    report, folder = Report("Recall against bytes a row", options.output), Path(options.output).parent
    for name in options.data or [name for name in SETS if name in datasets.available()] or ["clustered"]:
        data = datasets.clustered(20_000, 128, 200) if name == "clustered" else datasets.load(name)
        n_rows = 2_000 if options.quick else options.rows
        if n_rows is not None and n_rows < data.base.shape[0]:
            data = datasets.Dataset(data.name, data.base[:n_rows], data.queries)
        data = datasets.with_truth(data, 30 if options.quick else options.queries)
        points = measure(report, data, options.quick, options.only)
        if plots.can_draw():
            with plots.style():
                plots.save(draw(points, data), folder / f"bytes-{data.name}")


def measure(report: Report, data: datasets.Dataset, is_quick: bool, only: list[str]) -> list[tuple[Contender, float]]:
    """One row for each contender whose name has one of the words `only`; return their recall 10@10."""
    table = report.table(
        f"bytes {data.name}",
        ["contender", "bytes/row", "bits/dim", *(f"10@{depth}" for depth in DEPTHS)],
        "bytes of the file over rows: codes, ids, centres and all; share of the 10 true neighbours among the first 10 "
        "and 100 results, a tie with the last counts",
        {"contender": 28},
    )
    points = []
    for contender in itertools.chain(ours(data, is_quick, only), theirs(data, is_quick, only)):  # one in memory
        ids = contender.search(data.queries, max(DEPTHS))
        found = [datasets.recall(data, ids[:, :depth], N_TRUE) for depth in DEPTHS]
        table.row(contender.name, round(contender.n_bytes, 1), round(8 * contender.n_bytes / data.dim, 2), *found)
        points.append((contender._replace(search=_no_search), found[0]))
    return points


def ours(data: datasets.Dataset, is_quick: bool, only: list[str]) -> Iterator[Contender]:
    """Codes alone, and kept vectors of each type, beside Hamming codes or cells."""
    kinds: list[tuple[str | None, str | None]] = [(None, None), ("int4", None), ("int8", None)]
    if not is_quick:
        kinds += [("float16", None), ("float32", None), (None, "cells"), ("int4", "cells"), ("int8", "cells")]
    for vectors, buckets in kinds:
        name = f"cbeindex {vectors or 'codes'}{', cells' if buckets else ''}"
        if not any(word in name for word in only):
            continue
        index = CBEIndex(data.dim, vectors=vectors, buckets=buckets, hamming=buckets is None)
        index.fit(data.base[:_FIT_ROWS])
        index.add(data.base)
        yield Contender(name, True, _file_bytes(index) / len(index), functools.partial(_search_ours, index))


def theirs(data: datasets.Dataset, is_quick: bool, only: list[str]) -> Iterator[Contender]:
    """Yield the methods of faiss, each with a rotation where it profits from one, and with ids."""
    import faiss

    dim, n = data.dim, data.base.shape[0]
    if hasattr(data.base, "toarray") or dim > _LONGEST_FAISS:
        return
    n_lists = min(256, n // 64)
    made: dict[str, Callable[[], Any]] = {}
    for bits in (4, 8) if is_quick else _RABITQ_BITS:
        made[f"faiss RaBitQ {bits}"] = functools.partial(_rotated, dim, faiss.IndexRaBitQ, dim, faiss.METRIC_L2, bits)
        if not is_quick:
            made[f"faiss IVF{n_lists},RaBitQ {bits}"] = functools.partial(
                _rotated, dim, _ivf_rabitq, dim, n_lists, bits
            )
    for bits in (4, 8):
        made[f"faiss SQ{bits}"] = functools.partial(faiss.index_factory, dim, f"SQ{bits}")
    for n_bytes in (dim // 8, dim // 2):
        if not is_quick and dim <= _LONGEST_PQ and dim % n_bytes == 0:
            made[f"faiss PQ{n_bytes}"] = functools.partial(faiss.index_factory, dim, f"PQ{n_bytes}")
            made[f"faiss OPQ,PQ{n_bytes}"] = functools.partial(_opq, dim, n_bytes)
    for name, make in made.items():
        if not any(word in name for word in only):
            continue
        index = make()
        index.train(data.base)
        index = faiss.IndexIDMap(index) if "IVF" not in name else index
        index.add_with_ids(data.base, np.arange(n))
        n_bytes_row = faiss.serialize_index(index).size / n
        yield Contender(name, False, n_bytes_row, functools.partial(_search_theirs, index))


def _rotated(dim: int, make: Callable[..., Any], *arguments: Any) -> Any:
    """Return an index behind a random rotation, as RaBitQ asks for."""
    import faiss

    inner = make(*arguments)
    inner.this.disown()
    rotation = faiss.RandomRotationMatrix(dim, dim)
    rotation.this.disown()
    index = faiss.IndexPreTransform(rotation, inner)
    index.own_fields = True
    return index


def _opq(dim: int, n_bytes: int) -> Any:
    """Return an index with a trained rotation; a fifth of the usual rounds of training, which else takes an hour."""
    import faiss

    index = faiss.index_factory(dim, f"OPQ{n_bytes},PQ{n_bytes}")
    faiss.downcast_VectorTransform(index.chain.at(0)).niter = 10
    return index


def _ivf_rabitq(dim: int, n_lists: int, bits: int) -> Any:
    """Return an index of lists, all of which are probed."""
    import faiss

    coarse = faiss.IndexFlatL2(dim)
    coarse.this.disown()
    index = faiss.IndexIVFRaBitQ(coarse, dim, n_lists, faiss.METRIC_L2, True, bits)
    index.nprobe = n_lists
    return index


def _file_bytes(index: CBEIndex) -> int:
    """Return the size of the file of an index."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "items.cbe")
        index.save(path)
        return path.stat().st_size


def _search_ours(index: CBEIndex, queries: Any, k: int) -> NDArray[np.int64]:
    reads = index.vectors is not None and index._state.ingest.kept_column == "vectors"
    every: dict[str, Any] = {"n_candidates": len(index)} if reads else {}
    starts = range(0, queries.shape[0], _TOGETHER)
    return np.concatenate([index.search(queries[i : i + _TOGETHER], k, "scan", **every).ids for i in starts])


def _search_theirs(index: Any, queries: Any, k: int) -> NDArray[np.int64]:
    return np.asarray(index.search(queries, k)[1])


def _no_search(queries: Any, k: int) -> NDArray[np.int64]:
    """Stand for the search of a contender that is not held any longer."""
    raise RuntimeError("this index was searched and dropped, so that the next one has its memory")


def draw(points: list[tuple[Contender, float]], data: datasets.Dataset) -> Any:
    """Plot recall 10@10 against bytes a row; names stand at the points."""
    title = f"{data.name}: recall 10@10 against bytes a row, all {data.base.shape[0]:,} rows estimated"
    figure, axes = plots.canvas(title, (9, 5.2))
    for is_ours in (False, True):
        some = sorted((c.n_bytes, recall, c.name) for c, recall in points if c.is_ours == is_ours)
        if some:
            look = {"color": "#C44E52" if is_ours else "#4C72B0", "marker": "o" if is_ours else "s"}
            axes.plot(
                *zip(*((x, y) for x, y, _ in some), strict=True),
                label="cbeindex" if is_ours else "faiss",
                linestyle="none",
                **look,
            )
        for x, y, name in some:
            short = name.removeprefix("cbeindex ").removeprefix("faiss ")
            axes.annotate(short, (x, y), textcoords="offset points", xytext=(4, 3 if is_ours else -8), fontsize=7)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("bytes a row, with ids; better to the left")
    axes.set_ylabel("recall 10@10; better above")
    plots.legend(axes)
    return figure
