"""How fast kernels are alone, in cache and from memory, at every instruction level, next to the memory's own speed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks import isa
from benchmarks.harness import Contender
from benchmarks.report import Report

BITS = (128, 384, 784, 1_024, 4_096)
SCAN_BITS = (64, 128, 256, 512, 1_024, 2_048, 4_096, 16_384)
# What is read at random: some that the first cache holds, and far more than the last one does. Scans of one query, in
# the second cache and from memory; scans of many.
SIZES = {"cache": 2**14, "memory": 2**28}
SCAN_SIZES = {"cache": 2**20, "memory": 2**28}
BATCH_BYTES = 2**23

# An earlier measurement of first versions of these kernels, on one core of a Zen 4 with AVX2 instructions: nanoseconds
# a block of 1 bit a dimension, by bits and place; microseconds of tables of 1 bit; nanoseconds of an int8 product in
# cache.
TRIAL_BLOCKS = {(384, "cache"): 42, (784, "cache"): 83, (384, "memory"): 216, (784, "memory"): 442}
TRIAL_TABLES = {384: 0.24, 784: 0.47}
TRIAL_PRODUCTS = {384: 12, 784: 27}
TRIAL = "trial: an earlier measurement, Zen 4"


@dataclass
class Measured:
    """A run: where kernels are measured, and how."""

    report: Report
    options: argparse.Namespace
    hamming: Mapping[str, Contender]
    lookups: Mapping[str, Contender]


def main(arguments: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks kernels", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="a smoke run: few bits, little memory, few rounds")
    add("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    add("--bits", type=int, nargs="+", default=None, help="multiples of 8; of 64 bits and dimensions alike")
    add("--levels", nargs="+", default=None, help="instruction levels; by default that of the CPU and all below it")
    add("--queries", type=int, nargs="+", default=(4, 32, 256), help="of batches")
    add("--k", type=int, nargs="+", default=(10, 100, 1_000), help="of batches")
    add("--rounds", type=int, default=None, help="in which kernels alternate (40)")
    add("--seconds", type=float, default=None, help="time for each line of scans (1)")
    add("--output", default=os.path.join("bench-report", "kernels.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (2 if options.quick else 40)
    options.seconds = (0.0 if options.quick else 1.0) if options.seconds is None else options.seconds
    options.scale = 64 if options.quick else 1
    options.scan_bits = options.bits or ((64, 1_024) if options.quick else SCAN_BITS)
    options.bits = options.bits or (BITS[1:2] if options.quick else BITS)
    report = Report("Kernels", options.output)
    sizes = {"cache": SIZES["cache"], "memory": SIZES["memory"] // options.scale}
    with ExitStack() as stack:
        kinds: list[dict[str, Contender]] = [{}, {}]
        for level, environment in levels(options.levels).items():
            for kind, factory in zip(kinds, ("hamming:Hamming", "lookups:Lookups"), strict=True):
                made = Contender(f"benchmarks.kernels.{factory}", {"sizes": sizes}, environment=environment)
                kind[level] = stack.enter_context(made)
        run = Measured(report, options, *kinds)
        for part in options.parts:
            PARTS[part](run)


def levels(names: list[str] | None) -> dict[str, Mapping[str, str]]:
    """Return the instruction levels to measure, with the environment variables of each."""
    own = isa.in_use()
    below = [] if isa.chosen() else isa.below(own)
    found = {own: {}, **{level: isa.LEVELS[level] for level in below}}
    unknown = set(names or ()) - set(found)
    if unknown:
        raise SystemExit(f"--levels must be among {', '.join(found)}, got {', '.join(sorted(unknown))}")
    return {level: found[level] for level in names or found}


def print_hamming(run: Measured) -> None:
    """Distances of a block of 16 rows to one query and to four."""
    columns = ["1 query", "4 queries", "plain"]
    table = run.report.table(
        "Hamming blocks",
        ["bits", "where", "level", *columns, "GB/s", "read GB/s", "of limit"],
        "ns a block of 16 rows in random order, minimum; plain: the compiler's own loop; GB/s: of one query; read, the "
        "limit: a plain sum of as many bytes in a row",
    )
    for n_bits in run.options.bits:
        for where in SIZES:
            for level, process in run.hamming.items():
                ns, n_bytes = process.call("blocks", n_bits, where, run.options.rounds), 128 * -(-n_bits // 64)
                times = (ns[name] for name in columns)
                table.row(n_bits, where, level, *times, *speeds(n_bytes, ns["1 query"], ns["read"]))


def print_scans(run: Measured) -> None:
    """Scans of all codes for one query and for many, next to faiss."""
    table = run.report.table(
        "one query, k = 10",
        ["bits", "rows", "where", "level", "GB/s", "faiss", "x faiss", "read GB/s", "of limit"],
        "GB/s of codes; x: faiss time / this time, above 1: faster than faiss; read: a plain sum; limit: that sum from "
        "memory, and counting without any result from cache",
    )
    options = run.options
    for n_bits in options.scan_bits:
        for where, size in SCAN_SIZES.items():
            for level, process in run.hamming.items():
                n_bytes = size // options.scale if where == "memory" else size
                least = process.call("scan", n_bits, n_bytes, 1, 10, options.seconds)
                gb = {name: least["bytes"] / 1e9 / least[name] for name in ("scan", "count", "faiss", "sum")}
                table.row(
                    n_bits, least["rows"], where, level, gb["scan"], gb["faiss"], gb["scan"] / gb["faiss"], gb["sum"],
                    gb["scan"] / gb["sum" if where == "memory" else "count"],
                )  # fmt: skip
    print_batches(run)


def print_batches(run: Measured) -> None:
    """Scans of all codes for many queries, next to faiss."""
    options = run.options
    table = run.report.table(
        "batches",
        ["bits", "rows", "level", "queries", "k", "ns a row", "faiss", "x faiss", "of limit"],
        "ns for a row and a query; limit: counting without any result",
    )
    for n_bits in options.scan_bits:
        for n_queries, k in ((n_queries, k) for n_queries in options.queries for k in options.k):
            for level, process in run.hamming.items():
                n_bytes = BATCH_BYTES // options.scale
                least = process.call("scan", n_bits, n_bytes, n_queries, k, options.seconds)
                ns = {name: least[name] * 1e9 / least["rows"] / n_queries for name in ("scan", "count", "faiss")}
                ratios = ns["faiss"] / ns["scan"], ns["count"] / ns["scan"]
                table.row(n_bits, least["rows"], level, n_queries, k, ns["scan"], ns["faiss"], *ratios)


def print_lookups(run: Measured) -> None:
    """Look-up sums of a block of 32 rows."""
    columns = ["1 query", "ahead", "2 queries", "4 queries", "precise", "plain"]
    table = run.report.table(
        "look-ups",
        ["dims", "bits", "where", "level", *columns, "trial", "GB/s", "read GB/s", "of limit"],
        "ns a block of 32 rows in random order, minimum; ahead: with prefetch, several queries too; plain: the "
        f"compiler's own loop; GB/s: of one query; read, the limit: a plain sum of as many bytes in a row; {TRIAL}",
    )
    for n_dims in run.options.bits:
        for bits in (1, 2, 4):
            for where in SIZES:
                for level, process in run.lookups.items():
                    ns = process.call("blocks", n_dims, bits, where, run.options.rounds)
                    trial = TRIAL_BLOCKS.get((n_dims, where)) if bits == 1 else None
                    times = [ns[name] for name in columns]
                    speed = speeds(32 * -(-n_dims * bits // 8), min(times[:2]), ns["read"])
                    table.row(n_dims, bits, where, level, *times, trial, *speed)


def print_tables(run: Measured) -> None:
    """Tables of one query, as they are made of its projections."""
    table = run.report.table(
        "tables",
        ["dims", "bits", "level", "tables us", "precise us", "trial"],
        f"microseconds a query, minimum; {TRIAL}",
    )
    for n_dims in run.options.bits:
        for bits in (1, 2, 4):
            for level, process in run.lookups.items():
                ns = process.call("tables", n_dims, bits, run.options.rounds)
                trial = TRIAL_TABLES.get(n_dims) if bits == 1 else None
                table.row(n_dims, bits, level, ns["tables"] / 1e3, ns["precise"] / 1e3, trial)


def print_weights(run: Measured) -> None:
    """Weights of Hamming codes, blocks of 16 rows, for estimated distances."""
    columns = ["look-ups", "planes", "look-ups 4", "planes 4"]
    table = run.report.table(
        "weights",
        ["bits", "where", "level", "path", *columns, "quantise us", "tables us"],
        "ns a block of 16 rows in random order, minimum; 4: for four queries that share it; path: bytes of a word that "
        "one instruction looks up for 16 rows, 0 if searches use planes; microseconds to prepare a query",
    )
    for n_bits in run.options.bits:
        for where in SIZES:
            for level, process in run.lookups.items():
                ns = process.call("weights", n_bits, where, run.options.rounds)
                prepared = (ns[name] / 1e3 for name in ("quantise", "tables"))
                table.row(n_bits, where, level, ns["together"], *(ns[name] for name in columns), *prepared)


def print_products(run: Measured) -> None:
    """Products of one query with rows."""
    columns = ["int8", "plain int8", "int4", "float32", "plain f32", "float16", "l2 int8", "l2 f32"]
    table = run.report.table(
        "products",
        ["dims", "where", "level", *columns, "trial int8"],
        f"ns a row in random order, minimum; plain: the compiler's own loop, for floats with fastmath; {TRIAL}",
    )
    for n_dims in run.options.bits:
        for where in SIZES:
            for level, process in run.lookups.items():
                ns = process.call("products", n_dims, where, run.options.rounds)
                trial = TRIAL_PRODUCTS.get(n_dims) if where == "cache" else None
                table.row(n_dims, where, level, *(ns[name] for name in columns), trial)


def speeds(n_bytes: int, ns: float, ns_of_reading: float) -> tuple[Any, Any, Any]:
    """Return GB/s of a kernel that reads `n_bytes`, GB/s of reading alone, and the share of the first in the second."""
    return n_bytes / ns, n_bytes / ns_of_reading, ns_of_reading / ns


PARTS = {
    "hamming": print_hamming,
    "scans": print_scans,
    "lookups": print_lookups,
    "tables": print_tables,
    "weights": print_weights,
    "products": print_products,
}
"""Parts of a run, in the order of the report."""
