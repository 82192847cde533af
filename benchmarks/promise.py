"""Whether searches deliver the recall that is asked for: held-out queries, filters, and queries of another kind."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets
from benchmarks.report import Report, Table
from cbeindex import CBEIndex

RECALLS = (0.8, 0.9, 0.95, 0.99)
RESULTS = (1, 10, 100)
KEPT = (0.5, 0.1, 0.01, 0.001)
METRICS = ("cosine", "l2", "ip")
# "default" is the index that nobody has tuned: cells, with vectors of 8 bits. The others keep float32 vectors.
KINDS = ("default", "cells", "graph")
# Bits of long vectors.
MOST_BITS = 2048
# Delivered recall may be below by this, and by two standard errors.
SLACK = 0.01

COLUMNS = ["data", "metric", "buckets", "k", "asked", "expected", "delivered", "error", "probes", "depth", "ok"]
_NOTE = f"ok: delivered >= asked - {SLACK} - 2 standard errors; depth: vectors that are read in each segment"

Ids = NDArray[np.int64]


class Case(NamedTuple):
    """An index and the rows in it.

    Attributes
    ----------
    base, queries : arrays of shape (n, dim), or CSR
    built : CBEIndex
    label : tuple of str
        Set, metric and kind of buckets.
    """

    base: Any
    queries: Any
    built: CBEIndex
    label: tuple[str, str, str]


def main(arguments: list[str]) -> None:
    """Print a table for each question."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks promise", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: small made-up data")
    parser.add_argument("--data", nargs="+", help="names of sets; by default all real ones, or made-up data")
    parser.add_argument("--metrics", nargs="+", choices=METRICS, default=METRICS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--tables", nargs="+", choices=_TABLES, default=list(_TABLES))
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--output", default=os.path.join("bench-report", "promise.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    report = Report("Promised and delivered recall", options.output)
    names = ["clustered"] if options.quick else options.data or datasets.available() or ["clustered"]
    for name in names:
        for case in _cases(name, options):
            for table in options.tables:
                _TABLES[table](report, case)


def nearest(case: Case, rows: Ids, k: int, queries: Any = None) -> Ids:
    """Return the true nearest of some rows, in order of distance."""
    queries = case.queries if queries is None else queries
    metric, base = case.label[1], case.base[rows]
    found = []
    squares = np.asarray((base * base).sum(axis=1)).ravel()
    for start in range(0, queries.shape[0], 100):
        some = queries[start : start + 100]
        products = some @ base.T
        products = products.toarray() if hasattr(products, "toarray") else np.asarray(products)
        near = {"cosine": products / np.sqrt(np.where(squares > 0, squares, 1)), "ip": products}.get(metric)
        near = 2 * products - squares if near is None else near
        top = np.argpartition(-near, min(k, near.shape[1] - 1), axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(near, top, axis=1), axis=1, kind="stable")
        found.append(rows[np.take_along_axis(top, order, axis=1)])
    return np.concatenate(found)


def _cases(name: str, options: Any) -> Iterator[Case]:
    """Build an index for each metric and kind of buckets; rows of norm 1 have the same neighbours by any metric."""
    data = datasets.clustered(12_000, 32, 200) if name == "clustered" else datasets.load(name)
    base, queries = data.base, data.queries[: options.queries]
    is_long = data.dim > MOST_BITS
    for metric in ("cosine",) if is_long else options.metrics:
        if metric != "cosine" and name != "clustered":
            base, queries = datasets.raw(name)
            queries = queries[: options.queries]
        for kind in options.kinds:
            if is_long and kind == "graph":  # a record would take 30 kB
                continue
            own: dict[str, Any] = {} if kind == "default" else {"vectors": "float32", "buckets": kind}
            index = CBEIndex(data.dim, min(data.dim, MOST_BITS), metric=metric, **own)
            index.fit(base[:8192])
            index.add(base)
            yield Case(base, queries, index, (name, metric, kind))


def _row(
    table: Table, case: Case, queries: Any, truth: Ids, k: int, asked: float, *first: Any, allow: Any = None
) -> None:
    """Search, and write what was promised and what came."""
    found = case.built.search(queries, k, recall=asked, allow=allow)
    plan = case.built.explain(queries, k, recall=asked, allow=allow)
    shares = np.array([np.isin(*ids).mean() for ids in zip(truth, found.ids, strict=True)])
    error = float(shares.std() / np.sqrt(len(shares)))
    delivered = float(shares.mean())
    is_kept = delivered >= asked - SLACK - 2 * error
    table.row(
        *first, *case.label, k, asked, found.stats["expected_recall"], delivered, error, plan.n_probes or "all",
        plan.n_candidates, "yes" if is_kept else "NO",
    )  # fmt: skip


def _measure_queries(report: Report, case: Case) -> None:
    """Search for all queries."""
    table = report.table("promise", COLUMNS, _NOTE)
    for k in RESULTS:
        truth = nearest(case, np.arange(case.base.shape[0]), k)
        for asked in RECALLS:
            _row(table, case, case.queries, truth, k, asked)


def _measure_filters(report: Report, case: Case) -> None:
    """Allow some of the rows: at random, near to one of them, far from it, on one side of all, and by label."""
    table = report.table("filters", ["kept", "of", *COLUMNS], _NOTE)
    for how, kept, rows in _filters(case):
        allow = np.sort(rows)
        prepared = case.built.filter(allow)
        for k in (1, 10):
            if len(allow) > k:
                _row(table, case, case.queries, nearest(case, allow, k), k, 0.95, kept, how, allow=prepared)


def _filters(case: Case) -> Iterator[tuple[str, float, Ids]]:
    """Yield rows that filters allow: how they are chosen, their share of all rows, and the rows."""
    n, rng = case.base.shape[0], np.random.default_rng(0)
    row = case.base[[int(rng.integers(n))]]
    by_distance = nearest(case, np.arange(n), n, row)[0]
    side = case.base @ rng.standard_normal(case.base.shape[1]).astype(np.float32)
    by_side = np.argsort(side, kind="stable")
    for kept in KEPT:
        n_kept = max(1, round(kept * n))
        yield "random", kept, rng.permutation(n)[:n_kept]
        yield "near a row", kept, by_distance[:n_kept]
        yield "far from a row", kept, by_distance[-n_kept:]
        yield "on one side", kept, by_side[:n_kept]
    labels = datasets.labels(case.label[0])
    if labels is not None:
        for some in ([0], [0, 1, 2, 3, 4]):
            rows = np.flatnonzero(np.isin(labels, some))
            yield f"labels {some[0]} to {some[-1]}", len(rows) / n, rows
            yield f"not labels {some[0]} to {some[-1]}", 1 - len(rows) / n, np.setdiff1d(np.arange(n), rows)


def _measure_other_queries(report: Report, case: Case) -> None:
    """Add noise to queries, as long as half of a query; calibrate by half of them."""
    if not isinstance(case.queries, np.ndarray):
        return
    table = report.table("other queries", ["tuned", *COLUMNS], _NOTE)
    rng = np.random.default_rng(1)
    noise = rng.standard_normal(case.queries.shape, dtype=np.float32)
    lengths = np.linalg.norm(case.queries, axis=1, keepdims=True) / np.linalg.norm(noise, axis=1, keepdims=True)
    noisy = case.queries + np.float32(0.5) * lengths * noise
    held, given = noisy[1::2], noisy[::2]  # queries may be in order, such as that of their frequency
    truth = nearest(case, np.arange(case.base.shape[0]), 10, held)
    for tuned in ("no", "yes"):
        if tuned == "yes":
            case.built.tune(given, 10)
        for asked in RECALLS:
            _row(table, case, held, truth, 10, asked, tuned)


_TABLES: dict[str, Callable[[Report, Case], None]] = {
    "promise": _measure_queries,
    "filters": _measure_filters,
    "other": _measure_other_queries,
}
