"""How fast coded rows are compared: look-ups, tables, weights and products of single kernels, in cache and memory."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import alternate, pin
from benchmarks.report import Report
from cbeindex._core.typing import Rows
from cbeindex.kernels import dots, estimates, levels, lookup, querytables, weights
from cbeindex.kernels.jit import njit

DIMS = (128, 384, 784, 1_024, 4_096)
# What is read at random: some that the first cache holds, and far more than the last one does.
CACHED_BYTES, MEMORY_BYTES = 2**14, 2**28
# Nanoseconds of the first trial on a Zen 4 with AVX2 instructions: look-ups of a block, at 1 bit a dimension.
TRIAL = {384: 42, 784: 83}


@njit(nogil=True)
def plain_sums(codes: Any, n_bytes: int, tables: Any, order: Any, out: Any) -> None:
    """Look up as a loop that is left to the compiler."""
    for block in order:
        out[:] = 0
        for j in range(n_bytes):
            for row in range(32):
                byte = codes[block, 32 * j + row]
                out[0, row] += np.int32(tables[0, 32 * j + (byte & 15)]) + tables[0, 32 * j + 16 + (byte >> 4)]


@njit(nogil=True)
def sums(codes: Any, n_bytes: int, tables: Any, numbers: Any, order: Any, is_ahead: bool, out: Any) -> None:
    """Look up blocks in some order, and ask for the next but one if `is_ahead`."""
    for i in range(order.size):
        if is_ahead:
            estimates.prefetch_record(codes, order[min(i + 2, order.size - 1)])
        lookup.sum_block(codes, order[i] * 32 * n_bytes, n_bytes, tables, numbers, out)


@njit(nogil=True)
def precise_sums(codes: Any, n_bytes: int, tables: Any, numbers: Any, order: Any, out: Any) -> None:
    """Look up blocks in precise tables."""
    for block in order:
        lookup.sum_block_precisely(codes, block * 32 * n_bytes, n_bytes, tables, numbers, out)


@njit(nogil=True)
def many_tables(projections: Any, bits: int, is_precise: bool, tables: Any, order: Any) -> None:
    """Make the tables of some rows of `projections`, all in one place."""
    for query in order:
        querytables.fill_tables(projections[query], bits, is_precise, tables)


@njit(nogil=True)
def weights_by_tables(tables: Any, numbers: Any, blocks: Any, order: Any, out: Any) -> None:
    """Weigh Hamming codes, blocks of 16 rows, by look-ups."""
    for block in order:
        weights.weights_by_tables(tables, numbers, blocks, block, out)


@njit(nogil=True)
def weights_by_planes(planes: Any, numbers: Any, blocks: Any, order: Any, out: Any) -> None:
    """Weigh Hamming codes, blocks of 16 rows, by four bit planes."""
    for block in order:
        weights.weights_by_planes(planes, numbers, blocks, block, out)


@njit(nogil=True, fastmath=True)
def plain_dots(query: Any, matrix: Any, rows: Any, out: Any) -> None:
    """Products by a loop that is left to the compiler."""
    for i in range(rows.size):
        total = np.float32(0)
        for j in range(query.size):
            total += query[j] * matrix[rows[i], j]
        out[i] = total


@njit(nogil=True)
def plain_whole_dots(query: Any, matrix: Any, rows: Any, out: Any) -> None:
    """Products of whole numbers by a loop that is left to the compiler."""
    for i in range(rows.size):
        total = np.int32(0)
        for j in range(query.size):
            total += np.int32(query[j]) * np.int32(matrix[rows[i], j])
        out[i] = total


@njit(nogil=True, fastmath=True)
def add_all(words: NDArray[np.uint64]) -> Any:
    """Read memory from one end to the other."""
    total = np.uint64(0)
    for i in range(words.size):
        total += words[i]
    return total


def main(arguments: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks lookups", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: few widths, little memory, few rounds")
    parser.add_argument("--dims", type=int, nargs="+", default=None)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--output", default=os.path.join("bench-report", "lookups.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    options.dims = options.dims or (DIMS[:2] if options.quick else DIMS)
    options.rounds = options.rounds or (2 if options.quick else 40)
    sizes = {"cache": CACHED_BYTES, "memory": 2**22 if options.quick else MEMORY_BYTES}
    pin(1)
    report = Report("Look-ups and products", options.output)
    measure_blocks(report, options.dims, sizes, options.rounds)
    measure_tables(report, options.dims, options.rounds)
    measure_weights(report, options.dims, sizes, options.rounds)
    measure_products(report, options.dims, sizes, options.rounds)


def fastest(calls: dict[str, Callable[[Rows], Any]], n_items: int, n_taken: int, rounds: int) -> dict[str, float]:
    """Return the nanoseconds an item of the fastest of some rounds; a call takes `n_taken` items in a given order.

    Each round has an order of its own, so that no call finds in the cache what the one before has read.
    """
    rng = np.random.default_rng(0)

    def timed(call: Callable[[Rows], Any]) -> float:
        order = rng.integers(0, n_items, n_taken)
        start = time.perf_counter()
        call(order)
        return time.perf_counter() - start

    timings = alternate({name: partial(timed, call) for name, call in calls.items()}, rounds)
    return {name: min(timing.seconds) / n_taken * 1e9 for name, timing in timings.items()}


def measure_blocks(report: Report, dims: Sequence[int], sizes: dict[str, int], rounds: int) -> None:
    """Measure look-up sums of blocks of 32 rows."""
    columns = ["1 query", "ahead", "2 queries", "4 queries", "precise", "plain"]
    table = report.table(
        "look-ups",
        ["dims", "bits", "where", *columns, "trial", "GB/s", "read GB/s"],
        "ns a block of 32 rows, minimum; ahead: with prefetch, several queries too; plain: the compiler's own loop; "
        "GB/s: of one query; read: a plain sum of all memory",
    )
    memory = np.random.default_rng(0).integers(0, 2**64, sizes["memory"] // 8, dtype=np.uint64)
    for n_dims in dims:
        for bits in (1, 2, 4):
            for where, n_bytes in sizes.items():
                ns = times_of_blocks(memory.view(np.uint8)[: max(n_bytes, 16 * n_dims)], -(-n_dims * bits // 8), rounds)
                read = fastest({"all": lambda _: add_all(memory)}, 1, 1, 3)["all"]
                trial = TRIAL.get(n_dims) if (bits, where) == (1, "cache") else None
                speed = 4 * n_dims * bits / min(ns["1 query"], ns["ahead"])
                table.row(n_dims, bits, where, *(ns[name] for name in columns), trial, speed, memory.nbytes / read)


def times_of_blocks(memory: NDArray[np.uint8], n_bytes: int, rounds: int) -> dict[str, float]:
    """Return the nanoseconds a block of `n_bytes` bytes a row, for blocks all over some memory."""
    codes = memory[: memory.size // (32 * n_bytes) * 32 * n_bytes].reshape(-1, 32 * n_bytes)
    tables = np.random.default_rng(1).integers(0, 128, (4, 64 * n_bytes), dtype=np.uint8)
    out = np.zeros((4, 32), dtype=np.int32)
    ns = fastest(
        {
            "1 query": lambda order: sums(codes, n_bytes, tables, (0,), order, False, out),
            "ahead": lambda order: sums(codes, n_bytes, tables, (0,), order, True, out),
            "2 queries": lambda order: sums(codes, n_bytes, tables, (0, 1), order, True, out),
            "4 queries": lambda order: sums(codes, n_bytes, tables, (0, 1, 2, 3), order, True, out),
            "precise": lambda order: precise_sums(codes, n_bytes, tables, (0,), order, out),
        },
        len(codes),
        500,
        rounds,
    )
    return ns | fastest({"plain": lambda order: plain_sums(codes, n_bytes, tables, order, out)}, len(codes), 50, 3)


def measure_tables(report: Report, dims: Sequence[int], rounds: int) -> None:
    """Measure the making of tables of one query."""
    table = report.table("tables", ["dims", "bits", "tables us", "precise us"], "microseconds a query, minimum")
    for n_dims in dims:
        projections = np.random.default_rng(0).standard_normal((50, n_dims)).astype(np.float32)
        for bits in (1, 2, 4):
            room = np.zeros(2 * querytables.room_for_tables(n_dims, bits), dtype=np.uint8)
            calls: dict[str, Callable[[Rows], Any]] = {
                "tables": partial(many_tables, projections, bits, False, room),
                "precise": partial(many_tables, projections, bits, True, room),
            }
            ns = fastest(calls, len(projections), 50, rounds)
            table.row(n_dims, bits, ns["tables"] / 1e3, ns["precise"] / 1e3)


def measure_weights(report: Report, dims: Sequence[int], sizes: dict[str, int], rounds: int) -> None:
    """Measure weights of blocks of 16 rows of Hamming codes."""
    columns = ["look-ups", "planes", "look-ups 4", "planes 4"]
    table = report.table(
        "weights",
        ["bits", "path", "where", *columns, "quantise us", "tables us"],
        "ns a block of 16 rows, minimum; 4: for four queries that share it; path: bytes of a word that one instruction "
        "looks up for 16 rows, 0 if searches use planes; microseconds of a query to quantise it and to make its tables",
    )
    for n_bits in dims:
        for where, n_bytes in sizes.items():
            ns = times_of_weights(n_bits, n_bytes, rounds)
            prepared = (ns[name] / 1e3 for name in ("quantise", "tables"))
            table.row(n_bits, weights.TOGETHER, where, *(ns[name] for name in columns), *prepared)


def times_of_weights(n_bits: int, n_bytes: int, rounds: int) -> dict[str, float]:
    """Return the nanoseconds a block, for blocks all over some memory, and of what is prepared for a query."""
    rng, n_words = np.random.default_rng(0), -(-n_bits // 64)
    blocks = rng.integers(0, 2**64, (max(4, n_bytes // (128 * n_words)), n_words, 16), dtype=np.uint64)
    projections = rng.standard_normal((50, n_bits)).astype(np.float32)
    quantised = np.zeros((50, 64 * n_words), dtype=np.int8)
    steps, totals = np.zeros(50, dtype=np.float32), np.zeros(50, dtype=np.int32)
    levels.quantise(projections, quantised, steps, totals)
    tables, planes = levels.tables_of(quantised[:4]), levels.planes_of(quantised[:4])
    out, four = np.zeros((4, 16), dtype=np.int32), (0, 1, 2, 3)
    ns = fastest(
        {
            "look-ups": lambda order: weights_by_tables(tables, (0,), blocks, order, out),
            "planes": lambda order: weights_by_planes(planes, (0,), blocks, order, out),
            "look-ups 4": lambda order: weights_by_tables(tables, four, blocks, order, out),
            "planes 4": lambda order: weights_by_planes(planes, four, blocks, order, out),
        },
        len(blocks),
        500,
        rounds,
    )
    return ns | fastest(
        {
            "quantise": lambda _: levels.quantise(projections, quantised, steps, totals),
            "tables": lambda _: levels.tables_of(quantised),
        },
        1,
        50,
        rounds,
    )


def measure_products(report: Report, dims: Sequence[int], sizes: dict[str, int], rounds: int) -> None:
    """Measure products of one query with rows."""
    table = report.table(
        "products",
        ["dims", "where", "int8", "plain int8", "int4", "float32", "plain f32", "float16", "l2 int8", "l2 f32"],
        "ns a row, minimum; plain: the compiler's own loop, for floats with fastmath",
    )
    for n_dims in dims:
        for where, n_bytes in sizes.items():
            table.row(n_dims, where, *times_of_products(n_dims, n_bytes, rounds).values())


def times_of_products(n_dims: int, n_bytes: int, rounds: int) -> dict[str, float]:
    """Return the nanoseconds a row, for rows all over some memory."""
    rng = np.random.default_rng(0)
    n_rows = max(4, n_bytes // (4 * n_dims))
    query, real = rng.integers(-2_000, 2_000, n_dims).astype(np.int16), rng.random(n_dims, dtype=np.float32)
    split = query.reshape(2, -1).copy()
    matrix = rng.random((n_rows, n_dims), dtype=np.float32)
    halves, wholes = matrix.astype(np.float16).view(np.uint16), (100 * matrix).astype(np.int8)
    nibbles = wholes.view(np.uint8)[:, : n_dims // 2].copy()
    out, floats = np.zeros(500, dtype=np.int64), np.zeros(500, dtype=np.float32)
    return fastest(
        {
            "int8": lambda rows: dots.dots_of_int8(query, wholes, rows, out),
            "plain int8": lambda rows: plain_whole_dots(query, wholes, rows, out),
            "int4": lambda rows: dots.dots_of_int4(split, nibbles, rows, out),
            "float32": lambda rows: dots.dots_of_floats(real, matrix, rows, floats),
            "plain f32": lambda rows: plain_dots(real, matrix, rows, floats),
            "float16": lambda rows: dots.dots_of_floats(real, halves, rows, floats),
            "l2 int8": lambda rows: dots.squares_of_int8(query, 0, wholes, rows, out),
            "l2 f32": lambda rows: dots.squares_of_floats(real, matrix, rows, floats),
        },
        n_rows,
        500,
        rounds,
    )
