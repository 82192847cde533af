"""Look-up sums, tables, weights and products of coded rows, measured in a process of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.kernels.timing import Memory, fastest
from cbeindex._core.typing import Rows
from cbeindex.kernels import dots, estimates, levels, lookup, querytables, weights
from cbeindex.kernels.jit import njit


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


class Lookups:
    """What is measured in the process."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes, self._memories = sizes, {where: Memory(n_bytes) for where, n_bytes in sizes.items()}

    def blocks(self, n_dims: int, bits: int, where: str, rounds: int) -> dict[str, float]:
        """Return the nanoseconds a block of 32 rows, in random order; "read": those of reading as many bytes."""
        memory, n_bytes = self._memories[where], -(-n_dims * bits // 8)
        codes = memory.as_items(32 * n_bytes)
        tables = np.random.default_rng(1).integers(0, 128, (4, 64 * n_bytes), dtype=np.uint8)
        out = np.zeros((4, 32), dtype=np.int32)
        ns = fastest(
            {
                "1 query": lambda order: sums(codes, n_bytes, tables, (0,), order, False, out),
                "ahead": lambda order: sums(codes, n_bytes, tables, (0,), order, True, out),
                "2 queries": lambda order: sums(codes, n_bytes, tables, (0, 1), order, True, out),
                "4 queries": lambda order: sums(codes, n_bytes, tables, (0, 1, 2, 3), order, True, out),
                "precise": lambda order: precise_sums(codes, n_bytes, tables, (0,), order, out),
                "read": lambda order: memory.read(order[0], 32 * n_bytes * len(order)),
            },
            len(codes),
            500,
            rounds,
        )
        return ns | fastest({"plain": lambda order: plain_sums(codes, n_bytes, tables, order, out)}, len(codes), 50, 3)

    def tables(self, n_dims: int, bits: int, rounds: int) -> dict[str, float]:
        """Return the nanoseconds that the tables of a query take to make."""
        projections = np.random.default_rng(0).standard_normal((50, n_dims)).astype(np.float32)
        room = np.zeros(2 * querytables.room_for_tables(n_dims, bits), dtype=np.uint8)
        calls: dict[str, Callable[[Rows], Any]] = {
            "tables": partial(many_tables, projections, bits, False, room),
            "precise": partial(many_tables, projections, bits, True, room),
        }
        return fastest(calls, len(projections), 50, rounds)

    def weights(self, n_bits: int, where: str, rounds: int) -> dict[str, float]:
        """Return the nanoseconds a block of 16 rows of Hamming codes, and of preparing a query.

        "together" is the number of bytes of a word that one instruction looks up for 16 rows, 0 if searches use planes.
        """
        rng, n_words = np.random.default_rng(0), -(-n_bits // 64)
        blocks = self._memories[where].as_items(128 * n_words).view(np.uint64).reshape(-1, n_words, 16)
        projections = rng.standard_normal((50, n_bits)).astype(np.float32)
        quantised = np.zeros((50, 64 * n_words), dtype=np.int8)
        steps, totals = np.zeros(50, dtype=np.float32), np.zeros(50, dtype=np.int32)
        levels.quantise(projections, quantised, steps, totals)
        tables, planes = levels.tables_of(quantised[:4]), levels.planes_of(quantised[:4])
        out, four = np.zeros((4, 16), dtype=np.int32), (0, 1, 2, 3)
        of_blocks = fastest(
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
        of_queries = fastest(
            {
                "quantise": lambda _: levels.quantise(projections, quantised, steps, totals),
                "tables": lambda _: levels.tables_of(quantised),
            },
            1,
            50,
            rounds,
        )
        return {"together": weights.TOGETHER, **of_blocks, **of_queries}

    def products(self, n_dims: int, where: str, rounds: int) -> dict[str, float]:
        """Return the nanoseconds a row, for rows all over some memory."""
        rng = np.random.default_rng(0)
        n_rows = max(4, self._sizes[where] // (4 * n_dims))
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
